//! One subscription: what it still has to look at, and what it was told.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bitcoin::Txid;
use peregrine_index::store::Snapshot;
use peregrine_scanner::ScanTarget;
use tokio::sync::mpsc::UnboundedSender;

use super::heights::Heights;
use crate::node::{Notification, SilentPayment};

/// An empty notification comes at least this often while it scans.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// A progress that isn't the end yet.
const ALMOST: f64 = 0.999;

/// A subscription. Its keys are wiped when it is dropped.
pub(super) struct Subscriber {
    pub(super) id: u64,
    pub(super) target: ScanTarget,
    sender: UnboundedSender<Notification>,
    /// The heights that it is about; the end is open unless it asked for a range.
    from: u32,
    to: Option<u32>,
    /// What it still has to look at.
    remaining: Heights,
    /// Found, but blocks before it aren't looked at yet: by height and position in the block.
    found: BTreeMap<(u32, u32), SilentPayment>,
    /// Transactions that it was told of while they were in the mempool.
    told_unconfirmed: HashSet<Txid>,
    /// Whether all that was there at its start was told.
    complete: bool,
    progress: f64,
    told: Instant,
}

impl Subscriber {
    pub(super) fn new(
        id: u64,
        target: ScanTarget,
        sender: UnboundedSender<Notification>,
        from: u32,
        to: Option<u32>,
    ) -> Self {
        Self {
            id,
            target,
            sender,
            from,
            to,
            remaining: Heights::default(),
            found: BTreeMap::new(),
            told_unconfirmed: HashSet::new(),
            complete: false,
            progress: 0.0,
            told: Instant::now(),
        }
    }

    /// Whether nobody listens any more.
    pub(super) fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether it wants to hear of the mempool.
    pub(super) fn is_open(&self) -> bool {
        self.to.is_none()
    }

    pub(super) fn remaining(&self) -> &Heights {
        &self.remaining
    }

    /// These blocks were added, or replaced others.
    pub(super) fn add(&mut self, heights: RangeInclusive<u32>) {
        let (from, to) = heights.into_inner();
        self.remaining.insert(from.max(self.from)..=to.min(self.to.unwrap_or(u32::MAX)));
    }

    /// The chain ends with this height now, for the time being.
    pub(super) fn cut(&mut self, tip: u32) {
        if let Some(above) = tip.checked_add(1) {
            self.remaining.remove(&(above..=u32::MAX));
            self.found.retain(|(height, _), _| *height <= tip);
        }
    }

    /// Something was found in a block; whoever isn't about it doesn't take it.
    pub(super) fn found(&mut self, height: u32, position: u32, payment: SilentPayment) {
        if self.remaining.contains(height) && !self.told_unconfirmed.contains(&payment.txid) {
            self.found.insert((height, position), payment);
        }
    }

    /// These heights were looked at.
    pub(super) fn scanned(&mut self, heights: &RangeInclusive<u32>) {
        self.remaining.remove(heights);
    }

    /// Tells what is in order: found below all that remains. With nothing to tell, tells at times that it is alive.
    pub(super) fn report(&mut self, progress: f64) {
        let rest = match self.remaining.first() {
            Some(first) => self.found.split_off(&(first, 0)),
            None if self.complete => BTreeMap::new(),
            // The last word is said together with the mempool.
            None => return,
        };
        let ready = std::mem::replace(&mut self.found, rest);
        self.progress = if self.complete { 1.0 } else { progress.clamp(self.progress, ALMOST) };
        if !ready.is_empty() || (!self.complete && self.told.elapsed() >= HEARTBEAT) {
            self.tell(ready.into_values().collect());
        }
    }

    /// Whether only the mempool is missing.
    pub(super) fn is_finishing(&self) -> bool {
        !self.complete && self.remaining.is_empty()
    }

    /// Everything old was looked at, and the mempool: the last word of the scan.
    pub(super) fn finish(&mut self, unconfirmed: Vec<SilentPayment>) {
        let mut found: Vec<SilentPayment> = std::mem::take(&mut self.found).into_values().collect();
        found.extend(self.unheard(unconfirmed));
        self.complete = true;
        self.progress = 1.0;
        self.tell(found);
    }

    /// Tells of transactions that came into the mempool.
    pub(super) fn unconfirmed(&mut self, found: Vec<SilentPayment>) {
        let found = self.unheard(found);
        if !found.is_empty() {
            self.tell(found);
        }
    }

    fn unheard(&mut self, mut found: Vec<SilentPayment>) -> Vec<SilentPayment> {
        found.retain(|payment| self.told_unconfirmed.insert(payment.txid));
        found
    }

    fn tell(&mut self, found: Vec<SilentPayment>) {
        self.told = Instant::now();
        // If nobody listens any more, this is dropped soon.
        let _ = self.sender.send(Notification { progress: self.progress, found });
    }

    /// Rows that remain, as far as the index has them.
    pub(super) fn rows(&self, snapshot: &Snapshot) -> u64 {
        self.remaining.ranges().map(|range| rows(snapshot, range)).sum()
    }

    /// Rows of all its heights, as far as the index has them.
    pub(super) fn all_rows(&self, snapshot: &Snapshot, tip: u32) -> u64 {
        rows(snapshot, self.from..=tip.min(self.to.unwrap_or(u32::MAX)))
    }
}

/// Number of rows at these heights, as far as the index has them.
fn rows(snapshot: &Snapshot, heights: RangeInclusive<u32>) -> u64 {
    let Some(all) = snapshot.heights() else { return 0 };
    let heights = *heights.start().max(all.start())..=*heights.end().min(all.end());
    if heights.is_empty() {
        return 0;
    }
    snapshot.rows_of_heights(heights).map_or(0, |rows| rows.end - rows.start)
}
