//! Joint recoding of a constant scalar in Z[ω], ω = λ.
//!
//! b ≡ k1 + k2·ω is written Σ dᵢ·2^i with digits zero or ±ω^u·o, where o is one of a few small *orbit*
//! elements whose multiples of T are tabulated: units cost a sign or a multiplication by β, so that each table
//! entry serves six digits. None of the digits is divisible by two, so a position is zero exactly when what is
//! left is even; otherwise any digit of the right parity class may be taken, and dynamic programming over the
//! carries finds the choice with the least total cost.

use crate::modn::{self, Int};
use zeroize::{Zeroize, Zeroizing};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroize)]
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

/// Positions that a string can have.
const LENGTH: usize = 140;
/// Carries lie between −REACH and REACH: the parts of a digit are 5 at most, so from a carry of 6 comes (1 + 6 + 5)/2.
const REACH: i32 = 6;
const CARRIES: usize = (2 * REACH as usize + 1).pow(2);

/// The best way to a carry: what it cost, and the last step.
#[derive(Clone, Copy, Zeroize)]
struct Way {
    cost: u32,
    before: (i32, i32),
    digit: Option<Operand>,
}

impl Way {
    const NONE: Self = Self { cost: u32::MAX, before: (0, 0), digit: None };
}

fn place((c1, c2): (i32, i32)) -> usize {
    ((c1 + REACH) * (2 * REACH + 1) + c2 + REACH) as usize
}

fn carry_at(place: usize) -> (i32, i32) {
    (place as i32 / (2 * REACH + 1) - REACH, place as i32 % (2 * REACH + 1) - REACH)
}

/// Digits from position 0 upwards; the last one is not `None`. `slot` is the orbit. Everything on the way is wiped.
pub(crate) fn recode(b: &Int, orbits: usize, weights: Weights) -> Zeroizing<Vec<Option<Operand>>> {
    let mut digits: Vec<((i32, i32), Operand)> = Vec::new();
    for (slot, (element, _)) in ORBITS.iter().enumerate().take(orbits) {
        for unit in 0..3 {
            for neg in [false, true] {
                digits.push((times_unit(*element, unit, neg), Operand { slot, unit, neg }));
            }
        }
    }
    let halves = Zeroizing::new(modn::split(b));
    let (k1, k2) = &*halves;
    let bit = |v: &Int, i: usize| (v[i.min(255) / 64] >> (i.min(255) % 64) & 1) as i32;

    // For each position, the best way to each carry into it.
    let mut ways = Zeroizing::new(vec![Way::NONE; (LENGTH + 1) * CARRIES]);
    ways[place((0, 0))].cost = 0;
    // The cheapest end: cost, position, carry, top digit.
    let mut best: Option<(u32, usize, (i32, i32), Operand)> = None;
    for i in 0..LENGTH {
        let tops = modn::shifted(k1, i).zip(modn::shifted(k2, i));
        let (reached, next) = ways.split_at_mut((i + 1) * CARRIES);
        let open = reached[i * CARRIES..].iter().enumerate().filter(|(_, way)| way.cost != u32::MAX);
        for (at, &Way { cost, .. }) in open {
            let (c1, c2) = carry_at(at);
            if let Some((h1, h2)) = tops
                && let Some((_, top)) = digits.iter().find(|(value, _)| *value == (h1 + c1, h2 + c2))
                && best.as_ref().is_none_or(|(least, ..)| cost < *least)
            {
                best = Some((cost, i, (c1, c2), *top));
            }
            let v = (bit(k1, i) + c1, bit(k2, i) + c2);
            let mut push = |d: (i32, i32), cost: u32, digit| {
                let entry = &mut next[place(((v.0 - d.0) / 2, (v.1 - d.1) / 2))];
                if cost < entry.cost {
                    *entry = Way { cost, before: (c1, c2), digit };
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
    }
    // Every carry can end: what is left shrinks to a number with |a|, |b| <= 2, and those reach a unit.
    let Some((_, length, mut carry, top)) = best else { return Zeroizing::default() };
    // With its whole length from the start: a vector that grows leaves copies behind.
    let mut string = Zeroizing::new(vec![None; length + 1]);
    string[length] = Some(top);
    for i in (1..=length).rev() {
        let way = &ways[i * CARRIES + place(carry)];
        string[i - 1] = way.digit;
        carry = way.before;
    }
    string
}
