//! Torch files from before version 1.6: five pickles in a row, then the
//! storages, each as a count of elements and their bytes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::arena::{Arena, Item, Node};
use super::globals::TorchType;
use super::storage::{Region, StorageRef};
use super::unsafe_globals::UnsafeGlobals;
use super::{opcode, vm};
use crate::catalog::{Extent, Storage};
use crate::error::{Error, Result, quoted};
use crate::source::{Cursor, MemorySource, Source};

/// The number that the first pickle holds, little-endian.
const MAGIC: [u8; 10] = *b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
/// The number that the second one holds.
const PROTOCOL_VERSION: i64 = 1001;

/// Whether a file starts with the pickle of the magic number.
pub(super) fn starts(head: &[u8]) -> bool {
    // Protocols 0 and 1 write it in digits.
    if head.starts_with(b"L119547037146038801333356L\n") {
        return true;
    }
    let [opcode::PROTO, _, rest @ ..] = head else { return false };
    let rest = match rest {
        [opcode::FRAME, rest @ ..] => rest.get(8..).unwrap_or_default(),
        _ => rest,
    };
    matches!(rest, [opcode::LONG1, len, number @ ..] if usize::from(*len) == MAGIC.len() && number.starts_with(&MAGIC))
}

/// What an old file holds.
pub(super) struct File {
    pub(super) arena: Arena,
    pub(super) root: Item,
    pub(super) storages: HashMap<String, Region>,
}

/// Reads the file that `cursor` starts at. `place` says where bytes of it are.
pub(super) fn read(cursor: &mut Cursor<'_>, place: impl Fn(u64, u64) -> Storage) -> Result<File> {
    let mut arena = Arena::new(cursor.remaining());
    let magic = vm::run(cursor, &mut arena)?;
    if !matches!(arena.node(magic), Some(Node::Long(bytes)) if **bytes == MAGIC) {
        return Err(Error::corrupt("torch.magic", "the file does not start with torch's magic number"));
    }
    match vm::run(cursor, &mut arena)? {
        Item::Int(PROTOCOL_VERSION) => {}
        other => {
            return Err(Error::unsupported(format!(
                "the version of an old torch file is {PROTOCOL_VERSION}, not {}",
                match other {
                    Item::Int(version) => version.to_string(),
                    other => arena.kind(other),
                }
            )));
        }
    }
    // What machine wrote it; the storages are little-endian whatever it was.
    vm::run(cursor, &mut arena)?;
    let root = vm::run(cursor, &mut arena)?;
    let keys = vm::run(cursor, &mut arena)?;
    let Some(Node::List(keys)) = arena.node(keys) else {
        return Err(Error::corrupt("torch.keys", format!("the storage keys are {}", arena.kind(keys))));
    };
    let mut types = HashMap::new();
    for node in arena.nodes() {
        if let Node::Persistent(id) = node {
            let storage = StorageRef::of(&arena, *id)?;
            types.entry(storage.key).or_insert(storage.dtype);
        }
    }
    let mut storages = HashMap::new();
    for &key in keys {
        let key = arena
            .as_name(key)
            .ok_or_else(|| Error::corrupt("torch.keys", "a storage key is not a string"))?;
        let dtype = types.get(key).ok_or_else(|| {
            Error::corrupt("torch.keys", format!("no tensor uses the storage {}", quoted(key)))
        })?;
        let region =
            storage(cursor, *dtype, &place).map_err(|error| error.in_tensor(format!("storage {key}")))?;
        match storages.entry(key.to_owned()) {
            Entry::Vacant(entry) => entry.insert(region),
            Entry::Occupied(_) => {
                return Err(Error::corrupt("torch.keys", format!("the storage {} comes twice", quoted(key))));
            }
        };
    }
    Ok(File { arena, root, storages })
}

/// One storage: a count, and that many elements.
fn storage(cursor: &mut Cursor<'_>, dtype: TorchType, place: impl Fn(u64, u64) -> Storage) -> Result<Region> {
    let count = cursor.u64_le()?;
    let bytes = count.checked_mul(dtype.stored().1 as u64).filter(|bytes| *bytes <= cursor.remaining());
    let len = bytes.ok_or_else(|| {
        Error::corrupt(
            "torch.storage-size",
            format!("it claims {count} elements where {} bytes are left", cursor.remaining()),
        )
    })?;
    let start = cursor.position();
    cursor.skip(len)?;
    Ok(Region { storage: place(start, len), len, swapped: None, digest: None })
}

/// The storage that a file consists of, when torch pickles a storage by itself.
/// Also gives the dangerous functions that its pickles name.
pub(super) fn lone_storage(
    source: &dyn Source,
    bytes: &Storage,
) -> Result<((TorchType, Region), UnsafeGlobals)> {
    let file = match bytes {
        Storage::Plain(extent) => {
            let mut cursor = Cursor::over(source, extent.offset..extent.offset.saturating_add(extent.len));
            read(&mut cursor, |start, len| Storage::Plain(Extent::new(start, len)))?
        }
        Storage::Inline(bytes) => {
            let memory = MemorySource::new(Arc::clone(bytes));
            let at = |start: u64, len: u64| bytes[start as usize..(start + len) as usize].into();
            read(&mut Cursor::new(&memory), |start, len| Storage::Inline(at(start, len)))?
        }
        Storage::Encoded(_) => {
            return Err(Error::corrupt("torch.storage", "a storage within a pickle is not plain bytes"));
        }
    };
    let Some(&Node::Persistent(id)) = file.arena.node(file.root) else {
        return Err(Error::corrupt(
            "torch.storage",
            format!("{} stands where a storage should", file.arena.kind(file.root)),
        ));
    };
    let reference = StorageRef::of(&file.arena, id)?;
    let dtype = reference.dtype;
    let region = super::storage::Storages::Ranges(file.storages).find(&reference)?;
    Ok(((dtype, region), file.arena.unsafe_globals().clone()))
}
