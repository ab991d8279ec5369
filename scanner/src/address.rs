//! Silent payment addresses: Bech32m over a version and two compressed public keys (BIP352, "Address encoding").

use std::fmt;
use std::str::FromStr;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::primitives::iter::{ByteIterExt, Fe32IterExt};
use bech32::{Bech32m, Fe32, Hrp};
use secp256k1::PublicKey;

/// The human-readable part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressNetwork {
    /// `sp`: mainnet.
    Mainnet,
    /// `tsp`: testnet3, testnet4 and signet.
    Testnet,
    /// `sprt`: regtest. Not in the BIP; what Sparrow uses and expects.
    Regtest,
}

impl AddressNetwork {
    /// The human-readable part.
    pub fn hrp(self) -> &'static str {
        match self {
            Self::Mainnet => "sp",
            Self::Testnet => "tsp",
            Self::Regtest => "sprt",
        }
    }

    fn from_hrp(hrp: &str) -> Option<Self> {
        [Self::Mainnet, Self::Testnet, Self::Regtest].into_iter().find(|network| network.hrp() == hrp)
    }
}

/// Why a text isn't a silent payment address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// Not Bech32m, or the checksum is wrong.
    #[error("not a valid Bech32m text: {0}")]
    Encoding(String),
    /// Another kind of address.
    #[error("starts with '{0}1', but silent payment addresses start with sp1, tsp1 or sprt1")]
    Prefix(String),
    /// No version character.
    #[error("the address has no version character")]
    NoVersion,
    /// Version 31 is reserved for a change that old software can't read.
    #[error("version {0} addresses can't be read by this version of the software")]
    Version(u8),
    /// The payload is too short or, for version 0, too long.
    #[error("the address carries {0} bytes of keys; version 0 has exactly 66, later versions at least 66")]
    Length(usize),
    /// Left-over bits at the end are not zero.
    #[error("the last character of the payload has non-zero padding")]
    Padding,
    /// A key isn't on the curve.
    #[error("the {0} public key in the address isn't a point on the curve")]
    Key(&'static str),
}

/// A silent payment address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which network it is for.
    pub network: AddressNetwork,
    /// Version 0 to 30. Addresses above 0 are read as if they were 0, as the BIP demands; only 0 is ever made.
    pub version: u8,
    /// `B_scan`.
    pub scan: PublicKey,
    /// `B_m`: `B_spend`, or `B_spend + label_m·G` in a labelled address.
    pub spend: PublicKey,
}

impl Address {
    /// A version 0 address.
    pub fn new(network: AddressNetwork, scan: PublicKey, spend: PublicKey) -> Self {
        Self { network, version: 0, scan, spend }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hrp = Hrp::parse_unchecked(self.network.hrp());
        let version = Fe32::try_from(self.version).map_err(|_| fmt::Error)?;
        let (scan, spend) = (self.scan.serialize(), self.spend.serialize());
        let keys = scan.into_iter().chain(spend);
        for c in keys.bytes_to_fes().with_checksum::<Bech32m>(&hrp).with_witness_version(version).chars() {
            fmt::Write::write_char(f, c)?;
        }
        Ok(())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // The crate's Bech32m takes up to 1023 characters, which is the BIP's limit too.
        let parsed =
            CheckedHrpstring::new::<Bech32m>(text).map_err(|e| AddressError::Encoding(e.to_string()))?;
        let hrp = parsed.hrp().to_lowercase();
        let network = AddressNetwork::from_hrp(&hrp).ok_or(AddressError::Prefix(hrp))?;
        // Not the crate's witness version: that one only goes up to 16.
        let characters: Vec<Fe32> = parsed.fe32_iter::<std::iter::Empty<u8>>().collect();
        let (version, data) = characters.split_first().ok_or(AddressError::NoVersion)?;
        let version = version.to_u8();
        if version == 31 {
            return Err(AddressError::Version(version));
        }
        let bytes = payload(data).ok_or(AddressError::Padding)?;
        if bytes.len() < 66 || (version == 0 && bytes.len() != 66) {
            return Err(AddressError::Length(bytes.len()));
        }
        let key = |range: std::ops::Range<usize>, name| {
            PublicKey::from_slice(&bytes[range]).map_err(|_| AddressError::Key(name))
        };
        Ok(Self { network, version, scan: key(0..33, "scan")?, spend: key(33..66, "spend")? })
    }
}

/// Bytes from Bech32 characters; `None` if the bits left over are 5 or more, or not zero.
fn payload(data: &[Fe32]) -> Option<Vec<u8>> {
    let padding = data.len() * 5 % 8;
    let last = data.last().map_or(0, |c| c.to_u8());
    (padding < 5 && last & ((1 << padding) - 1) == 0).then(|| data.iter().copied().fes_to_bytes().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::from_secret_key(&secp256k1::SecretKey::from_secret_bytes([byte; 32]).unwrap())
    }

    /// An address of any version with any payload, valid or not.
    fn encode(hrp: &str, version: u8, payload: &[u8]) -> String {
        let hrp = Hrp::parse(hrp).unwrap();
        let version = Fe32::try_from(version).unwrap();
        let fes = payload.iter().copied().bytes_to_fes();
        fes.with_checksum::<Bech32m>(&hrp).with_witness_version(version).chars().collect()
    }

    fn keys() -> Vec<u8> {
        [key(1).serialize(), key(2).serialize()].concat()
    }

    #[test]
    fn round_trip_on_every_network() {
        for network in [AddressNetwork::Mainnet, AddressNetwork::Testnet, AddressNetwork::Regtest] {
            let address = Address::new(network, key(1), key(2));
            let text = address.to_string();
            assert!(text.starts_with(&format!("{}1q", network.hrp())));
            assert_eq!(text.parse(), Ok(address.clone()));
            assert_eq!(text.to_uppercase().parse(), Ok(address));
            assert_eq!(text, encode(network.hrp(), 0, &keys()));
        }
    }

    #[test]
    fn later_versions_are_read_as_version_0_and_31_is_refused() {
        let longer = [keys(), vec![7; 40]].concat();
        for version in 1..=30 {
            let parsed: Address = encode("sp", version, &longer).parse().unwrap();
            assert_eq!((parsed.version, parsed.scan, parsed.spend), (version, key(1), key(2)));
            assert!(encode("sp", version, &keys()).parse::<Address>().is_ok());
            assert_eq!(
                encode("sp", version, &keys()[..65]).parse::<Address>(),
                Err(AddressError::Length(65))
            );
        }
        assert_eq!(encode("sp", 31, &keys()).parse::<Address>(), Err(AddressError::Version(31)));
        assert_eq!(encode("sp", 0, &longer).parse::<Address>(), Err(AddressError::Length(106)));
        assert_eq!(encode("sp", 0, &keys()[..65]).parse::<Address>(), Err(AddressError::Length(65)));
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(encode("bc", 0, &keys()).parse::<Address>(), Err(AddressError::Prefix("bc".into())));
        let mut off_curve = keys();
        off_curve[34..66].fill(0xff);
        assert_eq!(encode("sp", 0, &off_curve).parse::<Address>(), Err(AddressError::Key("spend")));
        off_curve[0] = 5;
        assert_eq!(encode("sp", 0, &off_curve).parse::<Address>(), Err(AddressError::Key("scan")));
        let good = Address::new(AddressNetwork::Mainnet, key(1), key(2)).to_string();
        for cut in 0..good.len() {
            assert!(good[..cut].parse::<Address>().is_err());
        }
        // A text of 1023 characters is within the BIP's limit, one of 1024 is not. 4 + 1 + 6 characters aren't payload.
        let longest = encode("sp", 1, &[keys(), vec![0; 632 - 66]].concat());
        assert_eq!(longest.len(), 1022);
        assert!(longest.parse::<Address>().is_ok());
        let too_long = encode("sprt", 1, &[keys(), vec![0; 632 - 66]].concat());
        assert_eq!(too_long.len(), 1024);
        assert!(matches!(too_long.parse::<Address>(), Err(AddressError::Encoding(_))));
    }
}
