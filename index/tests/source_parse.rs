//! Blocks and spent outputs: real ones are read exactly, broken ones give an error.

#[path = "common/sample.rs"]
mod sample;

use std::fs;
use std::path::Path;

use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::hex::FromHex;
use bitcoin::{Amount, Block, BlockHash, ScriptBuf, TxOut};
use peregrine_index::source::{
    BlockWithPrevouts, MAX_BLOCK_LEN, SourceError, decode_block, decode_spent_outputs, encode_spent_outputs,
    parse_block,
};
use peregrine_index::testkit::{fixtures, mainnet_block_866342};
use proptest::prelude::*;
use sample::{assemble, sample_block};

fn sample() -> (BlockWithPrevouts, BlockHash, Vec<u8>, Vec<u8>) {
    let sample = sample_block(BlockHash::all_zeros(), 5);
    let (hash, block) = (sample.block.block_hash(), serialize(&sample.block));
    let spent = encode_spent_outputs(&sample.prevouts);
    (sample, hash, block, spent)
}

/// The message of the error; anything but `Invalid` fails the test.
fn invalid<T: std::fmt::Debug>(result: Result<T, SourceError>) -> String {
    match result {
        Err(SourceError::Invalid(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_good_block_is_read_as_it_was_written() {
    let (sample, hash, block, spent) = sample();
    assert_eq!(parse_block(hash, &block, &spent).unwrap(), sample);
}

#[test]
fn another_block_is_noticed() {
    let (_, _, block, spent) = sample();
    let wanted = BlockHash::from_byte_array([7; 32]);
    let text = invalid(parse_block(wanted, &block, &spent));
    assert!(text.contains("instead"), "{text}");
}

#[test]
fn bytes_after_the_end_are_noticed() {
    let (_, hash, mut block, mut spent) = sample();
    spent.push(0);
    assert!(invalid(parse_block(hash, &block, &spent)).contains("1 bytes follow"));
    spent.pop();
    block.push(0);
    invalid(parse_block(hash, &block, &spent));
}

#[test]
fn every_truncation_is_noticed() {
    let (_, hash, block, spent) = sample();
    for len in 0..block.len() {
        invalid(parse_block(hash, &block[..len], &spent));
    }
    for len in 0..spent.len() {
        invalid(parse_block(hash, &block, &spent[..len]));
    }
}

#[test]
fn every_changed_byte_of_a_block_is_noticed() {
    // Header and transactions are committed to by the hash, witnesses by the coinbase.
    let (_, hash, mut block, spent) = sample();
    for position in 0..block.len() {
        for bit in 0..8 {
            block[position] ^= 1 << bit;
            invalid(parse_block(hash, &block, &spent));
            block[position] ^= 1 << bit;
        }
    }
}

#[test]
fn a_repeated_transaction_is_noticed() {
    // Four transactions and the same with the last two again have the same merkle root.
    let parent = BlockHash::all_zeros();
    let mut transactions = sample_block(parent, 1).block.txdata;
    transactions.extend(sample_block(parent, 2).block.txdata.drain(1..));
    transactions.push(sample_block(parent, 3).block.txdata.remove(1));
    assert_eq!(transactions.len(), 6);
    let honest = assemble(parent, transactions);
    let mut forged = honest.clone();
    forged.txdata.extend_from_slice(&honest.txdata[4..]);
    assert_eq!(forged.compute_merkle_root(), honest.compute_merkle_root());
    let hash = honest.block_hash();
    decode_block(hash, &serialize(&honest)).unwrap();
    assert!(invalid(decode_block(hash, &serialize(&forged))).contains("repeats"));
}

#[test]
fn coinbases_stand_at_the_start_only() {
    let parent = BlockHash::all_zeros();
    let good = sample_block(parent, 1).block;
    let check = |change: &dyn Fn(&mut Block)| {
        let mut block = good.clone();
        change(&mut block);
        if let Some(root) = block.compute_merkle_root() {
            block.header.merkle_root = root;
        }
        invalid(decode_block(block.block_hash(), &serialize(&block)))
    };
    assert!(check(&|block| block.txdata.clear()).contains("no transactions"));
    assert!(check(&|block| drop(block.txdata.remove(0))).contains("coinbase"));
    assert!(
        check(&|block| block.txdata.push(sample_block(parent, 2).block.txdata.remove(0)))
            .contains("coinbase")
    );
    // Witnesses are not part of what the merkle root commits to.
    assert!(check(&|block| block.txdata[1].input[0].witness.push([1])).contains("witness"));
}

#[test]
fn spent_outputs_must_match_the_inputs() {
    let (sample, _, _, _) = sample();
    let output = || TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::new() };
    let check = |change: &dyn Fn(&mut Vec<Vec<TxOut>>)| {
        let mut prevouts = sample.prevouts.clone();
        change(&mut prevouts);
        invalid(decode_spent_outputs(&sample.block, &encode_spent_outputs(&prevouts)))
    };
    check(&|prevouts| prevouts[0].push(output()));
    check(&|prevouts| prevouts[1].push(output()));
    check(&|prevouts| drop(prevouts[1].pop()));
    check(&|prevouts| prevouts.swap(1, 2));
    check(&|prevouts| prevouts.push(Vec::new()));
    check(&|prevouts| drop(prevouts.pop()));
    check(&|prevouts| prevouts.clear());
    assert!(
        check(&|prevouts| prevouts[2][0].value = Amount::from_sat(2_100_000_000_000_001))
            .contains("more than")
    );
    assert!(check(&|prevouts| prevouts[2][0].value = Amount::from_sat(u64::MAX)).contains("more than"));
}

#[test]
fn huge_counts_cost_nothing() {
    let (sample, hash, block, _) = sample();
    for count in ["fd0300", "fdffff", "feffffffff", "ffffffffffffffffff", "fe00000002"] {
        let count = Vec::<u8>::from_hex(count).unwrap();
        // As the number of transactions, of inputs, and as the length of a script.
        invalid(decode_spent_outputs(&sample.block, &count));
        let mut bytes = vec![3, 0];
        bytes.extend_from_slice(&count);
        invalid(decode_spent_outputs(&sample.block, &bytes));
        let mut bytes = vec![3, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&count);
        bytes.extend_from_slice(&[0; 100]);
        invalid(decode_spent_outputs(&sample.block, &bytes));
        // As the number of transactions of a block.
        let mut bytes = block[..80].to_vec();
        bytes.extend_from_slice(&count);
        invalid(decode_block(hash, &bytes));
    }
    assert!(invalid(decode_block(hash, &vec![0; MAX_BLOCK_LEN + 1])).contains("more than a block"));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(block in prop::collection::vec(any::<u8>(), 0..400), spent in prop::collection::vec(any::<u8>(), 0..400)) {
        let (sample, hash, good_block, good_spent) = sample();
        prop_assert!(parse_block(hash, &block, &good_spent).is_err());
        let spent_result = parse_block(hash, &good_block, &spent);
        prop_assert!(spent == good_spent || spent_result.is_err());
        // Behind a good header, so that the parser gets further.
        let mut bytes = good_block[..81].to_vec();
        bytes.extend_from_slice(&block);
        prop_assert!(decode_block(hash, &bytes).is_err());
        let mut bytes = good_spent[..3].to_vec();
        bytes.extend_from_slice(&spent);
        let _ = decode_spent_outputs(&sample.block, &bytes);
    }

    /// What is accepted is what was written: reading and writing again gives the same bytes.
    #[test]
    fn changed_spent_outputs_are_refused_or_read_exactly(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (_, hash, block, mut spent) = sample();
        for (position, value) in changes {
            let position = position.index(spent.len());
            spent[position] = value;
        }
        if let Ok(parsed) = parse_block(hash, &block, &spent) {
            prop_assert_eq!(encode_spent_outputs(&parsed.prevouts), spent);
        }
    }

    #[test]
    fn any_prevouts_survive_the_round_trip(values in prop::collection::vec((0..=2_100_000_000_000_000u64, prop::collection::vec(any::<u8>(), 0..300)), 4)) {
        let (mut sample, hash, block, _) = sample();
        let outputs = values.into_iter().map(|(sats, script)| TxOut { value: Amount::from_sat(sats), script_pubkey: ScriptBuf::from_bytes(script) });
        for (slot, output) in sample.prevouts.iter_mut().flatten().zip(outputs) {
            *slot = output;
        }
        let spent = encode_spent_outputs(&sample.prevouts);
        prop_assert_eq!(parse_block(hash, &block, &spent).unwrap(), sample);
    }
}

#[test]
fn mainnet_block_866342_is_read() {
    let Some(known) = mainnet_block_866342("mainnet_block_866342_is_read") else { return };
    let bytes = known.spent;
    let parsed = parse_block(known.hash, &known.raw, &bytes).unwrap();
    assert_eq!(parsed.block.txdata.len(), 4864);
    assert_eq!(parsed.block.bip34_block_height().unwrap(), 866_342);
    assert_eq!(parsed.prevouts, known.prevouts);
    // Every truncation at an interesting place, and some changes, on something of real size.
    for len in (0..bytes.len()).step_by(997) {
        invalid(decode_spent_outputs(&parsed.block, &bytes[..len]));
    }
}

#[test]
fn other_real_blocks_are_read() {
    let Some(dir) = fixtures("other_real_blocks_are_read") else { return };
    let mut files: Vec<_> =
        fs::read_dir(dir.join("signet-blocks")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
    assert_eq!(files.len(), 6);
    files.push(dir.join("raw-blocks/block_951658.raw"));
    for path in files {
        read_block_file(&path);
    }
}

fn read_block_file(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let hash = BlockHash::hash(&bytes[..80]);
    let block = decode_block(hash, &bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // A witness of the last transaction that has one.
    let mut changed = block.clone();
    let input =
        changed.txdata.iter_mut().rev().find(|tx| !tx.is_coinbase() && !tx.input[0].witness.is_empty());
    let witness = &mut input.unwrap().input[0].witness;
    witness.push([1]);
    assert!(invalid(decode_block(hash, &serialize(&changed))).contains("witness"), "{}", path.display());
}
