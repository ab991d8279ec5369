//! Why the node can't do what it was asked.

use std::fmt;
use std::time::Duration;

/// How far the index is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Readiness {
    /// Everything can be asked.
    Ready,
    /// The index is behind the chain.
    Indexing {
        /// How much is done, from 0 to 100.
        percent: f64,
        /// How long the rest takes, where that can be told.
        time_left: Option<Duration>,
    },
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Indexing { percent, time_left } => {
                // Never "100 %" while it isn't done; a conversion makes 0 of what is no number.
                write!(f, "indexing {} %", percent.clamp(0.0, 99.0) as u8)?;
                match time_left.map(|left| left.as_secs()) {
                    None => Ok(()),
                    Some(seconds @ ..60) => write!(f, ", about {seconds} s left"),
                    Some(seconds @ ..5400) => write!(f, ", about {} min left", (seconds + 30) / 60),
                    Some(seconds @ ..172_800) => write!(f, ", about {} h left", (seconds + 1800) / 3600),
                    Some(seconds) => write!(f, ", about {} days left", (seconds + 43_200) / 86_400),
                }
            }
        }
    }
}

/// An error by what it means; every protocol derives its own codes from that.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NodeError {
    /// There is no such block, transaction, position. The text says what.
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense. The text says why.
    #[error("{0}")]
    Invalid(String),
    /// The answer would have more entries than the server gives. Never answered with an empty or shortened list.
    #[error("the history is too large: more than {limit} entries")]
    TooLarge {
        /// The number of entries that would have been served.
        limit: usize,
    },
    /// The index isn't there yet.
    #[error("{0}")]
    Indexing(Readiness),
    /// Not now, but later. The text says why.
    #[error("{0}")]
    Busy(String),
    /// The node doesn't accept the transaction.
    #[error("{reason}")]
    Rejected {
        /// The node's own words.
        reason: String,
    },
    /// The node itself doesn't answer, or with an error. The text is for the client.
    #[error("{0}")]
    Daemon(String),
    /// Something that should not happen; the text is for the log, clients don't see it.
    #[error("{0}")]
    Internal(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_long_it_takes() {
        let text = |percent, seconds: Option<u64>| {
            Readiness::Indexing { percent, time_left: seconds.map(Duration::from_secs) }.to_string()
        };
        assert_eq!(text(41.7, Some(7_300)), "indexing 41 %, about 2 h left");
        assert_eq!(text(99.99, Some(20)), "indexing 99 %, about 20 s left");
        assert_eq!(text(100.0, None), "indexing 99 %");
        assert_eq!(text(f64::NAN, Some(300_000)), "indexing 0 %, about 3 days left");
        assert_eq!(text(-1.0, Some(600)), "indexing 0 %, about 10 min left");
    }
}
