//! Building an index of a chain, and what is in it.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::Path;
use std::sync::atomic::AtomicBool;

use bitcoin::block::Header;
use bitcoin::hashes::Hash;
use bitcoin::{Network, Txid};
use peregrine_index::BlockRows;
use peregrine_index::indexer::{self, Options};
use peregrine_index::scan::{self, BlockCache, Request};
use peregrine_index::source::ChainSource;
use peregrine_index::store::{IndexParams, TweakIndexWriter, TweakReader, verify};
use peregrine_index::synthetic::{Planted, Wallet};
use peregrine_scanner::backend::reference::Reference;
use peregrine_scanner::{Engine, ScanTarget};

use crate::chain::Row;

/// A writer for the regtest index in `dir`, with small segments, so that blocks straddle them.
pub(crate) fn writer(dir: &Path) -> TweakIndexWriter {
    let params = IndexParams { segment_bits: 6, ..IndexParams::for_network(Network::Regtest) };
    TweakIndexWriter::open_or_create(dir, &params).unwrap()
}

/// Brings an index to the tip of the source's chain.
pub(crate) fn update(dir: &Path, source: &dyn ChainSource) {
    indexer::run(source, &mut writer(dir), Options::default(), &AtomicBool::new(false), &|_| ()).unwrap();
}

/// Header and rows of every block that the index has.
pub(crate) fn contents(dir: &Path) -> Vec<(Header, BlockRows)> {
    let snapshot = TweakReader::open(dir).unwrap().snapshot().unwrap();
    let Some(heights) = snapshot.heights() else { return vec![] };
    heights
        .map(|height| {
            let block = snapshot.block(height).unwrap();
            let mut rows = BlockRows::default();
            for slice in snapshot.segments(block.rows.clone()).unwrap() {
                let slice = slice.unwrap();
                rows.points.extend_from_slice(slice.points());
                rows.txids.extend_from_slice(slice.txids());
                rows.outputs.extend_from_slice(slice.outputs());
                for row in 0..slice.len() {
                    rows.meta.push(slice.meta(row).unwrap());
                    rows.output_counts.push(slice.outputs_of(row).len() as u32);
                }
            }
            (block.header, rows)
        })
        .collect()
}

/// Contents of an index that is made now from the whole chain.
pub(crate) fn fresh_contents(source: &dyn ChainSource) -> Vec<(Header, BlockRows)> {
    let dir = tempfile::tempdir().unwrap();
    update(dir.path(), source);
    contents(dir.path())
}

/// The rows as the sender notes them.
pub(crate) fn rows(contents: &[(Header, BlockRows)]) -> Vec<Row> {
    let mut all = Vec::new();
    for (height, (_, rows)) in (0..).zip(contents) {
        for ((txid, meta), outputs) in rows.txids.iter().zip(&rows.meta).zip(&rows.output_counts) {
            let txid = Txid::from_byte_array(*txid);
            all.push(Row { height, txid, outputs: *outputs, max_value: meta.max_value });
        }
    }
    all
}

/// Scans the whole index for the wallets and looks up the outputs: what was found, sorted. Panics when a transaction
/// was found that holds nothing, when one stands twice, and when `verify` has anything to say.
pub(crate) fn found(dir: &Path, source: &dyn ChainSource, wallets: &[Wallet]) -> Vec<Planted> {
    let checked = verify(dir, |_| ());
    assert!(checked.is_ok(), "{:?}", checked.problems);
    let targets: Vec<ScanTarget> = wallets.iter().map(|wallet| wallet.target().unwrap()).collect();
    let engine = Engine::new(Box::new(Reference), 2).unwrap();
    let request = Request { targets: &targets, from: 0, to: None, min_output: 0 };
    let reader = TweakReader::open(dir).unwrap();
    let report = scan::scan(&reader, &engine, request, &AtomicBool::new(false), &|_, _| ()).unwrap();
    let mut cache = BlockCache::default();
    let mut found = Vec::new();
    for transaction in &report.found {
        let outputs = scan::outputs(source, transaction, &targets, &mut cache).unwrap();
        assert!(!outputs.is_empty(), "{} holds nothing", transaction.txid);
        found.extend(outputs.into_iter().map(|output| Planted {
            height: transaction.height,
            txid: transaction.txid,
            vout: output.vout,
            wallet: transaction.target,
            label: output.found.label,
            value: output.value,
        }));
    }
    found.sort();
    found
}
