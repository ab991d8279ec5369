//! From a source through the index to scan results, on the synthetic chain: everything planted is found, nothing else.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bitcoin::BlockHash;
use bitcoin::block::Header;
use peregrine_index::indexer::{self, Event, IndexError, Options, Summary};
use peregrine_index::scan::{self, BlockCache, Report, Request};
use peregrine_index::source::{BlockWithPrevouts, ChainSource, SourceError, Tip};
use peregrine_index::store::{IndexParams, TweakIndexWriter, TweakReader};
use peregrine_index::synthetic::{Plan, Planted, SyntheticChain};
use peregrine_scanner::backend::reference::Reference;
use peregrine_scanner::{Backend, Candidate, Engine, PreparedScan, RowBatch, ScanTarget};

const PLAN: Plan = Plan { blocks: 120, reorg_depth: 6, seed: 21, transactions: 10, payment_every: 20 };

/// Small segments, so that blocks straddle them.
fn params() -> IndexParams {
    IndexParams { segment_bits: 6, ..IndexParams::for_network(bitcoin::Network::Regtest) }
}

fn writer(dir: &Path) -> TweakIndexWriter {
    TweakIndexWriter::open_or_create(dir, &params()).unwrap()
}

fn index(source: &dyn ChainSource, writer: &mut TweakIndexWriter, options: Options) -> (Summary, Vec<Event>) {
    let events = Mutex::new(Vec::new());
    let push = |event: Event| events.lock().unwrap().push(event);
    let summary = indexer::run(source, writer, options, &AtomicBool::new(false), &push).unwrap();
    (summary, events.into_inner().unwrap())
}

fn targets(chain: &SyntheticChain) -> Vec<ScanTarget> {
    chain.wallets().iter().map(|wallet| wallet.target().unwrap()).collect()
}

fn run_scan(dir: &Path, backend: impl Backend + 'static, request: Request<'_>) -> Report {
    let engine = Engine::new(Box::new(backend), 2).unwrap();
    let reader = TweakReader::open(dir).unwrap();
    scan::scan(&reader, &engine, request, &AtomicBool::new(false), &|done, total| assert!(done <= total))
        .unwrap()
}

/// The outputs behind a report, sorted, and how many transactions had none.
fn outputs(chain: &SyntheticChain, report: &Report) -> (Vec<Planted>, usize) {
    let targets = targets(chain);
    let mut cache = BlockCache::default();
    let (mut owned, mut empty) = (Vec::new(), 0);
    for found in &report.found {
        let outputs = scan::outputs(chain, found, &targets, &mut cache).unwrap();
        empty += usize::from(outputs.is_empty());
        owned.extend(outputs.into_iter().map(|output| Planted {
            height: found.height,
            txid: found.txid,
            vout: output.vout,
            wallet: found.target,
            label: output.found.label,
            value: output.value,
        }));
    }
    owned.sort();
    (owned, empty)
}

fn planted(chain: &SyntheticChain) -> Vec<Planted> {
    let mut planted = chain.planted().to_vec();
    planted.sort();
    planted
}

fn everything(targets: &[ScanTarget]) -> Request<'_> {
    Request { targets, from: 0, to: None, min_output: 0 }
}

#[test]
fn finds_exactly_what_was_planted_before_and_after_a_reorganisation() {
    let chain = SyntheticChain::generate(PLAN);
    let dir = tempfile::tempdir().unwrap();
    let targets = targets(&chain);
    let mut writer = writer(dir.path());
    let (summary, events) = index(&chain, &mut writer, Options::default());
    assert_eq!((summary.blocks, summary.cancelled), (121, false));
    // Only once the last block is in the index.
    let [.., Event::Progress(last), Event::AtTip(120)] = &events[..] else { panic!("{events:?}") };
    let told = events.iter().filter(|event| matches!(event, Event::AtTip(_))).count();
    assert_eq!((last.height, told), (120, 1));
    let report = run_scan(dir.path(), Reference, everything(&targets));
    assert_eq!(outputs(&chain, &report), (planted(&chain), 0));
    assert_eq!((report.heights.clone(), report.blocks), (Some(0..=120), 121));
    assert_eq!((report.rows, report.scanned), (summary.rows, summary.rows));
    assert!(planted(&chain).len() > 50);

    chain.reorganise();
    let (summary, events) = index(&chain, &mut writer, Options::default());
    assert_eq!(summary.blocks, 7);
    assert!(events.iter().any(|event| matches!(event, Event::Reorganised { from: 120, to: Some(114) })));
    let report = run_scan(dir.path(), Reference, everything(&targets));
    assert_eq!(outputs(&chain, &report), (planted(&chain), 0));
    assert!(peregrine_index::store::verify(dir.path(), &mut |_| ()).is_ok());
}

#[test]
fn a_range_and_a_filter_leave_out_what_they_say_and_nothing_else() {
    let chain = SyntheticChain::generate(PLAN);
    let dir = tempfile::tempdir().unwrap();
    let targets = targets(&chain);
    index(&chain, &mut writer(dir.path()), Options::default());
    let report = run_scan(dir.path(), Reference, Request { from: 40, to: Some(80), ..everything(&targets) });
    let wanted: Vec<Planted> =
        planted(&chain).into_iter().filter(|p| (40..=80).contains(&p.height)).collect();
    assert_eq!(outputs(&chain, &report), (wanted, 0));
    assert_eq!((report.heights, report.blocks), (Some(40..=80), 41));

    let min = 1_200_000;
    let largest = |p: &Planted| {
        let block = chain.block(chain.hash_at(p.height).unwrap().unwrap()).unwrap().block;
        let transaction = block.txdata.into_iter().find(|tx| tx.compute_txid() == p.txid).unwrap();
        let taproot = transaction.output.iter().filter(|out| out.script_pubkey.is_p2tr());
        taproot.map(|out| out.value.to_sat()).max().unwrap()
    };
    let report = run_scan(dir.path(), Reference, Request { min_output: min, ..everything(&targets) });
    let wanted: Vec<Planted> = planted(&chain).into_iter().filter(|p| largest(p) >= min).collect();
    assert!(wanted.iter().any(|p| p.value < min) && wanted.len() < planted(&chain).len());
    assert_eq!(outputs(&chain, &report), (wanted, 0));
    assert!(report.scanned < report.rows);

    let report = run_scan(dir.path(), Reference, Request { from: 121, ..everything(&targets) });
    assert_eq!((report.heights, report.blocks, report.rows), (None, 0, 0));
    let report = run_scan(dir.path(), Reference, Request { from: 80, to: Some(40), ..everything(&targets) });
    assert_eq!((report.heights, report.found.len()), (None, 0));
}

#[test]
fn stops_where_told_and_goes_on_from_there() {
    let chain = SyntheticChain::generate(PLAN);
    let dir = tempfile::tempdir().unwrap();
    let heights = [Some(0), Some(17), Some(17), Some(90), None];
    for to in heights {
        let mut writer = writer(dir.path());
        index(&chain, &mut writer, Options { to, requests: 3, ..Options::default() });
        assert_eq!(writer.tip().unwrap().0, to.unwrap_or(120));
    }
    let targets = targets(&chain);
    let report = run_scan(dir.path(), Reference, everything(&targets));
    assert_eq!(outputs(&chain, &report), (planted(&chain), 0));
}

#[test]
fn cancelling_at_any_block_leaves_an_index_that_goes_on() {
    let chain = SyntheticChain::generate(Plan { blocks: 40, ..PLAN });
    let dir = tempfile::tempdir().unwrap();
    let mut runs = 0;
    loop {
        let mut writer = writer(dir.path());
        let cancel = AtomicBool::new(false);
        let stop = |event: Event| {
            if let Event::Progress(progress) = event {
                cancel.store(progress.blocks == 3, Ordering::Relaxed);
            }
        };
        let summary = indexer::run(&chain, &mut writer, Options::default(), &cancel, &stop).unwrap();
        runs += 1;
        if !summary.cancelled {
            break;
        }
        assert_eq!(summary.blocks, 3);
    }
    assert_eq!(runs, 14);
    let targets = targets(&chain);
    let report = run_scan(dir.path(), Reference, everything(&targets));
    assert_eq!(outputs(&chain, &report), (planted(&chain), 0));
}

/// Fails in every way that a node can, now and then, and reorganises while it is being read.
struct Unreliable<'a> {
    chain: &'a SyntheticChain,
    calls: AtomicU32,
    reorganise_at: u32,
}

impl Unreliable<'_> {
    fn trouble(&self, hash: Option<BlockHash>) -> Result<(), SourceError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call == self.reorganise_at {
            self.chain.reorganise();
        }
        match (call % 23, hash) {
            (5 | 6, _) => Err(SourceError::Unavailable("warming up".into())),
            (11, Some(_)) => Err(SourceError::Invalid("garbage".into())),
            (17, Some(hash)) => Err(SourceError::UnknownBlock(hash)),
            _ => Ok(()),
        }
    }
}

impl ChainSource for Unreliable<'_> {
    fn describe(&self) -> String {
        "unreliable".into()
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        self.trouble(None)?;
        self.chain.tip()
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        self.trouble(None)?;
        self.chain.hash_at(height)
    }

    fn headers_after(
        &self,
        after: BlockHash,
        height: u32,
        _: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        self.trouble(None)?;
        self.chain.headers_after(after, height, 20)
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        self.trouble(Some(hash))?;
        self.chain.block(hash)
    }
}

#[test]
fn an_unreliable_source_and_a_reorganisation_half_way_change_nothing_in_the_result() {
    for reorganise_at in [1, 60, 110, 135, 160] {
        // As deep as the chain but for genesis, so that it hits whatever is indexed.
        let chain = SyntheticChain::generate(Plan { blocks: 60, reorg_depth: 55, transactions: 4, ..PLAN });
        let source = Unreliable { chain: &chain, calls: AtomicU32::new(0), reorganise_at };
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        let (_, events) = index(&source, &mut writer, Options { requests: 4, ..Options::default() });
        assert!(events.iter().any(|event| matches!(event, Event::Wait(_))));
        chain.reorganise();
        index(&source, &mut writer, Options::default());
        assert_eq!(writer.tip().unwrap().1, chain.tip().unwrap().hash);
        let targets = targets(&chain);
        let report = run_scan(dir.path(), Reference, everything(&targets));
        assert_eq!(outputs(&chain, &report), (planted(&chain), 0));
    }
}

#[test]
fn a_chain_that_shares_nothing_but_genesis_replaces_everything() {
    let chain = SyntheticChain::generate(Plan { blocks: 50, reorg_depth: 50, ..PLAN });
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    index(&chain, &mut writer, Options::default());
    chain.reorganise();
    let (_, events) = index(&chain, &mut writer, Options::default());
    assert!(events.iter().any(|event| matches!(event, Event::Reorganised { from: 50, to: Some(0) })));
    let targets = targets(&chain);
    assert_eq!(outputs(&chain, &run_scan(dir.path(), Reference, everything(&targets))), (planted(&chain), 0));
}

#[test]
fn a_start_height_above_genesis_can_be_reorganised_down_to_nothing() {
    let chain = SyntheticChain::generate(Plan { blocks: 30, reorg_depth: 20, ..PLAN });
    let dir = tempfile::tempdir().unwrap();
    let params = IndexParams { start_height: 15, ..params() };
    let mut writer = TweakIndexWriter::open_or_create(dir.path(), &params).unwrap();
    index(&chain, &mut writer, Options::default());
    chain.reorganise();
    let (summary, events) = index(&chain, &mut writer, Options::default());
    assert!(events.iter().any(|event| matches!(event, Event::Reorganised { from: 30, to: None })));
    assert_eq!(summary.blocks, 17);
    let targets = targets(&chain);
    let wanted: Vec<Planted> = planted(&chain).into_iter().filter(|p| p.height >= 15).collect();
    assert_eq!(outputs(&chain, &run_scan(dir.path(), Reference, everything(&targets))), (wanted, 0));
}

/// A source that always sends something invalid for one block.
struct Broken<'a>(&'a SyntheticChain, BlockHash);

impl ChainSource for Broken<'_> {
    fn describe(&self) -> String {
        "broken".into()
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        self.0.tip()
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        self.0.hash_at(height)
    }

    fn headers_after(
        &self,
        after: BlockHash,
        height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        self.0.headers_after(after, height, count)
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        if hash == self.1 { Err(SourceError::Invalid("not a block".into())) } else { self.0.block(hash) }
    }
}

#[test]
fn a_source_that_stays_broken_is_an_error_and_what_came_before_is_kept() {
    let chain = SyntheticChain::generate(Plan { blocks: 30, ..PLAN });
    let source = Broken(&chain, chain.hash_at(20).unwrap().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(dir.path());
    let result = indexer::run(&source, &mut writer, Options::default(), &AtomicBool::new(false), &|_| ());
    let error = result.unwrap_err();
    assert!(matches!(error, IndexError::Source { .. }));
    assert_eq!(error.to_string(), "broken: not a block");
    assert_eq!(writer.tip().unwrap().0, 19);
}

/// Reorganises the chain and the index while the index is being scanned, once.
struct Meanwhile {
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct MeanwhilePrepared(Box<dyn PreparedScan>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Backend for Meanwhile {
    fn name(&self) -> &'static str {
        "meanwhile"
    }

    fn prepare(&self, targets: &[ScanTarget]) -> Box<dyn PreparedScan> {
        Box::new(MeanwhilePrepared(Reference.prepare(targets), Mutex::new(self.act.lock().unwrap().take())))
    }
}

impl PreparedScan for MeanwhilePrepared {
    fn batch_rows(&self) -> usize {
        16
    }

    fn scan(&self, batch: RowBatch<'_>, found: &mut Vec<Candidate>) {
        if let Some(act) = self.1.lock().unwrap().take() {
            act();
        }
        self.0.scan(batch, found);
    }
}

#[test]
fn a_scan_that_is_overtaken_by_a_reorganisation_gives_the_new_chain() {
    for depth in [1, 30, 120] {
        let chain = std::sync::Arc::new(SyntheticChain::generate(Plan { reorg_depth: depth, ..PLAN }));
        let dir = tempfile::tempdir().unwrap();
        let targets = targets(&chain);
        let mut writer = writer(dir.path());
        index(&*chain, &mut writer, Options::default());
        let chain_ = chain.clone();
        let act = move || {
            chain_.reorganise();
            index(&*chain_, &mut writer, Options::default());
        };
        let backend = Meanwhile { act: Mutex::new(Some(Box::new(act))) };
        let report = run_scan(dir.path(), backend, everything(&targets));
        assert_eq!(outputs(&chain, &report), (planted(&chain), 0), "depth {depth}");
        assert!(report.scanned > report.rows);
    }
}
