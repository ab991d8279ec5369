//! Answers for explorers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bitcoin::consensus::encode::deserialize;
use bitcoin::{BlockHash, OutPoint, Transaction, TxOut, Txid};
use peregrine_index::source::BlockWithPrevouts;

use super::node::{index_error, source_error, unknown};
use super::state::LiveNode;
use crate::node::{
    BlockSummary, Explorer, MempoolSummary, Node, NodeError, PackageResult, Result, ScriptHash, ScriptStats,
    SpentBy, TxPlace,
};

impl LiveNode {
    /// An output that was made by a transaction of the chain or the mempool.
    fn output(&self, outpoint: OutPoint, known: &mut HashMap<Txid, Transaction>) -> Result<TxOut> {
        let wrong = |error: String| NodeError::Internal(format!("{}: {error}", outpoint.txid));
        let transaction = match known.entry(outpoint.txid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let raw = self.transaction(outpoint.txid)?;
                place.insert(deserialize(&raw).map_err(|error| wrong(error.to_string()))?)
            }
        };
        let output = transaction.output.get(outpoint.vout as usize);
        output.cloned().ok_or_else(|| wrong(format!("it has no output {}", outpoint.vout)))
    }
}

impl Explorer for LiveNode {
    fn height_of(&self, block: BlockHash) -> Result<Option<u32>> {
        Ok(self.read().headers.height_of(&block))
    }

    fn block_summary(&self, height: u32) -> Result<BlockSummary> {
        let block = self.view()?.block(height).map_err(index_error)?;
        let block = block.ok_or_else(|| NodeError::NotFound(format!("no block at height {height}")))?;
        Ok(BlockSummary {
            height,
            hash: block.hash,
            header: block.header,
            transactions: block.transactions,
            size: block.size,
        })
    }

    fn block(&self, hash: BlockHash) -> Result<Arc<BlockWithPrevouts>> {
        if let Some(block) = self.cache.blocks.get(&hash) {
            return Ok(block);
        }
        let missing = || NodeError::Daemon(format!("{} doesn't answer yet", self.daemon_name));
        let source = self.blocks.get().ok_or_else(missing)?;
        let block = Arc::new(source.block(hash).map_err(source_error)?);
        self.cache.blocks.insert(hash, Arc::clone(&block));
        Ok(block)
    }

    fn txids_of_block(&self, height: u32) -> Result<Vec<Txid>> {
        self.txids(&self.view()?, height)
    }

    fn place(&self, txid: Txid) -> Result<Option<TxPlace>> {
        // The mempool and the view are of the same moment.
        let view = {
            let state = self.read();
            if state.mempool.contains(&txid) {
                return Ok(Some(TxPlace::Mempool));
            }
            state.view.clone()
        };
        let Some(view) = view else { return self.view().map(|_| None) };
        let place = view.transaction_position(&txid).map_err(index_error)?;
        Ok(place.map(|place| TxPlace::Block { height: place.height, position: place.position }))
    }

    fn spender(&self, outpoint: OutPoint) -> Result<Option<SpentBy>> {
        let (view, unconfirmed) = {
            let state = self.read();
            (state.view.clone(), state.mempool.spender(&outpoint))
        };
        let Some(view) = view else { return self.view().map(|_| None) };
        let confirmed = view.spender(&outpoint).map_err(index_error)?;
        let confirmed = confirmed.map(|spender| SpentBy {
            txid: spender.txid,
            vin: spender.vin,
            height: Some(spender.height),
        });
        Ok(confirmed.or(unconfirmed.map(|(txid, vin)| SpentBy { txid, vin, height: None })))
    }

    fn prevouts(&self, transaction: &Transaction) -> Result<Vec<TxOut>> {
        if transaction.is_coinbase() {
            return Ok(Vec::new());
        }
        let txid = transaction.compute_txid();
        // With the block at hand all of them are.
        if let Some(TxPlace::Block { height, position }) = self.place(txid)? {
            let hash = self.block_summary(height)?.hash;
            let many = transaction.input.len() > MANY_INPUTS;
            if let Some(block) = self
                .cache
                .blocks
                .get(&hash)
                .map_or_else(|| many.then(|| self.block(hash)).transpose(), |known| Ok(Some(known)))?
            {
                let there =
                    block.block.txdata.get(position as usize).is_some_and(|tx| tx.compute_txid() == txid);
                if let Some(prevouts) = block.prevouts.get(position as usize).filter(|_| there) {
                    return Ok(prevouts.clone());
                }
                return Err(unknown(&txid));
            }
        }
        let mut known = HashMap::new();
        transaction.input.iter().map(|input| self.output(input.previous_output, &mut known)).collect()
    }

    fn script_stats(&self, script: ScriptHash) -> Result<(ScriptStats, ScriptStats)> {
        let (view, unconfirmed) = {
            let state = self.read();
            let mut stats = ScriptStats::default();
            for entry in state.mempool.history(&script).iter().filter_map(|tx| state.mempool.get(&tx.txid)) {
                stats.transactions += 1;
                for output in
                    entry.outputs().iter().filter(|out| ScriptHash::of(&out.script_pubkey) == script)
                {
                    stats.funded_outputs += 1;
                    stats.funded += output.value.to_sat();
                }
                for input in entry.spends().iter().filter(|input| input.script == script) {
                    stats.spent_outputs += 1;
                    stats.spent += input.value;
                }
            }
            (state.view.clone(), stats)
        };
        let Some(view) = view else { return self.view().map(|_| Default::default()) };
        let balance = view.balance(&script, self.max_history).map_err(index_error)?;
        let confirmed = ScriptStats {
            transactions: balance.transactions,
            funded_outputs: balance.funded_outputs,
            funded: balance.funded,
            spent_outputs: balance.spent_outputs,
            spent: balance.spent,
        };
        Ok((confirmed, unconfirmed))
    }

    fn submit(
        &self,
        raws: &[Vec<u8>],
        max_fee_rate: Option<f64>,
        max_burn: Option<f64>,
    ) -> Result<PackageResult> {
        self.submit_package(raws, max_fee_rate, max_burn)
    }

    fn mempool(&self) -> Result<Vec<MempoolSummary>> {
        let state = self.read();
        let entries = state.mempool.txids().filter_map(|txid| state.mempool.get(txid));
        let summary = |entry: &peregrine_index::mempool::MempoolEntry| MempoolSummary {
            txid: entry.txid(),
            fee: entry.fee(),
            vsize: entry.vsize(),
            value: entry.outputs().iter().map(|output| output.value.to_sat()).sum(),
        };
        Ok(entries.map(summary).collect())
    }
}

/// A confirmed transaction with more inputs isn't worth so many questions: its whole block is read.
const MANY_INPUTS: usize = 8;
