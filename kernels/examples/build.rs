//! Times the helpers for building an index against libsecp256k1, interleaved.
//!
//! `cargo run --release -p peregrine-kernels --example build -- [rows] [rounds]`

use peregrine_kernels::{Isa, lift_x_batch, mul_batch};
use secp256k1::{PublicKey, Scalar, SecretKey};
use std::time::Instant;

fn main() {
    let arg = |at: usize, default: usize| {
        std::env::args().nth(at).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (count, rounds) = (arg(1, 4096), arg(2, 7));
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut secret = || {
        SecretKey::from_secret_bytes(core::array::from_fn(|_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        }))
        .expect("almost always valid")
    };
    let points: Vec<PublicKey> = (0..count).map(|_| PublicKey::from_secret_key(&secret())).collect();
    let scalars: Vec<[u8; 32]> = (0..count).map(|_| secret().to_secret_bytes()).collect();
    let compressed: Vec<[u8; 33]> = points.iter().map(|p| p.serialize()).collect();
    let xs: Vec<[u8; 32]> = compressed.iter().map(|c| c[1..].try_into().expect("32 bytes")).collect();
    let odd: Vec<bool> = compressed.iter().map(|c| c[0] == 3).collect();
    let rows: Vec<[u8; 64]> = points
        .iter()
        .map(|p| {
            let bytes = p.serialize_uncompressed();
            core::array::from_fn(|i| if i < 32 { bytes[32 - i] } else { bytes[96 - i] })
        })
        .collect();
    let isas: Vec<Isa> = Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect();
    let mut best = vec![[f64::INFINITY; 2]; isas.len() + 1];
    let mut time = |at: usize, which: usize, rows: usize, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        best[at][which] = best[at][which].min(start.elapsed().as_nanos() as f64 / rows as f64);
    };
    let mut out = vec![[0; 64]; count];
    for _ in 0..rounds {
        time(0, 0, 200.min(count), &mut || {
            for (p, k) in points.iter().zip(&scalars).take(200) {
                let product = p.mul_tweak(&Scalar::from_be_bytes(*k).expect("below n"));
                std::hint::black_box(product.expect("not zero"));
            }
        });
        time(0, 1, 200.min(count), &mut || {
            for c in compressed.iter().take(200) {
                std::hint::black_box(PublicKey::from_slice(c).expect("on the curve"));
            }
        });
        for (i, isa) in isas.iter().enumerate() {
            time(i + 1, 0, count, &mut || {
                assert!(mul_batch(*isa, &rows, &scalars, &mut out).expect("available").is_empty());
            });
            time(i + 1, 1, count, &mut || {
                assert!(lift_x_batch(*isa, &xs, &odd, &mut out).expect("available").is_empty());
            });
            assert!(out == rows);
        }
    }
    println!("{count} rows; ns per row, minima of {rounds}: multiplication, square root");
    println!("libsecp256k1 {:9.0}          {:9.0}", best[0][0], best[0][1]);
    for (isa, ns) in isas.iter().zip(&best[1..]) {
        let ratio = |which: usize| best[0][which] / ns[which];
        println!("{:12} {:9.0} {:6.2}x {:10.0} {:6.2}x", isa.name(), ns[0], ratio(0), ns[1], ratio(1));
    }
}
