//! The tables in the embedded store, and typed access to them as of a snapshot.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bitcoin::Txid;
use fjall::compaction::Leveled;
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, Readable, Slice, Snapshot};

use super::codec::{self, BlockRow, HistoryRow, ScriptKey, TxRow, TxidPrefix};
use super::error::AddressError;
use super::script_hash::ScriptHash;
use super::transactions::Transactions;

/// What a clean end leaves in the journal has to be read again on opening, so there mustn't be too much of it.
const JOURNAL: u64 = 256 << 20;

/// So many new tables are merged into the old ones. A history is looked for in each of them, so there had better be few.
const RUNS: u8 = 2;

/// Bytes of a table. The first level has this many times [`RUNS`].
const TABLE: u64 = 128 << 20;

/// The tables of one index.
#[derive(Clone)]
pub(super) struct Tables {
    pub(super) dir: PathBuf,
    pub(super) db: Database,
    /// The index's description.
    pub(super) meta: Keyspace,
    /// Height → [`BlockRow`].
    pub(super) blocks: Keyspace,
    /// First bytes of a txid → numbers of the transactions that begin so, ascending.
    pub(super) txids: Keyspace,
    /// Script hash and transaction number → [`HistoryRow`].
    pub(super) history: Keyspace,
    /// Number of the funding transaction and output index → spender.
    pub(super) spends: Keyspace,
    /// Height → script hashes that occur in the block; the latest blocks only.
    pub(super) touched: Keyspace,
    /// Number of a transaction that came again → number of the later one.
    pub(super) superseded: Keyspace,
}

impl Tables {
    pub(super) fn open(dir: &Path, cache: u64) -> Result<Self, AddressError> {
        let fail = |error: fjall::Error| AddressError::store(dir, error);
        // fjall asserts what it expects of its journal, so damage there arrives as a panic.
        let opened = catch_unwind(|| {
            Database::builder(dir)
                .cache_size(cache)
                .max_journaling_size(JOURNAL)
                .manual_journal_persist(true)
                .open()
        });
        let damaged = |_| AddressError::Corrupt {
            dir: dir.to_path_buf(),
            what: "the store's files are damaged".to_owned(),
        };
        let db = opened.map_err(damaged)?.map_err(fail)?;
        let strategy = Leveled::default().with_l0_threshold(RUNS).with_table_target_size(TABLE);
        let strategy = Arc::new(strategy);
        let options = || KeyspaceCreateOptions::default().compaction_strategy(strategy.clone());
        let keyspace = |name| db.keyspace(name, options).map_err(fail);
        Ok(Self {
            dir: dir.to_path_buf(),
            meta: keyspace("meta")?,
            blocks: keyspace("blocks")?,
            txids: keyspace("txids")?,
            history: keyspace("history")?,
            spends: keyspace("spends")?,
            touched: keyspace("touched")?,
            superseded: keyspace("superseded")?,
            db,
        })
    }

    pub(super) fn fail(&self, error: impl Into<fjall::Error>) -> AddressError {
        AddressError::store(&self.dir, error)
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> AddressError {
        AddressError::Corrupt { dir: self.dir.clone(), what: what.into() }
    }

    /// What is committed now; the rows of transactions are those that belong to it.
    pub(super) fn now(&self, transactions: Transactions) -> TablesAt {
        TablesAt { tables: self.clone(), snapshot: self.db.snapshot(), transactions }
    }
}

/// The tables as they were at one commit.
#[derive(Clone)]
pub(super) struct TablesAt {
    pub(super) tables: Tables,
    snapshot: Snapshot,
    transactions: Transactions,
}

impl TablesAt {
    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Slice>, AddressError> {
        self.snapshot.get(keyspace, key).map_err(|error| self.tables.fail(error))
    }

    /// A row decoded by `decode`; `what` names it in errors.
    fn row<T>(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        what: &str,
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, AddressError> {
        let Some(bytes) = self.get(keyspace, key)? else { return Ok(None) };
        decode(&bytes).map(Some).ok_or_else(|| self.tables.corrupt(format!("{what} is damaged")))
    }

    fn pair(&self, guard: Guard) -> Result<(Slice, Slice), AddressError> {
        guard.into_inner().map_err(|error| self.tables.fail(error))
    }

    pub(super) fn block(&self, height: u32) -> Result<Option<BlockRow>, AddressError> {
        let what = format!("the row of the block at height {height}");
        self.row(&self.tables.blocks, &height.to_be_bytes(), &what, BlockRow::decode)
    }

    /// All blocks, ascending.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Result<(u32, BlockRow), AddressError>> + '_ {
        self.blocks_from(0)
    }

    /// The blocks from a height on, ascending.
    pub(super) fn blocks_from(
        &self,
        height: u32,
    ) -> impl Iterator<Item = Result<(u32, BlockRow), AddressError>> + '_ {
        self.snapshot.range(&self.tables.blocks, height.to_be_bytes()..).map(|guard| {
            let (key, value) = self.pair(guard)?;
            let height = key[..].try_into().ok().map(u32::from_be_bytes);
            height
                .zip(BlockRow::decode(&value))
                .ok_or_else(|| self.tables.corrupt("the row of a block is damaged"))
        })
    }

    pub(super) fn transaction(&self, number: u64) -> Result<TxRow, AddressError> {
        let missing = || self.tables.corrupt(format!("the row of transaction {number} is missing"));
        self.transactions.get(number).ok_or_else(missing)
    }

    /// Numbers of the transactions whose ids begin so.
    pub(super) fn numbers(&self, prefix: TxidPrefix) -> Result<Vec<u64>, AddressError> {
        let numbers = self.row(&self.tables.txids, &prefix, "a row of txids", codec::decode_numbers)?;
        Ok(numbers.unwrap_or_default())
    }

    /// Number of the transaction with this id: the last one, where it came twice.
    pub(super) fn find(&self, txid: &Txid) -> Result<Option<u64>, AddressError> {
        for number in self.numbers(codec::txid_prefix(txid))?.into_iter().rev() {
            if self.transaction(number)?.txid == *txid {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// History rows of a script from transaction `from` on, ascending.
    pub(super) fn history(
        &self,
        script: &ScriptKey,
        from: u64,
    ) -> impl Iterator<Item = Result<(u64, HistoryRow), AddressError>> + '_ {
        let keys = codec::history_key(script, from)..=codec::history_key(script, codec::MAX_NUMBER);
        self.snapshot.range(&self.tables.history, keys).map(|guard| {
            let (key, value) = self.pair(guard)?;
            let row = codec::number_of_history(&key)
                .and_then(|number| Some((number, HistoryRow::decode(&value, number)?)));
            row.ok_or_else(|| self.tables.corrupt("a history row is damaged"))
        })
    }

    /// The same, but only the transactions' numbers.
    pub(super) fn history_numbers(
        &self,
        script: &ScriptKey,
    ) -> impl Iterator<Item = Result<u64, AddressError>> + '_ {
        self.snapshot.prefix(&self.tables.history, script).map(|guard| {
            let key = guard.key().map_err(|error| self.tables.fail(error))?;
            codec::number_of_history(&key).ok_or_else(|| self.tables.corrupt("a history row is damaged"))
        })
    }

    /// Every history row of every script: key and row. Takes long.
    pub(super) fn all_history(
        &self,
    ) -> impl Iterator<Item = Result<(Slice, u64, HistoryRow), AddressError>> + '_ {
        self.snapshot.iter(&self.tables.history).map(|guard| {
            let (key, value) = self.pair(guard)?;
            let row = codec::number_of_history(&key)
                .and_then(|number| Some((number, HistoryRow::decode(&value, number)?)));
            let (number, row) = row.ok_or_else(|| self.tables.corrupt("a history row is damaged"))?;
            Ok((key, number, row))
        })
    }

    pub(super) fn spender(&self, funding: u64, vout: u32) -> Result<Option<(u64, u32)>, AddressError> {
        let key = codec::spend_key(funding, vout);
        self.row(&self.tables.spends, &key, "the row of a spent output", codec::decode_spender)
    }

    pub(super) fn touched(&self, height: u32) -> Result<Option<Vec<ScriptHash>>, AddressError> {
        let what = format!("the list of scripts of the block at height {height}");
        self.row(&self.tables.touched, &height.to_be_bytes(), &what, codec::decode_scripts)
    }

    /// Transactions that came again: number → number of the later one.
    pub(super) fn superseded(&self) -> Result<BTreeMap<u64, u64>, AddressError> {
        let rows = self.snapshot.iter(&self.tables.superseded).map(|guard| {
            let (key, value) = self.pair(guard)?;
            codec::number(&key)
                .zip(codec::number(&value))
                .ok_or_else(|| self.tables.corrupt("the row of a repeated transaction is damaged"))
        });
        rows.collect()
    }

    pub(super) fn description(&self) -> Result<Option<Slice>, AddressError> {
        self.get(&self.tables.meta, super::DESCRIPTION)
    }

    /// Generation of the files with the transactions.
    pub(super) fn generation(&self) -> Result<u64, AddressError> {
        let decode = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        Ok(self.row(&self.tables.meta, super::GENERATION, "the generation", decode)?.unwrap_or_default())
    }
}
