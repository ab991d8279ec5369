//! Points of many rows moving in lock-step, in affine coordinates with shared inversions.
//!
//! A *pass* walks over all rows once. For every row it finishes the operation whose denominators were inverted
//! together, and starts the next one: it multiplies the row's next denominator into a running product and keeps
//! the product of those before it. The next pass walks the other way. Starting from the inverse of the whole
//! product it meets the rows in reverse, so that (inverse so far)·(kept product) is the row's own inverse.
//! Fusing the end of one operation with the start of the next saves a walk and hides the latency of the product
//! chains behind independent work.
//!
//! Products run per lane. A zero denominator makes the lane's product zero; [`invert`] notices and the rows of
//! that lane are given up, no others.

use crate::comb;
use crate::field::{Field, Job, Packed, THREE_HALVES, inverse, scalar};
use crate::recode::Operand;
use zeroize::Zeroize;

/// A tabulated point of each row.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Entry<F: Field> {
    pub(crate) x: F::Fe,
    /// β·x
    pub(crate) bx: F::Fe,
    pub(crate) y: F::Fe,
}

/// Denominators and kept products of one row, and what else the pass needs.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Cell<F: Field> {
    pub(crate) x: F::Fe,
    pub(crate) y: F::Fe,
    /// The product of the denominators before this one.
    product: F::Fe,
    /// The denominator, where it is not y.
    den: F::Wide,
    /// The numerator of an addition.
    num: F::Wide,
    /// The slope of the first half of 2P + Q.
    slope: F::Fe,
}

/// Memory that is wiped when it goes away.
pub(crate) struct Wiped<T: Copy>(Vec<T>);

impl<T: Copy> Wiped<T> {
    pub(crate) fn new(value: T, len: usize) -> Self {
        Wiped(vec![value; len])
    }
}

impl<T: Copy> core::ops::Deref for Wiped<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Copy> core::ops::DerefMut for Wiped<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Copy> Drop for Wiped<T> {
    fn drop(&mut self) {
        let bytes = core::mem::size_of_val(self.0.as_slice());
        // SAFETY: the memory is ours and initialised; `T` is `Copy`, all users store plain numbers in it, for
        // which zero bytes are valid, and it is not read as `T` again.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), bytes) }.zeroize();
    }
}

/// The slots of all rows: entry `slot·vectors + vector`.
pub(crate) struct Slots<F: Field> {
    entries: Wiped<Entry<F>>,
    vectors: usize,
}

impl<F: Field> Slots<F> {
    pub(crate) fn new(slots: usize, vectors: usize) -> Self {
        let one = F::one();
        Slots { entries: Wiped::new(Entry { x: one, bx: one, y: one }, slots * vectors), vectors }
    }

    #[inline(always)]
    fn entry(&self, slot: usize, vector: usize) -> &Entry<F> {
        &self.entries[slot * self.vectors + vector]
    }

    pub(crate) fn get(&self, slot: usize, len: usize) -> &[Entry<F>] {
        &self.entries[slot * self.vectors..][..len]
    }

    pub(crate) fn get_mut(&mut self, slot: usize, len: usize) -> &mut [Entry<F>] {
        &mut self.entries[slot * self.vectors..][..len]
    }
}

/// The points of a chunk and the operation under way.
pub(crate) struct State<F: Field> {
    pub(crate) cells: Wiped<Cell<F>>,
    /// How many vectors of rows are in use.
    pub(crate) len: usize,
    /// The direction of the next pass.
    reverse: bool,
    /// Lanes that met a zero denominator.
    pub(crate) poisoned: u32,
}

/// What the coming pass finishes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Nothing,
    Double,
    /// P + Q of 2P + Q, without y.
    First,
    /// (P + Q) + P of 2P + Q.
    Second,
    Add,
    /// An addition without y.
    AddX,
}

/// What the coming pass starts.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a, F: Field> {
    Nothing,
    Double,
    Second,
    /// Addition of a tabulated point, ±ω^unit times the entry.
    Table(&'a [Entry<F>], Operand),
    /// Addition of one of eight slots, chosen by a digit of each row.
    Chosen(&'a Slots<F>, Digits<'a>),
    /// Addition of an entry of the generator's table, chosen by a window of each row's t.
    Comb(&'a [Packed], &'a [[u64; 4]], usize),
}

/// Which of the odd multiples in the slots each row takes: window u stands for 2u − 15.
#[derive(Clone, Copy)]
pub(crate) struct Digits<'a> {
    pub(crate) windows: &'a [[u64; 3]],
    pub(crate) window: usize,
    /// Whether the multiple of ω·T is meant.
    pub(crate) beta: bool,
}

impl Digits<'_> {
    /// The chosen x and y of the rows of one vector, and the lanes to negate.
    #[inline(always)]
    fn choose<F: Field>(&self, slots: &Slots<F>, vector: usize) -> (F::Fe, F::Fe, u32) {
        let one = F::one();
        let (mut x, mut y) = (one, one);
        let mut negative = 0;
        let windows = &self.windows[vector * F::LANES..(vector + 1) * F::LANES];
        for (lane, windows) in windows.iter().enumerate() {
            let u = (windows[self.window / 16] >> (self.window % 16 * 4) & 15) as usize;
            negative |= u32::from(u < 8) << lane;
            let entry = slots.entry(if u < 8 { 7 - u } else { u - 8 }, vector);
            copy_lane::<F>(&mut x, if self.beta { &entry.bx } else { &entry.x }, lane);
            copy_lane::<F>(&mut y, &entry.y, lane);
        }
        (x, y, negative)
    }
}

/// Copies one lane of an element.
#[inline(always)]
fn copy_lane<F: Field>(to: &mut F::Fe, from: &F::Fe, lane: usize) {
    let words = size_of::<F::Fe>() / 8;
    let (to, from) = (core::ptr::from_mut(to).cast::<u64>(), core::ptr::from_ref(from).cast::<u64>());
    let mut at = lane;
    while at < words {
        // SAFETY: an element is an array of `words` 64-bit words, limb by limb with one word per lane, and `at`
        // is below that; the references are to different elements.
        unsafe { *to.add(at) = *from.add(at) };
        at += F::LANES;
    }
}

const NOTHING: u8 = 0;
const DOUBLE: u8 = 1;
const FIRST: u8 = 2;
const SECOND: u8 = 3;
const ADD: u8 = 4;
const ADD_X: u8 = 5;
const TABLE: u8 = 2;
const CHOSEN: u8 = 5;
const COMB: u8 = 4;

impl<F: Field> State<F> {
    pub(crate) fn new(vectors: usize) -> Self {
        let one = F::one();
        let wide = F::sub(&one, &one);
        let cell = Cell { x: one, y: one, product: one, den: wide, num: wide, slope: one };
        State { cells: Wiped::new(cell, vectors), len: 0, reverse: false, poisoned: 0 }
    }

    /// Makes the chosen slots the current points.
    pub(crate) fn choose(&mut self, slots: &Slots<F>, digits: Digits<'_>) {
        F::enter(Choose::<F> { state: self, slots, digits });
    }

    /// Starts over with `len` vectors of rows.
    pub(crate) fn reset(&mut self, len: usize) {
        self.len = len;
        self.poisoned = 0;
    }

    /// One pass; gives back the product of the denominators of what was started.
    pub(crate) fn pass(&mut self, finish: Finish, start: Start<'_, F>, inverse: &F::Fe) -> F::Fe {
        macro_rules! run {
            ($finish:expr, $start:expr) => {
                F::enter(Pass::<F, { $finish }, { $start }> { state: self, start, inverse: *inverse })
            };
        }
        match (finish, start) {
            (Finish::Nothing, Start::Double) => run!(NOTHING, DOUBLE),
            (Finish::Nothing, Start::Table(..)) => run!(NOTHING, TABLE),
            (Finish::Nothing, Start::Chosen(..)) => run!(NOTHING, CHOSEN),
            (Finish::Nothing, Start::Comb(..)) => run!(NOTHING, COMB),
            (Finish::Nothing, _) => *inverse,
            (Finish::Double, Start::Double) => run!(DOUBLE, DOUBLE),
            (Finish::Double, Start::Table(..)) => run!(DOUBLE, TABLE),
            (Finish::Double, Start::Chosen(..)) => run!(DOUBLE, CHOSEN),
            (Finish::Double, _) => run!(DOUBLE, NOTHING),
            (Finish::First, _) => run!(FIRST, SECOND),
            (Finish::Second, Start::Double) => run!(SECOND, DOUBLE),
            (Finish::Second, Start::Table(..)) => run!(SECOND, TABLE),
            (Finish::Second, Start::Chosen(..)) => run!(SECOND, CHOSEN),
            (Finish::Second, _) => run!(SECOND, NOTHING),
            (Finish::Add, Start::Double) => run!(ADD, DOUBLE),
            (Finish::Add, Start::Table(..)) => run!(ADD, TABLE),
            (Finish::Add, Start::Comb(..)) => run!(ADD, COMB),
            (Finish::Add, _) => run!(ADD, NOTHING),
            (Finish::AddX, _) => run!(ADD_X, NOTHING),
        }
    }
}

struct Choose<'a, F: Field> {
    state: &'a mut State<F>,
    slots: &'a Slots<F>,
    digits: Digits<'a>,
}

impl<F: Field> Job<F> for Choose<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (one, zero) = (F::one(), F::splat(&[0; 4]));
        let len = self.state.len;
        for (i, cell) in self.state.cells[..len].iter_mut().enumerate() {
            let (x, y, negative) = self.digits.choose(self.slots, i);
            cell.x = x;
            cell.y = F::mul_w(&F::signed_sub(&y, negative, &zero), &one);
        }
    }
}

struct Pass<'a, F: Field, const FINISH: u8, const START: u8> {
    state: &'a mut State<F>,
    start: Start<'a, F>,
    inverse: F::Fe,
}

impl<F: Field, const FINISH: u8, const START: u8> Job<F> for Pass<'_, F, FINISH, START> {
    type Output = F::Fe;

    #[inline(always)]
    fn run(self) -> F::Fe {
        let State { cells, len, reverse, .. } = self.state;
        let start = &self.start;
        let n = *len;
        let cells = &mut cells[..n];
        let base = cells.as_ptr();
        let mut acc = self.inverse;
        let mut run = F::one();
        let back = *reverse;
        *reverse = !back;
        let at = |k: usize| if back { n - 1 - k } else { k };
        let fetch = |i: usize| {
            if F::LANES > 1 && START == TABLE {
                let next = if back { i.wrapping_sub(3) } else { i + 3 };
                touch::<Cell<F>>(base.wrapping_add(next));
                if let Start::Table(entries, operand) = start
                    && let Some(entry) = entries.get(next)
                {
                    if operand.unit != 1 {
                        touch(&entry.x);
                    }
                    if operand.unit != 0 {
                        touch(&entry.bx);
                    }
                    touch(&entry.y);
                }
            }
            if START == COMB
                && let Start::Comb(table, ts, window) = start
            {
                let ahead = AHEAD / F::LANES;
                prefetch::<F>(table, ts, *window, if back { i.wrapping_sub(ahead) } else { i + ahead });
            }
        };

        // One or two vectors of rows, stage by stage. Two keep the processor in independent multiplications
        // where one row's chain of five is longer than it can look ahead.
        macro_rules! step {
            ($([$i:ident $x:ident $y:ident $t:ident $slope:ident $x3:ident])+) => {
                $(
                    let cell = &cells[$i];
                    let ($x, $y) = (cell.x, cell.y);
                )+
                let ($($t,)+);
                if FINISH != NOTHING {
                    $(
                        let cell = &cells[$i];
                        $t = F::mul(&acc, &cell.product);
                        acc = if FINISH == DOUBLE { F::mul(&acc, &$y) } else { F::mul_w(&cell.den, &acc) };
                    )+
                } else {
                    $($t = acc;)+
                }
                let ($($x3,)+);
                if FINISH == DOUBLE {
                    // The inverse carries a factor 3/2.
                    $(let $slope = F::sqr(&$x);)+
                    $(let $slope = F::mul(&$slope, &$t);)+
                    $($x3 = F::sqr_sub(&$slope, &F::twice(&$x));)+
                    $(
                        let cell = &mut cells[$i];
                        cell.y = F::mul_sub(&F::sub(&$x, &$x3), &$slope, &$y);
                        cell.x = $x3;
                    )+
                } else if FINISH == SECOND {
                    // The inverse carries a factor 2; the slope is minus the usual one.
                    $(let $slope = F::mul_add(&$y, &$t, &cells[$i].slope);)+
                    $($x3 = F::sqr_sub(&$slope, &F::twice_plus(&$x, &cells[$i].den));)+
                    $(
                        let cell = &mut cells[$i];
                        cell.y = F::mul_sub(&F::sub(&$x3, &$x), &$slope, &$y);
                        cell.x = $x3;
                    )+
                } else if FINISH != NOTHING {
                    $(let $slope = F::mul_w(&cells[$i].num, &$t);)+
                    $($x3 = F::sqr_sub(&$slope, &F::twice_plus(&$x, &cells[$i].den));)+
                    $(
                        let cell = &mut cells[$i];
                        if FINISH == FIRST {
                            cell.den = F::sub(&$x3, &$x);
                            cell.slope = $slope;
                        } else {
                            if FINISH == ADD {
                                cell.y = F::mul_sub(&F::sub(&$x, &$x3), &$slope, &$y);
                            }
                            cell.x = $x3;
                        }
                    )+
                }
                $(begin::<F, START>(&mut cells[$i], $i, start, &mut run);)+
            };
        }

        let mut k = 0;
        while F::PAIRS && k + 2 <= n {
            let (i, j) = (at(k), at(k + 1));
            fetch(i);
            fetch(j);
            step!([i x y t slope x3] [j x_ y_ t_ slope_ x3_]);
            k += 2;
        }
        while k < n {
            let i = at(k);
            fetch(i);
            step!([i x y t slope x3]);
            k += 1;
        }
        run
    }
}

/// Takes the next denominator of a vector of rows into the running product.
#[inline(always)]
fn begin<F: Field, const START: u8>(cell: &mut Cell<F>, i: usize, start: &Start<'_, F>, run: &mut F::Fe) {
    match START {
        TABLE => {
            if let Start::Table(entries, operand) = start {
                let entry = &entries[i];
                cell.den = match operand.unit {
                    0 => F::sub(&entry.x, &cell.x),
                    1 => F::sub(&entry.bx, &cell.x),
                    // β²x = −x − βx
                    _ => F::neg_sum3(&entry.x, &entry.bx, &cell.x),
                };
                cell.num =
                    if operand.neg { F::neg_sum(&entry.y, &cell.y) } else { F::sub(&entry.y, &cell.y) };
            }
        }
        CHOSEN => {
            if let Start::Chosen(slots, digits) = start {
                let (x, y, negative) = digits.choose(slots, i);
                cell.den = F::sub(&x, &cell.x);
                cell.num = F::signed_sub(&y, negative, &cell.y);
            }
        }
        COMB => {
            if let Start::Comb(table, ts, window) = start {
                let ts = &ts[i * F::LANES..(i + 1) * F::LANES];
                let mut index = [0; 8];
                let mut negative = 0;
                for (lane, t) in ts.iter().enumerate() {
                    let (at, neg) = comb::lookup(t, *window);
                    index[lane] = at;
                    negative |= u32::from(neg) << lane;
                }
                let (x, y) = F::load_points(|lane| &table[index[lane]].0);
                cell.den = F::sub(&x, &cell.x);
                cell.num = F::signed_sub(&y, negative, &cell.y);
            }
        }
        _ => {}
    }
    if START != NOTHING {
        cell.product = *run;
        *run = if START == DOUBLE { F::mul(&cell.y, run) } else { F::mul_w(&cell.den, run) };
    }
}

/// How many rows ahead the generator's table is fetched.
const AHEAD: usize = 32;

/// Asks for the cache lines of a value.
#[inline(always)]
fn touch<T>(value: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        let start = value.cast::<i8>();
        let mut at = 0;
        while at < size_of::<T>() {
            // SAFETY: prefetching never faults; every x86-64 has the instruction.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at));
            }
            at += 64;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

#[inline(always)]
fn prefetch<F: Field>(table: &[Packed], ts: &[[u64; 4]], window: usize, vector: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(ts) = ts.get(vector.wrapping_mul(F::LANES)..vector.wrapping_add(1).wrapping_mul(F::LANES)) {
        for t in ts {
            let entry: *const Packed = &table[comb::lookup(t, window).0];
            // SAFETY: prefetching never faults; every x86-64 has the instruction.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(entry.cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, ts, window, vector);
}

/// The constant that the inverses of a pass carry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factor {
    One,
    Two,
    ThreeHalves,
}

/// Inverts products lane by lane, all with one inversion. A zero lane becomes one, and its bit is set in the
/// element's mask.
pub(crate) fn invert<F: Field>(products: &mut [(F::Fe, Factor)], poisoned: &mut [u32]) {
    const MOST: usize = 16;
    for (products, poisoned) in products.chunks_mut(MOST).zip(poisoned.chunks_mut(MOST)) {
        if products.len() > 1 && F::enter(InvertTogether::<F> { products }) {
            continue;
        }
        F::enter(Invert::<F> { products, poisoned });
    }
}

/// Multiplies the elements together first; does nothing and says `false` where a lane is zero.
struct InvertTogether<'a, F: Field> {
    products: &'a mut [(F::Fe, Factor)],
}

impl<F: Field> Job<F> for InvertTogether<'_, F> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let one = F::one();
        let mut before = [one; 16];
        let mut run = one;
        for ((product, _), before) in self.products.iter().zip(&mut before) {
            *before = run;
            run = F::mul(&run, product);
        }
        let mut total = [(run, Factor::One)];
        let mut poisoned = [0];
        Invert::<F> { products: &mut total, poisoned: &mut poisoned }.run();
        if poisoned != [0] {
            return false;
        }
        let mut acc = total[0].0;
        let (two, three_halves) = (F::splat(&[2, 0, 0, 0]), F::splat(&THREE_HALVES));
        for ((product, factor), before) in self.products.iter_mut().zip(&before).rev() {
            let inverse = F::mul(&acc, before);
            acc = F::mul(&acc, product);
            *product = match factor {
                Factor::One => inverse,
                Factor::Two => F::mul(&inverse, &two),
                Factor::ThreeHalves => F::mul(&inverse, &three_halves),
            };
        }
        true
    }
}

struct Invert<'a, F: Field> {
    products: &'a mut [(F::Fe, Factor)],
    poisoned: &'a mut [u32],
}

impl<F: Field> Job<F> for Invert<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        const BATCH: usize = 16;
        let Invert { products, poisoned } = self;
        {
            let mut words = [[0u64; 4]; 8 * BATCH];
            let mut before = [[0u64; 4]; 8 * BATCH];
            let count = products.len() * F::LANES;
            let mut run = [1, 0, 0, 0];
            for (e, (product, _)) in products.iter().enumerate() {
                let lanes = &mut words[e * F::LANES..(e + 1) * F::LANES];
                F::to_words(product, lanes);
                for (lane, value) in lanes.iter_mut().enumerate() {
                    if *value == [0; 4] {
                        *value = [1, 0, 0, 0];
                        poisoned[e] |= 1 << lane;
                    }
                    before[e * F::LANES + lane] = run;
                    run = scalar::mul(&run, value);
                }
            }
            let mut acc = inverse::invert(&run);
            for k in (0..count).rev() {
                let value = words[k];
                words[k] = scalar::mul(&acc, &before[k]);
                acc = scalar::mul(&acc, &value);
            }
            for (e, (product, factor)) in products.iter_mut().enumerate() {
                let lanes = &mut words[e * F::LANES..(e + 1) * F::LANES];
                match factor {
                    Factor::One => {}
                    Factor::Two => lanes.iter_mut().for_each(|v| *v = scalar::add(v, v)),
                    Factor::ThreeHalves => {
                        lanes.iter_mut().for_each(|v| *v = scalar::mul(v, &THREE_HALVES));
                    }
                }
                *product = F::from_words(lanes);
            }
        }
    }
}
