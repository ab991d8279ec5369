//! `peregrine demo`

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use peregrine_index::indexer::{self, Options};
use peregrine_index::scan::{self, BlockCache, Report, Request};
use peregrine_index::source::ChainSource;
use peregrine_index::store::{IndexParams, TweakIndexWriter};
use peregrine_index::synthetic::{Plan, Planted, SyntheticChain};
use peregrine_scanner::batch::TweakMethod;
use peregrine_scanner::{KeyError, ScanTarget};
use serde::Serialize;

use super::output;
use crate::config::Settings;
use crate::progress::count;

/// Make a synthetic chain, index it, scan it and compare with what was planted; needs no node
///
/// The chain has every kind of input, payments with and without labels and with several outputs, decoys that look like
/// payments, and a reorganisation. It is indexed and scanned by the code that runs on a real chain. The exit code is 1
/// if anything planted is missed or anything else is found.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine demo --blocks 2000 --seed 7")]
pub(super) struct Demo {
    /// How many blocks to make
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    blocks: u32,
    /// Which chain to make: another number, another chain
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Depth of the reorganisation.
const REORG_DEPTH: u32 = 6;

#[derive(Serialize)]
struct Summary {
    planted: usize,
    found: usize,
    missed: usize,
    false_positives: usize,
    rows: u64,
    rows_per_second: f64,
    backend: &'static str,
    threads: usize,
    wallets: usize,
    blocks: u32,
    seed: u64,
    reorganised_blocks: u32,
    payments: Vec<Payment>,
}

#[derive(Serialize)]
struct Payment {
    height: u32,
    txid: String,
    vout: u32,
    wallet: usize,
    label: Option<u32>,
    value: u64,
}

impl From<&Planted> for Payment {
    fn from(planted: &Planted) -> Self {
        Self {
            height: planted.height,
            txid: planted.txid.to_string(),
            vout: planted.vout,
            wallet: planted.wallet,
            label: planted.label,
            value: planted.value,
        }
    }
}

impl Demo {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let say = |text: &str| {
            if !self.json {
                println!("{text}");
            }
        };
        let engine = settings.engine()?;

        let tweaks = TweakMethod::choose(settings.backend())?;
        let started = Instant::now();
        let plan = Plan {
            blocks: self.blocks,
            reorg_depth: REORG_DEPTH.min(self.blocks),
            seed: self.seed,
            transactions: 10,
            payment_every: 200,
        };
        let chain = SyntheticChain::generate(plan);
        say(&format!(
            "made       {} blocks of {} transactions, {} wallets, seed {}, in {}",
            count(self.blocks.into()),
            plan.transactions,
            chain.wallets().len(),
            self.seed,
            seconds(started.elapsed())
        ));

        let dir = tempfile::Builder::new().prefix("peregrine-demo-").tempdir()?;
        // Segments of 4096 rows, so that a demo has several.
        let params = IndexParams { segment_bits: 12, ..IndexParams::for_network(bitcoin::Network::Regtest) };
        let mut index = TweakIndexWriter::create(dir.path(), &params)?;
        let cancel = AtomicBool::new(false);
        let mut build = || {
            let started = Instant::now();
            let options = Options { requests: settings.requests(), tweaks, ..Options::default() };
            indexer::run(&chain, &mut index, options, &cancel, &|_| ())
                .map(|summary| (summary, started.elapsed()))
        };
        let (summary, time) = build()?;
        say(&format!(
            "indexed    {} blocks, {} rows in {}: {:.0} blocks/s",
            count(summary.blocks),
            count(summary.rows),
            seconds(time),
            output::rate(summary.blocks, time)
        ));
        chain.reorganise();
        let (summary, _) = build()?;
        say(&format!("reorganised {} blocks away and indexed {} new ones", plan.reorg_depth, summary.blocks));

        let targets: Vec<ScanTarget> =
            chain.wallets().iter().map(|wallet| wallet.target()).collect::<Result<_, KeyError>>()?;
        let request = Request { targets: &targets, from: 0, to: None, min_output: 0 };
        let started = Instant::now();
        let report = scan::scan(&index.reader()?, &engine, request, &cancel, &|_, _| ())?;
        let time = started.elapsed();
        say(&format!(
            "scanned    {} rows for {} wallets in {}: {:.0} rows/s with {} on {} threads",
            count(report.scanned),
            targets.len(),
            seconds(time),
            output::rate(report.scanned, time),
            engine.backend(),
            engine.threads()
        ));

        let found = owned(&chain, &report, &targets)?;
        let planted: BTreeSet<Planted> = chain.planted().iter().cloned().collect();
        // A payment that is found twice is wrong once, so the list is compared and not only a set of it.
        let distinct: BTreeSet<Planted> = found.iter().cloned().collect();
        let right = distinct.intersection(&planted).count();
        let summary = Summary {
            planted: planted.len(),
            found: found.len(),
            missed: planted.len() - right,
            false_positives: found.len() - right,
            rows: report.scanned,
            rows_per_second: output::rate(report.scanned, time),
            backend: engine.backend(),
            threads: engine.threads(),
            wallets: targets.len(),
            blocks: self.blocks,
            seed: self.seed,
            reorganised_blocks: plan.reorg_depth,
            payments: distinct.iter().map(Payment::from).collect(),
        };
        if self.json {
            output::json(&summary)?;
        } else {
            print(&summary);
        }
        let good = summary.missed == 0 && summary.false_positives == 0;
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The outputs behind what was found.
fn owned(chain: &SyntheticChain, report: &Report, targets: &[ScanTarget]) -> anyhow::Result<Vec<Planted>> {
    let mut cache = BlockCache::default();
    let mut found = Vec::new();
    for transaction in &report.found {
        let outputs = scan::outputs(chain as &dyn ChainSource, transaction, targets, &mut cache)?;
        found.extend(outputs.into_iter().map(|output| Planted {
            height: transaction.height,
            txid: transaction.txid,
            vout: output.vout,
            wallet: transaction.target,
            label: output.found.label,
            value: output.value,
        }));
    }
    Ok(found)
}

fn print(summary: &Summary) {
    println!();
    println!(
        "{:>6}  {:64}  {:>4}  {:>6}  {:>10}  {:>12}",
        "height", "txid", "vout", "wallet", "label", "satoshi"
    );
    for payment in &summary.payments {
        println!(
            "{:>6}  {}  {:>4}  {:>6}  {:>10}  {:>12}",
            payment.height,
            payment.txid,
            payment.vout,
            payment.wallet,
            output::label(payment.label),
            count(payment.value)
        );
    }
    println!();
    println!(
        "planted {}, found {}, missed {}, false {}",
        summary.planted, summary.found, summary.missed, summary.false_positives
    );
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
