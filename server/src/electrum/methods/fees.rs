//! Methods about fees and the mempool as a whole.

use serde_json::json;

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::rpc;
use crate::node::FeeMode;

/// Core's estimator doesn't look further ahead.
const MAX_TARGET: u32 = 1008;

/// Satoshi per 1000 virtual bytes in bitcoin.
fn bitcoin(rate: u64) -> f64 {
    rate as f64 / 1e8
}

/// `blockchain.estimatefee`
pub(super) fn estimate(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let target = args.u32(0)?.clamp(1, MAX_TARGET);
    let mode = match &*args.text_or_empty(1)?.to_ascii_uppercase() {
        "" | "UNSET" => FeeMode::Default,
        "CONSERVATIVE" => FeeMode::Conservative,
        "ECONOMICAL" => FeeMode::Economical,
        _ => return Err(args.wrong(1, "CONSERVATIVE or ECONOMICAL")),
    };
    Ok(match call.node().estimate_fee(target, mode)? {
        Some(rate) => rpc::json(&bitcoin(rate)),
        None => "-1".into(),
    })
}

/// `blockchain.relayfee`
pub(super) fn relay(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok(rpc::json(&bitcoin(call.node().relay_fee()?)))
}

/// `mempool.get_info`
pub(super) fn info(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    let info = call.node().mempool_info()?;
    Ok(rpc::json(&json!({
        "mempoolminfee": bitcoin(info.min_fee),
        "minrelaytxfee": bitcoin(info.min_relay_fee),
        "incrementalrelayfee": bitcoin(info.incremental_relay_fee),
    })))
}

/// `mempool.get_fee_histogram`
pub(super) fn histogram(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    let mut last = f64::INFINITY;
    let bins: Vec<(f64, u64)> = call
        .node()
        .fee_histogram()?
        .into_iter()
        .map(|bin| (bin.rate, bin.vsize))
        // Clients check that it falls strictly. What doesn't is a mistake of ours that must not reach them.
        .filter(|(rate, vsize)| {
            let falls = rate.is_finite() && *rate >= 0.0 && *rate < last && *vsize > 0;
            if falls {
                last = *rate;
            }
            falls
        })
        .collect();
    Ok(rpc::json(&bins))
}

/// `mempool.recent`
pub(super) fn recent(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    let recent = call.node().recent()?;
    let list = recent
        .iter()
        .take(10)
        .map(|tx| json!({ "txid": tx.txid.to_string(), "fee": tx.fee, "vsize": tx.vsize }));
    Ok(rpc::json(&list.collect::<Vec<_>>()))
}
