//! Indexes written by every released format version can still be read and continued.

mod store_common;

use std::path::{Path, PathBuf};

use peregrine_index::store::{TweakIndexWriter, TweakReader};
use store_common::*;

const BITS: u32 = 2;

// The fixture of version 1, read with another program.
const TIP: &str = "85ba3ce29776c8d6490242df777d9ba9270589428c06dd8ab7d010b7b03ded54";
const ROWS: u64 = 10;
const OUTPUTS: u64 = 26;
const POINT: [u8; 4] = [181, 3, 234, 191];
const TXID: [u8; 4] = [160, 202, 116, 159];
const OUTPUT: [u8; 8] = [190, 137, 33, 253, 190, 48, 178, 148];
const META: (u32, u64) = (4, 4_537_751_366_808_148_170);

fn data(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/index-v{version}"))
}

/// What the fixtures hold. Must never change.
fn model() -> Model {
    let mut model = Model::default();
    for seed in 1..9 {
        let block = model.next(seed, 6);
        model.0.push(block);
    }
    model
}

#[test]
fn version_1_is_read() {
    let dir = data(1);
    assert_holds(&dir, &model());
    let report = assert_verifies(&dir);
    assert_eq!(report.params, Some(params(BITS)));
    assert_eq!((report.blocks, report.synced, report.leftover_bytes), (8, 8, 0));

    // Independent of the generator: a few values as they were when the fixture was made.
    let snapshot = TweakReader::open(&dir).unwrap().snapshot().unwrap();
    let tip = snapshot.tip().unwrap();
    assert_eq!(tip.height, 107);
    assert_eq!(tip.hash.to_string(), TIP);
    assert_eq!((snapshot.rows(), snapshot.outputs()), (ROWS, OUTPUTS));
    let last = snapshot.segments(ROWS - 1..ROWS).unwrap().next().unwrap().unwrap();
    assert_eq!(last.points()[0][..4], POINT);
    assert_eq!(last.txids()[0][..4], TXID);
    assert_eq!(last.outputs_of(0)[0], OUTPUT);
    let meta = last.meta(0).unwrap();
    assert_eq!((meta.position, meta.max_value), META);
}

#[test]
fn version_1_is_continued() {
    let temp = tempfile::tempdir().unwrap();
    copy_dir(&data(1), temp.path());
    let mut writer = TweakIndexWriter::open(temp.path(), &params(BITS)).unwrap();
    assert_eq!(writer.recovery().dropped, 0);
    let mut model = model();
    writer.rollback_to(Some(START + 5)).unwrap();
    model.0.truncate(6);
    for seed in 100..110 {
        let block = model.next(seed, 6);
        writer.append(&block.header, model.next_height(), &block.rows).unwrap();
        model.0.push(block);
    }
    writer.sync().unwrap();
    assert_holds(temp.path(), &model);
    assert_verifies(temp.path());
}

/// What is written today is, byte for byte, what the fixture of the current version holds. A change of the format needs a
/// new version with a fixture of its own: the index that this test writes, once.
#[test]
fn the_current_version_is_written_as_its_fixture() {
    let temp = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(temp.path(), &params(BITS)).unwrap();
    for (height, block) in (START..).zip(model().0) {
        writer.append(&block.header, height, &block.rows).unwrap();
    }
    writer.sync().unwrap();
    let fixture = data(peregrine_index::store::FORMAT_VERSION);
    let mut compared = 0;
    for entry in ["format", "blocks", "00000", "00001", "00002"] {
        let path = temp.path().join(entry);
        let files = if path.is_dir() {
            path.read_dir().unwrap().map(|file| file.unwrap().path()).collect()
        } else {
            vec![path]
        };
        for file in files {
            let name = file.strip_prefix(temp.path()).unwrap();
            assert!(
                std::fs::read(&file).unwrap() == std::fs::read(fixture.join(name)).unwrap(),
                "{}",
                name.display()
            );
            compared += 1;
        }
    }
    // `state` is left out for its random epoch.
    assert_eq!(compared, 17);
}
