//! Five limbs of 52 bits, for vectors with 52-bit multiply-add.
//!
//! Weights are 2^(52·i); 2^260 ≡ R = 16·C and 2^256 ≡ C. The multiply-add reads only the low 52 bits of its
//! factors, so that both operands of a multiplication have limbs below 2^52:
//!
//! - `Fe` (tight): limbs < 2^52, limb 4 < 2^49; the value is below 2^257.
//! - `Wide`: limbs < 2^52; the value is below 2^260.
//! - `Sum`: not carried; limbs < 2^54 − 8, limb 4 < 2^53 − 8.
//!
//! A product column collects at most five low and five high halves, below 10·2^52, an offset below 2^55 + 2^52,
//! two folded halves, and a carry: far from 2^64.

use super::{C, Field, Job};
use crate::arch::Madd52;
use core::marker::PhantomData;

const M52: u64 = (1 << 52) - 1;
const M48: u64 = (1 << 48) - 1;
/// 2^260 modulo p.
const R: u64 = C << 4;

/// A multiple m·p whose limbs are at least as large as what will be subtracted from them: m·2^48 in limb 4, of
/// which `lend` is lent to limb 3 as lend·2^52, and so on down.
const fn offset(m: u64, lend: u64) -> [u64; 5] {
    let limb = (lend << 52) - lend;
    [(lend << 52) - C * m, limb, limb, limb, (m << 48) - lend]
}

/// For one tight element: 4p, value of a difference below 2^257 + 2^258.
const OFF1: [u64; 5] = offset(4, 2);
/// For up to three tight elements: 8p, value below 2^257 + 2^259.
const OFF3: [u64; 5] = offset(8, 4);
/// For a `Sum`: 32p.
const OFF_SUM: [u64; 5] = offset(32, 8);

/// Elements in vectors of type `V`.
#[derive(Clone, Copy)]
pub(crate) struct R52<V>(PhantomData<V>);

type L<V> = [V; 5];

#[inline(always)]
fn from_vectors<V: Madd52>(w: &[V]) -> L<V> {
    let m = V::splat(M52);
    [
        w[0].and(m),
        w[0].shr::<52>().or(w[1].shl::<12>()).and(m),
        w[1].shr::<40>().or(w[2].shl::<24>()).and(m),
        w[2].shr::<28>().or(w[3].shl::<36>()).and(m),
        w[3].shr::<16>(),
    ]
}

/// Sequential carries; limb 4 takes what comes.
#[inline(always)]
fn carry<V: Madd52>(mut r: L<V>) -> L<V> {
    let m = V::splat(M52);
    for i in 0..4 {
        r[i + 1] = r[i + 1].add(r[i].shr::<52>());
        r[i] = r[i].and(m);
    }
    r
}

#[inline(always)]
fn to_vectors<V: Madd52>(a: &L<V>) -> [V; 4] {
    let m48 = V::splat(M48);
    let mut r = carry(*a);
    let q = r[4].shr::<48>();
    r[4] = r[4].and(m48);
    // q is small, so q·C is below 2^52. Afterwards the value is below 2^256 + 2^52.
    r[0] = V::madd_lo(r[0], q, V::splat(C));
    let mut r = carry(r);
    // r >= p exactly when r + C reaches 2^256; then r + C − 2^256 is the result.
    let mut s = r;
    s[0] = s[0].add(V::splat(C));
    let mut s = carry(s);
    let reached = V::splat(0).sub(s[4].shr::<48>());
    s[4] = s[4].and(m48);
    for i in 0..5 {
        r[i] = s[i].select(r[i], reached);
    }
    [
        r[0].or(r[1].shl::<52>()),
        r[1].shr::<12>().or(r[2].shl::<40>()),
        r[2].shr::<24>().or(r[3].shl::<28>()),
        r[3].shr::<36>().or(r[4].shl::<16>()),
    ]
}

/// The bodies of the multiplication kernels.
pub(crate) mod body {
    use super::{C, L, M48, M52, Madd52, OFF_SUM, R};

    #[inline(always)]
    pub(crate) fn mul<V: Madd52>(a: &L<V>, b: &L<V>) -> L<V> {
        reduce(product(zero(), a, b))
    }

    #[inline(always)]
    pub(crate) fn sqr<V: Madd52>(a: &L<V>) -> L<V> {
        reduce(square(zero(), a))
    }

    #[inline(always)]
    pub(crate) fn mul_sub<V: Madd52>(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        reduce(product(less(s), a, b))
    }

    #[inline(always)]
    pub(crate) fn sqr_sub<V: Madd52>(a: &L<V>, s: &L<V>) -> L<V> {
        reduce(square(less(s), a))
    }

    #[inline(always)]
    pub(crate) fn mul_add<V: Madd52>(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        reduce(product(*s, a, b))
    }

    #[inline(always)]
    fn zero<V: Madd52>() -> L<V> {
        [V::splat(0); 5]
    }

    #[inline(always)]
    fn less<V: Madd52>(s: &L<V>) -> L<V> {
        core::array::from_fn(|i| V::splat(OFF_SUM[i]).sub(s[i]))
    }

    #[inline(always)]
    fn product<V: Madd52>(start: L<V>, a: &L<V>, b: &L<V>) -> [V; 10] {
        let o = V::splat(0);
        let mut z = [start[0], start[1], start[2], start[3], start[4], o, o, o, o, o];
        for i in 0..5 {
            for j in 0..5 {
                z[i + j] = V::madd_lo(z[i + j], a[i], b[j]);
                z[i + j + 1] = V::madd_hi(z[i + j + 1], a[i], b[j]);
            }
        }
        z
    }

    /// As a product; the terms off the diagonal are summed apart and doubled, ten additions instead of twenty
    /// multiply-adds.
    #[inline(always)]
    fn square<V: Madd52>(start: L<V>, a: &L<V>) -> [V; 10] {
        let o = V::splat(0);
        let mut t = [o; 10];
        for i in 0..5 {
            for j in i + 1..5 {
                t[i + j] = V::madd_lo(t[i + j], a[i], a[j]);
                t[i + j + 1] = V::madd_hi(t[i + j + 1], a[i], a[j]);
            }
        }
        for column in &mut t[1..9] {
            *column = column.add(*column);
        }
        for k in 0..5 {
            t[k] = t[k].add(start[k]);
        }
        for i in 0..5 {
            t[2 * i] = V::madd_lo(t[2 * i], a[i], a[i]);
            t[2 * i + 1] = V::madd_hi(t[2 * i + 1], a[i], a[i]);
        }
        t
    }

    #[inline(always)]
    fn reduce<V: Madd52>(mut z: [V; 10]) -> L<V> {
        // Carries through the high half. The bits above 52 stay where they are: multiply-add does not read
        // them. The product is below 2^520, so column 9 ends below 2^52.
        for k in 5..9 {
            z[k + 1] = z[k + 1].add(z[k].shr::<52>());
        }
        let r = V::splat(R);
        for k in 0..5 {
            z[k] = V::madd_lo(z[k], z[k + 5], r);
        }
        for k in 0..4 {
            z[k + 1] = V::madd_hi(z[k + 1], z[k + 5], r);
        }
        let over = V::madd_hi(V::splat(0), z[9], r);
        // over < 2^37 has weight 2^260; column 4 is below 2^57. So top < 2^42, and top·C < 2^75.
        let top = z[4].shr::<48>().add(over.shl::<4>());
        z[4] = z[4].and(V::splat(M48));
        let c = V::splat(C);
        z[0] = V::madd_lo(z[0], top, c);
        z[1] = V::madd_hi(z[1], top, c);
        // Columns 0–3 are below 2^57, so limb 4 ends below 2^48 + 2^6.
        let m = V::splat(M52);
        for k in 0..4 {
            z[k + 1] = z[k + 1].add(z[k].shr::<52>());
            z[k] = z[k].and(m);
        }
        [z[0], z[1], z[2], z[3], z[4]]
    }
}

impl<V: Madd52> Field for R52<V> {
    const LANES: usize = V::LANES;
    const CHUNK: usize = 512 * V::LANES;
    const PAIRS: bool = V::LANES == 4;
    const WIDTH: u32 = 52;
    const MAXIMA: (&'static [u64], &'static [u64], &'static [u64]) = (
        &[M52, M52, M52, M52, (1 << 49) - 1],
        &[M52; 5],
        &[(1 << 54) - 9, (1 << 54) - 9, (1 << 54) - 9, (1 << 54) - 9, (1 << 53) - 9],
    );
    type Fe = L<V>;
    type Wide = L<V>;
    type Sum = L<V>;

    #[inline(always)]
    fn enter<J: Job<Self>>(job: J) -> J::Output {
        V::enter(job)
    }

    #[inline(always)]
    fn splat(words: &[u64; 4]) -> L<V> {
        from_vectors(&words.map(V::splat))
    }

    #[inline(always)]
    fn from_words(words: &[[u64; 4]]) -> L<V> {
        let w: [V; 4] =
            core::array::from_fn(|i| V::load_lanes(|lane| words.get(lane).map_or(0, |word| word[i])));
        from_vectors(&w)
    }

    #[inline(always)]
    fn to_words(a: &L<V>, out: &mut [[u64; 4]]) {
        super::scatter(&to_vectors(a), out);
    }

    #[inline(always)]
    fn top_words(a: &L<V>, out: &mut [u64; 8]) {
        to_vectors(a)[3].store(out);
    }

    #[inline(always)]
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> (L<V>, L<V>) {
        let w = V::load_points(get);
        (from_vectors(&w[..4]), from_vectors(&w[4..]))
    }

    #[inline(always)]
    fn mul(a: &L<V>, b: &L<V>) -> L<V> {
        V::mul(a, b)
    }

    #[inline(always)]
    fn mul_w(a: &L<V>, b: &L<V>) -> L<V> {
        V::mul(a, b)
    }

    #[inline(always)]
    fn sqr(a: &L<V>) -> L<V> {
        V::sqr(a)
    }

    #[inline(always)]
    fn sqr_sub(a: &L<V>, s: &L<V>) -> L<V> {
        V::sqr_sub(a, s)
    }

    #[inline(always)]
    fn mul_sub(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        V::mul_sub(a, b, s)
    }

    #[inline(always)]
    fn mul_add(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        V::mul_add(a, b, s)
    }

    #[inline(always)]
    fn sub(a: &L<V>, b: &L<V>) -> L<V> {
        carry(core::array::from_fn(|i| a[i].add(V::splat(OFF1[i])).sub(b[i])))
    }

    #[inline(always)]
    fn neg_sum(a: &L<V>, b: &L<V>) -> L<V> {
        carry(core::array::from_fn(|i| V::splat(OFF3[i]).sub(a[i].add(b[i]))))
    }

    #[inline(always)]
    fn neg_sum3(a: &L<V>, b: &L<V>, c: &L<V>) -> L<V> {
        carry(core::array::from_fn(|i| V::splat(OFF3[i]).sub(a[i].add(b[i]).add(c[i]))))
    }

    #[inline(always)]
    fn signed_sub(a: &L<V>, negate: u32, b: &L<V>) -> L<V> {
        let m = V::mask(negate);
        carry(core::array::from_fn(|i| a[i].xor(m).sub(m).add(V::splat(OFF3[i])).sub(b[i])))
    }

    #[inline(always)]
    fn twice(a: &L<V>) -> L<V> {
        core::array::from_fn(|i| a[i].add(a[i]))
    }

    #[inline(always)]
    fn twice_plus(a: &L<V>, d: &L<V>) -> L<V> {
        core::array::from_fn(|i| a[i].add(a[i]).add(d[i]))
    }
}
