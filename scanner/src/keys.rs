//! Scan and spend keys, labels, and what a scan looks for.

use std::fmt;
use std::str::FromStr;

use secp256k1::{PublicKey, Scalar, SecretKey};
use zeroize::Zeroizing;

use crate::hash;

/// Why a key or a label is refused. No message repeats key bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// A secret key is 64 hexadecimal digits.
    #[error("a secret key is 64 hexadecimal digits, big-endian")]
    SecretFormat,
    /// A secret key is a number from 1 to n−1.
    #[error("the secret key is zero or not below the order of the curve")]
    SecretRange,
    /// A public key is 66 hexadecimal digits of a point on the curve.
    #[error(
        "a spend public key is 66 hexadecimal digits: 02 or 03, then the x coordinate of a point on the curve"
    )]
    PublicFormat,
    /// The label hashes to an invalid scalar, or cancels the spend key. Neither happens by chance.
    #[error("label {0} can't be used with these keys")]
    Label(u32),
    /// A target was given more labels than a scan handles.
    #[error("{given} labels were asked for; at most {max} are possible in one scan")]
    TooManyLabels {
        /// How many were asked for, the change label included.
        given: usize,
        /// How many are possible.
        max: usize,
    },
}

macro_rules! secret_key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// The bytes are wiped on drop, and `Debug` shows nothing of them.
        #[derive(Clone)]
        pub struct $name(SecretKey);

        impl $name {
            /// From 32 bytes, big-endian.
            pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, KeyError> {
                SecretKey::from_secret_bytes(bytes).map(Self).map_err(|_| KeyError::SecretRange)
            }

            /// The key as libsecp256k1 takes it. The caller wipes what it copies.
            pub fn secret(&self) -> &SecretKey {
                &self.0
            }

            /// The public key that belongs to it.
            pub fn public_key(&self) -> PublicKey {
                PublicKey::from_secret_key(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = KeyError;

            /// From 64 hexadecimal digits, big-endian; white space around them is allowed.
            fn from_str(text: &str) -> Result<Self, KeyError> {
                let bytes: Zeroizing<[u8; 32]> =
                    bitcoin::hex::FromHex::from_hex(text.trim()).map(Zeroizing::new).map_err(|_| KeyError::SecretFormat)?;
                Self::from_bytes(*bytes)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                self.0.non_secure_erase();
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

secret_key! {
    /// The scan secret key `b_scan`: enough to see all payments to a wallet, not to spend them.
    ScanKey
}

secret_key! {
    /// The spend secret key `b_spend`. Nothing in Peregrine asks a wallet for it; tests and the demo need it.
    SpendKey
}

impl SpendKey {
    /// The secret key of a received output: `b_spend + tweak`, where `tweak` is that of
    /// [`FoundOutput`](crate::receive::FoundOutput). `None` if the sum is zero, which doesn't happen by chance.
    pub fn output_key(&self, tweak: &OutputTweak) -> Option<SpendKey> {
        let scalar = Scalar::from_be_bytes(*tweak.0).ok()?;
        self.0.add_tweak(&scalar).ok().map(Self)
    }
}

/// The scalar that makes a spend key the key of one received output: `t_k`, plus the label's scalar where there is one.
/// Wiped on drop; `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct OutputTweak(Zeroizing<[u8; 32]>);

impl OutputTweak {
    pub(crate) fn new(key: &SecretKey) -> Self {
        Self(Zeroizing::new(key.to_secret_bytes()))
    }

    /// 32 bytes, big-endian.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for OutputTweak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutputTweak(..)")
    }
}

/// A spend public key from 66 hexadecimal digits.
pub fn parse_spend_key(text: &str) -> Result<PublicKey, KeyError> {
    let bytes: [u8; 33] = bitcoin::hex::FromHex::from_hex(text.trim()).map_err(|_| KeyError::PublicFormat)?;
    PublicKey::from_byte_array_compressed(bytes).map_err(|_| KeyError::PublicFormat)
}

/// A label of one scan key: the number `m`, its scalar, and its point `label_m·G`.
#[derive(Clone)]
pub struct Label {
    m: u32,
    tweak: SecretKey,
    point: PublicKey,
}

impl Label {
    /// The label reserved for change (BIP352).
    pub const CHANGE: u32 = 0;

    /// Label `m` of a scan key.
    pub fn new(scan: &ScanKey, m: u32) -> Result<Self, KeyError> {
        let tweak = hash::label_tweak(scan.secret(), m).ok_or(KeyError::Label(m))?;
        Ok(Self { m, point: PublicKey::from_secret_key(&tweak), tweak })
    }

    /// The label's number; 0 is change.
    pub fn m(&self) -> u32 {
        self.m
    }

    /// The point `label_m·G`.
    pub fn point(&self) -> &PublicKey {
        &self.point
    }

    pub(crate) fn tweak(&self) -> &SecretKey {
        &self.tweak
    }

    /// The spend key of the labelled address: `B_spend + label_m·G`.
    pub fn apply(&self, spend: &PublicKey) -> Result<PublicKey, KeyError> {
        spend.combine(&self.point).map_err(|_| KeyError::Label(self.m))
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        self.tweak.non_secure_erase();
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Label({})", self.m)
    }
}

/// What a scan looks for: one wallet's scan key, spend public key and labels.
///
/// The change label (m = 0) is always among the labels, as the BIP demands, and always first.
#[derive(Clone)]
pub struct ScanTarget {
    scan: ScanKey,
    spend: PublicKey,
    labels: Vec<Label>,
}

impl ScanTarget {
    /// At most this many labels in one target, the change label included. A backend numbers labels in 16 bits.
    pub const MAX_LABELS: usize = 65_535;

    /// A target with the given labels; the change label is added, repeated numbers count once.
    pub fn new(
        scan: ScanKey,
        spend: PublicKey,
        labels: impl IntoIterator<Item = u32>,
    ) -> Result<Self, KeyError> {
        let mut numbers: Vec<u32> = std::iter::once(Label::CHANGE).chain(labels).collect();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() > Self::MAX_LABELS {
            return Err(KeyError::TooManyLabels { given: numbers.len(), max: Self::MAX_LABELS });
        }
        let labels = numbers.into_iter().map(|m| Label::new(&scan, m)).collect::<Result<_, _>>()?;
        Ok(Self { scan, spend, labels })
    }

    /// The scan key.
    pub fn scan_key(&self) -> &ScanKey {
        &self.scan
    }

    /// The spend public key, without any label.
    pub fn spend_key(&self) -> &PublicKey {
        &self.spend
    }

    /// The labels, ascending; the first is the change label.
    pub fn labels(&self) -> &[Label] {
        &self.labels
    }
}

impl fmt::Debug for ScanTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScanTarget(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_of_a_secret() {
        let scan = ScanKey::from_bytes([0x5a; 32]).unwrap();
        let spend = SpendKey::from_bytes([0x5b; 32]).unwrap();
        let target = ScanTarget::new(scan.clone(), spend.public_key(), [7]).unwrap();
        let label = target.labels()[1].clone();
        let tweak = OutputTweak::new(scan.secret());
        let text = format!("{scan:?} {spend:?} {target:?} {label:?} {tweak:?} {:?}", KeyError::SecretRange);
        assert_eq!(text, "ScanKey(..) SpendKey(..) ScanTarget(..) Label(7) OutputTweak(..) SecretRange");
    }

    #[test]
    fn change_label_is_always_there_and_numbers_count_once() {
        let scan = ScanKey::from_bytes([1; 32]).unwrap();
        let spend = SpendKey::from_bytes([2; 32]).unwrap().public_key();
        let target = ScanTarget::new(scan, spend, [5, 3, 5, 0]).unwrap();
        assert_eq!(target.labels().iter().map(Label::m).collect::<Vec<_>>(), [0, 3, 5]);
    }

    #[test]
    fn refuses_bad_keys_without_repeating_them() {
        assert_eq!("".parse::<ScanKey>().unwrap_err(), KeyError::SecretFormat);
        assert_eq!("zz".repeat(32).parse::<ScanKey>().unwrap_err(), KeyError::SecretFormat);
        assert_eq!("00".repeat(32).parse::<ScanKey>().unwrap_err(), KeyError::SecretRange);
        assert_eq!("ff".repeat(32).parse::<ScanKey>().unwrap_err(), KeyError::SecretRange);
        assert!(format!(" {}\n", "01".repeat(32)).parse::<ScanKey>().is_ok());
        assert_eq!(parse_spend_key(&"02".repeat(32)).unwrap_err(), KeyError::PublicFormat);
        assert_eq!(parse_spend_key(&format!("04{}", "11".repeat(32))).unwrap_err(), KeyError::PublicFormat);
        assert_eq!(parse_spend_key(&format!("02{}", "ff".repeat(32))).unwrap_err(), KeyError::PublicFormat);
    }
}
