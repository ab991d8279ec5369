//! The script-hash index: which transactions pay to a script or spend from it, and where each transaction is.
//!
//! Its rows lie in an embedded store, `fjall`, which this module alone knows of, and those of transactions in files beside
//! it; `docs/index-format.md` describes both.
//! There is one [`AddressIndexWriter`] per directory, in all processes together, and any number of [`AddressReader`]s in
//! its process. A reader gives [`AddressView`]s: the index as it was after one block, whatever is appended or taken back
//! meanwhile.
//!
//! # Numbers and truncated hashes
//!
//! Transactions are numbered through the whole index, in chain order, and rows refer to these numbers. Heights come from
//! a table of cumulative counts in memory.
//!
//! - Under the first 8 bytes of a txid stand the numbers of all transactions whose ids begin so. Each is compared in
//!   full before it counts, so ids made to collide cost time but give no wrong answer.
//! - History rows carry the first 16 bytes of the script hash. Two scripts with the same 16 bytes can only come from
//!   2^64 hashes by somebody who makes both (2^128 to hit a script of somebody else), and then each shows the other's
//!   history. Who must exclude even that compares the script in the transactions, which [`AddressView::location`] finds.
//!
//! # Transactions that come twice
//!
//! Before BIP30, two coinbases came twice, and the second put the first out of the set of unspent outputs. The later one
//! counts: in histories, balances and positions. The earlier one keeps its number and its place in its block.

mod codec;
mod entries;
mod error;
mod heights;
mod params;
mod pending;
mod reader;
mod script_hash;
mod tables;
#[cfg(test)]
mod tests;
mod transactions;
mod undo;
mod view;
mod writer;

pub use entries::BlockEntries;
pub use error::AddressError;
pub use params::{ADDRESS_FORMAT_VERSION, AddressParams};
pub use reader::AddressReader;
pub use script_hash::{ParseScriptHashError, ScriptHash, is_unspendable};
pub use view::{
    AddressBlock, AddressView, Balance, HistoryEntry, Spender, TxLocation, TxPosition, UnspentOutput,
};
pub use writer::{AddressIndexWriter, DEFAULT_CACHE, TOUCHED_BLOCKS};

/// Where a script-hash index lies inside the directory of the tweak index of the same chain.
pub const ADDRESS_DIR: &str = "address";

/// Key of the index's description.
const DESCRIPTION: &[u8] = b"description";

/// Key of the generation of the files with the transactions: a number of 8 bytes, missing while it is 0.
const GENERATION: &[u8] = b"generation";

/// Where these files lie inside the index's directory.
const TRANSACTIONS_DIR: &str = "transactions";
