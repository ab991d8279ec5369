//! Settings of `peregrine serve`: where it listens, and its limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use peregrine_index::mempool::ZmqChoice;
use serde::Deserialize;

use super::{NetworkName, Settings};
use crate::electrum::{Config, Limits};
use crate::http;

/// What turns a port, or ZMQ, off.
const OFF: &str = "off";

/// Makes the structure, the names of its keys, and how two of them are put together, from one list.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $(#[$attribute:meta])* $name:ident: $type:ty = $variable:literal, $value:literal;)+) => {
        /// Settings of `peregrine serve` as they stand in one place; what is absent is `None`.
        #[derive(clap::Args, Clone, Debug, Default, Deserialize)]
        #[command(next_help_heading = "Settings of the server (also in the settings file)")]
        #[serde(default)]
        pub struct ServeSettings {
            $($(#[doc = $doc])+ #[arg(long, env = $variable, value_name = $value)] $(#[$attribute])* pub $name: Option<$type>,)+
        }

        impl ServeSettings {
            /// The keys of the settings file.
            pub(super) const KEYS: &[&str] = &[$(stringify!($name)),+];

            /// These settings, and where they say nothing, the others.
            pub fn or(self, other: Self) -> Self {
                Self { $($name: self.$name.or(other.$name)),+ }
            }
        }
    };
}

/// A number of something, at least one.
type Count = std::num::NonZeroU32;

settings! {
    /// Where to listen for Electrum clients, or "off" [default: 127.0.0.1 and the network's usual port]
    electrum: Listen = "PEREGRINE_ELECTRUM", "ADDR:PORT";
    /// The same with TLS, or "off" [default: 127.0.0.1 and the next port]
    electrum_tls: Listen = "PEREGRINE_ELECTRUM_TLS", "ADDR:PORT";
    /// The same with WebSockets [default: off]
    electrum_websocket: Listen = "PEREGRINE_ELECTRUM_WEBSOCKET", "ADDR:PORT";
    /// The same with WebSockets over TLS [default: off]
    electrum_websocket_tls: Listen = "PEREGRINE_ELECTRUM_WEBSOCKET_TLS", "ADDR:PORT";
    /// Certificate chain for TLS, as PEM [default: electrum-cert.pem in the data directory, made when it is missing]
    electrum_cert: PathBuf = "PEREGRINE_ELECTRUM_CERT", "FILE";
    /// Its private key [default: electrum-key.pem in the data directory]
    electrum_key: PathBuf = "PEREGRINE_ELECTRUM_KEY", "FILE";
    /// What clients show of the server [default: its name and version]
    electrum_banner: String = "PEREGRINE_ELECTRUM_BANNER", "TEXT";
    /// Where to offer Esplora's REST interface, or "off" [default: off; explorers expect 127.0.0.1:3000]
    esplora: Listen = "PEREGRINE_ESPLORA", "ADDR:PORT";
    /// The same with TLS, with the certificate of electrum_cert [default: off]
    esplora_tls: Listen = "PEREGRINE_ESPLORA_TLS", "ADDR:PORT";
    /// Where to offer tweaks to wallets that scan by themselves, under /v1/silent, or "off" [default: off]
    native: Listen = "PEREGRINE_NATIVE", "ADDR:PORT";
    /// The same with TLS [default: off]
    native_tls: Listen = "PEREGRINE_NATIVE_TLS", "ADDR:PORT";
    /// The same as the index-server specification of BIP352 has it [default: off]
    index_server: Listen = "PEREGRINE_INDEX_SERVER", "ADDR:PORT";
    /// The same with TLS [default: off]
    index_server_tls: Listen = "PEREGRINE_INDEX_SERVER_TLS", "ADDR:PORT";
    /// The same as the first version of BlindBit Oracle has it, for Dana [default: off]
    blindbit: Listen = "PEREGRINE_BLINDBIT", "ADDR:PORT";
    /// The same with TLS [default: off]
    blindbit_tls: Listen = "PEREGRINE_BLINDBIT_TLS", "ADDR:PORT";
    /// Whose pages may ask over HTTP: an origin such as example.org with https:// before it, or "*" for all [default: none]
    http_cors: String = "PEREGRINE_HTTP_CORS", "ORIGIN";
    /// Memory for what explorers and wallets were shown, in MiB [default: 64]
    http_cache: Count = "PEREGRINE_HTTP_CACHE", "MIB";
    /// The node's ZMQ address for "sequence", or "off" to ask for the mempool regularly instead [default: what the node says]
    zmq: String = "PEREGRINE_ZMQ", "URL";
    /// Memory for the script-hash index, in MiB [default: 512]
    address_cache: Count = "PEREGRINE_ADDRESS_CACHE", "MIB";
    /// Memory for confirmed transactions that were asked for, in MiB [default: 128]
    transaction_cache: Count = "PEREGRINE_TRANSACTION_CACHE", "MIB";
    /// Refuse histories with more entries [default: 100000]
    max_history: Count = "PEREGRINE_MAX_HISTORY", "N";
    /// Clients at the same time [default: 4000]
    max_connections: Count = "PEREGRINE_MAX_CONNECTIONS", "N";
    /// The same from one address, /64 for IPv6 [default: 32]
    max_connections_per_address: Count = "PEREGRINE_MAX_CONNECTIONS_PER_ADDRESS", "N";
    /// Bytes of a request, or of a batch [default: 4000000]
    max_request_bytes: Count = "PEREGRINE_MAX_REQUEST_BYTES", "N";
    /// Bytes of a reply, or of all replies to a batch [default: 20000000]
    max_response_bytes: Count = "PEREGRINE_MAX_RESPONSE_BYTES", "N";
    /// Requests in a batch; Sparrow needs 100 [default: 1000]
    max_batch: Count = "PEREGRINE_MAX_BATCH", "N";
    /// Scripts and outpoints that a connection subscribes to [default: 50000]
    max_subscriptions_per_connection: Count = "PEREGRINE_MAX_SUBSCRIPTIONS_PER_CONNECTION", "N";
    /// The same from one address [default: 100000]
    max_subscriptions_per_address: Count = "PEREGRINE_MAX_SUBSCRIPTIONS_PER_ADDRESS", "N";
    /// The same in all [default: 2000000]
    max_subscriptions: Count = "PEREGRINE_MAX_SUBSCRIPTIONS", "N";
    /// Silent-payment subscriptions of a connection [default: 100]
    max_silent_subscriptions: Count = "PEREGRINE_MAX_SILENT_SUBSCRIPTIONS", "N";
    /// Labels of a silent-payment subscription [default: 10]
    max_silent_labels: Count = "PEREGRINE_MAX_SILENT_LABELS", "N";
    /// Silent-payment scans of all clients that run or wait [default: 1000]
    max_silent_scans: Count = "PEREGRINE_MAX_SILENT_SCANS", "N";
    /// Requests that one address may make at once before it is slowed down [default: 50000]
    request_burst: Count = "PEREGRINE_REQUEST_BURST", "N";
    /// Requests per second that it may make from then on [default: 2000]
    request_rate: Count = "PEREGRINE_REQUEST_RATE", "N";
    /// Requests that are answered at the same time [default: 64]
    max_concurrent_requests: Count = "PEREGRINE_MAX_CONCURRENT_REQUESTS", "N";
    /// Threads that help to answer large batches; one batch gets at most half of them [default: 32]
    batch_threads: Count = "PEREGRINE_BATCH_THREADS", "N";
    /// Replies that wait for a client to read before nothing more is read from it [default: 64]
    max_queue: Count = "PEREGRINE_MAX_QUEUE", "N";
    /// Seconds after which a client that takes nothing is disconnected [default: 60]
    write_timeout: Count = "PEREGRINE_WRITE_TIMEOUT", "SECONDS";
    /// Seconds after which a client that asks nothing is disconnected [default: 600]
    idle_timeout: Count = "PEREGRINE_IDLE_TIMEOUT", "SECONDS";
}

/// One address, several, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(Vec<SocketAddr>);

impl std::str::FromStr for Listen {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text == OFF {
            return Ok(Self(Vec::new()));
        }
        let parse = |part: &str| {
            part.trim().parse().with_context(|| {
                format!(
                    "'{part}' isn't an address with a port, such as 127.0.0.1:50001 or [::]:50001, or off"
                )
            })
        };
        text.split(',').map(parse).collect::<anyhow::Result<_>>().map(Self)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The port that clients try on a network: Electrum's own, or else that of electrs.
pub fn default_port(network: NetworkName) -> u16 {
    match network {
        NetworkName::Mainnet => 50001,
        NetworkName::Testnet => 60001,
        NetworkName::Testnet4 => 40001,
        NetworkName::Signet => 60601,
        NetworkName::Regtest => 51001,
    }
}

impl ServeSettings {
    /// How the Electrum server is to be.
    pub fn electrum_config(&self, settings: &Settings) -> anyhow::Result<Config> {
        let default = Config::new(settings.network_dir()?);
        let local = |port| vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)];
        let port = default_port(settings.network());
        let listen = |listen: &Option<Listen>, default| listen.clone().map_or(default, |listen| listen.0);
        let mut certificate = default.certificate.clone();
        match (&self.electrum_cert, &self.electrum_key) {
            (Some(cert), Some(key)) => {
                (certificate.certificate, certificate.key) = (cert.clone(), key.clone())
            }
            (None, None) => {}
            _ => bail!("electrum_cert and electrum_key belong together: give both or none"),
        }
        Ok(Config {
            tcp: listen(&self.electrum, local(port)),
            tls: listen(&self.electrum_tls, local(port + 1)),
            websocket: listen(&self.electrum_websocket, Vec::new()),
            websocket_tls: listen(&self.electrum_websocket_tls, Vec::new()),
            certificate,
            banner: self.electrum_banner.clone().unwrap_or_else(|| default.banner.clone()),
            limits: self.limits(),
            ..default
        })
    }

    /// How the HTTP server is to be.
    pub fn http_config(&self, settings: &Settings) -> anyhow::Result<http::Config> {
        let electrum = self.electrum_config(settings)?;
        let ports = [
            (http::Interface::Esplora, &self.esplora, &self.esplora_tls),
            (http::Interface::Native, &self.native, &self.native_tls),
            (http::Interface::IndexServer, &self.index_server, &self.index_server_tls),
            (http::Interface::Blindbit, &self.blindbit, &self.blindbit_tls),
        ];
        let ports = ports.into_iter().flat_map(|(interface, plain, secure)| {
            [(plain, false), (secure, true)].map(|(listen, tls)| http::Port {
                interface,
                addresses: listen.clone().map_or(Vec::new(), |listen| listen.0),
                tls,
            })
        });
        Ok(http::Config {
            ports: ports.collect(),
            certificate: electrum.certificate,
            cors: self.http_cors.clone(),
            cache: self.http_cache.map_or(64, |mib| mib.get().into()) << 20,
            patience: Duration::from_secs(10),
            drain: electrum.drain,
            limits: electrum.limits,
        })
    }

    fn limits(&self) -> Limits {
        let default = Limits::default();
        let count = |value: Option<Count>, default| value.map_or(default, |value| value.get() as usize);
        let seconds = |value: Option<Count>, default| {
            value.map_or(default, |value| Duration::from_secs(value.get().into()))
        };
        let rate = |value: Option<Count>, default| value.map_or(default, |value| value.get().into());
        Limits {
            connections: count(self.max_connections, default.connections),
            connections_per_address: count(self.max_connections_per_address, default.connections_per_address),
            request_bytes: count(self.max_request_bytes, default.request_bytes),
            response_bytes: count(self.max_response_bytes, default.response_bytes),
            batch: count(self.max_batch, default.batch),
            subscriptions_per_connection: count(
                self.max_subscriptions_per_connection,
                default.subscriptions_per_connection,
            ),
            subscriptions_per_address: count(
                self.max_subscriptions_per_address,
                default.subscriptions_per_address,
            ),
            subscriptions: count(self.max_subscriptions, default.subscriptions),
            silent_subscriptions_per_connection: count(
                self.max_silent_subscriptions,
                default.silent_subscriptions_per_connection,
            ),
            silent_labels: count(self.max_silent_labels, default.silent_labels),
            request_tokens: rate(self.request_burst, default.request_tokens),
            request_tokens_per_second: rate(self.request_rate, default.request_tokens_per_second),
            concurrent_requests: count(self.max_concurrent_requests, default.concurrent_requests),
            batch_threads: count(self.batch_threads, default.batch_threads),
            queue: count(self.max_queue, default.queue),
            write_timeout: seconds(self.write_timeout, default.write_timeout),
            idle: seconds(self.idle_timeout, default.idle),
            ..default
        }
    }

    /// Where mempool messages come from.
    pub fn zmq_choice(&self) -> ZmqChoice {
        match self.zmq.as_deref() {
            None => ZmqChoice::Auto,
            Some(OFF) => ZmqChoice::Off,
            Some(address) => ZmqChoice::Address(address.to_owned()),
        }
    }

    /// Memory for the script-hash index, in bytes.
    pub fn address_cache(&self) -> u64 {
        self.address_cache.map_or(512, |mib| mib.get().into()) << 20
    }

    /// Memory for confirmed transactions, in bytes.
    pub fn transaction_cache(&self) -> u64 {
        self.transaction_cache.map_or(128, |mib| mib.get().into()) << 20
    }

    /// Histories with more entries are refused.
    pub fn max_history(&self) -> usize {
        self.max_history.map_or(100_000, |count| count.get() as usize)
    }

    /// Silent-payment scans of all clients that run or wait.
    pub fn max_silent_scans(&self) -> usize {
        self.max_silent_scans.map_or(1000, |count| count.get() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_people_write_them() {
        let listen = |text: &str| text.parse::<Listen>().map_err(|error| error.to_string());
        assert_eq!(listen("off").unwrap().0, []);
        assert_eq!(listen("127.0.0.1:1, [::1]:2").unwrap().0.len(), 2);
        for wrong in ["", "50001", "localhost", "127.0.0.1", "127.0.0.1:70000", "1.2.3.4:1,"] {
            assert!(listen(wrong).unwrap_err().contains("127.0.0.1:50001"), "{wrong}");
        }
    }

    #[test]
    fn limits_are_those_of_the_file_and_flags_go_before_them() {
        let file = Settings::parse("max_batch = 7\nidle_timeout = 9\nelectrum = 'off'").unwrap();
        let flags = ServeSettings { idle_timeout: Count::new(11), ..ServeSettings::default() };
        let config =
            flags.or(file.serve.clone()).electrum_config(&Settings { datadir: Some("d".into()), ..file });
        let config = config.unwrap();
        assert_eq!((config.limits.batch, config.limits.idle), (7, Duration::from_secs(11)));
        assert_eq!((config.tcp.len(), config.tls[0].port()), (0, 50002));
        assert_eq!(config.limits.queue, Limits::default().queue);
        assert!(Settings::parse("max_batch = 0").is_err());
        assert!(Settings::parse("electrum = '50001'").is_err());
    }
}
