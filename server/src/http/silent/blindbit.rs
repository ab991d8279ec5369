//! The HTTP interface of BlindBit Oracle's first version, which Dana and spdk speak.

use std::collections::HashMap;

use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use bitcoin::hex::{DisplayHex, FromHex};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::filter;
use super::index_server::height;
use crate::light::Filter;

/// As the oracle says it, whatever filter it is.
const FILTER_TYPE: u32 = 4;

pub(crate) fn router() -> Router<Shared> {
    Router::new()
        .route("/info", get(info))
        .route("/block-height", get(block_height))
        .route("/block-hash/{height}", get(block_hash))
        .route("/tweaks/{height}", get(unspent_tweaks))
        .route("/tweak-index/{height}", get(all_tweaks))
        .route("/spent-index/{height}", get(spent_index))
        .route("/filter/new-utxos/{height}", get(new_utxos_filter))
        .route("/filter/spent/{height}", get(spent_filter))
        .route("/utxos/{height}", get(utxos))
        .route("/forward-tx", post(forward))
}

type Answer = Result<Reply, Problem>;

/// The last block that everything can be asked of.
fn last(web: &Web) -> Result<u32, Problem> {
    let tip = web.node.tip()?.height;
    Ok(web.blocks.heights()?.1.map_or(0, |indexed| indexed.min(tip)))
}

async fn info(State(web): State<Shared>) -> Answer {
    web.ask(move |web| {
        let answer = json!({
            "network": web.node.network().to_core_arg(),
            "height": last(web)?,
            "tweaks_only": false,
            "tweaks_full_basic": true,
            "tweaks_full_with_dust_filter": true,
            "tweaks_cut_through_with_dust_filter": true,
        });
        Reply::json(&answer, Keep::Never)
    })
    .await
}

async fn block_height(State(web): State<Shared>) -> Answer {
    web.ask(move |web| Reply::json(&json!({ "block_height": last(web)? }), Keep::Never)).await
}

async fn block_hash(State(web): State<Shared>, Path(block): Path<String>) -> Answer {
    web.ask(move |web| {
        let hash = web.node.header(height(&block)?)?.block_hash();
        Reply::json(&json!({ "block_hash": hash.to_string() }), Keep::SHORT)
    })
    .await
}

fn tweaks(web: &Web, block: &str, query: &HashMap<String, String>, spent: bool) -> Answer {
    let dust = query.get("dustLimit").map_or(Ok(0), |text| {
        text.parse().map_err(|_| Problem::bad(format!("dustLimit is a number of satoshi, not '{text}'")))
    })?;
    let block = web.blocks.at(height(block)?)?;
    let left = web.blocks.left(&block, Filter { dust, spent })?;
    let tweaks: Vec<String> =
        left.iter().map(|number| block.rows[*number].tweak.to_lower_hex_string()).collect();
    Reply::json(&tweaks, Keep::SHORT)
}

async fn unspent_tweaks(
    State(web): State<Shared>,
    Path(block): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    web.ask(move |web| tweaks(web, &block, &query, true)).await
}

async fn all_tweaks(
    State(web): State<Shared>,
    Path(block): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    web.ask(move |web| tweaks(web, &block, &query, false)).await
}

/// The taproot outputs that a block spends, each as a hash.
fn spent(web: &Web, block: u32) -> Result<(bitcoin::BlockHash, Vec<[u8; 8]>), Problem> {
    let hash = web.node.header(block)?.block_hash();
    let block = web.node.block(hash)?;
    let inputs = block.block.txdata.iter().zip(&block.prevouts).flat_map(|(transaction, prevouts)| {
        transaction.input.iter().zip(prevouts).filter(|(_, prevout)| prevout.script_pubkey.is_p2tr())
    });
    Ok((hash, inputs.map(|(input, _)| filter::spent(input.previous_output, hash)).collect()))
}

async fn spent_index(State(web): State<Shared>, Path(block): Path<String>) -> Answer {
    web.ask(move |web| {
        let (hash, hashes) = spent(web, height(&block)?)?;
        let data: Vec<String> = hashes.iter().map(|hash| hash.to_lower_hex_string()).collect();
        Reply::json(&json!({ "block_hash": hash.to_string(), "data": data }), Keep::SHORT)
    })
    .await
}

fn filter_json<'a>(
    height: u32,
    hash: bitcoin::BlockHash,
    elements: impl Iterator<Item = &'a [u8]>,
) -> Result<Value, Problem> {
    let data = filter::build(hash, elements).map_err(|error| Problem::internal(&error.to_string()))?;
    Ok(json!({
        "filter_type": FILTER_TYPE,
        "block_height": height,
        "block_hash": hash.to_string(),
        "data": data.to_lower_hex_string(),
    }))
}

async fn new_utxos_filter(State(web): State<Shared>, Path(block): Path<String>) -> Answer {
    web.ask(move |web| {
        let height = height(&block)?;
        let hash = web.node.header(height)?.block_hash();
        let block = web.node.block(hash)?;
        let keys: Vec<[u8; 32]> = filter::new_outputs(&block.block).collect();
        Reply::json(&filter_json(height, hash, keys.iter().map(<[u8; 32]>::as_slice))?, Keep::SHORT)
    })
    .await
}

async fn spent_filter(State(web): State<Shared>, Path(block): Path<String>) -> Answer {
    web.ask(move |web| {
        let height = height(&block)?;
        let (hash, hashes) = spent(web, height)?;
        Reply::json(&filter_json(height, hash, hashes.iter().map(|hash| &hash[..]))?, Keep::SHORT)
    })
    .await
}

async fn utxos(State(web): State<Shared>, Path(block): Path<String>) -> Answer {
    web.ask(move |web| {
        let block = web.blocks.at(height(&block)?)?;
        let timestamp = web.node.header(block.height)?.time;
        // The outputs of transactions of which something is left, as with `/tweaks`.
        let utxos = web.blocks.utxos(&block)?;
        let left = utxos.iter().filter(|utxos| utxos.iter().any(|utxo| !utxo.spent));
        let utxos: Vec<Value> = left
            .flatten()
            .map(|utxo| {
                json!({
                    "txid": utxo.outpoint.txid.to_string(),
                    "vout": utxo.outpoint.vout,
                    "value": utxo.value,
                    "scriptpubkey": format!("5120{}", utxo.key.to_lower_hex_string()),
                    "block_height": block.height,
                    "block_hash": block.hash.to_string(),
                    "timestamp": timestamp,
                    "spent": utxo.spent,
                })
            })
            .collect();
        Reply::json(&utxos, Keep::SHORT)
    })
    .await
}

#[derive(Deserialize)]
struct Forward {
    data: String,
}

async fn forward(State(web): State<Shared>, Json(forward): Json<Forward>) -> Answer {
    web.ask(move |web| {
        let raw = Vec::from_hex(&forward.data).map_err(|_| Problem::bad("data isn't hexadecimal"))?;
        let txid = web.node.broadcast(&raw)?;
        Reply::json(&txid.to_string(), Keep::Never)
    })
    .await
}
