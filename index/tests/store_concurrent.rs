//! Readers at work while a writer takes blocks back and overwrites them.

mod store_common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use peregrine_index::store::{StoreError, TweakIndexWriter, TweakReader};
use store_common::*;

#[test]
fn what_a_reader_validates_is_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TweakIndexWriter::create(dir.path(), &params(3)).unwrap();
    // Blocks that were ever in the index, by hash: what a validated reader may see.
    let known = Arc::new(Mutex::new(std::collections::HashMap::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let (validated, outdated) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let shared = writer.reader().unwrap();

    let readers: Vec<_> = (0..3)
        .map(|n| {
            // One of them opens for itself, as another process would.
            let reader = if n == 0 { TweakReader::open(dir.path()).unwrap() } else { shared.clone() };
            let (known, stop) = (Arc::clone(&known), Arc::clone(&stop));
            let (validated, outdated) = (Arc::clone(&validated), Arc::clone(&outdated));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = reader.snapshot().unwrap();
                    // Until it is validated, what was read may be anything, also something that reads differently twice:
                    // what read_back asserts counts only for a snapshot that is still current.
                    let read = catch_unwind(AssertUnwindSafe(|| read_back(&snapshot)));
                    if !snapshot.is_current().unwrap() {
                        outdated.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let model = match read.unwrap_or_else(|panic| resume_unwind(panic)) {
                        Ok(model) => model,
                        // The rollback was noticed first, and the epoch is still the old one only if nothing was.
                        Err(e) => panic!("a current snapshot can't be read: {e}"),
                    };
                    let known = known.lock().unwrap();
                    for block in model.0 {
                        let hash = block.header.block_hash();
                        assert!(known.get(&hash) == Some(&block), "rows of another block were read");
                    }
                    validated.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();

    let mut model = Model::default();
    let mut rng = Rng(42);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20)
        && (started.elapsed() < Duration::from_secs(4) || outdated.load(Ordering::Relaxed) < 20)
    {
        for _ in 0..1 + rng.below(12) {
            let block = model.next(rng.next(), 20);
            known.lock().unwrap().insert(block.header.block_hash(), block.clone());
            writer.append(&block.header, model.next_height(), &block.rows).unwrap();
            model.0.push(block);
        }
        let keep = rng.below(model.0.len().min(40) as u64 + 1) as usize;
        writer.rollback_to((keep > 0).then(|| START + keep as u32 - 1)).unwrap();
        model.0.truncate(keep);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_holds(dir.path(), &model);
    let (validated, outdated) = (validated.load(Ordering::Relaxed), outdated.load(Ordering::Relaxed));
    assert!(validated > 20 && outdated > 0, "{validated} validated, {outdated} outdated");
}

#[test]
fn another_index_in_the_same_place_is_not_taken_for_the_old_one() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("index");
    let mut model = Model::default();
    let mut make = |seed: u64| {
        let mut writer = TweakIndexWriter::create(&dir, &params(3)).unwrap();
        model = Model::default();
        for n in 0..10 {
            let block = model.next(seed + n, 10);
            writer.append(&block.header, model.next_height(), &block.rows).unwrap();
            model.0.push(block);
        }
        model.clone()
    };
    make(0);
    let reader = TweakReader::open(&dir).unwrap();
    let old = reader.snapshot().unwrap();
    read_back(&old).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(matches!(old.is_current(), Err(StoreError::BadState { .. })));
    let model = make(100);
    assert!(!old.is_current().unwrap());
    assert!(read_back(&reader.snapshot().unwrap()).unwrap() == model);
}
