//! Many wallets that scan at once.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::ensure;
use peregrine_scanner::ScanKey;
use serde_json::json;

use crate::client::Client;

/// Time silent-payment scans of many clients at once against that of one
///
/// Each client has its own connection and keys of its own, and is done with the first progress of 1.
#[derive(clap::Args)]
pub(crate) struct Scan {
    /// HOST:PORT
    #[arg(long)]
    server: String,
    /// Clients at once
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// First height
    #[arg(long)]
    from: u32,
    /// Last height
    #[arg(long)]
    to: u32,
    /// Rounds, of which the fastest counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Seconds from the request to the last word of the scan.
fn scan(server: &str, from: u32, to: u32, start: &Barrier) -> anyhow::Result<Duration> {
    let mut client = Client::connect(server)?;
    let scan = ScanKey::from_bytes(rand::random())?;
    let spend = scan.public_key().to_string();
    let secret = scan.secret().to_secret_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let method = "blockchain.silentpayments.subscribe";
    start.wait();
    let started = Instant::now();
    client.call(method, json!([secret, spend, format!("{from}-{to}"), []]))?;
    loop {
        let note = client.notification(method)?;
        if note["progress"].as_f64().is_some_and(|progress| progress >= 1.0) {
            return Ok(started.elapsed());
        }
    }
}

impl Scan {
    /// The time until the last of so many clients is done.
    fn together(&self, clients: usize) -> anyhow::Result<f64> {
        let start = Barrier::new(clients);
        let times: Vec<anyhow::Result<Duration>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients)
                .map(|_| scope.spawn(|| scan(&self.server, self.from, self.to, &start)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let times = times.into_iter().collect::<anyhow::Result<Vec<Duration>>>()?;
        Ok(times.into_iter().max().unwrap_or_default().as_secs_f64())
    }

    pub(crate) fn run(self) -> anyhow::Result<()> {
        ensure!(self.clients > 0 && self.from <= self.to, "nothing to do");
        let (mut one, mut many) = (f64::MAX, f64::MAX);
        for _ in 0..self.rounds {
            one = one.min(self.together(1)?);
            many = many.min(self.together(self.clients)?);
        }
        let alone = one * self.clients as f64;
        println!(
            "one client {one:.2} s, {} clients {many:.2} s: {:.3} of {alone:.1} s",
            self.clients,
            many / alone
        );
        Ok(())
    }
}
