//! A node that is all in memory, and a scanner that says what a test tells it to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bitcoin::block::{Header, Version as BlockVersion};
use bitcoin::consensus::encode::{deserialize, serialize, serialize_hex};
use bitcoin::constants::genesis_block;
use bitcoin::hashes::{Hash, sha256d};
use bitcoin::{
    Amount, BlockHash, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxMerkleNode, TxOut, Txid,
    Witness, absolute, transaction,
};
use peregrine::node::*;
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};

struct Chain {
    blocks: Vec<(Header, Vec<Transaction>)>,
    mempool: Vec<(Transaction, u64)>,
    readiness: Readiness,
    history_limit: usize,
    rejects: Option<String>,
    panics: bool,
    busy: bool,
    serial: u32,
    sequence: u64,
}

/// The node.
pub(crate) struct MemoryNode {
    chain: Mutex<Chain>,
    events: broadcast::Sender<Notice>,
    /// Calls of `history`.
    pub(crate) histories: AtomicU64,
}

/// A script of its own for every number.
pub(crate) fn script(number: u32) -> ScriptBuf {
    let mut bytes = vec![0x51, 0x20];
    bytes.extend([0; 28]);
    bytes.extend(number.to_be_bytes());
    ScriptBuf::from_bytes(bytes)
}

fn missing<T>(what: &str) -> Result<T> {
    Err(NodeError::NotFound(format!("no such {what}")))
}

/// Merkle root and branch of a leaf.
fn merkle(mut hashes: Vec<[u8; 32]>, mut at: usize) -> ([u8; 32], Vec<[u8; 32]>) {
    let mut branch = Vec::new();
    while hashes.len() > 1 {
        if hashes.len() % 2 == 1 {
            hashes.push(*hashes.last().unwrap());
        }
        branch.push(hashes[at ^ 1]);
        at /= 2;
        hashes = hashes
            .chunks(2)
            .map(|pair| sha256d::Hash::hash(&[pair[0], pair[1]].concat()).to_byte_array())
            .collect();
    }
    (hashes[0], branch)
}

impl MemoryNode {
    pub(crate) fn new() -> Arc<Self> {
        let genesis = genesis_block(Network::Regtest);
        let chain = Chain {
            blocks: vec![(genesis.header, genesis.txdata)],
            mempool: Vec::new(),
            readiness: Readiness::Ready,
            history_limit: 1_000,
            rejects: None,
            panics: false,
            busy: false,
            serial: 0,
            sequence: 0,
        };
        let (events, _) = broadcast::channel(64);
        Arc::new(Self { chain: Mutex::new(chain), events, histories: AtomicU64::new(0) })
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn set_readiness(&self, readiness: Readiness) {
        self.chain().readiness = readiness;
    }

    pub(crate) fn set_history_limit(&self, limit: usize) {
        self.chain().history_limit = limit;
    }

    pub(crate) fn reject_with(&self, reason: &str) {
        self.chain().rejects = Some(reason.into());
    }

    /// Whether histories can't be had for now.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.chain().busy = busy;
    }

    pub(crate) fn panic_on_balance(&self) {
        self.chain().panics = true;
    }

    pub(crate) fn height(&self) -> u32 {
        self.chain().blocks.len() as u32 - 1
    }

    /// Sends an event.
    pub(crate) fn emit(&self, event: Event) {
        let mut chain = self.chain();
        chain.sequence += 1;
        let _ = self.events.send(Notice { sequence: chain.sequence, event });
    }

    /// A transaction that nobody has seen yet.
    pub(crate) fn pay(&self, spends: &[OutPoint], to: &[ScriptBuf]) -> Transaction {
        let mut chain = self.chain();
        chain.serial += 1;
        let unique = OutPoint { txid: Txid::from_byte_array([7; 32]), vout: chain.serial };
        let spends = if spends.is_empty() { vec![unique] } else { spends.to_vec() };
        Transaction {
            version: transaction::Version::TWO,
            lock_time: absolute::LockTime::from_consensus(chain.serial),
            input: spends
                .into_iter()
                .map(|previous_output| TxIn {
                    previous_output,
                    script_sig: ScriptBuf::new(),
                    sequence: Sequence::MAX,
                    witness: Witness::new(),
                })
                .collect(),
            output: to
                .iter()
                .map(|script_pubkey| TxOut {
                    value: Amount::from_sat(1_000),
                    script_pubkey: script_pubkey.clone(),
                })
                .collect(),
        }
    }

    /// Puts a block on top, in which transactions of the mempool confirm.
    pub(crate) fn connect(&self, mut transactions: Vec<Transaction>) -> Header {
        let coinbase = self.pay(&[OutPoint::null()], &[script(u32::MAX)]);
        transactions.insert(0, coinbase);
        let mut chain = self.chain();
        let ids = transactions.iter().map(|tx| tx.compute_txid().to_byte_array()).collect();
        let previous = chain.blocks.last().unwrap().0;
        let header = Header {
            version: BlockVersion::TWO,
            prev_blockhash: previous.block_hash(),
            merkle_root: TxMerkleNode::from_byte_array(merkle(ids, 0).0),
            time: previous.time + 600,
            bits: previous.bits,
            nonce: 0,
        };
        chain.mempool.retain(|(tx, _)| !transactions.contains(tx));
        chain.blocks.push((header, transactions));
        header
    }

    /// Puts a block on top and says so.
    pub(crate) fn mine(&self, transactions: Vec<Transaction>) -> Header {
        let touched = self.scripts_of(&transactions);
        let header = self.connect(transactions);
        self.emit(Event::BlockConnected { height: self.height(), header });
        self.emit(Event::ScriptHashesTouched(touched));
        header
    }

    /// Takes the tip off and says so.
    pub(crate) fn unmine(&self) -> Vec<Transaction> {
        let height = self.height();
        let (_, transactions) = self.chain().blocks.pop().unwrap();
        self.emit(Event::BlockDisconnected { height });
        self.emit(Event::ScriptHashesTouched(self.scripts_of(&transactions)));
        transactions.into_iter().skip(1).collect()
    }

    /// Puts a transaction into the mempool without a word.
    pub(crate) fn enter(&self, transaction: Transaction, fee: u64) {
        self.chain().mempool.push((transaction, fee));
    }

    /// Puts a transaction into the mempool and says so.
    pub(crate) fn receive(&self, transaction: Transaction, fee: u64) {
        let touched = self.scripts_of(std::slice::from_ref(&transaction));
        self.enter(transaction, fee);
        self.emit(Event::ScriptHashesTouched(touched));
        self.emit(Event::MempoolChanged);
    }

    /// Throws a transaction out of the mempool.
    pub(crate) fn evict(&self, txid: Txid) {
        self.chain().mempool.retain(|(tx, _)| tx.compute_txid() != txid);
        self.emit(Event::MempoolChanged);
    }

    fn scripts_of(&self, transactions: &[Transaction]) -> Arc<[ScriptHash]> {
        let chain = self.chain();
        let outputs = chain.outputs();
        let of = |tx: &Transaction| chain.touched(tx, &outputs).collect::<Vec<_>>();
        transactions.iter().flat_map(of).collect()
    }
}

impl Chain {
    fn confirmed(&self) -> impl Iterator<Item = (u32, usize, &Transaction)> {
        self.blocks.iter().enumerate().flat_map(|(height, (_, transactions))| {
            transactions.iter().enumerate().map(move |(at, tx)| (height as u32, at, tx))
        })
    }

    fn all(&self) -> impl Iterator<Item = &Transaction> {
        self.confirmed().map(|(_, _, tx)| tx).chain(self.mempool.iter().map(|(tx, _)| tx))
    }

    fn outputs(&self) -> HashMap<OutPoint, ScriptHash> {
        let outputs = |tx: &Transaction| {
            let txid = tx.compute_txid();
            let hashes = tx.output.iter().map(|output| ScriptHash::of(&output.script_pubkey));
            hashes
                .enumerate()
                .map(move |(vout, hash)| (OutPoint { txid, vout: vout as u32 }, hash))
                .collect::<Vec<_>>()
        };
        self.all().flat_map(outputs).collect()
    }

    fn touched<'a>(
        &self,
        tx: &'a Transaction,
        outputs: &'a HashMap<OutPoint, ScriptHash>,
    ) -> impl Iterator<Item = ScriptHash> + use<'a> {
        let made = tx.output.iter().map(|output| ScriptHash::of(&output.script_pubkey));
        made.chain(tx.input.iter().filter_map(|input| outputs.get(&input.previous_output).copied()))
    }

    fn find(&self, txid: Txid) -> Option<&Transaction> {
        self.all().find(|tx| tx.compute_txid() == txid)
    }

    /// Height as protocols have it.
    fn height_of(&self, txid: Txid) -> Option<i32> {
        let confirmed = self.confirmed().find(|(_, _, tx)| tx.compute_txid() == txid);
        if let Some((height, _, _)) = confirmed {
            return Some(height as i32);
        }
        let (tx, _) = self.mempool.iter().find(|(tx, _)| tx.compute_txid() == txid)?;
        Some(-i32::from(self.has_unconfirmed_parent(tx)))
    }

    fn has_unconfirmed_parent(&self, tx: &Transaction) -> bool {
        let in_mempool = |id: Txid| self.mempool.iter().any(|(tx, _)| tx.compute_txid() == id);
        tx.input.iter().any(|input| in_mempool(input.previous_output.txid))
    }
}

impl Node for MemoryNode {
    fn network(&self) -> Network {
        Network::Regtest
    }

    fn readiness(&self) -> Readiness {
        self.chain().readiness
    }

    fn tip(&self) -> Result<ChainTip> {
        let chain = self.chain();
        Ok(ChainTip { height: chain.blocks.len() as u32 - 1, header: chain.blocks.last().unwrap().0 })
    }

    fn header(&self, height: u32) -> Result<Header> {
        match self.chain().blocks.get(height as usize) {
            Some((header, _)) => Ok(*header),
            None => missing("block"),
        }
    }

    fn headers(&self, start: u32, count: u32) -> Result<Vec<Header>> {
        let chain = self.chain();
        Ok(chain.blocks.iter().skip(start as usize).take(count as usize).map(|(header, _)| *header).collect())
    }

    fn header_proof(&self, height: u32, checkpoint: u32) -> Result<HeaderProof> {
        let chain = self.chain();
        let hash = |(header, _): &(Header, _)| BlockHash::to_byte_array(header.block_hash());
        let hashes = chain.blocks[..=checkpoint as usize].iter().map(hash).collect();
        let (root, branch) = merkle(hashes, height as usize);
        Ok(HeaderProof { branch, root })
    }

    fn history(&self, script: ScriptHash) -> Result<History> {
        self.histories.fetch_add(1, Ordering::SeqCst);
        let chain = self.chain();
        if chain.busy {
            return Err(NodeError::Busy("for a test".into()));
        }
        let outputs = chain.outputs();
        let touches = |tx: &&Transaction| chain.touched(tx, &outputs).any(|touched| touched == script);
        let confirmed: Vec<_> = chain
            .confirmed()
            .filter(|(_, _, tx)| touches(tx))
            .map(|(height, _, tx)| ConfirmedTx { txid: tx.compute_txid(), height })
            .collect();
        let mempool: Vec<_> = chain
            .mempool
            .iter()
            .filter(|(tx, _)| touches(&tx))
            .map(|(tx, fee)| MempoolTx {
                txid: tx.compute_txid(),
                fee: *fee,
                unconfirmed_parent: chain.has_unconfirmed_parent(tx),
            })
            .collect();
        if confirmed.len() + mempool.len() > chain.history_limit {
            return Err(NodeError::TooLarge { limit: chain.history_limit });
        }
        Ok(History::new(confirmed, mempool))
    }

    fn unspent(&self, script: ScriptHash) -> Result<Vec<Unspent>> {
        let chain = self.chain();
        let spent =
            |outpoint| chain.all().any(|tx| tx.input.iter().any(|input| input.previous_output == outpoint));
        let mut unspent = Vec::new();
        let confirmed = chain.confirmed().map(|(height, _, tx)| (height, tx));
        for (height, tx) in confirmed.chain(chain.mempool.iter().map(|(tx, _)| (0, tx))) {
            for (vout, output) in tx.output.iter().enumerate() {
                let outpoint = OutPoint { txid: tx.compute_txid(), vout: vout as u32 };
                if ScriptHash::of(&output.script_pubkey) == script && !spent(outpoint) {
                    unspent.push(Unspent { outpoint, height, value: output.value.to_sat() });
                }
            }
        }
        Ok(unspent)
    }

    fn balance(&self, script: ScriptHash) -> Result<Balance> {
        assert!(!self.chain().panics, "as the test wants it");
        let (confirmed, mempool): (Vec<_>, Vec<_>) =
            self.unspent(script)?.into_iter().partition(|u| u.height > 0);
        let sum = |list: Vec<Unspent>| list.iter().map(|unspent| unspent.value).sum::<u64>();
        Ok(Balance { confirmed: sum(confirmed), unconfirmed: sum(mempool) as i64 })
    }

    fn outpoint(&self, outpoint: OutPoint) -> Result<OutpointStatus> {
        let chain = self.chain();
        let spender = chain.all().find(|tx| tx.input.iter().any(|input| input.previous_output == outpoint));
        let spender = spender.map(|tx| tx.compute_txid()).and_then(|id| Some((id, chain.height_of(id)?)));
        Ok(OutpointStatus { funder_height: chain.height_of(outpoint.txid), spender })
    }

    fn transaction(&self, txid: Txid) -> Result<Vec<u8>> {
        self.chain().find(txid).map(serialize).map_or_else(|| missing("transaction"), Ok)
    }

    fn transaction_verbose(&self, txid: Txid) -> Result<Value> {
        let chain = self.chain();
        let Some(tx) = chain.find(txid) else { return missing("transaction") };
        // With what would confuse Sparrow.
        Ok(json!({
            "hex": serialize_hex(tx), "txid": txid.to_string(), "confirmations": 1, "id": 5,
            "vout": [{ "id": 7, "n": 0 }],
        }))
    }

    fn transaction_proof(&self, txid: Txid, height: Option<u32>) -> Result<TxProof> {
        let chain = self.chain();
        let mut confirmed = chain.confirmed();
        let found =
            confirmed.find(|(at, _, tx)| tx.compute_txid() == txid && height.is_none_or(|h| h == *at));
        let Some((height, position, _)) = found else {
            return missing("transaction in a block of this height");
        };
        let ids =
            chain.blocks[height as usize].1.iter().map(|tx| tx.compute_txid().to_byte_array()).collect();
        let branch = merkle(ids, position).1.into_iter().map(TxMerkleNode::from_byte_array).collect();
        Ok(TxProof { height, position: position as u32, branch })
    }

    fn transaction_at(&self, height: u32, position: u32, proof: bool) -> Result<(Txid, Vec<TxMerkleNode>)> {
        let txid = match self.chain().blocks.get(height as usize).and_then(|b| b.1.get(position as usize)) {
            Some(tx) => tx.compute_txid(),
            None => return missing("transaction"),
        };
        let branch = if proof { self.transaction_proof(txid, Some(height))?.branch } else { Vec::new() };
        Ok((txid, branch))
    }

    fn estimate_fee(&self, target: u32, mode: FeeMode) -> Result<Option<u64>> {
        Ok((target < 100).then_some(if mode == FeeMode::Economical { 1_000 } else { 12_345 }))
    }

    fn mempool_info(&self) -> Result<MempoolInfo> {
        Ok(MempoolInfo { min_fee: 1_000, min_relay_fee: 100, incremental_relay_fee: 100 })
    }

    fn fee_histogram(&self) -> Result<Vec<FeeBin>> {
        // With bins that must not reach anybody.
        let bins =
            [(12.5, 30_000), (f64::NAN, 1), (3.0, 40_000), (3.0, 50_000), (7.0, 1), (1.0, 0), (0.1, 60_000)];
        Ok(bins.map(|(rate, vsize)| FeeBin { rate, vsize }).to_vec())
    }

    fn recent(&self) -> Result<Vec<RecentTx>> {
        let chain = self.chain();
        let recent = |(tx, fee): &(Transaction, u64)| RecentTx {
            txid: tx.compute_txid(),
            fee: *fee,
            vsize: tx.vsize() as u64,
        };
        Ok(chain.mempool.iter().rev().map(recent).collect())
    }

    fn broadcast(&self, raw: &[u8]) -> Result<Txid> {
        let reason = self.chain().rejects.clone();
        match (deserialize::<Transaction>(raw), reason) {
            (Err(_), _) => Err(NodeError::Rejected { reason: "TX decode failed".into() }),
            (_, Some(reason)) => Err(NodeError::Rejected { reason }),
            (Ok(tx), None) => {
                let txid = tx.compute_txid();
                self.receive(tx, 200);
                Ok(txid)
            }
        }
    }

    fn broadcast_package(&self, raws: &[Vec<u8>]) -> Result<PackageResult> {
        let mut errors = Vec::new();
        for raw in raws {
            let tx: Transaction =
                deserialize(raw).map_err(|_| NodeError::Rejected { reason: "package-malformed".into() })?;
            if let Err(error) = self.broadcast(raw) {
                errors.push((tx.compute_txid(), error.to_string()));
            }
        }
        Ok(PackageResult { success: errors.is_empty(), errors, raw: json!({ "package_msg": "success" }) })
    }

    fn test_accept(&self, raws: &[Vec<u8>]) -> Result<Value> {
        Ok(raws
            .iter()
            .map(|_| json!({ "txid": "00", "wtxid": "01", "allowed": false, "reject-reason": "why" }))
            .collect())
    }

    fn events(&self) -> broadcast::Receiver<Notice> {
        self.events.subscribe()
    }
}

/// A scanner that does nothing by itself.
#[derive(Default)]
pub(crate) struct MemorySilent {
    /// Every request, as far as it isn't secret, and where its notifications go.
    pub(crate) subscriptions: Mutex<Vec<Asked>>,
    /// Notifications to send when the node's event with this number settles.
    pub(crate) on_settle: Mutex<Vec<Notification>>,
    pub(crate) busy: Mutex<bool>,
    /// Whether it doesn't come back from settling.
    pub(crate) hangs: AtomicBool,
}

pub(crate) struct Asked {
    pub(crate) start: Start,
    pub(crate) labels: Vec<u32>,
    pub(crate) not_after: Option<u32>,
    pub(crate) sender: mpsc::UnboundedSender<Notification>,
}

impl MemorySilent {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Says something to the subscription that came as number `at`.
    pub(crate) fn tell(&self, at: usize, progress: f64, found: Vec<SilentPayment>) {
        let _ = self.subscriptions.lock().unwrap()[at].sender.send(Notification { progress, found });
    }
}

impl SilentPayments for MemorySilent {
    fn subscribe(&self, request: ScanRequest) -> Result<Subscription> {
        if *self.busy.lock().unwrap() {
            return Err(NodeError::Busy("too many scans wait".into()));
        }
        let start = match request.start {
            Start::Height(height) => height,
            Start::Time(_) => 77,
            Start::Range { to: 1_000_000.., .. } => {
                return Err(NodeError::Invalid("the range ends above the tip".into()));
            }
            Start::Range { from, .. } => from,
        };
        let (sender, notifications) = mpsc::unbounded_channel();
        self.subscriptions.lock().unwrap().push(Asked {
            start: request.start,
            labels: request.target.labels().iter().map(peregrine_scanner::Label::m).collect(),
            not_after: request.not_after,
            sender,
        });
        Ok(Subscription {
            start_height: request.not_after.map_or(start, |before| before.min(start)),
            notifications,
        })
    }

    fn settle(&self, _: u64) {
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for notification in self.on_settle.lock().unwrap().drain(..) {
            for asked in self.subscriptions.lock().unwrap().iter() {
                let _ = asked.sender.send(notification.clone());
            }
        }
    }
}
