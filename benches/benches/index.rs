//! What it costs to build the index: parsing a block and computing its rows, on one core, with libsecp256k1
//! and with each instruction set that the processor has.
//!
//! `block` is the time for mainnet block 866342 (4864 transactions, 2241 rows), `row` the same divided by its rows. Where
//! the real block isn't at hand, a synthetic one of about as many rows stands in, and the names say so.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bitcoin::BlockHash;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use peregrine_index::rows::BlockRows;
use peregrine_index::source::{ChainSource, encode_spent_outputs, parse_block};
use peregrine_index::synthetic::{Plan, SyntheticChain};
use peregrine_index::testkit::mainnet_block_866342;
use peregrine_kernels::Isa;
use peregrine_scanner::batch::TweakMethod;

struct Sample {
    name: &'static str,
    hash: BlockHash,
    raw: Vec<u8>,
    spent: Vec<u8>,
}

fn sample() -> Sample {
    if let Some(known) = mainnet_block_866342("the benchmark of a real block") {
        return Sample { name: "866342", hash: known.hash, raw: known.raw, spent: known.spent };
    }
    let plan = Plan { blocks: 1, reorg_depth: 0, seed: 1, transactions: 2800, payment_every: 100 };
    let chain = SyntheticChain::generate(plan);
    let hash = chain.tip().expect("a synthetic chain always answers").hash;
    let block = chain.block(hash).expect("it is in the chain");
    let raw = bitcoin::consensus::serialize(&block.block);
    Sample { name: "synthetic", hash, raw, spent: encode_spent_outputs(&block.prevouts) }
}

fn benches(c: &mut Criterion) {
    let sample = sample();
    let parse =
        || parse_block(sample.hash, black_box(&sample.raw), black_box(&sample.spent)).expect("a good block");
    let block = parse();
    let rows = BlockRows::of_block(&block, TweakMethod::Plain).len() as u64;
    println!("block {}: {} transactions, {rows} rows", sample.name, block.block.txdata.len());

    let mut group = c.benchmark_group(format!("index/{}", sample.name));
    group.sample_size(20).measurement_time(Duration::from_secs(5));
    group.throughput(Throughput::Elements(rows));
    group.bench_function("block/parse", |b| b.iter(parse));
    let lanes =
        Isa::ALL.iter().filter(|isa| isa.is_available()).map(|isa| (isa.name(), TweakMethod::Lanes(*isa)));
    for (name, method) in [("libsecp256k1", TweakMethod::Plain)].into_iter().chain(lanes) {
        group.throughput(Throughput::Elements(rows));
        group.bench_function(format!("block/tweaks/{name}"), |b| {
            b.iter(|| BlockRows::of_block(black_box(&block), method))
        });
        group.bench_function(format!("block/parse+tweaks/{name}"), |b| {
            b.iter(|| BlockRows::of_block(&parse(), method))
        });
        group.throughput(Throughput::Elements(1));
        // The same per row: Criterion is told that an iteration took its share of the block's time.
        group.bench_function(format!("row/parse+tweaks/{name}"), |b| {
            b.iter_custom(|iterations| {
                let blocks = iterations.div_ceil(rows);
                let started = Instant::now();
                for _ in 0..blocks {
                    black_box(BlockRows::of_block(&parse(), method));
                }
                started.elapsed().mul_f64(iterations as f64 / (blocks * rows) as f64)
            });
        });
    }
    group.finish();
}

criterion_group!(index, benches);
criterion_main!(index);
