//! The scan: rows in, candidate matches out.

use crate::comb;
use crate::field::{Field, GX, GY, Job, Packed, scalar, split_point};
use crate::isa::{Isa, Visit, dispatch};
use crate::lanes::{Factor, Finish, Slots, Start, State, Wiped, invert};
use crate::machine::{self, Machine};
use crate::program::{Program, Shape};
use crate::{modn, placement, sha};
use std::sync::{Mutex, PoisonError};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// What a scan needs to know of one key. Wiped on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct KeyMaterial {
    /// The scan secret, big-endian.
    pub scan_secret: [u8; 32],
    /// The spend point, affine x then y, 32 bytes little-endian each.
    pub spend: [u8; 64],
    /// The points label_m·G, in the same form.
    pub labels: Vec<[u8; 64]>,
}

/// A run of rows of the index, as they lie in its columns.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The tweak points: affine x then y, 32 bytes little-endian each.
    pub points: &'a [[u8; 64]],
    /// For every row, the running count of outputs at its end.
    pub output_ends: &'a [u32],
    /// The running count of outputs before the first row; `outputs` starts there.
    pub outputs_base: u32,
    /// The first eight bytes of every output's x-only key.
    pub outputs: &'a [[u8; 8]],
}

impl<'a> Rows<'a> {
    /// The outputs of a row; none where the columns don't fit together.
    #[inline]
    fn outputs_of(&self, row: usize) -> &'a [[u8; 8]] {
        let end =
            |row: usize| self.output_ends.get(row).map(|end| end.wrapping_sub(self.outputs_base) as usize);
        let start = if row == 0 { Some(0) } else { end(row - 1) };
        start.zip(end(row)).and_then(|(start, end)| self.outputs.get(start..end)).unwrap_or(&[])
    }
}

/// An output whose first eight bytes match; the caller confirms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hit {
    /// The row, counted from the first one given.
    pub row: u32,
    /// The key, in the order given to [`Scanner::new`].
    pub key: u32,
    /// 0 without a label, else the label's index plus one.
    pub slot: u32,
}

/// Why a scanner could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The processor lacks a feature of the instruction set.
    Unavailable {
        /// What was asked for.
        isa: Isa,
        /// What is missing.
        missing: &'static str,
    },
    /// The scan secret of this key is zero or not below the group order.
    InvalidSecret {
        /// The key's index.
        key: usize,
    },
    /// The spend point or a label point of this key is not on the curve.
    InvalidPoint {
        /// The key's index.
        key: usize,
    },
}

impl core::fmt::Display for KernelError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            KernelError::Unavailable { isa, missing } => {
                write!(f, "backend {isa} is not available: this processor lacks {missing}")
            }
            KernelError::InvalidSecret { key } => write!(f, "scan secret of key {key} is not a valid scalar"),
            KernelError::InvalidPoint { key } => write!(f, "a point of key {key} is not on the curve"),
        }
    }
}

impl core::error::Error for KernelError {}

/// Scans rows for a fixed set of keys. Everything that depends only on the keys is made once, and wiped on
/// drop; [`Scanner::scan`] may run on many threads at once.
pub struct Scanner {
    scan: Box<dyn Scan>,
    /// Where the stack is best; see [`placement`].
    place: usize,
}

impl Scanner {
    /// Prepares a scan for `keys` on `isa`.
    ///
    /// # Errors
    ///
    /// If the processor lacks the instruction set, or a key is not valid.
    pub fn new(isa: Isa, keys: &[KeyMaterial]) -> Result<Scanner, KernelError> {
        Self::with_shape(isa, keys, Shape::for_keys(keys.len()), None)
    }

    /// As [`Scanner::new`], with a chosen shape (points per row, orbit elements) and rows per chunk, for tests
    /// and measurements.
    ///
    /// # Errors
    ///
    /// As [`Scanner::new`].
    #[doc(hidden)]
    pub fn tuned(
        isa: Isa,
        keys: &[KeyMaterial],
        shape: Option<(usize, usize)>,
        rows: Option<usize>,
    ) -> Result<Scanner, KernelError> {
        let shape = match shape {
            Some((points, orbits)) => Shape { points, step: 128 / points, orbits },
            None => Shape::for_keys(keys.len()),
        };
        Self::with_shape(isa, keys, shape, rows)
    }

    fn with_shape(
        isa: Isa,
        keys: &[KeyMaterial],
        shape: Shape,
        rows: Option<usize>,
    ) -> Result<Scanner, KernelError> {
        struct New<'a>(&'a [KeyMaterial], Shape, Option<usize>);
        impl Visit for New<'_> {
            type Output = Result<Box<dyn Scan>, KernelError>;
            fn visit<F: Field>(self) -> Self::Output {
                Ok(Box::new(Engine::<F>::new(self.0, self.1, self.2)?))
            }
        }
        let made = dispatch(isa, New(keys, shape, rows));
        let scan = made.map_err(|missing| KernelError::Unavailable { isa, missing })??;
        let place = placement::best(isa, || {
            let key = KeyMaterial { scan_secret: [0x5a; 32], spend: stored_g(), labels: vec![stored_g()] };
            let keys = [key];
            let scan = dispatch(isa, New(&keys, Shape::for_keys(1), None)).ok()?.ok()?;
            Some(move || sample(&*scan))
        });
        Ok(Scanner { scan, place })
    }

    /// Appends the candidates among `rows` to `hits`, and to `redo` the rows that need the reference because a
    /// formula did not apply to them (both only in constructed cases; a row stands there once).
    pub fn scan(&self, rows: Rows<'_>, hits: &mut Vec<Hit>, redo: &mut Vec<u32>) {
        placement::run_at(self.place, &mut || self.scan.scan(&rows, hits, redo));
    }

    /// The number of rows that one call should have, or a multiple of it.
    pub fn preferred_rows(&self) -> usize {
        self.scan.preferred_rows()
    }
}

/// G as a row.
fn stored_g() -> [u8; 64] {
    let mut row = [0; 64];
    for (bytes, word) in row.chunks_exact_mut(8).zip(GX.into_iter().chain(GY)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    row
}

/// A short scan without outputs, for measuring.
fn sample(scan: &dyn Scan) {
    const ROWS: usize = 128;
    let rows = Rows { points: &[stored_g(); ROWS], output_ends: &[0; ROWS], outputs_base: 0, outputs: &[] };
    scan.scan(&rows, &mut Vec::new(), &mut Vec::new());
}

trait Scan: Send + Sync {
    fn scan(&self, rows: &Rows<'_>, hits: &mut Vec<Hit>, redo: &mut Vec<u32>);
    fn preferred_rows(&self) -> usize;
}

/// What a key is turned into.
struct Key<F: Field> {
    program: Program,
    top: Wiped<Packed>,
    /// Entries of `top` that are no point.
    missing: Vec<usize>,
    labels: Wiped<(F::Fe, F::Fe)>,
}

/// How many labels go through one pass.
const LABELS: usize = 8;
/// How many keys share their inversions.
const GROUP: usize = 16;

/// Memory that one thread works in.
struct Scratch<F: Field> {
    states: Vec<State<F>>,
    slots: Slots<F>,
    /// x(S), then t, of the rows of each key in the group.
    secrets: Vec<Wiped<[u64; 4]>>,
    ys: Wiped<[u64; 4]>,
    label_products: Wiped<F::Fe>,
}

struct Engine<F: Field> {
    keys: Vec<Key<F>>,
    shape: Shape,
    table: Program,
    /// Vectors of rows in a chunk.
    vectors: usize,
    pool: Mutex<Vec<Scratch<F>>>,
}

pub(crate) fn check_point(bytes: &[u8; 64]) -> Option<(scalar::Words, scalar::Words)> {
    let (x, y) = split_point(bytes);
    let cube = scalar::mul(&scalar::sqr(&x), &x);
    let right = scalar::add(&cube, &[7, 0, 0, 0]);
    let on_curve = scalar::is_zero(&scalar::sub(&scalar::sqr(&y), &right));
    (on_curve && x == scalar::canonical(&x) && y == scalar::canonical(&y)).then_some((x, y))
}

impl<F: Field> Engine<F> {
    fn new(keys: &[KeyMaterial], shape: Shape, rows: Option<usize>) -> Result<Self, KernelError> {
        let make = |(key, material): (usize, &KeyMaterial)| {
            let invalid = KernelError::InvalidPoint { key };
            let mut secret = modn::from_be(&material.scan_secret);
            let program = if modn::is_valid(&secret) { shape.multiply(&secret) } else { None };
            secret.zeroize();
            let program = program.ok_or(KernelError::InvalidSecret { key })?;
            let spend = check_point(&material.spend).ok_or(invalid)?;
            let (mut entries, missing) = comb::top_table(&Some(spend));
            let mut top = Wiped::new(Packed([0; 64]), entries.len());
            top.copy_from_slice(&entries);
            entries.iter_mut().for_each(|entry| entry.0.zeroize());
            let zero = F::splat(&[0; 4]);
            let mut labels = Wiped::new((zero, zero), material.labels.len());
            for (label, bytes) in labels.iter_mut().zip(&material.labels) {
                let (x, y) = check_point(bytes).ok_or(invalid)?;
                *label = (F::splat(&x), F::splat(&y));
            }
            Ok(Key { program, top, missing, labels })
        };
        let rows = rows.unwrap_or(if shape.points == 1 { F::CHUNK } else { F::CHUNK_MANY });
        comb::table();
        Ok(Engine {
            keys: keys.iter().enumerate().map(make).collect::<Result<_, _>>()?,
            shape,
            table: shape.table(),
            vectors: rows.div_ceil(F::LANES).max(1),
            pool: Mutex::new(Vec::new()),
        })
    }

    fn scratch(&self) -> Scratch<F> {
        let pooled = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        pooled.unwrap_or_else(|| {
            let group = self.keys.len().clamp(1, GROUP);
            let rows = self.vectors * F::LANES;
            Scratch {
                states: (0..group).map(|_| State::new(self.vectors)).collect(),
                slots: Slots::new(self.shape.slots(), self.vectors),
                secrets: (0..group).map(|_| Wiped::new([0; 4], rows)).collect(),
                ys: Wiped::new([0; 4], rows),
                label_products: Wiped::new(F::one(), LABELS * self.vectors),
            }
        })
    }

    /// Scans at most a chunk of rows, which begin at `first`.
    fn chunk(
        &self,
        rows: &Rows<'_>,
        first: usize,
        count: usize,
        s: &mut Scratch<F>,
        hits: &mut Vec<Hit>,
        bad: &mut [bool],
    ) {
        let len = count.div_ceil(F::LANES);
        let points = &rows.points[first..first + count];
        s.states[0].reset(len);
        F::enter(LoadRows::<F> { points, state: &mut s.states[0] });
        machine::run(&mut [Machine::new(&self.table)], &mut s.states[..1], &mut s.slots);
        mark(&s.states[0], bad);

        for (group, keys) in self.keys.chunks(GROUP).enumerate() {
            let states = &mut s.states[..keys.len()];
            states.iter_mut().for_each(|state| state.reset(len));
            let mut machines: Vec<Machine<'_>> = keys.iter().map(|key| Machine::new(&key.program)).collect();
            machine::run(&mut machines, states, &mut s.slots);

            for ((key, state), ts) in keys.iter().zip(states.iter_mut()).zip(&mut s.secrets) {
                let ts = &mut ts[..len * F::LANES];
                let ys = &mut s.ys[..len * F::LANES];
                F::enter(Unload::<F> { state, xs: ts, ys });
                sha::shared_secrets(ts, ys);
                for (t, bad) in ts.iter().zip(bad.iter_mut()) {
                    *bad |= !modn::is_valid(t);
                }
                if !key.missing.is_empty() {
                    for (t, bad) in ts.iter().zip(bad.iter_mut()) {
                        *bad |= key.missing.contains(&comb::top(t));
                    }
                }
                F::enter(LoadTop::<F> { state, top: &key.top, ts });
            }
            self.add_comb(keys, states, &s.secrets);

            for (k, (key, state)) in keys.iter().zip(states.iter_mut()).enumerate() {
                let matcher = Matcher { rows, first, count, key: (group * GROUP + k) as u32 };
                F::enter(Match::<F> { state, matcher, hits });
                for (at, labels) in key.labels.chunks(LABELS).enumerate() {
                    self.add_labels(state, labels, &mut s.label_products, matcher, at * LABELS, hits);
                }
                mark(state, bad);
            }
        }
    }

    /// Adds t·G − what the top tables hold already.
    fn add_comb(&self, keys: &[Key<F>], states: &mut [State<F>], secrets: &[Wiped<[u64; 4]>]) {
        let table = comb::table();
        let mut products = vec![(F::one(), Factor::One); keys.len()];
        let mut poisoned = vec![0; keys.len()];
        let mut finish = Finish::Nothing;
        for window in 0..comb::WINDOWS {
            for ((state, ts), product) in states.iter_mut().zip(secrets).zip(&mut products) {
                product.0 = state.pass(finish, Start::Comb(table, ts, window), &product.0);
            }
            poisoned.fill(0);
            invert::<F>(&mut products, &mut poisoned);
            for (state, mask) in states.iter_mut().zip(&poisoned) {
                state.poisoned |= mask;
            }
            finish = Finish::Add;
        }
        for ((state, key), product) in states.iter_mut().zip(keys).zip(&products) {
            let finish = if key.labels.is_empty() { Finish::AddX } else { Finish::Add };
            state.pass(finish, Start::Nothing, &product.0);
        }
    }

    fn add_labels(
        &self,
        state: &mut State<F>,
        labels: &[(F::Fe, F::Fe)],
        products: &mut [F::Fe],
        matcher: Matcher<'_>,
        slot: usize,
        hits: &mut Vec<Hit>,
    ) {
        let mut totals = [(F::one(), Factor::One); LABELS];
        let totals = &mut totals[..labels.len()];
        F::enter(StartLabels::<F> { state, labels, products, totals });
        let mut poisoned = [0; LABELS];
        invert::<F>(totals, &mut poisoned[..labels.len()]);
        for mask in poisoned {
            state.poisoned |= mask;
        }
        F::enter(FinishLabels::<F> { state, labels, products, totals, matcher, slot, hits });
    }
}

/// Marks the rows of the lanes that met a zero.
fn mark<F: Field>(state: &State<F>, bad: &mut [bool]) {
    if state.poisoned != 0 {
        for (row, bad) in bad.iter_mut().enumerate() {
            *bad |= state.poisoned >> (row % F::LANES) & 1 != 0;
        }
    }
}

impl<F: Field> Scan for Engine<F> {
    fn scan(&self, rows: &Rows<'_>, hits: &mut Vec<Hit>, redo: &mut Vec<u32>) {
        let total = rows.points.len();
        let mut scratch = self.scratch();
        let mut bad = Vec::new();
        let mut first = 0;
        while first < total {
            let count = (total - first).min(self.vectors * F::LANES);
            bad.clear();
            bad.resize(count, false);
            self.chunk(rows, first, count, &mut scratch, hits, &mut bad);
            redo.extend((first..).zip(&bad).filter(|(_, bad)| **bad).map(|(row, _)| row as u32));
            first += count;
        }
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    fn preferred_rows(&self) -> usize {
        self.vectors * F::LANES
    }
}

pub(crate) struct LoadRows<'a, F: Field> {
    pub(crate) points: &'a [[u8; 64]],
    pub(crate) state: &'a mut State<F>,
}

impl<F: Field> Job<F> for LoadRows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let len = self.state.len;
        let last = self.points.len() - 1;
        for (i, cell) in self.state.cells[..len].iter_mut().enumerate() {
            // Lanes without a row repeat the last one.
            (cell.x, cell.y) = F::load_points(|lane| &self.points[(i * F::LANES + lane).min(last)]);
        }
    }
}

/// Takes canonical coordinates out of the lanes.
pub(crate) struct Unload<'a, F: Field> {
    pub(crate) state: &'a State<F>,
    pub(crate) xs: &'a mut [[u64; 4]],
    pub(crate) ys: &'a mut [[u64; 4]],
}

impl<F: Field> Job<F> for Unload<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.xs.chunks_exact_mut(F::LANES).zip(self.ys.chunks_exact_mut(F::LANES));
        for (cell, (xs, ys)) in self.state.cells.iter().zip(rows) {
            F::to_words(&cell.x, xs);
            F::to_words(&cell.y, ys);
        }
    }
}

struct LoadTop<'a, F: Field> {
    state: &'a mut State<F>,
    top: &'a [Packed],
    ts: &'a [[u64; 4]],
}

impl<F: Field> Job<F> for LoadTop<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let len = self.state.len;
        for (cell, ts) in self.state.cells[..len].iter_mut().zip(self.ts.chunks_exact(F::LANES)) {
            (cell.x, cell.y) = F::load_points(|lane| &self.top[comb::top(&ts[lane])].0);
        }
    }
}

#[derive(Clone, Copy)]
struct Matcher<'a> {
    rows: &'a Rows<'a>,
    first: usize,
    count: usize,
    key: u32,
}

impl Matcher<'_> {
    /// Compares the x of the rows of one vector with their outputs.
    #[inline(always)]
    fn compare<F: Field>(&self, vector: usize, x: &F::Fe, slot: u32, hits: &mut Vec<Hit>) {
        let mut tops = [0; 8];
        F::top_words(x, &mut tops);
        let start = vector * F::LANES;
        for (row, top) in (start..self.count.min(start + F::LANES)).zip(&tops) {
            let row = self.first + row;
            if self.rows.outputs_of(row).iter().any(|output| u64::from_be_bytes(*output) == *top) {
                hits.push(Hit { row: row as u32, key: self.key, slot });
            }
        }
    }
}

struct Match<'a, F: Field> {
    state: &'a State<F>,
    matcher: Matcher<'a>,
    hits: &'a mut Vec<Hit>,
}

impl<F: Field> Job<F> for Match<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (i, cell) in self.state.cells[..self.state.len].iter().enumerate() {
            self.matcher.compare::<F>(i, &cell.x, 0, self.hits);
        }
    }
}

struct StartLabels<'a, F: Field> {
    state: &'a State<F>,
    labels: &'a [(F::Fe, F::Fe)],
    products: &'a mut [F::Fe],
    totals: &'a mut [(F::Fe, Factor)],
}

impl<F: Field> Job<F> for StartLabels<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let cells = &self.state.cells[..self.state.len];
        // A chain per label: they are independent, so that their latencies overlap.
        for (cell, products) in cells.iter().zip(self.products.chunks_exact_mut(LABELS)) {
            for (((x, _), product), (total, _)) in
                self.labels.iter().zip(products).zip(self.totals.iter_mut())
            {
                *product = *total;
                *total = F::mul_w(&F::sub(x, &cell.x), total);
            }
        }
    }
}

struct FinishLabels<'a, F: Field> {
    state: &'a State<F>,
    labels: &'a [(F::Fe, F::Fe)],
    products: &'a [F::Fe],
    totals: &'a mut [(F::Fe, Factor)],
    matcher: Matcher<'a>,
    slot: usize,
    hits: &'a mut Vec<Hit>,
}

impl<F: Field> Job<F> for FinishLabels<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let cells = &self.state.cells[..self.state.len];
        let rows = cells.iter().zip(self.products.chunks_exact(LABELS)).enumerate().rev();
        for (i, (cell, products)) in rows {
            let lanes = self.labels.iter().zip(products).zip(self.totals.iter_mut());
            for (label, (((x, y), product), (acc, _))) in lanes.enumerate() {
                let den = F::sub(x, &cell.x);
                let t = F::mul(acc, product);
                *acc = F::mul_w(&den, acc);
                let slope = F::mul_w(&F::sub(y, &cell.y), &t);
                let sum = F::sqr_sub(&slope, &F::twice_plus(&cell.x, &den));
                self.matcher.compare::<F>(i, &sum, (self.slot + label + 1) as u32, self.hits);
            }
        }
    }
}
