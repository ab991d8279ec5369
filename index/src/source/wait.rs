//! Waiting for a node that isn't there, without giving up and without flooding anybody with messages.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::SourceError;

/// First and longest pause while the node is unavailable.
const UNAVAILABLE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The same while it refuses: somebody has to change something first.
const REFUSED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

/// How often the cancel flag is looked at during a pause.
const CANCEL_POLL: Duration = Duration::from_millis(50);

/// What a person should know about the waiting. `Display` gives one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEvent {
    /// The call failed and is repeated. Told once, and again when the reason changes.
    Waiting {
        /// The source, as in [`ChainSource::describe`](super::ChainSource::describe).
        source: String,
        /// Why it didn't answer.
        reason: String,
    },
    /// The source answers again.
    Resumed {
        /// The source.
        source: String,
        /// Time since the first failure.
        after: Duration,
    },
}

impl fmt::Display for WaitEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { source, reason } => write!(f, "waiting for {source}: {reason}"),
            Self::Resumed { source, after } => {
                write!(f, "{source} answers again after {:.1} s", after.as_secs_f64())
            }
        }
    }
}

/// Why [`Waiter::run`] came back without a result.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The cancel flag was set.
    #[error("cancelled")]
    Cancelled,
    /// An error that waiting doesn't help: [`SourceError::Invalid`] or [`SourceError::UnknownBlock`].
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Repeats calls to a source while it is unavailable or refuses. Shared by all threads that use the source, so that an
/// outage is told once and not once per thread.
pub struct Waiter<'a> {
    cancel: &'a AtomicBool,
    notify: Box<dyn Fn(&WaitEvent) + Send + Sync + 'a>,
    outage: Mutex<Option<Outage>>,
}

struct Outage {
    since: Instant,
    reason: String,
}

impl<'a> Waiter<'a> {
    /// `notify` is called from the thread that made the call, one event at a time.
    pub fn new(cancel: &'a AtomicBool, notify: impl Fn(&WaitEvent) + Send + Sync + 'a) -> Self {
        Self { cancel, notify: Box::new(notify), outage: Mutex::new(None) }
    }

    /// Calls `call` until it gives a result, or an error that waiting doesn't help.
    ///
    /// Pauses grow from 200 ms to 5 s while the source is unavailable, from 2 s to 15 s while it refuses. When the cancel
    /// flag is set, a pause ends within 100 ms; a call under way is not interrupted, its own timeout limits it.
    pub fn run<T>(
        &self,
        source: &str,
        mut call: impl FnMut() -> Result<T, SourceError>,
    ) -> Result<T, WaitError> {
        let mut pause = Duration::ZERO;
        loop {
            if self.cancelled() {
                return Err(WaitError::Cancelled);
            }
            let (reason, (first, longest)) = match call() {
                Ok(value) => {
                    self.resumed(source);
                    return Ok(value);
                }
                Err(SourceError::Unavailable(reason)) => (reason, UNAVAILABLE),
                Err(SourceError::Refused(reason)) => (reason, REFUSED),
                Err(other) => {
                    self.resumed(source);
                    return Err(other.into());
                }
            };
            self.failed(source, reason);
            pause = (pause * 2).clamp(first, longest);
            self.sleep(pause)?;
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    fn sleep(&self, pause: Duration) -> Result<(), WaitError> {
        let end = Instant::now() + pause;
        loop {
            if self.cancelled() {
                return Err(WaitError::Cancelled);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CANCEL_POLL));
        }
    }

    fn failed(&self, source: &str, reason: String) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        let since = match &*outage {
            Some(known) if known.reason == reason => return,
            Some(known) => known.since,
            None => Instant::now(),
        };
        *outage = Some(Outage { since, reason: reason.clone() });
        (self.notify)(&WaitEvent::Waiting { source: source.to_owned(), reason });
    }

    fn resumed(&self, source: &str) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outage) = outage.take() {
            (self.notify)(&WaitEvent::Resumed { source: source.to_owned(), after: outage.since.elapsed() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable(reason: &str) -> SourceError {
        SourceError::Unavailable(reason.to_owned())
    }

    #[test]
    fn a_reason_is_told_once_until_it_changes() {
        let cancel = AtomicBool::new(false);
        let events = Mutex::new(Vec::new());
        let waiter = Waiter::new(&cancel, |event| events.lock().unwrap().push(event.to_string()));
        let mut answers = vec![Ok(7), Err(unavailable("b")), Err(unavailable("a")), Err(unavailable("a"))];
        assert_eq!(waiter.run("node", || answers.pop().unwrap()).unwrap(), 7);
        let events = events.lock().unwrap();
        assert_eq!(events[..2], ["waiting for node: a", "waiting for node: b"]);
        assert!(events[2].starts_with("node answers again after "), "{}", events[2]);
        assert_eq!(events.len(), 3);
    }

    #[test]
    fn errors_that_stay_come_back_at_once() {
        let cancel = AtomicBool::new(false);
        let waiter = Waiter::new(&cancel, |event| panic!("{event}"));
        let result = waiter.run::<()>("node", || Err(SourceError::Invalid("garbage".into())));
        assert!(matches!(result, Err(WaitError::Source(SourceError::Invalid(_)))));
    }

    #[test]
    fn cancelling_ends_a_pause_within_100_ms() {
        for error in [SourceError::Unavailable as fn(String) -> _, SourceError::Refused] {
            let cancel = AtomicBool::new(false);
            let waiter = Waiter::new(&cancel, |_| ());
            std::thread::scope(|scope| {
                let handle = scope.spawn(|| waiter.run::<()>("node", || Err(error("down".into()))));
                std::thread::sleep(Duration::from_millis(700));
                let start = Instant::now();
                cancel.store(true, Ordering::Relaxed);
                assert!(matches!(handle.join().unwrap(), Err(WaitError::Cancelled)));
                assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
            });
        }
    }
}
