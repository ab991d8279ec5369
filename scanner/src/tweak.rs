//! From a transaction and the outputs it spends to its tweak (BIP352, "Scanning", the public part).

use std::fmt;

use bitcoin::{OutPoint, Script, Transaction, TxOut};
use secp256k1::{PublicKey, Scalar};

use crate::{hash, input};

/// The tweak of a transaction: the point `T = input_hash·A`. A receiver's shared secret is `b_scan·T`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tweak(pub PublicKey);

impl Tweak {
    /// As the index stores it: affine x then y, 32 bytes each, little-endian.
    pub fn to_row(&self) -> [u8; 64] {
        let mut row = [0; 64];
        row.copy_from_slice(&self.0.serialize_uncompressed()[1..]);
        row[..32].reverse();
        row[32..].reverse();
        row
    }

    /// From what [`to_row`](Self::to_row) gives; `None` if that isn't a point on the curve.
    pub fn from_row(row: &[u8; 64]) -> Option<Self> {
        let mut bytes = [4; 65];
        bytes[1..].copy_from_slice(row);
        bytes[1..33].reverse();
        bytes[33..].reverse();
        PublicKey::from_byte_array_uncompressed(bytes).ok().map(Self)
    }

    /// The 33 bytes that protocols carry.
    pub fn serialize(&self) -> [u8; 33] {
        self.0.serialize()
    }
}

impl fmt::Debug for Tweak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tweak({})", self.0)
    }
}

/// The x-only key of a taproot output; `None` for any other script. The bytes need not be a point on the curve.
pub fn taproot_key(script: &Script) -> Option<[u8; 32]> {
    if script.is_p2tr() { script.as_bytes()[2..34].try_into().ok() } else { None }
}

/// Whether a transaction can have a tweak, as far as its outputs and the kinds of its prevouts say: it has a taproot
/// output, isn't a coinbase, and spends no witness program above version 1.
///
/// # Panics
///
/// If the number of prevouts isn't that of the inputs; whoever parses blocks checks that.
pub(crate) fn may_be_eligible(transaction: &Transaction, prevouts: &[TxOut]) -> bool {
    if transaction.is_coinbase() || !transaction.output.iter().any(|out| out.script_pubkey.is_p2tr()) {
        return false;
    }
    assert_eq!(transaction.input.len(), prevouts.len(), "one prevout for each input");
    !prevouts.iter().any(|prevout| input::excludes_transaction(&prevout.script_pubkey))
}

/// The tweak of a transaction; `None` if it can't pay a silent payment address.
///
/// `prevouts[i]` is the output that input `i` spends. A transaction is eligible if it has a taproot output and an
/// input with a key, spends no witness program above version 1, and its keys don't sum to infinity. Coinbase
/// transactions spend nothing and so are never eligible.
///
/// This is the plain way, which [`batch`](crate::batch) must agree with.
///
/// # Panics
///
/// If the number of prevouts isn't that of the inputs; whoever parses blocks checks that.
pub fn transaction_tweak(transaction: &Transaction, prevouts: &[TxOut]) -> Option<Tweak> {
    if !may_be_eligible(transaction, prevouts) {
        return None;
    }
    let keys: Vec<PublicKey> = transaction
        .input
        .iter()
        .zip(prevouts)
        .filter_map(|(input, prevout)| input::public_key(input, &prevout.script_pubkey))
        .collect();
    let sum = sum_of_keys(&keys)?;
    let input_hash = input_hash(transaction, &sum)?;
    sum.mul_tweak(&input_hash).ok().map(Tweak)
}

/// The sum of input keys; `None` if there are none, or if it is infinity.
pub(crate) fn sum_of_keys(keys: &[PublicKey]) -> Option<PublicKey> {
    // One call for the whole sum: adding pairwise would fail where an intermediate sum is infinity.
    match keys {
        [] => None,
        [only] => Some(*only),
        _ => PublicKey::combine_keys(&keys.iter().collect::<Vec<_>>()).ok(),
    }
}

/// The scalar that the sum of input keys is multiplied with.
pub(crate) fn input_hash(transaction: &Transaction, sum: &PublicKey) -> Option<Scalar> {
    let smallest = smallest_outpoint(transaction.input.iter().map(|input| input.previous_output))?;
    hash::input_hash(&smallest, sum)
}

/// The smallest outpoint as the BIP orders them: by the 36 bytes of their serialization, not by numbers.
pub(crate) fn smallest_outpoint(outpoints: impl IntoIterator<Item = OutPoint>) -> Option<[u8; 36]> {
    outpoints
        .into_iter()
        .map(|outpoint| {
            let mut bytes = [0; 36];
            bytes[..32].copy_from_slice(bitcoin::hashes::Hash::as_byte_array(&outpoint.txid));
            bytes[32..].copy_from_slice(&outpoint.vout.to_le_bytes());
            bytes
        })
        .min()
}
