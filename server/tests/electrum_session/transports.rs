//! TLS, WebSockets, what speaks the wrong one, and stopping.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::tls::tls;
use crate::{Running, loopback};

async fn with_all_ports() -> Running {
    Running::with(|config| {
        config.tls.push(loopback());
        config.websocket.push(loopback());
        config.websocket_tls.push(loopback());
    })
    .await
}

#[tokio::test]
async fn tls_with_a_certificate_that_can_be_replaced() {
    let server = with_all_ports().await;
    let address = server.handle.addresses().tls[0];
    let (stream, first) = tls(address).await.unwrap();
    let mut client = Client::new(Box::new(stream));
    client.call("server.version", json!(["Sparrow", ["1.3", "1.4.2"]])).await.unwrap();
    assert_eq!(tls(address).await.unwrap().1, first);

    // Bug class 23: an expired certificate that stays in use although it was replaced.
    let made = rcgen::generate_simple_self_signed(["example.org".to_owned()]).unwrap();
    let path = |name: &str| server.dir.path().join(name);
    std::fs::write(path("electrum-cert.pem"), "half-written").unwrap();
    assert_eq!(tls(address).await.unwrap().1, first, "nonsense changes nothing");
    std::fs::write(path("electrum-key.pem"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("electrum-cert.pem"), made.cert.pem()).unwrap();
    assert_eq!(tls(address).await.unwrap().1, made.cert.der().to_vec());
    client.call("server.ping", json!([])).await.unwrap();
}

/// Bug class 23: TLS bytes on the plain port, and plain ones on the TLS port.
#[tokio::test]
async fn the_wrong_protocol_is_told() {
    let server = with_all_ports().await;
    let addresses = server.handle.addresses().clone();
    for port in [addresses.tcp[0], addresses.websocket[0]] {
        let error = tls(port).await.unwrap_err().to_string();
        assert!(error.contains("ProtocolVersion"), "{error}");
    }
    for port in [addresses.tls[0], addresses.websocket_tls[0]] {
        let mut client = Client::connect(port).await;
        client.send(r#"{"id":1,"method":"server.ping"}"#).await;
        assert!(client.line().await.unwrap().contains("this port speaks TLS"));
    }
    // A browser, or something that looks for web servers.
    let mut client = Client::connect(addresses.tcp[0]).await;
    client.send("GET / HTTP/1.1\r\n\r").await;
    assert!(client.line().await.unwrap().contains("-32700"));
}

#[tokio::test]
async fn websockets() {
    let server = with_all_ports().await;
    let plain = TcpStream::connect(server.handle.addresses().websocket[0]).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async("ws://localhost/", plain).await.unwrap();
    frames(&server, socket).await;
    let (secure, _) = tls(server.handle.addresses().websocket_tls[0]).await.unwrap();
    let (socket, _) = tokio_tungstenite::client_async("ws://localhost/", secure).await.unwrap();
    frames(&server, socket).await;
}

async fn frames<S>(server: &Running, mut socket: tokio_tungstenite::WebSocketStream<S>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut call = async |text: &str| {
        socket.send(Message::text(text)).await.unwrap();
        let Some(Ok(Message::Text(reply))) = socket.next().await else { panic!("no text") };
        assert!(!reply.ends_with('\n'), "one message is one frame");
        serde_json::from_str::<Value>(&reply).unwrap()
    };
    let reply = call(r#"{"id":1,"method":"server.version","params":["test","1.6"]}"#).await;
    assert_eq!(reply["result"][1], "1.6");
    let reply =
        call(r#"[{"id":2,"method":"server.ping"},{"id":3,"method":"blockchain.headers.subscribe"}]"#).await;
    assert_eq!(reply[1]["id"], 3);
    assert_eq!(call("nonsense").await["error"]["code"], -32700);
    server.node.mine(vec![]);
    let Some(Ok(Message::Text(note))) = socket.next().await else { panic!("no text") };
    assert!(
        note.starts_with(r#"{"jsonrpc":"2.0","method":"blockchain.headers.subscribe","params":[{"hex":"#)
    );
}

#[tokio::test]
async fn a_websocket_message_that_is_too_large() {
    let server = Running::with(|config| {
        config.websocket.push(loopback());
        config.limits.request_bytes = 1_000;
    })
    .await;
    let plain = TcpStream::connect(server.handle.addresses().websocket[0]).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("ws://localhost/", plain).await.unwrap();
    socket.send(Message::text("x".repeat(2_000))).await.unwrap();
    let Some(Ok(Message::Text(reply))) = socket.next().await else { panic!("no text") };
    assert!(reply.contains("request too large"));
}

#[tokio::test]
async fn a_handshake_that_does_not_come() {
    let server = Running::with(|config| {
        config.tls.push(loopback());
        config.websocket.push(loopback());
        config.limits.handshake = Duration::from_millis(50);
    })
    .await;
    for port in [server.handle.addresses().tls[0], server.handle.addresses().websocket[0]] {
        let mut stream = TcpStream::connect(port).await.unwrap();
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0);
        let mut stream = TcpStream::connect(port).await.unwrap();
        stream.write_all(&[0x16]).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.len() < 100);
    }
}

/// Bug class 17: a server that can't be stopped.
#[tokio::test]
async fn stopping_answers_what_was_asked_and_ends_every_connection() {
    let server = with_all_ports().await;
    let mut client = Client::greet(server.tcp(), "1.4").await;
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    let silent = TcpStream::connect(server.tcp()).await.unwrap();
    let _half = TcpStream::connect(server.handle.addresses().tls[0]).await.unwrap();
    let address = server.tcp();
    server.stop().await;
    assert_eq!(client.line().await, None);
    drop(silent);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_that_names_it() {
    let server = Running::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = peregrine::electrum::Config::new(dir.path());
    config.tcp.push(server.tcp());
    let node = server.node.clone();
    let Err(error) = peregrine::electrum::serve(config, node, None, None, std::future::pending()).await
    else {
        panic!("two servers on one port")
    };
    assert!(error.to_string().contains(&server.tcp().to_string()));
}

#[tokio::test]
async fn without_a_scanner_silent_payments_are_not_offered() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = peregrine::electrum::Config::new(dir.path());
    config.tcp.push(loopback());
    let node = crate::memory::MemoryNode::new();
    let handle = peregrine::electrum::serve(config, node, None, None, std::future::pending()).await.unwrap();
    let mut client = Client::greet(handle.addresses().tcp[0], "1.4.2").await;
    assert!(client.call("server.features", json!([])).await.unwrap().get("silent_payments").is_none());
    let refused = client.call("blockchain.silentpayments.subscribe", json!([])).await.unwrap_err();
    assert_eq!(refused.code, -32601);
}
