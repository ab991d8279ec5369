//! From the node's events to the connections that wait for them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::task::JoinHandle;

use super::lock;
use crate::node::{ChainTip, Event, Node, NodeError, Notice, ScriptHash, SilentPayments};

/// What a connection was told about and hasn't looked at yet. It doesn't grow with time: a script counts once, and of the
/// tips only that there is a new one.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<Pending>,
    /// Woken when there is something.
    pub(super) wake: Notify,
}

/// What happened since somebody last looked.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Scripts with a different history.
    pub(super) touched: HashSet<ScriptHash>,
    /// Whether there may be a new tip.
    pub(super) tip: bool,
    /// Whether everything may be different.
    pub(super) all: bool,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty() && !self.tip && !self.all
    }
}

impl Inbox {
    /// What happened, once.
    pub(super) fn take(&self) -> Pending {
        std::mem::take(&mut *lock(&self.state))
    }

    /// Puts a script back that couldn't be looked up; it is looked at again with whatever happens next.
    pub(super) fn put_back(&self, script: ScriptHash) {
        lock(&self.state).touched.insert(script);
    }

    /// Adds to it.
    pub(super) fn post(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut lock(&self.state));
        self.wake.notify_one();
    }
}

/// Knows which connection waits for what.
#[derive(Debug, Default)]
pub(super) struct Hub {
    state: Mutex<State>,
    tip: Mutex<Option<ChainTip>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    inboxes: HashMap<u64, Weak<Inbox>>,
    watchers: HashMap<ScriptHash, Vec<u64>>,
}

impl Hub {
    /// A new connection's number and inbox.
    pub(super) fn join(&self) -> (u64, Arc<Inbox>) {
        let inbox = Arc::new(Inbox::default());
        let mut state = lock(&self.state);
        let id = state.next;
        state.next += 1;
        state.inboxes.insert(id, Arc::downgrade(&inbox));
        (id, inbox)
    }

    /// Forgets a connection.
    pub(super) fn leave(&self, id: u64, scripts: impl Iterator<Item = ScriptHash>) {
        let mut state = lock(&self.state);
        state.inboxes.remove(&id);
        for script in scripts {
            remove(&mut state.watchers, id, &script);
        }
    }

    /// A connection wants to hear of a script.
    pub(super) fn watch(&self, id: u64, script: ScriptHash) {
        lock(&self.state).watchers.entry(script).or_insert_with(|| Vec::with_capacity(1)).push(id);
    }

    /// A connection doesn't want to hear of it any more.
    pub(super) fn unwatch(&self, id: u64, script: &ScriptHash) {
        remove(&mut lock(&self.state).watchers, id, script);
    }

    /// The last tip that was announced. Replies name this one, too: were they to ask the node, a client could hear of a
    /// block in a reply and then of the one before in a notification.
    pub(super) fn tip(&self, node: &dyn Node) -> Result<ChainTip, NodeError> {
        if let Some(tip) = *lock(&self.tip) {
            return Ok(tip);
        }
        // Not under the lock while the node is asked. Nothing was announced yet, so any answer is a good first one, and
        // the first to come is kept.
        let tip = node.tip()?;
        Ok(*lock(&self.tip).get_or_insert(tip))
    }

    fn set_tip(&self, tip: ChainTip) {
        *lock(&self.tip) = Some(tip);
        self.each(|pending| pending.tip = true);
    }

    fn each(&self, mut change: impl FnMut(&mut Pending)) {
        let inboxes: Vec<_> = lock(&self.state).inboxes.values().filter_map(Weak::upgrade).collect();
        for inbox in inboxes {
            inbox.post(&mut change);
        }
    }

    fn touch(&self, scripts: &HashSet<ScriptHash>) {
        let mut posts: HashMap<u64, Vec<ScriptHash>> = HashMap::new();
        let mut inboxes: HashMap<u64, Arc<Inbox>> = HashMap::new();
        let state = lock(&self.state);
        for script in scripts {
            for id in state.watchers.get(script).into_iter().flatten() {
                posts.entry(*id).or_default().push(*script);
                if let Some(inbox) = state.inboxes.get(id).and_then(Weak::upgrade) {
                    inboxes.insert(*id, inbox);
                }
            }
        }
        drop(state);
        for (id, inbox) in inboxes {
            let scripts = posts.remove(&id).unwrap_or_default();
            inbox.post(|pending| pending.touched.extend(scripts));
        }
    }
}

fn remove(watchers: &mut HashMap<ScriptHash, Vec<u64>>, id: u64, script: &ScriptHash) {
    if let Some(ids) = watchers.get_mut(script) {
        if let Some(at) = ids.iter().position(|watcher| *watcher == id) {
            ids.swap_remove(at);
        }
        if ids.is_empty() {
            watchers.remove(script);
        }
    }
}

/// What a number of events in a row comes to.
#[derive(Debug, Default)]
struct Summary {
    last: u64,
    touched: HashSet<ScriptHash>,
    chain: bool,
    all: bool,
    lost: bool,
}

impl Summary {
    fn add(&mut self, notice: Notice) {
        self.last = notice.sequence;
        match notice.event {
            Event::BlockConnected { .. } | Event::BlockDisconnected { .. } => self.chain = true,
            Event::ScriptHashesTouched(scripts) => self.touched.extend(scripts.iter().copied()),
            Event::EverythingTouched => self.all = true,
            Event::MempoolChanged => {}
        }
    }
}

/// Follows the node's events until there are no more: silent payments first, then scripts, then the tip.
pub(super) async fn follow(
    hub: Arc<Hub>,
    node: Arc<dyn Node>,
    silent: Option<Arc<dyn SilentPayments>>,
    mut events: Receiver<Notice>,
    settle_timeout: Duration,
) {
    let mut settling: Option<JoinHandle<()>> = None;
    loop {
        let mut summary = Summary::default();
        match events.recv().await {
            Ok(notice) => summary.add(notice),
            Err(RecvError::Lagged(_)) => summary.lost = true,
            Err(RecvError::Closed) => return,
        }
        loop {
            match events.try_recv() {
                Ok(notice) => summary.add(notice),
                Err(TryRecvError::Lagged(_)) => summary.lost = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if let Some(silent) = &silent {
            // A call that doesn't return isn't followed by another, so that they don't pile up.
            let last = summary.last;
            let call = settling.get_or_insert_with(|| {
                let silent = Arc::clone(silent);
                tokio::task::spawn_blocking(move || silent.settle(last))
            });
            if tokio::time::timeout(settle_timeout, call).await.is_ok() {
                settling = None;
            } else {
                tracing::warn!("silent payments are late; scripts are told before them");
            }
        }
        if summary.lost {
            tracing::warn!("the Electrum server fell behind the node's events; everything is checked again");
        }
        if summary.lost || summary.all {
            hub.each(|pending| pending.all = true);
        } else {
            hub.touch(&summary.touched);
        }
        if summary.chain || summary.lost {
            // The node's own, not the event's: after a reorganisation the last event may already be overtaken.
            let node = Arc::clone(&node);
            match tokio::task::spawn_blocking(move || node.tip()).await {
                Ok(Ok(tip)) => hub.set_tip(tip),
                Ok(Err(error)) => tracing::error!("the node has no tip: {error}"),
                Err(error) => tracing::error!("the node's tip can't be asked: {error}"),
            }
        }
    }
}
