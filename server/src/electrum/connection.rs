//! A connection: one task reads and answers, one writes, one tells what happened.
//!
//! Replies and notifications go through one queue of limited length. When it is full, nothing more is read from the
//! client, and it is disconnected if it takes nothing for too long.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};

use super::line::Incoming;
use super::rpc::{self, RpcError};
use super::session::{Executed, Session};
use super::streams::Streams;
use super::transport::{Sink, Source};
use super::tweaks::Feed;

/// Bytes that are sent at once.
const WRITE: usize = 64 * 1024;

/// Something to send.
pub(super) struct Outgoing {
    text: String,
    /// How many silent-payment subscriptions it opens.
    opens: usize,
}

impl Outgoing {
    /// A notification.
    pub(super) fn note(text: String) -> Self {
        Self { text, opens: 0 }
    }
}

/// Serves a client until it leaves, breaks a limit, or `stop` is set.
pub(super) async fn run<R: Source + 'static, W: Sink + 'static>(
    session: Arc<Session>,
    source: R,
    sink: W,
    stop: watch::Receiver<bool>,
) {
    let config = &session.server.config;
    let (queue, outgoing) = mpsc::channel(config.limits.queue.max(1));
    let streams = Arc::new(Streams::new());
    let mut writer =
        tokio::spawn(write(sink, outgoing, Arc::clone(&streams), config.first_notification_hold));
    let notifier = tokio::spawn(notify(Arc::clone(&session), queue.clone(), Arc::clone(&streams)));
    read(&session, source, &queue, &streams, stop).await;
    notifier.abort();
    // Gone before the queue's end is waited for: it holds a sender, too.
    let _ = notifier.await;
    drop(queue);
    if tokio::time::timeout(config.drain, &mut writer).await.is_err() {
        writer.abort();
    }
}

async fn read(
    session: &Arc<Session>,
    mut source: impl Source,
    queue: &mpsc::Sender<Outgoing>,
    streams: &Streams,
    mut stop: watch::Receiver<bool>,
) {
    let limits = &session.server.config.limits;
    let broken = Arc::new(Notify::new());
    let mut feed: Option<Feed> = None;
    loop {
        let incoming = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = queue.closed() => return,
            () = broken.notified() => return,
            incoming = tokio::time::timeout(limits.idle, source.next()) => incoming,
        };
        let incoming = match incoming {
            Ok(Ok(Some(incoming))) => incoming,
            Ok(Ok(None) | Err(_)) => return,
            Err(_) => {
                let text = format!("no request for {} s", limits.idle.as_secs());
                let reply = rpc::error_reply("null", &RpcError::new(rpc::INVALID_REQUEST, text));
                let _ = queue.send(Outgoing { text: reply, opens: 0 }).await;
                return;
            }
        };
        let refusal = match session.seat.wait() {
            Ok(wait) => {
                // A sleep takes a millisecond even if it is for nothing.
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                None
            }
            Err(error) => {
                // So that asking in vain isn't cheaper than waiting.
                tokio::time::sleep(Duration::from_millis(250).min(limits.request_delay)).await;
                Some(error)
            }
        };
        let mut executed = match incoming {
            Incoming::Line(line) => execute(session, line, refusal).await,
            Incoming::TooLong { head, tail, recovered } => {
                let text = format!("request too large: {} bytes are allowed", limits.request_bytes);
                let error = RpcError::new(rpc::INVALID_REQUEST, text);
                let mut executed = Executed { cost: 100.0, ..Executed::default() };
                executed.reply = Some(rpc::error_reply(rpc::id_in_pieces(&head, &tail), &error));
                executed.effects.close = !recovered;
                executed
            }
        };
        session.seat.charge(executed.cost);
        // A place in the queue first: then effects and reply come into force together.
        let stopped = async {
            let _ = stop.wait_for(|stop| *stop).await;
            tokio::time::sleep(session.server.config.drain).await;
        };
        let place = tokio::select! {
            biased;
            place = queue.reserve() => place,
            () = stopped => return,
        };
        let Ok(place) = place else { return };
        let mut access = streams.access();
        let opens = access.apply(&mut executed.effects);
        if let Some(text) = executed.reply {
            place.send(Outgoing { text, opens });
        }
        drop(access);
        if executed.effects.close {
            return;
        }
        if let Some(range) = executed.effects.tweaks {
            // The old one ends before the new one begins.
            drop(feed.take());
            feed = Some(Feed::start(Arc::clone(session), queue.clone(), range, Arc::clone(&broken)));
        }
    }
}

async fn execute(
    session: &Arc<Session>,
    line: zeroize::Zeroizing<Vec<u8>>,
    refusal: Option<RpcError>,
) -> Executed {
    // Closed never: the semaphore lives as long as the server.
    let _permit = session.server.workers.acquire().await;
    let worker = Arc::clone(session);
    match tokio::task::spawn_blocking(move || worker.execute(&line, refusal.as_ref())).await {
        Ok(executed) => executed,
        Err(_) => {
            let mut executed = Executed::default();
            let error = RpcError::new(rpc::INTERNAL, "internal error");
            executed.reply = Some(rpc::error_reply("null", &error));
            executed.effects.close = true;
            executed
        }
    }
}

async fn write(
    mut sink: impl Sink,
    mut outgoing: mpsc::Receiver<Outgoing>,
    streams: Arc<Streams>,
    hold: Duration,
) {
    while let Some(first) = outgoing.recv().await {
        let (mut bytes, mut opens) = (first.text.len(), first.opens);
        let mut messages = vec![first.text];
        while bytes < WRITE && opens == 0 {
            let Ok(more) = outgoing.try_recv() else { break };
            bytes += more.text.len();
            opens += more.opens;
            messages.push(more.text);
        }
        if let Err(error) = sink.send(messages).await {
            tracing::debug!("a client is gone: {error}");
            return;
        }
        if opens > 0 {
            streams.opened(opens, hold);
        }
    }
    sink.close().await;
}

/// Sends notifications: of one event, silent payments before scripts, and the tip last.
async fn notify(session: Arc<Session>, queue: mpsc::Sender<Outgoing>, streams: Arc<Streams>) {
    loop {
        tokio::select! {
            () = session.inbox.wake.notified() => {}
            () = streams.received() => {}
        }
        if silent_notes(&session, &queue, &streams).await.is_none() {
            return;
        }
        let pending = session.inbox.take();
        if pending.is_empty() {
            continue;
        }
        let notes = {
            let _permit = session.server.workers.acquire().await;
            let session = Arc::clone(&session);
            match tokio::task::spawn_blocking(move || session.notes(&pending)).await {
                Ok(notes) => notes,
                Err(error) => {
                    tracing::error!("notifications failed: {error}");
                    return;
                }
            }
        };
        let mut notes = notes.into_iter().peekable();
        while notes.peek().is_some() {
            // Those of the same event were sent to us before the scripts were touched.
            if silent_notes(&session, &queue, &streams).await.is_none() {
                return;
            }
            let Ok(mut place) = queue.reserve().await else { return };
            loop {
                let access = streams.access();
                if access.held() {
                    break;
                }
                let Some(note) = notes.next() else { break };
                if session.still_true(&note) {
                    place.send(Outgoing { text: note.text, opens: 0 });
                    drop(access);
                    match queue.try_reserve() {
                        Ok(more) => place = more,
                        Err(_) => break,
                    }
                }
            }
        }
    }
}

/// Sends everything that came for silent payments, when it may be sent. `None` when the connection is closed.
async fn silent_notes(
    session: &Arc<Session>,
    queue: &mpsc::Sender<Outgoing>,
    streams: &Streams,
) -> Option<()> {
    loop {
        streams.released().await;
        let received = streams.collect();
        let unconfirmed =
            received.iter().any(|(_, note)| note.found.iter().any(|payment| payment.height.is_none()));
        if unconfirmed {
            let session = Arc::clone(session);
            // What can't be fetched any more must not be announced: Sparrow fails for good on it.
            let checked = tokio::task::spawn_blocking(move || {
                let mut received = received;
                for (_, note) in &mut received {
                    note.found.retain(|payment| session.pin(payment));
                }
                received
            });
            streams.checked(checked.await.ok()?);
        } else {
            streams.checked(received);
        }
        let place = queue.reserve().await.ok()?;
        let mut access = streams.access();
        if access.held() {
            continue;
        }
        match access.next() {
            Some(text) => place.send(Outgoing { text, opens: 0 }),
            None => return Some(()),
        }
    }
}
