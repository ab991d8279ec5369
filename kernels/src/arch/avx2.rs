//! AVX2, four lanes.

use super::{Mul32, Simd, kernels};
use crate::field::{Field, Job, r29::body};
use core::arch::x86_64::*;

/// 4 lanes of 64 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct A4(__m256i);

macro_rules! op {
    ($e:expr) => {
        // SAFETY: vectors only exist where their instruction set does (see `Field`).
        unsafe { A4($e) }
    };
}

#[target_feature(enable = "avx2,bmi2,adx")]
fn enter<F: Field, J: Job<F>>(job: J) -> J::Output {
    job.run()
}

impl Simd for A4 {
    const LANES: usize = 4;

    #[inline(always)]
    fn enter<F: Field, J: Job<F>>(job: J) -> J::Output {
        // SAFETY: `isa::dispatch` reaches this representation only after detecting these features.
        unsafe { enter(job) }
    }

    #[inline(always)]
    fn splat(word: u64) -> Self {
        op!(_mm256_set1_epi64x(word as i64))
    }

    #[inline(always)]
    fn load(words: &[u64; 8]) -> Self {
        // The array has twice the bytes that are read.
        op!(_mm256_loadu_si256(words.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(self, words: &mut [u64; 8]) {
        // SAFETY: the array has room for 32 bytes; for the instruction set see `Field`.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn mask(bits: u32) -> Self {
        let bit = op!(_mm256_set_epi64x(8, 4, 2, 1));
        op!(_mm256_cmpeq_epi64(Self::splat(u64::from(bits)).and(bit).0, bit.0))
    }

    #[inline(always)]
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> [Self; 8] {
        let mut w = [Self::splat(0); 8];
        for half in 0..2 {
            let row = |lane| {
                let bytes: &[u8; 64] = get(lane);
                // The reference covers 64 bytes; the load reads one half of them.
                op!(_mm256_loadu_si256(bytes.as_ptr().add(32 * half).cast())).0
            };
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            let (t0, t1) = (op!(_mm256_unpacklo_epi64(a, b)).0, op!(_mm256_unpackhi_epi64(a, b)).0);
            let (t2, t3) = (op!(_mm256_unpacklo_epi64(c, d)).0, op!(_mm256_unpackhi_epi64(c, d)).0);
            w[4 * half] = op!(_mm256_permute2x128_si256::<0x20>(t0, t2));
            w[4 * half + 1] = op!(_mm256_permute2x128_si256::<0x20>(t1, t3));
            w[4 * half + 2] = op!(_mm256_permute2x128_si256::<0x31>(t0, t2));
            w[4 * half + 3] = op!(_mm256_permute2x128_si256::<0x31>(t1, t3));
        }
        w
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        op!(_mm256_add_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        op!(_mm256_sub_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        op!(_mm256_and_si256(self.0, other.0))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        op!(_mm256_or_si256(self.0, other.0))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        op!(_mm256_xor_si256(self.0, other.0))
    }

    #[inline(always)]
    fn shr<const N: u64>(self) -> Self {
        op!(_mm256_srlv_epi64(self.0, _mm256_set1_epi64x(N as i64)))
    }

    #[inline(always)]
    fn shl<const N: u64>(self) -> Self {
        op!(_mm256_sllv_epi64(self.0, _mm256_set1_epi64x(N as i64)))
    }
}

impl Mul32 for A4 {
    #[inline(always)]
    fn mul32(self, other: Self) -> Self {
        op!(_mm256_mul_epu32(self.0, other.0))
    }

    kernels!(A4, 9, body, "avx2,bmi2,adx", apart);
}
