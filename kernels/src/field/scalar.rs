//! One row at a time in four 64-bit words: the portable representation and the specification of the others.
//!
//! Every value is any number below 2^256, taken modulo p; only [`canonical`] brings it below p. Since
//! 2^256 ≡ C with C < 2^33, a carry out of the top word is worth C, a borrow costs C, and after one such
//! correction a second one can only happen when the value is within C of the edge, so that it ends there.

use super::{C, Field, Job, P, split_point};
use core::marker::PhantomData;

/// A field element below 2^256.
pub(crate) type Words = [u64; 4];

/// a + b + carry
#[inline(always)]
fn adc(a: u64, b: u64, carry: &mut bool) -> u64 {
    let (s, c1) = a.overflowing_add(b);
    let (s, c2) = s.overflowing_add(u64::from(*carry));
    *carry = c1 | c2;
    s
}

/// a − b − borrow
#[inline(always)]
fn sbb(a: u64, b: u64, borrow: &mut bool) -> u64 {
    let (s, c1) = a.overflowing_sub(b);
    let (s, c2) = s.overflowing_sub(u64::from(*borrow));
    *borrow = c1 | c2;
    s
}

/// C if the flag is set, without a branch: half of the time a prediction would be wrong.
#[inline(always)]
fn correction(flag: bool) -> u64 {
    core::hint::black_box(u64::from(flag)).wrapping_neg() & C
}

/// a·b + c + carry; never overflows, since (2^64 − 1)² + 2(2^64 − 1) = 2^128 − 1.
#[inline(always)]
fn mac(a: u64, b: u64, c: u64, carry: &mut u64) -> u64 {
    let t = u128::from(a) * u128::from(b) + u128::from(c) + u128::from(*carry);
    *carry = (t >> 64) as u64;
    t as u64
}

/// a + b
#[inline(always)]
pub(crate) fn add(a: &Words, b: &Words) -> Words {
    #[cfg(target_arch = "x86_64")]
    return flags::add(a, b);
    #[cfg(not(target_arch = "x86_64"))]
    add_portable(a, b)
}

/// a − b
#[inline(always)]
pub(crate) fn sub(a: &Words, b: &Words) -> Words {
    #[cfg(target_arch = "x86_64")]
    return flags::sub(a, b);
    #[cfg(not(target_arch = "x86_64"))]
    sub_portable(a, b)
}

#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
#[inline(always)]
fn add_portable(a: &Words, b: &Words) -> Words {
    let mut carry = false;
    let mut r: Words = core::array::from_fn(|i| adc(a[i], b[i], &mut carry));
    let c = correction(carry);
    carry = false;
    r[0] = adc(r[0], c, &mut carry);
    for word in &mut r[1..] {
        *word = adc(*word, 0, &mut carry);
    }
    // A carry here leaves a value below C, so adding C cannot carry beyond the lowest word.
    r[0] = r[0].wrapping_add(correction(carry));
    r
}

#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
#[inline(always)]
fn sub_portable(a: &Words, b: &Words) -> Words {
    let mut borrow = false;
    let mut r: Words = core::array::from_fn(|i| sbb(a[i], b[i], &mut borrow));
    let c = correction(borrow);
    borrow = false;
    r[0] = sbb(r[0], c, &mut borrow);
    for word in &mut r[1..] {
        *word = sbb(*word, 0, &mut borrow);
    }
    // A borrow here leaves a value above 2^256 − C, whose lowest word is above 2^64 − C.
    r[0] = r[0].wrapping_sub(correction(borrow));
    r
}

/// The same two in the instructions of every x86-64, where the carry flag makes the mask. Compilers make a
/// branch of it.
#[cfg(target_arch = "x86_64")]
mod flags {
    use super::{C, Words};
    use core::arch::asm;

    macro_rules! chain {
        ($name:ident, $first:literal, $next:literal) => {
            #[inline(always)]
            pub(super) fn $name(a: &Words, b: &Words) -> Words {
                let [mut r0, mut r1, mut r2, mut r3] = *a;
                // SAFETY: arithmetic on the registers named, and reads of the four words of `b`.
                unsafe {
                    asm!(
                        concat!($first, " {r0}, [{b}]"),
                        concat!($next, " {r1}, [{b} + 8]"),
                        concat!($next, " {r2}, [{b} + 16]"),
                        concat!($next, " {r3}, [{b} + 24]"),
                        "sbb {m}, {m}",
                        "and {m}, {c}",
                        concat!($first, " {r0}, {m}"),
                        concat!($next, " {r1}, 0"),
                        concat!($next, " {r2}, 0"),
                        concat!($next, " {r3}, 0"),
                        "sbb {m}, {m}",
                        "and {m}, {c}",
                        concat!($first, " {r0}, {m}"),
                        r0 = inout(reg) r0,
                        r1 = inout(reg) r1,
                        r2 = inout(reg) r2,
                        r3 = inout(reg) r3,
                        m = out(reg) _,
                        b = in(reg) b.as_ptr(),
                        c = in(reg) C,
                        options(pure, readonly, nostack),
                    );
                }
                [r0, r1, r2, r3]
            }
        };
    }

    chain!(add, "add", "adc");
    chain!(sub, "sub", "sbb");
}

/// Reduces a 512-bit product.
#[inline(always)]
fn reduce(lo: Words, hi: Words) -> Words {
    let mut carry = 0;
    let r = [
        mac(hi[0], C, lo[0], &mut carry),
        mac(hi[1], C, lo[1], &mut carry),
        mac(hi[2], C, lo[2], &mut carry),
        mac(hi[3], C, lo[3], &mut carry),
    ];
    // The carry is at most C, so carry·C is below 2^66: two words.
    let t = u128::from(carry) * u128::from(C);
    let mut c = false;
    let r0 = adc(r[0], t as u64, &mut c);
    let r1 = adc(r[1], (t >> 64) as u64, &mut c);
    let r2 = adc(r[2], 0, &mut c);
    let r3 = adc(r[3], 0, &mut c);
    // A carry leaves a value below 2^66, so that r0 + C may carry into r1, and no further.
    let (r0, c0) = r0.overflowing_add(correction(c));
    [r0, r1 + u64::from(c0), r2, r3]
}

/// a·b
#[inline(always)]
pub(crate) fn mul(a: &Words, b: &Words) -> Words {
    let mut t = [0u64; 8];
    for i in 0..4 {
        let mut carry = 0;
        for j in 0..4 {
            t[i + j] = mac(a[i], b[j], t[i + j], &mut carry);
        }
        t[i + 4] = carry;
    }
    reduce([t[0], t[1], t[2], t[3]], [t[4], t[5], t[6], t[7]])
}

/// a²
#[inline(always)]
pub(crate) fn sqr(a: &Words) -> Words {
    let mut t = [0u64; 8];
    let mut carry = 0;
    t[1] = mac(a[0], a[1], 0, &mut carry);
    t[2] = mac(a[0], a[2], 0, &mut carry);
    t[3] = mac(a[0], a[3], 0, &mut carry);
    t[4] = carry;
    carry = 0;
    t[3] = mac(a[1], a[2], t[3], &mut carry);
    t[4] = mac(a[1], a[3], t[4], &mut carry);
    t[5] = carry;
    carry = 0;
    t[5] = mac(a[2], a[3], t[5], &mut carry);
    t[6] = carry;
    let mut top = 0;
    for word in &mut t[1..] {
        let next = *word >> 63;
        *word = *word << 1 | top;
        top = next;
    }
    let mut c = false;
    for i in 0..4 {
        let s = u128::from(a[i]) * u128::from(a[i]);
        t[2 * i] = adc(t[2 * i], s as u64, &mut c);
        t[2 * i + 1] = adc(t[2 * i + 1], (s >> 64) as u64, &mut c);
    }
    reduce([t[0], t[1], t[2], t[3]], [t[4], t[5], t[6], t[7]])
}

/// The value in [0, p).
#[inline(always)]
pub(crate) fn canonical(a: &Words) -> Words {
    let mut carry = false;
    let mut r = *a;
    r[0] = adc(r[0], C, &mut carry);
    for word in &mut r[1..] {
        *word = adc(*word, 0, &mut carry);
    }
    if carry { r } else { *a }
}

/// Whether the value is zero modulo p.
pub(crate) fn is_zero(a: &Words) -> bool {
    canonical(a) == [0; 4]
}

/// −a
#[inline(always)]
pub(crate) fn neg(a: &Words) -> Words {
    // P − a wraps only for a in [p, 2^256), which is then a small positive number: handled by sub.
    sub(&P, a)
}

/// The two functions that this representation spends its time in.
pub(crate) trait Kernel: Copy + Send + Sync + 'static {
    /// a·b
    fn mul(a: &Words, b: &Words) -> Words;
    /// a²
    fn sqr(a: &Words) -> Words;
}

/// One row at a time.
#[derive(Clone, Copy)]
pub(crate) struct Scalar<K>(PhantomData<K>);

impl<K: Kernel> Field for Scalar<K> {
    const LANES: usize = 1;
    const CHUNK: usize = 1024;
    const PAIRS: bool = true;
    const WIDTH: u32 = 64;
    const MAXIMA: (&'static [u64], &'static [u64], &'static [u64]) =
        (&[u64::MAX; 4], &[u64::MAX; 4], &[u64::MAX; 4]);
    type Fe = Words;
    type Wide = Words;
    type Sum = Words;

    #[inline(always)]
    fn enter<J: Job<Self>>(job: J) -> J::Output {
        job.run()
    }

    #[inline(always)]
    fn splat(words: &[u64; 4]) -> Words {
        *words
    }

    #[inline(always)]
    fn from_words(words: &[[u64; 4]]) -> Words {
        words.first().copied().unwrap_or_default()
    }

    #[inline(always)]
    fn to_words(a: &Words, out: &mut [[u64; 4]]) {
        out[0] = canonical(a);
    }

    #[inline(always)]
    fn top_words(a: &Words, out: &mut [u64; 8]) {
        out[0] = canonical(a)[3];
    }

    #[inline(always)]
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> (Words, Words) {
        split_point(get(0))
    }

    #[inline(always)]
    fn mul(a: &Words, b: &Words) -> Words {
        K::mul(a, b)
    }

    #[inline(always)]
    fn mul_w(a: &Words, b: &Words) -> Words {
        K::mul(a, b)
    }

    #[inline(always)]
    fn sqr(a: &Words) -> Words {
        K::sqr(a)
    }

    #[inline(always)]
    fn sqr_sub(a: &Words, s: &Words) -> Words {
        sub(&K::sqr(a), s)
    }

    #[inline(always)]
    fn mul_sub(a: &Words, b: &Words, s: &Words) -> Words {
        sub(&K::mul(a, b), s)
    }

    #[inline(always)]
    fn mul_add(a: &Words, b: &Words, s: &Words) -> Words {
        add(&K::mul(a, b), s)
    }

    #[inline(always)]
    fn sub(a: &Words, b: &Words) -> Words {
        sub(a, b)
    }

    #[inline(always)]
    fn neg_sum(a: &Words, b: &Words) -> Words {
        neg(&add(a, b))
    }

    #[inline(always)]
    fn neg_sum3(a: &Words, b: &Words, c: &Words) -> Words {
        neg(&add(&add(a, b), c))
    }

    #[inline(always)]
    fn signed_sub(a: &Words, negate: u32, b: &Words) -> Words {
        let n = neg(a);
        sub(if negate & 1 != 0 { &n } else { a }, b)
    }

    #[inline(always)]
    fn twice(a: &Words) -> Words {
        add(a, a)
    }

    #[inline(always)]
    fn twice_plus(a: &Words, d: &Words) -> Words {
        add(&add(a, a), d)
    }
}

/// Kernels in portable code.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Kernel for Portable {
    #[inline(never)]
    fn mul(a: &Words, b: &Words) -> Words {
        mul(a, b)
    }

    #[inline(never)]
    fn sqr(a: &Words) -> Words {
        sqr(a)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges() -> Vec<Words> {
        let mut list = Vec::new();
        for low in [0, 1, 2, C - 1, C, C + 1, P[0] - 1, P[0], P[0] + 1, u64::MAX - 1, u64::MAX] {
            for high in [0, 1, 1 << 63, u64::MAX - 1, u64::MAX] {
                list.extend([
                    [low, high, high, high],
                    [low, 0, 0, high],
                    [high, low, high, low],
                    [high, high, 0, low],
                ]);
            }
        }
        let mut v = [3, 5, 7, u64::MAX];
        for _ in 0..40 {
            v = mul(&v, &[0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 77]);
            list.push(v);
        }
        list
    }

    #[test]
    fn carry_flags_agree_with_portable_code() {
        for a in edges() {
            assert_eq!(canonical(&sqr(&a)), canonical(&mul(&a, &a)));
            for b in edges() {
                assert_eq!(add(&a, &b), add_portable(&a, &b));
                assert_eq!(sub(&a, &b), sub_portable(&a, &b));
                assert_eq!(canonical(&add(&sub(&a, &b), &b)), canonical(&a));
                // (a + b)² − (a − b)² = 4ab
                let (plus, minus) = (add(&a, &b), sub(&a, &b));
                let left = canonical(&sub(&sqr(&plus), &sqr(&minus)));
                assert_eq!(left, canonical(&mul(&a, &mul(&b, &[4, 0, 0, 0]))));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kernels_agree() {
        use crate::arch::adx::Adx;
        if !std::arch::is_x86_feature_detected!("bmi2") || !std::arch::is_x86_feature_detected!("adx") {
            println!("skipped: this processor lacks bmi2 or adx");
            return;
        }
        for a in edges() {
            assert_eq!(Adx::sqr(&a), Portable::sqr(&a));
            for b in edges() {
                assert_eq!(Adx::mul(&a, &b), Portable::mul(&a, &b));
            }
        }
    }

    #[test]
    fn inverses() {
        use crate::field::inverse::invert;
        for a in edges() {
            let expected = if is_zero(&a) { [0; 4] } else { [1, 0, 0, 0] };
            assert_eq!(canonical(&mul(&a, &invert(&a))), expected);
        }
    }
}
