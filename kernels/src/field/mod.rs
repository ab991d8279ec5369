//! Field arithmetic modulo p = 2^256 − 2^32 − 977, several rows at a time.
//!
//! Everything above this module is written once against [`Field`]; a representation says how many rows it
//! carries per element and how its limbs look. Lazy reduction stands in three types:
//!
//! - `Fe`: *tight*, what multiplications give back and what is kept per row;
//! - `Wide`: the outcome of one subtraction, at most one operand of a multiplication;
//! - `Sum`: only ever subtracted from a product before that is reduced.
//!
//! The bounds behind each type are proven beside the code of the representation.

pub(crate) mod inverse;
#[cfg(target_arch = "x86_64")]
pub(crate) mod r29;
#[cfg(target_arch = "x86_64")]
pub(crate) mod r52;
pub(crate) mod scalar;

/// 2^256 − p.
pub(crate) const C: u64 = 0x1_0000_03d1;
/// p, least significant word first.
pub(crate) const P: [u64; 4] = [0xffff_fffe_ffff_fc2f, u64::MAX, u64::MAX, u64::MAX];
/// The cube root of one in the field that belongs to [`crate::modn::LAMBDA`].
pub(crate) const BETA: [u64; 4] =
    [0xc1396c28719501ee, 0x9cf0497512f58995, 0x6e64479eac3434e9, 0x7ae96a2b657c0710];
/// 3/2 modulo p.
pub(crate) const THREE_HALVES: [u64; 4] =
    [0xffffffff7ffffe19, 0xffffffffffffffff, 0xffffffffffffffff, 0x7fffffffffffffff];
/// The generator's x.
pub(crate) const GX: [u64; 4] =
    [0x59f2815b16f81798, 0x029bfcdb2dce28d9, 0x55a06295ce870b07, 0x79be667ef9dcbbac];
/// The generator's y.
pub(crate) const GY: [u64; 4] =
    [0x9c47d08ffb10d4b8, 0xfd17b448a6855419, 0x5da4fbfc0e1108a8, 0x483ada7726a3c465];

/// An affine point, x then y, 32 bytes little-endian each, on a cache line of its own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Packed(pub(crate) [u8; 64]);

impl Packed {
    pub(crate) fn new(x: &[u64; 4], y: &[u64; 4]) -> Self {
        let mut bytes = [0; 64];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(x.iter().chain(y)) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Packed(bytes)
    }

    #[cfg(test)]
    pub(crate) fn words(&self) -> ([u64; 4], [u64; 4]) {
        split_point(&self.0)
    }
}

/// The words of an affine point in the stored form.
#[inline(always)]
pub(crate) fn split_point(bytes: &[u8; 64]) -> ([u64; 4], [u64; 4]) {
    let word = |i: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&bytes[8 * i..8 * i + 8]);
        u64::from_le_bytes(b)
    };
    ([word(0), word(1), word(2), word(3)], [word(4), word(5), word(6), word(7)])
}

/// Work that is compiled for one instruction set: [`Field::enter`] inlines `run` into a function that has the
/// features of that set enabled.
pub(crate) trait Job<F: Field> {
    /// What the work gives back.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, or they would be compiled without the features.
    fn run(self) -> Self::Output;
}

/// A representation of field elements, `LANES` rows at a time.
///
/// Methods of the vector implementations may only run on a processor that has their instructions; values are
/// made only below [`crate::isa::dispatch`], which checks that.
pub(crate) trait Field: Copy + Send + Sync + 'static {
    /// Rows per element.
    const LANES: usize;
    /// Rows per chunk, as measured: a larger chunk shares its inversions among more rows, a smaller one stays in
    /// nearer caches.
    const CHUNK: usize;
    /// The same for many keys, where a row keeps many points.
    const CHUNK_MANY: usize = 512;
    /// Whether passes handle two vectors of rows side by side, where that measures faster.
    const PAIRS: bool;
    /// Bits between limbs.
    const WIDTH: u32;
    /// The largest limbs of tight elements, wide ones, and sums.
    const MAXIMA: (&'static [u64], &'static [u64], &'static [u64]);
    /// A tight element.
    type Fe: Copy + Send + Sync + 'static;
    /// A difference: one operand of a multiplication.
    type Wide: Copy + Send + Sync + 'static;
    /// Something to subtract from a product.
    type Sum: Copy;

    /// Runs `job` in a function compiled for this instruction set.
    fn enter<J: Job<Self>>(job: J) -> J::Output;

    /// The same value, any below 2^256, in every lane.
    fn splat(words: &[u64; 4]) -> Self::Fe;
    /// One value per lane, any below 2^256; missing lanes are zero.
    fn from_words(words: &[[u64; 4]]) -> Self::Fe;
    /// The values in [0, p); `out` has `LANES` entries.
    fn to_words(a: &Self::Fe, out: &mut [[u64; 4]]);
    /// The most significant words of the values in [0, p), in the first `LANES` entries.
    fn top_words(a: &Self::Fe, out: &mut [u64; 8]);
    /// Loads one stored point per lane.
    fn load_points<'a>(get: impl Fn(usize) -> &'a [u8; 64]) -> (Self::Fe, Self::Fe);

    /// a·b
    fn mul(a: &Self::Fe, b: &Self::Fe) -> Self::Fe;
    /// a·b
    fn mul_w(a: &Self::Wide, b: &Self::Fe) -> Self::Fe;
    /// a²
    fn sqr(a: &Self::Fe) -> Self::Fe;
    /// a² − s
    fn sqr_sub(a: &Self::Fe, s: &Self::Sum) -> Self::Fe;
    /// a·b − s
    fn mul_sub(a: &Self::Wide, b: &Self::Fe, s: &Self::Fe) -> Self::Fe;
    /// a·b + s
    fn mul_add(a: &Self::Fe, b: &Self::Fe, s: &Self::Fe) -> Self::Fe;
    /// a − b
    fn sub(a: &Self::Fe, b: &Self::Fe) -> Self::Wide;
    /// −a − b
    fn neg_sum(a: &Self::Fe, b: &Self::Fe) -> Self::Wide;
    /// −a − b − c
    fn neg_sum3(a: &Self::Fe, b: &Self::Fe, c: &Self::Fe) -> Self::Wide;
    /// −a − b in the lanes whose bit of `negate` is set, a − b in the others.
    fn signed_sub(a: &Self::Fe, negate: u32, b: &Self::Fe) -> Self::Wide;
    /// 2a
    fn twice(a: &Self::Fe) -> Self::Sum;
    /// 2a + d
    fn twice_plus(a: &Self::Fe, d: &Self::Wide) -> Self::Sum;

    /// The number one.
    #[inline(always)]
    fn one() -> Self::Fe {
        Self::splat(&[1, 0, 0, 0])
    }
}

/// Four vectors of words to one array of words per lane.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn scatter<V: crate::arch::Simd>(vectors: &[V; 4], out: &mut [[u64; 4]]) {
    for (i, vector) in vectors.iter().enumerate() {
        let mut lanes = [0; 8];
        vector.store(&mut lanes);
        for (words, lane) in out.iter_mut().zip(&lanes).take(V::LANES) {
            words[i] = *lane;
        }
    }
}
