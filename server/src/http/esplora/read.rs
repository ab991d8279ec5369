//! What several handlers need: parameters, and transactions with their status.

use std::sync::Arc;

use bitcoin::consensus::encode::deserialize;
use bitcoin::{BlockHash, Transaction, TxOut, Txid};

use super::super::problem::Problem;
use super::super::reply::Keep;
use super::super::web::Web;
use super::json;
use crate::node::{BlockSummary, TxPlace};

pub(super) type Answer<T> = Result<T, Problem>;

pub(super) fn txid(text: &str) -> Answer<Txid> {
    text.parse().map_err(|_| Problem::bad("Invalid hex string"))
}

pub(super) fn block_hash(text: &str) -> Answer<BlockHash> {
    text.parse().map_err(|_| Problem::bad("Invalid hex string"))
}

pub(super) fn number<T: std::str::FromStr>(text: &str) -> Answer<T> {
    text.parse().map_err(|_| Problem::bad("Invalid number"))
}

pub(super) fn no_transaction() -> Problem {
    Problem::missing("Transaction not found")
}

pub(super) fn no_block() -> Problem {
    Problem::missing("Block not found")
}

pub(super) fn tip(web: &Web) -> Answer<u32> {
    Ok(web.node.tip()?.height)
}

/// A block of the best chain.
pub(super) fn block(web: &Web, hash: BlockHash) -> Answer<BlockSummary> {
    let height = web.node.height_of(hash)?.ok_or_else(no_block)?;
    let block = web.node.block_summary(height)?;
    // Blocks may have changed in between.
    if block.hash == hash { Ok(block) } else { Err(no_block()) }
}

/// Where a transaction is: its block, or none in the mempool.
pub(super) fn place(web: &Web, txid: Txid) -> Answer<Option<BlockSummary>> {
    match web.node.place(txid)?.ok_or_else(no_transaction)? {
        TxPlace::Mempool => Ok(None),
        TxPlace::Block { height, .. } => Ok(Some(web.node.block_summary(height)?)),
    }
}

pub(super) fn keep(web: &Web, block: Option<&BlockSummary>) -> Answer<Keep> {
    Ok(match block {
        Some(block) => Keep::of_height(block.height, tip(web)?),
        None => Keep::SHORT,
    })
}

pub(super) fn decoded(raw: &[u8]) -> Answer<Transaction> {
    deserialize(raw).map_err(|error| Problem::internal(&error.to_string()))
}

/// A transaction as JSON without its status.
pub(super) fn rendered(web: &Web, txid: Txid) -> Answer<Arc<str>> {
    if let Some(known) = web.transactions.get(&txid) {
        return Ok(known);
    }
    let transaction = decoded(&web.node.transaction(txid)?)?;
    let prevouts = web.node.prevouts(&transaction)?;
    render(web, txid, &transaction, &prevouts)
}

/// The same for one that is at hand.
pub(super) fn render(
    web: &Web,
    txid: Txid,
    transaction: &Transaction,
    prevouts: &[TxOut],
) -> Answer<Arc<str>> {
    let text = json::transaction(transaction, prevouts, web.node.network());
    let text: Arc<str> = text.map_err(|error| Problem::internal(&error.to_string()))?.into();
    web.transactions.insert(txid, Arc::clone(&text));
    Ok(text)
}

/// Some transactions as a JSON list; those that are gone meanwhile are left out.
pub(super) fn list(web: &Web, txids: impl IntoIterator<Item = Txid>) -> Answer<String> {
    let mut block: Option<BlockSummary> = None;
    let mut texts = Vec::new();
    for txid in txids {
        let place = match web.node.place(txid)? {
            None => continue,
            Some(TxPlace::Mempool) => None,
            Some(TxPlace::Block { height, .. }) => {
                if block.is_none_or(|known| known.height != height) {
                    block = Some(web.node.block_summary(height)?);
                }
                block
            }
        };
        let status = json::status(place.as_ref());
        match rendered(web, txid) {
            Ok(text) => texts.push(json::with_status(&text, &status)),
            Err(problem) if problem.status == axum::http::StatusCode::NOT_FOUND => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(format!("[{}]", texts.join(",")))
}
