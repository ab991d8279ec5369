//! The running server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use peregrine_index::testkit::TestNode;
use serde_json::{Value, json};

use crate::client::Client;
use crate::common::{Live, Program};

/// A `peregrine serve` with a data directory of its own.
pub(crate) struct Served {
    program: Program,
    live: Option<Live>,
    /// What it said about where it listens.
    listening: Value,
    pub(crate) tcp: SocketAddr,
    pub(crate) tls: SocketAddr,
}

impl Served {
    /// Starts it and waits until it has indexed the node's chain.
    pub(crate) async fn start(node: &TestNode) -> Self {
        let mut served = Self::open(node).await;
        served.ready(node).await;
        served
    }

    /// Starts it and waits for its ports only.
    pub(crate) async fn open(node: &TestNode) -> Self {
        Self::open_with(node, &[]).await
    }

    /// The same with more settings in the environment.
    pub(crate) async fn open_with(node: &TestNode, settings: &[(&str, &str)]) -> Self {
        let mut program = Program::new()
            .env("PEREGRINE_NETWORK", "regtest")
            .env("PEREGRINE_NODE", node.url())
            .env("PEREGRINE_BITCOIN_DATADIR", node.data_dir().display())
            .env("PEREGRINE_ELECTRUM", "127.0.0.1:0")
            .env("PEREGRINE_ELECTRUM_TLS", "127.0.0.1:0")
            .env("PEREGRINE_ADDRESS_CACHE", "32");
        for (name, value) in settings {
            program = program.env(name, value);
        }
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut served = Self { program, live: None, listening: Value::Null, tcp: unknown, tls: unknown };
        served.launch();
        served
    }

    /// Starts it again.
    pub(crate) fn launch(&mut self) {
        let mut live = self.program.start(["serve", "--json"]);
        self.listening = live.event("listening", |_| true);
        (self.tcp, self.tls) = (self.address("electrum"), self.address("electrum_tls"));
        self.live = Some(live);
    }

    /// Waits until it has the node's best block and answers everything.
    pub(crate) async fn ready(&mut self, node: &TestNode) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let mut client = Client::greet(self.tcp, "1.4.2").await;
            let tip = client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
            let history = client.call("blockchain.scripthash.get_history", json!(["00".repeat(32)])).await;
            match history {
                Ok(history) if tip["height"] == node.height() => {
                    assert_eq!(history, json!([]));
                    return;
                }
                Ok(_) => {}
                // Not yet; it says how far it is.
                Err(error) => {
                    assert_eq!(error.code, -102);
                    assert!(error.message.starts_with("indexing "), "{}", error.message);
                }
            }
            if Instant::now() > end {
                let printed = self.live.as_mut().map(Live::printed).unwrap_or_default();
                panic!("the server doesn't come to the tip, {}:\n{printed}", node.height());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Where it offers an interface.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        self.listening[name][0]
            .as_str()
            .unwrap_or_else(|| panic!("no {name}: {}", self.listening))
            .parse()
            .unwrap()
    }

    /// The program, for other commands beside it.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// Where it keeps its index.
    pub(crate) fn index_dir(&self) -> std::path::PathBuf {
        self.program.index_dir()
    }

    /// Ends it as an operator does; it must end by itself, in an orderly way.
    pub(crate) fn stop(&mut self) {
        let live = self.live.take().expect("it runs");
        live.terminate();
        assert_eq!(live.exit_code(), Some(0));
    }

    /// Ends it as a power cut does.
    pub(crate) fn kill(&mut self) {
        let ended = self.live.take().expect("it runs").kill();
        assert_eq!(ended, None, "it had ended before it was killed");
    }
}

/// The text of a script hash as Electrum has it.
pub(crate) fn hash(script: &bitcoin::Script) -> String {
    peregrine::node::ScriptHash::of(script).to_string()
}

/// Waits for the next notification of a method; others that come before are given, too.
pub(crate) async fn note_of(client: &mut Client, method: &str) -> (Vec<(String, Value)>, Value) {
    let mut before = Vec::new();
    loop {
        let (name, params) = client.note().await;
        if name == method {
            return (before, params);
        }
        before.push((name, params));
    }
}
