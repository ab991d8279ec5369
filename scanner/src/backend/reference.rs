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
pub fn row_slots(target: &ScanTarget, point: &[u8; 64], outputs: &[[u8; 8]]) -> Vec<u32> {
    let matches =
        |key: &Option<[u8; 32]>| key.is_some_and(|x| outputs.iter().any(|prefix| x[..8] == *prefix));
    (0..).zip(row_keys(target, point)).filter(|(_, key)| matches(key)).map(|(slot, _)| slot).collect()
}

/// The x-only key that output k = 0 of a row has in each slot of a target; `None` where the sum is infinity.
///
/// Empty for a row that isn't a point on the curve: the index never writes one, and it matches nothing.
pub fn row_keys(target: &ScanTarget, point: &[u8; 64]) -> Vec<Option<[u8; 32]>> {
    let t_point = Tweak::from_row(point)
        .and_then(|tweak| shared_secret(target, &tweak))
        .and_then(|shared| hash::shared_secret_tweak(&shared, 0))
        .map(|t| PublicKey::from_secret_key(&t));
    let Some(t_point) = t_point else { return Vec::new() };
    let unlabelled = sum_x(&[target.spend_key(), &t_point]);
    let labelled = target.labels().iter().map(|label| sum_x(&[target.spend_key(), &t_point, label.point()]));
    std::iter::once(unlabelled).chain(labelled).collect()
}
