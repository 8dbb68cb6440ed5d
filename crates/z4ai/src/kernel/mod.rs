//! The loops that touch every element.
//!
//! Most are written once, over fixed blocks that compilers vectorise, and compiled for the
//! baseline, for AVX2 with BMI2 and, where that pays, for AVX-512
//! ([`dispatch`](crate::simd::dispatch)). What compilers do not find by themselves (fields of odd
//! widths, byte shuffles) is an operation of [`Isa`](crate::simd::Isa). Files named `avx512*` are
//! second versions of an algorithm for AVX-512 only.

// Lanes of several arrays side by side read best with an index.
#![allow(clippy::needless_range_loop)]

pub(crate) mod bit_fields;
pub(crate) mod bit_packing;
pub(crate) mod bloom;
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
pub(crate) mod table_lookup;
pub(crate) mod xxh3;
