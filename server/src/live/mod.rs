//! The chain as it is now: [`Node`](crate::node::Node) over the indexes, the mempool and Bitcoin Core.
//!
//! - `state`: what is published: the last indexed block, all headers, the mempool; changed by one thread in one step;
//! - `chain`: that thread: brings blocks, mempool and silent payments to the node's state and sends events;
//! - `headers`, `merkle`: proofs;
//! - `node`, `explorer`: answers; `cache`: what was read for them and may be asked for again;
//! - `work`: how much of the indexing is done.
//!
//! # Order
//!
//! A step takes a committed state of the script-hash index that the tweak index has reached, too, and the mempool that
//! belongs to it, publishes both at once, tells the silent-payment service, and then sends the events. So whoever hears of
//! something can ask for it, and a transaction is never seen neither in a block nor in the mempool while it moves from one
//! to the other.

mod cache;
mod chain;
mod explorer;
mod headers;
mod merkle;
mod node;
mod state;
mod work;

pub use chain::{Failure, Running, Setup, start};
pub use state::LiveNode;
