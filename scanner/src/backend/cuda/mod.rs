//! The backend for NVIDIA cards: the kernels of `peregrine-kernels`, through the driver, which is looked for when it is asked
//! for and not before. Building needs no CUDA.
//!
//! Rows are copied to the card part by part. What the card can't do or hands back is done by the processor: rows to which a
//! formula didn't apply by the reference, and parts during which the card failed by the best instruction set, so that
//! nothing is missed. A card that failed is tried again after a while.

mod device;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use peregrine_kernels::Isa;
use peregrine_kernels::gpu::DeviceKey;

use super::lanes::{Lanes, key_material};
use super::{Backend, BackendError, Candidate, PreparedScan, RowBatch, reference};
use crate::keys::ScanTarget;
use device::{Card, Failure, Loaded, with_driver};

pub use device::{CardInfo, cards};

/// The name that `--backend` takes.
pub const NAME: &str = "cuda";

/// How long a part is to take, so that a scan can be stopped.
const PART: Duration = Duration::from_millis(50);
/// Rows of a part until something was measured, and the bounds.
const FIRST_ROWS: u64 = 1 << 16;
const MAX_ROWS: u64 = 1 << 20;
/// A card that failed is left alone for so long.
const REST: Duration = Duration::from_secs(60);

/// The first card of this machine.
///
/// # Errors
/// [`BackendError::Unavailable`] with what is missing.
pub fn choose() -> Result<Box<dyn Backend>, BackendError> {
    let unavailable = |reason| BackendError::Unavailable { name: NAME.to_owned(), reason };
    let card = Card::open(0).map_err(|failure| unavailable(failure.to_string()))?;
    let isa = Isa::detect();
    let processor =
        Lanes::new(isa).map_err(|missing| unavailable(format!("the processor lacks {missing}")))?;
    let shared = Shared {
        card: Mutex::new(Some(card)),
        failed: Mutex::new(None),
        rows_per_part: AtomicU64::new(FIRST_ROWS),
    };
    Ok(Box::new(Cuda { shared: Arc::new(shared), processor }))
}

/// A card, and the processor that stands in for it.
struct Cuda {
    shared: Arc<Shared>,
    processor: Lanes,
}

struct Shared {
    /// Threads take turns. None while it couldn't be opened again.
    card: Mutex<Option<Card>>,
    failed: Mutex<Option<Instant>>,
    rows_per_part: AtomicU64,
}

impl Shared {
    /// Notes a failure.
    fn fail(&self, card: &mut Option<Card>, failure: &Failure) {
        tracing::warn!(
            "the graphics card failed: {failure}; the processor does its work for {} s",
            REST.as_secs()
        );
        // What it knew is gone with the driver's context, in which nothing works after most failures.
        *card = None;
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Calls `work` with the card, if there is one.
    fn with_card<T>(&self, work: impl FnOnce(&mut Card) -> Result<T, Failure>) -> Option<T> {
        let mut card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        if card.is_none() {
            let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.is_some_and(|failed| failed.elapsed() < REST) {
                return None;
            }
            match Card::open(0) {
                Ok(opened) => *card = Some(opened),
                Err(failure) => {
                    self.fail(&mut card, &failure);
                    return None;
                }
            }
        }
        let open = card.as_mut()?;
        match with_driver(|| work(open)) {
            Ok(done) => Some(done),
            Err(failure) => {
                self.fail(&mut card, &failure);
                None
            }
        }
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        let keys = targets.iter().map(|target| match DeviceKey::new(&key_material(target)) {
            Ok(key) => key,
            // The types of a target hold nothing but valid keys.
            Err(error) => unreachable!("{error}"),
        });
        Box::new(Prepared {
            shared: Arc::clone(&self.shared),
            keys: keys.collect(),
            loaded: Mutex::new(None),
            processor: self.processor.prepare(targets),
            targets: targets.to_vec(),
        })
    }
}

/// Keys made ready.
struct Prepared {
    shared: Arc<Shared>,
    keys: Vec<DeviceKey>,
    /// The same on the card.
    loaded: Mutex<Option<Loaded>>,
    processor: Box<dyn PreparedScan>,
    targets: Vec<ScanTarget>,
}

impl Prepared {
    /// Candidates and rows to be done otherwise; `None` if the card can't.
    fn on_card(&self, batch: RowBatch<'_>) -> Option<(Vec<Candidate>, Vec<u32>)> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let done = self.shared.with_card(|card| {
            if !loaded.as_ref().is_some_and(|loaded| card.holds(loaded)) {
                *loaded = Some(card.load(&self.keys)?);
            }
            match &*loaded {
                Some(loaded) => card.scan(loaded, batch),
                None => Ok(Default::default()),
            }
        });
        if done.is_some() {
            let rate = batch.len() as f64 / started.elapsed().as_secs_f64().max(1e-9);
            let fits = ((rate * PART.as_secs_f64()) as u64).clamp(FIRST_ROWS / 16, MAX_ROWS);
            self.shared.rows_per_part.store(fits, Ordering::Relaxed);
        } else {
            *loaded = None;
        }
        done
    }
}

impl PreparedScan for Prepared {
    fn batch_rows(&self) -> usize {
        self.shared.rows_per_part.load(Ordering::Relaxed) as usize
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        if batch.is_empty() {
            return;
        }
        let Some((mut candidates, mut redo)) = self.on_card(batch) else {
            // In parts of the size that it likes; that may take longer than a part of the card.
            let size = self.processor.batch_rows().max(1);
            for from in (0..batch.len()).step_by(size) {
                let mut part = Vec::new();
                self.processor.scan(batch.slice(from..batch.len().min(from + size)), &mut part);
                let moved =
                    |candidate: Candidate| Candidate { row: from as u32 + candidate.row, ..candidate };
                found.extend(part.into_iter().map(moved));
            }
            return;
        };
        redo.sort_unstable();
        redo.dedup();
        candidates.retain(|candidate| redo.binary_search(&candidate.row).is_err());
        found.append(&mut candidates);
        for row in redo {
            for (number, target) in (0..).zip(&self.targets) {
                let point = &batch.points[row as usize];
                let slots = reference::row_slots(target, point, batch.row_outputs(row as usize));
                found.extend(slots.into_iter().map(|slot| Candidate { row, target: number, slot }));
            }
        }
    }
}

impl Drop for Prepared {
    /// Overwrites on the card what comes from the keys.
    fn drop(&mut self) {
        let loaded = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(loaded) = loaded {
            let mut card = self.shared.card.lock().unwrap_or_else(PoisonError::into_inner);
            // A context that is gone took its memory with it.
            if let Some(open) = card.as_mut().filter(|card| card.holds(&loaded))
                && let Err(failure) = open.unload(loaded)
            {
                self.shared.fail(&mut card, &failure);
            }
        }
    }
}
