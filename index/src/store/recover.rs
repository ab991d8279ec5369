//! Finding, on opening, the last block up to which everything on the disk is what was written.

use std::fs::File;
use std::path::Path;

use super::columns::{Layout, RowsChecker};
use super::error::{IoContext, StoreError};
use super::format::{BLOCKS_FILE, IndexParams};
use super::record::{RECORD_LEN, Record};

/// What opening an index for writing found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Blocks that were kept.
    pub blocks: u64,
    /// Complete block records that were dropped from the end because they, or their rows, were damaged.
    pub dropped: u64,
    /// How many of the dropped blocks had been on stable storage. More than zero means that the process ended
    /// in the middle of a rollback (then `dropped` is zero), that the disk lost data it had acknowledged, or that somebody
    /// changed files.
    pub dropped_synced: u64,
    /// What was wrong with the first dropped block, or with the `state` file.
    pub reasons: Vec<String>,
}

/// Checks single blocks of an index against their records.
pub(super) struct BlockChecker<'a> {
    pub(super) params: &'a IndexParams,
    pub(super) rows: RowsChecker<'a>,
}

impl<'a> BlockChecker<'a> {
    pub(super) fn new(dir: &'a Path, params: &'a IndexParams) -> Self {
        let layout = Layout { segment_bits: params.segment_bits };
        Self { params, rows: RowsChecker::new(dir, layout) }
    }

    /// Whether `record` follows `prev` and its rows are what it says; the inner error says why not.
    pub(super) fn check(
        &mut self,
        record: &Record,
        prev: Option<&Record>,
    ) -> Result<Result<(), String>, StoreError> {
        if let Err(what) = record.follows(prev, self.params.start_height, self.params.genesis) {
            return Ok(Err(what));
        }
        let (row, output) = prev.map_or((0, 0), |p| (p.row_end, p.output_end));
        let checked =
            self.rows.check(row..record.row_end, record.output_end - output, record.rows_checksum)?;
        Ok(checked.map_err(|fault| format!("{}: {}", fault.path.display(), fault.what)))
    }
}

/// Walks to the last good block: back from `synced`, or forward from it over everything that was not synced yet.
pub(super) fn recover(
    dir: &Path,
    params: &IndexParams,
    blocks: &File,
    records: u64,
    synced: u64,
) -> Result<Recovery, StoreError> {
    let path = dir.join(BLOCKS_FILE);
    let read = |index: u64| Record::read(blocks, index).at(&path);
    let mut checker = BlockChecker::new(dir, params);
    // `Ok(Ok(rows))` for a good block, `Ok(Err(why))` for a bad one.
    let mut check = |index: u64| -> Result<Result<u64, String>, StoreError> {
        let Some(record) = read(index)? else { return Ok(Err("its record has a wrong checksum".into())) };
        let prev = match index.checked_sub(1) {
            Some(before) => match read(before)? {
                Some(prev) => Some(prev),
                None => return Ok(Err("the record before it has a wrong checksum".into())),
            },
            None => None,
        };
        let rows = record.row_end.saturating_sub(prev.as_ref().map_or(0, |p| p.row_end));
        Ok(checker.check(&record, prev.as_ref())?.map(|()| rows))
    };

    let mut recovery = Recovery::default();
    let mut reason = None;
    let trusted = synced.min(records);
    let mut end = trusted;
    let mut probe = trusted;
    while let Some(last) = probe.checked_sub(1) {
        match check(last)? {
            // Blocks without rows say nothing about the columns: look back to one that does.
            Ok(rows) if rows > 0 => break,
            Ok(_) => {}
            Err(why) => {
                reason = Some((last, why));
                end = last;
            }
        }
        probe = last;
    }
    // Behind a damaged synced block nothing can be used.
    while end >= trusted && end < records {
        match check(end)? {
            Ok(_) => end += 1,
            Err(why) => {
                reason = Some((end, why));
                break;
            }
        }
    }
    recovery.blocks = end;
    recovery.dropped = records - end;
    recovery.dropped_synced = synced.saturating_sub(end);
    if synced > records {
        recovery.reasons.push(format!(
            "{} has {records} complete records of {RECORD_LEN} bytes, {synced} had been synced",
            path.display()
        ));
    }
    if let Some((index, why)) = reason {
        recovery.reasons.push(format!("block at height {}: {why}", u64::from(params.start_height) + index));
    }
    Ok(recovery)
}
