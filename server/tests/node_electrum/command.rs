//! `peregrine client` against the server.

use std::collections::BTreeSet;

use bitcoin::hex::DisplayHex;
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::InputKind;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::common::{Live, output};
use crate::served::Served;

#[tokio::test(flavor = "multi_thread")]
async fn node_client_command_shows_what_a_wallet_finds() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 61);
    maker.blocks(10, 6);
    let mut served = Served::start(&node).await;
    let wallet = &maker.wallets()[1];
    let key = served.program().file("key.txt", &wallet.scan.secret().to_secret_bytes().to_lower_hex_string());
    let spend = wallet.spend.public_key().to_string();
    let server = format!("tcp://{}", served.tcp);
    let command = |server: &str, extra: &[&str]| {
        let mut command = served.program().command(["client", "--server", server, "--spend-key", &spend]);
        command.args(["--scan-key-file", &key]).args(extra);
        command
    };
    let planted: BTreeSet<(u64, String)> = maker
        .planted()
        .iter()
        .filter(|planted| planted.wallet == 1)
        .map(|planted| (planted.height.into(), planted.txid.to_string()))
        .collect();
    assert!(!planted.is_empty());

    for (server, labels) in [(server.clone(), "1-3"), (format!("ssl://{}", served.tls), "1,2,3")] {
        let run = output(&mut command(&server, &["--labels", labels, "--json"])).good();
        let events: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events[0]["address"], wallet.address(None).to_string());
        assert_eq!(events[0]["labels"], json!([0, 1, 2, 3]));
        let found: BTreeSet<(u64, String)> = events
            .iter()
            .filter(|event| event["event"] == "found")
            .map(|event| (event["height"].as_u64().unwrap(), event["txid"].as_str().unwrap().to_owned()))
            .collect();
        assert_eq!(found, planted);
        assert_eq!(events.last().unwrap()["event"], "scanned");
        assert!(!run.stdout.contains(&wallet.scan.secret().to_secret_bytes().to_lower_hex_string()));
    }
    // For people.
    let run = output(&mut command(&server, &["--labels", "1-3"])).good();
    assert_eq!(run.stdout.lines().count(), planted.len());
    assert!(run.stderr.contains("scanned in"), "{}", run.stderr);

    // What comes later.
    let mut live = Live::new(command(&server, &["--follow", "--json"]));
    live.event("scanned", |_| true);
    let txid = maker.pay(&[InputKind::TaprootKeyPath], &[(1, None)]);
    node.call("sendrawtransaction", json!([maker.raw_and_script(txid).0]));
    let event = live.event("found", |_| true);
    assert_eq!(
        (&event["height"], &event["txid"], &event["live"]),
        (&json!(0), &json!(txid.to_string()), &json!(true))
    );
    live.terminate();
    assert_eq!(live.exit_code(), Some(130));

    // Errors say what to do.
    output(&mut command(&server, &["--network", "signet"])).fails(1, ["another network"]);
    output(&mut command("tcp://127.0.0.1:1", &[])).fails(1, ["can't connect to tcp://127.0.0.1:1"]);
    let wrong = format!("ssl://{}", served.tls);
    output(&mut command(&wrong, &["--fingerprint", &"00".repeat(32)])).fails(1, ["another fingerprint"]);
    output(&mut command(&server, &["--start", "0-999999"])).fails(1, ["above the tip"]);
    served.stop();
}
