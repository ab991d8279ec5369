//! What can go wrong with a tweak index, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use bitcoin::BlockHash;

/// Why an operation on the tweak index failed.
///
/// After an error of [`TweakIndexWriter::append`](super::TweakIndexWriter::append) or
/// [`rollback_to`](super::TweakIndexWriter::rollback_to) the index is still consistent, and the call can be tried
/// again; only [`Poisoned`](Self::Poisoned) asks for reopening.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused an operation on a file: disk full, permissions, a failing disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The directory holds no tweak index.
    #[error("{} holds no tweak index; index a chain into it first, or name another directory", .0.display())]
    NotAnIndex(PathBuf),
    /// A new index was asked for where one, or the remains of one, already is.
    #[error("{} already holds {what}; open it, or name an empty directory", dir.display())]
    AlreadyExists {
        /// The directory.
        dir: PathBuf,
        /// What was found there.
        what: &'static str,
    },
    /// Another writer has the index open.
    #[error(
        "{} is locked: another peregrine process is indexing into it; stop that process or use another directory",
        .0.display()
    )]
    Locked(PathBuf),
    /// The `format` file is not one that this program can have written.
    #[error("{}: {what}; restore the file from a copy, or index into an empty directory", path.display())]
    BadFormat {
        /// The `format` file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The index was written by a newer program.
    #[error(
        "{} has format version {found}, this program reads up to {supported}; use a newer peregrine, \
         or index into an empty directory",
        path.display()
    )]
    UnknownVersion {
        /// The `format` file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// The index belongs to another chain.
    #[error("{} is an index of the network {found}, not of {expected}; use one directory per network", dir.display())]
    WrongNetwork {
        /// The directory.
        dir: PathBuf,
        /// Network found: its magic in hexadecimal and its genesis block.
        found: String,
        /// Network expected, likewise.
        expected: String,
    },
    /// The index starts at another height than asked for.
    #[error(
        "{} starts at height {found}, not at {expected}; ask for {found}, or index into an empty directory",
        dir.display()
    )]
    WrongStart {
        /// The directory.
        dir: PathBuf,
        /// First height of the index.
        found: u32,
        /// First height asked for.
        expected: u32,
    },
    /// Parameters no index can have.
    #[error("{0}")]
    BadParams(String),
    /// The `state` file can't be read; a writer rebuilds it when it opens the index.
    #[error("{}: {what}; open the index for writing once (`peregrine index`), which rebuilds the file", path.display())]
    BadState {
        /// The `state` file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A block that does not follow the tip was appended.
    #[error("block {hash} at height {height} does not follow the tip of the index: {what}")]
    NotNext {
        /// Height given with the block.
        height: u32,
        /// Hash of the block.
        hash: BlockHash,
        /// Why it does not follow.
        what: String,
    },
    /// The rows of an appended block contradict themselves.
    #[error("the rows of the block at height {height} are inconsistent: {what}")]
    BadRows {
        /// Height of the block.
        height: u32,
        /// What does not fit.
        what: String,
    },
    /// A height outside the index was asked for.
    #[error("height {height} is not in the index, which {have}")]
    NoSuchHeight {
        /// The height asked for.
        height: u32,
        /// What the index holds, in words.
        have: String,
    },
    /// Rows beyond the end of a snapshot were asked for.
    #[error("rows {start}..{end} are not in the snapshot, which has {rows} rows")]
    NoSuchRows {
        /// First row asked for.
        start: u64,
        /// One past the last row asked for.
        end: u64,
        /// Rows in the snapshot.
        rows: u64,
    },
    /// Bytes on the disk are not what was written.
    #[error("{}: {what}; run `peregrine verify`, then index again from the damaged height", path.display())]
    Corrupt {
        /// The damaged file or directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The snapshot's rows were rolled back; take a new snapshot and repeat what the old one was used for.
    #[error("the chain was reorganised under this snapshot of {}; take a new snapshot", .0.display())]
    Outdated(PathBuf),
    /// Writers changed the index each time a snapshot was being taken.
    #[error("{} changed during each of {tries} attempts to read it; try again", dir.display())]
    Busy {
        /// The directory.
        dir: PathBuf,
        /// How many attempts were made.
        tries: u32,
    },
    /// A flush failed earlier, so the kernel may have dropped written pages.
    #[error(
        "{}: an earlier flush to disk failed ({cause}), so what was written since can't be trusted; \
         fix the disk and open the index again",
        dir.display()
    )]
    Poisoned {
        /// The directory.
        dir: PathBuf,
        /// The first failure.
        cause: String,
    },
}

/// Turns an [`io::Error`] into a [`StoreError`] that names the file.
pub(super) trait IoContext<T> {
    /// Adds the path to an error.
    fn at(self, path: &Path) -> Result<T, StoreError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { path: path.to_path_buf(), source })
    }
}
