//! Scalars modulo the group order n, and their split along the endomorphism.
//!
//! Nothing here runs per row except [`split`], which index building calls once per row.

/// n, least significant word first.
pub(crate) const N: [u64; 4] =
    [0xbfd25e8cd0364141, 0xbaaedce6af48a03b, 0xfffffffffffffffe, 0xffffffffffffffff];
/// The cube root of one modulo n: λ·(x, y) = (βx, y).
pub(crate) const LAMBDA: [u64; 4] =
    [0xdf02967c1b23bd72, 0x122e22ea20816678, 0xa5261c028812645a, 0x5363ad4cc05c30e0];

// The lattice {(a, b): a + bλ ≡ 0} has the short basis (A1, −B1), (A2, A1).
const A1: [u64; 4] = [0xe86c90e49284eb15, 0x3086d221a7d46bcd, 0, 0];
const B1: [u64; 4] = [0x6f547fa90abfe4c3, 0xe4437ed6010e8828, 0, 0];
const A2: [u64; 4] = [0x57c1108d9d44cfd8, 0x14ca50f7a8e2f3f6, 1, 0];
// A1·2^384/n and B1·2^384/n, rounded.
const G1: [u64; 4] = [0xe893209a45dbb031, 0x3daa8a1471e8ca7f, 0xe86c90e49284eb15, 0x3086d221a7d46bcd];
const G2: [u64; 4] = [0x1571b4ae8ac47f71, 0x221208ac9df506c6, 0x6f547fa90abfe4c4, 0xe4437ed6010e8828];

/// A scalar, or a signed number in two's complement.
pub(crate) type Int = [u64; 4];

pub(crate) fn from_be(bytes: &[u8; 32]) -> Int {
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().rev().zip(bytes.chunks_exact(8)) {
        let mut b = [0; 8];
        b.copy_from_slice(chunk);
        *word = u64::from_be_bytes(b);
    }
    words
}

pub(crate) fn less(a: &Int, b: &Int) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

/// Whether 0 < a < n.
pub(crate) fn is_valid(a: &Int) -> bool {
    *a != [0; 4] && less(a, &N)
}

/// a + b modulo 2^256, and the carry.
pub(crate) fn wrapping_add(a: &Int, b: &Int) -> (Int, bool) {
    let mut carry = false;
    let mut r = [0; 4];
    for i in 0..4 {
        let (s, c1) = a[i].overflowing_add(b[i]);
        let (s, c2) = s.overflowing_add(u64::from(carry));
        r[i] = s;
        carry = c1 | c2;
    }
    (r, carry)
}

/// a − b modulo 2^256.
pub(crate) fn wrapping_sub(a: &Int, b: &Int) -> Int {
    wrapping_add(&wrapping_add(a, &b.map(|word| !word)).0, &[1, 0, 0, 0]).0
}

/// (a + b) mod n, for a, b < n.
pub(crate) fn add(a: &Int, b: &Int) -> Int {
    let (sum, carry) = wrapping_add(a, b);
    if carry || !less(&sum, &N) { wrapping_sub(&sum, &N) } else { sum }
}

/// −a mod n, for a < n.
pub(crate) fn neg(a: &Int) -> Int {
    if *a == [0; 4] { *a } else { wrapping_sub(&N, a) }
}

/// a·b mod n, bit by bit.
pub(crate) fn mul(a: &Int, b: &Int) -> Int {
    let mut r = [0; 4];
    for i in (0..256).rev() {
        r = add(&r, &r);
        if b[i / 64] >> (i % 64) & 1 != 0 {
            r = add(&r, a);
        }
    }
    r
}

fn wide_mul(a: &Int, b: &Int) -> [u64; 8] {
    let mut t = [0u64; 8];
    for i in 0..4 {
        let mut carry = 0;
        for j in 0..4 {
            let v = u128::from(a[i]) * u128::from(b[j]) + u128::from(t[i + j]) + u128::from(carry);
            t[i + j] = v as u64;
            carry = (v >> 64) as u64;
        }
        t[i + 4] = carry;
    }
    t
}

/// a·b modulo 2^256.
fn low_mul(a: &Int, b: &Int) -> Int {
    let t = wide_mul(a, b);
    [t[0], t[1], t[2], t[3]]
}

/// (k1, k2), signed and about 128 bits long, with k ≡ k1 + k2·λ modulo n.
pub(crate) fn split(k: &Int) -> (Int, Int) {
    let round = |g: &Int| {
        let t = wide_mul(k, g);
        let (r, _) = wrapping_add(&[t[6], t[7], 0, 0], &[t[5] >> 63, 0, 0, 0]);
        r
    };
    let (c1, c2) = (round(&G1), round(&G2));
    let k1 = wrapping_sub(&wrapping_sub(k, &low_mul(&c1, &A1)), &low_mul(&c2, &A2));
    let k2 = wrapping_sub(&low_mul(&c1, &B1), &low_mul(&c2, &A1));
    (k1, k2)
}

/// Adds lattice vectors so that both halves are odd, for recodings that have no zero digit.
pub(crate) fn make_odd(k1: &mut Int, k2: &mut Int) {
    // A1 is odd, B1 is odd, A2 is even: (A1, −B1) flips both parities, (A2, A1) that of k2 alone.
    if k1[0] & 1 == 0 {
        *k1 = wrapping_add(k1, &A1).0;
        *k2 = wrapping_sub(k2, &B1);
    }
    if k2[0] & 1 == 0 {
        *k1 = wrapping_add(k1, &A2).0;
        *k2 = wrapping_add(k2, &A1).0;
    }
}

/// v >> i for a signed number, if that fits.
pub(crate) fn shifted(v: &Int, i: usize) -> Option<i32> {
    let bit = |at: usize| v[at.min(255) / 64] >> (at.min(255) % 64) & 1;
    let sign = bit(255);
    if (i + 8..256).any(|at| bit(at) != sign) {
        return None;
    }
    let low = (0..8).fold(0, |acc, k| acc | (bit(i + k) as i32) << k);
    Some(if sign == 1 { low - 256 } else { low })
}
