//! Ctrl-C and SIGTERM end long work cleanly; a second one ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler and gives the flag that it sets.
pub(crate) fn flag() -> anyhow::Result<&'static AtomicBool> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    Ok(&INTERRUPTED)
}
