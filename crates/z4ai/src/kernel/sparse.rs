//! Elements that differ from the fill value, and the bitmask of their positions.

use crate::bits::BitWriter;
use crate::simd::{Isa, dispatch};

/// Calls a function that is generic over the bytes of an element.
macro_rules! for_bytes {
    ($size:expr, $call:ident($($arg:expr),*)) => {
        match $size {
            1 => $call::<1>($($arg),*),
            2 => $call::<2>($($arg),*),
            4 => $call::<4>($($arg),*),
            _ => $call::<8>($($arg),*),
        }
    };
}
pub(crate) use for_bytes;

/// An element of at most eight bytes as a number.
#[inline(always)]
pub(crate) fn load(element: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bytes)
}

dispatch! {
    /// Sets bit `i` of `mask`, lowest bit of a byte first, where element `i` differs from `fill` in
    /// the bits of `relevant`, and compacts those elements to the start of `values`, which must be
    /// one element longer than `elements`; returns their number.
    pub(crate) fn gather(
        size: usize,
        elements: &[u8],
        fill: u64,
        relevant: u64,
        mask: &mut [u8],
        values: &mut [u8],
    ) -> usize = gather_with
}

dispatch! {
    /// Undoes [`gather`]. `values` must hold as many elements as `mask` has bits set, and one more.
    pub(crate) fn expand(size: usize, mask: &[u8], values: &[u8], fill: u64, elements: &mut [u8]) = expand_with
}

#[inline(always)]
fn gather_with(
    _: impl Isa,
    size: usize,
    elements: &[u8],
    fill: u64,
    relevant: u64,
    mask: &mut [u8],
    values: &mut [u8],
) -> usize {
    for_bytes!(size, gather_sized(elements, fill, relevant, mask, values))
}

#[inline(always)]
fn gather_sized<const SIZE: usize>(
    elements: &[u8],
    fill: u64,
    relevant: u64,
    mask: &mut [u8],
    values: &mut [u8],
) -> usize {
    let elements = elements.as_chunks::<SIZE>().0;
    let values = values.as_chunks_mut::<SIZE>().0;
    let mut kept = 0;
    for (group, mask) in elements.chunks(8).zip(mask) {
        let mut bits = 0u8;
        for (i, element) in group.iter().enumerate() {
            // Branch-free: every element is written, and kept by advancing.
            let present = (load(element) ^ fill) & relevant != 0;
            values[kept] = *element;
            kept += usize::from(present);
            bits |= u8::from(present) << i;
        }
        *mask = bits;
    }
    kept
}

#[inline(always)]
fn expand_with(_: impl Isa, size: usize, mask: &[u8], values: &[u8], fill: u64, elements: &mut [u8]) {
    for_bytes!(size, expand_sized(mask, values, fill, elements));
}

#[inline(always)]
fn expand_sized<const SIZE: usize>(mask: &[u8], values: &[u8], fill: u64, elements: &mut [u8]) {
    let mut filled = [0; SIZE];
    filled.copy_from_slice(&fill.to_le_bytes()[..SIZE]);
    let values = values.as_chunks::<SIZE>().0;
    let mut next = 0;
    for (group, &mask) in elements.as_chunks_mut::<SIZE>().0.chunks_mut(8).zip(mask) {
        for (i, element) in group.iter_mut().enumerate() {
            let present = mask >> i & 1;
            let value = values[next];
            *element = if present == 1 { value } else { filled };
            next += usize::from(present);
        }
    }
}

/// Packs, for every element whose bit in `mask` is not set, whether its highest bit is not that of
/// `fill`; returns whether any is not.
pub(crate) fn take_signs(size: usize, mask: &[u8], elements: &[u8], fill: u64, signs: &mut Vec<u8>) -> bool {
    signs.clear();
    let top = fill >> (8 * size - 1);
    let (mut bits, mut any) = (BitWriter::default(), 0);
    for (i, element) in elements.chunks_exact(size).enumerate() {
        if mask[i / 8] >> (i % 8) & 1 == 0 {
            let other = u8::from(u64::from(element[size - 1] >> 7) != top);
            any |= other;
            bits.put(u64::from(other), 1, signs);
        }
    }
    bits.finish(signs);
    any == 1
}

/// Flips the highest bit of the elements that [`take_signs`] found to have another one than the
/// fill. `signs` must hold as many bits as `mask` has bits not set.
pub(crate) fn put_signs(size: usize, mask: &[u8], signs: &[u8], elements: &mut [u8]) {
    let mut next = 0;
    for (i, element) in elements.chunks_exact_mut(size).enumerate() {
        if mask[i / 8] >> (i % 8) & 1 == 0 {
            element[size - 1] ^= (signs[next / 8] >> (next % 8) & 1) << 7;
            next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn elements_survive(bytes in prop::collection::vec(0u8..3, 0..600), choice in 0usize..4, fill in 0u64..3) {
            let size = [1, 2, 4, 8][choice];
            let count = bytes.len() / size;
            let elements = &bytes[..count * size];
            let mut mask = vec![0; count.div_ceil(8)];
            let mut values = vec![0; (count + 1) * size];
            let kept = gather(size, elements, fill, u64::MAX, &mut mask, &mut values);
            // The naive twin.
            let others = elements.chunks(size).filter(|e| load(e) != fill);
            let naive: Vec<u8> = others.flatten().copied().collect();
            prop_assert_eq!(&values[..kept * size], &naive[..]);
            prop_assert_eq!(mask.iter().map(|byte| byte.count_ones() as usize).sum::<usize>(), kept);
            let mut out = vec![0xaa; count * size];
            expand(size, &mask, &values[..(kept + 1) * size], fill, &mut out);
            prop_assert_eq!(&out[..], elements);
            out.fill(0xaa);
            expand_with(Portable, size, &mask, &values[..(kept + 1) * size], fill, &mut out);
            prop_assert_eq!(&out[..], elements);
        }
    }
}
