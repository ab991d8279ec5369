//! Reorganisations while clients are subscribed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bitcoin::ScriptBuf;
use peregrine_index::testkit::TestNode;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::naive;
use crate::served::{Served, hash};

/// Every answer about every script against the plain computation from the node's answers.
pub(crate) async fn compare(client: &mut Client, node: &TestNode) {
    let scripts = naive::scripts(node);
    assert!(scripts.len() > 20);
    for (script, known) in &scripts {
        let hash = json!([hash(script)]);
        let history = client.call("blockchain.scripthash.get_history", hash.clone()).await.unwrap();
        assert_eq!(history, known.history(), "bug classes 2 to 4: history of {script}");
        assert_eq!(
            client.call("blockchain.scripthash.subscribe", hash.clone()).await.unwrap(),
            known.status()
        );
        let unspent = client.call("blockchain.scripthash.listunspent", hash.clone()).await.unwrap();
        let balance = client.call("blockchain.scripthash.get_balance", hash.clone()).await.unwrap();
        let sum: u64 =
            unspent.as_array().unwrap().iter().map(|output| output["value"].as_u64().unwrap()).sum();
        let balance = balance["confirmed"].as_i64().unwrap() + balance["unconfirmed"].as_i64().unwrap();
        assert_eq!(balance, sum as i64, "bug class 5: balance of {script}");
        for output in unspent.as_array().unwrap() {
            let theirs = node.call("gettxout", json!([output["tx_hash"], output["tx_pos"], true]));
            let value = bitcoin::Amount::from_btc(theirs["value"].as_f64().unwrap()).unwrap().to_sat();
            assert_eq!(output["value"], value);
            let height = match theirs["confirmations"].as_u64().unwrap() {
                0 => 0,
                confirmations => u64::from(node.height()) + 1 - confirmations,
            };
            assert_eq!(output["height"], height);
        }
        client.call("blockchain.scripthash.unsubscribe", hash).await.unwrap();
    }
}

/// Follows the statuses of scripts until they are all as they must be.
pub(crate) async fn converge(client: &mut Client, told: &mut BTreeMap<ScriptBuf, Value>, node: &TestNode) {
    let end = Instant::now() + Duration::from_secs(60);
    let expected = naive::scripts(node);
    let by_hash: BTreeMap<String, ScriptBuf> =
        told.keys().map(|script| (hash(script), script.clone())).collect();
    loop {
        for line in client.notes_until_now().await {
            let note: Value = serde_json::from_str(&line).unwrap();
            if note["method"] == "blockchain.scripthash.subscribe" {
                let script = &by_hash[note["params"][0].as_str().unwrap()];
                told.insert(script.clone(), note["params"][1].clone());
            }
        }
        let wrong = told.iter().find(|(script, status)| {
            let known = expected.get(*script).map_or(Value::Null, naive::Script::status);
            **status != known
        });
        let Some((script, status)) = wrong else { return };
        assert!(Instant::now() < end, "the last status told of {script} is {status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_reorganisations_reach_every_subscriber() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 5);
    maker.blocks(10, 4);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    compare(&mut client, &node).await;
    let mut told = BTreeMap::new();
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    for script in naive::scripts(&node).into_keys() {
        let status = client.call("blockchain.scripthash.subscribe", json!([hash(&script)])).await.unwrap();
        told.insert(script, status);
    }
    // Same height at another place, deep ones, and back to blocks that were there before.
    for depth in [1, 2, 10, 3] {
        maker.reorganise(depth);
        converge(&mut client, &mut told, &node).await;
        let mut other = Client::greet(served.tcp, "1.4.2").await;
        compare(&mut other, &node).await;
        // Bug class 6: header, proof and history fit together.
        let tip = other.call("blockchain.headers.subscribe", json!([])).await.unwrap();
        assert_eq!(tip["height"], node.height());
        let header = node.call("getblockheader", json!([node.best_block().to_string(), false]));
        assert_eq!(tip["hex"], header);
        tokio::task::block_in_place(|| crate::crates::check_proofs(served.tcp, &node));
    }
    served.stop();
}
