//! Bitcoin Core's JSON-RPC interface, for nodes without REST or older than 30.

use std::time::Duration;

use bitcoin::block::Header;
use bitcoin::consensus::deserialize;
use bitcoin::hex::FromHex;
use bitcoin::{BlockHash, Network};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::auth::{Authorization, Credentials};
use super::http::{HttpClient, NodeAddress, Reply};
use super::rpc_json::{Answer, ChainInfo, ErrorOnly, RpcError, Text, VerboseBlock, parse};
use super::{BlockWithPrevouts, ChainSource, SourceError, Tip, link_headers};

/// Longest answer with a block. A full block of ordinary transactions takes about 20 MB as JSON; scripts of many small
/// opcodes take more.
const MAX_BLOCK_JSON: usize = 1 << 30;

/// Longest answer of any other kind: a batch of headers takes 300 bytes each.
const MAX_JSON: usize = 16 << 20;

/// Most headers per call, and calls per batch.
const MAX_HEADERS: usize = 2000;

/// How often `headers_after` starts again because the chain changed under it.
const MAX_REREADS: usize = 3;

/// Error codes of Bitcoin Core.
pub(super) mod code {
    pub(in crate::source) const BLOCK_NOT_FOUND: i64 = -5;
    pub(in crate::source) const HEIGHT_OUT_OF_RANGE: i64 = -8;
    pub(in crate::source) const CLIENT_P2P: i64 = -9;
    pub(in crate::source) const IN_INITIAL_DOWNLOAD: i64 = -10;
    pub(in crate::source) const WARMING_UP: i64 = -28;
    pub(in crate::source) const UNKNOWN_METHOD: i64 = -32601;
}

/// Blocks over JSON-RPC, with the scripts that Bitcoin Core 23 and newer tell with `getblock <hash> 3`.
pub struct RpcSource {
    http: HttpClient,
    authorization: Authorization,
}

/// What a call came to: its result, or the node's error.
pub(super) type Outcome<T> = Result<T, RpcError>;

impl RpcSource {
    /// A source at `url` (`http://host:port`, the port may be missing). Nothing is asked of the node yet. `timeout` limits
    /// each whole request.
    pub fn new(
        url: &str,
        network: Network,
        credentials: Credentials,
        timeout: Duration,
    ) -> Result<Self, SourceError> {
        Ok(Self::at(NodeAddress::parse(url, network)?, credentials, timeout))
    }

    pub(super) fn at(address: NodeAddress, credentials: Credentials, timeout: Duration) -> Self {
        Self { http: HttpClient::new(address, timeout), authorization: Authorization::new(credentials) }
    }

    /// Host of the node, without the port.
    pub(super) fn host(&self) -> String {
        let authority = self.http.address().authority();
        authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_owned()
    }

    /// One call; the parsed answer is handed to `read`, because it may borrow from the bytes.
    fn call<R>(
        &self,
        method: &str,
        params: &Value,
        limit: usize,
        read: impl FnOnce(&[u8]) -> Result<R, SourceError>,
    ) -> Result<R, SourceError> {
        let request = json!({"jsonrpc": "1.0", "id": 0, "method": method, "params": params});
        let reply = self.post(&request, limit)?;
        read(&reply.body)
    }

    /// One call with a small answer.
    pub(super) fn call_owned<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &Value,
    ) -> Result<Outcome<T>, SourceError> {
        self.call(method, params, MAX_JSON, |body| {
            outcome(parse::<Answer<T>>(method, body)?).map_err(|e| named(method, e))
        })
    }

    /// One call per set of parameters, in one request; the outcomes are in the order of `calls`.
    pub(super) fn batch<T: DeserializeOwned>(
        &self,
        calls: &[(&str, Value)],
    ) -> Result<Vec<Outcome<T>>, SourceError> {
        let outcomes = self.batch_optional(calls)?.into_iter();
        let required = |outcome: Outcome<Option<T>>| match outcome {
            Ok(result) => result.map(Ok).ok_or_else(no_result),
            Err(error) => Ok(Err(error)),
        };
        outcomes.map(required).collect()
    }

    /// The same for calls whose result may be null.
    pub(super) fn batch_optional<T: DeserializeOwned>(
        &self,
        calls: &[(&str, Value)],
    ) -> Result<Vec<Outcome<Option<T>>>, SourceError> {
        let requests: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(id, (method, params))| {
                json!({"jsonrpc": "1.0", "id": id, "method": method, "params": params})
            })
            .collect();
        let reply = self.post(&Value::Array(requests), MAX_JSON)?;
        let answers: Vec<Answer<T>> = match serde_json::from_slice(&reply.body) {
            Ok(answers) => answers,
            // The node may also refuse the batch as a whole.
            Err(_) => match serde_json::from_slice::<ErrorOnly>(&reply.body) {
                Ok(ErrorOnly { error: Some(error), .. }) => return Err(general_error("batch", &error)),
                _ => parse("batch", &reply.body)?,
            },
        };
        let mut outcomes: Vec<Option<Outcome<Option<T>>>> = calls.iter().map(|_| None).collect();
        // The protocol allows any order.
        for answer in answers {
            let slot = answer.id.and_then(|id| outcomes.get_mut(usize::try_from(id).ok()?));
            match slot {
                Some(slot @ None) => *slot = Some(answer.error.map_or(Ok(answer.result), Err)),
                _ => return Err(SourceError::Invalid("an answer in a batch that belongs to no call".into())),
            }
        }
        outcomes
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| SourceError::Invalid("a batch with too few answers".into()))
    }

    /// Sends a request, with a new cookie if the node doesn't accept the old one. The reply may hold an error of the
    /// call itself.
    fn post(&self, request: &Value, limit: usize) -> Result<Reply, SourceError> {
        let bytes = request.to_string().into_bytes();
        let mut header = self.authorization.header()?;
        let mut reply = self.http.post(&bytes, Some(&header), limit)?;
        if reply.status == 401
            && let Some(renewed) = self.authorization.renewed(&header)?
        {
            header = renewed;
            reply = self.http.post(&bytes, Some(&header), limit)?;
        }
        match reply.status {
            200 => Ok(reply),
            401 => Err(SourceError::Refused(self.authorization.advice())),
            403 => Err(SourceError::Refused(
                "the node refuses this user or machine: check rpcwhitelist and rpcallowip in its bitcoin.conf".into(),
            )),
            // Errors of calls come with status 400, 404 or 500, and JSON.
            status => match serde_json::from_slice::<ErrorOnly>(&reply.body) {
                Ok(ErrorOnly { error: Some(_), .. }) => Ok(reply),
                _ if status >= 500 => {
                    let text = reply.excerpt();
                    Err(SourceError::Unavailable(if text.is_empty() { format!("status {status}") } else { text }))
                }
                _ => Err(SourceError::Refused(format!(
                    "status {status}: there seems to be no Bitcoin Core at this address"
                ))),
            },
        }
    }
}

/// Result or error of a call. An answer with neither is invalid.
fn outcome<T>(answer: Answer<T>) -> Result<Outcome<T>, SourceError> {
    match (answer.result, answer.error) {
        (_, Some(error)) => Ok(Err(error)),
        (Some(result), None) => Ok(Ok(result)),
        (None, None) => Err(no_result()),
    }
}

fn no_result() -> SourceError {
    SourceError::Invalid("an answer without a result".into())
}

fn named(method: &str, error: SourceError) -> SourceError {
    match error {
        SourceError::Invalid(text) => SourceError::Invalid(format!("answer to {method}: {text}")),
        other => other,
    }
}

/// What an error means that has no meaning of its own for the call.
pub(super) fn general_error(method: &str, error: &RpcError) -> SourceError {
    let text = error.text();
    match error.code {
        code::WARMING_UP | code::CLIENT_P2P | code::IN_INITIAL_DOWNLOAD => SourceError::Unavailable(text),
        code::UNKNOWN_METHOD => {
            SourceError::Refused(format!("the node doesn't know {method}: needs Bitcoin Core 23 or newer"))
        }
        code => SourceError::Refused(format!("{method}: {text} (code {code})")),
    }
}

/// What an error of a call about one block means.
fn block_error(method: &str, hash: BlockHash, error: &RpcError) -> SourceError {
    let text = error.text();
    if error.code == code::BLOCK_NOT_FOUND {
        SourceError::UnknownBlock(hash)
    } else if text.contains("pruned") {
        SourceError::Refused(format!(
            "block {hash}: {text}: the node has deleted old blocks; use a node that isn't pruned"
        ))
    } else if text.contains("not fully downloaded") || text.contains("not found on disk") {
        SourceError::Unavailable(format!("block {hash}: {text}"))
    } else {
        general_error(method, error)
    }
}

impl ChainSource for RpcSource {
    fn describe(&self) -> String {
        format!("Bitcoin Core RPC at {}", self.http.address().authority())
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        let method = "getblockchaininfo";
        let info: ChainInfo = self.call_owned(method, &json!([]))?.map_err(|e| general_error(method, &e))?;
        Ok(info.into())
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        // Core takes a signed number and calls anything above "out of range" only up to here.
        if i32::try_from(height).is_err() {
            return Ok(None);
        }
        let method = "getblockhash";
        match self.call_owned(method, &json!([height]))? {
            Ok(Text(hash)) => Ok(Some(hash)),
            Err(error) if error.code == code::HEIGHT_OUT_OF_RANGE => Ok(None),
            Err(error) => Err(general_error(method, &error)),
        }
    }

    fn headers_after(
        &self,
        after: BlockHash,
        after_height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        for _ in 0..MAX_REREADS {
            if self.hash_at(after_height)? != Some(after) {
                return Ok(None);
            }
            let tip = self.tip()?;
            let first = after_height.saturating_add(1);
            let heights = (first..=tip.height).take(count.min(MAX_HEADERS));
            let calls: Vec<_> = heights.map(|height| ("getblockhash", json!([height]))).collect();
            if calls.is_empty() {
                return Ok(Some(Vec::new()));
            }
            let mut hashes: Vec<BlockHash> = Vec::with_capacity(calls.len());
            for outcome in self.batch(&calls)? {
                match outcome {
                    Ok(Text(hash)) => hashes.push(hash),
                    // The chain has become shorter.
                    Err(error) if error.code == code::HEIGHT_OUT_OF_RANGE => break,
                    Err(error) => return Err(general_error("getblockhash", &error)),
                }
            }
            let headers = self.headers(&hashes)?;
            // The calls of a batch see different moments: what doesn't follow was read after a reorganisation.
            let linked = link_headers(after, &headers);
            if linked > 0 {
                return Ok(Some(headers.into_iter().take(linked).collect()));
            }
        }
        Err(SourceError::Unavailable("the chain changes while its headers are read".into()))
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        let method = "getblock";
        self.call(method, &json!([hash.to_string(), 3]), MAX_BLOCK_JSON, |body| {
            let answer: Answer<VerboseBlock<'_>> = parse(method, body)?;
            outcome(answer)
                .map_err(|e| named(method, e))?
                .map_err(|e| block_error(method, hash, &e))?
                .into_block(hash)
        })
    }
}

impl RpcSource {
    /// The headers of these blocks, in this order.
    fn headers(&self, hashes: &[BlockHash]) -> Result<Vec<Header>, SourceError> {
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        let method = "getblockheader";
        let calls: Vec<_> = hashes.iter().map(|hash| (method, json!([hash.to_string(), false]))).collect();
        let mut headers = Vec::with_capacity(hashes.len());
        for (outcome, &hash) in self.batch::<String>(&calls)?.into_iter().zip(hashes) {
            let text = outcome.map_err(|e| block_error(method, hash, &e))?;
            let bytes = <[u8; Header::SIZE]>::from_hex(&text)
                .map_err(|e| SourceError::Invalid(format!("header of {hash}: {e}")))?;
            let header: Header =
                deserialize(&bytes).map_err(|e| SourceError::Invalid(format!("header of {hash}: {e}")))?;
            if header.block_hash() != hash {
                return Err(SourceError::Invalid(format!(
                    "header of {hash}: the node sent that of {} instead",
                    header.block_hash()
                )));
            }
            headers.push(header);
        }
        Ok(headers)
    }
}
