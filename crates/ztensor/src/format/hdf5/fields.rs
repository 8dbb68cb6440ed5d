//! A message's fields, read from front to back.

use crate::error::{Error, Result};

/// How wide addresses and lengths are in this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) offset: u8,
    pub(super) length: u8,
}

impl Widths {
    /// Whether an address stands for "nowhere".
    pub(super) fn is_undefined(self, address: u64) -> bool {
        address == u64::MAX >> (64 - 8 * u32::from(self.offset))
    }
}

/// Bytes that are taken from the front.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    taken: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { bytes, taken: 0 }
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(len) {
            Some((taken, rest)) => {
                self.bytes = rest;
                self.taken += len;
                Ok(taken)
            }
            None => Err(Error::corrupt(
                "hdf5.short",
                format!("a message ends too early: {len} bytes are needed and {} left", self.bytes.len()),
            )),
        }
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.taken += self.bytes.len();
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result<()> {
        self.take(len).map(drop)
    }

    /// Passes padding up to the next multiple of eight, as far as there is any.
    pub(super) fn align(&mut self) {
        let padding = self.taken.next_multiple_of(8) - self.taken;
        let present = padding.min(self.bytes.len());
        self.bytes = &self.bytes[present..];
        self.taken += present;
    }

    /// A little-endian number of up to eight bytes.
    pub(super) fn number(&mut self, width: usize) -> Result<u64> {
        if width > 8 {
            return Err(Error::corrupt("hdf5.width", format!("a number has {width} bytes")));
        }
        Ok(self.take(width)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.number(1)? as u8)
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(self.number(2)? as u16)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(self.number(4)? as u32)
    }

    /// An address.
    pub(super) fn offset(&mut self, widths: Widths) -> Result<u64> {
        self.number(usize::from(widths.offset))
    }

    /// A length.
    pub(super) fn length(&mut self, widths: Widths) -> Result<u64> {
        self.number(usize::from(widths.length))
    }

    /// Text up to a zero byte, which is passed too.
    pub(super) fn terminated(&mut self) -> Result<&'a [u8]> {
        let end = self.bytes.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| Error::corrupt("hdf5.short", "a string has no end"))?;
        let text = self.take(end)?;
        self.skip(1)?;
        Ok(text)
    }
}

/// Bytes as text.
pub(super) fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| {
        let shown = crate::error::quoted(&String::from_utf8_lossy(bytes));
        Error::corrupt("hdf5.utf8", format!("the name {shown} is not UTF-8"))
    })
}
