//! The Electrum protocol, versions 1.4 to 1.7, with silent payments as Frigate has them and Sparrow expects them, and with
//! tweaks as Cake Wallet asks for them.
//!
//! [`serve`] opens the ports. Everything that is asked comes from a [`Node`] and a [`SilentPayments`]; this module knows
//! only what is said and how:
//!
//! - `listener`, `tls`, `transport`, `websocket`, `line`: from ports to messages;
//! - `connection`: the tasks of a connection and the order of what it sends;
//! - `session`, `helpers`, `rpc`, `args`, `version`, `methods`: from a message to its reply;
//! - `hub`, `notes`, `streams`, `tweaks`: from events and blocks to notifications;
//! - `peers`, `config`: limits.
//!
//! A request that may hold a scan key is wiped when it is answered, and no error repeats a parameter.

mod args;
mod config;
mod connection;
mod helpers;
mod hub;
mod line;
mod listener;
mod methods;
mod notes;
pub(crate) mod peers;
mod rpc;
mod session;
mod streams;
pub(crate) mod tls;
mod transport;
mod tweaks;
mod version;
mod websocket;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bitcoin::consensus::encode::serialize_hex;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::light::Blocks;
use crate::node::{ChainTip, Node, SilentPayments};
use helpers::Helpers;
use hub::Hub;
use listener::Port;
use peers::Peers;

pub use config::{CertificateFiles, Config, Limits};
pub use version::Version;

/// What all connections share.
struct Server {
    config: Config,
    node: Arc<dyn Node>,
    silent: Option<Arc<dyn SilentPayments>>,
    light: Option<Arc<Blocks>>,
    hub: Arc<Hub>,
    peers: Arc<Peers>,
    workers: Semaphore,
    helpers: Helpers,
}

/// Where the server listens; a port of 0 in the settings is a real one here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Plain connections.
    pub tcp: Vec<SocketAddr>,
    /// TLS.
    pub tls: Vec<SocketAddr>,
    /// WebSockets.
    pub websocket: Vec<SocketAddr>,
    /// WebSockets over TLS.
    pub websocket_tls: Vec<SocketAddr>,
}

/// A running server.
pub struct Handle {
    addresses: Addresses,
    peers: Arc<Peers>,
    done: JoinHandle<()>,
}

impl Handle {
    /// Where it listens.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.peers.connections()
    }

    /// Returns when the server has stopped.
    pub async fn finished(self) {
        if let Err(error) = self.done.await {
            tracing::error!("the Electrum server ended badly: {error}");
        }
    }
}

/// Opens the ports and serves until `shutdown` is done. Then nothing new is taken up, what is being answered is answered
/// (for at most [`Config::drain`]), and the connections are closed.
///
/// Runs on the runtime it is called on, which needs input, output and time.
pub async fn serve(
    config: Config,
    node: Arc<dyn Node>,
    silent: Option<Arc<dyn SilentPayments>>,
    light: Option<Arc<Blocks>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<Handle> {
    let acceptor = if config.tls.is_empty() && config.websocket_tls.is_empty() {
        None
    } else {
        Some(TlsAcceptor::from(tls::server_config(&config.certificate)?))
    };
    let mut addresses = Addresses::default();
    let mut listeners = Vec::new();
    for (asked, open, tls, websocket) in [
        (&config.tcp, &mut addresses.tcp, None, false),
        (&config.tls, &mut addresses.tls, acceptor.clone(), false),
        (&config.websocket, &mut addresses.websocket, None, true),
        (&config.websocket_tls, &mut addresses.websocket_tls, acceptor, true),
    ] {
        for address in asked {
            let listener = listener::bind(*address).await?;
            open.push(listener.local_addr()?);
            listeners.push((listener, Port { tls: tls.clone(), websocket }));
        }
    }

    let (hub, peers) = (Arc::new(Hub::default()), Peers::new(config.limits.clone()));
    let (drain, settle) = (config.drain, config.settle_timeout);
    let workers = Semaphore::new(config.limits.concurrent_requests.max(1));
    let helpers = Helpers::new(config.limits.batch_threads)?;
    // Before anybody can ask, so that nothing falls between.
    let events = node.events();
    let follower =
        tokio::spawn(hub::follow(Arc::clone(&hub), Arc::clone(&node), silent.clone(), events, settle));
    let server =
        Arc::new(Server { config, node, silent, light, hub, peers: Arc::clone(&peers), workers, helpers });

    let (stop, stopped) = watch::channel(false);
    let (alive, mut all_gone) = mpsc::channel(1);
    for (listener, port) in listeners {
        tokio::spawn(listener::listen(Arc::clone(&server), listener, port, stopped.clone(), alive.clone()));
    }
    drop((alive, server));
    let done = tokio::spawn(async move {
        shutdown.await;
        stop.send_replace(true);
        // Nobody sends anything here: the channel is closed when the last task of a connection is gone.
        let gone = tokio::time::timeout(drain + Duration::from_secs(1), all_gone.recv()).await;
        if gone.is_err() {
            tracing::warn!("some connections didn't end in time");
        }
        follower.abort();
    });
    Ok(Handle { addresses, peers, done })
}

/// The tip as every answer about headers has it.
fn header_object(tip: &ChainTip) -> String {
    format!("{{\"hex\":\"{}\",\"height\":{}}}", serialize_hex(&tip.header), tip.height)
}

/// Locks. A panic elsewhere leaves what we keep usable: no invariant spans an unlock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
