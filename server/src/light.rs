//! What a block holds for wallets that keep their keys and scan by themselves: the same for all interfaces.

use std::sync::Arc;

use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, OutPoint, Txid};
use peregrine_index::store::{SegmentSlice, StoreError, TweakReader};
use peregrine_scanner::tweak::taproot_key;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::node::{Explorer, NodeError, Readiness, Result};

/// Reorganisations in the middle of one answer that are put up with.
const TRIES: u32 = 10;

/// A transaction that may hold a silent payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) txid: Txid,
    /// Its place in the block.
    pub(crate) position: u32,
    /// The tweak as a compressed key.
    pub(crate) tweak: [u8; 33],
    /// The first 8 bytes of the x-only key of each taproot output.
    pub(crate) outputs: Vec<[u8; 8]>,
    /// Value of the largest taproot output, in satoshi.
    pub(crate) max_value: u64,
}

/// A block's rows, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SilentBlock {
    pub(crate) height: u32,
    pub(crate) hash: BlockHash,
    pub(crate) rows: Vec<Row>,
}

/// A taproot output of an eligible transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Utxo {
    pub(crate) outpoint: OutPoint,
    pub(crate) value: u64,
    pub(crate) key: [u8; 32],
    /// In a block.
    pub(crate) spent: bool,
}

/// What transactions are left out. All outputs of one that stays stay with it, and one of which nothing is left goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Those whose largest taproot output has less, in satoshi.
    pub(crate) dust: u64,
    /// Those whose taproot outputs are all spent in blocks.
    pub(crate) spent: bool,
}

/// The rows of blocks, read from the tweak index.
pub struct Blocks {
    node: Arc<dyn Explorer>,
    reader: TweakReader,
    known: Cache<BlockHash, Arc<SilentBlock>, Rows>,
}

/// Weighs blocks by their rows.
#[derive(Clone, Debug)]
struct Rows;

impl Weighter<BlockHash, Arc<SilentBlock>> for Rows {
    fn weight(&self, _: &BlockHash, block: &Arc<SilentBlock>) -> u64 {
        100 + block.rows.iter().map(|row| 120 + 8 * row.outputs.len() as u64).sum::<u64>()
    }
}

fn failed(error: &StoreError) -> NodeError {
    NodeError::Internal(error.to_string())
}

impl Blocks {
    /// With so many bytes of memory.
    pub fn new(node: Arc<dyn Explorer>, reader: TweakReader, bytes: u64) -> Self {
        Self { node, reader, known: Cache::with_weighter((bytes / 100_000 + 1) as usize, bytes, Rows) }
    }

    /// Where the index lies.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.reader.dir()
    }

    /// First height and last height of the index.
    pub(crate) fn heights(&self) -> Result<(u32, Option<u32>)> {
        let snapshot = self.reader.snapshot().map_err(|error| failed(&error))?;
        Ok((snapshot.start_height(), snapshot.heights().map(|heights| *heights.end())))
    }

    /// The block at a height of the best chain, as the server tells it elsewhere.
    pub(crate) fn at(&self, height: u32) -> Result<Arc<SilentBlock>> {
        for _ in 0..TRIES {
            let hash = self.node.header(height)?.block_hash();
            if let Some(block) = self.known.get(&hash) {
                return Ok(block);
            }
            match self.read(height) {
                Ok(block) if block.hash == hash => {
                    let block = Arc::new(block);
                    self.known.insert(hash, Arc::clone(&block));
                    return Ok(block);
                }
                // The one or the other is a block behind.
                Ok(_) | Err(StoreError::Outdated(_)) => std::thread::yield_now(),
                Err(StoreError::NoSuchHeight { .. }) => {
                    let (start, _) = self.heights()?;
                    if height < start {
                        return Err(NodeError::NotFound(format!("the index begins at height {start}")));
                    }
                    return Err(match self.node.readiness() {
                        Readiness::Ready => NodeError::Busy("the block is being indexed".into()),
                        readiness => NodeError::Indexing(readiness),
                    });
                }
                Err(error) => return Err(failed(&error)),
            }
        }
        Err(NodeError::Busy("the chain is changing".into()))
    }

    fn read(&self, height: u32) -> std::result::Result<SilentBlock, StoreError> {
        let snapshot = self.reader.snapshot()?;
        let record = snapshot.block(height)?;
        let mut rows = Vec::with_capacity((record.rows.end - record.rows.start) as usize);
        for slice in snapshot.segments(record.rows.clone())? {
            add_rows(&slice?, &mut rows);
        }
        if !snapshot.is_current()? {
            return Err(StoreError::Outdated(self.reader.dir().to_path_buf()));
        }
        Ok(SilentBlock { height, hash: record.hash, rows })
    }
}

fn add_rows(slice: &SegmentSlice, rows: &mut Vec<Row>) {
    for (number, (point, txid)) in slice.points().iter().zip(slice.txids()).enumerate() {
        let meta = slice.meta(number).unwrap_or_default();
        rows.push(Row {
            txid: Txid::from_byte_array(*txid),
            position: meta.position,
            tweak: compressed(point),
            outputs: slice.outputs_of(number).to_vec(),
            max_value: meta.max_value,
        });
    }
}

/// A point of the index (x then y, little-endian) as a compressed key.
fn compressed(point: &[u8; 64]) -> [u8; 33] {
    std::array::from_fn(|i| if i == 0 { 2 + (point[32] & 1) } else { point[32 - i] })
}

impl Blocks {
    /// The taproot outputs of each row of a block.
    pub(crate) fn utxos(&self, block: &SilentBlock) -> Result<Vec<Vec<Utxo>>> {
        let whole = self.node.block(block.hash)?;
        let of_row = |row: &Row| {
            let transaction = whole.block.txdata.get(row.position as usize);
            let transaction = transaction.filter(|transaction| transaction.compute_txid() == row.txid);
            let different = || NodeError::Internal("the index and the node have different blocks".into());
            let mut utxos = Vec::new();
            for (vout, output) in (0..).zip(&transaction.ok_or_else(different)?.output) {
                let Some(key) = taproot_key(&output.script_pubkey) else { continue };
                let outpoint = OutPoint { txid: row.txid, vout };
                let spent = self.node.spender(outpoint)?.is_some_and(|spender| spender.height.is_some());
                utxos.push(Utxo { outpoint, value: output.value.to_sat(), key, spent });
            }
            Ok(utxos)
        };
        block.rows.iter().map(of_row).collect()
    }

    /// The rows that a filter leaves, by number.
    pub(crate) fn left(&self, block: &SilentBlock, filter: Filter) -> Result<Vec<usize>> {
        let rows = &block.rows;
        let mut left: Vec<usize> =
            (0..rows.len()).filter(|number| rows[*number].max_value >= filter.dust).collect();
        if filter.spent {
            let utxos = self.utxos(block)?;
            left.retain(|number| utxos[*number].iter().any(|utxo| !utxo.spent));
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_compressed_as_libsecp256k1_does() {
        use secp256k1::{PublicKey, SecretKey};
        for number in 1..50u8 {
            let secret = SecretKey::from_secret_bytes([number; 32]).unwrap();
            let tweak = peregrine_scanner::Tweak(PublicKey::from_secret_key(&secret));
            assert_eq!(compressed(&tweak.to_row()), tweak.serialize());
        }
    }
}
