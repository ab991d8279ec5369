//! The mempool of a real Bitcoin Core, followed by messages and by lists; compared with the node's own answers.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bitcoin::absolute::LockTime;
use bitcoin::consensus::encode::{deserialize_hex, serialize, serialize_hex};
use bitcoin::transaction::Version;
use bitcoin::{Amount, Block, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness};
use peregrine_index::address::ScriptHash;
use peregrine_index::mempool::{Changes, Mempool, MempoolFollower, ZmqChoice};
use peregrine_index::source::{CallError, Daemon, NodeKind, SourceError};
use peregrine_index::testkit::TestNode;
use peregrine_scanner::batch::TweakMethod;
use serde_json::{Value, json};

/// Anybody can spend it, and it is standard: P2WSH of OP_TRUE.
fn anyone() -> ScriptBuf {
    ScriptBuf::from_bytes(vec![0x51]).to_p2wsh()
}

fn descriptor() -> String {
    format!("raw({:x})", anyone())
}

/// Spends outputs of [`anyone`] to as many as there are values.
fn spend(coins: &[OutPoint], values: &[u64], sequence: u32) -> Transaction {
    let input = coins.iter().map(|coin| TxIn {
        previous_output: *coin,
        script_sig: ScriptBuf::new(),
        sequence: Sequence(sequence),
        witness: Witness::from_slice(&[vec![0x51]]),
    });
    let output =
        values.iter().map(|value| TxOut { value: Amount::from_sat(*value), script_pubkey: anyone() });
    Transaction {
        version: Version::TWO,
        lock_time: LockTime::ZERO,
        input: input.collect(),
        output: output.collect(),
    }
}

/// A node with coins that can be spent, and a follower of its mempool.
struct Followed {
    node: TestNode,
    daemon: Arc<Daemon>,
    follower: MempoolFollower,
    mempool: Mempool,
    woken: Receiver<()>,
    coins: Vec<OutPoint>,
    height: u32,
}

const COIN: u64 = 50 * 100_000_000;

impl Followed {
    fn start(zmq: bool, kind: NodeKind) -> Option<Self> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let address = format!("-zmqpubsequence=tcp://127.0.0.1:{port}");
        let args: &[&str] = if zmq { &[&address] } else { &[] };
        let node = TestNode::start(args)?;
        node.generate_to_descriptor(110, &descriptor());
        let coins = (1..=10).map(|height| {
            let hash = node.block_hash(height).to_string();
            let block: Block =
                deserialize_hex(node.call("getblock", json!([hash, 0])).as_str().unwrap()).unwrap();
            OutPoint::new(block.txdata[0].compute_txid(), 0)
        });
        let coins = coins.collect();
        let daemon = Arc::new(Daemon::connect(&node.config(kind)).unwrap());
        let mut follower = MempoolFollower::new(Arc::clone(&daemon), TweakMethod::Plain, ZmqChoice::Auto);
        let (wake, woken) = channel();
        follower.watch(Box::new(move || {
            let _ = wake.send(());
        }));
        let mut followed =
            Self { node, daemon, follower, mempool: Mempool::default(), woken, coins, height: 110 };
        followed.fetch();
        Some(followed)
    }

    /// One step, as if the index had the node's best block; blocks are connected in it.
    fn fetch(&mut self) -> Changes {
        let tip = self.node.best_block();
        let height = self.node.height();
        let mut confirmed = Vec::new();
        for height in self.height + 1..=height {
            let block = self.node.call("getblock", json!([self.node.block_hash(height).to_string(), 1]));
            let txids =
                block["tx"].as_array().unwrap().iter().map(|txid| txid.as_str().unwrap().parse().unwrap());
            confirmed.extend(txids.collect::<Vec<Txid>>());
        }
        let changed = self.height != height;
        self.height = height;
        let update = self.follower.fetch(&self.mempool, tip, changed).unwrap();
        self.mempool.apply(update, &confirmed)
    }

    /// Steps until the mempool is the node's.
    fn follow(&mut self) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            self.fetch();
            let theirs = self.node.call("getrawmempool", json!([true]));
            let theirs: BTreeSet<String> = theirs.as_object().unwrap().keys().cloned().collect();
            let ours: BTreeSet<String> = self.mempool.txids().map(Txid::to_string).collect();
            if ours == theirs {
                self.check();
                return;
            }
            assert!(Instant::now() < end, "{ours:?} instead of {theirs:?}");
            let _ = self.woken.recv_timeout(Duration::from_millis(50));
        }
    }

    /// Fees, sizes and parents against the node's.
    fn check(&self) {
        let theirs = self.node.call("getrawmempool", json!([true]));
        for (txid, theirs) in theirs.as_object().unwrap() {
            let txid: Txid = txid.parse().unwrap();
            let ours = self.mempool.get(&txid).unwrap();
            let fee = Amount::from_btc(theirs["fees"]["base"].as_f64().unwrap()).unwrap().to_sat();
            assert_eq!((ours.fee(), ours.vsize()), (fee, theirs["vsize"].as_u64().unwrap()));
            let depends = !theirs["depends"].as_array().unwrap().is_empty();
            assert_eq!(self.mempool.unconfirmed_parent(&txid), depends, "{txid}");
            let raw = self.node.call("getrawtransaction", json!([txid.to_string()]));
            assert_eq!(
                serialize_hex(&deserialize_hex::<Transaction>(raw.as_str().unwrap()).unwrap()),
                hex(ours.raw())
            );
        }
    }

    fn send(&self, transaction: &Transaction) -> Txid {
        self.daemon.send(&serialize(transaction)).unwrap()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Arrivals, replacement, parents that confirm, conflicts in blocks, and reorganisations.
fn life(mut followed: Followed) {
    let coins = followed.coins.clone();
    let script = ScriptHash::of(&anyone());
    // A chain of three, and a transaction of its own.
    let first = spend(&coins[..1], &[COIN - 1_000, 0][..1], 0xffff_fffd);
    let outpoint = |tx: &Transaction| OutPoint::new(tx.compute_txid(), 0);
    let second = spend(&[outpoint(&first)], &[COIN - 3_000], 0xffff_fffd);
    let third = spend(&[outpoint(&second)], &[COIN - 6_000], 0xffff_fffd);
    let other = spend(&coins[1..2], &[COIN - 700], 0xffff_fffd);
    for transaction in [&first, &second, &third, &other] {
        followed.send(transaction);
    }
    followed.follow();
    assert_eq!(followed.mempool.history(&script).len(), 4);

    // The second is replaced, and the third goes with it.
    let replacement = spend(&[outpoint(&first)], &[COIN - 50_000], 0xffff_fffd);
    followed.send(&replacement);
    followed.follow();
    assert!(!followed.mempool.contains(&third.compute_txid()));

    // The first confirms: its child's parent is confirmed now, which has to be told.
    let block = followed.node.generate_block(&descriptor(), &[serialize_hex(&first)]);
    let changes = followed.fetch();
    assert!(changes.touched.contains(&script) && changes.removed.is_empty());
    followed.follow();
    assert!(!followed.mempool.unconfirmed_parent(&replacement.compute_txid()));

    // A block with another spend of a coin that the mempool spends.
    let conflict = spend(&coins[1..2], &[COIN - 900], 0xffff_fffd);
    followed.node.generate_block(&descriptor(), &[serialize_hex(&conflict)]);
    followed.follow();
    assert!(!followed.mempool.contains(&other.compute_txid()));

    // Both blocks go: what they had is unconfirmed again.
    followed.node.invalidate(block);
    followed.height = followed.node.height();
    followed.follow();
    let back = [first.compute_txid(), replacement.compute_txid(), conflict.compute_txid()];
    assert!(back.iter().all(|txid| followed.mempool.contains(txid)));
    assert!(followed.mempool.unconfirmed_parent(&replacement.compute_txid()));
    assert!(!followed.mempool.recent().is_empty());

    // All of it in a block.
    followed.node.generate_to_descriptor(1, &descriptor());
    followed.follow();
    assert!(followed.mempool.is_empty());
}

#[test]
fn node_mempool_by_messages() {
    let Some(followed) = Followed::start(true, NodeKind::Auto) else { return };
    life(followed);
}

#[test]
fn node_mempool_by_lists() {
    let Some(followed) = Followed::start(false, NodeKind::Rpc) else { return };
    life(followed);
}

/// Bug class 7: between the node's block and ours, a transaction is in neither mempool nor chain.
#[test]
fn node_mempool_keeps_what_a_block_took_until_the_block_is_indexed() {
    for zmq in [true, false] {
        let Some(mut followed) = Followed::start(zmq, NodeKind::Auto) else { return };
        let transaction = spend(&followed.coins[..1], &[COIN - 1_000], 0xffff_fffd);
        let txid = followed.send(&transaction);
        followed.follow();
        let before = followed.node.best_block();
        followed.node.generate_to_descriptor(1, &descriptor());
        for _ in 0..10 {
            // The index hasn't got the block yet.
            let update = followed.follower.fetch(&followed.mempool, before, true).unwrap();
            assert!(update.removed.is_empty());
            followed.mempool.apply(update, &[]);
            assert!(followed.mempool.contains(&txid));
        }
        let changes = followed.fetch();
        assert!(!followed.mempool.contains(&txid) && changes.removed.is_empty());
    }
}

/// The node restarts: messages stop, the mempool of the node is another one, and both are noticed.
#[test]
fn node_mempool_survives_a_restart() {
    let Some(mut followed) = Followed::start(true, NodeKind::Auto) else { return };
    let first = spend(&followed.coins[..1], &[COIN - 1_000], 0xffff_fffd);
    followed.send(&first);
    followed.follow();
    followed.node.stop();
    let tip = followed.node_tip_before();
    assert!(matches!(
        followed.follower.fetch(&followed.mempool, tip, true),
        Err(SourceError::Unavailable(_) | SourceError::Refused(_))
    ));
    assert_eq!(followed.mempool.len(), 1, "an unreachable node has no empty mempool");
    followed.node.launch();
    let second = spend(&followed.coins[1..2], &[COIN - 1_000], 0xffff_fffd);
    followed.send(&second);
    followed.follow();
    assert!(followed.mempool.contains(&second.compute_txid()));
}

impl Followed {
    fn node_tip_before(&self) -> bitcoin::BlockHash {
        bitcoin::hashes::Hash::all_zeros()
    }
}

/// Calls one by one against the node's own answers.
#[test]
fn node_daemon_answers_like_the_node() {
    let Some(followed) = Followed::start(true, NodeKind::Auto) else { return };
    let (node, daemon) = (&followed.node, &followed.daemon);
    assert_eq!(daemon.best_block().unwrap(), node.best_block());
    let info = daemon.mempool_info().unwrap();
    let theirs = node.call("getmempoolinfo", json!([]));
    assert_eq!(info.min_relay_fee as f64 / 1e8, theirs["minrelaytxfee"].as_f64().unwrap());
    assert_eq!(daemon.estimate_fee(2, None).unwrap(), None);
    assert!(matches!(daemon.estimate_fee(2, Some("NO")), Err(CallError::Node { code: -8, .. })));
    assert_eq!(daemon.zmq_endpoints().unwrap()[0].0, "pubsequence");

    let transaction = spend(&followed.coins[..1], &[COIN - 1_000], 0xffff_fffd);
    let txid = transaction.compute_txid();
    let raw = serialize(&transaction);
    assert_eq!(daemon.test_accept(std::slice::from_ref(&raw)).unwrap()[0]["allowed"], Value::Bool(true));
    assert_eq!(daemon.send(&raw).unwrap(), txid);
    assert_eq!(daemon.send(&raw).unwrap(), txid, "sending again is no error");
    let gone = spend(&followed.coins[1..2], &[1], 0).compute_txid();
    let got = daemon.mempool_transactions(&[txid, gone]).unwrap();
    assert_eq!(got, [Some(transaction.clone()), None]);
    // In the set of unspent outputs although the mempool spends it.
    let outputs = [followed.coins[0], OutPoint::new(gone, 0), followed.coins[1]];
    let outputs = daemon.unspent_outputs(&outputs).unwrap();
    let expected = TxOut { value: Amount::from_sat(COIN), script_pubkey: anyone() };
    assert_eq!(outputs, [Some(expected.clone()), None, Some(expected)]);
    assert_eq!(daemon.transaction_verbose(txid, None).unwrap()["txid"], txid.to_string());

    // Rejections carry the node's words.
    let poor = spend(&followed.coins[1..2], &[COIN], 0xffff_fffd);
    match daemon.send(&serialize(&poor)) {
        Err(CallError::Node { code: -26, message }) => {
            assert!(message.contains("min relay fee"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(daemon.send(&[1, 2, 3]), Err(CallError::Node { code: -22, .. })));
    let unknown = spend(&[OutPoint::new(gone, 7)], &[1], 0);
    assert!(matches!(daemon.send(&serialize(&unknown)), Err(CallError::Node { code: -25, .. })));

    // A parent and a child that pays for both.
    let parent = spend(&followed.coins[2..3], &[COIN - 200], 0xffff_fffd);
    let child = spend(&[OutPoint::new(parent.compute_txid(), 0)], &[COIN - 20_000], 0xffff_fffd);
    let answer = daemon.submit_package(&[serialize(&parent), serialize(&child)], None, None).unwrap();
    assert_eq!(answer["package_msg"], "success");

    // From a block, whether or not the node reads parts of blocks.
    let hash = node.generate_to_descriptor(1, &descriptor())[0];
    let block: Block =
        deserialize_hex(node.call("getblock", json!([hash.to_string(), 0])).as_str().unwrap()).unwrap();
    let mut offset = 80 + bitcoin::consensus::encode::VarInt(block.txdata.len() as u64).size() as u32;
    for tx in &block.txdata {
        let size = tx.total_size() as u32;
        assert_eq!(daemon.transaction_bytes(tx.compute_txid(), hash, offset, size).unwrap(), serialize(tx));
        offset += size;
    }
    assert_eq!(daemon.transaction_verbose(txid, Some(hash)).unwrap()["blockhash"], hash.to_string());
    let nowhere = bitcoin::hashes::Hash::from_byte_array([7; 32]);
    assert!(matches!(daemon.transaction_bytes(txid, nowhere, 81, 100), Err(SourceError::UnknownBlock(_))));
}
