//! Made-up chains whose outputs get spent, and a plain model of what the script-hash index should answer.
// Each test binary uses its own part of this module.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn,
    TxMerkleNode, TxOut, Txid, Witness, transaction,
};
use peregrine_index::address::{
    AddressIndexWriter, AddressParams, AddressView, Balance, HistoryEntry, ScriptHash, Spender, TxPosition,
    UnspentOutput,
};
use peregrine_index::source::BlockWithPrevouts;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

pub(crate) const NO_LIMIT: usize = usize::MAX;

pub(crate) fn params() -> AddressParams {
    AddressParams::for_network(Network::Regtest)
}

pub(crate) fn open(dir: &Path) -> AddressIndexWriter {
    AddressIndexWriter::open_with_cache(dir, &params(), 8 << 20).unwrap()
}

/// A chain from genesis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) blocks: Vec<BlockWithPrevouts>,
}

/// What the index should know of a chain.
#[derive(Default)]
struct Facts {
    history: BTreeMap<ScriptHash, Vec<HistoryEntry>>,
    unspent: BTreeMap<ScriptHash, Vec<UnspentOutput>>,
    balance: BTreeMap<ScriptHash, Balance>,
    spenders: BTreeMap<OutPoint, Spender>,
    positions: BTreeMap<Txid, TxPosition>,
    outpoints: BTreeSet<OutPoint>,
    touched: Vec<BTreeSet<ScriptHash>>,
}

impl Model {
    pub(crate) fn tip(&self) -> Option<(u32, BlockHash)> {
        self.blocks.last().map(|block| (self.blocks.len() as u32 - 1, block.block.block_hash()))
    }

    pub(crate) fn prefix(&self, blocks: usize) -> Self {
        Self { blocks: self.blocks[..blocks].to_vec() }
    }

    /// Makes the next block from a seed, without adding it.
    pub(crate) fn next(&self, seed: u64) -> BlockWithPrevouts {
        let Some((tip, tip_hash)) = self.tip() else {
            let block = bitcoin::constants::genesis_block(Network::Regtest);
            return BlockWithPrevouts { block, prevouts: vec![vec![]] };
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let mut coins: BTreeMap<OutPoint, TxOut> = self.coins();
        let repeated = (tip > 3 && rng.random_ratio(1, 12)).then(|| {
            // What BIP30 forbids: the same coinbase again.
            self.blocks[rng.random_range(1..=tip as usize)].block.txdata[0].clone()
        });
        let coinbase = repeated.unwrap_or_else(|| {
            let mut script_sig = vec![8];
            script_sig.extend(rng.random::<u64>().to_le_bytes());
            let mut witness = Witness::new();
            if rng.random_bool(0.5) {
                witness.push([0; 32]);
            }
            let output = (0..rng.random_range(1..3)).map(|_| output(&mut rng)).collect();
            let input = TxIn {
                previous_output: OutPoint::null(),
                script_sig: script_sig.into(),
                sequence: Sequence::MAX,
                witness,
            };
            transaction(vec![input], output)
        });
        add_coins(&mut coins, &coinbase);
        let (mut txdata, mut prevouts) = (vec![coinbase], vec![vec![]]);
        let count = if rng.random_ratio(1, 40) { 300 } else { rng.random_range(0..8) };
        for _ in 0..count {
            let (mut input, mut spent) = (vec![], vec![]);
            for _ in 0..rng.random_range(1..4) {
                // Often the newest, so that outputs are spent in the block that makes them.
                let outpoints: Vec<OutPoint> = coins.keys().copied().collect();
                let Some(outpoint) = outpoints.choose(&mut rng).copied() else { break };
                let outpoint = match txdata.last() {
                    Some(last) if rng.random_bool(0.4) => {
                        let newest = OutPoint::new(last.compute_txid(), 0);
                        if coins.contains_key(&newest) { newest } else { outpoint }
                    }
                    _ => outpoint,
                };
                spent.extend(coins.remove(&outpoint));
                let mut witness = Witness::new();
                if rng.random_bool(0.5) {
                    witness.push(vec![1; rng.random_range(0..200)]);
                }
                let sequence = Sequence(rng.random());
                input.push(TxIn {
                    previous_output: outpoint,
                    script_sig: ScriptBuf::new(),
                    sequence,
                    witness,
                });
            }
            if input.is_empty() {
                continue;
            }
            let output = (0..rng.random_range(1..5)).map(|_| output(&mut rng)).collect();
            let transaction = transaction(input, output);
            add_coins(&mut coins, &transaction);
            txdata.push(transaction);
            prevouts.push(spent);
        }
        let header = Header {
            version: Version::TWO,
            prev_blockhash: tip_hash,
            merkle_root: TxMerkleNode::all_zeros(),
            time: rng.random(),
            bits: CompactTarget::from_consensus(0x207f_ffff),
            nonce: rng.random(),
        };
        let mut block = Block { header, txdata };
        block.header.merkle_root = block.compute_merkle_root().unwrap();
        BlockWithPrevouts { block, prevouts }
    }

    pub(crate) fn push_random(&mut self, seed: u64) {
        self.blocks.push(self.next(seed));
    }

    fn coins(&self) -> BTreeMap<OutPoint, TxOut> {
        let mut coins = BTreeMap::new();
        for block in self.blocks.iter().skip(1) {
            for transaction in &block.block.txdata {
                for input in &transaction.input {
                    coins.remove(&input.previous_output);
                }
                add_coins(&mut coins, transaction);
            }
        }
        coins
    }

    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        for (height, block) in (0..).zip(&self.blocks) {
            for (position, transaction) in (0..).zip(&block.block.txdata) {
                facts.positions.insert(transaction.compute_txid(), TxPosition { height, position });
            }
        }
        let mut unspent: BTreeMap<OutPoint, (ScriptHash, UnspentOutput)> = BTreeMap::new();
        for (height, block) in (0..).zip(&self.blocks) {
            let mut touched = BTreeSet::new();
            let transactions = block.block.txdata.iter().zip(&block.prevouts);
            for (position, (transaction, prevouts)) in (0..).zip(transactions).filter(|_| height > 0) {
                let txid = transaction.compute_txid();
                let mut scripts = BTreeSet::new();
                // One that comes again later doesn't count.
                let counts = facts.positions[&txid] == TxPosition { height, position };
                for (vin, (input, prevout)) in (0..).zip(transaction.input.iter().zip(prevouts)) {
                    scripts.insert(ScriptHash::of(&prevout.script_pubkey));
                    let outpoint = input.previous_output;
                    facts.spenders.insert(outpoint, Spender { height, position, txid, vin });
                    let (script, output) = unspent.remove(&outpoint).expect("only what is there is spent");
                    if facts.positions[&outpoint.txid]
                        == (TxPosition { height: output.height, position: output.position })
                    {
                        let balance = facts.balance.entry(script).or_default();
                        balance.spent_outputs += 1;
                        balance.spent += output.value;
                    }
                }
                for (vout, output) in (0..).zip(&transaction.output) {
                    let outpoint = OutPoint::new(txid, vout);
                    facts.outpoints.insert(outpoint);
                    facts.spenders.remove(&outpoint);
                    if is_spendable(output) {
                        let script = ScriptHash::of(&output.script_pubkey);
                        let value = output.value.to_sat();
                        scripts.insert(script);
                        let output = UnspentOutput { height, position, txid, vout, value };
                        unspent.insert(outpoint, (script, output));
                        if counts {
                            let balance = facts.balance.entry(script).or_default();
                            balance.funded_outputs += 1;
                            balance.funded += value;
                        }
                    }
                }
                touched.extend(scripts.iter().copied());
                if counts {
                    for script in scripts {
                        let entry = HistoryEntry { height, position, txid };
                        facts.history.entry(script).or_default().push(entry);
                        facts.balance.entry(script).or_default().transactions += 1;
                    }
                }
            }
            facts.touched.push(touched);
        }
        for (script, output) in unspent.into_values() {
            facts.unspent.entry(script).or_default().push(output);
        }
        facts.unspent.values_mut().for_each(|outputs| outputs.sort());
        facts
    }

    /// Whether the view answers every question about this chain, and nothing more.
    #[track_caller]
    pub(crate) fn assert_is(&self, view: &AddressView) {
        assert_eq!(view.tip(), self.tip());
        let facts = self.facts();
        let nobody = ScriptHash([9; 32]);
        let all: BTreeSet<ScriptHash> =
            facts.touched.iter().flatten().copied().chain(scripts().map(|s| ScriptHash::of(&s))).collect();
        for script in all.iter().chain([&nobody]) {
            let history = facts.history.get(script).cloned().unwrap_or_default();
            assert_eq!(view.history(script, NO_LIMIT).unwrap(), history, "history of {script}");
            assert!(history.is_empty() || view.history(script, history.len() - 1).is_err());
            assert_eq!(view.history(script, history.len()).unwrap().len(), history.len());
            let unspent = facts.unspent.get(script).cloned().unwrap_or_default();
            assert_eq!(view.unspent(script, NO_LIMIT).unwrap(), unspent, "unspent outputs of {script}");
            let balance = facts.balance.get(script).copied().unwrap_or_default();
            assert_eq!(view.balance(script, NO_LIMIT).unwrap(), balance, "balance of {script}");
            assert_eq!(balance.unspent(), unspent.iter().map(|output| output.value).sum::<u64>());
        }
        for (txid, position) in &facts.positions {
            assert_eq!(view.transaction_position(txid).unwrap(), Some(*position));
        }
        let unknown = Txid::from_byte_array([1; 32]);
        assert_eq!(view.transaction_position(&unknown).unwrap(), None);
        assert_eq!(view.spender(&OutPoint::new(unknown, 0)).unwrap(), None);
        for outpoint in &facts.outpoints {
            assert_eq!(view.spender(outpoint).unwrap(), facts.spenders.get(outpoint).copied(), "{outpoint}");
            assert_eq!(view.funder(outpoint).unwrap(), facts.positions.get(&outpoint.txid).copied());
        }
        let mut total = 0;
        for (height, (block, touched)) in (0..).zip(self.blocks.iter().zip(&facts.touched)) {
            let transactions = &block.block.txdata;
            let hash = block.block.block_hash();
            let raw = serialize(&block.block);
            total += transactions.len() as u64;
            assert_eq!(view.transactions_in_block(height), Some(transactions.len() as u32));
            let found = view.block(height).unwrap().unwrap();
            assert_eq!((found.height, found.hash, found.header), (height, hash, block.block.header));
            assert_eq!(found.size as usize, raw.len());
            let txids: Vec<Txid> = transactions.iter().map(Transaction::compute_txid).collect();
            assert_eq!(view.txids_of_block(height).unwrap().unwrap(), txids);
            for (position, transaction) in (0..).zip(transactions) {
                assert_eq!(view.txid_at(height, position).unwrap(), Some(transaction.compute_txid()));
                let location = view.location(height, position).unwrap().unwrap();
                assert_eq!((location.txid, location.block), (transaction.compute_txid(), hash));
                let bytes = &raw[location.offset as usize..][..location.size as usize];
                assert_eq!(bytes, serialize(transaction));
            }
            assert_eq!(view.txid_at(height, transactions.len() as u32).unwrap(), None);
            assert_eq!(view.location(height, u32::MAX).unwrap(), None);
            if let Some(list) = view.touched(height).unwrap() {
                assert!(list.iter().eq(touched), "touched scripts at height {height}");
            }
        }
        assert_eq!(view.transactions(), total);
        let beyond = self.blocks.len() as u32;
        assert_eq!((view.txid_at(beyond, 0).unwrap(), view.transactions_in_block(beyond)), (None, None));
        assert!(view.block(beyond).unwrap().is_none() && view.touched(beyond).unwrap().is_none());
    }
}

fn is_spendable(output: &TxOut) -> bool {
    let script = output.script_pubkey.as_bytes();
    script.first() != Some(&0x6a) && script.len() <= 10_000
}

fn add_coins(coins: &mut BTreeMap<OutPoint, TxOut>, transaction: &Transaction) {
    let txid = transaction.compute_txid();
    for (vout, output) in (0..).zip(&transaction.output).filter(|(_, output)| is_spendable(output)) {
        coins.insert(OutPoint::new(txid, vout), output.clone());
    }
}

/// Scripts that occur again and again; the first is empty, and some can't be spent.
fn scripts() -> impl Iterator<Item = ScriptBuf> {
    let mut scripts: Vec<Vec<u8>> = (0..8).map(|n| vec![n; usize::from(n) * 3]).collect();
    scripts.push([&[0x6a, 4], &[7; 4][..]].concat());
    scripts.push(vec![0x00, 0x6a]);
    scripts.push(vec![0x51; 10_000]);
    scripts.push(vec![0x51; 10_001]);
    scripts.into_iter().map(ScriptBuf::from_bytes)
}

fn output(rng: &mut StdRng) -> TxOut {
    let script_pubkey = if rng.random_ratio(1, 3) {
        let mut script = vec![0x51, 0x20];
        script.extend(rng.random::<[u8; 32]>());
        ScriptBuf::from_bytes(script)
    } else {
        scripts().nth(*[0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11].choose(rng).unwrap()).unwrap()
    };
    let value = if rng.random_ratio(1, 20) { 0 } else { rng.random_range(1..5_000_000_000) };
    TxOut { value: Amount::from_sat(value), script_pubkey }
}

fn transaction(input: Vec<TxIn>, output: Vec<TxOut>) -> Transaction {
    Transaction { version: transaction::Version::TWO, lock_time: LockTime::ZERO, input, output }
}
