//! The transactions of a script, in the order on which everybody agrees.

use std::collections::HashSet;
use std::fmt::Write;

use bitcoin::Txid;
use bitcoin::hashes::{Hash, sha256};

/// A transaction in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedTx {
    /// Its id.
    pub txid: Txid,
    /// The block's height.
    pub height: u32,
}

/// A transaction in the mempool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolTx {
    /// Its id.
    pub txid: Txid,
    /// What it pays, in satoshi.
    pub fee: u64,
    /// Whether it spends an output of another transaction of the mempool.
    pub unconfirmed_parent: bool,
}

impl MempoolTx {
    /// How protocols say that it isn't in a block: 0, or −1 if a parent isn't either.
    pub fn height(&self) -> i32 {
        -i32::from(self.unconfirmed_parent)
    }
}

/// All transactions that touch a script: confirmed ones in the order of the chain, then those of the mempool, with
/// confirmed parents first and by the text of their ids.
///
/// The status that wallets compare depends on this order, so it can't be made in another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    confirmed: Vec<ConfirmedTx>,
    mempool: Vec<MempoolTx>,
}

impl History {
    /// From confirmed transactions in the order of the chain, and those of the mempool in any order.
    ///
    /// A transaction that is in both, as happens while a block arrives, is confirmed.
    pub fn new(confirmed: Vec<ConfirmedTx>, mut mempool: Vec<MempoolTx>) -> Self {
        if !mempool.is_empty() {
            // What the mempool may still hold was confirmed by the last blocks, so it is at the end.
            let recent: HashSet<Txid> = confirmed.iter().rev().take(10_000).map(|tx| tx.txid).collect();
            mempool.retain(|entry| !recent.contains(&entry.txid));
            mempool.sort_unstable_by_key(|entry| (entry.unconfirmed_parent, displayed(&entry.txid)));
            mempool.dedup_by_key(|entry| entry.txid);
        }
        Self { confirmed, mempool }
    }

    /// Those in blocks, in the order of the chain.
    pub fn confirmed(&self) -> &[ConfirmedTx] {
        &self.confirmed
    }

    /// Those in the mempool, in canonical order.
    pub fn mempool(&self) -> &[MempoolTx] {
        &self.mempool
    }

    /// Number of transactions.
    pub fn len(&self) -> usize {
        self.confirmed.len() + self.mempool.len()
    }

    /// Whether the script was never used.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// SHA-256 over `txid:height:` of every transaction; `None` for a script that was never used.
    pub fn status(&self) -> Option<[u8; 32]> {
        if self.is_empty() {
            return None;
        }
        let mut engine = sha256::Hash::engine();
        let confirmed = self.confirmed.iter().map(|tx| (tx.txid, i64::from(tx.height)));
        let mempool = self.mempool.iter().map(|tx| (tx.txid, i64::from(tx.height())));
        let mut line = String::with_capacity(80);
        for (txid, height) in confirmed.chain(mempool) {
            line.clear();
            // Writing to a String can't fail.
            let _ = write!(line, "{txid}:{height}:");
            bitcoin::hashes::HashEngine::input(&mut engine, line.as_bytes());
        }
        Some(sha256::Hash::from_engine(engine).to_byte_array())
    }
}

/// A transaction id's bytes in the order of its text.
fn displayed(txid: &Txid) -> [u8; 32] {
    let mut bytes = txid.to_byte_array();
    bytes.reverse();
    bytes
}

#[cfg(test)]
mod tests {
    use bitcoin::hex::DisplayHex;

    use super::*;

    fn txid(text: &str) -> Txid {
        text.parse().unwrap()
    }

    /// The vector of the protocol's documentation, with the mempool given in another order.
    #[test]
    fn status_of_the_protocols_vector() {
        let confirmed = [
            ("a6c9c361bd0bc536d6a22648efbf8f9b200e425ef6c3a7a9669dc444c532a347", 2472),
            ("9c42f84b2fcdaff676ba25d9d4941741cc0d1a01cce0c23fdc4c0b2afa38431c", 2473),
            ("770f2d4371b3fabb902dd9a103e2dd005fcd3971181078fca4a2a1d6ff127b30", 2473),
        ];
        let mempool = [
            ("bb4c8ab438c13b89ca80d1d5bee25b0b6b7f55673f4d801998ba97db161d9e85", true),
            ("e02a1dadfa83b996b24175df807b271ea5d02937ef5b35c195fac1e1bdc3198f", false),
            ("80b19848aed792565ab7c5a79b7c2a00fbf985741579396ebe0ab6098e607311", false),
        ];
        let history = History::new(
            confirmed.iter().map(|(id, height)| ConfirmedTx { txid: txid(id), height: *height }).collect(),
            mempool
                .iter()
                .map(|(id, parent)| MempoolTx { txid: txid(id), fee: 1, unconfirmed_parent: *parent })
                .collect(),
        );
        assert_eq!(
            history.status().unwrap().to_lower_hex_string(),
            "78e96c6562cafa71c115503b9411fdfdc595a45031e2ab76ff75162fe1b0590d"
        );
        assert_eq!(History::default().status(), None);
    }

    /// Bug class 4: a transaction listed both as confirmed and in the mempool.
    #[test]
    fn a_transaction_is_listed_once() {
        let id = txid("a6c9c361bd0bc536d6a22648efbf8f9b200e425ef6c3a7a9669dc444c532a347");
        let entry = MempoolTx { txid: id, fee: 1, unconfirmed_parent: false };
        let history = History::new(vec![ConfirmedTx { txid: id, height: 7 }], vec![entry]);
        assert_eq!((history.confirmed().len(), history.mempool().len()), (1, 0));
        assert_eq!(History::new(vec![], vec![entry, entry]).len(), 1);
    }
}
