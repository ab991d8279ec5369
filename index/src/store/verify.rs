//! Checking every byte of an index.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::columns::{Column, Layout, RowsChecker, SegmentFiles, segment_dir};
use super::error::{IoContext, StoreError};
use super::format::{BLOCKS_FILE, FORMAT_FILE, IndexParams, STATE_FILE, State};
use super::record::{RECORD_LEN, Record};

/// Problems listed in full; further ones are counted.
const MAX_PROBLEMS: usize = 1000;
/// Blocks between two calls of the progress callback.
const PROGRESS_EVERY: u64 = 256;

/// Something in an index that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyProblem {
    /// The file; for a wrong checksum over a block's rows, the directory of the last segment that holds some of them.
    pub file: PathBuf,
    /// Height of the block concerned, where there is one.
    pub height: Option<u32>,
    /// What is wrong.
    pub what: String,
}

/// How far [`verify`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Blocks checked.
    pub blocks_done: u64,
    /// Blocks in the index.
    pub blocks: u64,
    /// Rows checked.
    pub rows_done: u64,
}

/// What [`verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// What the index is of; `None` when the `format` file is damaged, and nothing else was checked then.
    pub params: Option<IndexParams>,
    /// Complete block records, good or not.
    pub blocks: u64,
    /// Rows up to the last good record.
    pub rows: u64,
    /// Outputs up to the last good record.
    pub outputs: u64,
    /// Blocks that the `state` file calls synced.
    pub synced: u64,
    /// What is wrong, in the order found: the first thousand.
    pub problems: Vec<VerifyProblem>,
    /// Problems found beyond those listed.
    pub more_problems: u64,
    /// Bytes behind the logical end of files, harmless remains of rollbacks and of interrupted appends.
    pub leftover_bytes: u64,
    /// A writer took blocks back in the meantime, so that problems may be artefacts: verify again.
    pub changed_meanwhile: bool,
}

impl VerifyReport {
    /// Whether no problem was found.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, file: &Path, height: Option<u32>, what: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(VerifyProblem { file: file.to_path_buf(), height, what: what.into() });
        } else {
            self.more_problems += 1;
        }
    }

    fn error(&mut self, file: &Path, height: Option<u32>, error: &StoreError) {
        match error {
            StoreError::Io { path, source } => self.problem(path, height, source.to_string()),
            StoreError::BadFormat { path, what } | StoreError::BadState { path, what } => {
                self.problem(path, height, what);
            }
            other => self.problem(file, height, other.to_string()),
        }
    }
}

/// Checks the index in `dir`: its small files, every block record, the chain of headers, and the checksum of each
/// block's rows. Takes no lock, writes nothing, and never panics, whatever the files hold.
///
/// `progress` is called every few hundred blocks and at the end. Reading is sequential; a main-chain index takes about
/// as long as the disk needs for 21 GB.
pub fn verify(dir: &Path, mut progress: impl FnMut(VerifyProgress)) -> VerifyReport {
    let mut report = VerifyReport::default();
    let params = match IndexParams::read(dir) {
        Ok(params) => params,
        Err(StoreError::NotAnIndex(_)) => {
            report.problem(&dir.join(FORMAT_FILE), None, "is missing, so the directory holds no tweak index");
            return report;
        }
        Err(e) => {
            report.error(&dir.join(FORMAT_FILE), None, &e);
            return report;
        }
    };
    let state = State::read(dir);
    match &state {
        Ok(state) => report.synced = state.synced,
        Err(e) => report.error(&dir.join(STATE_FILE), None, e),
    }
    match File::open(dir.join(BLOCKS_FILE)).at(&dir.join(BLOCKS_FILE)) {
        Ok(blocks) => verify_blocks(dir, &params, &blocks, &mut report, &mut progress),
        Err(e) => report.error(&dir.join(BLOCKS_FILE), None, &e),
    }
    if let (Ok(before), Ok(after)) = (state, State::read(dir)) {
        report.changed_meanwhile = before.epoch != after.epoch;
    }
    match leftovers(dir, &params, report.rows) {
        Ok(bytes) => report.leftover_bytes += bytes,
        Err(e) => report.error(dir, None, &e),
    }
    report.params = Some(params);
    report
}

fn verify_blocks(
    dir: &Path,
    params: &IndexParams,
    blocks: &File,
    report: &mut VerifyReport,
    progress: &mut impl FnMut(VerifyProgress),
) {
    let path = dir.join(BLOCKS_FILE);
    let len = match blocks.metadata().at(&path) {
        Ok(meta) => meta.len(),
        Err(e) => return report.error(&path, None, &e),
    };
    let count = len / RECORD_LEN as u64;
    report.blocks = count;
    report.leftover_bytes += len % RECORD_LEN as u64;
    if report.synced > count {
        let synced = report.synced;
        report.problem(&path, None, format!("has {count} complete records, but {synced} had been synced"));
    }
    let layout = Layout { segment_bits: params.segment_bits };
    let mut rows = RowsChecker::new(dir, layout);
    // The record before, unless it is damaged: then it is not known where the rows of the next one start.
    let mut prev: Option<Record> = None;
    for index in 0..count {
        if index.is_multiple_of(PROGRESS_EVERY) {
            progress(VerifyProgress { blocks_done: index, blocks: count, rows_done: report.rows });
        }
        let height = u32::try_from(u64::from(params.start_height) + index).ok();
        let record = match Record::read(blocks, index).at(&path) {
            Ok(Some(record)) => record,
            Ok(None) => {
                report.problem(&path, height, "the record has a wrong checksum");
                prev = None;
                continue;
            }
            Err(e) => {
                report.error(&path, height, &e);
                prev = None;
                continue;
            }
        };
        if index > 0 && prev.is_none() {
            if Some(record.height) != height {
                report.problem(&path, height, format!("the record is that of height {}", record.height));
            }
            report.problem(
                &path,
                height,
                "its rows can't be checked, because the record before it is damaged",
            );
        } else if let Err(what) = record.follows(prev.as_ref(), params.start_height, params.genesis) {
            report.problem(&path, height, what);
        } else {
            let (row, output) = prev.map_or((0, 0), |p| (p.row_end, p.output_end));
            match rows.check(row..record.row_end, record.output_end - output, record.rows_checksum) {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => {
                    let note = if index < report.synced {
                        ""
                    } else {
                        " (not synced yet: opening the index for writing drops the block)"
                    };
                    report.problem(&fault.path, height, format!("{}{note}", fault.what));
                }
                Err(e) => report.error(&path, height, &e),
            }
        }
        report.rows = record.row_end;
        report.outputs = record.output_end;
        prev = Some(record);
    }
    progress(VerifyProgress { blocks_done: count, blocks: count, rows_done: report.rows });
}

/// Bytes of column files behind the end of the last row.
fn leftovers(dir: &Path, params: &IndexParams, rows: u64) -> Result<u64, StoreError> {
    let layout = Layout { segment_bits: params.segment_bits };
    let mut bytes = 0;
    for entry in fs::read_dir(dir).at(dir)? {
        let name = entry.at(dir)?.file_name();
        let Some(segment) = name.to_str().and_then(|n| n.parse::<u64>().ok()) else { continue };
        if !segment_dir(dir, segment).ends_with(&name) {
            continue;
        }
        let Ok(first) = u32::try_from(segment).map(|s| u64::from(s) << layout.segment_bits) else { continue };
        let used = rows.saturating_sub(first).min(1 << layout.segment_bits);
        let outputs = match SegmentFiles::open(dir, segment) {
            // No more than 2^24 rows are in a segment.
            Ok(files) => files.outputs_before(used as u32)?.map(u64::from),
            Err(_) => None,
        };
        for column in Column::ALL {
            let need = match column {
                Column::Outputs => outputs,
                _ => Some(used),
            };
            let path = segment_dir(dir, segment).join(column.file_name());
            let have = match fs::metadata(&path) {
                Ok(meta) if meta.is_file() => meta.len(),
                Ok(_) => continue,
                // Where it is needed, its absence was reported with the rows.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e).at(&path),
            };
            bytes += need.map_or(0, |n| have.saturating_sub(n * column.width() as u64));
        }
    }
    Ok(bytes)
}
