//! The SIMD level that kernels run at: the best one of the machine, or a lower one that is forced.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};

/// The environment variable that forces a level, read once, on first use.
const VARIABLE: &str = "Z4AI_CPU";

/// A set of instructions that kernels are compiled for. Each level of a processor includes those
/// before it.
///
/// All levels produce the same frames and the same decoded bytes; they differ in speed. The level
/// is the best one of the machine unless the environment variable `Z4AI_CPU` names another
/// (`portable`, `avx2`, `avx512` or `neon`), which is for tests, benchmarks and for locating faults. If it
/// names a level that the machine lacks, or no level at all, every call that encodes or decodes
/// fails with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) and says which levels there
/// are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum SimdLevel {
    /// What the compiler makes of plain Rust for the target's baseline: SSE2 on x86-64, NEON on
    /// AArch64, by automatic vectorisation only.
    Portable = 1,
    /// AVX2 with BMI1 and BMI2 (x86-64-v3).
    Avx2,
    /// AVX-512 F, BW, CD, DQ, VL, VBMI and VBMI2 (Ice Lake, Zen 4 and later).
    Avx512,
    /// NEON (AArch64).
    Neon,
}

impl SimdLevel {
    const ALL: [SimdLevel; 4] = [SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512, SimdLevel::Neon];

    /// Every level that this version has kernels for, from the lowest to the highest.
    pub fn all() -> impl ExactSizeIterator<Item = SimdLevel> {
        Self::ALL.into_iter()
    }

    /// The levels that this machine can run, from the lowest to the highest.
    pub fn available() -> impl Iterator<Item = SimdLevel> {
        let best = detect();
        Self::all().filter(move |&level| best.includes(level))
    }

    /// Whether a machine whose best level is this one can run `other`.
    fn includes(self, other: SimdLevel) -> bool {
        other == self || other == Self::Portable || (self, other) == (Self::Avx512, Self::Avx2)
    }

    /// The name: `portable`, `avx2`, `avx512`, `neon`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// The level that kernels run at now; an error if `Z4AI_CPU` names one that they cannot run at.
    pub fn current() -> Result<SimdLevel> {
        match LEVEL.load(Ordering::Relaxed) {
            0 => initialize(),
            known => Ok(Self::ALL[usize::from(known) - 1]),
        }
    }

    /// Forces this level in the whole process until the guard is dropped. One level can be forced
    /// at a time: another call blocks until then. An error if the machine lacks the level.
    #[doc(hidden)]
    pub fn force(self) -> Result<ForcedLevel> {
        if !detect().includes(self) {
            return Err(lacking(self.name()));
        }
        // Before the lock: the level to return to is the one of the environment.
        let environment = initialize()?;
        let lock = FORCED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        LEVEL.store(self as u8, Ordering::Relaxed);
        Ok(ForcedLevel { environment, _lock: lock })
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A forced level; dropping it returns to the level of the environment.
#[doc(hidden)]
#[derive(Debug)]
pub struct ForcedLevel {
    environment: SimdLevel,
    _lock: MutexGuard<'static, ()>,
}

impl Drop for ForcedLevel {
    fn drop(&mut self) {
        LEVEL.store(self.environment as u8, Ordering::Relaxed);
    }
}

/// The current level as a number, 0 before it is known.
static LEVEL: AtomicU8 = AtomicU8::new(0);
/// Held while a level is forced.
static FORCED: Mutex<()> = Mutex::new(());

/// Whether kernels may use `wanted`.
///
/// # Panics
/// If the environment names a level that the machine lacks. [`SimdLevel::current`] tells that as an
/// error, and the public functions that encode or decode call it first.
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
#[inline(always)]
pub(crate) fn has(wanted: SimdLevel) -> bool {
    // The levels of one architecture are in order, and no others are asked for.
    match LEVEL.load(Ordering::Relaxed) {
        0 => initialize().unwrap_or_else(|error| panic!("{error}")) >= wanted,
        known => known >= wanted as u8,
    }
}

/// The level of the environment, which becomes the current one if there is none yet.
#[cold]
fn initialize() -> Result<SimdLevel> {
    let level = match std::env::var_os(VARIABLE) {
        None => detect(),
        Some(name) => {
            let level = SimdLevel::all().find(|level| name == level.name());
            level.filter(|&level| detect().includes(level)).ok_or_else(|| lacking(&name.to_string_lossy()))?
        }
    };
    // Threads that get here at once find the same level, and a forced one stays.
    let _ = LEVEL.compare_exchange(0, level as u8, Ordering::Relaxed, Ordering::Relaxed);
    Ok(level)
}

fn lacking(name: &str) -> Error {
    let available: Vec<&str> = SimdLevel::available().map(SimdLevel::name).collect();
    Error::invalid(format_args!(
        "{VARIABLE}={name}: this machine has the levels {}; unset {VARIABLE} for the best one",
        available.join(", ")
    ))
}

/// The best level of the machine.
fn detect() -> SimdLevel {
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! all {
            ($($feature:tt),*) => { $(std::is_x86_feature_detected!($feature))&&* };
        }
        let avx2 = !cfg!(miri) && all!("avx2", "bmi1", "bmi2", "lzcnt");
        let avx512 = all!(
            "avx512f",
            "avx512bw",
            "avx512cd",
            "avx512dq",
            "avx512vl",
            "avx512vbmi",
            "avx512vbmi2",
            "popcnt"
        );
        match (avx2, avx512) {
            (true, true) => SimdLevel::Avx512,
            (true, false) => SimdLevel::Avx2,
            (false, _) => SimdLevel::Portable,
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        if cfg!(miri) { SimdLevel::Portable } else { SimdLevel::Neon }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    SimdLevel::Portable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_that_the_machine_lacks_are_refused_by_name() {
        for level in SimdLevel::all().filter(|&level| !detect().includes(level)) {
            let error = level.force().unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
            assert!(error.message().contains(level.name()), "{error}");
        }
        let message = lacking("sve").message().to_owned();
        assert!(message.starts_with("Z4AI_CPU=sve: this machine has the levels portable"), "{message}");
    }
}
