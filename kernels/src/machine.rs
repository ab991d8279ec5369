//! Runs programs on the rows of a chunk, several machines side by side with their inversions shared.

use crate::field::{BETA, Field, Job};
use crate::lanes::{Entry, Factor, Finish, Slots, Start, State, invert};
use crate::program::{Op, Program};

/// Where a program stands.
pub(crate) struct Machine<'a> {
    program: &'a Program,
    at: usize,
    pending: Finish,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(program: &'a Program) -> Self {
        Machine { program, at: 0, pending: Finish::Nothing }
    }

    /// Goes on until something must be inverted, and gives that back; `None` at the end.
    fn advance<F: Field>(
        &mut self,
        state: &mut State<F>,
        slots: &mut Slots<F>,
        inverse: &F::Fe,
    ) -> Option<(F::Fe, Factor)> {
        loop {
            if self.pending == Finish::First {
                self.pending = Finish::Second;
                return Some((state.pass(Finish::First, Start::Second, inverse), Factor::Two));
            }
            let op = self.program.get(self.at);
            self.at += 1;
            let (start, next, factor) = match op {
                Some(Op::Double) => (Start::Double, Finish::Double, Factor::ThreeHalves),
                Some(Op::Add(o)) => (Start::Table(slots.get(o.slot, state.len), o), Finish::Add, Factor::One),
                Some(Op::DoubleAdd(o)) => {
                    (Start::Table(slots.get(o.slot, state.len), o), Finish::First, Factor::One)
                }
                Some(Op::Load(_) | Op::Store(_)) | None => (Start::Nothing, Finish::Nothing, Factor::One),
            };
            let product = state.pass(self.pending, start, inverse);
            self.pending = next;
            match op {
                None => return None,
                Some(Op::Load(o)) => {
                    let entries = slots.get(o.slot, state.len);
                    F::enter(Load::<F> { state, entries, unit: o.unit, neg: o.neg });
                }
                Some(Op::Store(slot)) => {
                    F::enter(Store::<F> { entries: slots.get_mut(slot, state.len), state });
                }
                _ => return Some((product, factor)),
            }
        }
    }
}

/// Runs one program per state to its end, over the same slots.
pub(crate) fn run<F: Field>(machines: &mut [Machine<'_>], states: &mut [State<F>], slots: &mut Slots<F>) {
    let count = machines.len();
    let mut products = vec![(F::one(), Factor::One); count];
    let mut poisoned = vec![0; count];
    let mut running: Vec<usize> = (0..count).collect();
    while !running.is_empty() {
        let mut kept = 0;
        for at in 0..running.len() {
            let m = running[at];
            // Inverses stand where the products of the same machines stood in the round before.
            if let Some(product) = machines[m].advance(&mut states[m], slots, &products[at].0) {
                products[kept] = product;
                running[kept] = m;
                kept += 1;
            }
        }
        running.truncate(kept);
        poisoned[..kept].fill(0);
        invert::<F>(&mut products[..kept], &mut poisoned[..kept]);
        for (m, mask) in running.iter().zip(&poisoned) {
            states[*m].poisoned |= mask;
        }
    }
}

struct Load<'a, F: Field> {
    state: &'a mut State<F>,
    entries: &'a [Entry<F>],
    unit: u8,
    neg: bool,
}

impl<F: Field> Job<F> for Load<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let one = F::one();
        let zero = F::splat(&[0; 4]);
        for (cell, entry) in self.state.cells.iter_mut().zip(self.entries) {
            cell.x = match self.unit {
                0 => entry.x,
                1 => entry.bx,
                _ => F::mul_w(&F::neg_sum(&entry.x, &entry.bx), &one),
            };
            cell.y = if self.neg { F::mul_w(&F::sub(&zero, &entry.y), &one) } else { entry.y };
        }
    }
}

struct Store<'a, F: Field> {
    state: &'a State<F>,
    entries: &'a mut [Entry<F>],
}

impl<F: Field> Job<F> for Store<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let beta = F::splat(&BETA);
        for (cell, entry) in self.state.cells.iter().zip(self.entries) {
            *entry = Entry { x: cell.x, bx: F::mul(&beta, &cell.x), y: cell.y };
        }
    }
}
