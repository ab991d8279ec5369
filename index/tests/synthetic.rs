//! The synthetic chain is what it says: its payments are found by the scanner's own rules, and only those.

use std::collections::BTreeSet;

use bitcoin::hashes::Hash;
use peregrine_index::rows::BlockRows;
use peregrine_index::source::ChainSource;
use peregrine_index::synthetic::{Plan, Planted, SyntheticChain};
use peregrine_scanner::batch::TweakMethod;
use peregrine_scanner::receive::find_outputs;
use peregrine_scanner::tweak::taproot_key;
use peregrine_scanner::{Tweak, transaction_tweak};

const PLAN: Plan = Plan { blocks: 60, reorg_depth: 5, seed: 7, transactions: 12, payment_every: 20 };

/// Everything that belongs to the wallets, by going through the blocks without any index.
fn found(chain: &SyntheticChain) -> Vec<Planted> {
    let targets: Vec<_> = chain.wallets().iter().map(|wallet| wallet.target().unwrap()).collect();
    let mut found = Vec::new();
    for height in 0..=chain.tip().unwrap().height {
        let block = chain.block(chain.hash_at(height).unwrap().unwrap()).unwrap();
        let rows = BlockRows::of_block(&block, TweakMethod::Plain);
        let mut row = 0;
        for (transaction, prevouts) in block.block.txdata.iter().zip(&block.prevouts) {
            let Some(tweak) = transaction_tweak(transaction, prevouts) else { continue };
            assert_eq!(rows.points[row], tweak.to_row());
            assert_eq!(Tweak::from_row(&rows.points[row]), Some(tweak));
            assert_eq!(rows.txids[row], transaction.compute_txid().to_byte_array());
            row += 1;
            let keys: Vec<_> = (0..)
                .zip(&transaction.output)
                .filter_map(|(vout, output)| {
                    Some((vout, output.value.to_sat(), taproot_key(&output.script_pubkey)?))
                })
                .collect();
            for (wallet, target) in targets.iter().enumerate() {
                let xonly: Vec<[u8; 32]> = keys.iter().map(|(_, _, key)| *key).collect();
                for output in find_outputs(target, &tweak, &xonly) {
                    let (vout, value, _) = keys[output.index];
                    let txid = transaction.compute_txid();
                    found.push(Planted { height, txid, vout, wallet, label: output.label, value });
                }
            }
        }
        assert_eq!(row, rows.len());
    }
    found.sort();
    found
}

fn planted(chain: &SyntheticChain) -> Vec<Planted> {
    let mut planted = chain.planted().to_vec();
    planted.sort();
    planted
}

#[test]
fn what_is_planted_is_what_the_rules_find_on_both_branches() {
    let chain = SyntheticChain::generate(PLAN);
    let first = planted(&chain);
    assert_eq!(found(&chain), first);
    assert!(first.len() > 30, "{}", first.len());
    let old_tip = chain.tip().unwrap();
    assert_eq!(old_tip.height, 60);

    chain.reorganise();
    let second = planted(&chain);
    assert_eq!(found(&chain), second);
    assert_eq!(chain.tip().unwrap().height, 61);
    assert_eq!(chain.headers_after(old_tip.hash, old_tip.height, 10).unwrap(), None);
    let fork = chain.hash_at(55).unwrap().unwrap();
    assert_eq!(chain.headers_after(fork, 55, 10).unwrap().unwrap().len(), 6);
    let [first, second]: [BTreeSet<Planted>; 2] = [first, second].map(|list| list.into_iter().collect());
    assert!(first.symmetric_difference(&second).all(|planted| planted.height > 55));
    assert!(first != second);
}

#[test]
fn the_seed_decides_everything() {
    let tips =
        [7, 7, 8].map(|seed| SyntheticChain::generate(Plan { seed, blocks: 8, ..PLAN }).tip().unwrap());
    assert_eq!(tips[0], tips[1]);
    assert_ne!(tips[0], tips[2]);
}
