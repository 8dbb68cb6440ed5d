//! Runs a loop with the widest instructions that this processor has.
//!
//! A [`Kernel`] is ordinary portable code. [`run`] compiles it twice, once for
//! the baseline and once with AVX2 allowed, and picks at run time: the compiler
//! vectorises, nobody writes intrinsics, and both versions compute the same bits.

/// A loop worth compiling for wider registers. Implementations mark `run` and
/// what it calls `#[inline(always)]`: only inlined code gets the wider registers.
pub(crate) trait Kernel {
    /// Does the work.
    fn run(self);
}

/// Runs `kernel` with what the processor has.
pub(crate) fn run(kernel: impl Kernel) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the line above checked that the processor has AVX2.
        return unsafe { avx2(kernel) };
    }
    kernel.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(kernel: impl Kernel) {
    kernel.run();
}
