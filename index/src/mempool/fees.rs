//! The fee histogram.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Virtual bytes of the first bin; each further one has a tenth more.
const FIRST_BIN: f64 = 30_000.0;
const GROWTH: f64 = 1.1;

/// Above so many transactions, a histogram is used for a while although the mempool has changed.
const MANY: usize = 5_000;
const KEPT: Duration = Duration::from_secs(5);

type Histogram = Vec<(f64, u64)>;

/// The last histogram.
#[derive(Debug, Default)]
pub(super) struct Cache(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    made: Instant,
    of: usize,
    outdated: bool,
    histogram: Histogram,
}

impl Cache {
    /// The mempool has changed.
    pub(super) fn outdated(&mut self) {
        if let Some(known) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            known.outdated = true;
        }
    }

    /// The histogram, made from fees and sizes if need be.
    pub(super) fn get(&self, entries: impl FnOnce() -> Vec<(u64, u64)>) -> Histogram {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known
            && (!known.outdated || (known.of > MANY && known.made.elapsed() < KEPT))
        {
            return known.histogram.clone();
        }
        let entries = entries();
        let of = entries.len();
        let histogram = histogram(entries);
        *known = Some(Known { made: Instant::now(), of, outdated: false, histogram: histogram.clone() });
        histogram
    }
}

/// Puts (fee, virtual bytes) into bins, from high rates to low ones. A bin is closed when it is large enough; a rate that
/// alone would fill two bins doesn't share one with the rates above it. The last bin has what is left.
fn histogram(entries: Vec<(u64, u64)>) -> Histogram {
    // Tenths of a satoshi per virtual byte.
    let rate = |(fee, vsize): (u64, u64)| fee.saturating_mul(10).checked_div(vsize);
    let mut rates: Vec<(u64, u64)> =
        entries.into_iter().filter_map(|entry| Some((rate(entry)?, entry.1))).collect();
    rates.sort_unstable_by(|a, b| b.cmp(a));
    let (mut bins, mut room) = (Vec::new(), FIRST_BIN);
    let mut open: Option<(u64, u64)> = None;
    let mut close = |bin: (u64, u64), room: &mut f64| {
        bins.push((bin.0 as f64 / 10.0, bin.1));
        *room *= GROWTH;
    };
    for group in rates.chunk_by(|a, b| a.0 == b.0) {
        let (rate, size) = (group[0].0, group.iter().map(|(_, size)| size).sum::<u64>());
        if size as f64 > 2.0 * room
            && let Some(bin) = open.take()
        {
            close(bin, &mut room);
        }
        let bin = (rate, open.map_or(0, |bin| bin.1) + size);
        if bin.1 as f64 > room {
            open = None;
            close(bin, &mut room);
        } else {
            open = Some(bin);
        }
    }
    if let Some(bin) = open {
        close(bin, &mut room);
    }
    bins
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bug class 10: bins with absurd values.
    #[test]
    fn bins_by_hand() {
        assert_eq!(histogram(vec![]), vec![]);
        assert_eq!(histogram(vec![(1, 0)]), vec![]);
        assert_eq!(histogram(vec![(150, 100)]), vec![(1.5, 100)]);
        // 40 kvB at 10 sat/vB fill the first bin, the rest is in the last one.
        let mut entries = vec![(400_000, 40_000), (1_000, 1_000), (500, 1_000), (20_000, 1_000)];
        assert_eq!(histogram(entries.clone()), vec![(10.0, 41_000), (0.5, 2_000)]);
        // A large lump is not mixed with what is above it.
        entries[0] = (4_000_000, 400_000);
        assert_eq!(histogram(entries), vec![(20.0, 1_000), (10.0, 400_000), (0.5, 2_000)]);
    }

    proptest! {
        #[test]
        fn bins_fall_strictly_and_hold_everything(
            entries in prop::collection::vec((0u64..10_000_000, 1u64..100_000), 0..300),
        ) {
            let all: u64 = entries.iter().map(|(_, size)| size).sum();
            let bins = histogram(entries);
            prop_assert_eq!(bins.iter().map(|(_, size)| size).sum::<u64>(), all);
            prop_assert!(bins.windows(2).all(|pair| pair[0].0 > pair[1].0));
            prop_assert!(bins.iter().all(|(rate, size)| rate.is_finite() && *rate >= 0.0 && *size > 0));
        }
    }
}
