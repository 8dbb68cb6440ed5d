//! What every module may use: threads, buffer pools, huge pages, vectorised loops, checksums of parts, files that are
//! trusted for where they are.

pub(crate) mod crc32c_combine;
pub(crate) mod huge_pages;
pub mod parallel;
pub(crate) mod pool;
pub(crate) mod simd;
pub mod trusted;
