//! Counting.

/// How often each byte occurs.
pub(crate) fn of_bytes(bytes: &[u8]) -> [u32; 256] {
    // Four tables, so that equal neighbours do not wait for each other's store.
    let mut counts = [[0u32; 256]; 4];
    let words = bytes.chunks_exact(8);
    for &byte in words.remainder() {
        counts[0][usize::from(byte)] += 1;
    }
    for word in words {
        for (i, &byte) in word.iter().enumerate() {
            counts[i % 4][usize::from(byte)] += 1;
        }
    }
    std::array::from_fn(|b| counts.iter().map(|table| table[b]).sum())
}

/// How often each value of the `bits` bits below the sign occurs in elements of `size` bytes.
pub(crate) fn of_leading_bits(elements: &[u8], size: usize, bits: u32) -> Vec<u32> {
    let values = 1 << bits;
    let mut counts = vec![0u32; 4 * values];
    let (shift, mask) = (15 - bits, values - 1);
    let mut table = 0;
    for element in elements.chunks_exact(size) {
        let top = u16::from_le_bytes([element[size - 2], element[size - 1]]);
        counts[table * values + (usize::from(top >> shift) & mask)] += 1;
        table = (table + 1) % 4;
    }
    let (first, rest) = counts.split_at_mut(values);
    for (i, &count) in rest.iter().enumerate() {
        first[i % values] += count;
    }
    counts.truncate(values);
    counts
}
