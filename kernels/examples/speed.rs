//! Times every available backend against libsecp256k1's pipeline on the same rows, interleaved.
//!
//! `cargo run --release -p peregrine-kernels --example speed -- [rows] [keys] [labels] [rounds]`; the environment may name
//! several `ISA`, `CHUNK` (rows), and `POINTS` and `ORBITS` (kept per row), separated by commas.

use bitcoin::hashes::{Hash, HashEngine, sha256};
use peregrine_kernels::{Isa, KeyMaterial, Rows, Scanner};
use secp256k1::{PublicKey, Scalar, SecretKey};
use std::time::Instant;

fn random(seed: &mut u64) -> [u8; 32] {
    core::array::from_fn(|_| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 24) as u8
    })
}

fn stored(p: &PublicKey) -> [u8; 64] {
    let bytes = p.serialize_uncompressed();
    core::array::from_fn(|i| if i < 32 { bytes[32 - i] } else { bytes[96 - i] })
}

fn main() {
    // Keeps the sample kernels in the binary, whose instructions opcounts.sh counts.
    std::hint::black_box(peregrine_kernels::testing::samples(std::hint::black_box(5)));
    let arg = |at: usize, default: usize| {
        std::env::args().nth(at).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (count, key_count, label_count, rounds) = (arg(1, 16384), arg(2, 1), arg(3, 0), arg(4, 7));
    let mut seed = 0x1234_5678_9abc_def1;
    let secret = |seed: &mut u64| SecretKey::from_secret_bytes(random(seed)).expect("almost always valid");
    let point = |seed: &mut u64| PublicKey::from_secret_key(&secret(seed));
    let points: Vec<PublicKey> = (0..count).map(|_| point(&mut seed)).collect();
    let rows: Vec<[u8; 64]> = points.iter().map(stored).collect();
    let uncompressed: Vec<[u8; 65]> = points.iter().map(|p| p.serialize_uncompressed()).collect();
    let ends: Vec<u32> = (1..=count as u32).map(|i| 2 * i).collect();
    let outputs: Vec<[u8; 8]> =
        (0..2 * count).map(|_| random(&mut seed)[..8].try_into().expect("eight bytes")).collect();
    let secrets: Vec<SecretKey> = (0..key_count).map(|_| secret(&mut seed)).collect();
    let spends: Vec<PublicKey> = (0..key_count).map(|_| point(&mut seed)).collect();
    let labels: Vec<PublicKey> = (0..label_count).map(|_| point(&mut seed)).collect();
    let keys: Vec<KeyMaterial> = secrets
        .iter()
        .zip(&spends)
        .map(|(secret, spend)| KeyMaterial {
            scan_secret: secret.to_secret_bytes(),
            spend: stored(spend),
            labels: labels.iter().map(stored).collect(),
        })
        .collect();

    let mut tag = sha256::Hash::engine();
    for _ in 0..2 {
        tag.input(&sha256::Hash::hash(b"BIP0352/SharedSecret").to_byte_array());
    }
    let list = |name: &str| -> Vec<String> {
        std::env::var(name).map(|v| v.split(',').map(String::from).collect()).unwrap_or_default()
    };
    let numbers = |name: &str| -> Vec<Option<usize>> {
        let values: Vec<_> = list(name).iter().map(|v| v.parse().ok()).collect();
        if values.is_empty() { vec![None] } else { values }
    };
    let only = list("ISA");
    let mut scanners: Vec<(String, Scanner)> = Vec::new();
    for isa in Isa::ALL.iter().filter(|isa| isa.is_available()) {
        if !only.is_empty() && !only.iter().any(|name| name == isa.name()) {
            continue;
        }
        for chunk in numbers("CHUNK") {
            for points in numbers("POINTS") {
                for orbits in numbers("ORBITS") {
                    let mut name = isa.name().to_string();
                    for value in [chunk, points, orbits].iter().flatten() {
                        name += &format!(" {value}");
                    }
                    let shape = points.zip(orbits);
                    scanners.push((name, Scanner::tuned(*isa, &keys, shape, chunk).expect("valid keys")));
                }
            }
        }
    }
    let mut best = vec![f64::INFINITY; scanners.len()];
    let mut reference = f64::INFINITY;
    let sample = uncompressed.len().min(300);
    for _ in 0..rounds {
        let start = Instant::now();
        let mut found = 0;
        for (i, bytes) in uncompressed[..sample].iter().enumerate() {
            found += usize::from(libsecp(&tag, bytes, &secrets[0], &spends[0], &outputs[2 * i..2 * i + 2]));
        }
        assert_eq!(found, 0);
        reference = reference.min(start.elapsed().as_nanos() as f64 / sample as f64);
        for ((_, scanner), best) in scanners.iter().zip(&mut best) {
            let start = Instant::now();
            let rows = Rows { points: &rows, output_ends: &ends, outputs_base: 0, outputs: &outputs };
            let (mut hits, mut redo) = (Vec::new(), Vec::new());
            scanner.scan(rows, &mut hits, &mut redo);
            assert!(hits.is_empty() && redo.is_empty());
            *best = best.min(start.elapsed().as_nanos() as f64 / (count * key_count) as f64);
        }
    }
    println!("{count} rows, {key_count} keys, {label_count} labels; ns per row and key, minima of {rounds}");
    println!("libsecp256k1         {reference:9.0}");
    for ((name, _), ns) in scanners.iter().zip(&best) {
        println!("{name:20} {ns:9.0}  {:6.2}x", reference / ns);
    }
}

/// The reference pipeline without labels.
fn libsecp(
    tag: &sha256::HashEngine,
    row: &[u8; 65],
    scan: &SecretKey,
    spend: &PublicKey,
    outputs: &[[u8; 8]],
) -> bool {
    let point = PublicKey::from_slice(row).expect("on the curve");
    let shared = point.mul_tweak(&Scalar::from(*scan)).expect("valid");
    let mut engine = tag.clone();
    engine.input(&shared.serialize());
    engine.input(&[0; 4]);
    let t = SecretKey::from_secret_bytes(sha256::Hash::from_engine(engine).to_byte_array()).expect("valid");
    let sum = PublicKey::from_secret_key(&t).combine(spend).expect("no infinity");
    let x = sum.x_only_public_key().0.to_byte_array();
    outputs.iter().any(|output| output[..] == x[..8])
}
