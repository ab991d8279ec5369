//! What Electrum calls a script hash.

use std::fmt;
use std::str::FromStr;

use bitcoin::Script;
use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::{DisplayHex, FromHex};

/// SHA-256 of an output script.
///
/// The bytes stand as they were hashed, which is the order that Esplora shows. Electrum's text has them reversed; this
/// type's text is Electrum's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScriptHash(pub [u8; 32]);

impl ScriptHash {
    /// The hash of a script.
    pub fn of(script: &Script) -> Self {
        Self(sha256::Hash::hash(script.as_bytes()).to_byte_array())
    }
}

impl fmt::Display for ScriptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reversed = self.0;
        reversed.reverse();
        write!(f, "{:x}", reversed.as_hex())
    }
}

impl fmt::Debug for ScriptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text isn't a script hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a script hash is 64 hexadecimal digits")]
pub struct NotAScriptHash;

impl FromStr for ScriptHash {
    type Err = NotAScriptHash;

    fn from_str(text: &str) -> Result<Self, NotAScriptHash> {
        let mut bytes = <[u8; 32]>::from_hex(text).map_err(|_| NotAScriptHash)?;
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
            assert_eq!(text.parse::<ScriptHash>(), Err(NotAScriptHash), "{text}");
        }
    }
}
