//! Benchmarks of Peregrine. See `benches/`.
