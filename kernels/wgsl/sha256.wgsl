// The tagged hash that gives t: one compression from the midstate behind the tag of BIP352, written out so that nothing is
// indexed.
const SHA_MIDSTATE = array<u32, 8>(
    0x88831537u, 0x5127079bu, 0x69c2137bu, 0xab0303e6u, 0x98fa21fau, 0x4a888523u, 0xbd99daabu, 0xf25e5e0au);

fn rotated_right(value: u32, bits: u32) -> u32 {
    return (value >> bits) | (value << (32u - bits));
}

fn sha_round(s: array<u32, 8>, added: u32) -> array<u32, 8> {
    let a = s[0];
    let e = s[4];
    let t1 = s[7] + (rotated_right(e, 6u) ^ rotated_right(e, 11u) ^ rotated_right(e, 25u))
        + ((e & s[5]) ^ (~e & s[6])) + added;
    let t2 = (rotated_right(a, 2u) ^ rotated_right(a, 13u) ^ rotated_right(a, 22u))
        + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    return array<u32, 8>(t1 + t2, a, s[1], s[2], s[3] + t1, e, s[5], s[6]);
}

// A word of the schedule from those 16, 15, 7 and 2 before it.
fn sha_word(w16: u32, w15: u32, w7: u32, w2: u32) -> u32 {
    return w16 + (rotated_right(w15, 7u) ^ rotated_right(w15, 18u) ^ (w15 >> 3u)) + w7
        + (rotated_right(w2, 17u) ^ rotated_right(w2, 19u) ^ (w2 >> 10u));
}

// SHA256(tag || tag || ser(S) || ser32(0)) as a number, the lowest word first; x is below p.
fn shared_secret_hash(x: Fe, odd: u32) -> Fe {
    var w0 = ((2u + odd) << 24u) | (x[7] >> 8u);
    var w1 = (x[7] << 24u) | (x[6] >> 8u);
    var w2 = (x[6] << 24u) | (x[5] >> 8u);
    var w3 = (x[5] << 24u) | (x[4] >> 8u);
    var w4 = (x[4] << 24u) | (x[3] >> 8u);
    var w5 = (x[3] << 24u) | (x[2] >> 8u);
    var w6 = (x[2] << 24u) | (x[1] >> 8u);
    var w7 = (x[1] << 24u) | (x[0] >> 8u);
    var w8 = x[0] << 24u;
    // The last byte of ser32(0), then the padding; 101 bytes are 0x328 bits.
    var w9 = 0x00800000u;
    var w10 = 0u;
    var w11 = 0u;
    var w12 = 0u;
    var w13 = 0u;
    var w14 = 0u;
    var w15 = 0x328u;
    var s = SHA_MIDSTATE;
    s = sha_round(s, 0x428a2f98u + w0);
    s = sha_round(s, 0x71374491u + w1);
    s = sha_round(s, 0xb5c0fbcfu + w2);
    s = sha_round(s, 0xe9b5dba5u + w3);
    s = sha_round(s, 0x3956c25bu + w4);
    s = sha_round(s, 0x59f111f1u + w5);
    s = sha_round(s, 0x923f82a4u + w6);
    s = sha_round(s, 0xab1c5ed5u + w7);
    s = sha_round(s, 0xd807aa98u + w8);
    s = sha_round(s, 0x12835b01u + w9);
    s = sha_round(s, 0x243185beu + w10);
    s = sha_round(s, 0x550c7dc3u + w11);
    s = sha_round(s, 0x72be5d74u + w12);
    s = sha_round(s, 0x80deb1feu + w13);
    s = sha_round(s, 0x9bdc06a7u + w14);
    s = sha_round(s, 0xc19bf174u + w15);
    w0 = sha_word(w0, w1, w9, w14);
    s = sha_round(s, 0xe49b69c1u + w0);
    w1 = sha_word(w1, w2, w10, w15);
    s = sha_round(s, 0xefbe4786u + w1);
    w2 = sha_word(w2, w3, w11, w0);
    s = sha_round(s, 0x0fc19dc6u + w2);
    w3 = sha_word(w3, w4, w12, w1);
    s = sha_round(s, 0x240ca1ccu + w3);
    w4 = sha_word(w4, w5, w13, w2);
    s = sha_round(s, 0x2de92c6fu + w4);
    w5 = sha_word(w5, w6, w14, w3);
    s = sha_round(s, 0x4a7484aau + w5);
    w6 = sha_word(w6, w7, w15, w4);
    s = sha_round(s, 0x5cb0a9dcu + w6);
    w7 = sha_word(w7, w8, w0, w5);
    s = sha_round(s, 0x76f988dau + w7);
    w8 = sha_word(w8, w9, w1, w6);
    s = sha_round(s, 0x983e5152u + w8);
    w9 = sha_word(w9, w10, w2, w7);
    s = sha_round(s, 0xa831c66du + w9);
    w10 = sha_word(w10, w11, w3, w8);
    s = sha_round(s, 0xb00327c8u + w10);
    w11 = sha_word(w11, w12, w4, w9);
    s = sha_round(s, 0xbf597fc7u + w11);
    w12 = sha_word(w12, w13, w5, w10);
    s = sha_round(s, 0xc6e00bf3u + w12);
    w13 = sha_word(w13, w14, w6, w11);
    s = sha_round(s, 0xd5a79147u + w13);
    w14 = sha_word(w14, w15, w7, w12);
    s = sha_round(s, 0x06ca6351u + w14);
    w15 = sha_word(w15, w0, w8, w13);
    s = sha_round(s, 0x14292967u + w15);
    w0 = sha_word(w0, w1, w9, w14);
    s = sha_round(s, 0x27b70a85u + w0);
    w1 = sha_word(w1, w2, w10, w15);
    s = sha_round(s, 0x2e1b2138u + w1);
    w2 = sha_word(w2, w3, w11, w0);
    s = sha_round(s, 0x4d2c6dfcu + w2);
    w3 = sha_word(w3, w4, w12, w1);
    s = sha_round(s, 0x53380d13u + w3);
    w4 = sha_word(w4, w5, w13, w2);
    s = sha_round(s, 0x650a7354u + w4);
    w5 = sha_word(w5, w6, w14, w3);
    s = sha_round(s, 0x766a0abbu + w5);
    w6 = sha_word(w6, w7, w15, w4);
    s = sha_round(s, 0x81c2c92eu + w6);
    w7 = sha_word(w7, w8, w0, w5);
    s = sha_round(s, 0x92722c85u + w7);
    w8 = sha_word(w8, w9, w1, w6);
    s = sha_round(s, 0xa2bfe8a1u + w8);
    w9 = sha_word(w9, w10, w2, w7);
    s = sha_round(s, 0xa81a664bu + w9);
    w10 = sha_word(w10, w11, w3, w8);
    s = sha_round(s, 0xc24b8b70u + w10);
    w11 = sha_word(w11, w12, w4, w9);
    s = sha_round(s, 0xc76c51a3u + w11);
    w12 = sha_word(w12, w13, w5, w10);
    s = sha_round(s, 0xd192e819u + w12);
    w13 = sha_word(w13, w14, w6, w11);
    s = sha_round(s, 0xd6990624u + w13);
    w14 = sha_word(w14, w15, w7, w12);
    s = sha_round(s, 0xf40e3585u + w14);
    w15 = sha_word(w15, w0, w8, w13);
    s = sha_round(s, 0x106aa070u + w15);
    w0 = sha_word(w0, w1, w9, w14);
    s = sha_round(s, 0x19a4c116u + w0);
    w1 = sha_word(w1, w2, w10, w15);
    s = sha_round(s, 0x1e376c08u + w1);
    w2 = sha_word(w2, w3, w11, w0);
    s = sha_round(s, 0x2748774cu + w2);
    w3 = sha_word(w3, w4, w12, w1);
    s = sha_round(s, 0x34b0bcb5u + w3);
    w4 = sha_word(w4, w5, w13, w2);
    s = sha_round(s, 0x391c0cb3u + w4);
    w5 = sha_word(w5, w6, w14, w3);
    s = sha_round(s, 0x4ed8aa4au + w5);
    w6 = sha_word(w6, w7, w15, w4);
    s = sha_round(s, 0x5b9cca4fu + w6);
    w7 = sha_word(w7, w8, w0, w5);
    s = sha_round(s, 0x682e6ff3u + w7);
    w8 = sha_word(w8, w9, w1, w6);
    s = sha_round(s, 0x748f82eeu + w8);
    w9 = sha_word(w9, w10, w2, w7);
    s = sha_round(s, 0x78a5636fu + w9);
    w10 = sha_word(w10, w11, w3, w8);
    s = sha_round(s, 0x84c87814u + w10);
    w11 = sha_word(w11, w12, w4, w9);
    s = sha_round(s, 0x8cc70208u + w11);
    w12 = sha_word(w12, w13, w5, w10);
    s = sha_round(s, 0x90befffau + w12);
    w13 = sha_word(w13, w14, w6, w11);
    s = sha_round(s, 0xa4506cebu + w13);
    w14 = sha_word(w14, w15, w7, w12);
    s = sha_round(s, 0xbef9a3f7u + w14);
    w15 = sha_word(w15, w0, w8, w13);
    s = sha_round(s, 0xc67178f2u + w15);
    return Fe(
        s[7] + SHA_MIDSTATE[7], s[6] + SHA_MIDSTATE[6], s[5] + SHA_MIDSTATE[5], s[4] + SHA_MIDSTATE[4],
        s[3] + SHA_MIDSTATE[3], s[2] + SHA_MIDSTATE[2], s[1] + SHA_MIDSTATE[1], s[0] + SHA_MIDSTATE[0]);
}

// Whether it is in [1, n).
fn is_scalar(t: Fe) -> bool {
    let any = t[0] | t[1] | t[2] | t[3] | t[4] | t[5] | t[6] | t[7];
    let n = Fe(
        0xd0364141u, 0xbfd25e8cu, 0xaf48a03bu, 0xbaaedce6u, 0xfffffffeu, 0xffffffffu, 0xffffffffu, 0xffffffffu);
    return any != 0u && sub_words(t, n).carry == 1u;
}
