//! Methods about silent payments.
//!
//! Parameters are read in place and no message repeats one: the first is a secret.

use peregrine_scanner::keys::parse_spend_key;
use peregrine_scanner::{KeyError, ScanKey, ScanTarget};
use secp256k1::PublicKey;
use serde::Serialize;
use serde_json::Value;

use super::{Call, Outcome};
use crate::electrum::args::Args;
use crate::electrum::lock;
use crate::electrum::rpc::{self, RpcError};
use crate::electrum::session::{NewStream, SilentState};
use crate::node::{self, NodeError, ScanRequest, Start};

/// Numbers from here on are times, below they are heights.
const FIRST_TIME: u64 = 500_000_000;

/// What a subscription is called, in the reply and in every notification.
#[derive(Serialize)]
struct Subscription<'a> {
    address: &'a str,
    labels: &'a [u32],
    start_height: u32,
}

fn keys(args: &Args<'_>) -> Result<(ScanKey, PublicKey), RpcError> {
    let params = |name: &str, error: KeyError| RpcError::params(format!("{name}: {error}"));
    let scan = args.text(0).map_err(|_| RpcError::params("scan_private_key should be a text"))?;
    let scan: ScanKey = scan.parse().map_err(|error| params("scan_private_key", error))?;
    let spend = args.text(1).map_err(|_| RpcError::params("spend_public_key should be a text"))?;
    let spend = parse_spend_key(spend).map_err(|error| params("spend_public_key", error))?;
    Ok((scan, spend))
}

fn start(args: &Args<'_>) -> Result<Start, RpcError> {
    let wrong = || RpcError::params("start should be a height, a time in seconds, or \"FROM-TO\"");
    match args.value(2).map_err(|_| wrong())? {
        Value::Null => Ok(Start::Height(0)),
        Value::Number(number) => match number.as_u64() {
            Some(time @ FIRST_TIME..) => Ok(Start::Time(time)),
            Some(height) => u32::try_from(height).map(Start::Height).map_err(|_| wrong()),
            None => Err(wrong()),
        },
        Value::String(text) => {
            let height = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
                true => text.parse::<u32>().map_err(|_| wrong()),
                false => Err(wrong()),
            };
            let (from, to) = text.split_once('-').ok_or_else(wrong)?;
            let (from, to) = (height(from)?, height(to)?);
            if from > to {
                return Err(RpcError::params("start: the range ends before it begins"));
            }
            Ok(Start::Range { from, to })
        }
        _ => Err(wrong()),
    }
}

/// The labels beside the change label.
fn labels(args: &Args<'_>, limit: usize) -> Result<Vec<u32>, RpcError> {
    let wrong = || RpcError::params("labels should be a list of positive integers");
    let Some(json) = args.raw(3) else { return Ok(Vec::new()) };
    // 0 is the change label, which is always there.
    let mut labels: Vec<u32> = serde_json::from_str(json).map_err(|_| wrong())?;
    labels.retain(|label| *label != 0);
    labels.sort_unstable();
    labels.dedup();
    within(labels, limit)
}

fn within(labels: Vec<u32>, limit: usize) -> Result<Vec<u32>, RpcError> {
    if labels.len() > limit {
        return Err(RpcError::params(format!(
            "too many labels: {limit} are allowed beside the change label"
        )));
    }
    Ok(labels)
}

/// `blockchain.silentpayments.subscribe`
pub(super) fn subscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let server = call.server();
    let limits = &server.config.limits;
    let Some(silent) = &server.silent else {
        return Err(RpcError::new(rpc::UNKNOWN_METHOD, "silent payments aren't served here"));
    };
    let (scan, spend) = keys(args)?;
    let (start, mut labels) = (start(args)?, labels(args, limits.silent_labels)?);
    let address = node::address(server.node.network(), &scan, &spend).to_string();
    let before = {
        let state = lock(&call.session.state);
        let before = state.silent.get(&address).cloned();
        if before.is_none() && state.silent.len() >= limits.silent_subscriptions_per_connection {
            return Err(RpcError::params(format!(
                "too many silent-payment subscriptions: {} are allowed for a connection",
                limits.silent_subscriptions_per_connection
            )));
        }
        before
    };
    // Asking again never narrows what is looked for.
    if let Some(before) = &before {
        labels.extend(before.labels.iter().filter(|label| **label != 0));
        labels.sort_unstable();
        labels.dedup();
        labels = within(labels, limits.silent_labels)?;
    }
    let target = ScanTarget::new(scan, spend, labels).map_err(|error| RpcError::params(error.to_string()))?;
    let labels: Vec<u32> = target.labels().iter().map(peregrine_scanner::Label::m).collect();
    let request = ScanRequest { target, start, not_after: before.map(|before| before.start_height) };
    let subscription = silent.subscribe(request).map_err(|error| match error {
        NodeError::Invalid(text) | NodeError::NotFound(text) => RpcError::params(text),
        other => other.into(),
    })?;
    let start_height = subscription.start_height;
    let object = rpc::json(&Subscription { address: &address, labels: &labels, start_height });
    lock(&call.session.state).silent.insert(address.clone(), SilentState { start_height, labels });
    // Of two for the same keys in one batch, the later one goes on.
    call.effects.dropped.push(address.clone());
    call.effects.streams.retain(|stream| stream.address != address);
    let notifications = subscription.notifications;
    call.effects.streams.push(NewStream { address, object: object.clone(), notifications });
    Ok(object)
}

/// `blockchain.silentpayments.unsubscribe`: the address, also if there was no subscription.
pub(super) fn unsubscribe(call: &mut Call<'_>, args: &Args<'_>) -> Outcome {
    let (scan, spend) = keys(args)?;
    let address = node::address(call.server().node.network(), &scan, &spend).to_string();
    lock(&call.session.state).silent.remove(&address);
    call.effects.streams.retain(|stream| stream.address != address);
    call.effects.dropped.push(address.clone());
    Ok(rpc::json(&address))
}
