// The tagged hash that gives t: one compression from the midstate behind the tag of BIP352.
#pragma once
#include "field.cuh"

CONSTANT u32 SHA_MIDSTATE[8] = {0x88831537, 0x5127079b, 0x69c2137b, 0xab0303e6,
                                0x98fa21fa, 0x4a888523, 0xbd99daab, 0xf25e5e0a};

CONSTANT u32 SHA_ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// SHA256(tag || tag || ser(S) || ser32(0)) as a number, the lowest word first; x is below p.
DEVICE Fe shared_secret_hash(const Fe &x, u32 odd) {
    u32 w[16];
    w[0] = (2 + odd) << 24 | x.v[7] >> 8;
#pragma unroll
    for (int i = 1; i < 8; i++) w[i] = x.v[8 - i] << 24 | x.v[7 - i] >> 8;
    w[8] = x.v[0] << 24;
    // The last byte of ser32(0), then the padding; 101 bytes are 0x328 bits.
    w[9] = 0x00800000;
    w[10] = w[11] = w[12] = w[13] = w[14] = 0;
    w[15] = 0x328;

    u32 s[8];
#pragma unroll
    for (int i = 0; i < 8; i++) s[i] = SHA_MIDSTATE[i];
#pragma unroll 16
    for (int i = 0; i < 64; i++) {
        if (i >= 16) {
            u32 a = w[(i + 1) & 15], b = w[(i + 14) & 15];
            w[i & 15] += (rotated_right(a, 7) ^ rotated_right(a, 18) ^ a >> 3) + w[(i + 9) & 15] +
                         (rotated_right(b, 17) ^ rotated_right(b, 19) ^ b >> 10);
        }
        u32 e = s[4], a = s[0];
        u32 t1 = s[7] + (rotated_right(e, 6) ^ rotated_right(e, 11) ^ rotated_right(e, 25)) +
                 ((e & s[5]) ^ (~e & s[6])) + SHA_ROUND[i] + w[i & 15];
        u32 t2 = (rotated_right(a, 2) ^ rotated_right(a, 13) ^ rotated_right(a, 22)) +
                 ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        s[7] = s[6];
        s[6] = s[5];
        s[5] = e;
        s[4] = s[3] + t1;
        s[3] = s[2];
        s[2] = s[1];
        s[1] = a;
        s[0] = t1 + t2;
    }
    Fe t;
#pragma unroll
    for (int i = 0; i < 8; i++) t.v[7 - i] = s[i] + SHA_MIDSTATE[i];
    return t;
}

// Whether it is in [1, n).
DEVICE bool is_scalar(const Fe &t) {
    u32 any = t.v[0] | t.v[1] | t.v[2] | t.v[3] | t.v[4] | t.v[5] | t.v[6] | t.v[7];
    sub_cc(t.v[0], 0xd0364141);
    subc_cc(t.v[1], 0xbfd25e8c);
    subc_cc(t.v[2], 0xaf48a03b);
    subc_cc(t.v[3], 0xbaaedce6);
    subc_cc(t.v[4], 0xfffffffe);
    subc_cc(t.v[5], 0xffffffff);
    subc_cc(t.v[6], 0xffffffff);
    subc_cc(t.v[7], 0xffffffff);
    return any != 0 && subc(0, 0) != 0;
}
