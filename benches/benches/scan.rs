//! What a scan costs: the whole pipeline (multiplication, hash, addition, comparison) on one core, for every backend that
//! the processor has; with many keys in one pass; and with labels.
//!
//! Throughput is in rows (`pipeline`, `labels`) or in rows times keys (`keys`).

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use peregrine_scanner::backend::{self, Backend};
use peregrine_scanner::{RowBatch, ScanKey, ScanTarget, SpendKey, Tweak};
use secp256k1::{PublicKey, SecretKey};

struct Rows {
    points: Vec<[u8; 64]>,
    ends: Vec<u32>,
    outputs: Vec<[u8; 8]>,
}

impl Rows {
    /// Different points with one output each that belongs to nobody.
    fn new(count: usize) -> Self {
        let step = PublicKey::from_secret_key(&key(3));
        let mut point = PublicKey::from_secret_key(&key(4));
        let mut rows = Self { points: vec![], ends: vec![], outputs: vec![] };
        for row in 0..count as u32 {
            rows.points.push(Tweak(point).to_row());
            point = point.combine(&step).expect("not opposite points");
            rows.outputs.push((u64::from(row) * 0x9e37_79b9).to_be_bytes());
            rows.ends.push(row + 1);
        }
        rows
    }

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
}

fn key(byte: u8) -> SecretKey {
    SecretKey::from_secret_bytes([byte; 32]).expect("a key")
}

fn targets(count: u8, labels: u32) -> Vec<ScanTarget> {
    (0..count)
        .map(|number| {
            let scan = ScanKey::from_bytes([number + 1; 32]).expect("a key");
            let spend = SpendKey::from_bytes([number + 101; 32]).expect("a key").public_key();
            ScanTarget::new(scan, spend, 1..=labels).expect("labels don't cancel keys")
        })
        .collect()
}

/// Rows for one iteration: a batch of the size that the backend likes.
fn run(c: &mut Criterion, group: &str, id: BenchmarkId, backend: &dyn Backend, targets: &[ScanTarget]) {
    let prepared = backend.prepare(targets);
    let rows = Rows::new(prepared.batch_rows());
    let elements = match group {
        "scan/keys" => rows.points.len() * targets.len(),
        _ => rows.points.len(),
    };
    let mut group = c.benchmark_group(group);
    group.sample_size(10).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(elements as u64));
    group.bench_function(id, |b| {
        let mut found = Vec::new();
        b.iter(|| prepared.scan(black_box(rows.batch()), &mut found));
        assert!(found.is_empty());
    });
    group.finish();
}

fn pipeline(c: &mut Criterion) {
    for backend in backend::available() {
        run(c, "scan/pipeline", BenchmarkId::from_parameter(backend.name()), &*backend, &targets(1, 0));
    }
}

fn keys(c: &mut Criterion) {
    for backend in backend::available().iter().take(1) {
        for count in [1, 2, 4, 8, 16, 32, 64] {
            run(c, "scan/keys", BenchmarkId::new(backend.name(), count), &**backend, &targets(count, 0));
        }
    }
}

fn labels(c: &mut Criterion) {
    for backend in backend::available().iter().take(1) {
        for count in [0, 10, 100] {
            run(c, "scan/labels", BenchmarkId::new(backend.name(), count), &**backend, &targets(1, count));
        }
    }
}

criterion_group!(scan, pipeline, keys, labels);
criterion_main!(scan);
