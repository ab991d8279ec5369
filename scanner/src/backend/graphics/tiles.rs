//! Which rows lie on a card.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Place, RowBatch};

/// Rows of an index that lie on a card, by where they begin: a tile is what one part has, and parts begin at the same rows in
/// every scan.
pub(super) struct Tiles<T> {
    by_place: HashMap<(u64, u32, u32), Tile<T>>,
    /// Rows of a tile, except for those at the ends of segments.
    rows: u32,
    used: u64,
    budget: u64,
    /// The newest state of each index that was seen; rows of older ones are of no use.
    refused: bool,
}

struct Tile<T> {
    /// The segment's rows from..to.
    from: u32,
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

impl<T> Tiles<T> {
    pub(super) fn new(rows: u32, budget: u64) -> Self {
        Self { by_place: HashMap::new(), rows, used: 0, budget, refused: false }
    }

    /// Bytes that are taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    fn key(&self, place: Place) -> (u64, u32, u32) {
        (place.state, place.segment, place.row / self.rows)
    }

    pub(super) fn find(&mut self, batch: RowBatch<'_>) -> Lookup<T> {
        let Some(place) = batch.place else { return Lookup::Pass };
        let end = place.row + batch.len() as u32;
        if let Some(tile) = self.by_place.get(&self.key(place))
            && tile.from <= place.row
            && end <= tile.to
        {
            return Lookup::There(Arc::clone(&tile.rows), place.row - tile.from);
        }
        // What the index had before blocks were taken back, and what other indexes have that nobody scans.
        if self.by_place.keys().any(|(state, ..)| *state != place.state) {
            self.by_place.retain(|(state, ..), _| *state == place.state);
            self.used = self.by_place.values().map(|tile| tile.bytes).sum();
            self.refused = false;
        }
        let replaced = self.by_place.get(&self.key(place)).map_or(0, |tile| tile.bytes);
        if self.refused || self.used - replaced + bytes(batch) > self.budget {
            Lookup::Pass
        } else {
            Lookup::Bring
        }
    }

    pub(super) fn put(&mut self, batch: RowBatch<'_>, rows: Arc<T>) {
        let Some(place) = batch.place else { return };
        let bytes = bytes(batch);
        let tile = Tile { from: place.row, to: place.row + batch.len() as u32, bytes, rows };
        let before = self.by_place.insert(self.key(place), tile);
        self.used = self.used + bytes - before.map_or(0, |tile| tile.bytes);
    }

    /// The card has no room for more.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }
}

/// Bytes of rows on a card.
fn bytes(batch: RowBatch<'_>) -> u64 {
    (batch.len() * (64 + 4) + batch.outputs.len() * 8) as u64
}
