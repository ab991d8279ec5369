//! What the kernels for graphics processors are handed: `cuda/scan.cuh` says what they do with it.
//!
//! Points are 64 bytes, affine x then y, each 32 bytes little-endian; all zero stands for none. Numbers are 32 bits,
//! little-endian.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::comb;
use crate::field::Packed;
use crate::modn;
use crate::program::{Op, Shape};
use crate::recode::{Operand, Weights};
use crate::scan::{KernelError, KeyMaterial, check_point};

/// Labels of a key that one scan looks for, the change label among them. A key with more is scanned several times.
pub const MAX_LABELS: usize = 16;

/// The PTX of `cuda/scan.cu`, as `cuda/build.sh` makes it.
pub const PTX: &str = include_str!("../cuda/scan.ptx");

/// Points whose multiples the ladder adds.
const ORBITS: usize = 4;

/// A doubling is 2M + 5S, an addition 7M + 4S; in tenths of a multiplication, with a squaring as two thirds.
const WEIGHTS: Weights = Weights { double: 53, add: 97 };

/// A key as the kernels have it. It is as secret as the scan key, and wiped when it is dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct DeviceKey {
    /// The operations that make b·T: a byte each, what (0 load, 1 double, 2 add) | slot << 2 | unit << 4 | negative << 6.
    pub schedule: Vec<u8>,
    /// B + c·G + u·2^247·G for every u below 512, where c makes up for the halves in [`generator_table`].
    pub top: Vec<[u8; 64]>,
    /// The labels' points.
    pub labels: Vec<[u8; 64]>,
}

impl std::fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceKey(..)")
    }
}

impl DeviceKey {
    /// Makes a key ready.
    ///
    /// # Errors
    /// [`InvalidSecret`](KernelError::InvalidSecret) and [`InvalidPoint`](KernelError::InvalidPoint), both of key 0.
    pub fn new(material: &KeyMaterial) -> Result<Self, KernelError> {
        let mut secret = modn::from_be(&material.scan_secret);
        let shape = Shape { points: 1, step: 128, orbits: ORBITS };
        let program = if modn::is_valid(&secret) { shape.multiply_plainly(&secret, WEIGHTS) } else { None };
        secret.zeroize();
        let program = program.ok_or(KernelError::InvalidSecret { key: 0 })?;
        let spend = check_point(&material.spend).ok_or(KernelError::InvalidPoint { key: 0 })?;
        if material.labels.iter().any(|label| check_point(label).is_none()) {
            return Err(KernelError::InvalidPoint { key: 0 });
        }
        // With its whole length from the start: a vector that grows leaves copies behind.
        let mut schedule = Vec::with_capacity(1024);
        schedule.extend(program.ops().map(encode));
        let (mut entries, _) = comb::top_table(&Some(spend));
        let top = entries.iter().map(bytes).collect();
        entries.iter_mut().for_each(|entry| entry.0.zeroize());
        Ok(Self { schedule, top, labels: material.labels.clone() })
    }
}

fn encode(op: Op) -> u8 {
    let operand = |what: u8, o: Operand| what | (o.slot as u8) << 2 | o.unit << 4 | u8::from(o.neg) << 6;
    match op {
        Op::Load(o) => operand(0, o),
        Op::Double => 1,
        Op::Add(o) => operand(2, o),
        Op::DoubleAdd(_) | Op::Store(_) => unreachable!("a plain program has none"),
    }
}

fn bytes(entry: &Packed) -> [u8; 64] {
    entry.0
}

/// (j + 1/2)·2^(13i)·G at index i·4096 + j, for 19 windows i of 13 bits: 4.75 MiB.
pub fn generator_table() -> impl ExactSizeIterator<Item = [u8; 64]> {
    comb::table().iter().map(bytes)
}

/// The sources of the same kernels in CUDA C++ as one text, for whoever compiles them anew.
pub fn cuda_source() -> String {
    let files = [
        include_str!("../cuda/portable.cuh"),
        include_str!("../cuda/field.cuh"),
        include_str!("../cuda/point.cuh"),
        include_str!("../cuda/sha256.cuh"),
        include_str!("../cuda/scan.cuh"),
        include_str!("../cuda/scan.cu"),
    ];
    // They include each other, and are all here already.
    let own = |line: &&str| !line.starts_with("#include \"") && !line.starts_with("#pragma once");
    files.iter().flat_map(|file| file.lines().filter(own)).flat_map(|line| [line, "\n"]).collect()
}

/// The WGSL of the same kernels, under `wgsl/`: entry points `ladder`, `comb` and `compare`. With 64-bit integers it needs a
/// device that has them.
pub fn wgsl(wide_integers: bool) -> String {
    let wide =
        if wide_integers { include_str!("../wgsl/wide64.wgsl") } else { include_str!("../wgsl/wide32.wgsl") };
    [
        wide,
        include_str!("../wgsl/field.wgsl"),
        include_str!("../wgsl/multiply.wgsl"),
        include_str!("../wgsl/point.wgsl"),
        include_str!("../wgsl/sha256.wgsl"),
        include_str!("../wgsl/scan.wgsl"),
    ]
    .join("\n")
}
