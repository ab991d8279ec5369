//! Which rows lie on a card.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{Place, RowBatch};

/// Where a tile begins: state of the index, segment, row within it.
type Start = (u64, u32, u32);

/// Rows of an index that lie on a card. A tile is what one part had; a part finds its rows also in a larger tile.
pub(super) struct Tiles<T> {
    by_start: BTreeMap<Start, Tile<T>>,
    used: u64,
    budget: u64,
    /// The card's memory was full before the budget was.
    full: bool,
}

struct Tile<T> {
    /// One past its last row.
    to: u32,
    bytes: u64,
    rows: Arc<T>,
}

/// What is to be done with rows.
pub(super) enum Lookup<T> {
    /// They lie there, behind so many others.
    There(Arc<T>, u32),
    /// They are worth bringing to stay.
    Bring,
    /// There is no room for them, or they are of no index.
    Pass,
}

fn start(place: Place) -> Start {
    (place.state, place.segment, place.row)
}

/// The starts of tiles that lie in the rows of a batch.
fn within(place: Place, batch: RowBatch<'_>) -> std::ops::Range<Start> {
    start(place)..(place.state, place.segment, place.row + batch.len() as u32)
}

impl<T> Tiles<T> {
    pub(super) fn new(budget: u64) -> Self {
        Self { by_start: BTreeMap::new(), used: 0, budget, full: false }
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn find(&mut self, batch: RowBatch<'_>) -> Lookup<T> {
        let Some(place) = batch.place else { return Lookup::Pass };
        let end = place.row + batch.len() as u32;
        if let Some(((state, segment, from), tile)) = self.by_start.range(..=start(place)).next_back()
            && (*state, *segment) == (place.state, place.segment)
            && end <= tile.to
        {
            return Lookup::There(Arc::clone(&tile.rows), place.row - from);
        }
        // What the index had before blocks were taken back, and what other indexes have that nobody scans.
        if self.by_start.keys().any(|(state, ..)| *state != place.state) {
            self.by_start.retain(|(state, ..), _| *state == place.state);
            self.used = self.by_start.values().map(|tile| tile.bytes).sum();
            self.full = false;
        }
        let replaced: u64 = self.by_start.range(within(place, batch)).map(|(_, tile)| tile.bytes).sum();
        let fits = self.used - replaced + bytes(batch) <= self.budget;
        if self.full || !fits { Lookup::Pass } else { Lookup::Bring }
    }

    /// Rows were brought; smaller tiles that begin among them are of no use any more.
    pub(super) fn put(&mut self, batch: RowBatch<'_>, rows: Arc<T>) {
        let Some(place) = batch.place else { return };
        let covered: Vec<Start> =
            self.by_start.range(within(place, batch)).map(|(start, _)| *start).collect();
        for tile in covered.iter().filter_map(|start| self.by_start.remove(start)) {
            self.used -= tile.bytes;
        }
        let bytes = bytes(batch);
        self.used += bytes;
        self.by_start.insert(start(place), Tile { to: place.row + batch.len() as u32, bytes, rows });
    }

    /// The card has no room for more.
    pub(super) fn refuse(&mut self) {
        self.full = true;
    }
}

/// Bytes of rows on a card.
fn bytes(batch: RowBatch<'_>) -> u64 {
    (batch.len() * (64 + 4) + batch.outputs.len() * 8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done with rows `from..to` of a segment, as (rows before them) if they are there.
    fn ask(tiles: &mut Tiles<u32>, state: u64, from: u32, to: u32) -> Result<u32, &'static str> {
        let (points, ends) = (vec![[0; 64]; (to - from) as usize], vec![0; (to - from) as usize]);
        let place = Some(Place { state, segment: 7, row: from });
        let batch = RowBatch {
            place,
            first_row: 0,
            points: &points,
            output_ends: &ends,
            outputs_base: 0,
            outputs: &[],
        };
        match tiles.find(batch) {
            Lookup::There(rows, before) => {
                assert_eq!(from, *rows + before, "it is another tile");
                Ok(before)
            }
            Lookup::Bring => {
                tiles.put(batch, Arc::new(from));
                Err("brought")
            }
            Lookup::Pass => Err("passed"),
        }
    }

    #[test]
    fn parts_of_any_size_find_their_rows() {
        let mut tiles = Tiles::new(100 * 68);
        for from in [0, 8, 16] {
            assert_eq!(ask(&mut tiles, 1, from, from + 8), Err("brought"));
        }
        for from in [0, 8, 16] {
            assert_eq!(ask(&mut tiles, 1, from, from + 8), Ok(0));
            assert_eq!(ask(&mut tiles, 1, from + 3, from + 5), Ok(3));
        }
        // A larger one takes the place of those, and serves them.
        assert_eq!(ask(&mut tiles, 1, 0, 32), Err("brought"));
        assert_eq!(tiles.used(), 32 * 68);
        for from in [0, 8, 16, 24] {
            assert_eq!(ask(&mut tiles, 1, from, from + 8), Ok(from));
        }
        // New rows at the end.
        assert_eq!(ask(&mut tiles, 1, 0, 40), Err("brought"));
        assert_eq!(tiles.used(), 40 * 68);
        // No room, until the rest is out of date.
        assert_eq!(ask(&mut tiles, 1, 40, 101), Err("passed"));
        assert_eq!(ask(&mut tiles, 2, 40, 101), Err("brought"));
        assert_eq!(tiles.used(), 61 * 68);
        tiles.refuse();
        assert_eq!(ask(&mut tiles, 2, 0, 1), Err("passed"));
        assert_eq!(ask(&mut tiles, 2, 50, 60), Ok(10));
    }
}
