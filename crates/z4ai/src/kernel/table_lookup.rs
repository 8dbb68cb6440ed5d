//! Table look-up of elements by index.

use crate::kernel::sparse::for_bytes;
use crate::simd::{Isa, dispatch};

dispatch! {
    /// Fills `elements`, of `size` bytes each, with `table[low]` or, for two-byte indices,
    /// `table[low | high << 8]`. The table must have 256 values, or 65536 if `high` is not empty.
    pub(crate) fn look_up(size: usize, table: &[u8], low: &[u8], high: &[u8], elements: &mut [u8])
        = look_up_with
}

#[inline(always)]
fn look_up_with(_: impl Isa, size: usize, table: &[u8], low: &[u8], high: &[u8], elements: &mut [u8]) {
    for_bytes!(size, look_up_sized(table, low, high, elements));
}

#[inline(always)]
fn look_up_sized<const SIZE: usize>(table: &[u8], low: &[u8], high: &[u8], elements: &mut [u8]) {
    let table = table.as_chunks::<SIZE>().0;
    let elements = elements.as_chunks_mut::<SIZE>().0.iter_mut();
    if high.is_empty() {
        // One check here is none per element: a byte is always below 256.
        let table = &table[..256];
        for (element, &low) in elements.zip(low) {
            *element = table[usize::from(low)];
        }
    } else {
        let table = &table[..1 << 16];
        for (element, (&low, &high)) in elements.zip(low.iter().zip(high)) {
            *element = table[usize::from(u16::from_le_bytes([low, high]))];
        }
    }
}

dispatch! {
    /// The highest index that `low` and `high` hold, as [`look_up`] reads them; 0 without any.
    pub(crate) fn highest(low: &[u8], high: &[u8]) -> usize = highest_with
}

#[inline(always)]
fn highest_with(_: impl Isa, low: &[u8], high: &[u8]) -> usize {
    if high.is_empty() {
        usize::from(low.iter().fold(0, |most, &low| most.max(low)))
    } else {
        let indices = low.iter().zip(high).map(|(&low, &high)| u16::from_le_bytes([low, high]));
        usize::from(indices.fold(0, u16::max))
    }
}
