//! Filters as BlindBit makes them: in the coding of BIP158 with P = 19 and M = 784931, the key of SipHash is the beginning of
//! the block's hash, and an element that comes twice counts twice, so that the library's own writer can't be used.

use bitcoin::bip158::BitStreamWriter;
use bitcoin::consensus::Encodable;
use bitcoin::hashes::{Hash, HashEngine, sha256, siphash24};
use bitcoin::{Block, BlockHash, OutPoint, VarInt};
use peregrine_scanner::tweak::taproot_key;

const P: u8 = 19;
const M: u64 = 784_931;

/// The filter over these elements, with their number before it.
pub(super) fn build<'a>(
    block: BlockHash,
    elements: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<u8>, bitcoin::io::Error> {
    let key = block.to_byte_array();
    let half = |from: usize| u64::from_le_bytes(std::array::from_fn(|i| key[from + i]));
    let hashes: Vec<u64> =
        elements.map(|element| siphash24::Hash::hash_to_u64_with_keys(half(0), half(8), element)).collect();
    let range = hashes.len() as u64 * M;
    // Each hash scaled to the range.
    let mut values: Vec<u64> =
        hashes.iter().map(|hash| ((u128::from(*hash) * u128::from(range)) >> 64) as u64).collect();
    values.sort_unstable();
    let mut bytes = Vec::new();
    VarInt::from(values.len()).consensus_encode(&mut bytes)?;
    let mut writer = BitStreamWriter::new(&mut bytes);
    let mut before = 0;
    for value in values {
        let difference = value - before;
        before = value;
        // The quotient as so many ones and a zero, then the rest.
        for _ in 0..difference >> P {
            writer.write(1, 1)?;
        }
        writer.write(0, 1)?;
        writer.write(difference, P)?;
    }
    writer.flush()?;
    Ok(bytes)
}

/// The keys of all taproot outputs of a block, those of the coinbase and of transactions without a tweak among them.
pub(super) fn new_outputs(block: &Block) -> impl Iterator<Item = [u8; 32]> + '_ {
    let outputs = block.txdata.iter().flat_map(|transaction| &transaction.output);
    outputs.filter_map(|output| taproot_key(&output.script_pubkey))
}

/// How a spent output is told in a block: the beginning of SHA-256 over the outpoint as it is on the wire and the block's
/// hash.
pub(super) fn spent(outpoint: OutPoint, block: BlockHash) -> [u8; 8] {
    let mut engine = sha256::Hash::engine();
    engine.input(outpoint.txid.as_byte_array());
    engine.input(&outpoint.vout.to_le_bytes());
    engine.input(block.as_byte_array());
    let hash = sha256::Hash::from_engine(engine).to_byte_array();
    std::array::from_fn(|i| hash[i])
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use bitcoin::hex::{DisplayHex, FromHex};
    use serde_json::Value;

    use super::*;

    fn folder() -> PathBuf {
        std::env::var_os("PEREGRINE_FIXTURES").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
            PathBuf::from,
        )
    }

    fn fixture(height: u32, name: &str) -> Option<Value> {
        let path = folder().join(format!("blindbit-v1-signet/blocks/{height}/{name}.json"));
        let text = std::fs::read_to_string(path).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// What a server of the first version answered for four blocks of signet.
    #[test]
    fn filters_are_those_of_blindbit() {
        let mut compared = 0;
        for height in [200_000, 200_001, 295_125, 295_147] {
            let (Some(filter), Some(spent)) =
                (fixture(height, "filter-spent"), fixture(height, "spent-index"))
            else {
                eprintln!("SKIPPED: no answers of BlindBit for block {height}");
                continue;
            };
            let hash: BlockHash = filter["block_hash"].as_str().unwrap().parse().unwrap();
            let spent: Vec<Vec<u8>> = spent["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|hash| Vec::from_hex(hash.as_str().unwrap()).unwrap())
                .collect();
            let ours = build(hash, spent.iter().map(Vec::as_slice)).unwrap();
            assert_eq!(
                ours.to_lower_hex_string(),
                filter["data"].as_str().unwrap(),
                "spent outputs of {height}"
            );
            compared += 1;
        }
        println!("{compared} blocks compared");
    }

    /// 334 outputs, of which five have the key of another one.
    #[test]
    fn new_outputs_are_all_of_the_block_and_count_as_often_as_they_come() {
        let path = folder().join("signet-blocks/signet_block_200001.bin");
        let (Some(filter), Ok(block)) = (fixture(200_001, "filter-new-utxos"), std::fs::read(path)) else {
            eprintln!("SKIPPED: no block 200001 of signet");
            return;
        };
        let block: bitcoin::Block = bitcoin::consensus::deserialize(&block).unwrap();
        let keys: Vec<[u8; 32]> = new_outputs(&block).collect();
        assert_eq!(keys.len(), 334);
        let ours = build(block.block_hash(), keys.iter().map(<[u8; 32]>::as_slice)).unwrap();
        assert_eq!(ours.to_lower_hex_string(), filter["data"].as_str().unwrap());
    }

    /// The wallet of the fixtures' README spends its output in block 295147.
    #[test]
    fn a_spent_output_is_told_as_blindbit_tells_it() {
        let Some(index) = fixture(295_147, "spent-index") else {
            eprintln!("SKIPPED: no answers of BlindBit for block 295147");
            return;
        };
        let outpoint = "93a9b81f81244f8e6be29d8d6b0a9dbe6d6de6d2d4b018001ebf855bc870be88:0".parse().unwrap();
        let block = index["block_hash"].as_str().unwrap().parse().unwrap();
        let ours = spent(outpoint, block).to_lower_hex_string();
        assert!(index["data"].as_array().unwrap().iter().any(|hash| *hash == ours), "{ours}");
    }
}
