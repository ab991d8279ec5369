//! `peregrine info`

use std::process::ExitCode;

use anyhow::Context;
use peregrine_index::store::TweakReader;
use serde::Serialize;

use super::output;
use crate::config::Settings;
use crate::progress::count;

/// Say what the index holds
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine info --network signet")]
pub(super) struct Info {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    network: String,
    directory: String,
    first_height: Option<u32>,
    tip_height: Option<u32>,
    tip_hash: Option<String>,
    tip_time: Option<u32>,
    blocks: u64,
    rows: u64,
    outputs: u64,
    disk_bytes: u64,
}

/// Opens the index of the settings for reading.
pub(super) fn open(settings: &Settings) -> anyhow::Result<TweakReader> {
    TweakReader::open(&settings.index_dir()?).with_context(|| {
        format!(
            "there is no readable index for {0}; build it with: peregrine index --network {0}",
            settings.network()
        )
    })
}

impl Info {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let reader = open(settings)?;
        let snapshot = reader.snapshot()?;
        let tip = snapshot.tip();
        let report = Report {
            network: settings.network().to_string(),
            directory: reader.dir().display().to_string(),
            first_height: snapshot.heights().map(|heights| *heights.start()),
            tip_height: tip.as_ref().map(|tip| tip.height),
            tip_hash: tip.as_ref().map(|tip| tip.hash.to_string()),
            tip_time: tip.as_ref().map(|tip| tip.header.time),
            blocks: snapshot.blocks(),
            rows: snapshot.rows(),
            outputs: snapshot.outputs(),
            disk_bytes: snapshot.disk_bytes()?,
        };
        if self.json {
            output::json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        println!("network    {}", report.network);
        println!("directory  {}", report.directory);
        match (report.first_height, &tip) {
            (Some(first), Some(tip)) => {
                println!("heights    {first} to {}", tip.height);
                println!("tip        {} of {}", tip.hash, output::time(tip.header.time));
            }
            _ => println!("heights    none yet, starts at {}", snapshot.start_height()),
        }
        println!("blocks     {}", count(report.blocks));
        println!("rows       {}", count(report.rows));
        println!("outputs    {}", count(report.outputs));
        println!("disk       {} MB", count(report.disk_bytes / 1_000_000));
        Ok(ExitCode::SUCCESS)
    }
}
