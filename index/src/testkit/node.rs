//! Starts, stops and drives a `bitcoind` that nobody else sees.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bitcoin::{BlockHash, Network};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::source::{NodeConfig, NodeKind};

/// How long a node may take to start or stop; a loaded machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `bitcoind` on regtest with its own ports and data directory. Dropping it kills it and removes the data.
///
/// It has no wallet and no peers. Methods panic when the node doesn't do what a test needs.
pub struct TestNode {
    bitcoind: PathBuf,
    args: Vec<String>,
    port: u16,
    dir: TempDir,
    child: Option<Child>,
    agent: ureq::Agent,
}

/// The node's error for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcFailure {
    /// Code, as in `-8`.
    pub code: i64,
    /// Text.
    pub message: String,
}

/// The `bitcoind` for tests: `PEREGRINE_BITCOIND`, else the one that `tools/build-bitcoind.sh` has built, else one in the
/// `PATH`.
pub fn find_bitcoind() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("PEREGRINE_BITCOIND") {
        return Some(path.into());
    }
    let cache = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")));
    let built = cache.map(|cache| cache.join("peregrine/bitcoind-30.99/bitcoind"));
    let in_path = variable("PATH")
        .map(|path| std::env::split_paths(&path).map(|dir| dir.join("bitcoind")).collect::<Vec<_>>());
    built.into_iter().chain(in_path.unwrap_or_default()).find(|path| path.is_file())
}

impl TestNode {
    /// Starts a node with REST and these further arguments, and waits until it answers.
    ///
    /// `None` only when there is no `bitcoind` and `PEREGRINE_SKIP_NODE_TESTS=1` allows to do without.
    ///
    /// # Panics
    ///
    /// When there is no `bitcoind` otherwise, or it doesn't start.
    pub fn start(args: &[&str]) -> Option<Self> {
        let Some(bitcoind) = find_bitcoind() else {
            assert!(
                std::env::var_os("PEREGRINE_SKIP_NODE_TESTS").is_some_and(|value| value == "1"),
                "no bitcoind for the node tests: run tools/build-bitcoind.sh once, or name one in PEREGRINE_BITCOIND, or set \
                 PEREGRINE_SKIP_NODE_TESTS=1 to do without them"
            );
            // Not `eprintln!`: the test harness would hide that of a test that passes.
            let name = std::thread::current().name().unwrap_or("a test").to_owned();
            let _ = writeln!(std::io::stderr(), "SKIPPED: {name}: no bitcoind (PEREGRINE_SKIP_NODE_TESTS=1)");
            return None;
        };
        let mut node = Self {
            bitcoind,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            port: free_port(),
            dir: tempfile::Builder::new().prefix("peregrine-node-").tempdir().expect("a temporary directory"),
            child: None,
            agent: ureq::Agent::config_builder()
                .http_status_as_error(false)
                .proxy(None)
                .timeout_global(Some(PATIENCE))
                .build()
                .new_agent(),
        };
        // Another program may take the free port before the node does.
        for _ in 0..5 {
            match node.try_launch() {
                Ok(()) => return Some(node),
                Err(log) if log.contains("Unable to bind") || log.contains("Unable to start HTTP server") => {
                    node.port = free_port();
                }
                Err(log) => panic!("bitcoind doesn't start:\n{log}"),
            }
        }
        panic!("no free port for bitcoind");
    }

    /// Starts the node again on the same data and port, after [`stop`](Self::stop) or [`kill`](Self::kill).
    pub fn launch(&mut self) {
        if let Err(log) = self.try_launch() {
            panic!("bitcoind doesn't start again:\n{log}");
        }
    }

    /// Starts the node again without waiting until it answers.
    pub fn launch_without_waiting(&mut self) {
        assert!(self.child.is_none(), "the node is already running");
        let log = fs::File::create(self.dir.path().join("stderr.txt")).expect("a file for stderr");
        let child = Command::new(&self.bitcoind)
            .arg(format!("-datadir={}", self.dir.path().display()))
            .arg(format!("-rpcport={}", self.port))
            .args(["-regtest", "-server=1", "-rest=1", "-listen=0", "-connect=0", "-fallbackfee=0.0001"])
            .args(["-printtoconsole=0", "-dbcache=32", "-txindex=0", "-rpcthreads=8"])
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("can't run {}: {e}", self.bitcoind.display()));
        self.child = Some(child);
    }

    /// The error is what the node wrote to its standard error.
    fn try_launch(&mut self) -> Result<(), String> {
        self.launch_without_waiting();
        let end = Instant::now() + PATIENCE;
        loop {
            let child = self.child.as_mut().expect("just launched");
            if child.try_wait().expect("a child to wait for").is_some() {
                self.child = None;
                return Err(fs::read_to_string(self.dir.path().join("stderr.txt")).unwrap_or_default());
            }
            if self.cookie_path().exists()
                && self.try_call("getblockcount", &json!([])).is_some_and(|r| r.is_ok())
            {
                return Ok(());
            }
            assert!(Instant::now() < end, "bitcoind doesn't answer within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the node in an orderly way and waits until it is gone.
    pub fn stop(&mut self) {
        self.call("stop", json!([]));
        let end = Instant::now() + PATIENCE;
        let child = self.child.as_mut().expect("the node is not running");
        while child.try_wait().expect("a child to wait for").is_none() {
            assert!(Instant::now() < end, "bitcoind doesn't stop within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child = None;
    }

    /// Kills the node (SIGKILL), as a power cut would. Blocks since the last [`flush`](Self::flush) are lost: after
    /// [`launch`](Self::launch) its chain is shorter.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Makes the node write all blocks to disk.
    pub fn flush(&self) {
        // The first thing that this call does is to write everything down.
        self.call("gettxoutsetinfo", json!(["none"]));
    }

    /// Stops the node and starts it again on the same data; `args` replace the further arguments of
    /// [`start`](Self::start).
    pub fn restart_with(&mut self, args: &[&str]) {
        self.stop();
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self.launch();
    }

    /// Stops the node and starts it again on the same data; it writes a new cookie.
    pub fn restart(&mut self) {
        self.stop();
        self.launch();
    }

    /// Its port on 127.0.0.1, for JSON-RPC and REST.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its data directory, without the folder `regtest`.
    pub fn data_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its cookie file; there only while it runs.
    pub fn cookie_path(&self) -> PathBuf {
        self.dir.path().join("regtest/.cookie")
    }

    /// Settings to connect to it.
    pub fn config(&self, kind: NodeKind) -> NodeConfig {
        NodeConfig {
            url: Some(self.url()),
            data_dir: Some(self.dir.path().to_owned()),
            kind,
            ..NodeConfig::new(Network::Regtest)
        }
    }

    /// Calls a method that must succeed.
    pub fn call(&self, method: &str, params: Value) -> Value {
        match self.rpc(method, params) {
            Ok(result) => result,
            Err(failure) => panic!("{method}: {} (code {})", failure.message, failure.code),
        }
    }

    /// Calls a method; an array gives the parameters by position, an object by name.
    pub fn rpc(&self, method: &str, params: Value) -> Result<Value, RpcFailure> {
        self.try_call(method, &params).unwrap_or_else(|| panic!("{method}: the node doesn't answer"))
    }

    /// `None` when there is no usable answer.
    fn try_call(&self, method: &str, params: &Value) -> Option<Result<Value, RpcFailure>> {
        let cookie = fs::read_to_string(self.cookie_path()).ok()?;
        let login = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, cookie.trim());
        let request = json!({"jsonrpc": "1.0", "id": 0, "method": method, "params": params}).to_string();
        let mut response = self
            .agent
            .post(self.url())
            .header("authorization", format!("Basic {login}"))
            .send(request.as_bytes())
            .ok()?;
        let body = response.body_mut().with_config().limit(1 << 30).read_to_vec().ok()?;
        let answer: Value = serde_json::from_slice(&body).ok()?;
        Some(match answer.get("error").filter(|error| !error.is_null()) {
            None => Ok(answer.get("result")?.clone()),
            Some(error) => Err(RpcFailure {
                code: error.get("code")?.as_i64()?,
                message: error.get("message")?.as_str()?.to_owned(),
            }),
        })
    }

    /// Mines `count` blocks that pay to an address; their hashes.
    pub fn generate_to_address(&self, count: u32, address: &str) -> Vec<BlockHash> {
        hashes(&self.call("generatetoaddress", json!([count, address])))
    }

    /// Mines `count` blocks that pay to a descriptor such as `raw(51)`; the checksum may be missing. Their hashes.
    pub fn generate_to_descriptor(&self, count: u32, descriptor: &str) -> Vec<BlockHash> {
        hashes(&self.call("generatetodescriptor", json!([count, self.with_checksum(descriptor)])))
    }

    /// Mines one block with exactly these transactions (raw, in hexadecimal), which needn't be in the mempool.
    pub fn generate_block(&self, descriptor: &str, transactions: &[String]) -> BlockHash {
        let result = self.call("generateblock", json!([self.with_checksum(descriptor), transactions]));
        hash(&result["hash"])
    }

    /// Hash of the tip.
    pub fn best_block(&self) -> BlockHash {
        hash(&self.call("getbestblockhash", json!([])))
    }

    /// Height of the tip.
    pub fn height(&self) -> u32 {
        let height = self.call("getblockcount", json!([]));
        height.as_u64().and_then(|height| u32::try_from(height).ok()).expect("a height")
    }

    /// Hash of the block at a height of the best chain.
    pub fn block_hash(&self, height: u32) -> BlockHash {
        hash(&self.call("getblockhash", json!([height])))
    }

    /// Takes a block and all after it off the best chain.
    pub fn invalidate(&self, block: BlockHash) {
        self.call("invalidateblock", json!([block.to_string()]));
    }

    /// Undoes [`invalidate`](Self::invalidate).
    pub fn reconsider(&self, block: BlockHash) {
        self.call("reconsiderblock", json!([block.to_string()]));
    }

    fn with_checksum(&self, descriptor: &str) -> String {
        if descriptor.contains('#') {
            return descriptor.to_owned();
        }
        let info = self.call("getdescriptorinfo", json!([descriptor]));
        format!("{descriptor}#{}", info["checksum"].as_str().expect("a checksum"))
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

fn hash(value: &Value) -> BlockHash {
    value.as_str().and_then(|text| text.parse().ok()).expect("a block hash")
}

fn hashes(value: &Value) -> Vec<BlockHash> {
    value.as_array().expect("hashes").iter().map(hash).collect()
}
