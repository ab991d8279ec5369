//! What Sparrow does when it connects.

use serde_json::{Value, json};

use crate::Running;
use crate::client::Client;

#[tokio::test]
async fn connection_sequence() {
    let server = Running::start().await;
    let mut client = Client::connect(server.tcp()).await;
    // As over TLS, where Sparrow pads lines, and as on Windows.
    client
        .send(format!(
            "{:<192}\r",
            r#"{"jsonrpc":"2.0","method":"server.version","params":["Sparrow",["1.3","1.4.2"]],"id":1}"#
        ))
        .await;
    let name = concat!("Peregrine ", env!("CARGO_PKG_VERSION"), " (electrumx, electrs compatible)");
    let expected = format!(r#"{{"jsonrpc":"2.0","result":["{name}","1.4.2"],"id":1}}"#);
    assert_eq!(client.line().await.unwrap(), expected);

    client.send(r#"{"jsonrpc":"2.0","method":"server.features","params":[],"id":2}"#).await;
    let reply: Value = serde_json::from_str(&client.line().await.unwrap()).unwrap();
    let genesis = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";
    let features = json!({
        "hosts": {}, "genesis_hash": genesis, "hash_function": "sha256", "server_version": name,
        "protocol_min": "1.4", "protocol_max": "1.7", "pruning": null, "silent_payments": [0],
    });
    assert_eq!(reply, json!({ "jsonrpc": "2.0", "result": features, "id": 2 }));

    let tip = client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    assert_eq!((tip["height"].as_u64(), tip["hex"].as_str().map(str::len)), (Some(0), Some(160)));
    assert!(client.call("server.banner", json!([])).await.unwrap().is_string());
    let targets = [1, 2, 3, 4, 5, 10, 25, 50].map(|target| ("blockchain.estimatefee", json!([target])));
    for fee in client.batch(&targets).await {
        assert_eq!(fee, Ok(json!(0.00012345)));
    }
    let histogram = client.call("mempool.get_fee_histogram", json!([])).await.unwrap();
    assert_eq!(histogram, json!([[12.5, 30_000], [3.0, 40_000], [0.1, 60_000]]), "bug class 10");
    assert_eq!(client.call("blockchain.relayfee", json!([])).await, Ok(json!(0.000001)));
    assert_eq!(client.call("server.ping", json!([])).await, Ok(Value::Null));
    server.stop().await;
}

#[tokio::test]
async fn the_older_form_of_the_version_and_a_name_that_wallets_look_for() {
    let server = Running::start().await;
    let mut client = Client::connect(server.tcp()).await;
    let answer = client.call("server.version", json!(["Sparrow", "1.4"])).await.unwrap();
    let name = answer[0].as_str().unwrap().to_lowercase();
    assert!(name.contains("electrumx"), "Sparrow batches only then");
    assert!(name.contains("electrs"), "Cake probes only then");
    assert_eq!(answer[1], "1.4");
}

#[tokio::test]
async fn a_page_of_a_wallet_in_one_batch() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let subscribe = |at: u32| ("blockchain.scripthash.subscribe", json!([hash(at)]));
    for status in client.batch(&(0..100).map(subscribe).collect::<Vec<_>>()).await {
        assert_eq!(status, Ok(Value::Null));
    }
    let mut calls: Vec<_> =
        (0..99).map(|at| ("blockchain.scripthash.get_history", json!([hash(at)]))).collect();
    calls.push(("blockchain.block.header", json!([9_999])));
    let answers = client.batch(&calls).await;
    assert!(answers[..99].iter().all(|answer| *answer == Ok(json!([]))));
    assert!(answers[99].is_err(), "one error among results");
}

fn hash(at: u32) -> String {
    peregrine::node::ScriptHash::of(&crate::memory::script(at)).to_string()
}
