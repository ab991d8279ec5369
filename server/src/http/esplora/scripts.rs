//! Addresses and script hashes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::str::FromStr;

use axum::Json;
use axum::extract::{MatchedPath, Path, Query, State};
use bitcoin::address::NetworkUnchecked;
use bitcoin::consensus::encode::deserialize;
use bitcoin::hex::FromHex;
use bitcoin::{Address, Transaction, Txid};
use serde_json::json;

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::read::{Answer, list, number, txid};
use super::{PAGE, json};
use crate::node::{BlockSummary, History, ScriptHash};

/// Unconfirmed transactions of a page.
const UNCONFIRMED: usize = 50;
/// More transactions than these are no page.
const MOST: usize = 5_000;
/// Unspent outputs that are given.
const UNSPENT: usize = 500;
/// Scripts that can be asked for at once.
const SCRIPTS: usize = 300;

/// What a path names.
struct Script {
    key: &'static str,
    text: String,
    hash: ScriptHash,
}

impl Script {
    fn address(web: &Web, text: &str) -> Answer<Self> {
        let address = Address::<NetworkUnchecked>::from_str(text)
            .map_err(|_| Problem::bad("Invalid Bitcoin address"))?
            .require_network(web.node.network())
            .map_err(|_| Problem::bad("Address on invalid network"))?;
        let hash = ScriptHash::of(&address.script_pubkey());
        Ok(Self { key: "address", text: text.to_owned(), hash })
    }

    /// In the order of the bytes, unlike Electrum's.
    fn script_hash(text: &str) -> Answer<Self> {
        let bytes = <[u8; 32]>::from_hex(text).map_err(|_| Problem::bad("Invalid hex string"))?;
        Ok(Self { key: "scripthash", text: text.to_owned(), hash: ScriptHash(bytes) })
    }

    fn of_path(web: &Web, path: &MatchedPath, text: &str) -> Answer<Self> {
        if path.as_str().contains("/address/") { Self::address(web, text) } else { Self::script_hash(text) }
    }
}

pub(super) async fn stats(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let script = Script::of_path(web, &path, &script)?;
        let (chain, mempool) = web.node.script_stats(script.hash)?;
        let answer = json!({
            script.key: script.text,
            "chain_stats": json::stats(&chain),
            "mempool_stats": json::stats(&mempool),
        });
        Reply::json(&answer, Keep::SHORT)
    })
    .await
}

/// Confirmed transactions, newest first, behind one of them.
fn older(history: &History, after: Option<Txid>) -> Option<Vec<Txid>> {
    let mut newest = history.confirmed().iter().rev().map(|tx| tx.txid);
    if let Some(after) = after {
        newest.find(|txid| *txid == after)?;
    }
    Some(newest.collect())
}

/// Unconfirmed ones, those that came last first as far as that is known.
fn pending(history: &History) -> Vec<Txid> {
    history.mempool().iter().rev().map(|tx| tx.txid).collect()
}

pub(super) async fn transactions(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let script = Script::of_path(web, &path, &script)?;
        let history = web.node.history(script.hash)?;
        let text = list(web, newest(&history, &query)?)?;
        Ok(Reply::raw_json(text, Keep::SHORT))
    })
    .await
}

/// A page as the query wants it: by default 50 unconfirmed and 25 confirmed ones; `max_txs` of both together after
/// `after_txid`, which may be of either.
fn newest(history: &History, query: &HashMap<String, String>) -> Answer<Vec<Txid>> {
    let most: Option<usize> = query.get("max_txs").map(|text| number(text)).transpose()?;
    if most.is_some_and(|most| most > MOST) {
        return Err(Problem::bad(format!("Too many transactions requested: the limit is {MOST}")));
    }
    let (pending, confirmed) = (pending(history), older(history, None).unwrap_or_default());
    let Some(after) = query.get("after_txid") else {
        let (first, second) = (most.unwrap_or(UNCONFIRMED).min(UNCONFIRMED), most.unwrap_or(PAGE));
        let mut page: Vec<Txid> = pending.into_iter().take(first).collect();
        let rest = most.map_or(second, |most| most.saturating_sub(page.len()));
        page.extend(confirmed.into_iter().take(rest));
        return Ok(page);
    };
    let after = txid(after)?;
    let mut all = pending.into_iter().chain(confirmed);
    if !all.any(|txid| txid == after) {
        return Err(Problem::unprocessable("after_txid not found"));
    }
    Ok(all.take(most.unwrap_or(PAGE)).collect())
}

pub(super) async fn confirmed(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| chain(web, &path, &script, None, &query)).await
}

pub(super) async fn confirmed_after(
    State(web): State<Shared>,
    path: MatchedPath,
    Path((script, last)): Path<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| chain(web, &path, &script, Some(txid(&last)?), &query)).await
}

fn chain(
    web: &Web,
    path: &MatchedPath,
    script: &str,
    after: Option<Txid>,
    query: &HashMap<String, String>,
) -> Answer<Reply> {
    let script = Script::of_path(web, path, script)?;
    let most: usize = query.get("max_txs").map_or(Ok(PAGE), |text| number(text))?;
    let history = web.node.history(script.hash)?;
    // Behind one that isn't there is nothing.
    let page = older(&history, after).unwrap_or_default().into_iter().take(most.min(MOST));
    Ok(Reply::raw_json(list(web, page)?, Keep::SHORT))
}

pub(super) async fn unconfirmed(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let script = Script::of_path(web, &path, &script)?;
        let most: usize = query.get("max_txs").map_or(Ok(UNCONFIRMED), |text| number(text))?;
        let history = web.node.history(script.hash)?;
        let page = pending(&history).into_iter().take(most.min(MOST));
        Ok(Reply::raw_json(list(web, page)?, Keep::SHORT))
    })
    .await
}

pub(super) async fn unspent(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let script = Script::of_path(web, &path, &script)?;
        let unspent = web.node.unspent(script.hash)?;
        if unspent.len() > UNSPENT {
            return Err(Problem::bad(format!("Too many unspent transaction outputs (>{UNSPENT})")));
        }
        let mut blocks: BTreeMap<u32, BlockSummary> = BTreeMap::new();
        let mut answer = Vec::new();
        for output in unspent {
            let block = match output.height {
                0 => None,
                height => Some(match blocks.get(&height) {
                    Some(block) => *block,
                    None => {
                        let block = web.node.block_summary(height)?;
                        blocks.insert(height, block);
                        block
                    }
                }),
            };
            answer.push(json!({
                "txid": output.outpoint.txid.to_string(),
                "vout": output.outpoint.vout,
                "status": json::status(block.as_ref()),
                "value": output.value,
            }));
        }
        Reply::json(&answer, Keep::SHORT)
    })
    .await
}

pub(super) async fn summary(
    State(web): State<Shared>,
    path: MatchedPath,
    Path(script): Path<String>,
) -> Answer<Reply> {
    web.ask(move |web| summaries(web, &path, &script, None)).await
}

pub(super) async fn summary_after(
    State(web): State<Shared>,
    path: MatchedPath,
    Path((script, last)): Path<(String, String)>,
) -> Answer<Reply> {
    web.ask(move |web| summaries(web, &path, &script, Some(txid(&last)?))).await
}

/// What each confirmed transaction adds to a script or takes from it, newest first.
fn summaries(web: &Web, path: &MatchedPath, script: &str, after: Option<Txid>) -> Answer<Reply> {
    let script = Script::of_path(web, path, script)?;
    let history = web.node.history(script.hash)?;
    let heights: HashMap<Txid, u32> = history.confirmed().iter().map(|tx| (tx.txid, tx.height)).collect();
    let mut answer = Vec::new();
    for txid in older(&history, after).unwrap_or_default().into_iter().take(MOST) {
        let raw = web.node.transaction(txid)?;
        let transaction: Transaction =
            deserialize(&raw).map_err(|error| Problem::internal(&error.to_string()))?;
        let ours = |outputs: &[bitcoin::TxOut]| -> i64 {
            let own = outputs.iter().filter(|output| ScriptHash::of(&output.script_pubkey) == script.hash);
            own.map(|output| output.value.to_sat() as i64).sum()
        };
        let value = ours(&transaction.output) - ours(&web.node.prevouts(&transaction)?);
        let height = heights.get(&txid).copied().unwrap_or_default();
        let (place, time) = (web.node.place(txid)?, web.node.header(height)?.time);
        let position = match place {
            Some(crate::node::TxPlace::Block { position, .. }) => position,
            _ => 0,
        };
        answer.push(json!({
            "txid": txid.to_string(), "value": value, "height": height, "time": time, "tx_position": position,
        }));
    }
    Reply::json(&answer, Keep::SHORT)
}

pub(super) async fn prefix(Path(_): Path<String>) -> Problem {
    Problem::bad("address search disabled")
}

pub(super) async fn of_addresses(
    State(web): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
    Json(addresses): Json<Vec<String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let scripts = addresses.iter().map(|text| Script::address(web, text)).collect::<Answer<Vec<_>>>()?;
        of_many(web, &scripts, &query)
    })
    .await
}

pub(super) async fn of_script_hashes(
    State(web): State<Shared>,
    Query(query): Query<HashMap<String, String>>,
    Json(hashes): Json<Vec<String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let scripts = hashes.iter().map(|text| Script::script_hash(text)).collect::<Answer<Vec<_>>>()?;
        of_many(web, &scripts, &query)
    })
    .await
}

/// The transactions of several scripts as if they were one.
fn of_many(web: &Web, scripts: &[Script], query: &HashMap<String, String>) -> Answer<Reply> {
    if scripts.len() > SCRIPTS {
        return Err(Problem::bad(format!("Too many scripts requested: the limit is {SCRIPTS}")));
    }
    let (mut confirmed, mut mempool) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for script in scripts {
        let history = web.node.history(script.hash)?;
        confirmed.extend(history.confirmed().iter().filter(|tx| seen.insert(tx.txid)).copied());
        mempool.extend(history.mempool().iter().filter(|tx| seen.insert(tx.txid)).copied());
    }
    // In the order of the chain: by height, then by place in the block.
    let mut placed: Vec<(u32, u32, crate::node::ConfirmedTx)> = Vec::with_capacity(confirmed.len());
    for tx in confirmed {
        let position = match web.node.place(tx.txid)? {
            Some(crate::node::TxPlace::Block { position, .. }) => position,
            _ => 0,
        };
        placed.push((tx.height, position, tx));
    }
    placed.sort_unstable_by_key(|(height, position, _)| (*height, *position));
    let history = History::new(placed.into_iter().map(|(_, _, tx)| tx).collect(), mempool);
    let text = list(web, newest(&history, query)?)?;
    Ok(Reply::raw_json(text, Keep::Never))
}
