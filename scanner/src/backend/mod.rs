//! What a backend is, and which there are.
//!
//! A backend answers, for many rows at once: does the first output key (k = 0) that a target could have in this
//! transaction, unlabelled or with one of its labels, start like one of the transaction's outputs? Eight bytes are
//! compared, so one row in 2^64 per comparison is wrong by chance. That is what a [`Candidate`] is; the engine confirms
//! it with libsecp256k1. Later outputs (k > 0) are never there without the first.

pub mod cuda;
pub mod lanes;
pub mod reference;

use std::ops::Range;

use lanes::Lanes;
use peregrine_kernels::Isa;
use reference::Reference;

use crate::keys::ScanTarget;

/// Consecutive rows of one segment of the index, borrowed from where they are stored.
#[derive(Clone, Copy)]
pub struct RowBatch<'a> {
    /// The segment that the rows belong to: a device may hold it already.
    pub segment: u32,
    /// Number of the first row, counted over the whole index.
    pub first_row: u64,
    /// The tweak of each row as [`Tweak::to_row`](crate::Tweak::to_row) gives it.
    pub points: &'a [[u8; 64]],
    /// For each row, the number of outputs in the segment up to and including this row.
    pub output_ends: &'a [u32],
    /// The number of outputs in the segment before the first row.
    pub outputs_base: u32,
    /// The first 8 bytes of each output's x-only key, for the rows of this batch only.
    pub outputs: &'a [[u8; 8]],
}

impl<'a> RowBatch<'a> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Output prefixes of row `row` of the batch.
    pub fn row_outputs(&self, row: usize) -> &'a [[u8; 8]] {
        self.outputs.get(self.output_offset(row)..self.output_offset(row + 1)).unwrap_or(&[])
    }

    /// Some of the rows.
    ///
    /// # Panics
    ///
    /// If the range isn't within the batch.
    pub fn slice(&self, rows: Range<usize>) -> RowBatch<'a> {
        let (from, to) = (self.output_offset(rows.start), self.output_offset(rows.end));
        RowBatch {
            segment: self.segment,
            first_row: self.first_row + rows.start as u64,
            points: &self.points[rows.clone()],
            output_ends: &self.output_ends[rows],
            outputs_base: self.outputs_base + from as u32,
            outputs: &self.outputs[from..to],
        }
    }

    /// Where the outputs of row `row` start in `outputs`.
    fn output_offset(&self, row: usize) -> usize {
        let before = if row == 0 { self.outputs_base } else { self.output_ends[row - 1] };
        (before - self.outputs_base) as usize
    }
}

/// A row whose outputs look like they hold a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    /// Row within the batch.
    pub row: u32,
    /// Which of the targets.
    pub target: u32,
    /// 0 without a label, otherwise 1 + index into the target's labels.
    pub slot: u32,
}

/// A way of computing. One is chosen at start; see [`choose`].
pub trait Backend: Send + Sync {
    /// The name that `--backend` takes and that results state.
    fn name(&self) -> &'static str;

    /// Does the work that depends on the targets only.
    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan>;
}

/// A backend made ready for a set of targets. Many threads use it at once.
pub trait PreparedScan: Send + Sync {
    /// How many rows one call should get. A call must take well under 100 ms, since it can't be interrupted.
    fn batch_rows(&self) -> usize;

    /// Appends the candidates of a batch to `found`, in any order, each once.
    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>);
}

/// Why a backend can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BackendError {
    /// No backend has that name.
    #[error("there is no backend '{name}'; this build has: {}", names().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The backend exists, but not on this machine.
    #[error("the backend '{name}' can't run here: {reason}")]
    Unavailable {
        /// What was asked for.
        name: String,
        /// What is missing.
        reason: String,
    },
}

/// Names of all backends of this build, best first, whether they can run here or not.
pub fn names() -> Vec<&'static str> {
    let isas = Isa::ALL.iter().rev().map(|isa| isa.name());
    [cuda::NAME].into_iter().chain(isas).chain([Reference.name()]).collect()
}

/// All backends that can run here, best first; the last is the reference.
pub fn available() -> Vec<Box<dyn Backend>> {
    names().into_iter().filter_map(|name| choose(name).ok()).collect()
}

/// The backend of that name, or with `auto` the best one of the processor. A graphics card is taken only when it is named.
pub fn choose(name: &str) -> Result<Box<dyn Backend>, BackendError> {
    let isa = match name {
        "auto" => Isa::detect(),
        cuda::NAME => return cuda::choose(),
        name if name == Reference.name() => return Ok(Box::new(Reference)),
        name => *Isa::ALL
            .iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| BackendError::Unknown { name: name.to_owned() })?,
    };
    match Lanes::new(isa) {
        Ok(lanes) => Ok(Box::new(lanes)),
        Err(missing) => {
            let reason = format!("the processor lacks {missing}");
            Err(BackendError::Unavailable { name: isa.name().to_owned(), reason })
        }
    }
}
