//! One transaction of the mempool.

use std::sync::Arc;

use bitcoin::consensus::encode::serialize;
use bitcoin::{OutPoint, Transaction, TxOut, Txid};
use peregrine_scanner::Tweak;

use crate::address::ScriptHash;
use crate::rows::taproot_outputs;

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

/// What an input spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentOutput {
    /// Which output.
    pub outpoint: OutPoint,
    /// Hash of its script.
    pub script: ScriptHash,
    /// Satoshi.
    pub value: u64,
}

/// A transaction with all that is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MempoolEntry {
    txid: Txid,
    raw: Arc<[u8]>,
    fee: u64,
    vsize: u64,
    spends: Vec<SpentOutput>,
    outputs: Vec<TxOut>,
    row: Option<MempoolRow>,
}

impl MempoolEntry {
    /// From a transaction, the outputs that it spends in the order of its inputs, and its tweak, if it has one. `None` if
    /// that isn't one output for each input, or if they are worth less than what it pays: then they are not what it
    /// spends.
    pub fn new(transaction: &Transaction, prevouts: &[TxOut], tweak: Option<Tweak>) -> Option<Self> {
        if transaction.input.len() != prevouts.len() {
            return None;
        }
        let sum = |outputs: &[TxOut]| {
            outputs.iter().try_fold(0u64, |sum, output| sum.checked_add(output.value.to_sat()))
        };
        let fee = sum(prevouts)?.checked_sub(sum(&transaction.output)?)?;
        let txid = transaction.compute_txid();
        let spends = transaction.input.iter().zip(prevouts).map(|(input, prevout)| SpentOutput {
            outpoint: input.previous_output,
            script: ScriptHash::of(&prevout.script_pubkey),
            value: prevout.value.to_sat(),
        });
        let row = tweak.map(|tweak| MempoolRow {
            txid,
            point: tweak.to_row(),
            outputs: taproot_outputs(transaction).map(|(prefix, _)| prefix).collect(),
        });
        Some(Self {
            txid,
            raw: serialize(transaction).into(),
            fee,
            vsize: transaction.vsize() as u64,
            spends: spends.collect(),
            outputs: transaction.output.clone(),
            row,
        })
    }

    /// Its id.
    pub fn txid(&self) -> Txid {
        self.txid
    }

    /// As it is on the wire, with witnesses.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// What it pays, in satoshi.
    pub fn fee(&self) -> u64 {
        self.fee
    }

    /// Virtual bytes.
    pub fn vsize(&self) -> u64 {
        self.vsize
    }

    /// What its inputs spend, in their order.
    pub fn spends(&self) -> &[SpentOutput] {
        &self.spends
    }

    /// Its outputs.
    pub fn outputs(&self) -> &[TxOut] {
        &self.outputs
    }

    /// To scan, if it may hold a silent payment.
    pub fn row(&self) -> Option<&MempoolRow> {
        self.row.as_ref()
    }
}
