//! What was read and may be asked for again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bitcoin::consensus::encode::deserialize;
use bitcoin::{BlockHash, Transaction, Txid};
use peregrine_index::address::{ScriptHash, TxLocation};
use peregrine_index::source::{BlockWithPrevouts, Daemon, MempoolInfo, SourceError};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::node::{ConfirmedTx, FeeMode, NodeError};

/// How long an answer of the node about fees is used again.
const FEES_KEPT: Duration = Duration::from_secs(10);

/// Blocks of which is counted how often single transactions were read.
const COUNTED: usize = 10_000;

/// All caches of a node.
pub(super) struct Caches {
    pub(super) fees: Fees,
    pub(super) transactions: Transactions,
    /// Blocks with what they spend, taken apart.
    pub(super) blocks: Cache<BlockHash, Arc<BlockWithPrevouts>, Bytes>,
    histories: Cache<ScriptHash, Arc<Confirmed>, Bytes>,
}

impl Caches {
    /// With so many bytes of memory in all.
    pub(super) fn new(bytes: u64) -> Self {
        let (histories, blocks) = (bytes / 4, bytes / 4);
        let transactions = bytes - histories - blocks;
        Self {
            fees: Fees::default(),
            transactions: Transactions::new(transactions),
            blocks: Cache::with_weighter((blocks / 1_000_000 + 1) as usize, blocks, Bytes),
            // A usual script has a few entries.
            histories: Cache::with_weighter((histories / 300) as usize, histories, Bytes),
        }
    }

    /// The confirmed transactions of a script when the tip was this block, read with `read` unless they are known.
    pub(super) fn confirmed<E>(
        &self,
        script: ScriptHash,
        tip: Option<BlockHash>,
        read: impl FnOnce() -> Result<Vec<ConfirmedTx>, E>,
    ) -> Result<Vec<ConfirmedTx>, E> {
        if let Some(known) = self.histories.get(&script)
            && known.tip == tip
        {
            return Ok(known.transactions.clone());
        }
        let transactions = read()?;
        self.histories.insert(script, Arc::new(Confirmed { tip, transactions: transactions.clone() }));
        Ok(transactions)
    }
}

/// The confirmed transactions of a script.
struct Confirmed {
    tip: Option<BlockHash>,
    transactions: Vec<ConfirmedTx>,
}

/// What something in a cache weighs.
#[derive(Clone, Debug)]
pub(super) struct Bytes;

impl Weighter<ScriptHash, Arc<Confirmed>> for Bytes {
    fn weight(&self, _: &ScriptHash, known: &Arc<Confirmed>) -> u64 {
        150 + 36 * known.transactions.len() as u64
    }
}

impl Weighter<BlockHash, Arc<BlockWithPrevouts>> for Bytes {
    fn weight(&self, _: &BlockHash, block: &Arc<BlockWithPrevouts>) -> u64 {
        // Every script and witness has a place of its own, about twice its bytes.
        3 * block.block.total_size() as u64 + 500
    }
}

impl<K> Weighter<K, Arc<[u8]>> for Bytes {
    fn weight(&self, _: &K, raw: &Arc<[u8]>) -> u64 {
        100 + raw.len() as u64
    }
}

/// Confirmed transactions, and the blocks of which many were asked for.
pub(super) struct Transactions {
    single: Cache<Txid, Arc<[u8]>, Bytes>,
    blocks: Cache<BlockHash, Arc<[u8]>, Bytes>,
    /// How often a single transaction of a block was read.
    reads: Cache<BlockHash, Arc<AtomicU32>>,
}

impl Transactions {
    fn new(bytes: u64) -> Self {
        let half = bytes / 2;
        Self {
            // About 400 bytes for a usual transaction.
            single: Cache::with_weighter((half / 500) as usize, half, Bytes),
            blocks: Cache::with_weighter((half / 1_000_000 + 1) as usize, half, Bytes),
            reads: Cache::new(COUNTED),
        }
    }

    /// A transaction that was read lately.
    pub(super) fn known(&self, txid: &Txid) -> Option<Arc<[u8]>> {
        self.single.get(txid)
    }

    /// Reads a transaction of a block.
    ///
    /// A large wallet asks for thousands of transactions, some of them of the same blocks. A node that can't read a part of
    /// a block reads all of it for each of them; from such a node the block is read as a whole with the second one.
    pub(super) fn read(&self, at: &TxLocation, daemon: &Daemon) -> Result<Arc<[u8]>, SourceError> {
        let raw: Arc<[u8]> = match self.blocks.get(&at.block) {
            Some(block) => part(&block, at)?,
            None => {
                let fresh = || Ok::<_, SourceError>(Arc::default());
                let reads = self.reads.get_or_insert_with(&at.block, fresh)?;
                if !daemon.reads_parts() && reads.fetch_add(1, Ordering::Relaxed) > 0 {
                    // It may be put out of the cache again; then it has to be worth it anew.
                    reads.store(0, Ordering::Relaxed);
                    let block: Arc<[u8]> = daemon.block_bytes(at.block)?.into();
                    let raw = part(&block, at)?;
                    self.blocks.insert(at.block, block);
                    raw
                } else {
                    daemon.transaction_bytes(at.txid, at.block, at.offset, at.size)?.into()
                }
            }
        };
        self.single.insert(at.txid, Arc::clone(&raw));
        Ok(raw)
    }
}

/// A transaction of a block, if it is where it must be.
fn part(block: &[u8], at: &TxLocation) -> Result<Arc<[u8]>, SourceError> {
    let end = at.offset.checked_add(at.size);
    let raw = end.and_then(|end| block.get(at.offset as usize..end as usize));
    let right = raw.filter(|raw| {
        deserialize::<Transaction>(raw).is_ok_and(|transaction| transaction.compute_txid() == at.txid)
    });
    match right {
        Some(raw) => Ok(raw.into()),
        None => {
            Err(SourceError::Invalid(format!("block {} doesn't have {} where it must be", at.block, at.txid)))
        }
    }
}

/// Target and mode, when the node was asked, and its answer.
type Estimate = ((u32, FeeMode), Instant, Option<u64>);

/// The node's last answers about fees. A wallet asks for eight targets whenever it connects, and the node computes each
/// anew.
#[derive(Debug, Default)]
pub(super) struct Fees {
    estimates: Mutex<Vec<Estimate>>,
    info: Mutex<Option<(Instant, MempoolInfo)>>,
}

impl Fees {
    /// The estimate for a target, asked with `ask` unless it is known.
    pub(super) fn estimate(
        &self,
        target: u32,
        mode: FeeMode,
        ask: impl FnOnce() -> Result<Option<u64>, NodeError>,
    ) -> Result<Option<u64>, NodeError> {
        let key = (target, mode);
        let mut known = self.estimates.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, asked, _)| asked.elapsed() < FEES_KEPT);
        if let Some((_, _, rate)) = known.iter().find(|(known, ..)| *known == key) {
            return Ok(*rate);
        }
        drop(known);
        let rate = ask()?;
        self.estimates.lock().unwrap_or_else(PoisonError::into_inner).push((key, Instant::now(), rate));
        Ok(rate)
    }

    /// What the mempool asks for, asked with `ask` unless it is known.
    pub(super) fn info(
        &self,
        ask: impl FnOnce() -> Result<MempoolInfo, NodeError>,
    ) -> Result<MempoolInfo, NodeError> {
        let known = *self.info.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, info)) = known.filter(|(asked, _)| asked.elapsed() < FEES_KEPT) {
            return Ok(info);
        }
        let info = ask()?;
        *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), info));
        Ok(info)
    }
}
