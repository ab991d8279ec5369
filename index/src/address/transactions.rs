//! The rows of transactions: their number says where each lies in a file, so that finding one takes one access and no key.
//!
//! `docs/index-format.md` describes the files. Rows are written, and on stable storage, before the store's batch that counts
//! them is committed; what lies beyond the count is nothing. A row that somebody may read is never overwritten: when blocks
//! are taken back, the file that holds the first row to go is copied up to there under the next generation, and whoever
//! reads an earlier state keeps the file it has.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bitcoin::Txid;
use bitcoin::hashes::Hash;
use memmap2::{Advice, Mmap};

use super::codec::TxRow;
use super::error::AddressError;

/// Bytes of a row.
const ROW: usize = 36;
/// Rows of a file: 36 MiB.
const PER_FILE: u64 = 1 << 20;
/// Bytes of a file.
const LEN: u64 = PER_FILE * ROW as u64;
/// With more files than this (a gigabyte) the system isn't to read around a row: all of them won't stay in memory, so that
/// the neighbours of a row are of no use.
const READ_AROUND: usize = 28;

/// Rows as of one commit, readable in place.
#[derive(Clone, Default)]
pub(super) struct Transactions {
    files: Arc<Vec<Arc<Rows>>>,
}

/// A file of rows.
struct Rows {
    path: PathBuf,
    map: Mmap,
}

impl Transactions {
    /// The row of a transaction; `None` where none was ever written.
    pub(super) fn get(&self, number: u64) -> Option<TxRow> {
        let file = self.files.get((number / PER_FILE) as usize)?;
        let at = (number % PER_FILE) as usize * ROW;
        TxRow::decode(file.map.get(at..at + ROW)?).filter(|row| row.txid != Txid::all_zeros())
    }
}

/// The files open for writing.
pub(super) struct TransactionFiles {
    dir: PathBuf,
    /// Files that are made now are of this one.
    generation: u64,
    current: Transactions,
    last: Option<File>,
}

impl TransactionFiles {
    /// Opens the files that belong to a committed state with `rows` rows, and removes all others.
    pub(super) fn open(dir: &Path, rows: u64, generation: u64) -> Result<Self, AddressError> {
        fs::create_dir_all(dir).map_err(|error| AddressError::file(dir, error))?;
        let mut found = BTreeMap::new();
        let mut others = Vec::new();
        for entry in fs::read_dir(dir).map_err(|error| AddressError::file(dir, error))? {
            let entry = entry.map_err(|error| AddressError::file(dir, error))?;
            let Some((number, of)) = entry.file_name().to_str().and_then(parse_name) else { continue };
            let stale = if of > generation || number >= rows.div_ceil(PER_FILE) {
                Some(of)
            } else {
                found.insert(number, of).map(|before| {
                    found.insert(number, of.max(before));
                    of.min(before)
                })
            };
            others.extend(stale.map(|of| dir.join(name(number, of))));
        }
        let mut files = Vec::new();
        let mut last = None;
        for number in 0..rows.div_ceil(PER_FILE) {
            let Some(of) = found.get(&number) else {
                let what =
                    format!("the file with the transactions from number {} on is missing", number * PER_FILE);
                return Err(AddressError::Corrupt { dir: dir.to_path_buf(), what });
            };
            let path = dir.join(name(number, *of));
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.map_err(|error| AddressError::file(&path, error))?;
            files.push(Arc::new(map(path, &file)?));
            last = Some(file);
        }
        for path in others {
            fs::remove_file(&path).map_err(|error| AddressError::file(&path, error))?;
        }
        for file in &files {
            advise(file, files.len());
        }
        let current = Transactions { files: Arc::new(files) };
        Ok(Self { dir: dir.to_path_buf(), generation, current, last })
    }

    /// What can be read now.
    pub(super) fn current(&self) -> Transactions {
        self.current.clone()
    }

    /// Writes rows from `first` on, which is the committed count; they are on stable storage then.
    pub(super) fn write(&mut self, first: u64, rows: &[TxRow]) -> Result<(), AddressError> {
        let (mut at, mut rest) = (first, rows);
        while !rest.is_empty() {
            let number = at / PER_FILE;
            if number >= self.current.files.len() as u64 {
                self.add(number)?;
            }
            let file = self.last.as_ref().ok_or_else(|| self.gone())?;
            let (now, later) = rest.split_at(rest.len().min((PER_FILE - at % PER_FILE) as usize));
            let bytes: Vec<u8> = now.iter().flat_map(TxRow::encode).collect();
            let written =
                file.write_all_at(&bytes, at % PER_FILE * ROW as u64).and_then(|()| file.sync_data());
            written.map_err(|error| AddressError::file(&self.dir, error))?;
            (at, rest) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    /// Makes files without rows from `keep` on, and says of which generation they are. They count when
    /// [`took_back`](Self::took_back) is called, after the store has committed that generation; until then nothing has
    /// changed.
    pub(super) fn take_back(&self, keep: u64) -> Result<TakenBack, AddressError> {
        let generation = self.generation + 1;
        let mut files = self.current.files.to_vec();
        files.truncate(keep.div_ceil(PER_FILE) as usize);
        let mut last = None;
        let kept = (keep % PER_FILE) as usize * ROW;
        if kept != 0 {
            // Behind them lie rows that others still read, so that a copy is continued instead.
            let old = files.pop().ok_or_else(|| self.gone())?;
            let path = self.dir.join(name(keep / PER_FILE, generation));
            let file = self.create(&path)?;
            let written = file.write_all_at(&old.map[..kept], 0).and_then(|()| file.sync_data());
            written.map_err(|error| AddressError::file(&path, error))?;
            files.push(Arc::new(map(path, &file)?));
            last = Some(file);
        }
        Ok(TakenBack { generation, files, last })
    }

    /// Goes on with what [`take_back`](Self::take_back) made, and removes the files that it replaces.
    pub(super) fn took_back(&mut self, taken: TakenBack) {
        let before = std::mem::replace(&mut self.current, Transactions { files: Arc::new(taken.files) });
        for (number, old) in before.files.iter().enumerate() {
            if self.current.files.get(number).is_none_or(|new| new.path != old.path)
                && let Err(error) = fs::remove_file(&old.path)
            {
                // It isn't used any more, and goes when the index is opened.
                tracing::warn!(file = %old.path.display(), "can't be removed: {error}");
            }
        }
        self.generation = taken.generation;
        self.last = taken.last;
    }

    fn add(&mut self, number: u64) -> Result<(), AddressError> {
        let path = self.dir.join(name(number, self.generation));
        let file = self.create(&path)?;
        let rows = map(path, &file)?;
        let files = Arc::make_mut(&mut self.current.files);
        advise(&rows, files.len() + 1);
        files.push(Arc::new(rows));
        self.last = Some(file);
        Ok(())
    }

    /// A new file of full length, which takes room on the disk only where something is written.
    fn create(&self, path: &Path) -> Result<File, AddressError> {
        let create = || {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
            file.set_len(LEN)?;
            file.sync_all()?;
            File::open(&self.dir)?.sync_all()?;
            Ok(file)
        };
        create().map_err(|error| AddressError::file(path, error))
    }

    fn gone(&self) -> AddressError {
        let what = "rows of transactions that are counted are missing".into();
        AddressError::Corrupt { dir: self.dir.clone(), what }
    }
}

/// What [`TransactionFiles::take_back`] made.
pub(super) struct TakenBack {
    pub(super) generation: u64,
    files: Vec<Arc<Rows>>,
    last: Option<File>,
}

fn name(number: u64, generation: u64) -> String {
    format!("{number:05}-{generation:05}")
}

fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (number, generation) = name.split_once('-')?;
    let digits = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(generation)).then_some(())?;
    Some((number.parse().ok()?, generation.parse().ok()?))
}

/// Maps a file, which has its full length from its beginning on.
fn map(path: PathBuf, file: &File) -> Result<Rows, AddressError> {
    let len = file.metadata().map_err(|error| AddressError::file(&path, error))?.len();
    if len != LEN {
        return Err(AddressError::Corrupt { what: format!("has {len} bytes instead of {LEN}"), dir: path });
    }
    // SAFETY: the file has its full length, checked above, and nobody changes that: the writer, of which there is only one
    // as the store is locked, writes inside it, and makes new files under other names. Bytes that change under the map are
    // those beyond the committed count, which no view looks at: a view counts them only when they were written before it
    // was made, and goes through a lock to whoever reads. Every bit pattern is a row.
    let mapped = unsafe { Mmap::map(file) };
    match mapped {
        Ok(map) => Ok(Rows { path, map }),
        Err(error) => Err(AddressError::file(&path, error)),
    }
}

/// Tells the system how the file is read, when there are so many.
fn advise(rows: &Rows, files: usize) {
    // Only a hint: without it everything works, too.
    if files > READ_AROUND
        && let Err(error) = rows.map.advise(Advice::Random)
    {
        tracing::debug!(file = %rows.path.display(), "no advice: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn row(number: u64, salt: u8) -> TxRow {
        let mut txid = [salt; 32];
        txid[..8].copy_from_slice(&number.to_le_bytes());
        TxRow { txid: Txid::from_byte_array(txid), offset: number as u32 }
    }

    fn rows(numbers: Range<u64>, salt: u8) -> Vec<TxRow> {
        numbers.map(|number| row(number, salt)).collect()
    }

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn rows_lie_over_the_end_of_a_file_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let end = PER_FILE + 3;
        let mut files = TransactionFiles::open(dir.path(), 0, 0).unwrap();
        assert_eq!(files.current().get(0), None);
        files.write(0, &rows(0..5, 1)).unwrap();
        files.write(5, &rows(5..end, 1)).unwrap();
        let check = |rows: &Transactions| {
            for number in [0, 4, 5, PER_FILE - 1, PER_FILE, end - 1] {
                assert_eq!(rows.get(number), Some(row(number, 1)), "{number}");
            }
            assert_eq!(rows.get(end), None);
            assert_eq!(rows.get(2 * PER_FILE), None);
        };
        check(&files.current());
        drop(files);
        check(&TransactionFiles::open(dir.path(), end, 0).unwrap().current());
        // What isn't counted goes.
        let mut files = TransactionFiles::open(dir.path(), PER_FILE, 0).unwrap();
        assert_eq!(names(dir.path()), ["00000-00000"]);
        files.write(PER_FILE, &rows(PER_FILE..end, 1)).unwrap();
        check(&files.current());
        drop(files);
        File::options().write(true).open(dir.path().join("00001-00000")).unwrap().set_len(36).unwrap();
        let error = TransactionFiles::open(dir.path(), end, 0).err().unwrap().to_string();
        assert!(error.contains("36 bytes"), "{error}");
        fs::remove_file(dir.path().join("00000-00000")).unwrap();
        let error = TransactionFiles::open(dir.path(), end, 0).err().unwrap().to_string();
        assert!(error.contains("from number 0 on is missing"), "{error}");
    }

    #[test]
    fn who_reads_an_earlier_state_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let end = PER_FILE + 3;
        let mut files = TransactionFiles::open(dir.path(), 0, 0).unwrap();
        files.write(0, &rows(0..end, 1)).unwrap();
        let before = files.current();
        // A failure in between leaves everything as it was.
        drop(files.take_back(PER_FILE + 1).unwrap());
        files.write(end, &rows(end..end + 1, 1)).unwrap();
        assert_eq!(files.current().get(end), Some(row(end, 1)));
        for keep in [PER_FILE + 1, PER_FILE, 7, 0] {
            let taken = files.take_back(keep).unwrap();
            files.took_back(taken);
            files.write(keep, &rows(keep..end, 2)).unwrap();
            let (after, generation) = (files.current(), files.generation);
            for number in [0, 6, 7, 8, PER_FILE - 1, PER_FILE, PER_FILE + 1, end - 1] {
                assert_eq!(before.get(number), Some(row(number, 1)), "{number}");
                let salt = if number < keep { 1 } else { 2 };
                assert_eq!(after.get(number), Some(row(number, salt)), "{number} after {keep}");
            }
            drop(files);
            files = TransactionFiles::open(dir.path(), end, generation).unwrap();
            assert_eq!(names(dir.path()).len(), 2);
            for number in [0, 6, 7, PER_FILE, end - 1] {
                assert_eq!(files.current().get(number), after.get(number));
            }
        }
        // Killed before the commit: the new generation isn't one.
        let generation = files.generation;
        let kept = files.current();
        drop(files.take_back(5).unwrap());
        drop(files);
        let files = TransactionFiles::open(dir.path(), end, generation).unwrap();
        assert_eq!(files.current().get(5), kept.get(5));
        assert_eq!(names(dir.path()).len(), 2);
        // Killed behind the commit: the old file isn't one any more.
        let taken = files.take_back(5).unwrap();
        let generation = taken.generation;
        drop((files, taken));
        let files = TransactionFiles::open(dir.path(), 5, generation).unwrap();
        assert_eq!(names(dir.path()), [name(0, generation)]);
        assert_eq!(files.current().get(4), kept.get(4));
        assert_eq!(files.current().get(5), None);
    }

    #[test]
    fn other_files_are_left_alone() {
        for odd in ["", "1-2", "00001", "00001-0000x", "00001-00001.tmp", "-00001-00001"] {
            assert_eq!(parse_name(odd), None, "{odd}");
        }
        assert_eq!(parse_name("00012-00345"), Some((12, 345)));
        assert_eq!(parse_name(&name(123_456, 1_234_567)), Some((123_456, 1_234_567)));
    }
}
