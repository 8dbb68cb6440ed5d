//! Reading little-endian fields from untrusted bytes, and earning memory.

use crate::{Result, corrupt, too_large};

/// What is left of a frame: every read checks its bounds and moves on.
#[derive(Clone)]
pub(super) struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes; `what` names the field should they be missing.
    pub(super) fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or_else(|| {
            corrupt(format!("{what} needs {len} bytes but only {} are left", self.rest.len()))
        })?;
        self.rest = tail;
        Ok(head)
    }

    /// As [`Bytes::take`], for a length that was read from the frame.
    pub(super) fn take_claimed(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        // A length beyond the address space is certainly beyond the frame.
        self.take(usize::try_from(len).unwrap_or(usize::MAX), what)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self, what: &str) -> Result<u8> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, what: &str) -> Result<u16> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// `count` lengths of four bytes each, still in the frame.
    pub(super) fn lengths(&mut self, count: u32, what: &str) -> Result<Lengths<'a>> {
        let raw = self.take_claimed(u64::from(count) * 4, what)?;
        Ok(Lengths { raw })
    }

    /// Everything up to the end.
    pub(super) fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Version 1 has no checksums, so unread bytes mean a broken frame.
    pub(super) fn finish(&self, what: &str) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(corrupt(format!("{left} bytes are left over after {what}"))),
        }
    }
}

/// A list of `u32` lengths, read in place.
#[derive(Clone, Copy)]
pub(super) struct Lengths<'a> {
    raw: &'a [u8],
}

impl<'a> Lengths<'a> {
    pub(super) fn iter(self) -> impl Iterator<Item = usize> + 'a {
        let (lengths, _) = self.raw.as_chunks::<4>();
        lengths.iter().map(|&raw| u32::from_le_bytes(raw) as usize)
    }

    /// Checks that each length is at least `least` and all of them together
    /// are exactly `total`, so that cutting `total` bytes by them cannot fail.
    pub(super) fn check(self, least: usize, total: usize, what: &str) -> Result<()> {
        let mut sum = 0u64;
        for (i, len) in self.iter().enumerate() {
            if len < least {
                return Err(corrupt(format!("{what} {i} has {len} bytes, fewer than the {least} it needs")));
            }
            sum += len as u64;
        }
        if sum != total as u64 {
            return Err(corrupt(format!("{what} lengths add up to {sum} bytes but {total} are there")));
        }
        Ok(())
    }

    /// Cuts `bytes` into pieces of these lengths (see [`Lengths::check`]).
    pub(super) fn cut(self, bytes: &'a [u8], what: &'a str) -> impl Iterator<Item = Result<&'a [u8]>> {
        let mut bytes = Bytes::new(bytes);
        self.iter().map(move |len| bytes.take(len, what))
    }
}

/// Checks that `len` bytes are `count` blocks of `block_size`, the last one
/// possibly shorter but not empty.
pub(super) fn check_blocks(block_size: u32, count: u32, len: usize) -> Result<()> {
    let (block_size, len) = (u64::from(block_size), len as u64);
    let full = u64::from(count) * block_size;
    if full < len || full.saturating_sub(block_size) >= len {
        return Err(corrupt(format!("{count} blocks of {block_size} bytes do not make {len} bytes")));
    }
    Ok(())
}

/// A length from the frame as a size in memory.
pub(super) fn size(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| too_large(len))
}

/// `len` zero bytes, or an error when the system has no room for them.
pub(super) fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| too_large(len as u64))?;
    bytes.resize(len, 0);
    Ok(bytes)
}
