//! From a chain to a tweak index: chain sources, the index on disk, and the indexer between them.

pub mod rows;
pub mod source;
#[cfg(feature = "testkit")]
pub mod testkit;
