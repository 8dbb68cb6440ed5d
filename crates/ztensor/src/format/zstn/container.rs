//! What a packed file says of itself: its blobs, and how they make up the original.

use std::hash::Hasher as _;
use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::{MAGIC, v3};
use crate::catalog::{Catalog, Component, Extent, Storage};
use crate::decode::{Generation, Shared, Z4ai, check_expansion};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::format::{Format, safetensors};
use crate::source::{Source, Sources};

/// The version that is written.
pub(crate) const VERSION: u8 = 4;
/// Magic, version, mode and two zeros; they end the file, too.
pub(crate) const PREFIX: u64 = 8;
/// Index length, content length, file length, checksum, and the prefix again.
pub(crate) const FOOTER: u64 = 40;
/// Kind, CRC-32C, stored length or reference, content length.
pub(crate) const ENTRY: usize = 1 + 4 + 8 + 8;
/// Raw blobs start at multiples of this, so that elements of every type can be viewed in place.
pub(crate) const ALIGNMENT: u64 = 8;
/// A header up to this size may be a frame of any length; a larger one has to be worth it,
/// so that opening a small file never takes much memory.
pub(crate) const SMALL_HEADER: u64 = 1 << 20;
/// How many times its frame a larger header may be.
pub(crate) const HEADER_EXPANSION: u64 = 64;

/// How the original was packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The first content is the header, each other one a tensor.
    Tensors,
    /// Contents are pieces of a file whose tensors are not known.
    Opaque,
}

/// Kinds of entries as they are written.
pub(crate) const KIND_FRAME: u8 = 0;
pub(crate) const KIND_RAW: u8 = 1;
pub(crate) const KIND_SAME: u8 = 2;

/// One content, and where it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blob {
    /// Bytes of the content.
    pub(crate) len: u64,
    pub(crate) stored: Stored,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored {
    Frame(Extent, Generation),
    /// As it is, with its CRC-32C where the version has one.
    Raw(Extent, Option<u32>),
    /// Equal to an earlier content, which is not such a reference itself.
    Same(usize),
}

impl Stored {
    pub(crate) fn extent(&self) -> Option<Extent> {
        match self {
            Stored::Frame(extent, _) | Stored::Raw(extent, _) => Some(*extent),
            Stored::Same(_) => None,
        }
    }
}

/// A packed file, its index checked and nothing decoded.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) version: u8,
    pub(crate) mode: Mode,
    pub(crate) blobs: Vec<Blob>,
    pub(crate) content_len: u64,
    /// Names of all tensors, and where their data starts, of versions that repeat them.
    pub(crate) names: Option<Vec<(String, u64)>>,
}

fn corrupt(rule: &'static str, message: impl Into<String>) -> Error {
    Error::corrupt(rule, message)
}

impl Container {
    /// Reads prefix, footer and index.
    pub(crate) fn read(source: Arc<dyn Source>) -> Result<Container> {
        let total = source.len();
        let head: [u8; 5] = match source.bytes(0, total.min(5))?.first_chunk() {
            Some(head) => *head,
            None => return Err(corrupt("zstn.short", format!("a file of {total} bytes"))),
        };
        match head[4] {
            _ if !head.starts_with(MAGIC) => Err(Error::unsupported("not a packed (ZSTN) file")),
            v3::VERSION => v3::read(source),
            VERSION => Self::read_present(source),
            version => {
                Err(Error::unsupported(format!("ZSTN version {version} is not one that this library reads")))
            }
        }
    }

    fn read_present(source: Arc<dyn Source>) -> Result<Container> {
        let total = source.len();
        if total < PREFIX + FOOTER {
            return Err(corrupt(
                "zstn.short",
                format!("{total} bytes are fewer than prefix and footer take"),
            ));
        }
        let prefix = source.bytes(0, PREFIX)?;
        let footer = source.bytes(total - FOOTER, FOOTER)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&footer[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        if footer[32..] != prefix[..] {
            return Err(corrupt("zstn.end", "the file does not end as it starts: it is cut off or damaged"));
        }
        let mode = match prefix[5..] {
            [0, 0, 0] => Mode::Tensors,
            [1, 0, 0] => Mode::Opaque,
            _ => return Err(corrupt("zstn.mode", format!("the mode {:02x?} is not known", &prefix[5..]))),
        };
        let (index_len, content_len, file_len) = (number(0), number(8), number(16));
        if file_len != total {
            return Err(corrupt(
                "zstn.length",
                format!("the file says it has {file_len} bytes, it has {total}"),
            ));
        }
        if !index_len.is_multiple_of(ENTRY as u64) || index_len > total - PREFIX - FOOTER {
            return Err(corrupt("zstn.index-length", format!("an index of {index_len} bytes does not fit")));
        }
        let index_at = total - FOOTER - index_len;
        let index = source.bytes(index_at, index_len)?;
        if checksum(&prefix, &index, &footer[..24]) != number(24) {
            return Err(corrupt("zstn.checksum", "prefix, index and footer do not match their checksum"));
        }
        let blobs = read_index(&index, index_at, content_len)?;
        drop((prefix, footer, index));
        let container = Container { source, version: VERSION, mode, blobs, content_len, names: None };
        container.check_header()?;
        Ok(container)
    }

    /// The first content of a file of tensors is their header, and not out of proportion.
    fn check_header(&self) -> Result<()> {
        if self.mode == Mode::Opaque {
            return Ok(());
        }
        let Some(Blob { len, stored }) = self.blobs.first() else {
            return Err(corrupt("zstn.header", "a file of tensors has no header"));
        };
        let stored = stored.extent().map_or(0, |extent| extent.len);
        let small = *len <= SMALL_HEADER || len.div_ceil(HEADER_EXPANSION) <= stored;
        if *len < safetensors::PREFIX || *len > safetensors::PREFIX + safetensors::MAX_HEADER || !small {
            return Err(corrupt(
                "zstn.header",
                format!("a header of {len} bytes cannot be stored in {stored} bytes"),
            ));
        }
        Ok(())
    }

    /// How a reader gets at content `index`.
    pub(crate) fn storage(&self, index: usize) -> Result<Storage> {
        let Blob { len, stored } = self.blobs[index];
        Ok(match stored {
            Stored::Raw(extent, _) => Storage::Plain(extent),
            Stored::Frame(extent, generation) => {
                Storage::Encoded(Arc::new(Z4ai::new(extent, len, generation)?))
            }
            Stored::Same(first) => Storage::Encoded(Arc::new(Shared(self.storage(first)?))),
        })
    }

    /// The original header, without the length before it.
    pub(crate) fn header(&self) -> Result<String> {
        let sources = Sources::one(self.source.clone());
        let len = self.blobs.first().map_or(0, |blob| blob.len);
        let mut bytes = crate::source::zeroed(len)?;
        self.storage(0)?.read(&sources, 0..len, &mut bytes, 1)?;
        if let Some(Blob { stored: Stored::Raw(_, Some(crc)), .. }) = self.blobs.first() {
            check_crc(crc32c::crc32c(&bytes), *crc)?;
        }
        let declared = bytes.first_chunk::<8>().map(|len| u64::from_le_bytes(*len));
        if declared != Some(len - safetensors::PREFIX) {
            return Err(corrupt(
                "zstn.header",
                format!("the header has {len} bytes and declares {declared:?}"),
            ));
        }
        bytes.drain(..safetensors::PREFIX as usize);
        String::from_utf8(bytes).map_err(|_| corrupt("safetensors.utf8", "the header is not UTF-8"))
    }

    /// The tensors, each with its place among the contents.
    pub(crate) fn into_catalog(self) -> Result<Catalog> {
        if self.mode == Mode::Opaque {
            return Err(Error::unsupported(
                "this is a packed file of another format: restore it with `z4ai unpack` (or ztensor::zstn::unpack) first",
            ));
        }
        let header = self.header()?;
        let data_len = self.content_len - self.blobs[0].len;
        let mut catalog = Catalog::new(Format::Zstn, Sources::default());
        safetensors::read_header(&header, 0, data_len, &mut catalog)?;
        drop(header);
        let tensors = catalog.objects.len();
        if self.blobs.len() - 1 != tensors {
            return Err(corrupt(
                "zstn.tensors",
                format!("{} blobs of data for {tensors} tensors", self.blobs.len() - 1),
            ));
        }
        match &self.names {
            None => {
                for (index, object) in in_data_order(&catalog).into_iter().enumerate() {
                    let (name, object) =
                        catalog.objects.get_index_mut(object).unwrap_or_else(|| unreachable!());
                    self.place(index + 1, &mut object.components[0].1).map_err(|e| e.in_tensor(&**name))?;
                }
            }
            Some(names) => {
                for (index, (name, start)) in names.iter().enumerate() {
                    let wrong =
                        || corrupt("zstn.tensors", "the index and the header disagree").in_tensor(name);
                    let object = catalog.objects.get_mut(&**name).ok_or_else(wrong)?;
                    let component = &mut object.components[0].1;
                    // A name that comes twice finds its place taken.
                    match component.storage {
                        Storage::Plain(extent) if extent.offset == *start && extent.source == 0 => {}
                        _ => return Err(wrong()),
                    }
                    self.place(index + 1, component).map_err(|error| error.in_tensor(name))?;
                }
            }
        }
        catalog.sources.push(self.source);
        Ok(catalog)
    }

    fn place(&self, index: usize, component: &mut Component) -> Result<()> {
        let blob = self.blobs[index];
        if blob.len != component.len {
            let message = format!("{} bytes are packed, the header says {}", blob.len, component.len);
            return Err(corrupt("zstn.tensors", message));
        }
        component.storage = self.storage(index)?;
        if let Stored::Raw(_, Some(crc)) = blob.stored {
            component.digest = Some(Digest::Crc32c(crc));
        }
        Ok(())
    }
}

/// Indices of a header's tensors in the order of their data; those without data come where
/// they are said to, in the order of the header.
pub(crate) fn in_data_order(catalog: &Catalog) -> Vec<usize> {
    let range = |index: usize| {
        let component = catalog.objects.get_index(index).map(|(_, object)| &object.components[0].1);
        component.and_then(Component::extent).map(|extent| (extent.offset, extent.len))
    };
    let mut order: Vec<usize> = (0..catalog.objects.len()).collect();
    order.sort_by_cached_key(|index| range(*index));
    order
}

/// The checksum of all that is neither blob nor padding.
pub(crate) fn checksum(prefix: &[u8], index: &[u8], footer: &[u8]) -> u64 {
    let mut hasher = XxHash3_64::new();
    [prefix, index, footer].into_iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

pub(crate) fn check_crc(found: u32, expected: u32) -> Result<()> {
    if found != expected {
        return Err(Error::mismatch(format!(
            "the stored bytes have the checksum {}, the file says {}",
            Digest::Crc32c(found),
            Digest::Crc32c(expected)
        )));
    }
    Ok(())
}

/// Blobs lie one behind the other from the prefix to the index, and their contents add up.
fn read_index(index: &[u8], index_at: u64, content_len: u64) -> Result<Vec<Blob>> {
    let mut blobs: Vec<Blob> = Vec::with_capacity(index.len() / ENTRY);
    let (mut end, mut contents) = (PREFIX, 0u64);
    for entry in index.chunks_exact(ENTRY) {
        let number = |at: usize| entry[at..at + 8].iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let (kind, crc) = (entry[0], number(1) as u32);
        let (value, len) = (number(5), number(13));
        if kind != KIND_RAW && crc != 0 {
            return Err(corrupt("zstn.kind", "an entry has a checksum that its kind does not use"));
        }
        let place = |start: u64| {
            let fits = start.checked_add(value).is_some_and(|end| end <= index_at);
            let outside = || {
                corrupt("zstn.blobs", format!("a blob of {value} bytes at byte {start} overlaps the index"))
            };
            fits.then_some(Extent::new(start, value)).ok_or_else(outside)
        };
        let stored = match kind {
            KIND_FRAME => {
                check_expansion("zstn.content-length", value, len)?;
                Stored::Frame(place(end)?, Generation::Present)
            }
            KIND_RAW if value != len => {
                return Err(corrupt(
                    "zstn.content-length",
                    format!("a raw blob has {value} bytes, its content {len}"),
                ));
            }
            KIND_RAW => {
                let start = if len > 0 { end.next_multiple_of(ALIGNMENT) } else { end };
                Stored::Raw(place(start)?, Some(crc))
            }
            KIND_SAME => {
                let first = usize::try_from(value).ok().and_then(|first| Some((first, blobs.get(first)?)));
                match first {
                    Some((first, blob)) if blob.len == len && blob.stored.extent().is_some() => {
                        Stored::Same(first)
                    }
                    _ => {
                        return Err(corrupt(
                            "zstn.reference",
                            format!(
                                "an entry refers to entry {value}, which is not an earlier one of the same length"
                            ),
                        ));
                    }
                }
            }
            other => return Err(corrupt("zstn.kind", format!("entry kind {other} is not known"))),
        };
        if let Some(extent) = stored.extent() {
            end = extent.offset + extent.len;
        }
        contents = contents
            .checked_add(len)
            .ok_or_else(|| corrupt("zstn.content-length", "the contents add up to more than 2^64 bytes"))?;
        blobs.push(Blob { len, stored });
    }
    if end != index_at {
        return Err(corrupt("zstn.blobs", format!("the blobs end at {end}, the index starts at {index_at}")));
    }
    if contents != content_len {
        let message = format!("the contents add up to {contents} bytes, the footer says {content_len}");
        return Err(corrupt("zstn.content-length", message));
    }
    Ok(blobs)
}
