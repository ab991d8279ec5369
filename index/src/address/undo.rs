//! Taking blocks back: every row says by its transaction number which block it came with.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use fjall::PersistMode;

use super::GENERATION;
use super::codec::{self, HistoryRow, TxidPrefix};
use super::error::AddressError;
use super::heights::Heights;
use super::tables::TablesAt;
use super::transactions::{TakenBack, TransactionFiles};

/// So many blocks are taken back in one commit, which bounds the memory for it.
const STEP: usize = 64;

/// Removes blocks from the end, at least one and never more than down to `keep`, in one commit, which is on stable storage
/// then. Returns how many blocks are left, and what to go on with in the files of transactions; call it until that is `keep`.
///
/// The lists of the blocks' scripts say where the history rows are. For blocks so deep that their lists are gone, all
/// histories are looked through.
pub(super) fn remove_blocks(
    at: &TablesAt,
    heights: &Heights,
    superseded: &BTreeMap<u64, u64>,
    files: &TransactionFiles,
    keep: usize,
) -> Result<(usize, TakenBack), AddressError> {
    let empty = || at.tables.corrupt("there is no block to take back");
    let last = heights.last().ok_or_else(empty)?;
    let mut scripts = BTreeSet::new();
    let mut taken = 0;
    while taken < STEP.min(heights.len() - keep) {
        let Some(list) = at.touched(last - taken as u32)? else { break };
        scripts.extend(list.iter().map(codec::script_key));
        taken += 1;
    }
    let listed = taken > 0;
    if !listed {
        taken = heights.len() - keep;
        tracing::warn!(blocks = taken, "looking through all histories for blocks that lie deep");
    }
    let first_height = last + 1 - taken as u32;
    let first = heights.numbers(first_height).ok_or_else(empty)?.start;

    let tables = &at.tables;
    // The files that are replaced are removed behind it, so it must not get lost.
    let mut batch = tables.db.batch().durability(Some(PersistMode::SyncAll));
    let spent = |batch: &mut fjall::OwnedWriteBatch, row: &HistoryRow| {
        for spend in &row.spends {
            batch.remove(&tables.spends, codec::spend_key(spend.funding, spend.vout));
        }
    };
    if listed {
        for script in &scripts {
            for row in at.history(script, first) {
                let (number, row) = row?;
                batch.remove(&tables.history, codec::history_key(script, number));
                spent(&mut batch, &row);
            }
        }
    } else {
        for row in at.all_history() {
            let (key, number, row) = row?;
            if number >= first {
                batch.remove(&tables.history, key);
                spent(&mut batch, &row);
            }
        }
    }
    let mut prefixes: BTreeMap<TxidPrefix, Vec<u64>> = BTreeMap::new();
    for number in first..heights.total() {
        let prefix = codec::txid_prefix(&at.transaction(number)?.txid);
        if let Entry::Vacant(entry) = prefixes.entry(prefix) {
            entry.insert(at.numbers(prefix)?);
        }
    }
    for (prefix, mut numbers) in prefixes {
        numbers.retain(|number| *number < first);
        if numbers.is_empty() {
            batch.remove(&tables.txids, prefix);
        } else {
            batch.insert(&tables.txids, prefix, codec::encode_numbers(&numbers));
        }
    }
    for (earlier, _) in superseded.iter().filter(|(_, later)| **later >= first) {
        batch.remove(&tables.superseded, codec::number_key(*earlier));
    }
    for height in first_height..=last {
        batch.remove(&tables.blocks, height.to_be_bytes());
        batch.remove(&tables.touched, height.to_be_bytes());
    }
    let files = files.take_back(first)?;
    batch.insert(&tables.meta, GENERATION, files.generation.to_le_bytes());
    batch.commit().map_err(|error| tables.fail(error))?;
    Ok((heights.len() - taken, files))
}
