//! The tweak index on the disk: append-only columns with one row per eligible transaction, and one record per block.
//!
//! `docs/index-format.md` describes the files byte by byte. One [`TweakIndexWriter`] per directory appends blocks and
//! takes them back on a reorganisation; any number of [`TweakReader`]s, in any process, map the columns.
//!
//! # Readers and rollbacks
//!
//! A [`Snapshot`] is a fixed list of blocks. Blocks appended later don't change its rows. After a rollback the writer
//! does overwrite rows that a snapshot still lists, and nobody is told: a reader works on mapped rows first and then
//! asks [`Snapshot::is_current`]. If the answer is yes, what it read were the rows of its snapshot, and the result
//! counts. If not, it takes a new snapshot; [`Snapshot::common_height`] says up to where earlier results, validated at
//! their time, still hold.
//!
//! Column files are never shortened, so a mapped row stays readable for as long as it is mapped.

mod columns;
mod error;
mod format;
mod reader;
mod record;
mod recover;
mod segment;
mod snapshot;
mod table;
mod verify;
mod writer;

pub use error::StoreError;
pub use format::{DEFAULT_SEGMENT_BITS, FORMAT_VERSION, IndexParams, MAINNET_TAPROOT_HEIGHT};
pub use reader::TweakReader;
pub use record::BlockRecord;
pub use recover::Recovery;
pub use segment::SegmentSlice;
pub use snapshot::Snapshot;
pub use verify::{VerifyProblem, VerifyProgress, VerifyReport, verify};
pub use writer::TweakIndexWriter;

/// Index of the record of the block at `height`, in an index of `count` blocks from `start` on.
fn index_of(height: u32, start: u32, count: u64) -> Result<u64, StoreError> {
    match height.checked_sub(start).map(u64::from) {
        Some(index) if index < count => Ok(index),
        _ => Err(no_such_height(height, start, count)),
    }
}

fn no_such_height(height: u32, start: u32, count: u64) -> StoreError {
    let have = match count.checked_sub(1) {
        Some(last) => format!("covers heights {start} to {}", u64::from(start) + last),
        None => format!("is empty and starts at height {start}"),
    };
    StoreError::NoSuchHeight { height, have }
}
