//! secp256k1 arithmetic for scanning silent payments, one module per instruction set.
//!
//! A [`Scanner`] holds what a set of keys was turned into and gives back candidates among the rows of a tweak
//! index; [`mul_batch`] and [`lift_x_batch`] help to build one. [`Isa::detect`] names the fastest instruction
//! set of the processor; all of them give the same results.
//!
//! The mathematics, the bounds of the lazy reductions, and what happens with hostile input are described in
//! `docs/scan-math.md`. The layers, from below:
//!
//! - `arch`: vectors of 64-bit lanes, one file per instruction set; `field`: three representations of field
//!   elements over them, of which `field::scalar` is the specification;
//! - `recode` and `program`: a constant scalar as a list of operations on points;
//! - `lanes` and `machine`: running them on many rows, with shared inversions;
//! - `comb`, `sha`: t·G + B and the hash that gives t; `scan` and `batch`: the interface;
//! - [`gpu`]: the tables for the kernels under `cuda/`, which do the same on graphics processors.

#[cfg(target_arch = "x86_64")]
mod arch;
mod batch;
mod comb;
mod field;
pub mod gpu;
mod isa;
mod lanes;
mod machine;
mod modn;
mod placement;
mod program;
mod recode;
mod scan;
mod sha;
#[doc(hidden)]
pub mod testing;

pub use batch::{lift_x_batch, mul_batch};
pub use isa::Isa;
pub use scan::{Hit, KernelError, KeyMaterial, Rows, Scanner};
