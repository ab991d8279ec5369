//! A writer of the script-hash index that is killed again and again: every commit is there as a whole or not at all, and
//! none that was finished is lost.

mod address_common;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use address_common::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const KILLS: u64 = 40;
const INDEX_ENV: &str = "PEREGRINE_TEST_KILL_ADDRESS_INDEX";
const JOURNAL_ENV: &str = "PEREGRINE_TEST_KILL_ADDRESS_JOURNAL";

/// Whether a step takes everything back.
fn is_fresh_start(step: u64) -> bool {
    StdRng::seed_from_u64(step).random_ratio(1, 60)
}

/// What is done in a step follows from its number and from what is there, so that parent and child agree. The number of
/// blocks to keep, or `None` for a new block.
fn op(step: u64, model: &Model) -> Option<usize> {
    let mut rng = StdRng::seed_from_u64(!step);
    match rng.random_range(0..100) {
        _ if is_fresh_start(step) => Some(0),
        0..12 => Some(model.blocks.len().saturating_sub(rng.random_range(1..9))),
        _ => None,
    }
}

fn apply(step: u64, model: &mut Model) {
    match op(step, model) {
        Some(keep) => model.blocks.truncate(keep),
        None => model.push_random(step),
    }
}

fn replay(steps: u64) -> Model {
    let start = (0..steps).rev().find(|step| is_fresh_start(*step)).unwrap_or(0);
    let mut model = Model::default();
    for step in start..steps {
        apply(step, &mut model);
    }
    model
}

/// Not a test by itself: the process that [`commits_are_whole_after_forty_kills`] starts and kills.
#[test]
fn child() {
    let (Ok(index), Ok(journal)) = (std::env::var(INDEX_ENV), std::env::var(JOURNAL_ENV)) else { return };
    let mut journal = OpenOptions::new().append(true).open(journal).unwrap();
    let mut step = journal.metadata().unwrap().len();
    let mut model = replay(step);
    let mut writer = open(Path::new(&index));
    loop {
        match op(step, &model) {
            Some(keep) => writer.rollback_to((keep as u32).checked_sub(1)).unwrap(),
            None => writer.append_block(&model.next(step), model.blocks.len() as u32).unwrap(),
        }
        // One byte per finished step.
        journal.write_all(b".").unwrap();
        apply(step, &mut model);
        step += 1;
    }
}

#[test]
fn commits_are_whole_after_forty_kills() {
    let temp = tempfile::tempdir().unwrap();
    let index = temp.path().join("index");
    let journal = temp.path().join("journal");
    fs::write(&journal, "").unwrap();
    let steps = || fs::metadata(&journal).unwrap().len();
    let mut rng = StdRng::seed_from_u64(5);
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
        while round % 5 != 0 && steps() == before {
            assert!(started.elapsed() < Duration::from_secs(60), "the child does nothing");
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(rng.random_range(0..60_000)));
        assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();

        let done = steps();
        let mut model = replay(done);
        let writer = open(&index);
        if writer.tip() != model.tip() {
            // The step that was under way took place.
            apply(done, &mut model);
            OpenOptions::new().append(true).open(&journal).unwrap().write_all(b".").unwrap();
            ahead += 1;
        }
        assert_eq!(writer.tip(), model.tip(), "kill {round}: not the state after step {done} or the next");
        model.assert_is(&writer.reader().view());
    }
    println!("{KILLS} kills, {} steps, {ahead} of them finished unseen", steps());
    assert!(steps() > KILLS);
}
