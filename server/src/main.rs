//! The `peregrine` program.

fn main() {}
