// A scan of rows for one key, in three steps; cuda/scan.cuh says what they are. What is different here: a point's table and
// the factors of a row's labels lie in arrays of the invocation, and buffers are few, since some devices bind only eight.

// Points T·o that the ladder adds, o = 1, 1 - w, 2 - w, 1 - 2w.
const ORBITS = 4u;
// Bits of a window of t, windows from the common table, entries of a window.
const WINDOW = 13u;
const WINDOWS = 19u;
const HALF = 4096u;
// Labels at most.
const LABELS = 16u;
// Slot of a report that says that the row has to be done otherwise.
const REDO = 0xffffffffu;

const OP_LOAD = 0u;
const OP_DOUBLE = 1u;

struct Scan {
    // The part is rows first .. first + rows of the buffers.
    first: u32,
    rows: u32,
    // Outputs before the first row of the buffers.
    outputs_base: u32,
    // Invocations of the steps that divide.
    threads: u32,
    // Bytes of the schedule; words in `key` before the top table, and before the labels.
    operations: u32,
    top: u32,
    labels: u32,
    label_count: u32,
    key: u32,
    report_room: u32,
}

struct Reports {
    // How many there are, counted further when there is no more room.
    count: atomic<u32>,
    // Row, key, slot.
    items: array<u32>,
}

@group(0) @binding(0) var<uniform> scan: Scan;
@group(0) @binding(1) var<storage, read> points: array<u32>;
@group(0) @binding(2) var<storage, read> output_ends: array<u32>;
@group(0) @binding(3) var<storage, read> outputs: array<u32>;
// The schedule, four operations in a word; the table of the topmost window; the labels.
@group(0) @binding(4) var<storage, read> key: array<u32>;
// j + 1/2 times 2^(13i) times G at i·4096 + j.
@group(0) @binding(5) var<storage, read> generator: array<u32>;
// Limb by limb, `rows` words each, so that neighbours touch neighbouring words: x, y, z, and a product.
@group(0) @binding(6) var<storage, read_write> scratch: array<u32>;
@group(0) @binding(7) var<storage, read_write> reports: Reports;

override group_size: u32 = 64u;

fn load_scratch(plane: u32, row: u32) -> Fe {
    let n = scan.rows;
    let at = plane * 8u * n + row;
    return Fe(
        scratch[at], scratch[at + n], scratch[at + 2u * n], scratch[at + 3u * n],
        scratch[at + 4u * n], scratch[at + 5u * n], scratch[at + 6u * n], scratch[at + 7u * n]);
}

fn store_scratch(plane: u32, row: u32, value: Fe) {
    let n = scan.rows;
    let at = plane * 8u * n + row;
    scratch[at] = value[0];
    scratch[at + n] = value[1];
    scratch[at + 2u * n] = value[2];
    scratch[at + 3u * n] = value[3];
    scratch[at + 4u * n] = value[4];
    scratch[at + 5u * n] = value[5];
    scratch[at + 6u * n] = value[6];
    scratch[at + 7u * n] = value[7];
}

// Planes of `scratch`: a sum's coordinates, and what a thread's rows had in common before this one.
const PRODUCT = 3u;

fn load_sum(row: u32) -> Jacobian {
    return Jacobian(load_scratch(0u, row), load_scratch(1u, row), load_scratch(2u, row));
}

fn store_sum(row: u32, p: Jacobian) {
    store_scratch(0u, row, p.x);
    store_scratch(1u, row, p.y);
    store_scratch(2u, row, p.z);
}

fn load_point(at: u32) -> Fe {
    return Fe(
        points[at], points[at + 1u], points[at + 2u], points[at + 3u],
        points[at + 4u], points[at + 5u], points[at + 6u], points[at + 7u]);
}

fn load_key(at: u32) -> Fe {
    return Fe(
        key[at], key[at + 1u], key[at + 2u], key[at + 3u],
        key[at + 4u], key[at + 5u], key[at + 6u], key[at + 7u]);
}

fn load_generator(at: u32) -> Fe {
    return Fe(
        generator[at], generator[at + 1u], generator[at + 2u], generator[at + 3u],
        generator[at + 4u], generator[at + 5u], generator[at + 6u], generator[at + 7u]);
}

fn report(row: u32, slot: u32) {
    let at = atomicAdd(&reports.count, 1u);
    if at < scan.report_room {
        reports.items[3u * at] = row;
        reports.items[3u * at + 1u] = scan.key;
        reports.items[3u * at + 2u] = slot;
    }
}

// The points that a row's ladder adds, x, y, and x times beta of each.
struct Table {
    x: array<Fe, ORBITS>,
    y: array<Fe, ORBITS>,
    beta_x: array<Fe, ORBITS>,
}

@compute @workgroup_size(group_size)
fn ladder(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x;
    if row >= scan.rows {
        return;
    }
    // The table's points have a common denominator, which the ladder may ignore, as its curve looks the same; what comes out
    // of the ladder has to be multiplied by it.
    let at = 16u * (scan.first + row);
    let t = Affine(load_point(at), load_point(at + 8u));
    // 1 - w = 1 + (-w)
    let a = add_same_z(t, Affine(mul(t.x, BETA), neg(t.y)));
    // 2 - w = (1 - w) + 1, and 1 - 2w = (1 - w) - w, each with a factor of its own; then all with both.
    let b = add_same_z(a.sum, a.first);
    let c = add_same_z(a.sum, Affine(mul(a.first.x, BETA), neg(a.first.y)));
    let square = mul(b.hh, c.hh);
    let cube = mul(b.hhh, c.hhh);
    let p0 = rescaled(a.first, square, cube);
    let p1 = rescaled(b.first, c.hh, c.hhh);
    let p2 = rescaled(b.sum, c.hh, c.hhh);
    let p3 = rescaled(c.sum, b.hh, b.hhh);
    let denominator = mul(mul(a.h, b.h), c.h);
    var table: Table;
    table.x = array<Fe, ORBITS>(p0.x, p1.x, p2.x, p3.x);
    table.y = array<Fe, ORBITS>(p0.y, p1.y, p2.y, p3.y);
    for (var i = 0u; i < ORBITS; i++) {
        table.beta_x[i] = mul(table.x[i], BETA);
    }

    var p = Jacobian(ZERO, ZERO, ZERO);
    for (var i = 0u; i < scan.operations; i++) {
        let op = (key[i / 4u] >> (8u * (i % 4u))) & 0xffu;
        if (op & 3u) == OP_DOUBLE {
            p = double_point(p);
        } else {
            let slot = (op >> 2u) & 3u;
            let unit = (op >> 4u) & 3u;
            var x = table.x[slot];
            var y = table.y[slot];
            if unit == 1u {
                x = table.beta_x[slot];
            } else if unit == 2u {
                x = neg(add(x, table.beta_x[slot]));
            }
            if ((op >> 6u) & 1u) == 1u {
                y = neg(y);
            }
            if (op & 3u) == OP_LOAD {
                p = Jacobian(x, y, ONE);
            } else {
                p = add_point(p, Affine(x, y));
            }
        }
    }
    p.z = mul(p.z, denominator);
    store_sum(row, p);
}

// The entry of the common table for a window of t.
fn window_entry(t: ptr<function, Fe>, window: u32) -> Affine {
    let at = window * WINDOW;
    let word = at / 32u;
    let shift = at % 32u;
    var u = (*t)[word] >> shift;
    if shift > 32u - WINDOW {
        u |= (*t)[word + 1u] << (32u - shift);
    }
    u &= 2u * HALF - 1u;
    let negative = u < HALF;
    let j = select(u - HALF, HALF - 1u - u, negative);
    let entry = 16u * (window * HALF + j);
    let y = load_generator(entry + 8u);
    return Affine(load_generator(entry), choose(y, neg(y), negative));
}

@compute @workgroup_size(group_size)
fn comb(@builtin(global_invocation_id) id: vec3<u32>) {
    let thread = id.x;
    if thread >= min(scan.rows, scan.threads) {
        return;
    }
    var product = ONE;
    for (var row = thread; row < scan.rows; row += scan.threads) {
        store_scratch(PRODUCT, row, product);
        product = mul(product, load_scratch(2u, row));
    }
    let poisoned = is_zero(product);
    var inverse = invert(product);
    // From the last row to the first.
    let last = thread + (scan.rows - 1u - thread) / scan.threads * scan.threads;
    for (var next = last + scan.threads; next > thread; next -= scan.threads) {
        let row = next - scan.threads;
        var p = load_sum(row);
        let z = mul(inverse, load_scratch(PRODUCT, row));
        inverse = mul(inverse, p.z);
        let zz = sqr(z);
        let x = canonical(mul(p.x, zz));
        let y = canonical(mul(p.y, mul(zz, z)));
        var t = shared_secret_hash(x, y[0] & 1u);
        let top = scan.top + 16u * (t[7] >> 23u);
        let start = Affine(load_key(top), load_key(top + 8u));
        let good = !poisoned && is_scalar(t) && !(is_zero(start.x) && is_zero(start.y));
        // A row that goes no further gets a denominator of one, so that its thread's other rows do.
        p = Jacobian(start.x, start.y, ONE);
        if good {
            for (var window = 0u; window < WINDOWS; window++) {
                p = add_point(p, window_entry(&t, window));
            }
        } else {
            report(row, REDO);
        }
        store_sum(row, p);
    }
}

// As bytes the outputs begin with the highest.
fn swapped(word: u32) -> u32 {
    return (rotated_right(word, 8u) & 0xff00ff00u) | (rotated_right(word, 24u) & 0x00ff00ffu);
}

fn row_matches(row: u32, x: Fe) -> bool {
    let c = canonical(x);
    let index = scan.first + row;
    var from_output = scan.outputs_base;
    if index > 0u {
        from_output = output_ends[index - 1u];
    }
    let to_output = output_ends[index];
    var found = false;
    for (var i = from_output - scan.outputs_base; i < to_output - scan.outputs_base; i++) {
        if swapped(outputs[2u * i]) == c[7] && swapped(outputs[2u * i + 1u]) == c[6] {
            found = true;
        }
    }
    return found;
}

// How far a label's x is from P's, times P's denominator squared.
fn label_distance(label: u32, p: Jacobian, zz: Fe) -> Fe {
    return sub(mul(load_key(scan.labels + 16u * label), zz), p.x);
}

// `match` is a word that the language keeps.
@compute @workgroup_size(group_size)
fn compare(@builtin(global_invocation_id) id: vec3<u32>) {
    let thread = id.x;
    if thread >= min(scan.rows, scan.threads) {
        return;
    }
    var product = ONE;
    for (var row = thread; row < scan.rows; row += scan.threads) {
        let p = load_sum(row);
        let zz = sqr(p.z);
        var all = p.z;
        for (var label = 0u; label < scan.label_count; label++) {
            all = mul(all, label_distance(label, p, zz));
        }
        store_scratch(PRODUCT, row, product);
        product = mul(product, all);
    }
    let poisoned = is_zero(product);
    var inverse = invert(product);
    let last = thread + (scan.rows - 1u - thread) / scan.threads * scan.threads;
    for (var next = last + scan.threads; next > thread; next -= scan.threads) {
        let row = next - scan.threads;
        if poisoned {
            report(row, REDO);
            continue;
        }
        let p = load_sum(row);
        let zz = sqr(p.z);
        let zzz = mul(zz, p.z);
        // Products of the denominators up to each label; then x of the labelled sum, but for P's denominator.
        var up_to: array<Fe, LABELS + 1u>;
        up_to[0] = p.z;
        for (var label = 0u; label < scan.label_count; label++) {
            up_to[label + 1u] = mul(up_to[label], label_distance(label, p, zz));
        }
        var rest = mul(inverse, load_scratch(PRODUCT, row));
        inverse = mul(inverse, up_to[scan.label_count]);
        // From the last label to the first: `rest` is the inverse of up_to[label + 1].
        for (var above = scan.label_count; above > 0u; above--) {
            let label = above - 1u;
            let h = label_distance(label, p, zz);
            let one_over_h = mul(rest, up_to[label]);
            rest = mul(rest, h);
            // The sum in P's coordinates is (r^2 - h^3 - 2·X·h^2, ..., z·h).
            let r = sub(mul(load_key(scan.labels + 16u * label + 8u), zzz), p.y);
            let hh = sqr(h);
            let sum = sub(sub(sqr(r), mul(hh, h)), times_power(mul(p.x, hh), 1u));
            up_to[above] = mul(sum, sqr(one_over_h));
        }
        let over_zz = sqr(rest);
        up_to[0] = p.x;
        for (var slot = 0u; slot <= scan.label_count; slot++) {
            if row_matches(row, mul(up_to[slot], over_zz)) {
                report(row, slot);
            }
        }
    }
}
