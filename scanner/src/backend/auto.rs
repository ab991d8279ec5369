//! Which backend is the best here.

use std::time::{Duration, Instant};

use peregrine_kernels::Isa;

use super::graphics::Graphics;
use super::graphics::device::Device;
use super::graphics::trial;
use super::lanes::Lanes;
use super::{Backend, BackendError, Candidate, Selection, cuda, wgpu};

/// Cards that are slower than the processor by more than this factor aren't worth their trouble.
const WORTHWHILE: f64 = 0.5;
/// How long the processor is timed.
const TIME: Duration = Duration::from_millis(20);

/// The processor's best, with graphics cards if there are some that are worth it. A card that is missing or broken is no error.
pub(super) fn choose(selection: &Selection) -> Result<Box<dyn Backend>, BackendError> {
    let processor = || super::choose_with(super::best_of_processor(), selection);
    if let Ok(cards) = cuda::open(selection) {
        return if worthwhile(&cards) { Ok(Box::new(cards.helped_by_processor())) } else { processor() };
    }
    // A program that does as if it were a card is the processor again.
    if wgpu::has_card()
        && let Ok(cards) = wgpu::open(selection)
        && worthwhile(&cards)
    {
        return Ok(Box::new(cards.helped_by_processor()));
    }
    processor()
}

fn worthwhile<D: Device>(cards: &Graphics<D>) -> bool {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let processor = processor_rate() * threads as f64;
    tracing::debug!("cards: {:.0} rows/s, processor: {processor:.0} rows/s", cards.rate());
    cards.rate() > WORTHWHILE * processor
}

/// Rows per second of one thread.
fn processor_rate() -> f64 {
    let Ok(lanes) = Lanes::new(Isa::detect()) else { return 0.0 };
    let target = trial::target();
    let prepared = lanes.prepare(std::slice::from_ref(&target));
    let rows = trial::Rows::new(&target).repeated(prepared.batch_rows());
    let mut found: Vec<Candidate> = Vec::new();
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < TIME {
        prepared.scan(rows.batch(), &mut found);
        count += rows.batch().len();
    }
    count as f64 / started.elapsed().as_secs_f64()
}
