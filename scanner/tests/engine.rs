//! The engine over the reference backend: parts, order, confirmation, progress and cancelling.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peregrine_scanner::backend::{self, BackendError};
use peregrine_scanner::{
    Address, AddressNetwork, Backend, Candidate, Control, Engine, Label, Match, PreparedScan, RowBatch,
    ScanError, ScanKey, ScanTarget, SpendKey, Tweak, send,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use secp256k1::SecretKey;

/// Rows of one segment, as the index would hold them.
#[derive(Default)]
struct Rows {
    points: Vec<[u8; 64]>,
    ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
}

impl Rows {
    fn push(&mut self, tweak: &Tweak, outputs: &[[u8; 32]]) {
        self.points.push(tweak.to_row());
        self.outputs.extend(outputs.iter().map(|key| <[u8; 8]>::try_from(&key[..8]).unwrap()));
        self.ends.push(self.outputs.len() as u32);
    }

    fn batch(&self, first_row: u64) -> RowBatch<'_> {
        RowBatch {
            place: None,
            first_row,
            points: &self.points,
            output_ends: &self.ends,
            outputs_base: 0,
            outputs: &self.outputs,
        }
    }
}

fn target(seed: u8, labels: &[u32]) -> ScanTarget {
    let spend = SpendKey::from_bytes([seed + 100; 32]).unwrap().public_key();
    ScanTarget::new(ScanKey::from_bytes([seed; 32]).unwrap(), spend, labels.iter().copied()).unwrap()
}

/// The x-only key of output k = 0 for a target and one of its slots, and the transaction's tweak. Made the way a
/// sender does, with one input.
fn payment(rng: &mut StdRng, target: &ScanTarget, slot: usize) -> (Tweak, [u8; 32]) {
    let key = SecretKey::from_secret_bytes(rng.random()).unwrap();
    let coin = peregrine_scanner::synthetic::Coin {
        kind: peregrine_scanner::synthetic::InputKind::P2wpkh,
        key,
        outpoint: bitcoin::OutPoint::new(bitcoin::hashes::Hash::from_byte_array(rng.random()), 1),
        value: 1000,
    };
    let spend = match slot {
        0 => *target.spend_key(),
        _ => target.labels()[slot - 1].apply(target.spend_key()).unwrap(),
    };
    let address = Address::new(AddressNetwork::Mainnet, target.scan_key().public_key(), spend);
    let output = send::output_keys(&[coin.input_key().unwrap()], [coin.outpoint], &[address]).unwrap()[0];
    let script = bitcoin::ScriptBuf::from_bytes([&[0x51, 0x20], &output[..]].concat());
    let out = bitcoin::TxOut { value: bitcoin::Amount::ZERO, script_pubkey: script };
    let transaction = peregrine_scanner::synthetic::spend(std::slice::from_ref(&coin), vec![out]);
    (peregrine_scanner::transaction_tweak(&transaction, &[coin.output()]).unwrap(), output)
}

fn scan(engine: &Engine, targets: &[ScanTarget], batches: &[RowBatch<'_>]) -> Vec<Match> {
    let control = Control { cancel: &AtomicBool::new(false), progress: &|_| () };
    engine.scan(targets, batches, control).unwrap()
}

#[test]
fn finds_what_was_planted_in_order_over_parts_and_batches() {
    let mut rng = StdRng::seed_from_u64(1);
    let targets = [target(1, &[]), target(2, &[1, 7]), target(3, &[5])];
    let (mut first, mut second) = (Rows::default(), Rows::default());
    let mut planted = Vec::new();
    for row in 0..900u64 {
        let rows = if row < 500 { &mut first } else { &mut second };
        let who = rng.random_range(0..3);
        let slot = rng.random_range(0..=targets[who].labels().len());
        let (tweak, output) = payment(&mut rng, &targets[who], slot);
        let mut outputs: Vec<[u8; 32]> = (0..rng.random_range(0..3)).map(|_| rng.random()).collect();
        if row % 7 == 0 || outputs.is_empty() {
            outputs.insert(rng.random_range(0..=outputs.len()), output);
            planted.push(Match { row: 40 + row, target: who, tweak, slots: vec![slot as u32] });
        }
        rows.push(&tweak, &outputs);
    }
    assert!(planted.len() > 100);
    for threads in [1, 2] {
        let engine = Engine::new(backend::choose("libsecp256k1").unwrap(), threads).unwrap();
        assert_eq!(engine.threads(), threads);
        let found = scan(&engine, &targets, &[first.batch(40), second.batch(540)]);
        assert_eq!(found, planted);
    }
    // A part in the middle of a segment keeps its numbers.
    let engine = Engine::new(backend::choose("libsecp256k1").unwrap(), 2).unwrap();
    let found = scan(&engine, &targets, &[first.batch(40).slice(100..300)]);
    let wanted: Vec<Match> = planted.into_iter().filter(|found| (140..340).contains(&found.row)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn labels_that_were_not_asked_for_are_not_found_but_change_always_is() {
    let mut rng = StdRng::seed_from_u64(2);
    let all = target(9, &[1, 2]);
    let mut rows = Rows::default();
    for slot in 0..=3 {
        let (tweak, output) = payment(&mut rng, &all, slot);
        rows.push(&tweak, &[output]);
    }
    let engine = Engine::new(backend::choose("auto").unwrap(), 1).unwrap();
    let found = |labels: &[u32]| -> Vec<(u64, u32)> {
        let target = target(9, labels);
        let label = |slot: u32| if slot == 0 { 99 } else { target.labels()[slot as usize - 1].m() };
        let matches = scan(&engine, std::slice::from_ref(&target), &[rows.batch(0)]);
        matches.iter().map(|found| (found.row, label(found.slots[0]))).collect()
    };
    assert_eq!(found(&[]), [(0, 99), (1, Label::CHANGE)]);
    assert_eq!(found(&[2]), [(0, 99), (1, Label::CHANGE), (3, 2)]);
    assert_eq!(found(&[1, 2]), [(0, 99), (1, Label::CHANGE), (2, 1), (3, 2)]);
}

#[test]
fn progress_counts_every_row_once_and_empty_input_is_fine() {
    let mut rng = StdRng::seed_from_u64(3);
    let target = target(1, &[]);
    let mut rows = Rows::default();
    for _ in 0..777 {
        let (tweak, _) = payment(&mut rng, &target, 0);
        rows.push(&tweak, &[rng.random()]);
    }
    let engine = Engine::new(backend::choose("libsecp256k1").unwrap(), 2).unwrap();
    let highest = AtomicU64::new(0);
    let progress = |done| _ = highest.fetch_max(done, Ordering::Relaxed);
    let control = Control { cancel: &AtomicBool::new(false), progress: &progress };
    assert_eq!(engine.scan(&[target], &[rows.batch(0)], control).unwrap(), []);
    assert_eq!(highest.load(Ordering::Relaxed), 777);
    assert_eq!(scan(&engine, &[], &[rows.batch(0)]), []);
    assert_eq!(scan(&engine, &[self::target(1, &[])], &[]), []);
    assert_eq!(scan(&engine, &[self::target(1, &[])], &[Rows::default().batch(5)]), []);
}

#[test]
fn stops_soon_after_being_told() {
    let mut rng = StdRng::seed_from_u64(4);
    let target = target(1, &[]);
    let (tweak, _) = payment(&mut rng, &target, 0);
    let mut rows = Rows::default();
    for _ in 0..2_000_000 {
        rows.push(&tweak, &[[7; 32]]);
    }
    let engine = Engine::new(backend::choose("libsecp256k1").unwrap(), 2).unwrap();
    let cancel = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let started = Instant::now();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancel.store(true, Ordering::Relaxed);
        });
        let progress = |rows| done.store(rows, Ordering::Relaxed);
        engine.scan(&[target], &[rows.batch(0)], Control { cancel: &cancel, progress: &progress })
    });
    assert!(matches!(result, Err(ScanError::Cancelled)));
    // Two million rows take a minute or more; how soon it stopped is for a bench to say, that it stopped is for here.
    assert!(done.load(Ordering::Relaxed) < 1_000_000, "{:?}", started.elapsed());
}

/// Claims a match in every row.
struct Liar;

impl Backend for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn prepare(&self, _: &[ScanTarget]) -> Box<dyn PreparedScan> {
        Box::new(Liar)
    }
}

impl PreparedScan for Liar {
    fn batch_rows(&self) -> usize {
        10
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        found.extend((0..batch.len() as u32).map(|row| Candidate { row, target: 0, slot: 0 }));
    }
}

#[test]
fn what_the_reference_does_not_confirm_reaches_nobody() {
    let mut rng = StdRng::seed_from_u64(5);
    let target = target(1, &[]);
    let mut rows = Rows::default();
    for row in 0..35 {
        let (tweak, output) = payment(&mut rng, &target, 1);
        rows.push(&tweak, &[if row == 20 { output } else { rng.random() }]);
    }
    let engine = Engine::new(Box::new(Liar), 1).unwrap();
    let found = scan(&engine, &[target], &[rows.batch(0)]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].row, found[0].slots.as_slice()), (20, &[1][..]));
}

#[test]
fn an_unknown_backend_is_an_error_that_names_the_known_ones() {
    let error = backend::choose("abacus").err().unwrap();
    assert!(matches!(&error, BackendError::Unknown { name } if name == "abacus"));
    assert!(error.to_string().contains("libsecp256k1"));
}

#[test]
fn rows_that_are_not_points_match_nothing() {
    let target = target(1, &[]);
    let mut rows = Rows::default();
    for bytes in [[0; 64], [0xff; 64], [1; 64]] {
        rows.points.push(bytes);
        rows.outputs.push([0; 8]);
        rows.ends.push(rows.outputs.len() as u32);
    }
    let engine = Engine::new(backend::choose("libsecp256k1").unwrap(), 1).unwrap();
    assert_eq!(scan(&engine, &[target], &[rows.batch(0)]), []);
}
