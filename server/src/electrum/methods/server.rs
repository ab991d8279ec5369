//! Methods about the server itself.

use bitcoin::constants::genesis_block;
use serde_json::{Map, Value, json};

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::lock;
use crate::electrum::rpc::{self, RpcError};
use crate::electrum::version::{self, NegotiationError, Version};

/// `server.version`
pub(super) fn version(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let config = &call.server().config;
    let mut state = lock(&call.session.state);
    if state.version.is_some() {
        return Err(RpcError::bad("server.version already sent"));
    }
    let agreed =
        version::negotiate(&args.value(1)?, config.newest_version, !state.spoke).map_err(|error| {
            let (oldest, newest) = (Version::OLDEST, config.newest_version);
            match error {
                NegotiationError::Malformed => args.wrong(1, "a version like \"1.4\" or a pair of versions"),
                NegotiationError::Unsupported => {
                    let text = format!("unsupported protocol version: {oldest} to {newest} are spoken here");
                    RpcError::bad(text).and_close()
                }
                NegotiationError::Late => {
                    RpcError::bad("server.version must be the first message of this protocol version")
                        .and_close()
                }
            }
        })?;
    state.version = Some(agreed);
    Ok(rpc::json(&[&config.server_name, &agreed.to_string()]))
}

/// `server.features`
pub(super) fn features(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    let server = call.server();
    let mut features = Map::new();
    let genesis = genesis_block(server.node.network()).block_hash().to_string();
    features.insert("hosts".into(), json!({}));
    features.insert("genesis_hash".into(), genesis.into());
    if call.version < Version::V1_7 {
        features.insert("hash_function".into(), "sha256".into());
    }
    features.insert("server_version".into(), server.config.server_name.as_str().into());
    features.insert("protocol_min".into(), Version::OLDEST.to_string().into());
    features.insert("protocol_max".into(), server.config.newest_version.to_string().into());
    features.insert("pruning".into(), Value::Null);
    if server.silent.is_some() {
        // Versions of silent payments; there is only 0.
        features.insert("silent_payments".into(), json!([0]));
    }
    Ok(rpc::json(&features))
}

/// `server.banner`
pub(super) fn banner(call: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok(rpc::json(&call.server().config.banner))
}

/// `server.donation_address`
pub(super) fn donation_address(_: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok(rpc::json(""))
}

/// `server.ping`
pub(super) fn ping(_: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok("null".into())
}

/// `server.ping` from 1.7 on, which hides what is said by its length.
pub(super) fn ping_with_data(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let length = args.u32_or_zero(0)? as usize;
    args.text_or_empty(1)?;
    let limit = call.server().config.limits.request_bytes;
    if length > limit {
        return Err(RpcError::bad(format!("pong_len may be at most {limit}")));
    }
    Ok(rpc::json(&json!({ "data": "0".repeat(length) })))
}

/// `server.add_peer`: no peers are kept.
pub(super) fn add_peer(_: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok("false".into())
}

/// `server.peers.subscribe`
pub(super) fn peers(_: &mut Call<'_>, _: &Args<'_>) -> Outcome {
    Ok("[]".into())
}
