//! What every module may use: threads, buffer pools, huge pages, vectorised loops, checksums of parts, files that are
//! trusted for where they are.

pub(crate) mod crc32c_combine;
pub(crate) mod file_memory;
pub(crate) mod huge_pages;
pub mod parallel;
pub(crate) mod pool;
pub(crate) mod simd;
pub mod trusted;
pub(crate) mod zstd_sparse;

/// Bytes that are copied, hashed, encoded or written at a time. (structural: with what is made of them, a quarter
/// to a half of a second-level cache)
pub(crate) const CACHE_BLOCK: usize = 256 << 10;
