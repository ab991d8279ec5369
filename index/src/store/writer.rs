//! The one writer of an index: appending blocks, flushing them, taking them back.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bitcoin::BlockHash;
use bitcoin::block::Header;

use super::columns::{Column, Layout, RowsHasher, SegmentFiles, check_rows, sync_dir};
use super::error::{IoContext, StoreError};
use super::format::{BLOCKS_FILE, FORMAT_FILE, IndexParams, LOCK_FILE, STATE_FILE, State};
use super::reader::TweakReader;
use super::record::{BlockRecord, RECORD_LEN, Record, encode_header};
use super::recover::{Recovery, recover};
use crate::rows::BlockRows;

/// An index open for writing. There is at most one per directory, in all processes together.
///
/// Appended blocks are visible to readers at once and survive the end of the process, but a power loss may take those
/// that [`sync`](Self::sync) has not covered. How often to sync is the caller's business: rarely during a bulk load, at
/// each block when following the tip.
///
/// Dropping the writer does not sync.
#[derive(Debug)]
pub struct TweakIndexWriter {
    dir: PathBuf,
    params: IndexParams,
    layout: Layout,
    blocks: File,
    state: File,
    /// Held for its lock.
    _lock: File,
    epoch: u64,
    /// Number of blocks, and how many of them are on stable storage.
    count: u64,
    synced: u64,
    tip: Option<Record>,
    /// Outputs that the tip's segment holds, 0 when the next row starts a segment.
    tail_outputs: u32,
    /// Rows from here on may not be on stable storage.
    dirty_from: u64,
    /// Block records were cut off, but neither is that durable nor the epoch raised: no column byte may be written.
    barrier_due: bool,
    /// Columns of the segment written last.
    files: Option<SegmentFiles>,
    poisoned: Option<String>,
    recovery: Recovery,
}

impl TweakIndexWriter {
    /// Makes an empty index in `dir`, which may exist but must not hold one.
    ///
    /// # Errors
    /// [`AlreadyExists`](StoreError::AlreadyExists), [`Locked`](StoreError::Locked),
    /// [`BadParams`](StoreError::BadParams), and what the file system refuses.
    pub fn create(dir: &Path, params: &IndexParams) -> Result<Self, StoreError> {
        params.check()?;
        fs::create_dir_all(dir).at(dir)?;
        let lock = lock(dir)?;
        let exists = |what| Err(StoreError::AlreadyExists { dir: dir.to_path_buf(), what });
        let format = dir.join(FORMAT_FILE);
        if fs::exists(&format).at(&format)? {
            return exists("an index");
        }
        let path = dir.join(BLOCKS_FILE);
        if fs::metadata(&path).is_ok_and(|m| m.len() > 0) {
            return exists("block records without a format file");
        }
        let blocks = open_rw(&path)?;
        let state_path = dir.join(STATE_FILE);
        let state = open_rw(&state_path)?;
        state.set_len(0).at(&state_path)?;
        // A random epoch: a reader of a deleted index in the same place must not take this one for it.
        let epoch = random();
        State { epoch, synced: 0 }.write(&state).at(&state_path)?;
        state.sync_all().at(&state_path)?;
        blocks.sync_all().at(&path)?;
        // The format file is what makes the directory an index, so it comes last and at once.
        let draft = dir.join("format.new");
        File::create(&draft).and_then(|mut f| f.write_all(&params.encode()).and(f.sync_all())).at(&draft)?;
        fs::rename(&draft, &format).at(&format)?;
        sync_dir(dir)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            params: params.clone(),
            layout: Layout { segment_bits: params.segment_bits },
            blocks,
            state,
            _lock: lock,
            epoch,
            count: 0,
            synced: 0,
            tip: None,
            tail_outputs: 0,
            dirty_from: 0,
            barrier_due: false,
            files: None,
            poisoned: None,
            recovery: Recovery::default(),
        })
    }

    /// Opens the index in `dir` and drops what a crash left unfinished at its end; see [`recovery`](Self::recovery).
    ///
    /// `expected` is compared with the files, except for the segment size, which is theirs to say.
    ///
    /// # Errors
    /// [`NotAnIndex`](StoreError::NotAnIndex), [`Locked`](StoreError::Locked),
    /// [`BadFormat`](StoreError::BadFormat), [`UnknownVersion`](StoreError::UnknownVersion),
    /// [`WrongNetwork`](StoreError::WrongNetwork), [`WrongStart`](StoreError::WrongStart), and what the file system
    /// refuses. Damage at the end of the data is not an error, it is cut off.
    pub fn open(dir: &Path, expected: &IndexParams) -> Result<Self, StoreError> {
        IndexParams::read(dir)?.expect(expected, dir)?;
        let lock = lock(dir)?;
        // Again under the lock.
        let params = IndexParams::read(dir)?;
        params.expect(expected, dir)?;

        let path = dir.join(BLOCKS_FILE);
        let blocks = open_rw(&path)?;
        let (state, unreadable) = match State::read_once(dir) {
            Ok(state) => (state, None),
            // Readers may hold any epoch, so the next one is drawn rather than counted, and nothing is taken as synced.
            Err(StoreError::BadState { path, what }) => {
                let why = format!("{} {what}; every block is checked", path.display());
                tracing::warn!("{why}");
                (State { epoch: random(), synced: 0 }, Some(why))
            }
            Err(e) => return Err(e),
        };
        let records = blocks.metadata().at(&path)?.len() / RECORD_LEN as u64;
        let mut recovery = recover(dir, &params, &blocks, records, state.synced)?;
        recovery.reasons.extend(unreadable);
        if recovery.dropped > 0 {
            tracing::warn!(
                dropped = recovery.dropped,
                dropped_synced = recovery.dropped_synced,
                "dropped damaged blocks from the end of {}: {}",
                dir.display(),
                recovery.reasons.join("; ")
            );
        }
        let count = recovery.blocks;
        let mut writer = Self {
            dir: dir.to_path_buf(),
            layout: Layout { segment_bits: params.segment_bits },
            params,
            blocks,
            state: open_rw(&dir.join(STATE_FILE))?,
            _lock: lock,
            epoch: state.epoch,
            count,
            synced: state.synced.min(count),
            tip: None,
            tail_outputs: 0,
            dirty_from: 0,
            barrier_due: true,
            files: None,
            poisoned: None,
            recovery,
        };
        writer.tip = writer.record(count)?;
        writer.tail_outputs = writer.outputs_in_tail(writer.rows())?;
        writer.dirty_from = writer.record(writer.synced)?.map_or(0, |r| r.row_end);
        writer.cut(count)?;
        writer.barrier()?;
        Ok(writer)
    }

    /// [`open`](Self::open), or [`create`](Self::create) where there is no index yet.
    ///
    /// # Errors
    /// Those of the two.
    pub fn open_or_create(dir: &Path, params: &IndexParams) -> Result<Self, StoreError> {
        match Self::open(dir, params) {
            Err(StoreError::NotAnIndex(_)) => Self::create(dir, params),
            other => other,
        }
    }

    /// Adds the block that follows the tip.
    ///
    /// Readers see it when this returns. It is on stable storage after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`NotNext`](StoreError::NotNext) unless `height` is [`next_height`](Self::next_height) and the header names the
    /// tip as its parent; [`BadRows`](StoreError::BadRows) for rows whose columns disagree; what the file system
    /// refuses, such as a full disk. The index is unchanged then, and the append can be repeated.
    pub fn append(&mut self, header: &Header, height: u32, rows: &BlockRows) -> Result<(), StoreError> {
        self.check_poison()?;
        let mut record = Record {
            header: encode_header(header),
            height,
            row_end: self.rows() + rows.len() as u64,
            output_end: self.outputs() + rows.outputs.len() as u64,
            rows_checksum: [0; 16],
        };
        check_rows(height, rows)?;
        record
            .follows(self.tip.as_ref(), self.params.start_height, self.params.genesis)
            .map_err(|what| StoreError::NotNext { height, hash: record.hash(), what })?;
        self.barrier()?;

        let written = self.write_rows(rows);
        let (checksum, tail_outputs) = match written {
            Ok(written) => written,
            Err(e) => {
                // Files that can't be written are opened afresh by the next attempt.
                self.files = None;
                return Err(e);
            }
        };
        record.rows_checksum = checksum;
        if let Err(e) = self.blocks.write_all_at(&record.encode(), self.count * RECORD_LEN as u64) {
            // Part of a record does no harm, as nobody counts it, but tidy up while it is easy.
            let _ = self.blocks.set_len(self.count * RECORD_LEN as u64);
            return Err(e).at(&self.dir.join(BLOCKS_FILE));
        }
        self.count += 1;
        self.tip = Some(record);
        self.tail_outputs = tail_outputs;
        Ok(())
    }

    /// Brings all appended blocks to stable storage: columns, then block records, then the count of synced blocks.
    ///
    /// # Errors
    /// What the file system refuses. As the kernel may drop pages it failed to write, and report success next time, the
    /// blocks since the last sync are taken back and the writer answers [`Poisoned`](StoreError::Poisoned) from then
    /// on; a freshly opened one goes on from the last sync.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.check_poison()?;
        if self.synced == self.count {
            return Ok(());
        }
        let synced = self.sync_all();
        if let Err(e) = &synced {
            self.poisoned = Some(e.to_string());
            // Opening would find these blocks good in the page cache and trust them.
            let _ = self.blocks.set_len(self.synced * RECORD_LEN as u64);
        }
        synced
    }

    fn sync_all(&mut self) -> Result<(), StoreError> {
        let rows = self.rows();
        if self.dirty_from < rows {
            for segment in self.layout.segment_of(self.dirty_from)..self.layout.segments(rows) {
                match &self.files {
                    Some(files) if files.segment == segment => files.sync()?,
                    _ => SegmentFiles::open(&self.dir, segment)?.sync()?,
                }
            }
            sync_dir(&self.dir)?;
        }
        self.blocks.sync_data().at(&self.dir.join(BLOCKS_FILE))?;
        self.synced = self.count;
        self.dirty_from = rows;
        self.write_state()
    }

    /// Takes back all blocks above `height`, or all blocks for `None`.
    ///
    /// Rolling back to the tip does nothing. The rest is durable when this returns; the rows that are gone are
    /// overwritten by later appends only.
    ///
    /// # Errors
    /// [`NoSuchHeight`](StoreError::NoSuchHeight) for a height that is not in the index,
    /// [`Corrupt`](StoreError::Corrupt) when the block at `height` is damaged, and what the file system refuses.
    pub fn rollback_to(&mut self, height: Option<u32>) -> Result<(), StoreError> {
        self.check_poison()?;
        let count = match height {
            Some(height) => self.index_of(height)? + 1,
            None => 0,
        };
        if count == self.count {
            return Ok(());
        }
        // All that has to be read is read first: a failure leaves everything as it was.
        let tip = self.record(count)?;
        let rows = tip.as_ref().map_or(0, |t| t.row_end);
        let tail_outputs = self.outputs_in_tail(rows)?;
        if count < self.synced {
            // Before the cut: a process that is killed in between must not leave a state that claims more records
            // than there are.
            self.synced = count;
            self.write_state()?;
        }
        self.cut(count)?;
        self.count = count;
        self.tip = tip;
        self.tail_outputs = tail_outputs;
        self.dirty_from = self.dirty_from.min(rows);
        self.barrier()
    }

    /// Shortens the file of block records to `count`; the columns stay as they are.
    fn cut(&mut self, count: u64) -> Result<(), StoreError> {
        self.blocks.set_len(count * RECORD_LEN as u64).at(&self.dir.join(BLOCKS_FILE))?;
        self.barrier_due = true;
        Ok(())
    }

    /// What has to happen between cutting records off and overwriting their rows.
    ///
    /// The cut becomes durable first: otherwise a power loss could bring back synced records whose rows are overwritten
    /// already. Then the epoch is raised, which tells readers to drop what they made of those rows.
    fn barrier(&mut self) -> Result<(), StoreError> {
        if !self.barrier_due {
            return Ok(());
        }
        let done = self.blocks.sync_all().at(&self.dir.join(BLOCKS_FILE)).and_then(|()| {
            self.epoch = self.epoch.wrapping_add(1);
            self.write_state()
        });
        match &done {
            Ok(()) => self.barrier_due = false,
            Err(e) => self.poisoned = Some(e.to_string()),
        }
        done
    }

    fn write_state(&self) -> Result<(), StoreError> {
        let path = self.dir.join(STATE_FILE);
        State { epoch: self.epoch, synced: self.synced }.write(&self.state).at(&path)?;
        self.state.sync_all().at(&path)
    }

    /// Writes the rows behind the tip; returns their checksum and the outputs then in the last segment.
    fn write_rows(&mut self, rows: &BlockRows) -> Result<([u8; 16], u32), StoreError> {
        let first = self.rows();
        let mut hasher = RowsHasher::new();
        let mut tail = self.tail_outputs;
        let (mut row, mut output) = (0, 0);
        for part in self.layout.parts(first..first + rows.len() as u64) {
            let files = match self.files.take() {
                Some(files) if files.segment == part.segment => files,
                _ => SegmentFiles::create(&self.dir, part.segment)?,
            };
            let files = self.files.insert(files);
            let range: Range<usize> = row..row + part.len();
            let outputs: usize = rows.output_counts[range.clone()].iter().map(|n| *n as usize).sum();
            let before = if part.start == 0 { 0 } else { tail };
            let bytes = &rows.outputs[output..output + outputs];
            tail = files.write(part, rows, range, bytes, before, &mut hasher)?;
            row += part.len();
            output += outputs;
        }
        let ends_on_border = self.layout.local(first + rows.len() as u64) == 0;
        Ok((hasher.finish(), if ends_on_border { 0 } else { tail }))
    }

    /// Record of the last of `count` blocks; `None` for no blocks.
    fn record(&self, count: u64) -> Result<Option<Record>, StoreError> {
        let Some(index) = count.checked_sub(1) else { return Ok(None) };
        let path = self.dir.join(BLOCKS_FILE);
        match Record::read(&self.blocks, index).at(&path)? {
            Some(record) => Ok(Some(record)),
            None => {
                let height = u64::from(self.params.start_height) + index;
                let what = format!("the record of the block at height {height} is damaged");
                Err(StoreError::Corrupt { path, what })
            }
        }
    }

    /// Outputs in the segment that row `rows` is going to, before that row.
    fn outputs_in_tail(&self, rows: u64) -> Result<u32, StoreError> {
        let local = self.layout.local(rows);
        if local == 0 {
            return Ok(0);
        }
        let files = SegmentFiles::open(&self.dir, self.layout.segment_of(rows))?;
        files.outputs_before(local)?.ok_or_else(|| StoreError::Corrupt {
            path: files.path(Column::OutputEnds),
            what: format!("ends before row {local} of the segment"),
        })
    }

    fn check_poison(&self) -> Result<(), StoreError> {
        match &self.poisoned {
            Some(cause) => Err(StoreError::Poisoned { dir: self.dir.clone(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn index_of(&self, height: u32) -> Result<u64, StoreError> {
        super::index_of(height, self.params.start_height, self.count)
    }

    /// What the index is of; the segment size is that of the files.
    pub fn params(&self) -> &IndexParams {
        &self.params
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What [`open`](Self::open) had to drop.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Height and hash of the last block; `None` while there is none.
    pub fn tip(&self) -> Option<(u32, BlockHash)> {
        self.tip.as_ref().map(|t| (t.height, t.hash()))
    }

    /// Height of the block to append next.
    pub fn next_height(&self) -> u32 {
        self.tip.as_ref().map_or(self.params.start_height, |t| t.height.saturating_add(1))
    }

    /// The block at a height, read from the disk.
    ///
    /// # Errors
    /// [`NoSuchHeight`](StoreError::NoSuchHeight), [`Corrupt`](StoreError::Corrupt), and what the file system refuses.
    pub fn block(&self, height: u32) -> Result<BlockRecord, StoreError> {
        let index = self.index_of(height)?;
        let prev = self.record(index)?;
        match self.record(index + 1)? {
            Some(record) => Ok(BlockRecord::new(&record, prev.as_ref())),
            // A count above zero always has a record or an error.
            None => Err(super::no_such_height(height, self.params.start_height, self.count)),
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.count
    }

    /// Number of blocks that are not on stable storage yet.
    pub fn unsynced_blocks(&self) -> u64 {
        self.count - self.synced
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.tip.as_ref().map_or(0, |t| t.row_end)
    }

    /// Number of taproot outputs.
    pub fn outputs(&self) -> u64 {
        self.tip.as_ref().map_or(0, |t| t.output_end)
    }

    /// A reader of the same index, which stays usable after the writer is gone.
    ///
    /// # Errors
    /// Those of [`TweakReader::open`].
    pub fn reader(&self) -> Result<TweakReader, StoreError> {
        TweakReader::open(&self.dir)
    }
}

/// Takes the writer's lock, which the operating system releases when the process ends, however it ends.
fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK_FILE);
    let file = open_rw(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(dir.to_path_buf())),
        Err(TryLockError::Error(e)) => Err(e).at(&path),
    }
}

fn open_rw(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).at(path)
}

/// A number nobody else has drawn, from the randomness that the standard library seeds its hash maps with.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
