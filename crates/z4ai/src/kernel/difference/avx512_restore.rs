//! Restoring elements by the planes of their differences, hashing them and writing them to where
//! they stay, all while they are in registers.

use std::arch::x86_64::*;

use crate::kernel::bit_fields::PartialLine;
use crate::kernel::bit_fields::avx512_merge::{BURST, Writer};
use crate::kernel::difference::Rule;
use crate::kernel::xxh3::{self, HASH_BLOCK};
use crate::simd::prefetch::{Hint, prefetch};
use crate::simd::{Avx512, Isa, STRIPE, Sums, cast};

/// Prefetch distance in bytes of elements.
const PREFETCH_DISTANCE: usize = 2048;

impl Avx512 {
    /// Restores whole hash blocks of elements of `SIZE` bytes, 2 or 4, from `P` planes; returns the
    /// number of bytes. Without `reference`, `out` holds it. Pending bytes are those of a fused
    /// merge.
    #[inline(always)]
    pub(crate) fn restore_blocks<const SIZE: usize, const P: usize>(
        self,
        rule: Rule,
        reference: Option<&[u8]>,
        planes: [&[u8]; P],
        sums: &mut Sums,
        out: &mut [u8],
        pending: Option<&mut PartialLine>,
    ) -> usize {
        // SAFETY: `self` proves the features.
        unsafe {
            match rule {
                Rule::Xor => restore::<SIZE, P, 0>(self, reference, planes, sums, out, pending),
                Rule::ZigZag => restore::<SIZE, P, 1>(self, reference, planes, sums, out, pending),
                Rule::Ulp => restore::<SIZE, P, 2>(self, reference, planes, sums, out, pending),
            }
        }
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2")]
fn restore<const SIZE: usize, const P: usize, const RULE: u8>(
    isa: Avx512,
    reference: Option<&[u8]>,
    planes: [&[u8]; P],
    sums: &mut Sums,
    out: &mut [u8],
    pending: Option<&mut PartialLine>,
) -> usize {
    // Pending bytes would overwrite the reference.
    assert!(reference.is_some() || pending.is_none());
    let mut done = out.len();
    if let Some(reference) = reference {
        done = done.min(reference.len());
    }
    for plane in planes {
        done = done.min(plane.len() * SIZE);
    }
    done = done / HASH_BLOCK * HASH_BLOCK;
    let blocks = out[..done].as_chunks_mut::<HASH_BLOCK>().0;
    let mut local: Sums = *sums;
    let mut writer = Writer::new(pending.as_deref(), blocks.as_ptr().addr());
    // No closures: they would not be compiled for these instructions.
    for (number, block) in blocks.iter_mut().enumerate() {
        let bursts = block.as_chunks_mut::<{ BURST * STRIPE }>().0;
        for (burst, out) in bursts.iter_mut().enumerate() {
            let mut stripes = [_mm512_setzero_si512(); BURST];
            // A burst consumes one or two cache lines of every plane.
            let first = (number * HASH_BLOCK + burst * BURST * STRIPE) / SIZE;
            for plane in planes {
                let ahead = plane.as_ptr().wrapping_add(first + PREFETCH_DISTANCE / SIZE);
                prefetch(ahead, Hint::L1);
                if SIZE == 2 {
                    prefetch(ahead.wrapping_add(STRIPE), Hint::L1);
                }
            }
            for (i, stripe) in stripes.iter_mut().enumerate() {
                let at = burst * BURST + i;
                let place = number * HASH_BLOCK + at * STRIPE;
                let first = place / SIZE;
                let mut lanes: [&[u8]; P] = [&[]; P];
                for (lanes, plane) in lanes.iter_mut().zip(planes) {
                    *lanes = &plane[first..first + STRIPE / SIZE];
                }
                let reference = match reference {
                    Some(reference) => &reference[place..place + STRIPE],
                    None => &out[i * STRIPE..(i + 1) * STRIPE],
                };
                prefetch(reference.as_ptr().wrapping_add(PREFETCH_DISTANCE), Hint::L1);
                // SAFETY: there are as many bytes.
                let reference = unsafe { _mm512_loadu_si512(reference.as_ptr().cast()) };
                *stripe = if SIZE == 2 {
                    restored_words::<P, RULE>(reference, lanes)
                } else {
                    restored_longs::<P, RULE>(reference, lanes)
                };
                let secret = xxh3::secret(at * 8);
                local = isa.accumulate(local, cast!(*stripe, __m512i => [u8; STRIPE]), secret);
            }
            writer.write(stripes, out);
        }
        local = xxh3::scramble(local);
    }
    *sums = local;
    if let Some(pending) = pending {
        pending.line = cast!(writer.before, __m512i => [u8; STRIPE]);
    }
    done
}

/// Elements of two bytes. The planes have one byte for each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn restored_words<const P: usize, const RULE: u8>(reference: __m512i, planes: [&[u8]; P]) -> __m512i {
    let mut z = _mm512_setzero_si512();
    for (byte, plane) in planes.into_iter().enumerate() {
        assert!(plane.len() == STRIPE / 2);
        // SAFETY: there are as many bytes.
        let bytes = _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(plane.as_ptr().cast()) });
        z = if byte == 0 { bytes } else { _mm512_or_si512(z, _mm512_slli_epi16::<8>(bytes)) };
    }
    if RULE == 0 {
        return _mm512_xor_si512(reference, z);
    }
    let negative = _mm512_test_epi16_mask(z, _mm512_set1_epi16(1));
    let unzigzag = _mm512_srli_epi16::<1>(z);
    let step = _mm512_xor_si512(unzigzag, _mm512_movm_epi16(negative));
    if RULE == 1 {
        return _mm512_add_epi16(reference, step);
    }
    let magnitude = _mm512_set1_epi16(i16::MAX);
    // Floats in order: x ^ (x < 0 ? all but the sign : 0).
    let moved = _mm512_add_epi16(
        _mm512_ternarylogic_epi32::<0x78>(reference, _mm512_srai_epi16::<15>(reference), magnitude),
        step,
    );
    _mm512_ternarylogic_epi32::<0x78>(moved, _mm512_srai_epi16::<15>(moved), magnitude)
}

/// Elements of four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn restored_longs<const P: usize, const RULE: u8>(reference: __m512i, planes: [&[u8]; P]) -> __m512i {
    let mut z = _mm512_setzero_si512();
    for (byte, plane) in planes.into_iter().enumerate() {
        assert!(plane.len() == STRIPE / 4);
        // SAFETY: there are as many bytes.
        let bytes = _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(plane.as_ptr().cast()) });
        z = match byte {
            0 => bytes,
            1 => _mm512_or_si512(z, _mm512_slli_epi32::<8>(bytes)),
            2 => _mm512_or_si512(z, _mm512_slli_epi32::<16>(bytes)),
            _ => _mm512_or_si512(z, _mm512_slli_epi32::<24>(bytes)),
        };
    }
    if RULE == 0 {
        return _mm512_xor_si512(reference, z);
    }
    let negative = _mm512_test_epi32_mask(z, _mm512_set1_epi32(1));
    let unzigzag = _mm512_srli_epi32::<1>(z);
    let step = _mm512_mask_xor_epi32(unzigzag, negative, unzigzag, _mm512_set1_epi32(-1));
    if RULE == 1 {
        return _mm512_add_epi32(reference, step);
    }
    let magnitude = _mm512_set1_epi32(i32::MAX);
    let moved = _mm512_add_epi32(
        _mm512_ternarylogic_epi32::<0x78>(reference, _mm512_srai_epi32::<31>(reference), magnitude),
        step,
    );
    _mm512_ternarylogic_epi32::<0x78>(moved, _mm512_srai_epi32::<31>(moved), magnitude)
}
