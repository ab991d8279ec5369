//! The Electrum wallet, as Debian has it: creates a wallet, receives, sends, and restores it from its seed.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use peregrine_index::testkit::TestNode;
use serde_json::Value;

use crate::served::Served;

/// The wallet's program with a data directory of its own; its daemon is stopped when this is dropped.
struct Wallet {
    dir: tempfile::TempDir,
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join("electrum")).find(|path| path.is_file())
}

fn electrum(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program().expect("it was looked for"));
    command.args(args).args(["--regtest", "-D", dir.to_str().unwrap()]).stdin(Stdio::null());
    command
}

impl Wallet {
    /// Makes a wallet with `create`, or from a seed; gives the seed.
    fn new(server: SocketAddr, seed: Option<&str>) -> (Self, String) {
        let wallet = Self { dir: tempfile::tempdir().unwrap() };
        let created = match seed {
            None => wallet.offline(&["create"]),
            Some(seed) => wallet.offline(&["restore", seed]),
        };
        let seed = seed.map_or_else(|| created["seed"].as_str().unwrap().to_owned(), str::to_owned);
        let server = format!("{server}:t");
        let status = electrum(wallet.dir.path(), &["daemon", "-d", "--oneserver", "-s", &server])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "the daemon doesn't start");
        wallet.run(&["load_wallet"]);
        (wallet, seed)
    }

    fn offline(&self, args: &[&str]) -> Value {
        self.run(&[args, &["--offline"]].concat())
    }

    /// What a command prints, as JSON or else as a text.
    fn run(&self, args: &[&str]) -> Value {
        let output = electrum(self.dir.path(), args).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "electrum {}: {text} {error}", args[0]);
        serde_json::from_str(&text).unwrap_or_else(|_| text.trim().into())
    }

    /// Repeats a command until its output is as wanted.
    fn until(&self, args: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let value = self.run(args);
            if wanted(&value) {
                return value;
            }
            assert!(Instant::now() < end, "electrum {args:?} gives {value}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Id and height of every transaction.
    fn history(&self, transactions: usize) -> Vec<(String, i64)> {
        let list = |history: &Value| history["transactions"].as_array().cloned().unwrap_or_default();
        let confirmed = |entry: &Value| entry["height"].as_i64().is_some_and(|height| height > 0);
        let history = self.until(&["onchain_history"], |history| {
            let list = list(history);
            list.len() == transactions && list.iter().all(confirmed)
        });
        let entry =
            |entry: &Value| (entry["txid"].as_str().unwrap().to_owned(), entry["height"].as_i64().unwrap());
        let mut entries: Vec<_> = list(&history).iter().map(entry).collect();
        entries.sort();
        entries
    }
}

impl Drop for Wallet {
    fn drop(&mut self) {
        let _ = electrum(self.dir.path(), &["stop"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_electrum_wallet_of_debian() {
    if program().is_none() {
        // Not `eprintln!`: the test harness would hide that of a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: the Electrum wallet isn't installed (apt-get install electrum)"
        );
        return;
    }
    let Some(node) = TestNode::start(&[]) else { return };
    node.generate_to_descriptor(5, crate::chain::ANYONE);
    let mut served = Served::start(&node).await;
    let tcp = served.tcp;
    tokio::task::block_in_place(|| {
        let (wallet, seed) = Wallet::new(tcp, None);
        wallet.until(&["getinfo"], |info| info["connected"] == true && info["blockchain_height"] == 5);
        let address = wallet.run(&["getunusedaddress"]);
        node.generate_to_address(1, address.as_str().unwrap());
        wallet.until(&["getbalance"], |balance| balance["unmatured"] == "50" || balance["confirmed"] == "50");
        node.generate_to_descriptor(100, crate::chain::ANYONE);
        wallet.until(&["getbalance"], |balance| {
            balance["confirmed"] == "50" && balance.get("unmatured").is_none()
        });

        // To itself, so that both sides of the payment are its own; then to a stranger.
        let own = wallet.run(&["getunusedaddress"]);
        let mut sent = Vec::new();
        for (to, amount) in
            [(own.as_str().unwrap(), "1.5"), ("bcrt1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqdku202", "2")]
        {
            let raw = wallet.run(&["payto", to, amount, "--fee", "0.0001"]);
            let txid = wallet.run(&["broadcast", raw.as_str().unwrap()]);
            sent.push(txid.as_str().unwrap().to_owned());
            // Its own server has told it of the transaction before it makes the next one.
            wallet.until(&["onchain_history"], |history| {
                let list = history["transactions"].as_array();
                list.is_some_and(|list| {
                    list.iter().any(|entry| entry["txid"] == txid && entry["height"].as_i64() <= Some(0))
                })
            });
        }
        node.generate_to_descriptor(1, crate::chain::ANYONE);
        let history = wallet.history(3);
        assert!(sent.iter().all(|txid| history.contains(&(txid.clone(), 107))), "{history:?}");
        assert!(history.iter().any(|(_, height)| *height == 6));
        let balance = wallet.until(&["getbalance"], |balance| balance.get("unconfirmed").is_none());
        assert_eq!(balance["confirmed"], "47.9998");

        // The block that paid it goes, and comes again: the wallet follows.
        let tip = node.best_block();
        node.invalidate(tip);
        // Its own chain stays, as a longer one that the server is at the beginning of.
        wallet.until(&["getinfo"], |info| info["server_height"] == 106);
        node.reconsider(tip);
        assert_eq!(wallet.history(3), history);
        drop(wallet);

        // From the seed alone.
        let (restored, _) = Wallet::new(tcp, Some(&seed));
        assert_eq!(restored.history(3), history);
        assert_eq!(
            restored.until(&["getbalance"], |balance| balance["confirmed"] == "47.9998")["confirmed"],
            "47.9998"
        );
    });
    served.stop();
}
