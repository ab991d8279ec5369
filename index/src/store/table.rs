//! The block records of a snapshot, in memory.

use std::sync::Arc;

use super::record::Record;

/// Records per chunk; adding a block copies at most one chunk, and snapshots share the others.
const CHUNK: usize = 1024;

/// A list of records that is cheap to clone and to extend: 120 bytes per block, shared between snapshots.
///
/// Snapshots keep their records in memory because the file may say something else by the time they are asked: only so
/// can an outdated snapshot still be compared with a new one.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    chunks: Vec<Arc<Vec<Record>>>,
    len: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: usize) -> Option<&Record> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.len.checked_sub(1).and_then(|i| self.get(i))
    }

    pub(super) fn push(&mut self, record: Record) {
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.push(Arc::new(Vec::new()));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            Arc::make_mut(chunk).push(record);
            self.len += 1;
        }
    }

    /// Keeps the first `len` records.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        self.chunks.truncate(len.div_ceil(CHUNK));
        if let Some(chunk) = self.chunks.last_mut()
            && !len.is_multiple_of(CHUNK)
        {
            Arc::make_mut(chunk).truncate(len % CHUNK);
        }
        self.len = len;
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.chunks.iter().flat_map(|c| c.iter())
    }

    /// First index at which `pred` is false, for a `pred` that is true up to some index and false from there on.
    pub(super) fn partition_point(&self, pred: impl Fn(&Record) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(&pred) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u32) -> Record {
        Record { header: [0; 80], height: n, row_end: 0, output_end: 0, rows_checksum: [0; 16] }
    }

    #[test]
    fn behaves_like_a_vector_and_leaves_clones_alone() {
        let mut table = Table::default();
        let mut model = Vec::new();
        for (step, len) in [0, 1, 1023, 1024, 1025, 3000, 2048, 2047, 5, 0, 2049].into_iter().enumerate() {
            let (before, model_before) = (table.clone(), model.clone());
            table.truncate(len);
            model.truncate(len);
            while table.len() < len {
                let r = record((table.len() + 10_000 * step) as u32);
                table.push(r);
                model.push(r);
            }
            assert!(table.iter().eq(&model));
            assert!(before.iter().eq(&model_before));
            assert_eq!(table.last(), model.last());
            assert_eq!(table.get(len), None);
        }
        let mut table = Table::default();
        (0..2500).for_each(|n| table.push(record(n)));
        for n in [0, 1, 1024, 2499, 2500] {
            assert_eq!(table.partition_point(|r| r.height < n), n as usize);
        }
    }
}
