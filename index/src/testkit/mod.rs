//! For tests, of this crate and of those above it: a real Bitcoin Core on regtest.

mod node;

pub use node::{RpcFailure, TestNode, find_bitcoind};
