//! What is published.

use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bitcoin::Network;
use peregrine_index::address::AddressView;
use peregrine_index::mempool::Mempool;
use peregrine_index::source::{ChainSource, Daemon};
use tokio::sync::broadcast;

use super::cache::Caches;
use super::headers::Headers;
use crate::node::{NodeError, Notice, Readiness};

/// Events that a receiver may be behind before it is told that it missed some.
const EVENTS: usize = 4096;

/// Chain, index, mempool and Bitcoin Core as one [`Node`](crate::node::Node). Made by [`start`](super::start).
pub struct LiveNode {
    pub(super) network: Network,
    /// Histories with more entries are refused.
    pub(super) max_history: usize,
    state: RwLock<State>,
    /// Apart from the state, which is read for long while the mempool is fetched.
    readiness: RwLock<Readiness>,
    /// Missing until the node has answered for the first time.
    pub(super) daemon: OnceLock<Arc<Daemon>>,
    /// For whole blocks; missing as long.
    pub(super) blocks: OnceLock<Arc<dyn ChainSource>>,
    /// How the node is called while it hasn't.
    pub(super) daemon_name: String,
    pub(super) events: broadcast::Sender<Notice>,
    pub(super) cache: Caches,
    /// Wakes the thread that changes all this.
    pub(super) wake: Sender<()>,
}

impl fmt::Debug for LiveNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveNode").field("network", &self.network).finish_non_exhaustive()
    }
}

/// What changes together.
pub(super) struct State {
    /// The index after the last block that was told of; `None` until it is open.
    pub(super) view: Option<AddressView>,
    pub(super) headers: Headers,
    pub(super) mempool: Mempool,
}

impl LiveNode {
    pub(super) fn new(
        network: Network,
        daemon_name: String,
        max_history: usize,
        cache: u64,
        wake: Sender<()>,
    ) -> Self {
        Self {
            network,
            max_history,
            state: RwLock::new(State {
                view: None,
                headers: Headers::new(network),
                mempool: Mempool::default(),
            }),
            readiness: RwLock::new(Readiness::Indexing { percent: 0.0, time_left: None }),
            daemon: OnceLock::new(),
            blocks: OnceLock::new(),
            daemon_name,
            events: broadcast::channel(EVENTS).0,
            cache: Caches::new(cache),
            wake,
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the index is.
    pub(super) fn readiness_now(&self) -> Readiness {
        *self.readiness.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_readiness(&self, readiness: Readiness) {
        *self.readiness.write().unwrap_or_else(PoisonError::into_inner) = readiness;
    }

    pub(super) fn daemon(&self) -> Result<&Daemon, NodeError> {
        let missing = || NodeError::Daemon(format!("{} doesn't answer yet", self.daemon_name));
        self.daemon.get().map(|daemon| &**daemon).ok_or_else(missing)
    }

    /// Has the mempool looked at soon.
    pub(super) fn wake(&self) {
        // Nobody listens any more when the server is stopping.
        let _ = self.wake.send(());
    }
}
