//! The rows of one block, as the index stores them.

use bitcoin::hashes::Hash;
use bitcoin::{Transaction, TxOut};
use peregrine_scanner::Tweak;
use peregrine_scanner::batch::{TweakMethod, transaction_tweaks};
use peregrine_scanner::tweak::taproot_key;

use crate::source::BlockWithPrevouts;

/// One block's contribution to the tweak index, column by column.
///
/// Row `i` is the `i`-th eligible transaction of the block in block order. All vectors except [`outputs`](Self::outputs)
/// have one entry per row; row `i` owns `output_counts[i]` consecutive entries of `outputs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRows {
    /// The tweak point `T = input_hash·A`: affine x then y, 32 bytes each, little-endian.
    pub points: Vec<[u8; 64]>,
    /// Transaction ids in internal byte order (the order in which they are hashed, not the displayed one).
    pub txids: Vec<[u8; 32]>,
    /// Position of the transaction in the block and its largest taproot output.
    pub meta: Vec<RowMeta>,
    /// How many taproot outputs each row has; at least one.
    pub output_counts: Vec<u32>,
    /// First 8 bytes of the x-only key of each taproot output, in output order.
    pub outputs: Vec<[u8; 8]>,
}

/// What filters need to know of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowMeta {
    /// Position of the transaction in its block; the coinbase is 0.
    pub position: u32,
    /// Value of the largest taproot output, in satoshi.
    pub max_value: u64,
}

impl BlockRows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether the block has no eligible transaction.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

impl BlockRows {
    /// The rows of a block: its eligible transactions in block order, each with its tweak and all its taproot outputs.
    /// Nothing is left out for its value or because it is spent already.
    pub fn of_block(block: &BlockWithPrevouts, method: TweakMethod) -> Self {
        let transactions: Vec<(&Transaction, &[TxOut])> =
            block.block.txdata.iter().zip(block.prevouts.iter().map(Vec::as_slice)).collect();
        let mut rows = Self::default();
        for (position, tweak) in transaction_tweaks(method, &transactions) {
            rows.push(position as u32, transactions[position].0, &tweak);
        }
        rows
    }

    fn push(&mut self, position: u32, transaction: &Transaction, tweak: &Tweak) {
        let before = self.outputs.len();
        let mut max_value = 0;
        for (prefix, value) in taproot_outputs(transaction) {
            self.outputs.push(prefix);
            max_value = max_value.max(value);
        }
        self.points.push(tweak.to_row());
        self.txids.push(transaction.compute_txid().to_byte_array());
        self.meta.push(RowMeta { position, max_value });
        self.output_counts.push((self.outputs.len() - before) as u32);
    }
}

/// What the index keeps of each taproot output: the first 8 bytes of its x-only key; and its value in satoshi.
pub(crate) fn taproot_outputs(transaction: &Transaction) -> impl Iterator<Item = ([u8; 8], u64)> + '_ {
    transaction.output.iter().filter_map(|output| {
        let key = taproot_key(&output.script_pubkey)?;
        Some((*key.first_chunk()?, output.value.to_sat()))
    })
}
