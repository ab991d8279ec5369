//! Makes a chain with many rows to scan.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use bitcoin::absolute::LockTime;
use bitcoin::key::{Keypair, Secp256k1, TweakedPublicKey};
use bitcoin::secp256k1::{All, Message};
use bitcoin::sighash::{Prevouts, SighashCache, TapSighashType};
use bitcoin::{Amount, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Witness, transaction};
use rand::Rng;

use crate::chain::{MATURITY, Maker, Node};

/// Make a chain with rows for silent-payment scans on an empty regtest node
///
/// Every transaction spends a taproot output and makes one, as dense as the main chain's latest blocks are. Signing them
/// takes about a minute for a million rows, checking them as long.
#[derive(clap::Args)]
pub(crate) struct SilentChain {
    /// The node's JSON-RPC, http://127.0.0.1:PORT
    #[arg(long)]
    node: String,
    /// The node's cookie file
    #[arg(long)]
    cookie: PathBuf,
    /// Blocks with rows; the default is about a week
    #[arg(long, default_value_t = 1_008)]
    blocks: u32,
    /// Rows of a block
    #[arg(long, default_value_t = 735)]
    rows: u32,
}

/// Keys that outputs are paid to.
const KEYS: usize = 64;
/// Outputs around to be spent, in blocks.
const POOL: u32 = 2;

struct Coin {
    outpoint: OutPoint,
    output: TxOut,
    key: usize,
}

struct Signer {
    secp: Secp256k1<All>,
    keys: Vec<Keypair>,
}

impl Signer {
    fn script(&self, key: usize) -> ScriptBuf {
        let (key, _) = self.keys[key].x_only_public_key();
        ScriptBuf::new_p2tr_tweaked(TweakedPublicKey::dangerous_assume_tweaked(key))
    }

    /// Spends a coin to another key.
    fn spend(&self, coin: &Coin, key: usize) -> anyhow::Result<(Transaction, Coin)> {
        let output = TxOut { value: coin.output.value, script_pubkey: self.script(key) };
        let mut transaction = payment(vec![coin.outpoint], vec![output.clone()]);
        let mut cache = SighashCache::new(&mut transaction);
        let prevouts = [&coin.output];
        let hash =
            cache.taproot_key_spend_signature_hash(0, &Prevouts::All(&prevouts), TapSighashType::Default)?;
        let signature = self.secp.sign_schnorr_no_aux_rand(&Message::from(hash), &self.keys[coin.key]);
        let witness = cache.witness_mut(0).context("there is an input")?;
        *witness = Witness::from_slice(&[signature.as_ref()]);
        let outpoint = OutPoint::new(transaction.compute_txid(), 0);
        Ok((transaction, Coin { outpoint, output, key }))
    }
}

fn payment(inputs: Vec<OutPoint>, output: Vec<TxOut>) -> Transaction {
    let input = inputs.into_iter().map(|previous_output| TxIn {
        previous_output,
        script_sig: ScriptBuf::new(),
        sequence: Sequence::MAX,
        witness: Witness::new(),
    });
    Transaction {
        version: transaction::Version::TWO,
        lock_time: LockTime::ZERO,
        input: input.collect(),
        output,
    }
}

impl SilentChain {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let node = Node::new(&self.node, &self.cookie)?;
        node.expect_new_regtest()?;
        let mut maker = Maker::new(2);
        let secp = Secp256k1::new();
        let keys = (0..KEYS).map(|_| Keypair::from_seckey_slice(&secp, &maker.rng.random::<[u8; 32]>()));
        let signer = Signer { keys: keys.collect::<Result<_, _>>()?, secp };
        let started = Instant::now();
        for _ in 0..=MATURITY {
            node.submit(&maker.block(vec![], false))?;
        }
        // One transaction makes all coins, out of a coinbase that anybody can spend. It has no row: no key signs for it.
        let (coinbase, subsidy) = maker.coinbases[0];
        let count = POOL * self.rows;
        let value = Amount::from_sat(subsidy / u64::from(count.max(1)));
        ensure!(value > Amount::from_sat(1000), "too many rows in a block");
        let key_of = |number: u32| number as usize % KEYS;
        let outputs = (0..count).map(|number| TxOut { value, script_pubkey: signer.script(key_of(number)) });
        let fan = payment(vec![coinbase], outputs.collect());
        let txid = fan.compute_txid();
        let mut coins: Vec<Coin> = (0..count)
            .zip(&fan.output)
            .map(|(vout, output)| Coin {
                outpoint: OutPoint::new(txid, vout),
                output: output.clone(),
                key: key_of(vout),
            })
            .collect();
        node.submit(&maker.block(vec![fan], false))?;
        for number in 0..self.blocks {
            let mut transactions = Vec::with_capacity(self.rows as usize);
            for _ in 0..self.rows {
                let at = maker.rng.random_range(0..coins.len());
                let (transaction, coin) = signer.spend(&coins[at], maker.rng.random_range(0..KEYS))?;
                coins[at] = coin;
                transactions.push(transaction);
            }
            node.submit(&maker.block(transactions, number + 1 == self.blocks))?;
            if number % 50 == 49 {
                let done = f64::from(number + 1) / f64::from(self.blocks);
                let rate = f64::from(number + 1) * f64::from(self.rows) / started.elapsed().as_secs_f64();
                eprintln!("{:.0} %, {rate:.0} rows/s", 100.0 * done);
            }
        }
        println!(
            "height {}, {} rows in the last {} blocks, in {:.0} s",
            maker.height(),
            u64::from(self.rows) * u64::from(self.blocks),
            self.blocks,
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }
}
