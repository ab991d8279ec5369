//! What every wire protocol asks: one facade over chain, index, mempool, scanner and the node that broadcasts.
//!
//! - [`Node`]: chain, histories, transactions, fees, broadcast, and an ordered stream of [`Notice`]s.
//! - [`Explorer`]: what only explorers ask.
//! - [`SilentPayments`]: scans for a wallet's keys and follows the chain for them.
//! - [`NodeError`]: errors by their meaning; each protocol has its own codes for them.
//!
//! Calls may block on a disk or on the node, so that protocols make them where blocking is allowed.

mod error;
mod explorer;
mod history;
mod silent;

use std::sync::Arc;

use bitcoin::block::Header;
use bitcoin::{Network, OutPoint, TxMerkleNode, Txid};
use tokio::sync::broadcast;

pub use error::{NodeError, Readiness};
pub use explorer::{BlockSummary, Explorer, MempoolSummary, ScriptStats, SpentBy, TxPlace};
pub use history::{ConfirmedTx, History, MempoolTx};
pub use peregrine_index::address::ScriptHash;
pub use peregrine_index::mempool::RecentTx;
pub use peregrine_index::source::MempoolInfo;
pub use silent::{
    Notification, ScanRequest, SilentPayment, SilentPayments, Start, Subscription, address, address_network,
};

/// What a call to the node gives.
pub type Result<T> = std::result::Result<T, NodeError>;

/// The best block, as far as the index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainTip {
    /// Its height.
    pub height: u32,
    /// Its header.
    pub header: Header,
}

/// Proof that a header belongs to a chain of headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderProof {
    /// The hashes beside the way to the root, from the leaf on, in the order in which they are hashed.
    pub branch: Vec<[u8; 32]>,
    /// The root over all header hashes up to the checkpoint, in the order in which it was hashed.
    pub root: [u8; 32],
}

/// Where a transaction is in its block, and the proof for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxProof {
    /// The block's height.
    pub height: u32,
    /// Its place in the block; the coinbase has 0.
    pub position: u32,
    /// The hashes beside the way to the merkle root, from the leaf on.
    pub branch: Vec<TxMerkleNode>,
}

/// An output that nobody has spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unspent {
    /// Which output.
    pub outpoint: OutPoint,
    /// Height of the block it is in; 0 in the mempool.
    pub height: u32,
    /// Its amount, in satoshi.
    pub value: u64,
}

/// What a script owns, in satoshi.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// In blocks.
    pub confirmed: u64,
    /// What the mempool adds or takes away.
    pub unconfirmed: i64,
}

/// Who made an output and who spent it. Heights are 0, or −1 with an unconfirmed parent, in the mempool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutpointStatus {
    /// Height of the transaction that has the output.
    pub funder_height: Option<i32>,
    /// The transaction that spends it, and its height.
    pub spender: Option<(Txid, i32)>,
}

/// How careful a fee estimate is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeeMode {
    /// As the node thinks best.
    #[default]
    Default,
    /// Looks further back.
    Conservative,
    /// Follows the market.
    Economical,
}

/// A range of the mempool's fee histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeeBin {
    /// The lowest rate in it, in satoshi per virtual byte.
    pub rate: f64,
    /// Virtual bytes of the transactions in it.
    pub vsize: u64,
}

/// What happened to a package.
#[derive(Clone, Debug, PartialEq)]
pub struct PackageResult {
    /// Whether all of it was accepted.
    pub success: bool,
    /// Which transactions were not, and why.
    pub errors: Vec<(Txid, String)>,
    /// The node's whole answer.
    pub raw: serde_json::Value,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A block was added and everything about it can be asked.
    BlockConnected {
        /// Its height.
        height: u32,
        /// Its header.
        header: Header,
    },
    /// The tip was taken off the chain.
    BlockDisconnected {
        /// The height that it had.
        height: u32,
    },
    /// The histories of these scripts are now different.
    ScriptHashesTouched(Arc<[ScriptHash]>),
    /// The history of any script may be different: so many blocks came or went that nobody kept count.
    EverythingTouched,
    /// Transactions came into the mempool or left it.
    MempoolChanged,
}

/// An event in its place among all events.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Counts up by one.
    pub sequence: u64,
    /// What happened.
    pub event: Event,
}

/// Chain, index, mempool and broadcaster in one.
///
/// An event is sent once its consequences can be asked: after [`Event::BlockConnected`], the header, its proof, the
/// block's transactions and their histories are there. Reorganisations disconnect from the tip down, then connect. The tip
/// doesn't change without an event, not even while the index is behind.
pub trait Node: Send + Sync {
    /// Which chain.
    fn network(&self) -> Network;

    /// Whether everything can be asked. Header methods may work before that.
    fn readiness(&self) -> Readiness;

    /// The best block.
    fn tip(&self) -> Result<ChainTip>;

    /// The header at a height of the best chain.
    fn header(&self, height: u32) -> Result<Header>;

    /// Up to `count` headers from a height on; fewer, or none, where the chain ends.
    fn headers(&self, start: u32, count: u32) -> Result<Vec<Header>>;

    /// Proof that the header at `height` is among the headers 0 to `checkpoint`.
    fn header_proof(&self, height: u32, checkpoint: u32) -> Result<HeaderProof>;

    /// All transactions of a script. [`NodeError::TooLarge`] if there are more than the server gives.
    fn history(&self, script: ScriptHash) -> Result<History>;

    /// Outputs of a script that nobody has spent, not even in the mempool; by height and place in the block, those of
    /// the mempool last.
    fn unspent(&self, script: ScriptHash) -> Result<Vec<Unspent>>;

    /// What a script owns.
    fn balance(&self, script: ScriptHash) -> Result<Balance>;

    /// Who made an output and who spent it.
    fn outpoint(&self, outpoint: OutPoint) -> Result<OutpointStatus>;

    /// A transaction as it is on the wire, from a block or the mempool.
    fn transaction(&self, txid: Txid) -> Result<Vec<u8>>;

    /// A transaction as `getrawtransaction` of Bitcoin Core shows it.
    fn transaction_verbose(&self, txid: Txid) -> Result<serde_json::Value>;

    /// Where a confirmed transaction is. `height` is a hint of the client; a transaction that isn't in the best chain's
    /// block of that height is [`NodeError::NotFound`]. `None` asks for whatever block it is in.
    fn transaction_proof(&self, txid: Txid, height: Option<u32>) -> Result<TxProof>;

    /// The transaction at a place of a block, with the proof for it if `proof` is set.
    fn transaction_at(&self, height: u32, position: u32, proof: bool) -> Result<(Txid, Vec<TxMerkleNode>)>;

    /// What confirms within `target` blocks, in satoshi per 1000 virtual bytes; `None` if nobody knows.
    fn estimate_fee(&self, target: u32, mode: FeeMode) -> Result<Option<u64>>;

    /// What the mempool asks for.
    fn mempool_info(&self) -> Result<MempoolInfo>;

    /// The least that is relayed, in satoshi per 1000 virtual bytes.
    fn relay_fee(&self) -> Result<u64> {
        Ok(self.mempool_info()?.min_relay_fee)
    }

    /// The mempool by fee rate, strictly falling.
    fn fee_histogram(&self) -> Result<Vec<FeeBin>>;

    /// The last transactions that came into the mempool, newest first.
    fn recent(&self) -> Result<Vec<RecentTx>>;

    /// Sends a transaction. [`NodeError::Rejected`] has the node's reason.
    fn broadcast(&self, raw: &[u8]) -> Result<Txid>;

    /// Sends transactions that depend on each other, parents first. [`NodeError::Rejected`] if the package as such can't
    /// be accepted.
    fn broadcast_package(&self, raws: &[Vec<u8>]) -> Result<PackageResult>;

    /// What the mempool would say to these transactions, as `testmempoolaccept` of Bitcoin Core shows it.
    fn test_accept(&self, raws: &[Vec<u8>]) -> Result<serde_json::Value>;

    /// Everything that happens from now on, in order. A receiver that falls behind is told so by the channel and must
    /// assume that everything changed.
    fn events(&self) -> broadcast::Receiver<Notice>;
}
