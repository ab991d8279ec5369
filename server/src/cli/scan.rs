//! `peregrine scan`

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::bail;
use bitcoin::hex::DisplayHex;
use peregrine_index::scan::{
    self, BlockCache, FoundTransaction, IndexScanError, OwnedOutput, Report, Request,
};
use peregrine_index::source::{NodeSource, connect};
use peregrine_index::store::Snapshot;
use peregrine_scanner::{ScanError, ScanTarget, keys};
use serde::Serialize;

use super::{info, output};
use crate::config::Settings;
use crate::progress::{Meter, count};
use crate::{interrupt, secret};

/// Scan blocks of the index for the payments of a wallet
///
/// The scan key comes from --scan-key-file, from PEREGRINE_SCAN_KEY or from a prompt; it is never stored. The change
/// label (0) is always looked for. With a node at hand the outputs are shown with amount and label; without one the
/// transactions are, and a wallet finds the outputs with the tweak.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine scan --spend-key 025cc9856d6f8375350e123978daac200c260cb5b5ae83106cab90484dcd8fcf36 \\
      --scan-key-file key.txt --from 2024-01-01 --labels 1,2,5-9
  peregrine scan --spend-key 025cc9… --from 850000 --to 860000 --json < key.txt --scan-key-file -")]
pub(super) struct Scan {
    /// The wallet's spend public key: 66 hexadecimal digits
    #[arg(long, value_name = "HEX")]
    spend_key: String,
    /// File with the scan key: 64 hexadecimal digits; - is standard input
    #[arg(long, value_name = "FILE")]
    scan_key_file: Option<PathBuf>,
    /// First block: a height, or a date as 2024-01-31 or 2024-01-31T12:00:00Z (UTC)
    #[arg(long, value_name = "HEIGHT|DATE")]
    from: Point,
    /// Last block: a height, or a date, the whole day included [default: the tip]
    #[arg(long, value_name = "HEIGHT|DATE")]
    to: Option<Point>,
    /// Labels besides the change label, as in 1,2,5-9
    #[arg(long, value_name = "LIST", default_value = "")]
    labels: Labels,
    /// Leave out transactions whose largest taproot output is smaller
    #[arg(long, value_name = "SATS", default_value_t = 0)]
    min_output: u64,
    /// Don't ask a node for the outputs
    #[arg(long)]
    no_node: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values, one line per output (per transaction without a node)
    #[arg(long)]
    csv: bool,
}

/// A height or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    Height(u32),
    /// The first and the last second that the text can mean.
    Time(u32, u32),
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(height) = text.parse::<u32>() {
            return Ok(Self::Height(height));
        }
        let out_of_range = || format!("'{text}' lies outside of the time that blocks can have");
        let seconds = |time: jiff::Timestamp| u32::try_from(time.as_second()).map_err(|_| out_of_range());
        if let Ok(time) = text.parse::<jiff::Timestamp>() {
            let time = seconds(time)?;
            return Ok(Self::Time(time, time));
        }
        let date: jiff::civil::Date =
            text.parse().map_err(|_| format!("'{text}' is neither a height nor a date like 2024-01-31"))?;
        let midnight = date.to_datetime(jiff::civil::Time::midnight());
        let start = jiff::tz::TimeZone::UTC.to_timestamp(midnight).map_err(|_| out_of_range())?;
        let first = seconds(start)?;
        Ok(Self::Time(first, first.saturating_add(86_399)))
    }
}

impl Point {
    /// The first height at or after this point. Block times aren't monotonic: no block in the range is left out.
    fn first_height(self, snapshot: &Snapshot) -> u32 {
        match self {
            Self::Height(height) => height,
            Self::Time(first, _) => snapshot
                .first_height_at_or_after_time(first)
                .unwrap_or_else(|| snapshot.heights().map_or(0, |heights| heights.end().saturating_add(1))),
        }
    }

    /// The last height at or before this point; `None` if every block is later.
    fn last_height(self, snapshot: &Snapshot) -> Option<u32> {
        match self {
            Self::Height(height) => Some(height),
            Self::Time(_, last) => snapshot.last_height_at_or_before_time(last),
        }
    }
}

/// Label numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels(pub(super) Vec<u32>);

impl FromStr for Labels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut labels = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let number = |text: &str| {
                text.trim()
                    .parse::<u32>()
                    .map_err(|_| format!("'{item}' is neither a label from 0 to {} nor a range", u32::MAX))
            };
            let (first, last) = match item.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(item)?, number(item)?),
            };
            if first > last {
                return Err(format!("the range {item} goes backwards"));
            }
            if labels.len() as u64 + u64::from(last - first) >= ScanTarget::MAX_LABELS as u64 {
                return Err(format!(
                    "these are too many labels; at most {} are possible",
                    ScanTarget::MAX_LABELS
                ));
            }
            labels.extend(first..=last);
        }
        Ok(Self(labels))
    }
}

/// A found transaction; `outputs` is `None` when there was no node to ask.
#[derive(Serialize)]
struct Payment {
    height: u32,
    txid: String,
    tweak: String,
    outputs: Option<Vec<Output>>,
}

#[derive(Serialize)]
struct Output {
    vout: u32,
    value: u64,
    label: Option<u32>,
    key: String,
}

impl Payment {
    fn new(found: &FoundTransaction, outputs: Option<Vec<OwnedOutput>>) -> Self {
        let output = |output: OwnedOutput| Output {
            vout: output.vout,
            value: output.value,
            label: output.found.label,
            key: output.key.to_lower_hex_string(),
        };
        Self {
            height: found.height,
            txid: found.txid.to_string(),
            tweak: found.tweak.serialize().to_lower_hex_string(),
            outputs: outputs.map(|outputs| outputs.into_iter().map(output).collect()),
        }
    }
}

/// What was scanned, and how fast.
#[derive(Serialize)]
struct Summary {
    network: String,
    from: Option<u32>,
    to: Option<u32>,
    blocks: u64,
    rows: u64,
    scanned_rows: u64,
    seconds: f64,
    rows_per_second: f64,
    backend: &'static str,
    threads: usize,
    labels: Vec<u32>,
}

impl Scan {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let spend = keys::parse_spend_key(&self.spend_key)?;
        let engine = settings.engine()?;
        let reader = info::open(settings)?;
        let target = ScanTarget::new(
            secret::scan_key(self.scan_key_file.as_deref())?,
            spend,
            self.labels.0.iter().copied(),
        )?;
        let targets = [target];

        let snapshot = reader.snapshot()?;
        let from = self.from.first_height(&snapshot);
        let to = match self.to {
            None => None,
            Some(to) => match to.last_height(&snapshot) {
                Some(height) => Some(height),
                None => bail!("the index has no block at or before the date given with --to"),
            },
        };
        if let Some(to) = to.filter(|to| *to < from) {
            bail!("the range is empty: it would go from height {from} to {to}");
        }
        self.say_what_is_missing(&snapshot, from, to);
        drop(snapshot);

        let cancel = interrupt::flag()?;
        let meter = Meter::new("scanning", false);
        let progress = |done, total| {
            meter.update(done, total, |status| format!("{:.0} rows/s", status.rate));
        };
        let started = Instant::now();
        let request = Request { targets: &targets, from, to, min_output: self.min_output };
        let result = scan::scan(&reader, &engine, request, cancel, &progress);
        let time = started.elapsed();
        meter.finish();
        let report = match result {
            Err(IndexScanError::Scan(ScanError::Cancelled)) => {
                eprintln!("interrupted; nothing was finished");
                return Ok(super::interrupted());
            }
            other => other?,
        };
        let payments = self.payments(settings, &report, &targets);
        let summary = Summary {
            network: settings.network().to_string(),
            from: report.heights.as_ref().map(|heights| *heights.start()),
            to: report.heights.as_ref().map(|heights| *heights.end()),
            blocks: report.blocks,
            rows: report.rows,
            scanned_rows: report.scanned,
            seconds: time.as_secs_f64(),
            rows_per_second: output::rate(report.scanned, time),
            backend: engine.backend(),
            threads: engine.threads(),
            labels: targets[0].labels().iter().map(keys::Label::m).collect(),
        };
        self.print(&payments, &summary)?;
        Ok(ExitCode::SUCCESS)
    }

    /// A range that the index doesn't have in full must not look like one without payments.
    fn say_what_is_missing(&self, snapshot: &Snapshot, from: u32, to: Option<u32>) {
        let Some(heights) = snapshot.heights() else {
            eprintln!("warning: the index is empty; build it with: peregrine index");
            return;
        };
        if from < *heights.start() && matches!(self.from, Point::Height(_)) {
            eprintln!("note: the index starts at height {}; earlier blocks are not scanned", heights.start());
        }
        if let Some(to) = to.filter(|to| to > heights.end()) {
            eprintln!("warning: the index ends at height {}; blocks up to {to} are missing", heights.end());
        } else if from > *heights.end() {
            eprintln!("warning: the index ends at height {}, before the range", heights.end());
        }
    }

    /// Looks up the outputs. Transactions in which only 8 bytes matched are left out where a node can tell.
    fn payments(&self, settings: &Settings, report: &Report, targets: &[ScanTarget]) -> Vec<Payment> {
        let mut node = if report.found.is_empty() { None } else { self.node(settings) };
        let mut cache = BlockCache::default();
        let mut payments = Vec::new();
        for found in &report.found {
            let outputs = node.as_ref().map(|node| scan::outputs(node, found, targets, &mut cache));
            match outputs {
                Some(Ok(outputs)) if outputs.is_empty() => {}
                Some(Ok(outputs)) => payments.push(Payment::new(found, Some(outputs))),
                None => payments.push(Payment::new(found, None)),
                Some(Err(error)) => {
                    // What was found is told in any case. A node that reorganises or goes away costs only the details.
                    eprintln!("warning: no outputs are shown from height {} on: {error}", found.height);
                    payments.push(Payment::new(found, None));
                    node = None;
                }
            }
        }
        payments
    }

    /// A node, if there is one right now: a scan works without, so it doesn't wait.
    fn node(&self, settings: &Settings) -> Option<NodeSource> {
        if self.no_node {
            return None;
        }
        let config = settings.node();
        match connect(&config) {
            Ok(node) => Some(node),
            Err(error) => {
                eprintln!("note: no outputs are shown, since {} isn't at hand: {error}", config.describe());
                None
            }
        }
    }

    fn print(&self, payments: &[Payment], summary: &Summary) -> anyhow::Result<()> {
        if self.json {
            #[derive(Serialize)]
            struct All<'a> {
                #[serde(flatten)]
                summary: &'a Summary,
                payments: &'a [Payment],
            }
            return output::json(&All { summary, payments });
        }
        if self.csv {
            println!("height,txid,tweak,vout,value,label,key");
            for payment in payments {
                let start = format!("{},{},{}", payment.height, payment.txid, payment.tweak);
                match &payment.outputs {
                    None => println!("{start},,,,"),
                    Some(outputs) => {
                        for output in outputs {
                            let label = output.label.map_or_else(String::new, |label| label.to_string());
                            println!("{start},{},{},{label},{}", output.vout, output.value, output.key);
                        }
                    }
                }
            }
            eprintln!("{summary}");
            return Ok(());
        }
        for payment in payments {
            println!("height {}  {}  tweak {}", payment.height, payment.txid, payment.tweak);
            for output in payment.outputs.iter().flatten() {
                println!(
                    "    output {}: {} sat, label {}",
                    output.vout,
                    count(output.value),
                    output::label(output.label)
                );
            }
        }
        let outputs: Option<Vec<&Output>> = payments
            .iter()
            .map(|payment| payment.outputs.as_ref())
            .collect::<Option<Vec<_>>>()
            .map(|all| all.into_iter().flatten().collect());
        match outputs {
            Some(outputs) => println!(
                "{} transactions with {} outputs, {} sat",
                payments.len(),
                outputs.len(),
                count(outputs.iter().map(|output| output.value).sum())
            ),
            None => println!("{} transactions", payments.len()),
        }
        println!("{summary}");
        Ok(())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.to) {
            (Some(from), Some(to)) => write!(f, "scanned heights {from} to {to} of {}: ", self.network)?,
            _ => write!(f, "scanned no block of {}: ", self.network)?,
        }
        write!(
            f,
            "{} blocks, {} rows in {:.2} s, {:.0} rows/s with {} on {} threads, labels {:?}",
            count(self.blocks),
            count(self.rows),
            self.seconds,
            self.rows_per_second,
            self.backend,
            self.threads,
            self.labels
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_heights_or_dates() {
        assert_eq!("850000".parse(), Ok(Point::Height(850_000)));
        assert_eq!("2024-01-01".parse(), Ok(Point::Time(1_704_067_200, 1_704_153_599)));
        assert_eq!("2024-01-01T12:00:00Z".parse(), Ok(Point::Time(1_704_110_400, 1_704_110_400)));
        for wrong in ["", "-1", "2024-13-01", "yesterday", "1969-12-31", "9999-01-01", "4294967296"] {
            assert!(wrong.parse::<Point>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_are_numbers_and_ranges() {
        assert_eq!("1,2,5-9".parse(), Ok(Labels(vec![1, 2, 5, 6, 7, 8, 9])));
        assert_eq!(" 4294967295 , 3 - 4".parse(), Ok(Labels(vec![u32::MAX, 3, 4])));
        assert_eq!("".parse(), Ok(Labels(vec![])));
        for wrong in ["x", "1-", "-1", "5-3", "4294967296", "0-4294967295", "0-65535"] {
            assert!(wrong.parse::<Labels>().is_err(), "{wrong}");
        }
    }
}
