//! A zip archive being written: sizes before the data, members at aligned places.

use std::io::Write;

use crate::base::CACHE_BLOCK;
use crate::error::{Error, Result};
use crate::write::export::write_failed;

/// The first day that zip knows: archives depend on their contents only.
const DATE: u16 = 0x21;
/// Names are UTF-8.
const UTF8: u16 = 1 << 11;
/// The version that knows zip64.
const VERSION: u16 = 45;
/// The extra field that other aligning tools use for padding.
const PADDING: u16 = 0xd935;
/// The extra field with 64-bit sizes.
const ZIP64: u16 = 1;

/// What there is to say about a member before its data.
pub(super) struct Member<'a> {
    pub(super) name: &'a str,
    /// 0 for stored, 8 for deflated.
    pub(super) method: u16,
    pub(super) crc: u32,
    /// Bytes as stored.
    pub(super) stored: u64,
    /// Bytes before compression.
    pub(super) len: u64,
    /// The data starts at a multiple of this.
    pub(super) alignment: u64,
}

/// Writes members from front to back, then the directory.
pub(super) struct Archive<'w> {
    out: &'w mut dyn Write,
    position: u64,
    directory: Vec<u8>,
    count: u64,
}

/// A 32-bit field, all ones when the number stands in the 64-bit extra field.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn is_wide(number: u64) -> bool {
    number >= u64::from(u32::MAX)
}

/// The extra field with those numbers that do not fit in 32 bits, if any.
fn wide(numbers: &[u64]) -> Vec<u8> {
    let wide: Vec<u8> = numbers.iter().filter(|n| is_wide(**n)).flat_map(|n| n.to_le_bytes()).collect();
    match wide.len() {
        0 => Vec::new(),
        len => [&ZIP64.to_le_bytes()[..], &(len as u16).to_le_bytes(), &wide].concat(),
    }
}

impl<'w> Archive<'w> {
    pub(super) fn new(out: &'w mut dyn Write) -> Archive<'w> {
        Archive { out, position: 0, directory: Vec::new(), count: 0 }
    }

    /// Writes a member whose data are these parts, one after another.
    pub(super) fn add(&mut self, member: &Member<'_>, parts: &[&[u8]]) -> Result<()> {
        self.add_with(member, |archive| parts.iter().try_for_each(|part| archive.put(part)))
    }

    /// Writes a stored member whose checksum was computed from `parts`, which are memory of a
    /// caller and may have changed since: what is written is hashed again, from a copy.
    pub(super) fn add_shared(&mut self, member: &Member<'_>, parts: &[&[u8]]) -> Result<()> {
        self.add_with(member, |archive| {
            let mut crc = crc32fast::Hasher::new();
            for_blocks(parts, |block| {
                crc.update(block);
                archive.put(block)
            })?;
            match crc.finalize() == member.crc {
                true => Ok(()),
                false => Err(Error::invalid("the array was changed while it was written: save it again")),
            }
        })
    }

    fn add_with(
        &mut self,
        member: &Member<'_>,
        body: impl FnOnce(&mut Archive<'w>) -> Result<()>,
    ) -> Result<()> {
        let name_len = u16::try_from(member.name.len())
            .map_err(|_| Error::unsupported("the name is longer than 65,535 bytes"))?;
        let start = self.position;
        let sizes = [member.len, member.stored];
        // A local header has both sizes or neither in its 64-bit field.
        let mut extra = match sizes.iter().any(|size| is_wide(*size)) {
            true => [&ZIP64.to_le_bytes()[..], &[16, 0], &sizes[0].to_le_bytes(), &sizes[1].to_le_bytes()]
                .concat(),
            false => Vec::new(),
        };
        let in_local = if extra.is_empty() { sizes } else { [u64::MAX; 2] };
        pad(&mut extra, start + 30 + u64::from(name_len), member.alignment);
        let mut local = b"PK\x03\x04".to_vec();
        self.common(&mut local, member, in_local, name_len, extra.len() as u16);
        local.extend(member.name.as_bytes());
        local.extend(&extra);
        self.put(&local)?;
        body(self)?;

        let far = wide(&[member.len, member.stored, start]);
        let mut entry = b"PK\x01\x02".to_vec();
        entry.extend((3 << 8 | VERSION).to_le_bytes()); // made on Unix
        self.common(&mut entry, member, sizes, name_len, far.len() as u16);
        entry.extend([0; 6]); // comment, disk, internal attributes
        entry.extend((0o100_644u32 << 16).to_le_bytes());
        entry.extend(narrow(start).to_le_bytes());
        entry.extend(member.name.as_bytes());
        entry.extend(&far);
        self.directory.extend(entry);
        self.count += 1;
        Ok(())
    }

    /// What the local header and the directory entry have in common.
    fn common(&self, out: &mut Vec<u8>, member: &Member<'_>, sizes: [u64; 2], name_len: u16, extra_len: u16) {
        let flags = if member.name.is_ascii() { 0 } else { UTF8 };
        for field in [VERSION, flags, member.method, 0, DATE] {
            out.extend(field.to_le_bytes());
        }
        out.extend(member.crc.to_le_bytes());
        out.extend(narrow(sizes[1]).to_le_bytes());
        out.extend(narrow(sizes[0]).to_le_bytes());
        out.extend(name_len.to_le_bytes());
        out.extend(extra_len.to_le_bytes());
    }

    /// Writes the directory and its end.
    pub(super) fn finish(mut self) -> Result<()> {
        let (start, len) = (self.position, self.directory.len() as u64);
        let directory = std::mem::take(&mut self.directory);
        self.put(&directory)?;
        let mut end = Vec::new();
        if is_wide(start) || is_wide(len) || self.count >= u64::from(u16::MAX) {
            let record = self.position;
            end.extend(b"PK\x06\x06");
            end.extend(44u64.to_le_bytes()); // the rest of this record
            end.extend((3 << 8 | VERSION).to_le_bytes());
            end.extend(VERSION.to_le_bytes());
            end.extend([0; 8]); // disks
            for number in [self.count, self.count, len, start] {
                end.extend(number.to_le_bytes());
            }
            end.extend(b"PK\x06\x07\0\0\0\0");
            end.extend(record.to_le_bytes());
            end.extend(1u32.to_le_bytes());
        }
        end.extend(b"PK\x05\x06\0\0\0\0");
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        end.extend(count.to_le_bytes());
        end.extend(count.to_le_bytes());
        end.extend(narrow(len).to_le_bytes());
        end.extend(narrow(start).to_le_bytes());
        end.extend([0, 0]); // comment
        self.put(&end)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_failed)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

/// Calls `each` with a copy of every block of the parts, each byte of which is read once.
pub(super) fn for_blocks(parts: &[&[u8]], mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut block = Vec::new();
    for part in parts.iter().flat_map(|part| part.chunks(CACHE_BLOCK)) {
        block.clear();
        block.extend_from_slice(part);
        each(&block)?;
    }
    Ok(())
}

/// Grows an extra field that starts at `at` so that it ends at a multiple of `alignment`.
fn pad(extra: &mut Vec<u8>, at: u64, alignment: u64) {
    /// An empty field's own size, and the alignment in it.
    const LEAST: u64 = 6;
    let end = at + extra.len() as u64;
    if end.is_multiple_of(alignment) {
        return;
    }
    let fill = (end + LEAST).next_multiple_of(alignment) - end;
    extra.extend(PADDING.to_le_bytes());
    extra.extend((fill as u16 - 4).to_le_bytes());
    extra.extend((alignment as u16).to_le_bytes());
    extra.extend(std::iter::repeat_n(0, (fill - LEAST) as usize));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::zip;
    use crate::source::{FileSource, MapMode};
    use std::fs::File;
    use std::io::{Seek, SeekFrom};

    /// A file in which long runs of zeros take no room.
    struct Sparse(File);

    impl Write for Sparse {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match bytes.len() >= 1 << 20 {
                true => self.0.seek(SeekFrom::Current(bytes.len() as i64)).map(|_| bytes.len()),
                false => self.0.write(bytes),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn members_beyond_four_gigabytes_are_found_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sparse = Sparse(file.reopen().unwrap());
        let zeros = vec![0; 256 << 20];
        let mut archive = Archive::new(&mut sparse);
        let member = |name, len| Member { name, method: 0, crc: 0, stored: len, len, alignment: 64 };
        archive.add(&member("small", 3), &[b"abc"]).unwrap();
        archive.add(&member("large", 20 * zeros.len() as u64), &[&zeros[..]; 20]).unwrap();
        archive.add(&member("behind", 3), &[b"xyz"]).unwrap();
        archive.finish().unwrap();
        let source = FileSource::open(file.path(), MapMode::Never).unwrap();
        let entries = zip::entries(&source).unwrap();
        let found: Vec<_> = entries.iter().map(|entry| (&*entry.name, entry.len)).collect();
        assert_eq!(found, [("small", 3), ("large", 5 << 30), ("behind", 3)]);
        assert!(entries.iter().all(|entry| entry.data.offset % 64 == 0));
        let behind = entries[2].data;
        let source: &dyn crate::source::Source = &source;
        assert_eq!(&*source.bytes(behind.offset, behind.len).unwrap(), b"xyz");
    }

    #[test]
    fn more_members_than_sixteen_bits_count_are_found_again() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        for number in 0..70_000u32 {
            let member =
                Member { name: &number.to_string(), method: 0, crc: 0, stored: 0, len: 0, alignment: 1 };
            archive.add(&member, &[]).unwrap();
        }
        archive.finish().unwrap();
        assert_eq!(zip::entries(&crate::source::MemorySource::new(bytes)).unwrap().len(), 70_000);
    }
}
