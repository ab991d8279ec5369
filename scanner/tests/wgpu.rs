//! The wgpu backend on whatever adapters there are; Mesa's software Vulkan and OpenGL do. `backends.rs` compares what it computes
//! with the reference on rows of all kinds; here is what is special to cards.

mod common;

use common::{Rows, by_reference, in_parts, scan, target};
use peregrine_scanner::backend::{self, Backend, Selection, wgpu};
use peregrine_scanner::{Engine, RowBatch};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// The first adapter.
fn first() -> Option<Box<dyn Backend>> {
    if wgpu::adapters().is_empty() {
        eprintln!("SKIPPED: wgpu finds no adapter here (mesa-vulkan-drivers has one)");
        return None;
    }
    let selection = Selection { names: vec!["0".to_owned()], ..Selection::default() };
    Some(backend::choose_with("wgpu", &selection).unwrap())
}

#[test]
fn labels_keys_and_places() {
    let Some(backend) = first() else { return };
    let mut rng = StdRng::seed_from_u64(20);
    // More labels than one pass takes, and several keys.
    let targets = [target(&mut rng, 0), target(&mut rng, 1), target(&mut rng, 37)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 700);
    let prepared = backend.prepare(&targets);
    for _ in 0..2 {
        for part in [700, 129] {
            assert_eq!(in_parts(&*prepared, rows.batch(), part), wanted, "parts of {part}");
        }
    }
    assert!(backend.devices()[0].resident_bytes >= 700 * 68, "the rows stayed there");
    // Parts of what is there, and what must not stay.
    for range in [0..5, 100..101, 250..300, 699..700] {
        for place in [rows.batch().place, None] {
            let part = RowBatch { place, ..rows.batch() }.slice(range.clone());
            assert_eq!(in_parts(&*prepared, part, 1000), by_reference(&targets, part), "{range:?}");
        }
    }
    // Other rows under the same numbers.
    let (changed, wanted) = Rows::planted(&mut rng, &targets, 700);
    assert_eq!(in_parts(&*prepared, changed.batch(), 700), wanted);
    assert!(backend.devices()[0].resident_bytes < 2 * 700 * 100, "what is out of date goes");
}

#[test]
fn a_whole_scan() {
    let Some(backend) = first() else { return };
    let mut rng = StdRng::seed_from_u64(21);
    let targets = [target(&mut rng, 1)];
    let (rows, _) = Rows::planted(&mut rng, &targets, 3000);
    let reference = Engine::new(backend::choose("libsecp256k1").unwrap(), 2).unwrap();
    let expected = scan(&reference, &targets, rows.batch());
    let engine = Engine::new(backend, 2).unwrap();
    for _ in 0..2 {
        assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    }
    let device = &engine.devices()[0];
    assert!(device.working && device.rows_per_second > 0.0 && device.resident_bytes > 0, "{device:?}");
}

#[test]
fn adapters_that_are_not_there() {
    let selection = Selection { names: vec!["no such card".to_owned()], ..Selection::default() };
    let error = backend::choose_with("wgpu", &selection).err().unwrap().to_string();
    assert!(error.contains("no card has the number or name 'no such card'"), "{error}");
    assert!(error.contains("peregrine devices"), "{error}");
}
