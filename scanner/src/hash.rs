//! The three tagged hashes of BIP352 (BIP340 tags: `SHA256(SHA256(tag) || SHA256(tag) || data)`).

use std::sync::LazyLock;

use bitcoin::hashes::{Hash, HashEngine, sha256};
use secp256k1::{PublicKey, Scalar, SecretKey};
use zeroize::Zeroizing;

use crate::K_MAX;

/// A hash engine that has absorbed the tag twice.
fn tagged(tag: &str) -> sha256::HashEngine {
    let digest = sha256::Hash::hash(tag.as_bytes());
    let mut engine = sha256::Hash::engine();
    engine.input(digest.as_byte_array());
    engine.input(digest.as_byte_array());
    engine
}

static INPUTS: LazyLock<sha256::HashEngine> = LazyLock::new(|| tagged("BIP0352/Inputs"));
static LABEL: LazyLock<sha256::HashEngine> = LazyLock::new(|| tagged("BIP0352/Label"));
static SHARED_SECRET: LazyLock<sha256::HashEngine> = LazyLock::new(|| tagged("BIP0352/SharedSecret"));

fn finish(engine: sha256::HashEngine) -> [u8; 32] {
    sha256::Hash::from_engine(engine).to_byte_array()
}

/// `input_hash = hash(outpoint_L || A)`; `None` if it isn't a valid scalar other than zero.
pub(crate) fn input_hash(smallest_outpoint: &[u8; 36], sum: &PublicKey) -> Option<Scalar> {
    let mut engine = INPUTS.clone();
    engine.input(smallest_outpoint);
    engine.input(&sum.serialize());
    let bytes = finish(engine);
    // SecretKey's range check is 0 < x < n, which is what the BIP asks for.
    SecretKey::from_secret_bytes(bytes).ok()?;
    Scalar::from_be_bytes(bytes).ok()
}

/// `t_k = hash(S || ser32(k))`; `None` if it isn't a valid scalar other than zero.
pub(crate) fn shared_secret_tweak(shared_secret: &PublicKey, k: u32) -> Option<SecretKey> {
    debug_assert!(k < K_MAX);
    let mut engine = SHARED_SECRET.clone();
    engine.input(&Zeroizing::new(shared_secret.serialize())[..]);
    engine.input(&k.to_be_bytes());
    SecretKey::from_secret_bytes(*Zeroizing::new(finish(engine))).ok()
}

/// `hash(ser256(b_scan) || ser32(m))`, the scalar of label `m`; `None` if it isn't a valid scalar other than zero.
pub(crate) fn label_tweak(scan_key: &SecretKey, m: u32) -> Option<SecretKey> {
    let mut engine = LABEL.clone();
    engine.input(scan_key.as_secret_bytes());
    engine.input(&m.to_be_bytes());
    SecretKey::from_secret_bytes(*Zeroizing::new(finish(engine))).ok()
}
