//! From bytes to checked blocks.
//!
//! Everything a node sends passes through here before anything else looks at it. No length field is believed before
//! the bytes behind it were seen, so hostile input costs an error, never an allocation much larger than itself.

use bitcoin::consensus::{Decodable, Encodable, encode};
use bitcoin::hashes::{Hash, HashEngine, sha256d};
use bitcoin::{Amount, Block, BlockHash, ScriptBuf, TxOut};

use super::{BlockWithPrevouts, SourceError};

/// Most bytes that a block can have: each byte weighs at least one unit of the four million that a block may weigh.
pub const MAX_BLOCK_LEN: usize = 4_000_000;

/// Most bytes that the spent outputs of one block can have.
///
/// An input takes at least 41 bytes of the million that are not witness data, and no output with a script of more than
/// 10,000 bytes can be spent: 24,390 inputs of value, script length and script.
pub const MAX_SPENT_LEN: usize = 256 << 20;

/// Length of the shortest serialised output: value and an empty script.
const MIN_TXOUT_LEN: usize = 9;

/// Reads a block and the outputs that it spends, and checks both.
///
/// - `block` is the consensus serialisation with witnesses, as in `/rest/block/<hash>.bin`.
/// - `spent` is as in `/rest/spenttxouts/<hash>.bin`: a CompactSize count of transactions, and for each of them a
///   CompactSize count of inputs followed by one serialised output (value, script) per input; the coinbase has none.
///
/// Checked are: the header's hash, the merkle root (including the duplication trick of CVE-2012-2459), the witness
/// commitment, that there is exactly one coinbase and that it comes first, that every input has its output, that values
/// are possible, and that nothing follows. Proof of work is not checked, the hash that was asked for stands for it.
///
/// Every failure is [`SourceError::Invalid`].
pub fn parse_block(hash: BlockHash, block: &[u8], spent: &[u8]) -> Result<BlockWithPrevouts, SourceError> {
    let block = decode_block(hash, block)?;
    let prevouts = decode_spent_outputs(&block, spent)?;
    Ok(BlockWithPrevouts { block, prevouts })
}

/// The first half of [`parse_block`]: the block alone.
pub fn decode_block(hash: BlockHash, bytes: &[u8]) -> Result<Block, SourceError> {
    if bytes.len() > MAX_BLOCK_LEN {
        return Err(invalid(hash, format_args!("{} bytes, more than a block can have", bytes.len())));
    }
    let block: Block = encode::deserialize(bytes).map_err(|e| invalid(hash, format_args!("{e}")))?;
    check_block(hash, &block)?;
    Ok(block)
}

/// Checks that the parts of a block belong together, as listed at [`parse_block`].
pub(super) fn check_block(hash: BlockHash, block: &Block) -> Result<(), SourceError> {
    let found = block.block_hash();
    if found != hash {
        return Err(invalid(hash, format_args!("the node sent block {found} instead")));
    }
    match block.txdata.split_first() {
        Some((first, rest)) if first.is_coinbase() && !rest.iter().any(|tx| tx.is_coinbase()) => {}
        Some(_) => return Err(invalid(hash, "the first transaction, and only it, must be a coinbase")),
        None => return Err(invalid(hash, "it has no transactions")),
    }
    let txids = block.txdata.iter().map(|tx| tx.compute_txid().to_raw_hash()).collect();
    match merkle_root(txids) {
        Some(root) if root == block.header.merkle_root.to_raw_hash() => {}
        Some(_) => return Err(invalid(hash, "its transactions don't hash to its merkle root")),
        None => return Err(invalid(hash, "it repeats a transaction")),
    }
    if !block.check_witness_commitment() {
        return Err(invalid(hash, "its witnesses don't hash to its witness commitment"));
    }
    Ok(())
}

/// The second half of [`parse_block`]: for each transaction of `block`, the outputs that its inputs spend.
pub fn decode_spent_outputs(block: &Block, bytes: &[u8]) -> Result<Vec<Vec<TxOut>>, SourceError> {
    let fail =
        |what: &dyn std::fmt::Display| invalid(block.block_hash(), format_args!("spent outputs: {what}"));
    let mut rest = bytes;
    let transactions = compact_size(&mut rest).map_err(|e| fail(&e))?;
    if transactions != block.txdata.len() as u64 {
        return Err(fail(&format_args!(
            "they are for {transactions} transactions, but the block has {}",
            block.txdata.len()
        )));
    }
    let mut prevouts = Vec::with_capacity(block.txdata.len());
    for (position, tx) in block.txdata.iter().enumerate() {
        // The coinbase has an input, but that spends nothing.
        let expected = if position == 0 { 0 } else { tx.input.len() };
        let count = compact_size(&mut rest).map_err(|e| fail(&e))?;
        if count != expected as u64 {
            return Err(fail(&format_args!(
                "transaction {position} has {count}, but {expected} inputs need one"
            )));
        }
        if expected > rest.len() / MIN_TXOUT_LEN {
            return Err(fail(&"they end early"));
        }
        let mut outputs = Vec::with_capacity(expected);
        for _ in 0..expected {
            let output = TxOut::consensus_decode(&mut rest).map_err(|e| fail(&e))?;
            check_value(output.value).map_err(|e| fail(&e))?;
            outputs.push(output);
        }
        prevouts.push(outputs);
    }
    if !rest.is_empty() {
        return Err(fail(&format_args!("{} bytes follow the last one", rest.len())));
    }
    Ok(prevouts)
}

/// Writes spent outputs in the form that [`parse_block`] reads; `prevouts` has one entry per transaction of the block,
/// an empty one for the coinbase. For chains that don't come from a node.
pub fn encode_spent_outputs(prevouts: &[Vec<TxOut>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let infallible = "writing to a vector can't fail";
    encode::VarInt(prevouts.len() as u64).consensus_encode(&mut bytes).expect(infallible);
    for outputs in prevouts {
        encode::VarInt(outputs.len() as u64).consensus_encode(&mut bytes).expect(infallible);
        for output in outputs {
            output.consensus_encode(&mut bytes).expect(infallible);
        }
    }
    bytes
}

/// Most bytes that the spent outputs of this block can have, so that a download can be stopped early.
pub(super) fn spent_outputs_limit(block: &Block) -> usize {
    let inputs: usize = block.txdata.iter().skip(1).map(|tx| tx.input.len()).sum();
    // Per input: value, script length, script. Per transaction and once more: a count.
    let limit = inputs * (8 + 3 + 10_000) + (block.txdata.len() + 1) * 9;
    limit.min(MAX_SPENT_LEN)
}

/// An output of a spent-outputs list, or what is impossible about it.
pub(super) fn make_txout(sats: u64, script: Vec<u8>) -> Result<TxOut, String> {
    let value = Amount::from_sat(sats);
    check_value(value)?;
    Ok(TxOut { value, script_pubkey: ScriptBuf::from_bytes(script) })
}

fn check_value(value: Amount) -> Result<(), String> {
    if value > Amount::MAX_MONEY {
        return Err(format!("an output of {} sat is more than there can be", value.to_sat()));
    }
    Ok(())
}

/// A count; only the shortest form is accepted, as in Bitcoin Core.
fn compact_size(bytes: &mut &[u8]) -> Result<u64, encode::Error> {
    Ok(encode::VarInt::consensus_decode_from_finite_reader(bytes)?.0)
}

/// The merkle root of `hashes`; `None` when there are none, or when a pair consists of equal hashes: then the same root
/// also belongs to a shorter list, and this one is a forgery.
fn merkle_root(mut hashes: Vec<sha256d::Hash>) -> Option<sha256d::Hash> {
    while hashes.len() > 1 {
        if hashes.chunks_exact(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        hashes = hashes
            .chunks(2)
            .map(|pair| {
                let mut engine = sha256d::Hash::engine();
                engine.input(pair[0].as_byte_array());
                engine.input(pair[pair.len() - 1].as_byte_array());
                sha256d::Hash::from_engine(engine)
            })
            .collect();
    }
    hashes.pop()
}

pub(super) fn invalid(hash: BlockHash, what: impl std::fmt::Display) -> SourceError {
    SourceError::Invalid(format!("block {hash}: {what}"))
}
