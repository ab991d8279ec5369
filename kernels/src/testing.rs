//! Doors for the tests of the representations; not part of the interface.

use crate::field::{Field, Job};
use crate::isa::{Isa, Visit, dispatch};

/// An operation of a representation. Operands are tight unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOp {
    /// a·b
    Mul,
    /// a·b, a wide
    MulWide,
    /// a²
    Sqr,
    /// a² − c, c a sum
    SqrSub,
    /// a·b − c, a wide
    MulSub,
    /// a·b + c
    MulAdd,
    /// a − b
    Sub,
    /// −a − b
    NegSum,
    /// −a − b − c
    NegSum3,
    /// a − b
    SignedSub,
    /// −a − b
    SignedSubNeg,
    /// b² − 2a − c, c wide
    TwicePlus,
    /// b² − 2a
    Twice,
}

/// All operations.
pub const OPS: [FieldOp; 13] = [
    FieldOp::Mul,
    FieldOp::MulWide,
    FieldOp::Sqr,
    FieldOp::SqrSub,
    FieldOp::MulSub,
    FieldOp::MulAdd,
    FieldOp::Sub,
    FieldOp::NegSum,
    FieldOp::NegSum3,
    FieldOp::SignedSub,
    FieldOp::SignedSubNeg,
    FieldOp::TwicePlus,
    FieldOp::Twice,
];

/// The limbs of a representation: bits between them and the largest value of each.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Bits between limbs.
    pub width: u32,
    /// Of tight elements.
    pub tight: &'static [u64],
    /// Of wide elements.
    pub wide: &'static [u64],
    /// Of sums.
    pub sum: &'static [u64],
}

/// What an operation gave back.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The canonical value.
    pub words: [u64; 4],
    /// The highest word of the canonical value, by the function that the comparison uses.
    pub top: u64,
    /// The limbs before that.
    pub limbs: Vec<u64>,
    /// Whether the operation gives a wide element.
    pub wide: bool,
}

/// The limbs of `isa`.
pub fn bounds(isa: Isa) -> Option<Bounds> {
    struct Get;
    impl Visit for Get {
        type Output = Bounds;
        fn visit<F: Field>(self) -> Bounds {
            let (tight, wide, sum) = F::MAXIMA;
            Bounds { width: F::WIDTH, tight, wide, sum }
        }
    }
    dispatch(isa, Get).ok()
}

/// Runs an operation on operands given by their limbs.
pub fn run(isa: Isa, op: FieldOp, cases: &[[Vec<u64>; 3]]) -> Option<Vec<Outcome>> {
    struct Work<'a>(FieldOp, &'a [[Vec<u64>; 3]]);
    impl Visit for Work<'_> {
        type Output = Vec<Outcome>;
        fn visit<F: Field>(self) -> Vec<Outcome> {
            let mut out = Vec::new();
            for cases in self.1.chunks(F::LANES) {
                F::enter(Batch::<F> { op: self.0, cases, out: &mut out, _field: [] });
            }
            out
        }
    }
    dispatch(isa, Work(op, cases)).ok()
}

/// Runs `count` multiplications or squarings, eight chains side by side, and gives back something that depends
/// on all of them: for measuring.
pub fn chains(isa: Isa, square: bool, count: usize) -> Option<u64> {
    struct Work(bool, usize);
    impl Visit for Work {
        type Output = u64;
        fn visit<F: Field>(self) -> u64 {
            F::enter(Chains::<F> { square: self.0, count: self.1, _field: [] })
        }
    }
    dispatch(isa, Work(square, count)).ok()
}

struct Chains<F> {
    square: bool,
    count: usize,
    _field: [F; 0],
}

impl<F: Field> Job<F> for Chains<F> {
    type Output = u64;

    #[inline(always)]
    fn run(self) -> u64 {
        let b = F::splat(&crate::field::GX);
        let mut chains = [b; 8];
        for _ in 0..self.count / 8 {
            for a in &mut chains {
                *a = if self.square { F::sqr(a) } else { F::mul(a, &b) };
            }
        }
        let mut top = [0; 8];
        chains.iter().fold(0, |acc, a| {
            F::top_words(a, &mut top);
            acc ^ top[0]
        })
    }
}

struct Batch<'a, F> {
    op: FieldOp,
    cases: &'a [[Vec<u64>; 3]],
    out: &'a mut Vec<Outcome>,
    _field: [F; 0],
}

/// Copies limbs into or out of an element, whose memory is limb by limb with one word per lane.
fn exchange<F: Field, T: Copy>(element: &mut T, lane: usize, limbs: &mut [u64], write: bool) {
    assert_eq!(size_of::<T>(), limbs.len() * F::LANES * 8);
    for (i, limb) in limbs.iter_mut().enumerate() {
        // SAFETY: the element has as many words as the assertion says, and this is one of them.
        unsafe {
            let word = core::ptr::from_mut(element).cast::<u64>().add(i * F::LANES + lane);
            if write {
                *word = *limb;
            } else {
                *limb = *word;
            }
        }
    }
}

impl<F: Field> Job<F> for Batch<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let one = F::one();
        let (mut fe, mut wide) = ([one; 3], [F::sub(&one, &one); 3]);
        let mut sum = F::twice(&one);
        for (lane, case) in self.cases.iter().enumerate() {
            for (i, limbs) in case.iter().enumerate() {
                let mut limbs = limbs.clone();
                exchange::<F, _>(&mut fe[i], lane, &mut limbs, true);
                exchange::<F, _>(&mut wide[i], lane, &mut limbs, true);
                exchange::<F, _>(&mut sum, lane, &mut limbs, true);
            }
        }
        let [a, b, c] = &fe;
        let result = match self.op {
            FieldOp::Mul => Ok(F::mul(a, b)),
            FieldOp::MulWide => Ok(F::mul_w(&wide[0], b)),
            FieldOp::Sqr => Ok(F::sqr(a)),
            FieldOp::SqrSub => Ok(F::sqr_sub(a, &sum)),
            FieldOp::MulSub => Ok(F::mul_sub(&wide[0], b, c)),
            FieldOp::MulAdd => Ok(F::mul_add(a, b, c)),
            FieldOp::Sub => Err(F::sub(a, b)),
            FieldOp::NegSum => Err(F::neg_sum(a, b)),
            FieldOp::NegSum3 => Err(F::neg_sum3(a, b, c)),
            FieldOp::SignedSub => Err(F::signed_sub(a, 0, b)),
            FieldOp::SignedSubNeg => Err(F::signed_sub(a, u32::MAX, b)),
            FieldOp::TwicePlus => Ok(F::sqr_sub(b, &F::twice_plus(a, &wide[2]))),
            FieldOp::Twice => Ok(F::sqr_sub(b, &F::twice(a))),
        };
        let mut tight = match &result {
            Ok(fe) => *fe,
            Err(wide) => F::mul_w(wide, &one),
        };
        let mut words = [[0; 4]; 8];
        F::to_words(&tight, &mut words[..F::LANES]);
        let mut top = [0; 8];
        F::top_words(&tight, &mut top);
        for lane in 0..self.cases.len() {
            let mut limbs = vec![0; F::MAXIMA.0.len()];
            match result {
                Ok(_) => exchange::<F, _>(&mut tight, lane, &mut limbs, false),
                Err(mut wide) => exchange::<F, _>(&mut wide, lane, &mut limbs, false),
            }
            self.out.push(Outcome { words: words[lane], top: top[lane], limbs, wide: result.is_err() });
        }
    }
}

/// The multiplication bodies that are normally compiled into their callers, as functions whose instructions
/// can be counted; `opcounts.sh` looks for their names.
#[cfg(target_arch = "x86_64")]
mod sample {
    use crate::arch::{Simd, ifma::I8, ifma256::I4};
    use crate::field::r52::body;

    macro_rules! sample {
        ($mul:ident, $sqr:ident, $vector:ty) => {
            #[inline(never)]
            #[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,avx512bw,avx2,bmi2,adx")]
            fn $mul(a: &[$vector; 5], b: &[$vector; 5]) -> [$vector; 5] {
                body::mul(a, b)
            }

            #[inline(never)]
            #[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,avx512bw,avx2,bmi2,adx")]
            fn $sqr(a: &[$vector; 5]) -> [$vector; 5] {
                body::sqr(a)
            }
        };
    }
    sample!(sample_ifma_mul, sample_ifma_sqr, I8);
    sample!(sample_ifma256_mul, sample_ifma256_sqr, I4);

    /// Runs them.
    pub(super) fn run(seed: u64) -> u64 {
        let mut words = [0; 8];
        // SAFETY: the only caller has detected these features.
        unsafe {
            let a = [I8::splat(seed); 5];
            sample_ifma_mul(&a, &sample_ifma_sqr(&a))[0].store(&mut words);
            let b = [I4::splat(words[0]); 5];
            sample_ifma256_mul(&b, &sample_ifma256_sqr(&b))[0].store(&mut words);
        }
        words[0]
    }
}

/// Runs the multiplication bodies whose instructions are counted.
pub fn samples(seed: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::Ifma.is_available() {
        return sample::run(seed);
    }
    seed
}
