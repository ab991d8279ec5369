//! A regtest chain with spends of several kinds, made without a wallet.

use bitcoin::absolute::LockTime;
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::hashes::Hash;
use bitcoin::key::{TapTweak, TweakedKeypair};
use bitcoin::secp256k1::{Keypair, Message, Secp256k1, SecretKey};
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::{
    Amount, Block, BlockHash, CompressedPublicKey, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut,
    Witness, transaction,
};
use peregrine_index::testkit::TestNode;
use serde_json::json;

/// Pays to a script that anybody can spend.
pub(crate) const ANYONE: &str = "raw(51)";

/// A coin and how to spend it.
#[derive(Clone)]
struct Coin {
    outpoint: OutPoint,
    output: TxOut,
    lock: Lock,
}

#[derive(Clone, Copy)]
enum Lock {
    /// A script that is just true.
    None,
    P2wpkh,
    /// Taproot key path without scripts.
    P2tr,
}

const LOCKS: [Lock; 3] = [Lock::None, Lock::P2wpkh, Lock::P2tr];

/// Makes blocks with transactions.
pub(crate) struct ChainMaker<'a> {
    node: &'a TestNode,
    key: SecretKey,
    coins: Vec<Coin>,
    mature: u32,
}

impl<'a> ChainMaker<'a> {
    /// Mines 110 blocks, so that the first coinbases can be spent.
    pub(crate) fn new(node: &'a TestNode) -> Self {
        node.generate_to_descriptor(110, ANYONE);
        Self { node, key: SecretKey::from_slice(&[3; 32]).unwrap(), coins: Vec::new(), mature: 1 }
    }

    /// Mines a block with three transactions: the first spends a coinbase, the second all coins of the block before, the
    /// third an output of the first.
    pub(crate) fn block(&mut self) -> BlockHash {
        let coinbase = self.coinbase();
        let first = self.spend(vec![coinbase], 2);
        let mut transactions = vec![first.clone()];
        let mut made = coins_of(&first);
        let earlier = std::mem::take(&mut self.coins);
        if !earlier.is_empty() {
            let second = self.spend(earlier, 1);
            self.coins = coins_of(&second);
            transactions.push(second);
        }
        let third = self.spend(vec![made.remove(0)], 1);
        self.coins.extend(coins_of(&third));
        self.coins.extend(made);
        transactions.push(third);
        let transactions: Vec<String> = transactions.iter().map(serialize_hex).collect();
        self.node.generate_block(ANYONE, &transactions)
    }

    /// The next coinbase that is old enough.
    fn coinbase(&mut self) -> Coin {
        let hash = self.node.block_hash(self.mature);
        self.mature += 1;
        let hex = self.node.call("getblock", json!([hash.to_string(), 0]));
        let block: Block = deserialize_hex(hex.as_str().unwrap()).unwrap();
        let tx = &block.txdata[0];
        let outpoint = OutPoint::new(tx.compute_txid(), 0);
        Coin { outpoint, output: tx.output[0].clone(), lock: Lock::None }
    }

    /// Spends coins to `sets` outputs of every kind.
    fn spend(&self, coins: Vec<Coin>, sets: usize) -> Transaction {
        let total: Amount = coins.iter().map(|coin| coin.output.value).sum();
        let value = (total - Amount::from_sat(10_000)) / (LOCKS.len() * sets) as u64;
        let output = (0..sets)
            .flat_map(|_| LOCKS)
            .map(|lock| TxOut { value, script_pubkey: self.script(lock) })
            .collect();
        let input = coins
            .iter()
            .map(|coin| TxIn {
                previous_output: coin.outpoint,
                script_sig: ScriptBuf::new(),
                sequence: Sequence::MAX,
                witness: Witness::new(),
            })
            .collect();
        let mut tx =
            Transaction { version: transaction::Version::TWO, lock_time: LockTime::ZERO, input, output };
        let witnesses: Vec<Witness> = (0..coins.len()).map(|input| self.sign(&tx, input, &coins)).collect();
        for (input, witness) in tx.input.iter_mut().zip(witnesses) {
            input.witness = witness;
        }
        tx
    }

    fn script(&self, lock: Lock) -> ScriptBuf {
        let secp = Secp256k1::new();
        let keypair = Keypair::from_secret_key(&secp, &self.key);
        match lock {
            Lock::None => ScriptBuf::from_bytes(vec![0x51]),
            Lock::P2wpkh => ScriptBuf::new_p2wpkh(&CompressedPublicKey(keypair.public_key()).wpubkey_hash()),
            Lock::P2tr => ScriptBuf::new_p2tr(&secp, keypair.x_only_public_key().0, None),
        }
    }

    fn sign(&self, tx: &Transaction, input: usize, coins: &[Coin]) -> Witness {
        let secp = Secp256k1::new();
        let keypair = Keypair::from_secret_key(&secp, &self.key);
        let coin = &coins[input];
        let mut cache = SighashCache::new(tx);
        match coin.lock {
            Lock::None => Witness::new(),
            Lock::P2wpkh => {
                let kind = EcdsaSighashType::All;
                let hash = cache
                    .p2wpkh_signature_hash(input, &coin.output.script_pubkey, coin.output.value, kind)
                    .unwrap();
                let message = Message::from_digest(hash.to_byte_array());
                let signature = bitcoin::ecdsa::Signature::sighash_all(secp.sign_ecdsa(&message, &self.key));
                Witness::p2wpkh(&signature, &keypair.public_key())
            }
            Lock::P2tr => {
                let outputs: Vec<&TxOut> = coins.iter().map(|coin| &coin.output).collect();
                let kind = TapSighashType::Default;
                let hash =
                    cache.taproot_key_spend_signature_hash(input, &Prevouts::All(&outputs), kind).unwrap();
                let message = Message::from_digest(hash.to_byte_array());
                let tweaked: TweakedKeypair = keypair.tap_tweak(&secp, None);
                let signature = secp.sign_schnorr_no_aux_rand(&message, &tweaked.to_keypair());
                Witness::p2tr_key_spend(&bitcoin::taproot::Signature { signature, sighash_type: kind })
            }
        }
    }
}

fn coins_of(tx: &Transaction) -> Vec<Coin> {
    let txid = tx.compute_txid();
    let outputs = tx.output.iter().zip(LOCKS.into_iter().cycle()).zip(0..);
    outputs
        .map(|((output, lock), vout)| Coin {
            outpoint: OutPoint::new(txid, vout),
            output: output.clone(),
            lock,
        })
        .collect()
}
