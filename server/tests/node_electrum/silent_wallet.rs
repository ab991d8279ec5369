//! A wallet as Sparrow has it, on a chain that grows, is reorganised, and changes its mind.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bitcoin::Txid;
use peregrine_index::testkit::TestNode;
use peregrine_scanner::ScanTarget;
use peregrine_scanner::synthetic::InputKind;
use serde_json::json;

use crate::chain::ChainMaker;
use crate::client::Client;
use crate::served::Served;
use crate::sparrow::{Sparrow, Told};
use crate::tls::tls;

/// The wallet without labels, as Sparrow has none.
fn target(maker: &ChainMaker<'_>, wallet: usize) -> ScanTarget {
    let wallet = &maker.wallets()[wallet];
    ScanTarget::new(wallet.scan.clone(), wallet.spend.public_key(), []).unwrap()
}

/// Heights and ids of what was paid to the wallet so that it can see it.
fn planted(maker: &ChainMaker<'_>, wallet: usize) -> BTreeSet<(i64, Txid)> {
    let planted = maker.planted().into_iter().filter(|planted| planted.wallet == wallet);
    planted
        .filter(|planted| planted.label.is_none_or(|label| label == 0))
        .map(|planted| (planted.height.into(), planted.txid))
        .collect()
}

/// Without what is in the mempool: after a reorganisation, payments that no block took in again.
fn confirmed(history: &BTreeSet<(i64, Txid)>) -> BTreeSet<(i64, Txid)> {
    history.iter().filter(|(height, _)| *height > 0).copied().collect()
}

/// Over TLS with padded lines, as Sparrow talks to servers of others.
async fn over_tls(served: &Served) -> Client {
    Client::new(Box::new(tls(served.tls).await.unwrap().0)).padded()
}

#[tokio::test(flavor = "multi_thread")]
async fn node_sparrow_wallet_follows_blocks_and_reorganisations() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 91);
    maker.blocks(8, 6);
    let mut served = Served::start(&node).await;
    let mut wallet = Sparrow::connect(over_tls(&served).await, target(&maker, 0)).await;
    wallet.open(0).await;
    assert_eq!(wallet.history().await, planted(&maker, 0));

    let (mut slowest, mut seen) = (Duration::ZERO, 0);
    for round in 0..8 {
        // Coins that nothing random has spent.
        maker.blocks(1, 0);
        wallet.until_tip(maker.height()).await;
        // Into the mempool, where it is told before any script, and then into a block, which tells it no second time.
        let label = (round % 2 == 1).then_some(0);
        let txid = maker.pay(&[InputKind::TaprootKeyPath], &[(0, label), (0, None)]);
        let sent = Instant::now();
        // After a reorganisation something may be in the mempool that spends the same coin; then the block decides.
        let accepted = node.rpc("sendrawtransaction", json!([maker.raw_and_script(txid).0])).is_ok();
        if accepted {
            assert_eq!(wallet.next().await, Told::Payments(vec![txid]));
            slowest = slowest.max(sent.elapsed());
            seen += 1;
            assert!(wallet.history().await.contains(&(0, txid)));
        }
        maker.blocks(1, 3);
        let told = wallet.until_tip(maker.height()).await;
        let payments = told.iter().filter_map(|told| match told {
            Told::Payments(txids) => Some(txids),
            _ => None,
        });
        assert_eq!(payments.flatten().any(|told| *told == txid), !accepted, "told once, and not twice");
        assert_eq!(confirmed(&wallet.history().await), planted(&maker, 0), "round {round}");

        if round % 4 == 3 {
            maker.reorganise(round / 4 + 1);
            wallet.until_tip(maker.height()).await;
            let history = wallet.history().await;
            assert_eq!(confirmed(&history), planted(&maker, 0), "after the reorganisation in round {round}");
            // Whoever comes new sees the same.
            let client = Client::connect(served.tcp).await;
            let mut other = Sparrow::connect(client, target(&maker, 0)).await;
            other.open(0).await;
            assert_eq!(other.history().await, history);
        }
    }
    assert!(seen >= 5, "{seen} payments were seen in the mempool");
    println!("seen in the mempool after {slowest:?} at the latest");

    // From another start: the whole scan again, with nothing lost that was asked for before.
    wallet.open(0).await;
    let told = wallet.told();
    assert!(planted(&maker, 0).iter().all(|(_, txid)| told.contains(txid)));

    // A wallet that is closed hears nothing of payments any more.
    wallet.close().await;
    wallet.unseen().await;
    maker.pay(&[InputKind::TaprootKeyPath], &[(0, None)]);
    maker.mine();
    let mut other = Client::greet(served.tcp, "1.4.2").await;
    let tip = other.call("blockchain.headers.subscribe", json!([])).await.unwrap();
    if tip["height"] != maker.height() {
        while other.note().await.1[0]["height"] != maker.height() {}
    }
    // The tip comes last, so what comes before it is all that comes of this block.
    while wallet.next().await != Told::Tip(maker.height().into()) {}
    assert_eq!(wallet.unseen().await, Vec::<String>::new());
    served.stop();
}

/// Pages, and the end of the scan in the last of them only.
#[tokio::test(flavor = "multi_thread")]
async fn node_sparrow_wallet_with_hundreds_of_payments() {
    let Some(node) = TestNode::start(&[]) else { return };
    let mut maker = ChainMaker::new(&node, 92);
    maker.blocks(1, 0);
    for _ in 0..5 {
        for _ in 0..70 {
            maker.pay(&[InputKind::TaprootKeyPath], &[(0, None)]);
        }
        maker.mine();
        // Each payment is a tenth of what a coin is, so that the coins don't run dry.
        maker.fan_out();
        maker.mine();
    }
    let mut served = Served::start(&node).await;
    let mut wallet = Sparrow::connect(over_tls(&served).await, target(&maker, 0)).await;
    wallet.open(0).await;
    let expected = planted(&maker, 0);
    assert!(expected.len() >= 350);
    assert_eq!(wallet.history().await, expected);

    // Two wallets on one connection would be told apart by their addresses; on two they don't know of each other.
    let client = Client::connect(served.tcp).await;
    let mut stranger = Sparrow::connect(client, target(&maker, 1)).await;
    stranger.open(maker.height() + 1).await;
    assert!(stranger.told().is_empty());
    let txid = maker.pay(&[InputKind::P2wpkh], &[(1, Some(0))]);
    maker.mine();
    let told = stranger.until_tip(maker.height()).await;
    assert!(told.contains(&Told::Payments(vec![txid])), "paid in a block that nobody saw coming: {told:?}");
    assert_eq!(wallet.until_tip(maker.height()).await, [Told::Tip(maker.height().into())]);
    served.stop();
}
