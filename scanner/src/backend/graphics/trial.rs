//! What a card shows before it is used: that it finds what is there, and how fast it is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use peregrine_kernels::gpu::DeviceKey;

use super::super::lanes::key_material;
use super::super::{Candidate, RowBatch, reference};
use super::device::{Device, Failure, Part};
use super::{MIN_ROWS, PART};
use crate::keys::{ScanKey, ScanTarget};
use crate::tweak::Tweak;

/// Different rows of the trial; what is timed has them again and again.
const ROWS: usize = MIN_ROWS as usize;

pub(in super::super) struct Trial {
    pub(in super::super) rate: f64,
    /// Rows of a part, a power of two.
    pub(super) rows: u32,
}

/// Rows that each pay the key, in one slot after the other.
pub(in super::super) struct Rows {
    points: Vec<[u8; 64]>,
    ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
    wanted: BTreeSet<Candidate>,
}

impl Rows {
    pub(in super::super) fn new(target: &ScanTarget) -> Self {
        let mut rows = Self { points: vec![], ends: vec![], outputs: vec![], wanted: BTreeSet::new() };
        let step = *target.spend_key();
        let mut point = step;
        for row in 0..ROWS {
            // Nothing is its own opposite after so few steps from a key of the trial.
            point = point.combine(&step).unwrap_or(step);
            let stored = Tweak(point).to_row();
            let keys = reference::row_keys(target, &stored);
            let slot = row % keys.len().max(1);
            if let Some(prefix) = keys.get(slot).copied().flatten().as_ref().and_then(|key| key.first_chunk())
            {
                rows.outputs.push(*prefix);
                rows.wanted.insert(Candidate { row: row as u32, target: 0, slot: slot as u32 });
            }
            rows.points.push(stored);
            rows.ends.push(rows.outputs.len() as u32);
        }
        rows
    }

    pub(in super::super) fn batch(&self) -> RowBatch<'_> {
        RowBatch {
            place: None,
            first_row: 0,
            points: &self.points,
            output_ends: &self.ends,
            outputs_base: 0,
            outputs: &self.outputs,
        }
    }

    /// So many rows, in which nothing is to be found.
    pub(in super::super) fn repeated(&self, rows: usize) -> Self {
        let points = self.points.iter().cycle().take(rows).copied().collect();
        let outputs = vec![[0xff; 8]; rows];
        Self { points, ends: (1..=rows as u32).collect(), outputs, wanted: BTreeSet::new() }
    }
}

/// Whether a card finds everything that the reference finds, and how many rows are a part.
///
/// # Errors
/// [`Failure::Wrong`], and whatever else happens.
pub(in super::super) fn run<D: Device>(
    device: &D,
    lane: &mut D::Lane,
    most: usize,
) -> Result<Trial, Failure> {
    let target = target();
    let key = DeviceKey::new(&key_material(&target)).map_err(|_| Failure::Nonsense)?;
    let labels = [target.labels().len() as u32];
    let keys = device.load(&[key])?;
    let scan = |lane: &mut D::Lane, rows: &Rows| -> Result<(BTreeSet<Candidate>, Duration), Failure> {
        let started = Instant::now();
        let part = Part { batch: rows.batch(), tile: None };
        let (found, redo) = super::steps(device, lane, &part, &keys, &labels)?;
        let time = started.elapsed();
        // Rows that it hands back are done by others.
        let redone = |candidate: &&Candidate| redo.contains(&candidate.row);
        Ok((found.into_iter().chain(rows.wanted.iter().filter(redone).copied()).collect(), time))
    };
    let rows = Rows::new(&target);
    let (found, mut time) = scan(lane, &rows)?;
    if found != rows.wanted {
        let missed = rows.wanted.difference(&found).count();
        return Err(if missed > 0 { Failure::Wrong { missed, rows: ROWS } } else { Failure::Nonsense });
    }
    // The first run may have compiled something.
    let mut count = ROWS;
    time = time.min(scan(lane, &rows)?.1);
    while time < PART / 2 && 2 * count <= most {
        count *= 2;
        let more = rows.repeated(count);
        let (found, first) = scan(lane, &more)?;
        if !found.is_empty() {
            return Err(Failure::Nonsense);
        }
        // Memory is found in the first run.
        time = first.min(scan(lane, &more)?.1);
    }
    device.wipe(lane)?;
    device.unload(keys)?;
    Ok(Trial { rate: count as f64 / time.as_secs_f64().max(1e-9), rows: count as u32 })
}

/// Nobody's keys.
pub(in super::super) fn target() -> ScanTarget {
    use bitcoin::hashes::{Hash, sha256};
    let bytes = |text: &[u8]| sha256::Hash::hash(text).to_byte_array();
    let made = || {
        let scan = ScanKey::from_bytes(bytes(b"trial of a card: scan key")).ok()?;
        let spend = crate::keys::SpendKey::from_bytes(bytes(b"trial of a card: spend key")).ok()?;
        ScanTarget::new(scan, spend.public_key(), 1..=2).ok()
    };
    made().unwrap_or_else(|| unreachable!("the hashes of these texts are valid keys"))
}
