//! The headers of the best chain in memory, and proofs that one is among them.

use std::collections::HashMap;

use bitcoin::block::Header;
use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::hashes::{Hash, sha256d};
use bitcoin::{BlockHash, Network};

use super::merkle;
use crate::node::HeaderProof;

/// The tree over all header hashes is kept from this row on; below, it is computed when it is asked for.
const LEVELS: usize = 10;
/// Headers below one kept hash.
const PART: usize = 1 << LEVELS;

/// All headers from genesis to the tip. There is always at least the one of the genesis block.
///
/// 80 bytes each: about 77 MB for the main chain in 2026.
pub(super) struct Headers {
    raw: Vec<[u8; 80]>,
    /// One hash over each full part of [`PART`] headers.
    parts: Vec<[u8; 32]>,
    /// Heights by the first bytes of the hash, in which work has left no zeros: about 16 MB for the main chain.
    heights: HashMap<[u8; 8], u32>,
}

/// The first bytes of a block's hash.
fn beginning(hash: &BlockHash) -> [u8; 8] {
    *hash.as_byte_array().first_chunk().expect("a hash has 32 bytes")
}

impl Headers {
    /// A chain that ends with its first block.
    pub(super) fn new(network: Network) -> Self {
        let mut headers = Self { raw: Vec::new(), parts: Vec::new(), heights: HashMap::new() };
        headers.push(&bitcoin::constants::genesis_block(network).header);
        headers
    }

    /// Height of the last one.
    pub(super) fn tip(&self) -> u32 {
        self.raw.len() as u32 - 1
    }

    /// The header at a height.
    pub(super) fn get(&self, height: u32) -> Option<Header> {
        self.raw.get(height as usize).map(|raw| deserialize(raw).expect("80 bytes are always a header"))
    }

    /// The height of a block.
    pub(super) fn height_of(&self, hash: &BlockHash) -> Option<u32> {
        let height = *self.heights.get(&beginning(hash))?;
        (self.get(height)?.block_hash() == *hash).then_some(height)
    }

    /// The last one.
    pub(super) fn last(&self) -> Header {
        self.get(self.tip()).expect("there is always one")
    }

    /// Adds the one that follows.
    pub(super) fn push(&mut self, header: &Header) {
        let mut raw = [0; 80];
        raw.copy_from_slice(&serialize(header));
        // Two hashes that begin alike would take four billion blocks.
        self.heights.insert(beginning(&header.block_hash()), self.raw.len() as u32);
        self.raw.push(raw);
        if self.raw.len().is_multiple_of(PART) {
            let leaves = self.leaves(self.raw.len() - PART, self.raw.len());
            self.parts.push(merkle::climb(leaves, LEVELS)[0]);
        }
    }

    /// Takes back all above a height.
    pub(super) fn truncate(&mut self, tip: u32) {
        for height in tip + 1..self.raw.len() as u32 {
            if let Some(header) = self.get(height) {
                self.heights.remove(&beginning(&header.block_hash()));
            }
        }
        self.raw.truncate(tip as usize + 1);
        self.parts.truncate(self.raw.len() / PART);
    }

    fn leaves(&self, from: usize, to: usize) -> Vec<[u8; 32]> {
        self.raw[from..to].iter().map(|raw| sha256d::Hash::hash(raw).to_byte_array()).collect()
    }

    /// Proof that the header at `height` is among those up to `checkpoint`; `None` unless `height` ≤ `checkpoint` ≤ tip.
    pub(super) fn proof(&self, height: u32, checkpoint: u32) -> Option<HeaderProof> {
        if height > checkpoint || checkpoint > self.tip() {
            return None;
        }
        let (index, count) = (height as usize, checkpoint as usize + 1);
        if count <= PART {
            let (branch, root) = merkle::branch(self.leaves(0, count), index);
            return Some(HeaderProof { branch, root });
        }
        let part = index / PART;
        let leaves = self.leaves(part * PART, count.min((part + 1) * PART));
        let mut branch = merkle::branch_of_part(leaves, index % PART, LEVELS);
        let full = count / PART;
        let mut row = self.parts[..full].to_vec();
        if count > full * PART {
            row.push(merkle::climb(self.leaves(full * PART, count), LEVELS)[0]);
        }
        let (upper, root) = merkle::branch(row, part);
        branch.extend(upper);
        Some(HeaderProof { branch, root })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: u32) -> Headers {
        let mut headers = Headers::new(Network::Regtest);
        for nonce in 1..length {
            headers.push(&Header { nonce, ..headers.last() });
        }
        headers
    }

    /// Against the plain computation over all hashes, around the ends of parts.
    #[test]
    fn proofs_equal_the_plain_tree() {
        let headers = chain(3 * PART as u32 + 5);
        let part = PART as u32;
        for checkpoint in
            [0, 1, 2, 9, part - 1, part, part + 1, 2 * part - 1, 2 * part, 3 * part, 3 * part + 4]
        {
            for height in [0, 1, checkpoint / 2, part - 1, part, checkpoint.saturating_sub(1), checkpoint] {
                let proof = headers.proof(height, checkpoint);
                if height > checkpoint {
                    assert_eq!(proof, None);
                    continue;
                }
                let all = headers.leaves(0, checkpoint as usize + 1);
                let (branch, root) = merkle::branch(all, height as usize);
                assert_eq!(proof, Some(HeaderProof { branch, root }), "{height} of {checkpoint}");
            }
        }
        assert_eq!(headers.proof(0, headers.tip() + 1), None);
    }

    #[test]
    fn heights_by_hash_follow_a_reorganisation() {
        let mut headers = Headers::new(Network::Regtest);
        // No two alike: the first block has the nonce 2.
        for nonce in 100..108 {
            headers.push(&Header { nonce, ..headers.last() });
        }
        let hashes: Vec<BlockHash> = (0..9).map(|height| headers.get(height).unwrap().block_hash()).collect();
        assert!((0..9).all(|height| headers.height_of(&hashes[height as usize]) == Some(height)));
        headers.truncate(4);
        headers.push(&Header { nonce: 77, ..headers.last() });
        assert_eq!(headers.height_of(&hashes[4]), Some(4));
        assert_eq!(headers.height_of(&hashes[5]), None);
        assert_eq!(headers.height_of(&headers.last().block_hash()), Some(5));
    }

    /// Bug class 6: proofs from before a reorganisation.
    #[test]
    fn proofs_follow_a_reorganisation() {
        let part = PART as u32;
        let mut headers = chain(2 * part + 3);
        let before = headers.proof(5, 2 * part).unwrap();
        headers.truncate(part - 2);
        for nonce in 0..part + 5 {
            headers.push(&Header { nonce: 1_000_000 + nonce, ..headers.last() });
        }
        let (_, root) = merkle::branch(headers.leaves(0, 2 * PART + 1), 5);
        let after = headers.proof(5, 2 * part).unwrap();
        assert_eq!(after.root, root);
        assert_ne!(after.root, before.root);
    }
}
