//! What a node is asked beyond blocks: mempool, single transactions, fees, broadcasting.

use std::sync::atomic::{AtomicBool, Ordering};

use bitcoin::consensus::deserialize;
use bitcoin::hex::{DisplayHex, FromHex};
use bitcoin::{BlockHash, OutPoint, Transaction, TxOut, Txid};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::node::{NodeConfig, check_network};
use super::rest::RestSource;
use super::rpc::{RpcSource, code};
use super::rpc_json::{Prevout, RpcError, Text, parse_btc};
use super::{ChainSource, NodeKind, SourceError};

/// Bitcoin Core's, in BTC per 1000 virtual bytes.
const DEFAULT_MAX_FEE_RATE: f64 = 0.1;

/// Calls in one batch. A node answers them one after the other, so more would only make the answer longer.
const BATCH: usize = 500;

/// Bitcoin Core's JSON-RPC, and REST for reading single transactions where the node offers it. Used by many threads at
/// once.
pub struct Daemon {
    rpc: RpcSource,
    rest: Option<RestSource>,
    /// Cleared when the node turns out not to read parts of blocks, as before version 31.
    parts: AtomicBool,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The node doesn't answer, or with something that is no answer.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The node's own error for this call.
    #[error("{message} (code {code})")]
    Node {
        /// Bitcoin Core's code, as in -26.
        code: i64,
        /// Its text.
        message: String,
    },
}

impl From<RpcError> for CallError {
    fn from(error: RpcError) -> Self {
        // While it starts it says so to any call.
        match error.code {
            code::WARMING_UP => Self::Source(SourceError::Unavailable(error.text())),
            code => Self::Node { code, message: error.text() },
        }
    }
}

/// The result of a call to [`Daemon`].
pub type CallResult<T> = Result<T, CallError>;

/// What the mempool asks for, in satoshi per 1000 virtual bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MempoolInfo {
    /// The least that gets in now.
    pub min_fee: u64,
    /// The least that is ever relayed.
    pub min_relay_fee: u64,
    /// What a replacement must add.
    pub incremental_relay_fee: u64,
}

/// A list of the mempool.
#[derive(Clone, Debug)]
pub struct MempoolList {
    /// Ids of all its transactions.
    pub txids: Vec<Txid>,
    /// The node's best block, if it was the same before and after the list was made.
    pub tip: Option<BlockHash>,
}

#[derive(Deserialize)]
struct TxidList {
    txids: Vec<Text<Txid>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Info<'a> {
    #[serde(borrow)]
    mempoolminfee: &'a RawValue,
    #[serde(borrow)]
    minrelaytxfee: &'a RawValue,
    // Missing before Bitcoin Core 24.
    #[serde(borrow, default)]
    incrementalrelayfee: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Estimate<'a> {
    #[serde(borrow, default)]
    feerate: Option<&'a RawValue>,
}

fn amount(what: &str, value: &RawValue) -> Result<u64, SourceError> {
    parse_btc(value.get()).ok_or_else(|| SourceError::Invalid(format!("{what} isn't an amount in BTC")))
}

fn bytes(what: &str, hex: &str) -> Result<Vec<u8>, SourceError> {
    Vec::from_hex(hex).map_err(|error| SourceError::Invalid(format!("answer to {what}: {error}")))
}

impl Daemon {
    /// Connects to the node and checks its network. Tries once.
    ///
    /// # Errors
    /// [`Refused`](SourceError::Refused) without a login for JSON-RPC; others as [`connect`](super::connect).
    pub fn connect(config: &NodeConfig) -> Result<Self, SourceError> {
        let (address, credentials) = config.target()?;
        let credentials = credentials.ok_or_else(|| {
            SourceError::Refused(
                "the mempool, fees and broadcasting need a login for JSON-RPC: give a cookie file or user and password"
                    .into(),
            )
        })?;
        let rpc = RpcSource::at(address.clone(), credentials, config.timeout);
        check_network(&rpc, config.network)?;
        let rest = RestSource::at(address, config.timeout);
        let rest = (config.kind != NodeKind::Rpc && rest.hash_at(0).is_ok_and(|hash| hash.is_some()))
            .then_some(rest);
        Ok(Self { rpc, parts: AtomicBool::new(rest.is_some()), rest })
    }

    /// Host of the node, without the port.
    pub(crate) fn host(&self) -> String {
        self.rpc.host()
    }

    /// The node's best block.
    ///
    /// # Errors
    /// The node doesn't answer.
    pub fn best_block(&self) -> Result<BlockHash, SourceError> {
        Ok(self.rpc.tip()?.hash)
    }

    /// What is in the node's mempool.
    ///
    /// # Errors
    /// The node doesn't answer.
    pub fn mempool(&self) -> Result<MempoolList, SourceError> {
        let before = self.best_block()?;
        let list: TxidList = self.plain("getrawmempool", &json!([false, true]))?;
        let after = self.best_block()?;
        let txids = list.txids.into_iter().map(|Text(txid)| txid).collect();
        Ok(MempoolList { txids, tip: (before == after).then_some(before) })
    }

    /// Transactions of the mempool; `None` for those that aren't there any more. A node with `txindex` also gives confirmed
    /// ones.
    ///
    /// # Errors
    /// The node doesn't answer.
    pub fn mempool_transactions(&self, txids: &[Txid]) -> Result<Vec<Option<Transaction>>, SourceError> {
        let mut transactions = Vec::with_capacity(txids.len());
        for txids in txids.chunks(BATCH) {
            let calls: Vec<_> =
                txids.iter().map(|txid| ("getrawtransaction", json!([txid.to_string(), false]))).collect();
            for (outcome, txid) in self.rpc.batch::<String>(&calls)?.into_iter().zip(txids) {
                let transaction =
                    outcome.ok().map(|hex| transaction("getrawtransaction", &hex, txid)).transpose()?;
                transactions.push(transaction);
            }
        }
        Ok(transactions)
    }

    /// Outputs that no block spends, whatever the mempool does; `None` for those that don't exist or are spent.
    ///
    /// # Errors
    /// The node doesn't answer.
    pub fn unspent_outputs(&self, outpoints: &[OutPoint]) -> Result<Vec<Option<TxOut>>, SourceError> {
        let mut outputs = Vec::with_capacity(outpoints.len());
        for outpoints in outpoints.chunks(BATCH) {
            let calls: Vec<_> = outpoints
                .iter()
                .map(|outpoint| ("gettxout", json!([outpoint.txid.to_string(), outpoint.vout, false])))
                .collect();
            for outcome in self.rpc.batch_optional::<Box<RawValue>>(&calls)? {
                let output =
                    outcome.map_err(|error| SourceError::Refused(format!("gettxout: {}", error.text())))?;
                outputs.push(output.map(|output| unspent_output(&output)).transpose()?);
            }
        }
        Ok(outputs)
    }

    /// The bytes of a transaction of a block, which begin at `offset` of the serialised block.
    ///
    /// # Errors
    /// [`UnknownBlock`](SourceError::UnknownBlock) if the node doesn't have the block; [`Invalid`](SourceError::Invalid) if
    /// the bytes are those of another transaction.
    pub fn transaction_bytes(
        &self,
        txid: Txid,
        block: BlockHash,
        offset: u32,
        size: u32,
    ) -> Result<Vec<u8>, SourceError> {
        if let Some(rest) = self.rest.as_ref().filter(|_| self.parts.load(Ordering::Relaxed)) {
            if let Some(raw) = rest.block_part(block, offset, size)? {
                check("blockpart", &raw, &txid)?;
                return Ok(raw);
            }
            self.parts.store(false, Ordering::Relaxed);
        }
        let method = "getrawtransaction";
        match self.rpc.call_owned::<String>(method, &json!([txid.to_string(), false, block.to_string()]))? {
            Ok(hex) => {
                let raw = bytes(method, &hex)?;
                check(method, &raw, &txid)?;
                Ok(raw)
            }
            Err(error) if error.code == code::BLOCK_NOT_FOUND => Err(SourceError::UnknownBlock(block)),
            Err(error) => Err(SourceError::Refused(format!("{method}: {}", error.text()))),
        }
    }

    /// A whole serialised block.
    ///
    /// # Errors
    /// [`UnknownBlock`](SourceError::UnknownBlock) if the node doesn't have the block.
    pub fn block_bytes(&self, block: BlockHash) -> Result<Vec<u8>, SourceError> {
        if let Some(rest) = &self.rest {
            return rest.block_bytes(block);
        }
        let method = "getblock";
        match self.rpc.call_owned::<String>(method, &json!([block.to_string(), 0]))? {
            Ok(hex) => bytes(method, &hex),
            Err(error) if error.code == code::BLOCK_NOT_FOUND => Err(SourceError::UnknownBlock(block)),
            Err(error) => Err(SourceError::Refused(format!("{method}: {}", error.text()))),
        }
    }

    /// Whether [`transaction_bytes`](Self::transaction_bytes) reads only the transaction. Nodes before version 31 read its
    /// whole block for it.
    pub fn reads_parts(&self) -> bool {
        self.parts.load(Ordering::Relaxed)
    }

    /// A transaction as `getrawtransaction` shows it; `block` says in which one it is, if it isn't in the mempool.
    ///
    /// # Errors
    /// The node's.
    pub fn transaction_verbose(&self, txid: Txid, block: Option<BlockHash>) -> CallResult<Value> {
        let params = match block {
            Some(block) => json!([txid.to_string(), true, block.to_string()]),
            None => json!([txid.to_string(), true]),
        };
        self.call("getrawtransaction", &params)
    }

    /// Satoshi per 1000 virtual bytes for confirmation within `target` blocks; `None` if the node can't tell. `mode` is
    /// `CONSERVATIVE` or `ECONOMICAL`.
    ///
    /// # Errors
    /// The node's.
    pub fn estimate_fee(&self, target: u32, mode: Option<&str>) -> CallResult<Option<u64>> {
        let params = mode.map_or_else(|| json!([target]), |mode| json!([target, mode]));
        let answer: Box<RawValue> = self.call("estimatesmartfee", &params)?;
        let estimate: Estimate<'_> = super::rpc_json::parse("estimatesmartfee", answer.get().as_bytes())?;
        Ok(estimate.feerate.map(|rate| amount("feerate", rate)).transpose()?)
    }

    /// What the mempool asks for.
    ///
    /// # Errors
    /// The node's.
    pub fn mempool_info(&self) -> CallResult<MempoolInfo> {
        let answer: Box<RawValue> = self.call("getmempoolinfo", &json!([]))?;
        let info: Info<'_> = super::rpc_json::parse("getmempoolinfo", answer.get().as_bytes())?;
        let min_relay_fee = amount("minrelaytxfee", info.minrelaytxfee)?;
        Ok(MempoolInfo {
            min_fee: amount("mempoolminfee", info.mempoolminfee)?,
            min_relay_fee,
            incremental_relay_fee: match info.incrementalrelayfee {
                Some(fee) => amount("incrementalrelayfee", fee)?,
                None => min_relay_fee,
            },
        })
    }

    /// Sends a transaction. One that the mempool has already is no error.
    ///
    /// # Errors
    /// [`CallError::Node`] with the node's reason.
    pub fn send(&self, raw: &[u8]) -> CallResult<Txid> {
        let Text(txid) = self.call("sendrawtransaction", &json!([raw.to_lower_hex_string()]))?;
        Ok(txid)
    }

    /// Sends transactions that depend on each other, parents first; the node's answer as it is. The highest fee rate is in BTC
    /// per 1000 virtual bytes, what may be burnt in BTC; without them the node's own limits hold.
    ///
    /// # Errors
    /// [`CallError::Node`] if the package as such can't be accepted.
    pub fn submit_package(
        &self,
        raws: &[Vec<u8>],
        max_fee_rate: Option<f64>,
        max_burn: Option<f64>,
    ) -> CallResult<Value> {
        let mut params = vec![json!(hex_list(raws))];
        // Given by place, so that the second needs the first.
        match (max_fee_rate, max_burn) {
            (None, None) => {}
            (rate, None) => params.push(json!(rate)),
            (rate, burn) => params.extend([json!(rate.unwrap_or(DEFAULT_MAX_FEE_RATE)), json!(burn)]),
        }
        self.call("submitpackage", &json!(params))
    }

    /// What the mempool would say to transactions; the node's answer as it is.
    ///
    /// # Errors
    /// The node's.
    pub fn test_accept(&self, raws: &[Vec<u8>]) -> CallResult<Value> {
        self.call("testmempoolaccept", &json!([hex_list(raws)]))
    }

    /// Where the node publishes what over ZMQ: type, as in `pubsequence`, and address.
    ///
    /// # Errors
    /// The node's: one without ZMQ doesn't know the method.
    pub fn zmq_endpoints(&self) -> CallResult<Vec<(String, String)>> {
        #[derive(Deserialize)]
        struct Endpoint {
            r#type: String,
            address: String,
        }
        let endpoints: Vec<Endpoint> = self.call("getzmqnotifications", &json!([]))?;
        Ok(endpoints.into_iter().map(|endpoint| (endpoint.r#type, endpoint.address)).collect())
    }

    fn call<T: serde::de::DeserializeOwned>(&self, method: &str, params: &Value) -> CallResult<T> {
        Ok(self.rpc.call_owned(method, params)??)
    }

    /// A call for which the node has no error of its own.
    fn plain<T: serde::de::DeserializeOwned>(&self, method: &str, params: &Value) -> Result<T, SourceError> {
        self.rpc.call_owned(method, params)?.map_err(|error| super::rpc::general_error(method, &error))
    }
}

fn hex_list(raws: &[Vec<u8>]) -> Vec<String> {
    raws.iter().map(|raw| raw.to_lower_hex_string()).collect()
}

fn transaction(what: &str, hex: &str, txid: &Txid) -> Result<Transaction, SourceError> {
    check(what, &bytes(what, hex)?, txid)
}

/// The transaction that these bytes are, if it is the one that was asked for.
fn check(what: &str, raw: &[u8], txid: &Txid) -> Result<Transaction, SourceError> {
    let transaction: Transaction =
        deserialize(raw).map_err(|error| SourceError::Invalid(format!("answer to {what}: {error}")))?;
    if transaction.compute_txid() == *txid {
        Ok(transaction)
    } else {
        Err(SourceError::Invalid(format!("answer to {what}: another transaction than {txid}")))
    }
}

fn unspent_output(answer: &RawValue) -> Result<TxOut, SourceError> {
    let output: Prevout<'_> = super::rpc_json::parse("gettxout", answer.get().as_bytes())?;
    output.into_txout().map_err(|text| SourceError::Invalid(format!("answer to gettxout: {text}")))
}
