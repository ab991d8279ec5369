//! Payments on a real Bitcoin Core on regtest: made, mined, indexed through both interfaces, found, reorganised.

#[path = "common/chain.rs"]
mod chain;
#[path = "common/index.rs"]
mod index;

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chain::{ChainMaker, Payment};
use peregrine_index::indexer::{self, Event, Options};
use peregrine_index::source::{ChainSource, NodeKind, NodeSource, connect};
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::InputKind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

/// The node through one interface, and an index that is fed by it.
struct Side {
    source: NodeSource,
    dir: TempDir,
}

fn sides(node: &TestNode) -> [Side; 2] {
    [NodeKind::Rest, NodeKind::Rpc]
        .map(|kind| Side { source: connect(&node.config(kind)).unwrap(), dir: tempfile::tempdir().unwrap() })
}

impl Side {
    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn update(&self) {
        index::update(self.dir(), &self.source);
    }
}

/// Both indexes hold the node's chain as an index does that is made now, with the rows and payments that the sender
/// knows of.
fn check(node: &TestNode, maker: &ChainMaker<'_>, sides: &[Side; 2], what: &str) {
    let contents = index::contents(sides[0].dir());
    assert_eq!(contents.last().unwrap().0.block_hash(), node.best_block(), "{what}");
    assert_eq!(contents.len() as u32, maker.height() + 1, "{what}");
    assert!(index::contents(sides[1].dir()) == contents, "{what}: REST and JSON-RPC give different rows");
    assert!(index::fresh_contents(&sides[0].source) == contents, "{what}: a new index has other rows");
    assert_eq!(index::rows(&contents), maker.rows(), "{what}");
    for side in sides {
        let found = index::found(side.dir(), &side.source, maker.wallets());
        assert_eq!(found, maker.planted(), "{what}, {}", side.source.describe());
    }
}

/// One output without a label.
const PLAIN: &[Payment] = &[(0, None)];
/// Everything at once: several outputs, labels, and a second wallet in between.
const MIXED: &[Payment] =
    &[(1, Some(2)), (0, Some(0)), (1, None), (1, Some(0)), (2, Some(u32::MAX)), (1, Some(2))];

#[test]
fn node_payments_from_every_kind_of_input_are_found() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 1);
    for _ in 0..6 {
        maker.fan_out();
    }
    maker.mine();
    let eligible = InputKind::ALL.into_iter().filter(|kind| kind.gives_key()).count();
    for kind in InputKind::ALL {
        // Alone, which is a payment only if the kind gives a key.
        let alone = if kind.gives_key() { PLAIN } else { &[] };
        maker.pay(&[kind], alone);
        maker.mine();
        // With an input that gives a key, behind and before it, and between two of its kind.
        maker.pay(&[kind, InputKind::P2wpkh], PLAIN);
        maker.pay(&[InputKind::TaprootKeyPath, kind], MIXED);
        maker.pay(&[kind, InputKind::P2pkhMalleated, kind], MIXED);
        maker.mine();
    }
    // All but the last kind excludes nothing; all together are excluded by the last.
    maker.pay(&InputKind::ALL[..14], MIXED);
    maker.pay(&InputKind::ALL, MIXED);
    maker.mine();
    let expected = eligible + 14 * (PLAIN.len() + 2 * MIXED.len()) + MIXED.len();
    assert_eq!(maker.planted().len(), expected);

    maker.blocks(60, 4);
    assert!(maker.planted().len() > expected + 60);
    let sides = sides(&node);
    sides.iter().for_each(Side::update);
    check(&node, &maker, &sides, "at the tip");
}

#[test]
fn node_reorganisations_while_idle_give_the_new_chain() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 2);
    maker.blocks(30, 4);
    let sides = sides(&node);
    sides.iter().for_each(Side::update);
    for depth in [1, 6, 120] {
        if depth == 120 {
            maker.blocks(120, 1);
            sides.iter().for_each(Side::update);
        }
        check(&node, &maker, &sides, &format!("before a reorganisation {depth} deep"));
        let before = maker.planted();
        maker.reorganise(depth);
        assert_ne!(maker.planted(), before);
        sides.iter().for_each(Side::update);
        check(&node, &maker, &sides, &format!("after a reorganisation {depth} deep"));
    }
}

/// Follows the chain with few requests in flight until the tip is at height `end`. Calls `meet` once, when the index has
/// the block at height `at`.
fn follow(side: &Side, at: u32, end: u32, meet: &(dyn Fn() + Sync)) {
    let cancel = AtomicBool::new(false);
    let met = AtomicBool::new(false);
    let event = |event: Event| match event {
        Event::Progress(progress) if progress.height == at && !met.swap(true, Ordering::Relaxed) => meet(),
        Event::AtTip(height) if height == end => cancel.store(true, Ordering::Relaxed),
        _ => {}
    };
    let options = Options { follow: true, requests: 2, poll: Duration::from_millis(5), ..Options::default() };
    indexer::run(&side.source, &mut index::writer(side.dir()), options, &cancel, &event).unwrap();
}

#[test]
fn node_reorganisations_in_the_middle_of_indexing_give_the_new_chain() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut rng = StdRng::seed_from_u64(3);
    let mut maker = ChainMaker::new(&node, 3);
    maker.blocks(30, 3);
    maker.blocks(110, 1);
    for depth in [1, 6, 120] {
        // The node reorganises while both indexers stand still at a block, with others in flight; or while both go on.
        for stand_still in [true, false] {
            let sides = sides(&node);
            let tip = maker.height();
            // From a little before the fork, where only blocks in flight become stale, to the last block.
            let at = rng.random_range(tip - depth - 4..=tip);
            let barrier = Barrier::new(sides.len() + 1);
            let meet = || {
                barrier.wait();
                if stand_still {
                    barrier.wait();
                }
            };
            std::thread::scope(|scope| {
                for side in &sides {
                    scope.spawn(|| follow(side, at, tip + 1, &meet));
                }
                barrier.wait();
                maker.reorganise(depth);
                if stand_still {
                    barrier.wait();
                }
            });
            check(&node, &maker, &sides, &format!("{depth} deep at height {at} of {tip}"));
        }
    }
}
