//! The portable representation with the two carry chains of ADX and the flag-free multiplication of BMI2.
//!
//! A row of a product adds low halves with one carry flag and high halves with the other, which compilers do
//! not do. The steps are those of [`crate::field::scalar`].

use crate::field::C;
use crate::field::scalar::{Kernel, Words};
use core::arch::asm;

/// Kernels for processors with BMI2 and ADX; only `isa::dispatch` chooses them, after detecting both.
#[derive(Clone, Copy)]
pub(crate) struct Adx;

/// Reduces r7…r0, with rdx free, into r3…r0.
macro_rules! reduce {
    () => {
        concat!(
            "mov rdx, {c}\n",
            "xor {hi:e}, {hi:e}\n",
            "mulx {hi}, {lo}, {r4}\n",
            "adcx {r0}, {lo}\n",
            "adox {r1}, {hi}\n",
            "mulx {hi}, {lo}, {r5}\n",
            "adcx {r1}, {lo}\n",
            "adox {r2}, {hi}\n",
            "mulx {hi}, {lo}, {r6}\n",
            "adcx {r2}, {lo}\n",
            "adox {r3}, {hi}\n",
            "mulx {r4}, {lo}, {r7}\n",
            "adcx {r3}, {lo}\n",
            "mov {lo:e}, 0\n",
            "adox {r4}, {lo}\n",
            "adcx {r4}, {lo}\n",
            "mulx {r5}, {r4}, {r4}\n",
            "add {r0}, {r4}\n",
            "adc {r1}, {r5}\n",
            "adc {r2}, 0\n",
            "adc {r3}, 0\n",
            "sbb {lo}, {lo}\n",
            "and {lo}, rdx\n",
            "add {r0}, {lo}\n",
            "adc {r1}, 0\n",
        )
    };
}

/// r(i)…r(i+4) += a_i · b, where r(i+4) is new.
macro_rules! row {
    ($at:literal, $r0:literal, $r1:literal, $r2:literal, $r3:literal, $r4:literal) => {
        concat!(
            "mov rdx, [{a} + ",
            $at,
            "]\n",
            "xor {",
            $r4,
            ":e}, {",
            $r4,
            ":e}\n",
            "mulx {hi}, {lo}, [{b}]\n",
            "adcx {",
            $r0,
            "}, {lo}\n",
            "adox {",
            $r1,
            "}, {hi}\n",
            "mulx {hi}, {lo}, [{b} + 8]\n",
            "adcx {",
            $r1,
            "}, {lo}\n",
            "adox {",
            $r2,
            "}, {hi}\n",
            "mulx {hi}, {lo}, [{b} + 16]\n",
            "adcx {",
            $r2,
            "}, {lo}\n",
            "adox {",
            $r3,
            "}, {hi}\n",
            "mulx {hi}, {lo}, [{b} + 24]\n",
            "adcx {",
            $r3,
            "}, {lo}\n",
            "adox {",
            $r4,
            "}, {hi}\n",
            "mov {lo:e}, 0\n",
            "adcx {",
            $r4,
            "}, {lo}\n",
        )
    };
}

impl Kernel for Adx {
    #[inline(always)]
    fn mul(a: &Words, b: &Words) -> Words {
        let (r0, r1, r2, r3): (u64, u64, u64, u64);
        // SAFETY: reads the eight words behind the references and touches only the registers named; the
        // processor has the instructions (see `Adx`).
        unsafe {
            asm!(
                "mov rdx, [{a}]",
                "mulx {r1}, {r0}, [{b}]",
                "mulx {r2}, {lo}, [{b} + 8]",
                "add {r1}, {lo}",
                "mulx {r3}, {lo}, [{b} + 16]",
                "adc {r2}, {lo}",
                "mulx {r4}, {lo}, [{b} + 24]",
                "adc {r3}, {lo}",
                "adc {r4}, 0",
                row!("8", "r1", "r2", "r3", "r4", "r5"),
                row!("16", "r2", "r3", "r4", "r5", "r6"),
                row!("24", "r3", "r4", "r5", "r6", "r7"),
                reduce!(),
                a = in(reg) a.as_ptr(),
                b = in(reg) b.as_ptr(),
                c = const C,
                r0 = out(reg) r0,
                r1 = out(reg) r1,
                r2 = out(reg) r2,
                r3 = out(reg) r3,
                r4 = out(reg) _,
                r5 = out(reg) _,
                r6 = out(reg) _,
                r7 = out(reg) _,
                lo = out(reg) _,
                hi = out(reg) _,
                out("rdx") _,
                options(pure, readonly, nostack),
            );
        }
        [r0, r1, r2, r3]
    }

    #[inline(always)]
    fn sqr(a: &Words) -> Words {
        let (r0, r1, r2, r3): (u64, u64, u64, u64);
        // SAFETY: reads the four words behind the reference and touches only the registers named; the
        // processor has the instructions (see `Adx`).
        unsafe {
            asm!(
                // The products off the diagonal.
                "mov rdx, [{a}]",
                "mulx {r2}, {r1}, [{a} + 8]",
                "mulx {r3}, {lo}, [{a} + 16]",
                "add {r2}, {lo}",
                "mulx {r4}, {lo}, [{a} + 24]",
                "adc {r3}, {lo}",
                "adc {r4}, 0",
                "mov rdx, [{a} + 8]",
                "xor {r5:e}, {r5:e}",
                "mulx {hi}, {lo}, [{a} + 16]",
                "adcx {r3}, {lo}",
                "adox {r4}, {hi}",
                "mulx {hi}, {lo}, [{a} + 24]",
                "adcx {r4}, {lo}",
                "adox {r5}, {hi}",
                "mov {lo:e}, 0",
                "adcx {r5}, {lo}",
                "mov rdx, [{a} + 16]",
                "mulx {r6}, {lo}, [{a} + 24]",
                "add {r5}, {lo}",
                "adc {r6}, 0",
                // Doubled with one carry chain while the squares are added with the other.
                "xor {r7:e}, {r7:e}",
                "mov rdx, [{a}]",
                "mulx {hi}, {r0}, rdx",
                "adcx {r1}, {r1}",
                "adox {r1}, {hi}",
                "mov rdx, [{a} + 8]",
                "mulx {hi}, {lo}, rdx",
                "adcx {r2}, {r2}",
                "adox {r2}, {lo}",
                "adcx {r3}, {r3}",
                "adox {r3}, {hi}",
                "mov rdx, [{a} + 16]",
                "mulx {hi}, {lo}, rdx",
                "adcx {r4}, {r4}",
                "adox {r4}, {lo}",
                "adcx {r5}, {r5}",
                "adox {r5}, {hi}",
                "mov rdx, [{a} + 24]",
                "mulx {hi}, {lo}, rdx",
                "adcx {r6}, {r6}",
                "adox {r6}, {lo}",
                "adcx {r7}, {r7}",
                "adox {r7}, {hi}",
                reduce!(),
                a = in(reg) a.as_ptr(),
                c = const C,
                r0 = out(reg) r0,
                r1 = out(reg) r1,
                r2 = out(reg) r2,
                r3 = out(reg) r3,
                r4 = out(reg) _,
                r5 = out(reg) _,
                r6 = out(reg) _,
                r7 = out(reg) _,
                lo = out(reg) _,
                hi = out(reg) _,
                out("rdx") _,
                options(pure, readonly, nostack),
            );
        }
        [r0, r1, r2, r3]
    }
}
