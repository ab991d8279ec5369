//! Scans heights of a tweak index, and looks up the outputs behind what was found.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::AtomicBool;

use bitcoin::hashes::Hash;
use bitcoin::{Transaction, Txid};
use peregrine_scanner::receive::{FoundOutput, find_outputs};
use peregrine_scanner::tweak::taproot_key;
use peregrine_scanner::{
    Control, Engine, Match, Place, PreparedTargets, RowBatch, ScanError, ScanTarget, Tweak,
};

use crate::source::{ChainSource, SourceError};
use crate::store::{SegmentSlice, Snapshot, StoreError, TweakReader};

/// What to scan.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The keys and labels to look for.
    pub targets: &'a [ScanTarget],
    /// First height; heights that the index doesn't have are left out.
    pub from: u32,
    /// Last height; `None` for the tip.
    pub to: Option<u32>,
    /// Leave out transactions whose largest taproot output is below so many satoshi; 0 scans everything.
    pub min_output: u64,
}

/// A transaction in which something was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTransaction {
    /// Height of its block.
    pub height: u32,
    /// Its position in the block.
    pub position: u32,
    /// Its id.
    pub txid: Txid,
    /// Its tweak.
    pub tweak: Tweak,
    /// Which of the targets.
    pub target: usize,
}

/// What a scan did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The heights that were scanned; `None` if the index has none of those asked for.
    pub heights: Option<RangeInclusive<u32>>,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of rows in these blocks, filtered ones included.
    pub rows: u64,
    /// Number of rows that were computed, which is more after a reorganisation and less with a filter.
    pub scanned: u64,
    /// What was found, in the order of the chain. Eight bytes of one output matched, so an entry can be wrong with a
    /// probability of 2^-64 for each output that was compared.
    pub found: Vec<FoundTransaction>,
}

/// Why a scan ended early.
#[derive(Debug, thiserror::Error)]
pub enum IndexScanError {
    /// The index can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The scan was cancelled, or couldn't start.
    #[error(transparent)]
    Scan(#[from] ScanError),
}

/// Scans the index. `progress` is called with rows done and rows in all.
///
/// A reorganisation during the scan is noticed at its end: what was found above the fork is dropped and the heights
/// above it are scanned again, so that the result is that of one chain.
pub fn scan(
    reader: &TweakReader,
    engine: &Engine,
    request: Request<'_>,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Report, IndexScanError> {
    let mut found: Vec<FoundTransaction> = Vec::new();
    let mut scanned = 0;
    let mut from = request.from;
    loop {
        let snapshot = reader.snapshot()?;
        let round = available(&snapshot, from, request.to).map_or(Ok((0, Vec::new())), |heights| {
            scan_heights(&snapshot, engine, request, heights, cancel, progress)
        });
        if snapshot.is_current()? {
            let (rows, new) = round?;
            found.extend(new);
            let heights = available(&snapshot, request.from, request.to);
            let (mut blocks, mut all_rows) = (0, 0);
            if let Some(heights) = &heights {
                let rows = snapshot.rows_of_heights(heights.clone())?;
                (blocks, all_rows) = (u64::from(heights.end() - heights.start()) + 1, rows.end - rows.start);
            }
            return Ok(Report { heights, blocks, rows: all_rows, scanned: scanned + rows, found });
        }
        // Blocks were taken back meanwhile. What lies below the fork stays; if the slices were overtaken by the
        // rollback, this round gave nothing and is repeated.
        let completed = match round {
            Ok((rows, new)) => {
                scanned += rows;
                found.extend(new);
                u32::MAX
            }
            Err(IndexScanError::Store(_)) => from,
            Err(error) => return Err(error),
        };
        let now = reader.snapshot()?;
        let unchanged = snapshot.common_height(&now).map_or(0, |height| height + 1);
        found.retain(|transaction| transaction.height < unchanged);
        from = request.from.max(unchanged.min(completed));
    }
}

/// The heights of the range that the snapshot has.
fn available(snapshot: &Snapshot, from: u32, to: Option<u32>) -> Option<RangeInclusive<u32>> {
    let all = snapshot.heights()?;
    let heights = from.max(*all.start())..=to.unwrap_or(u32::MAX).min(*all.end());
    (!heights.is_empty()).then_some(heights)
}

fn scan_heights(
    snapshot: &Snapshot,
    engine: &Engine,
    request: Request<'_>,
    heights: RangeInclusive<u32>,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(u64, Vec<FoundTransaction>), IndexScanError> {
    let rows = snapshot.rows_of_heights(heights)?;
    let prepared = engine.prepare(request.targets);
    scan_rows(snapshot, &prepared, rows, request.min_output, cancel, progress)
}

/// Scans rows of a snapshot for targets that are prepared already; gives how many rows were computed and what was found, in
/// the order of the chain. `progress` is called with rows done and rows in all.
///
/// The caller asks [`Snapshot::is_current`] afterwards; if it isn't, the result doesn't count.
///
/// # Errors
/// The index can't be read, or the scan was cancelled.
pub fn scan_rows(
    snapshot: &Snapshot,
    prepared: &PreparedTargets<'_>,
    rows: Range<u64>,
    min_output: u64,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(u64, Vec<FoundTransaction>), IndexScanError> {
    let total = rows.end - rows.start;
    let mut done = 0;
    let mut computed = 0;
    let mut found = Vec::new();
    let most = if min_output > 0 { 1 } else { AT_ONCE };
    let mut slices = snapshot.segments(rows)?;
    let mut ahead = group(&mut slices, most, min_output)?;
    while !ahead.is_empty() {
        let now = std::mem::take(&mut ahead);
        let batches: Vec<RowBatch<'_>> = now.iter().map(|segment| segment.batch(snapshot)).collect();
        let count: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
        let all: u64 = now.iter().map(|segment| segment.slice.len() as u64).sum();
        // Rows that the filter took away count as done.
        let before = done + all - count;
        let progress = |rows: u64| progress(before + rows, total);
        let scan = || prepared.scan(&batches, Control { cancel, progress: &progress });
        let matches = if now.len() < most {
            scan()?
        } else {
            // Devices don't wait while the next ones are made ready.
            std::thread::scope(|scope| {
                let next = scope.spawn(|| group(&mut slices, most, min_output));
                let matches = scan();
                ahead = next.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                Ok::<_, IndexScanError>(matches?)
            })?
        };
        computed += count;
        done += all;
        for hit in matches {
            let behind = now.partition_point(|segment| segment.slice.first_row() <= hit.row);
            found.extend(behind.checked_sub(1).and_then(|at| now[at].locate(snapshot, &hit)));
        }
    }
    Ok((computed, found))
}

/// Segments that are scanned together: so many need their output counts in memory, 4 MiB each. With a filter, which needs a
/// copy of all, only one.
const AT_ONCE: usize = 8;

/// A segment made ready.
struct Ready {
    slice: SegmentSlice,
    filtered: Option<Filtered>,
}

fn group(
    slices: &mut impl Iterator<Item = Result<SegmentSlice, StoreError>>,
    most: usize,
    min_output: u64,
) -> Result<Vec<Ready>, StoreError> {
    let ready = |slice: SegmentSlice| {
        let filtered = (min_output > 0).then(|| Filtered::new(&slice, min_output));
        Ready { slice, filtered }
    };
    slices.take(most).map(|slice| Ok(ready(slice?))).collect()
}

impl Ready {
    fn batch(&self, snapshot: &Snapshot) -> RowBatch<'_> {
        match &self.filtered {
            Some(filtered) => filtered.batch(self.slice.first_row()),
            None => batch(snapshot, &self.slice),
        }
    }

    /// Where a match is. `None` only if the index changed meanwhile, which the caller notices.
    fn locate(&self, snapshot: &Snapshot, hit: &Match) -> Option<FoundTransaction> {
        let row = (hit.row - self.slice.first_row()) as usize;
        let row = self.filtered.as_ref().map_or(Some(row), |filtered| filtered.kept.get(row).copied())?;
        Some(FoundTransaction {
            height: snapshot.height_of_row(self.slice.first_row() + row as u64)?,
            position: self.slice.meta(row)?.position,
            txid: Txid::from_byte_array(*self.slice.txids().get(row)?),
            tweak: hit.tweak,
            target: hit.target,
        })
    }
}

fn batch<'a>(snapshot: &Snapshot, slice: &'a SegmentSlice) -> RowBatch<'a> {
    let place = Place { state: snapshot.epoch(), segment: slice.segment(), row: slice.local_rows().start };
    RowBatch {
        place: Some(place),
        first_row: slice.first_row(),
        points: slice.points(),
        output_ends: slice.output_ends(),
        outputs_base: slice.outputs_base(),
        outputs: slice.outputs(),
    }
}

/// A copy of the rows that a filter leaves. Whole transactions stay or go, never single outputs.
struct Filtered {
    /// Rows of the slice.
    kept: Vec<usize>,
    points: Vec<[u8; 64]>,
    output_ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
}

impl Filtered {
    fn new(slice: &SegmentSlice, min_output: u64) -> Self {
        let mut filtered = Self { kept: vec![], points: vec![], output_ends: vec![], outputs: vec![] };
        for (row, point) in slice.points().iter().enumerate() {
            if slice.meta(row).is_some_and(|meta| meta.max_value >= min_output) {
                filtered.kept.push(row);
                filtered.points.push(*point);
                filtered.outputs.extend_from_slice(slice.outputs_of(row));
                filtered.output_ends.push(filtered.outputs.len() as u32);
            }
        }
        filtered
    }

    /// Rows are counted from the segment's first one.
    fn batch(&self, first_row: u64) -> RowBatch<'_> {
        RowBatch {
            // No device keeps what a filter left.
            place: None,
            first_row,
            points: &self.points,
            output_ends: &self.output_ends,
            outputs_base: 0,
            outputs: &self.outputs,
        }
    }
}

/// An output that belongs to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedOutput {
    /// Its index in the transaction.
    pub vout: u32,
    /// Satoshi.
    pub value: u64,
    /// The x-only output key.
    pub key: [u8; 32],
    /// Number k, label and tweak.
    pub found: FoundOutput,
}

/// Gets a found transaction's block from a source and finds every output that belongs to the target.
///
/// Empty if there is none: then only the first 8 bytes of an output matched. `UnknownBlock` if the best chain has
/// another block there by now.
pub fn outputs(
    source: &dyn ChainSource,
    transaction: &FoundTransaction,
    targets: &[ScanTarget],
    cache: &mut BlockCache,
) -> Result<Vec<OwnedOutput>, SourceError> {
    let transactions = cache.get(source, transaction.height)?;
    let found =
        transactions.get(transaction.position as usize).filter(|tx| tx.compute_txid() == transaction.txid);
    let Some(found) = found else {
        return Err(SourceError::Invalid(format!(
            "the node's block at height {} doesn't hold {}; the index and the node are on different chains",
            transaction.height, transaction.txid
        )));
    };
    Ok(owned_outputs(found, &transaction.tweak, &targets[transaction.target]))
}

/// The outputs of a transaction that belong to a target.
pub fn owned_outputs(transaction: &Transaction, tweak: &Tweak, target: &ScanTarget) -> Vec<OwnedOutput> {
    let taproot: Vec<(u32, u64, [u8; 32])> = (0..)
        .zip(&transaction.output)
        .filter_map(|(vout, out)| Some((vout, out.value.to_sat(), taproot_key(&out.script_pubkey)?)))
        .collect();
    let keys: Vec<[u8; 32]> = taproot.iter().map(|(_, _, key)| *key).collect();
    find_outputs(target, tweak, &keys)
        .into_iter()
        .map(|found| {
            let (vout, value, key) = taproot[found.index];
            OwnedOutput { vout, value, key, found }
        })
        .collect()
}

/// The block that was asked for last: transactions come in the order of the chain, several from one block.
#[derive(Debug, Default)]
pub struct BlockCache(Option<(u32, Vec<Transaction>)>);

impl BlockCache {
    fn get(&mut self, source: &dyn ChainSource, height: u32) -> Result<&[Transaction], SourceError> {
        if self.0.as_ref().is_none_or(|(cached, _)| *cached != height) {
            let hash = source.hash_at(height)?.ok_or_else(|| {
                SourceError::Invalid(format!(
                    "the node has no block at height {height}; it may still be syncing"
                ))
            })?;
            self.0 = Some((height, source.block(hash)?.block.txdata));
        }
        Ok(self.0.as_ref().map_or(&[], |(_, transactions)| transactions))
    }
}
