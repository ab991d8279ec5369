//! What can go wrong with a script-hash index, and what to do about it.

use std::path::{Path, PathBuf};

use bitcoin::BlockHash;

/// Why an operation on the script-hash index failed.
///
/// After an error of an append or a rollback the index is the state after some block, and the call can be tried again,
/// except after [`Poisoned`](Self::Poisoned).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The store or the operating system refused: disk full, permissions, a failing disk, damaged files.
    #[error("{}: {source}; check the disk's space, permissions and health, or build this index again in an empty directory", dir.display())]
    Store {
        /// Directory of the index.
        dir: PathBuf,
        /// What the store said.
        source: Box<fjall::Error>,
    },
    /// The operating system refused to read or write a file: disk full, permissions, a failing disk.
    #[error("{}: {source}; check the disk's space, permissions and health, and the limit of open files", path.display())]
    File {
        /// The file or its directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An earlier write failed, so what was written since can't be trusted.
    #[error("{}: an earlier write to disk failed; fix the disk and start again", .0.display())]
    Poisoned(PathBuf),
    /// Another process has the index open.
    #[error("{} is locked: another peregrine process uses it; stop that process or use another directory", .0.display())]
    Locked(PathBuf),
    /// The directory holds something else, or an index whose description is damaged.
    #[error("{}: {what}; name another directory, or empty this one and index again", dir.display())]
    BadFormat {
        /// Directory of the index.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The index was written by a newer program.
    #[error("{} has format version {found}, this program reads {supported}; use a newer peregrine, or index into an empty directory", dir.display())]
    UnknownVersion {
        /// Directory of the index.
        dir: PathBuf,
        /// Its version.
        found: u32,
        /// The version this program reads.
        supported: u32,
    },
    /// The index was written by an older program, in a format that isn't read any more.
    #[error("{} has format version {found}, this program reads {supported}; delete this directory, and it is built again", dir.display())]
    OldVersion {
        /// Directory of the index.
        dir: PathBuf,
        /// Its version.
        found: u32,
        /// The version this program reads.
        supported: u32,
    },
    /// The index is of another chain or starts elsewhere.
    #[error("{} is an index of {found}, not of {expected}; use one directory per network", dir.display())]
    WrongChain {
        /// Directory of the index.
        dir: PathBuf,
        /// Network and start found.
        found: String,
        /// Network and start expected.
        expected: String,
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
    /// A block contradicts itself.
    #[error("block {hash}: {what}; ask the node for it again")]
    BadBlock {
        /// Hash of the block.
        hash: BlockHash,
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
    /// A script hash has more entries than the caller is willing to take. Nothing is truncated silently.
    #[error("history too large: more than {limit} entries")]
    TooLarge {
        /// The caller's limit.
        limit: usize,
    },
    /// What is stored contradicts itself.
    #[error("{}: {what}; build this index again in an empty directory", dir.display())]
    Corrupt {
        /// Directory of the index.
        dir: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl AddressError {
    /// Wraps an error of a file.
    pub(super) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.to_path_buf(), source }
    }

    /// Wraps an error of the store.
    pub(super) fn store(dir: &Path, error: impl Into<fjall::Error>) -> Self {
        let dir = dir.to_path_buf();
        match error.into() {
            fjall::Error::Locked => Self::Locked(dir),
            fjall::Error::Poisoned => Self::Poisoned(dir),
            source => Self::Store { dir, source: Box::new(source) },
        }
    }
}
