//! Huffman coding: canonical codes of up to 11 bits, in eight bit streams.

#[cfg(target_arch = "x86_64")]
pub(crate) mod code_table;
#[cfg(target_arch = "x86_64")]
mod code_table_avx512;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod lengths;
pub(crate) mod table;
mod window;
pub(crate) mod wire;
