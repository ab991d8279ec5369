//! Against a real Bitcoin Core on regtest. Every test is named `node_…`, so that they can be counted.

#[path = "common/chain.rs"]
mod chain;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, Network};
use chain::{ANYONE, ChainMaker, FEE};
use peregrine_index::source::{
    ChainSource, NodeConfig, NodeKind, NodeSource, Secret, SourceError, Waiter, connect,
    encode_spent_outputs, parse_block,
};
use peregrine_index::testkit::TestNode;

/// The same node over both interfaces.
fn both(node: &TestNode) -> [NodeSource; 2] {
    [NodeKind::Rest, NodeKind::Rpc].map(|kind| connect(&node.config(kind)).unwrap())
}

#[test]
fn node_rest_and_rpc_agree_on_200_blocks_with_spends() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 4);
    maker.blocks(90, 3);
    let [rest, rpc] = both(&node);
    let tip = rest.tip().unwrap();
    assert_eq!((tip.height, tip.hash), (200, node.best_block()));
    assert_eq!(rpc.tip().unwrap(), tip);

    let genesis = rest.hash_at(0).unwrap().unwrap();
    let headers = rest.headers_after(genesis, 0, 2000).unwrap().unwrap();
    assert_eq!(headers.len(), 200);
    assert_eq!(rpc.headers_after(genesis, 0, 2000).unwrap().unwrap(), headers);

    let (mut spends, mut inputs, mut witnesses) = (0, 0, 0);
    for height in 0..=200 {
        let hash = rest.hash_at(height).unwrap().unwrap();
        assert_eq!(rpc.hash_at(height).unwrap(), Some(hash));
        let block = rest.block(hash).unwrap();
        assert_eq!(rpc.block(hash).unwrap(), block, "height {height}");
        assert_eq!(block.block.block_hash(), hash);
        let bytes = bitcoin::consensus::serialize(&block.block);
        assert_eq!(parse_block(hash, &bytes, &encode_spent_outputs(&block.prevouts)).unwrap(), block);
        // The prevouts are those that the transactions of this chain made.
        for (tx, prevouts) in block.block.txdata.iter().zip(&block.prevouts).skip(1) {
            let paid: bitcoin::Amount = prevouts.iter().map(|output| output.value).sum();
            let received: bitcoin::Amount = tx.output.iter().map(|output| output.value).sum();
            let fee = (paid - received).to_sat();
            assert!((FEE..FEE + 30).contains(&fee), "fee {fee}");
            spends += 1;
            inputs += tx.input.len();
            witnesses += tx.input.iter().filter(|input| !input.witness.is_empty()).count();
        }
    }
    assert_eq!(spends, maker.transactions());
    assert!(inputs > 400 && witnesses > 200, "{inputs} inputs, {witnesses} with witness");
}

#[test]
fn node_heights_and_headers_at_the_edges() {
    let Some(node) = TestNode::start(&[]) else { return };
    let hashes = node.generate_to_descriptor(10, ANYONE);
    for source in both(&node) {
        let name = source.describe();
        assert_eq!(source.hash_at(10).unwrap(), Some(hashes[9]), "{name}");
        assert_eq!(source.hash_at(11).unwrap(), None, "{name}");
        assert_eq!(source.hash_at(u32::MAX).unwrap(), None, "{name}");
        assert_eq!(source.hash_at(i32::MAX as u32).unwrap(), None, "{name}");
        // At the tip, before it, in the middle.
        assert_eq!(source.headers_after(hashes[9], 10, 5).unwrap(), Some(Vec::new()), "{name}");
        let headers = source.headers_after(hashes[8], 9, 5).unwrap().unwrap();
        assert_eq!(
            headers.iter().map(|header| header.block_hash()).collect::<Vec<_>>(),
            hashes[9..],
            "{name}"
        );
        let headers = source.headers_after(hashes[0], 1, 3).unwrap().unwrap();
        assert_eq!(
            headers.iter().map(|header| header.block_hash()).collect::<Vec<_>>(),
            hashes[1..4],
            "{name}"
        );
        assert_eq!(source.headers_after(hashes[0], 1, 0).unwrap(), Some(Vec::new()), "{name}");
        // Blocks that don't exist.
        let unknown = BlockHash::from_byte_array([7; 32]);
        assert_eq!(source.headers_after(unknown, 5, 3).unwrap(), None, "{name}");
        assert_eq!(source.headers_after(unknown, 500, 3).unwrap(), None, "{name}");
        assert!(
            matches!(source.block(unknown), Err(SourceError::UnknownBlock(hash)) if hash == unknown),
            "{name}"
        );
    }
}

#[test]
fn node_more_headers_than_one_request_gives() {
    let Some(node) = TestNode::start(&[]) else { return };
    node.generate_to_descriptor(2100, ANYONE);
    for source in both(&node) {
        let mut last = (source.hash_at(0).unwrap().unwrap(), 0);
        let mut requests = 0;
        loop {
            let headers = source.headers_after(last.0, last.1, 100_000).unwrap().unwrap();
            let Some(header) = headers.last() else { break };
            last = (header.block_hash(), last.1 + u32::try_from(headers.len()).unwrap());
            requests += 1;
        }
        assert_eq!(last, (node.best_block(), 2100), "{}", source.describe());
        assert_eq!(requests, 2, "{}", source.describe());
    }
}

#[test]
fn node_stale_blocks_are_not_on_the_best_chain() {
    let Some(node) = TestNode::start(&[]) else { return };
    let old = node.generate_to_descriptor(20, ANYONE);
    let sources = both(&node);
    node.invalidate(old[15]);
    for source in &sources {
        let name = source.describe();
        assert_eq!(source.tip().unwrap().height, 15, "{name}");
        assert_eq!(source.headers_after(old[19], 20, 10).unwrap(), None, "{name}");
        assert_eq!(source.headers_after(old[15], 16, 10).unwrap(), None, "{name}");
        assert_eq!(source.headers_after(old[14], 15, 10).unwrap(), Some(Vec::new()), "{name}");
    }
    // Another branch, longer than the old one.
    let new = node.generate_to_descriptor(10, "raw(5151)");
    for source in &sources {
        let name = source.describe();
        assert_eq!(source.tip().unwrap().hash, new[9], "{name}");
        assert_eq!(source.hash_at(16).unwrap(), Some(new[0]), "{name}");
        assert_eq!(source.headers_after(old[19], 20, 10).unwrap(), None, "{name}");
        let headers = source.headers_after(old[14], 15, 100).unwrap().unwrap();
        assert_eq!(headers.iter().map(|header| header.block_hash()).collect::<Vec<_>>(), new, "{name}");
        // A block that was connected once can still be read.
        assert_eq!(source.block(old[19]).unwrap().block.block_hash(), old[19], "{name}");
    }
}

#[test]
fn node_restarts_are_survived() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    let hashes = node.generate_to_descriptor(5, ANYONE);
    let sources = both(&node);
    let cookie = std::fs::read_to_string(node.cookie_path()).unwrap();
    node.restart();
    assert_ne!(std::fs::read_to_string(node.cookie_path()).unwrap(), cookie);
    for source in &sources {
        assert_eq!(source.tip().unwrap().hash, hashes[4], "{}", source.describe());
    }
    node.stop();
    for source in &sources {
        assert!(matches!(source.tip(), Err(SourceError::Unavailable(_))), "{}", source.describe());
        let again = connect(&node.config(source.kind()));
        assert!(matches!(again, Err(SourceError::Unavailable(_))), "{again:?}");
    }
    // Waits through the start, with all that a node says meanwhile.
    let cancel = AtomicBool::new(false);
    let told = Mutex::new(Vec::new());
    let waiter = Waiter::new(&cancel, |event| told.lock().unwrap().push(event.to_string()));
    thread::scope(|scope| {
        for source in &sources {
            let (waiter, tip) = (&waiter, hashes[4]);
            scope.spawn(move || {
                assert_eq!(waiter.run(&source.describe(), || source.tip()).unwrap().hash, tip);
            });
        }
        thread::sleep(Duration::from_millis(500));
        node.launch_without_waiting();
    });
    let told = told.lock().unwrap();
    assert!(told[0].starts_with("waiting for Bitcoin Core R"), "{told:?}");
    assert!(told.iter().any(|line| line.contains("answers again")), "{told:?}");
}

#[test]
fn node_kills_in_the_middle_of_reading_are_survived() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 5);
    maker.blocks(10, 3);
    // What isn't on disk is lost, and then these blocks are rightly unknown.
    node.flush();
    let hashes: Vec<BlockHash> = (0..=120).map(|height| node.block_hash(height)).collect();
    let sources = both(&node);
    let cancel = AtomicBool::new(false);
    let done = AtomicBool::new(false);
    let waiter = Waiter::new(&cancel, |_| ());
    let blocks = AtomicU32::new(0);
    thread::scope(|scope| {
        for source in &sources {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        for &hash in &hashes {
                            let block = waiter.run(&source.describe(), || source.block(hash));
                            assert_eq!(block.unwrap().block.block_hash(), hash);
                            blocks.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
        for round in 0..4 {
            let before = blocks.load(Ordering::Relaxed);
            let end = Instant::now() + Duration::from_secs(60);
            while blocks.load(Ordering::Relaxed) < before + 100 && Instant::now() < end {
                thread::sleep(Duration::from_millis(10));
            }
            assert!(blocks.load(Ordering::Relaxed) >= before + 100, "nothing is read in round {round}");
            node.kill();
            thread::sleep(Duration::from_millis(300));
            node.launch();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn node_auto_prefers_rest_and_falls_back_to_rpc() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    let source = connect(&node.config(NodeKind::Auto)).unwrap();
    assert_eq!((source.kind(), source.fallback_reason()), (NodeKind::Rest, None));
    node.restart_with(&["-rest=0"]);
    assert!(matches!(source.tip(), Err(SourceError::Refused(text)) if text.contains("rest=1")));
    let source = connect(&node.config(NodeKind::Auto)).unwrap();
    assert_eq!(source.kind(), NodeKind::Rpc);
    assert!(source.fallback_reason().unwrap().contains("rest=1"), "{source:?}");
    assert_eq!(source.tip().unwrap().height, 0);
    let genesis = source.tip().unwrap().hash;
    assert_eq!(source.block(genesis).unwrap().prevouts, [Vec::new()]);
    assert!(matches!(connect(&node.config(NodeKind::Rest)), Err(SourceError::Refused(_))));
}

#[test]
fn node_wrong_networks_and_passwords_are_refused() {
    let Some(node) = TestNode::start(&[]) else { return };
    for kind in [NodeKind::Auto, NodeKind::Rest, NodeKind::Rpc] {
        let config =
            NodeConfig { network: Network::Signet, cookie: Some(node.cookie_path()), ..node.config(kind) };
        match connect(&config) {
            Err(SourceError::Refused(text)) => {
                assert!(text.contains("signet") && text.contains("regtest"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }
    let config = NodeConfig {
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        ..node.config(NodeKind::Rpc)
    };
    match connect(&config) {
        Err(SourceError::Refused(text)) => {
            assert!(text.contains("alice") && !text.contains("hunter2"), "{text}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn node_users_and_whitelists() {
    // HMAC-SHA256 of "hunter2" under the salt.
    let auth = "-rpcauth=alice:a1b2c3d4$73598f4ec81af9fc80649ef93a32c7b18e6a5c45dd481c7e5dfb1778d904979d";
    let Some(mut node) = TestNode::start(&[auth]) else { return };
    let config = NodeConfig {
        user: Some("alice".into()),
        password: Some(Secret::new("hunter2".into())),
        ..node.config(NodeKind::Rpc)
    };
    let source = connect(&config).unwrap();
    assert_eq!(source.tip().unwrap().height, 0);
    node.restart_with(&[auth, "-rpcwhitelist=alice:getblockhash", "-rpcwhitelistdefault=0"]);
    assert!(source.hash_at(0).unwrap().is_some());
    assert!(matches!(source.tip(), Err(SourceError::Refused(text)) if text.contains("rpcwhitelist")));
}

#[test]
fn node_pruned_blocks_are_refused() {
    let Some(node) = TestNode::start(&["-prune=1", "-fastprune=1"]) else { return };
    let hashes = node.generate_to_descriptor(700, ANYONE);
    let pruned = node.call("pruneblockchain", serde_json::json!([350]));
    assert!(pruned.as_i64().unwrap() > 10, "{pruned}");
    for source in both(&node) {
        match source.block(hashes[4]) {
            Err(SourceError::Refused(text)) => assert!(text.contains("isn't pruned"), "{text}"),
            other => panic!("{}: {other:?}", source.describe()),
        }
        assert!(source.block(hashes[699]).is_ok());
    }
}

#[test]
fn node_is_found_by_its_data_directory() {
    let Some(node) = TestNode::start(&[]) else { return };
    std::fs::write(node.data_dir().join("bitcoin.conf"), format!("[regtest]\nrpcport={}\n", node.port()))
        .unwrap();
    for kind in [NodeKind::Auto, NodeKind::Rpc] {
        let config = NodeConfig {
            data_dir: Some(node.data_dir().to_owned()),
            kind,
            ..NodeConfig::new(Network::Regtest)
        };
        assert_eq!(config.describe(), format!("Bitcoin Core at 127.0.0.1:{}", node.port()));
        assert_eq!(connect(&config).unwrap().tip().unwrap().height, 0);
    }
}

#[test]
fn node_is_shared_by_many_threads() {
    let Some(node) = TestNode::start(&[]) else { return };
    let hashes = node.generate_to_descriptor(400, ANYONE);
    for source in both(&node) {
        let next = AtomicU32::new(0);
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    while let Some(&hash) = hashes.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                        assert_eq!(source.block(hash).unwrap().block.block_hash(), hash);
                    }
                });
            }
        });
        let rate = hashes.len() as f64 / start.elapsed().as_secs_f64();
        println!("{}: {rate:.0} small blocks per second", source.describe());
    }
}
