//! Torch's zip archives: `data.pkl`, a member for each storage, and notes.
//! TorchScript archives have `constants.pkl` beside it, with storages of its own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::arena::Arena;
use super::names::Names;
use super::storage::{Blobs, Storages};
use super::torch::Tensors;
use super::vm;
use crate::catalog::{Catalog, Decode};
use crate::decode::Deflate;
use crate::error::{Error, Result, quoted};
use crate::format::zip::{Entry, Method};
use crate::format::{Format, Input};
use crate::source::{Cursor, MemorySource, Source, Sources};

/// A deflated pickle may be this much larger than its stored form. Torch stores
/// its pickles as they are; those of archives that were packed again shrink to
/// a tenth.
const MAX_PICKLE_EXPANSION: u64 = 64;

/// Whether the members are those of a torch archive.
pub(super) fn recognise(entries: &[Entry]) -> bool {
    folder(entries)
        .is_some_and(|folder| entries.iter().any(|entry| rest(entry, folder).is_some_and(is_torch_member)))
}

fn is_torch_member(name: &str) -> bool {
    matches!(name, "data.pkl" | "constants.pkl" | "model.json")
}

/// The folder that all members of an archive are in: that of the first one.
fn folder(entries: &[Entry]) -> Option<&str> {
    entries.first()?.name.split_once('/').map(|(folder, _)| folder)
}

/// A member's name inside the folder.
fn rest<'a>(entry: &'a Entry, folder: &str) -> Option<&'a str> {
    entry.name.strip_prefix(folder)?.strip_prefix('/')
}

pub(super) fn parse(input: &Input) -> Result<Catalog> {
    let source = &input.source;
    let entries = input.directory.entries(&**source)?;
    let folder = folder(entries)
        .ok_or_else(|| Error::corrupt("torch.archive", "the archive's members are in no folder"))?;
    if let Some(second) = entries.iter().find(|entry| {
        entry.name.split_once('/').is_some_and(|(other, name)| other != folder && is_torch_member(name))
    }) {
        return Err(Error::corrupt(
            "torch.two-pickles",
            format!("the archive has a second pickle in {}", quoted(&second.name)),
        ));
    }
    let members: HashMap<&str, &Entry> =
        entries.iter().filter_map(|entry| Some((rest(entry, folder)?, entry))).collect();
    let mut catalog = Catalog::new(Format::Pickle, Sources::one(Arc::clone(source)));
    let archive = Archive { source: &**source, sources: &catalog.sources, members: &members };
    let big_endian = archive.big_endian()?;
    if !members.contains_key("data.pkl") {
        return Err(Error::unsupported(
            "this is a TorchScript archive of an early version, which keeps its tensors elsewhere: \
             load and save it with a current torch",
        ));
    }
    let mut names = Names::new(source.len());
    archive.pickle("data.pkl", "data/", big_endian, "", &mut names)?;
    if members.contains_key("constants.pkl") {
        archive.pickle("constants.pkl", "constants/", big_endian, "constants", &mut names)?;
    }
    names.into_catalog(&mut catalog)?;
    Ok(catalog)
}

struct Archive<'a> {
    source: &'a dyn Source,
    sources: &'a Sources,
    members: &'a HashMap<&'a str, &'a Entry>,
}

impl Archive<'_> {
    /// Interprets one pickle and names what it holds.
    fn pickle(
        &self,
        name: &str,
        folder: &str,
        big_endian: bool,
        prefix: &str,
        names: &mut Names,
    ) -> Result<()> {
        let Some(&entry) = self.members.get(name) else { return Ok(()) };
        let bytes = self.member(entry)?;
        // What a pickle may cost is bounded by the file, however much it was compressed.
        let mut arena = Arena::new(entry.len.min(self.source.len()));
        let (root, blobs) = match entry.method {
            Method::Stored => {
                let range = entry.data.offset..entry.data.offset + entry.data.len;
                (vm::run(&mut Cursor::over(self.source, range), &mut arena)?, Blobs::File)
            }
            Method::Deflated => {
                let memory = MemorySource::new(&*bytes);
                (vm::run(&mut Cursor::new(&memory), &mut arena)?, Blobs::Memory(&bytes))
            }
        };
        names.note_unsafe(&arena);
        if name == "constants.pkl" && arena.tuple(root).is_some_and(<[_]>::is_empty) {
            return Ok(()); // most scripts have none
        }
        let build = names.builder();
        let storages = Storages::Members { members: self.members, folder: folder.to_owned(), big_endian };
        names.walk(&Tensors::new(&arena, &storages, blobs, self.source, build), root, prefix)
    }

    fn big_endian(&self) -> Result<bool> {
        let Some(&entry) = self.members.get("byteorder") else { return Ok(false) };
        match &*self.member(entry)? {
            b"little" => Ok(false),
            b"big" => Ok(true),
            other => Err(Error::corrupt(
                "torch.byteorder",
                format!(
                    "the byte order is {} instead of little or big",
                    quoted(&String::from_utf8_lossy(other))
                ),
            )),
        }
    }

    /// A member's bytes, checked against its checksum where it has one.
    fn member(&self, entry: &Entry) -> Result<Cow<'_, [u8]>> {
        let bytes = match entry.method {
            Method::Stored => self.source.bytes(entry.data.offset, entry.data.len)?,
            Method::Deflated => {
                if entry.len / MAX_PICKLE_EXPANSION > entry.data.len {
                    return Err(Error::corrupt(
                        "torch.expansion",
                        format!(
                            "the member {} claims to expand from {} bytes to {}",
                            quoted(&entry.name),
                            entry.data.len,
                            entry.len
                        ),
                    ));
                }
                let mut bytes = crate::source::zeroed(entry.len)?;
                Deflate::new(entry.data, entry.len, None)?.decode(
                    self.sources,
                    0..entry.len,
                    &mut bytes,
                    1,
                )?;
                Cow::Owned(bytes)
            }
        };
        let crc = crc32fast::hash(&bytes);
        // Torch can be told to save time on checksums, and then writes zeros.
        if entry.crc != 0 && entry.crc != crc {
            return Err(Error::corrupt(
                "zip.crc",
                format!(
                    "the member {} has the CRC-32 {:08x}, the archive says {:08x}",
                    quoted(&entry.name),
                    crc,
                    entry.crc
                ),
            ));
        }
        Ok(bytes)
    }
}
