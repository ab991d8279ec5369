//! The parts of a scan on their own: field multiplication and squaring, and the batches that build an index.
//!
//! Throughput is in elements of one row: eight lanes count eight times.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use peregrine_kernels::{Isa, lift_x_batch, mul_batch, testing};
use peregrine_scanner::Tweak;
use secp256k1::{PublicKey, Scalar, SecretKey};

/// Operations in one measurement of the field.
const CHAIN: usize = 8000;

/// Points in one batch.
const BATCH: usize = 2048;

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.iter().copied().filter(|isa| isa.is_available())
}

fn lanes(isa: Isa) -> u64 {
    match isa {
        Isa::Scalar => 1,
        Isa::Avx2 | Isa::Ifma256 => 4,
        Isa::Avx512 | Isa::Ifma => 8,
    }
}

fn field(c: &mut Criterion) {
    for (name, square) in [("field/mul", false), ("field/sqr", true)] {
        let mut group = c.benchmark_group(name);
        group
            .sample_size(20)
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(1));
        for isa in available() {
            group.throughput(Throughput::Elements(CHAIN as u64 * lanes(isa)));
            group.bench_function(BenchmarkId::from_parameter(isa), |b| {
                b.iter(|| testing::chains(black_box(isa), square, CHAIN));
            });
        }
        group.finish();
    }
}

fn key(number: usize) -> SecretKey {
    let mut bytes = [0x5c; 32];
    bytes[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes[0] &= 0x7f;
    SecretKey::from_secret_bytes(bytes).expect("below n")
}

fn building(c: &mut Criterion) {
    let points: Vec<PublicKey> = (0..BATCH).map(|number| PublicKey::from_secret_key(&key(number))).collect();
    let scalars: Vec<Scalar> = (0..BATCH).map(|number| Scalar::from(key(number + BATCH))).collect();
    let rows: Vec<[u8; 64]> = points.iter().map(|point| Tweak(*point).to_row()).collect();
    let scalar_bytes: Vec<[u8; 32]> = scalars.iter().map(|scalar| scalar.to_be_bytes()).collect();
    let compressed: Vec<[u8; 33]> = points.iter().map(PublicKey::serialize).collect();
    let xs: Vec<[u8; 32]> = compressed.iter().map(|key| key[1..].try_into().expect("32 bytes")).collect();
    let odd: Vec<bool> = compressed.iter().map(|key| key[0] == 3).collect();
    let mut out = vec![[0; 64]; BATCH];

    let mut group = c.benchmark_group("build/mul");
    group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("libsecp256k1", |b| {
        b.iter(|| {
            for (point, scalar) in points.iter().zip(&scalars) {
                black_box(point.mul_tweak(scalar).expect("neither is zero"));
            }
        });
    });
    for isa in available() {
        group.bench_function(BenchmarkId::from_parameter(isa), |b| {
            b.iter(|| mul_batch(isa, &rows, &scalar_bytes, &mut out).expect("available"));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("build/lift_x");
    group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("libsecp256k1", |b| {
        b.iter(|| {
            for key in &compressed {
                black_box(PublicKey::from_byte_array_compressed(*key).expect("on the curve"));
            }
        });
    });
    for isa in available() {
        group.bench_function(BenchmarkId::from_parameter(isa), |b| {
            b.iter(|| lift_x_batch(isa, &xs, &odd, &mut out).expect("available"));
        });
    }
    group.finish();
}

criterion_group!(kernels, field, building);
criterion_main!(kernels);
