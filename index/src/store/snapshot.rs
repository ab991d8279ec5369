//! A fixed view of the index.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::error::StoreError;
use super::reader::Shared;
use super::record::{BlockRecord, Record};
use super::segment::SegmentSlice;
use super::table::Table;

/// The blocks that were in the index at one moment, and their rows as long as [`is_current`](Self::is_current).
///
/// What concerns blocks is held in memory and stays true. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Snapshot {
    shared: Arc<Shared>,
    epoch: u64,
    table: Table,
}

impl Snapshot {
    pub(super) fn new(shared: Arc<Shared>, epoch: u64, table: Table) -> Self {
        Self { shared, epoch, table }
    }

    /// The epoch in which the snapshot was taken. A number that means nothing but "the same or not".
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether everything read from the snapshot's slices so far was right. Ask *after* reading.
    ///
    /// # Errors
    /// [`BadState`](StoreError::BadState), and what the file system refuses: then nothing is known.
    pub fn is_current(&self) -> Result<bool, StoreError> {
        // The rows were read with plain loads, which must not move behind the reading of the epoch.
        fence(Ordering::Acquire);
        Ok(self.shared.epoch()? == self.epoch)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.table.last().map_or(0, |t| t.row_end)
    }

    /// Number of taproot outputs.
    pub fn outputs(&self) -> u64 {
        self.table.last().map_or(0, |t| t.output_end)
    }

    /// Bytes that the index takes on the disk now, all files together.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.shared.disk_bytes()
    }

    /// Height of the first block that the index has or will have.
    pub fn start_height(&self) -> u32 {
        self.shared.params.start_height
    }

    /// Heights of the first and the last block; `None` while there is none.
    pub fn heights(&self) -> Option<RangeInclusive<u32>> {
        self.table.last().map(|t| self.start_height()..=t.height)
    }

    /// The last block.
    pub fn tip(&self) -> Option<BlockRecord> {
        self.table.len().checked_sub(1).and_then(|i| self.at(i))
    }

    /// The block at a height.
    ///
    /// # Errors
    /// [`NoSuchHeight`](StoreError::NoSuchHeight).
    pub fn block(&self, height: u32) -> Result<BlockRecord, StoreError> {
        let index = super::index_of(height, self.start_height(), self.blocks())?;
        self.at(index as usize)
            .ok_or_else(|| super::no_such_height(height, self.start_height(), self.blocks()))
    }

    /// Rows of the blocks at the given heights, both included; empty for an empty range.
    ///
    /// # Errors
    /// [`NoSuchHeight`](StoreError::NoSuchHeight).
    pub fn rows_of_heights(&self, heights: RangeInclusive<u32>) -> Result<Range<u64>, StoreError> {
        let first = self.block(*heights.start())?.rows.start;
        if heights.is_empty() {
            return Ok(first..first);
        }
        Ok(first..self.block(*heights.end())?.rows.end)
    }

    /// Height of the block that a row belongs to; `None` for a row beyond the end.
    pub fn height_of_row(&self, row: u64) -> Option<u32> {
        self.table.get(self.table.partition_point(|r| r.row_end <= row)).map(|r| r.height)
    }

    /// The lowest height whose header time (seconds since 1970) is `time` or later. Header times may fall from one
    /// block to the next; no block below the result is as late.
    pub fn first_height_at_or_after_time(&self, time: u32) -> Option<u32> {
        self.table.iter().find(|r| r.time() >= time).map(|r| r.height)
    }

    /// The highest height whose header time (seconds since 1970) is `time` or earlier. Header times may fall from one
    /// block to the next; no block above the result is as early.
    pub fn last_height_at_or_before_time(&self, time: u32) -> Option<u32> {
        self.table.iter().rev().find(|r| r.time() <= time).map(|r| r.height)
    }

    /// The highest height at which both snapshots have the same block; `None` if they have none in common. Works for
    /// snapshots that are not current any more.
    pub fn common_height(&self, other: &Self) -> Option<u32> {
        if self.start_height() != other.start_height() {
            return None;
        }
        // The same block has the same ancestors, so what is common is a prefix.
        let common = self.table.partition_point(|r| {
            let index = (r.height - self.start_height()) as usize;
            other.table.get(index).is_some_and(|o| o.header == r.header)
        });
        common.checked_sub(1).and_then(|i| self.table.get(i)).map(|r| r.height)
    }

    /// The given rows, one slice per segment, in order. Mapping, checking and copying of counts happens as the iterator
    /// advances; it costs a few bytes per row.
    ///
    /// An item is [`Outdated`](StoreError::Outdated) when a rollback was noticed on the way, and
    /// [`Corrupt`](StoreError::Corrupt) for files that are shorter than the block records say or whose output counts
    /// make no sense. An error is the last item.
    ///
    /// # Errors
    /// [`NoSuchRows`](StoreError::NoSuchRows) for rows beyond [`rows`](Self::rows).
    pub fn segments(
        &self,
        rows: Range<u64>,
    ) -> Result<impl Iterator<Item = Result<SegmentSlice, StoreError>> + '_, StoreError> {
        if rows.end > self.rows() {
            return Err(StoreError::NoSuchRows { start: rows.start, end: rows.end, rows: self.rows() });
        }
        let mut parts = self.shared.layout.parts(rows);
        let mut failed = false;
        Ok(std::iter::from_fn(move || {
            let part = parts.next().filter(|_| !failed)?;
            let slice = self.shared.slice(part).map_err(|error| match self.is_current() {
                Ok(false) => StoreError::Outdated(self.shared.dir.clone()),
                _ => error,
            });
            failed = slice.is_err();
            Some(slice)
        }))
    }

    fn at(&self, index: usize) -> Option<BlockRecord> {
        let prev: Option<&Record> = index.checked_sub(1).and_then(|i| self.table.get(i));
        self.table.get(index).map(|r| BlockRecord::new(r, prev))
    }
}
