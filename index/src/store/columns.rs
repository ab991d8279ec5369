//! The column files of a segment: where a row lies, how a block's rows are written, hashed and checked.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

use super::error::{IoContext, StoreError};
use super::format::le32;
use crate::rows::{BlockRows, RowMeta};

/// Bytes of one entry of the `meta` column.
pub(super) const META_LEN: usize = 12;
/// Bytes read at once while checking rows.
const CHUNK: usize = 256 << 10;

/// A column of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Points,
    Outputs,
    OutputEnds,
    Txids,
    Meta,
}

impl Column {
    /// All columns, in the order in which a block's rows are hashed.
    pub(super) const ALL: [Self; 5] =
        [Self::Points, Self::Outputs, Self::OutputEnds, Self::Txids, Self::Meta];

    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Points => "points",
            Self::Outputs => "outputs",
            Self::OutputEnds => "output_ends",
            Self::Txids => "txids",
            Self::Meta => "meta",
        }
    }

    /// Bytes per entry. `outputs` has an entry per output, the others one per row.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Points => 64,
            Self::Outputs => 8,
            Self::OutputEnds => 4,
            Self::Txids => 32,
            Self::Meta => META_LEN,
        }
    }
}

/// Directory of a segment.
pub(super) fn segment_dir(root: &Path, segment: u64) -> PathBuf {
    root.join(format!("{segment:05}"))
}

/// How rows are spread over segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) segment_bits: u32,
}

/// Rows that lie in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) segment: u64,
    /// Number of the first row in the whole index.
    pub(super) first_row: u64,
    /// First row and one past the last, counted inside the segment.
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Part {
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl Layout {
    pub(super) fn segment_of(self, row: u64) -> u64 {
        row >> self.segment_bits
    }

    /// Position of a row inside its segment.
    pub(super) fn local(self, row: u64) -> u32 {
        // At most 24 bits remain.
        (row & ((1 << self.segment_bits) - 1)) as u32
    }

    /// Number of segments that `rows` rows touch.
    pub(super) fn segments(self, rows: u64) -> u64 {
        rows.div_ceil(1 << self.segment_bits)
    }

    /// Cuts a row range at the segment borders.
    pub(super) fn parts(self, rows: Range<u64>) -> impl Iterator<Item = Part> {
        let mut at = rows.start;
        std::iter::from_fn(move || {
            (at < rows.end).then(|| {
                let start = self.local(at);
                let len = ((1u64 << self.segment_bits) - u64::from(start)).min(rows.end - at);
                let part =
                    Part { segment: self.segment_of(at), first_row: at, start, end: start + len as u32 };
                at += len;
                part
            })
        })
    }
}

/// The open column files of one segment.
#[derive(Debug)]
pub(super) struct SegmentFiles {
    pub(super) segment: u64,
    dir: PathBuf,
    files: [File; 5],
}

impl SegmentFiles {
    /// Opens the columns of a segment for reading.
    pub(super) fn open(root: &Path, segment: u64) -> Result<Self, StoreError> {
        Self::open_with(root, segment, OpenOptions::new().read(true))
    }

    /// Opens the columns of a segment for writing, and makes those that are missing.
    pub(super) fn create(root: &Path, segment: u64) -> Result<Self, StoreError> {
        let dir = segment_dir(root, segment);
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e).at(&dir),
            _ => {}
        }
        Self::open_with(root, segment, OpenOptions::new().read(true).write(true).create(true).truncate(false))
    }

    fn open_with(root: &Path, segment: u64, options: &OpenOptions) -> Result<Self, StoreError> {
        let dir = segment_dir(root, segment);
        let open = |column: Column| {
            let path = dir.join(column.file_name());
            options.open(&path).at(&path)
        };
        let [a, b, c, d, e] = Column::ALL;
        let files = [open(a)?, open(b)?, open(c)?, open(d)?, open(e)?];
        Ok(Self { segment, dir, files })
    }

    pub(super) fn file(&self, column: Column) -> &File {
        &self.files[column as usize]
    }

    pub(super) fn path(&self, column: Column) -> PathBuf {
        self.dir.join(column.file_name())
    }

    /// Running count of outputs up to and including the row before `row`; `None` when the file is too short.
    pub(super) fn outputs_before(&self, row: u32) -> Result<Option<u32>, StoreError> {
        let Some(prev) = row.checked_sub(1) else { return Ok(Some(0)) };
        let mut bytes = [0; 4];
        match self.file(Column::OutputEnds).read_exact_at(&mut bytes, u64::from(prev) * 4) {
            Ok(()) => Ok(Some(u32::from_le_bytes(bytes))),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e).at(&self.path(Column::OutputEnds)),
        }
    }

    /// Brings everything written so far to stable storage, the names of the files included.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        for column in Column::ALL {
            self.file(column).sync_data().at(&self.path(column))?;
        }
        sync_dir(&self.dir)
    }

    /// Writes `rows[range]`, which belong at `part`, and adds their bytes to `hasher`.
    ///
    /// `outputs` are exactly the outputs of these rows and `outputs_before` those of the segment before them; returns
    /// the running count after them.
    pub(super) fn write(
        &self,
        part: Part,
        rows: &BlockRows,
        range: Range<usize>,
        outputs: &[[u8; 8]],
        outputs_before: u32,
        hasher: &mut RowsHasher,
    ) -> Result<u32, StoreError> {
        let mut count = outputs_before;
        let mut ends = Vec::with_capacity(range.len() * 4);
        for n in &rows.output_counts[range.clone()] {
            count = count.checked_add(*n).ok_or_else(|| StoreError::Corrupt {
                path: self.dir.clone(),
                what: "more than 2^32 outputs in a segment; make an index with smaller segments".into(),
            })?;
            ends.extend(count.to_le_bytes());
        }
        let meta: Vec<u8> = rows.meta[range.clone()].iter().flat_map(|m| encode_meta(*m)).collect();
        for column in Column::ALL {
            let (bytes, at) = match column {
                Column::Points => (rows.points[range.clone()].as_flattened(), part.start),
                Column::Outputs => (outputs.as_flattened(), outputs_before),
                Column::OutputEnds => (&ends[..], part.start),
                Column::Txids => (rows.txids[range.clone()].as_flattened(), part.start),
                Column::Meta => (&meta[..], part.start),
            };
            self.file(column)
                .write_all_at(bytes, u64::from(at) * column.width() as u64)
                .at(&self.path(column))?;
            hasher.update(bytes);
        }
        Ok(count)
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|d| d.sync_all()).at(dir)
}

/// Refuses rows whose columns have different lengths.
pub(super) fn check_rows(height: u32, rows: &BlockRows) -> Result<(), StoreError> {
    let bad = |what: String| Err(StoreError::BadRows { height, what });
    let n = rows.points.len();
    for (name, len) in
        [("txids", rows.txids.len()), ("meta", rows.meta.len()), ("output_counts", rows.output_counts.len())]
    {
        if len != n {
            return bad(format!("{n} points, but {len} {name}"));
        }
    }
    if let Some(row) = rows.output_counts.iter().position(|n| *n == 0) {
        return bad(format!("row {row} has no output, so it can't be paid to"));
    }
    let outputs: u64 = rows.output_counts.iter().map(|n| u64::from(*n)).sum();
    if outputs != rows.outputs.len() as u64 {
        return bad(format!("the rows count {outputs} outputs, but there are {}", rows.outputs.len()));
    }
    Ok(())
}

fn encode_meta(meta: RowMeta) -> [u8; META_LEN] {
    let mut out = [0; META_LEN];
    out[..4].copy_from_slice(&meta.position.to_le_bytes());
    out[4..].copy_from_slice(&meta.max_value.to_le_bytes());
    out
}

/// Entry of the `meta` column.
pub(super) fn decode_meta(bytes: &[u8; META_LEN]) -> RowMeta {
    RowMeta { position: le32(bytes, 0), max_value: super::format::le64(bytes, 4) }
}

/// Checksum over the bytes of a block's rows: for each segment that holds some of them, in order, the bytes of
/// `points`, `outputs`, `output_ends`, `txids` and `meta`, as they lie in the files.
pub(super) struct RowsHasher(Xxh3Default);

impl RowsHasher {
    pub(super) fn new() -> Self {
        Self(Xxh3Default::new())
    }

    fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(&self) -> [u8; 16] {
        self.0.digest128().to_le_bytes()
    }
}

/// Why stored rows are not what their record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowsFault {
    pub(super) path: PathBuf,
    pub(super) what: String,
}

/// Checks rows on the disk against their record. Keeps the files of the last segment open and a buffer, so that going
/// through a whole index does not open files per block.
pub(super) struct RowsChecker<'a> {
    root: &'a Path,
    layout: Layout,
    files: Option<SegmentFiles>,
    buffer: Vec<u8>,
}

impl<'a> RowsChecker<'a> {
    pub(super) fn new(root: &'a Path, layout: Layout) -> Self {
        Self { root, layout, files: None, buffer: Vec::new() }
    }

    /// Whether the rows have the expected number of outputs and checksum. `Err` is for what the operating system
    /// refused; a missing or short file is a fault.
    pub(super) fn check(
        &mut self,
        rows: Range<u64>,
        outputs: u64,
        checksum: [u8; 16],
    ) -> Result<Result<(), RowsFault>, StoreError> {
        let mut hasher = RowsHasher::new();
        let mut left = outputs;
        let mut place = self.root.to_path_buf();
        for part in self.layout.parts(rows) {
            place = segment_dir(self.root, part.segment);
            match self.check_part(part, left, &mut hasher)? {
                Ok(n) => left -= n,
                Err(fault) => return Ok(Err(fault)),
            }
        }
        if left != 0 {
            return Ok(Err(RowsFault {
                path: place.join(Column::OutputEnds.file_name()),
                what: format!("the rows have {left} outputs less than their block record says"),
            }));
        }
        if hasher.finish() != checksum {
            return Ok(Err(RowsFault {
                path: place,
                what: "the checksum of the block's rows is wrong".into(),
            }));
        }
        Ok(Ok(()))
    }

    /// Number of outputs in `part`, all of whose bytes have gone into `hasher`.
    fn check_part(
        &mut self,
        part: Part,
        max_outputs: u64,
        hasher: &mut RowsHasher,
    ) -> Result<Result<u64, RowsFault>, StoreError> {
        if self.files.as_ref().is_none_or(|f| f.segment != part.segment) {
            self.files = match SegmentFiles::open(self.root, part.segment) {
                Ok(files) => Some(files),
                Err(StoreError::Io { path, source }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(Err(RowsFault { path, what: "is missing".into() }));
                }
                Err(e) => return Err(e),
            };
        }
        let Some(files) = &self.files else { return Ok(Ok(0)) };
        let fault =
            |column, what: &str| Ok(Err(RowsFault { path: files.path(column), what: what.to_owned() }));
        let (Some(before), Some(after)) =
            (files.outputs_before(part.start)?, files.outputs_before(part.end)?)
        else {
            return fault(Column::OutputEnds, "ends before the rows of the block do");
        };
        let Some(outputs) = after.checked_sub(before).map(u64::from).filter(|n| *n <= max_outputs) else {
            return fault(Column::OutputEnds, "its counts contradict the block record");
        };
        for column in Column::ALL {
            let (start, end) =
                if column == Column::Outputs { (before, after) } else { (part.start, part.end) };
            let width = column.width() as u64;
            let mut at = u64::from(start) * width;
            let end = u64::from(end) * width;
            let mut count = before;
            while at < end {
                let len = (end - at).min(CHUNK as u64) as usize;
                self.buffer.resize(len, 0);
                match files.file(column).read_exact_at(&mut self.buffer, at) {
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                        return fault(column, "ends before the rows of the block do");
                    }
                    other => other.at(&files.path(column))?,
                }
                if column == Column::OutputEnds {
                    for bytes in self.buffer.as_chunks::<4>().0 {
                        let next = u32::from_le_bytes(*bytes);
                        if next < count || next > after {
                            return fault(column, "its counts fall");
                        }
                        count = next;
                    }
                }
                hasher.update(&self.buffer);
                at += len as u64;
            }
        }
        Ok(Ok(outputs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cut_at_segment_borders() {
        let layout = Layout { segment_bits: 2 };
        let parts: Vec<_> = layout.parts(3..9).map(|p| (p.segment, p.first_row, p.start, p.end)).collect();
        assert_eq!(parts, [(0, 3, 3, 4), (1, 4, 0, 4), (2, 8, 0, 1)]);
        assert_eq!(layout.parts(4..4).count(), 0);
        assert_eq!(layout.segments(8), 2);
        assert_eq!(layout.segments(9), 3);
        // Numbers as a forged record could hold them.
        assert_eq!(layout.parts(u64::MAX - 1..u64::MAX).count(), 1);
    }

    #[test]
    fn meta_round_trip() {
        let meta = RowMeta { position: 0x0102_0304, max_value: 21_000_000 * 100_000_000 };
        assert_eq!(encode_meta(meta)[..4], [4, 3, 2, 1]);
        assert_eq!(decode_meta(&encode_meta(meta)), meta);
    }
}
