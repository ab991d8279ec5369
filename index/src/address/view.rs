//! Questions to the index as it was after one block.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bitcoin::block::Header;
use bitcoin::consensus::encode::deserialize;
use bitcoin::{BlockHash, OutPoint, Txid};
use rayon::prelude::*;

use super::codec::{BlockRow, TxRow, script_key};
use super::error::AddressError;
use super::heights::Heights;
use super::script_hash::ScriptHash;
use super::tables::TablesAt;

/// From so many transactions on, their rows are read by several threads.
const PARALLEL: usize = 512;

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxPosition {
    /// Height of its block.
    pub height: u32,
    /// Position in the block; the coinbase is 0.
    pub position: u32,
}

/// A transaction that pays to a script or spends from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryEntry {
    /// Height of its block.
    pub height: u32,
    /// Position in the block.
    pub position: u32,
    /// Its id.
    pub txid: Txid,
}

/// An output that isn't spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnspentOutput {
    /// Height of the block of its transaction.
    pub height: u32,
    /// Position of the transaction in the block.
    pub position: u32,
    /// Id of the transaction.
    pub txid: Txid,
    /// Index of the output.
    pub vout: u32,
    /// Satoshi.
    pub value: u64,
}

/// The input that spends an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spender {
    /// Height of the block of the spending transaction.
    pub height: u32,
    /// Position of the transaction in the block.
    pub position: u32,
    /// Id of the transaction.
    pub txid: Txid,
    /// Index of the input.
    pub vin: u32,
}

/// Where the bytes of a transaction are: what `/rest/blockpart/<hash>.bin?offset=&size=` wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLocation {
    /// Id of the transaction.
    pub txid: Txid,
    /// Hash of the block.
    pub block: BlockHash,
    /// Bytes from the beginning of the serialized block to the transaction.
    pub offset: u32,
    /// Bytes of the serialized transaction, with its witnesses.
    pub size: u32,
}

/// Sums over all outputs that ever paid to a script, in satoshi.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Transactions that pay to the script or spend from it.
    pub transactions: u64,
    /// Number of outputs.
    pub funded_outputs: u64,
    /// Their values.
    pub funded: u64,
    /// Number of those that are spent.
    pub spent_outputs: u64,
    /// Their values.
    pub spent: u64,
}

impl Balance {
    /// What is left.
    pub fn unspent(&self) -> u64 {
        self.funded.saturating_sub(self.spent)
    }
}

/// A block of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressBlock {
    /// Its height.
    pub height: u32,
    /// Its hash.
    pub hash: BlockHash,
    /// Its header.
    pub header: Header,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes when serialized, with witnesses.
    pub size: u32,
}

/// The index after one block. All answers fit together, and don't change.
///
/// Errors of all methods: [`Store`](AddressError::Store) and [`Corrupt`](AddressError::Corrupt), and those that they name.
#[derive(Clone)]
pub struct AddressView {
    pub(super) tables: TablesAt,
    pub(super) heights: Heights,
    pub(super) tip: Option<(u32, BlockHash)>,
    /// Numbers of transactions that came again, and of the later ones.
    pub(super) superseded: Arc<BTreeMap<u64, u64>>,
}

impl fmt::Debug for AddressView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressView").field("tip", &self.tip).finish_non_exhaustive()
    }
}

/// Header and hash of a block's row.
pub(super) fn header_of(row: &BlockRow, tables: &TablesAt) -> Result<(Header, BlockHash), AddressError> {
    let header: Header =
        deserialize(&row.header).map_err(|_| tables.tables.corrupt("the header of a block is damaged"))?;
    Ok((header, header.block_hash()))
}

impl AddressView {
    /// Height and hash of the last block; `None` while there is none.
    pub fn tip(&self) -> Option<(u32, BlockHash)> {
        self.tip
    }

    /// Number of transactions.
    pub fn transactions(&self) -> u64 {
        self.heights.total()
    }

    /// The block at a height; `None` outside the index.
    pub fn block(&self, height: u32) -> Result<Option<AddressBlock>, AddressError> {
        let Some(numbers) = self.heights.numbers(height) else { return Ok(None) };
        let row = self.block_row(height)?;
        let (header, hash) = header_of(&row, &self.tables)?;
        let transactions = (numbers.end - numbers.start) as u32;
        Ok(Some(AddressBlock { height, hash, header, transactions, size: row.size }))
    }

    /// Headers of the blocks from a height on, ascending.
    pub fn headers(&self, from: u32) -> impl Iterator<Item = Result<(u32, Header), AddressError>> + '_ {
        self.tables.blocks_from(from).map(|block| {
            let (height, row) = block?;
            Ok((height, header_of(&row, &self.tables)?.0))
        })
    }

    /// Number of transactions of the block at a height; `None` outside the index.
    pub fn transactions_in_block(&self, height: u32) -> Option<u32> {
        self.heights.numbers(height).map(|numbers| (numbers.end - numbers.start) as u32)
    }

    /// Ids of a block's transactions in order; `None` outside the index.
    pub fn txids_of_block(&self, height: u32) -> Result<Option<Vec<Txid>>, AddressError> {
        let Some(numbers) = self.heights.numbers(height) else { return Ok(None) };
        let txids = numbers.map(|number| Ok(self.tables.transaction(number)?.txid));
        txids.collect::<Result<_, _>>().map(Some)
    }

    /// Every confirmed transaction that pays to the script or spends from it, by height, then position in the block.
    ///
    /// # Errors
    /// [`TooLarge`](AddressError::TooLarge) when there are more than `limit`.
    pub fn history(&self, script: &ScriptHash, limit: usize) -> Result<Vec<HistoryEntry>, AddressError> {
        let mut numbers = Vec::new();
        for number in self.tables.history_numbers(&script_key(script)) {
            let number = number?;
            if self.superseded.contains_key(&number) {
                continue;
            }
            if numbers.len() >= limit {
                return Err(AddressError::TooLarge { limit });
            }
            numbers.push(number);
        }
        self.resolve(&numbers, |number| *number, |_, entry| entry)
    }

    /// Outputs of the script that no confirmed transaction spends, by height, position and index.
    ///
    /// # Errors
    /// [`TooLarge`](AddressError::TooLarge) when the script has more than `limit` transactions.
    pub fn unspent(&self, script: &ScriptHash, limit: usize) -> Result<Vec<UnspentOutput>, AddressError> {
        let (unspent, _) = self.outputs(script, limit)?;
        let unspent: Vec<(u64, u32, u64)> =
            unspent.into_iter().map(|((number, vout), value)| (number, vout, value)).collect();
        self.resolve(
            &unspent,
            |(number, ..)| *number,
            |(_, vout, value), entry| UnspentOutput {
                height: entry.height,
                position: entry.position,
                txid: entry.txid,
                vout: *vout,
                value: *value,
            },
        )
    }

    /// Sums over the script's confirmed outputs.
    ///
    /// # Errors
    /// [`TooLarge`](AddressError::TooLarge) when the script has more than `limit` transactions.
    pub fn balance(&self, script: &ScriptHash, limit: usize) -> Result<Balance, AddressError> {
        Ok(self.outputs(script, limit)?.1)
    }

    /// Where a transaction is; `None` if it isn't in the index.
    pub fn transaction_position(&self, txid: &Txid) -> Result<Option<TxPosition>, AddressError> {
        self.tables.find(txid)?.map(|number| self.position(number)).transpose()
    }

    /// Where the transaction is that makes an output. Whether it has that many outputs is not said.
    pub fn funder(&self, outpoint: &OutPoint) -> Result<Option<TxPosition>, AddressError> {
        self.transaction_position(&outpoint.txid)
    }

    /// Which input spends an output; `None` if none does, or if the output isn't in the index.
    pub fn spender(&self, outpoint: &OutPoint) -> Result<Option<Spender>, AddressError> {
        let Some(funding) = self.tables.find(&outpoint.txid)? else { return Ok(None) };
        let Some((number, vin)) = self.tables.spender(funding, outpoint.vout)? else { return Ok(None) };
        let entry = self.entry(number)?;
        Ok(Some(Spender { height: entry.height, position: entry.position, txid: entry.txid, vin }))
    }

    /// Id of the transaction at a position of a block; `None` if there is none.
    pub fn txid_at(&self, height: u32, position: u32) -> Result<Option<Txid>, AddressError> {
        let number = self.number_at(height, position);
        number.map(|number| Ok(self.tables.transaction(number)?.txid)).transpose()
    }

    /// Where the bytes of the transaction at a position of a block are; `None` if there is none.
    pub fn location(&self, height: u32, position: u32) -> Result<Option<TxLocation>, AddressError> {
        let Some(number) = self.number_at(height, position) else { return Ok(None) };
        let TxRow { txid, offset } = self.tables.transaction(number)?;
        let block = self.block_row(height)?;
        let end = match self.number_at(height, position + 1) {
            Some(next) => self.tables.transaction(next)?.offset,
            None => block.size,
        };
        let size = end.checked_sub(offset).ok_or_else(|| {
            self.tables.tables.corrupt(format!("transaction {number} ends before it begins"))
        })?;
        Ok(Some(TxLocation { txid, block: header_of(&block, &self.tables)?.1, offset, size }))
    }

    /// The scripts that occur in a block, as output or spent output, sorted. `None` outside the index and for blocks
    /// that lie so deep that nobody is to be notified of them any more.
    ///
    /// A view from before a reorganisation still tells the scripts of the blocks that went.
    pub fn touched(&self, height: u32) -> Result<Option<Vec<ScriptHash>>, AddressError> {
        self.tables.touched(height)
    }

    /// Unspent outputs by (number, index) with their value, and the sums.
    #[expect(clippy::type_complexity, reason = "used here only")]
    fn outputs(
        &self,
        script: &ScriptHash,
        limit: usize,
    ) -> Result<(BTreeMap<(u64, u32), u64>, Balance), AddressError> {
        let mut unspent = BTreeMap::new();
        let mut balance = Balance::default();
        let mut rows = 0;
        for row in self.tables.history(&script_key(script), 0) {
            let (number, row) = row?;
            if self.superseded.contains_key(&number) {
                continue;
            }
            rows += 1;
            if rows > limit {
                return Err(AddressError::TooLarge { limit });
            }
            balance.transactions += 1;
            // Values come from disk: sums that can't be are no reason to panic.
            for (vout, value) in row.funds {
                balance.funded_outputs += 1;
                balance.funded = balance.funded.saturating_add(value);
                unspent.insert((number, vout), value);
            }
            for spend in row.spends {
                // An output of a transaction that came again is missing here if it was spent before that.
                if let Some(value) = unspent.remove(&(spend.funding, spend.vout)) {
                    balance.spent_outputs += 1;
                    balance.spent = balance.spent.saturating_add(value);
                }
            }
        }
        Ok((unspent, balance))
    }

    /// Looks up the transactions of a list of things, in the list's order.
    fn resolve<T: Sync, U: Send>(
        &self,
        list: &[T],
        number: impl Fn(&T) -> u64 + Sync,
        make: impl Fn(&T, HistoryEntry) -> U + Sync,
    ) -> Result<Vec<U>, AddressError> {
        let one = |thing: &T| Ok(make(thing, self.entry(number(thing))?));
        if list.len() < PARALLEL {
            list.iter().map(one).collect()
        } else {
            list.par_iter().map(one).collect()
        }
    }

    fn entry(&self, number: u64) -> Result<HistoryEntry, AddressError> {
        let TxPosition { height, position } = self.position(number)?;
        Ok(HistoryEntry { height, position, txid: self.tables.transaction(number)?.txid })
    }

    fn position(&self, number: u64) -> Result<TxPosition, AddressError> {
        let (height, position) = self.heights.position(number).ok_or_else(|| {
            self.tables.tables.corrupt(format!("a row names transaction {number}, which no block has"))
        })?;
        Ok(TxPosition { height, position })
    }

    fn number_at(&self, height: u32, position: u32) -> Option<u64> {
        let numbers = self.heights.numbers(height)?;
        Some(numbers.start + u64::from(position)).filter(|number| numbers.contains(number))
    }

    fn block_row(&self, height: u32) -> Result<BlockRow, AddressError> {
        self.tables.block(height)?.ok_or_else(|| {
            self.tables.tables.corrupt(format!("the row of the block at height {height} is missing"))
        })
    }
}
