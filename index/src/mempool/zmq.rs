//! The node's `sequence` messages: which transactions came and left, and that there was a block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bitcoin::Txid;
use bitcoin::hashes::Hash;
use zeromq::{Socket, SocketRecv, SubSocket, ZmqMessage};

/// A node that says nothing for so long may have been restarted without our noticing.
const SILENCE: Duration = Duration::from_secs(30);
/// Between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// How soon it stops.
const STOP: Duration = Duration::from_millis(100);
/// So many messages at most are kept; beyond that, a list of the mempool is cheaper.
const KEPT: usize = 100_000;

/// What was heard since somebody last asked.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Transactions in the order of their messages: true if it came, false if it left.
    pub(super) transactions: Vec<(Txid, bool)>,
    /// Whether these messages don't tell everything: a block came or went, or messages were lost.
    pub(super) incomplete: bool,
}

/// A thread that listens.
pub(super) struct Listener {
    heard: Arc<Mutex<Heard>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens at an address such as `tcp://127.0.0.1:28332`; `wake` is called for every message.
    pub(super) fn start(address: String, wake: Box<dyn Fn() + Send + Sync>) -> std::io::Result<Self> {
        let heard = Arc::new(Mutex::new(Heard { incomplete: true, ..Heard::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = {
            let (heard, stop) = (Arc::clone(&heard), Arc::clone(&stop));
            std::thread::Builder::new().name("zmq".into()).spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = listen(&address, &heard, &*wake) => {}
                        () = stopped(&stop) => {}
                    }
                });
                // Sockets whose connections hang don't hold us up.
                runtime.shutdown_timeout(STOP);
            })?
        };
        Ok(Self { heard, stop, thread: Some(thread) })
    }

    /// What was heard, once.
    pub(super) fn take(&self) -> Heard {
        std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in there was logged by the panic hook.
            let _ = thread.join();
        }
    }
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(STOP).await;
    }
}

async fn listen(address: &str, heard: &Mutex<Heard>, wake: &(dyn Fn() + Send + Sync)) {
    let mut said = false;
    loop {
        match subscribe(address).await {
            Ok(socket) => {
                said = false;
                receive(socket, heard, wake).await;
            }
            Err(error) if !said => {
                said = true;
                tracing::warn!("no ZMQ messages from {address}: {error}; the mempool is asked for instead");
            }
            Err(_) => {}
        }
        // What was sent meanwhile is lost.
        heard.lock().unwrap_or_else(PoisonError::into_inner).incomplete = true;
        tokio::time::sleep(RETRY).await;
    }
}

async fn subscribe(address: &str) -> Result<SubSocket, zeromq::ZmqError> {
    let mut socket = SubSocket::new();
    socket.connect(address).await?;
    socket.subscribe("sequence").await?;
    Ok(socket)
}

/// Until the connection breaks, or is silent for long.
async fn receive(mut socket: SubSocket, heard: &Mutex<Heard>, wake: &(dyn Fn() + Send + Sync)) {
    let mut last = None;
    while let Ok(Ok(message)) = tokio::time::timeout(SILENCE, socket.recv()).await {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        match parse(&message) {
            Some((number, what)) => {
                if last.is_some_and(|last: u32| last.wrapping_add(1) != number) {
                    heard.incomplete = true;
                }
                last = Some(number);
                match what {
                    What::Transaction(txid, came) if heard.transactions.len() < KEPT => {
                        heard.transactions.push((txid, came));
                    }
                    What::Transaction(..) | What::Block => heard.incomplete = true,
                }
            }
            None => heard.incomplete = true,
        }
        drop(heard);
        wake();
    }
}

enum What {
    Transaction(Txid, bool),
    Block,
}

/// Number of the message, and what it says. A body is a hash as it is shown, a letter, and for transactions a number.
fn parse(message: &ZmqMessage) -> Option<(u32, What)> {
    let (body, number) = (message.get(1)?, message.get(2)?);
    let number = u32::from_le_bytes(number[..].try_into().ok()?);
    let (hash, rest) = body.split_first_chunk::<32>()?;
    let mut hash = *hash;
    hash.reverse();
    let txid = Txid::from_byte_array(hash);
    Some((
        number,
        match (rest.first()?, rest.len()) {
            (b'A', 9) => What::Transaction(txid, true),
            (b'R', 9) => What::Transaction(txid, false),
            (b'C' | b'D', 1) => What::Block,
            _ => return None,
        },
    ))
}
