//! The `peregrine` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    peregrine::cli::main()
}
