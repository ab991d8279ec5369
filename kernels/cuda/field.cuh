// Numbers modulo p = 2^256 - 2^32 - 977.
//
// Eight words of 32 bits, the lowest first. Every 256-bit value stands for its residue, so that results need not be below p;
// canonical() makes them so. What each reduction leaves over is bounded beside it.
#pragma once
#include "portable.cuh"

struct Fe {
    u32 v[8];
};

// 2^256 = 2^32 + 977 modulo p.
#define FOLD 977u

// r + top·2^256, for a top of at most 33 bits: (high, low).
DEVICE Fe fold_top(const u32 r[8], u32 low, u32 high) {
    Fe o;
    // low·(2^32 + 977) + high·2^32·(2^32 + 977), where high is 0 or 1.
    u32 product = mul_hi(low, FOLD);
    u32 first = add_cc(product, low);
    u32 second = addc(high, 0);
    first = add_cc(first, high ? FOLD : 0);
    second = addc(second, 0);
    o.v[0] = add_cc(r[0], mul_lo(low, FOLD));
    o.v[1] = addc_cc(r[1], first);
    o.v[2] = addc_cc(r[2], second);
    o.v[3] = addc_cc(r[3], 0);
    o.v[4] = addc_cc(r[4], 0);
    o.v[5] = addc_cc(r[5], 0);
    o.v[6] = addc_cc(r[6], 0);
    o.v[7] = addc_cc(r[7], 0);
    u32 carry = addc(0, 0);
    // With a carry, what is left is less than top·(2^32 + 977) < 2^67, so that adding that once more ends in the third word.
    o.v[0] = add_cc(o.v[0], carry ? FOLD : 0);
    o.v[1] = addc_cc(o.v[1], carry);
    o.v[2] = addc(o.v[2], 0);
    return o;
}

// Sixteen words modulo p.
DEVICE Fe reduce(const u32 w[16]) {
    // Even: the lower half, plus 977 times the even words of the upper half. Odd, one word higher: the upper half, which is
    // its multiple by 2^32, plus 977 times its odd words.
    u32 even[9], odd[9], r[8];
    even[0] = mad_lo_cc(w[8], FOLD, w[0]);
    even[1] = madc_hi_cc(w[8], FOLD, w[1]);
    even[2] = madc_lo_cc(w[10], FOLD, w[2]);
    even[3] = madc_hi_cc(w[10], FOLD, w[3]);
    even[4] = madc_lo_cc(w[12], FOLD, w[4]);
    even[5] = madc_hi_cc(w[12], FOLD, w[5]);
    even[6] = madc_lo_cc(w[14], FOLD, w[6]);
    even[7] = madc_hi_cc(w[14], FOLD, w[7]);
    even[8] = addc(0, 0);
    odd[0] = mad_lo_cc(w[9], FOLD, w[8]);
    odd[1] = madc_hi_cc(w[9], FOLD, w[9]);
    odd[2] = madc_lo_cc(w[11], FOLD, w[10]);
    odd[3] = madc_hi_cc(w[11], FOLD, w[11]);
    odd[4] = madc_lo_cc(w[13], FOLD, w[12]);
    odd[5] = madc_hi_cc(w[13], FOLD, w[13]);
    odd[6] = madc_lo_cc(w[15], FOLD, w[14]);
    odd[7] = madc_hi_cc(w[15], FOLD, w[15]);
    odd[8] = addc(0, 0);
    r[0] = even[0];
    r[1] = add_cc(even[1], odd[0]);
    r[2] = addc_cc(even[2], odd[1]);
    r[3] = addc_cc(even[3], odd[2]);
    r[4] = addc_cc(even[4], odd[3]);
    r[5] = addc_cc(even[5], odd[4]);
    r[6] = addc_cc(even[6], odd[5]);
    r[7] = addc_cc(even[7], odd[6]);
    u32 low = addc_cc(even[8], odd[7]);
    // All of it is less than 2^256·(2^32 + 978), so this is 0 or 1.
    u32 high = addc(odd[8], 0);
    return fold_top(r, low, high);
}

// Adds four products of two words each to eight words, and the carry to the ninth.
#define ROW(at, a0, a1, a2, a3, b)                  \
    at[0] = mad_lo_cc(a0, b, at[0]);                \
    at[1] = madc_hi_cc(a0, b, at[1]);               \
    at[2] = madc_lo_cc(a1, b, at[2]);               \
    at[3] = madc_hi_cc(a1, b, at[3]);               \
    at[4] = madc_lo_cc(a2, b, at[4]);               \
    at[5] = madc_hi_cc(a2, b, at[5]);               \
    at[6] = madc_lo_cc(a3, b, at[6]);

// The ninth word is not in use yet.
#define ROW_AND_CARRY(at, a0, a1, a2, a3, b)        \
    ROW(at, a0, a1, a2, a3, b)                      \
    at[7] = madc_hi_cc(a3, b, at[7]);               \
    at[8] = addc(0, 0);

// The last two words are 0 but for a carry, so that nothing is left over.
#define ROW_AT_END(at, a0, a1, a2, a3, b)           \
    ROW(at, a0, a1, a2, a3, b)                      \
    at[7] = madc_hi(a3, b, 0);

// a·b. Products of words whose places add up to an even number go to `even`, the others to `odd`, which stands one word
// higher: so each product fills two neighbouring words, and a row is one chain of carries.
DEVICE Fe mul(Fe x, Fe y) {
    const u32 *a = x.v, *b = y.v;
    u32 even[16], odd[16];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        even[i] = mul_lo(a[i], b[0]);
        even[i + 1] = mul_hi(a[i], b[0]);
        odd[i] = mul_lo(a[i + 1], b[0]);
        odd[i + 1] = mul_hi(a[i + 1], b[0]);
    }
    even[8] = 0;
#pragma unroll
    for (int i = 1; i < 7; i += 2) {
        u32 *at = odd + i - 1;
        ROW_AND_CARRY(at, a[0], a[2], a[4], a[6], b[i])
        at = even + i + 1;
        ROW_AT_END(at, a[1], a[3], a[5], a[7], b[i])
        ROW_AND_CARRY(at, a[0], a[2], a[4], a[6], b[i + 1])
        at = odd + i + 1;
        ROW_AT_END(at, a[1], a[3], a[5], a[7], b[i + 1])
    }
    u32 *at = odd + 6;
    ROW_AND_CARRY(at, a[0], a[2], a[4], a[6], b[7])
    at = even + 8;
    ROW_AT_END(at, a[1], a[3], a[5], a[7], b[7])

    even[1] = add_cc(even[1], odd[0]);
#pragma unroll
    for (int i = 2; i < 15; i++) even[i] = addc_cc(even[i], odd[i - 1]);
    even[15] = addc(even[15], odd[14]);
    return reduce(even);
}

// a². Every product of two different words once, doubled, and the squares of the words.
DEVICE Fe sqr(Fe x) {
    const u32 *a = x.v;
    // Each as in mul(); word 0 and 1 of `even` and what isn't written stays 0.
    u32 even[16], odd[16];
#pragma unroll
    for (int i = 0; i < 16; i++) even[i] = odd[i] = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        odd[i] = mul_lo(a[0], a[i + 1]);
        odd[i + 1] = mul_hi(a[0], a[i + 1]);
    }
#pragma unroll
    for (int i = 2; i < 8; i += 2) {
        even[i] = mul_lo(a[0], a[i]);
        even[i + 1] = mul_hi(a[0], a[i]);
    }
    odd[2] = mad_lo_cc(a[1], a[2], odd[2]);
    odd[3] = madc_hi_cc(a[1], a[2], odd[3]);
    odd[4] = madc_lo_cc(a[1], a[4], odd[4]);
    odd[5] = madc_hi_cc(a[1], a[4], odd[5]);
    odd[6] = madc_lo_cc(a[1], a[6], odd[6]);
    odd[7] = madc_hi_cc(a[1], a[6], odd[7]);
    odd[8] = addc(0, 0);
    even[4] = mad_lo_cc(a[1], a[3], even[4]);
    even[5] = madc_hi_cc(a[1], a[3], even[5]);
    even[6] = madc_lo_cc(a[1], a[5], even[6]);
    even[7] = madc_hi_cc(a[1], a[5], even[7]);
    even[8] = madc_lo_cc(a[1], a[7], 0);
    even[9] = madc_hi(a[1], a[7], 0);
    odd[4] = mad_lo_cc(a[2], a[3], odd[4]);
    odd[5] = madc_hi_cc(a[2], a[3], odd[5]);
    odd[6] = madc_lo_cc(a[2], a[5], odd[6]);
    odd[7] = madc_hi_cc(a[2], a[5], odd[7]);
    odd[8] = madc_lo_cc(a[2], a[7], odd[8]);
    odd[9] = madc_hi(a[2], a[7], 0);
    even[6] = mad_lo_cc(a[2], a[4], even[6]);
    even[7] = madc_hi_cc(a[2], a[4], even[7]);
    even[8] = madc_lo_cc(a[2], a[6], even[8]);
    even[9] = madc_hi_cc(a[2], a[6], even[9]);
    even[10] = addc(0, 0);
    odd[6] = mad_lo_cc(a[3], a[4], odd[6]);
    odd[7] = madc_hi_cc(a[3], a[4], odd[7]);
    odd[8] = madc_lo_cc(a[3], a[6], odd[8]);
    odd[9] = madc_hi_cc(a[3], a[6], odd[9]);
    odd[10] = addc(0, 0);
    even[8] = mad_lo_cc(a[3], a[5], even[8]);
    even[9] = madc_hi_cc(a[3], a[5], even[9]);
    even[10] = madc_lo_cc(a[3], a[7], even[10]);
    even[11] = madc_hi(a[3], a[7], 0);
    odd[8] = mad_lo_cc(a[4], a[5], odd[8]);
    odd[9] = madc_hi_cc(a[4], a[5], odd[9]);
    odd[10] = madc_lo_cc(a[4], a[7], odd[10]);
    odd[11] = madc_hi(a[4], a[7], 0);
    even[10] = mad_lo_cc(a[4], a[6], even[10]);
    even[11] = madc_hi_cc(a[4], a[6], even[11]);
    even[12] = addc(0, 0);
    odd[10] = mad_lo_cc(a[5], a[6], odd[10]);
    odd[11] = madc_hi_cc(a[5], a[6], odd[11]);
    odd[12] = addc(0, 0);
    even[12] = mad_lo_cc(a[5], a[7], even[12]);
    even[13] = madc_hi(a[5], a[7], 0);
    odd[12] = mad_lo_cc(a[6], a[7], odd[12]);
    odd[13] = madc_hi(a[6], a[7], 0);

    // Together, then twice that.
    u32 sum[16];
    sum[0] = 0;
    sum[1] = odd[0];
    sum[2] = add_cc(even[2], odd[1]);
#pragma unroll
    for (int i = 3; i < 14; i++) sum[i] = addc_cc(even[i], odd[i - 1]);
    sum[14] = addc(odd[13], 0);
    sum[15] = sum[14] >> 31;
#pragma unroll
    for (int i = 14; i > 1; i--) sum[i] = shifted_left(sum[i], sum[i - 1], 1);
    sum[1] <<= 1;

    u32 w[16];
    w[0] = mul_lo(a[0], a[0]);
    w[1] = add_cc(mul_hi(a[0], a[0]), sum[1]);
#pragma unroll
    for (int i = 1; i < 7; i++) {
        w[2 * i] = madc_lo_cc(a[i], a[i], sum[2 * i]);
        w[2 * i + 1] = madc_hi_cc(a[i], a[i], sum[2 * i + 1]);
    }
    w[14] = madc_lo_cc(a[7], a[7], sum[14]);
    w[15] = madc_hi(a[7], a[7], sum[15]);
    return reduce(w);
}

DEVICE Fe add(Fe a, Fe b) {
    Fe r;
    r.v[0] = add_cc(a.v[0], b.v[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) r.v[i] = addc_cc(a.v[i], b.v[i]);
    u32 carry = addc(0, 0);
    r.v[0] = add_cc(r.v[0], carry ? FOLD : 0);
    r.v[1] = addc_cc(r.v[1], carry);
#pragma unroll
    for (int i = 2; i < 8; i++) r.v[i] = addc_cc(r.v[i], 0);
    // A second carry leaves less than 2^33, so that it ends in the second word.
    carry = addc(0, 0);
    r.v[0] = add_cc(r.v[0], carry ? FOLD : 0);
    r.v[1] = addc(r.v[1], carry);
    return r;
}

DEVICE Fe sub(Fe a, Fe b) {
    Fe r;
    r.v[0] = sub_cc(a.v[0], b.v[0]);
#pragma unroll
    for (int i = 1; i < 8; i++) r.v[i] = subc_cc(a.v[i], b.v[i]);
    u32 borrow = subc(0, 0);
    r.v[0] = sub_cc(r.v[0], borrow & FOLD);
    r.v[1] = subc_cc(r.v[1], borrow & 1);
#pragma unroll
    for (int i = 2; i < 8; i++) r.v[i] = subc_cc(r.v[i], 0);
    // A second borrow leaves at least 2^256 - 2^33, so that it ends in the second word.
    borrow = subc(0, 0);
    r.v[0] = sub_cc(r.v[0], borrow & FOLD);
    r.v[1] = subc(r.v[1], borrow & 1);
    return r;
}

DEVICE Fe zero() { return Fe{{0, 0, 0, 0, 0, 0, 0, 0}}; }
DEVICE Fe one() { return Fe{{1, 0, 0, 0, 0, 0, 0, 0}}; }
DEVICE Fe neg(Fe a) { return sub(zero(), a); }

// a·2^bits, bits from 1 to 3.
template <int bits>
DEVICE Fe times_power(Fe a) {
    u32 r[8];
    r[0] = a.v[0] << bits;
#pragma unroll
    for (int i = 1; i < 8; i++) r[i] = shifted_left(a.v[i], a.v[i - 1], bits);
    return fold_top(r, a.v[7] >> (32 - bits), 0);
}

// Below p.
DEVICE Fe canonical(Fe a) {
    // a - p = a + 2^32 + 977 - 2^256: at least p if that carries.
    Fe r;
    r.v[0] = add_cc(a.v[0], FOLD);
    r.v[1] = addc_cc(a.v[1], 1);
#pragma unroll
    for (int i = 2; i < 8; i++) r.v[i] = addc_cc(a.v[i], 0);
    u32 carry = addc(0, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) r.v[i] = carry ? r.v[i] : a.v[i];
    return r;
}

DEVICE bool is_zero(Fe a) {
    Fe c = canonical(a);
    return (c.v[0] | c.v[1] | c.v[2] | c.v[3] | c.v[4] | c.v[5] | c.v[6] | c.v[7]) == 0;
}

COLD Fe mul_cold(Fe a, Fe b) { return mul(a, b); }

// a^(2^times)
COLD Fe sqr_times(Fe a, int times) {
#pragma unroll 1
    for (int i = 0; i < times; i++) a = sqr(a);
    return a;
}

// a^(p - 2), and so 0 for 0.
COLD Fe invert(Fe a) {
    // p - 2 begins with 223 ones; x_n is a to the power of n ones.
    Fe x2 = mul_cold(sqr_times(a, 1), a);
    Fe x3 = mul_cold(sqr_times(x2, 1), a);
    Fe x6 = mul_cold(sqr_times(x3, 3), x3);
    Fe x9 = mul_cold(sqr_times(x6, 3), x3);
    Fe x11 = mul_cold(sqr_times(x9, 2), x2);
    Fe x22 = mul_cold(sqr_times(x11, 11), x11);
    Fe x44 = mul_cold(sqr_times(x22, 22), x22);
    Fe x88 = mul_cold(sqr_times(x44, 44), x44);
    Fe x176 = mul_cold(sqr_times(x88, 88), x88);
    Fe x220 = mul_cold(sqr_times(x176, 44), x44);
    Fe x223 = mul_cold(sqr_times(x220, 3), x3);
    // Then: 0, 22 ones, 0000, 1, 0, 11, 0, 1.
    Fe r = mul_cold(sqr_times(x223, 23), x22);
    r = mul_cold(sqr_times(r, 5), a);
    r = mul_cold(sqr_times(r, 3), x2);
    return mul_cold(sqr_times(r, 2), a);
}
