//! Inversion of one field element: division steps of Bernstein and Yang, 62 at a time, in variable time.
//!
//! Numbers are five signed limbs of 62 bits. Sixty-two division steps look only at the low 62 bits of f and g
//! and give a 2×2 matrix that is then applied to the full numbers, and modulo p to the running coefficients.

use super::P;
use super::scalar::Words;

const M62: u64 = u64::MAX >> 2;
/// p^-1 modulo 2^62.
const P_INV62: u64 = 0x27c7_f6e2_2dda_cacf;

type Limbs = [i64; 5];

fn split(a: &Words) -> Limbs {
    [
        (a[0] & M62) as i64,
        ((a[0] >> 62 | a[1] << 2) & M62) as i64,
        ((a[1] >> 60 | a[2] << 4) & M62) as i64,
        ((a[2] >> 58 | a[3] << 6) & M62) as i64,
        (a[3] >> 56) as i64,
    ]
}

fn join(a: &Limbs) -> Words {
    let u = a.map(|limb| limb as u64);
    [u[0] | u[1] << 62, u[1] >> 2 | u[2] << 60, u[2] >> 4 | u[3] << 58, u[3] >> 6 | u[4] << 56]
}

/// The product of 62 division steps, scaled by 2^62: [u, v, q, r].
type Matrix = [i64; 4];

/// Runs 62 division steps on the low bits of f and g; `eta` is −delta.
#[inline(always)]
fn divsteps(mut eta: i64, f0: u64, g0: u64) -> (i64, Matrix) {
    let (mut u, mut v, mut q, mut r) = (1u64, 0u64, 0u64, 1u64);
    let (mut f, mut g) = (f0, g0);
    let mut left = 62u32;
    loop {
        // Even g: halve it as often as it goes.
        let zeros = (g | u64::MAX << left).trailing_zeros();
        g >>= zeros;
        u <<= zeros;
        v <<= zeros;
        eta -= i64::from(zeros);
        left -= zeros;
        if left == 0 {
            break;
        }
        let w;
        if eta < 0 {
            eta = -eta;
            (f, g) = (g, f.wrapping_neg());
            (u, q) = (q, u.wrapping_neg());
            (v, r) = (r, v.wrapping_neg());
            // Clear up to six bits of g at once: f·(f² − 2) = −1/f modulo 2^6.
            let limit = (eta + 1).min(i64::from(left)) as u32;
            let mask = (u64::MAX >> (64 - limit)) & 63;
            w = f.wrapping_mul(g).wrapping_mul(f.wrapping_mul(f).wrapping_sub(2)) & mask;
        } else {
            // Up to four bits: f + (((f + 1) & 4) << 1) = 1/f modulo 2^4.
            let limit = (eta + 1).min(i64::from(left)) as u32;
            let mask = (u64::MAX >> (64 - limit)) & 15;
            let inverse = f.wrapping_add((f.wrapping_add(1) & 4) << 1);
            w = inverse.wrapping_neg().wrapping_mul(g) & mask;
        }
        g = g.wrapping_add(f.wrapping_mul(w));
        q = q.wrapping_add(u.wrapping_mul(w));
        r = r.wrapping_add(v.wrapping_mul(w));
    }
    (eta, [u as i64, v as i64, q as i64, r as i64])
}

/// Applies the matrix to (f, g) and divides by 2^62, exactly.
#[inline(always)]
fn update_fg(f: &mut Limbs, g: &mut Limbs, t: &Matrix) {
    let [u, v, q, r] = t.map(i128::from);
    let mut cf = u * i128::from(f[0]) + v * i128::from(g[0]);
    let mut cg = q * i128::from(f[0]) + r * i128::from(g[0]);
    cf >>= 62;
    cg >>= 62;
    for i in 1..5 {
        cf += u * i128::from(f[i]) + v * i128::from(g[i]);
        cg += q * i128::from(f[i]) + r * i128::from(g[i]);
        f[i - 1] = cf as i64 & M62 as i64;
        g[i - 1] = cg as i64 & M62 as i64;
        cf >>= 62;
        cg >>= 62;
    }
    f[4] = cf as i64;
    g[4] = cg as i64;
}

/// Applies the matrix to (d, e) and divides by 2^62 modulo p; both stay in (−2p, p).
#[inline(always)]
fn update_de(d: &mut Limbs, e: &mut Limbs, t: &Matrix, p: &Limbs) {
    let [u, v, q, r] = *t;
    let (sd, se) = (d[4] >> 63, e[4] >> 63);
    let mut md = (u & sd) + (v & se);
    let mut me = (q & sd) + (r & se);
    let wide = |a: i64, b: i64| i128::from(a) * i128::from(b);
    let mut cd = wide(u, d[0]) + wide(v, e[0]);
    let mut ce = wide(q, d[0]) + wide(r, e[0]);
    // The multiples of p that make the low 62 bits vanish.
    md -= ((P_INV62.wrapping_mul(cd as u64)).wrapping_add(md as u64) & M62) as i64;
    me -= ((P_INV62.wrapping_mul(ce as u64)).wrapping_add(me as u64) & M62) as i64;
    cd += wide(p[0], md);
    ce += wide(p[0], me);
    cd >>= 62;
    ce >>= 62;
    for i in 1..5 {
        cd += wide(u, d[i]) + wide(v, e[i]) + wide(p[i], md);
        ce += wide(q, d[i]) + wide(r, e[i]) + wide(p[i], me);
        d[i - 1] = cd as i64 & M62 as i64;
        e[i - 1] = ce as i64 & M62 as i64;
        cd >>= 62;
        ce >>= 62;
    }
    d[4] = cd as i64;
    e[4] = ce as i64;
}

/// 1/a modulo p, canonical; zero for zero.
pub(crate) fn invert(a: &Words) -> Words {
    let p = split(&P);
    let mut f = p;
    let mut g = split(&super::scalar::canonical(a));
    let mut d: Limbs = [0; 5];
    let mut e: Limbs = [1, 0, 0, 0, 0];
    let mut eta = -1;
    while g != [0; 5] {
        let (next, t) = divsteps(eta, f[0] as u64, g[0] as u64);
        eta = next;
        update_de(&mut d, &mut e, &t, &p);
        update_fg(&mut f, &mut g, &t);
    }
    // f is ±1 (or ±p when a was zero, and then d is zero). d is in (−2p, p); the order of the next steps keeps it in
    // (−p, p), so that it never needs more than 256 bits: negating first would reach 2p.
    if d[4] < 0 {
        add_p(&mut d, &p);
    }
    if f[4] < 0 {
        negate(&mut d);
    }
    if d[4] < 0 {
        add_p(&mut d, &p);
    }
    super::scalar::canonical(&join(&d))
}

fn negate(d: &mut Limbs) {
    for limb in d.iter_mut() {
        *limb = -*limb;
    }
    carry(d);
}

fn add_p(d: &mut Limbs, p: &Limbs) {
    for (limb, q) in d.iter_mut().zip(p) {
        *limb += q;
    }
    carry(d);
}

fn carry(d: &mut Limbs) {
    for i in 0..4 {
        d[i + 1] += d[i] >> 62;
        d[i] &= M62 as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::scalar::{canonical, mul, neg};

    #[test]
    fn inverse_times_number_is_one() {
        const ONE: Words = [1, 0, 0, 0];
        let check = |a: &Words| {
            let inverse = invert(a);
            assert_eq!(canonical(&mul(&inverse, a)), ONE, "{a:x?}");
            assert_eq!(canonical(&inverse), inverse);
        };
        // A mistake in the final normalization shows up once in some ten thousand numbers.
        let mut a: Words = [0x9e37_79b9_7f4a_7c15, 2, 3, 0x0123_4567_89ab_cdef];
        for _ in 0..300_000 {
            check(&a);
            a = mul(&a, &[0xd1b5_4a32_d192_ed03, 0x94d0_49bb_1331_11eb, 0xbf58_476d_1ce4_e5b9, 7]);
        }
        for small in 1..200 {
            check(&[small, 0, 0, 0]);
            check(&neg(&[small, 0, 0, 0]));
        }
        assert_eq!(invert(&[0; 4]), [0; 4]);
        assert_eq!(invert(&P), [0; 4]);
    }
}
