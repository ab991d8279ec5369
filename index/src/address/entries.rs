//! What one block adds to the script-hash index, before transactions have numbers.

use bitcoin::block::Header;
use bitcoin::consensus::encode::VarInt;
use bitcoin::{OutPoint, Txid};

use super::error::AddressError;
use super::script_hash::{ScriptHash, is_unspendable};
use crate::source::BlockWithPrevouts;

/// One block's contribution to the script-hash index. Made from the block alone, so by any thread and in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEntries {
    pub(super) header: Header,
    /// Bytes of the serialized block.
    pub(super) size: u32,
    pub(super) txids: Vec<Txid>,
    /// Where each transaction begins in the serialized block.
    pub(super) offsets: Vec<u32>,
    /// By script, then position, then outputs before inputs.
    pub(super) touches: Vec<Touch>,
}

/// A script occurs in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Touch {
    pub(super) script: ScriptHash,
    /// Of the transaction in the block.
    pub(super) position: u32,
    pub(super) kind: TouchKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TouchKind {
    Funds { vout: u32, value: u64 },
    Spends { vin: u32, outpoint: OutPoint },
}

impl BlockEntries {
    /// The entries of the block at a height.
    ///
    /// All output scripts are listed but those that are provably unspendable ([`is_unspendable`]). The coinbase of the
    /// genesis block, which isn't in the set of unspent outputs either, has a position but no history.
    ///
    /// # Errors
    /// [`BadBlock`](AddressError::BadBlock) when there isn't one prevout per input, or the block is too large to be one.
    pub fn of_block(block: &BlockWithPrevouts, height: u32) -> Result<Self, AddressError> {
        let transactions = &block.block.txdata;
        let bad = |what: String| AddressError::BadBlock { hash: block.block.block_hash(), what };
        if transactions.len() != block.prevouts.len() {
            let lists = block.prevouts.len();
            return Err(bad(format!(
                "{} transactions have {lists} lists of spent outputs",
                transactions.len()
            )));
        }
        let size =
            |bytes: usize| u32::try_from(bytes).map_err(|_| bad(format!("has more than {bytes} bytes")));
        let mut offset = 80 + VarInt(transactions.len() as u64).size();
        let mut entries = Self {
            header: block.block.header,
            size: 0,
            txids: Vec::with_capacity(transactions.len()),
            offsets: Vec::with_capacity(transactions.len()),
            touches: vec![],
        };
        for (position, (transaction, prevouts)) in (0..).zip(transactions.iter().zip(&block.prevouts)) {
            entries.txids.push(transaction.compute_txid());
            entries.offsets.push(size(offset)?);
            offset += transaction.total_size();
            let inputs = if transaction.is_coinbase() { &[] } else { &transaction.input[..] };
            if inputs.len() != prevouts.len() {
                return Err(bad(format!(
                    "transaction {position} has {} inputs, but {} spent outputs came with it",
                    inputs.len(),
                    prevouts.len()
                )));
            }
            if height == 0 {
                continue;
            }
            for (vout, output) in (0..).zip(&transaction.output) {
                if !is_unspendable(&output.script_pubkey) {
                    entries.touches.push(Touch {
                        script: ScriptHash::of(&output.script_pubkey),
                        position,
                        kind: TouchKind::Funds { vout, value: output.value.to_sat() },
                    });
                }
            }
            for (vin, (input, prevout)) in (0..).zip(inputs.iter().zip(prevouts)) {
                if !is_unspendable(&prevout.script_pubkey) {
                    entries.touches.push(Touch {
                        script: ScriptHash::of(&prevout.script_pubkey),
                        position,
                        kind: TouchKind::Spends { vin, outpoint: input.previous_output },
                    });
                }
            }
        }
        entries.size = size(offset)?;
        entries.touches.sort_unstable();
        Ok(entries)
    }

    /// Header of the block.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of transactions.
    pub fn len(&self) -> usize {
        self.txids.len()
    }

    /// Whether there is no transaction at all, which no valid block is.
    pub fn is_empty(&self) -> bool {
        self.txids.is_empty()
    }
}
