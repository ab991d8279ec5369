//! The one writer of an index: appending blocks, committing them, taking them back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bitcoin::consensus::encode::serialize;
use bitcoin::{BlockHash, Txid};
use fjall::PersistMode;
use rayon::prelude::*;

use super::codec::{self, BlockRow, HistoryRow, Spend, TxRow, TxidPrefix};
use super::entries::{BlockEntries, TouchKind};
use super::error::AddressError;
use super::heights::Heights;
use super::params::AddressParams;
use super::pending::{Pending, Recent};
use super::reader::AddressReader;
use super::tables::{Tables, TablesAt};
use super::transactions::{TransactionFiles, Transactions};
use super::undo;
use super::view::{AddressView, header_of};
use super::{DESCRIPTION, TRANSACTIONS_DIR};
use crate::source::BlockWithPrevouts;

/// Bytes of memory for cached parts of tables, unless told otherwise.
pub const DEFAULT_CACHE: u64 = 256 << 20;

/// For so many blocks below the tip, the index keeps the list of their scripts, which serves notifications and makes
/// reorganisations fast. Deeper reorganisations look through all histories.
pub const TOUCHED_BLOCKS: u32 = 1000;

/// So many blocks at most are pending, however few rows they have.
const BATCH_BLOCKS: usize = 500;

/// So many transactions at least are remembered with their numbers, about 60 bytes each.
const RECENT: usize = 1 << 19;

/// A script-hash index open for writing. There is at most one per directory, in all processes together.
///
/// Appended blocks are committed one by one, or many at once, see [`set_batch`](Self::set_batch). A commit is all or
/// nothing, survives the end of the process, and is what readers see; a power loss may take commits that
/// [`sync`](Self::sync) has not covered, the latest first. Dropping the writer drops what is not committed.
pub struct AddressIndexWriter {
    params: AddressParams,
    tables: Tables,
    pub(super) files: TransactionFiles,
    /// As of the last commit.
    committed: TablesAt,
    reader: AddressReader,
    /// With what is pending, like all below.
    heights: Heights,
    tip: Option<(u32, BlockHash)>,
    superseded: Arc<BTreeMap<u64, u64>>,
    pending: Pending,
    recent: Recent<Txid>,
    batch: usize,
    lists_from: u32,
    dirty: bool,
}

impl fmt::Debug for AddressIndexWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressIndexWriter")
            .field("dir", &self.tables.dir)
            .field("tip", &self.tip)
            .finish_non_exhaustive()
    }
}

impl AddressIndexWriter {
    /// Opens the index in `dir`, or makes an empty one where there is none. What was being committed when a process ended
    /// is there as a whole or not at all.
    ///
    /// # Errors
    /// [`Locked`](AddressError::Locked), [`WrongChain`](AddressError::WrongChain),
    /// [`UnknownVersion`](AddressError::UnknownVersion), [`BadFormat`](AddressError::BadFormat),
    /// [`Corrupt`](AddressError::Corrupt), and what the store refuses.
    pub fn open_or_create(dir: &Path, params: &AddressParams) -> Result<Self, AddressError> {
        Self::open_with_cache(dir, params, DEFAULT_CACHE)
    }

    /// The same with so many bytes of memory for cached parts of tables.
    ///
    /// # Errors
    /// Those of [`open_or_create`](Self::open_or_create).
    pub fn open_with_cache(dir: &Path, params: &AddressParams, cache: u64) -> Result<Self, AddressError> {
        let tables = Tables::open(dir, cache)?;
        let committed = tables.now(Transactions::default());
        match committed.description()? {
            Some(bytes) => AddressParams::decode(&bytes, dir)?.expect(params, dir)?,
            None if committed.blocks().next().is_some() => {
                let what = "its description is missing".to_owned();
                return Err(AddressError::BadFormat { dir: dir.to_path_buf(), what });
            }
            None => {
                let mut batch = tables.db.batch().durability(Some(PersistMode::SyncAll));
                batch.insert(&tables.meta, DESCRIPTION, params.encode());
                batch.commit().map_err(|error| tables.fail(error))?;
            }
        }
        let mut heights = Heights::new(params.start_height);
        let mut last = None;
        for block in committed.blocks() {
            let (height, row) = block?;
            if height != heights.next() || row.tx_end <= heights.total() || row.tx_end > codec::MAX_NUMBER {
                return Err(tables
                    .corrupt(format!("the row of the block at height {height} does not fit the others")));
            }
            heights.push(row.tx_end);
            last = Some((height, row));
        }
        let tip = match last {
            Some((height, row)) => Some((height, header_of(&row, &committed)?.1)),
            None => None,
        };
        let files = dir.join(TRANSACTIONS_DIR);
        let files = TransactionFiles::open(&files, heights.total(), committed.generation()?)?;
        let committed = tables.now(files.current());
        let superseded = Arc::new(committed.superseded()?);
        let view = AddressView {
            tables: committed.clone(),
            heights: heights.clone(),
            tip,
            superseded: superseded.clone(),
        };
        Ok(Self {
            params: params.clone(),
            reader: AddressReader::new(view),
            pending: Pending::starting_at(heights.total()),
            recent: Recent::new(RECENT),
            tables,
            files,
            committed,
            heights,
            tip,
            superseded,
            batch: 0,
            lists_from: 0,
            dirty: false,
        })
    }

    /// A reader of this index, which stays usable after the writer is gone.
    pub fn reader(&self) -> AddressReader {
        self.reader.clone()
    }

    /// What the index is of.
    pub fn params(&self) -> &AddressParams {
        &self.params
    }

    /// Height and hash of the last block, committed or not; `None` while there is none.
    pub fn tip(&self) -> Option<(u32, BlockHash)> {
        self.tip
    }

    /// Height of the block to append next.
    pub fn next_height(&self) -> u32 {
        self.heights.next()
    }

    /// Number of blocks, committed or not.
    pub fn blocks(&self) -> u64 {
        self.heights.len() as u64
    }

    /// Hash of the block at a height.
    ///
    /// # Errors
    /// [`NoSuchHeight`](AddressError::NoSuchHeight), and what the store refuses.
    pub fn block_hash(&self, height: u32) -> Result<BlockHash, AddressError> {
        if self.heights.numbers(height).is_none() {
            return Err(self.no_such_height(height));
        }
        let pending = self.pending.blocks.iter().rev().find(|(pending, _)| *pending == height);
        let row = match pending {
            Some((_, row)) => *row,
            None => self.committed.block(height)?.ok_or_else(|| self.no_such_height(height))?,
        };
        Ok(header_of(&row, &self.committed)?.1)
    }

    /// Commits only when at least so many rows have come together; with 0, as at first, after each block. Thousands make
    /// a long catching-up faster.
    pub fn set_batch(&mut self, rows: usize) {
        self.batch = rows;
    }

    /// Tells how high the chain is known to be. Blocks more than [`TOUCHED_BLOCKS`] below get no list of scripts, which
    /// nobody would need.
    pub fn set_goal(&mut self, height: u32) {
        self.lists_from = height.saturating_sub(TOUCHED_BLOCKS);
    }

    /// Adds the block that follows the tip.
    ///
    /// # Errors
    /// [`NotNext`](AddressError::NotNext) unless `height` is [`next_height`](Self::next_height) and the header names the
    /// tip as its parent; [`BadBlock`](AddressError::BadBlock); what the store refuses. The block isn't in the index then.
    pub fn append(&mut self, entries: &BlockEntries, height: u32) -> Result<(), AddressError> {
        let hash = self.check_next(entries, height)?;
        let base = self.heights.total();
        let end = base + entries.len() as u64;
        if entries.is_empty() || end > codec::MAX_NUMBER {
            let what = format!("{} transactions can't follow {base}", entries.len());
            return Err(AddressError::BadBlock { hash, what });
        }
        let (prefixes, superseded) = self.name(&entries.txids, base)?;
        let fundings = self.fundings(entries, base)?;

        // From here on nothing can fail but the commit.
        let pending = &mut self.pending;
        let header = serialize(&entries.header).try_into().unwrap_or([0; 80]);
        pending.blocks.push((height, BlockRow { header, tx_end: end, size: entries.size }));
        for (number, (txid, offset)) in (base..).zip(entries.txids.iter().zip(&entries.offsets)) {
            pending.transactions.push(TxRow { txid: *txid, offset: *offset });
            self.recent.insert(*txid, number);
        }
        pending.prefixes.extend(prefixes);
        for group in entries.touches.chunk_by(|a, b| (a.script, a.position) == (b.script, b.position)) {
            let number = base + u64::from(group[0].position);
            let mut row = HistoryRow::default();
            for touch in group {
                match touch.kind {
                    TouchKind::Funds { vout, value } => row.funds.push((vout, value)),
                    // Unknown only if the output was made below the start of the index.
                    TouchKind::Spends { vin, outpoint } => {
                        if let Some(funding) = fundings.get(&outpoint.txid) {
                            row.spends.push(Spend { funding: *funding, vout: outpoint.vout, vin });
                            let key = codec::spend_key(*funding, outpoint.vout);
                            pending.spends.push((key, codec::encode_spender(number, vin)));
                        }
                    }
                }
            }
            let key = codec::history_key(&codec::script_key(&group[0].script), number);
            pending.history.push((key, row.encode(number)));
        }
        if let Some(stale) = height.checked_sub(TOUCHED_BLOCKS) {
            if pending.touched.first().is_some_and(|(height, _)| *height == stale) {
                pending.touched.remove(0);
            } else {
                pending.stale.push(stale);
            }
        }
        if height >= self.lists_from {
            let mut scripts: Vec<_> = entries.touches.iter().map(|touch| touch.script).collect();
            scripts.dedup();
            pending.touched.push((height, scripts));
        }
        if !superseded.is_empty() {
            pending.superseded.extend(&superseded);
            Arc::make_mut(&mut self.superseded).extend(superseded);
        }
        self.heights.push(end);
        self.tip = Some((height, hash));
        if self.pending.rows() >= self.batch || self.pending.blocks.len() >= BATCH_BLOCKS {
            self.commit()?;
        }
        Ok(())
    }

    /// Computes a block's entries and appends them.
    ///
    /// # Errors
    /// Those of [`BlockEntries::of_block`] and [`append`](Self::append).
    pub fn append_block(&mut self, block: &BlockWithPrevouts, height: u32) -> Result<(), AddressError> {
        self.append(&BlockEntries::of_block(block, height)?, height)
    }

    /// Commits what is pending: readers see it, and it survives the end of the process.
    ///
    /// # Errors
    /// What the store refuses. Everything is still pending then.
    pub fn commit(&mut self) -> Result<(), AddressError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.pending.commit(&self.tables, &mut self.files)?;
        self.pending = Pending::starting_at(self.heights.total());
        self.dirty = true;
        self.publish();
        Ok(())
    }

    /// Commits, and brings all commits to stable storage.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn sync(&mut self) -> Result<(), AddressError> {
        self.commit()?;
        if self.dirty {
            self.tables.db.persist(PersistMode::SyncAll).map_err(|error| self.tables.fail(error))?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Takes back all blocks above `height`, or all blocks for `None`. Goes in steps of some blocks; after a failure or a
    /// kill in between, the index is the state after some block on the way. The rest is durable when this returns.
    ///
    /// # Errors
    /// [`NoSuchHeight`](AddressError::NoSuchHeight) for a height that is not in the index, and what the store refuses.
    pub fn rollback_to(&mut self, height: Option<u32>) -> Result<(), AddressError> {
        let keep = match height {
            Some(height) if self.heights.numbers(height).is_none() => return Err(self.no_such_height(height)),
            Some(height) => (height - self.params.start_height) as usize + 1,
            None => 0,
        };
        self.commit()?;
        while self.heights.len() > keep {
            // Only what is gone may still be remembered, so everything is forgotten first.
            self.recent.clear();
            let (left, files) =
                undo::remove_blocks(&self.committed, &self.heights, &self.superseded, &self.files, keep)?;
            self.files.took_back(files);
            self.heights.truncate(left);
            let total = self.heights.total();
            Arc::make_mut(&mut self.superseded).retain(|_, later| *later < total);
            self.pending = Pending::starting_at(total);
            self.dirty = true;
            self.committed = self.tables.now(self.files.current());
            self.tip = match self.heights.last() {
                Some(last) => Some((last, self.block_hash(last)?)),
                None => None,
            };
            self.publish();
        }
        self.sync()
    }

    fn publish(&mut self) {
        self.committed = self.tables.now(self.files.current());
        self.reader.publish(AddressView {
            tables: self.committed.clone(),
            heights: self.heights.clone(),
            tip: self.tip,
            superseded: self.superseded.clone(),
        });
    }

    fn check_next(&self, entries: &BlockEntries, height: u32) -> Result<BlockHash, AddressError> {
        let hash = entries.header.block_hash();
        let not_next = |what: String| Err(AddressError::NotNext { height, hash, what });
        if height != self.next_height() {
            return not_next(format!("height {} comes next", self.next_height()));
        }
        match self.tip {
            Some((_, tip)) if tip != entries.header.prev_blockhash => {
                not_next(format!("its parent is {}, the tip is {tip}", entries.header.prev_blockhash))
            }
            None if height == 0 && hash != self.params.genesis => {
                not_next(format!("the chain begins with {}", self.params.genesis))
            }
            _ => Ok(hash),
        }
    }

    /// For each prefix of these ids all numbers under it, those of the ids themselves among them, and which transactions
    /// come again in these.
    #[expect(clippy::type_complexity, reason = "used here only")]
    fn name(
        &self,
        txids: &[Txid],
        base: u64,
    ) -> Result<(HashMap<TxidPrefix, Vec<u64>>, Vec<(u64, u64)>), AddressError> {
        let before = txids.par_iter().map(|txid| {
            let prefix = codec::txid_prefix(txid);
            match self.pending.prefixes.get(&prefix) {
                Some(numbers) => Ok(numbers.clone()),
                None => self.committed.numbers(prefix),
            }
        });
        let before: Vec<Vec<u64>> = before.collect::<Result<_, _>>()?;
        let mut prefixes: HashMap<TxidPrefix, Vec<u64>> = HashMap::with_capacity(txids.len());
        let mut superseded = Vec::new();
        for (number, (txid, before)) in (base..).zip(txids.iter().zip(before)) {
            let numbers = prefixes.entry(codec::txid_prefix(txid)).or_insert(before);
            for earlier in numbers.iter().rev() {
                let known = match earlier.checked_sub(base) {
                    Some(here) => txids[here as usize],
                    None => self.txid(*earlier)?,
                };
                if known == *txid {
                    superseded.push((*earlier, number));
                    break;
                }
            }
            numbers.push(number);
        }
        Ok((prefixes, superseded))
    }

    fn txid(&self, number: u64) -> Result<Txid, AddressError> {
        match self.pending.transaction(number) {
            Some(row) => Ok(row.txid),
            None => Ok(self.committed.transaction(number)?.txid),
        }
    }

    /// The numbers of the transactions whose outputs a block spends; those that aren't in the index are missing.
    fn fundings(&self, entries: &BlockEntries, base: u64) -> Result<HashMap<Txid, u64>, AddressError> {
        let here: HashMap<&Txid, u64> = entries.txids.iter().zip(base..).collect();
        let mut found = HashMap::new();
        let mut unknown = HashSet::new();
        for touch in &entries.touches {
            let TouchKind::Spends { outpoint, .. } = touch.kind else { continue };
            let txid = outpoint.txid;
            let known = here.get(&txid).copied().or_else(|| self.recent.get(&txid));
            match known.or_else(|| self.pending.find(&txid)) {
                Some(number) => drop(found.insert(txid, number)),
                None => drop(unknown.insert(txid)),
            }
        }
        let unknown: Vec<Txid> = unknown.into_iter().collect();
        let looked_up: Vec<Option<u64>> =
            unknown.par_iter().map(|txid| self.committed.find(txid)).collect::<Result<_, _>>()?;
        found.extend(unknown.into_iter().zip(looked_up).filter_map(|(txid, number)| Some((txid, number?))));
        Ok(found)
    }

    fn no_such_height(&self, height: u32) -> AddressError {
        AddressError::NoSuchHeight { height, have: self.heights.describe() }
    }
}
