//! Threads that help with large batches, whose requests would wait for the disk or the node one by one.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Threads that all connections share.
pub(super) struct Helpers {
    pool: ThreadPool,
    /// Threads with nothing to do. Nobody gets more, so that no batch waits for another's requests.
    free: AtomicUsize,
}

impl Helpers {
    pub(super) fn new(threads: usize) -> anyhow::Result<Self> {
        let name = |number| format!("batch {number}");
        let pool = ThreadPoolBuilder::new().num_threads(threads.max(1)).thread_name(name).build()?;
        Ok(Self { pool, free: AtomicUsize::new(threads) })
    }

    /// Calls `work` here and in as many threads as are free, up to `wanted` and half of all. Returns when all calls have.
    pub(super) fn with(&self, wanted: usize, work: impl Fn() + Sync) {
        let wanted = wanted.min(self.pool.current_num_threads().div_ceil(2));
        let take = |free: usize| Some(free - free.min(wanted));
        let free = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or_default();
        self.pool.in_place_scope(|scope| {
            for _ in 0..free.min(wanted) {
                let back = Back(&self.free);
                scope.spawn(|_| {
                    let _back = back;
                    work();
                });
            }
            work();
        });
    }
}

/// Counts a thread as free again, also after a panic.
struct Back<'a>(&'a AtomicUsize);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::Barrier;

    use super::*;

    fn calls(helpers: &Helpers, wanted: usize) -> usize {
        let calls = AtomicUsize::new(0);
        helpers.with(wanted, || _ = calls.fetch_add(1, Ordering::Relaxed));
        calls.into_inner()
    }

    #[test]
    fn threads_help_and_come_back() {
        let helpers = Helpers::new(4).unwrap();
        for _ in 0..3 {
            // Only passes if two threads and this one are there at the same time.
            let all = Barrier::new(3);
            helpers.with(9, || _ = all.wait());
        }
        assert_eq!(calls(&helpers, 1), 2);
        let panic = AssertUnwindSafe(|| helpers.with(2, || panic!("on purpose")));
        let panicked = std::panic::catch_unwind(panic);
        assert!(panicked.is_err());
        // The last ones may be on their way back still.
        while helpers.free.load(Ordering::Relaxed) < 4 {
            std::thread::yield_now();
        }
        assert_eq!(calls(&helpers, 9), 3);
    }

    #[test]
    fn nobody_waits_for_busy_threads() {
        let helpers = Helpers::new(4).unwrap();
        helpers.free.store(1, Ordering::Relaxed);
        assert_eq!(calls(&helpers, 9), 2);
        helpers.free.store(0, Ordering::Relaxed);
        assert_eq!(calls(&helpers, 9), 1);
        assert_eq!(calls(&Helpers::new(0).unwrap(), 9), 1);
    }
}
