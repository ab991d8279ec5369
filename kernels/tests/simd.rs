//! Every backend that the processor has against plain computations. One binary, so that it can be run under an
//! emulator; `EXPECT_ISA=avx512,ifma` makes missing instruction sets an error.

mod common;

use common::{Key, Random, Table, at_most, available, scan, small, stored, times_g};
use peregrine_kernels::testing::{self, FieldOp, OPS};
use peregrine_kernels::{Hit, Isa, KeyMaterial, Rows, Scanner, lift_x_batch, mul_batch};
use secp256k1::{PublicKey, Scalar};

const LAMBDA: [u8; 32] = [
    0x53, 0x63, 0xad, 0x4c, 0xc0, 0x5c, 0x30, 0xe0, 0xa5, 0x26, 0x1c, 0x02, 0x88, 0x12, 0x64, 0x5a, 0x12,
    0x2e, 0x22, 0xea, 0x20, 0x81, 0x66, 0x78, 0xdf, 0x02, 0x96, 0x7c, 0x1b, 0x23, 0xbd, 0x72,
];

/// Scans with every backend and compares with the reference, row by row; gives back how many rows were redone
/// at most.
fn check(points: &[PublicKey], keys: &[Key], seed: u64) -> usize {
    let table = Table::planted(points, keys, &mut Random(seed));
    let mut expected: Vec<Hit> = (0..points.len()).flat_map(|row| table.reference(row, keys)).collect();
    expected.sort_unstable();
    let materials: Vec<KeyMaterial> = keys.iter().map(Key::material).collect();
    let mut most = 0;
    for isa in available() {
        let scanner = Scanner::new(isa, &materials).expect("valid keys");
        let (hits, redone) = scan(&scanner, &table, keys);
        assert_eq!(hits, expected, "{isa}");
        println!("checked {isa} {} rows", points.len());
        most = most.max(redone);
    }
    most
}

fn points(count: usize, random: &mut Random) -> Vec<PublicKey> {
    (0..count).map(|_| random.point()).collect()
}

#[test]
fn random_rows_every_slot() {
    let mut random = Random(1);
    for labels in [0, 1, 10, 17] {
        let keys = [Key::random(&mut random, labels)];
        assert_eq!(check(&points(at_most(1500), &mut random), &keys, 2), 0, "no honest row is redone");
    }
}

#[test]
fn more_rows_than_a_chunk() {
    let mut random = Random(3);
    let keys = [Key::random(&mut random, 1)];
    assert_eq!(check(&points(at_most(9001), &mut random), &keys, 4), 0);
}

#[test]
fn many_keys() {
    let mut random = Random(5);
    for count in [2, 3, 5, 16, 33] {
        let keys: Vec<Key> = (0..count).map(|i| Key::random(&mut random, i % 3)).collect();
        assert_eq!(check(&points(at_most(200), &mut random), &keys, 6), 0);
    }
}

#[test]
fn odd_sizes() {
    let mut random = Random(7);
    let keys = [Key::random(&mut random, 1)];
    for count in (0..20).chain([31, 32, 33, 63, 65]) {
        assert_eq!(check(&points(count, &mut random), &keys, 8), 0);
    }
}

#[test]
fn special_scan_keys() {
    let mut random = Random(9);
    let mut scans: Vec<[u8; 32]> = Vec::new();
    for value in [1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 255, 256, u64::MAX] {
        scans.extend([small(value, false), small(value, true)]);
    }
    let lambda = secp256k1::SecretKey::from_secret_bytes(LAMBDA).expect("valid");
    for offset in [small(1, false), small(1, true), small(2, false), small(2, true)] {
        let sum = lambda.add_tweak(&Scalar::from_be_bytes(offset).expect("valid")).expect("not zero");
        scans.extend([sum.to_secret_bytes(), sum.negate().to_secret_bytes()]);
    }
    scans.extend([LAMBDA, lambda.negate().to_secret_bytes()]);
    // k1 = 0: multiples of λ.
    for factor in [2, 3, 1000] {
        let factor = Scalar::from_be_bytes(small(factor, false)).expect("valid");
        scans.push(lambda.mul_tweak(&factor).expect("not zero").to_secret_bytes());
    }
    let rows = points(30, &mut random);
    for scan in &scans {
        let keys = [Key { scan: *scan, ..Key::random(&mut random, 1) }];
        assert_eq!(check(&rows, &keys, 10), 0);
    }
    // The same in one pass, in the form that keeps more points per row.
    let keys: Vec<Key> =
        scans.iter().map(|scan| Key { scan: *scan, ..Key::random(&mut random, 1) }).collect();
    for keys in keys.chunks(20) {
        assert_eq!(check(&rows, keys, 11), 0);
    }
}

#[test]
fn special_tweak_points() {
    let mut random = Random(12);
    let mut rows = Vec::new();
    for value in [1, 2, 3, 4, 5, 8, 16] {
        rows.extend([times_g(value, false), times_g(value, true)]);
    }
    let lambda_g =
        PublicKey::from_secret_key(&secp256k1::SecretKey::from_secret_bytes(LAMBDA).expect("valid"));
    rows.extend([lambda_g, lambda_g.negate()]);
    rows.extend(points(50, &mut random));
    let keys: Vec<Key> = (0..3).map(|_| Key::random(&mut random, 2)).collect();
    assert_eq!(check(&rows, &keys[..1], 13), 0);
    assert_eq!(check(&rows, &keys, 14), 0);
    let own = [Key { scan: small(1, false), spend: times_g(1, false), labels: vec![times_g(1, true)] }];
    check(&rows, &own, 15);
}

#[test]
fn spend_points_that_meet_the_table() {
    let mut random = Random(16);
    let rows = points(at_most(600), &mut random);
    let mut spends = vec![times_g(1, false), times_g(1, true), times_g(2, false), times_g(3, true)];
    // Powers of two around the bases of the windows.
    for bit in [13, 26, 39, 234, 247, 255] {
        let mut bytes = [0; 32];
        bytes[31 - bit / 8] = 1 << (bit % 8);
        let key = secp256k1::SecretKey::from_secret_bytes(bytes).expect("valid");
        spends.extend([
            PublicKey::from_secret_key(&key),
            PublicKey::from_secret_key(&key.negate()),
            PublicKey::from_secret_key(
                &key.mul_tweak(&Scalar::from_be_bytes(small(3, true)).expect("valid")).expect("valid"),
            ),
        ]);
    }
    for spend in spends {
        let keys = [Key { spend, ..Key::random(&mut random, 1) }];
        check(&rows, &keys, 17);
    }
}

#[test]
fn sums_that_cancel() {
    let mut random = Random(18);
    let rows = points(300, &mut random);
    let key = Key::random(&mut random, 2);
    let t = |row: usize, key: &Key| {
        secp256k1::SecretKey::from_secret_bytes(key.shared_secret(&rows[row])).expect("valid")
    };
    // B = −t·G for a row: P is infinity there. Nothing can be found without a label; x(L) with one.
    let spend = PublicKey::from_secret_key(&t(77, &key).negate());
    assert!(check(&rows, &[Key { spend, ..key.clone() }], 19) > 0);
    // Labels equal and opposite to P of a row.
    for negate in [false, true] {
        let p = PublicKey::from_secret_key(&t(5, &key)).combine(&key.spend).expect("no infinity");
        let labels = vec![random.point(), if negate { p.negate() } else { p }, random.point()];
        assert!(check(&rows, &[Key { labels, ..key.clone() }], 20) > 0);
    }
    // Equal and opposite labels, and a label equal to the spend point.
    let label = random.point();
    let labels = vec![label, label.negate(), label, key.spend, key.spend.negate()];
    check(&rows, &[Key { labels, ..key.clone() }], 21);
    // A poisoned key among others does not disturb their matches.
    let mut keys: Vec<Key> = (0..9).map(|_| Key::random(&mut random, 1)).collect();
    keys.push(Key { spend, ..key });
    assert!(check(&rows, &keys, 22) > 0);
}

#[test]
fn rows_that_are_no_points() {
    let mut random = Random(23);
    let keys = [Key::random(&mut random, 1)];
    let rows = points(200, &mut random);
    let mut table = Table::planted(&rows, &keys, &mut random);
    let bad = [[0; 64], [0xff; 64], core::array::from_fn(|i| i as u8), {
        // y = 0
        let mut row = [0; 64];
        row[0] = 5;
        row
    }];
    let victims = [0usize, 60, 61, 133];
    for (victim, bytes) in victims.iter().zip(bad) {
        table.rows[*victim] = bytes;
    }
    let honest = |hit: &Hit| !victims.contains(&(hit.row as usize));
    let mut expected: Vec<Hit> = (0..rows.len()).flat_map(|row| table.reference(row, &keys)).collect();
    expected.retain(honest);
    for isa in available() {
        let scanner = Scanner::new(isa, &[keys[0].material()]).expect("valid key");
        let (mut hits, _) = scan(&scanner, &table, &keys);
        hits.retain(honest);
        assert_eq!(hits, expected, "{isa}");
    }
}

#[test]
fn columns_that_do_not_fit() {
    let mut random = Random(24);
    let key = Key::random(&mut random, 0).material();
    let table = Table::planted(&points(20, &mut random), &[Key::random(&mut random, 0)], &mut random);
    for isa in available() {
        let scanner = Scanner::new(isa, std::slice::from_ref(&key)).expect("valid key");
        let (mut hits, mut redo) = (Vec::new(), Vec::new());
        for rows in [
            Rows { outputs: &[], ..table.rows() },
            Rows { output_ends: &[], ..table.rows() },
            Rows { outputs_base: 5, ..table.rows() },
            Rows { points: &[], ..table.rows() },
        ] {
            scanner.scan(rows, &mut hits, &mut redo);
        }
        assert!(hits.is_empty() && redo.is_empty());
    }
}

#[test]
fn threads_share_a_scanner() {
    let mut random = Random(25);
    let keys = [Key::random(&mut random, 1)];
    let table = Table::planted(&points(700, &mut random), &keys, &mut random);
    let scanner = Scanner::new(Isa::detect(), &[keys[0].material()]).expect("valid key");
    let expected = scan(&scanner, &table, &keys);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    assert_eq!(scan(&scanner, &table, &keys), expected);
                }
            });
        }
    });
}

#[test]
fn multiplication_by_a_scalar_per_row() {
    let mut random = Random(26);
    let mut scalars: Vec<[u8; 32]> = vec![LAMBDA];
    for value in 1..40 {
        scalars.extend([small(value, false), small(value, true)]);
    }
    scalars.extend((0..1100).map(|_| random.secret().to_secret_bytes()));
    let points = points(scalars.len(), &mut random);
    let rows: Vec<[u8; 64]> = points.iter().map(stored).collect();
    let expected: Vec<[u8; 64]> = points
        .iter()
        .zip(&scalars)
        .map(|(p, k)| stored(&p.mul_tweak(&Scalar::from_be_bytes(*k).expect("below n")).expect("not zero")))
        .collect();
    for isa in available() {
        for count in [0, 1, 2, 7, 8, 9, 100, scalars.len()] {
            let mut out = vec![[0; 64]; count];
            let failed = mul_batch(isa, &rows[..count], &scalars[..count], &mut out).expect("available");
            assert!(failed.is_empty(), "{isa}: {failed:?}");
            assert!(out == expected[..count], "{isa} {count}");
        }
        // Invalid scalars and rows that are no points.
        let mut scalars = scalars[..80].to_vec();
        (scalars[3], scalars[50]) = ([0; 32], [0xff; 32]);
        let mut rows = rows[..80].to_vec();
        rows[20] = [0; 64];
        let mut out = vec![[0; 64]; 80];
        let failed = mul_batch(isa, &rows, &scalars, &mut out).expect("available");
        assert!([3, 20, 50].iter().all(|row| failed.contains(row)));
        for row in (0..80).filter(|row| !failed.contains(&(*row as u32))) {
            assert_eq!(out[row], expected[row], "{isa} {row}");
        }
    }
}

#[test]
fn square_roots() {
    let mut random = Random(27);
    let mut xs: Vec<[u8; 32]> = (0..500).map(|_| random.bytes()).collect();
    // Around the field order: p − 1, p, p + 1 and the largest.
    for low in [0xfffffc2eu32, 0xfffffc2f, 0xfffffc30, u32::MAX] {
        let mut x = [0xff; 32];
        x[27] = 0xfe;
        x[28..].copy_from_slice(&low.to_be_bytes());
        xs.push(x);
    }
    xs.extend([[0; 32], [0xff; 32], small(1, false), small(5, false)]);
    let odd: Vec<bool> = (0..xs.len()).map(|i| i % 2 == 0).collect();
    for isa in available() {
        for count in [0, 1, 3, 31, 33, xs.len()] {
            let mut out = vec![[0; 64]; count];
            let failed = lift_x_batch(isa, &xs[..count], &odd[..count], &mut out).expect("available");
            for row in 0..count {
                let mut bytes = [2 + u8::from(odd[row]); 33];
                bytes[1..].copy_from_slice(&xs[row]);
                match PublicKey::from_slice(&bytes) {
                    Ok(p) => {
                        assert!(out[row] == stored(&p) && !failed.contains(&(row as u32)), "{isa} {row}")
                    }
                    Err(_) => assert!(failed.contains(&(row as u32)), "{isa} {row}"),
                }
            }
        }
    }
}

/// Limbs at the edges of what a representation allows, and random ones below.
fn limbs(maxima: &[u64], width: u32, random: &mut Random) -> Vec<u64> {
    let words = |words: [u64; 4]| -> Vec<u64> {
        (0..maxima.len() as u32)
            .map(|i| {
                let (word, shift) = ((i * width / 64) as usize, i * width % 64);
                let high = words.get(word + 1).map_or(0, |w| w.checked_shl(64 - shift).unwrap_or(0));
                let limb = words[word] >> shift | high;
                if width == 64 || i + 1 == maxima.len() as u32 { limb } else { limb & ((1 << width) - 1) }
            })
            .collect()
    };
    let p = 0xffff_fffe_ffff_fc2f;
    match random.word() % 12 {
        0 => vec![0; maxima.len()],
        1 => maxima.to_vec(),
        2 => words([random.word() % 3, 0, 0, 0]),
        // p − 1, p, p + 1 and their neighbours
        3 => words([p - 2 + random.word() % 5, u64::MAX, u64::MAX, u64::MAX]),
        4 => words([u64::MAX; 4]),
        // Around 2^256 − 2^64, where carries run through.
        5 => words([random.word() % 2, u64::MAX, u64::MAX, u64::MAX]),
        6 | 7 => {
            maxima.iter().map(|max| [0, 1, *max, max - 1, max / 2][random.word() as usize % 5]).collect()
        }
        8 | 9 => words([random.word(), random.word(), random.word(), random.word()]),
        _ => maxima.iter().map(|max| random.word() % max.saturating_add(1)).collect(),
    }
}

#[test]
fn field_operations() {
    let mut random = Random(28);
    for isa in available() {
        let bounds = testing::bounds(isa).expect("available");
        for op in OPS {
            let (a, c) = match op {
                FieldOp::MulWide | FieldOp::MulSub => (bounds.wide, bounds.tight),
                FieldOp::SqrSub => (bounds.tight, bounds.sum),
                FieldOp::TwicePlus => (bounds.tight, bounds.wide),
                _ => (bounds.tight, bounds.tight),
            };
            let cases: Vec<[Vec<u64>; 3]> = (0..at_most(4001))
                .map(|_| [a, bounds.tight, c].map(|maxima| limbs(maxima, bounds.width, &mut random)))
                .collect();
            let outcomes = testing::run(isa, op, &cases).expect("available");
            assert_eq!(outcomes.len(), cases.len());
            for (case, outcome) in cases.iter().zip(&outcomes) {
                let operands = [0, 1, 2].map(|i| common::field::value(&case[i], bounds.width));
                let expected = common::field::words(&common::field::expected(op, operands));
                assert_eq!(outcome.words, expected, "{isa} {op:?} {case:x?}");
                assert_eq!(outcome.top, expected[3]);
                let maxima = if outcome.wide { bounds.wide } else { bounds.tight };
                let within = outcome.limbs.iter().zip(maxima).all(|(limb, max)| limb <= max);
                assert!(within, "{isa} {op:?} {case:x?} gives {:x?}", outcome.limbs);
            }
        }
    }
}
