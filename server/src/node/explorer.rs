//! What block explorers ask beyond what wallets do.

use std::sync::Arc;

use bitcoin::block::Header;
use bitcoin::{BlockHash, OutPoint, Transaction, TxOut, Txid};
use peregrine_index::source::BlockWithPrevouts;

use super::{Node, PackageResult, Result, ScriptHash};

/// A block of the best chain, without its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSummary {
    /// Its height.
    pub height: u32,
    /// Its hash.
    pub hash: BlockHash,
    /// Its header.
    pub header: Header,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes when serialized, with witnesses.
    pub size: u32,
}

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxPlace {
    /// In a block of the best chain.
    Block {
        /// The block's height.
        height: u32,
        /// Its place there; the coinbase has 0.
        position: u32,
    },
    /// In the mempool.
    Mempool,
}

/// The input that spends an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentBy {
    /// Its transaction.
    pub txid: Txid,
    /// Which of its inputs.
    pub vin: u32,
    /// Height of its block; `None` in the mempool.
    pub height: Option<u32>,
}

/// Sums over the outputs of a script, values in satoshi.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScriptStats {
    /// Transactions that pay to the script or spend from it.
    pub transactions: u64,
    /// Number of outputs.
    pub funded_outputs: u64,
    /// Their values.
    pub funded: u64,
    /// Number of those that are spent.
    pub spent_outputs: u64,
    /// Their values.
    pub spent: u64,
}

/// A transaction of the mempool, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolSummary {
    /// Its id.
    pub txid: Txid,
    /// What it pays, in satoshi.
    pub fee: u64,
    /// Virtual bytes.
    pub vsize: u64,
    /// What its outputs are worth together, in satoshi.
    pub value: u64,
}

/// A [`Node`] that answers explorers, too.
pub trait Explorer: Node {
    /// The height of a block of the best chain; `None` for any other block.
    fn height_of(&self, block: BlockHash) -> Result<Option<u32>>;

    /// A block of the best chain. [`NotFound`](super::NodeError::NotFound) above the tip.
    fn block_summary(&self, height: u32) -> Result<BlockSummary>;

    /// A block of the best chain with the outputs that it spends.
    fn block(&self, hash: BlockHash) -> Result<Arc<BlockWithPrevouts>>;

    /// Ids of the transactions of a block, in order.
    fn txids_of_block(&self, height: u32) -> Result<Vec<Txid>>;

    /// Where a transaction is; `None` if nobody knows it.
    fn place(&self, txid: Txid) -> Result<Option<TxPlace>>;

    /// Who spends an output, in a block or in the mempool.
    fn spender(&self, outpoint: OutPoint) -> Result<Option<SpentBy>>;

    /// The outputs that a transaction of the chain or the mempool spends, in the order of its inputs; none for a coinbase.
    fn prevouts(&self, transaction: &Transaction) -> Result<Vec<TxOut>>;

    /// Sums for a script, in blocks and in the mempool.
    fn script_stats(&self, script: ScriptHash) -> Result<(ScriptStats, ScriptStats)>;

    /// Sends transactions that depend on each other, parents first, with the node's limits for fee rate (BTC per 1000 virtual
    /// bytes) and for what may be burnt (BTC).
    fn submit(
        &self,
        raws: &[Vec<u8>],
        max_fee_rate: Option<f64>,
        max_burn: Option<f64>,
    ) -> Result<PackageResult>;

    /// All transactions of the mempool, in no order.
    fn mempool(&self) -> Result<Vec<MempoolSummary>>;
}
