//! The loops that touch every element.
//!
//! Each is written once, and compiled for the baseline, for NEON, for AVX2 with BMI2 and, where
//! that pays, for AVX-512 ([`dispatch`](crate::simd::dispatch)): over fixed blocks that compilers
//! vectorise, or in the primitive operations of [`Vector`](crate::simd::vector::Vector). What is neither
//! (fields of odd widths, byte shuffles of tables) is an operation of [`Isa`](crate::simd::Isa).
//!
//! Exceptions, second versions of an algorithm that only AVX-512 has, each because it rests on byte
//! permutations of 64 or 128 entries (VBMI), which other levels would emulate at more than the cost
//! of the plain loop:
//!
//! | file | instruction | case of `benchmark/codec.py` |
//! |---|---|---|
//! | `bit_fields/avx512_split.rs` | `vpermb` packs fields of odd widths | compress |
//! | `bloom.rs` (`look_up_wide`) | `vpermb` of eight windows, `vpgatherqq` | structure search |
//! | `histogram_avx512.rs` | `vpermb` as a set of 256 bits, one look-up where `histogram.rs` takes two | compress |
//! | `row_column_sums/avx512.rs` | `vpermi2b` as a table of costs | compress, shaped |
//! | `coder/huffman/code_table_avx512.rs` | `vpermi2b` as a table of codes | compress |
//!
//! The Huffman decoder's loop (`coder/huffman/decode.rs`) is assembly on x86-64: compilers spill its
//! sixteen live values.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

pub(crate) mod bit_fields;
pub(crate) mod bit_packing;
pub(crate) mod bloom;
pub(crate) mod changes;
pub(crate) mod class_masks;
pub(crate) mod difference;
pub(crate) mod histogram;
#[cfg(target_arch = "x86_64")]
mod histogram_avx512;
pub(crate) mod magnitude_classes;
pub(crate) mod mask_compact;
pub(crate) mod row_column_sums;
pub(crate) mod scale_classes;
pub(crate) mod sign_changes;
pub(crate) mod sparse;
pub(crate) mod streaming;
pub(crate) mod stripe_writer;
pub(crate) mod table_lookup;
pub(crate) mod xxh3;
