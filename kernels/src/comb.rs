//! t·G + B from a table of odd halves.
//!
//! The windows u of t are taken as they stand, and a window at position s contributes
//! (u − (2^w − 1)/2)·2^s·G: symmetric around zero, so that half a table and a sign serve all windows, and never
//! nothing. What is subtracted too much is a constant, which goes into the table of the topmost window together
//! with B: that one is made per key, unsigned, and gives the sum its start.

use crate::field::scalar::{self, Words};
use crate::field::{GX, GY, Packed, inverse};
use crate::modn::{self, Int};
use std::sync::OnceLock;

/// Bits of a window.
pub(crate) const WINDOW: usize = 13;
/// Windows from the shared table.
pub(crate) const WINDOWS: usize = 19;
/// Where the window of the key's own table starts; it has the rest of the 256 bits.
pub(crate) const TOP: usize = WINDOW * WINDOWS;
const TOP_BITS: usize = 256 - TOP;
const HALF: usize = 1 << (WINDOW - 1);

/// An affine point, or none for infinity.
pub(crate) type Point = Option<(Words, Words)>;

/// a + b, every case.
pub(crate) fn add_points(a: &Point, b: &Point) -> Point {
    let (Some((x1, y1)), Some((x2, y2))) = (a, b) else { return a.or(*b) };
    let mut denominator = scalar::sub(x2, x1);
    let mut numerator = scalar::sub(y2, y1);
    if scalar::is_zero(&denominator) {
        if !scalar::is_zero(&numerator) {
            return None;
        }
        let square = scalar::sqr(x1);
        numerator = scalar::add(&scalar::add(&square, &square), &square);
        denominator = scalar::add(y1, y1);
    }
    let slope = scalar::mul(&numerator, &inverse::invert(&denominator));
    let x = scalar::sub(&scalar::sub(&scalar::sqr(&slope), x1), x2);
    let y = scalar::sub(&scalar::mul(&slope, &scalar::sub(x1, &x)), y1);
    Some((scalar::canonical(&x), scalar::canonical(&y)))
}

/// k·P, bit by bit.
pub(crate) fn multiply_point(k: &Int, p: &Point) -> Point {
    let mut r = None;
    for i in (0..256).rev() {
        r = add_points(&r, &r);
        if k[i / 64] >> (i % 64) & 1 != 0 {
            r = add_points(&r, p);
        }
    }
    r
}

/// Sums of points and one point, with one inversion; none where the sum needs another formula.
fn add_to_all(points: &[(Words, Words)], step: &(Words, Words)) -> Vec<Point> {
    let mut products = Vec::with_capacity(points.len());
    let mut run = [1, 0, 0, 0];
    for (x, _) in points {
        products.push(run);
        let d = scalar::sub(&step.0, x);
        if !scalar::is_zero(&d) {
            run = scalar::mul(&run, &d);
        }
    }
    let mut acc = inverse::invert(&run);
    let mut sums = vec![None; points.len()];
    for (i, (x, y)) in points.iter().enumerate().rev() {
        let d = scalar::sub(&step.0, x);
        if scalar::is_zero(&d) {
            continue;
        }
        let slope = scalar::mul(&scalar::sub(&step.1, y), &scalar::mul(&acc, &products[i]));
        acc = scalar::mul(&acc, &d);
        let x3 = scalar::sub(&scalar::sub(&scalar::sqr(&slope), x), &step.0);
        let y3 = scalar::sub(&scalar::mul(&slope, &scalar::sub(x, &x3)), y);
        sums[i] = Some((scalar::canonical(&x3), scalar::canonical(&y3)));
    }
    sums
}

/// The points start + i·step for i < 2^bits.
fn progression(start: Point, step: Point, bits: usize) -> Vec<Point> {
    let mut points = vec![start];
    let mut step = step;
    for _ in 0..bits {
        let known: Vec<(Words, Words)> = points.iter().map(|p| p.unwrap_or_default()).collect();
        let sums = match step {
            Some(s) => add_to_all(&known, &s),
            None => vec![None; known.len()],
        };
        let next: Vec<Point> = points
            .iter()
            .zip(&sums)
            // Equal, opposite and missing points are rare: hostile keys make them.
            .map(|(p, sum)| if p.is_some() && sum.is_some() { *sum } else { add_points(p, &step) })
            .collect();
        points.extend(next);
        step = add_points(&step, &step);
    }
    points
}

/// (j + 1/2)·2^(13i)·G at index i·4096 + j.
pub(crate) fn table() -> &'static [Packed] {
    static TABLE: OnceLock<Vec<Packed>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let g = Some((GX, GY));
        let mut table = Vec::with_capacity(WINDOWS * HALF);
        // n is odd, so half of it, rounded up, is 1/2.
        let mut half = multiply_point(&half(), &g);
        for _ in 0..WINDOWS {
            let whole = add_points(&half, &half);
            table.extend(
                progression(half, whole, WINDOW - 1).iter().map(|p| pack(p).unwrap_or(Packed([0; 64]))),
            );
            for _ in 0..WINDOW {
                half = add_points(&half, &half);
            }
        }
        table
    })
}

fn pack(p: &Point) -> Option<Packed> {
    p.as_ref().map(|(x, y)| Packed::new(x, y))
}

/// (n + 1)/2
fn half() -> Int {
    let (r, _) = modn::wrapping_add(&modn::N, &[1, 0, 0, 0]);
    core::array::from_fn(|i| r[i] >> 1 | r.get(i + 1).map_or(0, |word| word << 63))
}

/// The table of a key's topmost window: B + c·G + u·2^TOP·G for every u; the entries that are no point.
pub(crate) fn top_table(spend: &Point) -> (Vec<Packed>, Vec<usize>) {
    let g = Some((GX, GY));
    // Too much was taken off: Σ (2^w − 1)/2·2^(wi) = (2^TOP − 1)/2.
    let mut power = [0; 4];
    power[TOP / 64] = 1 << (TOP % 64);
    let step = multiply_point(&power, &g);
    let mut c = modn::wrapping_sub(&power, &[1, 0, 0, 0]);
    c = modn::mul(&c, &half());
    let start = add_points(spend, &multiply_point(&c, &g));
    let points = progression(start, step, TOP_BITS);
    let missing = (0..points.len()).filter(|i| points[*i].is_none()).collect();
    (points.iter().map(|p| pack(p).unwrap_or(Packed([0; 64]))).collect(), missing)
}

/// The index of a window's entry in [`table`], and whether it is negative.
#[inline(always)]
pub(crate) fn lookup(t: &[u64; 4], window: usize) -> (usize, bool) {
    let at = window * WINDOW;
    let (word, shift) = (at / 64, at % 64);
    let mut bits = t[word] >> shift;
    if shift > 64 - WINDOW {
        bits |= t[word + 1] << (64 - shift);
    }
    let u = bits as usize & (2 * HALF - 1);
    // Upper half: u − 2^(w−1) + 1/2. Lower half: −(2^(w−1) − 1 − u + 1/2).
    let negative = u < HALF;
    let j = if negative { HALF - 1 - u } else { u - HALF };
    (window * HALF + j, negative)
}

/// The topmost window.
#[inline(always)]
pub(crate) fn top(t: &[u64; 4]) -> usize {
    (t[3] >> (64 - TOP_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_add_up() {
        let g = Some((GX, GY));
        let spend = multiply_point(&[12345, 6, 7, 8], &g);
        let (top_entries, missing) = top_table(&spend);
        assert!(missing.is_empty());
        for t in
            [[1, 0, 0, 0], [u64::MAX; 4], [0x123456789abcdef, 0xfedcba987654321, 5 << 60, 0x8000000000000001]]
        {
            let mut sum = Some(top_entries[top(&t)].words());
            for window in 0..WINDOWS {
                let (index, negative) = lookup(&t, window);
                let (x, y) = table()[index].words();
                sum = add_points(&sum, &Some((x, if negative { scalar::neg(&y) } else { y })));
            }
            let reduced = if modn::less(&t, &modn::N) { t } else { modn::wrapping_sub(&t, &modn::N) };
            assert_eq!(sum, add_points(&spend, &multiply_point(&reduced, &g)));
        }
    }

    #[test]
    fn a_spend_point_that_cancels() {
        let g = Some((GX, GY));
        let honest = top_table(&Some((GX, GY))).0;
        // B = −(start + 7·2^TOP·G − G)
        let (x, y) = honest[7].words();
        let cancel = add_points(&Some((x, scalar::neg(&y))), &g);
        assert_eq!(top_table(&cancel).1, vec![7]);
    }
}
