//! Blocks, reorganisations and the mempool while clients listen.

use std::sync::atomic::Ordering;

use bitcoin::OutPoint;
use bitcoin::consensus::encode::serialize_hex;
use bitcoin::hashes::{Hash, sha256};
use peregrine::node::{Event, ScriptHash};
use serde_json::{Value, json};

use crate::Running;
use crate::client::Client;
use crate::memory::script;

fn hash(number: u32) -> String {
    ScriptHash::of(&script(number)).to_string()
}

/// The status that follows from a history, computed as a wallet does.
fn status_of(history: &Value) -> Value {
    let list = history.as_array().unwrap();
    let text: String = list
        .iter()
        .map(|item| format!("{}:{}:", item["tx_hash"].as_str().unwrap(), item["height"]))
        .collect();
    if text.is_empty() { Value::Null } else { json!(sha256::Hash::hash(text.as_bytes()).to_string()) }
}

async fn history(client: &mut Client, number: u32) -> Value {
    client.call("blockchain.scripthash.get_history", json!([hash(number)])).await.unwrap()
}

/// The next notification must be about this script and agree with its history.
async fn told(client: &mut Client, number: u32) -> Value {
    let (method, params) = client.note().await;
    assert_eq!((method.as_str(), &params[0]), ("scripthash.subscribe", &json!(hash(number))));
    let history = history(client, number).await;
    assert_eq!(params[1], status_of(&history), "{history}");
    history
}

#[tokio::test]
async fn a_payment_arrives_confirms_is_reorganised_and_confirms_again() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    assert_eq!(client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await, Ok(Value::Null));

    let payment = server.node.pay(&[], &[script(1)]);
    let txid = payment.compute_txid().to_string();
    server.node.receive(payment.clone(), 321);
    let unconfirmed = json!([{ "tx_hash": txid, "height": 0, "fee": 321 }]);
    assert_eq!(told(&mut client, 1).await, unconfirmed);

    // Bug class 7: a block while the mempool still has it. Scripts are told before the tip.
    let header = server.node.mine(vec![payment.clone()]);
    assert_eq!(told(&mut client, 1).await, json!([{ "tx_hash": txid, "height": 1 }]));
    let (method, params) = client.note().await;
    assert_eq!(
        (method.as_str(), params),
        ("headers.subscribe", json!([{ "hex": serialize_hex(&header), "height": 1 }]))
    );
    let balance = client.call("blockchain.scripthash.get_balance", json!([hash(1)])).await;
    assert_eq!(balance, Ok(json!({ "confirmed": 1000, "unconfirmed": 0 })));

    // Bug class 2: what an orphaned block had stays in the history.
    let back = server.node.unmine();
    let (method, _) = client.note().await;
    assert_eq!(method, "scripthash.subscribe");
    assert_eq!(history(&mut client, 1).await, json!([]));
    assert_eq!(client.note().await.1[0]["height"], 0);
    let proof = client.call("blockchain.transaction.get_merkle", json!([txid, 1])).await;
    assert_eq!(proof.unwrap_err().code, 1);

    for transaction in back {
        server.node.receive(transaction, 321);
    }
    assert_eq!(told(&mut client, 1).await, unconfirmed);
    server.node.mine(vec![]);
    assert_eq!(client.note().await.1[0]["height"], 1);
    server.node.mine(vec![payment]);
    assert_eq!(told(&mut client, 1).await, json!([{ "tx_hash": txid, "height": 2 }]));
    assert_eq!(client.note().await.1[0]["height"], 2);
    assert!(client.notes_until_now().await.is_empty());
}

/// Bug class 3: the order within a block decides the status; and 8: children of unconfirmed parents.
#[tokio::test]
async fn statuses_agree_with_histories_in_every_state() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.6").await;
    let subscribe = json!([hash(1)]);
    client.call("blockchain.scripthash.subscribe", subscribe.clone()).await.unwrap();
    let parents: Vec<_> = (0..6).map(|_| server.node.pay(&[], &[script(1)])).collect();
    server.node.mine(parents.clone());
    let confirmed = told(&mut client, 1).await;
    let in_order: Vec<_> = parents.iter().map(|tx| json!(tx.compute_txid().to_string())).collect();
    assert_eq!(
        confirmed.as_array().unwrap().iter().map(|item| item["tx_hash"].clone()).collect::<Vec<_>>(),
        in_order
    );

    let parent = server.node.pay(&[], &[script(1), script(1)]);
    let txid = parent.compute_txid();
    server.node.enter(parent, 1);
    for vout in 0..2 {
        let child = server.node.pay(&[OutPoint { txid, vout }], &[script(2)]);
        server.node.enter(child, 2);
    }
    let touched = [ScriptHash::of(&script(1))];
    server.node.emit(Event::ScriptHashesTouched(touched.into()));
    let list = told(&mut client, 1).await;
    let heights: Vec<_> =
        list.as_array().unwrap()[6..].iter().map(|item| item["height"].as_i64().unwrap()).collect();
    assert_eq!(heights, [0, -1, -1]);
    let again = client.call("blockchain.scripthash.subscribe", subscribe).await.unwrap();
    assert_eq!(again, status_of(&list));
}

#[tokio::test]
async fn only_changes_are_told_and_only_to_those_who_asked() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let mut other = Client::greet(server.tcp(), "1.4").await;
    client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
    client.call("blockchain.scripthash.subscribe", json!([hash(2)])).await.unwrap();
    // Touched without a change.
    server.node.emit(Event::ScriptHashesTouched([ScriptHash::of(&script(1))].into()));
    server.node.receive(server.node.pay(&[], &[script(2)]), 1);
    told(&mut client, 2).await;
    // Bug class 18: unsubscribing without effect.
    assert_eq!(client.call("blockchain.scripthash.unsubscribe", json!([hash(2)])).await, Ok(json!(true)));
    assert_eq!(client.call("blockchain.scripthash.unsubscribe", json!([hash(2)])).await, Ok(json!(false)));
    server.node.receive(server.node.pay(&[], &[script(2)]), 1);
    server.node.receive(server.node.pay(&[], &[script(1)]), 1);
    told(&mut client, 1).await;
    assert!(client.notes_until_now().await.is_empty());
    assert!(other.notes_until_now().await.is_empty());
}

/// Bug class 17: subscribing again and again; nobody is told twice.
#[tokio::test]
async fn subscribing_again_is_told_once() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    for _ in 0..5 {
        client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
        client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    }
    server.node.mine(vec![server.node.pay(&[], &[script(1)])]);
    told(&mut client, 1).await;
    assert_eq!(client.note().await.0, "headers.subscribe");
    assert!(client.notes_until_now().await.is_empty());
}

/// Bug class 26: a header that is told before its proof can be asked, or out of order.
#[tokio::test]
async fn headers_come_in_order_and_can_be_proved() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.6").await;
    let mut height =
        client.call("blockchain.headers.subscribe", json!([])).await.unwrap()["height"].as_u64().unwrap();
    for _ in 0..40 {
        server.node.mine(vec![]);
    }
    while height < 40 {
        let (_, params) = client.note().await;
        let told = params[0]["height"].as_u64().unwrap();
        assert!(told > height);
        height = told;
        let proof = client.call("blockchain.block.header", json!([told, told])).await.unwrap();
        assert_eq!(proof["header"], params[0]["hex"]);
    }
}

/// Bug class 7: events that are lost because too many come at once.
#[tokio::test]
async fn falling_behind_the_node_loses_nothing() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    // More than the channel keeps, without giving the server a chance: this test has one thread.
    server.node.connect(vec![server.node.pay(&[], &[script(1)])]);
    for _ in 0..200 {
        server.node.emit(Event::MempoolChanged);
    }
    told(&mut client, 1).await;
    assert_eq!(client.note().await.1[0]["height"], 1);
}

/// Bug class 14: a history that is too large is never answered with an empty or a shortened list.
#[tokio::test]
async fn too_large_a_history_is_an_error() {
    for (version, code) in [("1.4", 1), ("1.6", 1), ("1.7", 10001)] {
        let server = Running::start().await;
        server.node.set_history_limit(2);
        server.node.mine((0..3).map(|_| server.node.pay(&[], &[script(1)])).collect());
        let mut client = Client::greet(server.tcp(), version).await;
        let (kind, key) = match version {
            "1.7" => ("scriptpubkey", script(1).to_hex_string()),
            _ => ("scripthash", hash(1)),
        };
        for method in ["get_history", "subscribe", "get_mempool"] {
            let method = format!("blockchain.{kind}.{method}");
            let refused = client.call(&method, json!([key])).await.unwrap_err();
            assert_eq!(refused.code, code, "{method}");
            assert!(refused.message.contains("more than 2 entries"));
        }
    }
}

#[tokio::test]
async fn a_script_is_looked_up_once_per_event() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
    let before = server.node.histories.load(Ordering::SeqCst);
    for _ in 0..30 {
        server.node.emit(Event::ScriptHashesTouched([ScriptHash::of(&script(1))].into()));
    }
    server.node.receive(server.node.pay(&[], &[script(1)]), 1);
    let (_, params) = client.note().await;
    assert_eq!(params[0], hash(1));
    let lookups = server.node.histories.load(Ordering::SeqCst) - before;
    assert!(lookups <= 3, "{lookups} lookups");
}

/// Bug class 7: a notification that is lost because the index couldn't be asked at that moment.
#[tokio::test]
async fn what_cannot_be_looked_up_is_told_later() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    client.call("blockchain.scripthash.subscribe", json!([hash(1)])).await.unwrap();
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    server.node.set_busy(true);
    let refused = client.call("blockchain.scripthash.get_history", json!([hash(1)])).await.unwrap_err();
    assert_eq!(refused.code, -102);
    server.node.mine(vec![server.node.pay(&[], &[script(1)])]);
    assert_eq!(client.note().await.0, "headers.subscribe");
    // Until the script's own event has been looked at in vain, too.
    let asked = server.node.histories.load(Ordering::SeqCst);
    server.node.emit(Event::ScriptHashesTouched([ScriptHash::of(&script(1))].into()));
    while server.node.histories.load(Ordering::SeqCst) == asked {
        tokio::task::yield_now().await;
    }
    server.node.set_busy(false);
    server.node.mine(vec![]);
    told(&mut client, 1).await;
}
