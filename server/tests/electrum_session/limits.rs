//! Limits: whoever meets one is told which, and others don't notice.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::Running;
use crate::client::Client;
use crate::memory::script;

fn hash(number: u32) -> String {
    peregrine::node::ScriptHash::of(&script(number)).to_string()
}

/// Bug class 16: sessions without limit.
#[tokio::test]
async fn connections_in_all() {
    let server = Running::with(|config| config.limits.connections = 2).await;
    let mut first = Client::greet(server.tcp(), "1.4").await;
    let second = Client::greet(server.tcp(), "1.4").await;
    let line = Client::connect(server.tcp()).await.line().await.unwrap();
    let error: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(error["error"]["code"], -102);
    assert!(error["error"]["message"].as_str().unwrap().contains("too many connections"));
    first.call("server.ping", json!([])).await.unwrap();
    drop(second);
    while server.handle.connections() > 1 {
        tokio::task::yield_now().await;
    }
    Client::greet(server.tcp(), "1.4").await;
}

/// Bug class 16: an unbounded line. The reply has the request's id, else Sparrow would wait for it in vain.
#[tokio::test]
async fn a_request_that_is_too_large() {
    let server = Running::with(|config| config.limits.request_bytes = 10_000).await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let refused =
        client.call("blockchain.transaction.broadcast", json!(["00".repeat(20_000)])).await.unwrap_err();
    assert_eq!(refused.code, -32600);
    assert!(refused.message.contains("request too large: 10000 bytes"));
    client.call("server.ping", json!([])).await.unwrap();
    // One that never ends.
    let mut endless = TcpStream::connect(server.tcp()).await.unwrap();
    while endless.write_all(&[b'x'; 50_000]).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client.call("server.ping", json!([])).await.unwrap();
}

/// Bug class 19: limits of batches.
#[tokio::test]
async fn a_batch_that_is_too_long_is_refused_for_every_request_in_it() {
    let server = Running::with(|config| config.limits.batch = 100).await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let ping = || ("server.ping", json!([]));
    assert!(client.batch(&vec![ping(); 100]).await.iter().all(Result::is_ok));
    for answer in client.batch(&vec![ping(); 101]).await {
        assert!(answer.unwrap_err().message.contains("the batch has 101 requests; 100 are allowed"));
    }
    client.send(format!("[{}0]", "0,".repeat(2_000))).await;
    let line = client.line().await.unwrap();
    assert!(line.contains("100 are allowed") && line.len() < 1_000);
}

/// Bug class 14: a response that is too large is an error, and the connection goes on.
#[tokio::test]
async fn a_response_that_is_too_large() {
    let server = Running::with(|config| config.limits.response_bytes = 5_000).await;
    server.node.mine((0..100).map(|_| server.node.pay(&[], &[script(1)])).collect());
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let history = ("blockchain.scripthash.get_history", json!([hash(1)]));
    let refused = client.call(history.0, history.1.clone()).await.unwrap_err();
    assert_eq!(refused.code, -32600);
    assert!(refused.message.starts_with("response too large (at least "));
    let headers = ("blockchain.block.headers", json!([0, 2]));
    let answers = client.batch(&[headers.clone(), history, headers]).await;
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
    let many = vec![("blockchain.block.header", json!([0])); 100];
    let answers = client.batch(&many).await;
    assert!(answers[0].is_ok() && answers[99].is_err(), "the sum counts");
}

#[tokio::test]
async fn subscriptions() {
    let server = Running::with(|config| config.limits.subscriptions_per_connection = 2).await;
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let subscribe = "blockchain.scripthash.subscribe";
    for number in [1, 2, 1, 2] {
        client.call(subscribe, json!([hash(number)])).await.unwrap();
    }
    let refused = client.call(subscribe, json!([hash(3)])).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (1, "too many subscriptions: 2 are allowed for a connection")
    );
    client.call("blockchain.scripthash.unsubscribe", json!([hash(1)])).await.unwrap();
    client.call(subscribe, json!([hash(3)])).await.unwrap();
}

#[tokio::test]
async fn a_subscription_that_fails_does_not_count() {
    let server = Running::with(|config| config.limits.subscriptions_per_connection = 1).await;
    server.node.set_history_limit(1);
    server.node.mine((0..2).map(|_| server.node.pay(&[], &[script(1)])).collect());
    let mut client = Client::greet(server.tcp(), "1.4.2").await;
    let subscribe = "blockchain.scripthash.subscribe";
    for _ in 0..3 {
        assert!(client.call(subscribe, json!([hash(1)])).await.unwrap_err().message.contains("entries"));
    }
    client.call(subscribe, json!([hash(2)])).await.unwrap();
}

#[tokio::test]
async fn requests_per_second() {
    let server = Running::with(|config| {
        config.limits.request_tokens = 20.0;
        config.limits.request_tokens_per_second = 0.001;
        config.limits.request_delay = Duration::from_millis(1);
    })
    .await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let mut refused = None;
    for _ in 0..100 {
        if let Err(error) = client.call("server.ping", json!([])).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("a refusal");
    assert_eq!(refused.code, -102);
    assert!(
        refused.message.contains("too many requests: 20 at once and 0.001 per second"),
        "{}",
        refused.message
    );
    // Each request of a batch hears of it, and others aren't concerned.
    for answer in client.batch(&[("server.ping", json!([])), ("server.banner", json!([]))]).await {
        assert!(answer.unwrap_err().message.contains("too many requests"));
    }
    Client::greet(server.tcp(), "1.4").await.call("server.ping", json!([])).await.unwrap();
}

#[tokio::test]
async fn idle_clients_are_told_and_disconnected() {
    let server = Running::with(|config| config.limits.idle = Duration::from_millis(50)).await;
    let mut client = Client::connect(server.tcp()).await;
    client.send(r#"{"id":1,"method":"server.ping"}"#).await;
    client.line().await.unwrap();
    assert!(client.line().await.unwrap().contains("no request for 0 s"));
    assert_eq!(client.line().await, None);
}

/// A client that asks for much and reads nothing is stopped, then disconnected; others don't notice.
#[tokio::test]
async fn slow_readers() {
    let server = Running::with(|config| {
        config.limits.write_timeout = Duration::from_millis(300);
        config.limits.queue = 4;
    })
    .await;
    let mut slow = TcpStream::connect(server.tcp()).await.unwrap();
    let request = b"{\"id\":1,\"method\":\"server.version\",\"params\":[\"\",\"1.7\"]}\n";
    slow.write_all(request).await.unwrap();
    let request = b"{\"id\":1,\"method\":\"server.ping\",\"params\":[1000000]}\n";
    while slow.write_all(request).await.is_ok() {
        // Until the server has had enough; it would answer with a gigabyte in a moment otherwise.
        if server.handle.connections() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while server.handle.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut other = Client::greet(server.tcp(), "1.4").await;
    other.call("server.ping", json!([])).await.unwrap();
}

/// What waits for a client that doesn't read doesn't grow with what happens.
#[tokio::test]
async fn a_client_that_does_not_listen_does_not_hold_up_the_others() {
    let server = Running::start().await;
    let mut deaf = Client::greet(server.tcp(), "1.4").await;
    let mut other = Client::greet(server.tcp(), "1.4").await;
    for client in [&mut deaf, &mut other] {
        client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    }
    let mut height = 0;
    for _ in 0..300 {
        server.node.mine(vec![]);
        height = other.note().await.1[0]["height"].as_u64().unwrap().max(height);
    }
    while height < 300 {
        height = other.note().await.1[0]["height"].as_u64().unwrap();
    }
    while deaf.note().await.1[0]["height"] != 300 {}
}
