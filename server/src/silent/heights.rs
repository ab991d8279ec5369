//! Sets of heights.

use std::ops::RangeInclusive;

/// A set of heights, as ranges that ascend and don't touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heights(Vec<(u32, u32)>);

impl Heights {
    /// Whether it is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest height.
    pub(super) fn first(&self) -> Option<u32> {
        self.0.first().map(|range| range.0)
    }

    /// The ranges, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u32>> + '_ {
        self.0.iter().map(|(from, to)| *from..=*to)
    }

    /// Whether a height is in it.
    pub(super) fn contains(&self, height: u32) -> bool {
        let at = self.0.partition_point(|range| range.1 < height);
        self.0.get(at).is_some_and(|range| range.0 <= height)
    }

    /// Whether it has a height of a range.
    pub(super) fn meets(&self, range: &RangeInclusive<u32>) -> bool {
        let at = self.0.partition_point(|ours| ours.1 < *range.start());
        self.0.get(at).is_some_and(|ours| ours.0 <= *range.end())
    }

    /// Adds a range.
    pub(super) fn insert(&mut self, range: RangeInclusive<u32>) {
        if range.is_empty() {
            return;
        }
        let (mut from, mut to) = range.into_inner();
        self.0.retain(|ours| {
            let apart = ours.1.saturating_add(1) < from || ours.0 > to.saturating_add(1);
            if !apart {
                (from, to) = (from.min(ours.0), to.max(ours.1));
            }
            apart
        });
        let at = self.0.partition_point(|ours| ours.0 < from);
        self.0.insert(at, (from, to));
    }

    /// Takes a range away.
    pub(super) fn remove(&mut self, range: &RangeInclusive<u32>) {
        if range.is_empty() {
            return;
        }
        let (from, to) = (*range.start(), *range.end());
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for (start, end) in self.0.drain(..) {
            if end < from || start > to {
                left.push((start, end));
                continue;
            }
            if start < from {
                left.push((start, from - 1));
            }
            if end > to {
                left.push((to + 1, end));
            }
        }
        self.0 = left;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain set.
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..12), 0..40)) {
            let (mut heights, mut model) = (Heights::default(), BTreeSet::new());
            for (insert, from, length) in steps {
                let range = from..=from + length;
                if insert {
                    model.extend(range.clone());
                    heights.insert(range);
                } else {
                    model.retain(|height| !range.contains(height));
                    heights.remove(&range);
                }
                prop_assert_eq!(heights.ranges().flatten().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert!(heights.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", heights);
                for height in 0..60 {
                    prop_assert_eq!(heights.contains(height), model.contains(&height));
                    let range = height..=height + 3;
                    prop_assert_eq!(heights.meets(&range), range.clone().any(|height| model.contains(&height)));
                }
                prop_assert_eq!((heights.first(), heights.is_empty()), (model.first().copied(), model.is_empty()));
            }
            heights.insert(0..=u32::MAX);
            prop_assert_eq!(heights.0, vec![(0, u32::MAX)]);
        }
    }
}
