//! Transactions made up for the demo, for benches and for tests: every kind of input, correctly signed.
//!
//! Nothing here is needed to scan. The transactions are valid under consensus rules (not always under relay policy), so
//! that a real node accepts them in a block.

use bitcoin::blockdata::opcodes::all::{OP_CHECKSIG, OP_DROP, OP_PUSHNUM_1, OP_PUSHNUM_2};
use bitcoin::hashes::Hash;
use bitcoin::key::{TapTweak, TweakedPublicKey, UntweakedKeypair};
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{self as secp, Message, Secp256k1};
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::taproot::{LeafVersion, TapLeafHash, TaprootBuilder, TaprootSpendInfo};
use bitcoin::transaction::Version;
use bitcoin::{
    Amount, CompressedPublicKey, OutPoint, PublicKey, Script, ScriptBuf, Sequence, Transaction, TxIn, TxOut,
    Witness, absolute,
};
use secp256k1::SecretKey;

use crate::input::NUMS_H;
use crate::send::InputKey;

/// A kind of output to spend. What it means for silent payments is in [`gives_key`](Self::gives_key).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InputKind {
    /// Taproot, spent with a signature of the output key.
    TaprootKeyPath,
    /// Taproot, spent with a signature of the output key, and an annex (not relayed, but valid).
    TaprootKeyPathAnnex,
    /// Taproot, spent through a script; the owner's key is the internal key.
    TaprootScriptPath,
    /// Taproot, spent through a script; the internal key is H, so there is no key path.
    TaprootNums,
    /// As before, with an annex.
    TaprootNumsAnnex,
    /// Version 0 witness key hash.
    P2wpkh,
    /// The same inside P2SH.
    P2shP2wpkh,
    /// Public key hash with a compressed key.
    P2pkh,
    /// As before, with other things around the key in the script.
    P2pkhMalleated,
    /// Public key hash with an uncompressed key.
    P2pkhUncompressed,
    /// Version 0 witness script hash.
    P2wsh,
    /// A script hash that holds no witness program.
    P2sh,
    /// A bare public key.
    P2pk,
    /// Pay to anchor: a witness program of version 1 that isn't taproot.
    Anchor,
    /// A witness program of version 2: spending it excludes the transaction.
    FutureWitness,
}

impl InputKind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::TaprootKeyPath,
        Self::TaprootKeyPathAnnex,
        Self::TaprootScriptPath,
        Self::TaprootNums,
        Self::TaprootNumsAnnex,
        Self::P2wpkh,
        Self::P2shP2wpkh,
        Self::P2pkh,
        Self::P2pkhMalleated,
        Self::P2pkhUncompressed,
        Self::P2wsh,
        Self::P2sh,
        Self::P2pk,
        Self::Anchor,
        Self::FutureWitness,
    ];

    /// Whether the BIP takes a public key from such an input.
    pub fn gives_key(self) -> bool {
        use InputKind::*;
        matches!(
            self,
            TaprootKeyPath
                | TaprootKeyPathAnnex
                | TaprootScriptPath
                | P2wpkh
                | P2shP2wpkh
                | P2pkh
                | P2pkhMalleated
        )
    }
}

/// An output to spend: its kind and the key it was made with.
#[derive(Clone)]
pub struct Coin {
    /// What kind of output it is.
    pub kind: InputKind,
    /// The key that spends it.
    pub key: SecretKey,
    /// Where it is.
    pub outpoint: OutPoint,
    /// What it holds, in satoshi.
    pub value: u64,
}

impl Coin {
    /// The output that this coin is.
    pub fn output(&self) -> TxOut {
        TxOut { value: Amount::from_sat(self.value), script_pubkey: script_pubkey(self.kind, &self.key) }
    }

    /// What a sender needs of it; `None` if receivers skip such an input.
    pub fn input_key(&self) -> Option<InputKey> {
        if !self.kind.gives_key() {
            return None;
        }
        Some(match self.kind {
            InputKind::TaprootScriptPath => {
                let keypair = tweaked(&self.key, Some(&with_leaf(&self.key)));
                InputKey {
                    key: SecretKey::from_secret_bytes(keypair.secret_bytes()).expect("a key"),
                    taproot: true,
                }
            }
            InputKind::TaprootKeyPath | InputKind::TaprootKeyPathAnnex => {
                let keypair = tweaked(&self.key, None);
                InputKey {
                    key: SecretKey::from_secret_bytes(keypair.secret_bytes()).expect("a key"),
                    taproot: true,
                }
            }
            _ => InputKey { key: self.key, taproot: false },
        })
    }
}

/// The script of an output of this kind and key.
pub fn script_pubkey(kind: InputKind, key: &SecretKey) -> ScriptBuf {
    use InputKind::*;
    let public = public_key(key);
    match kind {
        TaprootKeyPath | TaprootKeyPathAnnex => {
            let (x, _) = tweaked(key, None).x_only_public_key();
            ScriptBuf::new_p2tr_tweaked(TweakedPublicKey::dangerous_assume_tweaked(x))
        }
        TaprootScriptPath => ScriptBuf::new_p2tr_tweaked(with_leaf(key).output_key()),
        TaprootNums | TaprootNumsAnnex => ScriptBuf::new_p2tr_tweaked(with_nums(key).output_key()),
        P2wpkh => ScriptBuf::new_p2wpkh(&CompressedPublicKey(public).wpubkey_hash()),
        P2shP2wpkh => ScriptBuf::new_p2sh(
            &ScriptBuf::new_p2wpkh(&CompressedPublicKey(public).wpubkey_hash()).script_hash(),
        ),
        P2pkh | P2pkhMalleated => ScriptBuf::new_p2pkh(&PublicKey::new(public).pubkey_hash()),
        P2pkhUncompressed => ScriptBuf::new_p2pkh(&PublicKey::new_uncompressed(public).pubkey_hash()),
        P2wsh => ScriptBuf::new_p2wsh(&checksig(key).wscript_hash()),
        P2sh => ScriptBuf::new_p2sh(&checksig(key).script_hash()),
        P2pk => checksig(key),
        Anchor => Builder::new().push_opcode(OP_PUSHNUM_1).push_slice([0x4e, 0x73]).into_script(),
        FutureWitness => Builder::new()
            .push_opcode(OP_PUSHNUM_2)
            .push_slice(public.x_only_public_key().0.serialize())
            .into_script(),
    }
}

/// A signed transaction that spends `coins` into `outputs`.
pub fn spend(coins: &[Coin], outputs: Vec<TxOut>) -> Transaction {
    let input = coins
        .iter()
        .map(|coin| TxIn {
            previous_output: coin.outpoint,
            script_sig: ScriptBuf::new(),
            sequence: Sequence::ENABLE_RBF_NO_LOCKTIME,
            witness: Witness::new(),
        })
        .collect();
    let mut transaction =
        Transaction { version: Version::TWO, lock_time: absolute::LockTime::ZERO, input, output: outputs };
    let prevouts: Vec<TxOut> = coins.iter().map(Coin::output).collect();
    let unsigned = transaction.clone();
    let mut cache = SighashCache::new(&unsigned);
    for (index, coin) in coins.iter().enumerate() {
        let (script_sig, witness) = sign(coin, index, &mut cache, &prevouts);
        transaction.input[index].script_sig = script_sig;
        transaction.input[index].witness = witness;
    }
    transaction
}

fn sign(
    coin: &Coin,
    index: usize,
    cache: &mut SighashCache<&Transaction>,
    prevouts: &[TxOut],
) -> (ScriptBuf, Witness) {
    use InputKind::*;
    let compressed = public_key(&coin.key).serialize();
    let script = checksig(&coin.key);
    let value = Amount::from_sat(coin.value);
    let annex = matches!(coin.kind, TaprootKeyPathAnnex | TaprootNumsAnnex).then_some(&[0x50, 1, 2, 3][..]);
    let mut taproot_sighash = |leaf: Option<TapLeafHash>| {
        let annex = annex.map(|bytes| bitcoin::sighash::Annex::new(bytes).expect("starts with 0x50"));
        let leaf = leaf.map(|hash| (hash, 0xffff_ffff));
        let all = Prevouts::All(prevouts);
        let hash = cache.taproot_signature_hash(index, &all, annex, leaf, TapSighashType::Default);
        Message::from_digest(hash.expect("the input exists").to_byte_array())
    };
    let mut witness = Witness::new();
    let mut script_sig = ScriptBuf::new();
    match coin.kind {
        TaprootKeyPath | TaprootKeyPathAnnex => {
            witness.push(schnorr(&taproot_sighash(None), &tweaked(&coin.key, None)));
        }
        TaprootScriptPath | TaprootNums | TaprootNumsAnnex => {
            let leaf = leaf_script(&coin.key);
            let info =
                if coin.kind == TaprootScriptPath { with_leaf(&coin.key) } else { with_nums(&coin.key) };
            let message = taproot_sighash(Some(TapLeafHash::from_script(&leaf, LeafVersion::TapScript)));
            witness.push(schnorr(&message, &keypair(&coin.key)));
            let control =
                info.control_block(&(leaf.clone(), LeafVersion::TapScript)).expect("the leaf is in the tree");
            witness.push(leaf.as_bytes());
            witness.push(control.serialize());
        }
        P2wpkh | P2shP2wpkh => {
            let program = script_pubkey(P2wpkh, &coin.key);
            let hash = cache
                .p2wpkh_signature_hash(index, &program, value, EcdsaSighashType::All)
                .expect("the input exists");
            witness.push(ecdsa(Message::from_digest(hash.to_byte_array()), &coin.key));
            witness.push(compressed);
            if coin.kind == P2shP2wpkh {
                script_sig = push_all(&[program.as_bytes()]);
            }
        }
        P2pkh | P2pkhMalleated | P2pkhUncompressed | P2pk => {
            let signature = ecdsa(legacy_sighash(cache, index, &coin.output().script_pubkey), &coin.key);
            script_sig = match coin.kind {
                P2pkh => push_all(&[&signature, &compressed]),
                P2pkhUncompressed => push_all(&[&signature, &public_key(&coin.key).serialize_uncompressed()]),
                P2pk => push_all(&[&signature]),
                // The key isn't in the last push's place alone: bytes that look like a key are pushed and dropped.
                _ => {
                    let decoy = Builder::new().push_slice([2u8; 40]).push_opcode(OP_DROP).into_script();
                    [decoy.into_bytes(), push_all(&[&signature, &compressed]).into_bytes()].concat().into()
                }
            };
        }
        P2wsh => {
            let hash = cache
                .p2wsh_signature_hash(index, &script, value, EcdsaSighashType::All)
                .expect("the input exists");
            witness.push(ecdsa(Message::from_digest(hash.to_byte_array()), &coin.key));
            witness.push(script.as_bytes());
        }
        P2sh => {
            let signature = ecdsa(legacy_sighash(cache, index, &script), &coin.key);
            script_sig = push_all(&[&signature, script.as_bytes()]);
        }
        Anchor | FutureWitness => {}
    }
    if let Some(annex) = annex {
        witness.push(annex);
    }
    (script_sig, witness)
}

fn legacy_sighash(cache: &SighashCache<&Transaction>, index: usize, script: &Script) -> Message {
    let hash =
        cache.legacy_signature_hash(index, script, EcdsaSighashType::All.to_u32()).expect("the input exists");
    Message::from_digest(hash.to_byte_array())
}

fn push_all(items: &[&[u8]]) -> ScriptBuf {
    let mut builder = Builder::new();
    for item in items {
        builder = builder.push_slice(PushBytesBuf::try_from(item.to_vec()).expect("items are short"));
    }
    builder.into_script()
}

fn ecdsa(message: Message, key: &SecretKey) -> Vec<u8> {
    let mut bytes = Secp256k1::signing_only().sign_ecdsa(&message, &secret(key)).serialize_der().to_vec();
    bytes.push(EcdsaSighashType::All as u8);
    bytes
}

fn schnorr(message: &Message, key: &UntweakedKeypair) -> Vec<u8> {
    Secp256k1::signing_only().sign_schnorr_no_aux_rand(message, key).serialize().to_vec()
}

fn secret(key: &SecretKey) -> secp::SecretKey {
    secp::SecretKey::from_slice(key.as_secret_bytes()).expect("both crates have the same range")
}

fn keypair(key: &SecretKey) -> UntweakedKeypair {
    UntweakedKeypair::from_secret_key(&Secp256k1::signing_only(), &secret(key))
}

fn public_key(key: &SecretKey) -> secp::PublicKey {
    keypair(key).public_key()
}

/// The keypair of a taproot output with this internal key.
fn tweaked(key: &SecretKey, tree: Option<&TaprootSpendInfo>) -> UntweakedKeypair {
    keypair(key).tap_tweak(&Secp256k1::new(), tree.and_then(TaprootSpendInfo::merkle_root)).to_keypair()
}

/// `<compressed key> OP_CHECKSIG`.
fn checksig(key: &SecretKey) -> ScriptBuf {
    Builder::new().push_key(&PublicKey::new(public_key(key))).push_opcode(OP_CHECKSIG).into_script()
}

/// `<x-only key> OP_CHECKSIG`.
fn leaf_script(key: &SecretKey) -> ScriptBuf {
    Builder::new().push_x_only_key(&keypair(key).x_only_public_key().0).push_opcode(OP_CHECKSIG).into_script()
}

fn one_leaf(key: &SecretKey, internal: secp::XOnlyPublicKey) -> TaprootSpendInfo {
    let builder = TaprootBuilder::new().add_leaf(0, leaf_script(key)).expect("one leaf at depth 0");
    builder.finalize(&Secp256k1::new(), internal).expect("the tree is complete")
}

fn with_leaf(key: &SecretKey) -> TaprootSpendInfo {
    one_leaf(key, keypair(key).x_only_public_key().0)
}

fn with_nums(key: &SecretKey) -> TaprootSpendInfo {
    one_leaf(key, secp::XOnlyPublicKey::from_slice(&NUMS_H).expect("H is on the curve"))
}
