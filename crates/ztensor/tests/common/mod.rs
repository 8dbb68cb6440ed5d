//! What every format's tests share: the conformance suite that each reader must
//! pass, and the comparison of sample files with what their makers say is in them.
#![allow(dead_code)] // each test program uses a part of it

pub mod allocations;
pub mod conformance;
pub mod fixtures;
pub mod zip;

/// Processor time of the calling thread. Bounds on it catch quadratic work and, unlike bounds on
/// wall-clock time, hold beside other busy processes.
#[cfg(unix)]
pub fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Wall-clock time, where the standard library and its friends tell no other.
#[cfg(not(unix))]
pub fn processor_time() -> std::time::Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Writes all bytes at an offset, on every system; moves the position of the file.
pub fn write_all_at(mut file: &std::fs::File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Seek, Write};
    file.seek(std::io::SeekFrom::Start(offset))?;
    file.write_all(bytes)
}
