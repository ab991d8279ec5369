//! Answers.

use std::collections::HashSet;
use std::sync::Arc;

use bitcoin::block::Header;
use bitcoin::hashes::Hash;
use bitcoin::{Network, OutPoint, Transaction, TxMerkleNode, Txid};
use peregrine_index::address::{AddressError, AddressView};
use peregrine_index::source::{CallError, SourceError};
use serde_json::Value;
use tokio::sync::broadcast;

use super::merkle;
use super::state::LiveNode;
use crate::node::{
    Balance, ChainTip, ConfirmedTx, FeeBin, FeeMode, HeaderProof, History, MempoolInfo, MempoolTx, Node,
    NodeError, Notice, OutpointStatus, PackageResult, Readiness, RecentTx, Result, ScriptHash, TxProof,
    Unspent,
};

pub(super) fn index_error(error: AddressError) -> NodeError {
    match error {
        AddressError::TooLarge { limit } => NodeError::TooLarge { limit },
        other => NodeError::Internal(other.to_string()),
    }
}

pub(super) fn source_error(error: SourceError) -> NodeError {
    match error {
        SourceError::UnknownBlock(hash) => {
            NodeError::NotFound(format!("block {hash} isn't in the chain any more"))
        }
        other => NodeError::Daemon(format!("Bitcoin Core doesn't answer: {other}")),
    }
}

/// An error of a call that only asks.
fn call_error(error: CallError) -> NodeError {
    match error {
        CallError::Source(error) => source_error(error),
        CallError::Node { message, .. } => NodeError::Daemon(message),
    }
}

/// An error of a call that hands in transactions: what the node says is about them.
fn rejection(error: CallError) -> NodeError {
    match error {
        CallError::Source(error) => source_error(error),
        CallError::Node { message, .. } => NodeError::Rejected { reason: message },
    }
}

pub(super) fn unknown(txid: &Txid) -> NodeError {
    NodeError::NotFound(format!("no transaction {txid} in the chain or the mempool"))
}

impl LiveNode {
    pub(super) fn view(&self) -> Result<AddressView> {
        match (&self.read().view, self.readiness_now()) {
            (Some(view), _) => Ok(view.clone()),
            (None, Readiness::Ready) => Err(NodeError::Internal("ready without an index".into())),
            (None, readiness) => Err(NodeError::Indexing(readiness)),
        }
    }

    /// The bytes of the transaction at a place of a block.
    fn confirmed(&self, view: &AddressView, txid: &Txid) -> Result<Option<Arc<[u8]>>> {
        let Some(place) = view.transaction_position(txid).map_err(index_error)? else { return Ok(None) };
        if let Some(raw) = self.cache.transactions.known(txid) {
            return Ok(Some(raw));
        }
        let at = view.location(place.height, place.position).map_err(index_error)?;
        let Some(at) = at else { return Ok(None) };
        let raw = self.cache.transactions.read(&at, self.daemon()?).map_err(source_error)?;
        Ok(Some(raw))
    }

    pub(super) fn txids(&self, view: &AddressView, height: u32) -> Result<Vec<Txid>> {
        let txids = view.txids_of_block(height).map_err(index_error)?;
        txids.ok_or_else(|| NodeError::NotFound(format!("no block at height {height}")))
    }

    /// Sends a package with the node's limits.
    pub(super) fn submit_package(
        &self,
        raws: &[Vec<u8>],
        max_fee_rate: Option<f64>,
        max_burn: Option<f64>,
    ) -> Result<PackageResult> {
        let raw = self.daemon()?.submit_package(raws, max_fee_rate, max_burn).map_err(rejection)?;
        self.wake();
        let success = raw.get("package_msg").and_then(Value::as_str) == Some("success");
        let results = raw.get("tx-results").and_then(Value::as_object);
        let errors = results
            .into_iter()
            .flat_map(|results| results.values())
            .filter_map(|result| {
                let error = result.get("error")?.as_str()?.to_owned();
                Some((result.get("txid")?.as_str()?.parse().ok()?, error))
            })
            .collect();
        Ok(PackageResult { success, errors, raw })
    }
}

/// The hashes beside the way from a transaction to its block's merkle root.
fn branch(txids: &[Txid], position: usize) -> Vec<TxMerkleNode> {
    let row = txids.iter().map(|txid| txid.to_byte_array()).collect();
    let (branch, _) = merkle::branch(row, position);
    branch.into_iter().map(TxMerkleNode::from_byte_array).collect()
}

impl Node for LiveNode {
    fn network(&self) -> Network {
        self.network
    }

    fn readiness(&self) -> Readiness {
        self.readiness_now()
    }

    fn tip(&self) -> Result<ChainTip> {
        let headers = &self.read().headers;
        Ok(ChainTip { height: headers.tip(), header: headers.last() })
    }

    fn header(&self, height: u32) -> Result<Header> {
        let header = self.read().headers.get(height);
        header.ok_or_else(|| NodeError::NotFound(format!("no block at height {height}")))
    }

    fn headers(&self, start: u32, count: u32) -> Result<Vec<Header>> {
        let headers = &self.read().headers;
        Ok((start..start.saturating_add(count)).map_while(|height| headers.get(height)).collect())
    }

    fn header_proof(&self, height: u32, checkpoint: u32) -> Result<HeaderProof> {
        let proof = self.read().headers.proof(height, checkpoint);
        proof.ok_or_else(|| NodeError::Invalid("the height must be <= the checkpoint <= the tip".into()))
    }

    fn history(&self, hash: ScriptHash) -> Result<History> {
        let (view, mempool) = {
            let state = self.read();
            (state.view.clone(), state.mempool.history(&hash))
        };
        let Some(view) = view else { return self.view().map(|_| History::default()) };
        let limit = self.max_history;
        let read = || {
            let entries = view.history(&hash, limit).map_err(index_error)?.into_iter();
            Ok(entries.map(|entry| ConfirmedTx { txid: entry.txid, height: entry.height }).collect())
        };
        let confirmed = self.cache.confirmed(hash, view.tip().map(|(_, hash)| hash), read)?;
        if confirmed.len() + mempool.len() > limit {
            return Err(NodeError::TooLarge { limit });
        }
        let mempool = mempool
            .into_iter()
            .map(|tx| MempoolTx { txid: tx.txid, fee: tx.fee, unconfirmed_parent: tx.unconfirmed_parent })
            .collect();
        Ok(History::new(confirmed, mempool))
    }

    fn unspent(&self, hash: ScriptHash) -> Result<Vec<Unspent>> {
        let view = self.view()?;
        let confirmed = view.unspent(&hash, self.max_history).map_err(index_error)?;
        let state = self.read();
        // A block may have come meanwhile: what is asked of the mempool has to fit to the same one.
        let same = state.view.as_ref().is_some_and(|now| now.tip() == view.tip());
        if !same {
            drop(state);
            return self.unspent(hash);
        }
        let confirmed = confirmed.into_iter().map(|output| Unspent {
            outpoint: OutPoint { txid: output.txid, vout: output.vout },
            height: output.height,
            value: output.value,
        });
        let mut unspent: Vec<Unspent> =
            confirmed.filter(|output| state.mempool.spender(&output.outpoint).is_none()).collect();
        let known: HashSet<OutPoint> = unspent.iter().map(|output| output.outpoint).collect();
        let mempool =
            state.mempool.unspent(&hash).into_iter().filter(|(outpoint, _)| !known.contains(outpoint));
        unspent.extend(mempool.map(|(outpoint, value)| Unspent { outpoint, height: 0, value }));
        Ok(unspent)
    }

    fn balance(&self, hash: ScriptHash) -> Result<Balance> {
        let (view, unconfirmed) = {
            let state = self.read();
            (state.view.clone(), state.mempool.balance(&hash))
        };
        let Some(view) = view else { return self.view().map(|_| Balance::default()) };
        let confirmed = view.balance(&hash, self.max_history).map_err(index_error)?.unspent();
        Ok(Balance { confirmed, unconfirmed })
    }

    fn outpoint(&self, outpoint: OutPoint) -> Result<OutpointStatus> {
        let state = self.read();
        let Some(view) = state.view.clone() else {
            drop(state);
            return self.view().map(|_| OutpointStatus::default());
        };
        let mempool_height = |txid: &Txid| -i32::from(state.mempool.unconfirmed_parent(txid));
        let mempool_spender = state.mempool.spender(&outpoint).map(|(txid, _)| (txid, mempool_height(&txid)));
        let mempool_funder = state.mempool.get(&outpoint.txid).map(|entry| {
            let transaction: std::result::Result<Transaction, _> =
                bitcoin::consensus::deserialize(entry.raw());
            let outputs = transaction.map_or(0, |transaction| transaction.output.len());
            ((outpoint.vout as usize) < outputs, mempool_height(&outpoint.txid))
        });
        drop(state);
        let height = |height: u32| i32::try_from(height).unwrap_or(i32::MAX);
        if let Some(funder) = view.funder(&outpoint).map_err(index_error)? {
            // The index doesn't say how many outputs there are; the transaction does.
            let outputs = match self.confirmed(&view, &outpoint.txid)? {
                Some(raw) => bitcoin::consensus::deserialize::<Transaction>(&raw)
                    .map_err(|error| NodeError::Internal(format!("{}: {error}", outpoint.txid)))?
                    .output
                    .len(),
                None => 0,
            };
            if outpoint.vout as usize >= outputs {
                return Ok(OutpointStatus::default());
            }
            let spender = view.spender(&outpoint).map_err(index_error)?;
            let spender = spender.map(|spender| (spender.txid, height(spender.height))).or(mempool_spender);
            return Ok(OutpointStatus { funder_height: Some(height(funder.height)), spender });
        }
        Ok(match mempool_funder {
            Some((true, funder)) => OutpointStatus { funder_height: Some(funder), spender: mempool_spender },
            _ => OutpointStatus::default(),
        })
    }

    fn transaction(&self, txid: Txid) -> Result<Vec<u8>> {
        // The mempool first: it and the view are of the same moment.
        let view = {
            let state = self.read();
            if let Some(entry) = state.mempool.get(&txid) {
                return Ok(entry.raw().to_vec());
            }
            state.view.clone()
        };
        let Some(view) = view else { return self.view().map(|_| Vec::new()) };
        self.confirmed(&view, &txid)?.map(|raw| raw.to_vec()).ok_or_else(|| unknown(&txid))
    }

    fn transaction_verbose(&self, txid: Txid) -> Result<Value> {
        let view = self.view()?;
        let place = view.transaction_position(&txid).map_err(index_error)?;
        let block = match place {
            Some(place) => view.block(place.height).map_err(index_error)?.map(|block| block.hash),
            None => None,
        };
        if block.is_none() && !self.read().mempool.contains(&txid) {
            return Err(unknown(&txid));
        }
        self.daemon()?.transaction_verbose(txid, block).map_err(|error| match error {
            // Gone from the mempool, or its block from the chain, since we looked.
            CallError::Node { code: -5, .. } => unknown(&txid),
            other => call_error(other),
        })
    }

    fn transaction_proof(&self, txid: Txid, height: Option<u32>) -> Result<TxProof> {
        let view = self.view()?;
        let place = view.transaction_position(&txid).map_err(index_error)?;
        let place = match (place, height) {
            (Some(place), None) => place,
            (Some(place), Some(height)) if place.height == height => place,
            (_, Some(height)) => {
                return Err(NodeError::NotFound(format!(
                    "no transaction {txid} in the block at height {height}"
                )));
            }
            (None, None) => return Err(NodeError::NotFound(format!("no transaction {txid} in a block"))),
        };
        let txids = self.txids(&view, place.height)?;
        if txids.get(place.position as usize) != Some(&txid) {
            return Err(NodeError::Internal(format!("the index has {txid} in two places")));
        }
        let branch = branch(&txids, place.position as usize);
        Ok(TxProof { height: place.height, position: place.position, branch })
    }

    fn transaction_at(&self, height: u32, position: u32, proof: bool) -> Result<(Txid, Vec<TxMerkleNode>)> {
        let view = self.view()?;
        let missing =
            || NodeError::NotFound(format!("no transaction at position {position} of height {height}"));
        if !proof {
            let txid = view.txid_at(height, position).map_err(index_error)?;
            return Ok((txid.ok_or_else(missing)?, Vec::new()));
        }
        let txids = self.txids(&view, height)?;
        let txid = *txids.get(position as usize).ok_or_else(missing)?;
        Ok((txid, branch(&txids, position as usize)))
    }

    fn estimate_fee(&self, target: u32, mode: FeeMode) -> Result<Option<u64>> {
        let name = match mode {
            FeeMode::Default => None,
            FeeMode::Conservative => Some("CONSERVATIVE"),
            FeeMode::Economical => Some("ECONOMICAL"),
        };
        let ask = || self.daemon()?.estimate_fee(target, name).map_err(call_error);
        self.cache.fees.estimate(target, mode, ask)
    }

    fn mempool_info(&self) -> Result<MempoolInfo> {
        self.cache.fees.info(|| self.daemon()?.mempool_info().map_err(call_error))
    }

    fn fee_histogram(&self) -> Result<Vec<FeeBin>> {
        let bins = self.read().mempool.fee_histogram();
        Ok(bins.iter().map(|(rate, vsize)| FeeBin { rate: *rate, vsize: *vsize }).collect())
    }

    fn recent(&self) -> Result<Vec<RecentTx>> {
        Ok(self.read().mempool.recent())
    }

    fn broadcast(&self, raw: &[u8]) -> Result<Txid> {
        let txid = self.daemon()?.send(raw).map_err(rejection)?;
        self.wake();
        Ok(txid)
    }

    fn broadcast_package(&self, raws: &[Vec<u8>]) -> Result<PackageResult> {
        self.submit_package(raws, None, None)
    }

    fn test_accept(&self, raws: &[Vec<u8>]) -> Result<Value> {
        self.daemon()?.test_accept(raws).map_err(rejection)
    }

    fn events(&self) -> broadcast::Receiver<Notice> {
        self.events.subscribe()
    }
}
