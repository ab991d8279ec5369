//! Esplora: other people's clients (`esplora-client`, `bdk_esplora`), and everything compared with what Bitcoin Core says.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bdk_electrum::bdk_core::spk_client::FullScanRequest;
use bdk_electrum::bdk_core::{BlockId, CheckPoint};
use bdk_esplora::EsploraExt;
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::hashes::{Hash, sha256};
use bitcoin::{Address, Amount, Network, ScriptBuf, Transaction, Txid};
use esplora_client::{BlockingClient, Builder};
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::InputKind;
use serde_json::{Value, json};

use crate::chain::ChainMaker;
use crate::naive;
use crate::served::Served;

/// A server that offers Esplora, and where.
async fn start(node: &TestNode, settings: &[(&str, &str)]) -> (Served, SocketAddr) {
    let mut all = vec![("PEREGRINE_ESPLORA", "127.0.0.1:0")];
    all.extend(settings);
    let mut served = Served::open_with(node, &all).await;
    served.ready(node).await;
    let address = served.address("esplora");
    (served, address)
}

fn client(address: SocketAddr) -> BlockingClient {
    Builder::new(&format!("http://{address}")).build_blocking()
}

/// Status, headers that matter, and body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    cache: String,
    kind: String,
    pub(crate) body: String,
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    reply(agent().get(format!("http://{address}{path}")).call().unwrap())
}

fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    let request = agent().post(format!("http://{address}{path}")).header("content-type", "application/json");
    reply(request.send(body.to_string()).unwrap())
}

pub(crate) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into()
}

fn reply(mut response: ureq::http::Response<ureq::Body>) -> Reply {
    let header =
        |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let (status, cache, kind) = (response.status().as_u16(), header("cache-control"), header("content-type"));
    Reply { status, cache, kind, body: response.body_mut().read_to_string().unwrap() }
}

pub(crate) fn json_of(address: SocketAddr, path: &str) -> Value {
    let reply = get(address, path);
    assert_eq!((reply.status, reply.kind.as_str()), (200, "application/json"), "{path}: {}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

fn satoshi(value: &Value) -> u64 {
    Amount::from_btc(value.as_f64().unwrap()).unwrap().to_sat()
}

pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Esplora's word for Core's.
fn kind_of(core: &str) -> &str {
    match core {
        "pubkeyhash" => "p2pkh",
        "scripthash" => "p2sh",
        "pubkey" => "p2pk",
        "witness_v0_keyhash" => "v0_p2wpkh",
        "witness_v0_scripthash" => "v0_p2wsh",
        "witness_v1_taproot" => "v1_p2tr",
        "nulldata" => "op_return",
        "nonstandard" | "witness_unknown" => "unknown",
        other => other,
    }
}

fn check_output(ours: &Value, core: &Value) {
    let script = &core["scriptPubKey"];
    assert_eq!(ours["scriptpubkey"], script["hex"]);
    assert_eq!(ours["value"], satoshi(&core["value"]));
    assert_eq!(ours["scriptpubkey_type"], kind_of(script["type"].as_str().unwrap()), "{core}");
    assert_eq!(ours.get("scriptpubkey_address"), script.get("address").filter(|address| !address.is_null()));
}

/// A transaction against `getblock` with verbosity 3.
fn check_transaction(ours: &Value, core: &Value, block: Option<&Value>) {
    for key in ["txid", "version", "locktime", "size", "weight"] {
        assert_eq!(ours[key], core[key], "{key} of {core}");
    }
    let fee = core.get("fee").map_or(0, satoshi);
    assert_eq!(ours["fee"], fee);
    let (inputs, core_inputs) = (ours["vin"].as_array().unwrap(), core["vin"].as_array().unwrap());
    assert_eq!(inputs.len(), core_inputs.len());
    for (input, core) in inputs.iter().zip(core_inputs) {
        let witness = |value: &Value| value.as_array().cloned().unwrap_or_default();
        assert_eq!(witness(&input["witness"]), witness(&core["txinwitness"]));
        assert_eq!(input["sequence"], core["sequence"]);
        match core.get("coinbase") {
            Some(script) => {
                assert_eq!(
                    (&input["scriptsig"], &input["is_coinbase"], &input["prevout"]),
                    (script, &json!(true), &Value::Null)
                );
            }
            None => {
                assert_eq!((&input["txid"], &input["vout"]), (&core["txid"], &core["vout"]));
                assert_eq!(input["scriptsig"], core["scriptSig"]["hex"]);
                assert_eq!(input["is_coinbase"], false);
                check_output(&input["prevout"], &core["prevout"]);
            }
        }
    }
    let (outputs, core_outputs) = (ours["vout"].as_array().unwrap(), core["vout"].as_array().unwrap());
    assert_eq!(outputs.len(), core_outputs.len());
    outputs.iter().zip(core_outputs).for_each(|(output, core)| check_output(output, core));
    let status = match block {
        None => json!({ "confirmed": false }),
        Some(block) => json!({
            "confirmed": true, "block_height": block["height"], "block_hash": block["hash"], "block_time": block["time"],
        }),
    };
    assert_eq!(ours["status"], status);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_esplora_says_what_core_says() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 61);
    maker.blocks(6, 5);
    // More transactions than a page has.
    maker.blocks(1, 30);
    let (mut served, at) = start(&node, &[]).await;
    tokio::task::block_in_place(|| {
        let tip = node.height();
        assert_eq!(get(at, "/blocks/tip/height").body, tip.to_string());
        assert_eq!(get(at, "/api/blocks/tip/hash").body, node.best_block().to_string());
        let mut spenders: BTreeMap<(String, u64), (String, usize, u32)> = BTreeMap::new();
        let mut transactions = 0;
        for height in (0..=tip).filter(|height| *height < 3 || *height + 9 > tip) {
            let hash = node.block_hash(height).to_string();
            let core = node.call("getblock", json!([hash, 3]));
            assert_eq!(get(at, &format!("/block-height/{height}")).body, hash);
            let ours = json_of(at, &format!("/block/{hash}"));
            for (key, of_core) in [
                ("id", "hash"),
                ("height", "height"),
                ("version", "version"),
                ("timestamp", "time"),
                ("tx_count", "nTx"),
                ("size", "size"),
                ("weight", "weight"),
                ("merkle_root", "merkleroot"),
                ("mediantime", "mediantime"),
                ("nonce", "nonce"),
            ] {
                assert_eq!(ours[key], core[of_core], "{key}");
            }
            assert_eq!(
                ours["previousblockhash"],
                core.get("previousblockhash").cloned().unwrap_or(Value::Null)
            );
            assert_eq!(format!("{:08x}", ours["bits"].as_u64().unwrap()), core["bits"].as_str().unwrap());
            let difference = ours["difficulty"].as_f64().unwrap() / core["difficulty"].as_f64().unwrap();
            assert!((difference - 1.0).abs() < 1e-9);
            assert_eq!(
                get(at, &format!("/block/{hash}/header")).body,
                node.call("getblockheader", json!([hash, false]))
            );
            let next = core.get("nextblockhash").cloned().unwrap_or(Value::Null);
            let status = json!({ "in_best_chain": true, "height": height, "next_best": next });
            assert_eq!(json_of(at, &format!("/block/{hash}/status")), status);
            let raw = agent()
                .get(format!("http://{at}/block/{hash}/raw"))
                .call()
                .unwrap()
                .body_mut()
                .read_to_vec()
                .unwrap();
            let raw_core = node.call("getblock", json!([hash, 0]));
            assert_eq!(bitcoin::hex::DisplayHex::to_lower_hex_string(&raw[..]), raw_core.as_str().unwrap());

            let list = core["tx"].as_array().unwrap();
            let ids: Vec<&Value> = list.iter().map(|tx| &tx["txid"]).collect();
            assert_eq!(json_of(at, &format!("/block/{hash}/txids")), json!(ids));
            let pages: Vec<Value> = (0..list.len())
                .step_by(25)
                .flat_map(|start| {
                    let path = if start == 0 {
                        format!("/block/{hash}/txs")
                    } else {
                        format!("/block/{hash}/txs/{start}")
                    };
                    json_of(at, &path).as_array().unwrap().clone()
                })
                .collect();
            assert_eq!(json_of(at, &format!("/internal/block/{hash}/txs")), json!(pages));
            for (position, (core_tx, page_tx)) in list.iter().zip(&pages).enumerate() {
                transactions += 1;
                let id = core_tx["txid"].as_str().unwrap();
                if height > 0 {
                    check_transaction(page_tx, core_tx, Some(&core));
                    assert_eq!(json_of(at, &format!("/tx/{id}")), *page_tx);
                    assert_eq!(get(at, &format!("/tx/{id}/hex")).body, core_tx["hex"].as_str().unwrap());
                    assert_eq!(get(at, &format!("/block/{hash}/txid/{position}")).body, id);
                    let proof = json_of(at, &format!("/tx/{id}/merkle-proof"));
                    assert_eq!((&proof["block_height"], &proof["pos"]), (&json!(height), &json!(position)));
                    // Core checks the other form of the proof.
                    let proof = get(at, &format!("/tx/{id}/merkleblock-proof")).body;
                    assert_eq!(node.call("verifytxoutproof", json!([proof])), json!([id]));
                }
                for (vin, input) in core_tx["vin"].as_array().unwrap().iter().enumerate() {
                    if let (Some(txid), Some(vout)) = (input["txid"].as_str(), input["vout"].as_u64()) {
                        spenders.insert((txid.to_owned(), vout), (id.to_owned(), vin, height));
                    }
                }
            }
        }
        assert!(transactions > 50 && spenders.len() > 20);
        let mut spent = 0;
        for ((txid, vout), (spender, vin, height)) in &spenders {
            let ours = json_of(at, &format!("/tx/{txid}/outspend/{vout}"));
            assert_eq!((&ours["txid"], &ours["vin"]), (&json!(spender), &json!(vin)));
            assert_eq!(ours["status"]["block_height"], *height);
            let all = json_of(at, &format!("/tx/{txid}/outspends"));
            assert_eq!(all[*vout as usize], ours);
            spent += 1;
        }
        assert!(spent > 20);

        // Ten blocks a page, and what is final may be kept.
        let page = json_of(at, &format!("/blocks/{}", tip - 3));
        let heights: Vec<u64> =
            page.as_array().unwrap().iter().map(|block| block["height"].as_u64().unwrap()).collect();
        assert_eq!(heights, (u64::from(tip) - 12..=u64::from(tip) - 3).rev().collect::<Vec<_>>());
        assert_eq!(json_of(at, "/blocks").as_array().unwrap().len(), 10);
        let keep = |height: u32| get(at, &format!("/block/{}", node.block_hash(height))).cache;
        assert_eq!(
            (keep(tip - 9), keep(tip - 8)),
            ("public, max-age=157784630".into(), "public, max-age=10".into())
        );
    });
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_esplora_client_crate() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 62);
    maker.blocks(8, 6);
    let (mut served, at) = start(&node, &[]).await;
    tokio::task::block_in_place(|| {
        let client = client(at);
        assert_eq!(client.get_height().unwrap(), node.height());
        assert_eq!(client.get_tip_hash().unwrap(), node.best_block());
        assert_eq!(client.get_block_hash(5).unwrap(), node.block_hash(5));
        let best = node.best_block();
        let info = client.get_block_info(&best).unwrap();
        assert_eq!((info.height, info.id), (node.height(), best));
        assert_eq!(client.get_header_by_hash(&best).unwrap().block_hash(), best);
        assert!(client.get_block_status(&best).unwrap().in_best_chain);
        let block = client.get_block_by_hash(&best).unwrap().unwrap();
        assert_eq!(
            client.get_block_txids(&best).unwrap(),
            block.txdata.iter().map(Transaction::compute_txid).collect::<Vec<_>>()
        );
        assert_eq!(client.get_block_infos(Some(9)).unwrap().len(), 10);
        for (position, transaction) in block.txdata.iter().enumerate() {
            let txid = transaction.compute_txid();
            assert_eq!(client.get_tx(&txid).unwrap().as_ref(), Some(transaction));
            assert_eq!(client.get_txid_at_block_index(&best, position).unwrap(), Some(txid));
            let info = client.get_tx_info(&txid).unwrap().unwrap();
            assert_eq!(info.weight, transaction.weight());
            assert!(client.get_tx_status(&txid).unwrap().confirmed);
            let proof = client.get_merkle_block(&txid).unwrap().unwrap();
            let (mut matches, mut indexes) = (vec![], vec![]);
            assert_eq!(
                proof.txn.extract_matches(&mut matches, &mut indexes).unwrap(),
                block.header.merkle_root
            );
            assert_eq!((matches, indexes), (vec![txid], vec![position as u32]));
            assert_eq!(client.get_merkle_proof(&txid).unwrap().unwrap().pos, position);
            assert_eq!(client.get_tx_outspends(&txid).unwrap().len(), transaction.output.len());
        }
        let nobody = Txid::all_zeros();
        assert_eq!(client.get_tx(&nobody).unwrap(), None);
        assert_eq!(client.get_tx_info(&nobody).unwrap().map(|tx| tx.txid), None);
        assert!(!client.get_tx_status(&nobody).unwrap().confirmed);
        assert!(client.get_merkle_proof(&nobody).unwrap().is_none());
        client.get_fee_estimates().unwrap();

        // Every script: its pages, sums and coins against the chain itself.
        for (script, known) in naive::scripts(&node) {
            let mut ours = client.get_scripthash_txs(&script, None).unwrap();
            while let Some(last) = ours.last().map(|tx| tx.txid).filter(|_| ours.len().is_multiple_of(25)) {
                let more = client.get_scripthash_txs(&script, Some(last)).unwrap();
                if more.is_empty() {
                    break;
                }
                ours.extend(more);
            }
            let newest: Vec<Txid> = known.confirmed.iter().rev().map(|(_, txid)| *txid).collect();
            // Within a block of many both orders are the chain's.
            assert_eq!(ours.iter().map(|tx| tx.txid).collect::<Vec<_>>(), newest);
            let stats = client.get_scripthash_stats(&script).unwrap().chain_stats;
            assert_eq!(stats.tx_count as usize, newest.len());
            let coins = client.get_scripthash_utxos(&script).unwrap();
            let sum: Amount = coins.iter().map(|coin| coin.value).sum();
            assert_eq!(stats.funded_txo_sum - stats.spent_txo_sum, sum);
            assert_eq!((stats.funded_txo_count - stats.spent_txo_count) as usize, coins.len());
            let paid: u64 = ours
                .iter()
                .flat_map(|tx| &tx.vout)
                .filter(|out| out.scriptpubkey == script)
                .map(|out| out.value.to_sat())
                .sum();
            assert_eq!(stats.funded_txo_sum.to_sat(), paid);
            if let Ok(address) = Address::from_script(&script, Network::Regtest) {
                assert_eq!(client.get_address_stats(&address).unwrap().chain_stats.tx_count, stats.tx_count);
                assert_eq!(client.get_address_utxos(&address).unwrap().len(), coins.len());
                let first = client.get_address_txs(&address, None).unwrap();
                assert_eq!(first.len(), newest.len().min(25));
            }
        }

        // Sent, seen in the mempool, mined.
        let id = maker.pay(&[InputKind::P2wpkh], &[]);
        let (raw, script) = maker.raw_and_script(id);
        let transaction: Transaction = deserialize_hex(&raw).unwrap();
        assert_eq!(client.broadcast(&transaction).unwrap(), id);
        until("the transaction doesn't come", || client.get_tx(&id).unwrap());
        check_unconfirmed(at, &node, id);
        let stats = client.get_mempool_stats().unwrap();
        assert_eq!((stats.count, stats.vsize), (1, transaction.vsize()));
        assert_eq!(client.get_mempool_txids().unwrap(), [id]);
        let recent = client.get_mempool_recent_txs().unwrap();
        assert_eq!(
            (recent[0].txid, recent[0].fee, recent[0].vsize),
            (id, stats.total_fee, transaction.vsize())
        );
        let pending = client.get_mempool_scripthash_txs(&transaction.output[0].script_pubkey).unwrap();
        assert!(pending.iter().any(|tx| tx.txid == id && !tx.status.confirmed));
        for input in &transaction.input {
            let spent =
                client.get_output_status(&input.previous_output.txid, input.previous_output.vout.into());
            let spent = spent.unwrap().unwrap();
            assert_eq!((spent.txid, spent.status.unwrap().confirmed), (Some(id), false));
        }
        assert!(!script.is_empty());
        maker.mine();
        until("the block doesn't come", || client.get_tx_status(&id).unwrap().confirmed.then_some(()));
        assert_eq!(client.get_mempool_stats().unwrap().count, 0);

        // What Core refuses, in its own words.
        let error = client.broadcast(&transaction).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("400"), "{error}");
        let mut poor = transaction;
        poor.output[0].value = Amount::from_sat(u64::MAX / 4);
        let refused = agent().post(format!("http://{at}/tx")).send(serialize_hex(&poor)).map(reply).unwrap();
        assert_eq!(refused.status, 400);
        assert!(refused.body.starts_with("sendrawtransaction RPC error: {"), "{}", refused.body);
    });
    served.stop();
}

fn check_unconfirmed(at: SocketAddr, node: &TestNode, id: Txid) {
    let mut core = node.call("getrawtransaction", json!([id.to_string(), 1]));
    // What Core adds only to transactions in blocks.
    core["fee"] = node.call("getmempoolentry", json!([id.to_string()]))["fees"]["base"].clone();
    for input in core["vin"].as_array_mut().unwrap() {
        let outpoint = json!([input["txid"], input["vout"], false]);
        input["prevout"] = node.call("gettxout", outpoint);
    }
    check_transaction(&json_of(at, &format!("/tx/{id}")), &core, None);
    let refused = get(at, &format!("/tx/{id}/merkle-proof"));
    assert_eq!((refused.status, refused.body.as_str()), (404, "Transaction not found or is unconfirmed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_esplora_bdk_crate() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 63);
    maker.blocks(8, 5);
    let (mut served, at) = start(&node, &[]).await;
    tokio::task::block_in_place(|| {
        let client = bdk_esplora::esplora_client::Builder::new(&format!("http://{at}")).build_blocking();
        let known = naive::scripts(&node);
        let scripts: Vec<ScriptBuf> = known.keys().cloned().collect();
        let scan = || {
            let genesis = BlockId { height: 0, hash: node.block_hash(0) };
            let request = FullScanRequest::<u32>::builder()
                .chain_tip(CheckPoint::new(genesis))
                .spks_for_keychain(0, (0u32..).zip(scripts.clone()))
                .build();
            let found = client.full_scan(request, 5, 4).unwrap();
            let tip = found.chain_update.unwrap();
            assert_eq!((tip.height(), tip.hash()), (node.height(), node.best_block()));
            found.tx_update.anchors.iter().map(|(anchor, txid)| (anchor.block_id.height, *txid)).collect()
        };
        let expected = |known: &BTreeMap<ScriptBuf, naive::Script>| -> BTreeSet<(u32, Txid)> {
            let of_wallet = scripts.iter().filter_map(|script| known.get(script));
            of_wallet.flat_map(|script| script.confirmed.iter().copied()).collect()
        };
        let found: BTreeSet<(u32, Txid)> = scan();
        assert_eq!(found, expected(&known));

        // After a reorganisation nothing of the old blocks is left.
        let old = node.best_block();
        maker.reorganise(3);
        let new = node.best_block();
        until("the new tip doesn't come", || {
            (get(at, "/blocks/tip/hash").body == new.to_string()).then_some(())
        });
        let found: BTreeSet<(u32, Txid)> = scan();
        assert_eq!(found, expected(&naive::scripts(&node)));
        let gone = json_of(at, &format!("/block/{old}/status"));
        assert_eq!(gone, json!({ "in_best_chain": false }));
        assert_eq!(get(at, &format!("/block/{old}")).body, "Block not found");
    });
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_esplora_errors_pages_and_many_at_once() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 64);
    maker.blocks(3, 30);
    let (mut served, at) = start(&node, &[("PEREGRINE_HTTP_CORS", "*")]).await;
    tokio::task::block_in_place(|| {
        let best = node.best_block();
        let (zeros, long) = ("00".repeat(32), "ff".repeat(33));
        for (path, status, text) in [
            ("/nothing".to_owned(), 404, "endpoint does not exist"),
            (format!("/tx/{zeros}"), 404, "Transaction not found"),
            (format!("/tx/{zeros}/hex"), 404, "Transaction not found"),
            (format!("/tx/{zeros}/merkle-proof"), 404, "Transaction not found or is unconfirmed"),
            ("/tx/xyz".to_owned(), 400, "Invalid hex string"),
            (format!("/tx/{long}"), 400, "Invalid hex string"),
            (format!("/block/{zeros}"), 404, "Block not found"),
            (format!("/block/{zeros}/txs"), 404, "Block not found"),
            ("/block/12".to_owned(), 400, "Invalid hex string"),
            ("/block-height/1000000".to_owned(), 404, "Block not found"),
            ("/block-height/-1".to_owned(), 400, "Invalid number"),
            ("/block-height/4294967295".to_owned(), 404, "Block not found"),
            (format!("/block/{best}/txs/1"), 400, "start index must be a multipication of 25"),
            (format!("/block/{best}/txs/10000"), 404, "start index out of range"),
            (format!("/block/{best}/txid/10000"), 404, "tx index out of range"),
            ("/address/nonsense".to_owned(), 400, "Invalid Bitcoin address"),
            ("/address/1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa".to_owned(), 400, "Address on invalid network"),
            ("/scripthash/00".to_owned(), 400, "Invalid hex string"),
            ("/address-prefix/bcrt1".to_owned(), 400, "address search disabled"),
        ] {
            for prefix in ["", "/api"] {
                let reply = get(at, &format!("{prefix}{path}"));
                assert_eq!((reply.status, reply.body.as_str()), (status, text), "{prefix}{path}");
            }
        }
        assert_eq!(agent().put(format!("http://{at}/tx")).send("").unwrap().status(), 405);
        let response = agent()
            .get(format!("http://{at}/blocks/tip/height"))
            .header("origin", "https://example.org")
            .call();
        assert_eq!(response.unwrap().headers()["access-control-allow-origin"], "*");
        let huge = agent()
            .post(format!("http://{at}/tx"))
            .send("00".repeat(3_000_000))
            .map(|reply| reply.status().as_u16());
        assert!(!matches!(huge, Ok(status) if status != 413), "{huge:?}");

        // A script with many transactions: all pages together are its history.
        let known = naive::scripts(&node);
        let (script, history) = known.iter().max_by_key(|(_, known)| known.confirmed.len()).unwrap();
        let newest: Vec<String> = history.confirmed.iter().rev().map(|(_, txid)| txid.to_string()).collect();
        assert!(newest.len() > 60, "{}", newest.len());
        let hash = sha256::Hash::hash(script.as_bytes());
        let ids = |value: &Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|tx| tx["txid"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(ids(&json_of(at, &format!("/scripthash/{hash}/txs"))), newest[..25]);
        assert_eq!(
            ids(&json_of(at, &format!("/scripthash/{hash}/txs/chain/{}", newest[24]))),
            newest[25..50]
        );
        assert_eq!(ids(&json_of(at, &format!("/scripthash/{hash}/txs?max_txs=40"))), newest[..40]);
        let after = format!("/scripthash/{hash}/txs?max_txs=7&after_txid={}", newest[9]);
        assert_eq!(ids(&json_of(at, &after)), newest[10..17]);
        let unknown = get(at, &format!("/scripthash/{hash}/txs?after_txid={zeros}"));
        assert_eq!((unknown.status, unknown.body.as_str()), (422, "after_txid not found"));
        assert_eq!(get(at, &format!("/scripthash/{hash}/txs?max_txs=100000")).status, 400);
        assert_eq!(json_of(at, &format!("/scripthash/{hash}/txs/mempool")), json!([]));
        let summary = json_of(at, &format!("/scripthash/{hash}/txs/summary"));
        assert_eq!(ids(&summary), newest);
        let balance: i64 = summary.as_array().unwrap().iter().map(|tx| tx["value"].as_i64().unwrap()).sum();
        let stats = json_of(at, &format!("/scripthash/{hash}"))["chain_stats"].clone();
        let sum = |name: &str| stats[name].as_i64().unwrap();
        assert_eq!(balance, sum("funded_txo_sum") - sum("spent_txo_sum"));

        // Several at once.
        let some = &newest[..5];
        let all = |reply: Reply| -> Value {
            assert_eq!(reply.status, 200, "{}", reply.body);
            serde_json::from_str(&reply.body).unwrap()
        };
        assert_eq!(ids(&all(post(at, "/internal/txs", &json!(some)))), some);
        let together = all(post(at, "/scripthashes/txs", &json!([hash.to_string(), zeros])));
        assert_eq!(ids(&together), newest[..25]);
        let one_by_one: Vec<Value> =
            some.iter().map(|id| json_of(at, &format!("/tx/{id}/outspends"))).collect();
        assert_eq!(all(post(at, "/internal/txs/outspends/by-txid", &json!(some))), json!(one_by_one));
        assert_eq!(json_of(at, &format!("/txs/outspends?txids={}", some.join(","))), json!(one_by_one));
        let outpoint = format!("{}:0", some[0]);
        assert_eq!(
            all(post(at, "/internal/txs/outspends/by-outpoint", &json!([outpoint])))[0],
            one_by_one[0][0]
        );
        assert_eq!(get(at, "/txs/outspends?txids=zz").status, 400);
        assert_eq!(post(at, "/scripthashes/txs", &json!(vec![zeros.clone(); 301])).status, 400);
        assert_eq!(post(at, "/txs/test", &json!(vec!["00"; 26])).status, 400);

        // A package: a parent without a fee that only its child pays for isn't needed to see that Core's answer comes back.
        let id = maker.pay(&[InputKind::P2wpkh], &[]);
        let (raw, _) = maker.raw_and_script(id);
        let tested = all(post(at, "/txs/test", &json!([raw])));
        assert_eq!((&tested[0]["txid"], &tested[0]["allowed"]), (&json!(id.to_string()), &json!(true)));
        let sent = all(post(at, "/txs/package?maxfeerate=0.5", &json!([raw])));
        assert_eq!(sent["package_msg"], "success", "{sent}");
        until("the transaction doesn't come", || (get(at, &format!("/tx/{id}")).status == 200).then_some(()));
        assert_eq!(json_of(at, "/mempool/txids/page"), json!([id.to_string()]));
        assert_eq!(json_of(at, &format!("/mempool/txids/page/{id}")), json!([]));
        assert_eq!(ids(&json_of(at, "/internal/mempool/txs")), [id.to_string()]);
        assert_eq!(ids(&json_of(at, "/internal/mempool/txs/all")), [id.to_string()]);
        assert_eq!(
            ids(&all(post(at, "/internal/mempool/txs", &json!([id.to_string(), zeros])))),
            [id.to_string()]
        );
        assert_eq!(get(at, &format!("/broadcast?tx={raw}")).body, id.to_string());
    });
    served.stop();
}

/// Whoever comes when all places are taken is told so and sent away, however long the others stay.
#[tokio::test(flavor = "multi_thread")]
async fn node_esplora_connections_are_limited() {
    let Some(node) = TestNode::start(&[]) else { return };
    let (mut served, at) = start(&node, &[("PEREGRINE_MAX_CONNECTIONS", "3")]).await;
    tokio::task::block_in_place(|| {
        let mut held: Vec<std::net::TcpStream> =
            (0..3).map(|_| std::net::TcpStream::connect(at).unwrap()).collect();
        let refused = until("nobody is refused", || {
            Some(get(at, "/blocks/tip/height")).filter(|reply| reply.status == 503)
        });
        assert_eq!(refused.body, "too many connections: the server takes 3");
        // One that says nothing isn't kept, either.
        let mut silent = std::net::TcpStream::connect(at).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(std::io::Read::read(&mut silent, &mut [0; 64]).unwrap(), 0, "it is closed");
        held.pop();
        until("the place stays taken", || (get(at, "/blocks/tip/height").status == 200).then_some(()));
    });
    served.stop();
}
