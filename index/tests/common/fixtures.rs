//! Real blocks, kept outside the project.

use std::io::Write;
use std::path::{Path, PathBuf};

/// The folder with fixtures: `PEREGRINE_FIXTURES`, else `shared/fixtures` beside the workspace. Says so aloud when it isn't
/// there.
pub(crate) fn fixtures(test: &str) -> Option<PathBuf> {
    let dir = match std::env::var_os("PEREGRINE_FIXTURES").filter(|value| !value.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    if dir.join("mainnet-block-866342").is_dir() {
        return Some(dir);
    }
    // Not `eprintln!`: the test harness would hide that of a test that passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED: fixtures not found: {test} (looked in {})", dir.display());
    None
}
