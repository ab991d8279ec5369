//! Methods about scripts: by their hash, and from 1.7 on by the script itself; and about single outputs.

use std::fmt::Write;

use bitcoin::consensus::encode::deserialize;
use bitcoin::hex::DisplayHex;
use bitcoin::{OutPoint, Transaction};
use serde_json::json;

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::lock;
use crate::electrum::rpc::{self, RpcError};
use crate::electrum::session::{Session, Told, WatchedOutpoint};
use crate::electrum::version::Version;
use crate::node::{History, MempoolTx, Node, NodeError, OutpointStatus, ScriptHash};

/// Which script a call is about.
fn script(call: &Call<'_>, args: &Args<'_>) -> Result<ScriptHash, RpcError> {
    if call.version < Version::V1_7 { args.script_hash(0) } else { Ok(ScriptHash::of(&args.script(0)?)) }
}

/// From 1.7 on lists are in an object.
fn named(call: &Call<'_>, name: &str, list: String) -> String {
    if call.version < Version::V1_7 { list } else { format!("{{\"{name}\":{list}}}") }
}

/// `get_balance`
pub(super) fn balance(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let balance = call.node().balance(script(call, args)?)?;
    Ok(rpc::json(&json!({ "confirmed": balance.confirmed, "unconfirmed": balance.unconfirmed })))
}

/// `get_history`
pub(super) fn history(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let history = call.node().history(script(call, args)?)?;
    Ok(named(call, "history", history_list(&history)))
}

/// `get_mempool`
pub(super) fn mempool(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let history = call.node().history(script(call, args)?)?;
    let mut list = String::from("[");
    mempool_items(&mut list, history.mempool());
    list.push(']');
    Ok(named(call, "history", list))
}

/// Written by hand: this is what a wallet's first load consists of.
fn history_list(history: &History) -> String {
    let mut list = String::with_capacity(2 + 120 * history.len());
    list.push('[');
    for tx in history.confirmed() {
        separate(&mut list);
        // Writing to a String can't fail, here and below.
        let _ = write!(list, "{{\"tx_hash\":\"{}\",\"height\":{}}}", tx.txid, tx.height);
    }
    mempool_items(&mut list, history.mempool());
    list.push(']');
    list
}

fn mempool_items(list: &mut String, mempool: &[MempoolTx]) {
    for tx in mempool {
        separate(list);
        let (txid, height, fee) = (tx.txid, tx.height(), tx.fee);
        let _ = write!(list, "{{\"tx_hash\":\"{txid}\",\"height\":{height},\"fee\":{fee}}}");
    }
}

fn separate(list: &mut String) {
    if !list.ends_with('[') {
        list.push(',');
    }
}

/// `listunspent`
pub(super) fn unspent(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let unspent = call.node().unspent(script(call, args)?)?;
    let mut list = String::with_capacity(2 + 140 * unspent.len());
    list.push('[');
    for output in unspent {
        separate(&mut list);
        let OutPoint { txid, vout } = output.outpoint;
        let _ = write!(
            list,
            "{{\"tx_hash\":\"{txid}\",\"tx_pos\":{vout},\"height\":{},\"value\":{}}}",
            output.height, output.value
        );
    }
    list.push(']');
    Ok(named(call, "utxos", list))
}

/// `get_status`
pub(super) fn status(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    Ok(status_json(call.node().history(script(call, args)?)?.status()))
}

/// A status as wallets see it: a text or null.
pub(in crate::electrum) fn status_json(status: Option<[u8; 32]>) -> String {
    match status {
        Some(status) => format!("\"{}\"", status.as_hex()),
        None => "null".into(),
    }
}

/// `subscribe`
pub(super) fn subscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (session, script) = (call.session, script(call, args)?);
    let before = {
        let mut state = lock(&session.state);
        let before = state.scripts.get(&script).copied();
        if before.is_none() {
            session.seat.subscribe()?;
            session.server.hub.watch(session.id, script);
        }
        // From here on a change is noted, so that none falls between looking and telling.
        state.scripts.insert(script, Told::Asking { again: false });
        before
    };
    let status = call.node().history(script).map(|history| history.status());
    let mut state = lock(&session.state);
    let asked = match &status {
        Ok(status) => state.scripts.insert(script, Told::Status(*status)),
        Err(_) => match before {
            Some(before) => state.scripts.insert(script, before),
            None => {
                forget(session, &script);
                state.scripts.remove(&script)
            }
        },
    };
    // Something changed meanwhile, or the same was asked by another request of the batch, and either answer may be older.
    if asked != Some(Told::Asking { again: false }) {
        session.inbox.post(|pending| _ = pending.touched.insert(script));
    }
    Ok(status_json(status?))
}

/// `unsubscribe`
pub(super) fn unsubscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let script = script(call, args)?;
    let was = lock(&call.session.state).scripts.remove(&script).is_some();
    if was {
        forget(call.session, &script);
    }
    Ok(rpc::json(&was))
}

fn forget(session: &Session, script: &ScriptHash) {
    session.server.hub.unwatch(session.id, script);
    session.seat.unsubscribe();
}

fn outpoint(args: &Args<'_>) -> Result<OutPoint, RpcError> {
    Ok(OutPoint { txid: args.txid(0)?, vout: args.u32(1)? })
}

/// `blockchain.outpoint.get_status`
pub(super) fn outpoint_status(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    Ok(outpoint_json(&call.node().outpoint(outpoint(args)?)?))
}

/// `blockchain.outpoint.subscribe`
pub(super) fn outpoint_subscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (session, outpoint) = (call.session, outpoint(args)?);
    let script = match args.raw(2) {
        None | Some("\"\"") => script_of(call.node(), outpoint)?,
        Some(_) => ScriptHash::of(&args.script(2)?),
    };
    let added = {
        let mut state = lock(&session.state);
        let new = !state.outpoints.contains_key(&outpoint);
        if new {
            session.seat.subscribe()?;
            session.server.hub.watch(session.id, script);
            // What is looked up below is told in the reply; a change that comes between is told again, which is harmless.
            state.outpoints.insert(outpoint, WatchedOutpoint { script, told: String::new() });
        }
        new
    };
    let status = call.node().outpoint(outpoint).map(|status| outpoint_json(&status));
    let mut state = lock(&session.state);
    match &status {
        Ok(status) => {
            if let Some(watched) = state.outpoints.get_mut(&outpoint) {
                watched.told.clone_from(status);
            }
            if added {
                // Whatever was touched while it was looked up.
                session.inbox.post(|pending| _ = pending.touched.insert(script));
            }
        }
        Err(_) if added => {
            state.outpoints.remove(&outpoint);
            forget(session, &script);
        }
        Err(_) => {}
    }
    Ok(status?)
}

/// `blockchain.outpoint.unsubscribe`
pub(super) fn outpoint_unsubscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let removed = lock(&call.session.state).outpoints.remove(&outpoint(args)?);
    if let Some(watched) = &removed {
        forget(call.session, &watched.script);
    }
    Ok(rpc::json(&removed.is_some()))
}

/// The script of an output that exists already.
fn script_of(node: &dyn Node, outpoint: OutPoint) -> Result<ScriptHash, RpcError> {
    let raw = match node.transaction(outpoint.txid) {
        Err(NodeError::NotFound(_)) => {
            return Err(RpcError::params("spk_hint is needed for an output that doesn't exist yet"));
        }
        other => other?,
    };
    let transaction: Transaction = deserialize(&raw)
        .map_err(|error| NodeError::Internal(format!("a transaction can't be read: {error}")))?;
    match transaction.output.get(outpoint.vout as usize) {
        Some(output) => Ok(ScriptHash::of(&output.script_pubkey)),
        None => Err(RpcError::bad("the transaction has no such output")),
    }
}

/// An output's status as wallets see it.
pub(in crate::electrum) fn outpoint_json(status: &OutpointStatus) -> String {
    rpc::json(&match (status.funder_height, status.spender) {
        (None, _) => json!({}),
        (Some(funder), None) => json!({ "funder_height": funder }),
        (Some(funder), Some((txid, height))) => json!({
            "funder_height": funder, "spender_txhash": txid.to_string(), "spender_height": height,
        }),
    })
}
