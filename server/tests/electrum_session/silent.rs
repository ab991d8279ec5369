//! Silent payments over the wire.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bitcoin::hashes::Hash;
use peregrine::node::{Notification, SilentPayment, Start};
use peregrine_scanner::{Address, AddressNetwork, ScanKey, SpendKey};
use serde_json::{Value, json};

use crate::Running;
use crate::client::Client;
use crate::memory::script;

const SUBSCRIBE: &str = "blockchain.silentpayments.subscribe";
const UNSUBSCRIBE: &str = "blockchain.silentpayments.unsubscribe";

fn scan_hex() -> String {
    "0a".repeat(32)
}

fn spend_hex() -> String {
    SpendKey::from_bytes([11; 32]).unwrap().public_key().to_string()
}

fn address() -> String {
    let scan: ScanKey = scan_hex().parse().unwrap();
    let spend = SpendKey::from_bytes([11; 32]).unwrap().public_key();
    Address::new(AddressNetwork::Regtest, scan.public_key(), spend).to_string()
}

fn params(start: Value) -> Value {
    json!([scan_hex(), spend_hex(), start, []])
}

fn found(count: usize) -> Vec<SilentPayment> {
    let tweak = SpendKey::from_bytes([12; 32]).unwrap().public_key();
    let payment = |at: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&at.to_le_bytes());
        SilentPayment { height: Some(1 + at as u32), txid: bitcoin::Txid::from_byte_array(id), tweak }
    };
    (0..count).map(payment).collect()
}

fn with_hold(hold: Duration) -> impl FnOnce(&mut peregrine::electrum::Config) {
    move |config| config.first_notification_hold = hold
}

#[tokio::test]
async fn the_reply_comes_first_then_a_pause_then_pages_then_the_end() {
    let server = Running::with(with_hold(Duration::from_millis(250))).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    // Before the reply is on its way, so that a slow machine only makes the pause longer.
    let asked = Instant::now();
    let reply = client.call(SUBSCRIBE, params(json!(881_900))).await.unwrap();
    assert_eq!(reply, json!({ "address": address(), "labels": [0], "start_height": 881_900 }));
    assert!(reply["address"].as_str().unwrap().starts_with("sprt1q"));
    // What the scanner says at once, and what happens meanwhile, waits.
    server.silent.tell(0, 0.25, vec![]);
    server.silent.tell(0, 1.0, found(250));
    let exact = format!("{{\"address\":\"{}\",\"labels\":[0],\"start_height\":881900}}", address());
    let mut pages = Vec::new();
    for _ in 0..4 {
        let line = client.note_line().await;
        assert!(line.contains(&format!("\"subscription\":{exact},")), "byte for byte: {line}");
        let note: Value = serde_json::from_str(&line).unwrap();
        let page = note["params"]["history"].as_array().unwrap().len();
        pages.push((note["params"]["progress"].as_f64().unwrap(), page));
    }
    assert!(asked.elapsed() >= Duration::from_millis(250), "the first one was not held back");
    assert_eq!(pages, [(0.25, 0), (0.25, 100), (0.25, 100), (1.0, 50)]);
    // Later ones are live, and an empty one is passed on as well.
    server.silent.tell(0, 1.0, found(1));
    let (_, note) = client.note().await;
    assert_eq!((note["progress"].as_f64(), note["history"].as_array().map(Vec::len)), (Some(1.0), Some(1)));
    assert_eq!(note["history"][0]["height"], 1);
}

#[tokio::test]
async fn progress_never_goes_back_or_out_of_range() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    for progress in [0.5, 0.25, f64::NAN, -3.0, 7.0, 0.5] {
        server.silent.tell(0, progress, vec![]);
    }
    for expected in [0.5, 0.5, 0.5, 0.5, 1.0, 1.0] {
        assert_eq!(client.note().await.1["progress"], expected);
    }
}

#[tokio::test]
async fn every_form_of_the_parameters() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let start = async |client: &mut Client, start: Value| client.call(SUBSCRIBE, params(start)).await;
    for (asked, height) in [(json!("10-20"), 10), (json!(5), 5), (json!(null), 0)] {
        assert_eq!(start(&mut client, asked).await.unwrap()["start_height"], height);
        client.call(UNSUBSCRIBE, json!([scan_hex(), spend_hex()])).await.unwrap();
    }
    assert_eq!(start(&mut client, json!(500_000_000)).await.unwrap()["start_height"], 77);
    client.call(UNSUBSCRIBE, json!([scan_hex(), spend_hex()])).await.unwrap();
    assert_eq!(start(&mut client, json!(499_999_999)).await.unwrap()["start_height"], 499_999_999);
    client.call(UNSUBSCRIBE, json!([scan_hex(), spend_hex()])).await.unwrap();
    let named =
        json!({ "scan_private_key": scan_hex(), "spend_public_key": spend_hex(), "labels": [7, 3, 7] });
    let reply = client.call(SUBSCRIBE, named).await.unwrap();
    assert_eq!(reply["labels"], json!([0, 3, 7]));
    let starts: Vec<_> =
        server.silent.subscriptions.lock().unwrap().iter().map(|asked| asked.start).collect();
    let expected = [
        Start::Range { from: 10, to: 20 },
        Start::Height(5),
        Start::Height(0),
        Start::Time(500_000_000),
        Start::Height(499_999_999),
        Start::Height(0),
    ];
    assert_eq!(starts, expected);
}

#[tokio::test]
async fn mistakes_are_told_without_the_key() {
    let server = Running::start().await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let (scan, spend) = (scan_hex(), spend_hex());
    let eleven: Vec<u32> = (1..=11).collect();
    for wrong in [
        json!([]),
        json!([scan]),
        json!([format!("{scan}0a"), spend, 0, []]),
        json!(["ff".repeat(32), spend, 0, []]),
        json!([7, spend, 0, []]),
        json!([scan, "02", 0, []]),
        json!([scan, scan, 0, []]),
        json!([scan, spend, -1, []]),
        json!([scan, spend, 1.5, []]),
        json!([scan, spend, "5", []]),
        json!([scan, spend, "9-8", []]),
        json!([scan, spend, "+1-8", []]),
        json!([scan, spend, "0-1000000", []]),
        json!([scan, spend, 0, [-1]]),
        json!([scan, spend, 0, "x"]),
        json!([scan, spend, 0, eleven]),
        json!([scan, spend, 0, [], 1]),
    ] {
        let refused = client.call(SUBSCRIBE, wrong.clone()).await.unwrap_err();
        assert_eq!(refused.code, -32602, "{wrong}: {}", refused.message);
        assert!(!refused.message.contains("0a0a"), "{}", refused.message);
    }
    // A request that isn't JSON, with the key in it.
    client.send(format!("{{\"id\":1,\"method\":\"{SUBSCRIBE}\",\"params\":[\"{scan}\"")).await;
    let line = client.line().await.unwrap();
    assert!(line.contains("-32700") && !line.contains("0a0a"), "{line}");
    *server.silent.busy.lock().unwrap() = true;
    assert_eq!(client.call(SUBSCRIBE, params(json!(0))).await.unwrap_err().code, -102);
}

#[tokio::test]
async fn subscribing_again_never_narrows_and_ends_the_old_scan() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(100))).await.unwrap();
    let wider = client.call(SUBSCRIBE, json!([scan_hex(), spend_hex(), 50, [4]])).await.unwrap();
    assert_eq!(wider["start_height"], 50);
    let narrower = client.call(SUBSCRIBE, params(json!(200))).await.unwrap();
    assert_eq!((&narrower["start_height"], &narrower["labels"]), (&json!(50), &json!([0, 4])));
    {
        let asked = server.silent.subscriptions.lock().unwrap();
        assert_eq!(
            asked.iter().map(|asked| asked.not_after).collect::<Vec<_>>(),
            [None, Some(100), Some(50)]
        );
        assert_eq!(asked[2].labels, [0, 4]);
        // Running scans see at once that nobody waits for them.
        assert_eq!(
            asked.iter().map(|asked| asked.sender.is_closed()).collect::<Vec<_>>(),
            [true, true, false]
        );
    }
    server.silent.tell(0, 1.0, found(1));
    server.silent.tell(2, 1.0, found(2));
    let (_, note) = client.note().await;
    assert_eq!(note["history"].as_array().unwrap().len(), 2, "from the last subscription only");

    let other = Client::greet(server.tcp(), "1.4.2").await.call(SUBSCRIBE, params(json!(300))).await.unwrap();
    assert_eq!(other["start_height"], 300, "another connection has nothing to do with it");
}

#[tokio::test]
async fn unsubscribing_and_leaving_end_scans() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    server.silent.tell(0, 0.5, vec![]);
    client.note().await;
    let keys = json!([scan_hex(), spend_hex()]);
    assert_eq!(client.call(UNSUBSCRIBE, keys.clone()).await, Ok(json!(address())));
    assert!(server.silent.subscriptions.lock().unwrap()[0].sender.is_closed());
    assert_eq!(client.call(UNSUBSCRIBE, keys).await, Ok(json!(address())), "also without a subscription");
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    let sender = server.silent.subscriptions.lock().unwrap()[1].sender.clone();
    drop(client);
    sender.closed().await;
}

#[tokio::test]
async fn subscriptions_are_limited() {
    let server = Running::with(|config| config.limits.silent_subscriptions_per_connection = 1).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    let other = json!(["0b".repeat(32), spend_hex(), 0, []]);
    let refused = client.call(SUBSCRIBE, other.clone()).await.unwrap_err();
    assert!(refused.message.contains("too many silent-payment subscriptions: 1"), "{}", refused.message);
    client.call(UNSUBSCRIBE, json!([scan_hex(), spend_hex()])).await.unwrap();
    client.call(SUBSCRIBE, other).await.unwrap();
}

/// The payment is told before the script that it touches, although both come of the same event.
#[tokio::test]
async fn payments_are_told_before_scripts() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    let hash = peregrine::node::ScriptHash::of(&script(1)).to_string();
    client.call("blockchain.scripthash.subscribe", json!([hash])).await.unwrap();
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    for _ in 0..20 {
        let payment = server.node.pay(&[], &[script(1)]);
        let told = Notification { progress: 1.0, found: found(1) };
        server.silent.on_settle.lock().unwrap().push(told);
        server.node.mine(vec![payment]);
        let mut methods = Vec::new();
        while methods.last().is_none_or(|last| last != "headers.subscribe") {
            methods.push(client.note().await.0);
        }
        // The block's two events may be handled one by one; what matters is that nothing goes before the payment.
        assert_eq!(methods[0], "silentpayments.subscribe", "{methods:?}");
        if !methods.contains(&"scripthash.subscribe".to_owned()) {
            assert_eq!(client.note().await.0, "scripthash.subscribe");
        }
    }
}

/// While a subscription's first notification is held back, those of scripts wait behind it.
#[tokio::test]
async fn nothing_overtakes_what_is_held_back() {
    let server = Running::with(with_hold(Duration::from_millis(250))).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let hash = peregrine::node::ScriptHash::of(&script(1)).to_string();
    client.call("blockchain.scripthash.subscribe", json!([hash])).await.unwrap();
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    server.silent.on_settle.lock().unwrap().push(Notification { progress: 1.0, found: found(1) });
    server.node.receive(server.node.pay(&[], &[script(1)]), 1);
    // Replies don't wait.
    client.call("server.ping", json!([])).await.unwrap();
    assert_eq!(client.note().await.0, "silentpayments.subscribe");
    assert_eq!(client.note().await.0, "scripthash.subscribe");
}

/// Sparrow's wallet breaks for good when a transaction that it was told of can't be had.
#[tokio::test]
async fn what_was_told_from_the_mempool_can_be_had_for_the_session() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call(SUBSCRIBE, params(json!(0))).await.unwrap();
    let payment = server.node.pay(&[], &[script(1)]);
    let txid = payment.compute_txid();
    server.node.receive(payment.clone(), 1);
    let tweak = found(1)[0].tweak;
    let there = SilentPayment { height: None, txid, tweak };
    let gone = SilentPayment { height: None, txid: bitcoin::Txid::from_byte_array([9; 32]), tweak };
    server.silent.tell(0, 1.0, vec![gone, there]);
    let (_, note) = client.note().await;
    let expected = json!([{ "height": 0, "tx_hash": txid.to_string(), "tweak_key": tweak.to_string() }]);
    assert_eq!(note["history"], expected, "what is gone already isn't told");
    server.node.evict(txid);
    let raw = client.call("blockchain.transaction.get", json!([txid.to_string()])).await.unwrap();
    assert_eq!(raw, bitcoin::consensus::encode::serialize_hex(&payment));
    let mut other = Client::greet(server.tcp(), "1.4.2").await;
    let refused = other.call("blockchain.transaction.get", json!([txid.to_string()])).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (2, "No such mempool or blockchain transaction"));
}

#[tokio::test]
async fn a_key_in_a_batch_counts_once() {
    let server = Running::with(with_hold(Duration::ZERO)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let replies = client.batch(&[(SUBSCRIBE, params(json!(9))), (SUBSCRIBE, params(json!(4)))]).await;
    assert_eq!(replies[1].as_ref().unwrap()["start_height"], 4);
    server.silent.tell(0, 1.0, found(1));
    server.silent.tell(1, 1.0, found(2));
    assert_eq!(client.note().await.1["history"].as_array().unwrap().len(), 2);
    assert!(client.notes_until_now().await.is_empty());
}

/// A scanner that doesn't come back must not keep blocks from wallets.
#[tokio::test]
async fn a_scanner_that_hangs_does_not_stop_the_rest() {
    let server = Running::with(|config| config.settle_timeout = Duration::from_millis(20)).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    server.silent.hangs.store(true, Ordering::SeqCst);
    for height in 1..=5 {
        server.node.mine(vec![]);
        while client.note().await.1[0]["height"] != height {}
    }
    server.silent.hangs.store(false, Ordering::SeqCst);
}
