//! What every module may use: threads, huge pages, vectorised loops, checksums of parts.

pub(crate) mod crc32c_combine;
pub(crate) mod huge_pages;
pub mod parallel;
pub(crate) mod simd;
