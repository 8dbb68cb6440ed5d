//! Which instruction sets the machine has, asked once.

use std::sync::atomic::{AtomicU8, Ordering};

/// How far kernels may go; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Level {
    Portable = 1,
    Avx2,
    Avx512,
}

/// The level as a number, 0 before it is known. Threads that ask at once find the same.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// Whether the machine has `wanted`.
#[inline(always)]
pub(super) fn has(wanted: Level) -> bool {
    match LEVEL.load(Ordering::Relaxed) {
        0 => detect() >= wanted,
        known => known >= wanted as u8,
    }
}

#[cold]
fn detect() -> Level {
    macro_rules! all {
        ($($feature:tt),*) => { $(std::is_x86_feature_detected!($feature))&&* };
    }
    let level = match () {
        _ if cfg!(miri) || !all!("avx2", "bmi1", "bmi2") => Level::Portable,
        _ if all!(
            "avx512f",
            "avx512bw",
            "avx512cd",
            "avx512dq",
            "avx512vl",
            "avx512vbmi",
            "avx512vbmi2",
            "popcnt"
        ) =>
        {
            Level::Avx512
        }
        _ => Level::Avx2,
    };
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}
