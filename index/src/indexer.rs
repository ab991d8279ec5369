//! Follows a chain source and writes what it adds to the tweak index.
//!
//! Many blocks are fetched and computed at once, by as many threads as requests may be in flight; the calling thread
//! appends them in order. A source that is away is waited for; a reorganisation is rolled back to the last common
//! block, however deep.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bitcoin::BlockHash;
use bitcoin::block::Header;
use peregrine_scanner::batch::TweakMethod;

use crate::rows::BlockRows;
use crate::source::{ChainSource, SourceError, Tip, WaitError, WaitEvent, Waiter};
use crate::store::{StoreError, TweakIndexWriter};

/// Headers per request; what bitcoind gives at most.
const HEADERS: usize = 2000;

/// While catching up, what was appended is brought to stable storage this often.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// How often a block is asked for again when what came was invalid.
const INVALID_TRIES: u32 = 3;

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Stop after this height; `None` for the tip.
    pub to: Option<u32>,
    /// At the tip, wait for more blocks until cancelled.
    pub follow: bool,
    /// How many blocks may be fetched and computed at once; at least 1.
    pub requests: usize,
    /// How often to look for a new block at the tip.
    pub poll: Duration,
    /// How tweaks are computed.
    pub tweaks: TweakMethod,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            to: None,
            follow: false,
            requests: 8,
            poll: Duration::from_secs(1),
            tweaks: TweakMethod::Plain,
        }
    }
}

/// What happens on the way.
#[derive(Clone, Debug)]
pub enum Event {
    /// The source is away, or back.
    Wait(WaitEvent),
    /// The source sent something that isn't the block that was asked for, and is asked again.
    Invalid(String),
    /// Blocks were appended. Comes for every block.
    Progress(Progress),
    /// Blocks were taken back: the chain goes on from another block than the index's tip.
    Reorganised {
        /// The tip before.
        from: u32,
        /// The tip now; `None` if nothing is left.
        to: Option<u32>,
    },
    /// The index has all blocks of the best chain, up to this height.
    AtTip(u32),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Height of the block just appended.
    pub height: u32,
    /// Height that is being worked towards, as known now.
    pub goal: u32,
    /// Blocks appended in this run.
    pub blocks: u64,
    /// Rows appended in this run.
    pub rows: u64,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Blocks appended.
    pub blocks: u64,
    /// Rows appended.
    pub rows: u64,
    /// Whether it ended because it was cancelled.
    pub cancelled: bool,
}

/// Why a run ended early. What was appended before is in the index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The index can't be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source keeps sending something invalid.
    #[error("{from}: {error}")]
    Source {
        /// The source.
        from: String,
        /// What is wrong.
        error: SourceError,
    },
}

/// A block on its way into the index.
struct Ready {
    header: Header,
    rows: BlockRows,
}

type Answer = Result<Ready, WaitError>;

/// Work for a thread: the block to get, and where to put it.
struct Job {
    hash: BlockHash,
    reply: SyncSender<Answer>,
}

/// A block that is being worked on.
struct Pending {
    height: u32,
    hash: BlockHash,
    answer: Receiver<Answer>,
}

/// Appends the source's blocks to the index until the goal is reached, or for ever with [`Options::follow`].
///
/// Returns within a second or so after `cancel` is set (a request that is under way ends first). `events` is called
/// from several threads.
pub fn run(
    source: &dyn ChainSource,
    index: &mut TweakIndexWriter,
    options: Options,
    cancel: &AtomicBool,
    events: &(dyn Fn(Event) + Sync),
) -> Result<Summary, IndexError> {
    let waiter = Waiter::new(cancel, |event: &WaitEvent| events(Event::Wait(event.clone())));
    let (jobs, queue) = sync_channel::<Job>(options.requests.max(1));
    let queue = Mutex::new(queue);
    let fetcher =
        Fetcher { source, waiter: &waiter, name: source.describe(), tweaks: options.tweaks, events };
    std::thread::scope(|scope| {
        for _ in 0..options.requests.max(1) {
            scope.spawn(|| fetcher.work(&queue));
        }
        let mut run = Run {
            fetcher: &fetcher,
            index,
            options,
            cancel,
            events,
            jobs: Some(jobs),
            pending: VecDeque::new(),
            headers: VecDeque::new(),
            summary: Summary::default(),
            goal: 0,
            tip: None,
            last_sync: Instant::now(),
        };
        let result = run.run();
        // Without senders the threads end.
        run.jobs = None;
        run.pending.clear();
        let summary = run.summary;
        index.sync()?;
        match result {
            Ok(()) => Ok(summary),
            Err(Stop::Cancelled) => Ok(Summary { cancelled: true, ..summary }),
            Err(Stop::Error(error)) => Err(error),
        }
    })
}

enum Stop {
    Cancelled,
    Error(IndexError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Error(error.into())
    }
}

/// Talks to the source.
struct Fetcher<'a> {
    source: &'a dyn ChainSource,
    waiter: &'a Waiter<'a>,
    name: String,
    tweaks: TweakMethod,
    events: &'a (dyn Fn(Event) + Sync),
}

impl Fetcher<'_> {
    /// What each thread does until no more jobs can come.
    fn work(&self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            // If nobody wants the answer any more, the chain was reorganised meanwhile.
            let _ = job.reply.send(self.block(job.hash));
        }
    }

    fn block(&self, hash: BlockHash) -> Answer {
        let mut tries = 0;
        loop {
            match self.call(|| self.source.block(hash)) {
                Ok(block) => {
                    return Ok(Ready {
                        header: block.block.header,
                        rows: BlockRows::of_block(&block, self.tweaks),
                    });
                }
                // A connection that broke in an unlucky place can look like this; a broken node looks like it for ever.
                Err(WaitError::Source(SourceError::Invalid(text))) if tries < INVALID_TRIES => {
                    tries += 1;
                    (self.events)(Event::Invalid(text));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn call<T>(&self, call: impl FnMut() -> Result<T, SourceError>) -> Result<T, WaitError> {
        self.waiter.run(&self.name, call)
    }

    fn stop(&self, error: WaitError) -> Stop {
        match error {
            WaitError::Cancelled => Stop::Cancelled,
            WaitError::Source(error) => Stop::Error(IndexError::Source { from: self.name.clone(), error }),
        }
    }
}

struct Run<'a> {
    fetcher: &'a Fetcher<'a>,
    index: &'a mut TweakIndexWriter,
    options: Options,
    cancel: &'a AtomicBool,
    events: &'a (dyn Fn(Event) + Sync),
    jobs: Option<SyncSender<Job>>,
    /// Blocks that follow the index's tip, in order, being worked on.
    pending: VecDeque<Pending>,
    /// Blocks that follow those, not being worked on yet.
    headers: VecDeque<(u32, BlockHash)>,
    summary: Summary,
    goal: u32,
    /// The source's tip when it was last asked.
    tip: Option<Tip>,
    last_sync: Instant,
}

impl Run<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        loop {
            self.check_cancelled()?;
            self.fill()?;
            if let Some(next) = self.pending.pop_front() {
                self.append(next)?;
                continue;
            }
            // Everything that is known is in the index.
            self.sync()?;
            if let Some((height, hash)) = self.index.tip()
                && self.tip == Some(Tip { height, hash })
            {
                (self.events)(Event::AtTip(height));
            }
            if self.options.to.is_some_and(|to| self.index.next_height() > to) {
                return Ok(());
            }
            if !self.options.follow {
                return Ok(());
            }
            self.pause(self.options.poll)?;
        }
    }

    /// Hands out work until as many blocks are pending as may be.
    fn fill(&mut self) -> Result<(), Stop> {
        // Twice as many as there are threads, so that a slow block at the front doesn't leave threads without work.
        let window = self.options.requests.max(1) * 2;
        while self.pending.len() < window {
            if self.headers.is_empty() && !self.more_headers()? {
                return Ok(());
            }
            let Some((height, hash)) = self.headers.pop_front() else { continue };
            let (reply, answer) = sync_channel(1);
            let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job { hash, reply }).is_ok());
            debug_assert!(sent, "the threads end after the sender is dropped");
            self.pending.push_back(Pending { height, hash, answer });
        }
        Ok(())
    }

    /// The last block that is known: pending, or else the index's tip.
    fn last_known(&self) -> Option<(u32, BlockHash)> {
        self.pending.back().map(|pending| (pending.height, pending.hash)).or_else(|| self.index.tip())
    }

    /// Asks for what follows the last known block; false if there is nothing (yet), true if it is worth looking again.
    fn more_headers(&mut self) -> Result<bool, Stop> {
        let next = self.last_known().map_or(self.index.params().start_height, |(height, _)| height + 1);
        if self.options.to.is_some_and(|to| next > to) {
            return Ok(false);
        }
        let fetcher = self.fetcher;
        let tip = fetcher.call(|| fetcher.source.tip()).map_err(|e| fetcher.stop(e))?;
        self.goal = self.options.to.map_or(tip.height, |to| to.min(tip.height));
        self.tip = Some(tip);
        let Some((height, hash)) = self.last_known() else {
            let first = fetcher.call(|| fetcher.source.hash_at(next)).map_err(|e| fetcher.stop(e))?;
            self.headers.extend(first.map(|hash| (next, hash)));
            return Ok(first.is_some());
        };
        if tip == (Tip { height, hash }) {
            return Ok(false);
        }
        let headers = fetcher
            .call(|| fetcher.source.headers_after(hash, height, HEADERS))
            .map_err(|e| fetcher.stop(e))?;
        let Some(headers) = headers else {
            self.reorganise()?;
            return Ok(true);
        };
        let heights = next..=self.options.to.unwrap_or(u32::MAX);
        self.headers.extend(heights.zip(headers.iter().map(Header::block_hash)));
        Ok(!self.headers.is_empty())
    }

    fn append(&mut self, next: Pending) -> Result<(), Stop> {
        // The threads outlive this, and answer every job.
        let answer = next.answer.recv().unwrap_or(Err(WaitError::Cancelled));
        match answer {
            Ok(ready) => {
                self.index.append(&ready.header, next.height, &ready.rows)?;
                self.summary.blocks += 1;
                self.summary.rows += ready.rows.len() as u64;
                (self.events)(Event::Progress(Progress {
                    height: next.height,
                    goal: self.goal.max(next.height),
                    blocks: self.summary.blocks,
                    rows: self.summary.rows,
                }));
                if self.last_sync.elapsed() >= SYNC_EVERY {
                    self.sync()?;
                }
                Ok(())
            }
            Err(WaitError::Source(SourceError::UnknownBlock(_))) => {
                // Its branch went away between the header and the block, or the node is another one now.
                self.forget();
                self.pause(Duration::from_millis(200))
            }
            Err(error) => Err(self.fetcher.stop(error)),
        }
    }

    /// The last known block isn't on the best chain: rolls the index back to where the best chain leaves it.
    fn reorganise(&mut self) -> Result<(), Stop> {
        self.forget();
        let Some((tip, _)) = self.index.tip() else { return Ok(()) };
        let fork = self.fork(tip)?;
        // Only the blocks that were pending were stale.
        if fork == Some(tip) {
            return Ok(());
        }
        self.index.rollback_to(fork)?;
        (self.events)(Event::Reorganised { from: tip, to: fork });
        Ok(())
    }

    /// The highest height at which the index and the best chain have the same block; `None` if there is none.
    ///
    /// Goes back in doubling steps, then halves the last step: the same block has the same ancestors.
    fn fork(&mut self, tip: u32) -> Result<Option<u32>, Stop> {
        let start = self.index.params().start_height;
        let mut step = 1;
        let mut different = tip + 1;
        let mut same = loop {
            if different == start {
                return Ok(None);
            }
            let height = different.saturating_sub(step).max(start);
            if self.is_on_best_chain(height)? {
                break height;
            }
            different = height;
            step *= 2;
        };
        while different - same > 1 {
            let middle = same + (different - same) / 2;
            if self.is_on_best_chain(middle)? { same = middle } else { different = middle }
        }
        Ok(Some(same))
    }

    fn is_on_best_chain(&self, height: u32) -> Result<bool, Stop> {
        let ours = self.index.block(height)?.hash;
        let fetcher = self.fetcher;
        let theirs = fetcher.call(|| fetcher.source.hash_at(height)).map_err(|e| fetcher.stop(e))?;
        Ok(theirs == Some(ours))
    }

    /// Drops what is pending; threads that work on it find nobody to answer to.
    fn forget(&mut self) {
        self.pending.clear();
        self.headers.clear();
    }

    fn sync(&mut self) -> Result<(), Stop> {
        if self.index.unsynced_blocks() > 0 {
            self.index.sync()?;
        }
        self.last_sync = Instant::now();
        Ok(())
    }

    fn check_cancelled(&self) -> Result<(), Stop> {
        if self.cancel.load(Ordering::Relaxed) { Err(Stop::Cancelled) } else { Ok(()) }
    }

    fn pause(&self, time: Duration) -> Result<(), Stop> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.check_cancelled()?;
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}
