//! What a user of the index relies on, one thing at a time.

mod store_common;

use std::fs;
use std::os::unix::fs::symlink;

use bitcoin::Network;
use bitcoin::hashes::Hash;
use peregrine_index::rows::BlockRows;
use peregrine_index::store::{IndexParams, StoreError, TweakIndexWriter, TweakReader, verify};
use store_common::*;

fn fill(writer: &mut TweakIndexWriter, model: &mut Model, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let block = model.next(seed, 12);
        writer.append(&block.header, model.next_height(), &block.rows).unwrap();
        model.0.push(block);
    }
}

#[test]
fn an_empty_index_is_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::open_or_create(dir.path(), &params(3)).unwrap();
    writer.sync().unwrap();
    let snapshot = writer.reader().unwrap().snapshot().unwrap();
    assert_eq!((snapshot.blocks(), snapshot.rows(), snapshot.outputs()), (0, 0, 0));
    assert!(snapshot.tip().is_none() && snapshot.heights().is_none() && snapshot.height_of_row(0).is_none());
    assert!(snapshot.first_height_at_or_after_time(0).is_none());
    assert!(snapshot.last_height_at_or_before_time(u32::MAX).is_none());
    assert!(snapshot.common_height(&snapshot).is_none());
    assert_eq!(snapshot.segments(0..0).unwrap().count(), 0);
    assert_eq!(writer.next_height(), START);
    drop(writer);
    assert_verifies(dir.path());
    TweakIndexWriter::open_or_create(dir.path(), &params(3)).unwrap();
}

#[test]
fn a_second_writer_is_refused_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let error = TweakIndexWriter::open(dir.path(), &params(3)).unwrap_err();
    assert!(matches!(error, StoreError::Locked(_)));
    let text = error.to_string();
    assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
    assert!(text.contains("another peregrine process is indexing"), "{text}");
    assert!(TweakReader::open(dir.path()).unwrap().snapshot().is_ok());
    drop(writer);
    TweakIndexWriter::open(dir.path(), &params(3)).unwrap();
}

#[test]
fn the_wrong_directory_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let open = |p: &IndexParams| TweakIndexWriter::open(dir.path(), p).unwrap_err();
    assert!(matches!(open(&params(3)), StoreError::NotAnIndex(_)));
    assert!(matches!(TweakReader::open(dir.path()), Err(StoreError::NotAnIndex(_))));
    assert!(!verify(dir.path(), |_| {}).is_ok());
    TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    assert!(matches!(
        TweakIndexWriter::create(dir.path(), &params(3)),
        Err(StoreError::AlreadyExists { .. })
    ));
    assert!(matches!(open(&IndexParams::for_network(Network::Signet)), StoreError::WrongNetwork { .. }));
    let other = IndexParams { start_height: START + 1, ..params(3) };
    assert!(matches!(open(&other), StoreError::WrongStart { found: START, .. }));
    for bits in [0, 25, u32::MAX] {
        let made = TweakIndexWriter::create(&dir.path().join("x"), &params(bits));
        assert!(matches!(made, Err(StoreError::BadParams(_))));
    }
}

#[test]
fn only_the_next_block_with_consistent_rows_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..5);
    let good = (100..).map(|s| model.next(s, 12)).find(|b| b.rows.len() > 2).unwrap();
    let height = model.next_height();

    for wrong in [0, START, height - 1, height + 1, u32::MAX] {
        let error = writer.append(&good.header, wrong, &good.rows).unwrap_err();
        assert!(matches!(error, StoreError::NotNext { .. }), "{error}");
    }
    let stranger = block(bitcoin::BlockHash::from_byte_array([9; 32]), 1, 3);
    let error = writer.append(&stranger.header, height, &stranger.rows).unwrap_err();
    assert!(matches!(error, StoreError::NotNext { .. }), "{error}");

    let spoil: [fn(&mut BlockRows); 7] = [
        |r| r.points.truncate(r.points.len() - 1),
        |r| r.txids.truncate(r.txids.len() - 1),
        |r| r.meta.truncate(r.meta.len() - 1),
        |r| r.output_counts.truncate(r.output_counts.len() - 1),
        |r| r.outputs.truncate(r.outputs.len() - 1),
        |r| r.output_counts[1] = 0,
        |r| r.output_counts[1] = u32::MAX,
    ];
    for spoil in spoil {
        let mut rows = good.rows.clone();
        spoil(&mut rows);
        let error = writer.append(&good.header, height, &rows).unwrap_err();
        assert!(matches!(error, StoreError::BadRows { .. }), "{error}");
    }
    assert_holds(dir.path(), &model);
    writer.append(&good.header, height, &good.rows).unwrap();
    model.0.push(good);
    assert_holds(dir.path(), &model);

    for height in [0, START - 1, START + 6, u32::MAX] {
        assert!(matches!(writer.rollback_to(Some(height)), Err(StoreError::NoSuchHeight { .. })));
        assert!(matches!(writer.block(height), Err(StoreError::NoSuchHeight { .. })));
    }
    assert_holds(dir.path(), &model);
}

#[test]
fn block_zero_must_be_the_genesis_block() {
    let dir = tempfile::tempdir().unwrap();
    let params = IndexParams::for_network(Network::Regtest);
    let mut writer = TweakIndexWriter::create(dir.path(), &params).unwrap();
    let wrong = bitcoin::constants::genesis_block(Network::Signet).header;
    let error = writer.append(&wrong, 0, &BlockRows::default()).unwrap_err();
    assert!(error.to_string().contains("genesis"), "{error}");
    let right = bitcoin::constants::genesis_block(Network::Regtest).header;
    writer.append(&right, 0, &BlockRows::default()).unwrap();
    assert_eq!(writer.tip(), Some((0, params.genesis)));
}

#[test]
fn rows_heights_and_slices_agree() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..40);
    let snapshot = writer.reader().unwrap().snapshot().unwrap();
    assert_eq!(snapshot.heights(), Some(START..=START + 39));
    for height in START..START + 40 {
        let record = snapshot.block(height).unwrap();
        assert_eq!(writer.block(height).unwrap(), record);
        assert_eq!(snapshot.rows_of_heights(height..=height).unwrap(), record.rows);
        for row in record.rows {
            assert_eq!(snapshot.height_of_row(row), Some(height));
        }
    }
    let rows = snapshot.rows();
    assert_eq!(rows, model.rows());
    assert_eq!(snapshot.height_of_row(rows), None);
    assert!(matches!(snapshot.segments(0..rows + 1), Err(StoreError::NoSuchRows { .. })));
    assert!(matches!(snapshot.block(START + 40), Err(StoreError::NoSuchHeight { .. })));

    let whole: Vec<[u8; 64]> = model.0.iter().flat_map(|b| b.rows.points.clone()).collect();
    let outputs: Vec<[u8; 8]> = model.0.iter().flat_map(|b| b.rows.outputs.clone()).collect();
    let counts: Vec<u32> = model.0.iter().flat_map(|b| b.rows.output_counts.clone()).collect();
    for (start, end) in [(0, rows), (3, 4), (7, 9), (8, 16), (5, 5), (9, rows - 1)] {
        let slices: Vec<_> = snapshot.segments(start..end).unwrap().map(Result::unwrap).collect();
        let points: Vec<_> = slices.iter().flat_map(|s| s.points().to_vec()).collect();
        assert!(points == whole[start as usize..end as usize]);
        let first: u32 = counts[..start as usize].iter().sum();
        let last: u32 = counts[..end as usize].iter().sum();
        let read: Vec<_> = slices.iter().flat_map(|s| s.outputs().to_vec()).collect();
        assert!(read == outputs[first as usize..last as usize]);
        for slice in &slices {
            assert_eq!(
                u64::from(slice.segment()) * 8 + u64::from(slice.local_rows().start),
                slice.first_row()
            );
            assert_eq!(slice.rows().count(), slice.len());
            assert!(slice.outputs_of(slice.len()).is_empty() && slice.meta(slice.len()).is_none());
        }
    }
}

#[test]
fn times_that_are_not_in_order_are_searched_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..60);
    let snapshot = writer.reader().unwrap().snapshot().unwrap();
    let times: Vec<u32> = model.0.iter().map(|b| b.header.time).collect();
    for time in times.iter().flat_map(|t| [t - 1, *t, t + 1]).chain([0, u32::MAX]) {
        let first = times.iter().position(|t| *t >= time).map(|i| START + i as u32);
        let last = times.iter().rposition(|t| *t <= time).map(|i| START + i as u32);
        assert_eq!(snapshot.first_height_at_or_after_time(time), first);
        assert_eq!(snapshot.last_height_at_or_before_time(time), last);
    }
}

#[test]
fn a_rollback_outdates_snapshots_and_an_append_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..20);
    let reader = writer.reader().unwrap();
    let old = reader.snapshot().unwrap();
    let old_model = model.clone();
    fill(&mut writer, &mut model, 20..25);
    assert!(old.is_current().unwrap());
    assert!(read_back(&old).unwrap() == old_model);
    let longer = reader.snapshot().unwrap();
    assert_eq!(longer.epoch(), old.epoch());
    assert_eq!(longer.common_height(&old), Some(START + 19));
    writer.sync().unwrap();
    writer.rollback_to(Some(START + 24)).unwrap();
    assert!(old.is_current().unwrap(), "rolling back to the tip does nothing");

    writer.rollback_to(Some(START + 7)).unwrap();
    model.0.truncate(8);
    assert!(!old.is_current().unwrap() && !longer.is_current().unwrap());
    assert_holds(dir.path(), &model);
    fill(&mut writer, &mut model, 50..70);
    let new = reader.snapshot().unwrap();
    assert!(read_back(&new).unwrap() == model);
    assert_eq!(new.common_height(&old), Some(START + 7));
    assert_eq!(old.common_height(&longer), Some(START + 19));
    // What an outdated snapshot says of blocks still is what was.
    assert_eq!(old.tip().unwrap().header, old_model.0[19].header);

    writer.rollback_to(None).unwrap();
    assert_eq!((writer.tip(), writer.next_height(), writer.rows()), (None, START, 0));
    let empty = reader.snapshot().unwrap();
    assert_eq!(empty.common_height(&new), None);
    let mut model = Model::default();
    fill(&mut writer, &mut model, 90..110);
    drop(writer);
    assert_holds(dir.path(), &model);
    assert_verifies(dir.path());
}

#[test]
fn reopening_raises_the_epoch_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    let mut epochs = Vec::new();
    for round in 0..4u64 {
        let mut writer = TweakIndexWriter::open_or_create(dir.path(), &params(3)).unwrap();
        assert_eq!(writer.blocks(), model.0.len() as u64);
        fill(&mut writer, &mut model, round * 10..round * 10 + 10);
        if round % 2 == 0 {
            writer.sync().unwrap();
            assert_eq!(writer.unsynced_blocks(), 0);
        }
        epochs.push(writer.reader().unwrap().snapshot().unwrap().epoch());
    }
    epochs.dedup();
    assert_eq!(epochs.len(), 4);
    assert_holds(dir.path(), &model);
}

#[test]
fn a_full_disk_fails_the_append_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..10);
    let next = model.segments(3).len();
    // The block fills the segment and begins the next one, so that the failure comes in the middle.
    let block = (100..).map(|s| model.next(s, 12)).find(|b| b.rows.len() > 8).unwrap();
    for column in ["points", "outputs", "output_ends", "txids", "meta"] {
        let segment = dir.path().join(format!("{next:05}"));
        fs::create_dir_all(&segment).unwrap();
        let _ = fs::remove_file(segment.join(column));
        symlink("/dev/full", segment.join(column)).unwrap();
        let error = writer.append(&block.header, model.next_height(), &block.rows).unwrap_err();
        assert!(error.to_string().contains(column), "{error}");
        assert_holds(dir.path(), &model);
        fs::remove_file(segment.join(column)).unwrap();
    }
    writer.append(&block.header, model.next_height(), &block.rows).unwrap();
    model.0.push(block);
    fill(&mut writer, &mut model, 200..210);
    writer.sync().unwrap();
    drop(writer);
    assert_holds(dir.path(), &model);
    assert_verifies(dir.path());
}

#[test]
fn a_failed_flush_takes_back_what_was_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..10);
    writer.sync().unwrap();
    let synced = model.clone();
    fill(&mut writer, &mut model, 10..30);
    // A dirty segment that can't be flushed.
    let segment = dir.path().join(format!("{:05}", synced.segments(3).len()));
    fs::rename(&segment, dir.path().join("away")).unwrap();
    assert!(matches!(writer.sync(), Err(StoreError::Io { .. })));
    assert!(matches!(writer.sync(), Err(StoreError::Poisoned { .. })));
    assert!(matches!(writer.rollback_to(None), Err(StoreError::Poisoned { .. })));
    drop(writer);
    fs::rename(dir.path().join("away"), &segment).unwrap();
    let mut writer = TweakIndexWriter::open(dir.path(), &params(3)).unwrap();
    assert_holds(dir.path(), &synced);
    let mut model = synced;
    fill(&mut writer, &mut model, 40..60);
    writer.sync().unwrap();
    assert_holds(dir.path(), &model);
}

#[test]
fn strangers_in_the_directory_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..20);
    writer.sync().unwrap();
    drop(writer);
    fs::write(dir.path().join("00000/points_endo"), [1; 100]).unwrap();
    fs::write(dir.path().join("readme"), "hello").unwrap();
    fs::create_dir(dir.path().join("1")).unwrap();
    fs::create_dir(dir.path().join("99999999999999999999")).unwrap();
    assert_holds(dir.path(), &model);
    assert_eq!(assert_verifies(dir.path()).leftover_bytes, 0);
    TweakIndexWriter::open(dir.path(), &params(3)).unwrap();
}

#[test]
fn verify_counts_and_tells_leftovers_from_problems() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..20);
    writer.sync().unwrap();
    let mut calls = Vec::new();
    let report = verify(dir.path(), |p| calls.push(p));
    assert!(report.is_ok() && !report.changed_meanwhile);
    assert_eq!(report.params, Some(params(3)));
    assert_eq!((report.blocks, report.synced, report.rows), (20, 20, model.rows()));
    assert_eq!((report.outputs, report.leftover_bytes), (writer.outputs(), 0));
    let last = calls.last().unwrap();
    assert_eq!((last.blocks_done, last.blocks, last.rows_done), (20, 20, model.rows()));

    let outputs = writer.outputs();
    let rows = writer.rows();
    writer.rollback_to(Some(START + 5)).unwrap();
    let report = assert_verifies(dir.path());
    let gone = (rows - writer.rows()) * (64 + 4 + 32 + 12) + (outputs - writer.outputs()) * 8;
    assert_eq!(report.leftover_bytes, gone);
}

#[test]
fn clones_of_slices_outlive_their_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    let mut model = Model::default();
    fill(&mut writer, &mut model, 0..20);
    let slice = {
        let snapshot = writer.reader().unwrap().snapshot().unwrap();
        snapshot.segments(2..5).unwrap().next().unwrap().unwrap()
    };
    drop(writer);
    let seen = std::thread::spawn(move || slice.points()[0]).join().unwrap();
    let all: Vec<_> = model.0.iter().flat_map(|b| b.rows.points.clone()).collect();
    assert_eq!(seen, all[2]);
}
