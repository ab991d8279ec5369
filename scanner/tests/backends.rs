//! Every backend that the processor has gives what the reference gives, on every row.
//!
//! A backend only tells of matches, so a row without one would prove nothing. Here every row holds the key that the
//! reference computes for it, in a random slot: a backend that computes anything else misses the row.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::OnceLock;

use peregrine_kernels::Isa;
use peregrine_scanner::backend::{
    self, Backend, Candidate, RowBatch, Selection, lanes::Lanes, reference, wgpu,
};
use peregrine_scanner::{ScanKey, ScanTarget, SpendKey, Tweak};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use secp256k1::{PublicKey, Scalar, SecretKey};

/// The order of the curve, less one.
const MINUS_ONE: [u8; 32] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0xba,
    0xae, 0xdc, 0xe6, 0xaf, 0x48, 0xa0, 0x3b, 0xbf, 0xd2, 0x5e, 0x8c, 0xd0, 0x36, 0x41, 0x40,
];

/// The eigenvalue of the endomorphism: λ·(x, y) = (βx, y).
const LAMBDA: [u8; 32] = [
    0x53, 0x63, 0xad, 0x4c, 0xc0, 0x5c, 0x30, 0xe0, 0xa5, 0x26, 0x1c, 0x02, 0x88, 0x12, 0x64, 0x5a, 0x12,
    0x2e, 0x22, 0xea, 0x20, 0x81, 0x66, 0x78, 0xdf, 0x02, 0x96, 0x7c, 0x1b, 0x23, 0xbd, 0x72,
];

/// Rows in which something is to be found, and something isn't.
#[derive(Default)]
struct Rows {
    points: Vec<[u8; 64]>,
    ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
}

impl Rows {
    fn batch(&self) -> RowBatch<'_> {
        RowBatch {
            place: None,
            first_row: 0,
            points: &self.points,
            output_ends: &self.ends,
            outputs_base: 0,
            outputs: &self.outputs,
        }
    }

    /// Each point with the reference's key of one target and slot among its outputs.
    fn audit(rng: &mut StdRng, targets: &[ScanTarget], points: Vec<[u8; 64]>) -> (Self, BTreeSet<Candidate>) {
        let seeds: Vec<u64> = points.iter().map(|_| rng.random()).collect();
        let keys: Vec<_> = points
            .par_iter()
            .zip(seeds)
            .map(|(point, seed)| {
                let mut rng = StdRng::seed_from_u64(seed);
                let target = rng.random_range(0..targets.len());
                let keys = reference::row_keys(&targets[target], point);
                let slot = rng.random_range(0..=targets[target].labels().len());
                (target as u32, slot as u32, keys.get(slot).copied().flatten())
            })
            .collect();
        let mut rows = Self { points, ..Self::default() };
        let mut wanted = BTreeSet::new();
        for (row, (target, slot, key)) in (0..).zip(keys) {
            let decoy = rng.random();
            match key {
                Some(key) => {
                    rows.outputs.extend([decoy, <[u8; 8]>::try_from(&key[..8]).unwrap()]);
                    wanted.insert(Candidate { row, target, slot });
                }
                None => rows.outputs.push(decoy),
            }
            rows.ends.push(rows.outputs.len() as u32);
        }
        (rows, wanted)
    }
}

fn scan(backend: &dyn Backend, targets: &[ScanTarget], batch: RowBatch<'_>) -> BTreeSet<Candidate> {
    let prepared = backend.prepare(targets);
    // It may change while it computes.
    let rows = prepared.batch_rows();
    let parts: Vec<usize> = (0..batch.len()).step_by(rows).collect();
    let parts: Vec<Vec<Candidate>> = parts
        .into_par_iter()
        .map(|from| {
            let to = batch.len().min(from + rows);
            let mut found = Vec::new();
            prepared.scan(batch.slice(from..to), &mut found);
            let distinct: BTreeSet<Candidate> = found.iter().copied().collect();
            assert_eq!(distinct.len(), found.len(), "a candidate is told once");
            found.iter_mut().for_each(|candidate| candidate.row += from as u32);
            found
        })
        .collect();
    parts.into_iter().flatten().collect()
}

/// The backends to test: all but the reference, and every adapter that wgpu finds. Says once which those are.
fn backends() -> impl Iterator<Item = &'static dyn Backend> {
    static BACKENDS: OnceLock<Vec<Box<dyn Backend>>> = OnceLock::new();
    let backends = BACKENDS.get_or_init(|| {
        let of_processor = backend::available().into_iter().filter(|b| b.name() != "libsecp256k1");
        let mut backends: Vec<_> = of_processor.collect();
        let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
        assert!(names.contains(&"scalar"));
        let missing = Isa::ALL.iter().filter(|isa| !isa.is_available());
        let missing: Vec<&str> = missing.map(|isa| isa.name()).collect();
        // Not `println!`: that of a test that passes is hidden.
        let mut log = std::io::stderr();
        let _ = writeln!(log, "backends tested: {names:?}; not on this processor: {missing:?}");
        let adapters = wgpu::adapters();
        for (number, adapter) in adapters.iter().enumerate() {
            let selection = Selection { names: vec![number.to_string()], ..Selection::default() };
            let _ = writeln!(log, "wgpu adapter tested: {adapter:?}");
            backends.push(backend::choose_with("wgpu", &selection).unwrap());
        }
        if adapters.is_empty() {
            let _ = writeln!(log, "SKIPPED: wgpu finds no adapter here (mesa-vulkan-drivers has one)");
        }
        backends
    });
    backends.iter().map(|backend| &**backend)
}

/// n·G as a row for n = first, first + step, …
fn points(first: [u8; 32], count: usize) -> Vec<[u8; 64]> {
    let step = PublicKey::from_secret_key(&SecretKey::from_secret_bytes([0x37; 32]).unwrap());
    let mut point = PublicKey::from_secret_key(&SecretKey::from_secret_bytes(first).unwrap());
    (0..count)
        .map(|_| {
            let row = Tweak(point).to_row();
            point = point.combine(&step).unwrap();
            row
        })
        .collect()
}

fn small(n: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[31] = n;
    bytes
}

fn multiple(of: [u8; 32]) -> PublicKey {
    PublicKey::from_secret_key(&SecretKey::from_secret_bytes(of).unwrap())
}

fn negated(bytes: [u8; 32]) -> [u8; 32] {
    SecretKey::from_secret_bytes(bytes).unwrap().negate().to_secret_bytes()
}

fn target(scan: [u8; 32], spend: PublicKey, labels: &[u32]) -> ScanTarget {
    ScanTarget::new(ScanKey::from_bytes(scan).unwrap(), spend, labels.iter().copied()).unwrap()
}

fn random_target(rng: &mut StdRng, labels: &[u32]) -> ScanTarget {
    target(rng.random(), SpendKey::from_bytes(rng.random()).unwrap().public_key(), labels)
}

#[test]
fn a_hundred_thousand_random_rows() {
    let mut rng = StdRng::seed_from_u64(100);
    let targets = [random_target(&mut rng, &[1, 2, 3])];
    let (rows, wanted) = Rows::audit(&mut rng, &targets, points([5; 32], 100_003));
    assert_eq!(wanted.len(), 100_003);
    for backend in backends() {
        assert!(scan(backend, &targets, rows.batch()) == wanted, "{}", backend.name());
    }
}

#[test]
fn many_keys_at_once() {
    let mut rng = StdRng::seed_from_u64(101);
    for keys in [2, 3, 4, 7, 8, 16, 33, 64] {
        let targets: Vec<ScanTarget> = (0..keys).map(|key| random_target(&mut rng, &[1, key])).collect();
        let (rows, wanted) = Rows::audit(&mut rng, &targets, points([6; 32], 700));
        for backend in backends() {
            assert_eq!(scan(backend, &targets, rows.batch()), wanted, "{} {keys} keys", backend.name());
        }
    }
}

#[test]
fn any_number_of_rows() {
    let mut rng = StdRng::seed_from_u64(102);
    let targets = [random_target(&mut rng, &[])];
    let (rows, wanted) = Rows::audit(&mut rng, &targets, points([7; 32], 150));
    for backend in backends() {
        for count in 0..=rows.points.len() {
            let batch = rows.batch().slice(0..count);
            let mut found = Vec::new();
            backend.prepare(&targets).scan(batch, &mut found);
            let wanted: Vec<Candidate> =
                wanted.iter().filter(|c| (c.row as usize) < count).copied().collect();
            found.sort_unstable();
            assert_eq!(found, wanted, "{} {count} rows", backend.name());
        }
    }
}

#[test]
fn hostile_keys_and_rows() {
    let mut rng = StdRng::seed_from_u64(103);
    let lambda_point = multiple(LAMBDA);
    let mut scan_keys: Vec<[u8; 32]> = (1..=9).map(small).collect();
    scan_keys.extend([MINUS_ONE, LAMBDA, negated(LAMBDA), negated(small(2)), negated(small(3))]);
    for offset in [1u8, 2] {
        for base in [LAMBDA, negated(LAMBDA)] {
            let key = SecretKey::from_secret_bytes(base).unwrap();
            let plus = Scalar::from_be_bytes(small(offset)).unwrap();
            let minus = Scalar::from_be_bytes(negated(small(offset))).unwrap();
            scan_keys.extend(
                [key.add_tweak(&plus).unwrap(), key.add_tweak(&minus).unwrap()].map(|k| k.to_secret_bytes()),
            );
        }
    }
    // 2^i, 2^i - 1 and 2^i + 1 reach every carry of a recoding.
    for bit in (0..256).step_by(17).chain([63, 64, 127, 128, 129, 255]) {
        let mut key = [0; 32];
        key[31 - bit / 8] = 1 << (bit % 8);
        let power = SecretKey::from_secret_bytes(key);
        let one = Scalar::from_be_bytes(small(1)).unwrap();
        let minus_one = Scalar::from_be_bytes(MINUS_ONE).unwrap();
        let near = power.iter().flat_map(|key| [Ok(*key), key.add_tweak(&one), key.add_tweak(&minus_one)]);
        scan_keys.extend(near.flatten().map(|key| key.to_secret_bytes()));
    }
    let spends: Vec<PublicKey> = (1..=4)
        .map(|n| multiple(small(n)))
        .chain([multiple(MINUS_ONE), lambda_point, multiple(negated(LAMBDA)), multiple([9; 32])])
        .collect();
    // ±G, ±λG, ±small multiples, and ordinary points between them.
    let mut hostile: Vec<[u8; 64]> = (1..=8u8)
        .flat_map(|n| [small(n), negated(small(n))])
        .chain([LAMBDA, negated(LAMBDA)])
        .map(|scalar| Tweak(multiple(scalar)).to_row())
        .collect();
    hostile.extend(points([8; 32], 12));
    for (number, scan_key) in scan_keys.into_iter().enumerate() {
        let targets = [target(scan_key, spends[number % spends.len()], &[1])];
        let (rows, wanted) = Rows::audit(&mut rng, &targets, hostile.clone());
        for backend in backends() {
            assert_eq!(scan(backend, &targets, rows.batch()), wanted, "{} key {number}", backend.name());
        }
    }
}

/// Spend keys chosen after the row: B = c·G − t·G for small c, and −(label) and −2(label) against t·G, so that sums inside
/// a backend meet equal or opposite points, or infinity.
#[test]
fn spend_keys_and_labels_that_cancel() {
    let mut rng = StdRng::seed_from_u64(104);
    let scan_key = ScanKey::from_bytes([0x42; 32]).unwrap();
    let all = points([9; 32], 40);
    for number in 0..24u8 {
        // t of row 20 for this scan key: its unlabelled key with B = G is (1 + t)·G; t itself comes from the BIP's formula.
        let victim = Tweak::from_row(&all[20]).unwrap();
        let t = t_of(&scan_key, &victim);
        let minus_t = t.negate();
        let label = peregrine_scanner::Label::new(&scan_key, 1).unwrap();
        let one = |n: u8| Scalar::from_be_bytes(small(n)).unwrap();
        let spend = match number {
            // B = −t·G: the unlabelled sum is infinity.
            0 => PublicKey::from_secret_key(&minus_t),
            // B = t·G: the sum doubles.
            1 => PublicKey::from_secret_key(&t),
            // B + t·G = −label·G: the labelled sum is infinity.
            2 => PublicKey::from_secret_key(&minus_t).combine(&label.point().negate()).unwrap(),
            // B + t·G = label·G: the labelled sum doubles.
            3 => PublicKey::from_secret_key(&minus_t).combine(label.point()).unwrap(),
            // B = c·G − t·G and c·G + t·G.
            n if n % 2 == 0 => PublicKey::from_secret_key(&minus_t.add_tweak(&one(n)).unwrap()),
            n => PublicKey::from_secret_key(&t.add_tweak(&one(n)).unwrap()),
        };
        let targets = [target([0x42; 32], spend, &[1, 2])];
        let (rows, wanted) = Rows::audit(&mut rng, &targets, all.clone());
        assert!(wanted.len() >= 39);
        for backend in backends() {
            assert_eq!(scan(backend, &targets, rows.batch()), wanted, "{} case {number}", backend.name());
        }
    }
}

/// t_0 of a transaction, by the BIP's formula.
fn t_of(scan: &ScanKey, tweak: &Tweak) -> SecretKey {
    use bitcoin::hashes::{Hash, HashEngine, sha256};
    let shared = tweak.0.mul_tweak(&Scalar::from(*scan.secret())).unwrap();
    let tag = sha256::Hash::hash(b"BIP0352/SharedSecret");
    let mut engine = sha256::Hash::engine();
    for part in [tag.as_byte_array(), tag.as_byte_array(), &shared.serialize()[..], &[0; 4]] {
        engine.input(part);
    }
    SecretKey::from_secret_bytes(sha256::Hash::from_engine(engine).to_byte_array()).unwrap()
}

/// Rows that aren't points match nothing by the reference; whatever a backend makes of them, it doesn't panic, and the
/// rows around them are right.
#[test]
fn rows_that_are_not_points_do_no_harm() {
    let mut rng = StdRng::seed_from_u64(105);
    let targets = [random_target(&mut rng, &[1])];
    let mut all = points([10; 32], 64);
    for (row, bytes) in [(3, [0; 64]), (17, [0xff; 64]), (18, [1; 64]), (40, [0x80; 64])] {
        all[row] = bytes;
    }
    let (rows, wanted) = Rows::audit(&mut rng, &targets, all);
    assert_eq!(wanted.len(), 60);
    for backend in backends() {
        assert_eq!(scan(backend, &targets, rows.batch()), wanted, "{}", backend.name());
    }
}

#[test]
fn a_backend_that_cannot_run_here_is_an_error_that_names_the_feature() {
    for isa in Isa::ALL {
        match (backend::choose(isa.name()), isa.missing_feature()) {
            (Ok(backend), None) => assert_eq!(backend.name(), isa.name()),
            (Err(error), Some(feature)) => assert!(error.to_string().contains(feature), "{error}"),
            (result, missing) => panic!("{isa}: {:?} {missing:?}", result.map(|backend| backend.name())),
        }
        assert_eq!(Lanes::new(*isa).is_ok(), isa.is_available());
    }
    // Where there is a graphics card, that is it.
    let auto = backend::choose("auto").unwrap();
    assert!(auto.feeders() > 0 || auto.name() == Isa::detect().name());
}
