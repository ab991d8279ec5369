//! `peregrine client` against servers that do what a real one rarely does.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use common::{Live, Program, output};
use peregrine_scanner::{Address, AddressNetwork, ScanKey, SpendKey};
use serde_json::{Value, json};

const SUBSCRIBE: &str = "blockchain.silentpayments.subscribe";
const GENESIS: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

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

fn object() -> Value {
    json!({ "address": address(), "labels": [0], "start_height": 7 })
}

fn found(height: i64) -> Value {
    json!({ "height": height, "tx_hash": "ab".repeat(32), "tweak_key": spend_hex() })
}

/// A notification with the parameters by name, as Frigate sends it.
fn note(progress: f64, history: &[Value]) -> Value {
    json!({ "subscription": object(), "progress": progress, "history": history })
}

/// What a server without fault answers to a request.
fn good(request: &Value) -> Value {
    match request["method"].as_str().unwrap() {
        "server.version" => json!(["Test 1", "1.4.2"]),
        "server.features" => json!({ "genesis_hash": GENESIS, "silent_payments": [0] }),
        SUBSCRIBE => object(),
        "blockchain.silentpayments.unsubscribe" => json!(address()),
        _ => Value::Null,
    }
}

/// A server for one client: gives a result or, as `{"error": …}`, an error, and what it notifies of after the reply. It
/// closes the connection after a notification of null.
fn fake(answer: impl Fn(&Value) -> (Value, Vec<Value>) + Send + 'static) -> (SocketAddr, Receiver<Value>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        for line in reader.lines().map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            let _ = sender.send(request.clone());
            let (result, notes) = answer(&request);
            let mut reply = json!({ "jsonrpc": "2.0", "id": request["id"] });
            match result.get("error") {
                Some(error) => reply["error"] = error.clone(),
                None => reply["result"] = result,
            }
            let mut text = format!("{reply}\r\n");
            let closing = notes.contains(&Value::Null);
            for params in notes.iter().filter(|params| !params.is_null()) {
                // Some servers send an id with notifications, too.
                let note = json!({ "jsonrpc": "2.0", "id": 5, "method": SUBSCRIBE, "params": params });
                text += &format!("{note}\n");
            }
            if stream.write_all(text.as_bytes()).is_err() || closing {
                return;
            }
        }
    });
    (address, requests)
}

/// The same, but for what it answers to the subscription.
fn fake_scan(result: Value, notes: Vec<Value>) -> (SocketAddr, Receiver<Value>) {
    fake(move |request| {
        if request["method"] == SUBSCRIBE { (result.clone(), notes.clone()) } else { (good(request), vec![]) }
    })
}

fn program() -> (Program, String) {
    let program = Program::new().env("PEREGRINE_NETWORK", "regtest");
    let key = program.file("key.txt", &scan_hex());
    (program, key)
}

fn client(program: &Program, key: &str, server: SocketAddr, extra: &[&str]) -> std::process::Command {
    let mut command = program.command(["client", "--spend-key", &spend_hex(), "--scan-key-file", key]);
    command.args(["--server", &format!("tcp://{server}")]).args(extra);
    command
}

#[test]
fn requests_are_those_of_sparrow_and_notifications_of_every_form_are_read() {
    let (program, key) = program();
    let other = json!({ "subscription": { "address": "sp1q", "labels": [0], "start_height": 7 },
        "progress": 1.0, "history": [found(99)] });
    let by_position = json!([object(), 0.5, [found(9)]]);
    let notes = vec![other, by_position, note(1.0, &[found(0)])];
    let (server, requests) = fake_scan(object(), notes);
    let run = output(&mut client(&program, &key, server, &["--json", "--start", "7", "--labels", ""])).good();
    let events: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let heights: Vec<&Value> =
        events.iter().filter(|event| event["event"] == "found").map(|event| &event["height"]).collect();
    assert_eq!(heights, [&json!(9), &json!(0)]);
    assert_eq!(events.last().unwrap()["found"], 2);

    let requests: Vec<Value> = requests.iter().collect();
    let methods: Vec<&str> = requests.iter().map(|request| request["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["server.version", "server.features", SUBSCRIBE]);
    assert_eq!(requests[2]["params"], json!([scan_hex(), spend_hex(), 7, []]));
    assert!(!run.stdout.contains(&scan_hex()) && !run.stderr.contains(&scan_hex()));
}

#[test]
fn a_server_without_silent_payments_is_not_handed_the_key() {
    for features in [json!({}), json!({ "silent_payments": [1] }), json!({ "silent_payments": true })] {
        let (program, key) = program();
        let (server, requests) = fake(move |request| match request["method"].as_str() {
            Some("server.features") => (features.clone(), vec![]),
            _ => (good(request), vec![]),
        });
        output(&mut client(&program, &key, server, &[])).fails(1, ["doesn't serve silent payments"]);
        assert!(requests.iter().all(|request| request["method"] != SUBSCRIBE));
    }
}

#[test]
fn another_address_than_our_own_is_an_error() {
    let (program, key) = program();
    let mut wrong = object();
    wrong["address"] = json!("sprt1\u{1b}[2Jq");
    let (server, _requests) = fake_scan(wrong, vec![]);
    let error =
        output(&mut client(&program, &key, server, &[])).fails(1, ["instead of", &address(), "sprt1 [2Jq"]);
    assert!(!error.contains('\u{1b}'));
}

#[test]
fn what_a_server_sends_instead_of_an_answer_is_told_and_steers_no_terminal() {
    let (program, key) = program();
    let refusal = json!({ "error": { "code": -102, "message": "\u{1b}]0;busy\u{7}" } });
    let (server, _requests) = fake_scan(refusal, vec![]);
    let error = output(&mut client(&program, &key, server, &[])).fails(1, ["refuses", "busy"]);
    assert!(!error.contains('\u{1b}'));

    let mut wrong = found(3);
    wrong["tx_hash"] = json!("\u{1b}[31m");
    let (server, _requests) = fake_scan(object(), vec![note(1.0, &[wrong])]);
    let run = output(&mut client(&program, &key, server, &[]));
    assert!(!run.stdout.contains('\u{1b}'));
    run.fails(1, ["can't be read"]);

    let (server, _requests) = fake_scan(object(), vec![note(0.5, &[found(3)]), Value::Null]);
    let run = output(&mut client(&program, &key, server, &[]));
    assert_eq!(run.stdout.lines().count(), 1, "what came before is shown");
    run.fails(1, ["closed the connection"]);
}

#[test]
fn ctrl_c_unsubscribes() {
    let (program, key) = program();
    let (server, requests) = fake_scan(object(), vec![note(0.5, &[])]);
    let mut live = Live::new(client(&program, &key, server, &["--json"]));
    live.event("progress", |_| true);
    live.terminate();
    assert_eq!(live.exit_code(), Some(130));
    let last = requests.iter().last().unwrap();
    assert_eq!(last["method"], "blockchain.silentpayments.unsubscribe");
    assert_eq!(last["params"], json!([scan_hex(), spend_hex()]));
}

#[test]
fn wrong_use_is_explained() {
    let (program, key) = program();
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    for (extra, text) in [
        (["--start", "9-5"], "backwards"),
        (["--start", "600000000"], "is no height"),
        (["--server", "localhost"], "tcp://127.0.0.1:50001"),
        (["--labels", "x"], "--labels"),
    ] {
        let mut command = program.command(["client", "--spend-key", &spend_hex(), "--scan-key-file", &key]);
        output(command.args(extra)).fails(2, [text]);
    }
    // The key itself where its file belongs is neither used nor repeated.
    let error = output(&mut client(&program, &scan_hex(), nobody, &[])).fails(1, ["name of a file"]);
    assert!(!error.contains(&scan_hex()));
    // Nobody answers there, and waiting has an end.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let deaf = listener.local_addr().unwrap();
    let mut live = Live::new(client(&program, &key, deaf, &[]));
    let _stream = listener.accept().unwrap();
    thread::sleep(Duration::from_millis(200));
    live.terminate();
    let code = live.find_line(|_| false);
    assert_eq!((code, live.exit_code()), (None, Some(130)));
}
