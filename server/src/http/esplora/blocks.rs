//! Blocks.

use axum::extract::{Path, State};
use bitcoin::consensus::encode::serialize;
use bitcoin::hex::DisplayHex;
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::reply::{Keep, Reply};
use super::super::web::{Shared, Web};
use super::read::{Answer, block_hash, no_block, number, render, tip};
use super::{PAGE, json, read};
use crate::node::BlockSummary;

/// Blocks of a list.
const LIST: u32 = 10;

fn block_json(web: &Web, block: &BlockSummary) -> Answer<Value> {
    let weight = web.node.block(block.hash)?.block.weight().to_wu();
    let first = block.height.saturating_sub(10);
    let times = web.node.headers(first, block.height - first + 1)?.iter().map(|header| header.time).collect();
    Ok(json::block(block, weight, times))
}

pub(super) async fn block(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let block = read::block(web, block_hash(&hash)?)?;
        Reply::json(&block_json(web, &block)?, read::keep(web, Some(&block))?)
    })
    .await
}

pub(super) async fn header(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let height = web.node.height_of(block_hash(&hash)?)?.ok_or_else(no_block)?;
        let header = serialize(&web.node.header(height)?).to_lower_hex_string();
        Ok(Reply::text(header, Keep::of_height(height, tip(web)?)))
    })
    .await
}

pub(super) async fn status(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let Some(height) = web.node.height_of(block_hash(&hash)?)? else {
            return Reply::json(&json!({ "in_best_chain": false }), Keep::SHORT);
        };
        let next = web.node.headers(height + 1, 1)?.first().map(|header| header.block_hash().to_string());
        let answer = json!({ "in_best_chain": true, "height": height, "next_best": next });
        Reply::json(&answer, Keep::of_height(height, tip(web)?))
    })
    .await
}

pub(super) async fn txids(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let block = read::block(web, block_hash(&hash)?)?;
        let txids: Vec<String> =
            web.node.txids_of_block(block.height)?.iter().map(ToString::to_string).collect();
        Reply::json(&txids, read::keep(web, Some(&block))?)
    })
    .await
}

pub(super) async fn txid(
    State(web): State<Shared>,
    Path((hash, index)): Path<(String, String)>,
) -> Answer<Reply> {
    web.ask(move |web| {
        let (hash, index) = (block_hash(&hash)?, number::<u32>(&index)?);
        let block = read::block(web, hash)?;
        if index >= block.transactions {
            return Err(Problem::missing("tx index out of range"));
        }
        let (txid, _) = web.node.transaction_at(block.height, index, false)?;
        Ok(Reply::text(txid.to_string(), read::keep(web, Some(&block))?))
    })
    .await
}

pub(super) async fn first_transactions(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| page(web, &hash, 0)).await
}

pub(super) async fn transactions(
    State(web): State<Shared>,
    Path((hash, start)): Path<(String, String)>,
) -> Answer<Reply> {
    web.ask(move |web| page(web, &hash, number(&start)?)).await
}

fn page(web: &Web, hash: &str, start: usize) -> Answer<Reply> {
    let block = read::block(web, block_hash(hash)?)?;
    if start >= block.transactions as usize {
        return Err(Problem::missing("start index out of range"));
    }
    if !start.is_multiple_of(PAGE) {
        return Err(Problem::bad(format!("start index must be a multipication of {PAGE}")));
    }
    let text = some(web, &block, start, PAGE)?;
    Ok(Reply::raw_json(text, read::keep(web, Some(&block))?))
}

/// Transactions of a block; all that isn't known yet comes from the block as a whole.
fn some(web: &Web, block: &BlockSummary, start: usize, count: usize) -> Answer<String> {
    let status = json::status(Some(block));
    let txids = web.node.txids_of_block(block.height)?;
    let mut whole = None;
    let mut texts = Vec::new();
    for (position, txid) in txids.iter().enumerate().skip(start).take(count) {
        let text = match web.transactions.get(txid) {
            Some(text) => text,
            None => {
                if whole.is_none() {
                    whole = Some(web.node.block(block.hash)?);
                }
                let parts = whole.as_ref().and_then(|whole| {
                    Some((whole.block.txdata.get(position)?, whole.prevouts.get(position)?))
                });
                let (transaction, prevouts) = parts.ok_or_else(no_block)?;
                render(web, *txid, transaction, prevouts)?
            }
        };
        texts.push(json::with_status(&text, &status));
    }
    Ok(format!("[{}]", texts.join(",")))
}

pub(super) async fn all_transactions(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let block = read::block(web, block_hash(&hash)?)?;
        let text = some(web, &block, 0, usize::MAX)?;
        Ok(Reply::raw_json(text, read::keep(web, Some(&block))?))
    })
    .await
}

pub(super) async fn raw(State(web): State<Shared>, Path(hash): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let block = read::block(web, block_hash(&hash)?)?;
        let bytes = serialize(&web.node.block(block.hash)?.block);
        Ok(Reply::octets(bytes, read::keep(web, Some(&block))?))
    })
    .await
}

pub(super) async fn hash_at(State(web): State<Shared>, Path(height): Path<String>) -> Answer<Reply> {
    web.ask(move |web| {
        let height: u32 = number(&height)?;
        let header = web.node.headers(height, 1)?.first().copied().ok_or_else(no_block)?;
        Ok(Reply::text(header.block_hash().to_string(), Keep::of_height(height, tip(web)?)))
    })
    .await
}

pub(super) async fn newest(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| blocks(web, None)).await
}

pub(super) async fn from(State(web): State<Shared>, Path(start): Path<String>) -> Answer<Reply> {
    web.ask(move |web| blocks(web, Some(number(&start)?))).await
}

fn blocks(web: &Web, start: Option<u32>) -> Answer<Reply> {
    let tip = tip(web)?;
    let start = start.unwrap_or(tip).min(tip);
    let blocks = (start.saturating_sub(LIST - 1)..=start).rev().map(|height| {
        let block = web.node.block_summary(height)?;
        block_json(web, &block)
    });
    let blocks: Vec<Value> = blocks.collect::<Answer<_>>()?;
    Reply::json(&blocks, Keep::SHORT)
}

pub(super) async fn tip_height(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| Ok(Reply::text(tip(web)?.to_string(), Keep::SHORT))).await
}

pub(super) async fn tip_hash(State(web): State<Shared>) -> Answer<Reply> {
    web.ask(move |web| Ok(Reply::text(web.node.tip()?.header.block_hash().to_string(), Keep::SHORT))).await
}
