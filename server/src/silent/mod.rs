//! Scans for wallets: [`SilentPayments`] over the tweak index.
//!
//! One thread does all scanning, in slices of about a tenth of a second on all of the engine's threads. Each slice is a
//! range of blocks and the keys of all subscriptions that still have to look at it, so that scans over overlapping ranges
//! share the work, whenever they began. A subscription that comes while others are under way joins them where they are and
//! does the beginning later; what it finds is told in the order of the chain all the same.
//!
//! Whose slice is next: subscriptions that follow the chain, for which a new block is one small slice; then in turn the one
//! with the least left to do, so that a short scan isn't stuck behind a long one, and the oldest, so that a long one isn't
//! stuck behind many short ones.
//!
//! - `heights`: sets of heights;
//! - `subscriber`: one subscription;
//! - `worker`: the thread.

mod heights;
mod subscriber;
#[cfg(test)]
mod tests;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bitcoin::{BlockHash, Txid};
use peregrine_index::mempool::MempoolRow;
use peregrine_index::store::{StoreError, TweakReader};
use peregrine_scanner::Engine;
use tokio::sync::mpsc;

use crate::node::{NodeError, Result, ScanRequest, SilentPayments, Start, Subscription};
use subscriber::Subscriber;

/// How much earlier than its time a block's transactions may have been made: the clocks of miners may be behind so far.
const CLOCKS: u64 = 2 * 3600;

/// What the service needs.
pub struct Setup {
    /// The index to scan.
    pub reader: TweakReader,
    /// What scans.
    pub engine: Arc<Engine>,
    /// What it takes on.
    pub limits: Limits,
}

/// What the service takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Scans that run or wait. Subscriptions whose scan is done don't count.
    pub scans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { scans: 1000 }
    }
}

/// Something happened to the chain or the mempool, and is servable.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// Number of the last event that tells of it.
    pub sequence: u64,
    /// The best block; `None` while there is none.
    pub tip: Option<(u32, BlockHash)>,
    /// After a reorganisation, the last height that stayed.
    pub fork: Option<u32>,
    /// Transactions that came into the mempool and may hold a payment.
    pub added: Vec<MempoolRow>,
    /// Transactions that left the mempool, into a block or otherwise.
    pub gone: Vec<Txid>,
}

/// The service. Dropping it doesn't end it; [`stop`](Self::stop) does.
pub struct SilentService {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What callers and the thread share.
struct Shared {
    state: Mutex<State>,
    /// Notified when there is something to do.
    work: Condvar,
    /// Notified when something is settled.
    settled: Condvar,
    stop: AtomicBool,
    /// Rows times keys that were scanned; for tests.
    scanned: AtomicU64,
    /// Slices that were scanned; for tests.
    slices: AtomicU64,
    reader: TweakReader,
    limits: Limits,
}

/// What waits for the thread.
#[derive(Default)]
struct State {
    arrivals: Vec<Subscriber>,
    updates: Vec<Update>,
    /// The last update's.
    tip: Option<(u32, BlockHash)>,
    next_id: u64,
    /// Scans that the thread runs.
    scans: usize,
    /// Everything up to this event was told.
    settled: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole values are put in and taken out, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl SilentService {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(setup: Setup) -> std::io::Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            settled: Condvar::new(),
            stop: AtomicBool::new(false),
            scanned: AtomicU64::new(0),
            slices: AtomicU64::new(0),
            reader: setup.reader.clone(),
            limits: setup.limits,
        });
        let worker = worker::Worker::new(Arc::clone(&shared), setup.reader);
        let engine = setup.engine;
        let thread = std::thread::Builder::new().name("silent".into()).spawn(move || worker.run(&engine))?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Takes in what happened. To be called in the order of events, when it is servable, and before the events are sent.
    pub fn update(&self, update: Update) {
        let mut state = self.shared.state();
        state.tip = update.tip;
        state.updates.push(update);
        drop(state);
        self.shared.work.notify_all();
    }

    /// Ends all scans at once, and all subscriptions.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that nobody is just between looking and waiting.
        drop(self.shared.state());
        self.shared.work.notify_all();
        self.shared.settled.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the scanning thread ended badly");
        }
    }

    /// The first block that may hold a transaction of this time or later.
    fn height_of_time(&self, time: u64, tip: u32) -> Result<u32> {
        let snapshot = self.shared.reader.snapshot().map_err(internal)?;
        let time = u32::try_from(time.saturating_sub(CLOCKS)).unwrap_or(u32::MAX);
        // What is later than everything begins with the next block.
        Ok(snapshot.first_height_at_or_after_time(time).unwrap_or(tip + 1).min(tip + 1))
    }
}

fn internal(error: StoreError) -> NodeError {
    NodeError::Internal(error.to_string())
}

impl SilentPayments for SilentService {
    fn subscribe(&self, request: ScanRequest) -> Result<Subscription> {
        let tip = self.shared.state().tip.map_or(0, |(height, _)| height);
        let (from, to) = match request.start {
            Start::Height(height) => (height, None),
            Start::Time(time) => (self.height_of_time(time, tip)?, None),
            Start::Range { from, to } if from > to => {
                return Err(NodeError::Invalid(format!("the range {from}-{to} ends before it begins")));
            }
            Start::Range { to, .. } if to > tip => {
                return Err(NodeError::Invalid(format!("the range ends at {to}, above the tip {tip}")));
            }
            Start::Range { from, to } => (from, Some(to)),
        };
        let from = request.not_after.map_or(from, |before| before.min(from));
        let (sender, notifications) = mpsc::unbounded_channel();
        let mut state = self.shared.state();
        if self.shared.stopping() {
            return Err(NodeError::Busy("the server is stopping".into()));
        }
        if state.scans + state.arrivals.len() >= self.shared.limits.scans {
            return Err(NodeError::Busy(format!(
                "too many scans wait: {} are allowed; try again later",
                self.shared.limits.scans
            )));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.arrivals.push(Subscriber::new(id, request.target, sender, from, to));
        drop(state);
        self.shared.work.notify_all();
        Ok(Subscription { start_height: from, notifications })
    }

    fn settle(&self, sequence: u64) {
        let mut state = self.shared.state();
        while state.settled < sequence && !self.shared.stopping() {
            state = self.shared.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
