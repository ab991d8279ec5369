// Numbers modulo p = 2^256 - 2^32 - 977.
//
// Eight words of 32 bits, the lowest first. Every 256-bit value stands for its residue, so that results need not be below p;
// canonical() makes them so.
alias Fe = array<u32, 8>;

// 2^256 = 2^32 + 977 modulo p.
const FOLD = 977u;
const ZERO = Fe(0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u);
const ONE = Fe(1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u);
// A third root of one: (BETA·x, y) is a multiple of (x, y).
const BETA = Fe(0x719501eeu, 0xc1396c28u, 0x12f58995u, 0x9cf04975u, 0xac3434e9u, 0x6e64479eu, 0x657c0710u, 0x7ae96a2bu);

// A sum or difference and what is carried or borrowed: 0 or 1.
struct Carried {
    words: Fe,
    carry: u32,
}

// a + b + carry, as (low, 0 or 1).
fn add_carry(a: u32, b: u32, carry: u32) -> vec2<u32> {
    let partial = a + b;
    let sum = partial + carry;
    return vec2(sum, u32(partial < a) + u32(sum < partial));
}

// a - b - borrow, as (low, 0 or 1).
fn sub_borrow(a: u32, b: u32, borrow: u32) -> vec2<u32> {
    let partial = a - b;
    let difference = partial - borrow;
    return vec2(difference, u32(a < b) + u32(partial < borrow));
}

fn add_words(a: Fe, b: Fe) -> Carried {
    let s0 = add_carry(a[0], b[0], 0u);
    let s1 = add_carry(a[1], b[1], s0.y);
    let s2 = add_carry(a[2], b[2], s1.y);
    let s3 = add_carry(a[3], b[3], s2.y);
    let s4 = add_carry(a[4], b[4], s3.y);
    let s5 = add_carry(a[5], b[5], s4.y);
    let s6 = add_carry(a[6], b[6], s5.y);
    let s7 = add_carry(a[7], b[7], s6.y);
    return Carried(Fe(s0.x, s1.x, s2.x, s3.x, s4.x, s5.x, s6.x, s7.x), s7.y);
}

fn sub_words(a: Fe, b: Fe) -> Carried {
    let s0 = sub_borrow(a[0], b[0], 0u);
    let s1 = sub_borrow(a[1], b[1], s0.y);
    let s2 = sub_borrow(a[2], b[2], s1.y);
    let s3 = sub_borrow(a[3], b[3], s2.y);
    let s4 = sub_borrow(a[4], b[4], s3.y);
    let s5 = sub_borrow(a[5], b[5], s4.y);
    let s6 = sub_borrow(a[6], b[6], s5.y);
    let s7 = sub_borrow(a[7], b[7], s6.y);
    return Carried(Fe(s0.x, s1.x, s2.x, s3.x, s4.x, s5.x, s6.x, s7.x), s7.y);
}

// What stands for a carry out of the highest word.
fn folded(carry: u32) -> Fe {
    return Fe(carry * FOLD, carry, 0u, 0u, 0u, 0u, 0u, 0u);
}

fn choose(otherwise: Fe, then: Fe, condition: bool) -> Fe {
    return Fe(
        select(otherwise[0], then[0], condition), select(otherwise[1], then[1], condition),
        select(otherwise[2], then[2], condition), select(otherwise[3], then[3], condition),
        select(otherwise[4], then[4], condition), select(otherwise[5], then[5], condition),
        select(otherwise[6], then[6], condition), select(otherwise[7], then[7], condition));
}

fn add(a: Fe, b: Fe) -> Fe {
    let sum = add_words(a, b);
    let once = add_words(sum.words, folded(sum.carry));
    // A second carry leaves less than 2^33, so that it ends in the second word.
    let s0 = add_carry(once.words[0], once.carry * FOLD, 0u);
    var r = once.words;
    r[0] = s0.x;
    r[1] = r[1] + once.carry + s0.y;
    return r;
}

fn sub(a: Fe, b: Fe) -> Fe {
    let difference = sub_words(a, b);
    let once = sub_words(difference.words, folded(difference.carry));
    // A second borrow leaves at least 2^256 - 2^33, so that it ends in the second word.
    let s0 = sub_borrow(once.words[0], once.carry * FOLD, 0u);
    var r = once.words;
    r[0] = s0.x;
    r[1] = r[1] - once.carry - s0.y;
    return r;
}

fn neg(a: Fe) -> Fe {
    return sub(ZERO, a);
}

// r + (low + high·2^32)·2^256, where high is 0 or 1.
fn fold_top(r: Fe, low: u32, high: u32) -> Fe {
    // low·(2^32 + 977) + high·2^32·(2^32 + 977)
    let product = multiply_add(low, FOLD, 0u, 0u);
    let first = add_carry(product.y, low, 0u);
    let second = add_carry(first.x, high * FOLD, 0u);
    let sum = add_words(r, Fe(product.x, second.x, high + first.y + second.y, 0u, 0u, 0u, 0u, 0u));
    // With a carry, what is left is less than top·(2^32 + 977) < 2^67, so that adding that once more ends in the third word.
    let s0 = add_carry(sum.words[0], sum.carry * FOLD, 0u);
    let s1 = add_carry(sum.words[1], sum.carry, s0.y);
    var o = sum.words;
    o[0] = s0.x;
    o[1] = s1.x;
    o[2] = o[2] + s1.y;
    return o;
}

// low + high·2^256 modulo p.
fn reduce(low: Fe, high: Fe) -> Fe {
    // high·977, then high once more, one word up.
    let m0 = multiply_add(high[0], FOLD, low[0], 0u);
    let m1 = multiply_add(high[1], FOLD, low[1], m0.y);
    let m2 = multiply_add(high[2], FOLD, low[2], m1.y);
    let m3 = multiply_add(high[3], FOLD, low[3], m2.y);
    let m4 = multiply_add(high[4], FOLD, low[4], m3.y);
    let m5 = multiply_add(high[5], FOLD, low[5], m4.y);
    let m6 = multiply_add(high[6], FOLD, low[6], m5.y);
    let m7 = multiply_add(high[7], FOLD, low[7], m6.y);
    let sum = add_words(Fe(m1.x, m2.x, m3.x, m4.x, m5.x, m6.x, m7.x, m7.y), high);
    let s = sum.words;
    return fold_top(Fe(m0.x, s[0], s[1], s[2], s[3], s[4], s[5], s[6]), s[7], sum.carry);
}

// a·2^bits, bits from 1 to 3.
fn times_power(a: Fe, bits: u32) -> Fe {
    let rest = 32u - bits;
    let r = Fe(
        a[0] << bits, (a[1] << bits) | (a[0] >> rest),
        (a[2] << bits) | (a[1] >> rest), (a[3] << bits) | (a[2] >> rest),
        (a[4] << bits) | (a[3] >> rest), (a[5] << bits) | (a[4] >> rest),
        (a[6] << bits) | (a[5] >> rest), (a[7] << bits) | (a[6] >> rest));
    return fold_top(r, a[7] >> rest, 0u);
}

// Below p.
fn canonical(a: Fe) -> Fe {
    // a - p = a + 2^32 + 977 - 2^256: at least p if that carries.
    let reduced = add_words(a, folded(1u));
    return choose(a, reduced.words, reduced.carry == 1u);
}

fn is_zero(a: Fe) -> bool {
    let c = canonical(a);
    return (c[0] | c[1] | c[2] | c[3] | c[4] | c[5] | c[6] | c[7]) == 0u;
}

// a^(p - 2), and so 0 for 0. One multiplication in a loop, since compilers copy functions to where they are called.
fn invert(a: Fe) -> Fe {
    // p - 2 is 223 ones, 0, 22 ones, 0000, 1, 0, 11, 0, 1. A step squares so many times and multiplies by the result of an
    // earlier step; they give 2, 3, 6, 9, 11, 22, 44, 88, 176, 220 and 223 ones, then all.
    var squarings = array<u32, 15>(1u, 1u, 3u, 3u, 2u, 11u, 22u, 44u, 88u, 44u, 3u, 23u, 5u, 3u, 2u);
    var operands = array<u32, 15>(0u, 0u, 2u, 2u, 1u, 5u, 6u, 7u, 8u, 7u, 2u, 6u, 0u, 1u, 0u);
    var results: array<Fe, 16>;
    results[0] = a;
    var r = a;
    for (var step = 0u; step < 15u; step++) {
        let times = squarings[step];
        for (var i = 0u; i < times; i++) {
            r = sqr(r);
        }
        r = mul(r, results[operands[step]]);
        results[step + 1u] = r;
    }
    return r;
}
