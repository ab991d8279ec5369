// A scan of rows for one key, in three steps:
//
//   ladder  S = b·T of every row, in coordinates with a denominator
//   comb    S without it, t = hash(S), P = B + t·G in coordinates with a denominator
//   match   the first eight bytes of x(P), and of x(P + L) for every label, against the row's outputs
//
// A thread does one row at a time; in the steps that divide it does several and shares one inversion among them, so that no
// thread waits for another. Every thread runs the same operations in the same order whatever its rows are. Where a formula
// doesn't apply (only keys and rows that were made for it bring that about), a product becomes zero; all rows of that
// thread are then reported for another backend to do.
//
// docs/scan-math.md has the derivations, kernels/src/gpu.rs the tables.
#pragma once
#include "point.cuh"
#include "sha256.cuh"

// Points T·o that the ladder adds, o = 1, 1 - w, 2 - w, 1 - 2w.
#define ORBITS 4
// Bits of a window of t, windows from the common table, entries of a window.
#define WINDOW 13
#define WINDOWS 19
#define HALF (1 << (WINDOW - 1))
// Labels at most.
#define LABELS 16
// Slot of a report that says that the row has to be done otherwise.
#define REDO 0xffffffffu

// An operation of the schedule is a byte: what | slot << 2 | unit << 4 | negative << 6.
#define OP_LOAD 0
#define OP_DOUBLE 1

// Where rows and results are. `rows` of them, numbered from 0; sums are kept limb by limb, `rows` words each, so that
// neighbouring threads touch neighbouring words.
struct Scan {
    const u32 *points;
    const u32 *output_ends;
    const u32 *outputs;
    u32 outputs_base;
    u32 rows;
    u32 threads;
    // The key: its schedule, the table of its topmost window, its labels.
    const unsigned char *schedule;
    const u32 *top;
    const u32 *labels;
    u32 operations;
    u32 label_count;
    u32 key;
    // j + 1/2 times 2^(13i) times G at i·4096 + j.
    const u32 *table;
    u32 *sums;
    u32 *products;
    // Reports: row, key, slot; how many there are, counted further when there is no more room.
    u32 *reports;
    u32 *report_count;
    u32 report_room;
};

CONSTANT u32 BETA[8] = {0x719501ee, 0xc1396c28, 0x12f58995, 0x9cf04975,
                        0xac3434e9, 0x6e64479e, 0x657c0710, 0x7ae96a2b};

DEVICE Fe load_words(const u32 *at) {
    Fe r;
#pragma unroll
    for (int i = 0; i < 8; i++) r.v[i] = at[i];
    return r;
}

DEVICE Fe load_limbs(const u32 *at, u64 stride, u64 row) {
    Fe r;
#pragma unroll
    for (int i = 0; i < 8; i++) r.v[i] = at[i * stride + row];
    return r;
}

DEVICE void store_limbs(u32 *at, u64 stride, u64 row, const Fe &value) {
#pragma unroll
    for (int i = 0; i < 8; i++) at[i * stride + row] = value.v[i];
}

DEVICE Jacobian load_sum(const Scan &s, u64 row) {
    u64 plane = 8 * (u64)s.rows;
    return Jacobian{load_limbs(s.sums, s.rows, row), load_limbs(s.sums + plane, s.rows, row),
                    load_limbs(s.sums + 2 * plane, s.rows, row)};
}

DEVICE void store_sum(const Scan &s, u64 row, const Jacobian &p) {
    u64 plane = 8 * (u64)s.rows;
    store_limbs(s.sums, s.rows, row, p.x);
    store_limbs(s.sums + plane, s.rows, row, p.y);
    store_limbs(s.sums + 2 * plane, s.rows, row, p.z);
}

DEVICE void report(const Scan &s, u32 row, u32 slot) {
    u32 at = count_up(s.report_count);
    if (at < s.report_room) {
        s.reports[3 * at] = row;
        s.reports[3 * at + 1] = s.key;
        s.reports[3 * at + 2] = slot;
    }
}

// The points that a row's ladder adds, and their x times beta.
struct Table {
    Affine point[ORBITS];
    Fe beta_x[ORBITS];
};

// Fills the table for T. Its points have a common denominator, which the ladder may ignore, as its curve looks the same;
// what comes out of the ladder has to be multiplied by it.
COLD Fe make_table(Table &table, const u32 *t) {
    SameZ a, b, c;
    Affine p = Affine{load_words(t), load_words(t + 8)};
    // 1 - w = 1 + (-w)
    Affine q = Affine{mul_cold(p.x, load_words(BETA)), neg(p.y)};
    add_same_z(a, p, q);
    // 2 - w = (1 - w) + 1, and 1 - 2w = (1 - w) - w, each with a factor of its own; then all with both.
    q = Affine{mul_cold(a.first.x, load_words(BETA)), neg(a.first.y)};
    add_same_z(b, a.sum, a.first);
    add_same_z(c, a.sum, q);
    table.point[0] = a.first;
    table.point[1] = b.first;
    table.point[2] = b.sum;
    table.point[3] = c.sum;
    rescale(table.point[0], b.hh, b.hhh);
    rescale(table.point[3], b.hh, b.hhh);
#pragma unroll 1
    for (int i = 0; i < 3; i++) rescale(table.point[i], c.hh, c.hhh);
#pragma unroll 1
    for (int i = 0; i < ORBITS; i++) table.beta_x[i] = mul_cold(table.point[i].x, load_words(BETA));
    return mul_cold(mul_cold(a.h, b.h), c.h);
}

DEVICE Fe operand_x(const Table &table, u32 op) {
    u32 slot = op >> 2 & 3, unit = op >> 4 & 3;
    if (unit == 0) return table.point[slot].x;
    if (unit == 1) return table.beta_x[slot];
    return neg(add(table.point[slot].x, table.beta_x[slot]));
}

DEVICE Fe operand_y(const Table &table, u32 op) {
    Fe y = table.point[op >> 2 & 3].y;
    return op >> 6 & 1 ? neg(y) : y;
}

DEVICE void ladder_row(const Scan &s, u32 row) {
    Table table;
    // Kept in memory until the end.
    store_limbs(s.products, s.rows, row, make_table(table, s.points + 16 * (u64)row));
    Jacobian p = Jacobian{zero(), zero(), zero()};
#pragma unroll 1
    for (u32 i = 0; i < s.operations; i++) {
        u32 op = s.schedule[i];
        if ((op & 3) == OP_DOUBLE) {
            p = double_point(p);
        } else if ((op & 3) == OP_LOAD) {
            p = Jacobian{operand_x(table, op), operand_y(table, op), one()};
        } else {
            p = add_point(p, operand_x(table, op), [&]() { return operand_y(table, op); });
        }
    }
    Fe denominator = load_limbs(s.products, s.rows, row);
    p.z = mul_cold(p.z, denominator);
    store_sum(s, row, p);
}

// p plus the entry of the common table for a window of t.
DEVICE Jacobian add_window(const Scan &s, const Jacobian &p, const Fe &t, u32 window) {
    u32 at = window * WINDOW, word = at / 32, shift = at % 32;
    u32 u = t.v[word] >> shift;
    if (shift > 32 - WINDOW) u |= t.v[word + 1] << (32 - shift);
    u &= 2 * HALF - 1;
    bool negative = u < HALF;
    u32 j = negative ? HALF - 1 - u : u - HALF;
    const u32 *entry = s.table + 16 * (u64)(window * HALF + j);
    return add_point(p, load_words(entry), [&]() {
        Fe y = load_words(entry + 8);
        return negative ? neg(y) : y;
    });
}

DEVICE void comb_rows(const Scan &s, u32 thread) {
    Fe product = one();
#pragma unroll 1
    for (u32 row = thread; row < s.rows; row += s.threads) {
        store_limbs(s.products, s.rows, row, product);
        product = mul_cold(product, load_limbs(s.sums + 16 * (u64)s.rows, s.rows, row));
    }
    bool poisoned = is_zero(product);
    Fe inverse = invert(product);
    if (thread >= s.rows) return;
    // From the last row to the first.
    u32 last = thread + (s.rows - 1 - thread) / s.threads * s.threads;
#pragma unroll 1
    for (u32 next = last + s.threads; next > thread; next -= s.threads) {
        u32 row = next - s.threads;
        Jacobian p = load_sum(s, row);
        Fe z = mul_cold(inverse, load_limbs(s.products, s.rows, row));
        inverse = mul_cold(inverse, p.z);
        Fe zz = mul_cold(z, z);
        Fe x = canonical(mul_cold(p.x, zz));
        Fe y = canonical(mul_cold(p.y, mul_cold(zz, z)));
        Fe t = shared_secret_hash(x, y.v[0] & 1);
        const u32 *top = s.top + 16 * (t.v[7] >> 23);
        Affine start = Affine{load_words(top), load_words(top + 8)};
        bool good = !poisoned && is_scalar(t) && !(is_zero(start.x) && is_zero(start.y));
        // A row that goes no further gets a denominator of one, so that its thread's other rows do.
        p = Jacobian{start.x, start.y, one()};
        if (good) {
#pragma unroll 1
            for (u32 window = 0; window < WINDOWS; window++) p = add_window(s, p, t, window);
        } else {
            report(s, row, REDO);
        }
        store_sum(s, row, p);
    }
}

// x(P) for the row, and what its labels need.
DEVICE bool row_matches(const Scan &s, u32 row, const Fe &x) {
    Fe c = canonical(x);
    u32 from = (row == 0 ? s.outputs_base : s.output_ends[row - 1]) - s.outputs_base;
    u32 to = s.output_ends[row] - s.outputs_base;
    bool found = false;
#pragma unroll 1
    for (u32 i = from; i < to; i++) {
        u32 first = s.outputs[2 * (u64)i], second = s.outputs[2 * (u64)i + 1];
        // As bytes the outputs begin with the highest.
        u32 high = rotated_right(first, 8) & 0xff00ff00u | rotated_right(first, 24) & 0x00ff00ffu;
        u32 low = rotated_right(second, 8) & 0xff00ff00u | rotated_right(second, 24) & 0x00ff00ffu;
        found = found || (high == c.v[7] && low == c.v[6]);
    }
    return found;
}

// How far a label's x is from P's, times P's denominator squared.
DEVICE Fe label_distance(const Scan &s, u32 label, const Jacobian &p, const Fe &zz) {
    return sub(mul_cold(load_words(s.labels + 16 * label), zz), p.x);
}

DEVICE void match_rows(const Scan &s, u32 thread) {
    Fe product = one();
#pragma unroll 1
    for (u32 row = thread; row < s.rows; row += s.threads) {
        Jacobian p = load_sum(s, row);
        Fe zz = mul_cold(p.z, p.z);
        Fe all = p.z;
#pragma unroll 1
        for (u32 label = 0; label < s.label_count; label++)
            all = mul_cold(all, label_distance(s, label, p, zz));
        store_limbs(s.products, s.rows, row, product);
        product = mul_cold(product, all);
    }
    bool poisoned = is_zero(product);
    Fe inverse = invert(product);
    if (thread >= s.rows) return;
    u32 last = thread + (s.rows - 1 - thread) / s.threads * s.threads;
#pragma unroll 1
    for (u32 next = last + s.threads; next > thread; next -= s.threads) {
        u32 row = next - s.threads;
        if (poisoned) {
            report(s, row, REDO);
            continue;
        }
        Jacobian p = load_sum(s, row);
        Fe zz = mul_cold(p.z, p.z);
        Fe zzz = mul_cold(zz, p.z);
        // Products of the denominators up to each label.
        Fe up_to[LABELS + 1];
        up_to[0] = p.z;
#pragma unroll 1
        for (u32 label = 0; label < s.label_count; label++)
            up_to[label + 1] = mul_cold(up_to[label], label_distance(s, label, p, zz));
        Fe rest = mul_cold(inverse, load_limbs(s.products, s.rows, row));
        inverse = mul_cold(inverse, up_to[s.label_count]);
        // From the last label to the first: `rest` is the inverse of up_to[label + 1].
#pragma unroll 1
        for (u32 label = s.label_count; label-- > 0;) {
            Fe h = label_distance(s, label, p, zz);
            Fe one_over_h = mul_cold(rest, up_to[label]);
            rest = mul_cold(rest, h);
            // x(P + L) = (r/(z·h))^2 - x(P) - x(L), all over z^2; 1/z comes from what is left of `rest` only at the end, so:
            // the sum in P's coordinates is (r^2 - h^3 - 2·X·h^2, ..., z·h).
            Fe r = sub(mul_cold(load_words(s.labels + 16 * label + 8), zzz), p.y);
            Fe hh = mul_cold(h, h);
            Fe sum = sub(sub(mul_cold(r, r), mul_cold(hh, h)), times_power<1>(mul_cold(p.x, hh)));
            up_to[label + 1] = mul_cold(sum, mul_cold(one_over_h, one_over_h));
        }
        Fe over_zz = mul_cold(rest, rest);
        if (row_matches(s, row, mul_cold(p.x, over_zz))) report(s, row, 0);
#pragma unroll 1
        for (u32 label = 0; label < s.label_count; label++)
            if (row_matches(s, row, mul_cold(up_to[label + 1], over_zz))) report(s, row, label + 1);
    }
}
