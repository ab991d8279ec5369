//! Which block a transaction number belongs to: cumulative counts, in memory.

use std::ops::Range;
use std::sync::Arc;

/// Blocks per shared piece.
const CHUNK: usize = 1024;

/// Number of transactions up to and including each block, from the start height on. A clone shares all but what changes
/// later: 8 bytes per block, once.
#[derive(Clone, Debug)]
pub(super) struct Heights {
    start: u32,
    /// All but the last have [`CHUNK`] entries, none is empty.
    chunks: Vec<Arc<Vec<u64>>>,
}

impl Heights {
    pub(super) fn new(start: u32) -> Self {
        Self { start, chunks: vec![] }
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// Number of transactions.
    pub(super) fn total(&self) -> u64 {
        self.chunks.last().and_then(|last| last.last()).copied().unwrap_or(0)
    }

    /// Height of the last block.
    pub(super) fn last(&self) -> Option<u32> {
        self.len().checked_sub(1).map(|last| self.start + last as u32)
    }

    /// Height of the block that comes next.
    pub(super) fn next(&self) -> u32 {
        self.start.saturating_add(self.len() as u32)
    }

    /// Adds a block; `end` is the number of transactions up to and including it.
    pub(super) fn push(&mut self, end: u64) {
        match self.chunks.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => Arc::make_mut(last).push(end),
            None => self.chunks.push(Arc::new(vec![end])),
        }
    }

    /// Keeps the first `len` blocks.
    pub(super) fn truncate(&mut self, len: usize) {
        self.chunks.truncate(len.div_ceil(CHUNK));
        let keep = len - self.chunks.len().saturating_sub(1) * CHUNK;
        if let Some(last) = self.chunks.last_mut().filter(|last| last.len() > keep) {
            Arc::make_mut(last).truncate(keep);
        }
    }

    /// Numbers of the transactions of the block at a height.
    pub(super) fn numbers(&self, height: u32) -> Option<Range<u64>> {
        let index = height.checked_sub(self.start)? as usize;
        let end = self.get(index)?;
        let start = index.checked_sub(1).and_then(|before| self.get(before)).unwrap_or(0);
        Some(start..end)
    }

    /// Height and position in the block of a transaction.
    pub(super) fn position(&self, number: u64) -> Option<(u32, u32)> {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|end| *end <= number));
        let within = self.chunks.get(chunk)?.partition_point(|end| *end <= number);
        let height = self.start + (chunk * CHUNK + within) as u32;
        let numbers = self.numbers(height)?;
        Some((height, (number - numbers.start) as u32))
    }

    /// In words, for errors.
    pub(super) fn describe(&self) -> String {
        match self.last() {
            Some(last) => format!("covers heights {} to {last}", self.start),
            None => format!("is empty and starts at height {}", self.start),
        }
    }

    fn get(&self, index: usize) -> Option<u64> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_block_of_every_number_and_shares_what_it_can() {
        let mut heights = Heights::new(7);
        let mut plain = vec![];
        let mut total = 0;
        for block in 0..2500_u64 {
            let count = 1 + block % 3;
            plain.extend((0..count).map(|position| (7 + block as u32, position as u32)));
            total += count;
            heights.push(total);
        }
        let before = heights.clone();
        assert_eq!((heights.len(), heights.total(), heights.last()), (2500, plain.len() as u64, Some(2506)));
        for (number, expected) in (0..).zip(&plain) {
            assert_eq!(heights.position(number), Some(*expected));
        }
        assert_eq!(heights.position(total), None);
        assert_eq!((heights.numbers(6), heights.numbers(7), heights.numbers(2507)), (None, Some(0..1), None));
        for len in [2500, 2049, 2048, 2047, 1024, 1, 0] {
            heights.truncate(len);
            assert_eq!(heights.len(), len);
            assert_eq!(heights.next(), 7 + len as u32);
            let end = before.numbers(6 + len as u32).map_or(0, |numbers| numbers.end);
            assert_eq!(heights.total(), end);
        }
        assert_eq!(before.len(), 2500);
    }
}
