//! Where blocks come from.
//!
//! - [`connect`] finds out how to talk to a node and gives a [`NodeSource`]; [`RestSource`] and [`RpcSource`] are the two
//!   ways.
//! - [`Daemon`] asks a node for what isn't a block: mempool, fees, single transactions, broadcasting.
//! - [`Waiter`] repeats a call until the node answers.
//! - [`parse_block`] turns bytes into a checked block, also for chains that don't come from a node.
//!
//! Hashes are [`BlockHash`] values, whose bytes stand in the order in which they are hashed and whose text in the usual
//! reversed one.

mod auth;
mod block;
mod daemon;
mod discover;
mod http;
mod node;
mod rest;
mod rpc;
mod rpc_json;
mod secret;
mod wait;

pub use auth::Credentials;
pub use block::{
    MAX_BLOCK_LEN, MAX_SPENT_LEN, decode_block, decode_spent_outputs, encode_spent_outputs, parse_block,
};
pub use daemon::{CallError, CallResult, Daemon, MempoolInfo, MempoolList};
pub use discover::{LocalNode, default_data_dir, default_rpc_port, find_local_node};
pub use node::{DEFAULT_TIMEOUT, NodeConfig, NodeKind, NodeSource, connect};
pub use rest::RestSource;
pub use rpc::RpcSource;
pub use secret::Secret;
pub use wait::{WaitError, WaitEvent, Waiter};

use bitcoin::block::Header;
use bitcoin::{Block, BlockHash, TxOut};

/// A block together with the outputs that its inputs spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWithPrevouts {
    /// The block, checked: its header hashes to the hash that was asked for and its transactions to the merkle root.
    pub block: Block,
    /// For each transaction of the block in order, the output that each of its inputs spends; empty for the coinbase.
    pub prevouts: Vec<Vec<TxOut>>,
}

/// The best block of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Height of the block; the genesis block has height 0.
    pub height: u32,
    /// Its hash.
    pub hash: BlockHash,
}

/// Why a source did not answer.
///
/// The texts don't say which source it was: whoever shows them puts [`ChainSource::describe`] in front. They never hold a
/// secret.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The node can't answer now but may later: not up yet, warming up, restarting, overloaded. Waiting helps.
    #[error("{0}")]
    Unavailable(String),
    /// The node answers, but refuses until somebody changes something: wrong password, REST switched off, pruned block.
    /// The text says what to change. Waiting helps only after that.
    #[error("{0}")]
    Refused(String),
    /// The node sent something that is not what was asked for: bytes that don't parse, another block, a count that
    /// doesn't match.
    #[error("{0}")]
    Invalid(String),
    /// The node doesn't know the block (any more).
    #[error("block {0} is unknown to the node")]
    UnknownBlock(BlockHash),
}

/// A source of blocks of one chain. Implementations are used by many threads at once.
pub trait ChainSource: Send + Sync {
    /// For people: what this is and where, without secrets, as in `Bitcoin Core REST at 127.0.0.1:8332`.
    fn describe(&self) -> String;

    /// The tip of the best chain.
    fn tip(&self) -> Result<Tip, SourceError>;

    /// Hash of the block at this height of the best chain; `None` above the tip.
    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError>;

    /// Up to `count` headers of the best chain that follow the block `after` (which stands at `after_height`), in order
    /// and each checked to follow the one before. A source may return fewer than `count`, but at least one when there is
    /// one. Empty when `after` is the tip; `None` when `after` isn't on the best chain.
    fn headers_after(
        &self,
        after: BlockHash,
        after_height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError>;

    /// One block with the outputs that it spends.
    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError>;
}

/// How many of `headers`, from the first, follow `after` and each other.
fn link_headers(after: BlockHash, headers: &[Header]) -> usize {
    let mut previous = after;
    headers
        .iter()
        .take_while(|header| {
            let follows = header.prev_blockhash == previous;
            previous = header.block_hash();
            follows
        })
        .count()
}
