//! Random histories of a mempool against plain searches through all transactions.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bitcoin::absolute::LockTime;
use bitcoin::transaction::Version;
use bitcoin::{Amount, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness};
use proptest::prelude::*;

use super::*;

fn script(number: u8) -> ScriptBuf {
    ScriptBuf::from_bytes(vec![0x51, number])
}

/// Spends outpoints, each of which pays 1000 to a script, to outputs of 100.
fn transaction(spends: &[(OutPoint, u8)], pays: &[u8], salt: u32) -> (Transaction, Vec<TxOut>) {
    let input = spends.iter().map(|(outpoint, _)| TxIn {
        previous_output: *outpoint,
        script_sig: ScriptBuf::new(),
        sequence: Sequence(salt),
        witness: Witness::new(),
    });
    let output = pays.iter().map(|pay| TxOut { value: Amount::from_sat(100), script_pubkey: script(*pay) });
    let prevouts =
        spends.iter().map(|(_, from)| TxOut { value: Amount::from_sat(1000), script_pubkey: script(*from) });
    let transaction = Transaction {
        version: Version::TWO,
        lock_time: LockTime::ZERO,
        input: input.collect(),
        output: output.collect(),
    };
    (transaction, prevouts.collect())
}

fn entry(spends: &[(OutPoint, u8)], pays: &[u8], salt: u32) -> MempoolEntry {
    let (transaction, prevouts) = transaction(spends, pays, salt);
    MempoolEntry::new(&transaction, &prevouts, None).expect("it pays a fee")
}

fn coin(number: u8) -> (OutPoint, u8) {
    let mut txid = [0; 32];
    txid[0] = number;
    (OutPoint::new(bitcoin::hashes::Hash::from_byte_array(txid), 0), number % 4)
}

/// What a script's history looks like to a client.
type History = BTreeSet<(bool, Txid)>;

/// Searches through everything.
fn histories(entries: &BTreeMap<Txid, MempoolEntry>) -> BTreeMap<ScriptHash, History> {
    let mut histories: BTreeMap<ScriptHash, History> = BTreeMap::new();
    for (txid, entry) in entries {
        let parent = entry.spends().iter().any(|input| entries.contains_key(&input.outpoint.txid));
        let paid = entry.outputs().iter().map(|output| ScriptHash::of(&output.script_pubkey));
        for script in paid.chain(entry.spends().iter().map(|input| input.script)) {
            histories.entry(script).or_default().insert((parent, *txid));
        }
    }
    histories
}

/// Compares all answers with searches.
fn check(mempool: &Mempool, entries: &BTreeMap<Txid, MempoolEntry>) {
    let ids: BTreeSet<Txid> = mempool.txids().copied().collect();
    assert_eq!(ids, entries.keys().copied().collect());
    let spent: BTreeMap<OutPoint, (Txid, u32)> = entries
        .values()
        .flat_map(|entry| (0..).zip(entry.spends()).map(|(vin, input)| (input.outpoint, (entry.txid(), vin))))
        .collect();
    assert_eq!(mempool.spenders, spent.clone().into_iter().collect());
    let histories = histories(entries);
    assert_eq!(mempool.by_script.len(), histories.len());
    for (script, history) in histories {
        let ours: History =
            mempool.history(&script).into_iter().map(|tx| (tx.unconfirmed_parent, tx.txid)).collect();
        assert_eq!(ours, history);
        let (mut unspent, mut balance) = (BTreeSet::new(), 0);
        for entry in entries.values() {
            for (vout, output) in (0..).zip(entry.outputs()) {
                let outpoint = OutPoint::new(entry.txid(), vout);
                if ScriptHash::of(&output.script_pubkey) == script {
                    balance += 100;
                    if !spent.contains_key(&outpoint) {
                        unspent.insert((outpoint, 100));
                    }
                }
            }
            balance -= entry.spends().iter().filter(|input| input.script == script).count() as i64 * 1000;
        }
        assert_eq!(mempool.unspent(&script).into_iter().collect::<BTreeSet<_>>(), unspent);
        assert_eq!(mempool.balance(&script), balance);
    }
    let size: u64 = entries.values().map(MempoolEntry::vsize).sum();
    assert_eq!(mempool.fee_histogram().iter().map(|(_, size)| size).sum::<u64>(), size);
    assert!(mempool.recent().iter().all(|recent| entries.contains_key(&recent.txid)));
}

/// A transaction and what descends from it.
fn descendants(entries: &BTreeMap<Txid, MempoolEntry>, txid: Txid) -> BTreeSet<Txid> {
    let mut all = BTreeSet::from([txid]);
    loop {
        let children: Vec<Txid> = entries
            .values()
            .filter(|entry| entry.spends().iter().any(|input| all.contains(&input.outpoint.txid)))
            .map(MempoolEntry::txid)
            .filter(|child| !all.contains(child))
            .collect();
        if children.is_empty() {
            return all;
        }
        all.extend(children);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Spends confirmed coins, or outputs of the mempool's transactions, whether they are spent or not.
    Add {
        coins: Vec<u8>,
        parents: Vec<prop::sample::Index>,
        pays: Vec<u8>,
    },
    Evict(prop::sample::Index),
    /// Confirms a transaction with its ancestors; the update has them as removed, too.
    Confirm(prop::sample::Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        4 => (
            prop::collection::vec(0u8..12, 0..3),
            prop::collection::vec(index(), 0..3),
            prop::collection::vec(0u8..6, 1..4),
        ).prop_map(|(coins, parents, pays)| Step::Add { coins, parents, pays }),
        1 => index().prop_map(Step::Evict),
        2 => (index(), any::<bool>()).prop_map(|(which, removed)| Step::Confirm(which, removed)),
    ]
}

proptest! {
    #[test]
    fn all_orders_of_events_leave_it_consistent(steps in prop::collection::vec(step(), 1..40)) {
        let mut mempool = Mempool::default();
        let mut entries: BTreeMap<Txid, MempoolEntry> = BTreeMap::new();
        for (salt, step) in (0..).zip(steps) {
            let before = histories(&entries);
            let ids: Vec<Txid> = entries.keys().copied().collect();
            let (mut update, mut confirmed) = (Update::default(), Vec::new());
            let mut expected_removed = BTreeSet::new();
            match step {
                Step::Add { coins, parents, pays } => {
                    let mut spends: Vec<(OutPoint, u8)> = coins.into_iter().map(coin).collect();
                    if !ids.is_empty() {
                        spends.extend(parents.iter().map(|parent| {
                            let parent = &entries[parent.get(&ids)];
                            let script = parent.outputs()[0].script_pubkey.as_bytes()[1];
                            (OutPoint::new(parent.txid(), 0), script)
                        }));
                    }
                    spends.sort();
                    spends.dedup();
                    if spends.is_empty() {
                        continue;
                    }
                    let new = entry(&spends, &pays, salt);
                    let rivals = entries.values().filter(|other| {
                        other.spends().iter().any(|a| new.spends().iter().any(|b| a.outpoint == b.outpoint))
                    });
                    let rivals: Vec<Txid> = rivals.map(MempoolEntry::txid).collect();
                    for rival in rivals {
                        expected_removed.extend(descendants(&entries, rival));
                    }
                    // A node has no transaction that replaces its own parent.
                    if new.spends().iter().any(|input| expected_removed.contains(&input.outpoint.txid)) {
                        continue;
                    }
                    entries.retain(|txid, _| !expected_removed.contains(txid));
                    entries.insert(new.txid(), new.clone());
                    update.added = vec![new.clone(), new];
                }
                Step::Evict(which) if !ids.is_empty() => {
                    let txid = *which.get(&ids);
                    expected_removed = descendants(&entries, txid);
                    entries.retain(|txid, _| !expected_removed.contains(txid));
                    update.removed = vec![txid, coin(200).0.txid];
                }
                Step::Confirm(which, removed) if !ids.is_empty() => {
                    let mut leaving = vec![*which.get(&ids)];
                    while let Some(txid) = leaving.pop() {
                        if let Some(entry) = entries.remove(&txid) {
                            leaving.extend(entry.spends().iter().map(|input| input.outpoint.txid));
                            confirmed.push(txid);
                            // It may come late, when the block is there already.
                            update.added.push(entry);
                        }
                    }
                    if removed {
                        update.removed = confirmed.clone();
                    }
                }
                _ => continue,
            }
            let changes = mempool.apply(update, &confirmed);
            check(&mempool, &entries);
            prop_assert_eq!(changes.removed.iter().copied().collect::<BTreeSet<_>>(), expected_removed);
            let after = histories(&entries);
            let scripts: HashSet<ScriptHash> = before.keys().chain(after.keys()).copied().collect();
            for script in scripts {
                if before.get(&script) != after.get(&script) {
                    prop_assert!(changes.touched.contains(&script), "a change that isn't told");
                }
            }
        }
    }
}

/// Bug class 9: prevouts that are missing or wrong give no transaction with an absurd fee.
#[test]
fn no_entry_without_what_it_spends() {
    let (transaction, prevouts) = transaction(&[coin(1), coin(2)], &[1; 5], 0);
    assert!(MempoolEntry::new(&transaction, &prevouts, None).is_some_and(|entry| entry.fee() == 1500));
    assert!(MempoolEntry::new(&transaction, &prevouts[..1], None).is_none());
    let poor: Vec<TxOut> =
        prevouts.iter().map(|out| TxOut { value: Amount::from_sat(100), ..out.clone() }).collect();
    assert!(MempoolEntry::new(&transaction, &poor, None).is_none());
    let rich: Vec<TxOut> =
        prevouts.iter().map(|out| TxOut { value: Amount::from_sat(u64::MAX), ..out.clone() }).collect();
    assert!(MempoolEntry::new(&transaction, &rich, None).is_none());
}
