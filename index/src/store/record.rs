//! One record per block in the file `blocks`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bitcoin::BlockHash;
use bitcoin::block::Header;
use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::hashes::{Hash, sha256d};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{array, le32, le64};

/// Bytes of a record in the file.
pub(super) const RECORD_LEN: usize = 128;
const HEADER_LEN: usize = 80;

/// A record as it lies in the file, with its own checksum verified and left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) header: [u8; HEADER_LEN],
    pub(super) height: u32,
    /// Rows in the index up to and including this block.
    pub(super) row_end: u64,
    /// Outputs in the index up to and including this block.
    pub(super) output_end: u64,
    /// xxh3-128 of the block's rows, little-endian; see [`RowsHasher`](super::columns::RowsHasher).
    pub(super) rows_checksum: [u8; 16],
}

impl Record {
    pub(super) fn encode(&self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        out[0..80].copy_from_slice(&self.header);
        out[80..84].copy_from_slice(&self.height.to_le_bytes());
        // 84..88 is reserved and written as zero.
        out[88..96].copy_from_slice(&self.row_end.to_le_bytes());
        out[96..104].copy_from_slice(&self.output_end.to_le_bytes());
        out[104..120].copy_from_slice(&self.rows_checksum);
        let sum = xxh3_64(&out[..120]);
        out[120..128].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// `None` when the checksum is wrong.
    pub(super) fn decode(bytes: &[u8; RECORD_LEN]) -> Option<Self> {
        (le64(bytes, 120) == xxh3_64(&bytes[..120])).then(|| Self {
            header: array(bytes, 0),
            height: le32(bytes, 80),
            row_end: le64(bytes, 88),
            output_end: le64(bytes, 96),
            rows_checksum: array(bytes, 104),
        })
    }

    /// Reads record `index` of the file; `None` when the file ends before the record's end or the checksum is wrong.
    pub(super) fn read(blocks: &File, index: u64) -> io::Result<Option<Self>> {
        let mut bytes = [0; RECORD_LEN];
        match blocks.read_exact_at(&mut bytes, index * RECORD_LEN as u64) {
            Ok(()) => Ok(Self::decode(&bytes)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn hash(&self) -> BlockHash {
        BlockHash::from_raw_hash(sha256d::Hash::hash(&self.header))
    }

    pub(super) fn prev_hash(&self) -> BlockHash {
        BlockHash::from_byte_array(array(&self.header, 4))
    }

    pub(super) fn time(&self) -> u32 {
        le32(&self.header, 68)
    }

    /// Why this record can't follow `prev` (`None`: can't be the first), or `Ok`.
    ///
    /// `genesis` is the hash that height 0 has to have.
    pub(super) fn follows(&self, prev: Option<&Self>, start: u32, genesis: BlockHash) -> Result<(), String> {
        let (height, rows, outputs) = match prev {
            Some(prev) => {
                if self.prev_hash() != prev.hash() {
                    let (found, want) = (self.prev_hash(), prev.hash());
                    return Err(format!(
                        "its header names {found} as its parent, the record before it is {want}"
                    ));
                }
                (prev.height.checked_add(1), prev.row_end, prev.output_end)
            }
            None => (Some(start), 0, 0),
        };
        if Some(self.height) != height {
            let want = height.map_or("none".into(), |h| h.to_string());
            return Err(format!("it has height {} where {want} is due", self.height));
        }
        if self.height == 0 && self.hash() != genesis {
            return Err(format!("block 0 is {}, the chain's genesis block is {genesis}", self.hash()));
        }
        if self.row_end < rows || self.output_end < outputs {
            return Err("its rows or outputs end before they start".into());
        }
        // Each row has at least one output, which also bounds what has to be believed about rows.
        if self.output_end - outputs < self.row_end - rows {
            return Err("it has more rows than outputs".into());
        }
        Ok(())
    }
}

/// A block of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The block's header; its hash is [`hash`](Self::hash).
    pub header: Header,
    /// Height in the chain; the genesis block has 0.
    pub height: u32,
    /// Hash of the header.
    pub hash: BlockHash,
    /// The block's rows in the index; empty for a block without eligible transactions.
    pub rows: Range<u64>,
    /// The block's taproot outputs, counted over the whole index.
    pub outputs: Range<u64>,
}

impl BlockRecord {
    pub(super) fn new(record: &Record, prev: Option<&Record>) -> Self {
        let (row_start, output_start) = prev.map_or((0, 0), |p| (p.row_end, p.output_end));
        Self {
            header: header(&record.header),
            height: record.height,
            hash: record.hash(),
            rows: row_start..record.row_end,
            outputs: output_start..record.output_end,
        }
    }
}

/// The 80 bytes of a header that are hashed.
pub(super) fn encode_header(header: &Header) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out.copy_from_slice(&serialize(header));
    out
}

/// A block header from its 80 bytes, of which every value is a header.
fn header(bytes: &[u8; HEADER_LEN]) -> Header {
    deserialize(bytes).expect("any 80 bytes are a block header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flip_is_noticed_and_zeros_are_no_record() {
        let record = Record {
            header: std::array::from_fn(|i| i as u8),
            height: 7,
            row_end: 1 << 40,
            output_end: 3,
            rows_checksum: [9; 16],
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Some(record));
        for at in 0..RECORD_LEN {
            let mut bad = bytes;
            bad[at] ^= 0x80;
            assert_eq!(Record::decode(&bad), None, "byte {at}");
        }
        assert_eq!(Record::decode(&[0; RECORD_LEN]), None);
        assert_eq!(header(&record.header).time, record.time());
        assert_eq!(header(&record.header).prev_blockhash, record.prev_hash());
    }
}
