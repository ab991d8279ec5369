//! Blocks that are appended but not committed yet.

use std::collections::HashMap;
use std::hash::Hash;

use bitcoin::Txid;
use fjall::{OwnedWriteBatch, PersistMode};

use super::codec::{self, BlockRow, HistoryKey, SpendKey, TxRow, TxidPrefix};
use super::error::AddressError;
use super::script_hash::ScriptHash;
use super::tables::Tables;
use super::transactions::TransactionFiles;

/// Rows to be written at the next commit, all or none.
#[derive(Default)]
pub(super) struct Pending {
    /// Number of the first transaction in here.
    pub(super) first: u64,
    pub(super) blocks: Vec<(u32, BlockRow)>,
    pub(super) transactions: Vec<TxRow>,
    /// With the numbers that were under the same prefix before.
    pub(super) prefixes: HashMap<TxidPrefix, Vec<u64>>,
    pub(super) history: Vec<(HistoryKey, Vec<u8>)>,
    pub(super) spends: Vec<(SpendKey, Vec<u8>)>,
    pub(super) touched: Vec<(u32, Vec<ScriptHash>)>,
    /// Lists of scripts to drop.
    pub(super) stale: Vec<u32>,
    pub(super) superseded: Vec<(u64, u64)>,
}

impl Pending {
    /// Begins anew with this transaction number.
    pub(super) fn starting_at(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// About how many rows will be written.
    pub(super) fn rows(&self) -> usize {
        self.blocks.len() + self.transactions.len() + self.history.len() + self.spends.len()
    }

    /// A transaction, if it is in here.
    pub(super) fn transaction(&self, number: u64) -> Option<&TxRow> {
        self.transactions.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Number of the transaction with this id, if it is in here.
    pub(super) fn find(&self, txid: &Txid) -> Option<u64> {
        let numbers = self.prefixes.get(&codec::txid_prefix(txid))?;
        let is_it = |number: &&u64| self.transaction(**number).is_some_and(|row| row.txid == *txid);
        numbers.iter().rev().find(is_it).copied()
    }

    /// Writes everything in the order of the keys; on stable storage only after the next sync, but for the transactions,
    /// which are there before they are counted.
    pub(super) fn commit(&self, tables: &Tables, files: &mut TransactionFiles) -> Result<(), AddressError> {
        files.write(self.first, &self.transactions)?;
        let mut batch =
            OwnedWriteBatch::with_capacity(tables.db.clone(), self.rows() + 2 * self.touched.len());
        batch = batch.durability(Some(PersistMode::Buffer));
        for (height, row) in &self.blocks {
            batch.insert(&tables.blocks, height.to_be_bytes(), row.encode());
        }
        let mut prefixes: Vec<_> = self.prefixes.iter().collect();
        prefixes.sort_unstable();
        for (prefix, numbers) in prefixes {
            batch.insert(&tables.txids, *prefix, codec::encode_numbers(numbers));
        }
        for (key, row) in sorted(&self.history) {
            batch.insert(&tables.history, *key, &row[..]);
        }
        for (key, row) in sorted(&self.spends) {
            batch.insert(&tables.spends, *key, &row[..]);
        }
        for height in &self.stale {
            batch.remove(&tables.touched, height.to_be_bytes());
        }
        for (height, scripts) in &self.touched {
            batch.insert(&tables.touched, height.to_be_bytes(), codec::encode_scripts(scripts));
        }
        for (earlier, later) in &self.superseded {
            batch.insert(&tables.superseded, codec::number_key(*earlier), codec::number_key(*later));
        }
        batch.commit().map_err(|error| tables.fail(error))
    }
}

fn sorted<T: Ord>(rows: &[T]) -> Vec<&T> {
    let mut rows: Vec<&T> = rows.iter().collect();
    rows.sort_unstable();
    rows
}

/// The numbers of transactions that were appended lately, most of whose outputs are spent soon. Holds between `size` and
/// twice as many.
pub(super) struct Recent<K> {
    size: usize,
    young: HashMap<K, u64>,
    old: HashMap<K, u64>,
}

impl<K: Eq + Hash> Recent<K> {
    pub(super) fn new(size: usize) -> Self {
        Self { size, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn insert(&mut self, key: K, number: u64) {
        if self.young.len() >= self.size {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, number);
    }

    pub(super) fn get(&self, key: &K) -> Option<u64> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}
