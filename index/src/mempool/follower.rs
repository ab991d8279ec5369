//! Finds out what changed in the node's mempool.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bitcoin::{BlockHash, OutPoint, Transaction, TxOut, Txid};
use peregrine_scanner::batch::{TweakMethod, transaction_tweaks};

use super::zmq::Listener;
use super::{Mempool, MempoolEntry, Update};
use crate::source::{Daemon, SourceError};

/// Without messages from the node, the mempool is listed this often, or less often where that takes long.
const POLL: Duration = Duration::from_millis(500);
/// A list may take this share of the time.
const SHARE: u32 = 20;
/// With messages, a list is made from time to time all the same.
const CHECK: Duration = Duration::from_secs(5);
/// Transactions that are fetched and computed at once.
const BATCH: usize = 2_000;

/// Where messages about the mempool come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ZmqChoice {
    /// From where the node says that it publishes `sequence`; nowhere if it doesn't.
    #[default]
    Auto,
    /// From this address, such as `tcp://127.0.0.1:28332`.
    Address(String),
    /// From nowhere.
    Off,
}

/// Follows the mempool of a node, by its messages or by listing it.
pub struct MempoolFollower {
    daemon: Arc<Daemon>,
    tweaks: TweakMethod,
    zmq: ZmqChoice,
    listener: Option<Listener>,
    /// When the last list was made, and how long it took.
    listed: Option<(Instant, Duration)>,
    /// Transactions that are in the mempool, but couldn't be had in full.
    missing: HashSet<Txid>,
}

impl MempoolFollower {
    /// A follower that has seen nothing yet.
    pub fn new(daemon: Arc<Daemon>, tweaks: TweakMethod, zmq: ZmqChoice) -> Self {
        Self { daemon, tweaks, zmq, listener: None, listed: None, missing: HashSet::new() }
    }

    /// Begins to listen for messages, if there are any to be had; `wake` is called for each.
    pub fn watch(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        let address = match &self.zmq {
            ZmqChoice::Off => return,
            ZmqChoice::Address(address) => Some(address.clone()),
            // A node without ZMQ doesn't know the call.
            ZmqChoice::Auto => self.daemon.zmq_endpoints().ok().and_then(|endpoints| {
                let (_, address) = endpoints.into_iter().find(|(kind, _)| kind == "pubsequence")?;
                Some(reachable(&address, &self.daemon.host()))
            }),
        };
        let Some(address) = address else {
            tracing::info!(
                "the node publishes no mempool messages; with zmqpubsequence=tcp://127.0.0.1:28332 in bitcoin.conf \
                 transactions would be seen sooner and with less work"
            );
            return;
        };
        match Listener::start(address.clone(), wake) {
            Ok(listener) => {
                tracing::info!("following the mempool by messages from {address}");
                self.listener = Some(listener);
            }
            Err(error) => tracing::warn!("can't listen for messages of the node: {error}"),
        }
    }

    /// After so long without a message it is time to fetch again.
    pub fn poll_interval(&self) -> Duration {
        if self.listener.is_some() {
            return CHECK;
        }
        POLL.max(self.list_interval())
    }

    fn list_interval(&self) -> Duration {
        self.listed.map_or(Duration::ZERO, |(_, took)| took * SHARE)
    }

    /// What changed at the node since `mempool`.
    ///
    /// `tip` is the block up to which the caller's index reaches, or will before it applies the update; `tip_changed` says
    /// whether that is another one than last time. Transactions are reported as gone only while the node has no other
    /// block: otherwise they may be in one that isn't indexed yet, and would be nowhere for a moment.
    ///
    /// Transactions whose spent outputs can't be found out now, because they or their blocks are just moving, are left for
    /// the next time.
    ///
    /// # Errors
    /// The node doesn't answer.
    pub fn fetch(
        &mut self,
        mempool: &Mempool,
        tip: BlockHash,
        tip_changed: bool,
    ) -> Result<Update, SourceError> {
        let heard = self.listener.as_ref().map(Listener::take);
        let due = match (&heard, self.listed) {
            (_, None) => true,
            (None, Some((made, _))) => tip_changed || made.elapsed() >= POLL.max(self.list_interval()),
            (Some(heard), Some((made, _))) => {
                heard.incomplete || tip_changed || made.elapsed() >= CHECK.max(self.list_interval())
            }
        };
        let (wanted, removed) = if due {
            let started = Instant::now();
            let list = self.daemon.mempool().inspect_err(|_| self.listed = None)?;
            self.listed = Some((started, started.elapsed()));
            let listed: HashSet<Txid> = list.txids.iter().copied().collect();
            let gone = |txid: &&Txid| !listed.contains(*txid);
            let removed: Vec<Txid> = if list.tip == Some(tip) {
                mempool.txids().filter(gone).copied().collect()
            } else {
                // Once more when the index has come to the node's block.
                self.listed = None;
                Vec::new()
            };
            self.missing.clear();
            (list.txids, removed)
        } else {
            let mut state: HashMap<Txid, bool> = HashMap::new();
            let mut wanted: Vec<Txid> = self.missing.drain().collect();
            for (txid, came) in heard.map(|heard| heard.transactions).unwrap_or_default() {
                if came && state.insert(txid, true).is_none() {
                    wanted.push(txid);
                } else if !came {
                    state.insert(txid, false);
                }
            }
            let left = |txid: &Txid| state.get(txid) == Some(&false);
            wanted.retain(|txid| !left(txid));
            (wanted, state.iter().filter(|(_, came)| !**came).map(|(txid, _)| *txid).collect())
        };
        let unknown: Vec<Txid> = wanted.into_iter().filter(|txid| !mempool.contains(txid)).collect();
        let added = self.entries(mempool, unknown).inspect_err(|_| self.listed = None)?;
        Ok(Update { added, removed })
    }

    /// Fetches transactions with what they spend; parents come before children.
    fn entries(&mut self, mempool: &Mempool, txids: Vec<Txid>) -> Result<Vec<MempoolEntry>, SourceError> {
        let started = Instant::now();
        let total = txids.len();
        let mut transactions: HashMap<Txid, Transaction> = HashMap::with_capacity(total);
        let mut order = Vec::with_capacity(total);
        for part in txids.chunks(BATCH) {
            for (txid, transaction) in part.iter().zip(self.daemon.mempool_transactions(part)?) {
                if let Some(transaction) = transaction {
                    order.push(*txid);
                    transactions.insert(*txid, transaction);
                }
            }
            if total > BATCH {
                tracing::info!("fetching the mempool: {} of {total} transactions", transactions.len());
            }
        }
        let mut outputs: HashMap<OutPoint, TxOut> = HashMap::new();
        let mut elsewhere: Vec<OutPoint> = Vec::new();
        for input in order.iter().flat_map(|txid| &transactions[txid].input) {
            let outpoint = input.previous_output;
            let known = match (transactions.get(&outpoint.txid), mempool.get(&outpoint.txid)) {
                (Some(parent), _) => parent.output.get(outpoint.vout as usize),
                (None, Some(parent)) => parent.outputs().get(outpoint.vout as usize),
                (None, None) => {
                    elsewhere.push(outpoint);
                    continue;
                }
            };
            outputs.extend(known.map(|output| (outpoint, output.clone())));
        }
        for part in elsewhere.chunks(BATCH) {
            let found = part.iter().zip(self.daemon.unspent_outputs(part)?);
            outputs.extend(found.filter_map(|(outpoint, output)| Some((*outpoint, output?))));
        }

        let order = parents_first(order, &transactions);
        let mut complete: HashSet<Txid> = HashSet::new();
        let mut ready: Vec<(&Transaction, Vec<TxOut>)> = Vec::new();
        for txid in &order {
            let transaction = &transactions[txid];
            let parent_missing = transaction.input.iter().any(|input| {
                let parent = input.previous_output.txid;
                transactions.contains_key(&parent) && !complete.contains(&parent)
            });
            let prevouts: Option<Vec<TxOut>> =
                transaction.input.iter().map(|input| outputs.get(&input.previous_output).cloned()).collect();
            match prevouts.filter(|_| !parent_missing) {
                Some(prevouts) => {
                    complete.insert(*txid);
                    ready.push((transaction, prevouts));
                }
                None => {
                    self.missing.insert(*txid);
                }
            }
        }
        let pairs: Vec<(&Transaction, &[TxOut])> =
            ready.iter().map(|(transaction, prevouts)| (*transaction, &prevouts[..])).collect();
        let mut tweaks: HashMap<usize, _> = transaction_tweaks(self.tweaks, &pairs).into_iter().collect();
        let entries = pairs.iter().enumerate().filter_map(|(position, (transaction, prevouts))| {
            MempoolEntry::new(transaction, prevouts, tweaks.remove(&position))
        });
        let entries = entries.collect();
        if total > BATCH {
            tracing::info!(
                "fetched {total} transactions of the mempool in {:.1} s",
                started.elapsed().as_secs_f64()
            );
        }
        Ok(entries)
    }
}

/// Puts transactions in an order in which those that others of them spend come first.
fn parents_first(order: Vec<Txid>, transactions: &HashMap<Txid, Transaction>) -> Vec<Txid> {
    let mut sorted = Vec::with_capacity(order.len());
    let mut seen: HashSet<Txid> = HashSet::new();
    for first in order {
        // Without recursion, since chains may be long. A transaction is put down when it is met for the second time: its
        // parents were put on top of it the first time.
        let mut stack = vec![(first, false)];
        while let Some((txid, parents_done)) = stack.pop() {
            if parents_done {
                sorted.push(txid);
                continue;
            }
            let Some(transaction) = transactions.get(&txid) else { continue };
            if seen.insert(txid) {
                stack.push((txid, true));
                stack.extend(transaction.input.iter().map(|input| (input.previous_output.txid, false)));
            }
        }
    }
    sorted
}

/// An address at which a node publishes may be one that stands for all of its own.
fn reachable(address: &str, host: &str) -> String {
    ["tcp://0.0.0.0:", "tcp://[::]:", "tcp://*:"]
        .iter()
        .find_map(|prefix| address.strip_prefix(prefix))
        .map_or_else(|| address.to_owned(), |port| format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_stand_for_all_become_the_nodes() {
        assert_eq!(reachable("tcp://0.0.0.0:1", "10.0.0.7"), "tcp://10.0.0.7:1");
        assert_eq!(reachable("tcp://[::]:1", "[::1]"), "tcp://[::1]:1");
        assert_eq!(reachable("tcp://127.0.0.1:1", "x"), "tcp://127.0.0.1:1");
        assert_eq!(reachable("ipc:///run/z", "x"), "ipc:///run/z");
    }
}
