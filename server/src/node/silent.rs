//! Silent payments as the wire protocols ask for them.

use bitcoin::{Network, Txid};
use peregrine_scanner::{Address, AddressNetwork, ScanKey, ScanTarget};
use secp256k1::PublicKey;
use tokio::sync::mpsc;

use super::Result;

/// From where a wallet wants its payments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From a block on, and everything to come.
    Height(u32),
    /// From a time on, in seconds since 1970, and everything to come.
    Time(u64),
    /// Only these blocks, both included.
    Range {
        /// The first block.
        from: u32,
        /// The last block.
        to: u32,
    },
}

/// What to scan. Holds a secret, which is wiped with it; `Debug` shows nothing of it.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// The keys and labels.
    pub target: ScanTarget,
    /// From where.
    pub start: Start,
    /// Where the same connection already subscribes these keys: never start later than this, so that nothing that was
    /// asked for is lost.
    pub not_after: Option<u32>,
}

/// A payment that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentPayment {
    /// Height of the block; `None` in the mempool.
    pub height: Option<u32>,
    /// The transaction.
    pub txid: Txid,
    /// `input_hash·A` of the transaction.
    pub tweak: PublicKey,
}

/// A step of a scan, or something new.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// How much of the scan is done, from 0 to 1. With the first 1 everything old was told; later ones are live.
    pub progress: f64,
    /// What was found, by height, the mempool last. Any number: protocols cut it into pages.
    pub found: Vec<SilentPayment>,
}

/// A running subscription.
#[derive(Debug)]
pub struct Subscription {
    /// Where the scan starts, in blocks. A height that was asked for is returned as it is, unless an earlier start of the
    /// same connection goes before it.
    pub start_height: u32,
    /// What is found. **Dropping it is how one unsubscribes**: the implementation sees that the channel is closed, and
    /// stops a running scan at once and forgets the keys.
    pub notifications: mpsc::UnboundedReceiver<Notification>,
}

/// Scans for wallets. Implementations are used by many connections at once.
///
/// The rules of the protocol that an implementation keeps, since only it can:
/// - [`subscribe`](Self::subscribe) returns without scanning, and every call starts a scan of its own from the start;
/// - one notification with progress 1.0 always comes, also when nothing was found, and everything old comes before or
///   with it, with all matches of the mempool; an empty notification comes at least every five seconds before that;
/// - what was told from the mempool is not told again when it confirms;
/// - what is told can be asked from the [`Node`](super::Node) before it is told, and what was told from the mempool stays
///   available there while anybody who heard of it is subscribed;
/// - after a reorganisation the blocks from the fork on are scanned again.
pub trait SilentPayments: Send + Sync {
    /// Starts a scan and keeps following the chain for these keys. [`NodeError::Invalid`](super::NodeError::Invalid) if
    /// the range ends above the tip; [`NodeError::Busy`](super::NodeError::Busy) if too many scans wait.
    fn subscribe(&self, request: ScanRequest) -> Result<Subscription>;

    /// Returns once everything that follows from the events up to this one has been sent to the subscriptions (whose
    /// scan has come so far), so that it is told before the scripts that the same event touched.
    fn settle(&self, sequence: u64);
}

/// How addresses of a network start. Regtest has its own prefix, as Sparrow expects.
pub fn address_network(network: Network) -> AddressNetwork {
    match network {
        Network::Bitcoin => AddressNetwork::Mainnet,
        Network::Regtest => AddressNetwork::Regtest,
        _ => AddressNetwork::Testnet,
    }
}

/// The wallet's base address, without a label.
pub fn address(network: Network, scan: &ScanKey, spend: &PublicKey) -> Address {
    Address::new(address_network(network), scan.public_key(), *spend)
}
