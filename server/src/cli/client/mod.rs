//! `peregrine client`

mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bitcoin::Txid;
use bitcoin::hex::DisplayHex;
use peregrine_scanner::{Label, ScanKey, ScanTarget, keys};
use secp256k1::PublicKey;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::output;
use super::scan::{Labels, Point};
use crate::config::{Settings, default_port};
use crate::progress::Meter;
use crate::{interrupt, node, secret};
use wire::{Connection, Server, printable};

/// Below this, servers take a start for a height.
const FIRST_TIME: u32 = 500_000_000;

/// How often the server hears of us.
const PING: Duration = Duration::from_secs(60);

/// Find payments through a server, as a wallet does
///
/// Speaks the silent-payment methods of the Electrum protocol, as Sparrow does: hands the server the scan key for as long as
/// the connection lasts, and shows progress and what is found. Works with Peregrine and with Frigate.
///
/// The scan key comes from --scan-key-file, from PEREGRINE_SCAN_KEY or from a prompt. The server sees it: use your own
/// server, and TLS unless it is on this machine.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine client --spend-key 02… --scan-key-file key.txt --start 2024-01-01
  peregrine client --server ssl://my.server:50002 --fingerprint 9f86d0… --spend-key 02… --start 850000 --follow

Exit codes: 0 everything was scanned; 1 an error; 2 wrong use; 130 interrupted.")]
pub(super) struct Client {
    /// The server: tcp://HOST:PORT or ssl://HOST:PORT [default: this machine, the network's usual port]
    #[arg(long, value_name = "URL")]
    server: Option<Server>,
    /// SHA-256 of the server's certificate, for ssl://; needed unless the server is on this machine
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// The wallet's spend public key: 66 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    spend_key: String,
    /// File with the scan key: 64 hexadecimal digits; - is standard input
    #[arg(long, value_name = "FILE")]
    scan_key_file: Option<PathBuf>,
    /// From where: a height, a date as 2024-01-31, or two heights as 850000-860000
    #[arg(long, value_name = "START", default_value = "0")]
    start: Start,
    /// Labels besides the change label, as in 1,2,5-9
    #[arg(long, value_name = "LIST", default_value = "")]
    labels: Labels,
    /// Stay connected, and show what comes later
    #[arg(long)]
    follow: bool,
    /// Print one JSON object per event
    #[arg(long)]
    json: bool,
}

/// Where to start, as it is sent.
#[derive(Clone, Debug, PartialEq)]
struct Start(Value);

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((from, to)) = text.split_once('-')
            && let (Ok(from), Ok(to)) = (from.parse::<u32>(), to.parse::<u32>())
        {
            return if from <= to {
                Ok(Self(format!("{from}-{to}").into()))
            } else {
                Err(format!("the range {text} goes backwards"))
            };
        }
        match text.parse()? {
            Point::Height(height @ FIRST_TIME..) => Err(format!("{height} is no height")),
            Point::Height(height) => Ok(Self(height.into())),
            Point::Time(first @ FIRST_TIME.., _) => Ok(Self(first.into())),
            // Before there were blocks.
            Point::Time(..) => Ok(Self(0.into())),
        }
    }
}

/// What the server calls the subscription.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Subscription {
    address: String,
    labels: Vec<u32>,
    start_height: u32,
}

#[derive(Debug, Deserialize)]
struct Notification {
    subscription: Subscription,
    progress: f64,
    history: Vec<Found>,
}

/// A transaction that was found, as the server tells it. The height is 0 in the mempool.
#[derive(Debug, Deserialize)]
struct Found {
    height: i64,
    tx_hash: String,
    tweak_key: String,
}

impl Client {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let spend = keys::parse_spend_key(&self.spend_key).context("--spend-key")?;
        let scan = secret::scan_key(self.scan_key_file.as_deref())?;
        // So that labels which aren't possible are refused here.
        let target = ScanTarget::new(scan.clone(), spend, self.labels.0.iter().copied())?;
        let interrupted = interrupt::flag()?;
        let server = match &self.server {
            Some(server) => server.clone(),
            None => Server::local(default_port(settings.network())),
        };
        let mut connection = Connection::open(&server, self.fingerprint.as_deref())
            .with_context(|| format!("can't connect to {server}"))?;
        if connection.exposed {
            eprintln!(
                "warning: the scan key goes to {server} without encryption; use ssl:// if the server has it"
            );
        }
        let result = self.converse(settings, &mut connection, &target, interrupted);
        if interrupted.load(Ordering::Relaxed) {
            connection.leave("blockchain.silentpayments.unsubscribe", &secret_params(&scan, &spend, ""));
            return Ok(super::interrupted());
        }
        result.map(|()| ExitCode::SUCCESS)
    }

    fn converse(
        &self,
        settings: &Settings,
        connection: &mut Connection,
        target: &ScanTarget,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<()> {
        let name = concat!("peregrine ", env!("CARGO_PKG_VERSION"));
        let version =
            connection.call("server.version", &json!([name, ["1.4", "1.6"]]).to_string(), interrupted)?;
        let features = connection.call("server.features", "[]", interrupted)?;
        let genesis =
            bitcoin::constants::genesis_block(settings.network().network()).block_hash().to_string();
        if features["genesis_hash"].as_str().is_some_and(|theirs| theirs != genesis) {
            bail!("the server is on another network than {}; give --network", settings.network());
        }
        if !features["silent_payments"]
            .as_array()
            .is_some_and(|list| list.iter().any(|version| *version == 0))
        {
            bail!(
                "the server doesn't serve silent payments (its features don't have \"silent_payments\":[0])"
            );
        }
        let (scan, spend) = (target.scan_key(), target.spend_key());
        let labels: Vec<u32> =
            target.labels().iter().map(Label::m).filter(|label| *label != Label::CHANGE).collect();
        let rest = format!(",{},{}", self.start.0, json!(labels));
        let started = Instant::now();
        let subscribe = "blockchain.silentpayments.subscribe";
        let object = connection.call(subscribe, &secret_params(scan, spend, &rest), interrupted)?;
        let subscription: Subscription =
            serde_json::from_value(object).context("the server's answer isn't a subscription")?;
        let address = node::address(settings.network().network(), scan, spend).to_string();
        if subscription.address != address {
            bail!("the server subscribed {} instead of {address}", printable(&subscription.address));
        }
        if self.json {
            output::json_line(&json!({
                "event": "subscribed", "server": version[0], "address": address,
                "labels": subscription.labels, "start_height": subscription.start_height,
            }))?;
        } else {
            let name = printable(version[0].as_str().unwrap_or("a server without a name"));
            eprintln!("{address} from height {}, by {name}", subscription.start_height);
        }

        let meter = Meter::new("scanning", self.json);
        let (mut found, mut complete, mut pinged) = (0u64, false, Instant::now());
        while !interrupted.load(Ordering::Relaxed) {
            if pinged.elapsed() >= PING {
                pinged = Instant::now();
                connection.send("server.ping", "[]")?;
            }
            let Some(note) = connection.notification(subscribe)? else { continue };
            let note: Notification =
                serde_json::from_value(note).context("the server sent a notification that can't be read")?;
            if note.subscription != subscription {
                continue;
            }
            for transaction in &note.history {
                found += 1;
                self.show(transaction, complete)?;
            }
            if !complete {
                meter.update((note.progress * 1000.0) as u64, 1000, |_| format!("{found} found"));
                if self.json {
                    output::json_line(&json!({ "event": "progress", "percent": 100.0 * note.progress }))?;
                }
            }
            if note.progress >= 1.0 && !complete {
                complete = true;
                meter.finish();
                let seconds = started.elapsed().as_secs_f64();
                if self.json {
                    output::json_line(&json!({ "event": "scanned", "found": found, "seconds": seconds }))?;
                } else {
                    eprintln!("scanned in {seconds:.1} s: {found} transactions found");
                }
                if !self.follow {
                    return Ok(());
                }
            }
        }
        meter.finish();
        Ok(())
    }

    fn show(&self, found: &Found, live: bool) -> anyhow::Result<()> {
        // Whatever else a server sends there isn't shown.
        let wrong = "the server found a transaction that can't be read";
        let txid: Txid = found.tx_hash.parse().context(wrong)?;
        let tweak: PublicKey = keys::parse_spend_key(&found.tweak_key).ok().context(wrong)?;
        if self.json {
            return output::json_line(&json!({
                "event": "found", "height": found.height, "txid": txid.to_string(), "tweak": tweak.to_string(),
                "live": live,
            }));
        }
        let height = if found.height > 0 { found.height.to_string() } else { "mempool".into() };
        println!("{height:>9}  {txid}  {tweak}");
        Ok(())
    }
}

/// Parameters that begin with the keys, as JSON. Wiped when it is dropped.
fn secret_params(scan: &ScanKey, spend: &PublicKey, rest: &str) -> Zeroizing<String> {
    let key = Zeroizing::new(scan.secret().to_secret_bytes());
    let hex = Zeroizing::new(key.to_lower_hex_string());
    // One allocation of the right size, so that no half of it stays behind.
    let mut params = Zeroizing::new(String::with_capacity(160 + rest.len()));
    for part in ["[\"", &hex, "\",\"", &spend.to_string(), "\"", rest, "]"] {
        params.push_str(part);
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_read_as_people_write_them() {
        let start = |text: &str| text.parse::<Start>().map(|start| start.0);
        assert_eq!(start("850000"), Ok(json!(850_000)));
        assert_eq!(start("5-9"), Ok(json!("5-9")));
        assert_eq!(start("2024-01-01"), Ok(json!(1_704_067_200)));
        assert_eq!(start("1980-01-01"), Ok(json!(0)));
        for wrong in ["", "x", "9-5", "600000000", "-1", "1-2-3"] {
            assert!(start(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parameters_have_the_keys_first() {
        let scan = ScanKey::from_bytes([7; 32]).unwrap();
        let spend = scan.public_key();
        let params = secret_params(&scan, &spend, ",5,[]");
        let params: Value = serde_json::from_str(&params).unwrap();
        assert_eq!(params, json!(["07".repeat(32), spend.to_string(), 5, []]));
    }
}
