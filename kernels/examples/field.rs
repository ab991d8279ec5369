//! Times multiplications and squarings of every available backend: `cargo run --release --example field`.

use peregrine_kernels::{Isa, testing};
use std::time::Instant;

fn main() {
    std::hint::black_box(testing::samples(std::hint::black_box(5)));
    let isas: Vec<Isa> = Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect();
    let mut best = vec![[f64::INFINITY; 2]; isas.len()];
    for _ in 0..200 {
        for (isa, best) in isas.iter().zip(&mut best) {
            for (square, best) in [false, true].into_iter().zip(best) {
                let start = Instant::now();
                std::hint::black_box(testing::chains(*isa, square, 8000));
                let lanes = match isa {
                    Isa::Scalar => 1.0,
                    Isa::Avx2 | Isa::Ifma256 => 4.0,
                    _ => 8.0,
                };
                *best = best.min(start.elapsed().as_nanos() as f64 / 8000.0 / lanes);
            }
        }
    }
    for (isa, [mul, sqr]) in isas.iter().zip(best) {
        println!("{:8} multiplication {mul:5.2} ns, squaring {sqr:5.2} ns per row", isa.name());
    }
}
