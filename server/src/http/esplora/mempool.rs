//! The mempool and fees.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, Query, State};
use bitcoin::Txid;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::read::{Answer, list, number, txid};
use crate::node::FeeMode;

/// For which confirmation targets fees are estimated, in blocks.
const TARGETS: [u32; 3] = [144, 504, 1008];
/// Ids or transactions of a page.
const IDS: usize = 5_000;
const TRANSACTIONS: usize = 25;
const MOST: usize = 1_000;

pub(super) async fn summary(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| {
        let entries = web.node.mempool()?;
        let bins: Vec<(f64, u64)> =
            web.node.fee_histogram()?.iter().map(|bin| (bin.rate, bin.vsize)).collect();
        let answer = json!({
            "count": entries.len(),
            "vsize": entries.iter().map(|entry| entry.vsize).sum::<u64>(),
            "total_fee": entries.iter().map(|entry| entry.fee).sum::<u64>(),
            "fee_histogram": bins,
        });
        Reply::json(&answer, Keep::Seconds(5))
    })
    .await
}

/// All ids in an order that stays.
fn sorted(web: &Web) -> Answer<Vec<Txid>> {
    let mut ids: Vec<Txid> = web.node.mempool()?.iter().map(|entry| entry.txid).collect();
    ids.sort_unstable();
    Ok(ids)
}

fn texts(ids: impl IntoIterator<Item = Txid>) -> Vec<String> {
    ids.into_iter().map(|id| id.to_string()).collect()
}

/// Some behind one of them, which may be gone already.
fn after(ids: Vec<Txid>, last: Option<Txid>, most: usize) -> Vec<Txid> {
    let from = last.map_or(0, |last| ids.partition_point(|id| *id <= last));
    ids.into_iter().skip(from).take(most).collect()
}

pub(super) async fn txids(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| Reply::json(&texts(sorted(web)?), Keep::Seconds(5))).await
}

fn most(query: &BTreeMap<String, String>, name: &str, default: usize, limit: usize) -> Answer<usize> {
    let most: usize = query.get(name).map_or(Ok(default), |text| number(text))?;
    if most > limit {
        Err(Problem::bad(format!("Too many requested: the limit is {limit}")))
    } else {
        Ok(most)
    }
}

pub(super) async fn first_page(
    State(web): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let most = most(&query, "max_txs", IDS, IDS)?;
        Reply::json(&texts(after(sorted(web)?, None, most)), Keep::Seconds(5))
    })
    .await
}

pub(super) async fn page(
    State(web): State<Shared>,
    Path(last): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let most = most(&query, "max_txs", IDS, IDS)?;
        Reply::json(&texts(after(sorted(web)?, Some(txid(&last)?), most)), Keep::Seconds(5))
    })
    .await
}

pub(super) async fn recent(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| {
        let values: BTreeMap<Txid, u64> =
            web.node.mempool()?.iter().map(|entry| (entry.txid, entry.value)).collect();
        let recent = web.node.recent()?;
        let recent: Vec<Value> = recent
            .iter()
            .map(|tx| {
                let value = values.get(&tx.txid).copied().unwrap_or_default();
                json!({ "txid": tx.txid.to_string(), "fee": tx.fee, "vsize": tx.vsize, "value": value })
            })
            .collect();
        Reply::json(&recent, Keep::Seconds(5))
    })
    .await
}

pub(super) async fn fee_estimates(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| {
        let mut rates = serde_json::Map::new();
        for target in (1..=25).chain(TARGETS) {
            // In satoshi per virtual byte; targets of which nobody knows anything are left out.
            if let Some(rate) = web.node.estimate_fee(target, FeeMode::Default)? {
                rates.insert(target.to_string(), json!(rate as f64 / 1000.0));
            }
        }
        Reply::json(&rates, Keep::SHORT)
    })
    .await
}

pub(super) async fn transactions(
    State(web): State<Shared>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| some(web, None, &query)).await
}

pub(super) async fn transactions_after(
    State(web): State<Shared>,
    Path(last): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer<Reply> {
    web.ask(move |web| some(web, Some(txid(&last)?), &query)).await
}

fn some(web: &Web, last: Option<Txid>, query: &BTreeMap<String, String>) -> Answer<Reply> {
    let most = most(query, "max_txs", TRANSACTIONS, MOST)?;
    Ok(Reply::raw_json(list(web, after(sorted(web)?, last, most))?, Keep::Never))
}

pub(super) async fn all_transactions(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| Ok(Reply::raw_json(list(web, sorted(web)?)?, Keep::Never))).await
}

pub(super) async fn some_transactions(
    State(web): State<Shared>,
    Json(ids): Json<Vec<String>>,
) -> Answer<Reply> {
    web.ask(move |web| {
        if ids.len() > web.batch {
            return Err(Problem::bad(format!("Too many entries: the limit is {}", web.batch)));
        }
        let ids: Vec<Txid> = ids.iter().map(|id| txid(id)).collect::<Answer<_>>()?;
        Ok(Reply::raw_json(list(web, ids)?, Keep::Never))
    })
    .await
}
