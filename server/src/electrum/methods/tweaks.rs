//! Methods for wallets that keep their keys.

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::rpc::{self, RpcError};
use crate::electrum::tweaks::{self, Range};

/// `blockchain.tweaks.subscribe`: the first block; the others follow.
pub(super) fn subscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let server = call.server();
    let Some(blocks) = &server.light else {
        return Err(RpcError::new(rpc::UNKNOWN_METHOD, "tweaks aren't served here"));
    };
    let (height, count, historical) = (args.u32(0)?, args.u32(1)?, args.flag(2)?);
    if count == 0 {
        return Err(RpcError::params("count should be at least 1"));
    }
    let first = tweaks::block(blocks, height, historical)?;
    // Behind the tip there is nothing to send.
    let tip = server.node.tip()?.height;
    let end = height.saturating_add(count).min(tip.saturating_add(1));
    call.effects.tweaks = Some(Range { next: height.saturating_add(1), end, historical });
    Ok(rpc::json(&first))
}
