//! `peregrine devices`

use std::process::ExitCode;

use peregrine_scanner::backend::{self, cuda};
use serde::Serialize;

use super::output;

/// Say what can compute on this machine, and why something can't
///
/// Every line is a backend: what --backend takes. Graphics cards are used only when they are named.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine devices
  peregrine bench --backend cuda")]
pub(super) struct Devices {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    processor: Vec<Processor>,
    cuda: Cuda,
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

impl Devices {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let best = backend::choose("auto")?.name();
        let processor = backend::names().into_iter().filter(|name| *name != cuda::NAME).map(|name| {
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
        };
        if self.json {
            output::json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        for processor in &report.processor {
            let text = match (&processor.reason, processor.best) {
                (Some(reason), _) => format!("not usable: {reason}"),
                (None, true) => "usable; the best, which auto takes".to_owned(),
                (None, false) => "usable".to_owned(),
            };
            println!("{:12} {text}", processor.backend);
        }
        if let Some(reason) = &report.cuda.reason {
            println!("{:12} not usable: {reason}", cuda::NAME);
        }
        for (number, card) in report.cuda.cards.iter().enumerate() {
            println!(
                "{:12} {}: {}, compute capability {}, {} multiprocessors, {:.1} GiB{}",
                cuda::NAME,
                if number == 0 { "usable" } else { "not used" },
                card.name,
                card.compute_capability,
                card.multiprocessors,
                card.memory_bytes as f64 / f64::from(1 << 30),
                if number == 0 { "" } else { "; only the first card is" },
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
