//! The life of a silent payment, as Sparrow sees it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bitcoin::hex::DisplayHex;
use peregrine_index::synthetic::Wallet;
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::InputKind;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::naive;
use crate::served::{Served, hash, note_of};

/// The parameters as Sparrow sends them.
fn keys(wallet: &Wallet, start: Value) -> Value {
    let scan = wallet.scan.secret().to_secret_bytes().to_lower_hex_string();
    json!([scan, wallet.spend.public_key().to_string(), start, []])
}

/// Subscribes and collects everything up to the last word of the scan.
async fn scan(client: &mut Client, wallet: &Wallet, start: Value) -> (Value, Vec<Value>) {
    let asked = Instant::now();
    let object = client.call("blockchain.silentpayments.subscribe", keys(wallet, start)).await.unwrap();
    let replied = Instant::now();
    assert_eq!(object["address"], wallet.address(None).to_string());
    assert_eq!(object["labels"], json!([0]));
    let mut found = Vec::new();
    let mut last = replied;
    loop {
        let (_, params) = note_of(client, "silentpayments.subscribe").await;
        if last == replied {
            // From before the request: the reply may have been read late, but not sent earlier.
            assert!(asked.elapsed() >= Duration::from_millis(250), "Sparrow loses what comes at once");
        }
        assert!(last.elapsed() < Duration::from_secs(8), "an empty note comes at least every 5 s");
        last = Instant::now();
        assert_eq!(params["subscription"], object);
        found.extend(params["history"].as_array().unwrap().iter().cloned());
        if params["progress"].as_f64().unwrap() >= 1.0 {
            println!("scanned in {:?}", asked.elapsed());
            return (object, found);
        }
    }
}

fn txids(found: &[Value]) -> BTreeSet<(u64, String)> {
    let item =
        |item: &Value| (item["height"].as_u64().unwrap(), item["tx_hash"].as_str().unwrap().to_owned());
    let set: BTreeSet<_> = found.iter().map(item).collect();
    assert_eq!(set.len(), found.len(), "told twice");
    set
}

/// What Sparrow must find: payments to the address itself and to change.
fn planted(maker: &ChainMaker<'_>, wallet: usize) -> BTreeSet<(u64, String)> {
    let planted = maker.planted().into_iter().filter(|planted| planted.wallet == wallet);
    planted
        .filter(|planted| planted.label.is_none_or(|label| label == 0))
        .map(|planted| (planted.height.into(), planted.txid.to_string()))
        .collect()
}

async fn status(client: &mut Client, script: &bitcoin::Script) -> Value {
    client.call("blockchain.scripthash.subscribe", json!([hash(script)])).await.unwrap()
}

/// Made, seen in the mempool, confirmed, taken back, confirmed again.
#[tokio::test(flavor = "multi_thread")]
async fn node_silent_payment_from_mempool_to_block_and_back() {
    let zmq = format!("-zmqpubsequence=tcp://127.0.0.1:{}", free_port());
    for args in [&[&*zmq][..], &[]] {
        let Some(node) = TestNode::start(args) else { return };
        let mut maker = ChainMaker::new(&node, 77);
        maker.blocks(12, 6);
        let mut served = Served::start(&node).await;
        let mut sparrow = Client::greet(served.tcp, "1.4.2").await;
        sparrow.call("blockchain.headers.subscribe", json!([])).await.unwrap();

        let (_, found) = scan(&mut sparrow, &clone(&maker, 0), json!(0)).await;
        assert!(!found.is_empty());
        assert_eq!(txids(&found), planted(&maker, 0));
        for item in &found {
            // Whatever is told can be fetched.
            let raw = sparrow.call("blockchain.transaction.get", json!([item["tx_hash"]])).await.unwrap();
            assert!(raw.as_str().unwrap().len() > 100);
            sparrow.call("blockchain.block.header", json!([item["height"]])).await.unwrap();
        }

        // Pays the wallet. Sparrow doesn't know the script yet; the test does, and so sees the order of what is told.
        let before = node.height();
        let txid = maker.pay(&[InputKind::TaprootKeyPath], &[(0, None)]);
        let (raw, script) = maker.raw_and_script(txid);
        assert_eq!(status(&mut sparrow, &script).await, Value::Null);
        let sent = Instant::now();
        node.call("sendrawtransaction", json!([raw]));
        let (method, note) = sparrow.note().await;
        println!("seen after {:?} ({})", sent.elapsed(), if args.is_empty() { "asking" } else { "messages" });
        assert_eq!(method, "silentpayments.subscribe", "silent payments are told before scripts");
        assert_eq!(note["progress"], 1.0);
        assert_eq!(
            (&note["history"][0]["tx_hash"], &note["history"][0]["height"]),
            (&json!(txid.to_string()), &json!(0))
        );
        assert_eq!(
            sparrow.call("blockchain.transaction.get", json!([txid.to_string()])).await,
            Ok(json!(raw))
        );
        let (method, note) = sparrow.note().await;
        let unconfirmed = note[1].clone();
        assert_eq!((&*method, &note[0]), ("scripthash.subscribe", &json!(hash(&script))));
        assert_eq!(unconfirmed, naive::scripts(&node)[&script].status());

        // Confirmed: the script changes, then the tip; the payment isn't told again.
        maker.mine();
        let (method, note) = sparrow.note().await;
        assert_eq!((&*method, &note[0]), ("scripthash.subscribe", &json!(hash(&script))));
        assert_eq!(note[1], naive::scripts(&node)[&script].status());
        let confirmed = note[1].clone();
        assert_ne!(confirmed, unconfirmed);
        let (method, note) = sparrow.note().await;
        assert_eq!((&*method, &note[0]["height"]), ("headers.subscribe", &json!(before + 1)));

        // Taken back: in the mempool as before.
        let block = node.best_block();
        node.invalidate(block);
        let (others, note) = note_of(&mut sparrow, "headers.subscribe").await;
        assert_eq!(note[0]["height"], json!(before));
        let mut told: Vec<Value> = others
            .iter()
            .map(|(method, note)| {
                assert_eq!(method, "scripthash.subscribe", "nothing new for silent payments");
                note[1].clone()
            })
            .collect();
        while told.last() != Some(&unconfirmed) {
            let (_, note) = note_of(&mut sparrow, "scripthash.subscribe").await;
            told.push(note[1].clone());
        }
        assert_eq!(unconfirmed, naive::scripts(&node)[&script].status());

        // In a block again.
        node.reconsider(block);
        let (others, note) = note_of(&mut sparrow, "headers.subscribe").await;
        assert_eq!(note[0]["height"], json!(before + 1));
        assert_eq!(others.last().map(|(_, note)| note[1].clone()), Some(confirmed.clone()));
        assert!(others.iter().all(|(method, _)| method == "scripthash.subscribe"));
        assert_eq!(sparrow.notes_until_now().await, Vec::<String>::new());

        // Whoever asks now is told of all of it as confirmed, and in a range only of what is in it.
        let (_, found) = scan(&mut sparrow, &clone(&maker, 0), json!(0)).await;
        assert_eq!(txids(&found), planted(&maker, 0));
        let mut other = Client::greet(served.tcp, "1.6").await;
        let (object, found) =
            scan(&mut other, &clone(&maker, 0), json!(format!("{}-{}", before + 1, before + 1))).await;
        assert_eq!(object["start_height"], before + 1);
        assert!(txids(&found).contains(&((before + 1).into(), txid.to_string())));
        assert!(txids(&found).iter().all(|(height, _)| *height == u64::from(before + 1)));
        let address = other.call("blockchain.silentpayments.unsubscribe", {
            let keys = keys(&clone(&maker, 0), Value::Null);
            json!([keys[0], keys[1]])
        });
        assert_eq!(address.await, Ok(json!(clone(&maker, 0).address(None).to_string())));
        served.stop();
    }
}

/// A wallet whose keys are those of the maker's.
fn clone(maker: &ChainMaker<'_>, wallet: usize) -> Wallet {
    let wallet = &maker.wallets()[wallet];
    Wallet { scan: wallet.scan.clone(), spend: wallet.spend.clone(), labels: wallet.labels.clone() }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A payment that was told of from the mempool and replaced there can still be fetched by whoever was told.
#[tokio::test(flavor = "multi_thread")]
async fn node_silent_payment_that_is_replaced_stays_available_to_whoever_was_told() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 78);
    maker.blocks(2, 0);
    let mut served = Served::start(&node).await;
    let mut sparrow = Client::greet(served.tcp, "1.4.2").await;
    scan(&mut sparrow, &clone(&maker, 0), json!(0)).await;
    let txid = maker.pay(&[InputKind::TaprootKeyPath], &[(0, None)]);
    let (raw, _) = maker.raw_and_script(txid);
    node.call("sendrawtransaction", json!([raw]));
    let (_, note) = note_of(&mut sparrow, "silentpayments.subscribe").await;
    assert_eq!(note["history"][0]["tx_hash"], json!(txid.to_string()));
    // A block spends the same coin otherwise.
    let rival = maker.rival(txid);
    node.generate_block(crate::chain::ANYONE, &[rival]);
    let gone = Instant::now();
    let mut stranger = Client::greet(served.tcp, "1.4.2").await;
    loop {
        match stranger.call("blockchain.transaction.get", json!([txid.to_string()])).await {
            Err(error) => {
                assert!(error.message.starts_with("No such mempool or blockchain transaction"), "{error:?}");
                break;
            }
            Ok(_) => assert!(gone.elapsed() < Duration::from_secs(60), "it is still there"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sparrow.call("blockchain.transaction.get", json!([txid.to_string()])).await, Ok(json!(raw)));
    served.stop();
}

/// Before there is a node, and while it starts: the ports are open, and what can't be answered is said.
#[tokio::test(flavor = "multi_thread")]
async fn node_server_is_open_before_the_node_answers() {
    let Some(mut node) = TestNode::start(&[]) else { return };
    node.generate_to_descriptor(20, crate::chain::ANYONE);
    let tip = node.height();
    node.stop();
    let mut served = Served::open(&node).await;
    let mut client = Client::greet(served.tcp, "1.6").await;
    client.call("server.features", json!([])).await.unwrap();
    client.call("server.ping", json!([])).await.unwrap();
    client.call("server.banner", json!([])).await.unwrap();
    let error = client.call("blockchain.scripthash.get_history", json!(["00".repeat(32)])).await.unwrap_err();
    assert_eq!(error.code, -102);
    assert!(error.message.starts_with("indexing "), "{error:?}");
    let first = client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    assert_eq!(first["height"], 0);
    let error = client.call("blockchain.transaction.broadcast", json!(["00"])).await.unwrap_err();
    assert!(error.message.contains("doesn't answer"), "{error:?}");
    node.launch();
    loop {
        let (_, note) = note_of(&mut client, "headers.subscribe").await;
        if note[0]["height"] == tip {
            break;
        }
    }
    served.ready(&node).await;
    served.stop();
}
