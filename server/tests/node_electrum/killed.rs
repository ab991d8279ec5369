//! SIGKILL of the server while it indexes, follows and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bitcoin::Network;
use peregrine_index::address::{ADDRESS_DIR, AddressIndexWriter, AddressParams, ScriptHash};
use peregrine_index::source::{NodeKind, connect};
use peregrine_index::testkit::TestNode;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::index;
use crate::naive;
use crate::served::{Served, hash};

/// How often it is killed; `PEREGRINE_KILLS` asks for more.
fn kills() -> u32 {
    std::env::var("PEREGRINE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

/// Asks what it can, for as long as there is a server.
async fn load(address: std::net::SocketAddr, scripts: Arc<Vec<bitcoin::ScriptBuf>>, stop: Arc<AtomicBool>) {
    let ask = async {
        let mut client = Client::greet(address, "1.4.2").await;
        client.call("blockchain.headers.subscribe", json!([])).await.ok();
        loop {
            for script in scripts.iter() {
                client.call("blockchain.scripthash.get_history", json!([hash(script)])).await.ok();
            }
        }
    };
    tokio::select! {
        () = ask => {}
        () = async { while !stop.load(Ordering::Relaxed) { tokio::time::sleep(Duration::from_millis(5)).await; } } => {}
    }
}

/// Bug class 20. After every kill the server opens what it finds, and at the end both indexes are those of a new one.
#[tokio::test(flavor = "multi_thread")]
async fn node_server_killed_under_load_opens_the_indexes_as_they_must_be() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut rng = StdRng::seed_from_u64(9);
    let mut maker = ChainMaker::new(&node, 9);
    maker.blocks(6, 5);
    let scripts = Arc::new(naive::scripts(&node).into_keys().collect::<Vec<_>>());
    // Begun without waiting, so that it is also killed while it catches up.
    let mut served = Served::open(&node).await;
    let kills = kills();
    for kill in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let loads: Vec<_> =
            (0..3).map(|_| tokio::spawn(load(served.tcp, Arc::clone(&scripts), Arc::clone(&stop)))).collect();
        // Blocks and reorganisations while it runs.
        for _ in 0..rng.random_range(1..4) {
            if rng.random_ratio(1, 4) {
                maker.reorganise(rng.random_range(1..4));
            } else {
                maker.blocks(1, 3);
            }
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
        }
        stop.store(true, Ordering::Relaxed);
        served.kill();
        // The strict client panics when its connection ends in the middle, as it must here.
        for load in loads {
            let _ = load.await;
        }
        if kill % 25 == 24 {
            println!("killed {} times", kill + 1);
        }
        served.launch();
    }
    served.ready(&node).await;
    served.stop();

    let source = connect(&node.config(NodeKind::Rest)).unwrap();
    assert!(index::contents(&served.index_dir()) == index::fresh_contents(&source), "the tweak index");
    let open = |dir: &std::path::Path| {
        let params = AddressParams::for_network(Network::Regtest);
        AddressIndexWriter::open_with_cache(&dir.join(ADDRESS_DIR), &params, 8 << 20).unwrap()
    };
    let killed = open(&served.index_dir());
    let view = killed.reader().view();
    assert_eq!(view.tip(), Some((node.height(), node.best_block())));
    for (script, known) in naive::scripts(&node) {
        let history = view.history(&ScriptHash::of(&script), usize::MAX).unwrap();
        let ours: Vec<_> = history.iter().map(|entry| (entry.height, entry.txid)).collect();
        assert_eq!(ours, known.confirmed, "history of {script}");
        for output in view.unspent(&ScriptHash::of(&script), usize::MAX).unwrap() {
            let theirs = node.call("gettxout", json!([output.txid.to_string(), output.vout, false]));
            assert!(theirs.is_object(), "{} is spent", output.txid);
        }
    }
    println!("killed {kills} times; both indexes are as new ones");
}
