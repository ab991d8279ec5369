//! A journal of the script-hash index that lost its end, as after a power cut, or that the disk has damaged.

mod address_common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use address_common::*;
use peregrine_index::address::AddressIndexWriter;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// An index of 40 blocks, all of it in the journal, and the journal's length without preallocated zeros.
fn index(dir: &Path) -> (Model, PathBuf, u64) {
    let mut model = Model::default();
    let mut writer = open(dir);
    for seed in 0..40 {
        let block = model.next(seed);
        writer.append_block(&block, seed as u32).unwrap();
        model.blocks.push(block);
    }
    writer.sync().unwrap();
    drop(writer);
    let journals: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .collect();
    let [journal] = &journals[..] else { panic!("{journals:?}") };
    let bytes = fs::read(journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    (model, journal.clone(), used)
}

#[test]
fn a_journal_that_lost_its_end_is_the_state_after_some_block() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("whole");
    let (model, journal, used) = index(&dir);
    let mut rng = StdRng::seed_from_u64(1);
    let mut heights = Vec::new();
    for round in 0..40 {
        let copy = temp.path().join(format!("cut-{round}"));
        copy_dir(&dir, &copy);
        let file = OpenOptions::new().write(true).open(copy.join(journal.file_name().unwrap())).unwrap();
        // The first batches make the tables and the description.
        file.set_len(rng.random_range(used / 4..used)).unwrap();
        drop(file);
        let mut writer = open(&copy);
        let blocks = writer.blocks() as usize;
        heights.push(blocks);
        model.prefix(blocks).assert_is(&writer.reader().view());
        // And it goes on from there.
        for (height, block) in (0..).zip(&model.blocks).skip(blocks) {
            writer.append_block(block, height).unwrap();
        }
        model.assert_is(&writer.reader().view());
        drop(writer);
        fs::remove_dir_all(&copy).unwrap();
    }
    heights.sort_unstable();
    heights.dedup();
    assert!(heights.len() > 8, "{heights:?}");
}

#[test]
fn a_damaged_journal_is_an_error_or_the_state_after_some_block() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("whole");
    let (model, journal, used) = index(&dir);
    let mut rng = StdRng::seed_from_u64(2);
    for round in 0..40 {
        let copy = temp.path().join(format!("damaged-{round}"));
        copy_dir(&dir, &copy);
        let path = copy.join(journal.file_name().unwrap());
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let at = rng.random_range(0..used);
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << rng.random_range(0..8)], at).unwrap();
        drop(file);
        if let Ok(writer) = AddressIndexWriter::open_with_cache(&copy, &params(), 8 << 20) {
            model.prefix(writer.blocks() as usize).assert_is(&writer.reader().view());
        }
        fs::remove_dir_all(&copy).unwrap();
    }
}
