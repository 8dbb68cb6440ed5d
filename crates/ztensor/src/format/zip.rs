//! Zip archives as the tensor formats use them: which members there are and
//! exactly where their bytes lie.
//!
//! A zip file describes each member twice, in the central directory and in the
//! local header before its data. Programs that believe different copies see
//! different files, so an archive whose copies disagree is refused, and so are
//! members that share bytes, share a name, or are encrypted.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::io;
use std::ops::Range;

use rawzip::{CompressionMethod, EntryFlags, ErrorKind, ReaderAt, ZipLocalFileHeader, ZipLocator};

use crate::catalog::Extent;
use crate::error::{Error, Result, quoted};
use crate::source::Source;

/// What a zip archive with at least one member starts with.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";
/// What one without members consists of.
pub(crate) const EMPTY_MAGIC: &[u8] = b"PK\x05\x06";

/// How a member's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Stored,
    Deflated,
}

/// One member of an archive. Folders are not members.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// As in the archive: never empty, without a zero byte or a `..` part.
    pub(crate) name: String,
    pub(crate) method: Method,
    /// The bytes as stored; inside the file, and shared with no other member.
    pub(crate) data: Extent,
    /// Bytes after decompression; equals `data.len` for stored members.
    pub(crate) len: u64,
    /// CRC-32 of the bytes after decompression. Some writers leave it 0.
    pub(crate) crc: u32,
}

/// The members of a file, listed when they are first asked for: several drivers detect archives by
/// them, and one parses them.
#[derive(Debug, Default)]
pub(crate) struct Directory(OnceCell<Vec<Entry>>);

impl Directory {
    /// The members of `source`, which must be the same in every call.
    pub(crate) fn entries(&self, source: &dyn Source) -> Result<&[Entry]> {
        match self.0.get() {
            Some(entries) => Ok(entries),
            None => {
                let entries = entries(source)?;
                Ok(self.0.get_or_init(|| entries))
            }
        }
    }
}

/// Members of this mean size have their local headers fetched all at once: one by one, each
/// would wait for the disk, or pull in a readahead window of data that is not needed.
const FAR_APART: u64 = 256 << 10;
/// About the size of a local header with its name.
const LOCAL_HEADER: u64 = 512;

/// Lists the members of an archive, in the order of the central directory.
/// Reads that directory and every local header, no data.
pub(crate) fn entries(source: &dyn Source) -> Result<Vec<Entry>> {
    let mut buffer = vec![0; rawzip::RECOMMENDED_BUFFER_SIZE];
    let archive = ZipLocator::new()
        .locate_in_reader(At { source, mapped: source.mapped().ok() }, &mut buffer, source.len())
        .map_err(|(_, error)| match error.kind() {
            ErrorKind::MissingEndOfCentralDirectory | ErrorKind::Eof => truncated(source),
            _ => broken("zip.end", "the end of its central directory", &error),
        })?;
    if archive.end_offset() != source.len() {
        return Err(Error::corrupt(
            "zip.trailing",
            format!("the archive ends at byte {}, the file at {}", archive.end_offset(), source.len()),
        ));
    }
    if source.remote().is_some() || source.len() / archive.entries_hint().max(1) >= FAR_APART {
        let mut headers = Vec::new();
        let mut directory = archive.entries(&mut buffer);
        // What is wrong with the directory is said below.
        while let Ok(Some(record)) = directory.next_entry() {
            headers.push((record.local_header_offset(), LOCAL_HEADER));
        }
        match source.remote() {
            Some(remote) => {
                let range = |&(start, len): &(u64, u64)| start..start.saturating_add(len);
                remote.fetch_headers(&headers.iter().map(range).collect::<Vec<_>>())?;
            }
            None => source.will_read(&headers),
        }
    }
    let mut members = Vec::new();
    let mut names = HashSet::new();
    let mut occupied: Vec<Range<u64>> = Vec::new();
    let mut count = 0u64;
    let mut local_buffer = vec![0; 2 * usize::from(u16::MAX)];
    let mut directory = archive.entries(&mut buffer);
    while let Some(record) =
        directory.next_entry().map_err(|error| broken("zip.directory", "its central directory", &error))?
    {
        count += 1;
        let path = record.file_path();
        let name = name(path.as_ref(), record.flags())?;
        let in_member = |error: Error| error.in_tensor(name.clone());
        let flags = record.flags();
        if flags.is_encrypted() || flags.has_strong_encryption() || flags.is_masked() {
            return Err(in_member(Error::unsupported("this member of the archive is encrypted")));
        }
        let entry = archive
            .get_entry(record.wayfinder())
            .map_err(|error| in_member(broken("zip.local", "the member's local header", &error)))?;
        let local = entry
            .local_header(&mut local_buffer)
            .map_err(|error| in_member(broken("zip.local", "the member's local header", &error)))?;
        let claims = Claims {
            name: path.as_ref(),
            flags,
            method: record.compression_method(),
            stored: record.compressed_size_hint(),
            len: record.uncompressed_size_hint(),
            crc: record.crc32(),
        };
        claims.agree(&local).map_err(in_member)?;
        let (start, end) = entry.compressed_data_range();
        if end > archive.directory_offset() {
            return Err(in_member(Error::corrupt(
                "zip.range",
                format!(
                    "the member's bytes {start}..{end} reach into the directory at {}",
                    archive.directory_offset()
                ),
            )));
        }
        occupied.push(record.local_header_offset()..end);
        if name.ends_with('/') && claims.len == 0 {
            continue; // a folder
        }
        if !names.insert(name.clone()) {
            return Err(Error::corrupt(
                "zip.duplicate",
                format!("two members have the name {}", quoted(&name)),
            ));
        }
        let method = match claims.method {
            CompressionMethod::STORE if claims.stored == claims.len => Method::Stored,
            CompressionMethod::STORE => {
                return Err(in_member(Error::corrupt(
                    "zip.stored-size",
                    format!(
                        "a stored member cannot have {} bytes inside and {} outside",
                        claims.len, claims.stored
                    ),
                )));
            }
            CompressionMethod::DEFLATE => Method::Deflated,
            other => {
                let number = other.as_u16();
                let known = other.name().unwrap_or("unknown");
                return Err(in_member(Error::unsupported(format!(
                    "the member is compressed with method {number} ({known}); stored and deflated ones can be read"
                ))));
            }
        };
        members.push(Entry {
            name,
            method,
            data: Extent::new(start, end - start),
            len: claims.len,
            crc: claims.crc,
        });
    }
    if count != archive.entries_hint() {
        return Err(Error::corrupt(
            "zip.count",
            format!("the central directory holds {count} members and declares {}", archive.entries_hint()),
        ));
    }
    occupied.sort_unstable_by_key(|range| range.start);
    match occupied.windows(2).find(|pair| pair[1].start < pair[0].end) {
        None => Ok(members),
        Some(pair) => Err(Error::corrupt(
            "zip.overlap",
            format!("two members share bytes: {:?} and {:?}", pair[0], pair[1]),
        )),
    }
}

/// An archive without the directory that should be at its end. How much is missing is known where a
/// local header says how long its member is.
fn truncated(source: &dyn Source) -> Error {
    let missing = match source.remote().is_none().then(|| missing(source)).flatten() {
        Some(bytes) => format!("{bytes} or more bytes and the directory at its end are missing"),
        None => "the directory at its end is missing or incomplete".to_owned(),
    };
    Error::corrupt("zip.end", format!("the zip archive is truncated: {missing} (incomplete download?)"))
}

/// How many bytes are missing of the member that a truncated archive ends in.
fn missing(source: &dyn Source) -> Option<u64> {
    const FIXED: u64 = 30;
    const MOST_MEMBERS: usize = 1 << 16;
    let mut at = 0u64;
    for _ in 0..MOST_MEMBERS {
        let header = source.bytes(at, FIXED).ok().filter(|header| header.starts_with(MAGIC))?;
        let number = |range: Range<usize>| {
            header[range].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        let (stored, name, extra) = (number(18..22), number(26..28), number(28..30));
        let stored = match stored {
            // Written as a stream, with its size behind the data.
            0 if header[6] & 8 != 0 => return None,
            size if size == u64::from(u32::MAX) => {
                zip64_size(&source.bytes(at.checked_add(FIXED + name)?, extra).ok()?)?
            }
            size => size,
        };
        at = at.checked_add(FIXED + name + extra)?.checked_add(stored)?;
        if at > source.len() {
            return Some(at - source.len()).filter(|missing| *missing < 1 << 50);
        }
    }
    None
}

/// The stored size in the zip64 field of a local header, which has both sizes.
fn zip64_size(mut extra: &[u8]) -> Option<u64> {
    while let [id, id_high, len, len_high, rest @ ..] = extra {
        let field = rest.get(..usize::from(u16::from_le_bytes([*len, *len_high])))?;
        if (*id, *id_high) == (1, 0) {
            return Some(u64::from_le_bytes(field.get(8..16)?.try_into().ok()?));
        }
        extra = &rest[field.len()..];
    }
    None
}

/// The name in the local header that a file starts with, if it is all there.
pub(crate) fn first_name(head: &[u8]) -> Option<&[u8]> {
    const FIXED: usize = 30;
    let len = head.get(26..28)?;
    head.get(FIXED..FIXED + usize::from(u16::from_le_bytes([len[0], len[1]])))
}

/// The CRC-32 of what follows the first bytes `head` of a member, whose whole
/// has the CRC-32 `crc` and `rest` bytes after `head`.
pub(crate) fn crc_after(head: &[u8], crc: u32, rest: u64) -> u32 {
    // As zip writers compute it, the whole's is the head's, moved on by as many bytes as follow,
    // plus (without carry) that of the rest.
    let mut moved = crc32fast::Hasher::new();
    moved.update(head);
    moved.combine(&crc32fast::Hasher::new_with_initial_len(0, rest));
    crc ^ moved.finalize()
}

/// What the central directory says of a member.
struct Claims<'a> {
    name: &'a [u8],
    flags: EntryFlags,
    method: CompressionMethod,
    stored: u64,
    len: u64,
    crc: u32,
}

impl Claims<'_> {
    /// The local header must say the same.
    fn agree(&self, local: &ZipLocalFileHeader<'_>) -> Result<()> {
        let differ = |what: &str, central: String, local: String| {
            Error::corrupt(
                "zip.disagree",
                format!("the central directory and the local header differ in {what}: {central} and {local}"),
            )
        };
        let shown = |name: &[u8]| quoted(&String::from_utf8_lossy(name));
        let local_name = local.file_path();
        let local_name: &[u8] = local_name.as_ref();
        if self.name != local_name {
            return Err(differ("name", shown(self.name), shown(local_name)));
        }
        if self.flags.bits() != local.flags().bits() {
            let hex = |flags: EntryFlags| format!("{:#06x}", flags.bits());
            return Err(differ("flags", hex(self.flags), hex(local.flags())));
        }
        if self.method != local.compression_method() {
            let number = |method: CompressionMethod| method.as_u16().to_string();
            return Err(differ("method", number(self.method), number(local.compression_method())));
        }
        let central = (self.stored, self.len, self.crc);
        let near = (local.compressed_size_hint(), local.uncompressed_size_hint(), local.crc32());
        // Writers that stream put zeros before the data and the numbers behind it.
        let streamed = self.flags.has_data_descriptor() && near == (0, 0, 0);
        if central != near && !streamed {
            return Err(differ("sizes or checksum", format!("{central:?}"), format!("{near:?}")));
        }
        Ok(())
    }
}

/// A member's name as text: UTF-8 where the archive says so, code page 437 otherwise.
fn name(bytes: &[u8], flags: EntryFlags) -> Result<String> {
    let name = match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() || flags.is_utf8() => text.to_owned(),
        Err(_) if flags.is_utf8() => {
            return Err(Error::corrupt(
                "zip.utf8",
                format!(
                    "a member's name is not the UTF-8 it claims to be: {}",
                    quoted(&String::from_utf8_lossy(bytes))
                ),
            ));
        }
        _ => bytes.iter().map(|&byte| code_page_437(byte)).collect(),
    };
    check_name(&name)?;
    Ok(name)
}

/// Members are looked up by their names and never extracted, so a leading `/` is part of a name;
/// torch's ONNX exporter makes such names, and NumPy reads and writes them.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let bad = |rule, why: &str| Err(Error::corrupt(rule, format!("the member name {} {why}", quoted(name))));
    if name.is_empty() {
        return bad("zip.name", "is empty");
    }
    if name.contains('\0') {
        return bad("zip.name", "has a zero byte in it");
    }
    if name.split(['/', '\\']).any(|part| part == "..") {
        return bad("zip.parent", "leads out of the archive");
    }
    Ok(())
}

fn code_page_437(byte: u8) -> char {
    const UPPER: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
        └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    match byte {
        0..=127 => char::from(byte),
        upper => UPPER.chars().nth(usize::from(upper) - 128).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

fn broken(rule: &'static str, what: &str, why: &rawzip::Error) -> Error {
    Error::corrupt(rule, format!("the zip archive is damaged in {what}: {why}"))
}

/// A source as the zip library wants to read it.
struct At<'a> {
    source: &'a dyn Source,
    mapped: Option<&'a [u8]>,
}

impl ReaderAt for At<'_> {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.source.len().saturating_sub(offset);
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        if len == 0 {
            return Ok(0);
        }
        match self.mapped {
            // Thousands of local headers: a copy each instead of a system call each.
            Some(all) => out[..len].copy_from_slice(&all[offset as usize..][..len]),
            None => self.source.read_at(offset, &mut out[..len]).map_err(io::Error::other)?,
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_read_once() {
        let script = include_bytes!("../../tests/data/pickle/script.pt");
        let (source, directory) = (crate::source::MemorySource::new(&script[..]), Directory::default());
        let first = directory.entries(&source).unwrap();
        assert!(!first.is_empty());
        assert!(std::ptr::eq(first, directory.entries(&source).unwrap()));
        let empty = crate::source::MemorySource::new(&b""[..]);
        let unread = Directory::default();
        assert!(unread.entries(&empty).is_err() && unread.entries(&empty).is_err());
    }

    #[test]
    fn a_checksum_can_be_taken_apart() {
        let crc = crc32fast::hash;
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n * n) as u8).collect();
        for cut in [0, 1, 7, 128, 4999, 5000] {
            let (head, rest) = bytes.split_at(cut);
            assert_eq!(crc_after(head, crc(&bytes), rest.len() as u64), crc(rest), "{cut}");
        }
    }
}
