//! The script-hash index of a real Bitcoin Core's chain on regtest, compared with the node's own answers.

#[path = "common/chain.rs"]
mod chain;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bitcoin::consensus::deserialize;
use bitcoin::{Amount, Network, OutPoint, ScriptBuf, Transaction, Txid};
use chain::ChainMaker;
use peregrine_index::address::{
    ADDRESS_DIR, AddressIndexWriter, AddressParams, AddressView, HistoryEntry, ScriptHash, UnspentOutput,
};
use peregrine_index::indexer::{self, Event, Indexes, Options};
use peregrine_index::source::{ChainSource, NodeKind, NodeSource, connect};
use peregrine_index::store::{IndexParams, TweakIndexWriter};
use peregrine_index::testkit::TestNode;
use serde_json::{Value, json};

/// The index in `dir`, brought to the tip together with a tweak index.
fn update(dir: &Path, source: &NodeSource) -> AddressIndexWriter {
    let mut tweaks =
        TweakIndexWriter::open_or_create(dir, &IndexParams::for_network(Network::Regtest)).unwrap();
    let params = AddressParams::for_network(Network::Regtest);
    let mut addresses =
        AddressIndexWriter::open_with_cache(&dir.join(ADDRESS_DIR), &params, 8 << 20).unwrap();
    let indexes = Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) };
    indexer::run_indexes(source, indexes, Options::default(), &AtomicBool::new(false), &|_| ()).unwrap();
    assert_eq!(tweaks.tip(), addresses.tip());
    addresses
}

/// What the node says of every script in its chain.
#[derive(Default)]
struct Known {
    history: BTreeMap<ScriptBuf, BTreeSet<HistoryEntry>>,
    spent: BTreeMap<OutPoint, (Txid, u32)>,
    unspent: BTreeMap<ScriptBuf, Vec<UnspentOutput>>,
}

fn ask(node: &TestNode) -> Known {
    let mut known = Known::default();
    let script = |output: &Value| {
        ScriptBuf::from_hex(output["scriptPubKey"]["hex"].as_str().expect("a script")).expect("hexadecimal")
    };
    let txid = |value: &Value| value.as_str().expect("an id").parse::<Txid>().expect("an id");
    let mut positions = BTreeMap::new();
    for height in 1..=node.height() {
        let block = node.call("getblock", json!([node.block_hash(height).to_string(), 3]));
        for (position, transaction) in (0..).zip(block["tx"].as_array().unwrap()) {
            let entry = HistoryEntry { height, position, txid: txid(&transaction["txid"]) };
            positions.insert(entry.txid, entry);
            for output in transaction["vout"].as_array().unwrap() {
                known.history.entry(script(output)).or_default().insert(entry);
            }
            for (vin, input) in (0..).zip(transaction["vin"].as_array().unwrap()) {
                if input.get("prevout").is_some() {
                    known.history.entry(script(&input["prevout"])).or_default().insert(entry);
                    let outpoint =
                        OutPoint::new(txid(&input["txid"]), input["vout"].as_u64().unwrap() as u32);
                    known.spent.insert(outpoint, (entry.txid, vin));
                }
            }
        }
    }
    let descriptors: Vec<String> = known.history.keys().map(|script| format!("raw({script:x})")).collect();
    let found = node.call("scantxoutset", json!(["start", descriptors]));
    for output in found["unspents"].as_array().unwrap() {
        let script = ScriptBuf::from_hex(output["scriptPubKey"].as_str().unwrap()).unwrap();
        let txid = txid(&output["txid"]);
        let value = Amount::from_btc(output["amount"].as_f64().unwrap()).unwrap().to_sat();
        let HistoryEntry { height, position, .. } = positions[&txid];
        assert_eq!(u64::from(height), output["height"].as_u64().unwrap());
        let vout = output["vout"].as_u64().unwrap() as u32;
        let output = UnspentOutput { height, position, txid, vout, value };
        known.unspent.entry(script).or_default().push(output);
    }
    known.unspent.values_mut().for_each(|outputs| outputs.sort());
    known
}

fn check(node: &TestNode, view: &AddressView, what: &str) {
    assert_eq!(view.tip(), Some((node.height(), node.best_block())), "{what}");
    let known = ask(node);
    assert!(known.unspent.len() > 50 && !known.spent.is_empty());
    for (script, history) in &known.history {
        let hash = ScriptHash::of(script);
        let expected: Vec<_> = history.iter().filter(|_| !script.is_op_return()).copied().collect();
        assert_eq!(view.history(&hash, usize::MAX).unwrap(), expected, "{what}: history of {script}");
        let unspent = known.unspent.get(script).cloned().unwrap_or_default();
        assert_eq!(view.unspent(&hash, usize::MAX).unwrap(), unspent, "{what}: outputs of {script}");
        let sum: u64 = unspent.iter().map(|output| output.value).sum();
        assert_eq!(view.balance(&hash, usize::MAX).unwrap().unspent(), sum);
        for output in &unspent {
            assert_eq!(view.spender(&OutPoint::new(output.txid, output.vout)).unwrap(), None);
        }
    }
    for (outpoint, (txid, vin)) in &known.spent {
        let spender = view.spender(outpoint).unwrap().expect("it is spent");
        assert_eq!((&spender.txid, &spender.vin), (txid, vin), "{what}: {outpoint}");
        assert_eq!(view.txid_at(spender.height, spender.position).unwrap(), Some(*txid));
    }
}

/// Bytes of a transaction through the node's REST interface, without an index of the node's.
fn fetch(node: &TestNode, view: &AddressView, height: u32, position: u32) -> Option<Vec<u8>> {
    let location = view.location(height, position).unwrap().unwrap();
    let url = format!(
        "{}/rest/blockpart/{}.bin?offset={}&size={}",
        node.url(),
        location.block,
        location.offset,
        location.size
    );
    let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
    let mut response = agent.get(&url).call().unwrap();
    // Nodes before version 31 don't have it.
    (response.status() == 200).then(|| response.body_mut().read_to_vec().unwrap())
}

#[test]
fn node_histories_and_unspent_outputs_are_the_nodes_own() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 11);
    maker.blocks(30, 4);
    let dir = tempfile::tempdir().unwrap();
    let source = connect(&node.config(NodeKind::Rest)).unwrap();
    let addresses = update(dir.path(), &source);
    let view = addresses.reader().view();
    check(&node, &view, "at the tip");

    let block = source.block(node.block_hash(maker.height())).unwrap().block;
    for (position, transaction) in (0..).zip(&block.txdata) {
        let Some(bytes) = fetch(&node, &view, maker.height(), position) else {
            println!("this node has no /rest/blockpart/");
            break;
        };
        assert_eq!(&deserialize::<Transaction>(&bytes).unwrap(), transaction);
    }
}

#[test]
fn node_reorganisations_leave_the_new_chains_histories() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 12);
    maker.blocks(90, 2);
    let dir = tempfile::tempdir().unwrap();
    let source = connect(&node.config(NodeKind::Rest)).unwrap();
    drop(update(dir.path(), &source));
    for depth in [1, 6, 70] {
        maker.reorganise(depth);
        let addresses = update(dir.path(), &source);
        check(&node, &addresses.reader().view(), &format!("after a reorganisation {depth} deep"));
    }
}

#[test]
fn node_reorganisations_while_following_leave_the_new_chains_histories() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 13);
    maker.blocks(20, 3);
    let dir = tempfile::tempdir().unwrap();
    let source = connect(&node.config(NodeKind::Rest)).unwrap();
    let mut tweaks =
        TweakIndexWriter::open_or_create(dir.path(), &IndexParams::for_network(Network::Regtest)).unwrap();
    let params = AddressParams::for_network(Network::Regtest);
    let mut addresses = AddressIndexWriter::open_or_create(&dir.path().join(ADDRESS_DIR), &params).unwrap();
    let reader = addresses.reader();
    let cancel = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let options = Options { follow: true, poll: Duration::from_millis(5), ..Options::default() };
            let indexes = Indexes { tweaks: &mut tweaks, addresses: Some(&mut addresses) };
            indexer::run_indexes(&source, indexes, options, &cancel, &|_: Event| ()).unwrap();
        });
        for depth in [2, 5, 9] {
            maker.reorganise(depth);
            maker.blocks(2, 3);
        }
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while reader.view().tip() != Some((maker.height(), node.best_block())) {
            assert!(std::time::Instant::now() < end, "the index doesn't reach the tip");
            std::thread::sleep(Duration::from_millis(5));
        }
        cancel.store(true, Ordering::Relaxed);
    });
    assert_eq!(tweaks.tip(), addresses.tip());
    check(&node, &reader.view(), "followed");
}
