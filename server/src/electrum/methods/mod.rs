//! Every method: its name, the versions that have it, its parameters, what it costs, and when it can be asked.

mod chain;
mod fees;
mod scripts;
mod server;
mod silent;
mod transactions;
mod tweaks;

pub(super) use scripts::{outpoint_json, status_json};

use super::Server;
use super::args::Args;
use super::rpc::RpcError;
use super::session::{Effects, Session};
use super::version::Version;
use crate::node::Node;

/// A call of a method.
pub(super) struct Call<'a> {
    pub(super) session: &'a Session,
    pub(super) version: Version,
    pub(super) effects: &'a mut Effects,
}

impl Call<'_> {
    fn server(&self) -> &Server {
        &self.session.server
    }

    fn node(&self) -> &dyn Node {
        &*self.session.server.node
    }
}

/// JSON of the result, or an error.
pub(super) type Outcome = Result<String, RpcError>;

/// When a method can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// At any time, even before the version is negotiated.
    Always,
    /// Also while the index is behind.
    Early,
    /// When the index is complete.
    Ready,
}

/// A method.
pub(super) struct Method {
    pub(super) name: &'static str,
    since: Version,
    /// The first version that doesn't have it any more.
    until: Version,
    pub(super) params: &'static [&'static str],
    pub(super) required: usize,
    /// Whether more parameters are taken and ignored.
    pub(super) more: bool,
    pub(super) cost: f64,
    pub(super) gate: Gate,
    pub(super) call: fn(&mut Call<'_>, &Args<'_>) -> Outcome,
    /// Whether it needs a scanner.
    silent: bool,
    /// Whether it may be answered at the same time as other such requests of the same client: nothing that it changes
    /// matters to them, and the order in which they are answered to nobody.
    pub(super) independent: bool,
}

/// The method of this name in this version.
pub(super) fn find(name: &str, version: Version, silent: bool) -> Option<&'static Method> {
    METHODS.iter().find(|method| {
        method.name == name && (method.since..method.until).contains(&version) && (silent || !method.silent)
    })
}

const fn method(
    name: &'static str,
    params: &'static [&'static str],
    required: usize,
    gate: Gate,
    cost: f64,
    call: fn(&mut Call<'_>, &Args<'_>) -> Outcome,
) -> Method {
    Method {
        name,
        since: Version::OLDEST,
        until: Version(u16::MAX, 0, 0),
        params,
        required,
        more: false,
        cost,
        gate,
        call,
        silent: false,
        independent: false,
    }
}

impl Method {
    const fn since(self, since: Version) -> Self {
        Self { since, ..self }
    }

    const fn until(self, until: Version) -> Self {
        Self { until, ..self }
    }

    const fn more(self) -> Self {
        Self { more: true, ..self }
    }

    const fn independent(self) -> Self {
        Self { independent: true, ..self }
    }

    const fn silent(self) -> Self {
        Self { silent: true, ..self }
    }
}

use Gate::{Always, Early, Ready};
use Version as V;

#[rustfmt::skip]
static METHODS: [Method; 45] = [
    method("server.version", &["client_name", "protocol_version"], 0, Always, 0.0, server::version).more(),
    method("server.features", &[], 0, Always, 0.0, server::features),
    method("server.banner", &[], 0, Always, 0.0, server::banner),
    method("server.ping", &[], 0, Always, 0.0, server::ping).until(V::V1_7),
    method("server.ping", &["pong_len", "data"], 0, Always, 0.0, server::ping_with_data).since(V::V1_7),
    method("server.donation_address", &[], 0, Early, 0.0, server::donation_address),
    method("server.add_peer", &["features"], 1, Early, 1.0, server::add_peer),
    method("server.peers.subscribe", &[], 0, Early, 0.0, server::peers),

    method("blockchain.headers.subscribe", &[], 0, Early, 0.0, chain::subscribe),
    method("blockchain.block.header", &["height", "cp_height"], 1, Early, 0.0, chain::header).independent(),
    method("blockchain.block.headers", &["start_height", "count", "cp_height"], 2, Early, 2.0, chain::headers).independent(),

    method("blockchain.estimatefee", &["number"], 1, Early, 0.0, fees::estimate).until(V::V1_6).independent(),
    method("blockchain.estimatefee", &["number", "mode"], 1, Early, 0.0, fees::estimate).since(V::V1_6).independent(),
    method("blockchain.relayfee", &[], 0, Early, 0.0, fees::relay).until(V::V1_6),
    method("mempool.get_info", &[], 0, Early, 0.0, fees::info).since(V::V1_6),
    method("mempool.get_fee_histogram", &[], 0, Early, 0.0, fees::histogram),
    method("mempool.recent", &[], 0, Ready, 0.0, fees::recent).since(V::V1_7),

    method("blockchain.scripthash.get_balance", &["scripthash"], 1, Ready, 1.0, scripts::balance).until(V::V1_7).independent(),
    method("blockchain.scripthash.get_history", &["scripthash"], 1, Ready, 1.0, scripts::history).until(V::V1_7).independent(),
    method("blockchain.scripthash.get_mempool", &["scripthash"], 1, Ready, 1.0, scripts::mempool).until(V::V1_7).independent(),
    method("blockchain.scripthash.listunspent", &["scripthash"], 1, Ready, 1.0, scripts::unspent).until(V::V1_7).independent(),
    method("blockchain.scripthash.subscribe", &["scripthash"], 1, Ready, 1.0, scripts::subscribe).until(V::V1_7).independent(),
    method("blockchain.scripthash.unsubscribe", &["scripthash"], 1, Ready, 0.0, scripts::unsubscribe).until(V::V1_7),
    method("blockchain.scriptpubkey.get_balance", &["scriptpubkey"], 1, Ready, 1.0, scripts::balance).since(V::V1_7).independent(),
    method("blockchain.scriptpubkey.get_history", &["scriptpubkey"], 1, Ready, 1.0, scripts::history).since(V::V1_7).independent(),
    method("blockchain.scriptpubkey.get_mempool", &["scriptpubkey"], 1, Ready, 1.0, scripts::mempool).since(V::V1_7).independent(),
    method("blockchain.scriptpubkey.listunspent", &["scriptpubkey"], 1, Ready, 1.0, scripts::unspent).since(V::V1_7).independent(),
    method("blockchain.scriptpubkey.subscribe", &["scriptpubkey"], 1, Ready, 1.0, scripts::subscribe).since(V::V1_7).independent(),
    method("blockchain.scriptpubkey.unsubscribe", &["scriptpubkey"], 1, Ready, 0.0, scripts::unsubscribe).since(V::V1_7),
    method("blockchain.outpoint.subscribe", &["tx_hash", "txout_idx", "spk_hint"], 2, Ready, 1.0, scripts::outpoint_subscribe).since(V::V1_7),
    method("blockchain.outpoint.get_status", &["tx_hash", "txout_idx", "spk_hint"], 2, Ready, 1.0, scripts::outpoint_status).since(V::V1_7).independent(),
    method("blockchain.outpoint.unsubscribe", &["tx_hash", "txout_idx"], 2, Ready, 0.0, scripts::outpoint_unsubscribe).since(V::V1_7),

    method("blockchain.transaction.broadcast", &["raw_tx"], 1, Early, 4.0, transactions::broadcast),
    method("blockchain.transaction.broadcast_package", &["raw_txs", "verbose"], 1, Early, 8.0, transactions::package).since(V::V1_6),
    method("blockchain.transaction.testmempoolaccept", &["raw_txs"], 1, Early, 8.0, transactions::test_accept).since(V::V1_7),
    method("blockchain.transaction.get", &["tx_hash", "verbose"], 1, Ready, 1.0, transactions::get).independent(),
    method("blockchain.transaction.get_merkle", &["tx_hash", "height"], 1, Ready, 1.0, transactions::merkle).independent(),
    method("blockchain.transaction.id_from_pos", &["height", "tx_pos", "merkle"], 2, Ready, 1.0, transactions::id_from_pos).independent(),

    // Names of other servers for the same thing, which wallets of other chains and old libraries ask for.
    method("blockchain.headers.get_tip", &[], 0, Early, 0.0, chain::tip),
    method("blockchain.headers.unsubscribe", &[], 0, Early, 0.0, chain::unsubscribe),
    method("blockchain.transaction.get_height", &["tx_hash"], 1, Ready, 1.0, transactions::height).independent(),
    method("blockchain.scripthash.get_status", &["scripthash"], 1, Ready, 1.0, scripts::status).until(V::V1_7).independent(),

    method("blockchain.silentpayments.subscribe", &["scan_private_key", "spend_public_key", "start", "labels"], 2, Ready, 25.0, silent::subscribe).silent(),
    method("blockchain.silentpayments.unsubscribe", &["scan_private_key", "spend_public_key"], 2, Ready, 1.0, silent::unsubscribe).silent(),
    method("blockchain.tweaks.subscribe", &["height", "count", "historical"], 2, Ready, 10.0, tweaks::subscribe).more(),
];
