//! What clients must be told, computed from the node's own answers in the plainest way.

use std::collections::BTreeMap;

use bitcoin::hashes::{Hash, sha256};
use bitcoin::hex::DisplayHex;
use bitcoin::{ScriptBuf, Txid};
use peregrine_index::testkit::TestNode;
use serde_json::{Value, json};

/// The transactions of a script.
#[derive(Default)]
pub(crate) struct Script {
    /// Height and id, in the order of the chain.
    pub(crate) confirmed: Vec<(u32, Txid)>,
    /// Height (0 or −1), id and fee, in canonical order.
    pub(crate) mempool: Vec<(i32, Txid, u64)>,
}

impl Script {
    /// The history as protocol 1.4 has it.
    pub(crate) fn history(&self) -> Value {
        let confirmed = self
            .confirmed
            .iter()
            .map(|(height, txid)| json!({ "tx_hash": txid.to_string(), "height": height }));
        let mempool = self
            .mempool
            .iter()
            .map(|(height, txid, fee)| json!({ "tx_hash": txid.to_string(), "height": height, "fee": fee }));
        confirmed.chain(mempool).collect()
    }

    pub(crate) fn status(&self) -> Value {
        let mut text = String::new();
        for (height, txid) in &self.confirmed {
            text += &format!("{txid}:{height}:");
        }
        for (height, txid, _) in &self.mempool {
            text += &format!("{txid}:{height}:");
        }
        if text.is_empty() {
            Value::Null
        } else {
            sha256::Hash::hash(text.as_bytes()).to_byte_array().to_lower_hex_string().into()
        }
    }
}

fn script(output: &Value) -> ScriptBuf {
    ScriptBuf::from_hex(output["scriptPubKey"]["hex"].as_str().unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Every script of the chain and the mempool.
pub(crate) fn scripts(node: &TestNode) -> BTreeMap<ScriptBuf, Script> {
    let mut scripts: BTreeMap<ScriptBuf, Script> = BTreeMap::new();
    for height in 1..=node.height() {
        let block = node.call("getblock", json!([node.block_hash(height).to_string(), 3]));
        for transaction in list(&block["tx"]) {
            let txid: Txid = transaction["txid"].as_str().unwrap().parse().unwrap();
            let paid = list(&transaction["vout"]).iter().map(script);
            let spent = list(&transaction["vin"]).iter().filter_map(|input| input.get("prevout")).map(script);
            for script in paid.chain(spent) {
                let confirmed = &mut scripts.entry(script).or_default().confirmed;
                if confirmed.last() != Some(&(height, txid)) {
                    confirmed.push((height, txid));
                }
            }
        }
    }
    let mempool = node.call("getrawmempool", json!([true]));
    for (id, entry) in mempool.as_object().unwrap() {
        let txid: Txid = id.parse().unwrap();
        let height = if list(&entry["depends"]).is_empty() { 0 } else { -1 };
        let fee = bitcoin::Amount::from_btc(entry["fees"]["base"].as_f64().unwrap()).unwrap().to_sat();
        let transaction = node.call("getrawtransaction", json!([id, 1]));
        let mut touched: Vec<ScriptBuf> = list(&transaction["vout"]).iter().map(script).collect();
        for input in list(&transaction["vin"]) {
            let (parent, vout) = (input["txid"].as_str().unwrap(), input["vout"].as_u64().unwrap());
            touched.push(match node.call("gettxout", json!([parent, vout, false])) {
                Value::Null => {
                    let parent = node.call("getrawtransaction", json!([parent, 1]));
                    script(&parent["vout"][vout as usize])
                }
                output => script(&output),
            });
        }
        touched.sort();
        touched.dedup();
        for script in touched {
            scripts.entry(script).or_default().mempool.push((height, txid, fee));
        }
    }
    for script in scripts.values_mut() {
        // Confirmed parents first, then by the text of the id.
        script.mempool.sort_by_key(|(height, txid, _)| (-height, txid.to_string()));
    }
    scripts.retain(|script, _| !script.is_op_return());
    scripts
}
