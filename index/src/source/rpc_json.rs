//! The shapes of JSON-RPC answers, and exact amounts.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bitcoin::block::{Header, Version};
use bitcoin::consensus::deserialize;
use bitcoin::hashes::Hash;
use bitcoin::hex::FromHex;
use bitcoin::{Block, BlockHash, CompactTarget, Transaction, TxMerkleNode, TxOut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::block::{invalid, make_txout};
use super::http::excerpt;
use super::{BlockWithPrevouts, SourceError, Tip, block};

/// Reads what a node sent in answer to `what`.
pub(super) fn parse<'a, T: Deserialize<'a>>(what: &str, body: &'a [u8]) -> Result<T, SourceError> {
    serde_json::from_slice(body).map_err(|e| {
        // The error may repeat a whole string of the answer.
        let e = excerpt(e.to_string().as_bytes());
        SourceError::Invalid(format!("answer to {what}: {e}: {}", excerpt(body)))
    })
}

/// One answer, alone or in a batch. Which of `result` and `error` are there differs between versions of the protocol.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct Answer<T> {
    #[serde(default = "none")]
    pub(super) result: Option<T>,
    #[serde(default)]
    pub(super) error: Option<RpcError>,
    /// What we sent; some errors come without it.
    #[serde(default)]
    pub(super) id: Option<u64>,
}

// `#[serde(default)]` alone would ask for `T: Default`.
fn none<T>() -> Option<T> {
    None
}

/// The part of an answer that tells whether it is an error, whatever the result would have been.
#[derive(Deserialize)]
pub(super) struct ErrorOnly {
    #[serde(default)]
    pub(super) error: Option<RpcError>,
    /// Present, so that other JSON isn't taken for an answer.
    #[serde(rename = "id")]
    _id: IgnoredAny,
}

#[derive(Deserialize)]
pub(super) struct RpcError {
    pub(super) code: i64,
    #[serde(default)]
    message: String,
}

impl RpcError {
    pub(super) fn text(&self) -> String {
        excerpt(self.message.as_bytes())
    }
}

/// A JSON string that is read by `FromStr`, such as a hash.
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// `getblockchaininfo` and REST's `chaininfo`, as far as needed.
#[derive(Deserialize)]
pub(super) struct ChainInfo {
    blocks: u32,
    bestblockhash: Text<BlockHash>,
}

impl From<ChainInfo> for Tip {
    fn from(info: ChainInfo) -> Self {
        Self { height: info.blocks, hash: info.bestblockhash.0 }
    }
}

/// `getblock <hash> 3`, as far as needed.
#[derive(Deserialize)]
pub(super) struct VerboseBlock<'a> {
    version: i32,
    /// Missing at the genesis block.
    previousblockhash: Option<Text<BlockHash>>,
    merkleroot: Text<TxMerkleNode>,
    time: u32,
    bits: Bits,
    nonce: u32,
    #[serde(borrow)]
    tx: Vec<VerboseTx<'a>>,
}

/// Eight hexadecimal digits.
struct Bits(CompactTarget);

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let bits = CompactTarget::from_unprefixed_hex(&text).map_err(serde::de::Error::custom)?;
        Ok(Self(bits))
    }
}

#[derive(Deserialize)]
struct VerboseTx<'a> {
    #[serde(borrow)]
    hex: Cow<'a, str>,
    #[serde(borrow)]
    vin: Vec<VerboseInput<'a>>,
}

#[derive(Deserialize)]
struct VerboseInput<'a> {
    /// Missing at the coinbase, and when the node can't tell.
    #[serde(borrow)]
    prevout: Option<Prevout<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Prevout<'a> {
    /// The digits as they were sent: a binary floating point number can't hold them all.
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow, rename = "scriptPubKey")]
    script: Script<'a>,
}

#[derive(Deserialize)]
struct Script<'a> {
    #[serde(borrow)]
    hex: Cow<'a, str>,
}

impl VerboseBlock<'_> {
    /// The block of this hash and what it spends, checked like one that came as bytes.
    pub(super) fn into_block(self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        let header = Header {
            version: Version::from_consensus(self.version),
            prev_blockhash: self.previousblockhash.map_or_else(BlockHash::all_zeros, |hash| hash.0),
            merkle_root: self.merkleroot.0,
            time: self.time,
            bits: self.bits.0,
            nonce: self.nonce,
        };
        let mut txdata = Vec::with_capacity(self.tx.len());
        let mut prevouts = Vec::with_capacity(self.tx.len());
        for (position, tx) in self.tx.into_iter().enumerate() {
            let fail =
                |what: &dyn fmt::Display| invalid(hash, format_args!("transaction {position}: {what}"));
            let bytes = Vec::<u8>::from_hex(&tx.hex).map_err(|e| fail(&e))?;
            let transaction: Transaction = deserialize(&bytes).map_err(|e| fail(&e))?;
            let outputs = if position == 0 {
                Vec::new()
            } else {
                if transaction.input.len() != tx.vin.len() {
                    return Err(fail(&format_args!(
                        "it lists {} inputs, but has {}",
                        tx.vin.len(),
                        transaction.input.len()
                    )));
                }
                tx.vin
                    .into_iter()
                    .map(|input| match input.prevout {
                        Some(prevout) => prevout.into_txout().map_err(|e| fail(&e)),
                        None => Err(SourceError::Refused(format!(
                            "block {hash}: the node doesn't tell which outputs are spent: that needs Bitcoin Core 23 or \
                             newer, and a block that isn't pruned"
                        ))),
                    })
                    .collect::<Result<Vec<TxOut>, _>>()?
            };
            txdata.push(transaction);
            prevouts.push(outputs);
        }
        let block = Block { header, txdata };
        block::check_block(hash, &block)?;
        Ok(BlockWithPrevouts { block, prevouts })
    }
}

impl Prevout<'_> {
    pub(super) fn into_txout(self) -> Result<TxOut, String> {
        let sats = parse_btc(self.value.get())
            .ok_or_else(|| format!("{} isn't an amount in BTC", excerpt(self.value.get().as_bytes())))?;
        let script = Vec::<u8>::from_hex(&self.script.hex).map_err(|e| format!("a spent script: {e}"))?;
        make_txout(sats, script)
    }
}

/// A JSON number of bitcoins as satoshi, exactly; `None` for anything else, such as a fraction of a satoshi.
///
/// Bitcoin Core writes eight decimals. Other software leaves out zeros at the end or writes exponents, as in `5.46e-6`.
pub(super) fn parse_btc(text: &str) -> Option<u64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if whole.is_empty() || !digits().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let mut value = 0u64;
    for digit in digits() {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    // value · 10^(exponent - decimals) bitcoins of 10^8 satoshi each.
    let shift = i64::from(exponent) - i64::try_from(fraction.len()).ok()? + 8;
    if value == 0 {
        return Some(0);
    }
    let power = 10u64.checked_pow(u32::try_from(shift.unsigned_abs()).ok()?)?;
    if shift >= 0 { value.checked_mul(power) } else { value.is_multiple_of(power).then_some(value / power) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (text, sats) in [
            ("0.00000000", 0),
            ("0", 0),
            ("0e99", 0),
            ("0.00000001", 1),
            ("0.1", 10_000_000),
            ("0.29", 29_000_000),
            ("50.00000000", 5_000_000_000),
            ("20999999.97690000", 2_099_999_997_690_000),
            ("90071992.54740993", 9_007_199_254_740_993), // 2^53 + 1, which a double can't hold
            ("1e-8", 1),
            ("5.46e-6", 546),
            ("1.5E1", 1_500_000_000),
            ("0.000000010", 1),
        ] {
            assert_eq!(parse_btc(text), Some(sats), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_amounts() {
        for text in [
            "",
            "-1",
            "+1",
            ".5",
            "1.2.3",
            "0.000000001",
            "1e-9",
            "1e",
            "1e99",
            "1e-99",
            "99999999999999999999",
            "null",
            "\"1\"",
            " 1",
            "1 ",
            "NaN",
            "1e2147483648",
        ] {
            assert_eq!(parse_btc(text), None, "{text}");
        }
    }
}
