//! The CRC-32C of bytes whose parts are already known by theirs.

/// The polynomial of CRC-32C, its coefficients from the highest bit on: x⁰, x¹, … (structural)
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// x⁰, which changes nothing, and x⁸, which moves by one byte. (structural)
const ONE: u32 = 1 << 31;
const BYTE: u32 = 1 << 23;

/// The CRC-32C of two parts in a row, the second of which has `len` bytes.
///
/// It takes about a microsecond. The `crc32c` crate has such a function, too, which takes sixty:
/// for a megabyte about as long as making the checksum itself.
pub(crate) fn combine(first: u32, second: u32, mut len: u64) -> u32 {
    let (mut moved, mut power) = (first, BYTE);
    while len > 0 {
        if len & 1 == 1 {
            moved = multiply(moved, power);
        }
        power = multiply(power, power);
        len >>= 1;
    }
    moved ^ second
}

/// The product of two polynomials modulo that of CRC-32C.
fn multiply(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        // Without branches: they would be mispredicted every other time.
        product ^= other & u32::from(one & bit != 0).wrapping_neg();
        other = (other >> 1) ^ (POLYNOMIAL & (other & 1).wrapping_neg());
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_length() {
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for cut in [0, 1, 2, 3, 255, 256, 4095, 65_536, 69_999, 70_000] {
            let (first, second) = bytes.split_at(cut);
            let (one, other) = (crc32c::crc32c(first), crc32c::crc32c(second));
            assert_eq!(combine(one, other, second.len() as u64), crc32c::crc32c(&bytes), "{cut}");
        }
    }

    #[test]
    fn lengths_that_fit_no_memory() {
        for len in [1usize << 20, (1 << 31) - 1, 1 << 32, (1 << 40) + 12345, usize::MAX >> 1] {
            let expected = crc32c::crc32c_combine(0x1234_5678, 0x9ABC_DEF0, len);
            assert_eq!(combine(0x1234_5678, 0x9ABC_DEF0, len as u64), expected, "{len}");
        }
    }
}
