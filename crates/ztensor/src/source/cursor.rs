use std::ops::Range;

use crate::error::{Error, Result};
use crate::source::{Source, check_range};

/// How much a cursor fetches at a time from a source that is not mapped. (flat: `constants.py`, `open_file`,
/// from 2 kB to 2 MB)
const CURSOR_BLOCK: u64 = 64 << 10;

/// Touching a page of a mapped file that is not in memory brings in megabytes around it, and waits
/// for them: after a jump as far as this, over a tensor, the little that is looked at is asked for.
/// (case: `constants.py`, `cold_open`: tensors of 1 MB take 3 to 8 times as long to skip if they are no jump; 32 kB
/// is the same)
pub(crate) const FAR_JUMP: u64 = 256 << 10;
/// What is looked at after a jump: a header, and the small tensors behind it. (case: `constants.py`,
/// `cold_open`: 64 kB takes twice as long, half 0.9)
pub(crate) const AFTER_JUMP: u64 = 8 << 10;

/// Reads a header from front to back: bounds before bytes, mapped or not.
///
/// Over a mapped source every call borrows from the mapping; over any other a
/// block at a time is fetched, so that parsing costs a few reads.
#[derive(Debug)]
pub struct Cursor<'a> {
    source: &'a dyn Source,
    range: Range<u64>,
    position: u64,
    mapped: Option<&'a [u8]>,
    block: Vec<u8>,
    block_start: u64,
}

impl<'a> Cursor<'a> {
    /// A cursor over a whole source.
    pub fn new(source: &'a dyn Source) -> Cursor<'a> {
        Self::over(source, 0..source.len())
    }

    /// A cursor over a part of a source, clipped to what there is.
    pub fn over(source: &'a dyn Source, range: Range<u64>) -> Cursor<'a> {
        let end = range.end.min(source.len());
        let start = range.start.min(end);
        Cursor {
            source,
            range: start..end,
            position: start,
            mapped: source.mapped().ok(),
            block: Vec::new(),
            block_start: 0,
        }
    }

    /// The absolute position of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes left.
    pub fn remaining(&self) -> u64 {
        self.range.end - self.position
    }

    /// Moves to an absolute position inside the range.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        if position < self.range.start || position > self.range.end {
            return Err(self.short(format!("position {position} lies outside it")));
        }
        self.jump(position);
        Ok(())
    }

    /// Passes over `len` bytes.
    pub fn skip(&mut self, len: u64) -> Result<()> {
        self.check(len)?;
        self.jump(self.position + len);
        Ok(())
    }

    fn check(&self, len: u64) -> Result<()> {
        check_range(self.remaining(), 0, len).map_err(|_| self.short(format!("{len} more bytes are needed")))
    }

    fn jump(&mut self, position: u64) {
        if self.mapped.is_some() && position.abs_diff(self.position) >= FAR_JUMP {
            let len = AFTER_JUMP.min(self.range.end - position);
            self.source.will_read(&[(position, len)]);
        }
        self.position = position;
    }

    /// The next `len` bytes, and moves behind them.
    pub fn take(&mut self, len: u64) -> Result<&[u8]> {
        let start = self.position;
        self.check(len)?;
        self.position += len;
        if let Some(all) = self.mapped {
            return Ok(&all[start as usize..(start + len) as usize]);
        }
        let inside = start >= self.block_start && start + len <= self.block_start + self.block.len() as u64;
        if !inside {
            let ahead = self.source.readahead(start, CURSOR_BLOCK.min(self.range.end - start));
            let fetch = len.max(ahead).min(self.range.end - start);
            self.block.clear();
            self.block.try_reserve_exact(fetch as usize).map_err(|_| Error::limit("not enough memory"))?;
            self.block.resize(fetch as usize, 0);
            self.source.read_at(start, &mut self.block)?;
            self.block_start = start;
        }
        let at = (start - self.block_start) as usize;
        Ok(&self.block[at..at + len as usize])
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A little-endian number.
    pub fn u16_le(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A little-endian number.
    pub fn u32_le(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A little-endian number.
    pub fn u64_le(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn short(&self, what: String) -> Error {
        Error::corrupt(
            "file.short",
            format!(
                "the data ends too early: at byte {} of a part that ends at {}, {what}",
                self.position, self.range.end
            ),
        )
        .in_file(self.source.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{FileSource, MapMode, MemorySource};

    #[test]
    fn mapped_and_read_cursors_agree() {
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n * 7) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let read = FileSource::open(file.path(), MapMode::Never).unwrap();
        let memory = MemorySource::new(bytes.clone());
        let (mut a, mut b) = (Cursor::new(&read), Cursor::new(&memory));
        for len in [1, 8, 65_536, 3, 70_000, 0, 1] {
            assert_eq!(a.take(len).unwrap(), b.take(len).unwrap());
        }
        a.seek(5).unwrap();
        assert_eq!(a.u64_le().unwrap(), u64::from_le_bytes(bytes[5..13].try_into().unwrap()));
        a.seek(200_000).unwrap();
        assert_eq!(a.take(1).unwrap_err().rule(), Some("file.short"));
        assert_eq!(b.take(u64::MAX).unwrap_err().rule(), Some("file.short"));
        assert!(a.seek(200_001).is_err());
    }
}
