//! Progress of long work: percent, rate and time left; a bar on a terminal, a line every few seconds elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How much of the past the rate looks at.
const WINDOW: Duration = Duration::from_secs(20);

/// Where a piece of work stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Status {
    /// 0 to 100.
    pub percent: f64,
    /// Units per second over the last seconds.
    pub rate: f64,
    /// At that rate; `None` while there is none.
    pub left: Option<Duration>,
}

/// Measures and shows progress. Used by many threads.
pub(crate) struct Meter {
    bar: ProgressBar,
    what: &'static str,
    state: Mutex<State>,
    lines: bool,
}

struct State {
    /// When which count was reached, oldest first.
    samples: std::collections::VecDeque<(Instant, u64)>,
    last_line: Instant,
}

impl Meter {
    /// `what` is done, as in `indexing`. A silent meter only measures.
    pub(crate) fn new(what: &'static str, silent: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(1),
            if silent { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(5) },
        );
        let style = ProgressStyle::with_template("{bar:25} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        let state = State { samples: [(now, 0)].into(), last_line: now };
        Self { bar, what, state: Mutex::new(state), lines: !silent && !terminal }
    }

    /// `done` of `total` units are done; `detail` is shown behind percent and time left.
    pub(crate) fn update(&self, done: u64, total: u64, detail: impl FnOnce(&Status) -> String) -> Status {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let status = state.status(now, done, total);
        let line_due = self.lines && now - state.last_line >= LINE_EVERY;
        if line_due {
            state.last_line = now;
        }
        drop(state);
        if line_due || !self.bar.is_hidden() {
            let left = status.left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
            let text = format!("{} {:.1} %{left}, {}", self.what, status.percent, detail(&status));
            if line_due {
                eprintln!("{text}");
            }
            self.bar.set_length(total.max(1));
            self.bar.set_position(done.min(total));
            self.bar.set_message(text);
        }
        status
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl State {
    fn status(&mut self, now: Instant, done: u64, total: u64) -> Status {
        let newest = self.samples.back().map_or(now, |(time, _)| *time);
        if now - newest >= Duration::from_millis(200) {
            self.samples.push_back((now, done));
        }
        while self.samples.len() > 2 && now - self.samples[0].0 > WINDOW {
            self.samples.pop_front();
        }
        let (since, from) = self.samples.front().copied().unwrap_or((now, 0));
        let seconds = (now - since).as_secs_f64();
        let rate = if seconds > 0.0 { done.saturating_sub(from) as f64 / seconds } else { 0.0 };
        let percent = if total == 0 { 100.0 } else { 100.0 * done.min(total) as f64 / total as f64 };
        let left = (rate > 0.0).then(|| total.saturating_sub(done) as f64 / rate);
        Status { percent, rate, left: left.and_then(|left| Duration::try_from_secs_f64(left).ok()) }
    }
}

/// A duration for people: `2 h 5 min`, `3 min 20 s`, `12 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// A number for people: `12,345,678`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let text = |seconds| duration(Duration::from_secs(seconds));
        assert_eq!(
            [5, 60, 3599, 3600, 7500].map(text),
            ["5 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 5 min"]
        );
        assert_eq!(text(90_000), "1 d 1 h");
    }

    #[test]
    fn rate_and_time_left_follow_the_last_seconds() {
        let start = Instant::now();
        let mut state = State { samples: [(start, 0)].into(), last_line: start };
        for second in 1..=30 {
            state.status(start + Duration::from_secs(second), second * 10, 1000);
        }
        // Twice as fast from here on.
        let mut status = None;
        for second in 31..=60 {
            status = Some(state.status(start + Duration::from_secs(second), 300 + (second - 30) * 20, 1000));
        }
        let status = status.unwrap();
        assert_eq!((status.percent, status.rate, status.left), (90.0, 20.0, Some(Duration::from_secs(5))));
        assert_eq!(state.status(start + Duration::from_secs(61), 0, 0).percent, 100.0);
    }
}
