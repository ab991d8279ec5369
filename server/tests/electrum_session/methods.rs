//! Every method's shape in the versions that have it.

use bitcoin::OutPoint;
use bitcoin::consensus::encode::serialize_hex;
use peregrine::node::{Event, Readiness, ScriptHash};
use serde_json::{Value, json};

use crate::Running;
use crate::client::Client;
use crate::memory::script;

fn hash(number: u32) -> String {
    ScriptHash::of(&script(number)).to_string()
}

const VERSIONS: [&str; 4] = ["1.4", "1.4.2", "1.6", "1.7"];

#[tokio::test]
async fn headers_and_proofs() {
    let server = Running::start().await;
    for _ in 0..8 {
        server.node.mine(vec![]);
    }
    let mut raw = Vec::new();
    let mut client = Client::greet(server.tcp(), "1.4").await;
    for height in 0..=8 {
        let header = client.call("blockchain.block.header", json!([height])).await.unwrap();
        raw.push(header.as_str().unwrap().to_owned());
    }
    for version in VERSIONS {
        let mut client = Client::greet(server.tcp(), version).await;
        let proved = client.call("blockchain.block.header", json!([5, 8])).await.unwrap();
        assert_eq!(proved["header"], raw[5]);
        assert_eq!(proved["branch"].as_array().unwrap().len(), 4);
        let some = client.call("blockchain.block.headers", json!([2, 4])).await.unwrap();
        let list = if version < "1.6" {
            json!({ "count": 4, "max": 2016, "hex": raw[2..6].concat() })
        } else {
            json!({ "count": 4, "max": 2016, "headers": raw[2..6] })
        };
        assert_eq!(some, list);
        // The proof is for the last one.
        let some = client.call("blockchain.block.headers", json!([2, 4, 8])).await.unwrap();
        assert_eq!((&some["root"], &some["branch"]), (&proved["root"], &proved["branch"]));
        for (start, count) in [(9, 5), (3, 0), (4_000_000_000_u32, 1)] {
            let none = client.call("blockchain.block.headers", json!([start, count])).await.unwrap();
            assert_eq!(none["count"], 0);
        }
        let rest = client.call("blockchain.block.headers", json!([7, 4_000_000_000_u32])).await.unwrap();
        assert_eq!(rest["count"], 2, "bug class 6: headers at the tip");
        for wrong in [json!([9]), json!([5, 9]), json!([5, 4])] {
            assert_eq!(client.call("blockchain.block.header", wrong).await.unwrap_err().code, 1);
        }
    }
}

#[tokio::test]
async fn what_a_script_has() {
    let server = Running::start().await;
    let first = server.node.pay(&[], &[script(1), script(2)]);
    let outpoint = OutPoint { txid: first.compute_txid(), vout: 0 };
    server.node.mine(vec![first.clone()]);
    let second = server.node.pay(&[outpoint], &[script(1)]);
    server.node.receive(second.clone(), 55);
    let (one, two) = (first.compute_txid().to_string(), second.compute_txid().to_string());
    let history = json!([{ "tx_hash": one, "height": 1 }, { "tx_hash": two, "height": 0, "fee": 55 }]);
    let mempool = json!([{ "tx_hash": two, "height": 0, "fee": 55 }]);
    let unspent = json!([{ "tx_hash": two, "tx_pos": 0, "height": 0, "value": 1000 }]);
    let balance = json!({ "confirmed": 0, "unconfirmed": 1000 });
    let mut statuses = Vec::new();
    for version in VERSIONS {
        let mut client = Client::greet(server.tcp(), version).await;
        let old = version < "1.7";
        let (kind, key) =
            if old { ("scripthash", hash(1)) } else { ("scriptpubkey", script(1).to_hex_string()) };
        let wrap = |name: &str, list: &Value| if old { list.clone() } else { json!({ name: list }) };
        for (method, expected) in [
            ("get_history", wrap("history", &history)),
            ("get_mempool", wrap("history", &mempool)),
            ("listunspent", wrap("utxos", &unspent)),
            ("get_balance", balance.clone()),
        ] {
            let method = format!("blockchain.{kind}.{method}");
            assert_eq!(client.call(&method, json!([key])).await, Ok(expected), "{method}");
        }
        statuses.push(client.call(&format!("blockchain.{kind}.subscribe"), json!([key])).await.unwrap());
        let other = if old { "scriptpubkey" } else { "scripthash" };
        let refused =
            client.call(&format!("blockchain.{other}.get_history"), json!([key])).await.unwrap_err();
        assert_eq!(refused.code, -32601);
        server.node.emit(Event::MempoolChanged);
        let unsubscribe = format!("blockchain.{kind}.unsubscribe");
        assert_eq!(client.call(&unsubscribe, json!([key])).await, Ok(json!(true)));
    }
    assert!(statuses.iter().all(|status| status.is_string() && *status == statuses[0]));

    // From 1.7 on the notification is about the script hash all the same.
    let mut client = Client::greet(server.tcp(), "1.7").await;
    client.call("blockchain.scriptpubkey.subscribe", json!([script(3).to_hex_string()])).await.unwrap();
    server.node.receive(server.node.pay(&[], &[script(3)]), 1);
    let (method, params) = client.note().await;
    assert_eq!((method.as_str(), &params[0]), ("scriptpubkey.subscribe", &json!(hash(3))));
}

#[tokio::test]
async fn transactions_and_their_places() {
    let server = Running::start().await;
    let payments: Vec<_> = (0..4).map(|_| server.node.pay(&[], &[script(1)])).collect();
    server.node.mine(payments.clone());
    let txid = payments[2].compute_txid().to_string();
    for version in VERSIONS {
        let mut client = Client::greet(server.tcp(), version).await;
        let raw = client.call("blockchain.transaction.get", json!([txid])).await.unwrap();
        assert_eq!(raw, serialize_hex(&payments[2]));
        // The strict client looks for stray ids in it.
        let verbose = client.call("blockchain.transaction.get", json!([txid, true])).await.unwrap();
        assert_eq!((&verbose["txid"], &verbose["hex"]), (&json!(txid), &raw));
        let proof = client.call("blockchain.transaction.get_merkle", json!([txid, 1])).await.unwrap();
        assert_eq!((&proof["block_height"], &proof["pos"]), (&json!(1), &json!(3)));
        assert_eq!(client.call("blockchain.transaction.get_merkle", json!([txid])).await.unwrap(), proof);
        let at = client.call("blockchain.transaction.id_from_pos", json!([1, 3])).await.unwrap();
        assert_eq!(at, txid);
        let at = client.call("blockchain.transaction.id_from_pos", json!([1, 3, true])).await.unwrap();
        assert_eq!(at, json!({ "tx_hash": txid, "merkle": proof["merkle"] }));
        let wrong = [
            ("blockchain.transaction.get_merkle", json!([txid, 0]), 1),
            ("blockchain.transaction.id_from_pos", json!([1, 9]), 1),
            ("blockchain.transaction.id_from_pos", json!([9, 0]), 1),
            ("blockchain.transaction.get", json!(["00".repeat(32)]), 2),
            ("blockchain.transaction.get", json!(["00".repeat(32), true]), 2),
        ];
        for (method, params, code) in wrong {
            assert_eq!(client.call(method, params).await.unwrap_err().code, code, "{method}");
        }
        let height = client.call("blockchain.transaction.get_height", json!([txid])).await;
        assert_eq!(height, Ok(json!(1)));
    }
}

#[tokio::test]
async fn broadcast() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.6").await;
    client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
    let tx = server.node.pay(&[], &[script(1)]);
    let sent = client.call("blockchain.transaction.broadcast", json!([serialize_hex(&tx)])).await;
    assert_eq!(sent, Ok(json!(tx.compute_txid().to_string())));
    assert_eq!(client.note().await.0, "scripthash.subscribe");

    let pair = [server.node.pay(&[], &[script(2)]), server.node.pay(&[], &[script(2)])];
    let package = json!([[serialize_hex(&pair[0]), serialize_hex(&pair[1])]]);
    let sent = client.call("blockchain.transaction.broadcast_package", package.clone()).await;
    assert_eq!(sent, Ok(json!({ "success": true })));
    let raw = json!([package[0], true]);
    let sent = client.call("blockchain.transaction.broadcast_package", raw).await;
    assert_eq!(sent, Ok(json!({ "package_msg": "success" })));
    let malformed =
        client.call("blockchain.transaction.broadcast_package", json!([["00"]])).await.unwrap_err();
    assert_eq!(malformed.message, "the tx package was rejected by network rules.\n\npackage-malformed.");
    assert_eq!(malformed.code, 1);
    let many = json!([vec!["00"; 26]]);
    assert_eq!(client.call("blockchain.transaction.broadcast_package", many).await.unwrap_err().code, 1);

    // Bug class 24: the node's reason reaches the user.
    server.node.reject_with("min relay fee not met, 10 < 100");
    let refused =
        client.call("blockchain.transaction.broadcast", json!([serialize_hex(&tx)])).await.unwrap_err();
    let message = "the transaction was rejected by network rules.\n\nmin relay fee not met, 10 < 100";
    assert_eq!((refused.code, refused.message.as_str()), (1, message));
    let sent = client.call("blockchain.transaction.broadcast_package", package).await.unwrap();
    assert_eq!(sent["success"], false);
    assert_eq!(sent["errors"][0]["txid"], pair[0].compute_txid().to_string());

    let mut newest = Client::greet(server.tcp(), "1.7").await;
    let accepted = newest.call("blockchain.transaction.testmempoolaccept", json!([["00"]])).await.unwrap();
    assert_eq!(accepted, json!([{ "txid": "00", "wtxid": "01", "allowed": false, "reason": "why" }]));
    let recent = newest.call("mempool.recent", json!([])).await.unwrap();
    assert!(recent[0]["fee"].is_u64() && recent[0]["vsize"].is_u64() && recent[0]["txid"].is_string());
}

#[tokio::test]
async fn fees_and_the_server_itself() {
    let server = Running::start().await;
    for version in VERSIONS {
        let mut client = Client::greet(server.tcp(), version).await;
        assert_eq!(client.call("blockchain.estimatefee", json!([2])).await, Ok(json!(0.00012345)));
        assert_eq!(client.call("blockchain.estimatefee", json!([500])).await, Ok(json!(-1)));
        let mode = client.call("blockchain.estimatefee", json!([2, "ECONOMICAL"])).await;
        let relay = client.call("blockchain.relayfee", json!([])).await;
        let info = client.call("mempool.get_info", json!([])).await;
        if version < "1.6" {
            assert_eq!(mode.unwrap_err().code, -32602);
            assert_eq!(relay, Ok(json!(0.000001)));
            assert_eq!(info.unwrap_err().code, -32601);
        } else {
            assert_eq!(mode, Ok(json!(0.00001)));
            assert_eq!(relay.unwrap_err().code, -32601);
            let rates = json!({ "mempoolminfee": 0.00001, "minrelaytxfee": 0.000001, "incrementalrelayfee": 0.000001 });
            assert_eq!(info, Ok(rates));
        }
        let features = client.call("server.features", json!([])).await.unwrap();
        assert_eq!(features.get("hash_function").is_some(), version < "1.7");
        assert_eq!(client.call("server.peers.subscribe", json!([])).await, Ok(json!([])));
        assert_eq!(client.call("server.donation_address", json!([])).await, Ok(json!("")));
        assert_eq!(client.call("server.add_peer", json!([{}])).await, Ok(json!(false)));
        let tip = client.call("blockchain.headers.get_tip", json!([])).await;
        assert_eq!(tip.unwrap()["height"], 0);
        let ping =
            client.call("server.ping", if version < "1.7" { json!([]) } else { json!([3, "x"]) }).await;
        assert_eq!(ping, Ok(if version < "1.7" { Value::Null } else { json!({ "data": "000" }) }));
    }
}

#[tokio::test]
async fn outpoints() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.7").await;
    let funding = server.node.pay(&[], &[script(1)]);
    let outpoint = OutPoint { txid: funding.compute_txid(), vout: 0 };
    let txid = outpoint.txid.to_string();
    let key = json!([txid, 0, script(1).to_hex_string()]);
    assert_eq!(client.call("blockchain.outpoint.subscribe", key.clone()).await, Ok(json!({})));
    let without_hint = client.call("blockchain.outpoint.subscribe", json!([txid, 1])).await.unwrap_err();
    assert!(without_hint.message.contains("spk_hint"));
    server.node.receive(funding, 1);
    let (method, params) = client.note().await;
    assert_eq!((method.as_str(), params), ("outpoint.subscribe", json!([txid, 0, { "funder_height": 0 }])));
    let spending = server.node.pay(&[outpoint], &[script(2)]);
    let spender = spending.compute_txid().to_string();
    server.node.receive(spending, 1);
    let spent = json!({ "funder_height": 0, "spender_txhash": spender, "spender_height": -1 });
    assert_eq!(client.note().await.1[2], spent);
    assert_eq!(client.call("blockchain.outpoint.get_status", key.clone()).await, Ok(spent.clone()));
    assert_eq!(client.call("blockchain.outpoint.subscribe", json!([txid, 0])).await, Ok(spent));
    assert_eq!(client.call("blockchain.outpoint.unsubscribe", json!([txid, 0])).await, Ok(json!(true)));
    assert_eq!(client.call("blockchain.outpoint.unsubscribe", json!([txid, 0])).await, Ok(json!(false)));
}

/// Bug class 13: negotiation.
#[tokio::test]
async fn negotiation() {
    let server = Running::start().await;
    // Said twice.
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let again = client.call("server.version", json!(["test", "1.6"])).await.unwrap_err();
    assert_eq!((again.code, again.message.as_str()), (1, "server.version already sent"));
    // Not said at all: 1.4.
    let mut client = Client::connect(server.tcp()).await;
    assert!(client.call("blockchain.relayfee", json!([])).await.is_ok());
    // Late, and still fine for old versions.
    let late = client.call("server.version", json!(["test", ["1.4", "1.6"], "more", 5])).await.unwrap();
    assert_eq!(late[1], "1.4.2");
    // Late for a version that demands to be first.
    let mut client = Client::connect(server.tcp()).await;
    for harmless in ["server.ping", "server.features", "server.banner"] {
        client.call(harmless, json!([])).await.unwrap();
    }
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    let late = client.call("server.version", json!(["test", "1.6"])).await.unwrap_err();
    assert!(late.message.contains("must be the first"));
    assert_eq!(client.line().await, None, "disconnected");
    // No common version.
    let mut client = Client::connect(server.tcp()).await;
    let refused = client.call("server.version", json!(["test", ["0.9", "1.2"]])).await.unwrap_err();
    assert!(refused.message.contains("unsupported protocol version"));
    assert_eq!(client.line().await, None, "disconnected");
    // Requests that were sent before the version was answered speak that version.
    let mut client = Client::connect(server.tcp()).await;
    let pipelined = [
        r#"{"id":1,"method":"server.version","params":["test","1.6"]}"#,
        r#"{"id":2,"method":"blockchain.block.headers","params":[0,1]}"#,
        r#"[{"id":3,"method":"server.ping"},{"id":4,"method":"blockchain.relayfee"}]"#,
    ];
    client.send(pipelined.join("\n")).await;
    assert!(client.line().await.unwrap().contains("\"1.6\""));
    assert!(client.line().await.unwrap().contains("\"headers\""));
    assert!(client.line().await.unwrap().contains("-32601"));
}

#[tokio::test]
async fn while_indexing_only_some_methods_work_and_the_rest_says_how_long() {
    let server = Running::start().await;
    let time_left = Some(std::time::Duration::from_secs(7_000));
    server.node.set_readiness(Readiness::Indexing { percent: 41.3, time_left });
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    for (method, params) in [
        ("server.features", json!([])),
        ("server.banner", json!([])),
        ("server.ping", json!([])),
        ("blockchain.headers.subscribe", json!([])),
        ("blockchain.block.header", json!([0])),
        ("blockchain.block.headers", json!([0, 1])),
        ("blockchain.relayfee", json!([])),
    ] {
        client.call(method, params).await.unwrap();
    }
    for (method, params) in [
        ("blockchain.scripthash.subscribe", json!([hash(1)])),
        ("blockchain.transaction.get", json!(["00".repeat(32)])),
        ("blockchain.silentpayments.subscribe", json!([])),
    ] {
        let refused = client.call(method, params).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (-102, "indexing 41 %, about 2 h left"));
    }
    server.node.set_readiness(Readiness::Ready);
    assert!(client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.is_ok());
}
