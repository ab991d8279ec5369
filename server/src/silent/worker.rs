//! The thread that scans.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bitcoin::{BlockHash, Txid};
use peregrine_index::mempool::MempoolRow;
use peregrine_index::scan::{IndexScanError, scan_rows};
use peregrine_index::store::{Snapshot, StoreError, TweakReader};
use peregrine_scanner::{Control, Engine, PreparedTargets, RowBatch, ScanTarget};

use super::subscriber::Subscriber;
use super::{Shared, State, Update};
use crate::node::SilentPayment;

/// How long a slice is to take. Nothing is interrupted within one but by the end of the service.
const SLICE: Duration = Duration::from_millis(100);
/// Keys that are scanned together at most. More would save little, and make slices coarse.
const KEYS: usize = 64;
/// Rows of a slice at least: below, the fixed costs of a slice would count.
const MIN_ROWS: u64 = 2_048;
const MAX_ROWS: u64 = 1 << 20;
/// Rows times keys per second that are assumed before anything was measured.
const FIRST_RATE: f64 = 20_000.0;
/// How often subscriptions are looked for that nobody listens to any more.
const REAP: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    shared: Arc<Shared>,
    reader: TweakReader,
    subscribers: BTreeMap<u64, Subscriber>,
    /// The mempool's transactions that may hold a payment.
    mempool: HashMap<Txid, MempoolRow>,
    /// New ones that subscriptions which follow the chain don't know yet.
    fresh: Vec<Txid>,
    tip: Option<(u32, BlockHash)>,
    /// The last event that was taken in.
    sequence: u64,
    /// Rows times keys per second.
    rate: f64,
    /// Counts slices, to take turns.
    turn: u64,
    /// What was wrong with the index, once said.
    trouble: Option<String>,
}

/// Keys that are made ready. They are wiped with it.
struct Ready<'e> {
    ids: Vec<u64>,
    prepared: PreparedTargets<'e>,
}

/// What there is to do.
enum Next {
    Slice,
    Wait,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, reader: TweakReader) -> Self {
        Self {
            shared,
            reader,
            subscribers: BTreeMap::new(),
            mempool: HashMap::new(),
            fresh: Vec::new(),
            tip: None,
            sequence: 0,
            rate: FIRST_RATE,
            turn: 0,
            trouble: None,
        }
    }

    pub(super) fn run(mut self, engine: &Engine) {
        let mut ready: Option<Ready<'_>> = None;
        while !self.shared.stopping() {
            self.take_in();
            // Keys of a subscription that ended are not kept.
            if ready
                .as_ref()
                .is_some_and(|ready| ready.ids.iter().any(|id| !self.subscribers.contains_key(id)))
            {
                ready = None;
            }
            let work = AssertUnwindSafe(|| self.step(engine, &mut ready));
            let next = match catch_unwind(work) {
                Ok(next) => next,
                Err(_) => {
                    // The panic hook has said where. Whoever was being scanned for must not believe that all is well.
                    tracing::error!("a scan failed in a way that nobody expected; its subscriptions end");
                    let ids = ready
                        .take()
                        .map_or_else(|| self.subscribers.keys().copied().collect(), |ready| ready.ids);
                    ids.iter().for_each(|id| drop(self.subscribers.remove(id)));
                    Next::Slice
                }
            };
            self.settle();
            if let Next::Wait = next {
                self.wait();
            }
        }
        // Whoever waits for something to settle is let go.
        self.shared.settled.notify_all();
    }

    /// Takes in what came from outside.
    fn take_in(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let State { arrivals, updates, .. } = &mut *state;
        let (arrivals, updates) = (std::mem::take(arrivals), std::mem::take(updates));
        // They count as scans from now on.
        state.scans += arrivals.len();
        drop(state);
        for update in updates {
            self.update(update);
        }
        for mut subscriber in arrivals {
            if let Some((tip, _)) = self.tip {
                subscriber.add(0..=tip);
            }
            self.subscribers.insert(subscriber.id, subscriber);
        }
        self.subscribers.retain(|_, subscriber| !subscriber.is_gone());
        let scans = self.subscribers.values().filter(|subscriber| !subscriber.is_complete()).count();
        shared.state().scans = scans;
    }

    fn update(&mut self, update: Update) {
        self.sequence = update.sequence;
        let before = self.tip.map(|(height, _)| height);
        let stays = match (before, update.fork) {
            (Some(before), Some(fork)) => Some(before.min(fork)),
            (before, _) => before,
        };
        self.tip = update.tip;
        for subscriber in self.subscribers.values_mut() {
            if let Some(stays) = stays {
                subscriber.cut(stays);
            }
            if let Some((tip, _)) = update.tip {
                subscriber.add(stays.map_or(0, |stays| stays.saturating_add(1))..=tip);
            }
        }
        for txid in &update.gone {
            self.mempool.remove(txid);
        }
        for row in update.added {
            self.fresh.push(row.txid);
            self.mempool.insert(row.txid, row);
        }
    }

    /// Does one piece of work.
    fn step<'e>(&mut self, engine: &'e Engine, ready: &mut Option<Ready<'e>>) -> Next {
        if self.tip.is_none() || self.subscribers.is_empty() {
            self.fresh.clear();
            return Next::Wait;
        }
        // New blocks for those that follow the chain go before everything. Then the mempool, which is small: nobody whose
        // blocks are done waits for those whose aren't.
        let behind = |subscriber: &Subscriber| subscriber.is_complete() && !subscriber.remaining().is_empty();
        let mempool = !self.fresh.is_empty() || self.subscribers.values().any(Subscriber::is_finishing);
        if mempool && !self.subscribers.values().any(behind) {
            self.scan_mempool(engine);
            return Next::Slice;
        }
        if self.subscribers.values().any(|subscriber| !subscriber.remaining().is_empty()) {
            return match self.slice(engine, ready) {
                Ok(next) => {
                    self.trouble = None;
                    next
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.trouble.as_ref() != Some(&text) {
                        tracing::error!("can't scan: {text}");
                        self.trouble = Some(text);
                    }
                    Next::Wait
                }
            };
        }
        Next::Wait
    }

    /// Scans one slice for all that have to look at it.
    fn slice<'e>(&mut self, engine: &'e Engine, ready: &mut Option<Ready<'e>>) -> Result<Next, StoreError> {
        let Some((tip, hash)) = self.tip else { return Ok(Next::Wait) };
        let snapshot = self.reader.snapshot()?;
        let start = snapshot.start_height();
        if let Some(below) = start.checked_sub(1) {
            self.subscribers.values_mut().for_each(|subscriber| subscriber.scanned(&(0..=below.min(tip))));
        }
        // An index that is on its way to another branch isn't scanned: what it has may not be servable yet.
        if tip >= start && snapshot.block(tip).map_or(true, |block| block.hash != hash) {
            return Ok(Next::Wait);
        }
        let Some(first) = self.choose(&snapshot) else {
            self.report(&snapshot, tip);
            return Ok(Next::Slice);
        };
        let Some(range) = self.subscribers[&first].remaining().ranges().next() else {
            return Ok(Next::Slice);
        };
        // The chosen one is among them, and then the oldest.
        let mut ids = vec![first];
        let fellows = self.subscribers.values().filter(|other| other.id != first);
        let meets = |heights: &RangeInclusive<u32>| {
            let heights = heights.clone();
            move |other: &&Subscriber| other.remaining().meets(&heights)
        };
        let fellows: Vec<&Subscriber> = fellows.collect();
        let count = 1 + fellows.iter().filter(|other| other.remaining().contains(*range.start())).count();
        let heights = self.cut(&snapshot, range, count.min(KEYS));
        ids.extend(fellows.into_iter().filter(meets(&heights)).map(|other| other.id).take(KEYS - 1));
        // In an order of its own, so that taking turns doesn't make keys ready anew.
        ids.sort_unstable();

        let rows = snapshot.rows_of_heights(heights.clone())?;
        let prepared = match ready {
            Some(ready) if ready.ids == ids => ready,
            _ => {
                *ready = None;
                let targets: Vec<ScanTarget> =
                    ids.iter().map(|id| self.subscribers[id].target.clone()).collect();
                ready.insert(Ready { prepared: engine.prepare(&targets), ids: ids.clone() })
            }
        };
        let started = Instant::now();
        let count = rows.end - rows.start;
        let result = scan_rows(&snapshot, &prepared.prepared, rows, 0, &self.shared.stop, &|_, _| {});
        if !snapshot.is_current()? {
            // Blocks were taken back meanwhile; the same heights are looked at again.
            return Ok(Next::Wait);
        }
        let found = match result {
            Ok((_, found)) => found,
            Err(IndexScanError::Store(error)) => return Err(error),
            Err(IndexScanError::Scan(_)) => return Ok(Next::Wait),
        };
        self.measure(count * ids.len() as u64, started.elapsed());
        for transaction in found {
            if let Some(subscriber) = self.subscribers.get_mut(&ids[transaction.target]) {
                let payment = SilentPayment {
                    height: Some(transaction.height),
                    txid: transaction.txid,
                    tweak: transaction.tweak.0,
                };
                subscriber.found(transaction.height, transaction.position, payment);
            }
        }
        for id in &ids {
            if let Some(subscriber) = self.subscribers.get_mut(id) {
                subscriber.scanned(&heights);
            }
        }
        self.report(&snapshot, tip);
        self.turn += 1;
        Ok(Next::Slice)
    }

    /// Whose slice is next.
    fn choose(&self, snapshot: &Snapshot) -> Option<u64> {
        let waiting = || self.subscribers.values().filter(|subscriber| !subscriber.remaining().is_empty());
        if let Some(follower) = waiting().find(|subscriber| subscriber.is_complete()) {
            return Some(follower.id);
        }
        if self.turn.is_multiple_of(2) {
            return waiting().next().map(|oldest| oldest.id);
        }
        waiting().min_by_key(|subscriber| subscriber.rows(snapshot)).map(|shortest| shortest.id)
    }

    /// The first blocks of a range, about as many as fit a slice for so many keys.
    fn cut(&self, snapshot: &Snapshot, range: RangeInclusive<u32>, keys: usize) -> RangeInclusive<u32> {
        let budget = self.rate * SLICE.as_secs_f64() / keys.max(1) as f64;
        let budget = (budget as u64).clamp(MIN_ROWS, MAX_ROWS);
        let rows =
            |to: u32| snapshot.rows_of_heights(*range.start()..=to).map_or(0, |rows| rows.end - rows.start);
        let (mut fits, mut end) = (*range.start(), *range.end());
        while fits < end {
            let middle = fits + (end - fits).div_ceil(2);
            if rows(middle) <= budget { fits = middle } else { end = middle - 1 }
        }
        *range.start()..=fits
    }

    fn measure(&mut self, work: u64, time: Duration) {
        self.shared.scanned.fetch_add(work, Ordering::Relaxed);
        self.shared.slices.fetch_add(1, Ordering::Relaxed);
        if work >= MIN_ROWS {
            let rate = work as f64 / time.as_secs_f64().max(1e-6);
            // Half of the old value: one odd slice doesn't make the next one much too long.
            self.rate = (self.rate + rate) / 2.0;
        }
    }

    fn report(&mut self, snapshot: &Snapshot, tip: u32) {
        for subscriber in self.subscribers.values_mut() {
            let (all, left) = (subscriber.all_rows(snapshot, tip), subscriber.rows(snapshot));
            subscriber.report(1.0 - left as f64 / all.max(1) as f64);
        }
    }

    /// Looks through the mempool: through all of it for those whose scan is otherwise done, through what is new for the
    /// others.
    fn scan_mempool(&mut self, engine: &Engine) {
        let finishing: Vec<u64> = self.ids(Subscriber::is_finishing);
        if !finishing.is_empty() {
            let open: Vec<u64> = self.ids(|subscriber| subscriber.is_finishing() && subscriber.is_open());
            let all: Vec<Txid> = self.mempool.keys().copied().collect();
            let Some(mut found) = self.find(engine, &open, &all) else { return };
            for id in finishing {
                if let Some(subscriber) = self.subscribers.get_mut(&id) {
                    subscriber.finish(found.remove(&id).unwrap_or_default());
                }
            }
        }
        let fresh = std::mem::take(&mut self.fresh);
        if !fresh.is_empty() {
            let following = self.ids(|subscriber| subscriber.is_complete() && subscriber.is_open());
            let Some(found) = self.find(engine, &following, &fresh) else { return };
            for (id, found) in found {
                if let Some(subscriber) = self.subscribers.get_mut(&id) {
                    subscriber.unconfirmed(found);
                }
            }
        }
    }

    fn ids(&self, which: impl Fn(&Subscriber) -> bool) -> Vec<u64> {
        self.subscribers
            .values()
            .filter(|subscriber| which(subscriber))
            .map(|subscriber| subscriber.id)
            .collect()
    }

    /// What these transactions of the mempool hold for these subscriptions. `None` when the service is stopping.
    fn find(&self, engine: &Engine, ids: &[u64], txids: &[Txid]) -> Option<HashMap<u64, Vec<SilentPayment>>> {
        let rows: Vec<&MempoolRow> = txids.iter().filter_map(|txid| self.mempool.get(txid)).collect();
        let mut all: HashMap<u64, Vec<SilentPayment>> = HashMap::new();
        if rows.is_empty() {
            return Some(all);
        }
        let points: Vec<[u8; 64]> = rows.iter().map(|row| row.point).collect();
        let outputs: Vec<[u8; 8]> = rows.iter().flat_map(|row| row.outputs.iter().copied()).collect();
        let ends = rows.iter().scan(0u32, |end, row| {
            *end += row.outputs.len() as u32;
            Some(*end)
        });
        let output_ends: Vec<u32> = ends.collect();
        let batch = RowBatch {
            // Of no index: no device keeps it.
            place: None,
            first_row: 0,
            points: &points,
            output_ends: &output_ends,
            outputs_base: 0,
            outputs: &outputs,
        };
        for ids in ids.chunks(KEYS) {
            let targets: Vec<ScanTarget> =
                ids.iter().filter_map(|id| self.subscribers.get(id)).map(|s| s.target.clone()).collect();
            let control = Control { cancel: &self.shared.stop, progress: &|_| {} };
            let matches = engine.scan(&targets, &[batch], control).ok()?;
            for found in matches {
                let payment =
                    SilentPayment { height: None, txid: rows[found.row as usize].txid, tweak: found.tweak.0 };
                all.entry(ids[found.target]).or_default().push(payment);
            }
        }
        Some(all)
    }

    /// Says that everything was told, if it was.
    fn settle(&self) {
        let behind = |subscriber: &Subscriber| subscriber.is_complete() && !subscriber.remaining().is_empty();
        if self.fresh.is_empty() && !self.subscribers.values().any(behind) {
            self.shared.state().settled = self.sequence;
            self.shared.settled.notify_all();
        }
    }

    /// Until something comes, or it is time to look after subscriptions that ended.
    fn wait(&self) {
        let state = self.shared.state();
        if state.arrivals.is_empty() && state.updates.is_empty() && !self.shared.stopping() {
            let idle = self.subscribers.is_empty();
            let time = if idle { Duration::from_secs(3600) } else { REAP };
            let waited = self.shared.work.wait_timeout(state, time);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}
