//! Methods about transactions.

use bitcoin::Txid;
use bitcoin::hex::DisplayHex;
use serde_json::{Value, json};

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::rpc::{self, RpcError};
use crate::node::NodeError;

/// How Bitcoin Core says it; Sparrow looks for these words.
const UNKNOWN: &str = "No such mempool or blockchain transaction";
/// Transactions in a package, as Bitcoin Core has it.
const PACKAGE: usize = 25;

/// `blockchain.transaction.get`
pub(super) fn get(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (txid, verbose) = (args.txid(0)?, args.flag(1)?);
    let unknown = |error| match error {
        NodeError::NotFound(_) => RpcError::new(rpc::DAEMON, UNKNOWN),
        other => other.into(),
    };
    if verbose {
        let mut transaction = call.node().transaction_verbose(txid).map_err(unknown)?;
        without_ids(&mut transaction);
        return Ok(rpc::json(&transaction));
    }
    match (call.node().transaction(txid), call.session.pinned(&txid)) {
        (Ok(raw), _) => Ok(hex(&raw)),
        (Err(NodeError::NotFound(_)), Some(raw)) => Ok(hex(&raw)),
        (Err(error), _) => Err(unknown(error)),
    }
}

fn hex(raw: &[u8]) -> String {
    format!("\"{}\"", raw.as_hex())
}

/// Takes out what Sparrow would take for the id of a reply: it searches the whole line for one.
fn without_ids(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| key != "id" || !value.is_number());
            map.values_mut().for_each(without_ids);
        }
        Value::Array(list) => list.iter_mut().for_each(without_ids),
        _ => {}
    }
}

/// `blockchain.transaction.get_height`: null if it isn't known, 0 in the mempool.
pub(super) fn height(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let txid = args.txid(0)?;
    match call.node().transaction_proof(txid, None) {
        Ok(proof) => Ok(rpc::json(&proof.height)),
        Err(NodeError::NotFound(_)) => match call.node().transaction(txid) {
            Ok(_) => Ok("0".into()),
            Err(NodeError::NotFound(_)) => Ok("null".into()),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// `blockchain.transaction.get_merkle`
pub(super) fn merkle(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let height = if args.raw(1).is_some() { Some(args.u32(1)?) } else { None };
    let proof = call.node().transaction_proof(args.txid(0)?, height)?;
    let branch: Vec<String> = proof.branch.iter().map(ToString::to_string).collect();
    Ok(rpc::json(&json!({ "block_height": proof.height, "merkle": branch, "pos": proof.position })))
}

/// `blockchain.transaction.id_from_pos`
pub(super) fn id_from_pos(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (height, position, proof) = (args.u32(0)?, args.u32(1)?, args.flag(2)?);
    let (txid, branch) = call.node().transaction_at(height, position, proof)?;
    let txid = txid.to_string();
    if !proof {
        return Ok(rpc::json(&txid));
    }
    let branch: Vec<String> = branch.iter().map(ToString::to_string).collect();
    Ok(rpc::json(&json!({ "tx_hash": txid, "merkle": branch })))
}

/// `blockchain.transaction.broadcast`
pub(super) fn broadcast(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    match call.node().broadcast(&args.bytes(0)?) {
        Ok(txid) => Ok(rpc::json(&txid.to_string())),
        // Wallets take the node's reason out of this.
        Err(NodeError::Rejected { reason }) => {
            Err(RpcError::bad(format!("the transaction was rejected by network rules.\n\n{reason}")))
        }
        Err(error) => Err(error.into()),
    }
}

fn transactions(args: &Args<'_>) -> Result<Vec<Vec<u8>>, RpcError> {
    let raws = args.list_of_bytes(0)?;
    if raws.len() > PACKAGE {
        return Err(RpcError::bad(format!("a package has at most {PACKAGE} transactions")));
    }
    Ok(raws)
}

/// `blockchain.transaction.broadcast_package`
pub(super) fn package(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (raws, verbose) = (transactions(args)?, args.flag(1)?);
    let result = match call.node().broadcast_package(&raws) {
        Err(NodeError::Rejected { reason }) => {
            return Err(RpcError::bad(format!("the tx package was rejected by network rules.\n\n{reason}.")));
        }
        other => other?,
    };
    if verbose {
        let mut raw = result.raw;
        without_ids(&mut raw);
        return Ok(rpc::json(&raw));
    }
    let error = |(txid, error): &(Txid, String)| json!({ "txid": txid.to_string(), "error": error });
    let errors: Vec<Value> = result.errors.iter().map(error).collect();
    Ok(rpc::json(&if errors.is_empty() {
        json!({ "success": result.success })
    } else {
        json!({ "success": result.success, "errors": errors })
    }))
}

/// `blockchain.transaction.testmempoolaccept`
pub(super) fn test_accept(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let answer = call.node().test_accept(&transactions(args)?)?;
    let kept = |entry: &Value| {
        let mut kept = serde_json::Map::new();
        for (name, theirs) in
            [("txid", "txid"), ("wtxid", "wtxid"), ("allowed", "allowed"), ("reason", "reject-reason")]
        {
            if let Some(value) = entry.get(theirs) {
                kept.insert(name.into(), value.clone());
            }
        }
        Value::Object(kept)
    };
    let list: Vec<Value> = answer.as_array().into_iter().flatten().map(kept).collect();
    Ok(rpc::json(&list))
}
