//! The sending side of BIP352: the outputs that pay silent payment addresses.
//!
//! Peregrine doesn't hold wallets; tests, the demo and tools that make test payments send with this.

use std::collections::HashMap;

use bitcoin::OutPoint;
use secp256k1::{Parity, PublicKey, Scalar, SecretKey};

use crate::address::Address;
use crate::tweak::smallest_outpoint;
use crate::{K_MAX, hash};

/// The secret key of an eligible input.
#[derive(Clone)]
pub struct InputKey {
    /// The secret key that signs for the input; for taproot that of the output key (after any taproot tweak).
    pub key: SecretKey,
    /// Taproot keys stand for the point with even y, so a key whose point has odd y is negated.
    pub taproot: bool,
}

/// Why no outputs can be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SendError {
    /// No input has a key that receivers can see.
    #[error("no input is eligible: pay from P2TR, P2WPKH, P2SH-P2WPKH or P2PKH with compressed keys")]
    NoInputs,
    /// The input keys cancel each other.
    #[error("the input keys sum to zero; use other inputs")]
    ZeroSum,
    /// More outputs for one scan key than its owner would look for.
    #[error("{0} outputs go to one scan key; receivers find at most {K_MAX}")]
    TooMany(usize),
    /// A hash gave an invalid scalar, or a sum was infinity. Doesn't happen by chance.
    #[error("the transaction hashes to an invalid scalar; use other inputs")]
    Hash,
}

/// The x-only output keys that pay `recipients`, in the same order. `outpoints` are those of all inputs, eligible or not.
pub fn output_keys(
    inputs: &[InputKey],
    outpoints: impl IntoIterator<Item = OutPoint>,
    recipients: &[Address],
) -> Result<Vec<[u8; 32]>, SendError> {
    let keys: Vec<SecretKey> = inputs
        .iter()
        .map(|input| match input.key.x_only_public_key().1 {
            Parity::Odd if input.taproot => input.key.negate(),
            _ => input.key,
        })
        .collect();
    let sum = sum_keys(&keys)?;
    let smallest = smallest_outpoint(outpoints).ok_or(SendError::NoInputs)?;
    let input_hash = hash::input_hash(&smallest, &PublicKey::from_secret_key(&sum)).ok_or(SendError::Hash)?;
    let secret = Scalar::from(sum.mul_tweak(&input_hash).map_err(|_| SendError::Hash)?);

    // Recipients with the same scan key share a secret and are told apart by k.
    let mut groups: HashMap<PublicKey, Vec<usize>> = HashMap::new();
    for (index, recipient) in recipients.iter().enumerate() {
        groups.entry(recipient.scan).or_default().push(index);
    }
    let mut outputs = vec![[0; 32]; recipients.len()];
    for (scan, members) in groups {
        if members.len() > K_MAX as usize {
            return Err(SendError::TooMany(members.len()));
        }
        let shared = scan.mul_tweak(&secret).map_err(|_| SendError::Hash)?;
        for (k, index) in (0..).zip(members) {
            let t = hash::shared_secret_tweak(&shared, k).ok_or(SendError::Hash)?;
            let key = recipients[index].spend.add_exp_tweak(&Scalar::from(t)).map_err(|_| SendError::Hash)?;
            outputs[index] = key.x_only_public_key().0.to_byte_array();
        }
    }
    Ok(outputs)
}

/// The sum of secret keys. Intermediate sums may be zero; only the final one must not.
fn sum_keys(keys: &[SecretKey]) -> Result<SecretKey, SendError> {
    let mut sum: Option<SecretKey> = None;
    for key in keys {
        sum = match sum {
            None => Some(*key),
            // The only way to fail is a sum of zero.
            Some(partial) => partial.add_tweak(&Scalar::from(*key)).ok(),
        };
    }
    match (keys, sum) {
        ([], _) => Err(SendError::NoInputs),
        (_, None) => Err(SendError::ZeroSum),
        (_, Some(sum)) => Ok(sum),
    }
}
