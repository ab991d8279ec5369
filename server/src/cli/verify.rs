//! `peregrine verify`

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use peregrine_index::rows::{BlockRows, RowMeta};
use peregrine_index::source::{ChainSource, connect};
use peregrine_index::store::{BlockRecord, Snapshot, TweakReader, verify};
use peregrine_scanner::batch::TweakMethod;
use serde::Serialize;

use super::output;
use crate::config::Settings;
use crate::progress::{Meter, count};

/// Check every byte of the index, and with a node its contents
///
/// Checks checksums, that no block is missing, and that each block follows the one before. With --against-node all block
/// hashes are compared with the node's, and the rows of a sample of blocks are computed again and compared.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  peregrine verify --against-node --sample 1000")]
pub(super) struct Verify {
    /// Compare with a node, too
    #[arg(long)]
    against_node: bool,
    /// How many blocks to compute again, spread evenly over the chain
    #[arg(long, value_name = "N", default_value_t = 100, requires = "against_node")]
    sample: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    directory: String,
    blocks: u64,
    rows: u64,
    outputs: u64,
    leftover_bytes: u64,
    compared_hashes: u64,
    recomputed_blocks: u64,
    problems: Vec<Problem>,
    more_problems: u64,
}

#[derive(Serialize)]
struct Problem {
    file: Option<String>,
    height: Option<u32>,
    what: String,
}

impl Verify {
    pub(super) fn run(self, settings: &Settings) -> anyhow::Result<ExitCode> {
        let dir = settings.index_dir()?;
        if !dir.exists() {
            bail!("there is no index in {}", dir.display());
        }
        let meter = Meter::new("verifying", self.json);
        let checked = verify(&dir, |progress| {
            meter.update(progress.blocks_done, progress.blocks, |status| {
                format!("{:.0} blocks/s, {} rows", status.rate, count(progress.rows_done))
            });
        });
        if checked.changed_meanwhile {
            meter.finish();
            bail!("the index was changed by a reorganisation meanwhile; verify again");
        }
        let mut report = Report {
            ok: false,
            directory: dir.display().to_string(),
            blocks: checked.blocks,
            rows: checked.rows,
            outputs: checked.outputs,
            leftover_bytes: checked.leftover_bytes,
            compared_hashes: 0,
            recomputed_blocks: 0,
            problems: checked
                .problems
                .iter()
                .map(|problem| Problem {
                    file: Some(problem.file.display().to_string()),
                    height: problem.height,
                    what: problem.what.clone(),
                })
                .collect(),
            more_problems: checked.more_problems,
        };
        if self.against_node && report.problems.is_empty() {
            self.compare(settings, &dir, &meter, &mut report)?;
        }
        meter.finish();
        report.ok = report.problems.is_empty();
        if self.json {
            output::json(&report)?;
        } else {
            print(&report, self.against_node);
        }
        Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn compare(
        &self,
        settings: &Settings,
        dir: &Path,
        meter: &Meter,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let config = settings.node();
        let node = connect(&config).with_context(|| format!("can't compare with {}", config.describe()))?;
        let snapshot = TweakReader::open(dir)?.snapshot()?;
        let Some(heights) = snapshot.heights() else { return Ok(()) };
        let (first, last) = heights.into_inner();
        let mut wrong = |height: u32, what: String| {
            report.problems.push(Problem { file: None, height: Some(height), what });
        };

        // Equal hashes at one height mean equal blocks below it, so the first difference is all there is to say.
        let (mut height, mut hash) = (first, snapshot.block(first)?.hash);
        if node.hash_at(first)? != Some(hash) {
            wrong(first, format!("the node doesn't have the index's block {hash}"));
            return Ok(());
        }
        report.compared_hashes = 1;
        while height < last {
            let headers = node.headers_after(hash, height, 2000)?.unwrap_or_default();
            if headers.is_empty() {
                wrong(height + 1, format!("the index goes on to height {last}, the node's chain doesn't"));
                return Ok(());
            }
            for header in headers.iter().take((last - height) as usize) {
                height += 1;
                hash = snapshot.block(height)?.hash;
                if header.block_hash() != hash {
                    wrong(
                        height,
                        format!("the index has block {hash}, the node has {}", header.block_hash()),
                    );
                    return Ok(());
                }
                report.compared_hashes += 1;
            }
        }

        let blocks = u64::from(last - first) + 1;
        let sample = u64::from(self.sample).min(blocks);
        for number in 0..sample {
            // The tip is always in the sample.
            let height = last - (number * blocks / sample) as u32;
            let ours = snapshot.block(height)?;
            // The plain way, whichever one built the index.
            let theirs = BlockRows::of_block(&node.block(ours.hash)?, TweakMethod::Plain);
            if stored_rows(&snapshot, &ours)? != theirs {
                wrong(height, format!("the rows of block {} are not what the block gives", ours.hash));
            }
            report.recomputed_blocks += 1;
            meter.update(number + 1, sample, |status| format!("{:.0} blocks/s computed again", status.rate));
        }
        Ok(())
    }
}

/// The rows of a block as they are in the index.
fn stored_rows(snapshot: &Snapshot, block: &BlockRecord) -> anyhow::Result<BlockRows> {
    let mut rows = BlockRows::default();
    for slice in snapshot.segments(block.rows.clone())? {
        let slice = slice?;
        rows.points.extend_from_slice(slice.points());
        rows.txids.extend_from_slice(slice.txids());
        rows.outputs.extend_from_slice(slice.outputs());
        for row in 0..slice.len() {
            rows.meta.push(slice.meta(row).unwrap_or(RowMeta::default()));
            rows.output_counts.push(slice.outputs_of(row).len() as u32);
        }
    }
    Ok(rows)
}

fn print(report: &Report, against_node: bool) {
    for problem in &report.problems {
        let height = problem.height.map_or_else(String::new, |height| format!("height {height}: "));
        let file = problem.file.as_ref().map_or_else(String::new, |file| format!("{file}: "));
        println!("{file}{height}{}", problem.what);
    }
    if report.more_problems > 0 {
        println!("and {} more problems", count(report.more_problems));
    }
    println!(
        "{}: {} blocks, {} rows, {} outputs in {}",
        if report.ok { "good" } else { "NOT GOOD" },
        count(report.blocks),
        count(report.rows),
        count(report.outputs),
        report.directory
    );
    if against_node {
        println!(
            "compared with the node: {} block hashes, {} blocks computed again",
            count(report.compared_hashes),
            count(report.recomputed_blocks)
        );
    }
    if report.leftover_bytes > 0 {
        println!(
            "{} unused bytes are left over from blocks that were taken back",
            count(report.leftover_bytes)
        );
    }
    if !report.ok {
        println!(
            "A damaged index is repaired by `peregrine index` as far as the damage is at its end; otherwise delete the \
             directory and build it again."
        );
    }
}
