//! `peregrine serve` beside a real Bitcoin Core on regtest, with strict and with other people's clients. Every test is named
//! `node_…`, so that they can be counted.

#[path = "../../../index/tests/common/chain.rs"]
mod chain;
#[path = "../electrum_session/client.rs"]
mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../../../index/tests/common/index.rs"]
mod index;
#[path = "../common/sparrow.rs"]
mod sparrow;
#[path = "../common/tls.rs"]
mod tls;

mod bugs;
mod coins;
mod command;
mod crates;
mod esplora;
mod killed;
mod life;
mod methods;
mod naive;
mod reorganised;
mod served;
mod silent_wallet;
mod tweak_servers;
mod wallet;
