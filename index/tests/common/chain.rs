//! A regtest chain made without a wallet: spends of every kind, payments to known wallets, reorganisations.
//!
//! What was paid to whom, and which transactions make a row, is noted on the sender's side.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeSet, HashSet};

use bitcoin::consensus::encode::{deserialize_hex, serialize_hex};
use bitcoin::{Amount, Block, BlockHash, OutPoint, ScriptBuf, Transaction, TxOut, Txid};
use peregrine_index::synthetic::{Planted, Wallet};
use peregrine_index::testkit::TestNode;
use peregrine_scanner::synthetic::{Coin, InputKind, script_pubkey, spend};
use peregrine_scanner::{Label, ScanKey, SpendKey, send};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use secp256k1::SecretKey;
use serde_json::json;

/// Pays to a script that anybody can spend.
pub(crate) const ANYONE: &str = "raw(51)";

/// What a transaction pays to miners, and up to 30 satoshi of rounding.
pub(crate) const FEE: u64 = 10_000;

/// A payment to make: which wallet, and which label.
pub(crate) type Payment = (usize, Option<u32>);

/// A transaction that receivers can see, as the index should have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) height: u32,
    pub(crate) txid: Txid,
    /// Number of taproot outputs.
    pub(crate) outputs: u32,
    /// Value of the largest one.
    pub(crate) max_value: u64,
}

/// A transaction of the chain, or of the block that is being made.
#[derive(Clone)]
struct Made {
    transaction: Transaction,
    /// Outputs that can be spent.
    coins: Vec<Coin>,
    planted: Vec<Planted>,
    row: Option<Row>,
    height: u32,
}

/// Makes blocks with transactions.
pub(crate) struct ChainMaker<'a> {
    node: &'a TestNode,
    rng: StdRng,
    /// Owns all coinbases.
    miner: SecretKey,
    descriptor: String,
    wallets: Vec<Wallet>,
    /// Height of the tip; transactions are made for the block after it.
    height: u32,
    made: Vec<Made>,
    /// Coins that aren't spent, without coinbases.
    coins: Vec<Coin>,
}

impl<'a> ChainMaker<'a> {
    /// Mines 110 blocks, so that the first coinbases can be spent. Coinbases pay to taproot keys, which makes no rows.
    pub(crate) fn new(node: &'a TestNode, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let miner = random_key(&mut rng);
        let script = script_pubkey(InputKind::TaprootKeyPath, &miner);
        let info = node.call("getdescriptorinfo", json!([format!("raw({script:x})")]));
        let descriptor = format!("raw({script:x})#{}", info["checksum"].as_str().unwrap());
        node.generate_to_descriptor(110, &descriptor);
        let wallets =
            [vec![], vec![1, 2, 3], vec![1_000_000, u32::MAX]].map(|labels| wallet(&mut rng, labels));
        Self {
            node,
            rng,
            miner,
            descriptor,
            wallets: wallets.into(),
            height: 110,
            made: vec![],
            coins: vec![],
        }
    }

    /// The wallets that are paid.
    pub(crate) fn wallets(&self) -> &[Wallet] {
        &self.wallets
    }

    /// Height of the tip.
    pub(crate) fn height(&self) -> u32 {
        self.height
    }

    /// Number of transactions besides coinbases.
    pub(crate) fn transactions(&self) -> usize {
        self.made.len()
    }

    /// Every output that was paid to a wallet and that its owner can find, sorted.
    pub(crate) fn planted(&self) -> Vec<Planted> {
        let all: BTreeSet<Planted> = self.made.iter().flat_map(|made| made.planted.clone()).collect();
        all.into_iter().collect()
    }

    /// The rows of the chain, in its order.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.made.iter().filter_map(|made| made.row.clone()).collect()
    }

    /// Spends a coinbase into two coins of each kind, in the next block.
    pub(crate) fn fan_out(&mut self) {
        let coinbase = self.coinbase();
        let kinds = [InputKind::ALL, InputKind::ALL].concat();
        self.transaction(&[coinbase], &[], &kinds);
    }

    /// Spends one coin of each of these kinds to these payments, in the next block. The transaction has decoys, and
    /// leaves coins of the same kinds.
    pub(crate) fn pay(&mut self, kinds: &[InputKind], payments: &[Payment]) -> Txid {
        let coins: Vec<Coin> = kinds
            .iter()
            .map(|kind| {
                let position =
                    self.coins.iter().position(|coin| coin.kind == *kind).expect("a coin of this kind");
                self.coins.remove(position)
            })
            .collect();
        self.transaction(&coins, payments, kinds)
    }

    /// A transaction that was made, in hexadecimal, and the script of its first payment to a wallet, or else of its first
    /// output.
    pub(crate) fn raw_and_script(&self, txid: Txid) -> (String, ScriptBuf) {
        let made =
            self.made.iter().find(|made| made.transaction.compute_txid() == txid).expect("it was made");
        let vout = made.planted.first().map_or(0, |planted| planted.vout as usize);
        (serialize_hex(&made.transaction), made.transaction.output[vout].script_pubkey.clone())
    }

    /// Another transaction that spends the coins of one that was made, which is forgotten.
    pub(crate) fn rival(&mut self, txid: Txid) -> String {
        let position = self.made.iter().position(|made| made.transaction.compute_txid() == txid);
        let made = self.made.remove(position.expect("it was made"));
        let mut rival = made.transaction;
        let keys = self.made.iter().flat_map(|made| &made.coins);
        let spent: Vec<Coin> = keys.filter(|coin| made_spends(&rival, coin)).cloned().collect();
        rival.output.truncate(1);
        serialize_hex(&spend(&spent, rival.output))
    }

    /// A transaction of one to four coins of any kind; one in three that can, pays wallets.
    pub(crate) fn pay_at_random(&mut self) {
        let mut coins = Vec::new();
        for _ in 0..self.rng.random_range(1..=4) {
            let position = self.rng.random_range(0..self.coins.len());
            // One that excludes the whole transaction is only taken now and then.
            if self.coins[position].kind != InputKind::FutureWitness || self.rng.random_ratio(1, 5) {
                coins.push(self.coins.swap_remove(position));
            }
        }
        if coins.is_empty() {
            return;
        }
        let mut payments: Vec<Payment> = Vec::new();
        if coins.iter().any(|coin| coin.kind.gives_key()) && self.rng.random_ratio(1, 3) {
            let wallet = self.rng.random_range(0..self.wallets.len());
            for _ in 0..*[1, 1, 2, 5].choose(&mut self.rng).unwrap() {
                payments.push((wallet, self.random_label(wallet)));
            }
            if self.rng.random_ratio(1, 3) {
                let other = (wallet + 1) % self.wallets.len();
                payments.push((other, self.random_label(other)));
            }
        }
        let change: Vec<InputKind> =
            coins.iter().map(|_| *InputKind::ALL.choose(&mut self.rng).unwrap()).collect();
        self.transaction(&coins, &payments, &change);
    }

    /// Mines the next block with the transactions made for it.
    pub(crate) fn mine(&mut self) -> BlockHash {
        self.height += 1;
        let next = self.made.iter().filter(|made| made.height == self.height);
        let transactions: Vec<String> = next.map(|made| serialize_hex(&made.transaction)).collect();
        self.node.generate_block(&self.descriptor, &transactions)
    }

    /// Mines blocks with so many random transactions each; the first spends a coinbase, too.
    pub(crate) fn blocks(&mut self, count: u32, transactions: u32) {
        for number in 0..count {
            if number == 0 {
                self.fan_out();
            }
            for _ in 0..transactions {
                self.pay_at_random();
            }
            self.mine();
        }
    }

    /// Mines blocks without transactions.
    pub(crate) fn empty_blocks(&mut self, count: u32) {
        self.node.generate_to_descriptor(count, &self.descriptor);
        self.height += count;
    }

    /// Takes the last `depth` blocks back, and makes a branch that is one block longer. Some of the transactions taken
    /// back come again.
    pub(crate) fn reorganise(&mut self, depth: u32) {
        let fork = self.height - depth;
        self.node.invalidate(self.node.block_hash(fork + 1));
        self.height = fork;
        let dropped = self.made.split_off(self.made.partition_point(|made| made.height <= fork));
        let spent: HashSet<OutPoint> = self.made.iter().flat_map(Made::spent).collect();
        let made = self.made.iter().flat_map(|made| made.coins.clone());
        self.coins = made.filter(|coin| !spent.contains(&coin.outpoint)).collect();
        for (number, made) in (0..).zip(dropped) {
            if number % 3 == 0 {
                self.repeat(made);
            }
        }
        self.blocks(depth + 1, 1);
    }

    /// Makes a transaction once more, for the next block, if its coins are there.
    fn repeat(&mut self, mut made: Made) {
        let spent: HashSet<OutPoint> = made.spent().collect();
        let kept: Vec<Coin> =
            self.coins.iter().filter(|coin| !spent.contains(&coin.outpoint)).cloned().collect();
        if self.coins.len() - kept.len() == spent.len() {
            self.coins = kept;
            self.coins.extend(made.coins.clone());
            made.height = self.height + 1;
            made.planted.iter_mut().for_each(|planted| planted.height = made.height);
            made.row.iter_mut().for_each(|row| row.height = made.height);
            self.made.push(made);
        }
    }

    /// The first coinbase that isn't spent.
    fn coinbase(&self) -> Coin {
        let spent: HashSet<OutPoint> = self.made.iter().flat_map(Made::spent).collect();
        for height in 1..=self.height - 99 {
            let hash = self.node.block_hash(height);
            let hex = self.node.call("getblock", json!([hash.to_string(), 0]));
            let block: Block = deserialize_hex(hex.as_str().unwrap()).unwrap();
            let outpoint = OutPoint::new(block.txdata[0].compute_txid(), 0);
            if !spent.contains(&outpoint) {
                let value = block.txdata[0].output[0].value.to_sat();
                return Coin { kind: InputKind::TaprootKeyPath, key: self.miner, outpoint, value };
            }
        }
        panic!("all coinbases that may be spent are spent");
    }

    /// Spends `coins` to the payments, decoys and new coins of the kinds in `change`.
    fn transaction(&mut self, coins: &[Coin], payments: &[Payment], change: &[InputKind]) -> Txid {
        let input_keys: Vec<_> = coins.iter().filter_map(Coin::input_key).collect();
        let addresses: Vec<_> =
            payments.iter().map(|(wallet, label)| self.wallets[*wallet].address(*label)).collect();
        let outpoints = coins.iter().map(|coin| coin.outpoint);
        let keys = match &addresses[..] {
            [] => vec![],
            addresses => send::output_keys(&input_keys, outpoints, addresses).expect("an input gives a key"),
        };
        let visible =
            !input_keys.is_empty() && coins.iter().all(|coin| coin.kind != InputKind::FutureWitness);

        enum Use {
            Payment(Payment),
            Coin(InputKind, SecretKey),
            Decoy,
        }
        let rng = &mut self.rng;
        let mut outputs: Vec<(TxOut, Use)> = Vec::new();
        for (key, payment) in keys.iter().zip(payments) {
            outputs.push((taproot_output(rng, key), Use::Payment(*payment)));
            if rng.random_ratio(1, 4) {
                // Starts like the payment, which is all that the index can see of it.
                let mut twin = *key;
                twin[31] ^= 1;
                outputs.push((taproot_output(rng, &twin), Use::Decoy));
            }
        }
        if rng.random_bool(0.5) {
            let key = rng.random();
            outputs.push((taproot_output(rng, &key), Use::Decoy));
        }
        let total: u64 = coins.iter().map(|coin| coin.value).sum();
        let used: u64 = outputs.iter().map(|(output, _)| output.value.to_sat()).sum();
        let value = (total - used - FEE) / change.len() as u64;
        for kind in change {
            let key = random_key(rng);
            let output = TxOut { value: Amount::from_sat(value), script_pubkey: script_pubkey(*kind, &key) };
            outputs.push((output, Use::Coin(*kind, key)));
        }
        outputs.shuffle(rng);

        let transaction = spend(coins, outputs.iter().map(|(output, _)| output.clone()).collect());
        let txid = transaction.compute_txid();
        let height = self.height + 1;
        let taproot: Vec<u64> = outputs
            .iter()
            .filter(|(output, _)| output.script_pubkey.is_p2tr())
            .map(|(output, _)| output.value.to_sat())
            .collect();
        let row = taproot.iter().max().filter(|_| visible).map(|max_value| Row {
            height,
            txid,
            outputs: taproot.len() as u32,
            max_value: *max_value,
        });
        let mut made = Made { transaction, coins: vec![], planted: vec![], row, height };
        for (vout, (output, purpose)) in (0..).zip(&outputs) {
            let value = output.value.to_sat();
            match purpose {
                Use::Payment((wallet, label)) if visible => {
                    made.planted.push(Planted { height, txid, vout, wallet: *wallet, label: *label, value });
                }
                Use::Coin(kind, key) => {
                    let outpoint = OutPoint::new(txid, vout);
                    made.coins.push(Coin { kind: *kind, key: *key, outpoint, value });
                }
                Use::Payment(_) | Use::Decoy => {}
            }
        }
        self.coins.extend(made.coins.clone());
        self.made.push(made);
        txid
    }

    fn random_label(&mut self, wallet: usize) -> Option<u32> {
        let given_out = self.wallets[wallet].labels.iter().copied().map(Some);
        let labels: Vec<Option<u32>> = [None, Some(Label::CHANGE)].into_iter().chain(given_out).collect();
        *labels.choose(&mut self.rng).unwrap()
    }
}

fn made_spends(transaction: &Transaction, coin: &Coin) -> bool {
    transaction.input.iter().any(|input| input.previous_output == coin.outpoint)
}

impl Made {
    fn spent(&self) -> impl Iterator<Item = OutPoint> {
        self.transaction.input.iter().map(|input| input.previous_output)
    }
}

fn wallet(rng: &mut StdRng, labels: Vec<u32>) -> Wallet {
    let [scan, spend] = [random_key(rng), random_key(rng)].map(|key| key.to_secret_bytes());
    Wallet { scan: ScanKey::from_bytes(scan).unwrap(), spend: SpendKey::from_bytes(spend).unwrap(), labels }
}

fn random_key(rng: &mut StdRng) -> SecretKey {
    SecretKey::from_secret_bytes(rng.random()).expect("2^-128")
}

fn taproot_output(rng: &mut StdRng, key: &[u8; 32]) -> TxOut {
    let script_pubkey = ScriptBuf::from_bytes([&[0x51, 0x20], &key[..]].concat());
    TxOut { value: Amount::from_sat(rng.random_range(330..100_000)), script_pubkey }
}
