//! One client: what it negotiated, what it subscribed to, and how its requests are answered.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bitcoin::{BlockHash, OutPoint, Txid};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::args::Args;
use super::hub::Inbox;
use super::methods::{self, Call, Gate, Method};
use super::peers::Seat;
use super::rpc::{self, Item, Message, Request, RpcError};
use super::tweaks::Range;
use super::version::Version;
use super::{Server, lock};
use crate::node::{Notification, Readiness, ScriptHash, SilentPayment};

/// Transactions that are kept for a client because it was told of them from the mempool.
const PINNED: usize = 2_000;
/// Requests of a batch for which another thread is worth waking.
const PER_HELPER: usize = 4;

/// A client.
pub(super) struct Session {
    pub(super) server: Arc<Server>,
    pub(super) seat: Seat,
    pub(super) inbox: Arc<Inbox>,
    pub(super) id: u64,
    pub(super) state: Mutex<State>,
}

/// What a client negotiated and subscribed to.
#[derive(Default)]
pub(super) struct State {
    pub(super) version: Option<Version>,
    /// Whether something was asked that may not be asked before the version in newer protocols.
    pub(super) spoke: bool,
    /// Set by a subscription to headers: the tip that was told last.
    pub(super) headers: Option<BlockHash>,
    pub(super) scripts: HashMap<ScriptHash, Told>,
    pub(super) outpoints: HashMap<OutPoint, WatchedOutpoint>,
    pub(super) silent: HashMap<String, SilentState>,
    pinned: HashMap<Txid, Arc<[u8]>>,
}

/// What a client knows of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its status is being looked up for a reply. `again` is set if it changes meanwhile.
    Asking {
        /// Look again after the reply.
        again: bool,
    },
    /// The status that was told last.
    Status(Option<[u8; 32]>),
}

/// What a client knows of an output.
pub(super) struct WatchedOutpoint {
    pub(super) script: ScriptHash,
    pub(super) told: String,
}

/// A silent-payment subscription as it stands.
#[derive(Clone, Debug)]
pub(super) struct SilentState {
    pub(super) start_height: u32,
    pub(super) labels: Vec<u32>,
}

/// A new silent-payment subscription.
pub(super) struct NewStream {
    pub(super) address: String,
    /// The subscription object that every notification repeats byte by byte.
    pub(super) object: String,
    pub(super) notifications: mpsc::UnboundedReceiver<Notification>,
}

/// What a line led to.
#[derive(Default)]
pub(super) struct Executed {
    /// What to send; nothing for notifications.
    pub(super) reply: Option<String>,
    pub(super) effects: Effects,
    /// What the client pays for it.
    pub(super) cost: f64,
}

/// What has to happen beside the reply.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) streams: Vec<NewStream>,
    pub(super) dropped: Vec<String>,
    /// Blocks to send behind the reply, instead of others that were being sent.
    pub(super) tweaks: Option<Range>,
    pub(super) close: bool,
}

impl Executed {
    /// Adds what another request of the same line led to, but its reply.
    fn add(&mut self, other: Self) {
        self.cost += other.cost;
        self.effects.streams.extend(other.effects.streams);
        self.effects.dropped.extend(other.effects.dropped);
        self.effects.tweaks = other.effects.tweaks.or(self.effects.tweaks);
        self.effects.close |= other.effects.close;
    }
}

/// Bytes that are left for results.
struct Room(AtomicUsize);

impl Room {
    /// False if there isn't enough.
    fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

impl Session {
    /// Answers a line. Blocks.
    pub(super) fn execute(&self, line: &[u8], refusal: Option<&RpcError>) -> Executed {
        let line = line.trim_ascii();
        let mut executed = Executed::default();
        if line.is_empty() {
            return executed;
        }
        executed.cost = 1.0;
        let room = Room(AtomicUsize::new(self.server.config.limits.response_bytes));
        executed.reply = match rpc::parse(line) {
            Err(error) => Some(rpc::error_reply("null", &error)),
            Ok(Message::Single(item)) => self.item(&item, refusal, &room, &mut executed),
            Ok(Message::Batch(items)) => self.batch(&items, refusal, &room, &mut executed),
        };
        executed
    }

    fn batch(
        &self,
        items: &[&RawValue],
        refusal: Option<&RpcError>,
        room: &Room,
        executed: &mut Executed,
    ) -> Option<String> {
        let limit = self.server.config.limits.batch;
        if items.is_empty() {
            let error = RpcError::new(rpc::INVALID_REQUEST, "the batch is empty");
            return Some(rpc::error_reply("null", &error));
        }
        let mut refusal = refusal.cloned();
        if items.len() > limit {
            let text = format!("the batch has {} requests; {limit} are allowed", items.len());
            let error = RpcError::new(rpc::INVALID_REQUEST, text);
            if items.len() > 10 * limit {
                return Some(rpc::error_reply("null", &error));
            }
            // One answer per request, since clients match them by their ids.
            refusal = Some(error);
        }
        let items: Vec<Item<'_>> = items.iter().map(|item| rpc::item(item)).collect();
        let mut replies = String::from("[");
        for items in items.chunk_by(|a, b| self.independent(a) && self.independent(b)) {
            for reply in self.items(items, refusal.as_ref(), room, executed) {
                if replies.len() > 1 {
                    replies.push(',');
                }
                replies.push_str(&reply);
            }
        }
        replies.push(']');
        // Of notifications alone nothing comes back, not even an empty list.
        (replies.len() > 2).then_some(replies)
    }

    /// Whether a request may be answered at the same time as its neighbours.
    fn independent(&self, item: &Item<'_>) -> bool {
        let Item::Call(request) = item else { return true };
        self.method(&request.method, lock(&self.state).version).is_some_and(|method| method.independent)
    }

    /// Answers requests that don't depend on each other, in order.
    fn items(
        &self,
        items: &[Item<'_>],
        refusal: Option<&RpcError>,
        room: &Room,
        executed: &mut Executed,
    ) -> Vec<String> {
        if let [item] = items {
            // It may look at what those before it led to.
            return self.item(item, refusal, room, executed).into_iter().collect();
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new((Vec::with_capacity(items.len()), executed));
        self.server.helpers.with(items.len() / PER_HELPER, || {
            let (mut replies, mut mine) = (Vec::new(), Executed::default());
            while let number = next.fetch_add(1, Ordering::Relaxed)
                && let Some(item) = items.get(number)
            {
                let reply = self.item(item, refusal, room, &mut mine);
                replies.extend(reply.map(|reply| (number, reply)));
            }
            let mut done = lock(&done);
            done.0.extend(replies);
            done.1.add(mine);
        });
        let (mut replies, _) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        replies.sort_unstable_by_key(|(number, _)| *number);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn item(
        &self,
        item: &Item<'_>,
        refusal: Option<&RpcError>,
        room: &Room,
        executed: &mut Executed,
    ) -> Option<String> {
        let (id, result) = match item {
            Item::Notification => return None,
            Item::Invalid(id, text) => (*id, Err(RpcError::new(rpc::INVALID_REQUEST, *text))),
            Item::Call(request) => {
                let result = match refusal {
                    Some(error) => Err(error.clone()),
                    None => self.call(request, executed),
                };
                (request.id, result)
            }
        };
        let reply = match result {
            Ok(result) if !room.take(result.len()) => {
                let text = format!("response too large (at least {} bytes)", result.len());
                Err(RpcError::new(rpc::INVALID_REQUEST, text))
            }
            other => other,
        };
        let reply = match reply {
            Ok(result) => rpc::reply(id, &result),
            Err(error) => {
                executed.effects.close |= error.close;
                rpc::error_reply(id, &error)
            }
        };
        executed.cost += reply.len() as f64 / 16_384.0;
        Some(reply)
    }

    fn method(&self, name: &str, negotiated: Option<Version>) -> Option<&'static Method> {
        methods::find(name, negotiated.unwrap_or(Version::OLDEST), self.server.silent.is_some())
    }

    fn call(&self, request: &Request<'_>, executed: &mut Executed) -> Result<String, RpcError> {
        let negotiated = lock(&self.state).version;
        let version = negotiated.unwrap_or(Version::OLDEST);
        let Some(method) = self.method(&request.method, negotiated) else {
            let name: String = request.method.chars().take(64).collect();
            return Err(RpcError::new(rpc::UNKNOWN_METHOD, format!("unknown method \"{name}\"")));
        };
        executed.cost += method.cost;
        if negotiated.is_none() && method.gate != Gate::Always {
            lock(&self.state).spoke = true;
        }
        if method.gate == Gate::Ready
            && let readiness @ Readiness::Indexing { .. } = self.server.node.readiness()
        {
            return Err(RpcError::new(rpc::BUSY, readiness.to_string()));
        }
        let args = Args::bind(&request.params, method.params, method.required, method.more)?;
        let mut call = Call { session: self, version, effects: &mut executed.effects };
        let result = catch_unwind(AssertUnwindSafe(|| (method.call)(&mut call, &args)));
        result
            .unwrap_or_else(|_| {
                // The panic hook has said where. Not what was asked, since that may be a key.
                tracing::error!("{} panicked", method.name);
                Err(RpcError::new(rpc::INTERNAL, "internal error"))
            })
            .map_err(|error| match error.code {
                // The code is new in 1.7.
                rpc::HISTORY_TOO_LARGE if version < Version::V1_7 => {
                    RpcError { code: rpc::BAD_REQUEST, ..error }
                }
                _ => error,
            })
    }

    /// A transaction that the client was told of from the mempool, even if it isn't there any more.
    pub(super) fn pinned(&self, txid: &Txid) -> Option<Arc<[u8]>> {
        lock(&self.state).pinned.get(txid).cloned()
    }

    /// Keeps a transaction of the mempool for this client. False if it can't be had any more, and so must not be
    /// announced. Blocks.
    pub(super) fn pin(&self, payment: &SilentPayment) -> bool {
        if payment.height.is_some() || self.pinned(&payment.txid).is_some() {
            return true;
        }
        let Ok(raw) = self.server.node.transaction(payment.txid) else { return false };
        let pinned = &mut lock(&self.state).pinned;
        if pinned.len() < PINNED {
            pinned.insert(payment.txid, raw.into());
        }
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let scripts = state.scripts.keys().copied();
        let outpoints = state.outpoints.values().map(|watched| watched.script);
        self.server.hub.leave(self.id, scripts.chain(outpoints));
    }
}
