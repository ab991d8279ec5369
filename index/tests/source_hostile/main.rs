//! Nodes that are away, overloaded, misconfigured or hostile: every case gives the error that says what to do.

#[path = "../common/mock.rs"]
mod mock;
#[path = "../common/sample.rs"]
mod sample;

mod connect;
mod http;
mod rest;
mod rpc;

use std::time::Duration;

use bitcoin::blockdata::constants::genesis_block;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::hex::DisplayHex;
use bitcoin::{BlockHash, Network};
use mock::{Answer, Mock, Request};
use peregrine_index::source::{Credentials, RestSource, RpcSource, Secret, SourceError};
use sample::sample_block;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_millis(500);

fn rest_source(mock: &Mock) -> RestSource {
    RestSource::new(&mock.url(), Network::Regtest, TIMEOUT).unwrap()
}

fn user() -> Credentials {
    Credentials::User { user: "alice".into(), password: Secret::new("hunter2".into()) }
}

fn rpc_source(mock: &Mock) -> RpcSource {
    RpcSource::new(&mock.url(), Network::Regtest, user(), TIMEOUT).unwrap()
}

fn zero() -> BlockHash {
    BlockHash::all_zeros()
}

/// A server that gives every request the same answer.
fn always(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Mock {
    Mock::start(move |_| answer())
}

fn unavailable<T: std::fmt::Debug>(result: Result<T, SourceError>) -> String {
    match result {
        Err(SourceError::Unavailable(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, SourceError>) -> String {
    match result {
        Err(SourceError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn invalid<T: std::fmt::Debug>(result: Result<T, SourceError>) -> String {
    match result {
        Err(SourceError::Invalid(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// Answers `getblockhash` and `getblockheader` like a node with these blocks, batches through `change`.
fn rpc_node(
    blocks: Vec<bitcoin::Block>,
    change: impl Fn(&mut Vec<Value>) + Send + Sync + 'static,
) -> impl Fn(&Request) -> Answer + Send + Sync {
    let call = move |request: &Value| {
        let id = &request["id"];
        let param = &request["params"][0];
        let result = match request["method"].as_str().unwrap() {
            "getblockchaininfo" => {
                json!({"blocks": blocks.len() - 1, "bestblockhash": blocks.last().unwrap().block_hash().to_string()})
            }
            "getblockhash" => match blocks.get(usize::try_from(param.as_u64().unwrap()).unwrap()) {
                Some(block) => json!(block.block_hash().to_string()),
                None => {
                    return json!({"error": {"code": -8, "message": "Block height out of range"}, "result": null, "id": id});
                }
            },
            "getblockheader" => {
                let found =
                    blocks.iter().find(|block| block.block_hash().to_string() == param.as_str().unwrap());
                json!(serialize(&found.unwrap().header).to_lower_hex_string())
            }
            method => panic!("{method}"),
        };
        json!({"result": result, "error": null, "id": id})
    };
    move |request| {
        let answer = match serde_json::from_slice(&request.body).unwrap() {
            Value::Array(requests) => {
                let mut answers: Vec<Value> = requests.iter().map(&call).collect();
                change(&mut answers);
                Value::Array(answers)
            }
            single => call(&single),
        };
        Answer::Full(200, answer.to_string().into_bytes())
    }
}

fn chain_of(len: u32) -> Vec<bitcoin::Block> {
    let mut blocks = vec![genesis_block(Network::Regtest)];
    for salt in 1..len {
        blocks.push(sample_block(blocks[blocks.len() - 1].block_hash(), salt).block);
    }
    blocks
}
