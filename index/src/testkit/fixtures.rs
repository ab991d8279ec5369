//! Real blocks, kept outside the project.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bitcoin::consensus::deserialize;
use bitcoin::hex::FromHex;
use bitcoin::{Amount, Block, BlockHash, ScriptBuf, TxOut};
use serde_json::Value;

use crate::source::encode_spent_outputs;

/// The folder with fixtures: `PEREGRINE_FIXTURES`, else `shared/fixtures` beside the workspace. Says so aloud when it
/// isn't there; `user` is who goes without.
pub fn fixtures(user: &str) -> Option<PathBuf> {
    let dir = match std::env::var_os("PEREGRINE_FIXTURES").filter(|value| !value.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    if dir.join("mainnet-block-866342").is_dir() {
        return Some(dir);
    }
    // Not `eprintln!`: the test harness would hide that of a test that passes.
    let _ = writeln!(io::stderr(), "SKIPPED: fixtures not found: {user} (looked in {})", dir.display());
    None
}

/// A block of the main chain with everything that is known about it.
#[derive(Debug)]
pub struct KnownBlock {
    /// Its hash.
    pub hash: BlockHash,
    /// The block's bytes.
    pub raw: Vec<u8>,
    /// Its spent outputs, as a node's REST interface sends them.
    pub spent: Vec<u8>,
    /// The same in parts: one entry per transaction.
    pub prevouts: Vec<Vec<TxOut>>,
    /// Its eligible transactions in block order, by an independent computation.
    pub eligible: Vec<KnownTweak>,
}

/// An eligible transaction.
#[derive(Debug)]
pub struct KnownTweak {
    /// Its id, as displayed.
    pub txid: String,
    /// Its tweak: 66 hexadecimal digits.
    pub tweak: String,
    /// Its taproot outputs: satoshi and x-only key as 64 hexadecimal digits.
    pub outputs: Vec<(u64, String)>,
}

/// Mainnet block 866342, if the fixtures are there.
///
/// # Panics
/// If the fixtures are damaged.
pub fn mainnet_block_866342(user: &str) -> Option<KnownBlock> {
    let dir = fixtures(user)?.join("mainnet-block-866342");
    let unpack =
        |name: &str| zstd::decode_all(File::open(dir.join(name)).expect("the file exists")).expect("zstd");
    let raw = unpack("raw.zst");
    let block: Block = deserialize(&raw).expect("a block");
    let spent: Vec<Value> = serde_json::from_slice(&unpack("spent_utxos.zst")).expect("JSON");
    let mut spent = spent.iter().map(|entry| TxOut {
        value: Amount::from_sat(entry["txout"]["value"].as_u64().expect("a number")),
        script_pubkey: ScriptBuf::from_bytes(
            Vec::from_hex(text(&entry["txout"]["script_pubkey"])).expect("hexadecimal digits"),
        ),
    });
    let inputs = |tx: &bitcoin::Transaction| if tx.is_coinbase() { 0 } else { tx.input.len() };
    let prevouts: Vec<Vec<TxOut>> =
        block.txdata.iter().map(|tx| spent.by_ref().take(inputs(tx)).collect()).collect();
    assert_eq!(spent.count(), 0, "one prevout for each input");

    let packed = fs::read(dir.join("ref_tweaks.json.gz")).expect("the file exists");
    let eligible: Value = serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).expect("JSON");
    let eligible = list(&eligible["txs"]).iter().map(|tx| KnownTweak {
        txid: text(&tx["txid"]).to_owned(),
        tweak: text(&tx["tweak"]).to_owned(),
        outputs: list(&tx["outputs"])
            .iter()
            .map(|output| (output["value"].as_u64().expect("a number"), text(&output["xonly"]).to_owned()))
            .collect(),
    });
    let eligible = eligible.collect();
    Some(KnownBlock {
        hash: block.block_hash(),
        raw,
        spent: encode_spent_outputs(&prevouts),
        prevouts,
        eligible,
    })
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}
