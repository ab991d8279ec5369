//! Versions of the protocol.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A version of the Electrum protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16, pub u16);

impl Version {
    /// The oldest that is spoken, and what a client speaks that doesn't say.
    pub const OLDEST: Self = Self(1, 4, 0);
    /// `blockchain.scripthash.unsubscribe` came.
    pub const V1_4_2: Self = Self(1, 4, 2);
    /// `server.version` must be first, headers are lists, packages.
    pub const V1_6: Self = Self(1, 6, 0);
    /// Scripts instead of script hashes, outpoints.
    pub const V1_7: Self = Self(1, 7, 0);
    /// The newest that is spoken.
    pub const NEWEST: Self = Self::V1_7;
    /// The newest of those that don't demand to be negotiated first.
    const NEWEST_LATE: Self = Self(1, 5, u16::MAX);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(major, minor, 0) => write!(f, "{major}.{minor}"),
            Self(major, minor, patch) => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

impl FromStr for Version {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = [0; 3];
        for (at, part) in text.split('.').enumerate() {
            // Not what `parse` takes beyond digits, such as a plus sign.
            if at == parts.len() || part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(());
            }
            parts[at] = part.parse().map_err(|_| ())?;
        }
        Ok(Self(parts[0], parts[1], parts[2]))
    }
}

/// Why there is no common version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NegotiationError {
    /// Neither a version nor a pair of them.
    Malformed,
    /// The client's range doesn't overlap ours.
    Unsupported,
    /// The client wants 1.6 or later, but said something else first.
    Late,
}

/// The version to speak with a client that asked with `argument`, which is a version or a pair of the oldest and newest.
pub(super) fn negotiate(argument: &Value, newest: Version, first: bool) -> Result<Version, NegotiationError> {
    let version =
        |value: &Value| value.as_str().and_then(|s| s.parse().ok()).ok_or(NegotiationError::Malformed);
    let (low, high): (Version, Version) = match argument {
        Value::Null => (Version::OLDEST, Version::OLDEST),
        Value::Array(pair) if pair.len() == 2 => (version(&pair[0])?, version(&pair[1])?),
        Value::Array(_) => return Err(NegotiationError::Malformed),
        one => (version(one)?, version(one)?),
    };
    let agreed = high.min(newest);
    if agreed < low.max(Version::OLDEST) {
        return Err(NegotiationError::Unsupported);
    }
    if first || agreed < Version::V1_6 {
        return Ok(agreed);
    }
    // Protocols from 1.6 on demand to be negotiated first; with an older one, late is good enough.
    let late = high.min(Version::NEWEST_LATE);
    if late < low { Err(NegotiationError::Late) } else { Ok(Version::V1_4_2) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Bug class 13: negotiation that ignores the client's range.
    #[test]
    fn negotiates_within_both_ranges() {
        let ask = |argument| negotiate(&argument, Version::NEWEST, true).map(|v| v.to_string());
        assert_eq!(ask(json!("1.4")), Ok("1.4".into()));
        assert_eq!(ask(json!(["1.3", "1.4.2"])), Ok("1.4.2".into()));
        assert_eq!(ask(json!(["1.4", "1.6"])), Ok("1.6".into()));
        assert_eq!(ask(json!(["1.4", "9.9"])), Ok("1.7".into()));
        assert_eq!(ask(json!("1.4.0")), Ok("1.4".into()));
        assert_eq!(ask(Value::Null), Ok("1.4".into()));
        for unsupported in [json!("1.3"), json!("1.8"), json!(["1.0", "1.2"]), json!(["2.0", "3.0"])] {
            assert_eq!(ask(unsupported), Err(NegotiationError::Unsupported));
        }
        for malformed in [
            json!(1.4),
            json!("x"),
            json!(""),
            json!("1..4"),
            json!("1.+4"),
            json!(["1.4"]),
            json!({}),
            json!("1.4.2.1"),
        ] {
            assert_eq!(ask(malformed), Err(NegotiationError::Malformed));
        }
    }

    #[test]
    fn from_1_6_on_it_must_be_first() {
        let late = |argument| negotiate(&argument, Version::NEWEST, false).map(|v| v.to_string());
        assert_eq!(late(json!("1.4.1")), Ok("1.4.1".into()));
        assert_eq!(late(json!(["1.4", "1.6"])), Ok("1.4.2".into()));
        assert_eq!(late(json!("1.6")), Err(NegotiationError::Late));
    }
}
