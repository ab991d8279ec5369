//! `peregrine index`

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::bail;
use peregrine_index::indexer::{self, Event, Options, Progress};
use peregrine_index::source::{ChainSource, WaitError, Waiter, connect};
use peregrine_index::store::{IndexParams, TweakIndexWriter, TweakReader};
use peregrine_scanner::batch::TweakMethod;
use serde_json::json;

use super::output;
use crate::config::Settings;
use crate::interrupt;
use crate::progress::{Meter, Status, count, duration};

/// Between two progress lines of `--json`.
const JSON_EVERY: Duration = Duration::from_secs(1);

/// Build or continue the tweak index from a Bitcoin Core node
///
/// Starts where the last run ended, from Taproot's activation on mainnet. It can be interrupted at any time, and waits
/// for a node that isn't there. Bitcoin Core 30 or later with rest=1 is fastest; older ones are asked by JSON-RPC. The
/// node needs neither txindex nor a wallet, but must not be pruned below the blocks that are missing.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  peregrine index --follow
  peregrine index --network signet --node http://127.0.0.1:38332 --to 200000")]
pub(super) struct Index {
    /// First height, for a new index [default: 709632 on mainnet, 0 elsewhere]
    #[arg(long, value_name = "HEIGHT")]
    from: Option<u32>,
    /// Stop after this height [default: the tip]
    #[arg(long, value_name = "HEIGHT")]
    to: Option<u32>,
    /// At the tip, wait for more blocks until interrupted
    #[arg(long, conflicts_with = "to")]
    follow: bool,
    /// Print events and progress as JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Index {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let network = settings.network().network();
        let mut params = IndexParams::for_network(network);
        let tweaks = TweakMethod::choose(settings.backend())?;
        let dir = settings.index_dir()?;
        if let Some(from) = self.from {
            params.start_height = from;
        } else if let Ok(existing) = TweakReader::open(&dir) {
            // What was once started with --from goes on without it.
            params.start_height = existing.params().start_height;
        }
        if let Some(to) = self.to.filter(|to| *to < params.start_height) {
            bail!("--to {to} is before the first height, {}", params.start_height);
        }
        let cancel = interrupt::flag()?;
        let mut index = TweakIndexWriter::open_or_create(&dir, &params)?;
        let reporter = Reporter::new(self.json);
        match index.tip() {
            Some((height, _)) => reporter.say(&format!("continuing {} after height {height}", dir.display())),
            None => {
                reporter.say(&format!("new index in {} from height {}", dir.display(), params.start_height))
            }
        }

        let config = settings.node();
        let waiter = Waiter::new(cancel, |event| reporter.event(Event::Wait(event.clone())));
        let source = match waiter.run(&config.describe(), || connect(&config)) {
            Ok(source) => source,
            Err(WaitError::Cancelled) => return Ok(super::interrupted()),
            Err(WaitError::Source(error)) => bail!("{}: {error}", config.describe()),
        };
        if let Some(reason) = source.fallback_reason() {
            reporter.say(&format!("using the slower JSON-RPC: {reason}"));
        }
        reporter.say(&format!("reading from {}", source.describe()));

        let started = Instant::now();
        let options = Options {
            to: self.to,
            follow: self.follow,
            requests: settings.requests(),
            tweaks,
            ..Options::default()
        };
        let result = indexer::run(&source, &mut index, options, cancel, &|event| reporter.event(event));
        reporter.meter.finish();
        let summary = result?;
        let time = started.elapsed();
        let height = index.tip().map(|(height, _)| height);
        if self.json {
            output::json_line(&json!({
                "event": "done",
                "height": height,
                "blocks": summary.blocks,
                "rows": summary.rows,
                "seconds": time.as_secs_f64(),
                "blocks_per_second": output::rate(summary.blocks, time),
                "rows_per_second": output::rate(summary.rows, time),
                "interrupted": summary.cancelled,
            }))?;
        } else {
            println!(
                "{} blocks with {} rows in {:.1} s: {:.0} blocks/s, {:.0} rows/s",
                count(summary.blocks),
                count(summary.rows),
                time.as_secs_f64(),
                output::rate(summary.blocks, time),
                output::rate(summary.rows, time),
            );
            let height = height.map_or("nothing".into(), |height| format!("height {height}"));
            if summary.cancelled && !self.follow {
                println!("interrupted at {height}; the same command goes on from there");
            } else {
                println!("the index reaches {height}");
            }
        }
        Ok(if summary.cancelled && !self.follow { super::interrupted() } else { ExitCode::SUCCESS })
    }
}

/// Shows events, for people or as JSON lines.
struct Reporter {
    meter: Meter,
    json: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the last JSON progress was printed.
    printed: Option<Instant>,
    /// Height that was last said to be the tip.
    at_tip: Option<u32>,
}

impl Reporter {
    fn new(json: bool) -> Self {
        Self { meter: Meter::new("indexing", json), json, state: Mutex::default() }
    }

    fn say(&self, text: &str) {
        if self.json {
            self.line(json!({ "event": "message", "text": text }));
        } else {
            self.meter.say(text);
        }
    }

    fn line(&self, value: serde_json::Value) {
        // Whoever reads this is gone if it can't be written; the work goes on.
        let _ = output::json_line(&value);
    }

    fn event(&self, event: Event) {
        if matches!(event, Event::Reorganised { .. }) {
            // The new tip may be at the same height, and is told all the same.
            self.state().at_tip = None;
        }
        match event {
            Event::Progress(progress) => self.progress(&progress),
            Event::Wait(wait) if self.json => {
                self.line(json!({ "event": "waiting", "text": wait.to_string() }))
            }
            Event::Wait(wait) => self.say(&wait.to_string()),
            Event::Invalid(text) => {
                self.say(&format!("the node sent something invalid, asking again: {text}"))
            }
            Event::Reorganised { from, to } if self.json => {
                self.line(json!({ "event": "reorganised", "from": from, "to": to }));
            }
            Event::Reorganised { from, to: Some(to) } => {
                self.say(&format!("the chain was reorganised: went back from height {from} to {to}"));
            }
            Event::Reorganised { from, to: None } => {
                self.say(&format!(
                    "the chain was reorganised: went back from height {from} to the very beginning"
                ));
            }
            Event::AtTip(height) => {
                let mut state = self.state();
                if state.at_tip != Some(height) {
                    state.at_tip = Some(height);
                    drop(state);
                    if self.json {
                        self.line(json!({ "event": "at_tip", "height": height }));
                    } else {
                        self.say(&format!("at the tip, height {height}"));
                    }
                }
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn progress(&self, progress: &Progress) {
        let total = progress.blocks + u64::from(progress.goal - progress.height);
        // Percent of the chain rather than of this run would jump at the start of a continued run.
        let rows_per_block = progress.rows as f64 / progress.blocks.max(1) as f64;
        let status = self.meter.update(progress.blocks, total, |status: &Status| {
            format!(
                "height {} of {}, {:.0} blocks/s, {:.0} rows/s",
                progress.height,
                progress.goal,
                status.rate,
                status.rate * rows_per_block
            )
        });
        if self.json {
            let mut state = self.state();
            if state.printed.is_none_or(|printed| printed.elapsed() >= JSON_EVERY) {
                state.printed = Some(Instant::now());
                drop(state);
                self.line(json!({
                    "event": "progress",
                    "height": progress.height,
                    "goal": progress.goal,
                    "percent": status.percent,
                    "blocks_per_second": status.rate,
                    "rows_per_second": status.rate * rows_per_block,
                    "seconds_left": status.left.map(|left| left.as_secs()),
                    "time_left": status.left.map(duration),
                }));
            }
        }
    }
}
