//! Makes the chain.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::consensus::encode::serialize_hex;
use bitcoin::hashes::{Hash, sha256};
use bitcoin::script::{Builder, PushBytes};
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, Network, OutPoint, ScriptBuf, Sequence, Transaction, TxIn,
    TxOut, Witness, opcodes, transaction,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Blocks before coinbases can be spent.
pub(crate) const MATURITY: u32 = 101;
/// Transactions of a block.
const PER_BLOCK: u32 = 2_000;
/// Outputs that are around to be spent.
const POOL: usize = 20_000;

/// Make a chain with a wallet on an empty regtest node, and write down the wallet's script hashes
///
/// Transactions have two inputs and two outputs, to scripts that need no signatures, so that a million of them take about a
/// minute. The wallet has its addresses all over the chain, a few of them with many transactions.
#[derive(clap::Args)]
pub(crate) struct Chain {
    /// The node's JSON-RPC, http://127.0.0.1:PORT
    #[arg(long)]
    node: String,
    /// The node's cookie file
    #[arg(long)]
    cookie: PathBuf,
    /// At least so many transactions
    #[arg(long, default_value_t = 1_000_000)]
    transactions: u32,
    /// Addresses of the wallet
    #[arg(long, default_value_t = 3_000)]
    addresses: u32,
    /// Payments to the wallet
    #[arg(long, default_value_t = 12_000)]
    payments: u32,
    /// Everything follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to write the wallet's script hashes, one a line
    #[arg(long)]
    wallet: PathBuf,
}

/// Anybody can spend it; every number gives another script. Numbers of the wallet begin at 0x40000000.
fn script(number: u32) -> ScriptBuf {
    Builder::new()
        .push_slice(number.to_be_bytes())
        .push_opcode(opcodes::all::OP_DROP)
        .push_opcode(opcodes::OP_TRUE)
        .into_script()
}

fn wallet_script(address: u32) -> ScriptBuf {
    script(0x4000_0000 + address)
}

pub(crate) struct Maker {
    pub(crate) rng: StdRng,
    tip: BlockHash,
    height: u32,
    time: u32,
    bits: CompactTarget,
    pool: Vec<(OutPoint, u64)>,
    pub(crate) coinbases: Vec<(OutPoint, u64)>,
    /// Payments made to the wallet.
    paid: u32,
}

impl Maker {
    /// Above the genesis block.
    pub(crate) fn new(seed: u64) -> Self {
        let genesis = bitcoin::constants::genesis_block(Network::Regtest);
        Self {
            rng: StdRng::seed_from_u64(seed),
            tip: genesis.block_hash(),
            height: 0,
            time: genesis.header.time,
            bits: genesis.header.bits,
            pool: Vec::new(),
            coinbases: Vec::new(),
            paid: 0,
        }
    }

    /// Height of the last block.
    pub(crate) fn height(&self) -> u32 {
        self.height
    }

    /// The next block; with `last` its time is now. Coinbases pay to a script that anybody can spend.
    pub(crate) fn block(&mut self, transactions: Vec<Transaction>, last: bool) -> Block {
        self.height += 1;
        self.time = if last {
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(self.time, |now| now.as_secs() as u32)
        } else {
            self.time + 600
        };
        let subsidy = (50 * 100_000_000u64) >> (self.height / 150);
        let coinbase = Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: vec![TxIn {
                previous_output: OutPoint::null(),
                script_sig: Builder::new().push_int(self.height.into()).push_int(0).into_script(),
                sequence: Sequence::MAX,
                witness: Witness::new(),
            }],
            output: vec![TxOut { value: Amount::from_sat(subsidy), script_pubkey: script(0) }],
        };
        let mut block = Block {
            header: Header {
                version: Version::from_consensus(0x2000_0000),
                prev_blockhash: self.tip,
                merkle_root: Hash::all_zeros(),
                time: self.time,
                bits: self.bits,
                nonce: 0,
            },
            txdata: [vec![coinbase], transactions].concat(),
        };
        if block
            .txdata
            .iter()
            .any(|transaction| transaction.input.iter().any(|input| !input.witness.is_empty()))
        {
            commit_to_witnesses(&mut block);
        }
        self.coinbases.push((OutPoint::new(block.txdata[0].compute_txid(), 0), subsidy));
        block.header.merkle_root = block.compute_merkle_root().expect("there is a coinbase");
        while block.header.validate_pow(block.header.target()).is_err() {
            block.header.nonce += 1;
        }
        self.tip = block.block_hash();
        block
    }

    /// Spends to so many outputs, without a fee.
    fn spend(&mut self, coins: &[(OutPoint, u64)], scripts: Vec<ScriptBuf>) -> Transaction {
        let total: u64 = coins.iter().map(|(_, value)| value).sum();
        let share = total / scripts.len() as u64;
        let input = coins.iter().map(|(outpoint, _)| TxIn {
            previous_output: *outpoint,
            script_sig: ScriptBuf::new(),
            sequence: Sequence::MAX,
            witness: Witness::new(),
        });
        let transaction = Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: input.collect(),
            output: scripts
                .into_iter()
                .map(|script_pubkey| TxOut { value: Amount::from_sat(share), script_pubkey })
                .collect(),
        };
        let txid = transaction.compute_txid();
        self.pool.extend((0..transaction.output.len() as u32).map(|vout| (OutPoint::new(txid, vout), share)));
        transaction
    }

    fn take(&mut self) -> (OutPoint, u64) {
        let at = self.rng.random_range(0..self.pool.len());
        self.pool.swap_remove(at)
    }
}

/// As BIP141 has it.
fn commit_to_witnesses(block: &mut Block) {
    const RESERVED: [u8; 32] = [0; 32];
    let root = block.witness_root().expect("there is a coinbase");
    let commitment = Block::compute_witness_commitment(&root, &RESERVED);
    let mut push = vec![0xaa, 0x21, 0xa9, 0xed];
    push.extend_from_slice(commitment.as_byte_array());
    let push = <&PushBytes>::try_from(&push[..]).expect("36 bytes");
    let coinbase = &mut block.txdata[0];
    coinbase.input[0].witness.push(RESERVED);
    coinbase.output.push(TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::new_op_return(push) });
}

impl Chain {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let node = Node::new(&self.node, &self.cookie)?;
        node.expect_new_regtest()?;
        let mut maker = Maker::new(self.seed);
        let started = Instant::now();
        for _ in 0..MATURITY + 10 {
            let block = maker.block(vec![], false);
            node.submit(&block)?;
        }
        // Coins to begin with.
        let fan = (0..10).map(|number| {
            let coin = maker.coinbases[number];
            maker.spend(&[coin], (0..POOL as u32 / 10).map(script).collect())
        });
        let fan: Vec<Transaction> = fan.collect();
        let block = maker.block(fan, false);
        node.submit(&block)?;
        let blocks = self.transactions.div_ceil(PER_BLOCK);
        for number in 0..blocks {
            let mut transactions = Vec::with_capacity(PER_BLOCK as usize);
            for position in 0..PER_BLOCK {
                let coins = [maker.take(), maker.take()];
                // Payments come evenly over the whole chain.
                let done = u64::from(number) * u64::from(PER_BLOCK) + u64::from(position);
                let due = done * u64::from(self.payments) / (u64::from(blocks) * u64::from(PER_BLOCK));
                let first = if u64::from(maker.paid) < due {
                    let address = match maker.paid {
                        // Every address once, and then some of them often.
                        paid if paid < self.addresses => paid,
                        _ => {
                            let skewed = maker.rng.random::<f64>().powi(3);
                            (skewed * f64::from(self.addresses)) as u32
                        }
                    };
                    maker.paid += 1;
                    wallet_script(address)
                } else {
                    script(maker.rng.random_range(1..0x3000_0000))
                };
                let second = script(maker.rng.random_range(1..0x3000_0000));
                let transaction = maker.spend(&coins, vec![first, second]);
                transactions.push(transaction);
            }
            let block = maker.block(transactions, number + 1 == blocks);
            node.submit(&block)?;
            if number % 50 == 49 {
                let rate = f64::from(number + 1) * f64::from(PER_BLOCK) / started.elapsed().as_secs_f64();
                eprintln!(
                    "{:.0} %, {rate:.0} transactions/s",
                    100.0 * f64::from(number + 1) / f64::from(blocks)
                );
            }
        }
        let mut text = String::new();
        for address in 0..self.addresses {
            let mut hash = sha256::Hash::hash(wallet_script(address).as_bytes()).to_byte_array();
            hash.reverse();
            for byte in hash {
                write!(text, "{byte:02x}")?;
            }
            text.push('\n');
        }
        std::fs::write(&self.wallet, text).with_context(|| self.wallet.display().to_string())?;
        println!(
            "height {}, {} transactions, {} payments to {} addresses, in {:.0} s",
            maker.height,
            u64::from(blocks) * u64::from(PER_BLOCK),
            maker.paid,
            self.addresses,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// JSON-RPC of the node.
pub(crate) struct Node {
    agent: ureq::Agent,
    url: String,
    login: String,
}

impl Node {
    pub(crate) fn new(url: &str, cookie: &std::path::Path) -> anyhow::Result<Self> {
        let cookie =
            std::fs::read_to_string(cookie).with_context(|| format!("no cookie at {}", cookie.display()))?;
        let login = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, cookie.trim());
        let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
        Ok(Self { agent, url: url.to_owned(), login })
    }

    fn call(&self, method: &str, params: Value) -> anyhow::Result<Value> {
        let request = json!({ "jsonrpc": "1.0", "id": 0, "method": method, "params": params }).to_string();
        let mut response = self
            .agent
            .post(&self.url)
            .header("authorization", format!("Basic {}", self.login))
            .send(request.as_bytes())?;
        let mut answer: Value = serde_json::from_slice(&response.body_mut().read_to_vec()?)?;
        if !answer["error"].is_null() {
            bail!("{method}: {}", answer["error"]);
        }
        Ok(answer["result"].take())
    }

    pub(crate) fn expect_new_regtest(&self) -> anyhow::Result<()> {
        let info = self.call("getblockchaininfo", json!([]))?;
        ensure!(info["chain"] == "regtest" && info["blocks"] == 0, "the node must be a new one on regtest");
        Ok(())
    }

    pub(crate) fn submit(&self, block: &Block) -> anyhow::Result<()> {
        let answer = self.call("submitblock", json!([serialize_hex(block)]))?;
        ensure!(answer.is_null(), "the node refuses a block: {answer}");
        Ok(())
    }
}
