//! What can be set, with the defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::version::Version;

/// Settings of the Electrum server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen for plain connections.
    pub tcp: Vec<SocketAddr>,
    /// Where to listen for TLS.
    pub tls: Vec<SocketAddr>,
    /// Where to listen for WebSockets.
    pub websocket: Vec<SocketAddr>,
    /// Where to listen for WebSockets over TLS.
    pub websocket_tls: Vec<SocketAddr>,
    /// Certificate chain and key, as PEM. If neither file exists, a self-signed pair is written there.
    pub certificate: CertificateFiles,
    /// What `server.version` and `server.features` name. Wallets look for words in it.
    pub server_name: String,
    /// What `server.banner` says.
    pub banner: String,
    /// The newest protocol version that is spoken.
    pub newest_version: Version,
    /// How long after the reply to a silent-payment subscription its first notification is sent. Sparrow loses what comes
    /// within the first milliseconds.
    pub first_notification_hold: Duration,
    /// How long script-hash notifications wait for the silent-payment ones of the same event.
    pub settle_timeout: Duration,
    /// How long a stop waits for requests that are being answered.
    pub drain: Duration,
    /// What a client may do.
    pub limits: Limits,
}

/// Where the certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// The usual names in a folder.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self { certificate: dir.join("electrum-cert.pem"), key: dir.join("electrum-key.pem") }
    }
}

/// What a client may do. Whoever meets a limit is told which. What counts per address counts per /64 for IPv6, and not at
/// all for loopback addresses, behind which proxies and Tor are.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// Bytes of a request, or of a batch.
    pub request_bytes: usize,
    /// Bytes of a reply, or of all replies to a batch.
    pub response_bytes: usize,
    /// Requests in a batch. Sparrow sends up to 100, BlueWallet 200.
    pub batch: usize,
    /// Script hashes and outpoints that a connection subscribes to.
    pub subscriptions_per_connection: usize,
    /// The same for all connections from one address.
    pub subscriptions_per_address: usize,
    /// The same for all connections.
    pub subscriptions: usize,
    /// Silent-payment subscriptions of a connection.
    pub silent_subscriptions_per_connection: usize,
    /// Labels of a silent-payment subscription, without the change label.
    pub silent_labels: usize,
    /// How much one address may ask at once, in units of about one request.
    pub request_tokens: f64,
    /// How much of that comes back per second.
    pub request_tokens_per_second: f64,
    /// Requests beyond that wait up to so long, then they are refused.
    pub request_delay: Duration,
    /// Requests of all connections that are being answered at the same time; further ones queue in turn.
    pub concurrent_requests: usize,
    /// Threads that help to answer large batches, of all connections together. One batch gets at most half of them.
    pub batch_threads: usize,
    /// Replies and notifications that wait for a client to read. With so many, no further request of it is taken up.
    pub queue: usize,
    /// A client that doesn't take a byte for so long is disconnected.
    pub write_timeout: Duration,
    /// A client that sends no request for so long is disconnected. Sparrow pings every 60 s.
    pub idle: Duration,
    /// How long a TLS or WebSocket handshake may take.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_000,
            connections_per_address: 32,
            request_bytes: 4_000_000,
            response_bytes: 20_000_000,
            batch: 1_000,
            subscriptions_per_connection: 50_000,
            subscriptions_per_address: 100_000,
            subscriptions: 2_000_000,
            silent_subscriptions_per_connection: 100,
            silent_labels: 10,
            request_tokens: 50_000.0,
            request_tokens_per_second: 2_000.0,
            request_delay: Duration::from_secs(2),
            concurrent_requests: 64,
            batch_threads: 32,
            queue: 64,
            write_timeout: Duration::from_secs(60),
            idle: Duration::from_secs(600),
            handshake: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// The defaults, with the certificate in this folder and nowhere to listen.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            tcp: Vec::new(),
            tls: Vec::new(),
            websocket: Vec::new(),
            websocket_tls: Vec::new(),
            certificate: CertificateFiles::in_dir(data_dir),
            server_name: concat!("Peregrine ", env!("CARGO_PKG_VERSION"), " (electrumx, electrs compatible)")
                .into(),
            banner: concat!("Peregrine ", env!("CARGO_PKG_VERSION")).into(),
            newest_version: Version::NEWEST,
            first_notification_hold: Duration::from_millis(300),
            settle_timeout: Duration::from_secs(10),
            drain: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }
}
