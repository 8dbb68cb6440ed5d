//! Instruction sets: which of them kernels run with.

mod level;

pub use level::{ForcedLevel, SimdLevel};

#[cfg(target_arch = "x86_64")]
pub(crate) use level::has;
