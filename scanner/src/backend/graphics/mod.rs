//! The backend over graphics cards, whatever they are reached through: which thread feeds which card, what stays on a card,
//! and what happens when one fails.
//!
//! Each card has two lanes, so that rows are brought while others are computed; a lane is fed by a thread of the engine.
//! Rows of an index stay on the card as long as there is room. What a card can't do or hands back is done by the
//! processor: rows to which a formula didn't apply by the reference, and parts during which a card failed by the best
//! instruction set, so that nothing is missed. A card that failed is tried again after a while.

pub(super) mod device;
mod tiles;
pub(super) mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use peregrine_kernels::Isa;
use peregrine_kernels::gpu::{DeviceKey, MAX_LABELS};

use self::device::{Device, Failure, Part, REDO, Step};
use self::tiles::{Lookup, Tiles};
use super::lanes::{Lanes, key_material};
use super::{
    Backend, BackendError, Candidate, DeviceScan, DeviceStatus, HandedBack, PreparedScan, Role, RowBatch,
    reference,
};
use crate::keys::ScanTarget;

/// How long a part is to take, so that a scan can be stopped.
const PART: Duration = Duration::from_millis(40);
/// A part that takes longer makes the next ones smaller.
const TOO_LONG: Duration = Duration::from_millis(100);
/// Rows of a part: a power of two between these.
const MIN_ROWS: u32 = 1 << 8;
pub(super) const MAX_ROWS: u32 = 1 << 20;
/// The processor does fewer rows than these alone, if it may.
const MANY: usize = 4096;
/// Threads that feed a card.
const LANES: usize = 2;

/// Opens a card: the first time, and again after it failed.
type Opener<D> = Box<dyn Fn() -> Result<D, Failure> + Send + Sync>;

/// Cards, and the processor that stands in for them, or helps.
pub(super) struct Graphics<D: Device> {
    name: &'static str,
    cards: Arc<Vec<Card<D>>>,
    isa: Isa,
    /// Whether the processor takes parts although no card failed.
    helped: bool,
}

/// A card of this machine, open or not.
struct Card<D: Device> {
    title: String,
    opener: Opener<D>,
    /// How long it is left alone after it failed.
    rest: Duration,
    state: Mutex<State<D>>,
    /// Counts what was opened, so that keys of an earlier time are known as such.
    openings: AtomicU64,
}

enum State<D: Device> {
    Open(Arc<Open<D>>),
    Failed(Instant),
}

struct Open<D: Device> {
    device: D,
    opening: u64,
    lanes: Vec<Mutex<D::Lane>>,
    tiles: Mutex<Tiles<D::Tile>>,
    /// Rows of a part for one key.
    rows: AtomicUsize,
    /// Rows per second when it was tried.
    rate: f64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked here is replaced in whole values, or given up with its card.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a driver, which may also panic: cudarc does if a function is missing.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::Missing("the driver lacks a function that is needed, or broke down".to_owned()))
    })
}

impl<D: Device> Card<D> {
    fn open_now(&self) -> Result<Arc<Open<D>>, Failure> {
        let opening = self.openings.fetch_add(1, Ordering::Relaxed);
        guarded(|| {
            let device = (self.opener)()?;
            let lanes = (0..LANES).map(|_| device.lane()).collect::<Result<Vec<_>, _>>()?;
            let lanes: Vec<_> = lanes.into_iter().map(Mutex::new).collect();
            let most = device.max_rows().min(MAX_ROWS as usize);
            let trial = trial::run(&device, &mut lock(&lanes[0]), most)?;
            let tiles = Mutex::new(Tiles::new(device.budget()));
            let rows = AtomicUsize::new(trial.rows as usize);
            tracing::debug!("{}: {:.0} rows/s, {} rows a part", self.title, trial.rate, trial.rows);
            Ok(Arc::new(Open { device, opening, lanes, tiles, rows, rate: trial.rate }))
        })
    }

    /// The card, if it works; one that failed is opened again when it has rested.
    fn open(&self) -> Option<Arc<Open<D>>> {
        let mut state = lock(&self.state);
        match &*state {
            State::Open(open) => return Some(Arc::clone(open)),
            State::Failed(since) if since.elapsed() < self.rest => return None,
            State::Failed(_) => {}
        }
        match self.open_now() {
            Ok(open) => {
                tracing::info!("{} works again", self.title);
                *state = State::Open(Arc::clone(&open));
                Some(open)
            }
            Err(failure) => {
                *state = State::Failed(Instant::now());
                tracing::warn!("{} still fails: {failure}", self.title);
                None
            }
        }
    }

    /// Whether it is worth asking.
    fn is_usable(&self) -> bool {
        match &*lock(&self.state) {
            State::Open(_) => true,
            State::Failed(since) => since.elapsed() >= self.rest,
        }
    }

    /// Takes note of a failure, once for each opening.
    fn fail(&self, open: &Arc<Open<D>>, failure: &Failure) {
        let mut state = lock(&self.state);
        if matches!(failure, Failure::Hangs(_)) {
            open.device.abandon();
            // Giving it back would wait for it, too.
            std::mem::forget(Arc::clone(open));
        }
        if matches!(&*state, State::Open(current) if current.opening == open.opening) {
            tracing::warn!(
                "{} failed: {failure}; others do its work for {} s",
                self.title,
                self.rest.as_secs()
            );
            // What it knew is gone with the driver's context, in which nothing works after most failures.
            *state = State::Failed(Instant::now());
        }
    }
}

impl<D: Device> Graphics<D> {
    /// A backend over these cards, all that can be opened. The titles name them in messages.
    ///
    /// # Errors
    /// What is wrong with the first one, if none can.
    pub(super) fn new(
        name: &'static str,
        openers: Vec<(String, Opener<D>)>,
        rest: Duration,
    ) -> Result<Self, BackendError> {
        let unavailable = |reason| BackendError::Unavailable { name: name.to_owned(), reason };
        let mut cards = Vec::new();
        let mut first = None;
        for (title, opener) in openers {
            let openings = AtomicU64::new(0);
            let mut card =
                Card { title, opener, rest, state: Mutex::new(State::Failed(Instant::now())), openings };
            match card.open_now() {
                Ok(open) => {
                    card.state = Mutex::new(State::Open(open));
                    cards.push(card);
                }
                Err(failure) => {
                    tracing::warn!("{} isn't used: {failure}", card.title);
                    first.get_or_insert(failure);
                }
            }
        }
        if cards.is_empty() {
            let reason = first.map_or_else(|| "there is no card".to_owned(), |failure| failure.to_string());
            return Err(unavailable(reason));
        }
        Ok(Self { name, cards: Arc::new(cards), isa: Isa::detect(), helped: false })
    }

    /// The same, but the processor takes parts, too.
    pub(super) fn helped_by_processor(self) -> Self {
        Self { helped: true, ..self }
    }

    /// Rows per second of all cards together, as they were tried.
    pub(super) fn rate(&self) -> f64 {
        self.cards.iter().filter_map(Card::open).map(|open| open.rate).sum()
    }
}

impl<D: Device> Backend for Graphics<D> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn feeders(&self) -> usize {
        LANES * self.cards.len()
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        let keys = targets.iter().map(|target| match DeviceKey::new(&key_material(target)) {
            Ok(key) => key,
            // The types of a target hold nothing but valid keys.
            Err(error) => unreachable!("{error}"),
        });
        let processor = match Lanes::new(self.isa) {
            Ok(lanes) => lanes.prepare(targets),
            Err(_) => reference::Reference.prepare(targets),
        };
        Box::new(Prepared {
            cards: Arc::clone(&self.cards),
            keys: keys.collect(),
            loaded: self.cards.iter().map(|_| Mutex::new(None)).collect(),
            processor,
            helped: self.helped,
            targets: targets.to_vec(),
            next: AtomicUsize::new(0),
        })
    }

    fn devices(&self) -> Vec<DeviceStatus> {
        let status = |card: &Card<D>| match &*lock(&card.state) {
            State::Open(open) => DeviceStatus {
                title: card.title.clone(),
                working: true,
                rows_per_second: open.rate,
                resident_bytes: lock(&open.tiles).used(),
                budget_bytes: open.device.budget(),
            },
            State::Failed(_) => DeviceStatus { title: card.title.clone(), ..DeviceStatus::default() },
        };
        self.cards.iter().map(status).collect()
    }
}

/// Keys made ready.
struct Prepared<D: Device> {
    cards: Arc<Vec<Card<D>>>,
    keys: Vec<DeviceKey>,
    /// The same on each card, and at which opening.
    loaded: Vec<Mutex<Option<Loaded<D>>>>,
    processor: Box<dyn PreparedScan>,
    helped: bool,
    targets: Vec<ScanTarget>,
    /// Which lane has its turn, for calls that don't say.
    next: AtomicUsize,
}

struct Loaded<D: Device> {
    open: Arc<Open<D>>,
    keys: Arc<D::Keys>,
}

/// Candidates and rows to be done otherwise.
type Found = (Vec<Candidate>, Vec<u32>);

impl<D: Device> Prepared<D> {
    /// The keys on a card.
    fn loaded(&self, number: usize, open: &Arc<Open<D>>) -> Result<Arc<D::Keys>, Failure> {
        let mut loaded = lock(&self.loaded[number]);
        if let Some(there) = loaded.as_ref().filter(|there| there.open.opening == open.opening) {
            return Ok(Arc::clone(&there.keys));
        }
        let keys = Arc::new(guarded(|| open.device.load(&self.keys))?);
        *loaded = Some(Loaded { open: Arc::clone(open), keys: Arc::clone(&keys) });
        Ok(keys)
    }

    fn on_card(&self, worker: usize, batch: RowBatch<'_>) -> Option<Found> {
        let number = worker % self.cards.len();
        let card = &self.cards[number];
        let Some(open) = card.open() else {
            self.forget(number);
            return None;
        };
        let work = || {
            let keys = self.loaded(number, &open)?;
            let mut lane = lock(&open.lanes[worker / self.cards.len() % LANES]);
            let lookup = lock(&open.tiles).find(batch);
            let tile = match lookup {
                Lookup::There(tile, before) => Some((tile, before)),
                Lookup::Pass => None,
                Lookup::Bring => match open.device.upload(&mut lane, batch) {
                    Ok(tile) => {
                        let tile = Arc::new(tile);
                        lock(&open.tiles).put(batch, Arc::clone(&tile));
                        Some((tile, 0))
                    }
                    Err(Failure::Memory) => {
                        lock(&open.tiles).refuse();
                        None
                    }
                    Err(failure) => return Err(failure),
                },
            };
            let part = Part { batch, tile: tile.as_ref().map(|(tile, before)| (&**tile, *before)) };
            let started = Instant::now();
            let found = steps(&open.device, &mut lane, &part, &keys, &self.label_counts())?;
            if started.elapsed() > TOO_LONG {
                let rows = open.rows.load(Ordering::Relaxed) / 2;
                open.rows.store(rows.max(MIN_ROWS as usize), Ordering::Relaxed);
            }
            Ok(found)
        };
        match guarded(work) {
            Ok(found) => Some(found),
            Err(failure) => {
                card.fail(&open, &failure);
                self.forget(number);
                None
            }
        }
    }

    /// Lets go of the keys on a card that failed: as long as anything is kept, the driver keeps the state in which it failed.
    fn forget(&self, number: usize) {
        lock(&self.loaded[number]).take();
    }

    /// Rows of a part for all keys together: a power of two, as that for one key is.
    fn part_rows(&self, open: &Open<D>) -> usize {
        let keys = self.keys.len().max(1).next_power_of_two();
        (open.rows.load(Ordering::Relaxed) / keys).max(MIN_ROWS as usize)
    }

    fn label_counts(&self) -> Vec<u32> {
        self.targets.iter().map(|target| target.labels().len() as u32).collect()
    }

    /// Adds what a card found, and what the reference finds in the rows that it handed back.
    fn settle(&self, batch: RowBatch<'_>, (candidates, mut redo): Found, found: &mut Vec<Candidate>) {
        redo.sort_unstable();
        redo.dedup();
        found.extend(candidates.into_iter().filter(|candidate| redo.binary_search(&candidate.row).is_err()));
        for row in redo {
            for (number, target) in (0..).zip(&self.targets) {
                let point = &batch.points[row as usize];
                let slots = reference::row_slots(target, point, batch.row_outputs(row as usize));
                found.extend(slots.into_iter().map(|slot| Candidate { row, target: number, slot }));
            }
        }
    }
}

/// Looks in the rows of a part for every key.
fn steps<D: Device>(
    device: &D,
    lane: &mut D::Lane,
    part: &Part<'_, D::Tile>,
    keys: &D::Keys,
    label_counts: &[u32],
) -> Result<Found, Failure> {
    const AT_ONCE: u32 = MAX_LABELS as u32;
    let most = label_counts.iter().map(|count| (*count).min(AT_ONCE)).max().unwrap_or(0);
    device.begin(lane, part, most)?;
    let (mut found, mut redo) = (Vec::new(), Vec::new());
    for (key, count) in (0..).zip(label_counts) {
        // So many labels at once; without any, once.
        for first_label in (0..(*count).max(1)).step_by(AT_ONCE as usize) {
            let labels = (count - first_label).min(AT_ONCE);
            let step = Step { key, compute: first_label == 0, first_label, labels };
            for [row, target, slot] in device.step(lane, part, keys, step)? {
                if row as usize >= part.batch.len() || target != key || (slot != REDO && slot > labels) {
                    return Err(Failure::Nonsense);
                }
                match slot {
                    REDO => redo.push(row),
                    // Without a label it is looked for every time.
                    0 if first_label > 0 => {}
                    0 => found.push(Candidate { row, target, slot }),
                    slot => found.push(Candidate { row, target, slot: slot + first_label }),
                }
            }
        }
    }
    Ok((found, redo))
}

impl<D: Device> PreparedScan for Prepared<D> {
    fn batch_rows(&self) -> usize {
        let open = self.cards.iter().find_map(|card| match &*lock(&card.state) {
            State::Open(open) => Some(self.part_rows(open)),
            State::Failed(_) => None,
        });
        open.unwrap_or_else(|| self.processor.batch_rows())
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        let worker = self.next.fetch_add(1, Ordering::Relaxed) % (LANES * self.cards.len());
        if DeviceScan::scan(self, worker, batch, found).is_ok() {
            return;
        }
        // In parts of the size that it likes; that may take longer than a part of the card.
        let size = self.processor.batch_rows().max(1);
        for from in (0..batch.len()).step_by(size) {
            let mut part = Vec::new();
            self.processor.scan(batch.slice(from..batch.len().min(from + size)), &mut part);
            let moved = |candidate: Candidate| Candidate { row: from as u32 + candidate.row, ..candidate };
            found.extend(part.into_iter().map(moved));
        }
    }

    fn devices(&self) -> Option<&dyn DeviceScan> {
        Some(self)
    }
}

impl<D: Device> DeviceScan for Prepared<D> {
    fn is_worthwhile(&self, rows: usize) -> bool {
        !self.helped || rows > MANY
    }

    fn role(&self, worker: usize) -> Role {
        let feeds = worker < LANES * self.cards.len();
        let card = &self.cards[worker % self.cards.len()];
        if !feeds || !card.is_usable() {
            // When all cards rest there is nobody else.
            let alone = !self.cards.iter().any(Card::is_usable);
            return if self.helped || alone { Role::Processor } else { Role::Standby };
        }
        let rows = match &*lock(&card.state) {
            State::Open(open) => self.part_rows(open),
            State::Failed(_) => MIN_ROWS as usize,
        };
        Role::Device { rows }
    }

    fn scan(&self, worker: usize, batch: RowBatch<'_>, found: &mut Vec<Candidate>) -> Result<(), HandedBack> {
        if batch.is_empty() {
            return Ok(());
        }
        let on_card = self.on_card(worker, batch).ok_or(HandedBack)?;
        self.settle(batch, on_card, found);
        Ok(())
    }

    fn processor(&self) -> &dyn PreparedScan {
        &*self.processor
    }
}

impl<D: Device> Drop for Prepared<D> {
    /// Overwrites on the cards what comes from the keys.
    fn drop(&mut self) {
        for (card, loaded) in self.cards.iter().zip(&self.loaded) {
            let Some(Loaded { open, keys }) = lock(loaded).take() else { continue };
            // A context that is gone took its memory with it.
            let is_open = matches!(&*lock(&card.state), State::Open(now) if now.opening == open.opening);
            if !is_open {
                continue;
            }
            let wipe = || {
                for lane in &open.lanes {
                    open.device.wipe(&mut lock(lane))?;
                }
                Arc::into_inner(keys).map_or(Ok(()), |keys| open.device.unload(keys))
            };
            if let Err(failure) = guarded(wipe) {
                card.fail(&open, &failure);
            }
        }
    }
}
