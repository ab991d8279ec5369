//! Every output of one transaction that belongs to a key (BIP352, "Scanning", the private part).

use std::collections::HashMap;

use secp256k1::{PublicKey, Scalar};
use zeroize::Zeroizing;

use crate::keys::{OutputTweak, ScanTarget};
use crate::tweak::Tweak;
use crate::{K_MAX, hash};

/// An output that belongs to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundOutput {
    /// Index into the list of keys that was searched.
    pub index: usize,
    /// The output's number k within the transaction and the key.
    pub k: u32,
    /// The label it was sent to; 0 is change, `None` the address without a label.
    pub label: Option<u32>,
    /// Add this to `b_spend` to get the output's secret key (or its negation).
    pub tweak: OutputTweak,
}

/// `S = b_scan·T`; `None` if the product can't be computed, which a valid key and a valid tweak exclude.
pub(crate) fn shared_secret(target: &ScanTarget, tweak: &Tweak) -> Option<PublicKey> {
    let scalar = Scalar::from(*target.scan_key().secret());
    tweak.0.mul_tweak(&scalar).ok()
}

/// The x coordinate of a sum of points; `None` if the sum is infinity.
pub(crate) fn sum_x(points: &[&PublicKey]) -> Option<[u8; 32]> {
    PublicKey::combine_keys(points).ok().map(|sum| sum.x_only_public_key().0.to_byte_array())
}

/// Finds the outputs of a transaction that belong to `target`. `outputs` are the x-only keys of its taproot outputs;
/// they are compared as bytes and need not be points.
///
/// Where one key stands in several outputs, or outputs match the same k with and without a label, all are reported
/// and k goes on by one. The search ends at the first k without a match, and after [`K_MAX`] in any case.
pub fn find_outputs(target: &ScanTarget, tweak: &Tweak, outputs: &[[u8; 32]]) -> Vec<FoundOutput> {
    let mut by_key: HashMap<[u8; 32], Vec<usize>> = HashMap::new();
    for (index, key) in outputs.iter().enumerate() {
        by_key.entry(*key).or_default().push(index);
    }
    let mut found = Vec::new();
    let Some(shared) = shared_secret(target, tweak) else { return found };
    for k in 0..K_MAX {
        let Some(t) = hash::shared_secret_tweak(&shared, k) else { break };
        let t_point = PublicKey::from_secret_key(&t);
        let before = found.len();
        let mut take = |x: Option<[u8; 32]>, label: Option<u32>, tweak: &dyn Fn() -> Option<OutputTweak>| {
            // A key is taken out once it is found, so that no output is reported twice.
            let indexes = x.and_then(|x| by_key.remove(&x)).unwrap_or_default();
            for index in indexes {
                if let Some(tweak) = tweak() {
                    found.push(FoundOutput { index, k, label, tweak });
                }
            }
        };
        take(sum_x(&[target.spend_key(), &t_point]), None, &|| Some(OutputTweak::new(&t)));
        for label in target.labels() {
            // x-only comparison covers both signs of the output's key.
            take(sum_x(&[target.spend_key(), &t_point, label.point()]), Some(label.m()), &|| {
                let scalar = Zeroizing::new(label.tweak().to_secret_bytes());
                let sum = t.add_tweak(&Scalar::from_be_bytes(*scalar).ok()?).ok()?;
                Some(OutputTweak::new(&sum))
            });
        }
        if found.len() == before {
            break;
        }
    }
    found
}
