//! HTTP for explorers and for wallets that keep their keys.
//!
//! [`serve`] opens the ports. Each [`Interface`] is a router over the same [`Explorer`](crate::node::Explorer); several share an address if their
//! paths don't contradict each other.
//!
//! - `server`: from ports to requests, limits of connections;
//! - `web`: what all handlers share; `problem`: errors; `reply`: answers with their headers;
//! - `esplora`: the REST interface of Blockstream's and mempool's electrs;
//! - `silent`: tweaks for wallets that scan by themselves.

mod esplora;
mod problem;
mod reply;
mod server;
mod silent;
mod web;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;

use crate::electrum::{CertificateFiles, Limits};

pub use server::{Handle, serve};

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// Blockstream's Esplora, with what mempool.space adds.
    Esplora,
    /// Peregrine's own, under `/v1`.
    Native,
    /// The index-server specification beside BIP352.
    IndexServer,
    /// BlindBit Oracle's first version.
    Blindbit,
}

impl Interface {
    /// The name of its setting.
    pub fn name(self) -> &'static str {
        match self {
            Self::Esplora => "esplora",
            Self::Native => "native",
            Self::IndexServer => "index_server",
            Self::Blindbit => "blindbit",
        }
    }

    fn router(self) -> Router<web::Shared> {
        match self {
            Self::Esplora => esplora::router(),
            Self::Native => silent::native(),
            Self::IndexServer => silent::index_server(),
            Self::Blindbit => silent::blindbit(),
        }
    }
}

/// An interface and where it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// What is spoken.
    pub interface: Interface,
    /// Where.
    pub addresses: Vec<SocketAddr>,
    /// Whether over TLS.
    pub tls: bool,
}

/// Settings of the HTTP server.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is offered where.
    pub ports: Vec<Port>,
    /// Certificate chain and key; if neither file exists, a self-signed pair is written there.
    pub certificate: CertificateFiles,
    /// Origins whose pages may ask, as in `https://example.org` or `*`; without it pages of other origins can't.
    pub cors: Option<String>,
    /// Bytes of memory for transactions as explorers show them.
    pub cache: u64,
    /// How long a request waits for its turn.
    pub patience: Duration,
    /// How long a stop waits for requests that are being answered.
    pub drain: Duration,
    /// What a client may do; those of the Electrum server that have a meaning here.
    pub limits: Limits,
}

/// Two interfaces that have the same paths with different answers.
pub(crate) const CONTRADICT: [Interface; 2] = [Interface::IndexServer, Interface::Blindbit];

impl Config {
    /// Whether any port is to be opened.
    pub fn is_on(&self) -> bool {
        self.ports.iter().any(|port| !port.addresses.is_empty())
    }
}
