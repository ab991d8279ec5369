//! What all handlers share.

use std::sync::Arc;
use std::time::Duration;

use bitcoin::Txid;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use super::problem::Problem;
use super::silent::Commitments;
use crate::light::Blocks;
use crate::node::Explorer;

/// What routers carry.
pub(super) type Shared = Arc<Web>;

/// Everything that requests are answered from.
pub(super) struct Web {
    pub(super) node: Arc<dyn Explorer>,
    /// Transactions as explorers show them, without their status.
    pub(super) transactions: Cache<Txid, Arc<str>, Length>,
    /// Rows for wallets that scan by themselves.
    pub(super) blocks: Arc<Blocks>,
    pub(super) commitments: Commitments,
    workers: Arc<Semaphore>,
    patience: Duration,
    /// Entries of a batch.
    pub(super) batch: usize,
    /// Bytes of an answer.
    pub(super) response_bytes: usize,
}

/// Weighs texts by their length.
#[derive(Clone, Debug)]
pub(super) struct Length;

impl Weighter<Txid, Arc<str>> for Length {
    fn weight(&self, _: &Txid, text: &Arc<str>) -> u64 {
        100 + text.len() as u64
    }
}

impl Web {
    pub(super) fn new(node: Arc<dyn Explorer>, blocks: Arc<Blocks>, config: &super::Config) -> Shared {
        Arc::new(Self {
            node,
            // A usual transaction has about 1500 bytes of JSON.
            transactions: Cache::with_weighter((config.cache / 3000) as usize, config.cache / 2, Length),
            commitments: Commitments::new(blocks.folder()),
            blocks,
            workers: Arc::new(Semaphore::new(config.limits.concurrent_requests.max(1))),
            patience: config.patience,
            batch: config.limits.batch,
            response_bytes: config.limits.response_bytes,
        })
    }

    /// Does work that may block, when it has its turn.
    pub(super) async fn ask<T: Send + 'static>(
        self: Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let turn = Arc::clone(&self.workers).acquire_owned();
        let permit = match tokio::time::timeout(self.patience, turn).await {
            Ok(Ok(permit)) => permit,
            // The semaphore is never closed.
            Ok(Err(_)) => return Err(Problem::internal("no workers")),
            Err(_) => return Err(Problem::busy("the server is busy", 2)),
        };
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&self)
        });
        done.await.unwrap_or_else(|_| Err(Problem::internal("a request panicked")))
    }
}
