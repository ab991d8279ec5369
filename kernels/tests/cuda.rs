//! The kernels under `cuda/`, compiled as plain C++ for this machine, against plain computations. Needs a C++ compiler: `CXX`,
//! or `c++`.

#[expect(dead_code, reason = "the other backends' tests use the rest")]
mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use bitcoin::hashes::{Hash, HashEngine, sha256};
use common::{BASE, Key, Random, Table, at_most, field, small, times_g};
use k256::FieldElement;
use peregrine_kernels::gpu::{DeviceKey, generator_table};
use peregrine_kernels::{Hit, KeyMaterial};
use secp256k1::{PublicKey, Scalar, SecretKey};

/// The program that `cuda/host.cpp` becomes.
fn host() -> &'static Path {
    static HOST: OnceLock<PathBuf> = OnceLock::new();
    HOST.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda/host.cpp");
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-host-{}", std::process::id()));
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let compiled = Command::new(&compiler)
            .args([
                "-std=c++17",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-parentheses",
                "-Wno-unknown-pragmas",
            ])
            .arg("-o")
            .arg(&program)
            .arg(source)
            .output();
        let output = compiled.unwrap_or_else(|error| panic!("a C++ compiler is needed, {compiler}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    })
}

/// What it answers.
fn ask(mode: &str, input: Vec<u8>) -> Vec<u8> {
    let mut child = Command::new(host())
        .arg(mode)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was just compiled");
    let mut stdin = child.stdin.take().expect("it is piped");
    // In a thread of its own: both pipes may be full at once.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    child.stdout.take().expect("it is piped").read_to_end(&mut output).expect("it can be read");
    assert!(child.wait().expect("it ends").success());
    writer.join().expect("no panic").expect("all of it is read");
    output
}

/// Little-endian words of any 256-bit value.
type Words = [u64; 4];

fn bytes(words: &Words) -> [u8; 32] {
    core::array::from_fn(|i| (words[i / 8] >> (8 * (i % 8))) as u8)
}

fn element(words: &Words) -> FieldElement {
    field::value(words, 64)
}

const P: Words = [0xffff_fffe_ffff_fc2f, u64::MAX, u64::MAX, u64::MAX];
const N: Words = [0xbfd2_5e8c_d036_4141, 0xbaae_dce6_af48_a03b, 0xffff_ffff_ffff_fffe, 0xffff_ffff_ffff_ffff];

/// value + offset modulo 2^256
fn moved(value: Words, offset: i128) -> Words {
    let mut carry = offset;
    value.map(|word| {
        let sum = i128::from(word) + carry;
        carry = sum >> 64;
        sum as u64
    })
}

/// Where carries run through, or just don't.
fn edges() -> Vec<Words> {
    let mut list = Vec::new();
    for offset in -3..=3 {
        list.extend([moved([0; 4], offset), moved(P, offset)]);
    }
    for power in [32, 33, 34, 63, 64, 65] {
        for offset in [-979, -978, -977, -976, -1, 0, 1, 976, 977, 978] {
            list.push(moved([0; 4], (1i128 << power) + offset));
            list.push(moved([0; 4], offset - (1i128 << power)));
        }
    }
    for word in 0..8 {
        // One word full, one word empty, all words up to it full.
        let mut only = [0u32; 8];
        only[word] = u32::MAX;
        let mut without = [u32::MAX; 8];
        without[word] = 0;
        let low: [u32; 8] = core::array::from_fn(|i| if i <= word { u32::MAX } else { 0 });
        for words in [only, without, low, low.map(|word| !word)] {
            list.push(core::array::from_fn(|i| u64::from(words[2 * i]) | u64::from(words[2 * i + 1]) << 32));
        }
    }
    list
}

#[test]
fn field_arithmetic_at_the_edges() {
    let mut random = Random(51);
    let edges = edges();
    let mut pairs: Vec<(Words, Words)> = Vec::new();
    for a in &edges {
        pairs.extend(edges.iter().map(|b| (*a, *b)));
    }
    let mut value = || -> Words {
        // Words that are random, full or empty.
        core::array::from_fn(|_| {
            let half = |word: u64| match word % 5 {
                0 => 0,
                1 => u64::from(u32::MAX),
                _ => word >> 32,
            };
            half(random.word()) | half(random.word()) << 32
        })
    };
    pairs.extend((0..20_000).map(|_| (value(), value())));

    type Expected = fn(&FieldElement, &FieldElement) -> FieldElement;
    let operations: [(u8, Expected); 9] = [
        (0, |a, b| *a * *b),
        (1, |a, _| a.square()),
        (2, |a, b| *a + *b),
        (3, |a, b| *a + b.normalize().negate(1)),
        (4, |a, _| a.normalize().mul_single(2)),
        (5, |a, _| a.normalize().mul_single(4)),
        (6, |a, _| a.normalize().mul_single(8)),
        (7, |a, _| *a),
        (8, |a, _| a.invert().unwrap_or(FieldElement::ZERO)),
    ];
    for (operation, expected) in operations {
        // An inversion is 270 multiplications, whose operands are no longer the edges after the first of them.
        let pairs: Vec<_> = pairs.iter().step_by(if operation == 8 { 37 } else { 1 }).collect();
        let mut input = Vec::new();
        for (a, b) in &pairs {
            input.push(operation);
            input.extend(bytes(a));
            input.extend(bytes(b));
        }
        let output = ask("field", input);
        assert_eq!(output.len(), 32 * pairs.len());
        for ((a, b), answer) in pairs.iter().zip(output.chunks(32)) {
            let answer: Words =
                core::array::from_fn(|i| u64::from_le_bytes(answer[8 * i..8 * i + 8].try_into().unwrap()));
            let expected = field::words(&expected(&element(a), &element(b)).normalize());
            let got = if operation == 7 { answer } else { field::words(&element(&answer)) };
            assert_eq!(got, expected, "operation {operation} of {a:x?} and {b:x?}");
        }
        println!("operation {operation}: {} pairs", pairs.len());
    }
}

#[test]
fn hashes_and_what_is_a_scalar() {
    let mut random = Random(52);
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    for turn in 0..500 {
        let (mut x, odd) = (random.bytes(), turn as u8 % 2);
        x[0] &= 0x7f;
        let tag = sha256::Hash::hash(b"BIP0352/SharedSecret").to_byte_array();
        let mut engine = sha256::Hash::engine();
        for part in [&tag[..], &tag, &[2 + odd], &x, &[0; 4]] {
            engine.input(part);
        }
        let mut hash = sha256::Hash::from_engine(engine).to_byte_array();
        hash.reverse();
        expected.extend(hash);
        x.reverse();
        input.push(9);
        input.extend(x);
        input.extend(bytes(&[u64::from(odd), 0, 0, 0]));
    }
    for (value, valid) in [
        ([0; 4], false),
        ([1, 0, 0, 0], true),
        (moved(N, -1), true),
        (N, false),
        (moved(N, 1), false),
        ([u64::MAX; 4], false),
        ([0, 0, 0, u64::MAX], true),
        ([0, u64::MAX, u64::MAX, u64::MAX], false),
    ] {
        input.push(10);
        input.extend(bytes(&value));
        input.extend([0; 32]);
        expected.extend(bytes(&[u64::from(valid), 0, 0, 0]));
    }
    assert!(ask("field", input) == expected);
}

/// Reports of a scan with so many threads: hits, and rows to be done otherwise.
fn reports(table: &Table, key: &DeviceKey, threads: usize, room: usize) -> (usize, Vec<Hit>, Vec<u32>) {
    let numbers = [
        table.points.len() as u32,
        threads as u32,
        BASE,
        table.outputs.len() as u32,
        key.schedule.len() as u32,
        key.labels.len() as u32,
        room as u32,
    ];
    let mut input: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    input.extend(table.rows.as_flattened());
    input.extend(table.ends.iter().flat_map(|end| end.to_le_bytes()));
    input.extend(table.outputs.as_flattened());
    input.extend(&key.schedule);
    input.extend(key.top.as_flattened());
    input.extend(key.labels.as_flattened());
    generator_table().for_each(|entry| input.extend(entry));
    let output = ask("scan", input);
    let words: Vec<u32> = output.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let (count, reports) = words.split_first().expect("the number of reports");
    let (mut hits, mut redo) = (Vec::new(), Vec::new());
    for report in reports.chunks(3) {
        assert_eq!(report[1], 7, "the key's number");
        match report[2] {
            u32::MAX => redo.push(report[0]),
            slot => hits.push(Hit { row: report[0], key: 0, slot }),
        }
    }
    redo.sort_unstable();
    redo.dedup();
    hits.retain(|hit| redo.binary_search(&hit.row).is_err());
    (*count as usize, hits, redo)
}

/// Compares with the reference, row by row; gives back how many rows have to be done otherwise.
fn check(points: &[PublicKey], key: &Key, threads: usize, seed: u64) -> usize {
    let keys = std::slice::from_ref(key);
    let table = Table::planted(points, keys, &mut Random(seed));
    let expected: Vec<Hit> = (0..points.len()).flat_map(|row| table.reference(row, keys)).collect();
    let device_key = DeviceKey::new(&key.material()).expect("a valid key");
    let (_, mut hits, redo) = reports(&table, &device_key, threads, 4 * points.len() + 16);
    for row in &redo {
        hits.extend(table.reference(*row as usize, keys));
    }
    hits.sort_unstable();
    assert_eq!(hits, expected);
    redo.len()
}

fn points(count: usize, random: &mut Random) -> Vec<PublicKey> {
    (0..count).map(|_| random.point()).collect()
}

#[test]
fn ten_thousand_rows_find_what_the_reference_finds() {
    let mut random = Random(53);
    let rows = points(at_most(10_000), &mut random);
    let key = Key::random(&mut random, 1);
    assert_eq!(check(&rows, &key, 640, 54), 0, "no honest row is done otherwise");
}

#[test]
fn rows_labels_and_threads_of_every_number() {
    let mut random = Random(55);
    for (rows, labels, threads) in [
        (0, 1, 4),
        (1, 0, 4),
        (1, 1, 1),
        (3, 2, 4),
        (4, 16, 4),
        (5, 1, 4),
        (64, 11, 7),
        (100, 0, 100),
        (70, 16, 1),
    ] {
        let points = points(rows, &mut random);
        assert_eq!(
            check(&points, &Key::random(&mut random, labels), threads, 56),
            0,
            "{rows} {labels} {threads}"
        );
    }
}

fn lambda() -> SecretKey {
    let bytes = [
        0x53, 0x63, 0xad, 0x4c, 0xc0, 0x5c, 0x30, 0xe0, 0xa5, 0x26, 0x1c, 0x02, 0x88, 0x12, 0x64, 0x5a, 0x12,
        0x2e, 0x22, 0xea, 0x20, 0x81, 0x66, 0x78, 0xdf, 0x02, 0x96, 0x7c, 0x1b, 0x23, 0xbd, 0x72,
    ];
    SecretKey::from_secret_bytes(bytes).expect("valid")
}

#[test]
fn special_scan_keys_and_tweaks() {
    let mut random = Random(57);
    let mut scans = vec![lambda().to_secret_bytes(), lambda().negate().to_secret_bytes()];
    for value in (1..=9).chain([15, 16, 17, 255, 256, u64::MAX]) {
        scans.extend([small(value, false), small(value, true)]);
        let near = lambda().add_tweak(&Scalar::from_be_bytes(small(value, false)).expect("valid"));
        let multiple = lambda().mul_tweak(&Scalar::from_be_bytes(small(value, false)).expect("valid"));
        scans.extend([near, multiple].map(|key| key.expect("not zero").to_secret_bytes()));
    }
    let mut rows = points(4, &mut random);
    for value in [1, 2, 3, 5] {
        rows.extend([times_g(value, false), times_g(value, true)]);
    }
    rows.push(PublicKey::from_secret_key(&lambda()));
    for scan in scans {
        assert_eq!(check(&rows, &Key { scan, ..Key::random(&mut random, 1) }, 3, 58), 0);
    }
}

/// Keys made so that a formula doesn't apply: those rows are handed back, and the others don't suffer.
#[test]
fn sums_that_cancel() {
    let mut random = Random(59);
    let rows = points(300, &mut random);
    let key = Key::random(&mut random, 2);
    let t = |row: usize| SecretKey::from_secret_bytes(key.shared_secret(&rows[row])).expect("valid");
    let spend = PublicKey::from_secret_key(&t(77).negate());
    let redone = check(&rows, &Key { spend, ..key.clone() }, 100, 60);
    assert!((1..=3).contains(&redone), "only the rows of one thread: {redone}");
    for negate in [false, true] {
        let p = PublicKey::from_secret_key(&t(5)).combine(&key.spend).expect("no infinity");
        let labels = vec![random.point(), if negate { p.negate() } else { p }, random.point()];
        let redone = check(&rows, &Key { labels, ..key.clone() }, 100, 61);
        assert!((1..=3).contains(&redone), "{redone}");
    }
    let label = random.point();
    let labels = vec![label, label.negate(), label, key.spend, key.spend.negate()];
    check(&rows, &Key { labels, ..key.clone() }, 100, 62);
    for spend in [times_g(1, false), times_g(1, true), times_g(2, false), times_g(3, true)] {
        check(&rows, &Key { spend, ..key.clone() }, 100, 63);
    }
}

#[test]
fn rows_that_are_no_points_spoil_only_their_threads() {
    let mut random = Random(64);
    let key = Key::random(&mut random, 1);
    let mut table = Table::planted(&points(200, &mut random), std::slice::from_ref(&key), &mut random);
    let victims = [0usize, 60, 61, 133];
    let bad =
        [[0; 64], [0xff; 64], core::array::from_fn(|i| i as u8), core::array::from_fn(|i| u8::from(i == 0))];
    for (victim, bytes) in victims.iter().zip(bad) {
        table.rows[*victim] = bytes;
    }
    let device_key = DeviceKey::new(&key.material()).expect("a valid key");
    let (_, hits, redo) = reports(&table, &device_key, 50, 1000);
    for row in 0..200 {
        let expected = table.reference(row, std::slice::from_ref(&key));
        let found: Vec<Hit> = hits.iter().filter(|hit| hit.row as usize == row).copied().collect();
        let spoilt = victims.iter().any(|victim| victim % 50 == row % 50);
        assert!(found == expected || redo.contains(&(row as u32)) || victims.contains(&row), "row {row}");
        assert!(!redo.contains(&(row as u32)) || spoilt, "row {row}");
    }
}

#[test]
fn reports_without_room_are_counted() {
    let mut random = Random(65);
    let key = Key::random(&mut random, 0);
    let table = Table::planted(&points(40, &mut random), std::slice::from_ref(&key), &mut random);
    let device_key = DeviceKey::new(&key.material()).expect("a valid key");
    let (count, hits, _) = reports(&table, &device_key, 8, 10);
    assert_eq!((count, hits.len()), (40, 10));
}

#[test]
fn keys_that_are_none_are_refused_and_none_is_shown() {
    let mut random = Random(66);
    let material = Key::random(&mut random, 1).material();
    let refused = |change: &dyn Fn(&mut KeyMaterial)| {
        let mut material = material.clone();
        change(&mut material);
        DeviceKey::new(&material).is_err()
    };
    assert!(refused(&|material| material.scan_secret = [0; 32]));
    assert!(refused(&|material| material.scan_secret = [0xff; 32]));
    assert!(refused(&|material| material.spend = [9; 64]));
    assert!(refused(&|material| material.labels = vec![[9; 64]]));
    let key = DeviceKey::new(&material).expect("a valid key");
    assert_eq!(format!("{key:?}"), "DeviceKey(..)");
}
