//! The mempool as the index follows it.
//!
//! - [`Mempool`]: the transactions, by id, by script and by what they spend; no input or output;
//! - [`MempoolFollower`]: finds out what changed at the node;
//! - `fees`: the histogram; `zmq`: messages of the node.

mod entry;
mod fees;
mod follower;
mod zmq;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use bitcoin::{OutPoint, Txid};

use crate::address::{ScriptHash, is_unspendable};

pub use entry::{MempoolEntry, MempoolRow, SpentOutput};
pub use follower::{MempoolFollower, ZmqChoice};

/// So many of the last arrivals are remembered.
const ARRIVALS: usize = 100;
/// So many are told.
const RECENT: usize = 10;

/// A transaction of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MempoolHistory {
    /// Its id.
    pub txid: Txid,
    /// What it pays, in satoshi.
    pub fee: u64,
    /// Whether it spends an output of another transaction of the mempool.
    pub unconfirmed_parent: bool,
}

/// A transaction that came lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentTx {
    /// Its id.
    pub txid: Txid,
    /// What it pays, in satoshi.
    pub fee: u64,
    /// Virtual bytes.
    pub vsize: u64,
}

/// What a follower found at the node.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Transactions that came, parents before children.
    pub added: Vec<MempoolEntry>,
    /// Transactions that left.
    pub removed: Vec<Txid>,
}

/// What an update came to.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Scripts whose transactions, or heights of transactions, are different.
    pub touched: HashSet<ScriptHash>,
    /// Transactions that came, as far as they may hold a silent payment.
    pub added: Vec<MempoolRow>,
    /// All transactions that came.
    pub added_txids: Vec<Txid>,
    /// Transactions that left, but not into a block.
    pub removed: Vec<Txid>,
}

/// The unconfirmed transactions that are known. Changed by [`apply`](Self::apply) only.
#[derive(Debug, Default)]
pub struct Mempool {
    entries: HashMap<Txid, MempoolEntry>,
    by_script: HashMap<ScriptHash, BTreeSet<Txid>>,
    spenders: HashMap<OutPoint, (Txid, u32)>,
    arrivals: VecDeque<Txid>,
    histogram: fees::Cache,
}

impl Mempool {
    /// Number of transactions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a transaction is there.
    pub fn contains(&self, txid: &Txid) -> bool {
        self.entries.contains_key(txid)
    }

    /// A transaction.
    pub fn get(&self, txid: &Txid) -> Option<&MempoolEntry> {
        self.entries.get(txid)
    }

    /// All ids, in no order.
    pub fn txids(&self) -> impl Iterator<Item = &Txid> {
        self.entries.keys()
    }

    /// Transactions that pay to a script or spend from it, in no particular order.
    pub fn history(&self, script: &ScriptHash) -> Vec<MempoolHistory> {
        self.of_script(script)
            .map(|entry| MempoolHistory {
                txid: entry.txid(),
                fee: entry.fee(),
                unconfirmed_parent: self.has_parent(entry),
            })
            .collect()
    }

    /// Outputs of a script in the mempool that nothing in the mempool spends, with their values.
    pub fn unspent(&self, script: &ScriptHash) -> Vec<(OutPoint, u64)> {
        let mut unspent = Vec::new();
        for entry in self.of_script(script) {
            for (vout, output) in (0..).zip(entry.outputs()) {
                let outpoint = OutPoint { txid: entry.txid(), vout };
                if ScriptHash::of(&output.script_pubkey) == *script && !self.spenders.contains_key(&outpoint)
                {
                    unspent.push((outpoint, output.value.to_sat()));
                }
            }
        }
        unspent
    }

    /// What the mempool adds to a script, less what it takes, in satoshi.
    pub fn balance(&self, script: &ScriptHash) -> i64 {
        // Amounts are below 2^51 and there are few of them; saturation is for what can't be.
        let amount = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut balance: i64 = 0;
        for entry in self.of_script(script) {
            for output in entry.outputs().iter().filter(|out| ScriptHash::of(&out.script_pubkey) == *script) {
                balance = balance.saturating_add(amount(output.value.to_sat()));
            }
            for input in entry.spends().iter().filter(|input| input.script == *script) {
                balance = balance.saturating_sub(amount(input.value));
            }
        }
        balance
    }

    /// Which transaction spends an output, and with which input.
    pub fn spender(&self, outpoint: &OutPoint) -> Option<(Txid, u32)> {
        self.spenders.get(outpoint).copied()
    }

    /// Whether a transaction spends an output of another one of the mempool. False if it isn't there.
    pub fn unconfirmed_parent(&self, txid: &Txid) -> bool {
        self.entries.get(txid).is_some_and(|entry| self.has_parent(entry))
    }

    /// Virtual bytes by fee rate (satoshi per virtual byte), strictly falling: each bin with the lowest rate in it.
    pub fn fee_histogram(&self) -> Vec<(f64, u64)> {
        self.histogram.get(|| self.entries.values().map(|entry| (entry.fee(), entry.vsize())).collect())
    }

    /// The last that came and are still there, newest first.
    pub fn recent(&self) -> Vec<RecentTx> {
        let newest = self.arrivals.iter().rev().filter_map(|txid| self.entries.get(txid));
        newest
            .take(RECENT)
            .map(|entry| RecentTx { txid: entry.txid(), fee: entry.fee(), vsize: entry.vsize() })
            .collect()
    }

    /// Takes in what happened: first `confirmed`, the transactions of blocks that came in the same step, leave; then what
    /// left otherwise; then what came. What contradicts something that came goes with its descendants: it was replaced.
    pub fn apply(&mut self, update: Update, confirmed: &[Txid]) -> Changes {
        let mut changes = Changes::default();
        for txid in confirmed {
            self.confirm(txid, &mut changes);
        }
        for txid in update.removed {
            self.evict(txid, &mut changes);
        }
        let confirmed: HashSet<&Txid> = confirmed.iter().collect();
        for entry in update.added {
            if self.contains(&entry.txid()) || confirmed.contains(&entry.txid()) {
                continue;
            }
            let rivals: Vec<Txid> =
                entry.spends().iter().filter_map(|input| Some(self.spender(&input.outpoint)?.0)).collect();
            for rival in rivals {
                self.evict(rival, &mut changes);
            }
            self.insert(entry, &mut changes);
        }
        // What came and went within the step is no news.
        changes.added_txids.retain(|txid| self.entries.contains_key(txid));
        changes.added.retain(|row| self.entries.contains_key(&row.txid));
        if !changes.touched.is_empty() {
            self.histogram.outdated();
        }
        changes
    }

    fn of_script(&self, script: &ScriptHash) -> impl Iterator<Item = &MempoolEntry> {
        self.by_script.get(script).into_iter().flatten().filter_map(|txid| self.entries.get(txid))
    }

    fn has_parent(&self, entry: &MempoolEntry) -> bool {
        entry.spends().iter().any(|input| self.contains(&input.outpoint.txid))
    }

    /// Transactions that spend outputs of this one.
    fn children(&self, entry: &MempoolEntry) -> BTreeSet<Txid> {
        let outputs = 0..entry.outputs().len() as u32;
        outputs.filter_map(|vout| Some(self.spender(&OutPoint { txid: entry.txid(), vout })?.0)).collect()
    }

    fn insert(&mut self, entry: MempoolEntry, changes: &mut Changes) {
        let txid = entry.txid();
        for (vin, input) in (0..).zip(entry.spends()) {
            self.spenders.insert(input.outpoint, (txid, vin));
        }
        for script in scripts(&entry) {
            self.by_script.entry(script).or_default().insert(txid);
            changes.touched.insert(script);
        }
        // A child that was there before, as after a reorganisation, has an unconfirmed parent now.
        self.touch_children(&entry, changes);
        changes.added_txids.push(txid);
        changes.added.extend(entry.row().cloned());
        self.arrivals.push_back(txid);
        if self.arrivals.len() > ARRIVALS {
            self.arrivals.pop_front();
        }
        self.entries.insert(txid, entry);
    }

    /// Takes a transaction out because it is in a block.
    fn confirm(&mut self, txid: &Txid, changes: &mut Changes) {
        if let Some(entry) = self.remove(txid, changes) {
            // Their parent is confirmed now, which their height tells.
            self.touch_children(&entry, changes);
        }
    }

    /// Takes a transaction out, and all that depend on it.
    fn evict(&mut self, txid: Txid, changes: &mut Changes) {
        let mut leaving = vec![txid];
        while let Some(txid) = leaving.pop() {
            let Some(entry) = self.remove(&txid, changes) else { continue };
            leaving.extend(self.children(&entry));
            changes.removed.push(txid);
        }
    }

    fn touch_children(&self, entry: &MempoolEntry, changes: &mut Changes) {
        for child in self.children(entry) {
            changes.touched.extend(self.entries.get(&child).into_iter().flat_map(scripts));
        }
    }

    fn remove(&mut self, txid: &Txid, changes: &mut Changes) -> Option<MempoolEntry> {
        let entry = self.entries.remove(txid)?;
        for input in entry.spends() {
            if self.spenders.get(&input.outpoint).is_some_and(|(spender, _)| spender == txid) {
                self.spenders.remove(&input.outpoint);
            }
        }
        for script in scripts(&entry) {
            changes.touched.insert(script);
            if let Some(txids) = self.by_script.get_mut(&script) {
                txids.remove(txid);
                if txids.is_empty() {
                    self.by_script.remove(&script);
                }
            }
        }
        Some(entry)
    }
}

/// The scripts that a transaction pays to or spends from, as far as they have a history.
fn scripts(entry: &MempoolEntry) -> BTreeSet<ScriptHash> {
    let outputs = entry.outputs().iter().filter(|output| !is_unspendable(&output.script_pubkey));
    let paid = outputs.map(|output| ScriptHash::of(&output.script_pubkey));
    paid.chain(entry.spends().iter().map(|input| input.script)).collect()
}

#[cfg(test)]
mod tests;
