//! Rows that pay somebody, for tests of backends for graphics cards.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use peregrine_scanner::backend::{self, reference};
use peregrine_scanner::{
    Candidate, Control, Engine, Match, Place, PreparedScan, RowBatch, ScanKey, ScanTarget, Tweak,
};
use rand::Rng;
use rand::rngs::StdRng;
use secp256k1::{PublicKey, SecretKey};

pub(crate) struct Rows {
    /// Of the index that they are of.
    pub(crate) state: u64,
    pub(crate) points: Vec<[u8; 64]>,
    pub(crate) ends: Vec<u32>,
    pub(crate) outputs: Vec<[u8; 8]>,
}

/// What outputs are counted from: a part never begins at the start of a segment.
const BASE: u32 = 12_345;

impl Rows {
    pub(crate) fn batch(&self) -> RowBatch<'_> {
        RowBatch {
            place: Some(Place { state: self.state, segment: 3, row: 1000 }),
            first_row: 1000,
            points: &self.points,
            output_ends: &self.ends,
            outputs_base: BASE,
            outputs: &self.outputs,
        }
    }

    /// Rows that all pay somebody in some slot.
    pub(crate) fn planted(
        rng: &mut StdRng,
        targets: &[ScanTarget],
        count: usize,
    ) -> (Self, BTreeSet<Candidate>) {
        let mut rows =
            Self { state: rng.random(), points: Vec::new(), ends: Vec::new(), outputs: Vec::new() };
        let mut wanted = BTreeSet::new();
        for row in 0..count {
            let point = Tweak(secret(rng).1).to_row();
            let target = row % targets.len();
            let keys = reference::row_keys(&targets[target], &point);
            let slot = row / targets.len() % keys.len();
            rows.outputs.extend((0..row % 3).map(|_| rng.random::<[u8; 8]>()));
            if let Some(key) = keys[slot] {
                rows.outputs.push(key[..8].try_into().unwrap());
                wanted.insert(Candidate { row: row as u32, target: target as u32, slot: slot as u32 });
            }
            rows.points.push(point);
            rows.ends.push(BASE + rows.outputs.len() as u32);
        }
        (rows, wanted)
    }
}

pub(crate) fn secret(rng: &mut StdRng) -> (SecretKey, PublicKey) {
    let secret = SecretKey::from_secret_bytes(rng.random()).unwrap();
    (secret, PublicKey::from_secret_key(&secret))
}

pub(crate) fn target(rng: &mut StdRng, labels: u32) -> ScanTarget {
    let scan = ScanKey::from_bytes(rng.random()).unwrap();
    let spend = secret(rng).1;
    ScanTarget::new(scan, spend, 1..=labels).unwrap()
}

pub(crate) fn scan(engine: &Engine, targets: &[ScanTarget], batch: RowBatch<'_>) -> Vec<Match> {
    let (cancel, progress) = (AtomicBool::new(false), |_| {});
    engine.scan(targets, &[batch], Control { cancel: &cancel, progress: &progress }).unwrap()
}

/// What a backend finds in parts of so many rows, each candidate once.
pub(crate) fn in_parts(prepared: &dyn PreparedScan, batch: RowBatch<'_>, rows: usize) -> BTreeSet<Candidate> {
    let mut all = BTreeSet::new();
    for from in (0..batch.len()).step_by(rows) {
        let mut found = Vec::new();
        prepared.scan(batch.slice(from..batch.len().min(from + rows)), &mut found);
        for candidate in found {
            assert!(
                all.insert(Candidate { row: candidate.row + from as u32, ..candidate }),
                "{candidate:?} twice"
            );
        }
    }
    all
}

/// What the reference finds.
pub(crate) fn by_reference(targets: &[ScanTarget], batch: RowBatch<'_>) -> BTreeSet<Candidate> {
    let mut found = Vec::new();
    backend::choose("libsecp256k1").unwrap().prepare(targets).scan(batch, &mut found);
    found.into_iter().collect()
}
