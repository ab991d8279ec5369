//! JSON-RPC: blocks, batches, errors and logins.

use std::fs;
use std::sync::Arc;

use bitcoin::consensus::encode::serialize_hex;
use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, Network};
use peregrine_index::source::{BlockWithPrevouts, ChainSource, Credentials, RpcSource, SourceError};
use serde_json::{Value, json};

use crate::mock::{Answer, Mock};
use crate::sample::sample_block;
use crate::{TIMEOUT, always, chain_of, invalid, refused, rpc_node, rpc_source, unavailable, zero};

/// The answer of `getblock <hash> 3`.
fn verbose(sample: &BlockWithPrevouts) -> Value {
    let header = &sample.block.header;
    let transactions: Vec<Value> = sample
        .block
        .txdata
        .iter()
        .zip(&sample.prevouts)
        .map(|(tx, prevouts)| {
            let mut vin: Vec<Value> = prevouts
                .iter()
                .map(|output| {
                    // Exact, because the amounts of the sample are small.
                    let value = output.value.to_btc();
                    json!({"prevout": {"value": value, "scriptPubKey": {"hex": output.script_pubkey.to_hex_string()}}})
                })
                .collect();
            if vin.is_empty() {
                vin.push(json!({"coinbase": "00"}));
            }
            json!({"hex": serialize_hex(tx), "vin": vin})
        })
        .collect();
    json!({
        "version": header.version.to_consensus(),
        "previousblockhash": header.prev_blockhash.to_string(),
        "merkleroot": header.merkle_root.to_string(),
        "time": header.time,
        "bits": format!("{:08x}", header.bits.to_consensus()),
        "nonce": header.nonce,
        "tx": transactions,
    })
}

fn rpc_block(hash: BlockHash, result: Value) -> Result<BlockWithPrevouts, SourceError> {
    let body = json!({"result": result, "error": null, "id": 0}).to_string();
    let mock = Mock::start(move |_| Answer::Full(200, body.clone().into_bytes()));
    rpc_source(&mock).block(hash)
}

#[test]
fn rpc_reads_a_block() {
    let sample = sample_block(zero(), 1);
    let hash = sample.block.block_hash();
    assert_eq!(rpc_block(hash, verbose(&sample)).unwrap(), sample);
    invalid(rpc_block(zero(), verbose(&sample)));
}

#[test]
fn rpc_blocks_are_checked() {
    let sample = sample_block(BlockHash::from_byte_array([9; 32]), 1);
    let hash = sample.block.block_hash();
    let changed = |path: &str, value: Value| {
        let mut block = verbose(&sample);
        *block.pointer_mut(path).unwrap() = value;
        rpc_block(hash, block)
    };
    for (path, value) in [
        ("/version", json!(1)),
        ("/version", json!(4_294_967_289_u32)),
        ("/previousblockhash", json!(null)),
        ("/previousblockhash", json!("zz")),
        ("/merkleroot", json!(7)),
        ("/time", json!(-1)),
        ("/bits", json!("207fffff0")),
        ("/bits", json!("+07fffff")),
        ("/nonce", json!("42")),
        ("/tx", json!({})),
        ("/tx", json!([])),
        ("/tx/1", json!("hash only")),
        ("/tx/1/hex", json!("")),
        ("/tx/1/hex", json!("0")),
        ("/tx/1/hex", json!("ü")),
        ("/tx/1/vin", json!([])),
        ("/tx/1/vin", json!("é".repeat(10_000))),
        ("/tx/1/vin/0/prevout", json!([])),
        ("/tx/1/vin/0/prevout/value", json!(-0.1)),
        ("/tx/1/vin/0/prevout/value", json!("0.1")),
        ("/tx/1/vin/0/prevout/value", json!(21_000_001)),
        ("/tx/1/vin/0/prevout/value", json!(1e-9)),
        ("/tx/1/vin/0/prevout/scriptPubKey", json!({})),
        ("/tx/1/vin/0/prevout/scriptPubKey/hex", json!("5")),
    ] {
        let text = invalid(changed(path, value));
        assert!(text.len() < 600 && text.is_ascii(), "{path}: {text}");
    }
    // What a node before version 23 answers.
    let text = refused(changed("/tx/1/vin/0", json!({"txid": "00"})));
    assert!(text.contains("Core 23"), "{text}");
}

#[test]
fn hostile_json_is_invalid() {
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "null",
        "[]",
        "{}",
        "{\"result\":null,\"error\":null,\"id\":0}",
        "{\"result\":{}}",
        "{\"result\":[]}",
        "{\"result\":\"\\ud800\"}",
        "{\"result\":{\"tx\":9e999999}}",
        "{\"error\":\"text\"}",
        "{\"error\":{\"code\":\"x\"}}",
        &format!("{{\"result\":{deep}"),
        &deep,
    ] {
        let bytes = body.to_owned().into_bytes();
        let mock = Mock::start(move |_| Answer::Full(200, bytes.clone()));
        let source = rpc_source(&mock);
        invalid(source.tip());
        invalid(source.hash_at(1));
        invalid(source.block(zero()));
        invalid(source.headers_after(zero(), 0, 1));
    }
    let mock = always(|| Answer::Full(200, b"{\"result\":\"\xff\xfe\",\"error\":null,\"id\":0}".into()));
    invalid(rpc_source(&mock).hash_at(1));
    invalid(rpc_source(&mock).block(zero()));
}

#[test]
fn rpc_errors_say_what_to_do() {
    let error = |status, code: i64, message: &'static str| {
        let body = json!({"result": null, "error": {"code": code, "message": message}, "id": 0}).to_string();
        let mock = Mock::start(move |_| Answer::Full(status, body.clone().into_bytes()));
        rpc_source(&mock).block(zero())
    };
    assert!(unavailable(error(500, -28, "Loading block index…")).contains("Loading block index"));
    assert!(refused(error(500, -1, "Block not available (pruned data)")).contains("isn't pruned"));
    assert!(refused(error(500, -1, "Undo data not available (pruned data)")).contains("isn't pruned"));
    unavailable(error(500, -1, "Block not available (not fully downloaded)"));
    unavailable(error(500, -1, "Block not found on disk"));
    assert!(matches!(error(500, -5, "Block not found"), Err(SourceError::UnknownBlock(_))));
    assert!(matches!(error(200, -5, "Block not found"), Err(SourceError::UnknownBlock(_))));
    assert!(refused(error(404, -32601, "Method not found")).contains("Core 23"));
    assert!(refused(error(500, -32603, "\x1b[31mred\nlines")).contains("[31mred lines (code -32603)"));
    let status = |status, body: &'static str| {
        let mock = always(move || Answer::Full(status, body.into()));
        rpc_source(&mock).tip()
    };
    assert!(unavailable(status(503, "Work queue depth exceeded")).contains("Work queue"));
    assert!(unavailable(status(500, "")).contains("500"));
    assert!(refused(status(403, "")).contains("rpcwhitelist"));
    assert!(refused(status(404, "<html>")).contains("no Bitcoin Core"));
    assert!(refused(status(405, "JSONRPC server handles only POST requests")).contains("405"));
}

#[test]
fn a_new_cookie_is_read_after_a_401() {
    let dir = tempfile::tempdir().unwrap();
    let cookie = dir.path().join(".cookie");
    // "__cookie__:new" in base64.
    let accepted = "authorization: Basic X19jb29raWVfXzpuZXc=";
    let mock = Mock::start(move |request| match request.headers.iter().any(|header| header == accepted) {
        true => Answer::Full(
            200,
            json!({"result": zero().to_string(), "error": null, "id": 0}).to_string().into(),
        ),
        false => Answer::Full(401, Vec::new()),
    });
    let credentials = Credentials::CookieFile(cookie.clone());
    let source = RpcSource::new(&mock.url(), Network::Regtest, credentials, TIMEOUT).unwrap();

    let text = unavailable(source.hash_at(0));
    assert!(text.contains(".cookie") && text.contains("while bitcoind runs"), "{text}");
    fs::write(&cookie, "").unwrap();
    unavailable(source.hash_at(0));
    assert!(mock.requests().is_empty());

    fs::write(&cookie, "__cookie__:old\n").unwrap();
    let text = refused(source.hash_at(0));
    assert!(text.contains(".cookie") && !text.contains("old"), "{text}");
    assert_eq!(mock.requests().len(), 1, "the same cookie isn't worth a second try");

    fs::write(&cookie, "__cookie__:new\n").unwrap();
    assert_eq!(source.hash_at(0).unwrap(), Some(zero()));
    assert_eq!(mock.requests().len(), 3);
    assert_eq!(source.hash_at(0).unwrap(), Some(zero()));
    assert_eq!(mock.requests().len(), 4);

    // Many threads at the moment of a restart.
    let source = Arc::new(source);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(source.hash_at(0).unwrap(), Some(zero())));
        }
    });
}

#[test]
fn a_wrong_password_is_refused_without_showing_it() {
    let mock = always(|| Answer::Full(401, Vec::new()));
    let text = refused(rpc_source(&mock).tip());
    assert!(text.contains("alice") && text.contains("rpcpassword") && !text.contains("hunter2"), "{text}");
    assert_eq!(mock.requests().len(), 1);
}

#[test]
fn rpc_headers_follow_in_any_order_of_answers() {
    let blocks = chain_of(5);
    let hashes: Vec<_> = blocks.iter().map(|block| block.block_hash()).collect();
    let headers: Vec<_> = blocks.iter().map(|block| block.header).collect();
    let mock = Mock::start(rpc_node(blocks, |answers| answers.reverse()));
    let source = rpc_source(&mock);
    assert_eq!(source.headers_after(hashes[0], 0, 2000).unwrap(), Some(headers[1..].to_vec()));
    assert_eq!(source.headers_after(hashes[0], 0, 2).unwrap(), Some(headers[1..3].to_vec()));
    assert_eq!(source.headers_after(hashes[4], 4, 9).unwrap(), Some(Vec::new()));
    assert_eq!(source.headers_after(hashes[1], 2, 9).unwrap(), None);
    assert_eq!(source.headers_after(hashes[4], 5, 9).unwrap(), None);
    assert_eq!(source.headers_after(hashes[4], u32::MAX, 9).unwrap(), None);
    assert_eq!(source.headers_after(hashes[0], 0, 0).unwrap(), Some(Vec::new()));
    assert_eq!(source.hash_at(u32::MAX).unwrap(), None);
}

#[test]
fn rpc_batches_are_checked() {
    let attempt = |change: fn(&mut Vec<Value>)| {
        let blocks = chain_of(4);
        let hash = blocks[0].block_hash();
        let mock = Mock::start(rpc_node(blocks, change));
        rpc_source(&mock).headers_after(hash, 0, 9)
    };
    invalid(attempt(|answers| drop(answers.pop())));
    invalid(attempt(|answers| answers.push(answers[0].clone())));
    invalid(attempt(|answers| answers[1]["id"] = json!(0)));
    invalid(attempt(|answers| answers[1]["id"] = json!(7)));
    invalid(attempt(|answers| answers[1]["id"] = json!(null)));
    invalid(attempt(|answers| answers[1]["result"] = json!(null)));
    invalid(attempt(|answers| answers[1]["result"] = json!("00")));
    refused(attempt(|answers| answers[1]["error"] = json!({"code": -1, "message": "no"})));
    // The chain became shorter between the calls.
    let shorter = attempt(|answers| {
        if answers.len() == 3 && answers[2]["result"].as_str().unwrap().len() == 64 {
            answers[2] = json!({"result": null, "error": {"code": -8, "message": "Block height out of range"}, "id": 2});
        }
    });
    assert_eq!(shorter.unwrap().unwrap().len(), 2);
}

#[test]
fn a_chain_that_changes_while_it_is_read_gives_what_belongs_together() {
    let old = chain_of(4);
    let (start, expected) = (old[0].block_hash(), old[1].header);
    let stray = sample_block(zero(), 77).block;
    let mut mixed = old.clone();
    mixed[2] = stray.clone();
    let mock = Mock::start(rpc_node(mixed, |_| ()));
    assert_eq!(rpc_source(&mock).headers_after(start, 0, 9).unwrap(), Some(vec![expected]));
    let mut mixed = old;
    mixed[1] = stray;
    let mock = Mock::start(rpc_node(mixed, |_| ()));
    unavailable(rpc_source(&mock).headers_after(start, 0, 9));
}
