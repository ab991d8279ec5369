//! Deterministic chains and a plain in-memory model to compare the index with.
// Each test binary uses its own part of this module.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::Path;

use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, CompactTarget, TxMerkleNode};
use peregrine_index::rows::{BlockRows, RowMeta};
use peregrine_index::store::{IndexParams, Snapshot, TweakReader, VerifyReport, verify};

/// Height of the first block of test indexes.
pub const START: u32 = 100;

/// SplitMix64: enough randomness for test data, the same on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// Parameters of a test index with segments of `2^bits` rows.
pub fn params(bits: u32) -> IndexParams {
    IndexParams {
        network_magic: *b"test",
        genesis: BlockHash::from_byte_array([7; 32]),
        start_height: START,
        segment_bits: bits,
    }
}

/// A block on top of `prev`, made from a seed. Every third or so has no rows.
pub fn block(prev: BlockHash, seed: u64, max_rows: u64) -> Block {
    let mut rng = Rng(seed);
    let header = Header {
        version: Version::from_consensus(rng.next() as i32),
        prev_blockhash: prev,
        merkle_root: TxMerkleNode::from_byte_array(rng.bytes()),
        time: 1_600_000_000 + rng.below(1000) as u32,
        bits: CompactTarget::from_consensus(rng.next() as u32),
        nonce: rng.next() as u32,
    };
    let mut rows = BlockRows::default();
    let count = if rng.below(3) == 0 { 0 } else { rng.below(max_rows + 1) };
    for position in 0..count {
        rows.points.push(rng.bytes());
        rows.txids.push(rng.bytes());
        rows.meta.push(RowMeta { position: position as u32 + 1, max_value: rng.next() });
        let outputs = 1 + rng.below(4) as u32;
        rows.output_counts.push(outputs);
        rows.outputs.extend((0..outputs).map(|_| rng.bytes::<8>()));
    }
    Block { header, rows }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    pub header: Header,
    pub rows: BlockRows,
}

/// What the index should hold: block `i` has height `START + i`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model(pub Vec<Block>);

impl Model {
    pub fn tip_hash(&self) -> BlockHash {
        self.0.last().map_or(BlockHash::from_byte_array([1; 32]), |b| b.header.block_hash())
    }

    pub fn next_height(&self) -> u32 {
        START + self.0.len() as u32
    }

    /// Makes the next block, without adding it.
    pub fn next(&self, seed: u64, max_rows: u64) -> Block {
        block(self.tip_hash(), seed, max_rows)
    }

    pub fn prefix(&self, blocks: usize) -> Self {
        Self(self.0[..blocks].to_vec())
    }

    pub fn rows(&self) -> u64 {
        self.0.iter().map(|b| b.rows.len() as u64).sum()
    }

    /// For each segment in order, how many rows and outputs it holds.
    pub fn segments(&self, bits: u32) -> Vec<(u64, u64)> {
        let mut segments = Vec::new();
        for (row, outputs) in self.0.iter().flat_map(|b| &b.rows.output_counts).enumerate() {
            if row % (1 << bits) == 0 {
                segments.push((0, 0));
            }
            let last = segments.last_mut().unwrap();
            last.0 += 1;
            last.1 += u64::from(*outputs);
        }
        segments
    }
}

/// Reads all rows of a snapshot back into blocks.
pub fn read_back(snapshot: &Snapshot) -> Result<Model, peregrine_index::store::StoreError> {
    let mut all = BlockRows::default();
    for slice in snapshot.segments(0..snapshot.rows())? {
        let slice = slice?;
        assert_eq!(slice.first_row(), all.len() as u64);
        assert_eq!(slice.points().len(), slice.len());
        let mut before = slice.outputs_base();
        let mut outputs = slice.outputs().iter();
        for row in 0..slice.len() {
            let end = slice.output_ends()[row];
            assert!(outputs.by_ref().take((end - before) as usize).eq(slice.outputs_of(row)));
            all.output_counts.push(end - before);
            all.meta.push(slice.meta(row).unwrap());
            before = end;
        }
        assert!(outputs.next().is_none());
        all.outputs.extend(slice.outputs());
        all.points.extend(slice.points());
        all.txids.extend(slice.txids());
    }
    let mut model = Model::default();
    for height in snapshot.heights().into_iter().flatten() {
        let record = snapshot.block(height)?;
        assert_eq!((record.height, record.hash), (height, record.header.block_hash()));
        let range = record.rows.start as usize..record.rows.end as usize;
        let outputs = record.outputs.start as usize..record.outputs.end as usize;
        model.0.push(Block {
            header: record.header,
            rows: BlockRows {
                points: all.points[range.clone()].to_vec(),
                txids: all.txids[range.clone()].to_vec(),
                meta: all.meta[range.clone()].to_vec(),
                output_counts: all.output_counts[range].to_vec(),
                outputs: all.outputs.get(outputs).map(<[_]>::to_vec).unwrap_or_default(),
            },
        });
    }
    Ok(model)
}

/// Whether the index in `dir` holds exactly the model, as a new reader sees it.
#[track_caller]
pub fn assert_holds(dir: &Path, model: &Model) {
    let snapshot = TweakReader::open(dir).unwrap().snapshot().unwrap();
    assert!(read_back(&snapshot).unwrap() == *model, "the index differs from the model");
    assert!(snapshot.is_current().unwrap());
    let tip = snapshot.tip().map(|t| t.hash);
    assert_eq!(tip, model.0.last().map(|b| b.header.block_hash()));
}

#[track_caller]
pub fn assert_verifies(dir: &Path) -> VerifyReport {
    let report = verify(dir, |_| {});
    assert!(report.is_ok(), "{:#?}", report.problems);
    report
}

/// Copies a directory and those in it.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// All files below a directory, sorted.
pub fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}
