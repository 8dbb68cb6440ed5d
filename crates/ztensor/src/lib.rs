//! Unified, zero-copy, safe I/O for tensor files.
