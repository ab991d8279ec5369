//! What an index is of.

use std::path::Path;

use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, Network};
use xxhash_rust::xxh3::xxh3_64;

use super::error::AddressError;

/// The format version that this program writes and reads.
pub const ADDRESS_FORMAT_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"PRGNADDR";
const LEN: usize = 60;

/// What a script-hash index is of, fixed when it is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressParams {
    /// The four bytes that open every message on the network, in the order they are sent.
    pub network_magic: [u8; 4],
    /// Hash of the block at height 0 of the chain.
    pub genesis: BlockHash,
    /// Height of the first block in the index. Above 0, histories begin there, and outputs made before are unknown.
    pub start_height: u32,
}

impl AddressParams {
    /// A well-known network from its beginning.
    pub fn for_network(network: Network) -> Self {
        Self {
            network_magic: network.magic().to_bytes(),
            genesis: bitcoin::constants::genesis_block(network).block_hash(),
            start_height: 0,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&ADDRESS_FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.network_magic);
        out.extend_from_slice(&self.start_height.to_le_bytes());
        out.extend_from_slice(self.genesis.as_byte_array());
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8], dir: &Path) -> Result<Self, AddressError> {
        let bad = |what: &str| AddressError::BadFormat { dir: dir.to_path_buf(), what: what.to_owned() };
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(|| bad("is no script-hash index"))?;
        let (version, rest) = rest.split_first_chunk().ok_or_else(|| bad("its description ends early"))?;
        let version = u32::from_le_bytes(*version);
        let (dir_of, supported) = (|| dir.to_path_buf(), ADDRESS_FORMAT_VERSION);
        if version > supported {
            return Err(AddressError::UnknownVersion { dir: dir_of(), found: version, supported });
        }
        if version < supported {
            return Err(AddressError::OldVersion { dir: dir_of(), found: version, supported });
        }
        let parts = || {
            let (network_magic, rest) = rest.split_first_chunk()?;
            let (start, rest) = rest.split_first_chunk()?;
            let (genesis, sum) = rest.split_first_chunk()?;
            let sum = u64::from_le_bytes(sum.try_into().ok()?);
            (sum == xxh3_64(&bytes[..LEN - 8])).then(|| Self {
                network_magic: *network_magic,
                genesis: BlockHash::from_byte_array(*genesis),
                start_height: u32::from_le_bytes(*start),
            })
        };
        parts().ok_or_else(|| bad("its description has a wrong checksum"))
    }

    /// Compares what was found in `dir` (`self`) with what the caller wants to work on.
    pub(super) fn expect(&self, expected: &Self, dir: &Path) -> Result<(), AddressError> {
        if self == expected {
            return Ok(());
        }
        Err(AddressError::WrongChain {
            dir: dir.to_path_buf(),
            found: self.describe(),
            expected: expected.describe(),
        })
    }

    fn describe(&self) -> String {
        let magic: String = self.network_magic.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "the network with magic {magic} and genesis block {} from height {}",
            self.genesis, self.start_height
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_damage_is_noticed() {
        let params = AddressParams { start_height: 77, ..AddressParams::for_network(Network::Signet) };
        let dir = Path::new("here");
        let bytes = params.encode();
        assert_eq!(bytes.len(), LEN);
        assert_eq!(AddressParams::decode(&bytes, dir).unwrap(), params);
        for at in 0..LEN {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(AddressParams::decode(&bytes, dir).is_err(), "byte {at}");
            assert!(AddressParams::decode(&bytes[..at], dir).is_err(), "{at} bytes");
        }
        for (version, hint) in
            [(1_u32, "format version 1, this program reads 2; delete"), (3, "use a newer peregrine")]
        {
            let mut bytes = bytes.clone();
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            let error = AddressParams::decode(&bytes, dir).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
        let other = AddressParams { start_height: 0, ..params.clone() };
        let error = params.expect(&other, dir).unwrap_err().to_string();
        assert!(error.contains("from height 77") && error.contains("from height 0"), "{error}");
    }
}
