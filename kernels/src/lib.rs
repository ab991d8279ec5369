//! secp256k1 arithmetic for scanning silent payments, one module per instruction set.
mod arch;
mod batch;
mod comb;
mod field;
mod isa;
mod lanes;
mod machine;
mod modn;
mod program;
mod recode;
mod scan;
mod sha;
#[doc(hidden)]
pub mod testing;
pub use batch::{lift_x_batch, mul_batch};
pub use isa::Isa;
pub use scan::{Hit, KernelError, KeyMaterial, Rows, Scanner};
