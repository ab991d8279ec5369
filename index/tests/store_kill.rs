//! A writer that is killed again and again loses nothing and doubles nothing.

mod store_common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use peregrine_index::store::{TweakIndexWriter, TweakReader};
use store_common::*;

const BITS: u32 = 5;
const KILLS: u64 = 60;
const INDEX_ENV: &str = "PEREGRINE_TEST_KILL_INDEX";
const JOURNAL_ENV: &str = "PEREGRINE_TEST_KILL_JOURNAL";

enum Op {
    Append(Block),
    /// Keeps so many blocks.
    Rollback(usize),
    Sync,
}

/// What is done in a step follows from its number and from what is there, so that parent and child agree.
fn op(step: u64, model: &Model) -> Op {
    let mut rng = Rng(step);
    let blocks = model.0.len();
    match rng.below(200) {
        0 => Op::Rollback(0),
        1..20 => Op::Rollback(blocks.saturating_sub(1 + rng.below(8) as usize)),
        20..30 => Op::Sync,
        _ => Op::Append(model.next(step, 40)),
    }
}

fn apply(op: Op, model: &mut Model) {
    match op {
        Op::Append(block) => model.0.push(block),
        Op::Rollback(keep) => model.0.truncate(keep),
        Op::Sync => {}
    }
}

fn replay(steps: u64) -> Model {
    let mut model = Model::default();
    for step in 0..steps {
        apply(op(step, &model), &mut model);
    }
    model
}

/// Not a test by itself: the process that [`nothing_is_lost_by_sixty_kills`] starts and kills.
#[test]
fn child() {
    let (Ok(index), Ok(journal)) = (std::env::var(INDEX_ENV), std::env::var(JOURNAL_ENV)) else { return };
    let mut journal = OpenOptions::new().append(true).open(journal).unwrap();
    let mut step = journal.metadata().unwrap().len();
    let mut model = replay(step);
    let mut writer = TweakIndexWriter::open(Path::new(&index), &params(BITS)).unwrap();
    loop {
        let op = op(step, &model);
        match &op {
            Op::Append(block) => writer.append(&block.header, model.next_height(), &block.rows).unwrap(),
            Op::Rollback(keep) => {
                writer.rollback_to((*keep > 0).then(|| START + *keep as u32 - 1)).unwrap();
            }
            Op::Sync => writer.sync().unwrap(),
        }
        // One byte per finished step.
        journal.write_all(b".").unwrap();
        apply(op, &mut model);
        step += 1;
    }
}

#[test]
fn nothing_is_lost_by_sixty_kills() {
    let temp = tempfile::tempdir().unwrap();
    let index = temp.path().join("index");
    let journal = temp.path().join("journal");
    fs::write(&journal, "").unwrap();
    let steps = || fs::metadata(&journal).unwrap().len();
    drop(TweakIndexWriter::create(&index, &params(BITS)).unwrap());
    let mut rng = Rng(7);
    let mut ahead = 0;
    for round in 0..KILLS {
        let before = steps();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(INDEX_ENV, &index)
            .env(JOURNAL_ENV, &journal)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        // Some are killed while they open the index.
        while round % 6 != 0 && steps() == before {
            assert!(started.elapsed() < Duration::from_secs(60), "the child does nothing");
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(rng.below(30_000)));
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();

        let done = steps();
        let mut model = replay(done);
        let seen = read_back(&TweakReader::open(&index).unwrap().snapshot().unwrap()).unwrap();
        if seen != model {
            // The step that was under way took place.
            apply(op(done, &model), &mut model);
            OpenOptions::new().append(true).open(&journal).unwrap().write_all(b".").unwrap();
            ahead += 1;
        }
        assert!(seen == model, "kill {round}: the index is not the state after step {done} or the next");
        let writer = TweakIndexWriter::open(&index, &params(BITS)).unwrap();
        assert_eq!(writer.recovery().dropped, 0);
        assert_holds(&index, &model);
        if round % 10 == 9 {
            assert_verifies(&index);
        }
    }
    println!("{KILLS} kills, {} steps, {ahead} of them finished unseen", steps());
    assert!(steps() > KILLS);
}
