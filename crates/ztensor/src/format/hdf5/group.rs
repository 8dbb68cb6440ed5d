//! Groups: the names in them and what the names lead to.

use hdf5_reader::btree_v1::collect_btree_v1_leaves_storage;
use hdf5_reader::btree_v2::{BTreeV2Header, BTreeV2Record, collect_btree_v2_records_storage};
use hdf5_reader::fractal_heap::{FractalHeap, FractalHeapDirectBlockCache};
use hdf5_reader::local_heap::LocalHeap;

use crate::error::{Error, Result, quoted};
use crate::format::hdf5::fields::{Fields, Widths, text};
use crate::format::hdf5::header::{Header, kind};
use crate::format::hdf5::store::{Store, structure};
use crate::format::hdf5::walk::Budget;

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// An object in this file, by the address of its header.
    Object(u64),
    /// A path in this file.
    Path(String),
    /// Something in another file.
    External { file: String, path: String },
    /// A user-defined link.
    UserDefined(u8),
}

/// The names of a group, sorted as the library lists them.
pub(super) fn children(
    store: &Store,
    widths: Widths,
    header: &Header,
    budget: &mut Budget,
) -> Result<Vec<(String, Target)>> {
    let mut children = Vec::new();
    if let Some(message) = header.find(kind::SYMBOL_TABLE) {
        let mut fields = Fields::new(&message.bytes);
        let (tree, heap) = (fields.offset(widths)?, fields.offset(widths)?);
        symbol_table(store, widths, tree, heap, budget, &mut children)?;
    }
    for message in header.all(kind::LINK) {
        children.push(link(&message.bytes, widths, budget)?);
    }
    if let Some(message) = header.find(kind::LINK_INFO) {
        let mut fields = Fields::new(&message.bytes);
        let (_version, flags) = (fields.u8()?, fields.u8()?);
        if flags & 1 != 0 {
            fields.skip(8)?;
        }
        let (heap, tree) = (fields.offset(widths)?, fields.offset(widths)?);
        heap_objects(store, widths, heap, tree, |bytes| {
            children.push(link(bytes, widths, budget)?);
            Ok(())
        })?;
    }
    children.sort_by(|a, b| a.0.cmp(&b.0));
    for pair in children.windows(2) {
        if pair[0].0 == pair[1].0 {
            return Err(Error::corrupt(
                "name.duplicate",
                format!("a group has the name {} twice", quoted(&pair[0].0)),
            ));
        }
    }
    Ok(children)
}

/// A name, if a path can be made of it.
fn name(bytes: &[u8], budget: &mut Budget) -> Result<String> {
    budget.spend(bytes.len())?;
    let name = text(bytes)?;
    if name.is_empty() || name == "." || name.contains(['/', '\0']) {
        return Err(Error::corrupt("hdf5.name", format!("{} is not a valid link name", quoted(name))));
    }
    Ok(name.to_owned())
}

/// Groups of the first kind: a B-tree of nodes, and a heap of names.
fn symbol_table(
    store: &Store,
    widths: Widths,
    tree: u64,
    heap: u64,
    budget: &mut Budget,
    children: &mut Vec<(String, Target)>,
) -> Result<()> {
    let leaves = collect_btree_v1_leaves_storage(store, tree, widths.offset, widths.length, None, &[], None)
        .map_err(structure)?;
    if leaves.is_empty() {
        return Ok(());
    }
    let heap = LocalHeap::parse_at_storage(store, heap, widths.offset, widths.length).map_err(structure)?;
    let segment = store.bytes(heap.data_segment_address, heap.data_segment_size)?;
    let string = |offset: u64| -> Result<&[u8]> {
        let bytes = usize::try_from(offset).ok().and_then(|offset| segment.get(offset..));
        let bytes = bytes.ok_or_else(|| Error::corrupt("hdf5.range", "a name lies outside its heap"))?;
        Fields::new(bytes).terminated()
    };
    let entry_len = 2 * u64::from(widths.offset) + 24;
    for (_, address) in leaves {
        let node = store.bytes(address, 8)?;
        let mut fields = Fields::new(&node);
        if fields.take(4)? != b"SNOD" || fields.u8()? != 1 {
            return Err(Error::corrupt("hdf5.structure", format!("no symbol table node is at {address}")));
        }
        fields.skip(1)?;
        let count = u64::from(fields.u16()?);
        let node = store.bytes(address, 8 + count * entry_len)?;
        let mut fields = Fields::new(&node);
        fields.skip(8)?;
        for _ in 0..count {
            let (name_at, object) = (fields.offset(widths)?, fields.offset(widths)?);
            let cached = fields.u32()?;
            fields.skip(4)?;
            let mut scratch = Fields::new(fields.take(16)?);
            let target = match cached {
                2 => {
                    let path = string(u64::from(scratch.u32()?))?;
                    budget.spend(path.len())?;
                    Target::Path(text(path)?.to_owned())
                }
                _ => Target::Object(object),
            };
            children.push((name(string(name_at)?, budget)?, target));
        }
    }
    Ok(())
}

/// A link message.
fn link(bytes: &[u8], widths: Widths, budget: &mut Budget) -> Result<(String, Target)> {
    let mut fields = Fields::new(bytes);
    let (version, flags) = (fields.u8()?, fields.u8()?);
    if version != 1 {
        return Err(Error::unsupported(format!("link version {version}")));
    }
    let link_type = if flags & 0x08 != 0 { fields.u8()? } else { 0 };
    if flags & 0x04 != 0 {
        fields.skip(8)?;
    }
    if flags & 0x10 != 0 {
        fields.skip(1)?;
    }
    let len = fields.number(1 << (flags & 3))?;
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let name = name(fields.take(len)?, budget)?;
    let target = match link_type {
        0 => Target::Object(fields.offset(widths)?),
        1 => {
            let len = usize::from(fields.u16()?);
            let path = fields.take(len)?;
            budget.spend(path.len())?;
            Target::Path(text(path)?.trim_end_matches('\0').to_owned())
        }
        64 => {
            let len = usize::from(fields.u16()?);
            budget.spend(len)?;
            let mut fields = Fields::new(fields.take(len)?);
            fields.skip(1)?;
            let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Target::External { file: lossy(fields.terminated()?), path: lossy(fields.terminated()?) }
        }
        other => Target::UserDefined(other),
    };
    Ok((name, target))
}

/// Calls `each` with every object of a fractal heap that a B-tree lists.
pub(super) fn heap_objects(
    store: &Store,
    widths: Widths,
    heap: u64,
    tree: u64,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if widths.is_undefined(heap) || widths.is_undefined(tree) {
        return Ok(());
    }
    let Widths { offset, length } = widths;
    let heap = FractalHeap::parse_at_storage(store, heap, offset, length).map_err(structure)?;
    if heap.io_filters_len != 0 {
        return Err(Error::unsupported("a heap of names or attributes is compressed"));
    }
    let header = BTreeV2Header::parse_at_storage(store, tree, offset, length).map_err(structure)?;
    let records = collect_btree_v2_records_storage(store, &header, offset, length, None, &[], None);
    let mut blocks = FractalHeapDirectBlockCache::default();
    for record in records.map_err(structure)? {
        let id = match record {
            BTreeV2Record::LinkNameHash { heap_id, .. } => heap_id,
            // Attributes that are kept elsewhere, in a table of shared messages, are left out.
            BTreeV2Record::AttributeNameHash { flags, .. } if flags & 2 != 0 => continue,
            BTreeV2Record::AttributeNameHash { heap_id, .. } => heap_id,
            _ => return Err(Error::corrupt("hdf5.structure", "an index of names holds something else")),
        };
        let object =
            heap.get_object_storage_cached(&id, store, offset, length, &mut blocks).map_err(structure)?;
        each(&object)?;
    }
    Ok(())
}
