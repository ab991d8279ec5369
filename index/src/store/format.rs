//! The two small files of fixed size: `format`, which never changes, and `state`, which says how far to trust the rest.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, Network};
use xxhash_rust::xxh3::xxh3_64;

use super::error::{IoContext, StoreError};

/// The format version that this program writes, and the newest one it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Rows per segment of an index that is not told otherwise, as a power of two.
pub const DEFAULT_SEGMENT_BITS: u32 = 20;
/// Height at which Taproot, and so the first possible silent payment, became active on the main chain.
pub const MAINNET_TAPROOT_HEIGHT: u32 = 709_632;

pub(super) const FORMAT_FILE: &str = "format";
pub(super) const STATE_FILE: &str = "state";
pub(super) const BLOCKS_FILE: &str = "blocks";
pub(super) const LOCK_FILE: &str = "lock";

const FORMAT_MAGIC: [u8; 8] = *b"PRGNTWKX";
const STATE_MAGIC: [u8; 8] = *b"PRGNSTAT";
pub(super) const FORMAT_LEN: usize = 64;
pub(super) const STATE_LEN: usize = 32;

/// What an index is of, fixed when it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexParams {
    /// The four bytes that open every message on the network, in the order they are sent.
    pub network_magic: [u8; 4],
    /// Hash of the block at height 0 of the chain.
    pub genesis: BlockHash,
    /// Height of the first block in the index.
    pub start_height: u32,
    /// A segment holds `2^segment_bits` rows; 1 to 24. Only creating an index looks at it: opening one takes the value
    /// of the files.
    pub segment_bits: u32,
}

impl IndexParams {
    /// Parameters of a well-known network: from Taproot's activation on the main chain and from 0 elsewhere.
    pub fn for_network(network: Network) -> Self {
        Self {
            network_magic: network.magic().to_bytes(),
            genesis: bitcoin::constants::genesis_block(network).block_hash(),
            start_height: if network == Network::Bitcoin { MAINNET_TAPROOT_HEIGHT } else { 0 },
            segment_bits: DEFAULT_SEGMENT_BITS,
        }
    }

    /// Refuses what can't be laid out on a disk.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if !(1..=24).contains(&self.segment_bits) {
            let bits = self.segment_bits;
            return Err(StoreError::BadParams(format!(
                "a segment can't have 2^{bits} rows; choose from 2^1 to 2^24"
            )));
        }
        Ok(())
    }

    pub(super) fn encode(&self) -> [u8; FORMAT_LEN] {
        let mut out = [0; FORMAT_LEN];
        out[0..8].copy_from_slice(&FORMAT_MAGIC);
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.network_magic);
        out[16..20].copy_from_slice(&self.start_height.to_le_bytes());
        out[20..24].copy_from_slice(&self.segment_bits.to_le_bytes());
        out[24..56].copy_from_slice(self.genesis.as_byte_array());
        let sum = xxh3_64(&out[..56]);
        out[56..64].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, StoreError> {
        let bad = |what: String| StoreError::BadFormat { path: path.to_path_buf(), what };
        if !bytes.starts_with(&FORMAT_MAGIC) {
            return Err(bad("is not the format file of a tweak index".into()));
        }
        // A later version may have another length and checksum, so the version is looked at before them.
        let version = bytes.get(8..12).map(|_| le32(bytes, 8));
        if let Some(found) = version.filter(|v| *v > FORMAT_VERSION && *v < 1 << 16) {
            return Err(StoreError::UnknownVersion {
                path: path.to_path_buf(),
                found,
                supported: FORMAT_VERSION,
            });
        }
        if bytes.len() != FORMAT_LEN {
            return Err(bad(format!("has {} bytes instead of {FORMAT_LEN}", bytes.len())));
        }
        if le64(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(bad("has a wrong checksum".into()));
        }
        if version != Some(FORMAT_VERSION) {
            return Err(bad(format!("has format version {}, which never existed", le32(bytes, 8))));
        }
        let params = Self {
            network_magic: array(bytes, 12),
            start_height: le32(bytes, 16),
            segment_bits: le32(bytes, 20),
            genesis: BlockHash::from_byte_array(array(bytes, 24)),
        };
        params.check().map_err(|e| bad(e.to_string()))?;
        Ok(params)
    }

    /// Reads the `format` file of the index in `dir`.
    pub(super) fn read(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FORMAT_FILE);
        match read_small(&path) {
            Ok(bytes) => Self::decode(&bytes, &path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(StoreError::NotAnIndex(dir.to_path_buf())),
            Err(e) => Err(e).at(&path),
        }
    }

    fn network(&self) -> String {
        let magic: String = self.network_magic.iter().map(|b| format!("{b:02x}")).collect();
        format!("with magic {magic} and genesis block {}", self.genesis)
    }

    /// Compares what was found in `dir` (`self`) with what the caller wants to work on.
    pub(super) fn expect(&self, expected: &Self, dir: &Path) -> Result<(), StoreError> {
        if self.network_magic != expected.network_magic || self.genesis != expected.genesis {
            return Err(StoreError::WrongNetwork {
                dir: dir.to_path_buf(),
                found: self.network(),
                expected: expected.network(),
            });
        }
        if self.start_height != expected.start_height {
            return Err(StoreError::WrongStart {
                dir: dir.to_path_buf(),
                found: self.start_height,
                expected: expected.start_height,
            });
        }
        Ok(())
    }
}

/// Content of the `state` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Raised before bytes that a reader may have seen are overwritten.
    pub(super) epoch: u64,
    /// Number of block records that are on stable storage together with all their columns.
    pub(super) synced: u64,
}

impl State {
    fn encode(self) -> [u8; STATE_LEN] {
        let mut out = [0; STATE_LEN];
        out[0..8].copy_from_slice(&STATE_MAGIC);
        out[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.to_le_bytes());
        let sum = xxh3_64(&out[..24]);
        out[24..32].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != STATE_LEN {
            return Err(format!("has {} bytes instead of {STATE_LEN}", bytes.len()));
        }
        if !bytes.starts_with(&STATE_MAGIC) {
            return Err("is not the state file of a tweak index".into());
        }
        if le64(bytes, 24) != xxh3_64(&bytes[..24]) {
            return Err("has a wrong checksum".into());
        }
        Ok(Self { epoch: le64(bytes, 8), synced: le64(bytes, 16) })
    }

    /// Overwrites the file in place: 32 bytes inside one disk sector, so that a power loss leaves the old or the new.
    pub(super) fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)?;
        // Whatever else a damaged file held.
        file.set_len(STATE_LEN as u64)
    }

    /// Reads the file once; for a writer, which has nobody to race with.
    pub(super) fn read_once(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(STATE_FILE);
        match read_small(&path) {
            Ok(bytes) => Self::decode(&bytes).map_err(|what| StoreError::BadState { path, what }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::BadState { path, what: "is missing".into() })
            }
            Err(e) => Err(e).at(&path),
        }
    }

    /// Reads the file while a writer may be overwriting it: a torn read shows as a wrong checksum and is repeated.
    pub(super) fn read(dir: &Path) -> Result<Self, StoreError> {
        let mut tries = 0;
        loop {
            match Self::read_once(dir) {
                Err(StoreError::BadState { .. }) if tries < 10 => {
                    tries += 1;
                    thread::sleep(Duration::from_millis(1));
                }
                other => return other,
            }
        }
    }
}

/// Reads a file that should be tiny; never more than a few kilobytes of it, whatever is there.
fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Little-endian `u32` at `at`, which the caller knows to be in range.
pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// Little-endian `u64` at `at`, which the caller knows to be in range.
pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// The `N` bytes at `at`, which the caller knows to be in range.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_survives_a_round_trip_and_notices_every_flip() {
        let path = Path::new("format");
        let params =
            IndexParams { start_height: 77, segment_bits: 3, ..IndexParams::for_network(Network::Signet) };
        let bytes = params.encode();
        assert_eq!(IndexParams::decode(&bytes, path).unwrap(), params);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes;
                bad[at] ^= 1 << bit;
                assert!(IndexParams::decode(&bad, path).is_err(), "byte {at} bit {bit}");
            }
            assert!(IndexParams::decode(&bytes[..at], path).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_named_as_such() {
        let mut bytes = IndexParams::for_network(Network::Regtest).encode().to_vec();
        bytes[8] = 2;
        bytes.extend([0; 40]);
        let error = IndexParams::decode(&bytes, Path::new("format")).unwrap_err();
        assert!(matches!(error, StoreError::UnknownVersion { found: 2, supported: 1, .. }), "{error}");
    }

    #[test]
    fn state_notices_every_flip() {
        let bytes = State { epoch: 5, synced: 9 }.encode();
        assert_eq!(State::decode(&bytes).unwrap(), State { epoch: 5, synced: 9 });
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 0x10;
            assert!(State::decode(&bad).is_err());
            assert!(State::decode(&bytes[..at]).is_err());
        }
    }
}
