//! A chain made up from a seed: blocks with every kind of input, payments to known wallets, decoys, and a
//! reorganisation. The demo runs on it, and tests and benches that need a chain without a node.
//!
//! It is a [`ChainSource`] that hands out the same bytes as a node's REST interface, so that everything behind it is
//! the code that runs on a real chain. What was paid to whom is computed on the sender's side only, which makes
//! [`SyntheticChain::planted`] an independent answer to compare a scan with.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bitcoin::block::{Header, Version};
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::script::Builder;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn,
    TxMerkleNode, TxOut, Txid, Witness, absolute, transaction,
};
use peregrine_scanner::synthetic::{Coin, InputKind, script_pubkey, spend};
use peregrine_scanner::{Address, AddressNetwork, KeyError, Label, ScanKey, ScanTarget, SpendKey, send};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use secp256k1::SecretKey;

use crate::source::{BlockWithPrevouts, ChainSource, SourceError, Tip, encode_spent_outputs, parse_block};

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Height of the first branch's tip.
    pub blocks: u32,
    /// Blocks that the reorganisation takes away; the second branch is one block longer than the first. At most `blocks`.
    pub reorg_depth: u32,
    /// Everything follows from it.
    pub seed: u64,
    /// Transactions per block besides the coinbase.
    pub transactions: u32,
    /// One in so many transactions pays a wallet, if its inputs allow that.
    pub payment_every: u32,
}

/// A wallet that receives payments.
pub struct Wallet {
    /// Its scan key.
    pub scan: ScanKey,
    /// Its spend key.
    pub spend: SpendKey,
    /// Labels that it gave out, besides the change label.
    pub labels: Vec<u32>,
}

impl Wallet {
    fn random(rng: &mut StdRng, labels: Vec<u32>) -> Self {
        let [scan, spend] = [random_key(rng), random_key(rng)].map(|key| key.to_secret_bytes());
        Self {
            scan: ScanKey::from_bytes(scan).expect("it came from a key"),
            spend: SpendKey::from_bytes(spend).expect("it came from a key"),
            labels,
        }
    }

    /// What a scan for this wallet looks for.
    pub fn target(&self) -> Result<ScanTarget, KeyError> {
        ScanTarget::new(self.scan.clone(), self.spend.public_key(), self.labels.iter().copied())
    }

    /// Its regtest address, without or with a label.
    pub fn address(&self, label: Option<u32>) -> Address {
        let spend = self.spend.public_key();
        let spend = match label {
            None => spend,
            Some(m) => Label::new(&self.scan, m)
                .and_then(|label| label.apply(&spend))
                .expect("random keys don't cancel"),
        };
        Address::new(AddressNetwork::Regtest, self.scan.public_key(), spend)
    }
}

/// One output paid to a wallet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planted {
    /// Height of the block.
    pub height: u32,
    /// The transaction.
    pub txid: Txid,
    /// Index of the output in the transaction.
    pub vout: u32,
    /// Which wallet.
    pub wallet: usize,
    /// The label it was sent to; 0 is change, `None` the address without a label.
    pub label: Option<u32>,
    /// Satoshi.
    pub value: u64,
}

struct Stored {
    header: Header,
    block: Vec<u8>,
    spent: Vec<u8>,
}

/// One of the two branches, from genesis to its tip.
struct Branch {
    hashes: Vec<BlockHash>,
    planted: Vec<Planted>,
}

/// The chain, with one of its branches active.
pub struct SyntheticChain {
    blocks: HashMap<BlockHash, Stored>,
    branches: [Branch; 2],
    wallets: Vec<Wallet>,
    active: AtomicUsize,
}

impl SyntheticChain {
    /// Makes the chain; uses all cores.
    pub fn generate(plan: Plan) -> Self {
        let mut rng = StdRng::seed_from_u64(plan.seed);
        let wallets = vec![
            Wallet::random(&mut rng, vec![]),
            Wallet::random(&mut rng, vec![1, 2, 3]),
            Wallet::random(&mut rng, vec![1_000_000, u32::MAX]),
        ];
        let genesis = bitcoin::constants::genesis_block(Network::Regtest);
        let first_contents = contents(&plan, &wallets, 0, 1..=plan.blocks);
        let fork = plan.blocks - plan.reorg_depth.min(plan.blocks);
        let second_contents = contents(&plan, &wallets, 1, fork + 1..=plan.blocks + 1);

        let mut blocks = HashMap::new();
        let genesis_hash = genesis.block_hash();
        let spent = encode_spent_outputs(&[vec![]]);
        blocks.insert(genesis_hash, Stored { header: genesis.header, block: serialize(&genesis), spent });
        let mut first = Branch { hashes: vec![genesis_hash], planted: vec![] };
        first.extend(first_contents, &mut blocks);
        let mut second = Branch {
            hashes: first.hashes[..=fork as usize].to_vec(),
            planted: first.planted.iter().filter(|planted| planted.height <= fork).cloned().collect(),
        };
        second.extend(second_contents, &mut blocks);
        Self { blocks, branches: [first, second], wallets, active: AtomicUsize::new(0) }
    }

    /// The wallets that are paid.
    pub fn wallets(&self) -> &[Wallet] {
        &self.wallets
    }

    /// Every output paid to a wallet on the active branch, by height, then in no particular order.
    pub fn planted(&self) -> &[Planted] {
        &self.branch().planted
    }

    /// Makes the second branch the best chain. From then on the first branch's blocks are stale.
    pub fn reorganise(&self) {
        self.active.store(1, Ordering::Release);
    }

    fn branch(&self) -> &Branch {
        &self.branches[self.active.load(Ordering::Acquire)]
    }
}

impl Branch {
    fn extend(&mut self, contents: Vec<Contents>, blocks: &mut HashMap<BlockHash, Stored>) {
        for content in contents {
            let height = self.hashes.len() as u32;
            let previous = *self.hashes.last().expect("a branch starts with genesis");
            let mut block = Block {
                header: Header {
                    version: Version::TWO,
                    prev_blockhash: previous,
                    merkle_root: TxMerkleNode::all_zeros(),
                    time: 1_700_000_000 + 600 * height,
                    bits: CompactTarget::from_consensus(0x207f_ffff),
                    nonce: 0,
                },
                txdata: content.transactions,
            };
            commit_to_witnesses(&mut block);
            block.header.merkle_root = block.compute_merkle_root().expect("there is a coinbase");
            while block.header.validate_pow(block.header.target()).is_err() {
                block.header.nonce += 1;
            }
            let hash = block.block_hash();
            let spent = encode_spent_outputs(&content.prevouts);
            blocks.insert(hash, Stored { header: block.header, block: serialize(&block), spent });
            self.hashes.push(hash);
            self.planted.extend(content.planted);
        }
    }
}

/// Puts the commitment to the witnesses into the coinbase (BIP141).
fn commit_to_witnesses(block: &mut Block) {
    let reserved = [0; 32];
    block.txdata[0].input[0].witness.push(reserved);
    let root = block.witness_root().expect("there is a coinbase");
    let commitment = Block::compute_witness_commitment(&root, &reserved);
    let script = [&[0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed], &commitment.to_byte_array()[..]].concat();
    block.txdata[0].output.push(TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::from_bytes(script) });
}

impl ChainSource for SyntheticChain {
    fn describe(&self) -> String {
        "synthetic chain".to_owned()
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        let hashes = &self.branch().hashes;
        Ok(Tip { height: hashes.len() as u32 - 1, hash: hashes[hashes.len() - 1] })
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        Ok(self.branch().hashes.get(height as usize).copied())
    }

    fn headers_after(
        &self,
        after: BlockHash,
        after_height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        let hashes = &self.branch().hashes;
        if hashes.get(after_height as usize) != Some(&after) {
            return Ok(None);
        }
        let following = hashes.iter().skip(after_height as usize + 1).take(count);
        Ok(Some(following.map(|hash| self.blocks[hash].header).collect()))
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        let stored = self.blocks.get(&hash).ok_or(SourceError::UnknownBlock(hash))?;
        parse_block(hash, &stored.block, &stored.spent)
    }
}

/// A block's transactions before it has a place in a chain.
struct Contents {
    transactions: Vec<Transaction>,
    prevouts: Vec<Vec<TxOut>>,
    planted: Vec<Planted>,
}

fn contents(
    plan: &Plan,
    wallets: &[Wallet],
    branch: u64,
    heights: std::ops::RangeInclusive<u32>,
) -> Vec<Contents> {
    // Each block has its own generator, so that blocks can be made side by side and don't depend on each other.
    heights
        .into_par_iter()
        .map(|height| {
            let mut rng = StdRng::seed_from_u64(
                plan.seed ^ (branch << 32 | u64::from(height)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            );
            let mut contents = Contents {
                transactions: vec![coinbase(&mut rng, height)],
                prevouts: vec![vec![]],
                planted: vec![],
            };
            for _ in 0..plan.transactions {
                contents.add_transaction(&mut rng, wallets, height, plan.payment_every);
            }
            contents
        })
        .collect()
}

fn coinbase(rng: &mut StdRng, height: u32) -> Transaction {
    Transaction {
        version: transaction::Version::TWO,
        lock_time: absolute::LockTime::ZERO,
        input: vec![TxIn {
            previous_output: OutPoint::null(),
            script_sig: Builder::new().push_int(i64::from(height)).push_slice([0; 4]).into_script(),
            sequence: Sequence::MAX,
            witness: Witness::new(),
        }],
        // Miners pay themselves to taproot too; that never makes a row.
        output: vec![TxOut {
            value: Amount::from_sat(5_000_000_000),
            script_pubkey: script_pubkey(InputKind::TaprootKeyPath, &random_key(rng)),
        }],
    }
}

impl Contents {
    fn add_transaction(&mut self, rng: &mut StdRng, wallets: &[Wallet], height: u32, payment_every: u32) {
        let kinds = if rng.random_ratio(1, 30) { &InputKind::ALL[..] } else { &InputKind::ALL[..14] };
        let coins: Vec<Coin> = (0..rng.random_range(1..=3)).map(|_| random_coin(rng, kinds)).collect();
        let input_keys: Vec<_> = coins.iter().filter_map(Coin::input_key).collect();
        let eligible =
            !input_keys.is_empty() && coins.iter().all(|coin| coin.kind != InputKind::FutureWitness);

        // Who is paid: (wallet, label), in the order of k for each wallet.
        let mut payments: Vec<(usize, Option<u32>)> = Vec::new();
        if eligible && rng.random_ratio(1, payment_every.max(1)) {
            let wallet = rng.random_range(0..wallets.len());
            for _ in 0..*[1, 1, 1, 2, 3, 8].choose(rng).expect("not empty") {
                payments.push((wallet, random_label(rng, &wallets[wallet])));
            }
            if rng.random_ratio(1, 4) {
                let other = (wallet + 1) % wallets.len();
                payments.push((other, random_label(rng, &wallets[other])));
            }
        }
        let addresses: Vec<Address> =
            payments.iter().map(|(wallet, label)| wallets[*wallet].address(*label)).collect();
        let keys = if payments.is_empty() {
            vec![]
        } else {
            send::output_keys(&input_keys, coins.iter().map(|coin| coin.outpoint), &addresses)
                .expect("the inputs are eligible")
        };
        let mut outputs: Vec<(TxOut, Option<usize>)> =
            keys.iter().enumerate().map(|(index, key)| (taproot_output(rng, key), Some(index))).collect();
        if let Some(key) = keys.first().filter(|_| rng.random_ratio(1, 3)) {
            // A decoy that starts like the payment, which is all that the index can see of it.
            let mut twin = *key;
            twin[31] ^= 1;
            outputs.push((taproot_output(rng, &twin), None));
        }
        for _ in 0..rng.random_range(if outputs.is_empty() { 1..4 } else { 0..3 }) {
            let output = match rng.random_range(0..4) {
                // Half of all 32-byte texts aren't points; nothing stops anybody from paying to them.
                0 => {
                    let key = random_bytes(rng);
                    taproot_output(rng, &key)
                }
                1 => TxOut {
                    value: random_value(rng),
                    script_pubkey: script_pubkey(InputKind::P2wpkh, &random_key(rng)),
                },
                _ => TxOut {
                    value: random_value(rng),
                    script_pubkey: script_pubkey(InputKind::TaprootKeyPath, &random_key(rng)),
                },
            };
            outputs.push((output, None));
        }
        outputs.shuffle(rng);

        let transaction = spend(&coins, outputs.iter().map(|(output, _)| output.clone()).collect());
        let txid = transaction.compute_txid();
        for (vout, (output, payment)) in (0..).zip(&outputs) {
            if let Some(index) = payment {
                let (wallet, label) = payments[*index];
                self.planted.push(Planted {
                    height,
                    txid,
                    vout,
                    wallet,
                    label,
                    value: output.value.to_sat(),
                });
            }
        }
        self.prevouts.push(coins.iter().map(Coin::output).collect());
        self.transactions.push(transaction);
    }
}

fn random_bytes(rng: &mut StdRng) -> [u8; 32] {
    rng.random()
}

fn random_key(rng: &mut StdRng) -> SecretKey {
    loop {
        if let Ok(key) = SecretKey::from_secret_bytes(random_bytes(rng)) {
            return key;
        }
    }
}

fn random_value(rng: &mut StdRng) -> Amount {
    Amount::from_sat(rng.random_range(330..2_000_000))
}

fn random_coin(rng: &mut StdRng, kinds: &[InputKind]) -> Coin {
    Coin {
        kind: *kinds.choose(rng).expect("there are kinds"),
        key: random_key(rng),
        outpoint: OutPoint::new(Txid::from_byte_array(random_bytes(rng)), rng.random_range(0..1000)),
        value: rng.random_range(1_000_000..100_000_000),
    }
}

fn random_label(rng: &mut StdRng, wallet: &Wallet) -> Option<u32> {
    let labels: Vec<Option<u32>> = [None, None, Some(Label::CHANGE)]
        .into_iter()
        .chain(wallet.labels.iter().copied().map(Some))
        .collect();
    *labels.choose(rng).expect("not empty")
}

fn taproot_output(rng: &mut StdRng, key: &[u8; 32]) -> TxOut {
    let script_pubkey = ScriptBuf::from_bytes([&[0x51, 0x20], &key[..]].concat());
    TxOut { value: random_value(rng), script_pubkey }
}
