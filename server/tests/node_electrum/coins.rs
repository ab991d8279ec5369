//! Transactions without keys: standard outputs that anybody can spend, each with a script of its own.

use bitcoin::absolute::LockTime;
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::opcodes::all::{OP_DROP, OP_PUSHNUM_1};
use bitcoin::script::Builder;
use bitcoin::transaction::Version;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness};
use peregrine_index::testkit::TestNode;
use serde_json::json;

/// An output that can be spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coin {
    number: u32,
    outpoint: OutPoint,
    value: u64,
}

impl Coin {
    /// Where it is.
    pub(crate) fn outpoint(&self) -> OutPoint {
        self.outpoint
    }
}

fn witness_script(number: u32) -> ScriptBuf {
    Builder::new()
        .push_slice(number.to_be_bytes())
        .push_opcode(OP_DROP)
        .push_opcode(OP_PUSHNUM_1)
        .into_script()
}

/// The script with this number.
pub(crate) fn script(number: u32) -> ScriptBuf {
    witness_script(number).to_p2wsh()
}

/// The descriptor that pays to a script with this number.
pub(crate) fn descriptor(number: u32) -> String {
    format!("raw({:x})", script(number))
}

/// Mines so many coinbases to script 0, which can be spent at once.
pub(crate) fn mine(node: &TestNode, count: u32) -> Vec<Coin> {
    let hashes = node.generate_to_descriptor(count, &descriptor(0));
    node.generate_to_descriptor(100, &descriptor(u32::MAX));
    let coin = |hash: bitcoin::BlockHash| {
        let hex = node.call("getblock", json!([hash.to_string(), 0]));
        let block: Block = deserialize_hex(hex.as_str().unwrap()).unwrap();
        let output = &block.txdata[0].output[0];
        let outpoint = OutPoint::new(block.txdata[0].compute_txid(), 0);
        Coin { number: 0, outpoint, value: output.value.to_sat() }
    };
    hashes.into_iter().map(coin).collect()
}

/// Spends coins to the scripts with these numbers, in equal parts, with so much for the miner. It can be replaced.
pub(crate) fn spend(coins: &[Coin], to: &[u32], fee: u64) -> (Transaction, Vec<Coin>) {
    let total: u64 = coins.iter().map(|coin| coin.value).sum();
    let value = (total - fee) / to.len() as u64;
    let input = |coin: &Coin| TxIn {
        previous_output: coin.outpoint,
        script_sig: ScriptBuf::new(),
        sequence: Sequence::ENABLE_RBF_NO_LOCKTIME,
        witness: Witness::from_slice(&[witness_script(coin.number).into_bytes()]),
    };
    let output = |number: &u32| TxOut { value: Amount::from_sat(value), script_pubkey: script(*number) };
    let transaction = Transaction {
        version: Version::TWO,
        lock_time: LockTime::ZERO,
        input: coins.iter().map(input).collect(),
        output: to.iter().map(output).collect(),
    };
    let txid = transaction.compute_txid();
    let coin =
        |(vout, number): (u32, &u32)| Coin { number: *number, outpoint: OutPoint::new(txid, vout), value };
    let made = (0..).zip(to).map(coin).collect();
    (transaction, made)
}

/// Hands a transaction to the node.
pub(crate) fn send(node: &TestNode, transaction: &Transaction) -> Txid {
    let txid = node.call("sendrawtransaction", json!([serialize_hex(transaction)]));
    txid.as_str().unwrap().parse().unwrap()
}
