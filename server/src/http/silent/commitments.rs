//! What two servers can be compared by: a hash over the tweaks of each block, chained from the start of the index.
//!
//! C(h) = SHA256(C(h − 1) ‖ block hash ‖ SHA256(all tweaks of the block, 33 bytes each, sorted)), with 32 zero bytes before the
//! first block; block hashes in the order in which they are hashed. Kept in `commitments` in the index's folder: 64 bytes for
//! each block, its hash and C(h), so that a block that was taken back is noticed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bitcoin::BlockHash;
use bitcoin::hashes::{Hash, HashEngine, sha256};

use super::super::problem::Problem;
use super::super::web::Web;
use crate::light::{Blocks, SilentBlock};

const ENTRY: u64 = 64;
/// Blocks that one request has computed; the next one goes on.
const AT_ONCE: u32 = 2_000;

pub(crate) struct Commitments {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

/// SHA-256 over the sorted tweaks of a block.
pub(super) fn of_block(block: &SilentBlock) -> [u8; 32] {
    let mut tweaks: Vec<[u8; 33]> = block.rows.iter().map(|row| row.tweak).collect();
    tweaks.sort_unstable();
    sha256::Hash::hash(tweaks.as_flattened()).to_byte_array()
}

fn next(before: &[u8; 32], block: BlockHash, tweaks: &[u8; 32]) -> [u8; 32] {
    let mut engine = sha256::Hash::engine();
    engine.input(before);
    engine.input(block.as_byte_array());
    engine.input(tweaks);
    sha256::Hash::from_engine(engine).to_byte_array()
}

impl Commitments {
    pub(crate) fn new(folder: &std::path::Path) -> Self {
        Self { path: folder.join("commitments"), file: Mutex::new(None) }
    }

    /// C(h) for a height that the index has.
    pub(super) fn at(&self, web: &Web, blocks: &Blocks, height: u32) -> Result<[u8; 32], Problem> {
        let wrong = |error: io::Error| Problem::internal(&format!("{}: {error}", self.path.display()));
        let (start, _) = blocks.heights()?;
        // One after the other: each needs what the others compute.
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &*guard {
            Some(file) => file,
            None => {
                let options =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.path);
                guard.insert(options.map_err(wrong)?)
            }
        };
        let mut count = (file.metadata().map_err(wrong)?.len() / ENTRY) as u32;
        // What is there of the best chain: a block that is has all its ancestors there.
        let is_there = |index: u32| -> Result<bool, Problem> {
            let (hash, _) = entry(file, index).map_err(wrong)?;
            Ok(web.node.height_of(hash)? == Some(start + index))
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_there(middle)? { low = middle + 1 } else { high = middle }
        }
        count = low;
        let wanted = height - start;
        let mut last = match count.checked_sub(1) {
            Some(index) => entry(file, index).map_err(wrong)?.1,
            None => [0; 32],
        };
        let end = (wanted + 1).min(count.saturating_add(AT_ONCE));
        let mut new = Vec::new();
        for index in count..end {
            let block = blocks.at(start + index)?;
            last = next(&last, block.hash, &of_block(&block));
            new.extend(block.hash.to_byte_array());
            new.extend(last);
        }
        if !new.is_empty() {
            file.set_len(u64::from(count) * ENTRY).map_err(wrong)?;
            file.write_all_at(&new, u64::from(count) * ENTRY).map_err(wrong)?;
            (&*file).flush().map_err(wrong)?;
        }
        if end < wanted + 1 {
            let text = format!("computed up to height {}; ask again", start + end - 1);
            return Err(Problem::busy(text, 1));
        }
        Ok(entry(file, wanted).map_err(wrong)?.1)
    }
}

fn entry(file: &File, index: u32) -> io::Result<(BlockHash, [u8; 32])> {
    let mut bytes = [0; ENTRY as usize];
    file.read_exact_at(&mut bytes, u64::from(index) * ENTRY)?;
    let (mut hash, mut commitment) = ([0; 32], [0; 32]);
    hash.copy_from_slice(&bytes[..32]);
    commitment.copy_from_slice(&bytes[32..]);
    Ok((BlockHash::from_byte_array(hash), commitment))
}
