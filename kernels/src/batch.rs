//! Multiplication by a scalar of its own per row, and square roots, for building an index.
//!
//! A scalar is split along the endomorphism into two odd halves (lattice vectors fix the parities), and an odd
//! number below 2^132 has 33 windows of four bits that are all odd: u stands for 2u − 15. So every row does the
//! same operations, with one of eight tabulated odd multiples, chosen and signed per lane.

use crate::field::{Field, Job};
use crate::isa::{Isa, Visit, dispatch};
use crate::lanes::{Digits, Factor, Finish, Slots, Start, State, Wiped, invert};
use crate::machine::{self, Machine};
use crate::modn::{self, Int};
use crate::program::odd_multiples;
use crate::scan::{KernelError, LoadRows, Unload};

/// Windows per half.
const WINDOWS: usize = 33;
/// Slots of [`odd_multiples`].
const SLOTS: usize = 9;

/// Multiplies every point by its scalar: points are affine, x then y, 32 bytes little-endian each; scalars are
/// big-endian. Gives back the rows that it could not do, in order: scalars that are zero or not below the group
/// order, and rows that shared a lane with something that is not a point of the curve. What stands in `out` for
/// those has no meaning.
///
/// # Errors
///
/// If the processor lacks the instruction set.
///
/// # Panics
///
/// If the slices differ in length.
pub fn mul_batch(
    isa: Isa,
    points: &[[u8; 64]],
    scalars_be: &[[u8; 32]],
    out: &mut [[u8; 64]],
) -> Result<Vec<u32>, KernelError> {
    assert_eq!(points.len(), scalars_be.len(), "one scalar per point");
    assert_eq!(points.len(), out.len(), "one result per point");
    struct Work<'a>(&'a [[u8; 64]], &'a [[u8; 32]], &'a mut [[u8; 64]]);
    impl Visit for Work<'_> {
        type Output = Vec<u32>;
        fn visit<F: Field>(self) -> Vec<u32> {
            let rows = self.0.len().div_ceil(F::LANES).min(F::CHUNK.div_ceil(F::LANES)) * F::LANES;
            let mut batch = Multiply::<F>::new(rows.max(F::LANES));
            let mut failed = Vec::new();
            let parts = self.0.chunks(batch.rows()).zip(self.1.chunks(batch.rows()));
            for (at, ((points, scalars), out)) in parts.zip(self.2.chunks_mut(batch.rows())).enumerate() {
                batch.run(points, scalars, out, at * batch.rows(), &mut failed);
            }
            failed
        }
    }
    dispatch(isa, Work(points, scalars_be, out)).map_err(|missing| KernelError::Unavailable { isa, missing })
}

struct Multiply<F: Field> {
    state: State<F>,
    slots: Slots<F>,
    halves: [Wiped<[u64; 3]>; 2],
    xs: Wiped<[u64; 4]>,
    ys: Wiped<[u64; 4]>,
    vectors: usize,
}

/// (k + 2^132 − 1)/2 for an odd signed k.
fn windows(k: &Int) -> [u64; 3] {
    let (sum, _) = modn::wrapping_add(k, &[u64::MAX, u64::MAX, 15, 0]);
    [sum[0] >> 1 | sum[1] << 63, sum[1] >> 1 | sum[2] << 63, sum[2] >> 1 & 15]
}

impl<F: Field> Multiply<F> {
    fn new(rows: usize) -> Self {
        let vectors = rows / F::LANES;
        Multiply {
            state: State::new(vectors),
            slots: Slots::new(SLOTS, vectors),
            halves: [Wiped::new([0; 3], rows), Wiped::new([0; 3], rows)],
            xs: Wiped::new([0; 4], rows),
            ys: Wiped::new([0; 4], rows),
            vectors,
        }
    }

    fn rows(&self) -> usize {
        self.vectors * F::LANES
    }

    fn run(
        &mut self,
        points: &[[u8; 64]],
        scalars: &[[u8; 32]],
        out: &mut [[u8; 64]],
        first: usize,
        failed: &mut Vec<u32>,
    ) {
        let len = points.len().div_ceil(F::LANES);
        let mut valid = vec![true; points.len()];
        for row in 0..len * F::LANES {
            let mut k = scalars.get(row).map_or([1, 0, 0, 0], modn::from_be);
            if !modn::is_valid(&k) {
                if let Some(valid) = valid.get_mut(row) {
                    *valid = false;
                }
                k = [1, 0, 0, 0];
            }
            let (mut k1, mut k2) = modn::split(&k);
            modn::make_odd(&mut k1, &mut k2);
            self.halves[0][row] = windows(&k1);
            self.halves[1][row] = windows(&k2);
        }
        self.state.reset(len);
        F::enter(LoadRows::<F> { points, state: &mut self.state });
        let table = odd_multiples();
        machine::run(&mut [Machine::new(&table)], core::slice::from_mut(&mut self.state), &mut self.slots);

        // The topmost digits start the sum.
        let Multiply { state, slots, halves, .. } = self;
        let mut inverse = F::one();
        let mut finish = Finish::Nothing;
        for window in (0..WINDOWS).rev() {
            let [first, second] =
                [0, 1].map(|half| Digits { windows: &halves[half], window, beta: half == 1 });
            if window + 1 == WINDOWS {
                state.choose(slots, first);
            } else {
                for _ in 0..3 {
                    inverse = step(state, finish, Start::Double, inverse, Factor::ThreeHalves);
                    finish = Finish::Double;
                }
                inverse = step(state, finish, Start::Chosen(slots, first), inverse, Factor::One);
                inverse = step(state, Finish::First, Start::Second, inverse, Factor::Two);
                finish = Finish::Second;
            }
            inverse = step(state, finish, Start::Chosen(slots, second), inverse, Factor::One);
            finish = Finish::Add;
        }
        self.state.pass(finish, Start::Nothing, &inverse);
        F::enter(Unload::<F> { state: &self.state, xs: &mut self.xs[..len * F::LANES], ys: &mut self.ys });
        for (row, out) in out.iter_mut().enumerate() {
            *out = crate::field::Packed::new(&self.xs[row], &self.ys[row]).0;
            if !valid[row] || self.state.poisoned >> (row % F::LANES) & 1 != 0 {
                failed.push((first + row) as u32);
            }
        }
    }
}

/// One pass and the inversion behind it.
fn step<F: Field>(
    state: &mut State<F>,
    finish: Finish,
    start: Start<'_, F>,
    inverse: F::Fe,
    factor: Factor,
) -> F::Fe {
    let mut products = [(state.pass(finish, start, &inverse), factor)];
    let mut poisoned = [0];
    invert::<F>(&mut products, &mut poisoned);
    state.poisoned |= poisoned[0];
    products[0].0
}

/// Finds the point for every x (big-endian) with y odd or even as asked; points come out as x then y, 32 bytes
/// little-endian each. Gives back the rows without such a point, in order; what stands in `out` for those has no
/// meaning.
///
/// # Errors
///
/// If the processor lacks the instruction set.
///
/// # Panics
///
/// If the slices differ in length.
pub fn lift_x_batch(
    isa: Isa,
    xs_be: &[[u8; 32]],
    odd: &[bool],
    out: &mut [[u8; 64]],
) -> Result<Vec<u32>, KernelError> {
    assert_eq!(xs_be.len(), odd.len(), "one parity per x");
    assert_eq!(xs_be.len(), out.len(), "one result per x");
    struct Work<'a>(&'a [[u8; 32]], &'a [bool], &'a mut [[u8; 64]]);
    impl Visit for Work<'_> {
        type Output = Vec<u32>;
        fn visit<F: Field>(self) -> Vec<u32> {
            let mut failed = Vec::new();
            F::enter(LiftX::<F> { xs: self.0, odd: self.1, out: self.2, failed: &mut failed, _field: [] });
            failed
        }
    }
    dispatch(isa, Work(xs_be, odd, out)).map_err(|missing| KernelError::Unavailable { isa, missing })
}

struct LiftX<'a, F: Field> {
    xs: &'a [[u8; 32]],
    odd: &'a [bool],
    out: &'a mut [[u8; 64]],
    failed: &'a mut Vec<u32>,
    _field: [F; 0],
}

/// (p + 1)/4 = 2^254 − 2^30 − 244: square so often, then multiply with an earlier value; value 0 is the base
/// and value i + 1 comes out of line i. The comments give the bits of ones collected.
const ROOT: [(usize, usize); 13] = [
    (1, 0),  // 2
    (1, 0),  // 3
    (3, 2),  // 6
    (3, 2),  // 9
    (2, 1),  // 11
    (11, 5), // 22
    (22, 6), // 44
    (44, 7), // 88
    (88, 8), // 176
    (44, 7), // 220
    (3, 2),  // 223
    (23, 6), // 223 ones, a zero, 22 ones
    (6, 1),  // and 000011, before two more zeros
];

/// Vectors that take a root side by side, so that their latencies overlap.
const ROOTS: usize = 4;

impl<F: Field> Job<F> for LiftX<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let width = ROOTS * F::LANES;
        let seven = F::splat(&[7, 0, 0, 0]);
        let one = F::one();
        for first in (0..self.xs.len()).step_by(width) {
            let mut words = [[0u64; 4]; 8 * ROOTS];
            for (lane, words) in words.iter_mut().enumerate().take(width) {
                *words = self.xs.get(first + lane).map_or([1, 0, 0, 0], modn::from_be);
            }
            let mut base = [one; ROOTS];
            for (v, base) in base.iter_mut().enumerate() {
                let x = F::from_words(&words[v * F::LANES..(v + 1) * F::LANES]);
                *base = F::mul_add(&F::sqr(&x), &x, &seven);
            }
            let mut values = [[one; ROOTS]; ROOT.len() + 1];
            values[0] = base;
            let mut y = base;
            for (line, (squarings, factor)) in ROOT.iter().enumerate() {
                for _ in 0..*squarings {
                    for y in &mut y {
                        *y = F::sqr(y);
                    }
                }
                for (y, factor) in y.iter_mut().zip(&values[*factor]) {
                    *y = F::mul(y, factor);
                }
                values[line + 1] = y;
            }
            let mut ys = [[0u64; 4]; 8 * ROOTS];
            let mut rest = [[0u64; 4]; 8 * ROOTS];
            for v in 0..ROOTS {
                let root = F::sqr(&F::sqr(&y[v]));
                let lanes = v * F::LANES..(v + 1) * F::LANES;
                let difference = F::mul_w(&F::sub(&F::sqr(&root), &base[v]), &one);
                F::to_words(&root, &mut ys[lanes.clone()]);
                F::to_words(&difference, &mut rest[lanes]);
            }
            for lane in 0..width.min(self.xs.len() - first) {
                let row = first + lane;
                let mut y = ys[lane];
                if rest[lane] != [0; 4] || !modn::less(&words[lane], &crate::field::P) {
                    self.failed.push(row as u32);
                }
                if (y[0] & 1 != 0) != self.odd[row] {
                    y = crate::field::scalar::neg(&y);
                }
                self.out[row] = crate::field::Packed::new(&words[lane], &y).0;
            }
        }
    }
}
