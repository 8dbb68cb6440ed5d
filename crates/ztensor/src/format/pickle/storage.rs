//! The storages that a pickle's tensors are views of, and where their bytes are.

use std::collections::HashMap;
use std::sync::Arc;

use super::arena::{Arena, Item, Node};
use super::build::Builder;
use super::globals::{Known, TorchType};
use crate::catalog::{Extent, Storage};
use crate::decode::{Deflate, strided};
use crate::digest::Digest;
use crate::error::{Error, Result, quoted};
use crate::format::zip::{Entry, Method};

/// Keys are decimal numbers. They are hashed for each tensor, which must not cost more than the few
/// bytes that a tensor takes in the pickle.
const MAX_KEY: usize = 255;

/// A storage as a pickle names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct StorageRef<'a> {
    pub(super) dtype: TorchType,
    pub(super) key: &'a str,
    /// Number of elements.
    pub(super) numel: u64,
    /// First element and number of elements of a part, in very old files.
    view: Option<(u64, u64)>,
}

impl<'a> StorageRef<'a> {
    /// `("storage", class, key, location, numel)`, perhaps with a view.
    pub(super) fn of(arena: &'a Arena, id: Item) -> Result<StorageRef<'a>> {
        let malformed = |what: &str| Error::corrupt("torch.storage", format!("a storage's {what}"));
        let (kind, class, key, numel, view) = match arena.tuple(id) {
            Some(&[kind, class, key, _location, numel]) => (kind, class, key, numel, Item::None),
            Some(&[kind, class, key, _location, numel, view]) => (kind, class, key, numel, view),
            _ => return Err(malformed("reference is not a tuple of five")),
        };
        if arena.as_name(kind) != Some("storage") {
            return Err(malformed("reference does not start with \"storage\""));
        }
        let Some(Known::Storage(dtype)) = arena.known(class) else {
            return Err(Error::unsupported(format!(
                "a storage is {}, which has no known type",
                arena.kind(class)
            )));
        };
        let key = arena.as_name(key).ok_or_else(|| malformed("key is not a string"))?;
        if key.len() > MAX_KEY {
            return Err(Error::corrupt(
                "torch.storage-key",
                format!("a storage's key has {} bytes, more than {MAX_KEY}", key.len()),
            ));
        }
        let count = |item, what| match item {
            Item::Int(number) => u64::try_from(number).map_err(|_| malformed(what)),
            _ => Err(malformed(what)),
        };
        let numel = count(numel, "number of elements is negative or no number")?;
        let view = match arena.tuple(view) {
            Some(&[_key, offset, len]) => {
                Some((count(offset, "view has no valid offset")?, count(len, "view has no valid length")?))
            }
            None if view == Item::None => None,
            _ => return Err(malformed("view is not a tuple of three")),
        };
        Ok(StorageRef { dtype, key, numel, view })
    }

    /// Its size in bytes.
    pub(super) fn byte_len(&self) -> Result<u64> {
        self.numel.checked_mul(self.dtype.stored().1 as u64).ok_or_else(|| {
            Error::corrupt("torch.storage-size", format!("{} elements are more than 2^64 bytes", self.numel))
        })
    }

    /// The part of `region` that it means.
    fn part_of(&self, region: Region) -> Result<Region> {
        let Some((first, count)) = self.view else { return Ok(region) };
        let item = self.dtype.stored().1;
        let storage = strided(region.storage, region.len, item, first, &[count], &[1])?;
        // `strided` has checked that all of it lies inside the region.
        Ok(Region { storage, len: count * item as u64, ..region })
    }
}

/// The bytes of a storage.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub(super) storage: Storage,
    pub(super) len: u64,
    /// Numbers of this many bytes are in big-endian order.
    pub(super) swapped: Option<usize>,
    /// Of all of its bytes as stored, with their place.
    pub(super) digest: Option<(Extent, Digest)>,
}

/// Where the storages of a file are.
#[derive(Debug)]
pub(super) enum Storages<'a> {
    /// Nowhere: a pickle by itself has none.
    None,
    /// Members of an archive.
    Members { members: &'a HashMap<&'a str, &'a Entry>, folder: String, big_endian: bool },
    /// Ranges by key, behind the pickles of an old file.
    Ranges(HashMap<String, Region>),
}

impl Storages<'_> {
    /// The bytes of a storage, which must be exactly as many as its elements take.
    pub(super) fn find(&self, wanted: &StorageRef<'_>) -> Result<Region> {
        let missing =
            || Error::corrupt("torch.storage-missing", format!("there is no storage {}", quoted(wanted.key)));
        let region = match self {
            Storages::None => {
                return Err(Error::corrupt(
                    "torch.storage-missing",
                    format!("a pickle without an archive refers to storage {}", quoted(wanted.key)),
                ));
            }
            Storages::Ranges(ranges) => ranges.get(wanted.key).ok_or_else(missing)?.clone(),
            Storages::Members { members, folder, big_endian } => {
                // A key is one path component: it cannot lead anywhere else.
                if wanted.key.contains(['/', '\\']) || matches!(wanted.key, "" | "." | "..") {
                    return Err(Error::corrupt(
                        "torch.storage-key",
                        format!("the storage key {} is not a plain name", quoted(wanted.key)),
                    ));
                }
                let entry = members.get(&*format!("{folder}{}", wanted.key)).ok_or_else(missing)?;
                let swapped = big_endian.then(|| wanted.dtype.number_width());
                let digest = match entry.method {
                    Method::Stored if entry.crc != 0 => Some((entry.data, Digest::Crc32(entry.crc))),
                    _ => None,
                };
                Region { storage: member_storage(entry)?, len: entry.len, swapped, digest }
            }
        };
        let expected = wanted.byte_len()?;
        if region.len != expected {
            return Err(Error::corrupt(
                "torch.storage-size",
                format!(
                    "storage {} has {} bytes where {} elements take {expected}",
                    quoted(wanted.key),
                    region.len,
                    wanted.numel
                ),
            ));
        }
        wanted.part_of(region)
    }
}

fn member_storage(entry: &Entry) -> Result<Storage> {
    Ok(match entry.method {
        Method::Stored => Storage::Plain(entry.data),
        Method::Deflated => Storage::Encoded(Arc::new(Deflate::new(
            entry.data,
            entry.len,
            (entry.crc != 0).then_some(entry.crc),
        )?)),
    })
}

/// Where the long bytes of a pickle are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blobs<'a> {
    /// In the file itself, at the positions that the pickle gives.
    File,
    /// In a pickle that was decompressed into memory.
    Memory(&'a [u8]),
}

impl Blobs<'_> {
    fn at(self, start: u64, len: u64) -> Storage {
        match self {
            Blobs::File => Storage::Plain(Extent::new(start, len)),
            // The interpreter walked over these bytes, so they are there.
            Blobs::Memory(all) => Storage::Inline(all[start as usize..(start + len) as usize].into()),
        }
    }
}

/// The bytes that a value stands for, however its protocol wrote them; `None`
/// if it is something else. Gives their place and their number. Copies are charged before they are
/// made.
pub(super) fn bytes_of(
    build: &Builder,
    arena: &Arena,
    blobs: Blobs<'_>,
    item: Item,
) -> Result<Option<(Storage, u64)>> {
    build.charge(bytes_held(arena, blobs, item))?;
    // `bytearray(bytes)` is its argument; inside may be text that stands for bytes.
    let item = match arena.object(item) {
        Some(object) if object.known == Known::Bytes => match arena.tuple(object.args) {
            Some([]) => return Ok(Some(inline(&[]))),
            Some(&[inside]) => inside,
            _ => item,
        },
        _ => item,
    };
    if let Some(bytes) = arena.as_bytes(item) {
        return Ok(Some(inline(bytes)));
    }
    match arena.node(item) {
        Some(&Node::Blob { start, len }) => Ok(Some((blobs.at(start, len), len))),
        Some(Node::Object(object)) if matches!(object.known, Known::Encode | Known::Bytes) => {
            let bytes = arena.tuple(object.args).and_then(|args| latin1(arena, args));
            let bytes = bytes.ok_or_else(|| {
                Error::corrupt("pickle.bytes", "bytes are written as text that is not Latin-1")
            })?;
            Ok(Some(inline(&bytes)))
        }
        _ => Ok(None),
    }
}

/// Where the bytes of a value are written: the same for all values that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BytesId {
    /// Position of long bytes in the pickle.
    Blob(u64),
    /// Position of short bytes, or of text that stands for bytes, in the arena.
    Kept(u64),
}

/// Identifies the bytes that [`bytes_of`] would give.
pub(super) fn bytes_id(arena: &Arena, mut item: Item) -> Option<BytesId> {
    // At most a `bytearray` around an encoded text.
    for _ in 0..3 {
        match (item, arena.node(item)) {
            (Item::Bytes { start, .. } | Item::Text { start, .. }, _) => return Some(BytesId::Kept(start)),
            (_, Some(&Node::Blob { start, .. })) => return Some(BytesId::Blob(start)),
            (_, Some(Node::Object(object))) if matches!(object.known, Known::Encode | Known::Bytes) => {
                item = *arena.tuple(object.args)?.first()?;
            }
            _ => return None,
        }
    }
    None
}

/// Memory that [`bytes_of`] takes for a value, at most.
pub(super) fn bytes_held(arena: &Arena, blobs: Blobs<'_>, mut item: Item) -> usize {
    for _ in 0..3 {
        match (item, arena.node(item)) {
            (Item::Bytes { len, .. } | Item::Text { len, .. }, _) => return len as usize,
            (_, Some(&Node::Blob { len, .. })) => {
                return if matches!(blobs, Blobs::Memory(_)) { len as usize } else { 0 };
            }
            (_, Some(Node::Object(object))) => match arena.tuple(object.args).and_then(<[_]>::first) {
                Some(&first) => item = first,
                None => return 0,
            },
            _ => return 0,
        }
    }
    0
}

fn inline(bytes: &[u8]) -> (Storage, u64) {
    (Storage::Inline(bytes.into()), bytes.len() as u64)
}

/// `(text, "latin1")`: how old protocols write bytes.
fn latin1(arena: &Arena, args: &[Item]) -> Option<Vec<u8>> {
    let &[text, encoding] = args else { return None };
    match arena.as_name(encoding)? {
        "latin1" | "latin-1" | "iso-8859-1" => {
            arena.as_text(text)?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
        }
        _ => None,
    }
}
