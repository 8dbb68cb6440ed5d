//! Bit I/O, lowest bit of a byte first.
//!
//! Inner loops have their own, which keep several streams in registers: the Huffman decoder and
//! encoder, tANS steps, and bit fields.

use crate::error::{Error, Result};

/// Reads bits from a slice.
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Bits consumed.
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self::starting_at(bytes, 0)
    }

    /// From bit `at` on.
    pub(crate) fn starting_at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The next `width` bits, at most 56.
    #[inline(always)]
    pub(crate) fn take(&mut self, width: u32) -> Result<u64> {
        let word = match self.bytes.get(self.at / 8..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => {
                if self.at + width as usize > self.bytes.len() * 8 {
                    return Err(Error::corrupt("a bit stream ends too early"));
                }
                let rest = &self.bytes[self.at / 8..];
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(word)
            }
        };
        let bits = word >> (self.at % 8) & ((1 << width) - 1);
        self.at += width as usize;
        Ok(bits)
    }

    /// Whether only zero bits of the last byte are left.
    pub(crate) fn is_at_end(&self) -> bool {
        let left = self.bytes.len() * 8 - self.at;
        left < 8 && self.bytes.last().is_none_or(|&last| u32::from(last) >> (8 - left) == 0)
    }
}

/// Appends bits to a vector.
#[derive(Default)]
pub(crate) struct BitWriter {
    word: u64,
    count: u32,
}

impl BitWriter {
    /// Appends at most 56 bits.
    #[inline(always)]
    pub(crate) fn put(&mut self, bits: u64, width: u32, out: &mut Vec<u8>) {
        self.word |= bits << self.count;
        self.count += width;
        while self.count >= 8 {
            out.push(self.word as u8);
            self.word >>= 8;
            self.count -= 8;
        }
    }

    /// Pads the last byte with zeros.
    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        if self.count > 0 {
            out.push(self.word as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_return_in_order(fields in prop::collection::vec((any::<u64>(), 0u32..=56), 0..200)) {
            let mut bytes = Vec::new();
            let mut writer = BitWriter::default();
            for &(bits, width) in &fields {
                writer.put(bits & ((1 << width) - 1), width, &mut bytes);
            }
            writer.finish(&mut bytes);
            let mut reader = BitReader::new(&bytes);
            for &(bits, width) in &fields {
                prop_assert_eq!(reader.take(width).unwrap(), bits & ((1 << width) - 1));
            }
            prop_assert!(reader.is_at_end());
            prop_assert!(reader.take(8).is_err());
        }
    }
}
