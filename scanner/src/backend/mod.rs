//! What a backend is, and which there are.
//!
//! A backend answers, for many rows at once: does the first output key (k = 0) that a target could have in this
//! transaction, unlabelled or with one of its labels, start like one of the transaction's outputs? Eight bytes are
//! compared, so one row in 2^64 per comparison is wrong by chance. That is what a [`Candidate`] is; the engine confirms
//! it with libsecp256k1. Later outputs (k > 0) are never there without the first.

mod auto;
pub mod cuda;
mod graphics;
pub mod lanes;
pub mod reference;
pub mod wgpu;

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use lanes::Lanes;
use peregrine_kernels::Isa;
use reference::Reference;

use crate::keys::ScanTarget;

/// Where rows lie in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which index, and which state of it: rows with the same numbers are the same rows as long as this is the same.
    pub state: u64,
    /// Number of the segment.
    pub segment: u32,
    /// Number of the first row within the segment.
    pub row: u32,
}

/// Consecutive rows of one segment of the index, borrowed from where they are stored.
#[derive(Clone, Copy)]
pub struct RowBatch<'a> {
    /// Where the rows lie in an index, if they do: a device may hold them already.
    pub place: Option<Place>,
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
        let place = self.place.map(|place| Place { row: place.row + rows.start as u32, ..place });
        RowBatch {
            place,
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

    /// How many threads feed devices and need little of the processor.
    fn feeders(&self) -> usize {
        0
    }

    /// The devices that it uses.
    fn devices(&self) -> Vec<DeviceStatus> {
        Vec::new()
    }
}

/// A device that a backend uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceStatus {
    /// What it is.
    pub title: String,
    /// Whether it computes; one that failed is tried again after a while.
    pub working: bool,
    /// Rows per second for one key when it was tried.
    pub rows_per_second: f64,
    /// Bytes of rows that lie on it.
    pub resident_bytes: u64,
    /// Bytes of rows that may lie on it.
    pub budget_bytes: u64,
}

/// A backend made ready for a set of targets. Many threads use it at once.
pub trait PreparedScan: Send + Sync {
    /// How many rows one call should get. A call must take well under 100 ms, since it can't be interrupted.
    fn batch_rows(&self) -> usize;

    /// Appends the candidates of a batch to `found`, in any order, each once.
    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>);

    /// How the threads of an engine share the work, if devices take part; otherwise all do the same.
    fn devices(&self) -> Option<&dyn DeviceScan> {
        None
    }
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It feeds a device with parts of so many rows, a power of two.
    Device {
        /// Parts begin at multiples of it within a segment.
        rows: usize,
    },
    /// It computes on the processor.
    Processor,
    /// It computes what devices hand back.
    Standby,
}

/// A device couldn't do a part; nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedBack;

/// A [`PreparedScan`] of which some threads feed devices.
pub trait DeviceScan: Send + Sync {
    /// Whether devices should take part in a scan of so many rows.
    fn is_worthwhile(&self, rows: usize) -> bool;

    /// What the thread of this number does next.
    fn role(&self, worker: usize) -> Role;

    /// Does a part on the device that this thread feeds.
    ///
    /// # Errors
    /// The part isn't done, and nothing was appended.
    fn scan(&self, worker: usize, batch: RowBatch<'_>, found: &mut Vec<Candidate>) -> Result<(), HandedBack>;

    /// The same on the processor.
    fn processor(&self) -> &dyn PreparedScan;
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

/// Which graphics cards are used, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Numbers, or parts of names; all cards if there is none.
    pub names: Vec<String>,
    /// Bytes of rows that may lie on each card; without it as many as seem right.
    pub budget: Option<u64>,
    /// A card that doesn't answer for so long has failed; without it a minute.
    pub patience: Option<Duration>,
    /// A card that failed is left alone for so long; without it a minute.
    pub rest: Option<Duration>,
    /// The architecture that CUDA kernels are compiled for by the toolkit, as `sm_90`, or `native` for each card's own; without
    /// it the driver does.
    pub cuda_arch: Option<String>,
    /// The file in which is kept what was found out about cards, so that it needs to be done once only.
    pub notes: Option<PathBuf>,
}

/// Who doesn't answer for so long won't.
const PATIENCE: Duration = Duration::from_secs(60);
/// A card that failed is left alone for so long.
const REST: Duration = Duration::from_secs(60);

impl Selection {
    /// The numbers of those that are selected, each once; an error, in words, if one of them isn't there.
    fn pick<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<usize>, String> {
        let mut numbers = Vec::new();
        for wanted in &self.names {
            let matching = |(number, name): &(usize, &str)| match wanted.parse::<usize>() {
                Ok(wanted) => *number == wanted,
                Err(_) => name.to_lowercase().contains(&wanted.to_lowercase()),
            };
            let before = numbers.len();
            numbers.extend(names.clone().enumerate().filter(matching).map(|(number, _)| number));
            if numbers.len() == before {
                return Err(format!("no card has the number or name '{wanted}'; see peregrine devices"));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        numbers.retain(|number| seen.insert(*number));
        Ok(numbers)
    }
}

/// Names of all backends of this build, best first, whether they can run here or not.
pub fn names() -> Vec<&'static str> {
    let isas = Isa::ALL.iter().rev().map(|isa| isa.name());
    [cuda::NAME, wgpu::NAME].into_iter().chain(isas).chain([Reference.name()]).collect()
}

/// All backends of the processor that can run here, best first; the last is the reference.
pub fn available() -> Vec<Box<dyn Backend>> {
    let mut names = names();
    names.retain(|name| ![cuda::NAME, wgpu::NAME].contains(name));
    names.into_iter().filter_map(|name| choose(name).ok()).collect()
}

/// Name of the processor's best backend.
pub fn best_of_processor() -> &'static str {
    Isa::detect().name()
}

/// The backend of that name, with all cards; see [`choose_with`].
///
/// # Errors
/// As there.
pub fn choose(name: &str) -> Result<Box<dyn Backend>, BackendError> {
    choose_with(name, &Selection::default())
}

/// The backend of that name. `auto` is the best one of the processor, or, where graphics cards are faster than half of it,
/// those together with it: all are tried on a few rows to find out.
///
/// # Errors
/// No backend has that name, or it can't run here.
pub fn choose_with(name: &str, selection: &Selection) -> Result<Box<dyn Backend>, BackendError> {
    let isa = match name {
        "auto" => return auto::choose(selection),
        cuda::NAME => return cuda::choose(selection),
        wgpu::NAME => return wgpu::choose(selection),
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
