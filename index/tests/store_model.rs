//! Random histories of an index, crashes included, against a plain vector.

mod store_common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use peregrine_index::store::{TweakIndexWriter, TweakReader};
use proptest::prelude::*;
use store_common::*;

const BITS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    Append(u64),
    /// Keeps this share of 256 of the blocks.
    Rollback(u8),
    Sync,
    Reopen,
    /// The machine stops: what was not synced is lost, kept or garbled, by this seed.
    PowerLoss(u64),
    /// Compares with a long-lived reader.
    Read,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => any::<u64>().prop_map(Op::Append),
        2 => any::<u8>().prop_map(Op::Rollback),
        1 => (250u8..=255).prop_map(Op::Rollback),
        1 => Just(Op::Rollback(0)),
        2 => Just(Op::Sync),
        1 => Just(Op::Reopen),
        2 => any::<u64>().prop_map(Op::PowerLoss),
        2 => Just(Op::Read),
    ]
}

/// Damages everything behind the synced end of each file.
fn lose_power(dir: &Path, synced: &Model, seed: u64) {
    let mut rng = Rng(seed);
    let ends = synced.segments(BITS);
    for path in files(dir) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let segment = path.parent().unwrap().file_name().unwrap().to_str().unwrap().parse::<usize>().ok();
        let (rows, outputs) = segment.and_then(|s| ends.get(s)).copied().unwrap_or((0, 0));
        let keep = match name {
            "blocks" => synced.0.len() as u64 * 128,
            "points" => rows * 64,
            "outputs" => outputs * 8,
            "output_ends" => rows * 4,
            "txids" => rows * 32,
            "meta" => rows * 12,
            // Now and then the state is lost too.
            "state" if rng.below(6) == 0 => rng.below(32),
            _ => continue,
        };
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len();
        assert!(len >= keep, "{} is shorter than what was synced", path.display());
        if len == keep {
            continue;
        }
        let cut = keep + rng.below(len - keep + 1);
        match rng.below(6) {
            0 => {}
            1 => file.set_len(cut).unwrap(),
            2 => {
                file.set_len(cut).unwrap();
                file.set_len(len + rng.below(200)).unwrap();
            }
            3 => {
                let garbage: Vec<u8> = (cut..len + rng.below(200)).map(|_| rng.next() as u8).collect();
                file.write_all_at(&garbage, cut).unwrap();
            }
            4 if keep == 0 && segment.is_some() => fs::remove_file(&path).unwrap(),
            _ => {
                // A hole in the middle: a page that was not written.
                let end = cut + rng.below(len - cut + 1);
                file.write_all_at(&vec![0; (end - cut) as usize], cut).unwrap();
            }
        }
    }
    if ends.is_empty() && rng.below(4) == 0 {
        let _ = fs::remove_dir_all(dir.join("00000"));
    }
}

fn run(ops: &[Op]) {
    let temp = tempfile::tempdir().unwrap();
    let mut dir = temp.path().join("0");
    let mut model = Model::default();
    let mut synced = 0;
    let mut writer = TweakIndexWriter::create(&dir, &params(BITS)).unwrap();
    let mut reader = writer.reader().unwrap();
    for (step, op) in ops.iter().enumerate() {
        match op {
            Op::Append(seed) => {
                let block = model.next(*seed, 14);
                writer.append(&block.header, model.next_height(), &block.rows).unwrap();
                model.0.push(block);
            }
            Op::Rollback(share) => {
                let keep = model.0.len() * usize::from(*share) / 256;
                writer.rollback_to((keep > 0).then(|| START + keep as u32 - 1)).unwrap();
                model.0.truncate(keep);
                synced = synced.min(keep);
            }
            Op::Sync => {
                writer.sync().unwrap();
                synced = model.0.len();
            }
            Op::Reopen => {
                drop(writer);
                writer = TweakIndexWriter::open(&dir, &params(20)).unwrap();
                assert_eq!(writer.recovery().dropped, 0, "{:?}", writer.recovery());
            }
            Op::PowerLoss(seed) => {
                // A copy, as if the machine had stopped now; the running writer goes on in the old place until dropped.
                let copy = temp.path().join(format!("{}", step + 1));
                copy_dir(&dir, &copy);
                lose_power(&copy, &model.prefix(synced), *seed);
                if let Ok(snapshot) = TweakReader::open(&copy).unwrap().snapshot() {
                    // Before the writer repairs anything.
                    let seen = read_back(&snapshot).unwrap();
                    assert!(seen.0.len() >= synced && model.0.starts_with(&seen.0));
                }
                dir = copy;
                writer = TweakIndexWriter::open(&dir, &params(BITS)).unwrap();
                let kept = writer.blocks() as usize;
                assert!(kept >= synced, "{kept} of {synced} synced blocks are left: {:?}", writer.recovery());
                model.0.truncate(kept);
                synced = synced.min(kept);
                reader = writer.reader().unwrap();
            }
            Op::Read => {
                let snapshot = reader.snapshot().unwrap();
                assert!(read_back(&snapshot).unwrap() == model);
                assert!(snapshot.is_current().unwrap());
            }
        }
        assert_eq!(writer.blocks(), model.0.len() as u64);
        assert_eq!(writer.rows(), model.rows());
        assert_eq!(writer.next_height(), model.next_height());
    }
    assert_holds(&dir, &model);
    assert_verifies(&dir);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_leaves_what_the_model_holds(ops in prop::collection::vec(op(), 1..60)) {
        run(&ops);
    }
}
