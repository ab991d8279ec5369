//! A wallet that does with a server what Sparrow does, and panics where Sparrow would hang, lose a payment, or never load
//! again. What a single line may be is checked by the client below it; here is what lines mean together.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bitcoin::block::Header;
use bitcoin::consensus::encode::deserialize_hex;
use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::DisplayHex;
use bitcoin::{ScriptBuf, Transaction, Txid};
use peregrine_scanner::receive::find_outputs;
use peregrine_scanner::tweak::taproot_key;
use peregrine_scanner::{Address, AddressNetwork, ScanTarget, Tweak, keys};
use serde_json::{Value, json};

use crate::client::Client;

const SUBSCRIBE: &str = "blockchain.silentpayments.subscribe";
const UNSUBSCRIBE: &str = "blockchain.silentpayments.unsubscribe";

/// What comes earlier after the reply, Sparrow may lose.
const HOLD: Duration = Duration::from_millis(250);
/// An empty notification is to come every five seconds; a loaded machine is slow.
const HEARTBEAT: Duration = Duration::from_secs(8);
/// Requests in a batch.
const PAGE: usize = 100;

/// What a notification was about.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// These transactions pay the wallet.
    Payments(Vec<Txid>),
    /// A script of the wallet has another history.
    Script(ScriptBuf),
    /// There is a new tip, of this height.
    Tip(u64),
}

/// A transaction that the wallet was told of.
struct Entry {
    /// As it was told last; 0 in the mempool.
    height: u64,
    /// Whether it was told of in the mempool.
    unconfirmed: bool,
}

/// A script of the wallet.
struct Script {
    script: ScriptBuf,
    status: Value,
    history: Value,
}

/// The wallet and its connection.
pub(crate) struct Sparrow {
    client: Client,
    target: ScanTarget,
    address: String,
    /// The subscription as the reply has it, byte by byte.
    object: String,
    complete: bool,
    progress: f64,
    entries: BTreeMap<Txid, Entry>,
    scripts: BTreeMap<String, Script>,
    tip: u64,
}

/// What a wallet takes for the status of a history.
fn status_of(history: &Value) -> Value {
    let list = history.as_array().expect("a list");
    let part =
        |tx: &Value| format!("{}:{}:", tx["tx_hash"].as_str().unwrap(), tx["height"].as_i64().unwrap());
    let text: String = list.iter().map(part).collect();
    if text.is_empty() {
        return Value::Null;
    }
    sha256::Hash::hash(text.as_bytes()).to_byte_array().to_lower_hex_string().into()
}

impl Sparrow {
    /// Everything that Sparrow asks before it opens a wallet. `target` has no labels but change, as Sparrow has none.
    pub(crate) async fn connect(mut client: Client, target: ScanTarget) -> Self {
        let version = client.call("server.version", json!(["Sparrow", ["1.3", "1.4.2"]])).await.unwrap();
        let name = version[0].as_str().unwrap().to_lowercase();
        assert!(version[1].is_string());
        assert!(name.contains("electrumx") || name.starts_with("frigate"), "Sparrow wouldn't batch");
        let features = client.call("server.features", json!([])).await.unwrap();
        assert!(features["silent_payments"].as_array().unwrap().contains(&json!(0)));
        let tip = client.call("blockchain.headers.subscribe", json!([])).await.unwrap();
        let tip = Self::check_tip(&tip);
        assert!(client.call("server.banner", json!([])).await.unwrap().is_string());
        let targets = [1, 2, 3, 4, 5, 10, 25, 50].map(|target| ("blockchain.estimatefee", json!([target])));
        for fee in client.batch(&targets).await {
            assert!(fee.unwrap().is_number());
        }
        for bin in client.call("mempool.get_fee_histogram", json!([])).await.unwrap().as_array().unwrap() {
            assert!(bin[0].is_number() && bin[1].is_u64());
        }
        assert!(client.call("blockchain.relayfee", json!([])).await.unwrap().is_number());
        let address =
            Address::new(AddressNetwork::Regtest, target.scan_key().public_key(), *target.spend_key());
        Self {
            client,
            target,
            address: address.to_string(),
            object: String::new(),
            complete: false,
            progress: 0.0,
            entries: BTreeMap::new(),
            scripts: BTreeMap::new(),
            tip,
        }
    }

    /// Opens the wallet: subscribes from `start` on, waits for the end of the scan, and loads what was found.
    pub(crate) async fn open(&mut self, start: u32) {
        (self.complete, self.progress) = (false, 0.0);
        // Everything is told anew.
        self.entries.clear();
        let scan = self.target.scan_key().secret().to_secret_bytes().to_lower_hex_string();
        let params = json!([scan, self.target.spend_key().to_string(), start, []]);
        let asked = Instant::now();
        let (line, answer) = self.client.call_line(SUBSCRIBE, params).await;
        let replied = Instant::now();
        let reply = answer.unwrap();
        assert_eq!(reply["address"], self.address);
        assert_eq!(reply["start_height"], start, "another start makes Sparrow subscribe again and again");
        let before = std::mem::take(&mut self.object);
        let begin = line.find("\"result\":").unwrap() + "\"result\":".len();
        self.object = line[begin..=begin + line[begin..].find('}').unwrap()].to_owned();
        assert_eq!(serde_json::from_str::<Value>(&self.object).unwrap(), reply);
        let early = self.client.waiting().any(|line| line.contains(SUBSCRIBE));
        assert!(!early || !before.is_empty(), "a notification before the reply");

        let mut told: Vec<(Txid, u64, Tweak)> = Vec::new();
        let mut last = replied;
        while !self.complete {
            let (at, line) = self.client.note_at().await;
            let note: Value = serde_json::from_str(&line).unwrap();
            if note["method"] != SUBSCRIBE {
                self.other(&note).await;
                continue;
            }
            if at < replied {
                // Of an earlier subscription; Sparrow drops it.
                continue;
            }
            if last == replied {
                // From before the request: the reply may have been read late, but not sent earlier.
                assert!(at - asked >= HOLD, "Sparrow loses what comes after {:?}", at - asked);
            }
            assert!(at - last <= HEARTBEAT, "nothing came for {:?}", at - last);
            last = at;
            told.extend(self.page(&line, &note["params"]));
        }
        self.load(told).await;
    }

    /// The end of the wallet.
    pub(crate) async fn close(&mut self) {
        let scan = self.target.scan_key().secret().to_secret_bytes().to_lower_hex_string();
        let params = json!([scan, self.target.spend_key().to_string()]);
        assert_eq!(self.client.call(UNSUBSCRIBE, params).await, Ok(json!(self.address)));
    }

    /// The next notification, taken in.
    pub(crate) async fn next(&mut self) -> Told {
        let line = self.client.note_line().await;
        let note: Value = serde_json::from_str(&line).unwrap();
        if note["method"] != SUBSCRIBE {
            return self.other(&note).await;
        }
        let told = self.page(&line, &note["params"]);
        let txids = told.iter().map(|(txid, ..)| *txid).collect();
        self.load(told).await;
        Told::Payments(txids)
    }

    /// Takes in notifications until there is this tip; what they were about.
    pub(crate) async fn until_tip(&mut self, height: u32) -> Vec<Told> {
        let mut told = Vec::new();
        loop {
            let next = self.next().await;
            let done = next == Told::Tip(height.into());
            told.push(next);
            if done {
                return told;
            }
        }
    }

    /// Notifications that came and weren't looked at.
    pub(crate) async fn unseen(&mut self) -> Vec<String> {
        self.client.notes_until_now().await
    }

    /// All transactions that the wallet was told of.
    pub(crate) fn told(&self) -> BTreeSet<Txid> {
        self.entries.keys().copied().collect()
    }

    /// Heights and ids of the wallet's transactions, as the histories of its scripts have them. What every script was last
    /// told to be must be what it is.
    pub(crate) async fn history(&mut self) -> BTreeSet<(i64, Txid)> {
        let mut all = BTreeSet::new();
        for hash in self.scripts.keys().cloned().collect::<Vec<_>>() {
            let history = self.client.call("blockchain.scripthash.get_history", json!([hash])).await.unwrap();
            let script = &self.scripts[&hash];
            assert_eq!(script.status, status_of(&history), "the last status told of {}", script.script);
            let entry = |tx: &Value| {
                (tx["height"].as_i64().unwrap(), tx["tx_hash"].as_str().unwrap().parse().unwrap())
            };
            all.extend(history.as_array().unwrap().iter().map(entry));
        }
        all
    }

    /// A page of payments: height, id and tweak of each.
    fn page(&mut self, line: &str, params: &Value) -> Vec<(Txid, u64, Tweak)> {
        let same = format!("\"subscription\":{},", self.object);
        assert!(line.contains(&same), "not the subscription of the reply, byte by byte: {line}");
        let progress = params["progress"].as_f64().unwrap();
        assert!(progress >= self.progress, "progress went back");
        assert!(!self.complete || progress == 1.0, "Sparrow shows a scan that is over");
        (self.progress, self.complete) = (progress, progress >= 1.0);
        let item = |item: &Value| {
            let txid: Txid = item["tx_hash"].as_str().unwrap().parse().unwrap();
            let tweak = keys::parse_spend_key(item["tweak_key"].as_str().unwrap()).expect("a compressed key");
            (txid, item["height"].as_u64().unwrap(), Tweak(tweak))
        };
        params["history"].as_array().unwrap().iter().map(item).collect()
    }

    /// What Sparrow does with payments that it is told of.
    async fn load(&mut self, told: Vec<(Txid, u64, Tweak)>) {
        let ids: BTreeSet<Txid> = told.iter().map(|(txid, ..)| *txid).collect();
        assert_eq!(ids.len(), told.len(), "a payment twice in one go");
        let heights: BTreeSet<u64> = told.iter().map(|(_, height, _)| *height).filter(|h| *h > 0).collect();
        let headers: Vec<_> =
            heights.iter().map(|height| ("blockchain.block.header", json!([height]))).collect();
        for page in headers.chunks(PAGE) {
            for header in self.client.batch(page).await {
                let header = header.expect("without the header the wallet never loads again");
                let _: Header = deserialize_hex(header.as_str().unwrap()).unwrap();
            }
        }
        let gets: Vec<_> =
            ids.iter().map(|txid| ("blockchain.transaction.get", json!([txid.to_string()]))).collect();
        let mut transactions: BTreeMap<Txid, Transaction> = BTreeMap::new();
        for page in gets.chunks(PAGE) {
            for raw in self.client.batch(page).await {
                let raw = raw.expect("without the transaction the wallet never loads again");
                let transaction: Transaction = deserialize_hex(raw.as_str().unwrap()).unwrap();
                transactions.insert(transaction.compute_txid(), transaction);
            }
        }
        assert!(transactions.keys().eq(&ids), "other transactions than those that were asked for");

        let mut scripts: BTreeMap<String, (ScriptBuf, BTreeSet<Txid>)> = BTreeMap::new();
        for (txid, height, tweak) in told {
            let mine = self.mine(&transactions[&txid], &tweak);
            assert!(!mine.is_empty(), "{txid} pays the wallet nothing, or its tweak is wrong");
            for script in mine {
                let hash = peregrine::node::ScriptHash::of(&script).to_string();
                scripts.entry(hash).or_insert((script, BTreeSet::new())).1.insert(txid);
            }
            if let Some(entry) = self.entries.get_mut(&txid) {
                assert!(!entry.unconfirmed || height == 0, "{txid} was told of in the mempool already");
                entry.height = height;
            } else {
                self.entries.insert(txid, Entry { height, unconfirmed: height == 0 });
            }
        }
        let hashes: Vec<String> = scripts.keys().cloned().collect();
        for page in hashes.chunks(PAGE) {
            let call =
                |method: &'static str| page.iter().map(|hash| (method, json!([hash]))).collect::<Vec<_>>();
            let statuses = self.client.batch(&call("blockchain.scripthash.subscribe")).await;
            let histories = self.client.batch(&call("blockchain.scripthash.get_history")).await;
            for ((hash, status), history) in page.iter().zip(statuses).zip(histories) {
                let (script, txids) = scripts.remove(hash).unwrap();
                let (status, history) = (status.unwrap(), history.unwrap());
                for txid in txids {
                    let listed =
                        history.as_array().unwrap().iter().any(|tx| tx["tx_hash"] == txid.to_string());
                    assert!(listed, "{txid} was told of before its history could be had");
                }
                self.scripts.insert(hash.clone(), Script { script, status, history });
            }
        }
    }

    /// The wallet's scripts among the outputs.
    fn mine(&self, transaction: &Transaction, tweak: &Tweak) -> Vec<ScriptBuf> {
        let scripts: Vec<&ScriptBuf> =
            transaction.output.iter().map(|output| &output.script_pubkey).filter(|s| s.is_p2tr()).collect();
        let outputs: Vec<[u8; 32]> = scripts.iter().filter_map(|script| taproot_key(script)).collect();
        let found = find_outputs(&self.target, tweak, &outputs);
        found.into_iter().map(|found| scripts[found.index].clone()).collect()
    }

    fn check_tip(tip: &Value) -> u64 {
        let header: Header = deserialize_hex(tip["hex"].as_str().unwrap()).unwrap();
        header.validate_pow(header.target()).expect("Sparrow checks the work");
        tip["height"].as_u64().unwrap()
    }

    /// A notification about something else than silent payments.
    async fn other(&mut self, note: &Value) -> Told {
        let params = &note["params"];
        match note["method"].as_str().unwrap() {
            "blockchain.headers.subscribe" => {
                self.tip = Self::check_tip(&params[0]);
                Told::Tip(self.tip)
            }
            "blockchain.scripthash.subscribe" => {
                let hash = params[0].as_str().unwrap().to_owned();
                let get = ("blockchain.scripthash.get_history", json!([hash]));
                let history = self.client.call(get.0, get.1).await.unwrap();
                let script = self.scripts.get_mut(&hash).expect("a script that was subscribed to");
                assert_ne!(script.status, params[1], "told again what is known");
                (script.status, script.history) = (params[1].clone(), history.clone());
                let script = script.script.clone();
                for tx in history.as_array().unwrap() {
                    self.check_told(tx, &script).await;
                }
                Told::Script(script)
            }
            other => panic!("nobody asked for {other}"),
        }
    }

    /// A transaction in a history of the wallet that pays that script must have been told as a payment before.
    async fn check_told(&mut self, tx: &Value, script: &ScriptBuf) {
        let txid: Txid = tx["tx_hash"].as_str().unwrap().parse().unwrap();
        if self.entries.contains_key(&txid) {
            return;
        }
        let raw = self.client.call("blockchain.transaction.get", json!([tx["tx_hash"]])).await.unwrap();
        let transaction: Transaction = deserialize_hex(raw.as_str().unwrap()).unwrap();
        let pays = transaction.output.iter().any(|output| output.script_pubkey == *script);
        assert!(!pays, "the script was told before the payment {txid}");
    }
}
