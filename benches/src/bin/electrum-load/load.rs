//! The two loads of a wallet.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::client::Client;

/// Wait until a server has a height and answers
#[derive(clap::Args)]
pub(crate) struct Wait {
    /// HOST:PORT
    #[arg(long)]
    server: String,
    /// Height of the chain
    #[arg(long)]
    height: u64,
    /// Give up after so many seconds
    #[arg(long, default_value_t = 3600)]
    patience: u64,
}

impl Wait {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        wait(&self.server, self.height, Duration::from_secs(self.patience))
    }
}

fn wait(server: &str, height: u64, patience: Duration) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let ask = || -> anyhow::Result<u64> {
            let mut client = Client::connect(server)?;
            client.call("blockchain.scripthash.get_history", json!(["00".repeat(32)]))?;
            let tip = client.call("blockchain.headers.subscribe", json!([]))?;
            tip["height"].as_u64().context("no height")
        };
        match ask() {
            Ok(theirs) if theirs >= height => return Ok(()),
            other if started.elapsed() > patience => {
                bail!("{server} doesn't come to height {height}: {other:?}")
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Measure the first load and the refresh of the wallet, on several servers in turn
///
/// First load: a new connection, subscribe every script hash in batches, then get the history of each. Refresh: a new
/// connection, all histories, then every transaction and every header that they name. Rounds of all servers alternate. The
/// answers of all servers must be the same. Counted is the time from each request to the last byte of its answer.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// NAME=HOST:PORT; may be given several times. The first one is compared with the others.
    #[arg(long = "server", required = true)]
    servers: Vec<String>,
    /// The wallet's script hashes, one a line
    #[arg(long)]
    wallet: PathBuf,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Before each measurement run this command with the server's name as its argument: it restarts the server with cold
    /// caches
    #[arg(long)]
    cold: Option<PathBuf>,
    /// Height of the chain, to wait for after a restart
    #[arg(long, default_value_t = 0)]
    height: u64,
}

/// What a load came to.
#[derive(PartialEq)]
struct Answers {
    statuses: Vec<Value>,
    histories: Vec<Value>,
    transactions: Vec<Value>,
    headers: Vec<Value>,
}

const LOADS: [&str; 3] = ["first load, pages of 50", "first load, pages of 100", "refresh"];

fn params(hashes: &[String]) -> Vec<Value> {
    hashes.iter().map(|hash| json!([hash])).collect()
}

fn first_load(
    server: &str,
    hashes: &[String],
    page: usize,
) -> anyhow::Result<(Duration, Vec<Value>, Vec<Value>)> {
    let mut client = Client::connect(server)?;
    client.call("blockchain.headers.subscribe", json!([]))?;
    let statuses = client.pages("blockchain.scripthash.subscribe", &params(hashes), page)?;
    let used: Vec<String> = hashes
        .iter()
        .zip(&statuses)
        .filter(|(_, status)| !status.is_null())
        .map(|(hash, _)| hash.clone())
        .collect();
    let histories = client.pages("blockchain.scripthash.get_history", &params(&used), page)?;
    Ok((client.waited(), statuses, histories))
}

#[expect(clippy::type_complexity, reason = "used here only")]
fn refresh(
    server: &str,
    hashes: &[String],
) -> anyhow::Result<(Duration, Vec<Value>, Vec<Value>, Vec<Value>)> {
    const PAGE: usize = 100;
    let mut client = Client::connect(server)?;
    client.call("blockchain.headers.subscribe", json!([]))?;
    let histories = client.pages("blockchain.scripthash.get_history", &params(hashes), PAGE)?;
    let (mut txids, mut heights) = (BTreeSet::new(), BTreeSet::new());
    for item in histories.iter().flat_map(|history| history.as_array().into_iter().flatten()) {
        txids.insert(item["tx_hash"].as_str().context("no tx_hash")?.to_owned());
        heights.insert(item["height"].as_u64().context("no height")?);
    }
    let txids: Vec<Value> = txids.iter().map(|txid| json!([txid])).collect();
    let heights: Vec<Value> = heights.iter().map(|height| json!([height])).collect();
    let transactions = client.pages("blockchain.transaction.get", &txids, PAGE)?;
    let headers = client.pages("blockchain.block.header", &heights, PAGE)?;
    Ok((client.waited(), histories, transactions, headers))
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let text =
            std::fs::read_to_string(&self.wallet).with_context(|| self.wallet.display().to_string())?;
        let hashes: Vec<String> = text.lines().map(str::to_owned).collect();
        let servers: Vec<(String, String)> = self
            .servers
            .iter()
            .map(|server| {
                let (name, address) = server.split_once('=').context("--server takes NAME=HOST:PORT")?;
                Ok((name.to_owned(), address.to_owned()))
            })
            .collect::<anyhow::Result<_>>()?;
        // Seconds by load, server and round.
        let mut times = vec![vec![Vec::new(); servers.len()]; LOADS.len()];
        let mut expected: Option<(String, Answers)> = None;
        for round in 0..self.rounds {
            for (number, (name, address)) in servers.iter().enumerate() {
                let mut answers = None;
                for (load, seconds) in times.iter_mut().enumerate() {
                    if let Some(command) = &self.cold {
                        let status = Command::new(command).arg(name).status()?;
                        ensure!(status.success(), "{} {name} failed", command.display());
                        wait(address, self.height, Duration::from_secs(300))?;
                    }
                    if load < 2 {
                        let (waited, statuses, histories) = first_load(address, &hashes, [50, 100][load])?;
                        seconds[number].push(waited.as_secs_f64());
                        answers = Some((statuses, histories));
                    } else {
                        let (waited, histories, transactions, headers) = refresh(address, &hashes)?;
                        seconds[number].push(waited.as_secs_f64());
                        let (statuses, first) = answers.take().context("the loads come in order")?;
                        ensure!(first == histories, "{name} gives other histories in the refresh");
                        let answers = Answers { statuses, histories, transactions, headers };
                        match &expected {
                            None => expected = Some((name.clone(), answers)),
                            Some((first, theirs)) => {
                                ensure!(*theirs == answers, "{name} answers otherwise than {first}");
                            }
                        }
                    }
                }
            }
            eprintln!("round {} of {}", round + 1, self.rounds);
        }
        if let Some((_, answers)) = &expected {
            println!(
                "{} script hashes, {} history entries, {} transactions, {} headers; all answers are equal",
                answers.statuses.len(),
                answers.histories.iter().map(|history| history.as_array().map_or(0, Vec::len)).sum::<usize>(),
                answers.transactions.len(),
                answers.headers.len()
            );
        }
        println!("{:26}  {:12}  {:>9}  {:>9}  {:>9}", "", "", "min", "median", "ratio");
        for (load, times) in LOADS.iter().zip(&mut times) {
            let mut base = None;
            for ((name, _), seconds) in servers.iter().zip(times) {
                seconds.sort_by(f64::total_cmp);
                let (min, median) = (seconds[0], seconds[seconds.len() / 2]);
                let base = *base.get_or_insert(min);
                println!("{load:26}  {name:12}  {min:>7.3} s  {median:>7.3} s  {:>8.1}x", min / base);
            }
        }
        Ok(())
    }
}
