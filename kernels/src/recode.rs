//! Joint recoding of a constant scalar in Z[ω], ω = λ.
//!
//! b ≡ k1 + k2·ω is written Σ dᵢ·2^i with digits zero or ±ω^u·o, where o is one of a few small *orbit*
//! elements whose multiples of T are tabulated: units cost a sign or a multiplication by β, so that each table
//! entry serves six digits. None of the digits is divisible by two, so a position is zero exactly when what is
//! left is even; otherwise any digit of the right parity class may be taken, and dynamic programming over the
//! carries finds the choice with the least total cost.

use crate::modn::{self, Int};
use std::collections::BTreeMap;

/// The orbit elements a + bω, and how each comes from earlier ones: (base, addend, unit, negative).
pub(crate) const ORBITS: [((i32, i32), (usize, Operand)); 8] = [
    ((1, 0), (0, Operand { slot: 0, unit: 0, neg: false })),
    ((1, -1), (0, Operand { slot: 0, unit: 1, neg: true })),
    ((2, -1), (1, Operand { slot: 0, unit: 0, neg: false })),
    ((1, -2), (1, Operand { slot: 0, unit: 1, neg: true })),
    ((3, 0), (2, Operand { slot: 0, unit: 2, neg: true })),
    ((3, -1), (2, Operand { slot: 0, unit: 0, neg: false })),
    ((1, -3), (3, Operand { slot: 0, unit: 1, neg: true })),
    ((3, -2), (2, Operand { slot: 1, unit: 0, neg: false })),
];

/// A table entry with a unit: ±ω^unit times what the slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) slot: usize,
    pub(crate) unit: u8,
    pub(crate) neg: bool,
}

/// ±ω^unit·(a + bω)
fn times_unit((a, b): (i32, i32), unit: u8, neg: bool) -> (i32, i32) {
    let (a, b) = match unit {
        0 => (a, b),
        1 => (-b, a - b),
        _ => (b - a, -a),
    };
    if neg { (-a, -b) } else { (a, b) }
}

/// What a position costs as a doubling, and a digit as an addition.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) double: u32,
    pub(crate) add: u32,
}

/// Digits from position 0 upwards; the last one is not `None`. `slot` is the orbit.
pub(crate) fn recode(b: &Int, orbits: usize, weights: Weights) -> Vec<Option<Operand>> {
    let mut digits: Vec<((i32, i32), Operand)> = Vec::new();
    for (slot, (element, _)) in ORBITS.iter().enumerate().take(orbits) {
        for unit in 0..3 {
            for neg in [false, true] {
                digits.push((times_unit(*element, unit, neg), Operand { slot, unit, neg }));
            }
        }
    }
    let (k1, k2) = modn::split(b);
    let bit = |v: &Int, i: usize| (v[i.min(255) / 64] >> (i.min(255) % 64) & 1) as i32;

    // For each position: carry -> (cost so far, carry before, digit at the position before).
    type Layer = BTreeMap<(i32, i32), (u32, (i32, i32), Option<Operand>)>;
    let mut layers: Vec<Layer> = vec![BTreeMap::from([((0, 0), (0, (0, 0), None))])];
    let mut best: Option<(u32, usize, (i32, i32), Operand)> = None;
    for i in 0..140 {
        let tops = modn::shifted(&k1, i).zip(modn::shifted(&k2, i));
        let mut next = Layer::new();
        for (&(c1, c2), &(cost, ..)) in &layers[i] {
            if let Some((h1, h2)) = tops
                && let Some((_, top)) = digits.iter().find(|(value, _)| *value == (h1 + c1, h2 + c2))
                && best.as_ref().is_none_or(|(least, ..)| cost < *least)
            {
                best = Some((cost, i, (c1, c2), *top));
            }
            let v = (bit(&k1, i) + c1, bit(&k2, i) + c2);
            let mut push = |d: (i32, i32), cost: u32, digit| {
                let carry = ((v.0 - d.0) / 2, (v.1 - d.1) / 2);
                let entry = next.entry(carry).or_insert((u32::MAX, (0, 0), None));
                if cost < entry.0 {
                    *entry = (cost, (c1, c2), digit);
                }
            };
            if v.0 & 1 == 0 && v.1 & 1 == 0 {
                push((0, 0), cost + weights.double, None);
            } else {
                for (d, digit) in &digits {
                    if (v.0 - d.0) & 1 == 0 && (v.1 - d.1) & 1 == 0 {
                        push(*d, cost + weights.double + weights.add, Some(*digit));
                    }
                }
            }
        }
        layers.push(next);
    }
    // Every carry state can end: what is left shrinks to a number with |a|, |b| <= 2, and those reach a unit.
    let Some((_, length, mut carry, top)) = best else { return Vec::new() };
    let mut string = vec![Some(top)];
    for i in (1..=length).rev() {
        let (_, before, digit) = layers[i][&carry];
        string.push(digit);
        carry = before;
    }
    string.reverse();
    string
}
