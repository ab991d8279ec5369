//! Wallets that keep their keys: a light client that scans only what the tweak interfaces give it, and every interface
//! compared with what Bitcoin Core says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::{DisplayHex, FromHex};
use bitcoin::{BlockHash, Txid};
use peregrine_index::synthetic::Planted;
use peregrine_index::testkit::TestNode;
use peregrine_scanner::backend::reference;
use peregrine_scanner::receive::find_outputs;
use peregrine_scanner::{ScanTarget, Tweak};
use secp256k1::PublicKey;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::esplora::{agent, get, json_of, until};
use crate::served::Served;

/// All interfaces, by their names.
struct Ports {
    native: SocketAddr,
    index_server: SocketAddr,
    blindbit: SocketAddr,
}

async fn start(node: &TestNode) -> (Served, Ports) {
    let settings = ["PEREGRINE_NATIVE", "PEREGRINE_INDEX_SERVER", "PEREGRINE_BLINDBIT"]
        .map(|name| (name, "127.0.0.1:0"));
    let mut served = Served::open_with(node, &settings).await;
    served.ready(node).await;
    let ports = Ports {
        native: served.address("native"),
        index_server: served.address("index_server"),
        blindbit: served.address("blindbit"),
    };
    (served, ports)
}

/// A row as a light client has it.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    txid: Txid,
    tweak: Tweak,
    outputs: Vec<[u8; 8]>,
}

/// Reads the binary form, written down in docs/http.md.
fn blocks_of(mut bytes: &[u8]) -> Vec<(u32, BlockHash, Vec<Row>)> {
    fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
        let (first, rest) = bytes.split_first_chunk::<N>().expect("it is complete");
        *bytes = rest;
        *first
    }
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let height = u32::from_le_bytes(take(&mut bytes));
        let hash = BlockHash::from_byte_array(take(&mut bytes));
        let _dust = u64::from_le_bytes(take(&mut bytes));
        let [flags] = take(&mut bytes);
        let count = u32::from_le_bytes(take(&mut bytes));
        let rows = (0..count).map(|_| {
            let tweak = Tweak(PublicKey::from_byte_array_compressed(take(&mut bytes)).unwrap());
            let (mut txid, mut outputs) = (Txid::all_zeros(), vec![]);
            if flags & 2 != 0 {
                txid = Txid::from_byte_array(take(&mut bytes));
                outputs = (0..u16::from_le_bytes(take(&mut bytes))).map(|_| take(&mut bytes)).collect();
            }
            Row { txid, tweak, outputs }
        });
        blocks.push((height, hash, rows.collect()));
    }
    blocks
}

fn octets(address: SocketAddr, path: &str) -> Vec<u8> {
    let mut reply = agent().get(format!("http://{address}{path}")).call().unwrap();
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()["content-type"]),
        (200, &"application/octet-stream".parse().unwrap())
    );
    reply.body_mut().read_to_vec().unwrap()
}

/// What a wallet finds that knows the tweak servers and nothing else: candidates by their first bytes, then the outputs.
fn light_client(ports: &Ports, tip: u32, targets: &[ScanTarget]) -> Vec<Planted> {
    let mut found = BTreeSet::new();
    for (height, hash, rows) in
        blocks_of(&octets(ports.native, &format!("/v1/silent/tweaks/0-{tip}?outputs=true&format=binary")))
    {
        for row in rows {
            for (wallet, target) in targets.iter().enumerate() {
                if reference::row_slots(target, &row.tweak.to_row(), &row.outputs).is_empty() {
                    continue;
                }
                let utxos = json_of(ports.index_server, &format!("/utxos/{height}"));
                assert_eq!(utxos["hash"], hash.to_string());
                let of_transaction = |utxo: &&Value| utxo["txid"] == row.txid.to_string();
                let utxos: Vec<&Value> =
                    utxos["utxos"].as_array().unwrap().iter().filter(of_transaction).collect();
                let keys: Vec<[u8; 32]> = utxos
                    .iter()
                    .map(|utxo| <[u8; 32]>::from_hex(&utxo["scriptpubkey"].as_str().unwrap()[4..]).unwrap())
                    .collect();
                found.extend(find_outputs(target, &row.tweak, &keys).into_iter().map(|output| Planted {
                    height,
                    txid: row.txid,
                    vout: utxos[output.index]["vout"].as_u64().unwrap() as u32,
                    wallet,
                    label: output.label,
                    value: utxos[output.index]["value"].as_u64().unwrap(),
                }));
            }
        }
    }
    found.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_tweaks_a_light_client_finds_what_was_paid() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 71);
    maker.blocks(8, 8);
    let (mut served, ports) = start(&node).await;
    tokio::task::block_in_place(|| {
        let targets: Vec<ScanTarget> =
            maker.wallets().iter().map(|wallet| wallet.target().unwrap()).collect();
        assert!(maker.planted().len() > 10);
        assert_eq!(light_client(&ports, node.height(), &targets), maker.planted());
        // What scans on the server finds the same.
        let wallet = &maker.wallets()[1];
        let mut command =
            served.program().command(["scan", "--spend-key", &wallet.spend.public_key().to_string()]);
        command.args(["--labels", "1,2,3", "--from", "0", "--json"]);
        command.env("PEREGRINE_SCAN_KEY", wallet.scan.secret().to_secret_bytes().to_lower_hex_string());
        let scanned = crate::common::output(&mut command).good().json();
        let sum =
            |found: &[Planted]| found.iter().filter(|one| one.wallet == 1).map(|one| one.value).sum::<u64>();
        let outputs = scanned["payments"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|payment| payment["outputs"].as_array().unwrap());
        assert_eq!(
            outputs.map(|output| output["value"].as_u64().unwrap()).sum::<u64>(),
            sum(&maker.planted())
        );

        maker.reorganise(4);
        let tip = node.best_block();
        let info = || json_of(ports.native, "/v1/silent/info");
        until("the new blocks don't come", || {
            let info = info();
            (info["hash"] == tip.to_string() && info["indexed_height"] == info["height"]).then_some(())
        });
        assert_eq!(light_client(&ports, node.height(), &targets), maker.planted());
    });
    served.stop();
}

/// For each eligible transaction of a block: id, and of each taproot output number, value, key and whether it is spent.
type Expected = Vec<(String, Vec<(u64, u64, String, bool)>)>;

/// By Core's own list of what is unspent.
fn expected(node: &TestNode, rows: &BTreeMap<u32, BTreeSet<String>>, height: u32) -> Expected {
    let block = node.call("getblock", json!([node.block_hash(height).to_string(), 2]));
    let none = BTreeSet::new();
    let eligible = rows.get(&height).unwrap_or(&none);
    let transactions =
        block["tx"].as_array().unwrap().iter().filter(|tx| eligible.contains(tx["txid"].as_str().unwrap()));
    transactions
        .map(|tx| {
            let id = tx["txid"].as_str().unwrap().to_owned();
            let outputs = tx["vout"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|out| out["scriptPubKey"]["type"] == "witness_v1_taproot");
            let outputs = outputs.map(|out| {
                let unspent = node.call("gettxout", json!([id, out["n"], false]));
                let value = bitcoin::Amount::from_btc(out["value"].as_f64().unwrap()).unwrap().to_sat();
                let key = out["scriptPubKey"]["hex"].as_str().unwrap()[4..].to_owned();
                (out["n"].as_u64().unwrap(), value, key, unspent.is_null())
            });
            let outputs = outputs.collect();
            (id, outputs)
        })
        .collect()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_tweaks_all_interfaces_say_what_core_says() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 72);
    maker.blocks(8, 8);
    let (mut served, ports) = start(&node).await;
    tokio::task::block_in_place(|| {
        let mut rows: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for row in maker.rows() {
            rows.entry(row.height).or_default().insert(row.txid.to_string());
        }
        let tip = node.height();
        assert_eq!(json_of(ports.index_server, "/getinfo")["block_height"], tip);
        assert_eq!(json_of(ports.blindbit, "/block-height"), json!({ "block_height": tip }));
        assert_eq!(json_of(ports.blindbit, "/info")["network"], "regtest");
        let (mut spent, mut dusty, mut gone, mut compared) = (0, 0, 0, 0);
        for height in [0, 5].into_iter().chain(tip - 8..=tip) {
            let hash = node.block_hash(height).to_string();
            let block = expected(&node, &rows, height);
            let native = json_of(ports.native, &format!("/v1/silent/tweaks/{height}?outputs=1"));
            assert_eq!((&native["height"], &native["hash"]), (&json!(height), &json!(hash)));
            assert_eq!(json_of(ports.native, &format!("/v1/silent/tweaks/{hash}?outputs=1")), native);
            let index = native["index"].as_array().unwrap();
            let ids: Vec<&str> = index.iter().map(|row| row["txid"].as_str().unwrap()).collect();
            assert_eq!(ids, block.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>());
            for (row, (_, outputs)) in index.iter().zip(&block) {
                let prefixes: Vec<&str> = outputs.iter().map(|(_, _, key, _)| &key[..16]).collect();
                assert_eq!(row["outputs"], json!(prefixes));
                compared += 1;
            }
            let all: Vec<String> =
                index.iter().map(|row| row["tweak"].as_str().unwrap().to_owned()).collect();
            assert_eq!(texts(&json_of(ports.native, &format!("/v1/silent/tweaks/{height}"))["tweaks"]), all);
            assert_eq!(
                json_of(ports.index_server, &format!("/tweaks/{height}")),
                json!({
                    "height": height, "hash": hash, "dust_limit": 0, "filter_spent": 0, "tweaks": all,
                })
            );
            assert_eq!(
                json_of(ports.index_server, &format!("/compute-index/{height}"))["index"],
                native["index"]
            );
            assert_eq!(texts(&json_of(ports.blindbit, &format!("/tweak-index/{height}"))), all);
            assert_eq!(
                json_of(ports.blindbit, &format!("/block-hash/{height}")),
                json!({ "block_hash": hash })
            );

            // Filters leave out whole transactions, and all interfaces the same ones.
            let limit = 60_000;
            let largest = |outputs: &[(u64, u64, String, bool)]| {
                outputs.iter().map(|(_, value, ..)| *value).max().unwrap()
            };
            let left = |dust: u64, unspent: bool| -> Vec<&String> {
                let stays = |outputs: &[(u64, u64, String, bool)]| {
                    largest(outputs) >= dust && (!unspent || outputs.iter().any(|(.., spent)| !spent))
                };
                all.iter()
                    .zip(&block)
                    .filter(|(_, (_, outputs))| stays(outputs))
                    .map(|(tweak, _)| tweak)
                    .collect()
            };
            dusty += all.len() - left(limit, false).len();
            gone += all.len() - left(0, true).len();
            for (dust, unspent) in [(limit, false), (0, true), (limit, true), (1 << 60, false)] {
                let wanted = json!(left(dust, unspent));
                let native = json_of(
                    ports.native,
                    &format!("/v1/silent/tweaks/{height}?dust={dust}&unspent={unspent}"),
                );
                assert_eq!(
                    (&native["tweaks"], &native["dust_limit"], &native["filter_spent"]),
                    (&wanted, &json!(dust), &json!(unspent))
                );
                let number = u8::from(unspent);
                let other = json_of(
                    ports.index_server,
                    &format!("/tweaks/{height}?dustLimit={dust}&filterSpent={number}"),
                );
                assert_eq!(
                    (&other["tweaks"], &other["dust_limit"], &other["filter_spent"]),
                    (&wanted, &json!(dust), &json!(number))
                );
                let path = if unspent { "tweaks" } else { "tweak-index" };
                assert_eq!(json_of(ports.blindbit, &format!("/{path}/{height}?dustLimit={dust}")), wanted);
                let (_, _, rows) = blocks_of(&octets(
                    ports.native,
                    &format!("/v1/silent/tweaks/{height}?dust={dust}&unspent={unspent}&format=binary"),
                ))
                .remove(0);
                assert_eq!(
                    json!(
                        rows.iter()
                            .map(|row| row.tweak.serialize().to_lower_hex_string())
                            .collect::<Vec<_>>()
                    ),
                    wanted
                );
            }

            // Outputs and whether they are spent.
            let time = node.call("getblockheader", json!([hash]))["time"].clone();
            let utxos: Vec<Value> = block
                .iter()
                .flat_map(|(id, outputs)| {
                    let (hash, time) = (&hash, &time);
                    outputs.iter().map(move |(vout, value, key, spent)| {
                        json!({
                            "txid": id, "vout": vout, "value": value, "scriptpubkey": format!("5120{key}"),
                            "block_height": height, "block_hash": hash, "timestamp": time, "spent": spent,
                        })
                    })
                })
                .collect();
            spent += utxos.iter().filter(|utxo| utxo["spent"] == true).count();
            // BlindBit's are those of transactions of which something is left.
            let with_rest: BTreeSet<String> = utxos
                .iter()
                .filter(|utxo| utxo["spent"] == false)
                .map(|utxo| utxo["txid"].to_string())
                .collect();
            let rest: Vec<&Value> =
                utxos.iter().filter(|utxo| with_rest.contains(&utxo["txid"].to_string())).collect();
            assert_eq!(json_of(ports.blindbit, &format!("/utxos/{height}")), json!(rest));
            let other = json_of(ports.index_server, &format!("/utxos/{height}"));
            for (other, ours) in other["utxos"].as_array().unwrap().iter().zip(&utxos) {
                assert!(other.as_object().unwrap().iter().all(|(key, value)| ours[key] == *value));
            }
            assert_eq!(other["utxos"].as_array().unwrap().len(), utxos.len());

            // What the block spends.
            let core = node.call("getblock", json!([hash, 3]));
            let mut spends = Vec::new();
            for input in core["tx"].as_array().unwrap().iter().flat_map(|tx| tx["vin"].as_array().unwrap()) {
                if input["prevout"]["scriptPubKey"]["type"] == "witness_v1_taproot" {
                    let txid: Txid = input["txid"].as_str().unwrap().parse().unwrap();
                    let mut bytes = txid.to_byte_array().to_vec();
                    bytes.extend((input["vout"].as_u64().unwrap() as u32).to_le_bytes());
                    bytes.extend(node.block_hash(height).to_byte_array());
                    spends.push(sha256::Hash::hash(&bytes).to_byte_array()[..8].to_lower_hex_string());
                }
            }
            assert_eq!(
                json_of(ports.blindbit, &format!("/spent-index/{height}")),
                json!({ "block_hash": hash, "data": spends })
            );
            for (name, elements) in [
                ("spent", spends.iter().map(|hash| Vec::from_hex(hash).unwrap()).collect::<Vec<_>>()),
                ("new-utxos", new_outputs(&core)),
            ] {
                let filter = json_of(ports.blindbit, &format!("/filter/{name}/{height}"));
                assert_eq!(
                    (&filter["block_hash"], &filter["block_height"], &filter["filter_type"]),
                    (&json!(hash), &json!(height), &json!(4))
                );
                let data = Vec::from_hex(filter["data"].as_str().unwrap()).unwrap();
                matches_all(&data, node.block_hash(height), &elements);
            }
        }
        println!(
            "{compared} rows, {spent} spent outputs, {dusty} rows of dust, {gone} rows with nothing left"
        );
        assert!(compared > 30 && spent > 5 && dusty > 0 && gone > 0);
    });
    served.stop();
}

/// The keys of all taproot outputs of a block.
fn new_outputs(block: &Value) -> Vec<Vec<u8>> {
    let outputs = block["tx"].as_array().unwrap().iter().flat_map(|tx| tx["vout"].as_array().unwrap());
    let scripts = outputs.filter(|out| out["scriptPubKey"]["type"] == "witness_v1_taproot");
    scripts.map(|out| Vec::from_hex(&out["scriptPubKey"]["hex"].as_str().unwrap()[4..]).unwrap()).collect()
}

/// The filter's own reader finds every element, and hardly anything else.
fn matches_all(filter: &[u8], block: BlockHash, elements: &[Vec<u8>]) {
    let key = block.to_byte_array();
    let half = |from: usize| u64::from_le_bytes(key[from..from + 8].try_into().unwrap());
    let reader = bitcoin::bip158::GcsFilterReader::new(half(0), half(8), 784_931, 19);
    for element in elements {
        let mut query = std::iter::once(element.as_slice());
        assert!(reader.match_any(&mut { filter }, &mut query).unwrap());
    }
    let strangers = (0..50u8).filter(|number| {
        let stranger = sha256::Hash::hash(&[*number]).to_byte_array();
        !elements.is_empty()
            && reader.match_any(&mut { filter }, &mut std::iter::once(&stranger[..])).unwrap()
    });
    assert!(strangers.count() < 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_tweaks_commitments_and_errors() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 73);
    maker.blocks(5, 5);
    let (mut served, ports) = start(&node).await;
    // By the formula of docs/http.md, from what the interface says of each block.
    let chained = |native: SocketAddr, tip: u32| {
        let start = json_of(native, "/v1/silent/info")["start_height"].as_u64().unwrap() as u32;
        let mut all = BTreeMap::new();
        let mut last = [0; 32];
        for height in start..=tip {
            let mut tweaks = texts(&json_of(native, &format!("/v1/silent/tweaks/{height}"))["tweaks"]);
            tweaks.sort();
            let tweaks = sha256::Hash::hash(&Vec::from_hex(&tweaks.concat()).unwrap());
            let mut bytes = last.to_vec();
            bytes.extend(node.block_hash(height).to_byte_array());
            bytes.extend(tweaks.to_byte_array());
            last = sha256::Hash::hash(&bytes).to_byte_array();
            all.insert(height, (tweaks.to_byte_array().to_lower_hex_string(), last.to_lower_hex_string()));
        }
        all
    };
    let check = |native: SocketAddr, tip: u32| {
        let all = chained(native, tip);
        // The last one first, so that the others are there already.
        for (height, (tweaks, commitment)) in all.iter().rev().step_by(3) {
            let ours = json_of(native, &format!("/v1/silent/commitment/{height}"));
            assert_eq!(
                (&ours["hash"], &ours["tweaks"]),
                (&json!(node.block_hash(*height).to_string()), &json!(tweaks))
            );
            assert_eq!(ours["commitment"], json!(commitment), "{height}");
        }
    };
    tokio::task::block_in_place(|| {
        check(ports.native, node.height());
        let (hash, zeros) = (node.best_block(), "00".repeat(32));
        for (path, status, text) in [
            ("/v1/silent/tweaks/x".to_owned(), 400, "'x' is no height"),
            ("/v1/silent/tweaks/5-3".to_owned(), 400, "ends before it begins"),
            ("/v1/silent/tweaks/0-5000".to_owned(), 400, "the limit is 1000"),
            ("/v1/silent/tweaks/4294967295".to_owned(), 404, "no block at height 4294967295"),
            ("/v1/silent/tweaks/9999999999".to_owned(), 404, "no block at height 9999999999"),
            (format!("/v1/silent/tweaks/{zeros}"), 404, "no such block"),
            (format!("/v1/silent/tweaks/{hash}?dusty=5"), 400, "unknown parameter 'dusty'"),
            (format!("/v1/silent/tweaks/{hash}?dust=-1"), 400, "dust is a number of satoshi"),
            (format!("/v1/silent/tweaks/{hash}?unspent=perhaps"), 400, "unspent is true or false"),
            (format!("/v1/silent/tweaks/{hash}?format=xml"), 400, "format is json or binary"),
            ("/v1/silent/commitment/1-2".to_owned(), 400, "of one block"),
            ("/v1/nothing".to_owned(), 404, "endpoint does not exist"),
        ] {
            let reply = get(ports.native, &path);
            assert!(
                reply.status == status && reply.body.contains(text),
                "{path}: {} {}",
                reply.status,
                reply.body
            );
        }
        for (path, status) in [
            ("/tweaks/x", 400),
            ("/tweaks/999999", 404),
            ("/tweaks/3?dustlimit=1", 400),
            ("/utxos/3?filterSpent=2", 400),
        ] {
            let reply = get(ports.index_server, path);
            let error: Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(
                (reply.status, error["error"]["code"].as_u64()),
                (status, Some(status.into())),
                "{path}"
            );
            assert!(!error["error"]["message"].as_str().unwrap().is_empty());
        }
        assert_eq!(get(ports.blindbit, "/tweaks/x").status, 400);
        assert_eq!(get(ports.blindbit, "/tweaks/999999").status, 404);

        let description = json_of(ports.native, "/v1/openapi.json");
        assert_eq!(description["openapi"], "3.1.0");

        maker.reorganise(3);
        let tip = node.best_block().to_string();
        until("the new blocks don't come", || {
            let info = json_of(ports.native, "/v1/silent/info");
            (info["hash"] == tip && info["indexed_height"] == info["height"]).then_some(())
        });
        check(ports.native, node.height());
    });
    served.stop();
    // What was computed stays, and a file that was cut off is repaired.
    let file = served.index_dir().join("commitments");
    let length = std::fs::metadata(&file).unwrap().len();
    assert_eq!(length, 64 * u64::from(node.height() + 1));
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length - 100).unwrap();
    served.launch();
    served.ready(&node).await;
    tokio::task::block_in_place(|| check(served.address("native"), node.height()));
    served.stop();
}

/// As Cake Wallet asks: the first block in the reply, the others in notifications, then the end.
#[tokio::test(flavor = "multi_thread")]
async fn node_tweaks_as_cake_asks_for_them() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 74);
    maker.blocks(8, 8);
    let (mut served, ports) = start(&node).await;
    let mut client = Client::greet(served.tcp, "1.4.2").await;
    // What it finds out first: that the server has this at all.
    let version = client.call("server.version", json!(["cake", "1.4"])).await;
    assert!(version.is_err(), "it was said already");
    let banner = client.call("server.features", json!([])).await.unwrap();
    assert!(banner["server_version"].as_str().unwrap().contains("electrs"), "Cake looks for that word");
    let method = "blockchain.tweaks.subscribe";
    assert_eq!(client.call(method, json!([0, 1, false])).await.unwrap(), json!({ "0": {} }));
    assert_eq!(client.note().await, ("tweaks.subscribe".to_owned(), json!([{ "message": "done" }])));

    let mut rows: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for row in maker.rows() {
        rows.entry(row.height).or_default().insert(row.txid.to_string());
    }
    let tip = node.height();
    let first = tip - 8;
    let mut left_out = 0;
    for historical in [true, false] {
        let mut blocks = client.call(method, json!([first, 1000, historical])).await.unwrap();
        let mut seen = 1;
        loop {
            let (name, params) = client.note().await;
            assert_eq!(name, "tweaks.subscribe");
            if params == json!([{ "message": "done" }]) {
                break;
            }
            seen += 1;
            blocks.as_object_mut().unwrap().extend(params[0].as_object().unwrap().clone());
        }
        assert_eq!(seen, 9);
        for height in first..=tip {
            let tweaks = tokio::task::block_in_place(|| {
                json_of(ports.native, &format!("/v1/silent/tweaks/{height}?outputs=true"))
            });
            let of: BTreeMap<&str, &Value> = tweaks["index"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| (row["txid"].as_str().unwrap(), &row["tweak"]))
                .collect();
            let mut expected_block = serde_json::Map::new();
            for (id, outputs) in tokio::task::block_in_place(|| expected(&node, &rows, height)) {
                let kept: serde_json::Map<String, Value> = outputs
                    .iter()
                    .filter(|(.., spent)| historical || !spent)
                    .map(|(vout, value, key, _)| (vout.to_string(), json!([key, value])))
                    .collect();
                left_out += outputs.len() - kept.len();
                if !kept.is_empty() {
                    expected_block
                        .insert(id.clone(), json!({ "tweak": of[id.as_str()], "output_pubkeys": kept }));
                }
            }
            assert_eq!(blocks[height.to_string()], Value::Object(expected_block), "{height}");
        }
    }
    assert!(left_out > 5);

    // A second one takes the place of the first, and errors say what is wrong.
    for (params, text) in [
        (json!([first]), "count"),
        (json!(["x", 1, false]), "height"),
        (json!([first, 0, false]), "count should be at least 1"),
        (json!([first, 1, "perhaps"]), "historical"),
    ] {
        let error = client.call(method, params).await.unwrap_err();
        assert!(error.message.contains(text), "{}", error.message);
    }
    client.call(method, json!([first, 1000, true])).await.unwrap();
    let reply = client.call(method, json!([tip, 5, true])).await.unwrap();
    assert!(reply[tip.to_string()].is_object());
    loop {
        let (_, params) = client.note().await;
        if params == json!([{ "message": "done" }]) {
            break;
        }
    }
    client.call("server.ping", json!([])).await.unwrap();
    served.stop();
}
