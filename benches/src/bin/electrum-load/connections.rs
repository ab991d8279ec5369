//! Many connections at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Hold many connections open for a while, some of them busy
///
/// Every connection negotiates and subscribes to headers. Idle ones then only ping once at the end; busy ones ask for
/// histories of the wallet all the time. Any error ends the run with a failure. With the server's process id it says how
/// much memory an idle connection takes.
#[derive(clap::Args)]
pub(crate) struct Connections {
    /// HOST:PORT
    #[arg(long)]
    server: String,
    /// The wallet's script hashes, one a line
    #[arg(long)]
    wallet: PathBuf,
    /// Idle connections
    #[arg(long, default_value_t = 1_000)]
    idle: usize,
    /// Busy connections
    #[arg(long, default_value_t = 200)]
    busy: usize,
    /// For so long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Process id of the server
    #[arg(long)]
    pid: Option<u32>,
}

struct Connection {
    stream: BufReader<TcpStream>,
    next_id: u64,
    line: String,
}

impl Connection {
    async fn open(server: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut connection =
            Self { stream: BufReader::with_capacity(4096, stream), next_id: 1, line: String::new() };
        connection.call("server.version", &json!(["electrum-load", "1.4"])).await?;
        connection.call("blockchain.headers.subscribe", &json!([])).await?;
        Ok(connection)
    }

    async fn call(&mut self, method: &str, params: &serde_json::Value) -> anyhow::Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let request = json!({ "jsonrpc": "2.0", "method": method, "params": params, "id": id });
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).await?;
        loop {
            self.line.clear();
            let read = tokio::time::timeout(Duration::from_secs(30), self.stream.read_line(&mut self.line));
            ensure!(read.await.context("no reply within 30 s")?? > 0, "the server closed a connection");
            let reply: serde_json::Value = serde_json::from_str(&self.line)?;
            if reply["id"] == id {
                ensure!(reply.get("error").is_none_or(serde_json::Value::is_null), "{method}: {reply}");
                return Ok(());
            }
        }
    }
}

/// Resident memory of a process in KiB.
fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no VmRSS")?.parse()?)
}

impl Connections {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.hold())
    }

    async fn hold(self) -> anyhow::Result<()> {
        let text =
            std::fs::read_to_string(&self.wallet).with_context(|| self.wallet.display().to_string())?;
        let hashes: Arc<Vec<String>> = Arc::new(text.lines().map(str::to_owned).collect());
        // So that what the server allocates once isn't counted for the connections.
        let mut first = Connection::open(&self.server).await?;
        first.call("blockchain.scripthash.get_history", &json!([hashes[0]])).await?;
        let before = self.pid.map(resident).transpose()?;
        let mut idle = Vec::with_capacity(self.idle);
        for _ in 0..self.idle {
            idle.push(Connection::open(&self.server).await?);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let (Some(before), Some(pid)) = (before, self.pid) {
            let after = resident(pid)?;
            println!(
                "{} idle connections: {:.1} KiB of memory each ({before} KiB before, {after} KiB after)",
                self.idle,
                after.saturating_sub(before) as f64 / self.idle.max(1) as f64
            );
        }
        let (requests, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let slowest = Arc::new(AtomicU64::new(0));
        let started = Instant::now();
        let tasks: Vec<_> = (0..self.busy)
            .map(|number| {
                let (server, hashes) = (self.server.clone(), Arc::clone(&hashes));
                let (requests, stop, slowest) =
                    (Arc::clone(&requests), Arc::clone(&stop), Arc::clone(&slowest));
                tokio::spawn(async move {
                    let mut connection = Connection::open(&server).await?;
                    let mut at = number * 17;
                    while !stop.load(Ordering::Relaxed) {
                        at = (at + 1) % hashes.len();
                        let asked = Instant::now();
                        connection.call("blockchain.scripthash.get_history", &json!([hashes[at]])).await?;
                        slowest.fetch_max(asked.elapsed().as_micros() as u64, Ordering::Relaxed);
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await??;
        }
        let seconds = started.elapsed().as_secs_f64();
        for connection in &mut idle {
            connection.call("server.ping", &json!([])).await?;
        }
        let count = requests.load(Ordering::Relaxed);
        println!(
            "{} busy connections for {seconds:.0} s: {count} requests, {:.0} a second, the slowest {:.0} ms; no error",
            self.busy,
            count as f64 / seconds,
            slowest.load(Ordering::Relaxed) as f64 / 1000.0
        );
        Ok(())
    }
}
