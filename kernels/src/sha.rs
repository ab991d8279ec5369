//! The tagged hash of a shared secret: one compression from the midstate behind the tag.
//!
//! t = SHA256(tag ‖ tag ‖ ser(S) ‖ ser32(0)) with tag = SHA256("BIP0352/SharedSecret"). The tag block is
//! constant and the 37 bytes behind it fit one block with their padding.

use zeroize::Zeroize;

/// The state behind the block tag ‖ tag.
const MIDSTATE: [u32; 8] =
    [0x88831537, 0x5127079b, 0x69c2137b, 0xab0303e6, 0x98fa21fa, 0x4a888523, 0xbd99daab, 0xf25e5e0a];

const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The message block for the point with this x and parity of y.
#[inline(always)]
fn block(x: &[u64; 4], odd: bool) -> [u32; 16] {
    let [w0, w1, w2, w3] = *x;
    let low = |w: u64| w as u32;
    [
        (2 + u32::from(odd)) << 24 | low(w3 >> 40),
        low(w3 >> 8),
        low(w3 << 24 | w2 >> 40),
        low(w2 >> 8),
        low(w2 << 24 | w1 >> 40),
        low(w1 >> 8),
        low(w1 << 24 | w0 >> 40),
        low(w0 >> 8),
        low(w0 << 24),
        // The last byte of ser32(0), then the padding; 101 bytes are 0x328 bits.
        0x0080_0000,
        0,
        0,
        0,
        0,
        0,
        0x328,
    ]
}

#[inline(always)]
fn scalar(state: &[u32; 8]) -> [u64; 4] {
    let word = |i: usize| u64::from(state[i]) << 32 | u64::from(state[i + 1]);
    [word(6), word(4), word(2), word(0)]
}

/// Replaces the x of every point by t; `ys` says which y are odd.
pub(crate) fn shared_secrets(xs: &mut [[u64; 4]], ys: &[[u64; 4]]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sha")
        && std::arch::is_x86_feature_detected!("sse4.1")
        && std::arch::is_x86_feature_detected!("ssse3")
    {
        // SAFETY: the features were just detected.
        unsafe { ni::shared_secrets(xs, ys) };
        return;
    }
    for (x, y) in xs.iter_mut().zip(ys) {
        let mut w = block(x, y[0] & 1 != 0);
        *x = scalar(&compress(&mut w));
        w.zeroize();
    }
}

/// One compression from the midstate; consumes the block.
fn compress(w: &mut [u32; 16]) -> [u32; 8] {
    let mut s = MIDSTATE;
    for (i, k) in K.iter().enumerate() {
        if i >= 16 {
            let (a, b) = (w[(i + 1) % 16], w[(i + 14) % 16]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
            w[i % 16] = w[i % 16].wrapping_add(s0).wrapping_add(w[(i + 9) % 16]).wrapping_add(s1);
        }
        let [a, b, c, d, e, f, g, h] = s;
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(*k).wrapping_add(w[i % 16]);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        s = [t1.wrapping_add(s0).wrapping_add(majority), a, b, c, d.wrapping_add(t1), e, f, g];
    }
    for (word, start) in s.iter_mut().zip(MIDSTATE) {
        *word = word.wrapping_add(start);
    }
    s
}

/// The SHA extensions.
#[cfg(target_arch = "x86_64")]
mod ni {
    use super::{K, MIDSTATE, block, scalar};
    use core::arch::x86_64::*;

    #[target_feature(enable = "sha,sse4.1,ssse3")]
    pub(super) fn shared_secrets(xs: &mut [[u64; 4]], ys: &[[u64; 4]]) {
        for (x, y) in xs.iter_mut().zip(ys) {
            *x = scalar(&compress(&block(x, y[0] & 1 != 0)));
        }
    }

    #[inline]
    #[target_feature(enable = "sha,sse4.1,ssse3")]
    fn compress(w: &[u32; 16]) -> [u32; 8] {
        let set = |a: u32, b: u32, c: u32, d: u32| _mm_set_epi32(a as i32, b as i32, c as i32, d as i32);
        let [a, b, c, d, e, f, g, h] = MIDSTATE;
        // The instructions keep (a, b, e, f) and (c, d, g, h), first letter on top.
        let (start0, start1) = (set(a, b, e, f), set(c, d, g, h));
        let (mut s0, mut s1) = (start0, start1);
        let four = |v: &[u32], i: usize| set(v[i + 3], v[i + 2], v[i + 1], v[i]);
        let mut m = [four(w, 0), four(w, 4), four(w, 8), four(w, 12)];
        for i in 0..16 {
            let mut k = _mm_add_epi32(m[i % 4], four(&K, 4 * i));
            s1 = _mm_sha256rnds2_epu32(s1, s0, k);
            k = _mm_shuffle_epi32::<0x0e>(k);
            s0 = _mm_sha256rnds2_epu32(s0, s1, k);
            if i < 12 {
                let (m0, m1, m2, m3) = (m[i % 4], m[(i + 1) % 4], m[(i + 2) % 4], m[(i + 3) % 4]);
                let sum = _mm_add_epi32(_mm_sha256msg1_epu32(m0, m1), _mm_alignr_epi8::<4>(m3, m2));
                m[i % 4] = _mm_sha256msg2_epu32(sum, m3);
            }
        }
        s0 = _mm_add_epi32(s0, start0);
        s1 = _mm_add_epi32(s1, start1);
        let high = |v: __m128i| (_mm_extract_epi32::<3>(v) as u32, _mm_extract_epi32::<2>(v) as u32);
        let low = |v: __m128i| (_mm_extract_epi32::<1>(v) as u32, _mm_extract_epi32::<0>(v) as u32);
        let ((a, b), (e, f), (c, d), (g, h)) = (high(s0), low(s0), high(s1), low(s1));
        [a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_agree() {
        let mut xs: Vec<[u64; 4]> = (0..50u64)
            .map(|i| [0, 1, 2, 3].map(|j| (i + 1).wrapping_mul(0x9e3779b97f4a7c15).rotate_left(17 * j)))
            .collect();
        let ys: Vec<[u64; 4]> = (0..50).map(|i| [i * i, 1, 2, 3]).collect();
        let expected: Vec<_> =
            xs.iter().zip(&ys).map(|(x, y)| scalar(&compress(&mut block(x, y[0] & 1 != 0)))).collect();
        shared_secrets(&mut xs, &ys);
        assert_eq!(xs, expected);
    }
}
