//! The instruction sets, and which of them this processor has.

use crate::field::{
    Field,
    scalar::{Portable, Scalar},
};

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code, one row at a time.
    Scalar,
    /// AVX2, four rows at a time.
    Avx2,
    /// AVX-512 without IFMA, eight rows at a time.
    Avx512,
    /// AVX-512 IFMA, eight rows at a time.
    Ifma,
    /// AVX-512 IFMA on 256-bit vectors, four rows at a time.
    Ifma256,
}

impl Isa {
    /// All instruction sets, whether this processor has them or not.
    pub const ALL: &'static [Isa] = &[Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Ifma256, Isa::Ifma];

    /// The name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Ifma => "ifma",
            Isa::Ifma256 => "ifma256",
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        self.missing_feature().is_none()
    }

    /// The first feature that this processor lacks.
    pub fn missing_feature(self) -> Option<&'static str> {
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! first_missing {
                ($($feature:tt),*) => {{
                    $(if !std::arch::is_x86_feature_detected!($feature) {
                        return Some($feature);
                    })*
                }};
            }
            match self {
                Isa::Scalar => {}
                Isa::Avx2 => first_missing!("avx2", "bmi2", "adx"),
                Isa::Avx512 => {
                    first_missing!("avx512f", "avx512vl", "avx512dq", "avx512bw", "avx2", "bmi2", "adx")
                }
                Isa::Ifma | Isa::Ifma256 => first_missing!(
                    "avx512f",
                    "avx512ifma",
                    "avx512vl",
                    "avx512dq",
                    "avx512bw",
                    "avx2",
                    "bmi2",
                    "adx"
                ),
            }
            None
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self {
            Isa::Scalar => None,
            _ => Some("x86_64"),
        }
    }

    /// Whether the scalar backend may use BMI2 and ADX.
    #[cfg(target_arch = "x86_64")]
    fn has_carry_chains() -> bool {
        std::arch::is_x86_feature_detected!("bmi2") && std::arch::is_x86_feature_detected!("adx")
    }

    /// The fastest that this processor has.
    pub fn detect() -> Isa {
        *Isa::ALL.iter().rev().find(|isa| isa.is_available()).unwrap_or(&Isa::Scalar)
    }
}

impl core::fmt::Display for Isa {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Something to do in the representation of an instruction set.
pub(crate) trait Visit {
    /// What comes of it.
    type Output;
    /// Does it.
    fn visit<F: Field>(self) -> Self::Output;
}

/// Calls `visit` with the representation of `isa`.
///
/// # Errors
///
/// The missing feature, if the processor lacks one; so no vector code runs where it cannot.
pub(crate) fn dispatch<V: Visit>(isa: Isa, visit: V) -> Result<V::Output, &'static str> {
    if let Some(feature) = isa.missing_feature() {
        return Err(feature);
    }
    #[cfg(target_arch = "x86_64")]
    {
        use crate::arch::{adx::Adx, avx2::A4, avx512::A8, ifma::I8, ifma256::I4};
        use crate::field::{r29::R29, r52::R52};
        match isa {
            Isa::Scalar => {
                if Isa::has_carry_chains() {
                    return Ok(visit.visit::<Scalar<Adx>>());
                }
            }
            Isa::Avx2 => return Ok(visit.visit::<R29<A4>>()),
            Isa::Avx512 => return Ok(visit.visit::<R29<A8>>()),
            Isa::Ifma => return Ok(visit.visit::<R52<I8>>()),
            Isa::Ifma256 => return Ok(visit.visit::<R52<I4>>()),
        }
    }
    Ok(visit.visit::<Scalar<Portable>>())
}
