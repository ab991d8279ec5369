//! Esplora's REST interface, with what mempool's fork adds: under `/` and under `/api`.
//!
//! Script hashes are SHA-256 in the order of its bytes, the reverse of Electrum's. Errors are plain text with the words that
//! clients of Blockstream's electrs know.

mod blocks;
mod json;
mod mempool;
mod read;
mod scripts;
mod transactions;

use axum::Router;
use axum::routing::{get, post};

use super::web::Shared;

/// Transactions of a page.
const PAGE: usize = 25;

pub(super) fn router() -> Router<Shared> {
    let paths = paths();
    Router::new().nest("/api", paths.clone()).merge(paths)
}

fn paths() -> Router<Shared> {
    let mut router = Router::new()
        .route("/tx", post(transactions::broadcast))
        .route("/broadcast", get(transactions::broadcast_query))
        .route("/tx/{txid}", get(transactions::transaction))
        .route("/tx/{txid}/status", get(transactions::status))
        .route("/tx/{txid}/hex", get(transactions::hex))
        .route("/tx/{txid}/raw", get(transactions::raw))
        .route("/tx/{txid}/merkle-proof", get(transactions::merkle_proof))
        .route("/tx/{txid}/merkleblock-proof", get(transactions::merkleblock_proof))
        .route("/tx/{txid}/outspend/{vout}", get(transactions::outspend))
        .route("/tx/{txid}/outspends", get(transactions::outspends))
        .route("/txs/outspends", get(transactions::outspends_of_many))
        .route("/txs/package", post(transactions::package))
        .route("/txs/test", post(transactions::test))
        .route("/block/{hash}", get(blocks::block))
        .route("/block/{hash}/header", get(blocks::header))
        .route("/block/{hash}/status", get(blocks::status))
        .route("/block/{hash}/txids", get(blocks::txids))
        .route("/block/{hash}/txid/{index}", get(blocks::txid))
        .route("/block/{hash}/txs", get(blocks::first_transactions))
        .route("/block/{hash}/txs/{start}", get(blocks::transactions))
        .route("/block/{hash}/raw", get(blocks::raw))
        .route("/block-height/{height}", get(blocks::hash_at))
        .route("/blocks", get(blocks::newest))
        .route("/blocks/{start}", get(blocks::from))
        .route("/blocks/tip/height", get(blocks::tip_height))
        .route("/blocks/tip/hash", get(blocks::tip_hash))
        .route("/mempool", get(mempool::summary))
        .route("/mempool/txids", get(mempool::txids))
        .route("/mempool/txids/page", get(mempool::first_page))
        .route("/mempool/txids/page/{last}", get(mempool::page))
        .route("/mempool/recent", get(mempool::recent))
        .route("/fee-estimates", get(mempool::fee_estimates))
        .route("/address-prefix/{prefix}", get(scripts::prefix))
        .route("/addresses/txs", post(scripts::of_addresses))
        .route("/scripthashes/txs", post(scripts::of_script_hashes))
        .route("/internal/block/{hash}/txs", get(blocks::all_transactions))
        .route("/internal/txs", post(transactions::many))
        .route("/internal/txs/outspends/by-txid", post(transactions::spends_by_txid))
        .route("/internal/txs/outspends/by-outpoint", post(transactions::spends_by_outpoint))
        .route("/internal/mempool/txs", get(mempool::transactions).post(mempool::some_transactions))
        .route("/internal/mempool/txs/all", get(mempool::all_transactions))
        .route("/internal/mempool/txs/{last}", get(mempool::transactions_after));
    for kind in ["address", "scripthash"] {
        let path = |rest: &str| format!("/{kind}/{{script}}{rest}");
        router = router
            .route(&path(""), get(scripts::stats))
            .route(&path("/txs"), get(scripts::transactions))
            .route(&path("/txs/chain"), get(scripts::confirmed))
            .route(&path("/txs/chain/{last}"), get(scripts::confirmed_after))
            .route(&path("/txs/mempool"), get(scripts::unconfirmed))
            .route(&path("/txs/summary"), get(scripts::summary))
            .route(&path("/txs/summary/{last}"), get(scripts::summary_after))
            .route(&path("/utxo"), get(scripts::unspent));
    }
    router
}
