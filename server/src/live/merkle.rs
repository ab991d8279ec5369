//! Merkle branches as Bitcoin and the Electrum protocol have them: double SHA-256, the last hash of an odd row beside
//! itself.

use bitcoin::hashes::{Hash, HashEngine, sha256d};

/// The row above a row of hashes.
pub(super) fn parents(row: &[[u8; 32]]) -> Vec<[u8; 32]> {
    row.chunks(2).map(|pair| parent(&pair[0], pair.get(1).unwrap_or(&pair[0]))).collect()
}

fn parent(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut engine = sha256d::Hash::engine();
    engine.input(left);
    engine.input(right);
    sha256d::Hash::from_engine(engine).to_byte_array()
}

/// The hash beside the one at `index` of a row.
fn sibling(row: &[[u8; 32]], index: usize) -> [u8; 32] {
    row.get(index ^ 1).copied().unwrap_or(row[index])
}

/// The hashes beside the way from `row[index]` to the root, and the root.
///
/// # Panics
/// If `index` isn't in the row.
pub(super) fn branch(row: Vec<[u8; 32]>, index: usize) -> (Vec<[u8; 32]>, [u8; 32]) {
    let (mut row, mut index) = (row, index);
    let mut branch = Vec::new();
    while row.len() > 1 {
        branch.push(sibling(&row, index));
        row = parents(&row);
        index /= 2;
    }
    (branch, row[0])
}

/// Goes up `levels` rows, however few hashes are left: for a part of a larger row.
pub(super) fn climb(row: Vec<[u8; 32]>, levels: usize) -> Vec<[u8; 32]> {
    (0..levels).fold(row, |row, _| parents(&row))
}

/// The first `levels` hashes of the branch of `row[index]`, where the row is a part of a larger one.
pub(super) fn branch_of_part(row: Vec<[u8; 32]>, index: usize, levels: usize) -> Vec<[u8; 32]> {
    let (mut row, mut index) = (row, index);
    let mut branch = Vec::with_capacity(levels);
    for _ in 0..levels {
        branch.push(sibling(&row, index));
        row = parents(&row);
        index /= 2;
    }
    branch
}

#[cfg(test)]
mod tests {
    use bitcoin::TxMerkleNode;
    use bitcoin::merkle_tree::calculate_root;

    use super::*;

    fn row(count: u8) -> Vec<[u8; 32]> {
        (0..count).map(|byte| sha256d::Hash::hash(&[byte]).to_byte_array()).collect()
    }

    /// The root against the library's, and every branch against the root.
    #[test]
    fn branches_lead_to_the_root_that_the_library_computes() {
        for count in 1..=33 {
            let row = row(count);
            let expected = calculate_root(row.iter().map(|hash| TxMerkleNode::from_byte_array(*hash)))
                .expect("not empty")
                .to_byte_array();
            for (index, leaf) in row.iter().enumerate() {
                let (branch, root) = branch(row.clone(), index);
                assert_eq!(root, expected, "{count}");
                let (mut hash, mut place) = (*leaf, index);
                for beside in &branch {
                    hash = if place % 2 == 0 { parent(&hash, beside) } else { parent(beside, &hash) };
                    place /= 2;
                }
                assert_eq!(hash, expected, "{index} of {count}");
            }
        }
    }
}
