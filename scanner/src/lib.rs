//! BIP352 silent payments: keys, labels, addresses, eligibility, tweaks, and the scan engine.
//!
//! The crate knows transactions and points, but neither storage nor network. It has three layers:
//!
//! - **The protocol** as BIP352 (version 1.1.1) writes it: [`keys`], [`address`], [`input`] (which inputs count),
//!   [`tweak`] (from a transaction to its tweak; [`batch`] for many at once), [`receive`] (every output of one transaction that belongs to a key)
//!   and [`send`] (the other side).
//! - **Backends** ([`backend`]) that answer one question for many rows at once: could the first output (k = 0) of this
//!   transaction belong to one of these keys? [`backend::reference`] is plain code over libsecp256k1; every other
//!   backend must give what it gives.
//! - **The engine** ([`engine`]) that cuts rows into parts, spreads them over cores and devices and confirms what a backend finds.

pub mod address;
pub mod backend;
pub mod batch;
pub mod engine;
mod hash;
pub mod input;
pub mod keys;
pub mod receive;
pub mod send;
pub mod synthetic;
pub mod tweak;

pub use address::{Address, AddressError, AddressNetwork};
pub use backend::{Backend, Candidate, Place, PreparedScan, RowBatch};
pub use engine::{Control, Engine, Match, PreparedTargets, ScanError};
pub use keys::{KeyError, Label, ScanKey, ScanTarget, SpendKey};
pub use tweak::{Tweak, transaction_tweak};

/// At most this many outputs of one transaction can belong to one scan key: a receiver stops after
/// k = 2322, and a sender must not go further (BIP352, `K_max`).
pub const K_MAX: u32 = 2323;
