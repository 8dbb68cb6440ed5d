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

/// How often each value of the `bits` (at most 13) bits below the sign occurs in elements of
/// `size` bytes.
pub(crate) fn of_leading_bits(elements: &[u8], size: usize, bits: u32) -> Vec<u32> {
    match (size, bits) {
        (2, 0..=10) => of_leading_bits_sized::<2, 1024>(elements, bits),
        (4, 0..=10) => of_leading_bits_sized::<4, 1024>(elements, bits),
        (8, _) => of_leading_bits_sized::<8, 8192>(elements, bits),
        _ => unreachable!("no such element"),
    }
}

/// `VALUES` is a power of two not below `1 << bits`, so that no index needs a check.
fn of_leading_bits_sized<const SIZE: usize, const VALUES: usize>(elements: &[u8], bits: u32) -> Vec<u32> {
    const TABLES: usize = 4;
    let mut counts = vec![[0u32; VALUES]; TABLES];
    let counts: &mut [[u32; VALUES]; TABLES] =
        counts.as_mut_slice().try_into().expect("as many tables as were made");
    let (shift, mask) = (15 - bits, (1usize << bits) - 1);
    let mut count = |element: &[u8], table: usize| {
        let top = u16::from_le_bytes([element[SIZE - 2], element[SIZE - 1]]);
        counts[table][usize::from(top >> shift) & mask & (VALUES - 1)] += 1;
    };
    let groups = elements.chunks_exact(TABLES * SIZE);
    groups.remainder().chunks_exact(SIZE).for_each(|element| count(element, 0));
    for group in groups {
        for table in 0..TABLES {
            count(&group[table * SIZE..(table + 1) * SIZE], table);
        }
    }
    (0..1 << bits).map(|value| counts.iter().map(|table| table[value]).sum()).collect()
}
