//! What the crates of others offer besides what a wallet's first load needs, each method at least once.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bdk_electrum::BdkElectrumClient;
use bdk_electrum::bdk_core::spk_client::SyncRequest;
use bdk_electrum::bdk_core::{BlockId, CheckPoint};
use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::{ScriptBuf, Transaction, Txid};
use electrum_client::{Batch, Client, ElectrumApi, EstimationMode, Param};
use electrum_streaming_client::{
    AsyncBatchRequest, AsyncClient, BlockingBatchRequest, BlockingClient, Event, request, response,
};
use futures_util::StreamExt;
use peregrine_index::testkit::TestNode;
use serde_json::json;

use crate::coins::{self, script, send, spend};
use crate::naive;
use crate::served::Served;

const PATIENCE: Duration = Duration::from_secs(60);

fn connect(address: SocketAddr) -> Client {
    Client::new(&format!("tcp://{address}")).unwrap()
}

/// Asks until the answer is there.
fn until<T>(what: &str, ask: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_electrum_client_crate_in_every_other_way() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 4);
    let mut served = Served::start(&node).await;
    let address = served.tcp;
    tokio::task::block_in_place(|| {
        let client = connect(address);
        let tip = client.block_headers_subscribe_raw().unwrap();
        assert_eq!(tip.height, node.height() as usize);
        let header: bitcoin::block::Header = deserialize(&tip.header).unwrap();
        assert_eq!(header.block_hash(), node.best_block());
        let raw = client.block_header_raw(tip.height).unwrap();
        assert_eq!(raw, tip.header);
        assert_eq!(client.batch_block_header_raw([tip.height as u32, 0]).unwrap()[0], raw);
        for mode in [EstimationMode::Conservative, EstimationMode::Economical] {
            assert_eq!(client.estimate_fee(2, Some(mode)).unwrap(), -1.0);
        }
        // Protocol 1.6, which the crate asks for, has no relayfee any more.
        assert!(client.relay_fee().unwrap_err().to_string().contains("unknown method"));
        let info = node.call("getmempoolinfo", json!([]));
        let ours = client.mempool_get_info().unwrap();
        assert_eq!(info["mempoolminfee"], ours.mempoolminfee);
        assert_eq!(info["minrelaytxfee"], ours.minrelaytxfee);
        assert_eq!(info["incrementalrelayfee"], ours.incrementalrelayfee);
        assert_eq!(
            client.raw_call("blockchain.block.header", [Param::U32(0)]).unwrap(),
            bitcoin::consensus::encode::serialize_hex(
                &bitcoin::constants::genesis_block(bitcoin::Network::Regtest).header
            )
        );

        // Two that depend on each other, as a package.
        let (parent, made) = spend(&coins[..1], &[1], 1_000);
        let (child, _) = spend(&made, &[2], 1_000);
        let scripts = [script(1), script(2)];
        let statuses = client.batch_script_subscribe(scripts.iter().map(ScriptBuf::as_script)).unwrap();
        assert_eq!(statuses, [None, None]);
        assert!(client.script_subscribe(&script(1)).is_err(), "the crate itself keeps one per script");
        let package = client.transaction_broadcast_package(&[parent.clone(), child.clone()]).unwrap();
        assert!(package.success && package.errors.is_empty(), "{package:?}");
        let (fresh, _) = spend(&coins[1..2], &[3], 1_000);
        assert_eq!(client.transaction_broadcast_raw(&serialize(&fresh)).unwrap(), fresh.compute_txid());
        let (bad, _) = spend(&coins[1..2], &[3], 1_001);
        let package = client.transaction_broadcast_package_raw(&[serialize(&bad)]).unwrap();
        assert!(!package.success && package.errors[0].error.contains("insufficient fee"), "{package:?}");

        let popped = until("no status", || {
            client.ping().unwrap();
            client.script_pop(&script(2)).unwrap()
        });
        until("the last status isn't the node's", || {
            client.ping().unwrap();
            let mut last = popped;
            while let Some(status) = client.script_pop(&script(2)).unwrap() {
                last = status;
            }
            let known = naive::scripts(&node);
            (known[&script(2)].status() == json!(last)).then_some(())
        });
        for (number, height) in [(1, 0), (2, -1)] {
            let history = client.script_get_history(&script(number)).unwrap();
            assert_eq!((history[0].height, history[0].fee), (height, Some(1_000)));
        }
        let balance = client.script_get_balance(&script(1)).unwrap();
        assert_eq!((balance.confirmed, balance.unconfirmed), (0, 0), "its coin is spent already");
        let unspent = client.script_list_unspent(&script(2)).unwrap();
        assert_eq!((unspent[0].height, unspent[0].value), (0, child.output[0].value.to_sat()));
        let histogram = client.raw_call("mempool.get_fee_histogram", []).unwrap();
        assert!(!histogram.as_array().unwrap().is_empty());

        let ids = [parent.compute_txid(), child.compute_txid()];
        assert_eq!(client.transaction_get_raw(&ids[0]).unwrap(), serialize(&parent));
        assert_eq!(client.batch_transaction_get_raw(&ids).unwrap(), [serialize(&parent), serialize(&child)]);
        let hash = node.generate_to_descriptor(1, &coins::descriptor(u32::MAX))[0];
        let height = node.height() as usize;
        let header = until("no new header", || {
            client.ping().unwrap();
            client.block_headers_pop_raw().unwrap()
        });
        assert_eq!(header.height, height);
        let header: bitcoin::block::Header = deserialize(&header.header).unwrap();
        assert_eq!(header.block_hash(), hash);
        let proofs = client.batch_transaction_get_merkle(ids.map(|id| (id, height))).unwrap();
        for (id, proof) in ids.iter().zip(&proofs) {
            assert!(electrum_client::utils::validate_merkle_proof(id, &header.merkle_root, proof));
        }

        // Of everything that a batch of the crate can have, one.
        let mut batch = Batch::default();
        batch.script_list_unspent(&script(2));
        batch.script_get_history(&script(2));
        batch.script_get_balance(&script(2));
        batch.script_subscribe(&script(4));
        batch.transaction_get(&ids[0]);
        batch.transaction_get_merkle(&(ids[0], height));
        batch.estimate_fee(1, None);
        batch.block_header(height as u32);
        batch.raw("server.banner".into(), vec![]);
        let answers = client.batch_call(&batch).unwrap();
        assert_eq!(answers.len(), 9);
        assert_eq!(answers[1][0]["height"], height);
        assert_eq!(answers[2]["confirmed"], child.output[0].value.to_sat());
        assert!(answers[3].is_null() && answers[8].is_string());
        assert!(client.calls_made().unwrap() > 20);
    });
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_streaming_client_crate_in_every_other_way() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 2);
    let mut served = Served::start(&node).await;
    let stream = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let (reader, writer) = stream.into_split();
    let (client, mut events, worker) = AsyncClient::new_tokio(reader, writer);
    let worker = tokio::spawn(worker);

    // The crate has a type for the answer, and forgot to let the request be sent.
    let custom = request::Custom { method: "server.features".into(), params: vec![] };
    let features = client.send_request(custom).await.unwrap();
    let features: response::ServerFeatures = serde_json::from_value(features).unwrap();
    assert_eq!(features.genesis_hash, node.block_hash(0));
    assert_eq!(client.send_request(request::EstimateFee { number: 3 }).await.unwrap().fee_rate, None);
    let request = request::HeadersWithCheckpoint { start_height: 5, count: 10, cp_height: 100 };
    let headers = client.send_request(request).await.unwrap();
    assert_eq!(headers.headers.last().unwrap().block_hash(), node.block_hash(14));
    assert_eq!(headers.branch.len(), 7);
    let proof = client.send_request(request::HeaderWithProof { height: 14, cp_height: 100 }).await.unwrap();
    assert_eq!((proof.branch, proof.root), (headers.branch, headers.root));
    let at = client.send_request(request::GetTxidFromPos { height: 1, tx_pos: 0 }).await.unwrap();
    let block = node.call("getblock", json!([node.block_hash(1).to_string(), 1]));
    assert_eq!(block["tx"][0], at.txid.to_string());
    let custom = request::Custom { method: "server.donation_address".into(), params: vec![] };
    assert!(client.send_request(custom).await.unwrap().is_string());
    let custom = request::Custom { method: "server.nonsense".into(), params: vec![] };
    assert!(client.send_request(custom).await.is_err());

    // In the mempool, one on the other; and a batch that has an error in it.
    let (parent, made) = spend(&coins[..1], &[1], 1_000);
    let (child, _) = spend(&made, &[1], 2_000);
    for transaction in [&parent, &child] {
        client.send_request(request::BroadcastTx(transaction.clone())).await.unwrap();
    }
    let end = Instant::now() + PATIENCE;
    let mempool = loop {
        let mempool = client.send_request(request::GetMempool::from_script(script(1))).await.unwrap();
        if mempool.len() == 2 {
            break mempool;
        }
        assert!(Instant::now() < end, "they don't come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let parts: Vec<_> = mempool.iter().map(|tx| (tx.txid, tx.fee.to_sat(), tx.confirmed_inputs)).collect();
    assert_eq!(parts, [(parent.compute_txid(), 1_000, true), (child.compute_txid(), 2_000, false)]);
    let mut batch = AsyncBatchRequest::new();
    let history = batch.request(request::GetHistory::from_script(script(1)));
    let missing =
        batch.request(request::GetTx { txid: Txid::from_raw_hash(bitcoin::hashes::Hash::all_zeros()) });
    let fees = batch.request(request::GetFeeHistogram);
    let tip = batch.request(request::HeadersSubscribe);
    batch.event_request(request::Ping);
    assert!(client.send_batch(batch).unwrap());
    assert!(matches!(history.await.unwrap()[..], [response::Tx::Mempool(_), response::Tx::Mempool(_)]));
    assert!(missing.await.is_err());
    assert!(!fees.await.unwrap().is_empty());
    assert_eq!(tip.await.unwrap().height, node.height());
    client.send_event_request(request::Banner).unwrap();
    for _ in 0..2 {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        assert!(matches!(event, Event::Response(_)), "{event:?}");
    }
    client.close();
    worker.abort();

    // The same crate without tokio.
    let address = served.tcp;
    tokio::task::spawn_blocking(move || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        let (client, events, _, _) = BlockingClient::new(stream.try_clone().unwrap(), stream);
        let tip = client.send_request(request::HeadersSubscribe).unwrap();
        let mut batch = BlockingBatchRequest::new();
        let balance = batch.request(request::GetBalance::from_script(script(1)));
        batch.event_request(request::Ping);
        assert!(client.send_batch(batch).unwrap());
        let balance = balance.recv().unwrap().unwrap();
        assert_eq!(balance.unconfirmed, child.output[0].value);
        client.send_event_request(request::Header { height: tip.height }).unwrap();
        for _ in 0..2 {
            assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), Event::Response(_)));
        }
    })
    .await
    .unwrap();
    served.stop();
}

/// A wallet that knows its scripts: what is new, what is confirmed, and what was taken from it by a replacement (bug
/// class 8).
#[tokio::test(flavor = "multi_thread")]
async fn node_bdk_crate_syncs() {
    let Some(node) = TestNode::start(&[]) else { return };
    let coins = coins::mine(&node, 3);
    let mut served = Served::start(&node).await;
    let address = served.tcp;
    tokio::task::block_in_place(|| {
        let client = BdkElectrumClient::new(connect(address));
        let genesis = CheckPoint::new(BlockId { height: 0, hash: node.block_hash(0) });
        let (first, made) = spend(&coins[..1], &[1, 2], 1_000);
        assert_eq!(client.transaction_broadcast(&first).unwrap(), first.compute_txid());
        node.generate_to_descriptor(1, &coins::descriptor(u32::MAX));
        let (second, _) = spend(&made[..1], &[3], 1_000);
        let second_id = send(&node, &second);
        until("it doesn't come", || client.inner.transaction_get(&second_id).ok());
        until("the tip doesn't come", || {
            let tip = connect(address).block_headers_subscribe().unwrap();
            (tip.height as u32 == node.height()).then_some(())
        });

        let sync = |tip: &CheckPoint, expected: &[(u32, Txid)]| {
            let request = SyncRequest::builder()
                .chain_tip(tip.clone())
                .spks((1..=4).map(script))
                .txids([first.compute_txid()])
                .outpoints([first.input[0].previous_output])
                .expected_spk_txids(expected.iter().map(|(number, txid)| (script(*number), *txid)))
                .build();
            client.sync(request, 7, true).unwrap()
        };
        let found = sync(&genesis, &[]);
        let tip = found.chain_update.unwrap();
        assert_eq!((tip.height(), tip.hash()), (node.height(), node.best_block()));
        let confirmed = |update: &bdk_electrum::bdk_core::TxUpdate<_>| -> BTreeSet<Txid> {
            update
                .anchors
                .iter()
                .map(|(_, txid): &(bdk_electrum::bdk_core::ConfirmationBlockTime, Txid)| *txid)
                .collect()
        };
        let coinbase = coins[0].outpoint().txid;
        assert_eq!(confirmed(&found.tx_update), BTreeSet::from([first.compute_txid(), coinbase]));
        let seen: BTreeSet<Txid> = found.tx_update.seen_ats.iter().map(|(txid, _)| *txid).collect();
        assert_eq!(seen, BTreeSet::from([second_id]));
        assert_eq!(*client.fetch_tx(second_id).unwrap(), second);
        // What is asked of the node's own view: the outputs that the wallet needs for fees.
        let spent = found.tx_update.txouts.get(&coins[0].outpoint());
        let known = found.tx_update.txs.iter().any(|tx| tx.compute_txid() == coinbase);
        assert!(spent.is_some() || known, "the output that the first one spends");

        // Replaced: the wallet is told that it is gone.
        let (replacing, _) = spend(&made[..1], &[4], 100_000);
        let replacing_id = send(&node, &replacing);
        until("it doesn't come", || client.inner.transaction_get(&replacing_id).ok());
        let found = sync(&tip, &[(1, second_id), (3, second_id)]);
        let evicted: BTreeSet<Txid> = found.tx_update.evicted_ats.iter().map(|(txid, _)| *txid).collect();
        assert_eq!(evicted, BTreeSet::from([second_id]));
        let seen: BTreeSet<Txid> = found.tx_update.seen_ats.iter().map(|(txid, _)| *txid).collect();
        assert_eq!(seen, BTreeSet::from([replacing_id]));

        // Confirmed, from what the wallet has cached.
        let fresh = BdkElectrumClient::new(connect(address));
        fresh.populate_tx_cache([first.clone()] as [Transaction; 1]);
        assert_eq!(*fresh.fetch_tx(first.compute_txid()).unwrap(), first);
        node.generate_to_descriptor(1, &coins::descriptor(u32::MAX));
        until("it isn't confirmed", || {
            let found = sync(&tip, &[(1, replacing_id)]);
            confirmed(&found.tx_update).contains(&replacing_id).then_some(())
        });
    });
    served.stop();
}
