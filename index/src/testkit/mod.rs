//! For tests and benches, of this crate and of those above it: a real Bitcoin Core on regtest, and real blocks.

mod fixtures;
mod node;

pub use fixtures::{KnownBlock, KnownTweak, fixtures, mainnet_block_866342};
pub use node::{RpcFailure, TestNode, find_bitcoind};
