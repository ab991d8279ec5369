//! Nine limbs of 29 bits, for vectors that multiply 32 by 32 bits.
//!
//! Weights are 2^(29·i); 2^261 ≡ 2^37 + 31264 and 2^256 ≡ 2^32 + 977.
//!
//! Bounds, with u = 2^29 and e = 2^25:
//!
//! - `Fe` (tight): limb 0 < u + e, limb 1 < u + 2^18, limbs 2–7 < u, limb 8 < 2^24; so the value is below
//!   2^256 + 2^48.
//! - `Wide`: limbs < 5u + e < 2^32, limb 8 < 2^27 + 2^25; so the value is below 2^260.
//! - `Sum`: limbs < 7u + 3e < 2^32 − 2^28, limb 8 < 2^28 − 8.
//!
//! A product column holds at most nine products of a tight and a `Wide` limb: 9·(u + e)(5u + e) < 49·2^58, and
//! what is added to a column later (offset, folded columns, carry) stays below 2^49, so that nothing wraps.

use super::{Field, Job};
use crate::arch::Mul32;
use core::marker::PhantomData;

const M29: u64 = (1 << 29) - 1;
/// 2^261 modulo p, less 2^37.
const R0: u64 = 31264;

/// A multiple m·p whose limbs are at least as large as what will be subtracted from them: 2^(24+log2 m) in limb
/// 8, of which `lend` is lent to limb 7 as lend·2^29, and so on down.
const fn offset(m: u64, lend: u64) -> [u64; 9] {
    let mut limbs = [(lend << 29) - lend; 9];
    limbs[0] = (lend << 29) - 977 * m;
    limbs[1] -= 8 * m;
    limbs[8] = (m << 24) - lend;
    limbs
}

/// For one tight element.
const OFF1: [u64; 9] = offset(4, 2);
/// For up to three tight elements.
const OFF3: [u64; 9] = offset(8, 4);
/// For a `Sum`, at the end of a product.
const OFF_SUM: [u64; 9] = offset(16, 8);

/// Elements in vectors of type `V`.
#[derive(Clone, Copy)]
pub(crate) struct R29<V>(PhantomData<V>);

type L<V> = [V; 9];

/// The nine limbs of a 256-bit number.
#[inline(always)]
fn from_vectors<V: Mul32>(w: &[V]) -> L<V> {
    let m = V::splat(M29);
    [
        w[0].and(m),
        w[0].shr::<29>().and(m),
        w[0].shr::<58>().or(w[1].shl::<6>()).and(m),
        w[1].shr::<23>().and(m),
        w[1].shr::<52>().or(w[2].shl::<12>()).and(m),
        w[2].shr::<17>().and(m),
        w[2].shr::<46>().or(w[3].shl::<18>()).and(m),
        w[3].shr::<11>().and(m),
        w[3].shr::<40>(),
    ]
}

/// Sequential carries; limb 8 takes what comes.
#[inline(always)]
fn carry<V: Mul32>(r: &mut L<V>) {
    let m = V::splat(M29);
    for i in 0..8 {
        r[i + 1] = r[i + 1].add(r[i].shr::<29>());
        r[i] = r[i].and(m);
    }
}

/// The canonical value as four words per lane.
#[inline(always)]
fn to_vectors<V: Mul32>(a: &L<V>) -> [V; 4] {
    let top = V::splat((1 << 24) - 1);
    // One fold leaves less than 2^256 + C.
    let mut r = *a;
    carry(&mut r);
    let q = r[8].shr::<24>();
    r[8] = r[8].and(top);
    r[0] = r[0].add(q.mul32(V::splat(977)));
    r[1] = r[1].add(q.shl::<3>());
    carry(&mut r);
    // r >= p exactly when r + C reaches 2^256; then r + C − 2^256 is the result.
    let mut s = r;
    s[0] = s[0].add(V::splat(977));
    s[1] = s[1].add(V::splat(8));
    carry(&mut s);
    let reached = V::splat(0).sub(s[8].shr::<24>());
    s[8] = s[8].and(top);
    for i in 0..9 {
        r[i] = s[i].select(r[i], reached);
    }
    [
        r[0].or(r[1].shl::<29>()).or(r[2].shl::<58>()),
        r[2].shr::<6>().or(r[3].shl::<23>()).or(r[4].shl::<52>()),
        r[4].shr::<12>().or(r[5].shl::<17>()).or(r[6].shl::<46>()),
        r[6].shr::<18>().or(r[7].shl::<11>()).or(r[8].shl::<40>()),
    ]
}

/// The bodies of the multiplication kernels.
pub(crate) mod body {
    use super::{L, M29, Mul32, OFF_SUM, R0};

    #[inline(always)]
    pub(crate) fn mul<V: Mul32>(a: &L<V>, b: &L<V>) -> L<V> {
        reduce(product(a, b), |r| r)
    }

    #[inline(always)]
    pub(crate) fn sqr<V: Mul32>(a: &L<V>) -> L<V> {
        reduce(square(a), |r| r)
    }

    #[inline(always)]
    pub(crate) fn mul_sub<V: Mul32>(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        reduce(product(a, b), |r| take(r, s))
    }

    #[inline(always)]
    pub(crate) fn sqr_sub<V: Mul32>(a: &L<V>, s: &L<V>) -> L<V> {
        reduce(square(a), |r| take(r, s))
    }

    #[inline(always)]
    pub(crate) fn mul_add<V: Mul32>(a: &L<V>, b: &L<V>, s: &L<V>) -> L<V> {
        reduce(product(a, b), |mut r| {
            for i in 0..9 {
                r[i] = r[i].add(s[i]);
            }
            r
        })
    }

    #[inline(always)]
    fn take<V: Mul32>(mut r: L<V>, s: &L<V>) -> L<V> {
        for i in 0..9 {
            r[i] = r[i].add(V::splat(OFF_SUM[i]).sub(s[i]));
        }
        r
    }

    /// One sum of products per column, written out: as loops they are not unrolled.
    macro_rules! columns {
        ($a:ident, $b:ident, $c:ident; $([$($column:tt)*])*) => {
            [$(columns!(@sum $a, $b, $c; $($column)*)),*]
        };
        (@sum $a:ident, $b:ident, $c:ident; $i:literal $j:tt $(, $k:literal $l:tt)*) => {
            columns!(@term $a, $b, $c; $i $j)$(.add(columns!(@term $a, $b, $c; $k $l)))*
        };
        (@term $a:ident, $b:ident, $c:ident; $i:literal ($j:literal)) => { $a[$i].mul32($c[$j]) };
        (@term $a:ident, $b:ident, $c:ident; $i:literal $j:literal) => { $a[$i].mul32($b[$j]) };
    }

    #[inline(always)]
    #[rustfmt::skip]
    fn product<V: Mul32>(a: &L<V>, b: &L<V>) -> [V; 17] {
        columns!(a, b, b;
            [0 0]
            [0 1, 1 0]
            [0 2, 1 1, 2 0]
            [0 3, 1 2, 2 1, 3 0]
            [0 4, 1 3, 2 2, 3 1, 4 0]
            [0 5, 1 4, 2 3, 3 2, 4 1, 5 0]
            [0 6, 1 5, 2 4, 3 3, 4 2, 5 1, 6 0]
            [0 7, 1 6, 2 5, 3 4, 4 3, 5 2, 6 1, 7 0]
            [0 8, 1 7, 2 6, 3 5, 4 4, 5 3, 6 2, 7 1, 8 0]
            [1 8, 2 7, 3 6, 4 5, 5 4, 6 3, 7 2, 8 1]
            [2 8, 3 7, 4 6, 5 5, 6 4, 7 3, 8 2]
            [3 8, 4 7, 5 6, 6 5, 7 4, 8 3]
            [4 8, 5 7, 6 6, 7 5, 8 4]
            [5 8, 6 7, 7 6, 8 5]
            [6 8, 7 7, 8 6]
            [7 8, 8 7]
            [8 8]
        )
    }

    #[inline(always)]
    #[rustfmt::skip]
    fn square<V: Mul32>(a: &L<V>) -> [V; 17] {
        // Doubled limbs are below 2^31, and a column holds the same total as in a product. The index in
        // brackets is that of a limb which is not doubled.
        let d: L<V> = core::array::from_fn(|i| a[i].add(a[i]));
        columns!(a, d, a;
            [0 (0)]
            [0 1]
            [1 (1), 0 2]
            [0 3, 1 2]
            [2 (2), 0 4, 1 3]
            [0 5, 1 4, 2 3]
            [3 (3), 0 6, 1 5, 2 4]
            [0 7, 1 6, 2 5, 3 4]
            [4 (4), 0 8, 1 7, 2 6, 3 5]
            [1 8, 2 7, 3 6, 4 5]
            [5 (5), 2 8, 3 7, 4 6]
            [3 8, 4 7, 5 6]
            [6 (6), 4 8, 5 7]
            [5 8, 6 7]
            [7 (7), 6 8]
            [7 8]
            [8 (8)]
        )
    }

    /// Folds columns 9–16, lets `with` change columns 0–8 by less than 2^33 each, and carries.
    #[inline(always)]
    fn reduce<V: Mul32>(mut c: [V; 17], with: impl FnOnce(L<V>) -> L<V>) -> L<V> {
        let m = V::splat(M29);
        // Columns 8–16 carried into 29-bit limbs and a 17th: a product below 2^516.1 leaves less than 2^23.1
        // there (weight 2^493).
        for k in 8..16 {
            c[k + 1] = c[k + 1].add(c[k].shr::<29>());
            c[k] = c[k].and(m);
        }
        let h17 = c[16].shr::<29>();
        c[16] = c[16].and(m);
        // h·2^(29k) ≡ h·R0·2^(29(k−9)) + (h << 8)·2^(29(k−8)); each below 2^45. The 17th folds twice.
        let r0 = V::splat(R0);
        let mut r = [c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]];
        for i in 0..8 {
            r[i] = r[i].add(c[i + 9].mul32(r0));
            r[i + 1] = r[i + 1].add(c[i + 9].shl::<8>());
        }
        r[8] = r[8].add(h17.mul32(r0));
        r[0] = r[0].add(h17.mul32(V::splat(R0 << 8)));
        r[1] = r[1].add(h17.shl::<16>());
        let mut r = with(r);
        // Limb 8 was carried before, so that it now holds less than 2^29, a shifted limb (2^37), the 17th times
        // R0 (2^38.1, because the 17th is below 2^23.1), what `with` adds (2^33) and the carry of a column (2^35):
        // q is below 2^14.8.
        for i in 0..8 {
            r[i + 1] = r[i + 1].add(r[i].shr::<29>());
            r[i] = r[i].and(m);
        }
        let q = r[8].shr::<24>();
        r[8] = r[8].and(V::splat((1 << 24) - 1));
        // q·977 < 2^25 and 8q < 2^18: the result is tight as it stands.
        r[0] = r[0].add(q.mul32(V::splat(977)));
        r[1] = r[1].add(q.shl::<3>());
        r
    }
}

impl<V: Mul32> Field for R29<V> {
    const LANES: usize = V::LANES;
    const CHUNK: usize = 1024;
    const PAIRS: bool = false;
    const WIDTH: u32 = 29;
    const MAXIMA: (&'static [u64], &'static [u64], &'static [u64]) = (
        &[M29 + (1 << 25), M29 + (1 << 18), M29, M29, M29, M29, M29, M29, (1 << 24) - 1],
        &{
            let mut limbs = [(5 << 29) + (1 << 25) - 1; 9];
            limbs[8] = (1 << 27) + (1 << 25) - 1;
            limbs
        },
        &{
            let mut limbs = [(7 << 29) + (3 << 25) - 1; 9];
            limbs[8] = (1 << 28) - 9;
            limbs
        },
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
        core::array::from_fn(|i| a[i].add(V::splat(OFF1[i])).sub(b[i]))
    }

    #[inline(always)]
    fn neg_sum(a: &L<V>, b: &L<V>) -> L<V> {
        core::array::from_fn(|i| V::splat(OFF3[i]).sub(a[i].add(b[i])))
    }

    #[inline(always)]
    fn neg_sum3(a: &L<V>, b: &L<V>, c: &L<V>) -> L<V> {
        core::array::from_fn(|i| V::splat(OFF3[i]).sub(a[i].add(b[i]).add(c[i])))
    }

    #[inline(always)]
    fn signed_sub(a: &L<V>, negate: u32, b: &L<V>) -> L<V> {
        let m = V::mask(negate);
        core::array::from_fn(|i| a[i].xor(m).sub(m).add(V::splat(OFF3[i])).sub(b[i]))
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
