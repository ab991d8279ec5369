//! Where in a page the stack of a scan lies.
//!
//! The vector kernels write temporaries to the stack and read constants and table entries in between. A processor decides
//! by the low twelve bits of the addresses whether a load could need what an earlier store has just written; where the
//! frames of a scan happen to lie at the same place in a page as something that is read all the time, loads wait for
//! stores that they have nothing to do with. On Zen 4 the AVX2 scan takes 9.1 µs per row at most places and up to 12.3 µs
//! at the bad ones, and the linker and the caller's frames decide which it is. So the places are tried once per
//! instruction set and process, which takes some ten milliseconds, and scans run at the best one.

use crate::isa::Isa;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const STEP: usize = 512;
const PLACES: usize = PAGE / STEP;

/// Runs `work` with the stack at about `place` steps into a page.
pub(crate) fn run_at(place: usize, work: &mut dyn FnMut()) {
    let marker = 0u8;
    let here = black_box(&raw const marker).addr() % PAGE;
    // The stack grows downwards.
    let steps = (here + PAGE - place * STEP) % PAGE / STEP;
    match steps {
        1 => lower::<{ STEP }>(work),
        2 => lower::<{ 2 * STEP }>(work),
        3 => lower::<{ 3 * STEP }>(work),
        4 => lower::<{ 4 * STEP }>(work),
        5 => lower::<{ 5 * STEP }>(work),
        6 => lower::<{ 6 * STEP }>(work),
        7 => lower::<{ 7 * STEP }>(work),
        _ => work(),
    }
}

#[inline(never)]
fn lower<const BYTES: usize>(work: &mut dyn FnMut()) {
    let space = [0u8; BYTES];
    black_box(&space);
    work();
    black_box(&space);
}

/// The best place for scans on `isa`. `sample` makes a short scan that can be repeated; it is asked for once.
pub(crate) fn best<S: FnMut()>(isa: Isa, sample: impl FnOnce() -> Option<S>) -> usize {
    static BEST: [OnceLock<usize>; Isa::ALL.len()] = [const { OnceLock::new() }; Isa::ALL.len()];
    let index = Isa::ALL.iter().position(|other| *other == isa).unwrap_or(0);
    *BEST[index].get_or_init(|| {
        let Some(mut sample) = sample() else { return 0 };
        let mut times = [Duration::MAX; PLACES];
        // The first run also warms up tables and caches.
        sample();
        for _ in 0..3 {
            for (place, time) in times.iter_mut().enumerate() {
                let started = Instant::now();
                run_at(place, &mut sample);
                *time = started.elapsed().min(*time);
            }
        }
        // Away from the bad places: the neighbours count, too, since frames differ a little from call to call.
        let around = |place: usize| {
            let at = |offset: usize| times[(place + offset) % PLACES];
            at(0) + at(1).max(at(PLACES - 1))
        };
        (0..PLACES).min_by_key(|place| around(*place)).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_wherever_it_runs() {
        let mut seen = Vec::new();
        for place in 0..PLACES {
            let mut done = 0;
            let mut at = 0;
            run_at(place, &mut || {
                done += 1;
                let marker = 0u8;
                at = black_box(&raw const marker).addr() % PAGE;
            });
            assert_eq!(done, 1);
            seen.push((at + PAGE - place * STEP) % PAGE / STEP);
        }
        // Frames of some hundred bytes lie between, the same for every place but for a step.
        let near = |a: usize, b: usize| (a + PLACES - b) % PLACES <= 1 || (b + PLACES - a) % PLACES <= 1;
        assert!(seen.iter().all(|place| near(*place, seen[0])), "{seen:?}");
    }
}
