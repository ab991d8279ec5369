//! The service over indexes of synthetic chains, whose payments are known from the sender's side.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bitcoin::hashes::Hash;
use peregrine_index::BlockRows;
use peregrine_index::indexer::{self, Options};
use peregrine_index::source::ChainSource;
use peregrine_index::store::{IndexParams, TweakIndexWriter};
use peregrine_index::synthetic::{Plan, SyntheticChain};
use peregrine_scanner::backend::{Backend, Candidate, PreparedScan, RowBatch, choose};
use peregrine_scanner::batch::TweakMethod;
use peregrine_scanner::{ScanKey, ScanTarget};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;
use crate::node::{Notification, SilentPayment};

/// A loaded machine is slow; nothing here takes long otherwise.
const PATIENCE: Duration = Duration::from_secs(60);

type Found = BTreeSet<(u32, Txid)>;

struct Fixture {
    dir: tempfile::TempDir,
    chain: SyntheticChain,
    writer: TweakIndexWriter,
}

impl Fixture {
    fn new(blocks: u32, to: Option<u32>) -> Self {
        let plan = Plan { blocks, reorg_depth: 8, seed: 7, transactions: 10, payment_every: 12 };
        let chain = SyntheticChain::generate(plan);
        let dir = tempfile::tempdir().unwrap();
        let params = IndexParams { segment_bits: 10, ..IndexParams::for_network(bitcoin::Network::Regtest) };
        let writer = TweakIndexWriter::create(dir.path(), &params).unwrap();
        let mut fixture = Self { dir, chain, writer };
        fixture.index(to);
        fixture
    }

    fn index(&mut self, to: Option<u32>) {
        let options = Options { to, tweaks: TweakMethod::choose("auto").unwrap(), ..Options::default() };
        indexer::run(&self.chain, &mut self.writer, options, &AtomicBool::new(false), &|_| ()).unwrap();
    }

    fn tip(&self) -> (u32, BlockHash) {
        self.writer.tip().unwrap()
    }

    fn rows(&self) -> u64 {
        TweakReader::open(self.dir.path()).unwrap().snapshot().unwrap().rows()
    }

    fn service(&self, backend: Box<dyn Backend>) -> Arc<SilentService> {
        SilentService::start(Setup {
            reader: TweakReader::open(self.dir.path()).unwrap(),
            engine: Arc::new(Engine::new(backend, 2).unwrap()),
            limits: Limits::default(),
        })
        .unwrap()
    }

    /// A service that knows of all that is indexed.
    fn started(&self) -> Arc<SilentService> {
        let service = self.service(choose("auto").unwrap());
        service.update(Update { sequence: 1, tip: Some(self.tip()), ..Update::default() });
        service
    }

    fn target(&self, wallet: usize) -> ScanTarget {
        self.chain.wallets()[wallet].target().unwrap()
    }

    fn planted(&self, wallet: usize, heights: std::ops::RangeInclusive<u32>) -> Found {
        let all = self.chain.planted().iter().filter(|planted| planted.wallet == wallet);
        all.filter(|planted| heights.contains(&planted.height))
            .map(|planted| (planted.height, planted.txid))
            .collect()
    }

    /// The rows of a block as the mempool would have had them.
    fn mempool_rows(&self, height: u32) -> Vec<MempoolRow> {
        let hash = self.chain.hash_at(height).unwrap().unwrap();
        let rows = BlockRows::of_block(&self.chain.block(hash).unwrap(), TweakMethod::Plain);
        let mut outputs = rows.outputs.iter().copied();
        rows.points
            .iter()
            .zip(&rows.txids)
            .zip(&rows.output_counts)
            .map(|((point, txid), count)| MempoolRow {
                txid: Txid::from_byte_array(*txid),
                point: *point,
                outputs: outputs.by_ref().take(*count as usize).collect(),
            })
            .collect()
    }
}

fn ask(service: &SilentService, target: ScanTarget, start: Start) -> Subscription {
    service.subscribe(ScanRequest { target, start, not_after: None }).unwrap()
}

fn next(receiver: &mut UnboundedReceiver<Notification>) -> Notification {
    let end = Instant::now() + PATIENCE;
    loop {
        match receiver.try_recv() {
            Ok(notification) => return notification,
            Err(TryRecvError::Disconnected) => panic!("the subscription ended"),
            Err(TryRecvError::Empty) => {
                assert!(Instant::now() < end, "nothing is told");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Everything up to the last word of the scan; checks order and progress.
fn scanned(subscription: &mut Subscription) -> Vec<SilentPayment> {
    let (mut all, mut progress) = (Vec::new(), 0.0);
    loop {
        let notification = next(&mut subscription.notifications);
        assert!(notification.progress >= progress, "progress goes back");
        progress = notification.progress;
        all.extend(notification.found);
        if progress >= 1.0 {
            let heights: Vec<u32> = all.iter().map(|found| found.height.unwrap_or(u32::MAX)).collect();
            assert!(heights.is_sorted(), "{heights:?}");
            return all;
        }
    }
}

fn confirmed(found: &[SilentPayment]) -> Found {
    let set: Found = found.iter().filter_map(|found| Some((found.height?, found.txid))).collect();
    assert_eq!(set.len(), found.iter().filter(|found| found.height.is_some()).count(), "told twice");
    set
}

fn silence(subscription: &mut Subscription) {
    assert_eq!(subscription.notifications.try_recv().err(), Some(TryRecvError::Empty));
}

fn stranger() -> ScanTarget {
    let scan = ScanKey::from_bytes(rand::random()).unwrap();
    let spend = scan.public_key();
    ScanTarget::new(scan, spend, []).unwrap()
}

#[test]
fn tells_every_payment_once() {
    let fixture = Fixture::new(200, None);
    let service = fixture.started();
    let tip = fixture.tip().0;
    for wallet in 0..fixture.chain.wallets().len() {
        let planted = fixture.planted(wallet, 0..=tip);
        assert!(planted.len() > 5);
        let mut subscription = ask(&service, fixture.target(wallet), Start::Height(0));
        assert_eq!(subscription.start_height, 0);
        assert_eq!(confirmed(&scanned(&mut subscription)), planted);
        silence(&mut subscription);
    }
    // From a height, and blocks within two.
    let mut late = ask(&service, fixture.target(0), Start::Height(120));
    assert_eq!(confirmed(&scanned(&mut late)), fixture.planted(0, 120..=tip));
    let mut range = ask(&service, fixture.target(0), Start::Range { from: 50, to: 90 });
    assert_eq!((range.start_height, confirmed(&scanned(&mut range))), (50, fixture.planted(0, 50..=90)));
    // An earlier start of the same connection goes before.
    let request = ScanRequest { target: fixture.target(0), start: Start::Height(150), not_after: Some(30) };
    let mut wider = service.subscribe(request).unwrap();
    assert_eq!((wider.start_height, confirmed(&scanned(&mut wider))), (30, fixture.planted(0, 30..=tip)));
    // Above the tip there is nothing, which is said.
    let mut above = ask(&service, fixture.target(0), Start::Height(5_000));
    assert_eq!((above.start_height, scanned(&mut above)), (5_000, vec![]));
    let wrong = Start::Range { from: 1, to: tip + 1 };
    let request = ScanRequest { target: fixture.target(0), start: wrong, not_after: None };
    assert!(matches!(service.subscribe(request), Err(NodeError::Invalid(_))));
    service.stop();
}

/// A block that is as late as the time, or up to two hours earlier, is never left out.
#[test]
fn times_become_heights_with_a_margin() {
    let fixture = Fixture::new(100, None);
    let service = fixture.started();
    let tip = fixture.tip().0;
    let time_of = |height| {
        let hash = fixture.chain.hash_at(height).unwrap().unwrap();
        u64::from(fixture.chain.block(hash).unwrap().block.header.time)
    };
    for height in [1, 40, tip] {
        let time = time_of(height);
        let start = ask(&service, stranger(), Start::Time(time)).start_height;
        let first = (0..=tip).find(|height| time_of(*height) + CLOCKS >= time).unwrap();
        assert_eq!(start, first);
        assert!(start <= height);
    }
    assert_eq!(ask(&service, stranger(), Start::Time(4_000_000_000)).start_height, tip + 1);
    assert_eq!(ask(&service, stranger(), Start::Time(500_000_000)).start_height, 0);
    service.stop();
}

/// A backend that takes its time, so that something can happen meanwhile, and counts.
struct Slow {
    inner: Box<dyn Backend>,
    calls: Arc<AtomicUsize>,
}

struct SlowScan {
    inner: Box<dyn PreparedScan>,
    calls: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> (Box<Self>, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        (Box::new(Self { inner: choose("auto").unwrap(), calls: Arc::clone(&calls) }), calls)
    }
}

impl Backend for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        Box::new(SlowScan { inner: self.inner.prepare(targets), calls: Arc::clone(&self.calls) })
    }
}

impl PreparedScan for SlowScan {
    fn batch_rows(&self) -> usize {
        64
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        self.inner.scan(batch, found);
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn scans_over_the_same_blocks_share_their_passes() {
    let fixture = Fixture::new(600, None);
    let service = fixture.service(choose("auto").unwrap());
    // They wait for the first tip, and so begin together.
    let mut subscriptions: Vec<Subscription> = (0..32)
        .map(|number| {
            let target = if number < 3 { fixture.target(number) } else { stranger() };
            ask(&service, target, Start::Height(0))
        })
        .collect();
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    for (number, subscription) in subscriptions.iter_mut().enumerate() {
        let expected = if number < 3 { fixture.planted(number, 0..=600) } else { Found::new() };
        assert_eq!(confirmed(&scanned(subscription)), expected);
    }
    let slices = service.shared.slices.load(Ordering::Relaxed);
    let work = service.shared.scanned.load(Ordering::Relaxed);
    assert_eq!(work, 32 * fixture.rows(), "each row once for each key");
    assert!(slices <= fixture.rows() / 2_000 + 2, "{slices} slices for {} rows", fixture.rows());
    service.stop();
}

#[test]
fn a_newcomer_joins_and_is_told_in_order() {
    let fixture = Fixture::new(900, None);
    let (backend, calls) = Slow::new();
    let service = fixture.service(backend);
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    let mut first = ask(&service, stranger(), Start::Height(0));
    until("the first scan begins", || calls.load(Ordering::Relaxed) > 10);
    let mut second = ask(&service, fixture.target(0), Start::Height(0));
    scanned(&mut first);
    assert_eq!(confirmed(&scanned(&mut second)), fixture.planted(0, 0..=900));
    assert_eq!(service.shared.scanned.load(Ordering::Relaxed), 2 * fixture.rows());
    service.stop();
}

#[test]
fn a_short_scan_does_not_wait_for_a_long_one() {
    let fixture = Fixture::new(900, None);
    let (backend, calls) = Slow::new();
    let service = fixture.service(backend);
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    let mut long = ask(&service, fixture.target(1), Start::Height(0));
    until("the long scan begins", || calls.load(Ordering::Relaxed) > 0);
    let mut short = ask(&service, fixture.target(0), Start::Range { from: 890, to: 900 });
    assert_eq!(confirmed(&scanned(&mut short)), fixture.planted(0, 890..=900));
    let told: Vec<Notification> = std::iter::from_fn(|| long.notifications.try_recv().ok()).collect();
    assert!(told.iter().all(|notification| notification.progress < 1.0), "the long one is not done yet");
    let mut found: Vec<SilentPayment> =
        told.into_iter().flat_map(|notification| notification.found).collect();
    found.extend(scanned(&mut long));
    assert_eq!(confirmed(&found), fixture.planted(1, 0..=900));
    service.stop();
}

#[test]
fn a_reorganisation_in_the_middle_of_a_scan_loses_nothing() {
    let mut fixture = Fixture::new(600, None);
    let (backend, calls) = Slow::new();
    let service = fixture.service(backend);
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    let mut subscription = ask(&service, fixture.target(0), Start::Height(0));
    until("the scan begins", || calls.load(Ordering::Relaxed) > 3);
    fixture.chain.reorganise();
    fixture.index(None);
    // Until the service is told, the new blocks aren't servable.
    std::thread::sleep(Duration::from_millis(300));
    let fork = 600 - 8;
    service.update(Update { sequence: 2, tip: Some(fixture.tip()), fork: Some(fork), ..Update::default() });
    assert_eq!(confirmed(&scanned(&mut subscription)), fixture.planted(0, 0..=601));
    service.stop();
}

#[test]
fn blocks_and_reorganisations_after_the_scan_are_told() {
    let mut fixture = Fixture::new(300, Some(250));
    let service = fixture.started();
    let mut subscription = ask(&service, fixture.target(0), Start::Height(0));
    let mut range = ask(&service, fixture.target(0), Start::Range { from: 0, to: 250 });
    assert_eq!(confirmed(&scanned(&mut subscription)), fixture.planted(0, 0..=250));
    assert_eq!(confirmed(&scanned(&mut range)), fixture.planted(0, 0..=250));
    fixture.index(None);
    service.update(Update { sequence: 2, tip: Some(fixture.tip()), ..Update::default() });
    service.settle(2);
    // Settled: it is there.
    let live = subscription.notifications.try_recv().unwrap();
    assert_eq!((live.progress, confirmed(&live.found)), (1.0, fixture.planted(0, 251..=300)));

    fixture.chain.reorganise();
    fixture.index(None);
    service.update(Update { sequence: 3, tip: Some(fixture.tip()), fork: Some(292), ..Update::default() });
    service.settle(3);
    let replaced = fixture.planted(0, 293..=301);
    let told: Vec<SilentPayment> = std::iter::from_fn(|| subscription.notifications.try_recv().ok())
        .flat_map(|note| note.found)
        .collect();
    assert_eq!(confirmed(&told), replaced);
    // Only these blocks were asked for.
    silence(&mut range);
    service.stop();
}

#[test]
fn the_mempool_is_told_once() {
    let mut fixture = Fixture::new(300, Some(299));
    // A block with payments, as unconfirmed transactions.
    let paid = (0..3).find(|wallet| !fixture.planted(*wallet, 300..=300).is_empty());
    let Some(wallet) = paid else { panic!("the seed plants a payment in the last block") };
    let rows = fixture.mempool_rows(300);
    let txids: Vec<Txid> = rows.iter().map(|row| row.txid).collect();
    let expected: BTreeSet<Txid> =
        fixture.planted(wallet, 300..=300).into_iter().map(|(_, txid)| txid).collect();
    let unconfirmed = |found: &[SilentPayment]| -> BTreeSet<Txid> {
        found.iter().filter(|found| found.height.is_none()).map(|found| found.txid).collect()
    };

    let service = fixture.started();
    let mut early = ask(&service, fixture.target(wallet), Start::Height(290));
    assert_eq!(confirmed(&scanned(&mut early)), fixture.planted(wallet, 290..=299));
    service.update(Update { sequence: 2, tip: Some(fixture.tip()), added: rows, ..Update::default() });
    service.settle(2);
    let live = early.notifications.try_recv().unwrap();
    assert_eq!((live.progress, unconfirmed(&live.found)), (1.0, expected.clone()));

    // Whoever comes later is told with the last word of the scan; a range isn't about the mempool.
    let mut late = ask(&service, fixture.target(wallet), Start::Height(290));
    assert_eq!(unconfirmed(&scanned(&mut late)), expected);
    let mut range = ask(&service, fixture.target(wallet), Start::Range { from: 290, to: 299 });
    assert_eq!(unconfirmed(&scanned(&mut range)), BTreeSet::new());

    fixture.index(None);
    service.update(Update { sequence: 3, tip: Some(fixture.tip()), gone: txids, ..Update::default() });
    service.settle(3);
    silence(&mut early);
    silence(&mut late);
    let mut fresh = ask(&service, fixture.target(wallet), Start::Height(290));
    let found = scanned(&mut fresh);
    assert_eq!(confirmed(&found), fixture.planted(wallet, 290..=300));
    assert_eq!(unconfirmed(&found), BTreeSet::new());
    service.stop();
}

#[test]
fn whoever_leaves_is_forgotten_and_a_stop_ends_everything() {
    let fixture = Fixture::new(900, None);
    let (backend, calls) = Slow::new();
    let service = fixture.service(backend);
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    let leaving = ask(&service, fixture.target(0), Start::Height(0));
    until("the scan begins", || calls.load(Ordering::Relaxed) > 3);
    drop(leaving);
    until("the scan ends", || service.shared.state().scans == 0);
    let mut staying = ask(&service, fixture.target(0), Start::Height(0));
    until("the scan begins", || service.shared.state().scans == 1);
    service.stop();
    while staying.notifications.blocking_recv().is_some() {}
    // Nothing hangs afterwards.
    service.settle(1_000);
    let request = ScanRequest { target: fixture.target(0), start: Start::Height(0), not_after: None };
    assert!(matches!(service.subscribe(request), Err(NodeError::Busy(_))));
}

#[test]
fn too_many_scans_are_refused() {
    let fixture = Fixture::new(20, None);
    let service = SilentService::start(Setup {
        reader: TweakReader::open(fixture.dir.path()).unwrap(),
        engine: Arc::new(Engine::new(choose("auto").unwrap(), 1).unwrap()),
        limits: Limits { scans: 2 },
    })
    .unwrap();
    // There is no tip yet, so they wait.
    let mut first = ask(&service, stranger(), Start::Height(0));
    let _second = ask(&service, stranger(), Start::Height(0));
    let request = || ScanRequest { target: stranger(), start: Start::Height(0), not_after: None };
    assert!(matches!(service.subscribe(request()), Err(NodeError::Busy(_))));
    service.update(Update { sequence: 1, tip: Some(fixture.tip()), ..Update::default() });
    scanned(&mut first);
    until("both are done", || service.shared.state().scans == 0);
    assert!(service.subscribe(request()).is_ok());
    service.stop();
}
