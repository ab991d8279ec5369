//! From a chain to a tweak index and to what a scan of it finds.
//!
//! - [`source`]: where blocks come from: a Bitcoin Core node over REST or JSON-RPC.
//! - [`rows`]: what a block adds to the index.
//! - [`store`]: the tweak index on disk, one writer and many readers.
//! - [`address`]: the script-hash index on disk.
//! - [`indexer`]: follows a source and writes the index.
//! - [`mempool`]: transactions that are not in a block yet.
//! - [`scan`]: scans heights of the index and looks up the outputs that were found.
//! - [`synthetic`]: a chain made up from a seed, for the demo and for tests.

pub mod address;
pub mod indexer;
pub mod mempool;
pub mod rows;
pub mod scan;
pub mod source;
pub mod store;
pub mod synthetic;

#[cfg(feature = "testkit")]
pub mod testkit;

pub use rows::{BlockRows, RowMeta};
