//! A plain scan on top of libsecp256k1, and rows to run it on.

pub(crate) mod field;

use bitcoin::hashes::{Hash, HashEngine, sha256};
use peregrine_kernels::{Hit, Isa, KeyMaterial, Rows, Scanner};
use secp256k1::{PublicKey, Scalar, SecretKey};

/// A small generator of repeatable bytes.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn bytes(&mut self) -> [u8; 32] {
        let words: [u64; 4] = core::array::from_fn(|_| self.word());
        core::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8])
    }

    pub(crate) fn secret(&mut self) -> SecretKey {
        SecretKey::from_secret_bytes(self.bytes()).expect("almost always valid")
    }

    pub(crate) fn point(&mut self) -> PublicKey {
        PublicKey::from_secret_key(&self.secret())
    }
}

/// Affine x then y, little-endian.
pub(crate) fn stored(p: &PublicKey) -> [u8; 64] {
    let bytes = p.serialize_uncompressed();
    core::array::from_fn(|i| if i < 32 { bytes[32 - i] } else { bytes[96 - i] })
}

/// A 32-byte scalar with a small value, or n minus it.
pub(crate) fn small(value: u64, negative: bool) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[24..].copy_from_slice(&value.to_be_bytes());
    let key = SecretKey::from_secret_bytes(bytes).expect("not zero");
    if negative { key.negate().to_secret_bytes() } else { bytes }
}

/// value·G
pub(crate) fn times_g(value: u64, negative: bool) -> PublicKey {
    PublicKey::from_secret_key(&SecretKey::from_secret_bytes(small(value, negative)).expect("valid"))
}

/// A key as its owner knows it.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) scan: [u8; 32],
    pub(crate) spend: PublicKey,
    pub(crate) labels: Vec<PublicKey>,
}

impl Key {
    pub(crate) fn random(random: &mut Random, labels: usize) -> Key {
        Key {
            scan: random.secret().to_secret_bytes(),
            spend: random.point(),
            labels: (0..labels).map(|_| random.point()).collect(),
        }
    }

    pub(crate) fn material(&self) -> KeyMaterial {
        KeyMaterial {
            scan_secret: self.scan,
            spend: stored(&self.spend),
            labels: self.labels.iter().map(stored).collect(),
        }
    }

    pub(crate) fn shared_secret(&self, point: &PublicKey) -> [u8; 32] {
        let shared = point.mul_tweak(&Scalar::from_be_bytes(self.scan).expect("below n")).expect("not zero");
        let tag = sha256::Hash::hash(b"BIP0352/SharedSecret").to_byte_array();
        let mut engine = sha256::Hash::engine();
        for part in [&tag[..], &tag, &shared.serialize(), &[0; 4]] {
            engine.input(part);
        }
        sha256::Hash::from_engine(engine).to_byte_array()
    }

    /// The first eight bytes of x for each slot; `None` where the sum is infinity.
    pub(crate) fn expected(&self, point: &PublicKey) -> Vec<Option<[u8; 8]>> {
        let t = SecretKey::from_secret_bytes(self.shared_secret(point)).expect("valid");
        let unlabelled = PublicKey::from_secret_key(&t).combine(&self.spend).ok();
        let x = |p: &PublicKey| p.x_only_public_key().0.to_byte_array()[..8].try_into().expect("eight bytes");
        let mut slots = vec![unlabelled.as_ref().map(x)];
        for label in &self.labels {
            slots.push(match &unlabelled {
                Some(p) => p.combine(label).ok().as_ref().map(x),
                None => Some(x(label)),
            });
        }
        slots
    }
}

/// Rows with outputs.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) points: Vec<PublicKey>,
    pub(crate) rows: Vec<[u8; 64]>,
    pub(crate) ends: Vec<u32>,
    pub(crate) outputs: Vec<[u8; 8]>,
}

/// An output count that starts in the middle of a segment.
pub(crate) const BASE: u32 = u32::MAX - 1_000_000;

impl Table {
    pub(crate) fn push(&mut self, point: PublicKey, outputs: &[[u8; 8]]) {
        self.points.push(point);
        self.rows.push(stored(&point));
        self.outputs.extend(outputs);
        self.ends.push(BASE + self.outputs.len() as u32);
    }

    /// Rows for the points. Each pays some key in some slot: a row without a payment would prove nothing of a backend.
    pub(crate) fn planted(points: &[PublicKey], keys: &[Key], random: &mut Random) -> Table {
        let mut table = Table::default();
        for (turn, point) in points.iter().enumerate() {
            let mut outputs: Vec<[u8; 8]> = Vec::new();
            for _ in 0..random.word() % 4 {
                outputs.push(random.bytes()[..8].try_into().expect("eight bytes"));
            }
            let slots = keys[turn % keys.len()].expected(point);
            if let Some(output) = slots[turn / keys.len() % slots.len()] {
                let at = random.word() as usize % (outputs.len() + 1);
                outputs.insert(at, output);
            }
            table.push(*point, &outputs);
        }
        table
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows { points: &self.rows, output_ends: &self.ends, outputs_base: BASE, outputs: &self.outputs }
    }

    pub(crate) fn outputs_of(&self, row: usize) -> &[[u8; 8]] {
        let start = if row == 0 { 0 } else { (self.ends[row - 1] - BASE) as usize };
        &self.outputs[start..(self.ends[row] - BASE) as usize]
    }

    /// What the reference finds in a row.
    pub(crate) fn reference(&self, row: usize, keys: &[Key]) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (k, key) in keys.iter().enumerate() {
            for (slot, x) in key.expected(&self.points[row]).iter().enumerate() {
                if x.is_some_and(|x| self.outputs_of(row).contains(&x)) {
                    hits.push(Hit { row: row as u32, key: k as u32, slot: slot as u32 });
                }
            }
        }
        hits
    }
}

/// `PEREGRINE_SIMD_ROWS` where that is less: an emulator is a hundred times slower than a processor.
pub(crate) fn at_most(count: usize) -> usize {
    let limit = std::env::var("PEREGRINE_SIMD_ROWS")
        .map(|rows| rows.parse().expect("PEREGRINE_SIMD_ROWS is a number"));
    count.min(limit.unwrap_or(usize::MAX))
}

/// The instruction sets to test; says which are left out, and fails if one that `EXPECT_ISA` names is missing.
pub(crate) fn available() -> Vec<Isa> {
    let expected = std::env::var("EXPECT_ISA").unwrap_or_default();
    for name in expected.split(',').filter(|name| !name.is_empty()) {
        let isa = Isa::ALL.iter().find(|isa| isa.name() == name).expect("EXPECT_ISA names a backend");
        assert_eq!(isa.missing_feature(), None, "EXPECT_ISA names {name}");
    }
    let only = std::env::var("PEREGRINE_SIMD_ONLY").unwrap_or_default();
    let wanted = |isa: &&Isa| only.is_empty() || only.split(',').any(|name| name == isa.name());
    let (have, lack): (Vec<Isa>, Vec<Isa>) =
        Isa::ALL.iter().filter(wanted).partition(|isa| isa.is_available());
    assert!(!have.is_empty(), "PEREGRINE_SIMD_ONLY names no backend of this processor");
    for isa in lack {
        println!("skipped {isa}: this processor lacks {}", isa.missing_feature().unwrap_or("?"));
    }
    have
}

/// Scans and gives back sorted hits (rows that were handed back are redone here) and the number of those rows.
pub(crate) fn scan(scanner: &Scanner, table: &Table, keys: &[Key]) -> (Vec<Hit>, usize) {
    let (mut hits, mut redo) = (Vec::new(), Vec::new());
    scanner.scan(table.rows(), &mut hits, &mut redo);
    assert!(redo.is_sorted_by(|a, b| a < b), "rows to redo are listed once");
    hits.retain(|hit| !redo.contains(&hit.row));
    for row in &redo {
        hits.extend(table.reference(*row as usize, keys));
    }
    hits.sort_unstable();
    (hits, redo.len())
}
