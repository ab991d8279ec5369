//! Field arithmetic by k256, from limbs.

use k256::FieldElement;
use peregrine_kernels::testing::FieldOp;

/// Σ limb·2^(width·i)
pub(crate) fn value(limbs: &[u64], width: u32) -> FieldElement {
    let base = FieldElement::from_u64(1 << (width / 2)) * FieldElement::from_u64(1 << (width - width / 2));
    limbs.iter().rev().fold(FieldElement::ZERO, |acc, limb| {
        ((acc * base).normalize() + FieldElement::from_u64(*limb)).normalize()
    })
}

/// What the operation should give.
pub(crate) fn expected(op: FieldOp, [a, b, c]: [FieldElement; 3]) -> FieldElement {
    let neg = |v: FieldElement| v.normalize().negate(1).normalize();
    let sum = |v: FieldElement, w: FieldElement| (v.normalize() + w.normalize()).normalize();
    match op {
        FieldOp::Mul | FieldOp::MulWide => a * b,
        FieldOp::Sqr => a.square(),
        FieldOp::SqrSub => sum(a.square(), neg(c)),
        FieldOp::MulSub => sum(a * b, neg(c)),
        FieldOp::MulAdd => sum(a * b, c),
        FieldOp::Sub | FieldOp::SignedSub => sum(a, neg(b)),
        FieldOp::NegSum | FieldOp::SignedSubNeg => neg(sum(a, b)),
        FieldOp::NegSum3 => neg(sum(sum(a, b), c)),
        FieldOp::TwicePlus => sum(b.square(), neg(sum(sum(a, a), c))),
        FieldOp::Twice => sum(b.square(), neg(sum(a, a))),
    }
    .normalize()
}

/// The canonical words, least significant first.
pub(crate) fn words(v: &FieldElement) -> [u64; 4] {
    let bytes = v.to_bytes();
    core::array::from_fn(|i| {
        u64::from_be_bytes(bytes[24 - 8 * i..32 - 8 * i].try_into().expect("eight bytes"))
    })
}
