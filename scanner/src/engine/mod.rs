//! Cuts rows into parts, spreads the parts over cores and devices, and confirms what a backend finds.

mod queue;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rayon::prelude::*;

use crate::backend::{Backend, Candidate, DeviceScan, DeviceStatus, PreparedScan, RowBatch, reference};
use crate::keys::ScanTarget;
use crate::tweak::Tweak;
use queue::{Queue, Taken};

/// A row in which libsecp256k1 confirmed what a backend found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Number of the row, counted over the whole index.
    pub row: u64,
    /// Which of the targets.
    pub target: usize,
    /// The transaction's tweak.
    pub tweak: Tweak,
    /// The slots that match (see [`Candidate::slot`]): 0 without a label, else 1 + index of the label. Ascending.
    pub slots: Vec<u32>,
}

/// What a running scan is told and tells. The callbacks come from many threads at once.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Set it to stop the scan within 100 ms.
    pub cancel: &'a AtomicBool,
    /// Called after every part with the number of rows done so far.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Why a scan ended early.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Somebody set [`Control::cancel`].
    #[error("the scan was cancelled")]
    Cancelled,
    /// The threads could not be started.
    #[error("can't start the scan threads: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// A backend and the threads that run it.
pub struct Engine {
    backend: Box<dyn Backend>,
    pool: rayon::ThreadPool,
}

impl Engine {
    /// An engine with so many threads; 0 stands for one per core.
    pub fn new(backend: Box<dyn Backend>, threads: usize) -> Result<Self, ScanError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("scan-{index}"))
            .build()?;
        Ok(Self { backend, pool })
    }

    /// Name of the backend.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// The devices that the backend uses.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        self.backend.devices()
    }

    /// Number of threads that compute; those that feed devices aren't counted.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Does the work that depends on the targets only, for any number of scans.
    pub fn prepare(&self, targets: &[ScanTarget]) -> PreparedTargets<'_> {
        PreparedTargets { engine: self, prepared: self.backend.prepare(targets), targets: targets.to_vec() }
    }

    /// Scans all rows of `batches` for all targets. Matches come in the order of rows, then targets.
    pub fn scan(
        &self,
        targets: &[ScanTarget],
        batches: &[RowBatch<'_>],
        control: Control<'_>,
    ) -> Result<Vec<Match>, ScanError> {
        self.prepare(targets).scan(batches, control)
    }
}

/// An engine that is ready to scan for a set of targets.
pub struct PreparedTargets<'a> {
    engine: &'a Engine,
    prepared: Box<dyn PreparedScan>,
    targets: Vec<ScanTarget>,
}

impl PreparedTargets<'_> {
    /// Scans all rows of `batches`. Matches come in the order of rows, then targets.
    pub fn scan(&self, batches: &[RowBatch<'_>], control: Control<'_>) -> Result<Vec<Match>, ScanError> {
        let total = batches.iter().map(RowBatch::len).sum();
        let outcome = Outcome { control, done: AtomicU64::new(0), matches: Mutex::new(Vec::new()) };
        match self.prepared.devices() {
            Some(devices) if devices.is_worthwhile(total) => {
                self.scan_on_devices(devices, batches, &outcome)?
            }
            Some(devices) => self.scan_in_parts(devices.processor(), batches, total, &outcome)?,
            None => self.scan_in_parts(&*self.prepared, batches, total, &outcome)?,
        }
        let mut matches = outcome.matches.into_inner().expect("no thread panics while it holds the list");
        matches.sort_by_key(|found: &Match| (found.row, found.target));
        Ok(matches)
    }

    fn scan_in_parts(
        &self,
        prepared: &dyn PreparedScan,
        batches: &[RowBatch<'_>],
        total: usize,
        outcome: &Outcome<'_>,
    ) -> Result<(), ScanError> {
        let parts = cut(batches, part_rows(total, prepared.batch_rows(), self.engine.threads()));
        self.engine.pool.install(|| {
            parts.par_iter().try_for_each(|(batch, rows)| {
                outcome.go_on()?;
                let part = batches[*batch].slice(rows.clone());
                outcome.add(rows.len(), self.confirmed(part, |found| prepared.scan(part, found)));
                Ok(())
            })
        })
    }

    fn scan_on_devices(
        &self,
        devices: &dyn DeviceScan,
        batches: &[RowBatch<'_>],
        outcome: &Outcome<'_>,
    ) -> Result<(), ScanError> {
        let queue = Queue::new(batches);
        let workers = self.engine.backend.feeders() + self.engine.threads();
        // Threads of their own: those of the pool may wait for each other when there are several scans.
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers)
                .map(|worker| {
                    let queue = &queue;
                    scope.spawn(move || self.work(worker, devices, batches, queue, outcome))
                })
                .collect();
            let results = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // Every thread is waited for.
            results.fold(Ok(()), Result::and)
        })
    }

    fn work(
        &self,
        worker: usize,
        devices: &dyn DeviceScan,
        batches: &[RowBatch<'_>],
        queue: &Queue<'_>,
        outcome: &Outcome<'_>,
    ) -> Result<(), ScanError> {
        /// A thread that ends early would be waited for.
        struct Ending<'a>(&'a Queue<'a>, bool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.stop();
                }
            }
        }
        let mut ending = Ending(queue, false);
        let processor = devices.processor();
        let rows = processor.batch_rows();
        loop {
            outcome.go_on()?;
            let role = devices.role(worker);
            let (piece, on_device) = match queue.take(role, rows) {
                Taken::Part(piece) => (piece, matches!(role, crate::backend::Role::Device { .. })),
                Taken::ForProcessor(piece) => (piece, false),
                Taken::AskAgain => continue,
                Taken::Nothing => break,
            };
            let part = batches[piece.0].slice(piece.1.clone());
            if on_device {
                let mut handed_back = false;
                let matches = self.confirmed(part, |found| {
                    handed_back = devices.scan(worker, part, found).is_err();
                });
                if !handed_back {
                    outcome.add(part.len(), matches);
                }
                queue.done(handed_back.then_some(piece));
            } else {
                outcome.add(part.len(), self.confirmed(part, |found| processor.scan(part, found)));
            }
        }
        ending.1 = true;
        Ok(())
    }

    /// What `scan` finds, as far as libsecp256k1 confirms it.
    fn confirmed(&self, part: RowBatch<'_>, scan: impl FnOnce(&mut Vec<Candidate>)) -> Vec<Match> {
        let mut candidates = Vec::new();
        scan(&mut candidates);
        let rows: BTreeSet<(u32, u32)> = candidates.iter().map(|c: &Candidate| (c.row, c.target)).collect();
        rows.into_iter()
            .filter_map(|(row, target)| {
                let point = &part.points[row as usize];
                let outputs = part.row_outputs(row as usize);
                let slots = reference::row_slots(&self.targets[target as usize], point, outputs);
                // A candidate that the reference doesn't confirm is a backend's mistake; it must not reach anybody.
                let tweak = Tweak::from_row(point).filter(|_| !slots.is_empty())?;
                Some(Match { row: part.first_row + u64::from(row), target: target as usize, tweak, slots })
            })
            .collect()
    }
}

/// What the threads of a scan have in common.
struct Outcome<'a> {
    control: Control<'a>,
    done: AtomicU64,
    matches: Mutex<Vec<Match>>,
}

impl Outcome<'_> {
    fn go_on(&self) -> Result<(), ScanError> {
        if self.control.cancel.load(Ordering::Relaxed) { Err(ScanError::Cancelled) } else { Ok(()) }
    }

    /// So many rows are done.
    fn add(&self, rows: usize, found: Vec<Match>) {
        if !found.is_empty() {
            self.matches.lock().expect("no thread panics while it holds the list").extend(found);
        }
        let done = self.done.fetch_add(rows as u64, Ordering::Relaxed) + rows as u64;
        (self.control.progress)(done);
    }
}

/// With more rounds than these the last one doesn't count.
const EVEN_ROUNDS: usize = 16;
/// Rows that the widest backend computes together.
const LANES: usize = 8;

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({}, {} threads)", self.backend(), self.threads())
    }
}

/// Rows of a part: at most `most`, and so that a few thousand rows are spread evenly, since threads without a part wait for
/// the others.
fn part_rows(total: usize, most: usize, threads: usize) -> usize {
    let rounds = total.div_ceil(most * threads).max(1);
    if rounds > EVEN_ROUNDS {
        return most;
    }
    total.div_ceil(rounds * threads).next_multiple_of(LANES).clamp(1, most)
}

/// Parts of at most `size` rows, as (batch, rows of the batch).
fn cut(batches: &[RowBatch<'_>], size: usize) -> Vec<(usize, Range<usize>)> {
    batches
        .iter()
        .enumerate()
        .flat_map(|(number, batch)| {
            let rows = batch.len();
            (0..rows).step_by(size).map(move |from| (number, from..rows.min(from + size)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_spread_evenly_and_many_in_full_parts() {
        for (total, most, threads, size) in [
            (0, 512, 2, 1),
            (1, 512, 2, 8),
            (512, 512, 2, 256),
            (1024, 512, 2, 512),
            (1025, 512, 2, 264),
            (3675, 512, 2, 464),
            (3675, 512, 1, 464),
            (3675, 512, 16, 232),
            (1_000_000, 512, 2, 512),
            (100, 1, 4, 1),
        ] {
            let rows = part_rows(total, most, threads);
            assert_eq!(rows, size, "{total} rows, {most}, {threads} threads");
            let parts = total.div_ceil(rows);
            let rounds = total.div_ceil(most * threads);
            assert!(parts.div_ceil(threads) <= rounds, "no more rounds than without");
        }
    }
}
