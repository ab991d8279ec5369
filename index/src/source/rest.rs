//! Bitcoin Core's REST interface: raw bytes, no password, no `txindex`.

use std::time::Duration;

use bitcoin::block::Header;
use bitcoin::consensus::deserialize;
use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, Network};

use super::block::{MAX_BLOCK_LEN, decode_block, decode_spent_outputs, spent_outputs_limit};
use super::http::{HttpClient, NodeAddress, Reply};
use super::rpc_json::{ChainInfo, parse};
use super::{BlockWithPrevouts, ChainSource, SourceError, Tip, link_headers};

/// Most headers that one request may ask for.
const MAX_HEADERS: usize = 2000;

/// `/rest/chaininfo.json` is about a kilobyte.
const MAX_SMALL: usize = 1 << 20;

/// What to do about a node without REST.
pub(super) const REST_IS_OFF: &str = "REST is off: start bitcoind with rest=1";

/// Blocks over REST, from Bitcoin Core 30 on: earlier ones don't serve spent outputs.
pub struct RestSource {
    http: HttpClient,
}

impl RestSource {
    /// A source at `url` (`http://host:port`, the port may be missing). Nothing is asked of the node yet. `timeout` limits
    /// each whole request.
    pub fn new(url: &str, network: Network, timeout: Duration) -> Result<Self, SourceError> {
        Ok(Self::at(NodeAddress::parse(url, network)?, timeout))
    }

    pub(super) fn at(address: NodeAddress, timeout: Duration) -> Self {
        Self { http: HttpClient::new(address, timeout) }
    }

    /// Whether the node serves spent outputs (`genesis` is any block that it has); if not, the error says why.
    pub(super) fn check_spent_outputs(&self, genesis: BlockHash) -> Result<(), SourceError> {
        let reply = self.http.get(&spent_path(genesis), MAX_SMALL)?;
        // A node without this path answers like one without REST, but whoever calls this has already seen REST work.
        if reply.status == 404 && !is_core_message(&reply) {
            return Err(SourceError::Refused(
                "REST without /rest/spenttxouts: needs Bitcoin Core 30 or newer".into(),
            ));
        }
        self.expect_ok(reply, Some(genesis)).map(drop)
    }

    /// Bytes of a serialised block; `None` if the node doesn't offer that.
    pub(super) fn block_part(
        &self,
        hash: BlockHash,
        offset: u32,
        size: u32,
    ) -> Result<Option<Vec<u8>>, SourceError> {
        let path = format!("/rest/blockpart/{hash}.bin?offset={offset}&size={size}");
        let reply = self.http.get(&path, size as usize)?;
        if reply.status == 404 && !is_core_message(&reply) {
            return Ok(None);
        }
        let body = self.expect_ok(reply, Some(hash))?;
        if body.len() != size as usize {
            return Err(SourceError::Invalid(format!("{} bytes of a block instead of {size}", body.len())));
        }
        Ok(Some(body))
    }

    /// A whole serialised block.
    pub(super) fn block_bytes(&self, hash: BlockHash) -> Result<Vec<u8>, SourceError> {
        let reply = self.http.get(&format!("/rest/block/{hash}.bin"), MAX_BLOCK_LEN)?;
        self.expect_ok(reply, Some(hash))
    }

    /// The body, or the error that the status stands for. `block` is the block that was asked for, if any.
    fn expect_ok(&self, reply: Reply, block: Option<BlockHash>) -> Result<Vec<u8>, SourceError> {
        if reply.status == 200 {
            return Ok(reply.body);
        }
        let text = reply.excerpt();
        Err(match reply.status {
            403 => SourceError::Refused(
                "the node refuses this machine: add its address to rpcallowip in bitcoin.conf".into(),
            ),
            404 if !is_core_message(&reply) => SourceError::Refused(REST_IS_OFF.into()),
            404 if text.contains("pruned") => SourceError::Refused(format!(
                "{text}: the node has deleted old blocks; use a node that isn't pruned"
            )),
            // A node that started from a snapshot still fetches what lies before it, so that waiting helps.
            404 if text.contains("not fully downloaded") || text.contains("undo not available") => {
                SourceError::Unavailable(format!("the node doesn't have all of the block: {text}"))
            }
            404 if text.contains("not found") => match block {
                Some(hash) => SourceError::UnknownBlock(hash),
                None => SourceError::Invalid(text),
            },
            // 503 while starting, stopping or overloaded; others for trouble inside the node.
            500..=599 if text.is_empty() => SourceError::Unavailable(format!("status {}", reply.status)),
            500..=599 => SourceError::Unavailable(text),
            status => SourceError::Refused(format!("status {status} instead of an answer: {text}")),
        })
    }
}

/// Whether a REST handler of Bitcoin Core wrote this error. Without one, the body is empty or an HTML page.
fn is_core_message(reply: &Reply) -> bool {
    !reply.body.is_empty() && !reply.body.trim_ascii_start().starts_with(b"<")
}

fn spent_path(hash: BlockHash) -> String {
    format!("/rest/spenttxouts/{hash}.bin")
}

impl ChainSource for RestSource {
    fn describe(&self) -> String {
        format!("Bitcoin Core REST at {}", self.http.address().authority())
    }

    fn tip(&self) -> Result<Tip, SourceError> {
        let body = self.expect_ok(self.http.get("/rest/chaininfo.json", MAX_SMALL)?, None)?;
        Ok(parse::<ChainInfo>("chaininfo", &body)?.into())
    }

    fn hash_at(&self, height: u32) -> Result<Option<BlockHash>, SourceError> {
        let reply = self.http.get(&format!("/rest/blockhashbyheight/{height}.bin"), MAX_SMALL)?;
        // Heights that don't fit 31 bits are "invalid" to Core; there is no such block either way.
        if (reply.status == 404 && reply.body.starts_with(b"Block height out of range"))
            || (reply.status == 400
                && reply.body.starts_with(b"Invalid height")
                && i32::try_from(height).is_err())
        {
            return Ok(None);
        }
        let body = self.expect_ok(reply, None)?;
        match BlockHash::from_slice(&body) {
            Ok(hash) => Ok(Some(hash)),
            Err(_) => Err(SourceError::Invalid(format!("a block hash of {} bytes", body.len()))),
        }
    }

    fn headers_after(
        &self,
        after: BlockHash,
        _after_height: u32,
        count: usize,
    ) -> Result<Option<Vec<Header>>, SourceError> {
        // The answer begins with the block that was asked for, which tells the tip from a block that isn't on the best
        // chain: then it is empty.
        let count = count.saturating_add(1).min(MAX_HEADERS);
        let path = format!("/rest/headers/{after}.bin?count={count}");
        let body = self.expect_ok(self.http.get(&path, count * Header::SIZE)?, Some(after));
        let body = match body {
            Err(SourceError::UnknownBlock(_)) => return Ok(None),
            other => other?,
        };
        let (records, rest) = body.as_chunks::<{ Header::SIZE }>();
        if !rest.is_empty() {
            return Err(SourceError::Invalid(format!("headers of {} bytes in all", body.len())));
        }
        let mut headers = Vec::with_capacity(records.len());
        for record in records {
            let header: Header =
                deserialize(record).map_err(|e| SourceError::Invalid(format!("a header: {e}")))?;
            headers.push(header);
        }
        if headers.is_empty() {
            return Ok(None);
        }
        let first = headers.remove(0);
        if first.block_hash() != after || link_headers(after, &headers) != headers.len() {
            return Err(SourceError::Invalid(format!("headers after {after} that don't follow it")));
        }
        Ok(Some(headers))
    }

    fn block(&self, hash: BlockHash) -> Result<BlockWithPrevouts, SourceError> {
        let block = decode_block(hash, &self.block_bytes(hash)?)?;
        let reply = self.http.get(&spent_path(hash), spent_outputs_limit(&block))?;
        let prevouts = decode_spent_outputs(&block, &self.expect_ok(reply, Some(hash))?)?;
        Ok(BlockWithPrevouts { block, prevouts })
    }
}
