//! Nodes that are away, overloaded, misconfigured or hostile: every case gives the error that says what to do.

#[path = "common/mock.rs"]
mod mock;
#[path = "common/sample.rs"]
mod sample;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bitcoin::blockdata::constants::genesis_block;
use bitcoin::consensus::encode::serialize_hex;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::hex::DisplayHex;
use bitcoin::{BlockHash, Network};
use mock::{Answer, Mock, Request};
use peregrine_index::source::{
    BlockWithPrevouts, ChainSource, Credentials, NodeConfig, NodeKind, RestSource, RpcSource, Secret,
    SourceError, Waiter, connect, encode_spent_outputs,
};
use sample::sample_block;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_millis(500);

fn rest(mock: &Mock) -> RestSource {
    RestSource::new(&mock.url(), Network::Regtest, TIMEOUT).unwrap()
}

fn user() -> Credentials {
    Credentials::User { user: "alice".into(), password: Secret::new("hunter2".into()) }
}

fn rpc(mock: &Mock) -> RpcSource {
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

/// Serves one block over REST.
fn rest_node(sample: BlockWithPrevouts) -> impl Fn(&Request) -> Answer + Send + Sync {
    move |request| {
        let hash = sample.block.block_hash();
        if request.path == format!("/rest/block/{hash}.bin") {
            Answer::Full(200, serialize(&sample.block))
        } else if request.path == format!("/rest/spenttxouts/{hash}.bin") {
            Answer::Full(200, encode_spent_outputs(&sample.prevouts))
        } else {
            Answer::Full(404, format!("{} not found\r\n", request.path).into_bytes())
        }
    }
}

#[test]
fn rest_reads_a_block_over_one_connection() {
    let sample = sample_block(zero(), 1);
    let mock = Mock::start(rest_node(sample.clone()));
    let source = rest(&mock);
    assert_eq!(source.block(sample.block.block_hash()).unwrap(), sample);
    assert!(matches!(source.block(zero()), Err(SourceError::UnknownBlock(hash)) if hash == zero()));
    assert_eq!(
        source.describe(),
        format!("Bitcoin Core REST at {}", mock.url().trim_start_matches("http://"))
    );
}

#[test]
fn rest_follows_statuses() {
    let answer = |status, body: &'static str| {
        let mock = always(move || Answer::Full(status, body.into()));
        rest(&mock).block(zero())
    };
    let text = unavailable(answer(503, "Service temporarily unavailable: Loading block index…\r\n"));
    assert!(text.contains("Loading block index"), "{text}");
    assert!(unavailable(answer(503, "Work queue depth exceeded")).contains("Work queue"));
    assert!(unavailable(answer(503, "")).contains("503"));
    assert!(unavailable(answer(500, "I/O error reading 00")).contains("I/O error"));
    assert!(refused(answer(404, "")).contains("rest=1"));
    assert!(refused(answer(404, "<html>nothing here</html>")).contains("rest=1"));
    assert!(refused(answer(404, "00 not available (pruned data)\r\n")).contains("isn't pruned"));
    unavailable(answer(404, "00 not available (not fully downloaded)\r\n"));
    unavailable(answer(404, "00 undo not available\r\n"));
    assert!(refused(answer(403, "")).contains("rpcallowip"));
    refused(answer(401, ""));
    refused(answer(400, "Invalid hash"));
    assert!(matches!(answer(404, "00 not found\r\n"), Err(SourceError::UnknownBlock(_))));
}

#[test]
fn rest_does_not_follow_redirects() {
    let mock = Mock::start(|request| match request.path.as_str() {
        "/elsewhere" => Answer::Full(200, Vec::new()),
        _ => Answer::Raw(b"HTTP/1.1 302 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".into()),
    });
    refused(rest(&mock).tip());
    assert_eq!(mock.requests().len(), 1);
}

#[test]
fn a_node_that_is_away_is_unavailable() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // Accepts (the kernel does), but never answers.
    let source = RestSource::new(&url, Network::Regtest, Duration::from_millis(200)).unwrap();
    assert!(unavailable(source.tip()).contains("0.2 s"));
    drop(listener);
    assert_eq!(unavailable(source.tip()), "connection refused");
    let source = RpcSource::new(&url, Network::Regtest, user(), TIMEOUT).unwrap();
    assert_eq!(unavailable(source.tip()), "connection refused");
}

#[test]
fn broken_http_is_an_error() {
    let answer = |bytes: &'static [u8]| {
        let mock = always(move || Answer::Raw(bytes.into()));
        let (over_rest, over_rpc) = (rest(&mock).tip(), rpc(&mock).tip());
        assert_eq!(
            std::mem::discriminant(&over_rest.unwrap_err()),
            std::mem::discriminant(over_rpc.as_ref().unwrap_err())
        );
        over_rpc
    };
    assert_eq!(unavailable(answer(b"")), "the node closed the connection");
    assert_eq!(unavailable(answer(b"HTTP/1.1 200 OK\r\nContent-Le")), "the node closed the connection");
    unavailable(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{\"result\":1}"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n{}"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"));
    invalid(answer(b"SSH-2.0-OpenSSH_9.2p1\r\n"));
    invalid(answer(b"\x15\x03\x03\x00\x02\x02\x28"));
    invalid(answer(b"HTTP/1.1 200 OK\r\n\r\n"));
    invalid(answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00{"));
}

#[test]
fn answers_without_end_are_cut_off() {
    let start = Instant::now();
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n ".into()));
    let source = RestSource::new(&mock.url(), Network::Regtest, Duration::from_secs(30)).unwrap();
    assert!(invalid(source.block(zero())).contains("more than 4000000 bytes"));
    invalid(source.tip());
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n ".into()));
    let source = RpcSource::new(&mock.url(), Network::Regtest, user(), Duration::from_secs(30)).unwrap();
    invalid(source.tip());
    let mock = always(|| Answer::Endless(b"HTTP/1.1 200 OK\r\nX: a".into()));
    let source = RestSource::new(&mock.url(), Network::Regtest, Duration::from_secs(30)).unwrap();
    invalid(source.tip());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn slow_answers_time_out() {
    let mock = always(|| Answer::Silence(Duration::from_secs(3)));
    let start = Instant::now();
    assert!(unavailable(rest(&mock).tip()).contains("0.5 s"));
    assert!(unavailable(rpc(&mock).tip()).contains("0.5 s"));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_kept_connection_that_is_closed_is_opened_again() {
    // The client only learns on its next request that the connection is gone.
    let mock = always(|| Answer::FullThenClose(200, zero().to_byte_array().into()));
    let source = rest(&mock);
    for _ in 0..20 {
        assert_eq!(source.hash_at(0).unwrap(), Some(zero()));
    }
}

#[test]
fn the_wrong_block_is_invalid() {
    let (wanted, other) = (sample_block(zero(), 1), sample_block(zero(), 2));
    let bytes = serialize(&other.block);
    let mock = Mock::start(move |_| Answer::Full(200, bytes.clone()));
    let text = invalid(rest(&mock).block(wanted.block.block_hash()));
    assert!(text.contains("instead"), "{text}");
}

#[test]
fn more_spent_outputs_than_a_block_can_have_are_not_downloaded() {
    let sample = sample_block(zero(), 1);
    let hash = sample.block.block_hash();
    let block = serialize(&sample.block);
    let mock = Mock::start(move |request| match request.path.starts_with("/rest/block/") {
        true => Answer::Full(200, block.clone()),
        false => Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n ".into()),
    });
    assert!(invalid(rest(&mock).block(hash)).contains("an answer of more than"));
}

#[test]
fn rest_headers_must_follow() {
    let first = sample_block(zero(), 1).block;
    let second = sample_block(first.block_hash(), 2).block;
    let third = sample_block(second.block_hash(), 3).block;
    let headers = |body: Vec<u8>| {
        let mock = Mock::start(move |_| Answer::Full(200, body.clone()));
        rest(&mock).headers_after(first.block_hash(), 1, 2)
    };
    let bytes = |blocks: &[&bitcoin::Block]| {
        blocks.iter().flat_map(|block| serialize(&block.header)).collect::<Vec<u8>>()
    };
    assert_eq!(headers(bytes(&[&first, &second, &third])).unwrap(), Some(vec![second.header, third.header]));
    assert_eq!(headers(bytes(&[&first])).unwrap(), Some(Vec::new()));
    assert_eq!(headers(Vec::new()).unwrap(), None);
    invalid(headers(bytes(&[&second])));
    invalid(headers(bytes(&[&first, &third])));
    invalid(headers(bytes(&[&first, &first])));
    invalid(headers(bytes(&[&first])[..79].to_vec()));
    invalid(headers(bytes(&[&first, &second, &third, &third])));
}

#[test]
fn rest_json_and_hashes_are_checked() {
    let body = |body: &'static [u8]| {
        let mock = always(move || Answer::Full(200, body.into()));
        (rest(&mock).tip(), rest(&mock).hash_at(3))
    };
    for text in [&b"{}"[..], b"", b"null", b"\xff", b"{\"blocks\":-1,\"bestblockhash\":\"00\"}"] {
        let (tip, hash) = body(text);
        invalid(tip);
        invalid(hash);
    }
}

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
    rpc(&mock).block(hash)
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
        let source = rpc(&mock);
        invalid(source.tip());
        invalid(source.hash_at(1));
        invalid(source.block(zero()));
        invalid(source.headers_after(zero(), 0, 1));
    }
    let mock = always(|| Answer::Full(200, b"{\"result\":\"\xff\xfe\",\"error\":null,\"id\":0}".into()));
    invalid(rpc(&mock).hash_at(1));
    invalid(rpc(&mock).block(zero()));
}

#[test]
fn rpc_errors_say_what_to_do() {
    let error = |status, code: i64, message: &'static str| {
        let body = json!({"result": null, "error": {"code": code, "message": message}, "id": 0}).to_string();
        let mock = Mock::start(move |_| Answer::Full(status, body.clone().into_bytes()));
        rpc(&mock).block(zero())
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
        rpc(&mock).tip()
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
    let text = refused(rpc(&mock).tip());
    assert!(text.contains("alice") && text.contains("rpcpassword") && !text.contains("hunter2"), "{text}");
    assert_eq!(mock.requests().len(), 1);
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

#[test]
fn rpc_headers_follow_in_any_order_of_answers() {
    let blocks = chain_of(5);
    let hashes: Vec<_> = blocks.iter().map(|block| block.block_hash()).collect();
    let headers: Vec<_> = blocks.iter().map(|block| block.header).collect();
    let mock = Mock::start(rpc_node(blocks, |answers| answers.reverse()));
    let source = rpc(&mock);
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
        rpc(&mock).headers_after(hash, 0, 9)
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
    assert_eq!(rpc(&mock).headers_after(start, 0, 9).unwrap(), Some(vec![expected]));
    let mut mixed = old;
    mixed[1] = stray;
    let mock = Mock::start(rpc_node(mixed, |_| ()));
    unavailable(rpc(&mock).headers_after(start, 0, 9));
}

/// Settings for a node at this address, with a login.
fn config(mock: &Mock, kind: NodeKind) -> NodeConfig {
    NodeConfig {
        url: Some(mock.url()),
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        kind,
        timeout: TIMEOUT,
        ..NodeConfig::new(Network::Regtest)
    }
}

/// A node on `network`: JSON-RPC, and REST as far as `rest` answers.
fn whole_node(network: Network, rest: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> Mock {
    let rpc = rpc_node(vec![genesis_block(network)], |_| ());
    Mock::start(move |request| match request.path.as_str() {
        "/" => rpc(request),
        path => match rest(path) {
            Some(body) => Answer::Full(200, body),
            None => Answer::Full(404, Vec::new()),
        },
    })
}

fn genesis_bytes(network: Network) -> Vec<u8> {
    genesis_block(network).block_hash().to_byte_array().into()
}

#[test]
fn auto_prefers_rest_and_says_why_not() {
    let full = |path: &str| match path {
        "/rest/blockhashbyheight/0.bin" => Some(genesis_bytes(Network::Regtest)),
        path if path.starts_with("/rest/spenttxouts/") => Some(vec![1, 0]),
        _ => None,
    };
    let node = connect(&config(&whole_node(Network::Regtest, full), NodeKind::Auto)).unwrap();
    assert_eq!((node.kind(), node.fallback_reason()), (NodeKind::Rest, None));

    let old = move |path: &str| full(path).filter(|_| !path.contains("spenttxouts"));
    let mock = whole_node(Network::Regtest, old);
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert_eq!(node.kind(), NodeKind::Rpc);
    assert!(node.fallback_reason().unwrap().contains("Core 30"), "{node:?}");
    assert!(refused(connect(&config(&mock, NodeKind::Rest))).contains("Core 30"));

    let mock = whole_node(Network::Regtest, |_| None);
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert!(node.fallback_reason().unwrap().contains("rest=1"), "{node:?}");
    assert!(refused(connect(&config(&mock, NodeKind::Rest))).contains("rest=1"));
    assert_eq!(connect(&config(&mock, NodeKind::Rpc)).unwrap().fallback_reason(), None);
}

#[test]
fn a_refused_login_mentions_why_rest_was_not_used() {
    let mock = Mock::start(|request| match request.path.as_str() {
        "/" => Answer::Full(401, Vec::new()),
        _ => Answer::Full(404, Vec::new()),
    });
    let text = refused(connect(&config(&mock, NodeKind::Auto)));
    assert!(text.contains("rpcpassword") && text.contains("rest=1") && !text.contains("hunter2"), "{text}");
}

#[test]
fn the_wrong_network_is_refused_with_both_names() {
    let mock = whole_node(Network::Signet, |path| {
        (path == "/rest/blockhashbyheight/0.bin").then(|| genesis_bytes(Network::Signet))
    });
    for kind in [NodeKind::Auto, NodeKind::Rest, NodeKind::Rpc] {
        let text = refused(connect(&config(&mock, kind)));
        assert!(text.contains("signet") && text.contains("regtest"), "{text}");
    }
}

#[test]
fn a_node_of_another_network_at_the_same_address_is_no_reorganisation() {
    let swapped = Arc::new(AtomicBool::new(false));
    let state = swapped.clone();
    let mock = whole_node(Network::Regtest, move |path| {
        let network = if state.load(Ordering::SeqCst) { Network::Bitcoin } else { Network::Regtest };
        match path {
            "/rest/blockhashbyheight/0.bin" => Some(genesis_bytes(network)),
            path if path.starts_with("/rest/spenttxouts/") => Some(vec![1, 0]),
            _ => Some(Vec::new()),
        }
    });
    let node = connect(&config(&mock, NodeKind::Auto)).unwrap();
    assert_eq!(node.headers_after(zero(), 5, 9).unwrap(), None);
    swapped.store(true, Ordering::SeqCst);
    let text = refused(node.headers_after(zero(), 5, 9));
    assert!(text.contains("mainnet") && text.contains("regtest"), "{text}");
}

#[test]
fn settings_that_cannot_work_are_refused_without_repeating_secrets() {
    let base = NodeConfig::new(Network::Bitcoin);
    for url in [
        "https://127.0.0.1",
        "ftp://x",
        "",
        "http://",
        "http://a:b:c",
        "http://[::1",
        "127.0.0.1:0",
        "127.0.0.1:99999",
        "127.0.0.1:x",
        "http://127.0.0.1/path",
        "http://alice:hunter2@127.0.0.1",
        "hunter 2",
        "::1",
    ] {
        let text = refused(connect(&NodeConfig { url: Some(url.into()), ..base.clone() }));
        assert!(!text.contains("hunter"), "{text}");
    }
    refused(connect(&NodeConfig { user: Some("alice".into()), ..base.clone() }));
    refused(connect(&NodeConfig { password: Some(Secret::new("x".into())), ..base.clone() }));
    let config = NodeConfig {
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        ..base.clone()
    };
    assert!(!format!("{config:?}").contains("hunter2"));
    for (url, shown) in [
        ("localhost", "localhost:8332"),
        ("HTTP://node.example:1/", "node.example:1"),
        ("[::1]", "[::1]:8332"),
        ("http://[::1]:18443", "[::1]:18443"),
    ] {
        let config = NodeConfig { url: Some(url.into()), ..base.clone() };
        assert_eq!(config.describe(), format!("Bitcoin Core at {shown}"));
    }
}

#[test]
fn waiting_ends_when_the_node_is_there() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let mock = always(move || match counter.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Answer::Full(503, b"Service temporarily unavailable: Verifying blocks".into()),
        2 => Answer::Raw(Vec::new()),
        _ => Answer::Full(200, zero().to_byte_array().into()),
    });
    let source = rest(&mock);
    let (cancel, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let waiter = Waiter::new(&cancel, |event| told.lock().unwrap().push(event.to_string()));
    assert_eq!(waiter.run(&source.describe(), || source.hash_at(0)).unwrap(), Some(zero()));
    let told = told.lock().unwrap();
    assert!(told[0].contains("waiting for Bitcoin Core REST at 127.0.0.1:"), "{told:?}");
    assert!(told[0].ends_with("Verifying blocks"), "{told:?}");
    assert!(told.last().unwrap().contains("answers again"), "{told:?}");
}
