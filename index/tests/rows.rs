//! The rows of a real block are what an independent computation says.

use bitcoin::hashes::Hash;
use bitcoin::hex::{DisplayHex, FromHex};
use bitcoin::{Block, Txid};
use peregrine_index::rows::BlockRows;
use peregrine_index::source::parse_block;
use peregrine_index::testkit::mainnet_block_866342;
use peregrine_kernels::Isa;
use peregrine_scanner::Tweak;
use peregrine_scanner::batch::TweakMethod;

#[test]
fn block_866342_gives_exactly_its_2241_tweaks() {
    let Some(known) = mainnet_block_866342("block_866342_gives_exactly_its_2241_tweaks") else { return };
    let block = parse_block(known.hash, &known.raw, &known.spent).unwrap();
    let rows = BlockRows::of_block(&block, TweakMethod::Plain);
    for isa in Isa::ALL.iter().filter(|isa| isa.is_available()) {
        assert!(BlockRows::of_block(&block, TweakMethod::Lanes(*isa)) == rows, "{isa}");
    }
    assert_eq!((rows.len(), known.eligible.len()), (2241, 2241));
    let mut outputs = rows.outputs.iter();
    for (row, wanted) in known.eligible.iter().enumerate() {
        let tweak = Tweak::from_row(&rows.points[row]).unwrap();
        assert_eq!(tweak.serialize().to_lower_hex_string(), wanted.tweak);
        assert_eq!(Txid::from_byte_array(rows.txids[row]).to_string(), wanted.txid);
        let position = rows.meta[row].position as usize;
        assert_eq!(position_of(&block.block, &wanted.txid), position);
        assert_eq!(rows.meta[row].max_value, wanted.outputs.iter().map(|(value, _)| *value).max().unwrap());
        assert_eq!(rows.output_counts[row] as usize, wanted.outputs.len());
        for (_, key) in &wanted.outputs {
            assert_eq!(outputs.next(), Some(&<[u8; 8]>::from_hex(&key[..16]).unwrap()));
        }
    }
    assert_eq!(outputs.next(), None);
}

fn position_of(block: &Block, txid: &str) -> usize {
    block.txdata.iter().position(|transaction| transaction.compute_txid().to_string() == txid).unwrap()
}
