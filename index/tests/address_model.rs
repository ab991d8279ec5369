//! The script-hash index against a plain model: random appends, rollbacks and reopenings.

mod address_common;

use address_common::*;
use bitcoin::{Network, OutPoint, Script};
use peregrine_index::address::{AddressError, AddressIndexWriter, AddressParams, BlockEntries, ScriptHash};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn append(writer: &mut AddressIndexWriter, model: &mut Model, seed: u64) {
    let block = model.next(seed);
    writer.append_block(&block, model.blocks.len() as u32).unwrap();
    model.blocks.push(block);
}

/// Takes back to so many blocks.
fn rollback(writer: &mut AddressIndexWriter, model: &mut Model, blocks: usize) {
    writer.rollback_to((blocks as u32).checked_sub(1)).unwrap();
    model.blocks.truncate(blocks);
}

#[test]
fn random_sequences_answer_like_the_model() {
    for seed in 0..24 {
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path());
        let mut model = Model::default();
        for step in 0..70 {
            match rng.random_range(0..20) {
                0 => {
                    let blocks = rng.random_range(0..=model.blocks.len());
                    rollback(&mut writer, &mut model, blocks);
                }
                1 | 2 => {
                    let blocks = model.blocks.len().saturating_sub(rng.random_range(0..6));
                    rollback(&mut writer, &mut model, blocks);
                }
                3 => writer.set_batch(*[0, 40, 1000].get(rng.random_range(0..3)).unwrap()),
                4 => writer.set_goal(rng.random_range(0..1040)),
                5 => writer.sync().unwrap(),
                6 => {
                    // What was not committed is gone, and nothing else.
                    let committed = writer.reader().view().tip();
                    drop(writer);
                    writer = open(dir.path());
                    assert_eq!(writer.tip(), committed);
                    model.blocks.truncate(committed.map_or(0, |(height, _)| height as usize + 1));
                }
                _ => append(&mut writer, &mut model, seed << 32 | step),
            }
            assert_eq!(writer.tip(), model.tip());
            assert_eq!(writer.next_height() as usize, model.blocks.len());
            if step % 10 == 9 {
                writer.commit().unwrap();
                model.assert_is(&writer.reader().view());
            }
        }
    }
}

#[test]
fn a_reorganisation_of_any_depth_leaves_what_a_new_index_would_have() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut model = Model::default();
    for (round, depth) in [1, 2, 63, 64, 65, 150, 10].into_iter().enumerate() {
        while model.blocks.len() < 160 {
            let seed = (round as u64) << 32 | model.blocks.len() as u64;
            append(&mut writer, &mut model, seed);
        }
        // Without lists for the lower part in some rounds: then all histories are looked through.
        writer.set_goal(if round % 2 == 0 { 0 } else { 1100 });
        rollback(&mut writer, &mut model, 160 - depth);
        model.assert_is(&writer.reader().view());
    }
    rollback(&mut writer, &mut model, 0);
    model.assert_is(&writer.reader().view());
}

#[test]
fn the_same_coinbase_again_counts_once_and_comes_back_when_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut model = Model::default();
    for seed in 0..6 {
        append(&mut writer, &mut model, seed);
    }
    let first = model.blocks[2].block.txdata[0].clone();
    // Twice more, once in the same batch.
    for round in 0..2 {
        writer.set_batch(if round == 0 { 0 } else { 100_000 });
        let mut block = model.next(100 + round);
        block.block.txdata = vec![first.clone()];
        block.prevouts = vec![vec![]];
        block.block.header.merkle_root = block.block.compute_merkle_root().unwrap();
        writer.append_block(&block, model.blocks.len() as u32).unwrap();
        model.blocks.push(block);
    }
    writer.commit().unwrap();
    model.assert_is(&writer.reader().view());
    drop(writer);
    let mut writer = open(dir.path());
    model.assert_is(&writer.reader().view());
    for blocks in [7, 6, 3, 2] {
        rollback(&mut writer, &mut model, blocks);
        model.assert_is(&writer.reader().view());
    }
}

#[test]
fn views_stay_what_they_were_while_the_writer_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut model = Model::default();
    for seed in 0..30 {
        append(&mut writer, &mut model, seed);
    }
    let reader = writer.reader();
    let before = (reader.view(), model.clone());
    std::thread::scope(|scope| {
        let checking = scope.spawn(|| {
            for _ in 0..5 {
                before.1.assert_is(&before.0);
                // Whatever the current view is, its answers fit together.
                let view = reader.view();
                let (height, hash) = view.tip().unwrap();
                assert_eq!(view.block(height).unwrap().unwrap().hash, hash);
                let txid = view.txid_at(height, 0).unwrap().unwrap();
                assert_eq!(view.transaction_position(&txid).unwrap().unwrap().height, height);
            }
        });
        for round in 0..10 {
            let blocks = model.blocks.len() - 3;
            rollback(&mut writer, &mut model, blocks);
            for seed in 0..5 {
                append(&mut writer, &mut model, 1000 + round * 10 + seed);
            }
        }
        checking.join().unwrap();
    });
    model.assert_is(&reader.view());
    before.1.assert_is(&before.0);
}

#[test]
fn a_long_history_is_an_error_and_not_a_part_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut model = Model::default();
    for seed in 0..60 {
        append(&mut writer, &mut model, seed);
    }
    let view = writer.reader().view();
    let script = ScriptHash::of(Script::from_bytes(&[4; 12]));
    let len = view.history(&script, NO_LIMIT).unwrap().len();
    assert!(len > 50);
    for limit in [0, 1, len - 1] {
        let error = view.history(&script, limit).unwrap_err();
        assert_eq!(error.to_string(), format!("history too large: more than {limit} entries"));
        assert!(matches!(view.unspent(&script, limit), Err(AddressError::TooLarge { .. })));
        assert!(matches!(view.balance(&script, limit), Err(AddressError::TooLarge { .. })));
    }
}

#[test]
fn what_does_not_follow_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = open(dir.path());
    let mut model = Model::default();
    let later = {
        let mut model = Model::default();
        model.push_random(0);
        model.push_random(1);
        model.blocks[1].clone()
    };
    assert!(matches!(writer.append_block(&later, 0), Err(AddressError::NotNext { .. })));
    assert!(matches!(writer.append_block(&later, 1), Err(AddressError::NotNext { .. })));
    for seed in 0..5 {
        append(&mut writer, &mut model, seed);
    }
    let good = model.next(9);
    assert!(matches!(writer.append_block(&good, 4), Err(AddressError::NotNext { .. })));
    assert!(matches!(writer.append_block(&later, 5), Err(AddressError::NotNext { .. })));
    let mut bad = good.clone();
    bad.prevouts.pop();
    assert!(matches!(writer.append_block(&bad, 5), Err(AddressError::BadBlock { .. })));
    bad.prevouts = vec![vec![]; bad.block.txdata.len()];
    if bad.block.txdata.len() > 1 {
        assert!(matches!(writer.append_block(&bad, 5), Err(AddressError::BadBlock { .. })));
    }
    bad.block.txdata.clear();
    bad.prevouts.clear();
    assert!(matches!(writer.append_block(&bad, 5), Err(AddressError::BadBlock { .. })));
    assert!(matches!(writer.rollback_to(Some(5)), Err(AddressError::NoSuchHeight { .. })));
    model.assert_is(&writer.reader().view());
    writer.append(&BlockEntries::of_block(&good, 5).unwrap(), 5).unwrap();
    assert!(matches!(
        AddressIndexWriter::open_or_create(dir.path(), &params()),
        Err(AddressError::Locked(_))
    ));
    drop(writer);
    let other = AddressParams::for_network(Network::Signet);
    assert!(matches!(
        AddressIndexWriter::open_or_create(dir.path(), &other),
        Err(AddressError::WrongChain { .. })
    ));
    let other = AddressParams { start_height: 1, ..params() };
    assert!(matches!(
        AddressIndexWriter::open_or_create(dir.path(), &other),
        Err(AddressError::WrongChain { .. })
    ));
}

#[test]
fn an_index_that_starts_above_genesis_knows_what_happened_since() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    for seed in 0..40 {
        model.push_random(seed);
    }
    let params = AddressParams { start_height: 20, ..params() };
    let mut writer = AddressIndexWriter::open_or_create(dir.path(), &params).unwrap();
    for (height, block) in (0..).zip(&model.blocks).skip(20) {
        writer.append_block(block, height).unwrap();
    }
    let full = tempfile::tempdir().unwrap();
    let mut whole = open(full.path());
    for (height, block) in (0..).zip(&model.blocks) {
        whole.append_block(block, height).unwrap();
    }
    let (view, whole) = (writer.reader().view(), whole.reader().view());
    let script = ScriptHash::of(Script::from_bytes(&[4; 12]));
    let mut expected = whole.history(&script, NO_LIMIT).unwrap();
    expected.retain(|entry| entry.height >= 20);
    assert_eq!(view.history(&script, NO_LIMIT).unwrap(), expected);
    let mut expected = whole.unspent(&script, NO_LIMIT).unwrap();
    expected.retain(|output| output.height >= 20);
    assert_eq!(view.unspent(&script, NO_LIMIT).unwrap(), expected);
    for block in &model.blocks[20..] {
        for transaction in &block.block.txdata {
            let outpoint = OutPoint::new(transaction.compute_txid(), 0);
            assert_eq!(view.spender(&outpoint).unwrap(), whole.spender(&outpoint).unwrap());
        }
    }
    assert_eq!((view.block(19).unwrap(), view.txid_at(19, 0).unwrap()), (None, None));
    writer.rollback_to(None).unwrap();
    assert_eq!((writer.tip(), writer.next_height()), (None, 20));
    assert_eq!(writer.reader().view().history(&script, 0).unwrap(), []);
}
