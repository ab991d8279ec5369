//! Tweaks for wallets that keep their keys: they fetch them, scan by themselves, and ask only for what they found.
//!
//! - `filter`: BIP158's coding over their keys; `commitments`: what servers can be
//!   compared by; what a block holds for them is in `crate::light`;
//! - `native`: Peregrine's own interface under `/v1/silent`;
//! - `index_server`: that of the index-server specification beside BIP352;
//! - `blindbit`: that of BlindBit's first version, which Dana speaks.

mod blindbit;
mod commitments;
mod filter;
mod index_server;
mod native;

pub(super) use blindbit::router as blindbit;
pub(super) use commitments::Commitments;
pub(super) use index_server::router as index_server;
pub(super) use native::router as native;
