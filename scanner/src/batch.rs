//! The tweaks of many transactions at once, on the lanes of the processor.
//!
//! What costs time is a square root for each input key and a multiplication for each transaction. Both are done for
//! many transactions together; the rest, and whatever the kernels can't do, is libsecp256k1's.

use bitcoin::{Transaction, TxOut};
use peregrine_kernels::{Isa, lift_x_batch, mul_batch};
use secp256k1::{PublicKey, Scalar};

use crate::tweak::{Tweak, input_hash, may_be_eligible, sum_of_keys, transaction_tweak};
use crate::{backend, input};

/// Below so many transactions, lanes and shared inversions don't pay.
const WORTHWHILE: usize = 16;

/// How tweaks are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TweakMethod {
    /// One after the other with libsecp256k1.
    #[default]
    Plain,
    /// Together, on an instruction set that the processor has.
    Lanes(Isa),
}

impl TweakMethod {
    /// The method that goes with a backend's name. With `auto` and with graphics cards it is the processor's best.
    ///
    /// # Errors
    /// No backend has that name, or the processor lacks it.
    pub fn choose(backend: &str) -> Result<Self, backend::BackendError> {
        if [backend::cuda::NAME, backend::wgpu::NAME, "auto"].contains(&backend) {
            return Ok(Self::Lanes(Isa::detect()));
        }
        let name = backend::choose(backend)?.name();
        Ok(Isa::ALL.iter().find(|isa| isa.name() == name).map_or(Self::Plain, |isa| Self::Lanes(*isa)))
    }
}

/// The tweaks of those transactions that have one, each with the transaction's position, in order.
///
/// Gives what [`transaction_tweak`] gives for each; `transactions` are pairs of a transaction and the outputs it spends.
///
/// # Panics
///
/// If the number of prevouts of a transaction isn't that of its inputs.
pub fn transaction_tweaks(
    method: TweakMethod,
    transactions: &[(&Transaction, &[TxOut])],
) -> Vec<(usize, Tweak)> {
    let candidates: Vec<usize> = (0..transactions.len())
        .filter(|position| {
            let (transaction, prevouts) = transactions[*position];
            may_be_eligible(transaction, prevouts)
        })
        .collect();
    match method {
        TweakMethod::Lanes(isa) if candidates.len() >= WORTHWHILE => {
            // The features were detected when the method was chosen.
            if let Some(tweaks) = on_lanes(isa, transactions, &candidates) {
                return tweaks;
            }
        }
        _ => {}
    }
    candidates
        .into_iter()
        .filter_map(|position| {
            let (transaction, prevouts) = transactions[position];
            Some((position, transaction_tweak(transaction, prevouts)?))
        })
        .collect()
}

/// A transaction whose keys have a sum.
struct Summed {
    position: usize,
    sum: PublicKey,
    input_hash: Scalar,
}

/// `None` if the processor lacks the instruction set.
fn on_lanes(
    isa: Isa,
    transactions: &[(&Transaction, &[TxOut])],
    candidates: &[usize],
) -> Option<Vec<(usize, Tweak)>> {
    // All keys of all transactions; `ends[i]` is the number of keys up to and including candidate i.
    let mut keys: Vec<[u8; 33]> = Vec::new();
    let mut ends = Vec::with_capacity(candidates.len());
    for position in candidates {
        let (transaction, prevouts) = transactions[*position];
        let of_inputs = transaction.input.iter().zip(prevouts);
        keys.extend(of_inputs.filter_map(|(input, prevout)| input::key_bytes(input, &prevout.script_pubkey)));
        ends.push(keys.len());
    }
    let points = lift(isa, &keys)?;

    let mut start = 0;
    let mut summed = Vec::with_capacity(candidates.len());
    for (position, end) in candidates.iter().zip(ends) {
        let keys: Vec<PublicKey> = points[start..end].iter().flatten().copied().collect();
        start = end;
        let hashed =
            sum_of_keys(&keys).and_then(|sum| Some((sum, input_hash(transactions[*position].0, &sum)?)));
        if let Some((sum, input_hash)) = hashed {
            summed.push(Summed { position: *position, sum, input_hash });
        }
    }
    multiply(isa, &summed)
}

/// The points of compressed keys; `None` for a key that isn't on the curve.
fn lift(isa: Isa, keys: &[[u8; 33]]) -> Option<Vec<Option<PublicKey>>> {
    let (xs, odd): (Vec<[u8; 32]>, Vec<bool>) = keys
        .iter()
        .map(|key| {
            let mut x = [0; 32];
            x.copy_from_slice(&key[1..]);
            (x, key[0] == 3)
        })
        .unzip();
    let mut rows = vec![[0; 64]; keys.len()];
    let failed = lift_x_batch(isa, &xs, &odd, &mut rows).ok()?;
    let mut points: Vec<Option<PublicKey>> =
        rows.iter().map(|row| Tweak::from_row(row).map(|tweak| tweak.0)).collect();
    // Not on the curve, as far as the kernels say; libsecp256k1 has the last word.
    for index in failed {
        points[index as usize] = PublicKey::from_byte_array_compressed(keys[index as usize]).ok();
    }
    Some(points)
}

fn multiply(isa: Isa, summed: &[Summed]) -> Option<Vec<(usize, Tweak)>> {
    let sums: Vec<[u8; 64]> = summed.iter().map(|one| Tweak(one.sum).to_row()).collect();
    let scalars: Vec<[u8; 32]> = summed.iter().map(|one| one.input_hash.to_be_bytes()).collect();
    let mut rows = vec![[0; 64]; summed.len()];
    let redo = mul_batch(isa, &sums, &scalars, &mut rows).ok()?;
    let mut tweaks: Vec<Option<Tweak>> = rows.iter().map(Tweak::from_row).collect();
    for index in redo {
        let one = &summed[index as usize];
        tweaks[index as usize] = one.sum.mul_tweak(&one.input_hash).ok().map(Tweak);
    }
    let tweaks = summed.iter().zip(tweaks);
    // A product that isn't a point would be a mistake of the kernels, and a payment missed: computed once more.
    Some(
        tweaks
            .filter_map(|(one, tweak)| {
                let tweak = tweak.or_else(|| one.sum.mul_tweak(&one.input_hash).ok().map(Tweak))?;
                Some((one.position, tweak))
            })
            .collect(),
    )
}
