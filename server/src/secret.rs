//! Reading a scan key without it ever standing in an argument list.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use peregrine_scanner::ScanKey;
use zeroize::Zeroizing;

/// The environment variable that may hold the scan key.
pub(crate) const SCAN_KEY_VARIABLE: &str = "PEREGRINE_SCAN_KEY";

/// The scan key from a file (`-` is standard input), else from the environment, else from a prompt on the terminal.
pub(crate) fn scan_key(file: Option<&Path>) -> anyhow::Result<ScanKey> {
    let (text, origin) = if let Some(file) = file {
        if file.to_str().is_some_and(|name| name.parse::<ScanKey>().is_ok()) {
            // Not repeated here: whatever is printed may end up in a log.
            bail!("--scan-key-file takes the name of a file that holds the scan key, not the key itself");
        }
        (read(file)?, format!("in {}", file.display()))
    } else if let Some(text) = std::env::var_os(SCAN_KEY_VARIABLE) {
        // What isn't text isn't a key either; the empty text gives the error that says what a key is.
        (Zeroizing::new(text.into_string().unwrap_or_default()), format!("in {SCAN_KEY_VARIABLE}"))
    } else if std::io::stdin().is_terminal() {
        let text = rpassword::prompt_password("Scan key (64 hexadecimal digits, not shown): ")?;
        (Zeroizing::new(text), "that was typed".to_owned())
    } else {
        bail!(
            "no scan key: put its 64 hexadecimal digits into a file and give --scan-key-file FILE (- for standard \
             input), or set {SCAN_KEY_VARIABLE}"
        );
    };
    text.parse().with_context(|| format!("the scan key {origin} can't be used"))
}

fn read(file: &Path) -> anyhow::Result<Zeroizing<String>> {
    // A key has 64 digits; more than this is another file.
    const LIMIT: u64 = 1024;
    let mut text = Zeroizing::new(String::with_capacity(LIMIT as usize));
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(LIMIT).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(LIMIT).read_to_string(&mut text))
    };
    read.with_context(|| format!("can't read the scan key from {}", file.display()))?;
    Ok(text)
}
