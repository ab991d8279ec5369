//! The CUDA backend on a driver without a card (`fake_cuda/driver.cpp`), which runs the kernels on the processor: that what is
//! copied, started and read fits, that nothing is missed when the card fails, and that keys don't stay on it.
//!
//! The system finds the driver where it looks for it when a process starts, so these tests start themselves again. A C++
//! compiler is needed: `CXX`, or `c++`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use peregrine_scanner::backend::{self, cuda, reference};
use peregrine_scanner::{Candidate, Control, Engine, Match, RowBatch, ScanKey, ScanTarget, Tweak};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use secp256k1::{PublicKey, SecretKey};

const FOLDER: &str = "FAKE_CUDA_FOLDER";

/// Whether the driver is there; otherwise starts the test of this name once more, with the driver.
fn is_started_with_driver(test: &str) -> bool {
    if std::env::var_os(FOLDER).is_some() {
        return true;
    }
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-cuda-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda/driver.cpp");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let compiled = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-Wno-parentheses", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg(source)
        .output();
    let output = compiled.unwrap_or_else(|error| panic!("a C++ compiler is needed, {compiler}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(FOLDER, &folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
    print!("{text}");
    std::fs::remove_dir_all(folder).unwrap();
    false
}

#[test]
fn without_a_driver_it_says_so() {
    match (cuda::cards(), backend::choose("cuda")) {
        (Err(reason), Err(error)) => {
            assert!(reason.contains("NVIDIA driver"), "{reason}");
            assert_eq!(error.to_string(), format!("the backend 'cuda' can't run here: {reason}"));
        }
        (Ok(cards), Err(error)) => assert!(cards.is_empty(), "{error}"),
        (cards, Ok(backend)) => assert!(!cards.unwrap().is_empty() && backend.name() == "cuda"),
    }
    assert!(backend::names().contains(&"cuda"));
    assert_ne!(backend::choose("auto").unwrap().name(), "cuda");
}

struct Rows {
    points: Vec<[u8; 64]>,
    ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
}

/// What outputs are counted from: a part never begins at the start of a segment.
const BASE: u32 = 12_345;

impl Rows {
    fn batch(&self) -> RowBatch<'_> {
        RowBatch {
            segment: 3,
            first_row: 1000,
            points: &self.points,
            output_ends: &self.ends,
            outputs_base: BASE,
            outputs: &self.outputs,
        }
    }

    /// Rows that all pay somebody in some slot.
    fn planted(rng: &mut StdRng, targets: &[ScanTarget], count: usize) -> (Self, BTreeSet<Candidate>) {
        let mut rows = Self { points: Vec::new(), ends: Vec::new(), outputs: Vec::new() };
        let mut wanted = BTreeSet::new();
        for row in 0..count {
            let point = Tweak(secret(rng).1).to_row();
            let target = row % targets.len();
            let keys = reference::row_keys(&targets[target], &point);
            let slot = row / targets.len() % keys.len();
            rows.outputs.extend((0..row % 3).map(|_| rng.random::<[u8; 8]>()));
            if let Some(key) = keys[slot] {
                rows.outputs.push(key[..8].try_into().unwrap());
                wanted.insert(Candidate { row: row as u32, target: target as u32, slot: slot as u32 });
            }
            rows.points.push(point);
            rows.ends.push(BASE + rows.outputs.len() as u32);
        }
        (rows, wanted)
    }
}

fn secret(rng: &mut StdRng) -> (SecretKey, PublicKey) {
    let secret = SecretKey::from_secret_bytes(rng.random()).unwrap();
    (secret, PublicKey::from_secret_key(&secret))
}

fn target(rng: &mut StdRng, labels: u32) -> ScanTarget {
    let scan = ScanKey::from_bytes(rng.random()).unwrap();
    let spend = secret(rng).1;
    ScanTarget::new(scan, spend, 1..=labels).unwrap()
}

fn scan(engine: &Engine, targets: &[ScanTarget], batch: RowBatch<'_>) -> Vec<Match> {
    let (cancel, progress) = (AtomicBool::new(false), |_| {});
    engine.scan(targets, &[batch], Control { cancel: &cancel, progress: &progress }).unwrap()
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("these tests are started by others").into()
}

#[test]
fn finds_what_the_reference_finds() {
    if !is_started_with_driver("finds_what_the_reference_finds") {
        return;
    }
    let cards = cuda::cards().unwrap();
    assert_eq!((cards[0].name.as_str(), cards[0].capability, cards.len()), ("no card", (9, 0), 1));
    let backend = backend::choose("cuda").unwrap();
    let mut rng = StdRng::seed_from_u64(1);
    // More labels than one pass takes; several keys; the scan key 1, whose ladder is one load.
    let mut targets =
        vec![target(&mut rng, 0), target(&mut rng, 1), target(&mut rng, 20), target(&mut rng, 37)];
    let one = core::array::from_fn(|i| u8::from(i == 31));
    targets.push(ScanTarget::new(ScanKey::from_bytes(one).unwrap(), secret(&mut rng).1, 1..=1).unwrap());
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 700);
    let prepared = backend.prepare(&targets);
    for part in [700, 129, 1] {
        let mut found = Vec::new();
        for from in (0..700).step_by(part).take(20) {
            let mut some = Vec::new();
            prepared.scan(rows.batch().slice(from..700.min(from + part)), &mut some);
            found.extend(some.into_iter().map(|c| Candidate { row: c.row + from as u32, ..c }));
        }
        let end = (20 * part).min(700) as u32;
        let expected: Vec<Candidate> = wanted.iter().filter(|c| c.row < end).copied().collect();
        found.sort();
        assert_eq!(found, expected, "parts of {part}");
    }
    // Rows that are no points, and keys made to cancel.
    let (mut rows, _) = Rows::planted(&mut rng, &targets[..1], 300);
    rows.points[70] = [0; 64];
    rows.points[71] = [0xff; 64];
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let labelled = [targets[1].clone()];
    for targets in [&targets[..1], &labelled] {
        found.clear();
        expected.clear();
        backend.prepare(targets).scan(rows.batch(), &mut found);
        reference_scan(targets, rows.batch(), &mut expected);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
    println!("700 rows for 5 keys in parts of three sizes");
}

fn reference_scan(targets: &[ScanTarget], batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
    backend::choose("libsecp256k1").unwrap().prepare(targets).scan(batch, found);
}

#[test]
fn a_card_that_fails_at_any_call_loses_nothing() {
    if !is_started_with_driver("a_card_that_fails_at_any_call_loses_nothing") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(2);
    let targets = [target(&mut rng, 0), target(&mut rng, 18)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 40);
    let reference = Engine::new(backend::choose("libsecp256k1").unwrap(), 2).unwrap();
    let expected = scan(&reference, &targets, rows.batch());
    assert_eq!(expected.len(), wanted.len());
    // Twice, as the second time it may have failed already.
    let twice = |backend| {
        let engine = Engine::new(backend, 2).unwrap();
        [(); 2].map(|()| scan(&engine, &targets, rows.batch()))
    };
    assert_eq!(twice(backend::choose("cuda").unwrap()), [expected.clone(), expected.clone()]);
    let calls: u32 = std::fs::read_to_string(folder().join("calls")).unwrap().parse().unwrap();
    let mut refused = 0;
    for after in 0..=calls {
        std::fs::write(folder().join("fail"), after.to_string()).unwrap();
        match backend::choose("cuda") {
            // It failed while it was being opened.
            Err(_) => refused += 1,
            Ok(backend) => {
                assert_eq!(twice(backend), [expected.clone(), expected.clone()], "{after} calls")
            }
        }
    }
    println!("failed after every number of calls up to {calls}, {refused} of them while being opened");
    assert!(refused > 3);
}

#[test]
fn keys_are_overwritten() {
    if !is_started_with_driver("keys_are_overwritten") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(3);
    let targets = [target(&mut rng, 0), target(&mut rng, 3)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 50);
    let backend = backend::choose("cuda").unwrap();
    for _ in 0..2 {
        let mut found = Vec::new();
        backend.prepare(&targets).scan(rows.batch(), &mut found);
        assert_eq!(found.len(), wanted.len());
        // Larger than before, so that memory is given back on the way.
        let (more, wanted) = Rows::planted(&mut rng, &targets, 120);
        let prepared = backend.prepare(&targets);
        found.clear();
        prepared.scan(more.batch(), &mut found);
        assert_eq!(found.len(), wanted.len());
    }
    // With keys still on the card.
    let prepared = backend.prepare(&targets);
    prepared.scan(rows.batch(), &mut Vec::new());
    drop(backend);
    drop(prepared);
    let leaks = std::fs::read_to_string(folder().join("leaks")).unwrap_or_default();
    assert_eq!(leaks, "", "memory that held something of a key was given back as it was");
}
