//! The CUDA backend on a driver without a card (`fake_cuda/driver.cpp`), which runs the kernels on the processor: that what is
//! copied, started and read fits, that nothing is missed when the card fails, and that keys don't stay on it.
//!
//! The system finds the driver where it looks for it when a process starts, so these tests start themselves again. A C++
//! compiler is needed: `CXX`, or `c++`.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Rows, by_reference, in_parts, scan, secret, target};
use peregrine_scanner::backend::{self, Selection, cuda};
use peregrine_scanner::{Backend, Control, Engine, Place, ScanError, ScanKey, ScanTarget};
use rand::SeedableRng;
use rand::rngs::StdRng;

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
    if toolkit().exists() {
        // As a toolkit has it that was installed for developers.
        std::os::unix::fs::symlink(toolkit().join("libnvrtc.so.13"), folder.join("libnvrtc.so")).unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", format!("{}:{}", folder.display(), toolkit().display()))
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

/// Where `kernels/cuda/toolkit.sh` puts NVRTC, whether it is there or not.
fn toolkit() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    cache.join("peregrine/cuda-13.5.37/nvidia/cu13/lib")
}

#[test]
fn the_toolkit_compiles_the_kernels_where_it_is_asked_to() {
    let test = "the_toolkit_compiles_the_kernels_where_it_is_asked_to";
    if !toolkit().join("libnvrtc.so.13").exists() {
        eprintln!("SKIPPED: NVRTC isn't there (kernels/cuda/toolkit.sh fetches it)");
        return;
    }
    if !is_started_with_driver(test) {
        return;
    }
    let choose = |architecture: &str| {
        let cuda_arch = Some(architecture.to_owned());
        backend::choose_with("cuda", &Selection { cuda_arch, ..Selection::default() })
    };
    // The card says that it is an sm_90; the driver takes any cubin.
    for architecture in ["native", "sm_80", "sm_89", "sm_120"] {
        assert_eq!(choose(architecture).unwrap().name(), "cuda", "{architecture}");
    }
    for architecture in ["sm_1", "compute_90", "nonsense"] {
        let error = choose(architecture).err().unwrap().to_string();
        assert!(error.contains("compiling the kernels") || error.contains("architecture"), "{error}");
    }
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

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("these tests are started by others").into()
}

/// A file that the driver reads when a card is opened.
fn say(name: &str, text: impl ToString) {
    std::fs::write(folder().join(name), text.to_string()).unwrap();
}

/// A number that the driver wrote when a card was closed.
fn told(name: &str) -> u64 {
    std::fs::read_to_string(folder().join(name)).unwrap().parse().unwrap()
}

fn cuda_backend() -> Box<dyn Backend> {
    backend::choose("cuda").unwrap()
}

fn engine(backend: Box<dyn Backend>) -> Engine {
    Engine::new(backend, 2).unwrap()
}

fn reference_engine() -> Engine {
    engine(backend::choose("libsecp256k1").unwrap())
}

#[test]
fn finds_what_the_reference_finds() {
    if !is_started_with_driver("finds_what_the_reference_finds") {
        return;
    }
    let cards = cuda::cards().unwrap();
    assert_eq!((cards[0].name.as_str(), cards[0].capability, cards.len()), ("no card", (9, 0), 1));
    let backend = cuda_backend();
    let mut rng = StdRng::seed_from_u64(1);
    // More labels than one pass takes; several keys; the scan key 1, whose ladder is one load.
    let mut targets =
        vec![target(&mut rng, 0), target(&mut rng, 1), target(&mut rng, 20), target(&mut rng, 37)];
    let one = core::array::from_fn(|i| u8::from(i == 31));
    targets.push(ScanTarget::new(ScanKey::from_bytes(one).unwrap(), secret(&mut rng).1, 1..=1).unwrap());
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 700);
    let prepared = backend.prepare(&targets);
    for part in [700, 129, 41] {
        assert_eq!(in_parts(&*prepared, rows.batch(), part), wanted, "parts of {part}");
    }
    let few = rows.batch().slice(0..20);
    assert_eq!(in_parts(&*prepared, few, 1), by_reference(&targets, few));
    // Rows that are no points, and keys made to cancel.
    let (mut rows, _) = Rows::planted(&mut rng, &targets[..1], 300);
    rows.points[70] = [0; 64];
    rows.points[71] = [0xff; 64];
    for targets in [&targets[..1], &targets[1..2]] {
        let prepared = backend.prepare(targets);
        assert_eq!(in_parts(&*prepared, rows.batch(), 300), by_reference(targets, rows.batch()));
    }
    println!("700 rows for 5 keys in parts of three sizes");
}

#[test]
fn a_card_that_fails_at_any_call_loses_nothing() {
    if !is_started_with_driver("a_card_that_fails_at_any_call_loses_nothing") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(2);
    let targets = [target(&mut rng, 0), target(&mut rng, 18)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 40);
    let expected = scan(&reference_engine(), &targets, rows.batch());
    assert_eq!(expected.len(), wanted.len());
    // Twice, as the second time it may have failed already.
    let twice = |backend| {
        let engine = engine(backend);
        [(); 2].map(|()| scan(&engine, &targets, rows.batch()))
    };
    assert_eq!(twice(cuda_backend()), [expected.clone(), expected.clone()]);
    let (mut refused, mut tried) = (0, 0);
    for after in 0.. {
        say("fail", format!("0 {after}"));
        match backend::choose("cuda") {
            // It failed while it was being opened.
            Err(_) => refused += 1,
            Ok(backend) => {
                assert_eq!(twice(backend), [expected.clone(), expected.clone()], "{after} calls");
                // It was asked so often only because it didn't fail.
                if told("calls0") < after {
                    break;
                }
                tried += 1;
            }
        }
    }
    println!("failed {refused} times while being opened and {tried} times later, at every call");
    assert!(refused > 20 && tried > 20);
}

#[test]
fn parts_that_a_card_hands_back_are_done_by_others() {
    if !is_started_with_driver("parts_that_a_card_hands_back_are_done_by_others") {
        return;
    }
    say("cards", 2);
    let mut rng = StdRng::seed_from_u64(4);
    let targets = [target(&mut rng, 1)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 2500);
    let expected = scan(&reference_engine(), &targets, rows.batch());
    assert_eq!(expected.len(), wanted.len());
    let card = |name: &str| Selection { names: vec![name.to_owned()], ..Selection::default() };
    drop(backend::choose_with("cuda", &card("0")).unwrap());
    let trial = [told("rows0"), told("calls0")];
    assert_eq!(scan(&engine(cuda_backend()), &targets, rows.batch()), expected);
    // Nobody else did anything, and no row was done twice.
    assert_eq!(told("rows0") + told("rows1"), 2 * trial[0] + 2500);
    assert!(told("rows0") > trial[0] && told("rows1") > trial[0], "both took part");
    let mut handed_back = 0;
    for after in (trial[1]..told("calls1") + 20).step_by(5) {
        say("fail", format!("1 {after}"));
        let engine = engine(cuda_backend());
        assert_eq!(scan(&engine, &targets, rows.batch()), expected, "{after} calls");
        let working = engine.devices().iter().map(|device| device.working).collect::<Vec<_>>();
        assert!(working[0]);
        handed_back += u32::from(!working[1]);
    }
    // One that is there only by name.
    assert_eq!(backend::choose_with("cuda", &card("EITHER")).unwrap().devices().len(), 1);
    let error = backend::choose_with("cuda", &card("2")).err().unwrap().to_string();
    assert!(error.contains("no card has the number or name '2'"), "{error}");
    println!("the second card failed at {handed_back} places");
    assert!(handed_back > 5);
}

#[test]
fn a_card_that_hangs_is_given_up() {
    if !is_started_with_driver("a_card_that_hangs_is_given_up") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(5);
    let targets = [target(&mut rng, 2)];
    let (rows, _) = Rows::planted(&mut rng, &targets, 1500);
    let expected = scan(&reference_engine(), &targets, rows.batch());
    // In the trial, and later.
    let selection = Selection { patience: Some(Duration::from_millis(100)), ..Selection::default() };
    say("hang", "0 2");
    let error = backend::choose_with("cuda", &selection).err().unwrap();
    assert!(error.to_string().contains("no answer for 0.1 s"), "{error}");
    say("cards", 2);
    say("hang", "1 40");
    let engine = engine(backend::choose_with("cuda", &selection).unwrap());
    for _ in 0..5 {
        assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    }
    assert_eq!(engine.devices().iter().map(|device| device.working).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_card_that_failed_is_tried_again() {
    if !is_started_with_driver("a_card_that_failed_is_tried_again") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(9);
    let targets = [target(&mut rng, 1)];
    let (rows, _) = Rows::planted(&mut rng, &targets, 600);
    let expected = scan(&reference_engine(), &targets, rows.batch());
    drop(cuda_backend());
    let trial = told("calls0");
    say("fail", format!("0 {}", trial + 20));
    let rest = Duration::from_millis(300);
    let engine = engine(
        backend::choose_with("cuda", &Selection { rest: Some(rest), ..Selection::default() }).unwrap(),
    );
    let working = || engine.devices()[0].working;
    assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    assert!(!working());
    // Still resting, and then still broken: it isn't asked again at once.
    assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    say("fail", "0 3");
    std::thread::sleep(rest);
    assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    assert!(!working());
    std::fs::remove_file(folder().join("fail")).unwrap();
    std::thread::sleep(rest);
    assert_eq!(scan(&engine, &targets, rows.batch()), expected);
    assert!(working());
    drop(engine);
    assert!(told("rows0") >= 600, "it took its part");
}

#[test]
fn a_card_that_computes_wrong_isnt_used() {
    if !is_started_with_driver("a_card_that_computes_wrong_isnt_used") {
        return;
    }
    say("wrong", "0 200");
    let error = backend::choose("cuda").err().unwrap().to_string();
    assert!(error.contains("it missed") && error.contains("of 256 payments in a test"), "{error}");
    // A broken card is no reason not to scan.
    assert_ne!(backend::choose("auto").unwrap().name(), "cuda");
}

#[test]
fn rows_stay_on_the_card() {
    if !is_started_with_driver("rows_stay_on_the_card") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(6);
    let targets = [target(&mut rng, 1)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 2000);
    let bytes = (2000 * 68 + rows.outputs.len() * 8) as u64;
    // So many times, with what is sent for keys taken away.
    let sent = |times: usize, selection: &Selection, batch: fn(&Rows) -> peregrine_scanner::RowBatch<'_>| {
        let mut runs = [false, true].map(|with_rows| {
            let backend = backend::choose_with("cuda", selection).unwrap();
            for _ in 0..times {
                let prepared = backend.prepare(&targets);
                let all = if with_rows { batch(&rows) } else { batch(&rows).slice(0..1) };
                let found = in_parts(&*prepared, all, 500);
                if with_rows {
                    assert_eq!(found, wanted);
                    let resident = backend.devices()[0].resident_bytes;
                    assert!(resident <= backend.devices()[0].budget_bytes);
                }
            }
            drop(backend);
            told("sent0") as i64
        });
        runs.sort_unstable();
        (runs[1] - runs[0]) as u64
    };
    // One row of each run without rows was sent, too.
    let near = |sent: u64, wanted: u64| sent.abs_diff(wanted) <= 3 * (68 + 4 * 8);
    let plain = Selection::default();
    assert!(near(sent(1, &plain, Rows::batch), bytes));
    assert!(near(sent(3, &plain, Rows::batch), bytes), "later scans bring nothing");
    // What no index has, and what there is no room for, is brought every time.
    assert!(near(
        sent(3, &plain, |rows| peregrine_scanner::RowBatch { place: None, ..rows.batch() }),
        3 * bytes
    ));
    let nothing = Selection { budget: Some(0), ..Selection::default() };
    assert!(near(sent(3, &nothing, Rows::batch), 3 * bytes));
    let half = Selection { budget: Some(bytes / 2), ..Selection::default() };
    let brought = sent(3, &half, Rows::batch);
    assert!(brought > bytes && brought < 3 * bytes, "{brought} of {bytes}");
    // A card whose memory is full before its budget is.
    say("memory", format!("0 {}", (5 << 20) + 1_900_000));
    let plenty = Selection { budget: Some(1 << 30), ..Selection::default() };
    let brought = sent(3, &plenty, Rows::batch);
    println!("{brought} bytes brought in three scans of {bytes}");
}

#[test]
fn rows_that_changed_are_brought_again() {
    if !is_started_with_driver("rows_that_changed_are_brought_again") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(7);
    let targets = [target(&mut rng, 1)];
    let backend = cuda_backend();
    let prepared = backend.prepare(&targets);
    let (old, old_wanted) = Rows::planted(&mut rng, &targets, 900);
    let (new, new_wanted) = Rows::planted(&mut rng, &targets, 900);
    assert_eq!(in_parts(&*prepared, old.batch(), 300), old_wanted);
    let resident = backend.devices()[0].resident_bytes;
    assert!(resident >= 900 * 68);
    // The same numbers, after blocks were taken back.
    assert_eq!(in_parts(&*prepared, new.batch(), 300), new_wanted);
    assert_eq!(in_parts(&*prepared, old.batch(), 300), old_wanted);
    assert!(backend.devices()[0].resident_bytes < 2 * resident, "what is out of date goes");
    // New rows behind those that are there, and parts of what is there.
    let (all, wanted) = Rows::planted(&mut rng, &targets, 900);
    for end in [100, 101, 130, 350, 900] {
        let part = all.batch().slice(0..end);
        let expected = wanted.iter().filter(|candidate| (candidate.row as usize) < end).copied().collect();
        assert_eq!(in_parts(&*prepared, part, 256), expected);
    }
    for range in [0..3, 0..256, 17..60, 24..280, 255..257, 700..900] {
        let part = all.batch().slice(range.clone());
        assert_eq!(in_parts(&*prepared, part, 1000), by_reference(&targets, part), "{range:?}");
    }
    let place = all.batch().place.unwrap();
    assert_eq!(all.batch().slice(5..9).place, Some(Place { row: place.row + 5, ..place }));
}

#[test]
fn a_scan_on_cards_can_be_stopped() {
    if !is_started_with_driver("a_scan_on_cards_can_be_stopped") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(8);
    let targets = [target(&mut rng, 0)];
    let (rows, _) = Rows::planted(&mut rng, &targets, 3000);
    let engine = engine(cuda_backend());
    let cancel = AtomicBool::new(false);
    let progress = |_| cancel.store(true, Ordering::Relaxed);
    let control = Control { cancel: &cancel, progress: &progress };
    let stopped = engine.scan(&targets, &[rows.batch()], control);
    assert!(matches!(stopped, Err(ScanError::Cancelled)), "{stopped:?}");
    drop(engine);
    assert!(told("rows0") < 3000 + 2000, "it went on");
}

#[test]
fn keys_are_overwritten() {
    if !is_started_with_driver("keys_are_overwritten") {
        return;
    }
    let mut rng = StdRng::seed_from_u64(3);
    let targets = [target(&mut rng, 0), target(&mut rng, 3)];
    let (rows, wanted) = Rows::planted(&mut rng, &targets, 50);
    let backend = cuda_backend();
    for _ in 0..2 {
        assert_eq!(in_parts(&*backend.prepare(&targets), rows.batch(), 50), wanted);
        // Larger than before, so that memory is given back on the way.
        let (more, wanted) = Rows::planted(&mut rng, &targets, 420);
        assert_eq!(in_parts(&*backend.prepare(&targets), more.batch(), 420), wanted);
    }
    // With keys still on the card.
    let prepared = backend.prepare(&targets);
    in_parts(&*prepared, rows.batch(), 50);
    drop(backend);
    drop(prepared);
    assert!(told("rows0") > 0, "the card was closed");
    let leaks = std::fs::read_to_string(folder().join("leaks")).unwrap_or_default();
    assert_eq!(leaks, "", "memory that held something of a key was given back as it was");
}
