//! AVX-512 with 52-bit multiply-add, eight lanes.

use super::{Madd52, Simd, kernels};
use crate::field::{Field, Job, r52::body};
use core::arch::x86_64::*;

/// 8 lanes of 64 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct I8(__m512i);

macro_rules! op {
    ($e:expr) => {
        // SAFETY: vectors only exist where their instruction set does (see `Field`).
        unsafe { I8($e) }
    };
}

#[target_feature(enable = "avx512f,avx512ifma,avx512vl,avx512dq,avx512bw,avx2,bmi2,adx")]
fn enter<F: Field, J: Job<F>>(job: J) -> J::Output {
    job.run()
}

impl Simd for I8 {
    const LANES: usize = 8;

    #[inline(always)]
    fn enter<F: Field, J: Job<F>>(job: J) -> J::Output {
        // SAFETY: `isa::dispatch` reaches this representation only after detecting these features.
        unsafe { enter(job) }
    }

    #[inline(always)]
    fn splat(word: u64) -> Self {
        op!(_mm512_set1_epi64(word as i64))
    }

    #[inline(always)]
    fn load(words: &[u64; 8]) -> Self {
        // The array has exactly the bytes that are read.
        op!(_mm512_loadu_si512(words.as_ptr().cast()))
    }

    #[inline(always)]
    fn store(self, words: &mut [u64; 8]) {
        // SAFETY: the array has room for 64 bytes; for the instruction set see `Field`.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), self.0) }
    }

    #[inline(always)]
    fn mask(bits: u32) -> Self {
        op!(_mm512_maskz_set1_epi64(bits as u8, -1))
    }

    #[inline(always)]
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> [Self; 8] {
        // The reference covers the 64 bytes of the load.
        let row = |lane| op!(_mm512_loadu_si512(get(lane).as_ptr().cast())).0;
        let mut t = [row(0); 8];
        for pair in 0..4 {
            let (a, b) = (row(2 * pair), row(2 * pair + 1));
            t[2 * pair] = op!(_mm512_unpacklo_epi64(a, b)).0;
            t[2 * pair + 1] = op!(_mm512_unpackhi_epi64(a, b)).0;
        }
        // t[2p + h] holds, in 128-bit block k, word 2k + h of rows 2p and 2p + 1.
        let mut w = [Self::splat(0); 8];
        for h in 0..2 {
            let low01 = op!(_mm512_shuffle_i64x2::<0x88>(t[h], t[2 + h])).0;
            let high01 = op!(_mm512_shuffle_i64x2::<0xdd>(t[h], t[2 + h])).0;
            let low23 = op!(_mm512_shuffle_i64x2::<0x88>(t[4 + h], t[6 + h])).0;
            let high23 = op!(_mm512_shuffle_i64x2::<0xdd>(t[4 + h], t[6 + h])).0;
            w[h] = op!(_mm512_shuffle_i64x2::<0x88>(low01, low23));
            w[2 + h] = op!(_mm512_shuffle_i64x2::<0x88>(high01, high23));
            w[4 + h] = op!(_mm512_shuffle_i64x2::<0xdd>(low01, low23));
            w[6 + h] = op!(_mm512_shuffle_i64x2::<0xdd>(high01, high23));
        }
        w
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        op!(_mm512_add_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        op!(_mm512_sub_epi64(self.0, other.0))
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        op!(_mm512_and_si512(self.0, other.0))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        op!(_mm512_or_si512(self.0, other.0))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        op!(_mm512_xor_si512(self.0, other.0))
    }

    #[inline(always)]
    fn shr<const N: u64>(self) -> Self {
        op!(_mm512_srlv_epi64(self.0, _mm512_set1_epi64(N as i64)))
    }

    #[inline(always)]
    fn shl<const N: u64>(self) -> Self {
        op!(_mm512_sllv_epi64(self.0, _mm512_set1_epi64(N as i64)))
    }
}

impl Madd52 for I8 {
    #[inline(always)]
    fn madd_lo(acc: Self, a: Self, b: Self) -> Self {
        op!(_mm512_madd52lo_epu64(acc.0, a.0, b.0))
    }

    #[inline(always)]
    fn madd_hi(acc: Self, a: Self, b: Self) -> Self {
        op!(_mm512_madd52hi_epu64(acc.0, a.0, b.0))
    }

    kernels!(I8, 5, body, "avx512f,avx512ifma,avx512vl,avx512dq,avx512bw,avx2,bmi2,adx", within);
}
