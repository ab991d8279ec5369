//! `peregrine devices`

use std::process::ExitCode;

use peregrine_scanner::backend::{self, cuda, wgpu};
use serde::Serialize;

use super::output;

/// Say what can compute on this machine, and why something can't
///
/// Every line is a backend: what --backend takes. With auto, graphics cards are tried at the start and used together with the
/// processor if they are worth it.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine devices
  peregrine bench --backend cuda,wgpu
  peregrine serve --cards 0,1        (numbers, or parts of names, of what is listed)")]
pub(super) struct Devices {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    processor: Vec<Processor>,
    cuda: Cuda,
    wgpu: Wgpu,
}

#[derive(Serialize)]
struct Processor {
    backend: &'static str,
    available: bool,
    /// What `auto` takes.
    best: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct Cuda {
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    cards: Vec<Card>,
}

#[derive(Serialize)]
struct Card {
    name: String,
    compute_capability: String,
    multiprocessors: i32,
    memory_bytes: u64,
}

#[derive(Serialize)]
struct Wgpu {
    available: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    adapters: Vec<Adapter>,
}

#[derive(Serialize)]
struct Adapter {
    name: String,
    api: &'static str,
    kind: &'static str,
    driver: String,
    /// Whether the kernels use 64-bit integers there.
    wide_integers: bool,
    /// Computes on the processor: for tests only.
    software: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
}

fn wgpu_report() -> Wgpu {
    let adapters: Vec<Adapter> = wgpu::adapters()
        .into_iter()
        .map(|adapter| Adapter {
            name: adapter.name,
            api: adapter.api,
            kind: adapter.kind,
            driver: adapter.driver,
            wide_integers: adapter.wide_integers,
            software: adapter.software,
            unusable: adapter.unusable,
        })
        .collect();
    let reason = if adapters.is_empty() {
        Some(wgpu::NO_DEVICE.to_owned())
    } else if adapters.iter().all(|adapter| adapter.unusable.is_some()) {
        Some("no device can run the kernels".to_owned())
    } else {
        None
    };
    Wgpu { available: reason.is_none(), reason, adapters }
}

impl Devices {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let best = backend::best_of_processor();
        let processor = backend::names()
            .into_iter()
            .filter(|name| ![cuda::NAME, wgpu::NAME].contains(name))
            .map(|name| {
                let reason = match backend::choose(name) {
                    Ok(_) => None,
                    Err(backend::BackendError::Unavailable { reason, .. }) => Some(reason),
                    Err(error) => Some(error.to_string()),
                };
                Processor { backend: name, available: reason.is_none(), best: name == best, reason }
            });
        let (reason, cards) = match cuda::cards() {
            Ok(cards) if cards.is_empty() => (Some("the NVIDIA driver finds no card".to_owned()), cards),
            Ok(cards) => (None, cards),
            Err(reason) => (Some(reason), Vec::new()),
        };
        let cards = cards.into_iter().map(|card| Card {
            name: card.name,
            compute_capability: format!("{}.{}", card.capability.0, card.capability.1),
            multiprocessors: card.multiprocessors,
            memory_bytes: card.memory,
        });
        let report = Report {
            processor: processor.collect(),
            cuda: Cuda { available: reason.is_none(), reason, cards: cards.collect() },
            wgpu: wgpu_report(),
        };
        if self.json {
            output::json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        for processor in &report.processor {
            let text = match (&processor.reason, processor.best) {
                (Some(reason), _) => format!("not usable: {reason}"),
                (None, true) => "usable; the processor's best, which auto takes".to_owned(),
                (None, false) => "usable".to_owned(),
            };
            println!("{:12} {text}", processor.backend);
        }
        if let Some(reason) = &report.cuda.reason {
            println!("{:12} not usable: {reason}", cuda::NAME);
        }
        for (number, card) in report.cuda.cards.iter().enumerate() {
            println!(
                "{:12} usable: card {number}, {}, compute capability {}, {} multiprocessors, {:.1} GiB",
                cuda::NAME,
                card.name,
                card.compute_capability,
                card.multiprocessors,
                card.memory_bytes as f64 / f64::from(1 << 30),
            );
        }
        if let Some(reason) = &report.wgpu.reason {
            println!("{:12} not usable: {reason}", wgpu::NAME);
        }
        for (number, adapter) in report.wgpu.adapters.iter().enumerate() {
            let state = match (&adapter.unusable, adapter.software) {
                (Some(reason), _) => format!("not usable: {reason}:"),
                (None, true) => "usable, for tests only:".to_owned(),
                (None, false) => "usable:".to_owned(),
            };
            println!(
                "{:12} {state} card {number}, {}, {}, {}; {}; integers of {} bits",
                wgpu::NAME,
                adapter.name,
                adapter.kind,
                adapter.api,
                adapter.driver,
                if adapter.wide_integers { 64 } else { 32 },
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
