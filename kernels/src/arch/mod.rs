//! Vectors of 64-bit lanes, one file per instruction set.

pub(crate) mod adx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod ifma;
pub(crate) mod ifma256;

use crate::field::{Field, Job};

/// A vector of `LANES` unsigned 64-bit numbers that wrap.
///
/// The methods compile to the instructions of one instruction set and may only run on a processor that has it;
/// see [`Field`].
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    const LANES: usize;

    /// Runs `job` with the features of the instruction set enabled.
    fn enter<F: Field, J: Job<F>>(job: J) -> J::Output;

    fn splat(word: u64) -> Self;
    /// Loads `LANES` words.
    fn load(words: &[u64; 8]) -> Self;
    /// Stores `LANES` words.
    fn store(self, words: &mut [u64; 8]);
    /// All ones in the lanes whose bit is set.
    fn mask(bits: u32) -> Self;
    /// The eight words of one stored point per lane, transposed.
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> [Self; 8];

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn shr<const N: u64>(self) -> Self;
    fn shl<const N: u64>(self) -> Self;

    /// `self` where the mask is ones, `other` where it is zero.
    #[inline(always)]
    fn select(self, other: Self, mask: Self) -> Self {
        other.xor(self.xor(other).and(mask))
    }

    /// `LANES` words that begin a longer list.
    #[inline(always)]
    fn load_lanes(get: impl Fn(usize) -> u64) -> Self {
        let mut words = [0; 8];
        for (lane, word) in words.iter_mut().enumerate().take(Self::LANES) {
            *word = get(lane);
        }
        Self::load(&words)
    }
}

/// Vectors for nine limbs of 29 bits, with the multiplication kernels of [`crate::field::r29`] compiled apart.
pub(crate) trait Mul32: Simd {
    /// The product of the low halves of the lanes.
    fn mul32(self, other: Self) -> Self;
    fn mul(a: &[Self; 9], b: &[Self; 9]) -> [Self; 9];
    fn sqr(a: &[Self; 9]) -> [Self; 9];
    fn mul_sub(a: &[Self; 9], b: &[Self; 9], s: &[Self; 9]) -> [Self; 9];
    fn sqr_sub(a: &[Self; 9], s: &[Self; 9]) -> [Self; 9];
    fn mul_add(a: &[Self; 9], b: &[Self; 9], s: &[Self; 9]) -> [Self; 9];
}

/// Vectors for five limbs of 52 bits, with the multiplication kernels of [`crate::field::r52`].
pub(crate) trait Madd52: Simd {
    /// acc + the low 52 bits of the product of the low 52 bits.
    fn madd_lo(acc: Self, a: Self, b: Self) -> Self;
    /// acc + the high 52 bits of the product of the low 52 bits.
    fn madd_hi(acc: Self, a: Self, b: Self) -> Self;
    fn mul(a: &[Self; 5], b: &[Self; 5]) -> [Self; 5];
    fn sqr(a: &[Self; 5]) -> [Self; 5];
    fn mul_sub(a: &[Self; 5], b: &[Self; 5], s: &[Self; 5]) -> [Self; 5];
    fn sqr_sub(a: &[Self; 5], s: &[Self; 5]) -> [Self; 5];
    fn mul_add(a: &[Self; 5], b: &[Self; 5], s: &[Self; 5]) -> [Self; 5];
}

/// Implements the kernels of one vector type as functions of their own: `LIMBS` limbs, bodies from `body`,
/// features `features`, inlining attribute `inline`.
macro_rules! kernels {
    ($vector:ty, $limbs:literal, $body:path, $features:literal, $($inline:tt)*) => {
        kernels!(@one $vector, $limbs, $features, mul, ($($inline)*), $body, (a, b));
        kernels!(@one $vector, $limbs, $features, sqr, ($($inline)*), $body, (a));
        kernels!(@one $vector, $limbs, $features, mul_sub, ($($inline)*), $body, (a, b, s));
        kernels!(@one $vector, $limbs, $features, sqr_sub, ($($inline)*), $body, (a, s));
        kernels!(@one $vector, $limbs, $features, mul_add, ($($inline)*), $body, (a, b, s));
    };
    (@one $vector:ty, $limbs:literal, $features:literal, $name:ident, (apart), $body:path, ($($arg:ident),*)) => {
        #[inline(always)]
        fn $name($($arg: &[Self; $limbs]),*) -> [Self; $limbs] {
            #[target_feature(enable = $features)]
            #[inline(never)]
            fn kernel($($arg: &[$vector; $limbs]),*) -> [$vector; $limbs] {
                use $body as body;
                body::$name($($arg),*)
            }
            // SAFETY: vectors only exist where their instruction set does (see `Field`).
            unsafe { kernel($($arg),*) }
        }
    };
    (@one $vector:ty, $limbs:literal, $features:literal, $name:ident, (within), $body:path, ($($arg:ident),*)) => {
        #[inline(always)]
        fn $name($($arg: &[Self; $limbs]),*) -> [Self; $limbs] {
            use $body as body;
            body::$name($($arg),*)
        }
    };
}
pub(crate) use kernels;
