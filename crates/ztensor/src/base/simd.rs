//! Runs a loop with AVX2 where the current [SIMD level](z4ai::SimdLevel) has it.
//!
//! A [`Kernel`] is ordinary portable code. [`run`] compiles it twice, once for
//! the baseline and once with AVX2 allowed, and picks at run time: the compiler
//! auto-vectorises; there are no intrinsics, and both versions compute the same bits.

/// A loop worth compiling for wider registers. Implementations mark `run` and
/// what it calls `#[inline(always)]`: only inlined code gets the wider registers.
pub(crate) trait Kernel {
    /// Does the work.
    fn run(self);
}

/// Runs `kernel` with what the processor has.
pub(crate) fn run(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    if z4ai::SimdLevel::current().is_ok_and(|level| level >= z4ai::SimdLevel::Avx2) {
        // SAFETY: the machine has every feature of the current level, which includes AVX2.
        return unsafe { avx2(kernel) };
    }
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(kernel: impl Kernel) {
    kernel.run();
}
