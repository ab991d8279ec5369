//! The mempool as the index follows it.

use bitcoin::Txid;

/// A transaction of the mempool that may hold a silent payment, as a row to scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MempoolRow {
    /// Its id.
    pub txid: Txid,
    /// The tweak point, in the form of [`BlockRows::points`](crate::BlockRows::points).
    pub point: [u8; 64],
    /// The first 8 bytes of the x-only key of each taproot output, in output order.
    pub outputs: Vec<[u8; 8]>,
}
