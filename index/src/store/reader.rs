//! Reading an index from any process, without the writer's lock.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::columns::{Layout, Part};
use super::error::{IoContext, StoreError};
use super::format::{BLOCKS_FILE, IndexParams, State};
use super::record::{RECORD_LEN, Record};
use super::recover::BlockChecker;
use super::segment::{Segment, SegmentSlice};
use super::snapshot::Snapshot;
use super::table::Table;

/// How often a snapshot is begun anew because a rollback came in between.
const TRIES: u32 = 1000;

/// An index open for reading. Clones share what is mapped and read already.
#[derive(Clone, Debug)]
pub struct TweakReader {
    shared: Arc<Shared>,
}

/// What all snapshots of a reader share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) params: IndexParams,
    pub(super) layout: Layout,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Epoch in which `table` was read.
    epoch: Option<u64>,
    table: Table,
    segments: HashMap<u64, Arc<Segment>>,
}

impl TweakReader {
    /// Opens the index in `dir`. Needs read permission only and writes nothing.
    ///
    /// # Errors
    /// [`NotAnIndex`](StoreError::NotAnIndex), [`BadFormat`](StoreError::BadFormat),
    /// [`UnknownVersion`](StoreError::UnknownVersion), and what the file system refuses.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let params = IndexParams::read(dir)?;
        let layout = Layout { segment_bits: params.segment_bits };
        let cache = Mutex::new(Cache::default());
        Ok(Self { shared: Arc::new(Shared { dir: dir.to_path_buf(), params, layout, cache }) })
    }

    /// What the index is of.
    pub fn params(&self) -> &IndexParams {
        &self.shared.params
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// The blocks that are in the index now. The first call reads all block records, later ones only new records.
    ///
    /// Blocks that the writer has not synced yet are checked against their checksums once per reader, as they may also
    /// be what a power loss has left; the snapshot ends before the first damaged one.
    ///
    /// # Errors
    /// [`BadState`](StoreError::BadState) and [`Corrupt`](StoreError::Corrupt) for files that a writer has to repair,
    /// [`Busy`](StoreError::Busy) after a thousand rollbacks in a row, and what the file system refuses.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let shared = &self.shared;
        let mut cache = shared.lock_cache();
        for _ in 0..TRIES {
            let before = State::read(&shared.dir)?;
            let mut table = cache.table.clone();
            let complete = shared.update(&mut table, cache.epoch == Some(before.epoch), before.synced);
            // Whatever went wrong was not necessarily wrong if a rollback came in between.
            if State::read(&shared.dir)?.epoch != before.epoch {
                continue;
            }
            if !complete? {
                continue;
            }
            if cache.epoch != Some(before.epoch) {
                cache.segments.clear();
            }
            cache.epoch = Some(before.epoch);
            cache.table = table.clone();
            return Ok(Snapshot::new(Arc::clone(shared), before.epoch, table));
        }
        Err(StoreError::Busy { dir: shared.dir.clone(), tries: TRIES })
    }
}

impl Shared {
    fn lock_cache(&self) -> MutexGuard<'_, Cache> {
        // The cache is replaced in whole values, so a panic in another thread leaves nothing half done.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn epoch(&self) -> Result<u64, StoreError> {
        State::read(&self.dir).map(|s| s.epoch)
    }

    /// Brings the table to the state of the file. `false` when the file shrank meanwhile.
    fn update(&self, table: &mut Table, same_epoch: bool, synced: u64) -> Result<bool, StoreError> {
        let path = self.dir.join(BLOCKS_FILE);
        let blocks = match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::Corrupt { path, what: "is missing".into() });
            }
            other => other.at(&path)?,
        };
        let count = blocks.metadata().at(&path)?.len() / RECORD_LEN as u64;
        let keep = if same_epoch {
            (table.len() as u64).min(count)
        } else {
            common(table, &blocks, count).at(&path)?
        };
        table.truncate(keep as usize);
        let mut checker = BlockChecker::new(&self.dir, &self.params);
        for index in keep..count {
            let checked = match Record::read(&blocks, index).at(&path)? {
                None if blocks.metadata().at(&path)?.len() < (index + 1) * RECORD_LEN as u64 => {
                    return Ok(false);
                }
                None => Err("its record has a wrong checksum".to_owned()),
                Some(record) => {
                    let checked = if index < synced {
                        record.follows(table.last(), self.params.start_height, self.params.genesis)
                    } else {
                        checker.check(&record, table.last())?
                    };
                    checked.map(|()| record)
                }
            };
            match checked {
                Ok(record) => table.push(record),
                Err(_) if index >= synced => break,
                Err(what) => {
                    let height = u64::from(self.params.start_height) + index;
                    return Err(StoreError::Corrupt {
                        path,
                        what: format!("block at height {height}: {what}"),
                    });
                }
            }
        }
        Ok(true)
    }

    /// The slice of mapped columns that `part` names.
    pub(super) fn slice(&self, part: Part) -> Result<SegmentSlice, StoreError> {
        SegmentSlice::new(self.segment(part)?, part)
    }

    /// The segment of `part`, mapped at least up to its end.
    fn segment(&self, part: Part) -> Result<Arc<Segment>, StoreError> {
        if let Some(segment) = self.lock_cache().segments.get(&part.segment)
            && segment.covers(part.end)
        {
            return Ok(Arc::clone(segment));
        }
        let segment = Arc::new(Segment::map(&self.dir, part.segment, 1 << self.layout.segment_bits)?);
        if !segment.covers(part.end) {
            return Err(segment.too_short(part.end));
        }
        self.lock_cache().segments.insert(part.segment, Arc::clone(&segment));
        Ok(segment)
    }

    /// Size of all files of the index in bytes.
    pub(super) fn disk_bytes(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).at(&dir)? {
                let entry = entry.at(&dir)?;
                let meta = entry.metadata().at(&entry.path())?;
                if meta.is_dir() {
                    dirs.push(entry.path());
                } else {
                    bytes += meta.len();
                }
            }
        }
        Ok(bytes)
    }
}

/// How many records at the start of the table are still those of the file: records chain, so that an equal record has
/// equal ancestors.
fn common(table: &Table, blocks: &File, count: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, (table.len() as u64).min(count));
    while low < high {
        let middle = low + (high - low) / 2;
        if Record::read(blocks, middle)?.as_ref() == table.get(middle as usize) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}
