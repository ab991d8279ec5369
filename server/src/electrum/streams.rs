//! The silent-payment subscriptions of a connection, and when their notifications may go out.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::lock;
use super::rpc;
use super::session::{Effects, NewStream};
use crate::node::{Notification, SilentPayment};

/// Payments in one notification.
const PAGE: usize = 100;

/// Until when no notification is sent.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Replies to subscriptions that aren't on their way yet.
    unsent: usize,
    until: Instant,
}

/// The subscriptions of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    list: Mutex<Vec<Stream>>,
    hold: watch::Sender<Hold>,
    added: Notify,
}

/// A subscription.
#[derive(Debug)]
struct Stream {
    address: String,
    /// Tells this subscription from an earlier one for the same keys.
    number: u64,
    object: String,
    receiver: mpsc::UnboundedReceiver<Notification>,
    ended: bool,
    received: VecDeque<Notification>,
    /// Checked, and to be sent.
    ready: VecDeque<Notification>,
    progress: f64,
}

/// Something that was received and has to be checked.
pub(super) type Received = (u64, Notification);

/// Access to the subscriptions while nothing may be sent by anybody else.
pub(super) struct Access<'a>(MutexGuard<'a, Vec<Stream>>, &'a Streams);

impl Streams {
    pub(super) fn new() -> Self {
        let hold = watch::Sender::new(Hold { unsent: 0, until: Instant::now() });
        Self { list: Mutex::default(), hold, added: Notify::new() }
    }

    /// Takes the subscriptions. What is put into the outgoing queue before this is given back is in order with them.
    pub(super) fn access(&self) -> Access<'_> {
        Access(lock(&self.list), self)
    }

    /// The reply to `count` subscriptions is on its way: their first notifications wait.
    pub(super) fn opened(&self, count: usize, wait: Duration) {
        self.hold.send_modify(|hold| {
            hold.unsent = hold.unsent.saturating_sub(count);
            hold.until = hold.until.max(Instant::now() + wait);
        });
    }

    /// Returns when notifications may be sent.
    pub(super) async fn released(&self) {
        let mut watch = self.hold.subscribe();
        loop {
            let Hold { unsent, until } = *watch.borrow_and_update();
            let sleep = async {
                if unsent == 0 {
                    tokio::time::sleep_until(until).await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = sleep => return,
                _ = watch.changed() => {}
            }
        }
    }

    /// Returns when something was received, or a subscription was added.
    pub(super) async fn received(&self) {
        let something = poll_fn(|cx| {
            let mut any = false;
            for stream in lock(&self.list).iter_mut() {
                any |= !stream.received.is_empty();
                while !stream.ended {
                    match stream.receiver.poll_recv(cx) {
                        Poll::Ready(Some(notification)) => {
                            stream.received.push_back(notification);
                            any = true;
                        }
                        Poll::Ready(None) => stream.ended = true,
                        Poll::Pending => break,
                    }
                }
            }
            if any { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            () = something => {}
            () = self.added.notified() => {}
        }
    }

    /// Everything that was received and wasn't checked yet.
    pub(super) fn collect(&self) -> Vec<Received> {
        let mut received = Vec::new();
        for stream in lock(&self.list).iter_mut() {
            while let Ok(notification) = stream.receiver.try_recv() {
                stream.received.push_back(notification);
            }
            received.extend(stream.received.drain(..).map(|notification| (stream.number, notification)));
        }
        received
    }

    /// Gives back what was checked.
    pub(super) fn checked(&self, received: Vec<Received>) {
        let mut list = lock(&self.list);
        for (number, notification) in received {
            if let Some(stream) = list.iter_mut().find(|stream| stream.number == number) {
                stream.ready.push_back(notification);
            }
        }
    }
}

impl Access<'_> {
    /// Whether notifications have to wait.
    pub(super) fn held(&self) -> bool {
        let hold = self.1.hold.borrow();
        hold.unsent > 0 || hold.until > Instant::now()
    }

    /// Puts what a request did into force; the reply must follow before this is given back. Returns how many
    /// subscriptions the reply opens.
    pub(super) fn apply(&mut self, effects: &mut Effects) -> usize {
        for address in effects.dropped.drain(..) {
            self.0.retain(|stream| stream.address != address);
        }
        let opened = effects.streams.len();
        for NewStream { address, object, notifications } in effects.streams.drain(..) {
            self.0.push(Stream {
                address,
                number: next_number(),
                object,
                receiver: notifications,
                ended: false,
                received: VecDeque::new(),
                ready: VecDeque::new(),
                progress: 0.0,
            });
        }
        if opened > 0 {
            self.1.hold.send_modify(|hold| hold.unsent += opened);
            self.1.added.notify_one();
        }
        opened
    }

    /// The next notification to send.
    pub(super) fn next(&mut self) -> Option<String> {
        self.0.iter_mut().find_map(Stream::next)
    }
}

fn next_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[derive(Serialize)]
struct Item {
    height: u32,
    tx_hash: String,
    tweak_key: String,
}

impl Stream {
    /// The next page. Only the last page of a notification has its progress: with 1 a wallet believes that it has all.
    fn next(&mut self) -> Option<String> {
        let notification = self.ready.front_mut()?;
        let page: Vec<SilentPayment>;
        if notification.found.len() > PAGE {
            let rest = notification.found.split_off(PAGE);
            page = std::mem::replace(&mut notification.found, rest);
        } else {
            page = std::mem::take(&mut notification.found);
            // Never back, and never out of range; a NaN is no progress.
            self.progress = self.progress.max(notification.progress).min(1.0);
            self.ready.pop_front();
        }
        let items: Vec<Item> = page
            .iter()
            .map(|payment| Item {
                height: payment.height.unwrap_or(0),
                tx_hash: payment.txid.to_string(),
                tweak_key: payment.tweak.to_string(),
            })
            .collect();
        let params = format!(
            "{{\"subscription\":{},\"progress\":{},\"history\":{}}}",
            self.object,
            rpc::json(&self.progress),
            rpc::json(&items)
        );
        Some(rpc::notification("blockchain.silentpayments.subscribe", &params))
    }
}
