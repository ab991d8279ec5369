//! The reference: plain code over libsecp256k1, one row after another.
//!
//! Every other backend must find what this one finds. It follows the BIP's text and is never optimised.

use secp256k1::PublicKey;

use super::{Backend, Candidate, PreparedScan, RowBatch};
use crate::hash;
use crate::keys::ScanTarget;
use crate::receive::{shared_secret, sum_x};
use crate::tweak::Tweak;

/// The reference backend, called `libsecp256k1`.
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "libsecp256k1"
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        Box::new(Prepared { targets: targets.to_vec() })
    }
}

struct Prepared {
    targets: Vec<ScanTarget>,
}

impl PreparedScan for Prepared {
    fn batch_rows(&self) -> usize {
        // About 50 µs a row and target.
        (256 / self.targets.len().max(1)).max(1)
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        for row in 0..batch.len() {
            for (number, target) in self.targets.iter().enumerate() {
                for slot in row_slots(target, &batch.points[row], batch.row_outputs(row)) {
                    found.push(Candidate { row: row as u32, target: number as u32, slot });
                }
            }
        }
    }
}

/// The slots (see [`Candidate::slot`]) in which one row matches one target, ascending.
///
/// A row that isn't a point on the curve matches nothing: the index never writes one.
pub fn row_slots(target: &ScanTarget, point: &[u8; 64], outputs: &[[u8; 8]]) -> Vec<u32> {
    let mut slots = Vec::new();
    let Some(tweak) = Tweak::from_row(point) else { return slots };
    let Some(shared) = shared_secret(target, &tweak) else { return slots };
    let Some(t) = hash::shared_secret_tweak(&shared, 0) else { return slots };
    let t_point = PublicKey::from_secret_key(&t);
    let matches = |x: Option<[u8; 32]>| x.is_some_and(|x| outputs.iter().any(|prefix| x[..8] == *prefix));
    if matches(sum_x(&[target.spend_key(), &t_point])) {
        slots.push(0);
    }
    for (slot, label) in (1..).zip(target.labels()) {
        if matches(sum_x(&[target.spend_key(), &t_point, label.point()])) {
            slots.push(slot);
        }
    }
    slots
}
