//! A client that is as strict as Sparrow: where Sparrow hangs, loses a wallet or throws, this one panics.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

/// Long enough for the slowest machine; only failing tests wait for it.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(crate) struct Client {
    reader: BufReader<ReadHalf<Box<dyn Stream>>>,
    writer: WriteHalf<Box<dyn Stream>>,
    next_id: u64,
    /// With the time when they were read.
    notifications: VecDeque<(Instant, String)>,
    padded: bool,
}

/// An error reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: i64,
    pub(crate) message: String,
}

pub(crate) type Answer = Result<Value, Refused>;

/// Every number that follows `"id":` anywhere in a line, which is how Sparrow knows whose reply it is.
fn ids_anywhere(line: &str) -> Vec<u64> {
    let digits = |text: &str| {
        let text = text.trim_start().strip_prefix(':')?.trim_start();
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let mut ids: Vec<u64> =
        line.match_indices("\"id\"").filter_map(|(at, key)| digits(&line[at + key.len()..])).collect();
    ids.sort_unstable();
    ids
}

fn keys(object: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::new(Box::new(TcpStream::connect(address).await.unwrap()))
    }

    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let notifications = VecDeque::new();
        Self { reader: BufReader::new(reader), writer, next_id: 1, notifications, padded: false }
    }

    /// From now on lines are filled up with spaces, as Sparrow does over TLS.
    pub(crate) fn padded(mut self) -> Self {
        self.padded = true;
        self
    }

    /// Connects and negotiates.
    pub(crate) async fn greet(address: SocketAddr, version: &str) -> Self {
        let mut client = Self::connect(address).await;
        let answer = client.call("server.version", json!(["test", version])).await.unwrap();
        assert_eq!(answer[1], version);
        client
    }

    pub(crate) async fn send(&mut self, line: impl AsRef<[u8]>) {
        // In one piece: the end of the line alone would wait for the acknowledgement of the rest, 40 ms each time.
        let mut line = line.as_ref().to_vec();
        if self.padded {
            line.resize(line.len().next_multiple_of(96), b' ');
        }
        line.push(b'\n');
        self.writer.write_all(&line).await.unwrap();
        self.writer.flush().await.unwrap();
    }

    /// The next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.reader.read_line(&mut line)).await;
        match read.expect("an answer") {
            Ok(0) | Err(_) => None,
            Ok(_) => {
                assert!(line.ends_with('\n'), "a line without end: {line}");
                Some(line.trim_end_matches('\n').to_owned())
            }
        }
    }

    /// The next line that is no notification; those are kept.
    pub(crate) async fn reply_line(&mut self) -> Option<String> {
        loop {
            let line = self.line().await?;
            let json: Value = serde_json::from_str(&line).expect("JSON");
            if json.get("method").is_none() {
                return Some(line);
            }
            self.keep(line);
        }
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Answer {
        self.call_line(method, params).await.1
    }

    /// The reply as it came, and what it says.
    pub(crate) async fn call_line(&mut self, method: &str, params: Value) -> (String, Answer) {
        let id = self.next_id;
        self.next_id += 1;
        self.send(request(method, &params, id)).await;
        let line = self.reply_line().await.expect("a reply");
        assert_eq!(ids_anywhere(&line), [id], "Sparrow can't match this reply: {line}");
        let reply: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(reply["id"], id);
        let answer = checked(method, &reply);
        (line, answer)
    }

    /// A batch, answered in order.
    pub(crate) async fn batch(&mut self, calls: &[(&str, Value)]) -> Vec<Answer> {
        let first = self.next_id;
        self.next_id += calls.len() as u64;
        let requests: Vec<String> =
            calls.iter().zip(first..).map(|((method, params), id)| request(method, params, id)).collect();
        self.send(format!("[{}]", requests.join(","))).await;
        let line = self.reply_line().await.expect("a reply");
        assert_eq!(ids_anywhere(&line), (first..self.next_id).collect::<Vec<_>>(), "{line}");
        let replies: Vec<Value> = serde_json::from_str(&line).expect("a list");
        assert_eq!(replies.len(), calls.len());
        let in_order = replies.iter().zip(first..).all(|(reply, id)| reply["id"] == id);
        assert!(in_order, "bug class 19: a batch out of order");
        replies.iter().zip(calls).map(|(reply, (method, _))| checked(method, reply)).collect()
    }

    fn keep(&mut self, line: String) {
        let note: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(keys(&note), ["jsonrpc", "method", "params"], "{line}");
        assert_eq!(note["jsonrpc"], "2.0");
        match note["method"].as_str().unwrap() {
            "blockchain.headers.subscribe" => {
                assert_eq!(keys(&note["params"][0]), ["height", "hex"]);
                assert_eq!(note["params"].as_array().unwrap().len(), 1);
            }
            "blockchain.silentpayments.subscribe" => {
                let params = &note["params"];
                assert_eq!(keys(params), ["history", "progress", "subscription"]);
                assert_eq!(keys(&params["subscription"]), ["address", "labels", "start_height"]);
                let history = params["history"].as_array().unwrap();
                assert!(history.len() <= 100, "a page of {}", history.len());
                for item in history {
                    assert_eq!(keys(item), ["height", "tweak_key", "tx_hash"]);
                    assert_eq!(item["tx_hash"].as_str().unwrap().len(), 64);
                    assert_eq!(item["tweak_key"].as_str().unwrap().len(), 66);
                    assert!(item["height"].is_u64());
                }
                assert!((0.0..=1.0).contains(&params["progress"].as_f64().unwrap()));
            }
            _ => assert!(note["params"].is_array()),
        }
        self.notifications.push_back((Instant::now(), line));
    }

    /// The next notification, as it came.
    pub(crate) async fn note_line(&mut self) -> String {
        self.note_at().await.1
    }

    /// The next notification, and when it was read.
    pub(crate) async fn note_at(&mut self) -> (Instant, String) {
        if let Some(note) = self.notifications.pop_front() {
            return note;
        }
        let line = self.line().await.expect("a notification");
        self.keep(line);
        self.notifications.pop_back().unwrap()
    }

    /// Notifications that were read already and not looked at.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &str> {
        self.notifications.iter().map(|(_, line)| line.as_str())
    }

    /// The next notification: its method without the first word, and its parameters.
    pub(crate) async fn note(&mut self) -> (String, Value) {
        let note: Value = serde_json::from_str(&self.note_line().await).unwrap();
        let method = note["method"].as_str().unwrap();
        (method.trim_start_matches("blockchain.").to_owned(), note["params"].clone())
    }

    /// Notifications that came before everything that was asked so far was answered.
    pub(crate) async fn notes_until_now(&mut self) -> Vec<String> {
        self.call("server.ping", json!([])).await.unwrap();
        self.notifications.drain(..).map(|(_, line)| line).collect()
    }
}

/// As Sparrow writes it.
fn request(method: &str, params: &Value, id: u64) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params},\"id\":{id}}}")
}

/// What Sparrow's library and its types refuse.
fn checked(method: &str, reply: &Value) -> Answer {
    assert_eq!(reply["jsonrpc"], "2.0", "{reply}");
    let reply: &Map<String, Value> = reply.as_object().unwrap();
    assert_eq!(reply.len(), 3, "{reply:?}");
    if let Some(error) = reply.get("error") {
        assert_eq!(keys(error), ["code", "message"]);
        let code = error["code"].as_i64().expect("a code");
        return Err(Refused { code, message: error["message"].as_str().expect("a text").into() });
    }
    let result = reply.get("result").expect("a result").clone();
    let may_be_null = ["server.ping", "blockchain.scripthash.subscribe", "blockchain.scriptpubkey.subscribe"];
    assert!(!result.is_null() || may_be_null.contains(&method) || method.ends_with("get_height"));
    match method {
        "blockchain.scripthash.get_history" | "blockchain.scripthash.get_mempool" => {
            for item in result.as_array().unwrap() {
                let in_block = item["height"].as_i64().unwrap() > 0;
                let expected: &[&str] =
                    if in_block { &["height", "tx_hash"] } else { &["fee", "height", "tx_hash"] };
                assert_eq!(keys(item), expected);
            }
        }
        "blockchain.headers.subscribe" => assert_eq!(keys(&result), ["height", "hex"]),
        "blockchain.silentpayments.subscribe" => {
            assert_eq!(keys(&result), ["address", "labels", "start_height"])
        }
        "server.features" => {
            assert!(
                result["hosts"].is_object() && (result["pruning"].is_null() || result["pruning"].is_u64())
            );
        }
        _ => {}
    }
    Ok(result)
}
