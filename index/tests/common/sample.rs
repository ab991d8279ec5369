//! A small valid block, made by hand, with everything that matters to a parser: witnesses, a transaction with several
//! inputs, one without witnesses.

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxMerkleNode,
    TxOut, Txid, Witness, transaction,
};
use peregrine_index::source::BlockWithPrevouts;

/// The block on top of `parent`; `salt` makes several of them differ. Proof of work is missing.
pub(crate) fn sample_block(parent: BlockHash, salt: u32) -> BlockWithPrevouts {
    let transactions = vec![coinbase(salt), spend(salt, &[1, 2, 3], true), spend(salt, &[4], false)];
    let prevouts = transactions
        .iter()
        .enumerate()
        .map(|(position, tx)| {
            let inputs = if position == 0 { 0 } else { tx.input.len() };
            (0..inputs).map(|input| prevout(salt, position, input)).collect()
        })
        .collect();
    BlockWithPrevouts { block: assemble(parent, transactions), prevouts }
}

/// A block of these transactions, the first of which is a coinbase with an output for the witness commitment.
pub(crate) fn assemble(parent: BlockHash, transactions: Vec<Transaction>) -> Block {
    let header = Header {
        version: Version::from_consensus(-7), // negative, as version bits can be
        prev_blockhash: parent,
        merkle_root: TxMerkleNode::all_zeros(),
        time: 1_700_000_000,
        bits: CompactTarget::from_consensus(0x207f_ffff),
        nonce: 42,
    };
    let mut block = Block { header, txdata: transactions };
    let root = block.witness_root().unwrap();
    let commitment = Block::compute_witness_commitment(&root, &[0; 32]);
    let mut script = vec![0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    script.extend_from_slice(commitment.as_byte_array());
    block.txdata[0].output[1].script_pubkey = ScriptBuf::from_bytes(script);
    block.header.merkle_root = block.compute_merkle_root().unwrap();
    block
}

fn coinbase(salt: u32) -> Transaction {
    let mut witness = Witness::new();
    witness.push([0; 32]);
    let mut script = vec![4];
    script.extend_from_slice(&salt.to_le_bytes());
    transaction(
        vec![TxIn {
            previous_output: OutPoint::null(),
            script_sig: ScriptBuf::from_bytes(script),
            sequence: Sequence::MAX,
            witness,
        }],
        vec![output(5_000_000_000, 20), output(0, 0)],
    )
}

fn spend(salt: u32, inputs: &[u8], with_witness: bool) -> Transaction {
    let inputs = inputs
        .iter()
        .map(|&n| {
            let mut witness = Witness::new();
            if with_witness {
                witness.push([n; 64]);
            }
            TxIn {
                previous_output: OutPoint::new(Txid::from_byte_array([n; 32]), salt),
                script_sig: ScriptBuf::new(),
                sequence: Sequence::ZERO,
                witness,
            }
        })
        .collect();
    transaction(inputs, vec![output(1_000 + u64::from(salt), 34)])
}

fn prevout(salt: u32, position: usize, input: usize) -> TxOut {
    output(546 + u64::from(salt) * 10_000 + position as u64, 22 + input)
}

fn transaction(input: Vec<TxIn>, output: Vec<TxOut>) -> Transaction {
    Transaction { version: transaction::Version::TWO, lock_time: LockTime::ZERO, input, output }
}

fn output(sats: u64, script_len: usize) -> TxOut {
    TxOut { value: Amount::from_sat(sats), script_pubkey: ScriptBuf::from_bytes(vec![0x51; script_len]) }
}
