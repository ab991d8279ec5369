//! Transactions.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use bitcoin::hex::{DisplayHex, FromHex};
use bitcoin::{MerkleBlock, OutPoint, Txid};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::read::{Answer, decoded, keep, no_transaction, number, place, rendered, txid};
use super::{json, read};
use crate::node::NodeError;

/// Transactions of which the spenders can be asked for at once, and that can be tried at once.
const MANY: usize = 50;
const TRIED: usize = 25;

pub(super) async fn transaction(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let id = txid(&id)?;
        let block = place(web, id)?;
        let text = json::with_status(&rendered(web, id)?, &json::status(block.as_ref()));
        Ok(Reply::raw_json(text, keep(web, block.as_ref())?))
    })
    .await
}

pub(super) async fn status(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        // One that nobody knows isn't confirmed, either.
        let block = place(web, txid(&id)?).or_else(|problem| match problem == no_transaction() {
            true => Ok(None),
            false => Err(problem),
        })?;
        Reply::json(&json::status(block.as_ref()), keep(web, block.as_ref())?)
    })
    .await
}

/// The bytes of a transaction, and how long they are the same.
fn bytes(web: &Web, id: &str) -> Answer<(Vec<u8>, Keep)> {
    let id = txid(id)?;
    let block = place(web, id)?;
    Ok((web.node.transaction(id)?, keep(web, block.as_ref())?))
}

pub(super) async fn hex(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let (bytes, keep) = bytes(web, &id)?;
        Ok(Reply::text(bytes.to_lower_hex_string(), keep))
    })
    .await
}

pub(super) async fn raw(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let (bytes, keep) = bytes(web, &id)?;
        Ok(Reply::octets(bytes, keep))
    })
    .await
}

fn unconfirmed() -> Problem {
    Problem::missing("Transaction not found or is unconfirmed")
}

pub(super) async fn merkle_proof(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let id = txid(&id)?;
        let proof = web.node.transaction_proof(id, None).map_err(|error| match error {
            NodeError::NotFound(_) => unconfirmed(),
            other => other.into(),
        })?;
        let merkle: Vec<String> = proof.branch.iter().map(ToString::to_string).collect();
        let answer = json!({ "block_height": proof.height, "merkle": merkle, "pos": proof.position });
        Reply::json(&answer, Keep::of_height(proof.height, read::tip(web)?))
    })
    .await
}

pub(super) async fn merkleblock_proof(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let id = txid(&id)?;
        let block = place(web, id).map_err(|_| unconfirmed())?.ok_or_else(unconfirmed)?;
        let txids = web.node.txids_of_block(block.height)?;
        let proof = MerkleBlock::from_header_txids_with_predicate(&block.header, &txids, |one| *one == id);
        let hex = bitcoin::consensus::encode::serialize_hex(&proof);
        Ok(Reply::text(hex, keep(web, Some(&block))?))
    })
    .await
}

/// Who spends an output.
fn spend(web: &Web, outpoint: OutPoint) -> Answer<Value> {
    let Some(spender) = web.node.spender(outpoint)? else { return Ok(json!({ "spent": false })) };
    let block = spender.height.map(|height| web.node.block_summary(height)).transpose()?;
    Ok(json!({
        "spent": true,
        "txid": spender.txid.to_string(),
        "vin": spender.vin,
        "status": json::status(block.as_ref()),
    }))
}

pub(super) async fn outspend(
    State(web): State<Shared>,
    Path((id, vout)): Path<(String, String)>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let outpoint = OutPoint { txid: txid(&id)?, vout: number(&vout)? };
        Reply::json(&spend(web, outpoint)?, Keep::SHORT)
    })
    .await
}

/// For every output of a transaction.
fn spends(web: &Web, id: Txid) -> Answer<Vec<Value>> {
    place(web, id)?;
    let outputs = decoded(&web.node.transaction(id)?)?.output.len();
    (0..outputs as u32).map(|vout| spend(web, OutPoint { txid: id, vout })).collect()
}

pub(super) async fn outspends(State(web): State<Shared>, Path(id): Path<String>) -> Answer<Reply> {
    web.ask(move |web| Reply::json(&spends(web, txid(&id)?)?, Keep::SHORT)).await
}

/// One that nobody knows has no outputs.
fn spends_of(web: &Web, ids: &[Txid]) -> Answer<Vec<Vec<Value>>> {
    let of = |id: &Txid| match spends(web, *id) {
        Err(problem) if problem == no_transaction() => Ok(Vec::new()),
        other => other,
    };
    ids.iter().map(of).collect()
}

pub(super) async fn outspends_of_many(
    State(web): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let list = query.get("txids").ok_or_else(|| Problem::bad("No txids specified"))?;
        let ids: Vec<Txid> = list.split(',').map(txid).collect::<Answer<_>>()?;
        if ids.len() > MANY {
            return Err(Problem::bad(format!("Too many txids requested: the limit is {MANY}")));
        }
        Reply::json(&spends_of(web, &ids)?, Keep::SHORT)
    })
    .await
}

fn limited<T>(web: &Web, list: Vec<T>) -> Answer<Vec<T>> {
    if list.len() > web.batch {
        Err(Problem::bad(format!("Too many entries: the limit is {}", web.batch)))
    } else {
        Ok(list)
    }
}

fn txids(list: &[String]) -> Answer<Vec<Txid>> {
    list.iter().map(|id| txid(id)).collect()
}

pub(super) async fn many(State(web): State<Shared>, Json(ids): Json<Vec<String>>) -> Answer<Reply> {
    web.ask(move |web| {
        let ids = txids(&limited(web, ids)?)?;
        Ok(Reply::raw_json(read::list(web, ids)?, Keep::Never))
    })
    .await
}

pub(super) async fn spends_by_txid(State(web): State<Shared>, Json(ids): Json<Vec<String>>) -> Answer<Reply> {
    web.ask(move |web| {
        let ids = txids(&limited(web, ids)?)?;
        Reply::json(&spends_of(web, &ids)?, Keep::Never)
    })
    .await
}

pub(super) async fn spends_by_outpoint(
    State(web): State<Shared>,
    Json(outpoints): Json<Vec<String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let spends = limited(web, outpoints)?.into_iter().map(|text| {
            let outpoint = text.parse().map_err(|_| Problem::bad("Invalid outpoint"))?;
            spend(web, outpoint)
        });
        Reply::json(&spends.collect::<Answer<Vec<_>>>()?, Keep::Never)
    })
    .await
}

fn raw_transaction(hex: &str) -> Answer<Vec<u8>> {
    Vec::from_hex(hex.trim()).map_err(|_| Problem::bad("Invalid hex string"))
}

/// The words that clients look for.
fn refused(error: NodeError) -> Problem {
    match error {
        NodeError::Rejected { reason } => Problem::bad(format!(
            "sendrawtransaction RPC error: {}",
            json!({ "code": -26, "message": reason })
        )),
        other => other.into(),
    }
}

pub(super) async fn broadcast(State(web): State<Shared>, body: String) -> Answer<Reply> {
    web.ask(move |web| {
        let txid = web.node.broadcast(&raw_transaction(&body)?).map_err(refused)?;
        Ok(Reply::text(txid.to_string(), Keep::Never))
    })
    .await
}

pub(super) async fn broadcast_query(
    State(web): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    let hex = query.get("tx").cloned().ok_or_else(|| Problem::bad("Missing tx"))?;
    broadcast(State(web), hex).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PackageOptions {
    maxfeerate: Option<f64>,
    maxburnamount: Option<f64>,
}

pub(super) async fn package(
    State(web): State<Shared>,
    Query(options): Query<PackageOptions>,
    Json(list): Json<Vec<String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        if list.len() > TRIED {
            return Err(Problem::bad(format!("Exceeded maximum of {TRIED} transactions")));
        }
        let raws: Vec<Vec<u8>> = list.iter().map(|hex| raw_transaction(hex)).collect::<Answer<_>>()?;
        let result = web.node.submit(&raws, options.maxfeerate, options.maxburnamount);
        let result = result.map_err(|error| match error {
            NodeError::Rejected { reason } => {
                Problem::bad(format!("submitpackage RPC error: {}", json!({ "message": reason })))
            }
            other => other.into(),
        })?;
        Reply::json(&result.raw, Keep::Never)
    })
    .await
}

pub(super) async fn test(State(web): State<Shared>, Json(list): Json<Vec<String>>) -> Answer<Reply> {
    web.ask(move |web| {
        if list.len() > TRIED {
            return Err(Problem::bad(format!("Exceeded maximum of {TRIED} transactions")));
        }
        let raws: Vec<Vec<u8>> = list.iter().map(|hex| raw_transaction(hex)).collect::<Answer<_>>()?;
        Reply::json(&web.node.test_accept(&raws)?, Keep::Never)
    })
    .await
}
