//! Mistakes that other servers made, by the number of their class, where no other test has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bitcoin::block::Header;
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::hashes::Hash;
use bitcoin::{ScriptBuf, Txid};
use electrum_client::ToElectrumScriptHash;
use peregrine_index::testkit::TestNode;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::coins::{self, script, send, spend};
use crate::reorganised::{compare, converge};
use crate::served::{Served, hash, note_of};

/// Long enough for the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

const HISTORY: &str = "blockchain.scripthash.get_history";
const SUBSCRIBE: &str = "blockchain.scripthash.subscribe";
const GET: &str = "blockchain.transaction.get";

async fn history(client: &mut Client, number: u32) -> Value {
    client.call(HISTORY, json!([hash(&script(number))])).await.unwrap()
}

/// Asks until the history of a script is as wanted.
async fn until(client: &mut Client, number: u32, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let history = history(client, number).await;
        if wanted(&history) {
            return history;
        }
        assert!(Instant::now() < end, "the history of script {number} stays {history}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn has(history: &Value, txid: &Txid) -> bool {
    history.as_array().unwrap().iter().any(|tx| tx["tx_hash"] == txid.to_string())
}

/// Class 1: another branch while the server was away, and while it indexes for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_1_another_branch_at_the_start() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 101);
    maker.blocks(8, 3);
    let mut served = Served::open(&node).await;
    for depth in [2, 1, 3] {
        maker.reorganise(depth);
    }
    served.ready(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    compare(&mut client, &node).await;
    for (end, depth) in [(Served::stop as fn(&mut Served), 7), (Served::kill, 4)] {
        end(&mut served);
        maker.reorganise(depth);
        served.launch();
        served.ready(&node).await;
        let mut client = Client::greet(served.tcp, "1.4.2").await;
        compare(&mut client, &node).await;
    }
    // A chain that is shorter than what the server has.
    served.stop();
    node.invalidate(node.block_hash(node.height() - 5));
    served.launch();
    served.ready(&node).await;
    compare(&mut Client::greet(served.tcp, "1.4.2").await, &node).await;
    served.stop();
}

/// Class 2: what only an orphaned block had is neither in histories nor to be had.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_2_orphaned_transactions_are_gone() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coin = coins::mine(&node, 1)[0];
    let (old, _) = spend(&[coin], &[1], 1_000);
    let (new, _) = spend(&[coin], &[2], 1_000);
    let (old_id, new_id) = (old.compute_txid(), new.compute_txid());
    let orphan = node.generate_block(&coins::descriptor(0), &[serialize_hex(&old)]);
    let height = node.height();
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    assert!(has(&history(&mut client, 1).await, &old_id));
    let merkle = "blockchain.transaction.get_merkle";
    client.call(merkle, json!([old_id.to_string(), height])).await.unwrap();

    node.invalidate(orphan);
    node.generate_block(&coins::descriptor(0), &[serialize_hex(&new)]);
    node.generate_to_descriptor(1, &coins::descriptor(0));
    while note_of(&mut client, "headers.subscribe").await.1[0]["height"] != height + 1 {}
    assert_eq!(history(&mut client, 1).await, json!([]));
    assert!(has(&history(&mut client, 2).await, &new_id));
    client.call(merkle, json!([new_id.to_string(), height])).await.unwrap();
    client.call(merkle, json!([old_id.to_string(), height])).await.unwrap_err();
    for verbose in [false, true] {
        let error = client.call(GET, json!([old_id.to_string(), verbose])).await.unwrap_err();
        assert!(error.message.starts_with("No such mempool or blockchain transaction"), "{error:?}");
    }
    served.stop();
}

/// Classes 4 and 7: transactions that are mined as soon as they are sent are at every moment in exactly one place, and
/// whoever subscribed is told of the last state of each. Class 18: whoever unsubscribed isn't.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_7_mempool_and_block_at_the_same_time() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 24);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let mut left = Client::greet(served.tcp, "1.4.2").await;
    let numbers = 1..=coins.len() as u32;
    let mut told: BTreeMap<ScriptBuf, Value> = BTreeMap::new();
    for number in numbers.clone() {
        let params = json!([hash(&script(number))]);
        told.insert(script(number), client.call(SUBSCRIBE, params.clone()).await.unwrap());
        left.call(SUBSCRIBE, params.clone()).await.unwrap();
        assert_eq!(left.call("blockchain.scripthash.unsubscribe", params.clone()).await, Ok(json!(true)));
        assert_eq!(left.call("blockchain.scripthash.unsubscribe", params).await, Ok(json!(false)));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn({
        let (stop, address, numbers) = (Arc::clone(&stop), served.tcp, numbers.clone());
        async move {
            let mut client = Client::greet(address, "1.4.2").await;
            let mut seen = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                for number in numbers.clone() {
                    let list = history(&mut client, number).await;
                    let list = list.as_array().unwrap();
                    assert!(list.len() <= 1, "class 4: in the mempool and in a block: {list:?}");
                    assert!(!list.is_empty() || !seen.contains(&number), "class 7: script {number} lost it");
                    if !list.is_empty() {
                        seen.insert(number);
                    }
                }
            }
        }
    });
    for (number, coin) in numbers.zip(&coins) {
        send(&node, &spend(&[*coin], &[number], 1_000 + u64::from(number)).0);
        // At once, or while the server is fetching it.
        tokio::time::sleep(Duration::from_millis(u64::from(number % 6) * 110)).await;
        node.generate_to_descriptor(1, &coins::descriptor(u32::MAX));
    }
    converge(&mut client, &mut told, &node).await;
    stop.store(true, Ordering::Relaxed);
    watch.await.unwrap();
    assert_eq!(left.notes_until_now().await, Vec::<String>::new(), "class 18");
    served.stop();
}

/// Class 8: a transaction of the mempool is replaced: it is gone from every answer, and subscribers are told.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_8_replaced_in_the_mempool() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 2);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let mut told = BTreeMap::new();
    for number in 1..=4 {
        told.insert(script(number), client.call(SUBSCRIBE, json!([hash(&script(number))])).await.unwrap());
    }
    let (first, made) = spend(&[coins[0]], &[1, 1], 1_000);
    let (child, _) = spend(&made, &[2], 1_000);
    let (replacing, _) = spend(&[coins[0], coins[1]], &[3, 4], 50_000);
    let (first_id, child_id) = (send(&node, &first), send(&node, &child));
    until(&mut client, 2, |list| has(list, &child_id)).await;
    converge(&mut client, &mut told, &node).await;
    let replacing_id = send(&node, &replacing);
    converge(&mut client, &mut told, &node).await;
    assert_eq!(history(&mut client, 1).await, json!([]));
    assert_eq!(history(&mut client, 2).await, json!([]));
    for number in [3, 4] {
        assert!(has(&history(&mut client, number).await, &replacing_id));
    }
    for gone in [first_id, child_id] {
        let error = client.call(GET, json!([gone.to_string()])).await.unwrap_err();
        assert!(error.message.starts_with("No such mempool or blockchain transaction"), "{error:?}");
    }
    let unspent = client.call("blockchain.scripthash.listunspent", json!([hash(&script(0))])).await.unwrap();
    assert!(unspent.as_array().unwrap().is_empty(), "both coins are spent: {unspent}");
    served.stop();
}

/// Classes 3, 9 and 10: a long chain of unconfirmed transactions, and then a block with the first half of it.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_9_chains_in_the_mempool() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 3);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let mut told = BTreeMap::new();
    for number in 0..=24 {
        told.insert(script(number), client.call(SUBSCRIBE, json!([hash(&script(number))])).await.unwrap());
    }
    // Some scripts are paid by several, so that the order within a block counts.
    let mut transactions = Vec::new();
    let mut coin = coins[0];
    for number in 1..=20 {
        let second = 21 + number % 2;
        let to = if number % 3 == 0 { vec![number, second] } else { vec![number] };
        let (transaction, made) = spend(&[coin], &to, 500 * u64::from(number));
        send(&node, &transaction);
        transactions.push(serialize_hex(&transaction));
        coin = made[0];
    }
    converge(&mut client, &mut told, &node).await;
    compare(&mut client, &node).await;
    let bins = client.call("mempool.get_fee_histogram", json!([])).await.unwrap();
    let bins: Vec<(f64, u64)> = serde_json::from_value(bins).unwrap();
    assert!(bins.windows(2).all(|pair| pair[0].0 > pair[1].0), "class 10: {bins:?}");
    let size = node.call("getmempoolinfo", json!([]))["bytes"].as_u64().unwrap();
    assert_eq!(bins.iter().map(|(_, vsize)| vsize).sum::<u64>(), size, "class 10: {bins:?}");

    let mut client = Client::greet(served.tcp, "1.4.2").await;
    for (script, status) in &mut told {
        *status = client.call(SUBSCRIBE, json!([hash(script)])).await.unwrap();
    }
    node.generate_block(&coins::descriptor(u32::MAX), &transactions[..10]);
    converge(&mut client, &mut told, &node).await;
    node.generate_block(&coins::descriptor(u32::MAX), &transactions[10..]);
    converge(&mut client, &mut told, &node).await;
    compare(&mut client, &node).await;
    let bins = client.call("mempool.get_fee_histogram", json!([])).await.unwrap();
    assert_eq!(bins, json!([]), "class 10");
    served.stop();
}

/// Class 12: the genesis block is a block, and what it pays is no money: it is in no history. Its transaction can be had,
/// which is more than the node does.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_12_the_genesis_block() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
    let header = client.call("blockchain.block.header", json!([0])).await.unwrap();
    assert_eq!(deserialize_hex::<Header>(header.as_str().unwrap()).unwrap(), genesis.header);
    let txid = genesis.txdata[0].compute_txid().to_string();
    let raw = client.call(GET, json!([txid])).await;
    assert_eq!(raw, Ok(json!(serialize_hex(&genesis.txdata[0]))));
    // The node's own words for this one are another thing to say, but no crash.
    let _ = client.call(GET, json!([txid, true])).await;
    let output = hash(&genesis.txdata[0].output[0].script_pubkey);
    assert_eq!(client.call(HISTORY, json!([output])).await, Ok(json!([])));
    assert_eq!(client.call("blockchain.scripthash.listunspent", json!([output])).await, Ok(json!([])));
    let tip = client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    assert_eq!(tip["height"], 0, "a chain of nothing else is a chain");
    node.generate_to_descriptor(1, crate::chain::ANYONE);
    assert_eq!(note_of(&mut client, "headers.subscribe").await.1[0]["height"], 1);
    served.stop();
}

/// Class 13: the version that both speak is spoken, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_13_versions() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut served = Served::start(&node).await;
    for (asked, version) in [
        (json!("1.4"), "1.4"),
        (json!(["1.3", "1.4.2"]), "1.4.2"),
        (json!(["1.4", "1.6"]), "1.6"),
        (json!(["1.4", "9.9"]), "1.7"),
    ] {
        let mut client = Client::connect(served.tcp).await;
        let answer = client.call("server.version", json!(["test", asked])).await.unwrap();
        assert_eq!(answer[1], version);
        // A method that only one side of the line between 1.6 and 1.7 has.
        let old = client.call(HISTORY, json!([hash(&script(1))])).await;
        assert_eq!(old.is_ok(), version != "1.7", "{version}: {old:?}");
        client.call("server.version", json!(["test", asked])).await.unwrap_err();
    }
    for asked in [json!("1.3"), json!(["0.9", "1.2"]), json!(["1.8", "2.0"]), json!(["1.6", "1.4"])] {
        let mut client = Client::connect(served.tcp).await;
        client.call("server.version", json!(["test", asked])).await.unwrap_err();
        assert_eq!(client.line().await, None, "{asked}: the connection goes on");
    }
    served.stop();
}

/// Classes 14 and 15: a history that is too long is an error that says so, for every method, and never a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_14_histories_that_are_too_long() {
    let Some(node) = TestNode::start(&[]) else { return };
    coins::mine(&node, 49);
    let mut served = Served::open_with(&node, &[("PEREGRINE_MAX_HISTORY", "50")]).await;
    served.ready(&node).await;
    for (version, code, group) in
        [("1.4.2", 1, "scripthash"), ("1.6", 1, "scripthash"), ("1.7", 10001, "scriptpubkey")]
    {
        let mut client = Client::greet(served.tcp, version).await;
        let of = |number: u32| match group {
            "scripthash" => json!([hash(&script(number))]),
            _ => json!([script(number).to_hex_string()]),
        };
        for method in ["get_history", "subscribe", "listunspent", "get_balance", "get_mempool"] {
            let method = format!("blockchain.{group}.{method}");
            client.call(&method, of(0)).await.unwrap();
            let refused = client.call(&method, of(u32::MAX)).await;
            if method.ends_with("get_mempool") && refused.is_ok() {
                // Nothing of it is in the mempool.
                continue;
            }
            let error = refused.expect_err(&method);
            assert_eq!(error.code, code, "{version} {method}: {error:?}");
            assert!(error.message.contains("50"), "class 15: {error:?}");
        }
        client.call("server.ping", json!([])).await.unwrap();
    }
    // It grows over the limit while somebody is subscribed.
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    client.call(SUBSCRIBE, json!([hash(&script(0))])).await.unwrap();
    client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    node.generate_to_descriptor(3, &coins::descriptor(0));
    while note_of(&mut client, "headers.subscribe").await.1[0]["height"] != node.height() {}
    client.call(HISTORY, json!([hash(&script(0))])).await.unwrap_err();
    served.stop();
}

/// Class 17: the server ends although clients wait, and although one doesn't read what it asked for.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_17_the_end_with_clients() {
    let Some(node) = TestNode::start(&[]) else { return };
    coins::mine(&node, 1);
    let mut served = Served::start(&node).await;
    let mut idle = Client::greet(served.tcp, "1.4.2").await;
    idle.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    let mut deaf = Client::greet(served.tcp, "1.6").await;
    let request = r#"{"id":1,"method":"blockchain.block.headers","params":[0,100]}"#;
    let flood = async {
        loop {
            deaf.send(request).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), flood).await;
    let started = Instant::now();
    served.stop();
    assert!(started.elapsed() < Duration::from_secs(20), "it took {:?}", started.elapsed());
    assert_eq!(idle.line().await, None);
}

/// Class 19: batches as large as they may be, in their order, and ten thousand requests that don't wait for replies.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_19_ten_thousand_requests() {
    let Some(node) = TestNode::start(&[]) else { return };
    coins::mine(&node, 1);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let calls: Vec<_> = (0..1_000).map(|number| (SUBSCRIBE, json!([hash(&script(number))]))).collect();
    for _ in 0..10 {
        let answers = client.batch(&calls).await;
        assert!(answers[0].as_ref().unwrap().is_string());
        assert!(answers[1..].iter().all(|answer| *answer == Ok(Value::Null)));
    }
    let address = served.tcp;
    let ids = tokio::task::spawn_blocking(move || {
        use std::io::{BufRead, Write};
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let reader = std::io::BufReader::new(stream.try_clone().unwrap());
        std::thread::spawn(move || {
            for id in 0..10_000 {
                let method = if id % 2 == 0 { "server.ping" } else { "blockchain.relayfee" };
                writeln!(stream, "{{\"id\":{id},\"method\":\"{method}\",\"params\":[]}}").unwrap();
            }
        });
        let id = |line: String| {
            let reply: Value = serde_json::from_str(&line).unwrap();
            assert!(reply.get("result").is_some(), "{line}");
            reply["id"].as_u64().unwrap()
        };
        reader.lines().map_while(Result::ok).take(10_000).map(id).collect::<Vec<_>>()
    });
    assert!(ids.await.unwrap().into_iter().eq(0..10_000), "every one, and in order");
    served.stop();
}

/// Class 24: what the node refuses is told in the node's words, for everything that it can say.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_24_reasons_for_refusal() {
    let Some(node) = TestNode::start(&["-minrelaytxfee=0.00001"]) else { return };
    let coins = coins::mine(&node, 3);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let (good, _) = spend(&[coins[0]], &[1], 1_000);
    let (cheap, _) = spend(&[coins[1]], &[1], 1);
    let (dear, _) = spend(&[coins[1]], &[1], 1_000_000_000);
    let (mut burning, _) = spend(&[coins[1]], &[1, 1], 1_000);
    burning.output[1].script_pubkey = ScriptBuf::new_op_return([7; 4]);
    let (mut orphan, _) = spend(&[coins[1]], &[1], 1_000);
    orphan.input[0].previous_output.vout = 77;
    let (mut unsigned, _) = spend(&[coins[1]], &[1], 1_000);
    unsigned.input[0].witness.clear();
    let (conflict, _) = spend(&[coins[0]], &[2], 1_000);

    let broadcast = "blockchain.transaction.broadcast";
    let id = json!(good.compute_txid().to_string());
    for _ in 0..2 {
        // What the node has already is no error.
        assert_eq!(client.call(broadcast, json!([serialize_hex(&good)])).await, Ok(id.clone()));
    }
    let transactions = [cheap, dear, burning, orphan, unsigned, conflict];
    let raws = transactions.iter().map(serialize_hex).chain(["00".to_owned()]);
    let mut reasons = BTreeSet::new();
    for raw in raws {
        let reason = node.rpc("sendrawtransaction", json!([raw])).unwrap_err().message;
        let error = client.call(broadcast, json!([raw])).await.unwrap_err();
        assert_eq!(error.code, 1);
        let told = error.message.strip_prefix("the transaction was rejected by network rules.\n\n");
        let told = told.expect("wallets look for this");
        // Of a long reason, as much as says what is wrong.
        assert!(reason.starts_with(told) && told.len() >= reason.len().min(150), "{told}\nbut: {reason}");
        reasons.insert(reason);
    }
    println!("{reasons:#?}");
    assert!(reasons.len() >= 6, "{reasons:#?}");
    // Mined, it is in the way of itself; the node says so, and the server with it.
    node.generate_to_descriptor(1, crate::chain::ANYONE);
    let reason = node.rpc("sendrawtransaction", json!([serialize_hex(&good)])).unwrap_err().message;
    let error = client.call(broadcast, json!([serialize_hex(&good)])).await.unwrap_err();
    assert!(error.message.ends_with(&reason), "{error:?}");
    served.stop();
}

/// Class 25: script hashes are written backwards, as the crate of others has them.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_25_the_order_of_bytes() {
    let Some(node) = TestNode::start(&[]) else { return };
    coins::mine(&node, 2);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let theirs = serde_json::to_value(script(0).to_electrum_scripthash()).unwrap();
    let forwards = bitcoin::hashes::sha256::Hash::hash(script(0).as_bytes()).to_string();
    assert_eq!(client.call(HISTORY, json!([theirs])).await.unwrap().as_array().unwrap().len(), 2);
    assert_eq!(client.call(HISTORY, json!([forwards])).await, Ok(json!([])));
    served.stop();
}

/// Class 26: once a tip is told, everything about its block can be had and fits to its header.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_26_proofs_right_after_the_header() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 126);
    maker.blocks(4, 3);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let mut last = client.call("blockchain.headers.subscribe", json!([])).await.unwrap()["height"].clone();
    let mut proved = 0;
    for round in 0..12 {
        if round % 3 == 2 {
            maker.reorganise(round / 3 + 1);
        } else {
            maker.blocks(1, 3);
        }
        while last != maker.height() {
            let (_, note) = note_of(&mut client, "headers.subscribe").await;
            last = note[0]["height"].clone();
            let header: Header = deserialize_hex(note[0]["hex"].as_str().unwrap()).unwrap();
            // Its last transaction, of those that there are.
            for position in 0..3 {
                let params = json!([last, position, true]);
                let at = client.call("blockchain.transaction.id_from_pos", params).await;
                let now = client.call("blockchain.block.header", json!([last])).await;
                if now != Ok(note[0]["hex"].clone()) {
                    // Reorganised again meanwhile; the next notification is about that.
                    break;
                }
                let Ok(at) = at else {
                    assert!(position > 0, "the block's coinbase can't be had: {at:?}");
                    break;
                };
                assert_eq!(root(&at, position), header.merkle_root.to_byte_array(), "round {round}");
                proved += 1;
            }
        }
        let tip = client.call("blockchain.block.header", json!([last])).await.unwrap();
        assert_eq!(tip, node.call("getblockheader", json!([node.best_block().to_string(), false])));
    }
    assert!(proved >= 12, "{proved} proofs");
    served.stop();
}

/// The root that a proof leads to.
fn root(proof: &Value, position: usize) -> [u8; 32] {
    let bytes = |text: &Value| text.as_str().unwrap().parse::<Txid>().unwrap().to_byte_array();
    let mut node = bytes(&proof["tx_hash"]);
    for (level, sibling) in proof["merkle"].as_array().unwrap().iter().enumerate() {
        let sibling = bytes(sibling);
        let pair = if position >> level & 1 == 1 { [sibling, node] } else { [node, sibling] };
        node = bitcoin::hashes::sha256d::Hash::hash(&pair.concat()).to_byte_array();
    }
    node
}

/// Class 11: what differs in one digit isn't the same. Where prefixes collide is tested at the index.
#[tokio::test(flavor = "multi_thread")]
async fn node_bug_class_11_what_is_not_there() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coin = coins::mine(&node, 1)[0];
    let (transaction, _) = spend(&[coin], &[1], 1_000);
    node.generate_block(&coins::descriptor(0), &[serialize_hex(&transaction)]);
    let mut served = Served::start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    let known = hash(&script(1));
    // The end of the text is the beginning of the hash, of which the index keeps as much as nobody can make collide.
    let near = other_end(&known);
    assert_eq!(client.call(HISTORY, json!([known])).await.unwrap().as_array().unwrap().len(), 1);
    assert_eq!(client.call(HISTORY, json!([near])).await, Ok(json!([])));
    let txid = transaction.compute_txid().to_string();
    client.call(GET, json!([txid])).await.unwrap();
    client.call(GET, json!([other_end(&txid)])).await.unwrap_err();
    // Of an id all counts.
    let other_begin: String = other_end(&txid.chars().rev().collect::<String>()).chars().rev().collect();
    client.call(GET, json!([other_begin])).await.unwrap_err();
    served.stop();
}

/// The same hexadecimal digits with another last one.
fn other_end(digits: &str) -> String {
    let (rest, last) = digits.split_at(digits.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}
