//! What is done to every row alike, as a list of operations on affine points.
//!
//! A program works on one current point and numbered slots. The operations use formulas that fail for equal and
//! opposite points, but every point here is a known multiple of the row's T, a point of prime order n: so the
//! builder follows the multiples modulo n and never emits an operation that would fail. Where the sum would be
//! a doubling it emits the doubling, and where it would be nothing it starts over with the next operand. That
//! makes all keys work, the tiny and the special ones too.

use crate::modn::{self, Int};
use crate::recode::{ORBITS, Operand, Weights, recode};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// current = operand
    Load(Operand),
    /// current = 2·current
    Double,
    /// current = current + operand
    Add(Operand),
    /// current = 2·current + operand
    DoubleAdd(Operand),
    /// slot = current
    Store(usize),
}

/// Operations, encoded so that they can be wiped.
#[derive(Clone, Default, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Program(Vec<u32>);

impl Program {
    fn push(&mut self, op: Op) {
        let operand = |o: Operand| (o.slot as u32) << 8 | u32::from(o.unit) << 4 | u32::from(o.neg) << 3;
        self.0.push(match op {
            Op::Load(o) => operand(o),
            Op::Double => 1,
            Op::Add(o) => 2 | operand(o),
            Op::DoubleAdd(o) => 3 | operand(o),
            Op::Store(slot) => 4 | (slot as u32) << 8,
        });
    }

    pub(crate) fn get(&self, at: usize) -> Option<Op> {
        let code = *self.0.get(at)?;
        let slot = (code >> 8) as usize;
        let o = Operand { slot, unit: (code >> 4 & 3) as u8, neg: code >> 3 & 1 != 0 };
        Some(match code & 7 {
            0 => Op::Load(o),
            1 => Op::Double,
            2 => Op::Add(o),
            3 => Op::DoubleAdd(o),
            _ => Op::Store(slot),
        })
    }

    /// The operations in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        (0..self.0.len()).filter_map(|at| self.get(at))
    }
}

/// Emits operations and follows the multiples of T.
struct Builder {
    program: Program,
    /// What the current point is a multiple by; zero stands for no point.
    current: Int,
    slots: Vec<Int>,
}

impl Builder {
    /// The program, if it comes to this multiple.
    fn finish(mut self, scalar: &Int) -> Option<Program> {
        let reached = self.current == *scalar;
        self.current.zeroize();
        self.slots.zeroize();
        reached.then_some(self.program)
    }

    fn value(&self, o: Operand) -> Int {
        let mut v = self.slots[o.slot];
        for _ in 0..o.unit {
            v = modn::mul(&modn::LAMBDA, &v);
        }
        if o.neg { modn::neg(&v) } else { v }
    }

    fn load(&mut self, o: Operand) {
        let value = self.value(o);
        if self.current != value {
            self.program.push(Op::Load(o));
            self.current = value;
        }
    }

    fn store(&mut self, slot: usize) {
        self.program.push(Op::Store(slot));
        self.slots[slot] = self.current;
    }

    fn double(&mut self) {
        if self.current != [0; 4] {
            self.program.push(Op::Double);
            self.current = modn::add(&self.current, &self.current);
        }
    }

    fn add(&mut self, o: Operand) {
        let d = self.value(o);
        if self.current == [0; 4] {
            self.load(o);
        } else if self.current == d {
            self.double();
        } else {
            let sum = modn::add(&self.current, &d);
            if sum != [0; 4] {
                self.program.push(Op::Add(o));
            }
            self.current = sum;
        }
    }

    fn double_add(&mut self, o: Operand) {
        let (c, d) = (self.current, self.value(o));
        let sum = modn::add(&c, &d);
        let result = modn::add(&c, &sum);
        // P + Q needs P ≠ ±Q, and (P + Q) + P needs P + Q ≠ ±P: Q is never nothing, so Q ≠ −2P.
        if c != [0; 4] && c != d && sum != [0; 4] && result != [0; 4] {
            self.program.push(Op::DoubleAdd(o));
            self.current = result;
        } else {
            self.double();
            self.add(o);
        }
    }
}

/// How many points 2^(step·j)·T a pass keeps, and how many orbit elements of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) points: usize,
    pub(crate) step: usize,
    pub(crate) orbits: usize,
}

impl Shape {
    pub(crate) fn slots(&self) -> usize {
        self.points * self.orbits
    }

    /// The shape with the least estimated work per row for so many keys, in tenths of a multiplication.
    pub(crate) fn for_keys(keys: usize) -> Shape {
        let cost = |shape: &Shape| {
            let adds = match shape.orbits {
                2 => 536,
                4 => 466,
                6 => 413,
                _ => 380,
            } / 10;
            let points = shape.points;
            let shared = (points - 1) * shape.step * 67 + points * (shape.orbits - 1) * 72 + points * 10;
            // The first addition after a doubling shares it.
            let fused = shape.step.min(adds);
            let own = shape.step * 67 + fused * 43 + (adds - fused) * 60;
            shared + keys * own
        };
        let mut best = Shape { points: 1, step: 128, orbits: 4 };
        for points in [1, 2, 4, 8, 16, 32] {
            for orbits in [2, 4, 6, 8] {
                let shape = Shape { points, step: 128 / points, orbits };
                if shape.slots() <= 64 && cost(&shape) < cost(&best) {
                    best = shape;
                }
            }
        }
        best
    }

    /// The program that fills the slots from T, which is the current point at the start.
    pub(crate) fn table(&self) -> Program {
        self.build_table().program.clone()
    }

    fn build_table(&self) -> Builder {
        let mut b =
            Builder { program: Program::default(), current: [1, 0, 0, 0], slots: vec![[0; 4]; self.slots()] };
        for point in 0..self.points {
            let base = point * self.orbits;
            if point > 0 {
                b.load(Operand { slot: base - self.orbits, unit: 0, neg: false });
                for _ in 0..self.step {
                    b.double();
                }
            }
            b.store(base);
            for (orbit, (_, (from, addend))) in ORBITS.iter().enumerate().take(self.orbits).skip(1) {
                b.load(Operand { slot: base + from, unit: 0, neg: false });
                b.add(Operand { slot: base + addend.slot, ..*addend });
                b.store(base + orbit);
            }
        }
        b
    }

    /// No point, and a table whose multiples are known.
    fn start(&self) -> Builder {
        let mut b = self.build_table();
        // Long enough for any string: a vector that grows leaves copies behind.
        b.program = Program(Vec::with_capacity(1024));
        b.current = [0; 4];
        b
    }

    /// The program that makes b·T from the slots; b is in [1, n). `None` never happens: it says that the digits
    /// do not give b back.
    pub(crate) fn multiply(&self, scalar: &Int) -> Option<Program> {
        let weights = if self.points == 1 {
            Weights { double: 67, add: 44 }
        } else {
            // Positions beyond the last slice cost doublings for all.
            Weights { double: 1, add: 58 }
        };
        let digits = recode(scalar, self.orbits, weights);
        let mut b = self.start();
        // Slice j starts at position step·j; the last one takes what is left over.
        let slice = |point: usize| {
            let start = point * self.step;
            let end = if point + 1 == self.points { digits.len() } else { start + self.step };
            digits.get(start..end.min(digits.len()).max(start)).unwrap_or(&[])
        };
        let rounds = (0..self.points).map(|point| slice(point).len()).max().unwrap_or(0);
        for round in (0..rounds).rev() {
            let mut doubled = false;
            for point in (0..self.points).rev() {
                let Some(Some(digit)) = slice(point).get(round) else { continue };
                let operand = Operand { slot: point * self.orbits + digit.slot, ..*digit };
                if doubled {
                    b.add(operand);
                } else {
                    b.double_add(operand);
                }
                doubled = true;
            }
            if !doubled {
                b.double();
            }
        }
        b.finish(scalar)
    }

    /// The same in one slice, with doublings and additions apart, for formulas that don't fuse them.
    pub(crate) fn multiply_plainly(&self, scalar: &Int, weights: Weights) -> Option<Program> {
        let digits = recode(scalar, self.orbits, weights);
        let mut b = self.start();
        for digit in digits.iter().rev() {
            b.double();
            if let Some(operand) = digit {
                b.add(*operand);
            }
        }
        b.finish(scalar)
    }
}

/// The program that fills slot j < 8 with (2j + 1)·T, and slot 8 with 2T.
pub(crate) fn odd_multiples() -> Program {
    let mut b = Builder { program: Program::default(), current: [1, 0, 0, 0], slots: vec![[0; 4]; 9] };
    b.store(0);
    b.double();
    b.store(8);
    b.add(Operand { slot: 0, unit: 0, neg: false });
    b.store(1);
    for slot in 2..8 {
        b.add(Operand { slot: 8, unit: 0, neg: false });
        b.store(slot);
    }
    b.program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on multiples of T instead of points.
    fn interpret(program: &Program, slots: &mut [Int], start: Int) -> Int {
        let value = |slots: &[Int], o: Operand| {
            let mut v = slots[o.slot];
            for _ in 0..o.unit {
                v = modn::mul(&modn::LAMBDA, &v);
            }
            if o.neg { modn::neg(&v) } else { v }
        };
        let mut c = start;
        for op in program.ops() {
            match op {
                Op::Load(o) => c = value(slots, o),
                Op::Double => {
                    assert_ne!(c, [0; 4]);
                    c = modn::add(&c, &c);
                }
                Op::Add(o) => {
                    let d = value(slots, o);
                    assert!(c != d && c != modn::neg(&d) && c != [0; 4]);
                    c = modn::add(&c, &d);
                }
                Op::DoubleAdd(o) => {
                    let d = value(slots, o);
                    assert!(c != d && c != modn::neg(&d) && c != [0; 4]);
                    let sum = modn::add(&c, &d);
                    assert!(sum != c && sum != modn::neg(&c));
                    c = modn::add(&c, &sum);
                }
                Op::Store(slot) => slots[slot] = c,
            }
        }
        c
    }

    pub(crate) fn special_scalars() -> Vec<Int> {
        let one = [1, 0, 0, 0];
        let lambda2 = modn::mul(&modn::LAMBDA, &modn::LAMBDA);
        let mut list: Vec<Int> = (1..40).map(|v| [v, 0, 0, 0]).collect();
        list.extend((1..40).map(|v| modn::neg(&[v, 0, 0, 0])));
        for v in [modn::LAMBDA, lambda2, [0, 0, 1, 0], [0, 0, 0, 1 << 63], [u64::MAX; 4].map(|w| w >> 1)] {
            let v = if modn::less(&v, &modn::N) { v } else { modn::wrapping_sub(&v, &modn::N) };
            list.extend([v, modn::add(&v, &one), modn::add(&v, &modn::neg(&one)), modn::neg(&v)]);
            list.extend([modn::mul(&v, &[3, 0, 0, 0]), modn::mul(&v, &[1 << 40, 5, 0, 0])]);
        }
        list.retain(modn::is_valid);
        list
    }

    #[test]
    fn programs_give_the_scalar_back() {
        let mut list = special_scalars();
        let mut v = [3, 5, 7, 11];
        for _ in 0..60 {
            v = modn::mul(&v, &[0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 77]);
            list.push(v);
        }
        for shape in [
            Shape { points: 1, step: 128, orbits: 2 },
            Shape { points: 1, step: 128, orbits: 6 },
            Shape { points: 4, step: 32, orbits: 4 },
            Shape { points: 16, step: 8, orbits: 4 },
            Shape { points: 32, step: 4, orbits: 2 },
        ] {
            let mut slots = vec![[0; 4]; shape.slots()];
            interpret(&shape.table(), &mut slots, [1, 0, 0, 0]);
            for k in &list {
                let program = shape.multiply(k).expect("digits give the scalar back");
                assert_eq!(interpret(&program, &mut slots, [0; 4]), *k, "{shape:?}");
            }
        }
    }

    #[test]
    fn digit_density() {
        // The averages that the cost model uses; a recoding that got worse would show here.
        let mut v = [3, 5, 7, 11];
        let mut sums = [[0; 2]; 4];
        for _ in 0..40 {
            v = modn::mul(&v, &[0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 77]);
            for (sum, orbits) in sums.iter_mut().zip([2, 4, 6, 8]) {
                let digits = recode(&v, orbits, Weights { double: 67, add: 44 });
                sum[0] += digits.len() - 1;
                sum[1] += digits.iter().flatten().count() - 1;
            }
        }
        println!("doublings and additions of 40 keys at 2, 4, 6, 8 orbits: {sums:?}");
        for (sum, limit) in sums.iter().zip([55, 48, 43, 40]) {
            assert!(sum[1] <= 40 * limit, "{sums:?}");
        }
    }

    #[test]
    fn shapes_as_documented() {
        assert_eq!(Shape::for_keys(1), Shape { points: 1, step: 128, orbits: 6 });
        assert_eq!(Shape::for_keys(16), Shape { points: 8, step: 16, orbits: 8 });
        assert!((1..=64).all(|keys| Shape::for_keys(keys).slots() <= 64));
    }

    #[test]
    fn split_scalars() {
        for k in special_scalars() {
            let (mut k1, mut k2) = modn::split(&k);
            for _ in 0..2 {
                let reduce = |v: &Int| {
                    let negative = v[3] >> 63 != 0;
                    let m = if negative { modn::wrapping_sub(&[0; 4], v) } else { *v };
                    assert!(m[3] == 0 && m[2] < 4);
                    if negative { modn::neg(&m) } else { m }
                };
                assert_eq!(modn::add(&reduce(&k1), &modn::mul(&modn::LAMBDA, &reduce(&k2))), k);
                modn::make_odd(&mut k1, &mut k2);
            }
            assert!(k1[0] & k2[0] & 1 == 1);
        }
    }
}
