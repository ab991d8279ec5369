//! The name under which Electrum knows an output script.

use std::fmt;
use std::str::FromStr;

use bitcoin::Script;
use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::{DisplayHex, FromHex};

/// SHA-256 of an output script, in the order in which it comes out of the hash. Its text, as in the Electrum protocol,
/// has the bytes reversed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScriptHash(pub [u8; 32]);

impl ScriptHash {
    /// Hash of an output script.
    pub fn of(script: &Script) -> Self {
        Self(sha256::Hash::hash(script.as_bytes()).to_byte_array())
    }
}

/// Whether nobody can ever spend an output with this script by Bitcoin Core's rule: it begins with `OP_RETURN` or has more
/// than 10,000 bytes. Such outputs are in no history.
pub fn is_unspendable(script: &Script) -> bool {
    script.is_op_return() || script.len() > 10_000
}

impl fmt::Display for ScriptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0;
        bytes.reverse();
        write!(f, "{}", bytes.as_hex())
    }
}

impl fmt::Debug for ScriptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a script hash has 64 hexadecimal digits")]
pub struct ParseScriptHashError;

impl FromStr for ScriptHash {
    type Err = ParseScriptHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = <[u8; 32]>::from_hex(text).map_err(|_| ParseScriptHashError)?;
        bytes.reverse();
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use bitcoin::ScriptBuf;

    use super::*;

    /// The genesis block's key, as in the protocol's documentation. Bug class 25: byte order of script hashes.
    #[test]
    fn the_text_is_reversed() {
        let script = ScriptBuf::from_hex("76a91462e907b15cbf27d5425399ebf6f0fb50ebb88f1888ac").unwrap();
        let text = "8b01df4e368ea28f8dc0423bcf7a4923e3a12d307c875e47a0cfbf90b5c39161";
        let hash = ScriptHash::of(&script);
        assert_eq!(hash.to_string(), text);
        assert_eq!(text.parse(), Ok(hash));
        assert_eq!(hash.0[0], 0x61);
    }

    #[test]
    fn refuses_what_is_no_hash() {
        for text in ["", "8b", &"8b".repeat(33), &"zz".repeat(32), &format!("{}é", "8".repeat(62))] {
            assert_eq!(text.parse::<ScriptHash>(), Err(ParseScriptHashError), "{text}");
        }
    }
}
