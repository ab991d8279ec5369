//! Input that makes no sense.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Running;
use crate::client::Client;

async fn error(client: &mut Client, line: &str) -> (Value, i64) {
    client.send(line).await;
    let reply: Value = serde_json::from_str(&client.line().await.unwrap()).unwrap();
    (reply["id"].clone(), reply["error"]["code"].as_i64().unwrap_or_else(|| panic!("{line}: {reply}")))
}

#[tokio::test]
async fn every_mistake_has_its_code_and_the_connection_goes_on() {
    let server = Running::start().await;
    let mut client = Client::connect(server.tcp()).await;
    for (line, id, code) in [
        ("nonsense", json!(null), -32700),
        ("{\"id\":1", json!(null), -32700),
        ("7", json!(null), -32600),
        ("[]", json!(null), -32600),
        ("{\"id\":5}", json!(5), -32600),
        ("{\"id\":5,\"method\":5}", json!(5), -32600),
        ("{\"id\":5,\"method\":\"server.ping\",\"params\":5}", json!(5), -32600),
        ("{\"id\":{},\"method\":\"server.ping\"}", json!(null), -32600),
        ("{\"id\":5,\"method\":\"no.such\"}", json!(5), -32601),
        ("{\"id\":\"x\",\"method\":\"server.ping\",\"params\":[1,2]}", json!("x"), -32602),
        ("{\"id\":5,\"method\":\"blockchain.block.header\",\"params\":[]}", json!(5), -32602),
        ("{\"id\":5,\"method\":\"blockchain.block.header\",\"params\":{\"hight\":1}}", json!(5), -32602),
        ("{\"id\":5,\"method\":\"blockchain.block.header\",\"params\":[-1]}", json!(5), 1),
        ("{\"id\":5,\"method\":\"blockchain.block.header\",\"params\":[1e40]}", json!(5), 1),
        ("{\"id\":5,\"method\":\"blockchain.block.header\",\"params\":[\"1\"]}", json!(5), 1),
        ("{\"id\":5,\"method\":\"blockchain.scripthash.subscribe\",\"params\":[\"00\"]}", json!(5), 1),
        ("{\"id\":5,\"method\":\"blockchain.transaction.get\",\"params\":[\"zz\"]}", json!(5), 1),
        ("{\"id\":5,\"method\":\"blockchain.transaction.broadcast\",\"params\":[\"0\"]}", json!(5), 1),
    ] {
        assert_eq!(error(&mut client, line).await, (id, code), "{line}");
    }
    // Neither empty lines nor notifications are answered.
    client.send("\r\n   \n{\"method\":\"server.ping\"}\n[{\"method\":\"server.ping\"}]").await;
    assert_eq!(client.call("server.ping", json!([])).await, Ok(Value::Null));
    // Named parameters are.
    assert!(client.call("blockchain.block.header", json!({ "height": 0 })).await.is_ok());
}

#[tokio::test]
async fn a_batch_with_mistakes_in_it_is_answered_one_by_one() {
    let server = Running::start().await;
    let mut client = Client::connect(server.tcp()).await;
    client
        .send(r#"[{"id":1,"method":"server.ping"},2,{"id":"a","method":"x"},{"method":"server.ping"}]"#)
        .await;
    let replies: Vec<Value> = serde_json::from_str(&client.line().await.unwrap()).unwrap();
    let seen: Vec<_> =
        replies.iter().map(|reply| (reply["id"].clone(), reply["error"]["code"].as_i64())).collect();
    assert_eq!(seen, [(json!(1), None), (json!(null), Some(-32600)), (json!("a"), Some(-32601))]);
}

#[tokio::test]
async fn a_panic_while_answering_is_an_error_for_one_request() {
    let server = Running::start().await;
    server.node.panic_on_balance();
    let mut client = Client::greet(server.tcp(), "1.4").await;
    let hash = "00".repeat(32);
    let refused = client.call("blockchain.scripthash.get_balance", json!([hash])).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (-32603, "internal error"));
    assert!(client.call("blockchain.scripthash.listunspent", json!([hash])).await.is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever comes, an answer or the end follows, and the server lives.
    #[test]
    fn any_bytes(lines in proptest::collection::vec(line(), 1..20)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let server = Running::start().await;
            let mut client = Client::connect(server.tcp()).await;
            for line in &lines {
                client.send(line).await;
            }
            client.send(r#"{"id":"last","method":"server.ping"}"#).await;
            while let Some(line) = client.line().await {
                let reply: Value = serde_json::from_str(&line).unwrap();
                if reply["id"] == "last" {
                    break;
                }
            }
            assert!(Client::connect(server.tcp()).await.call("server.ping", json!([])).await.is_ok());
        });
    }
}

/// Bytes of any kind (not the first byte of TLS), and requests with values of any kind.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        Just("server.version"),
        Just("server.features"),
        Just("blockchain.headers.subscribe"),
        Just("blockchain.block.header"),
        Just("blockchain.block.headers"),
        Just("blockchain.estimatefee"),
        Just("blockchain.scripthash.subscribe"),
        Just("blockchain.scripthash.get_history"),
        Just("blockchain.transaction.get"),
        Just("blockchain.transaction.id_from_pos"),
        Just("blockchain.transaction.get_merkle"),
        Just("blockchain.transaction.broadcast_package"),
        Just("blockchain.silentpayments.subscribe"),
        Just("blockchain.outpoint.subscribe"),
    ];
    let value = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_filter("JSON has none", |f| f.is_finite()).prop_map(|f| format!("{f:e}")),
        "[a-f0-9]{0,66}".prop_map(|text| format!("\"{text}\"")),
        Just(format!("\"{}\"", "01".repeat(32))),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("[\"1.4\",\"1.7\"]".to_owned()),
        Just("[[[{}]]]".to_owned()),
        (0..4u8).prop_map(|n| n.to_string()),
    ];
    let request = (method, proptest::collection::vec(value, 0..5)).prop_map(|(method, values)| {
        format!("{{\"id\":1,\"method\":\"{method}\",\"params\":[{}]}}", values.join(","))
    });
    let bytes = proptest::collection::vec(any::<u8>(), 0..300)
        .prop_filter("TLS", |bytes| bytes.first() != Some(&0x16));
    prop_oneof![bytes, request.prop_map(String::into_bytes)]
}

/// A request that comes in pieces is answered like any other.
#[tokio::test]
async fn a_line_in_pieces() {
    let server = Running::start().await;
    for at_once in [true, false] {
        let mut stream = TcpStream::connect(server.tcp()).await.unwrap();
        stream.set_nodelay(at_once).unwrap();
        let mut reply = [0; 200];
        for _ in 0..if at_once { 2_000 } else { 20 } {
            for piece in ["{\"id\":1,\"method\":", "\"server.ping\"}", "\n"] {
                stream.write_all(piece.as_bytes()).await.unwrap();
            }
            let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut reply)).await;
            let read = read.expect("an answer").unwrap();
            assert_eq!(&reply[..read], b"{\"jsonrpc\":\"2.0\",\"result\":null,\"id\":1}\n");
        }
    }
}
