//! Whatever the bytes of an index are: `verify` notices, and nothing panics.

mod store_common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use peregrine_index::store::{TweakIndexWriter, TweakReader, verify};
use store_common::*;

const BITS: u32 = 2;

/// A synced index without leftovers, with blocks that straddle segments and blocks without rows.
fn build(dir: &Path) -> Model {
    let mut model = Model::default();
    let mut writer = TweakIndexWriter::create(dir, &params(BITS)).unwrap();
    for seed in 1..9 {
        let block = model.next(seed, 6);
        writer.append(&block.header, model.next_height(), &block.rows).unwrap();
        model.0.push(block);
    }
    writer.sync().unwrap();
    assert!(model.rows() > 8 && model.0.iter().any(|b| b.rows.is_empty()));
    model
}

/// Reads everything there is to read; errors are fine.
fn read_all(dir: &Path) {
    if let Ok(snapshot) = TweakReader::open(dir).and_then(|r| r.snapshot()) {
        let _ = snapshot.is_current();
        let rows = snapshot.rows();
        // Forged records can claim any number.
        for row in (0..rows).take(100) {
            assert!(snapshot.height_of_row(row).is_some());
        }
        for slice in snapshot.segments(0..rows).unwrap() {
            let Ok(slice) = slice else { continue };
            let outputs: usize = (0..slice.len()).map(|r| slice.outputs_of(r).len()).sum();
            assert_eq!(outputs, slice.outputs().len());
            assert!(slice.points().len() == slice.len() && slice.txids().len() == slice.len());
            assert!((0..slice.len()).all(|r| slice.meta(r).is_some()));
        }
    }
}

/// Opens for writing in a copy, as that repairs; what is left must be a prefix of what was written.
fn open_copy(dir: &Path, model: &Model) {
    let copy = tempfile::tempdir().unwrap();
    copy_dir(dir, copy.path());
    if let Ok(mut writer) = TweakIndexWriter::open(copy.path(), &params(BITS)) {
        let kept = writer.blocks() as usize;
        assert!(kept <= model.0.len());
        if let Ok(snapshot) = writer.reader().unwrap().snapshot() {
            assert_eq!(snapshot.tip().map(|t| t.hash), writer.tip().map(|t| t.1));
        }
        let next = model.prefix(kept).next(1000, 6);
        writer.append(&next.header, START + kept as u32, &next.rows).unwrap();
    }
}

fn damaged(what: &str, dir: &Path, model: &Model, copy_too: bool) {
    let report = verify(dir, |_| {});
    assert!(!report.is_ok(), "verify missed: {what}");
    read_all(dir);
    if copy_too {
        open_copy(dir, model);
    }
}

fn index() -> (tempfile::TempDir, Model, Vec<PathBuf>) {
    let temp = tempfile::tempdir().unwrap();
    let model = build(temp.path());
    assert_eq!(assert_verifies(temp.path()).leftover_bytes, 0);
    let files = files(temp.path()).into_iter().filter(|f| fs::metadata(f).unwrap().len() > 0).collect();
    (temp, model, files)
}

#[test]
fn every_flipped_byte_is_noticed() {
    let (temp, model, files) = index();
    let mut flips = 0;
    for path in files {
        let bytes = fs::read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (at, byte) in bytes.iter().enumerate() {
            for mask in [0x01, 0x80, 0xff] {
                file.write_all_at(&[byte ^ mask], at as u64).unwrap();
                let what = format!("{} byte {at} ^ {mask:02x}", path.display());
                damaged(&what, temp.path(), &model, mask == 0xff && at % 11 == 0);
                flips += 1;
            }
            file.write_all_at(&[*byte], at as u64).unwrap();
        }
    }
    assert!(flips > 5000);
    assert_verifies(temp.path());
    assert_holds(temp.path(), &model);
}

#[test]
fn every_truncation_is_noticed() {
    let (temp, model, files) = index();
    for path in files {
        let bytes = fs::read(&path).unwrap();
        for len in 0..bytes.len() {
            fs::write(&path, &bytes[..len]).unwrap();
            damaged(&format!("{} cut to {len}", path.display()), temp.path(), &model, len % 23 == 0);
        }
        fs::remove_file(&path).unwrap();
        damaged(&format!("{} removed", path.display()), temp.path(), &model, true);
        fs::create_dir(&path).unwrap();
        damaged(&format!("{} is a directory", path.display()), temp.path(), &model, true);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
    }
    assert_verifies(temp.path());
}

#[test]
fn a_missing_segment_is_noticed() {
    let (temp, model, _) = index();
    for segment in 0..model.segments(BITS).len() {
        let (here, there) = (temp.path().join(format!("{segment:05}")), temp.path().join("elsewhere"));
        fs::rename(&here, &there).unwrap();
        damaged(&format!("segment {segment} missing"), temp.path(), &model, true);
        fs::rename(&there, &here).unwrap();
    }
    assert_verifies(temp.path());
}

/// Forged, with right checksums: numbers that no honest writer writes.
#[test]
fn forged_records_and_states_do_no_harm() {
    use xxhash_rust::xxh3::xxh3_64;
    let (temp, model, _) = index();
    let seal = |bytes: &mut [u8]| {
        let end = bytes.len() - 8;
        let sum = xxh3_64(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
    };
    let huge = [1 << 20, 1 << 33, (1 << 60) + 1, u64::MAX];
    let path = temp.path().join("blocks");
    let bytes = fs::read(&path).unwrap();
    for record in 0..bytes.len() / 128 {
        for rows in huge {
            for outputs in huge {
                let mut forged = bytes.clone();
                let place = &mut forged[record * 128..][..128];
                place[88..96].copy_from_slice(&rows.to_le_bytes());
                place[96..104].copy_from_slice(&outputs.to_le_bytes());
                seal(place);
                fs::write(&path, &forged).unwrap();
                damaged(&format!("record {record} rows {rows} outputs {outputs}"), temp.path(), &model, true);
            }
        }
        let mut forged = bytes.clone();
        let place = &mut forged[record * 128..][..128];
        place[80..84].copy_from_slice(&u32::MAX.to_le_bytes());
        seal(place);
        fs::write(&path, &forged).unwrap();
        damaged("height", temp.path(), &model, true);
    }
    fs::write(&path, &bytes).unwrap();

    let path = temp.path().join("state");
    let mut state = fs::read(&path).unwrap();
    state[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    seal(&mut state);
    fs::write(&path, &state).unwrap();
    damaged("synced", temp.path(), &model, true);
}
