//! Keys and values as bytes. `docs/index-format.md` describes them.
//!
//! Numbers in keys are big-endian, so that the order of keys is that of the numbers.

use bitcoin::Txid;
use bitcoin::hashes::Hash;

use super::script_hash::ScriptHash;

/// Bytes of a script hash in the key of a history row.
pub(super) const SCRIPT_LEN: usize = 16;
/// Bytes of a transaction number.
pub(super) const NUMBER_LEN: usize = 5;
/// Bytes of a txid in a key.
pub(super) const PREFIX_LEN: usize = 8;
/// There can be no more transactions.
pub(super) const MAX_NUMBER: u64 = (1 << (8 * NUMBER_LEN)) - 1;

pub(super) type ScriptKey = [u8; SCRIPT_LEN];
pub(super) type HistoryKey = [u8; SCRIPT_LEN + NUMBER_LEN];
pub(super) type SpendKey = [u8; NUMBER_LEN + 4];
pub(super) type TxidPrefix = [u8; PREFIX_LEN];

pub(super) fn number_key(number: u64) -> [u8; NUMBER_LEN] {
    let bytes = number.to_be_bytes();
    std::array::from_fn(|i| bytes[bytes.len() - NUMBER_LEN + i])
}

/// A number from exactly [`NUMBER_LEN`] bytes.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    (bytes.len() == NUMBER_LEN).then(|| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub(super) fn script_key(script: &ScriptHash) -> ScriptKey {
    std::array::from_fn(|i| script.0[i])
}

pub(super) fn history_key(script: &ScriptKey, number: u64) -> HistoryKey {
    let number = number_key(number);
    std::array::from_fn(|i| if i < SCRIPT_LEN { script[i] } else { number[i - SCRIPT_LEN] })
}

/// The transaction number in the key of a history row.
pub(super) fn number_of_history(key: &[u8]) -> Option<u64> {
    number(key.get(SCRIPT_LEN..)?)
}

pub(super) fn spend_key(funding: u64, vout: u32) -> SpendKey {
    let (number, vout) = (number_key(funding), vout.to_be_bytes());
    std::array::from_fn(|i| if i < NUMBER_LEN { number[i] } else { vout[i - NUMBER_LEN] })
}

pub(super) fn txid_prefix(txid: &Txid) -> TxidPrefix {
    let bytes = txid.as_byte_array();
    std::array::from_fn(|i| bytes[i])
}

/// The numbers under a txid's prefix.
pub(super) fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number_key(*number)).collect()
}

pub(super) fn decode_numbers(bytes: &[u8]) -> Option<Vec<u64>> {
    bytes.chunks(NUMBER_LEN).map(number).collect()
}

/// The row of a transaction: its id, and where it begins in its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TxRow {
    pub(super) txid: Txid,
    /// Bytes from the beginning of the serialized block.
    pub(super) offset: u32,
}

impl TxRow {
    pub(super) fn encode(&self) -> [u8; 36] {
        let (txid, offset) = (self.txid.as_byte_array(), self.offset.to_le_bytes());
        std::array::from_fn(|i| if i < 32 { txid[i] } else { offset[i - 32] })
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (txid, offset) = bytes.split_first_chunk()?;
        let offset = u32::from_le_bytes(offset.try_into().ok()?);
        Some(Self { txid: Txid::from_byte_array(*txid), offset })
    }
}

/// The row of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRow {
    pub(super) header: [u8; 80],
    /// Number of transactions up to and including this block.
    pub(super) tx_end: u64,
    /// Bytes of the serialized block.
    pub(super) size: u32,
}

impl BlockRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        [&self.header[..], &self.tx_end.to_le_bytes(), &self.size.to_le_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk()?;
        let (tx_end, size) = rest.split_first_chunk()?;
        let size = u32::from_le_bytes(size.try_into().ok()?);
        Some(Self { header: *header, tx_end: u64::from_le_bytes(*tx_end), size })
    }
}

/// What one transaction does to one script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HistoryRow {
    /// Outputs that pay to the script: index and satoshi.
    pub(super) funds: Vec<(u32, u64)>,
    /// Inputs that spend outputs of the script.
    pub(super) spends: Vec<Spend>,
}

/// An input, and the output it spends by the number of its transaction and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) funding: u64,
    pub(super) vout: u32,
    pub(super) vin: u32,
}

impl HistoryRow {
    /// `number` is the number of the row's transaction.
    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(8);
        put(&mut out, self.funds.len() as u64);
        for (vout, value) in &self.funds {
            put(&mut out, u64::from(*vout));
            put(&mut out, *value);
        }
        for spend in &self.spends {
            put(&mut out, number.wrapping_sub(spend.funding));
            put(&mut out, u64::from(spend.vout));
            put(&mut out, u64::from(spend.vin));
        }
        out
    }

    pub(super) fn decode(bytes: &[u8], number: u64) -> Option<Self> {
        let mut rest = bytes;
        let mut row = Self::default();
        let funds = take(&mut rest)?;
        for _ in 0..funds {
            row.funds.push((take32(&mut rest)?, take(&mut rest)?));
        }
        while !rest.is_empty() {
            let funding = number.wrapping_sub(take(&mut rest)?);
            row.spends.push(Spend { funding, vout: take32(&mut rest)?, vin: take32(&mut rest)? });
        }
        Some(row)
    }
}

/// Who spends an output: the number of the transaction and the index of the input.
pub(super) fn encode_spender(number: u64, vin: u32) -> Vec<u8> {
    let mut out = number_key(number).to_vec();
    put(&mut out, u64::from(vin));
    out
}

pub(super) fn decode_spender(bytes: &[u8]) -> Option<(u64, u32)> {
    let (spender, mut rest) = bytes.split_at_checked(NUMBER_LEN)?;
    let vin = take32(&mut rest)?;
    rest.is_empty().then_some((number(spender)?, vin))
}

pub(super) fn encode_scripts(scripts: &[ScriptHash]) -> Vec<u8> {
    scripts.iter().flat_map(|script| script.0).collect()
}

pub(super) fn decode_scripts(bytes: &[u8]) -> Option<Vec<ScriptHash>> {
    bytes.chunks(32).map(|chunk| Some(ScriptHash(chunk.try_into().ok()?))).collect()
}

/// Seven bits per byte, the lowest first; the high bit says that more follow.
fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        value |= bits << shift;
        if byte & 0x80 == 0 {
            // The tenth byte has room for one bit only.
            return (shift < 63 || bits <= 1).then_some(value);
        }
    }
    None
}

fn take32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(bytes)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_cut_ones_are_refused() {
        let row = HistoryRow {
            funds: vec![(0, 0), (127, 128), (u32::MAX, u64::MAX)],
            spends: vec![
                Spend { funding: MAX_NUMBER, vout: u32::MAX, vin: 3 },
                Spend { funding: 0, vout: 0, vin: 0 },
            ],
        };
        for number in [0, 1, 77, MAX_NUMBER] {
            let bytes = row.encode(number);
            assert_eq!(HistoryRow::decode(&bytes, number).as_ref(), Some(&row));
            for len in 0..bytes.len() {
                assert_ne!(HistoryRow::decode(&bytes[..len], number).as_ref(), Some(&row));
            }
            assert_eq!(decode_numbers(&encode_numbers(&[number, 5])), Some(vec![number, 5]));
            assert_eq!(decode_spender(&encode_spender(number, 300)), Some((number, 300)));
            assert_eq!(number_of_history(&history_key(&[9; 16], number)), Some(number));
        }
        assert_eq!(HistoryRow::decode(&[], 0), None);
        assert_eq!(HistoryRow::decode(&[0xff; 11], 0), None);
        assert_eq!(HistoryRow::decode(&[5, 1], 0), None);
        assert_eq!(decode_numbers(&[0; 7]), None);
        let tx = TxRow { txid: Txid::from_byte_array([3; 32]), offset: 0x0102_0304 };
        assert_eq!(TxRow::decode(&tx.encode()), Some(tx));
        assert_eq!(TxRow::decode(&tx.encode()[..35]), None);
        let block = BlockRow { header: [5; 80], tx_end: 1 << 40, size: 4_000_000 };
        assert_eq!(BlockRow::decode(&block.encode()), Some(block));
        assert_eq!(BlockRow::decode(&[0; 91]), None);
    }

    #[test]
    fn keys_sort_like_the_numbers_in_them() {
        let numbers = [0, 1, 255, 256, 65_535, 65_536, MAX_NUMBER - 1, MAX_NUMBER];
        assert!(numbers.map(number_key).is_sorted());
        assert!(numbers.map(|number| history_key(&[7; 16], number)).is_sorted());
        assert!(spend_key(5, u32::MAX) < spend_key(6, 0));
    }
}
