//! Mapped column files, and the slices of them that a scan works on.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use super::columns::{Column, META_LEN, Part, decode_meta, segment_dir};
use super::error::{IoContext, StoreError};
use crate::rows::RowMeta;

/// The mapped columns of one segment, as far as the files reached when they were mapped.
#[derive(Debug)]
pub(super) struct Segment {
    dir: PathBuf,
    maps: [Option<Mmap>; 5],
    /// Rows that every row column has.
    rows: u32,
}

impl Segment {
    /// Maps the columns of a segment that can have `max_rows` rows.
    pub(super) fn map(root: &Path, segment: u64, max_rows: u32) -> Result<Self, StoreError> {
        let dir = segment_dir(root, segment);
        let mut maps = [const { None }; 5];
        let mut rows = u64::from(max_rows);
        for column in Column::ALL {
            let path = dir.join(column.file_name());
            let map = match File::open(&path) {
                Ok(file) => map(&file).at(&path)?,
                // Reported as too short when somebody needs the rows.
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e).at(&path),
            };
            if column != Column::Outputs {
                let len = map.as_ref().map_or(0, |m| m.len() / column.width());
                rows = rows.min(len as u64);
            }
            maps[column as usize] = map;
        }
        Ok(Self { dir, maps, rows: rows as u32 })
    }

    /// Whether the maps reach far enough for the first `rows` rows and their outputs.
    pub(super) fn covers(&self, rows: u32) -> bool {
        rows <= self.rows && self.output_end(rows) as usize <= self.column::<8>(Column::Outputs).len()
    }

    /// Error for a segment that [`covers`](Self::covers) too few rows although it was mapped just now.
    pub(super) fn too_short(&self, rows: u32) -> StoreError {
        for column in Column::ALL {
            let need = match column {
                Column::Outputs => u64::from(self.output_end(rows.min(self.rows))),
                _ => u64::from(rows),
            };
            let need = need * column.width() as u64;
            let have = self.maps[column as usize].as_ref().map_or(0, |m| m.len() as u64);
            if have < need {
                let path = self.dir.join(column.file_name());
                let what = format!("has {have} bytes, but the block records need {need}");
                return StoreError::Corrupt { path, what };
            }
        }
        StoreError::Corrupt { path: self.dir.clone(), what: "changed while it was being read".into() }
    }

    fn column<const N: usize>(&self, column: Column) -> &[[u8; N]] {
        debug_assert_eq!(column.width(), N);
        self.maps[column as usize].as_ref().map_or(&[], |m| m.as_chunks::<N>().0)
    }

    /// Outputs of the first `rows` rows, as the file says; 0 beyond its end.
    fn output_end(&self, rows: u32) -> u32 {
        let ends = self.column::<4>(Column::OutputEnds);
        rows.checked_sub(1).and_then(|r| ends.get(r as usize)).map_or(0, |e| u32::from_le_bytes(*e))
    }
}

/// Maps a whole file; `None` for an empty one, which can't be mapped.
fn map(file: &File) -> io::Result<Option<Mmap>> {
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the mapping has the length that the file has now, and nobody shortens a column file: the writer only ever
    // writes into it and makes it longer, so that no access lies beyond its end. Another process, the writer, may
    // overwrite mapped bytes, though only those of rows it has taken back, or lying beyond the end of every snapshot.
    // Every bit pattern is a value of the byte arrays read from the map; values that decide about bounds (the output
    // counts) are copied before they are checked and are never read from the map again; and whatever was computed from
    // overwritten bytes is thrown away, because the writer raises the epoch before it overwrites and a reader
    // checks the epoch after it has read.
    unsafe { Mmap::map(file) }.map(Some)
}

/// Consecutive rows of one segment, readable in place.
///
/// The slice keeps the mapping alive and can be sent to other threads. What it shows are the rows of its snapshot as
/// long as [`Snapshot::is_current`](super::Snapshot::is_current) says so *after* the reading.
#[derive(Clone, Debug)]
pub struct SegmentSlice {
    segment: Arc<Segment>,
    number: u32,
    part: Part,
    outputs_base: u32,
    output_ends: Vec<u32>,
}

impl SegmentSlice {
    /// Checks that the rows of `part` and their outputs lie inside the maps.
    pub(super) fn new(segment: Arc<Segment>, part: Part) -> Result<Self, StoreError> {
        let corrupt = |what: String| StoreError::Corrupt {
            path: segment.dir.join(Column::OutputEnds.file_name()),
            what,
        };
        if part.end > segment.rows {
            return Err(segment.too_short(part.end));
        }
        let number =
            u32::try_from(part.segment).map_err(|_| corrupt("the segment's number is too large".into()))?;
        // A copy, because a writer may overwrite the file between this check and the use of what was checked. It costs
        // four bytes per row against the hundred that a scan reads.
        let outputs_base = segment.output_end(part.start);
        let ends = &segment.column::<4>(Column::OutputEnds)[part.start as usize..part.end as usize];
        let output_ends: Vec<u32> = ends.iter().map(|e| u32::from_le_bytes(*e)).collect();
        let mut before = outputs_base;
        for (row, end) in output_ends.iter().enumerate() {
            if *end < before {
                return Err(corrupt(format!(
                    "its counts fall at row {} of the segment",
                    part.start as usize + row
                )));
            }
            before = *end;
        }
        let outputs = segment.column::<8>(Column::Outputs).len();
        if before as usize > outputs {
            return Err(corrupt(format!(
                "row {} of the segment ends at output {before}, but there are {outputs}",
                part.end
            )));
        }
        Ok(Self { segment, number, part, outputs_base, output_ends })
    }

    /// Number of the segment.
    pub fn segment(&self) -> u32 {
        self.number
    }

    /// Number of the first row, counted over the whole index.
    pub fn first_row(&self) -> u64 {
        self.part.first_row
    }

    /// Row numbers of the slice, counted over the whole index.
    pub fn rows(&self) -> Range<u64> {
        self.part.first_row..self.part.first_row + self.part.len() as u64
    }

    /// Position of the rows inside their segment.
    pub fn local_rows(&self) -> Range<u32> {
        self.part.start..self.part.end
    }

    /// Number of rows; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.part.len()
    }

    /// Tweak point of each row: affine x then y, 32 bytes each, little-endian.
    pub fn points(&self) -> &[[u8; 64]] {
        self.rows_of(Column::Points)
    }

    /// For each row, the number of outputs of the segment up to and including it; never falling.
    pub fn output_ends(&self) -> &[u32] {
        &self.output_ends
    }

    /// Number of outputs of the segment before the first row.
    pub fn outputs_base(&self) -> u32 {
        self.outputs_base
    }

    /// First 8 bytes of the x-only key of each taproot output of all rows. Those of row `i` are
    /// `outputs()[end(i - 1)..end(i)]` with `end(i) = output_ends()[i] - outputs_base()` and `end(-1) = 0`.
    pub fn outputs(&self) -> &[[u8; 8]] {
        let end = self.output_ends.last().copied().unwrap_or(self.outputs_base);
        &self.segment.column(Column::Outputs)[self.outputs_base as usize..end as usize]
    }

    /// Outputs of one row; empty for a row that the slice does not have.
    pub fn outputs_of(&self, row: usize) -> &[[u8; 8]] {
        let Some(end) = self.output_ends.get(row) else { return &[] };
        let start = row.checked_sub(1).map_or(self.outputs_base, |r| self.output_ends[r]);
        &self.segment.column(Column::Outputs)[start as usize..*end as usize]
    }

    /// Transaction id of each row in internal byte order, the reverse of the displayed one.
    pub fn txids(&self) -> &[[u8; 32]] {
        self.rows_of(Column::Txids)
    }

    /// What filters need to know of a row; `None` for a row that the slice does not have.
    pub fn meta(&self, row: usize) -> Option<RowMeta> {
        self.rows_of::<META_LEN>(Column::Meta).get(row).map(decode_meta)
    }

    fn rows_of<const N: usize>(&self, column: Column) -> &[[u8; N]] {
        // In range since `new` compared the part with the rows that all columns have.
        &self.segment.column(column)[self.part.start as usize..self.part.end as usize]
    }
}
