//! Chooses how to talk to a node, and checks that it is on the right network.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bitcoin::block::Header;
use bitcoin::blockdata::constants::genesis_block;
use bitcoin::{BlockHash, Network};

use super::auth::Credentials;
use super::http::NodeAddress;
use super::rest::RestSource;
use super::rpc::RpcSource;
use super::secret::Secret;
use super::{BlockWithPrevouts, ChainSource, SourceError, Tip, find_local_node};

/// How long a whole request may take unless told otherwise. A node that validates a block answers late.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Which of a node's interfaces to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeKind {
    /// REST if the node serves spent outputs there, else JSON-RPC.
    #[default]
    Auto,
    /// REST or nothing.
    Rest,
    /// JSON-RPC or nothing.
    Rpc,
}

/// Where a node is and how to log in. With everything left out the node of this machine is used.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The network that the node must be on.
    pub network: Network,
    /// `http://host:port` or parts of it; by default this machine with the port from `bitcoin.conf` or the usual one.
    pub url: Option<String>,
    /// The node's data directory, if it isn't the usual one: for `bitcoin.conf` and the cookie.
    pub data_dir: Option<PathBuf>,
    /// The cookie file, if it isn't in the data directory.
    pub cookie: Option<PathBuf>,
    /// User for JSON-RPC, together with `password`; goes before any cookie.
    pub user: Option<String>,
    /// Password for JSON-RPC.
    pub password: Option<Secret>,
    /// Which interface to use.
    pub kind: NodeKind,
    /// Limit for a whole request.
    pub timeout: Duration,
}

impl NodeConfig {
    /// The node of this machine on this network.
    pub fn new(network: Network) -> Self {
        Self {
            network,
            url: None,
            data_dir: None,
            cookie: None,
            user: None,
            password: None,
            kind: NodeKind::Auto,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// For people, before there is a source that describes itself: `Bitcoin Core at 127.0.0.1:8332`.
    pub fn describe(&self) -> String {
        match self.target() {
            Ok((address, _)) => format!("Bitcoin Core at {}", address.authority()),
            Err(_) => "Bitcoin Core".into(),
        }
    }

    pub(super) fn target(&self) -> Result<(NodeAddress, Option<Credentials>), SourceError> {
        let local = find_local_node(self.network, self.data_dir.as_deref());
        let address = match (&self.url, &local) {
            (Some(url), _) => NodeAddress::parse(url, self.network)?,
            (None, Some(local)) => NodeAddress::new("127.0.0.1", local.port),
            (None, None) => NodeAddress::new("127.0.0.1", super::default_rpc_port(self.network)),
        };
        let credentials = match (&self.user, &self.password, &self.cookie) {
            (Some(user), Some(password), _) => {
                Some(Credentials::User { user: user.clone(), password: password.clone() })
            }
            (None, None, Some(cookie)) => Some(Credentials::CookieFile(cookie.clone())),
            (None, None, None) => local.map(|local| local.credentials),
            _ => {
                return Err(SourceError::Refused(
                    "user and password for the node belong together: give both or none".into(),
                ));
            }
        };
        Ok((address, credentials))
    }
}

/// A node, over the interface that was chosen by [`connect`].
pub struct NodeSource {
    inner: Inner,
    network: Network,
    fallback_reason: Option<String>,
}

enum Inner {
    Rest(RestSource),
    Rpc(RpcSource),
}

impl fmt::Debug for NodeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSource")
            .field("source", &self.describe())
            .field("network", &self.network)
            .field("fallback_reason", &self.fallback_reason)
            .finish()
    }
}

/// Finds out how to talk to the node and checks that it is on the right network. Tries once: while the node is away the
/// answer is [`SourceError::Unavailable`], and a [`Waiter`](super::Waiter) repeats the call.
pub fn connect(config: &NodeConfig) -> Result<NodeSource, SourceError> {
    let (address, credentials) = config.target()?;
    let network = config.network;
    let mut fallback_reason = None;
    if config.kind != NodeKind::Rpc {
        let rest = RestSource::at(address.clone(), config.timeout);
        match try_rest(&rest, network) {
            Ok(()) => return Ok(NodeSource { inner: Inner::Rest(rest), network, fallback_reason: None }),
            // Only a node that says no is worth asking in another way.
            Err(RestProblem::Refused(reason)) if config.kind == NodeKind::Auto => {
                fallback_reason = Some(reason)
            }
            Err(RestProblem::Refused(reason)) => return Err(SourceError::Refused(reason)),
            Err(RestProblem::Other(error)) => return Err(error),
        }
    }
    let with_reason = |error| match (error, &fallback_reason) {
        (SourceError::Refused(text), Some(reason)) => {
            SourceError::Refused(format!("{text} (JSON-RPC was tried because: {reason})"))
        }
        (error, _) => error,
    };
    let credentials = credentials.ok_or_else(|| {
        with_reason(SourceError::Refused(
            "JSON-RPC needs a login: give a cookie file or user and password".into(),
        ))
    })?;
    let rpc = RpcSource::at(address, credentials, config.timeout);
    check_network(&rpc, network).map_err(with_reason)?;
    Ok(NodeSource { inner: Inner::Rpc(rpc), network, fallback_reason })
}

enum RestProblem {
    /// REST can't be used, but JSON-RPC perhaps.
    Refused(String),
    /// It isn't about REST.
    Other(SourceError),
}

fn try_rest(rest: &RestSource, network: Network) -> Result<(), RestProblem> {
    let genesis = genesis_hash(network);
    let found = rest.hash_at(0).map_err(RestProblem::from)?;
    expect_genesis(found, network).map_err(RestProblem::Other)?;
    rest.check_spent_outputs(genesis).map_err(RestProblem::from)
}

impl From<SourceError> for RestProblem {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Refused(reason) => Self::Refused(reason),
            other => Self::Other(other),
        }
    }
}

fn genesis_hash(network: Network) -> BlockHash {
    genesis_block(network).block_hash()
}

pub(super) fn check_network(source: &dyn ChainSource, network: Network) -> Result<(), SourceError> {
    expect_genesis(source.hash_at(0)?, network)
}

fn expect_genesis(found: Option<BlockHash>, network: Network) -> Result<(), SourceError> {
    let Some(found) = found else {
        return Err(SourceError::Invalid("the node has no block at height 0".into()));
    };
    if found == genesis_hash(network) {
        return Ok(());
    }
    let networks = [Network::Bitcoin, Network::Testnet, Network::Testnet4, Network::Signet, Network::Regtest];
    let name = match networks.into_iter().find(|&n| genesis_hash(n) == found) {
        Some(other) => network_name(other).to_owned(),
        None => format!("an unknown network with genesis block {found}"),
    };
    Err(SourceError::Refused(format!(
        "the node is on {name}, but {} is wanted: give another node or another network",
        network_name(network)
    )))
}

fn network_name(network: Network) -> &'static str {
    match network {
        Network::Bitcoin => "mainnet",
        Network::Testnet => "testnet3",
        Network::Testnet4 => "testnet4",
        Network::Signet => "signet",
        Network::Regtest => "regtest",
    }
}

impl NodeSource {
    /// The interface in use: [`NodeKind::Rest`] or [`NodeKind::Rpc`].
    pub fn kind(&self) -> NodeKind {
        match self.inner {
            Inner::Rest(_) => NodeKind::Rest,
            Inner::Rpc(_) => NodeKind::Rpc,
        }
    }

    /// Why [`NodeKind::Auto`] came to JSON-RPC, and what to change for the faster REST.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    fn source(&self) -> &dyn ChainSource {
        match &self.inner {
            Inner::Rest(rest) => rest,
            Inner::Rpc(rpc) => rpc,
        }
    }
}

impl ChainSource for NodeSource {
    fn describe(&self) -> String {
        self.source().describe()
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        self.source().tip()
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        self.source().hash_at(height)
    }

    fn headers_after(
        &self,
        after: BlockHash,
        after_height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        let headers = self.source().headers_after(after, after_height, count)?;
        if headers.is_none() {
            // Not a reorganisation if somebody has started a node of another network at this address: an index that
            // followed it would be undone down to its start.
            check_network(self.source(), self.network)?;
        }
        Ok(headers)
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        self.source().block(hash)
    }
}
