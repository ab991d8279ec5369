//! Other people's clients: `electrum-client`, `electrum_streaming_client` and `bdk_electrum`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bdk_electrum::BdkElectrumClient;
use bdk_electrum::bdk_core::spk_client::FullScanRequest;
use bdk_electrum::bdk_core::{BlockId, CheckPoint};
use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::{Amount, ScriptBuf, Transaction, Txid};
use electrum_client::{Client, ElectrumApi};
use electrum_streaming_client::{AsyncClient, Event, notification::Notification, request};
use futures_util::StreamExt;
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::InputKind;
use serde_json::json;

use crate::chain::ChainMaker;
use crate::naive;
use crate::served::Served;

fn connect(address: SocketAddr) -> Client {
    Client::new(&format!("tcp://{address}")).unwrap()
}

/// Every transaction of the tip's block with a proof that the client's own check accepts.
pub(crate) fn check_proofs(address: SocketAddr, node: &TestNode) {
    let client = connect(address);
    let height = node.height() as usize;
    let header = client.block_header(height).unwrap();
    assert_eq!(header.block_hash(), node.best_block());
    let block = node.call("getblock", json!([node.best_block().to_string(), 1]));
    for (position, txid) in (0..).zip(block["tx"].as_array().unwrap()) {
        let txid: Txid = txid.as_str().unwrap().parse().unwrap();
        let proof = client.transaction_get_merkle(&txid, height).unwrap();
        assert_eq!((proof.block_height, proof.pos), (height, position));
        assert!(electrum_client::utils::validate_merkle_proof(&txid, &header.merkle_root, &proof));
        let from_position = client.txid_from_pos_with_merkle(height, position).unwrap();
        assert_eq!((from_position.tx_hash, from_position.merkle), (txid, proof.merkle));
        assert_eq!(client.txid_from_pos(height, position).unwrap(), txid);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_electrum_client_crate() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 31);
    maker.blocks(8, 5);
    let mut served = Served::start(&node).await;
    let (tcp, tls) = (served.tcp, served.tls);
    tokio::task::block_in_place(|| {
        let client = connect(tcp);
        assert_eq!(client.protocol_version().unwrap(), "1.6");
        let features = client.server_features().unwrap();
        assert_eq!((features.protocol_min.as_str(), features.pruning), ("1.4", None));
        client.ping().unwrap();
        let tip = client.block_headers_subscribe().unwrap();
        assert_eq!(tip.height, node.height() as usize);
        assert_eq!(tip.header.block_hash(), node.best_block());
        let headers = client.block_headers(100, 50).unwrap();
        assert_eq!(headers.headers.len(), node.height() as usize - 99);
        assert!(headers.max >= 2016);
        assert_eq!(client.batch_block_header([1u32, 5, 100]).unwrap().len(), 3);
        assert!(client.block_header(5_000).is_err());
        assert_eq!(client.estimate_fee(3, None).unwrap(), -1.0);
        assert_eq!(client.batch_estimate_fee([1usize, 2]).unwrap(), [-1.0, -1.0]);
        assert!(client.mempool_get_info().is_ok());
        check_proofs(tcp, &node);

        let scripts = naive::scripts(&node);
        let list: Vec<&bitcoin::Script> = scripts.keys().map(ScriptBuf::as_script).collect();
        let histories = client.batch_script_get_history(list.iter().copied()).unwrap();
        let unspent = client.batch_script_list_unspent(list.iter().copied()).unwrap();
        let balances = client.batch_script_get_balance(list.iter().copied()).unwrap();
        for (((known, history), unspent), balance) in
            scripts.values().zip(&histories).zip(&unspent).zip(&balances)
        {
            let ours: Vec<(u32, Txid)> = history.iter().map(|tx| (tx.height as u32, tx.tx_hash)).collect();
            assert_eq!(ours, known.confirmed);
            assert_eq!(balance.confirmed, unspent.iter().map(|output| output.value).sum::<u64>());
            assert_eq!(balance.unconfirmed, 0);
        }
        let all: BTreeSet<Txid> = histories.iter().flatten().map(|tx| tx.tx_hash).collect();
        for (transaction, txid) in client.batch_transaction_get(&all).unwrap().iter().zip(&all) {
            assert_eq!(transaction.compute_txid(), *txid);
        }

        // Subscriptions: a transaction that this client sends, then its block.
        let txid = maker.pay(&[InputKind::P2wpkh], &[]);
        let (raw, _) = maker.raw_and_script(txid);
        let transaction: Transaction = deserialize_hex(&raw).unwrap();
        let script = transaction.output[0].script_pubkey.clone();
        assert_eq!(client.script_subscribe(&script).unwrap(), None);
        assert_eq!(client.transaction_broadcast(&transaction).unwrap(), txid);
        let popped = |client: &Client| {
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                client.ping().unwrap();
                if let Some(status) = client.script_pop(&script).unwrap() {
                    return status;
                }
                assert!(Instant::now() < end, "no notification");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let unconfirmed = popped(&client);
        assert_eq!(client.script_get_history(&script).unwrap()[0].height, 0);
        assert_eq!(client.script_get_balance(&script).unwrap().confirmed, 0);
        assert!(client.script_get_balance(&script).unwrap().unconfirmed > 0);
        maker.mine();
        assert_ne!(popped(&client), unconfirmed);
        assert_eq!(client.script_get_history(&script).unwrap()[0].height as u32, node.height());
        let header = loop {
            client.ping().unwrap();
            if let Some(header) = client.block_headers_pop().unwrap() {
                break header;
            }
        };
        assert_eq!(header.height as u32, node.height());
        assert!(client.script_unsubscribe(&script).unwrap());

        // Core's own words for what it refuses (bug class 24).
        let mut poor = transaction;
        poor.output[0].value = Amount::from_sat(u64::MAX / 4);
        let error = client.transaction_broadcast(&poor).unwrap_err().to_string();
        assert!(error.contains("bad-txns") || error.contains("missingorspent"), "{error}");

        // Over TLS, with the certificate that the server made for itself.
        let config = electrum_client::ConfigBuilder::new().validate_domain(false).build();
        let secure = Client::from_config(&format!("ssl://{tls}"), config).unwrap();
        assert_eq!(secure.block_headers_subscribe().unwrap().height as u32, node.height());
    });
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_streaming_client_crate() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 32);
    maker.blocks(6, 4);
    let mut served = Served::start(&node).await;
    let stream = tokio::net::TcpStream::connect(served.tcp).await.unwrap();
    let (reader, writer) = stream.into_split();
    let (client, mut events, worker) = AsyncClient::new_tokio(reader, writer);
    let worker = tokio::spawn(worker);

    client.send_request(request::Ping).await.unwrap();
    assert!(!client.send_request(request::Banner).await.unwrap().is_empty());
    assert!(client.send_request(request::RelayFee).await.unwrap().fee > Amount::ZERO);
    client.send_request(request::GetFeeHistogram).await.unwrap();
    let tip = client.send_request(request::HeadersSubscribe).await.unwrap();
    assert_eq!(tip.header.block_hash(), node.best_block());
    let headers = client.send_request(request::Headers { start_height: 0, count: 10 }).await.unwrap();
    assert_eq!(headers.headers.len(), 10);
    let proof = client.send_request(request::HeaderWithProof { height: 7, cp_height: 100 }).await.unwrap();
    assert_eq!(proof.header.block_hash(), node.block_hash(7));
    assert_eq!(proof.branch.len(), 7);
    for (script, known) in naive::scripts(&node) {
        let history = client.send_request(request::GetHistory::from_script(&script)).await.unwrap();
        let ours: Vec<Txid> = history.iter().map(electrum_streaming_client::response::Tx::txid).collect();
        assert_eq!(ours, known.confirmed.iter().map(|(_, txid)| *txid).collect::<Vec<_>>());
        let balance = client.send_request(request::GetBalance::from_script(&script)).await.unwrap();
        let unspent = client.send_request(request::ListUnspent::from_script(&script)).await.unwrap();
        assert_eq!(balance.confirmed, unspent.iter().map(|output| output.value).sum());
        assert_eq!(client.send_request(request::GetMempool::from_script(&script)).await.unwrap().len(), 0);
        let (height, txid) = known.confirmed[0];
        let transaction = client.send_request(request::GetTx { txid }).await.unwrap();
        assert_eq!(transaction.tx.compute_txid(), txid);
        let proof = client.send_request(request::GetTxMerkle { txid, height }).await.unwrap();
        let header = client.send_request(request::Header { height }).await.unwrap().header;
        assert_eq!(proof.expected_merkle_root(txid), header.merkle_root);
    }

    let txid = maker.pay(&[InputKind::TaprootKeyPath], &[]);
    let (raw, _) = maker.raw_and_script(txid);
    let transaction: Transaction = deserialize_hex(&raw).unwrap();
    let script = transaction.output[0].script_pubkey.clone();
    let subscribed = client.send_request(request::ScriptHashSubscribe::from_script(&script)).await.unwrap();
    assert_eq!(subscribed, None);
    let sent = client.send_request(request::BroadcastTx(transaction.clone())).await.unwrap();
    assert_eq!(sent, txid);
    // One for the mempool, one for the block, and the block itself.
    let mut statuses = Vec::new();
    let height = node.height() + 1;
    loop {
        let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await.unwrap().unwrap();
        match event {
            Event::Notification(Notification::ScriptHash(note)) => {
                statuses.push(note.script_status());
                if statuses.len() == 1 {
                    maker.mine();
                }
            }
            Event::Notification(Notification::Header(note)) => {
                assert_eq!((note.height(), statuses.len()), (height, 2));
                break;
            }
            _ => {}
        }
    }
    assert_ne!(statuses[0], statuses[1]);
    let gone = client.send_request(request::ScriptHashUnsubscribe::from_script(&script)).await.unwrap();
    assert!(gone);
    let missing = client.send_request(request::GetTxidFromPos { height: 1, tx_pos: 9 }).await;
    assert!(missing.is_err());
    client.close();
    worker.abort();
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn node_bdk_crate() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 33);
    maker.blocks(8, 5);
    let txid = maker.pay(&[InputKind::TaprootKeyPath], &[]);
    let mut served = Served::start(&node).await;
    let tcp = served.tcp;
    tokio::task::block_in_place(|| {
        let (raw, _) = maker.raw_and_script(txid);
        node.call("sendrawtransaction", json!([raw]));
        let unconfirmed: Transaction = deserialize_hex(&raw).unwrap();
        let client = BdkElectrumClient::new(connect(tcp));
        let end = Instant::now() + Duration::from_secs(30);
        while client.inner.transaction_get(&txid).is_err() {
            assert!(Instant::now() < end, "the transaction doesn't come");
            std::thread::sleep(Duration::from_millis(20));
        }
        let known = naive::scripts(&node);
        let scripts: Vec<ScriptBuf> = known.keys().cloned().collect();
        let scan = |client: &BdkElectrumClient<Client>| {
            let genesis = BlockId { height: 0, hash: node.block_hash(0) };
            let spks = (0u32..).zip(scripts.clone());
            let request = FullScanRequest::<u32>::builder()
                .chain_tip(CheckPoint::new(genesis))
                .spks_for_keychain(0, spks)
                .build();
            client.full_scan(request, 5, 10, true).unwrap()
        };
        let found = scan(&client);
        let tip = found.chain_update.unwrap();
        assert_eq!((tip.height(), tip.hash()), (node.height(), node.best_block()));
        let expected: BTreeSet<(u32, Txid)> =
            known.values().flat_map(|script| script.confirmed.iter().copied()).collect();
        let anchors: BTreeSet<(u32, Txid)> =
            found.tx_update.anchors.iter().map(|(anchor, txid)| (anchor.block_id.height, *txid)).collect();
        assert_eq!(anchors, expected);
        assert!(found.tx_update.txs.iter().any(|tx| serialize_hex(&**tx) == serialize_hex(&unconfirmed)));
        assert!(found.tx_update.seen_ats.iter().any(|(seen, _)| *seen == txid));

        // After a reorganisation nothing of the old blocks is left.
        maker.reorganise(3);
        let end = Instant::now() + Duration::from_secs(30);
        while connect(tcp).block_headers_subscribe().unwrap().header.block_hash() != node.best_block() {
            assert!(Instant::now() < end, "the new tip doesn't come");
            std::thread::sleep(Duration::from_millis(20));
        }
        let known = naive::scripts(&node);
        let found = scan(&BdkElectrumClient::new(connect(tcp)));
        let expected: BTreeSet<(u32, Txid)> = scripts
            .iter()
            .filter_map(|script| known.get(script))
            .flat_map(|script| script.confirmed.iter().copied())
            .collect();
        let anchors: BTreeSet<(u32, Txid)> =
            found.tx_update.anchors.iter().map(|(anchor, txid)| (anchor.block_id.height, *txid)).collect();
        assert_eq!(anchors, expected);
    });
    served.stop();
}
