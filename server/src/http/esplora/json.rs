//! Blocks, transactions and scripts as Esplora writes them.

use bitcoin::block::Header;
use bitcoin::hex::DisplayHex;
use bitcoin::opcodes::all::OP_CHECKMULTISIG;
use bitcoin::script::Instruction;
use bitcoin::{Address, Network, Script, ScriptBuf, Transaction, TxIn, TxOut};
use serde::Serialize;
use serde_json::{Value, json};

use crate::node::{BlockSummary, ScriptStats};

#[derive(Serialize)]
struct Output {
    scriptpubkey: String,
    scriptpubkey_asm: String,
    scriptpubkey_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scriptpubkey_address: Option<String>,
    value: u64,
}

#[derive(Serialize)]
struct Input {
    txid: String,
    vout: u32,
    prevout: Option<Output>,
    scriptsig: String,
    scriptsig_asm: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    witness: Vec<String>,
    is_coinbase: bool,
    sequence: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_redeemscript_asm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_witnessscript_asm: Option<String>,
}

#[derive(Serialize)]
struct Tx {
    txid: String,
    version: i32,
    locktime: u32,
    vin: Vec<Input>,
    vout: Vec<Output>,
    size: usize,
    weight: u64,
    sigops: usize,
    fee: u64,
}

/// What kind of script it is, in Esplora's words.
pub(super) fn script_type(script: &Script) -> &'static str {
    if script.is_empty() {
        "empty"
    } else if script.is_op_return() {
        "op_return"
    } else if script.is_p2pk() {
        "p2pk"
    } else if script.is_p2pkh() {
        "p2pkh"
    } else if script.is_p2sh() {
        "p2sh"
    } else if script.is_p2wpkh() {
        "v0_p2wpkh"
    } else if script.is_p2wsh() {
        "v0_p2wsh"
    } else if script.is_p2tr() {
        "v1_p2tr"
    } else if script.as_bytes() == [0x51, 0x02, 0x4e, 0x73] {
        "anchor"
    } else if is_multisig(script) {
        "multisig"
    } else if peregrine_index::address::is_unspendable(script) {
        "provably_unspendable"
    } else {
        "unknown"
    }
}

/// m, keys, n, OP_CHECKMULTISIG, without a hash around it.
fn is_multisig(script: &Script) -> bool {
    script.is_multisig() && script.as_bytes().last() == Some(&OP_CHECKMULTISIG.to_u8())
}

fn output(output: &TxOut, network: Network) -> Output {
    let script = &output.script_pubkey;
    Output {
        scriptpubkey: script.as_bytes().to_lower_hex_string(),
        scriptpubkey_asm: script.to_asm_string(),
        scriptpubkey_type: script_type(script),
        scriptpubkey_address: Address::from_script(script, network).ok().map(|address| address.to_string()),
        value: output.value.to_sat(),
    }
}

/// The scripts inside: that of P2SH, and that of P2WSH or of a taproot leaf.
fn inner_scripts(input: &TxIn, prevout: &TxOut) -> (Option<ScriptBuf>, Option<ScriptBuf>) {
    let redeem = prevout.script_pubkey.is_p2sh().then(|| match input.script_sig.instructions().last() {
        Some(Ok(Instruction::PushBytes(bytes))) => Some(ScriptBuf::from_bytes(bytes.as_bytes().to_vec())),
        _ => None,
    });
    let redeem = redeem.flatten();
    let witness_script =
        prevout.script_pubkey.is_p2wsh() || redeem.as_ref().is_some_and(|redeem| redeem.is_p2wsh());
    let inner = if prevout.script_pubkey.is_p2tr() {
        input.witness.taproot_leaf_script().map(|leaf| leaf.script.to_owned())
    } else if witness_script {
        input.witness.last().map(|bytes| ScriptBuf::from_bytes(bytes.to_vec()))
    } else {
        None
    };
    (redeem, inner)
}

fn input(input: &TxIn, prevout: Option<&TxOut>, coinbase: bool, network: Network) -> Input {
    let (redeem, witness_script) = prevout.map_or((None, None), |prevout| inner_scripts(input, prevout));
    Input {
        txid: input.previous_output.txid.to_string(),
        vout: input.previous_output.vout,
        prevout: prevout.map(|prevout| output(prevout, network)),
        scriptsig: input.script_sig.as_bytes().to_lower_hex_string(),
        scriptsig_asm: input.script_sig.to_asm_string(),
        witness: input.witness.iter().map(|item| item.to_lower_hex_string()).collect(),
        is_coinbase: coinbase,
        sequence: input.sequence.0,
        inner_redeemscript_asm: redeem.map(|script| script.to_asm_string()),
        inner_witnessscript_asm: witness_script.map(|script| script.to_asm_string()),
    }
}

/// A transaction without its status; `prevouts` are what its inputs spend, none for a coinbase.
pub(super) fn transaction(
    transaction: &Transaction,
    prevouts: &[TxOut],
    network: Network,
) -> serde_json::Result<String> {
    let coinbase = transaction.is_coinbase();
    let sum =
        |outputs: &[TxOut]| outputs.iter().map(|output| output.value.to_sat()).fold(0, u64::wrapping_add);
    let fee = if coinbase { 0 } else { sum(prevouts).saturating_sub(sum(&transaction.output)) };
    let spent = |outpoint: &bitcoin::OutPoint| {
        let at = transaction.input.iter().position(|input| input.previous_output == *outpoint)?;
        prevouts.get(at).cloned()
    };
    serde_json::to_string(&Tx {
        txid: transaction.compute_txid().to_string(),
        version: transaction.version.0,
        locktime: transaction.lock_time.to_consensus_u32(),
        vin: transaction
            .input
            .iter()
            .enumerate()
            .map(|(number, one)| input(one, prevouts.get(number), coinbase, network))
            .collect(),
        vout: transaction.output.iter().map(|one| output(one, network)).collect(),
        size: transaction.total_size(),
        weight: transaction.weight().to_wu(),
        sigops: transaction.total_sigop_cost(spent),
        fee,
    })
}

/// The status of a transaction.
pub(super) fn status(block: Option<&BlockSummary>) -> Value {
    match block {
        None => json!({ "confirmed": false }),
        Some(block) => json!({
            "confirmed": true,
            "block_height": block.height,
            "block_hash": block.hash.to_string(),
            "block_time": block.header.time,
        }),
    }
}

/// Puts a status into a transaction that [`transaction`] wrote.
pub(super) fn with_status(transaction: &str, status: &Value) -> String {
    format!("{},\"status\":{status}}}", &transaction[..transaction.len() - 1])
}

/// A block; `times` are those of the eleven blocks that end with it.
pub(super) fn block(block: &BlockSummary, weight: u64, times: Vec<u32>) -> Value {
    let header: &Header = &block.header;
    json!({
        "id": block.hash.to_string(),
        "height": block.height,
        "version": header.version.to_consensus(),
        "timestamp": header.time,
        "tx_count": block.transactions,
        "size": block.size,
        "weight": weight,
        "merkle_root": header.merkle_root.to_string(),
        "previousblockhash": (block.height > 0).then(|| header.prev_blockhash.to_string()),
        "mediantime": median(times),
        "nonce": header.nonce,
        "bits": header.bits.to_consensus(),
        "difficulty": header.difficulty_float(),
    })
}

fn median(mut times: Vec<u32>) -> u32 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Sums for a script.
pub(super) fn stats(stats: &ScriptStats) -> Value {
    json!({
        "tx_count": stats.transactions,
        "funded_txo_count": stats.funded_outputs,
        "funded_txo_sum": stats.funded,
        "spent_txo_count": stats.spent_outputs,
        "spent_txo_sum": stats.spent,
    })
}
