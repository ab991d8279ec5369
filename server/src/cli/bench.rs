//! `peregrine bench`

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use peregrine_index::store::TweakReader;
use peregrine_scanner::backend::{self, DeviceStatus, cuda, reference, wgpu};
use peregrine_scanner::engine::PreparedTargets;
use peregrine_scanner::{
    Backend, Candidate, Control, Engine, Place, PreparedScan, RowBatch, ScanKey, ScanTarget, SpendKey, Tweak,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use secp256k1::{PublicKey, SecretKey};
use serde::Serialize;

use super::output;
use crate::config::Settings;
use crate::interrupt;
use crate::progress::{Meter, count};

/// Time what this machine's backends need for a scan
///
/// All backends that the processor has, and its graphics cards, scan the same rows, taking turns. Each must find exactly what
/// the reference (plain code over libsecp256k1) finds in the first million rows, each of which holds an output that belongs
/// to one of the keys, so that a backend that computes a single row wrong disagrees; and in every timed scan each must find
/// a thousand payments that were put into the rows. Rates are for the whole scan of a row: multiplication, hash, addition,
/// labels, comparison.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine bench --rows 100000 --threads 1
  peregrine bench --backend avx2 --keys 16 --labels 10 --json
  peregrine bench --backend cuda,wgpu --rows 10000000
  peregrine bench --datadir ~/.peregrine     (on the rows of a real index)")]
pub(super) struct Bench {
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=500_000_000))]
    rows: u32,
    /// How many keys to look for in one pass
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    keys: u32,
    /// How many labels each key has besides the change label
    #[arg(long, value_name = "L", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    labels: u32,
    /// How often each backend has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bring the rows to graphics cards for every scan, as if there were no room for them
    #[arg(long)]
    stream: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Rows in which every backend is compared with the reference.
const AUDITED: usize = 1_000_000;
/// Payments in the rows that are timed.
const PLANTED: usize = 1_000;

/// The reference is so much slower that it gets only so many rows and keys a turn; its time per row doesn't depend on it.
const REFERENCE_WORK: usize = 20_000;

#[derive(Serialize)]
struct Report {
    cpu: String,
    source: String,
    rows: usize,
    keys: usize,
    labels: u32,
    threads: usize,
    rounds: u32,
    /// Rows in which every backend was compared with the reference.
    audited: usize,
    /// Payments that every timed scan had to find.
    planted: usize,
    results: Vec<Outcome>,
}

#[derive(Serialize)]
struct Outcome {
    backend: &'static str,
    /// Rows per second, each for all keys, in the fastest turn.
    rows_per_second: f64,
    /// The same as time for one row.
    ns_per_row: f64,
    /// In the median turn.
    median_ns_per_row: f64,
    /// `ns_per_row` for each key.
    ns_per_row_and_key: f64,
    /// Rate over that of `libsecp256k1` in the same run.
    ratio: f64,
    /// Preparing for the keys, once per scan.
    prepare_ms: f64,
    /// All audited rows gave the reference's candidates, and all scans the payments that were put there.
    agrees: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    title: String,
    /// At the end; one that failed left its work to others.
    working: bool,
    resident_bytes: u64,
}

/// Rows in memory.
struct Rows {
    source: String,
    /// Where graphics cards may take them to lie.
    place: Option<Place>,
    points: Vec<[u8; 64]>,
    /// What the rows are timed with: outputs of the chain, or random ones.
    ordinary: Outputs,
}

struct Outputs {
    ends: Vec<u32>,
    prefixes: Vec<[u8; 8]>,
}

impl Rows {
    /// As many rows as these are the outputs of.
    fn batch<'a>(&'a self, outputs: &'a Outputs, place: Option<Place>) -> RowBatch<'a> {
        RowBatch {
            place,
            first_row: 0,
            points: &self.points[..outputs.ends.len()],
            output_ends: &outputs.ends,
            outputs_base: 0,
            outputs: &outputs.prefixes,
        }
    }
}

impl Bench {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let backends = backends(settings)?;
        let mut rng = StdRng::seed_from_u64(352);
        let mut rows = match &settings.datadir {
            Some(_) => self.real_rows(settings)?,
            None => self.synthetic_rows(&mut rng)?,
        };
        rows.place = (!self.stream).then_some(Place { state: rng.random(), segment: 0, row: 0 });
        let targets = self.targets(&mut rng)?;
        let meter = Meter::new("measuring", self.json);
        let cancel = interrupt::flag()?;

        let (audit, wanted) = audit(&mut rng, &rows, &targets);
        let mut outcomes = Vec::new();
        for backend in &backends {
            let started = Instant::now();
            let prepared = backend.prepare(&targets);
            let prepare = started.elapsed();
            let agrees = candidates(&*prepared, rows.batch(&audit, None)) == wanted;
            outcomes.push((backend.name(), prepare, agrees, Vec::<Duration>::new()));
        }
        let audited = audit.ends.len();
        drop((audit, wanted));
        let planted = plant(&mut rng, &mut rows, &targets);
        let engines: Vec<Engine> = backends
            .into_iter()
            .map(|backend| Engine::new(backend, settings.threads()))
            .collect::<Result<_, _>>()?;
        let prepared: Vec<PreparedTargets<'_>> =
            engines.iter().map(|engine| engine.prepare(&targets)).collect();
        let control = Control { cancel, progress: &|_| () };

        let turns = u64::from(self.rounds) * engines.len() as u64;
        for round in 0..self.rounds {
            for (number, (scan, (name, _, agrees, times))) in prepared.iter().zip(&mut outcomes).enumerate() {
                let all = rows.batch(&rows.ordinary, rows.place);
                let part = match *name {
                    "libsecp256k1" => all.slice(0..all.len().min((REFERENCE_WORK / targets.len()).max(256))),
                    _ => all,
                };
                let started = Instant::now();
                let found = scan.scan(&[part], control)?;
                times.push(started.elapsed() / part.len() as u32);
                let found: BTreeSet<(u64, usize)> =
                    found.iter().map(|found| (found.row, found.target)).collect();
                *agrees &=
                    planted.iter().filter(|(row, _)| *row < part.len() as u64).all(|one| found.contains(one));
                let done = u64::from(round) * engines.len() as u64 + number as u64 + 1;
                meter.update(done, turns, |_| (*name).to_owned());
            }
        }
        meter.finish();
        let mut report = Report {
            cpu: cpu(),
            rows: rows.points.len(),
            keys: targets.len(),
            labels: self.labels,
            threads: engines[0].threads(),
            rounds: self.rounds,
            audited,
            planted: planted.len(),
            results: results(outcomes, targets.len()),
            source: rows.source,
        };
        for (result, engine) in report.results.iter_mut().zip(&engines) {
            let device = |status: DeviceStatus| Device {
                title: status.title,
                working: status.working,
                resident_bytes: status.resident_bytes,
            };
            result.devices = engine.devices().into_iter().map(device).collect();
        }
        if self.json {
            output::json(&report)?;
        } else {
            print(&report);
        }
        let good = report.results.iter().all(|result| result.agrees);
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn targets(&self, rng: &mut StdRng) -> anyhow::Result<Vec<ScanTarget>> {
        (0..self.keys)
            .map(|_| {
                let spend = SpendKey::from_bytes(rng.random())?.public_key();
                Ok(ScanTarget::new(ScanKey::from_bytes(rng.random())?, spend, 1..=self.labels)?)
            })
            .collect()
    }

    /// Different points, with as many outputs as transactions have on average.
    fn synthetic_rows(&self, rng: &mut StdRng) -> anyhow::Result<Rows> {
        let point = |bytes| SecretKey::from_secret_bytes(bytes).map(|key| PublicKey::from_secret_key(&key));
        let step = point(rng.random())?;
        // Each run of rows begins somewhere else, so that they are made side by side.
        let mut points = vec![[0; 64]; self.rows as usize];
        let starts: Vec<PublicKey> =
            points.chunks(RUN).map(|_| Ok(point(rng.random())?)).collect::<anyhow::Result<_>>()?;
        points.par_chunks_mut(RUN).zip(starts).try_for_each(|(run, mut next)| {
            for row in run {
                *row = Tweak(next).to_row();
                next = next.combine(&step)?;
            }
            Ok::<_, secp256k1::Error>(())
        })?;
        let mut outputs = Outputs { ends: Vec::new(), prefixes: Vec::new() };
        for _ in 0..self.rows {
            outputs.prefixes.extend((0..rng.random_range(1..=3)).map(|_| rng.random::<[u8; 8]>()));
            outputs.ends.push(outputs.prefixes.len() as u32);
        }
        Ok(Rows { source: "synthetic rows".into(), place: None, points, ordinary: outputs })
    }

    /// The newest rows of an index.
    fn real_rows(&self, settings: &Settings) -> anyhow::Result<Rows> {
        let dir = settings.index_dir()?;
        let reader = TweakReader::open(&dir).context("--datadir has no index to take rows from")?;
        let snapshot = reader.snapshot()?;
        let end = snapshot.rows();
        let start = end.saturating_sub(self.rows.into());
        if start == end {
            bail!("the index in {} has no rows", dir.display());
        }
        let mut points = Vec::new();
        let mut outputs = Outputs { ends: Vec::new(), prefixes: Vec::new() };
        for slice in snapshot.segments(start..end)? {
            let slice = slice?;
            points.extend_from_slice(slice.points());
            for row in 0..slice.len() {
                outputs.prefixes.extend_from_slice(slice.outputs_of(row));
                outputs.ends.push(outputs.prefixes.len() as u32);
            }
        }
        let source = format!("rows {} to {} of {}", count(start), count(end), dir.display());
        Ok(Rows { source, place: None, points, ordinary: outputs })
    }
}

/// Rows that are made one after the other.
const RUN: usize = 65_536;

/// The backends that are asked for by name, and the reference, with which everything is compared; without a name all that can
/// run here, cards among them.
fn backends(settings: &Settings) -> anyhow::Result<Vec<Box<dyn Backend>>> {
    let choose = |name: &str| backend::choose_with(name, &settings.cards());
    let names = match settings.backend.as_deref() {
        None | Some("all") => {
            let cards = [(cuda::NAME, true), (wgpu::NAME, wgpu::has_card())];
            let cards =
                cards.into_iter().filter(|(_, worth)| *worth).filter_map(|(name, _)| choose(name).ok());
            return Ok(cards.chain(backend::available()).collect());
        }
        Some(names) => names,
    };
    let mut names: Vec<&str> = names.split(',').map(str::trim).collect();
    names.retain(|name| *name != "libsecp256k1");
    names.push("libsecp256k1");
    names.into_iter().map(|name| Ok(choose(name)?)).collect()
}

/// Puts outputs into some rows that belong to one of the targets, in one of its slots; which rows and targets those are.
fn plant(rng: &mut StdRng, rows: &mut Rows, targets: &[ScanTarget]) -> BTreeSet<(u64, usize)> {
    let mut planted = BTreeSet::new();
    for _ in 0..PLANTED.min(rows.points.len()) {
        let row = rng.random_range(0..rows.points.len());
        let first = row.checked_sub(1).map_or(0, |before| rows.ordinary.ends[before]);
        let target = rng.random_range(0..targets.len());
        let slot = rng.random_range(0..=targets[target].labels().len());
        let key = reference::row_keys(&targets[target], &rows.points[row]).get(slot).copied().flatten();
        // Each row once, as a second output would take the first one's place.
        if let Some(prefix) = key.as_ref().and_then(|key| key.first_chunk::<8>())
            && first < rows.ordinary.ends[row]
            && !planted.iter().any(|(other, _)| *other == row as u64)
        {
            rows.ordinary.prefixes[first as usize] = *prefix;
            planted.insert((row as u64, target));
        }
    }
    planted
}

/// Outputs for the first of the same rows, one of which in each row is what the reference computes for one of the targets, in
/// one of its slots. Also what is to be found.
fn audit(rng: &mut StdRng, rows: &Rows, targets: &[ScanTarget]) -> (Outputs, BTreeSet<Candidate>) {
    let points = &rows.points[..rows.points.len().min(AUDITED)];
    let choices: Vec<(usize, usize)> = points
        .iter()
        .map(|_| {
            let target = rng.random_range(0..targets.len());
            (target, rng.random_range(0..=targets[target].labels().len()))
        })
        .collect();
    let keys: Vec<Option<[u8; 32]>> = points
        .par_iter()
        .zip(&choices)
        .map(|(point, (target, slot))| {
            reference::row_keys(&targets[*target], point).get(*slot).copied().flatten()
        })
        .collect();
    let mut outputs = Outputs { ends: Vec::new(), prefixes: Vec::new() };
    let mut wanted = BTreeSet::new();
    for (row, (key, (target, slot))) in (0..).zip(keys.iter().zip(choices)) {
        outputs.prefixes.push(rng.random());
        if let Some(prefix) = key.as_ref().and_then(|key| key.first_chunk::<8>()) {
            outputs.prefixes.push(*prefix);
            wanted.insert(Candidate { row, target: target as u32, slot: slot as u32 });
        }
        outputs.ends.push(outputs.prefixes.len() as u32);
    }
    (outputs, wanted)
}

/// Everything that a backend finds, on all cores: this isn't timed.
fn candidates(prepared: &dyn PreparedScan, batch: RowBatch<'_>) -> BTreeSet<Candidate> {
    // It may change while it computes.
    let rows = prepared.batch_rows();
    let starts: Vec<usize> = (0..batch.len()).step_by(rows).collect();
    let part = |from: usize| {
        let mut found = Vec::new();
        prepared.scan(batch.slice(from..batch.len().min(from + rows)), &mut found);
        found.iter_mut().for_each(|candidate| candidate.row += from as u32);
        found
    };
    starts.into_par_iter().flat_map_iter(part).collect::<Vec<_>>().into_iter().collect()
}

fn results(outcomes: Vec<(&'static str, Duration, bool, Vec<Duration>)>, keys: usize) -> Vec<Outcome> {
    let fastest = |times: &[Duration]| times.iter().min().copied().unwrap_or_default().as_nanos() as f64;
    let reference = outcomes
        .iter()
        .find(|(name, ..)| *name == "libsecp256k1")
        .map_or(0.0, |(_, _, _, times)| fastest(times));
    outcomes
        .into_iter()
        .map(|(backend, prepare, agrees, mut times)| {
            let ns_per_row = fastest(&times);
            times.sort_unstable();
            Outcome {
                backend,
                rows_per_second: 1e9 / ns_per_row,
                ns_per_row,
                median_ns_per_row: times[times.len() / 2].as_nanos() as f64,
                ns_per_row_and_key: ns_per_row / keys as f64,
                ratio: reference / ns_per_row,
                prepare_ms: prepare.as_secs_f64() * 1e3,
                agrees,
                devices: Vec::new(),
            }
        })
        .collect()
}

/// The processor's name.
fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    match (field("model name"), field("cpu family"), field("model\t")) {
        (Some(name), Some(family), Some(model)) => format!("{name} (family {family}, model {model})"),
        (Some(name), ..) => name,
        _ => std::env::consts::ARCH.to_owned(),
    }
}

fn print(report: &Report) {
    println!("{}, {} threads", report.cpu, report.threads);
    println!(
        "{} rows ({}), {} keys with {} labels and change, best of {} turns",
        count(report.rows as u64),
        report.source,
        report.keys,
        report.labels,
        report.rounds
    );
    println!(
        "compared with the reference in {} rows; {} payments in the rows that are timed",
        count(report.audited as u64),
        count(report.planted as u64)
    );
    println!();
    println!(
        "{:<14}{:>12}{:>11}{:>11}{:>13}{:>8}{:>11}  agrees",
        "backend", "rows/s", "ns/row", "median", "ns/row/key", "ratio", "prepare"
    );
    for result in &report.results {
        println!(
            "{:<14}{:>12}{:>11.0}{:>11.0}{:>13.0}{:>8.2}{:>8.1} ms  {}",
            result.backend,
            count(result.rows_per_second as u64),
            result.ns_per_row,
            result.median_ns_per_row,
            result.ns_per_row_and_key,
            result.ratio,
            result.prepare_ms,
            if result.agrees { "yes" } else { "NO" }
        );
        for device in &result.devices {
            let state = if device.working { "" } else { ", failed on the way" };
            println!("  {}, {} MiB of rows there{state}", device.title, device.resident_bytes >> 20);
        }
    }
}
