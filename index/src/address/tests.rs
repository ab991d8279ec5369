//! What can't be made with whole blocks: ids that collide, and damaged rows.

use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, CompactTarget, Network, OutPoint, TxMerkleNode, Txid};
use fjall::Keyspace;
use tempfile::TempDir;

use super::entries::{Touch, TouchKind};
use super::*;

const START: u32 = 100;

/// An index whose first block has height [`START`].
fn index() -> (TempDir, AddressIndexWriter) {
    let dir = tempfile::tempdir().unwrap();
    let params = AddressParams { start_height: START, ..AddressParams::for_network(Network::Regtest) };
    let writer = AddressIndexWriter::open_with_cache(dir.path(), &params, 1 << 20).unwrap();
    (dir, writer)
}

fn script(n: u8) -> ScriptHash {
    ScriptHash([n; 32])
}

/// All begin alike.
fn txid(n: u8) -> Txid {
    let mut bytes = [7; 32];
    bytes[31] = n;
    Txid::from_byte_array(bytes)
}

/// A block of transactions with these ids; each pays one satoshi to `script` of its number, and spends what is given.
fn entries(writer: &AddressIndexWriter, transactions: &[(u8, Option<u8>)]) -> BlockEntries {
    let header = Header {
        version: Version::TWO,
        prev_blockhash: writer.tip().map_or(BlockHash::all_zeros(), |(_, hash)| hash),
        merkle_root: TxMerkleNode::all_zeros(),
        time: 0,
        bits: CompactTarget::from_consensus(0),
        nonce: u32::from(transactions[0].0),
    };
    let mut touches = Vec::new();
    for (position, (n, spends)) in (0..).zip(transactions) {
        let kind = TouchKind::Funds { vout: 0, value: 1 };
        touches.push(Touch { script: script(*n), position, kind });
        if let Some(spent) = spends {
            let kind = TouchKind::Spends { vin: 0, outpoint: OutPoint::new(txid(*spent), 0) };
            touches.push(Touch { script: script(*spent), position, kind });
        }
    }
    touches.sort_unstable();
    let txids: Vec<Txid> = transactions.iter().map(|(n, _)| txid(*n)).collect();
    let offsets = (0..txids.len() as u32).map(|n| 81 + n * 60).collect();
    BlockEntries { header, size: 81 + 60 * txids.len() as u32, txids, offsets, touches }
}

fn append(writer: &mut AddressIndexWriter, transactions: &[(u8, Option<u8>)]) {
    let entries = entries(writer, transactions);
    writer.append(&entries, writer.next_height()).unwrap();
}

#[test]
fn ids_that_begin_alike_are_told_apart() {
    for batch in [0, 1000] {
        let (_dir, mut writer) = index();
        writer.set_batch(batch);
        append(&mut writer, &[(1, None), (2, None), (3, Some(2))]);
        append(&mut writer, &[(4, Some(1)), (5, None)]);
        append(&mut writer, &[(6, Some(5)), (7, Some(99))]);
        writer.commit().unwrap();
        let view = writer.reader().view();
        for (n, height, position) in
            [(1, 100, 0), (2, 100, 1), (3, 100, 2), (4, 101, 0), (5, 101, 1), (6, 102, 0), (7, 102, 1)]
        {
            assert_eq!(view.transaction_position(&txid(n)).unwrap(), Some(TxPosition { height, position }));
        }
        assert_eq!(view.transaction_position(&txid(99)).unwrap(), None);
        let spender = |n: u8| view.spender(&OutPoint::new(txid(n), 0)).unwrap().map(|spender| spender.txid);
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7, 99].map(spender),
            [
                Some(txid(4)),
                Some(txid(3)),
                None,
                None,
                Some(txid(6)),
                None,
                None,
                // Made by a transaction that isn't in the index.
                None
            ]
        );
        assert_eq!(view.history(&script(99), 9).unwrap().len(), 1);
        // An id again that others begin like.
        append(&mut writer, &[(2, None)]);
        writer.commit().unwrap();
        let view = writer.reader().view();
        assert_eq!(view.transaction_position(&txid(2)).unwrap().unwrap().height, 103);
        assert_eq!(view.unspent(&script(2), 9).unwrap().len(), 1);
        writer.rollback_to(Some(101)).unwrap();
        let view = writer.reader().view();
        assert_eq!(view.transaction_position(&txid(6)).unwrap(), None);
        assert_eq!(
            view.transaction_position(&txid(2)).unwrap(),
            Some(TxPosition { height: 100, position: 1 })
        );
        assert_eq!(view.unspent(&script(2), 9).unwrap(), []);
    }
}

#[test]
fn lists_of_scripts_end_a_thousand_blocks_below_the_tip() {
    let (_dir, mut writer) = index();
    writer.set_batch(100_000);
    for n in 0..1100_u32 {
        append(&mut writer, &[(n as u8, None)]);
    }
    writer.commit().unwrap();
    let view = writer.reader().view();
    let tip = START + 1099;
    let oldest = tip - TOUCHED_BLOCKS + 1;
    assert_eq!(view.touched(oldest - 1).unwrap(), None);
    for height in [oldest, oldest + 1, tip] {
        assert_eq!(view.touched(height).unwrap(), Some(vec![script((height - START) as u8)]));
    }
    writer.rollback_to(Some(START)).unwrap();
    let view = writer.reader().view();
    assert_eq!((view.history(&script(0), 9).unwrap().len(), view.transactions()), (1, 1));
    assert_eq!(view.history(&script(1), 9).unwrap(), []);
    assert_eq!(view.touched(START).unwrap(), None);
}

#[test]
fn damaged_rows_are_errors() {
    type Pick = fn(&tables::Tables) -> &Keyspace;
    let tables: [Pick; 5] = [
        |tables| &tables.blocks,
        |tables| &tables.txids,
        |tables| &tables.history,
        |tables| &tables.spends,
        |tables| &tables.touched,
    ];
    for (which, table) in tables.iter().enumerate() {
        for garbage in [&[][..], &[0xff; 3], &[0xff; 5], &[0xff; 36], &[0xff; 92], &[0xff; 200]] {
            let (dir, mut writer) = index();
            append(&mut writer, &[(1, None), (2, Some(1))]);
            append(&mut writer, &[(3, Some(2)), (4, None)]);
            let all = writer.reader().view().tables.tables;
            let keys: Vec<_> = table(&all).iter().map(|row| row.key().unwrap()).collect();
            assert!(!keys.is_empty());
            for key in keys {
                table(&all).insert(key, garbage).unwrap();
            }
            all.db.persist(fjall::PersistMode::SyncAll).unwrap();
            let rows = writer.files.current();
            let view = AddressView { tables: all.now(rows), ..writer.reader().view() };
            drop(all);
            let mut failed = false;
            for n in 0..5 {
                failed |= view.history(&script(n), 9).is_err();
                failed |= view.unspent(&script(n), 9).is_err();
                failed |= view.balance(&script(n), 9).is_err();
                failed |= view.transaction_position(&txid(n)).is_err();
                failed |= view.spender(&OutPoint::new(txid(n), 0)).is_err();
                for height in START..START + 3 {
                    failed |= view.txid_at(height, u32::from(n)).is_err();
                    failed |= view.location(height, u32::from(n)).is_err();
                    failed |= view.block(height).is_err();
                    failed |= view.txids_of_block(height).is_err();
                    failed |= view.touched(height).is_err();
                }
            }
            // A list of no numbers or scripts is a list.
            let plausible = garbage.is_empty() && [1, 4].contains(&which);
            // Other bytes of the right length are other facts.
            let right_len = (which, garbage.len()) == (0, 92);
            assert!(failed || plausible || right_len, "table {which} with {} bytes", garbage.len());
            drop(view);
            // Whatever these do, they don't panic.
            let _ = writer.rollback_to(Some(START));
            let _ = writer.append(&entries(&writer, &[(9, Some(1))]), writer.next_height());
            let params = writer.params().clone();
            drop(writer);
            let opened = AddressIndexWriter::open_with_cache(dir.path(), &params, 1 << 20);
            assert!(opened.is_ok() || which == 0, "table {which}");
        }
    }
}
