//! The threads that keep the chain up to date: one writes the indexes, one publishes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bitcoin::block::Header;
use bitcoin::{Network, Txid};
use peregrine_index::address::{
    ADDRESS_DIR, AddressError, AddressIndexWriter, AddressParams, AddressReader, AddressView,
};
use peregrine_index::indexer::{self, Indexes, Options, Progress, run_indexes};
use peregrine_index::mempool::{MempoolFollower, ZmqChoice};
use peregrine_index::source::{
    ChainSource, Daemon, NodeConfig, SourceError, WaitError, WaitEvent, Waiter, connect,
};
use peregrine_index::store::{TweakIndexWriter, TweakReader};
use peregrine_scanner::batch::TweakMethod;
use tokio::sync::oneshot;

use super::headers::Headers;
use super::state::LiveNode;
use super::work;
use crate::node::{Event, Notice, Readiness, ScriptHash};
use crate::progress::Meter;
use crate::silent::{SilentService, Update};

/// How often the node is asked for a new block.
const BLOCK_POLL: Duration = Duration::from_millis(500);
/// While the index is behind, how often new headers are fetched.
const HEADER_POLL: Duration = Duration::from_secs(2);
/// Headers fetched at once.
const HEADERS: usize = 2000;
/// Between two steps, so that a flood of mempool messages costs no step each.
const SPACING: Duration = Duration::from_millis(50);
/// How often the progress of indexing is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// So far behind, the index answers with its progress again instead of with old histories.
const FAR_BEHIND: u32 = 144;

/// What to keep up to date, and with what.
pub struct Setup {
    /// Which chain.
    pub network: Network,
    /// How to reach Bitcoin Core.
    pub node: NodeConfig,
    /// The tweak index.
    pub tweaks: TweakIndexWriter,
    /// Where it lies; the script-hash index is inside.
    pub index_dir: PathBuf,
    /// Bytes of memory for the script-hash index.
    pub address_cache: u64,
    /// Bytes of memory for confirmed transactions.
    pub transaction_cache: u64,
    /// Blocks that are fetched and computed at once.
    pub requests: usize,
    /// How tweaks are computed.
    pub method: TweakMethod,
    /// Where mempool messages come from.
    pub zmq: ZmqChoice,
    /// Histories with more entries are refused.
    pub max_history: usize,
    /// Who scans for wallets.
    pub silent: Option<Arc<SilentService>>,
}

/// Why keeping up ended.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

/// The running threads.
pub struct Running {
    node: Arc<LiveNode>,
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    failed: oneshot::Receiver<Failure>,
}

impl Running {
    /// What is kept up to date.
    pub fn node(&self) -> Arc<LiveNode> {
        Arc::clone(&self.node)
    }

    /// Waits until it can't go on; for ever if that doesn't happen.
    pub async fn failed(&mut self) -> Failure {
        match (&mut self.failed).await {
            Ok(failure) => failure,
            // Stopped in an orderly way.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the threads: what was indexed is committed, and the files are closed.
    pub fn stop(self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.node.wake();
        if self.thread.join().is_err() {
            tracing::error!("the indexing thread ended badly");
        }
    }
}

/// Starts to index, and to follow chain and mempool. Returns at once, also when the node isn't there; the answers of
/// [`Running::node`] say how far it is.
pub fn start(setup: Setup) -> std::io::Result<Running> {
    let (wake, woken) = channel();
    let name = setup.node.describe();
    let node = Arc::new(LiveNode::new(setup.network, name, setup.max_history, setup.transaction_cache, wake));
    let cancel = Arc::new(AtomicBool::new(false));
    let (fail, failed) = oneshot::channel();
    let thread = {
        let (node, cancel) = (Arc::clone(&node), Arc::clone(&cancel));
        std::thread::Builder::new().name("index".into()).spawn(move || {
            let work = std::panic::AssertUnwindSafe(|| index(setup, &node, woken, &cancel));
            let result = std::panic::catch_unwind(work)
                .unwrap_or_else(|_| Err(Failure("indexing failed in a way that nobody expected".into())));
            if let Err(failure) = result {
                // Nobody listens when the program is ending anyway.
                let _ = fail.send(failure);
            }
        })?
    };
    Ok(Running { node, cancel, thread, failed })
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure(error.to_string())
}

fn index(
    setup: Setup,
    node: &Arc<LiveNode>,
    woken: Receiver<()>,
    cancel: &AtomicBool,
) -> Result<(), Failure> {
    let dir = setup.index_dir.join(ADDRESS_DIR);
    let params = AddressParams::for_network(setup.network);
    let mut addresses =
        AddressIndexWriter::open_with_cache(&dir, &params, setup.address_cache).map_err(failure)?;
    let mut tweaks = setup.tweaks;
    let tweak_reader = TweakReader::open(&setup.index_dir).map_err(failure)?;
    indexer::level(&mut Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) }).map_err(failure)?;
    let reader = addresses.reader();
    load_headers(node, &reader.view()).map_err(failure)?;

    let waiter = Waiter::new(cancel, |event: &WaitEvent| log_wait(event));
    let name = setup.node.describe();
    let connected = waiter.run(&name, || Ok((connect(&setup.node)?, Daemon::connect(&setup.node)?)));
    let (source, daemon) = match connected {
        Ok((source, daemon)) => (Arc::new(source), Arc::new(daemon)),
        Err(WaitError::Cancelled) => return Ok(()),
        Err(WaitError::Source(error)) => return Err(Failure(format!("{name}: {error}"))),
    };
    if let Some(reason) = source.fallback_reason() {
        tracing::warn!("using the slower JSON-RPC: {reason}");
    }
    tracing::info!("reading from {}", source.describe());
    // Only this thread sets it, and once.
    let _ = node.daemon.set(Arc::clone(&daemon));
    let _ = node.blocks.set(Arc::clone(&source) as Arc<dyn ChainSource>);

    let mut follower = MempoolFollower::new(daemon, setup.method, setup.zmq);
    let wake = node.wake.clone();
    follower.watch(Box::new(move || {
        // Nobody listens any more when the server is stopping.
        let _ = wake.send(());
    }));
    let at_tip = AtomicU32::new(u32::MAX);
    let watch = Watch::new(node, &at_tip);
    let options =
        Options { to: None, follow: true, requests: setup.requests, poll: BLOCK_POLL, tweaks: setup.method };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let publisher = Publisher {
            node,
            reader,
            tweaks: tweak_reader,
            source: &*source,
            follower,
            silent: setup.silent,
            woken,
            cancel,
            done: &done,
            at_tip: &at_tip,
            sequence: LOADED,
            headers_asked: None,
            mempool_error: None,
        };
        let publishing = std::thread::Builder::new()
            .name("publish".into())
            .spawn_scoped(scope, move || publisher.run())
            .map_err(failure)?;
        let result = run_indexes(
            &*source,
            Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) },
            options,
            cancel,
            &|event| watch.event(event),
        );
        done.store(true, Ordering::Relaxed);
        node.wake();
        let published = publishing.join();
        result.map_err(failure)?;
        published.map_err(|_| Failure("following the chain failed in a way that nobody expected".into()))
    })
}

/// Number of the event that says that the headers which the index has are there.
const LOADED: u64 = 1;

/// What the index has already needn't be fetched. Clients may be connected, so it is an event.
fn load_headers(node: &LiveNode, view: &AddressView) -> Result<(), AddressError> {
    let mut headers = Headers::new(node.network);
    for header in view.headers(1) {
        headers.push(&header?.1);
    }
    let (height, header) = (headers.tip(), headers.last());
    node.write().headers = headers;
    // An error means that nobody listens, which is no error.
    let _ = node.events.send(Notice { sequence: LOADED, event: Event::BlockConnected { height, header } });
    Ok(())
}

fn log_wait(event: &WaitEvent) {
    match event {
        WaitEvent::Waiting { .. } => tracing::warn!("{event}"),
        WaitEvent::Resumed { .. } => tracing::info!("{event}"),
    }
}

/// Makes the indexer's events into log lines, progress, and work for the publisher.
struct Watch<'a> {
    node: &'a LiveNode,
    /// The height at which the indexes had all blocks, last.
    at_tip: &'a AtomicU32,
    meter: Meter,
    logged: std::sync::Mutex<Instant>,
}

impl<'a> Watch<'a> {
    fn new(node: &'a LiveNode, at_tip: &'a AtomicU32) -> Self {
        Self {
            node,
            at_tip,
            meter: Meter::new("indexing", true),
            logged: std::sync::Mutex::new(Instant::now()),
        }
    }

    fn event(&self, event: indexer::Event) {
        match event {
            indexer::Event::Wait(event) => log_wait(&event),
            indexer::Event::Invalid(text) => {
                tracing::warn!("the node sent something invalid, asking again: {text}");
            }
            indexer::Event::Reorganised { from, to } => {
                match to {
                    Some(to) => tracing::info!("the chain was reorganised: back from height {from} to {to}"),
                    None => {
                        tracing::warn!("the chain was replaced: back from height {from} to the beginning")
                    }
                }
                self.node.wake();
            }
            indexer::Event::AtTip(height) => {
                if self.at_tip.swap(height, Ordering::Relaxed) != height {
                    tracing::info!("at the tip, height {height}");
                }
                self.node.wake();
            }
            indexer::Event::Progress(progress) => self.progress(&progress),
        }
    }

    fn progress(&self, progress: &Progress) {
        let behind = progress.goal.saturating_sub(progress.height);
        let ready = self.node.readiness_now() == Readiness::Ready;
        if ready && behind <= FAR_BEHIND {
            self.node.wake();
            return;
        }
        let work = |height| work::done(self.node.network, height);
        let status = self.meter.update(work(progress.height), work(progress.goal).max(1), |_| String::new());
        let readiness = Readiness::Indexing { percent: status.percent, time_left: status.left };
        self.node.set_readiness(readiness);
        let mut logged = self.logged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if logged.elapsed() >= LOG_EVERY {
            *logged = Instant::now();
            tracing::info!("{readiness}: height {} of {}", progress.height, progress.goal);
        }
    }
}

/// Publishes. Nobody else changes what is published, but for the progress.
struct Publisher<'a> {
    node: &'a LiveNode,
    reader: AddressReader,
    tweaks: TweakReader,
    source: &'a dyn ChainSource,
    follower: MempoolFollower,
    silent: Option<Arc<SilentService>>,
    woken: Receiver<()>,
    cancel: &'a AtomicBool,
    /// Set when the indexer has ended.
    done: &'a AtomicBool,
    at_tip: &'a AtomicU32,
    /// Number of the last event.
    sequence: u64,
    headers_asked: Option<Instant>,
    /// Why the mempool couldn't be fetched, once said.
    mempool_error: Option<String>,
}

/// From what is published to what the index has now.
struct Difference {
    view: AddressView,
    /// The last block that stays.
    fork: u32,
    connected: Vec<(u32, Header)>,
}

impl Publisher<'_> {
    fn run(mut self) {
        while !self.cancel.load(Ordering::Relaxed) && !self.done.load(Ordering::Relaxed) {
            let ready = self.node.readiness_now() == Readiness::Ready;
            let wait = if ready { self.follower.poll_interval() } else { HEADER_POLL };
            match self.woken.recv_timeout(wait) {
                Ok(()) => while self.woken.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let started = Instant::now();
            let result = if self.node.read().view.is_some() { self.step() } else { self.catch_up() };
            if let Err(error) = result {
                tracing::error!("{error}");
            }
            std::thread::sleep(SPACING.saturating_sub(started.elapsed()));
        }
    }

    /// While the index has never been at the tip: headers come from the node. Ready when both meet.
    fn catch_up(&mut self) -> Result<(), AddressError> {
        if self.headers_asked.is_none_or(|asked| asked.elapsed() >= HEADER_POLL)
            || self.at_tip.load(Ordering::Relaxed) != u32::MAX
        {
            self.headers_asked = Some(Instant::now());
            while self.extend_headers() && !self.cancel.load(Ordering::Relaxed) {}
        }
        if self.at_tip.load(Ordering::Relaxed) == u32::MAX {
            return Ok(());
        }
        let view = self.reader.view();
        let Some((height, hash)) = view.tip() else { return Ok(()) };
        let same = {
            let headers = &self.node.read().headers;
            headers.tip() == height && headers.last().block_hash() == hash
        };
        if !same || !self.tweaks_have(height, hash) {
            return Ok(());
        }
        // Without the mempool, histories would change as soon as it comes.
        let update = self.fetch(hash, true);
        let mut state = self.node.write();
        let rows = update.map_or_else(Vec::new, |update| state.mempool.apply(update, &[]).added);
        state.view = Some(view);
        let mempool = state.mempool.len();
        drop(state);
        self.node.set_readiness(Readiness::Ready);
        tracing::info!("ready at height {height}, {mempool} transactions in the mempool");
        if let Some(silent) = &self.silent {
            silent.update(Update {
                sequence: self.sequence,
                tip: Some((height, hash)),
                fork: None,
                added: rows,
                gone: Vec::new(),
            });
        }
        Ok(())
    }

    /// Fetches headers that follow, or goes back where they are of another branch. False if there is nothing (now).
    fn extend_headers(&mut self) -> bool {
        let (height, last) = {
            let headers = &self.node.read().headers;
            (headers.tip(), headers.last())
        };
        let result = self.source.headers_after(last.block_hash(), height, HEADERS).and_then(|headers| {
            Ok(match headers {
                Some(headers) if headers.is_empty() => None,
                Some(headers) => Some((height, headers)),
                None => Some((self.fork()?, Vec::new())),
            })
        });
        match result {
            Ok(None) => false,
            Ok(Some((fork, new))) => {
                let mut events: Vec<Event> =
                    (fork + 1..=height).rev().map(|height| Event::BlockDisconnected { height }).collect();
                let mut state = self.node.write();
                state.headers.truncate(fork);
                new.iter().for_each(|header| state.headers.push(header));
                drop(state);
                // Of those that were fetched at once, the last stands for all.
                events.extend(new.last().map(|header| Event::BlockConnected {
                    height: fork + new.len() as u32,
                    header: *header,
                }));
                self.send(events);
                true
            }
            Err(error) => {
                tracing::debug!("no headers: {error}");
                false
            }
        }
    }

    /// The highest of our headers that is on the node's chain.
    fn fork(&self) -> Result<u32, SourceError> {
        let ours = |height| self.node.read().headers.get(height).map(|header| header.block_hash());
        let (mut same, mut different) = (0, self.node.read().headers.tip());
        let mut step = 1;
        while different > 0 {
            let height = different.saturating_sub(step);
            if self.source.hash_at(height)? == ours(height) {
                same = height;
                break;
            }
            (different, step) = (height, step * 2);
        }
        while different - same > 1 {
            let middle = same + (different - same) / 2;
            if self.source.hash_at(middle)? == ours(middle) { same = middle } else { different = middle }
        }
        Ok(same)
    }

    /// Whether the tweak index has come to a block, too. It is written after the script-hash index.
    fn tweaks_have(&self, height: u32, hash: bitcoin::BlockHash) -> bool {
        if height < self.tweaks.params().start_height {
            return true;
        }
        match self.tweaks.snapshot() {
            Ok(snapshot) => snapshot.block(height).is_ok_and(|block| block.hash == hash),
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        }
    }

    /// Publishes what happened since the last step.
    fn step(&mut self) -> Result<(), AddressError> {
        let difference = self.difference()?;
        let (tip, changed) = {
            let state = self.node.read();
            let view = difference.as_ref().map(|difference| &difference.view).or(state.view.as_ref());
            match view.and_then(AddressView::tip) {
                Some((_, hash)) => (hash, difference.is_some()),
                None => return Ok(()),
            }
        };
        let update = self.fetch(tip, changed);
        let (mut events, mut touched) = (Vec::new(), Some(HashSet::new()));
        let mut confirmed: Vec<Txid> = Vec::new();
        let mut fork = None;
        if let Some(Difference { view, fork: last_same, connected }) = &difference {
            let old = self.node.read().headers.tip();
            let before = self.node.read().view.clone();
            for height in (last_same + 1..=old).rev() {
                fork = Some(*last_same);
                touch(&mut touched, before.as_ref(), height)?;
                events.push(Event::BlockDisconnected { height });
            }
            for (height, header) in connected {
                touch(&mut touched, Some(view), *height)?;
                confirmed.extend(view.txids_of_block(*height)?.unwrap_or_default());
                events.push(Event::BlockConnected { height: *height, header: *header });
            }
        }

        let mut state = self.node.write();
        if let Some(Difference { view, fork, connected }) = difference {
            state.headers.truncate(fork);
            connected.iter().for_each(|(_, header)| state.headers.push(header));
            state.view = Some(view);
        }
        let changes = state.mempool.apply(update.unwrap_or_default(), &confirmed);
        let (tip, tip_hash) = (state.headers.tip(), state.headers.last().block_hash());
        drop(state);
        if self.at_tip.load(Ordering::Relaxed) == tip {
            self.node.set_readiness(Readiness::Ready);
        }

        // Scripts first: a receiver may look between two events, and is to tell of scripts before it tells of the tip.
        match touched {
            Some(mut touched) => {
                touched.extend(&changes.touched);
                if !touched.is_empty() {
                    events.insert(0, Event::ScriptHashesTouched(touched.into_iter().collect()));
                }
            }
            None => events.insert(0, Event::EverythingTouched),
        }
        if !changes.added_txids.is_empty() || !changes.removed.is_empty() || !confirmed.is_empty() {
            events.push(Event::MempoolChanged);
        }
        if events.is_empty() {
            return Ok(());
        }
        if let Some(silent) = &self.silent {
            let mut gone = changes.removed;
            gone.extend(confirmed);
            silent.update(Update {
                sequence: self.sequence + events.len() as u64,
                tip: Some((tip, tip_hash)),
                fork,
                added: changes.added,
                gone,
            });
        }
        self.send(events);
        Ok(())
    }

    /// How the index's chain differs from the published one; `None` if it doesn't, or if it is in the middle of a change.
    fn difference(&self) -> Result<Option<Difference>, AddressError> {
        let view = self.reader.view();
        let Some((height, hash)) = view.tip() else { return Ok(None) };
        let state = self.node.read();
        let headers = &state.headers;
        if headers.tip() == height && headers.last().block_hash() == hash {
            return Ok(None);
        }
        if !self.tweaks_have(height, hash) {
            return Ok(None);
        }
        let mut fork = headers.tip().min(height);
        while fork > 0 {
            let theirs = view.block(fork)?.map(|block| block.hash);
            if theirs == headers.get(fork).map(|header| header.block_hash()) {
                break;
            }
            fork -= 1;
        }
        drop(state);
        let connected = view.headers(fork + 1).collect::<Result<_, _>>()?;
        Ok(Some(Difference { view, fork, connected }))
    }

    /// What happened in the node's mempool; nothing while it doesn't answer.
    fn fetch(&mut self, tip: bitcoin::BlockHash, changed: bool) -> Option<peregrine_index::mempool::Update> {
        let state = self.node.read();
        match self.follower.fetch(&state.mempool, tip, changed) {
            Ok(update) => {
                if self.mempool_error.take().is_some() {
                    tracing::info!("the mempool is followed again");
                }
                Some(update)
            }
            Err(error) => {
                let text = error.to_string();
                if self.mempool_error.as_ref() != Some(&text) {
                    tracing::warn!("the mempool can't be followed: {text}");
                    self.mempool_error = Some(text);
                }
                None
            }
        }
    }

    fn send(&mut self, events: Vec<Event>) {
        for event in events {
            self.sequence += 1;
            // An error means that nobody listens, which is no error.
            let _ = self.node.events.send(Notice { sequence: self.sequence, event });
        }
    }
}

/// Adds a block's scripts; `None` stays when they aren't known.
fn touch(
    touched: &mut Option<HashSet<ScriptHash>>,
    view: Option<&AddressView>,
    height: u32,
) -> Result<(), AddressError> {
    let Some(view) = view else { return Ok(()) };
    let scripts = view.touched(height)?;
    *touched = touched.take().zip(scripts).map(|(mut touched, scripts)| {
        touched.extend(scripts);
        touched
    });
    Ok(())
}
