//! Printing shared by the commands.

use std::io::Write;

use serde::Serialize;

/// One JSON value, on one line or indented for a person.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// One JSON value on a line of its own, at once: for streams that a program follows.
pub(super) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// A label for people.
pub(super) fn label(label: Option<u32>) -> String {
    match label {
        None => "-".into(),
        Some(0) => "change".into(),
        Some(m) => m.to_string(),
    }
}

/// Seconds since 1970 as a date and time in UTC.
pub(super) fn time(seconds: u32) -> String {
    jiff::Timestamp::from_second(i64::from(seconds))
        .map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Rows per second, for people and for JSON; 0 if no time passed.
pub(super) fn rate(rows: u64, time: std::time::Duration) -> f64 {
    if time.is_zero() { 0.0 } else { rows as f64 / time.as_secs_f64() }
}
