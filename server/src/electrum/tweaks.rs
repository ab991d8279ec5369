//! Tweaks as Cake Wallet asks for them: a range of blocks, the first in the reply, the others in notifications, then that it is
//! done. The wallet keeps its keys and scans by itself.

use std::sync::Arc;
use std::time::Duration;

use bitcoin::hex::DisplayHex;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::connection::Outgoing;
use super::rpc;
use super::session::Session;
use crate::light::Blocks;
use crate::node::{NodeError, Result};

/// The method, and what its notifications are called.
pub(super) const METHOD: &str = "blockchain.tweaks.subscribe";
/// How long a block that isn't there yet is waited for, and how often it is looked for.
const TRIES: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);

/// Blocks that are still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) next: u32,
    /// One past the last.
    pub(super) end: u32,
    /// With outputs that are spent.
    pub(super) historical: bool,
}

/// A block: height, transactions, and of each the tweak and its taproot outputs with key and satoshi.
pub(super) fn block(blocks: &Blocks, height: u32, historical: bool) -> Result<Value> {
    let found = match blocks.at(height) {
        Ok(found) => found,
        // Before the index, and behind the tip, there is nothing.
        Err(NodeError::NotFound(_)) => return Ok(json!({ height.to_string(): {} })),
        Err(error) => return Err(error),
    };
    let utxos = if found.rows.is_empty() { Vec::new() } else { blocks.utxos(&found)? };
    let mut transactions = Map::new();
    for (row, utxos) in found.rows.iter().zip(utxos) {
        let outputs: Map<String, Value> = utxos
            .iter()
            .filter(|utxo| historical || !utxo.spent)
            .map(|utxo| (utxo.outpoint.vout.to_string(), json!([utxo.key.to_lower_hex_string(), utxo.value])))
            .collect();
        if !outputs.is_empty() {
            let transaction = json!({ "tweak": row.tweak.to_lower_hex_string(), "output_pubkeys": outputs });
            transactions.insert(row.txid.to_string(), transaction);
        }
    }
    Ok(json!({ height.to_string(): transactions }))
}

/// The sending of a range. Dropping it ends it.
pub(super) struct Feed(AbortHandle);

impl Drop for Feed {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Feed {
    /// Sends a range, as fast as the client takes it. `broken` is told if that can't go on: the client must not believe that
    /// it has all.
    pub(super) fn start(
        session: Arc<Session>,
        queue: mpsc::Sender<Outgoing>,
        range: Range,
        broken: Arc<Notify>,
    ) -> Self {
        let task = tokio::spawn(async move {
            for height in range.next..range.end {
                let Some(text) = notification(&session, height, range.historical).await else {
                    broken.notify_one();
                    return;
                };
                session.seat.charge(1.0);
                // The client is gone, or takes nothing.
                if queue.send(Outgoing::note(text)).await.is_err() {
                    return;
                }
            }
            let done = rpc::notification(METHOD, &json!([{ "message": "done" }]).to_string());
            let _ = queue.send(Outgoing::note(done)).await;
        });
        Self(task.abort_handle())
    }
}

async fn notification(session: &Arc<Session>, height: u32, historical: bool) -> Option<String> {
    for _ in 0..TRIES {
        let made = {
            let _permit = session.server.workers.acquire().await;
            let session = Arc::clone(session);
            tokio::task::spawn_blocking(move || {
                let blocks = session.server.light.as_ref()?;
                Some(block(blocks, height, historical))
            })
            .await
        };
        match made {
            Ok(Some(Ok(block))) => return Some(rpc::notification(METHOD, &json!([block]).to_string())),
            Ok(Some(Err(NodeError::Busy(_) | NodeError::Indexing(_) | NodeError::Daemon(_)))) => {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Some(Err(error))) => {
                tracing::error!("tweaks of block {height} can't be sent: {error}");
                return None;
            }
            Ok(None) | Err(_) => return None,
        }
    }
    None
}
