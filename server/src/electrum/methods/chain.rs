//! Methods about headers.

use bitcoin::consensus::encode::serialize_hex;
use bitcoin::hex::DisplayHex;
use serde_json::{Map, Value, json};

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::rpc::{self, RpcError};
use crate::electrum::version::Version;
use crate::electrum::{header_object, lock};
use crate::node::{HeaderProof, NodeError};

/// Headers in one answer.
const MAX_HEADERS: u32 = 2016;

/// `blockchain.headers.subscribe`
pub(super) fn subscribe(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    // Under the lock, so that a notification comes either before this or compares with what is told here.
    let mut state = lock(&call.session.state);
    let tip = call.server().hub.tip(call.node())?;
    state.headers = Some(tip.header.block_hash());
    Ok(header_object(&tip))
}

/// `blockchain.headers.unsubscribe`
pub(super) fn unsubscribe(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok(rpc::json(&lock(&call.session.state).headers.take().is_some()))
}

/// `blockchain.headers.get_tip`
pub(super) fn tip(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok(header_object(&call.server().hub.tip(call.node())?))
}

/// `blockchain.block.header`
pub(super) fn header(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (height, checkpoint) = (args.u32(0)?, args.u32_or_zero(1)?);
    if checkpoint == 0 {
        return Ok(rpc::json(&serialize_hex(&call.node().header(height)?)));
    }
    let proof = proof(call, height, checkpoint)?;
    let mut object = proof_object(&proof);
    object.insert("header".into(), serialize_hex(&call.node().header(height)?).into());
    Ok(rpc::json(&object))
}

/// `blockchain.block.headers`
pub(super) fn headers(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (start, asked, checkpoint) = (args.u32(0)?, args.u32(1)?, args.u32_or_zero(2)?);
    let headers = match call.node().headers(start, asked.min(MAX_HEADERS)) {
        Err(NodeError::NotFound(_)) => Vec::new(),
        other => other?,
    };
    let mut object = Map::new();
    if let (Some(more), true) = (headers.len().checked_sub(1), checkpoint > 0) {
        // At most 2016, and on the chain, so it fits.
        object = proof_object(&proof(call, start.saturating_add(more as u32), checkpoint)?);
    }
    object.insert("count".into(), headers.len().into());
    object.insert("max".into(), MAX_HEADERS.into());
    let headers: Vec<String> = headers.iter().map(serialize_hex).collect();
    if call.version < Version::V1_6 {
        object.insert("hex".into(), headers.concat().into());
    } else {
        object.insert("headers".into(), json!(headers));
    }
    Ok(rpc::json(&object))
}

fn proof(call: &Call<'_>, height: u32, checkpoint: u32) -> Result<HeaderProof, RpcError> {
    let tip = call.node().tip()?.height;
    if height > checkpoint || checkpoint > tip {
        return Err(RpcError::bad(format!(
            "header height {height} must be <= cp_height {checkpoint} which must be <= chain height {tip}"
        )));
    }
    Ok(call.node().header_proof(height, checkpoint)?)
}

/// Branch and root as hashes are shown: reversed.
fn proof_object(proof: &HeaderProof) -> Map<String, Value> {
    let shown = |hash: &[u8; 32]| {
        let mut reversed = *hash;
        reversed.reverse();
        reversed.to_lower_hex_string()
    };
    let mut object = Map::new();
    object.insert("branch".into(), proof.branch.iter().map(shown).collect());
    object.insert("root".into(), shown(&proof.root).into());
    object
}
