//! Both indexes in one pass: started together, added later, with different starts, over reorganisations and after kills.

#[path = "common/chain.rs"]
mod chain;
#[path = "common/index.rs"]
mod index;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bitcoin::consensus::serialize;
use bitcoin::{BlockHash, Network};
use peregrine_index::address::{
    ADDRESS_DIR, AddressIndexWriter, AddressParams, AddressView, HistoryEntry, ScriptHash,
};
use peregrine_index::indexer::{self, Event, Indexes, Options, Summary, level};
use peregrine_index::source::ChainSource;
use peregrine_index::store::{IndexParams, TweakIndexWriter};
use peregrine_index::synthetic::{Plan, SyntheticChain};

const PLAN: Plan = Plan { blocks: 90, reorg_depth: 7, seed: 5, transactions: 6, payment_every: 20 };

fn tweaks(dir: &Path, start_height: u32) -> TweakIndexWriter {
    let params = IndexParams { segment_bits: 6, start_height, ..IndexParams::for_network(Network::Regtest) };
    TweakIndexWriter::open_or_create(dir, &params).unwrap()
}

fn addresses(dir: &Path) -> AddressIndexWriter {
    let params = AddressParams::for_network(Network::Regtest);
    AddressIndexWriter::open_with_cache(&dir.join(ADDRESS_DIR), &params, 8 << 20).unwrap()
}

fn run(
    chain: &SyntheticChain,
    tweaks: &mut TweakIndexWriter,
    addresses: &mut AddressIndexWriter,
    options: Options,
    cancel_after: u64,
) -> (Summary, Vec<Event>) {
    let events = Mutex::new(Vec::new());
    let cancel = AtomicBool::new(false);
    let push = |event: Event| {
        if matches!(&event, Event::Progress(progress) if progress.blocks >= cancel_after) {
            cancel.store(true, Ordering::Relaxed);
        }
        events.lock().unwrap().push(event);
    };
    let indexes = Indexes { tweaks, addresses: Some(addresses) };
    let summary = indexer::run_indexes(chain, indexes, options, &cancel, &push).unwrap();
    (summary, events.into_inner().unwrap())
}

/// Both hold the chain up to its tip as indexes do that were made in one go.
fn check(chain: &SyntheticChain, dir: &Path, tweaks: &TweakIndexWriter, addresses: &AddressIndexWriter) {
    let tip = chain.tip().unwrap();
    assert_eq!(tweaks.tip(), Some((tip.height, tip.hash)));
    assert_eq!(addresses.tip(), Some((tip.height, tip.hash)));
    if tweaks.params().start_height == 0 {
        assert!(index::contents(dir) == index::fresh_contents(chain));
    }
    check_addresses(chain, &addresses.reader().view());
}

fn check_addresses(chain: &SyntheticChain, view: &AddressView) {
    let tip = chain.tip().unwrap();
    assert_eq!(view.tip(), Some((tip.height, tip.hash)));
    for height in 0..=tip.height {
        let hash = chain.hash_at(height).unwrap().unwrap();
        let block = chain.block(hash).unwrap();
        assert_eq!(view.block(height).unwrap().unwrap().hash, hash);
        let raw = serialize(&block.block);
        for (position, transaction) in (0..).zip(&block.block.txdata) {
            let txid = transaction.compute_txid();
            let location = view.location(height, position).unwrap().unwrap();
            let range = location.offset as usize..(location.offset + location.size) as usize;
            assert_eq!((location.txid, &raw[range]), (txid, &serialize(transaction)[..]));
            if height == 0 {
                continue;
            }
            let outputs = transaction.output.iter().filter(|output| !output.script_pubkey.is_op_return());
            for output in outputs.chain(&block.prevouts[position as usize]) {
                let history = view.history(&ScriptHash::of(&output.script_pubkey), 1000).unwrap();
                assert!(history.contains(&HistoryEntry { height, position, txid }));
            }
        }
    }
}

#[test]
fn one_pass_builds_both_and_follows_a_reorganisation() {
    let chain = SyntheticChain::generate(PLAN);
    let dir = tempfile::tempdir().unwrap();
    let (mut tweaks, mut addresses) = (tweaks(dir.path(), 0), addresses(dir.path()));
    let (summary, events) = run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    assert_eq!((summary.blocks, summary.cancelled), (91, false));
    assert!(matches!(events.last(), Some(Event::AtTip(90))));
    check(&chain, dir.path(), &tweaks, &addresses);
    chain.reorganise();
    let (summary, events) = run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    assert_eq!(summary.blocks, 8);
    let told = events.iter().filter(|event| matches!(event, Event::Reorganised { from: 90, to: Some(83) }));
    assert_eq!(told.count(), 1);
    check(&chain, dir.path(), &tweaks, &addresses);
}

#[test]
fn an_index_that_is_added_later_catches_up_while_the_other_stays() {
    for reorganise in [false, true] {
        let chain = SyntheticChain::generate(Plan { reorg_depth: 60, ..PLAN });
        let dir = tempfile::tempdir().unwrap();
        let mut tweaks = tweaks(dir.path(), 0);
        let options = Options { to: Some(80), ..Options::default() };
        indexer::run(&chain, &mut tweaks, options, &AtomicBool::new(false), &|_| ()).unwrap();
        if reorganise {
            chain.reorganise();
        }
        let mut addresses = addresses(dir.path());
        // In two runs, the first of which ends while the new index is behind.
        run(&chain, &mut tweaks, &mut addresses, Options::default(), 20);
        assert_eq!(addresses.reader().view().tip(), addresses.tip());
        assert!(addresses.next_height() < 40);
        run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
        check(&chain, dir.path(), &tweaks, &addresses);
    }
}

#[test]
fn blocks_below_the_start_of_the_tweak_index_go_to_the_other_only() {
    let chain = SyntheticChain::generate(Plan { reorg_depth: 50, ..PLAN });
    let dir = tempfile::tempdir().unwrap();
    let (mut tweaks, mut addresses) = (tweaks(dir.path(), 60), addresses(dir.path()));
    let options = Options { to: Some(30), ..Options::default() };
    run(&chain, &mut tweaks, &mut addresses, options, u64::MAX);
    assert_eq!((tweaks.tip(), addresses.next_height()), (None, 31));
    let (summary, _) = run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    assert_eq!((summary.blocks, tweaks.blocks(), addresses.blocks()), (60, 31, 91));
    check(&chain, dir.path(), &tweaks, &addresses);
    // Below its start.
    chain.reorganise();
    let (summary, _) = run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    assert_eq!((summary.blocks, tweaks.blocks(), addresses.blocks()), (51, 32, 92));
    check(&chain, dir.path(), &tweaks, &addresses);
}

#[test]
fn opening_brings_both_to_the_same_block() {
    let chain = SyntheticChain::generate(PLAN);
    for (tweak_blocks, address_blocks) in [(50, 40), (40, 50), (41, 40), (40, 41), (1, 90), (90, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let mut tweaks = tweaks(dir.path(), 0);
        let mut addresses = addresses(dir.path());
        for height in 0..tweak_blocks.max(address_blocks) {
            let block = chain.block(chain.hash_at(height).unwrap().unwrap()).unwrap();
            if height < tweak_blocks {
                let rows = peregrine_index::BlockRows::of_block(
                    &block,
                    peregrine_scanner::batch::TweakMethod::Plain,
                );
                tweaks.append(&block.block.header, height, &rows).unwrap();
            }
            if height < address_blocks {
                addresses.append_block(&block, height).unwrap();
            }
        }
        level(&mut Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) }).unwrap();
        if address_blocks > 0 {
            assert_eq!(tweaks.tip(), addresses.tip());
            assert_eq!(tweaks.next_height(), tweak_blocks.min(address_blocks));
        } else {
            // Nothing is taken back for an index that is only just being added.
            assert_eq!(tweaks.next_height(), tweak_blocks);
        }
        run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
        check(&chain, dir.path(), &tweaks, &addresses);
    }
}

#[test]
fn indexes_on_different_branches_meet_at_the_fork() {
    let chain = SyntheticChain::generate(PLAN);
    let dir = tempfile::tempdir().unwrap();
    let (mut tweaks, mut addresses) = (tweaks(dir.path(), 0), addresses(dir.path()));
    run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    let stale: BlockHash = chain.tip().unwrap().hash;
    chain.reorganise();
    indexer::run(&chain, &mut tweaks, Options::default(), &AtomicBool::new(false), &|_| ()).unwrap();
    assert_eq!(addresses.tip().unwrap().1, stale);
    level(&mut Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) }).unwrap();
    assert_eq!((tweaks.tip().unwrap().0, addresses.tip()), (83, tweaks.tip()));
    run(&chain, &mut tweaks, &mut addresses, Options::default(), u64::MAX);
    check(&chain, dir.path(), &tweaks, &addresses);
}

#[test]
fn cancelling_at_any_block_leaves_both_at_the_same_block() {
    let chain = SyntheticChain::generate(Plan { blocks: 60, ..PLAN });
    let dir = tempfile::tempdir().unwrap();
    loop {
        let (mut tweaks, mut addresses) = (tweaks(dir.path(), 0), addresses(dir.path()));
        let options = Options { requests: 2, ..Options::default() };
        let (summary, _) = run(&chain, &mut tweaks, &mut addresses, options, 7);
        assert_eq!(tweaks.tip(), addresses.tip());
        if !summary.cancelled {
            check(&chain, dir.path(), &tweaks, &addresses);
            break;
        }
    }
}
