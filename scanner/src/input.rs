//! Which inputs of a transaction count, and their public keys (BIP352, "Inputs For Shared Secret Derivation").
//!
//! The prevout's script alone decides what kind of input it is. What can't be read as one of the four kinds is
//! skipped: it adds no key, but it doesn't exclude the transaction, and its outpoint still counts.

use bitcoin::hashes::{Hash, hash160};
use bitcoin::{Script, TxIn, Witness};
use secp256k1::PublicKey;

/// The "nothing up my sleeve" point H of BIP341, x only. A script path spend with this internal key has no key path.
pub const NUMS_H: [u8; 32] = [
    0x50, 0x92, 0x9b, 0x74, 0xc1, 0xa0, 0x49, 0x54, 0xb7, 0x8b, 0x4b, 0x60, 0x35, 0xe9, 0x7a, 0x5e, 0x07,
    0x8a, 0x5a, 0x0f, 0x28, 0xec, 0x96, 0xd5, 0x47, 0xbf, 0xee, 0x9a, 0xce, 0x80, 0x3a, 0xc0,
];

/// First byte of an annex (BIP341).
const ANNEX_TAG: u8 = 0x50;

/// Whether spending this script excludes the whole transaction: a witness program of version 2 to 16, whose rules are
/// not known yet. Pay-to-anchor is a version 1 program and doesn't exclude.
pub fn excludes_transaction(prevout: &Script) -> bool {
    prevout.witness_version().is_some_and(|version| version.to_num() > 1)
}

/// The public key that an input adds to the sum; `None` if the input is skipped.
pub fn public_key(input: &TxIn, prevout: &Script) -> Option<PublicKey> {
    PublicKey::from_byte_array_compressed(key_bytes(input, prevout)?).ok()
}

/// The 33 bytes that [`public_key`] reads as a compressed key; a taproot key stands for the point with even y.
/// Whether there is such a point isn't checked: that takes a square root, and many are cheaper together.
pub fn key_bytes(input: &TxIn, prevout: &Script) -> Option<[u8; 33]> {
    if prevout.is_p2tr() {
        taproot(&input.witness, prevout)
    } else if prevout.is_p2wpkh() {
        compressed(input.witness.last()?)
    } else if prevout.is_p2sh() {
        // The script is the single push of the redeem script.
        let redeem = input.script_sig.as_bytes().get(1..)?;
        if Script::from_bytes(redeem).is_p2wpkh() { compressed(input.witness.last()?) } else { None }
    } else if prevout.is_p2pkh() {
        p2pkh(input.script_sig.as_bytes(), &prevout.as_bytes()[3..23])
    } else {
        None
    }
}

fn taproot(witness: &Witness, prevout: &Script) -> Option<[u8; 33]> {
    let last = witness.last()?;
    let has_annex = witness.len() > 1 && last.first() == Some(&ANNEX_TAG);
    let items = witness.len() - usize::from(has_annex);
    if items > 1 {
        let control_block = witness.nth(items - 1)?;
        if control_block.get(1..33) == Some(&NUMS_H[..]) {
            return None;
        }
    }
    let mut key = [2; 33];
    key[1..].copy_from_slice(&prevout.as_bytes()[2..34]);
    Some(key)
}

/// The key of a P2PKH input: the last 33 bytes in the script that hash to the prevout's hash. Looking at every
/// position rather than at pushes finds the key in malleated scripts too.
fn p2pkh(script_sig: &[u8], hash: &[u8]) -> Option<[u8; 33]> {
    script_sig
        .windows(33)
        .rev()
        .filter_map(compressed)
        .find(|window| hash160::Hash::hash(window).as_byte_array() == hash)
}

/// 33 bytes that start as a compressed key does.
fn compressed(bytes: &[u8]) -> Option<[u8; 33]> {
    let bytes: [u8; 33] = bytes.try_into().ok()?;
    matches!(bytes[0], 2 | 3).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use bitcoin::ScriptBuf;

    use super::*;

    #[test]
    fn only_witness_programs_above_version_1_exclude() {
        let script = |hex: &str| ScriptBuf::from_hex(hex).unwrap();
        let taproot = format!("5120{}", "11".repeat(32));
        for fine in ["", "51024e73", "6a", taproot.as_str(), "0014", "52", "5201aa", "76a914", "52024e73ff"] {
            assert!(!excludes_transaction(&script(fine)), "{fine}");
        }
        let (v2, v16, longest) =
            (format!("5220{}", "11".repeat(32)), "6002aabb".to_owned(), format!("5228{}", "11".repeat(40)));
        for not in [v2.as_str(), v16.as_str(), longest.as_str(), "52024e73"] {
            assert!(excludes_transaction(&script(not)), "{not}");
        }
        assert!(!excludes_transaction(&script(&format!("5229{}", "11".repeat(41)))));
    }
}
