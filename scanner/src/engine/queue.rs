//! A queue of parts for threads of which some feed devices.
//!
//! Devices take large parts from the front, always at the same rows, so that they have them already the next time; the
//! processor takes small ones from the back. What a device hands back is done by whoever computes on the processor.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::backend::{Role, RowBatch};

/// Rows of one of the batches.
pub(super) type Piece = (usize, Range<usize>);

pub(super) struct Queue<'a> {
    batches: &'a [RowBatch<'a>],
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The next rows from the front, and one past the last rows at the back.
    front: (usize, usize),
    back: (usize, usize),
    returned: Vec<Piece>,
    /// Parts that devices are at, and may hand back.
    on_devices: usize,
    stopped: bool,
}

impl<'a> Queue<'a> {
    pub(super) fn new(batches: &'a [RowBatch<'a>]) -> Self {
        let last = batches.len().saturating_sub(1);
        let back = (last, batches.last().map_or(0, RowBatch::len));
        let state = State { front: (0, 0), back, returned: Vec::new(), on_devices: 0, stopped: false };
        Self { batches, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics while the state is half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next part for a thread with this role, which gets so many rows on the processor; waits while there may be one.
    /// `None` when all is done, or the queue was stopped, or the role should be asked for again.
    pub(super) fn take(&self, role: Role, processor_rows: usize) -> Taken {
        let mut state = self.state();
        loop {
            if state.stopped {
                return Taken::Nothing;
            }
            let part = match role {
                Role::Device { rows } => {
                    state.take_front(self.batches, rows).inspect(|_| state.on_devices += 1)
                }
                Role::Processor => state
                    .take_returned(processor_rows)
                    .or_else(|| state.take_back(self.batches, processor_rows)),
                Role::Standby => state.take_returned(processor_rows),
            };
            if let Some(part) = part {
                return Taken::Part(part);
            }
            if state.on_devices == 0 && state.returned.is_empty() && state.is_empty() {
                // Those who only stand by don't notice by themselves.
                self.changed.notify_all();
                return Taken::Nothing;
            }
            if matches!(role, Role::Device { .. }) && !state.returned.is_empty() {
                // A device handed it back; now nothing else is left, so whoever is free does it.
                if let Some(part) = state.take_returned(processor_rows) {
                    return Taken::ForProcessor(part);
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            if matches!(role, Role::Standby) && !state.is_empty() {
                return Taken::AskAgain;
            }
        }
    }

    /// A device did its part, or handed it back.
    pub(super) fn done(&self, handed_back: Option<Piece>) {
        let mut state = self.state();
        state.on_devices -= 1;
        state.returned.extend(handed_back);
        drop(state);
        self.changed.notify_all();
    }

    /// Nobody gets anything any more.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }
}

/// What a thread gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Part(Piece),
    /// For the processor, although the thread feeds a device.
    ForProcessor(Piece),
    /// The role may be another one now.
    AskAgain,
    Nothing,
}

impl State {
    fn is_empty(&self) -> bool {
        self.front >= self.back
    }

    /// Up to the next row whose number within its segment is a multiple of `rows`.
    fn take_front(&mut self, batches: &[RowBatch<'_>], rows: usize) -> Option<Piece> {
        loop {
            if self.is_empty() {
                return None;
            }
            let (batch, from) = self.front;
            let end = if batch == self.back.0 { self.back.1 } else { batches[batch].len() };
            if from >= end {
                self.front = (batch + 1, 0);
                continue;
            }
            let place = batches[batch].place.map_or(0, |place| place.row as usize);
            let to = ((place + from) / rows + 1) * rows - place;
            let to = to.min(end);
            self.front = (batch, to);
            return Some((batch, from..to));
        }
    }

    fn take_back(&mut self, batches: &[RowBatch<'_>], rows: usize) -> Option<Piece> {
        loop {
            if self.is_empty() {
                return None;
            }
            let (batch, to) = self.back;
            let start = if batch == self.front.0 { self.front.1 } else { 0 };
            if to <= start {
                let before = batch.checked_sub(1)?;
                self.back = (before, batches[before].len());
                continue;
            }
            let from = to.saturating_sub(rows.max(1)).max(start);
            self.back = (batch, from);
            return Some((batch, from..to));
        }
    }

    fn take_returned(&mut self, rows: usize) -> Option<Piece> {
        let (batch, range) = self.returned.pop()?;
        let cut = range.end.min(range.start + rows.max(1));
        if cut < range.end {
            self.returned.push((batch, cut..range.end));
        }
        Some((batch, range.start..cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Place;

    type Owned = (Vec<[u8; 64]>, Vec<u32>, Option<Place>);

    fn batches(lengths: &[usize], first: u32) -> Vec<Owned> {
        let place = |number: usize| Place {
            state: 0,
            segment: number as u32,
            row: if number == 0 { first } else { 0 },
        };
        let batch = |(number, length): (usize, &usize)| {
            (vec![[0; 64]; *length], vec![0; *length], Some(place(number)))
        };
        lengths.iter().enumerate().map(batch).collect()
    }

    fn borrowed(batches: &[Owned]) -> Vec<RowBatch<'_>> {
        batches
            .iter()
            .map(|(points, ends, place)| RowBatch {
                place: *place,
                first_row: 0,
                points,
                output_ends: ends,
                outputs_base: 0,
                outputs: &[],
            })
            .collect()
    }

    #[test]
    fn devices_take_the_same_rows_whatever_the_processor_took() {
        let rows = batches(&[100, 0, 50], 30);
        let rows = borrowed(&rows);
        let queue = Queue::new(&rows);
        let device = Role::Device { rows: 64 };
        assert_eq!(queue.take(device, 8), Taken::Part((0, 0..34)));
        assert_eq!(queue.take(Role::Processor, 8), Taken::Part((2, 42..50)));
        assert_eq!(queue.take(device, 8), Taken::Part((0, 34..98)));
        assert_eq!(queue.take(device, 8), Taken::Part((0, 98..100)));
        assert_eq!(queue.take(device, 8), Taken::Part((2, 0..42)));
        queue.done(Some((0, 34..98)));
        for from in (34..98).step_by(8) {
            let role = if from % 3 == 0 { Role::Standby } else { Role::Processor };
            assert_eq!(queue.take(role, 8), Taken::Part((0, from..from + 8)));
        }
        queue.done(Some((2, 0..42)));
        assert_eq!(queue.take(device, 50), Taken::ForProcessor((2, 0..42)));
        queue.done(None);
        queue.done(None);
        assert_eq!(queue.take(Role::Standby, 8), Taken::Nothing);
        assert_eq!(queue.take(device, 8), Taken::Nothing);
    }

    #[test]
    fn every_row_is_taken_once_whoever_takes_it() {
        for seed in 0..200u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let lengths: Vec<usize> = (0..1 + next(5)).map(|_| next(70) as usize).collect();
            let rows = batches(&lengths, next(20) as u32);
            let rows = borrowed(&rows);
            let queue = Queue::new(&rows);
            let mut counts: Vec<Vec<u32>> = lengths.iter().map(|length| vec![0; *length]).collect();
            let mut at_devices = Vec::new();
            loop {
                let role = [Role::Device { rows: 1 << next(6) }, Role::Processor][next(2) as usize];
                // Whoever would have to wait for a device.
                if at_devices.len() > 3 {
                    let (batch, range): Piece = at_devices.swap_remove(next(4) as usize);
                    let back = next(4) == 0;
                    if !back {
                        counts[batch][range.clone()].iter_mut().for_each(|count| *count += 1);
                    }
                    queue.done(back.then_some((batch, range)));
                }
                let empty = {
                    let mut state = queue.state();
                    let nothing =
                        state.take_front(&rows, 1).map(|(batch, range)| state.front = (batch, range.start));
                    nothing.is_none() && state.returned.is_empty()
                };
                if empty {
                    let Some((batch, range)) = at_devices.pop() else { break };
                    counts[batch][range].iter_mut().for_each(|count| *count += 1);
                    queue.done(None);
                    continue;
                }
                match queue.take(role, 1 + next(9) as usize) {
                    Taken::Part(piece) if matches!(role, Role::Device { .. }) => at_devices.push(piece),
                    Taken::Part((batch, range)) | Taken::ForProcessor((batch, range)) => {
                        counts[batch][range].iter_mut().for_each(|count| *count += 1);
                    }
                    taken => panic!("{taken:?}"),
                }
            }
            assert!(counts.iter().flatten().all(|count| *count == 1), "{seed}: {counts:?}");
            assert_eq!(queue.take(Role::Processor, 1), Taken::Nothing);
        }
    }

    #[test]
    fn who_waits_is_woken() {
        let rows = batches(&[64], 0);
        let rows = borrowed(&rows);
        let queue = Queue::new(&rows);
        assert_eq!(queue.take(Role::Device { rows: 64 }, 8), Taken::Part((0, 0..64)));
        std::thread::scope(|scope| {
            let queue = &queue;
            let waiting = [Role::Processor, Role::Standby, Role::Device { rows: 64 }]
                .map(|role| scope.spawn(move || queue.take(role, 64)));
            queue.done(Some((0, 0..64)));
            let taken: Vec<Taken> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
            let part = |taken: &&Taken| matches!(taken, Taken::Part(_) | Taken::ForProcessor(_));
            assert_eq!(taken.iter().filter(part).count(), 1, "{taken:?}");
        });
        queue.stop();
        assert_eq!(queue.take(Role::Processor, 8), Taken::Nothing);
    }
}
