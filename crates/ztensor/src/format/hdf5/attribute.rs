//! Attributes of groups and datasets, as values.

use std::collections::HashMap;
use std::sync::Arc;

use hdf5_reader::global_heap::GlobalHeapCollection;

use crate::catalog::elements;
use crate::error::{Error, ErrorKind, Result};
use crate::format::hdf5::datatype::{Type, scalar};
use crate::format::hdf5::fields::{Fields, text};
use crate::format::hdf5::group::heap_objects;
use crate::format::hdf5::header::{Header, kind};
use crate::format::hdf5::message::Dataspace;
use crate::format::hdf5::store::structure;
use crate::format::hdf5::walk::File;
use crate::tensor::value::{Attributes, Value};

/// Heaps of long texts that were read.
pub(super) type Heaps = HashMap<u64, Arc<GlobalHeapCollection>>;

/// The attributes of an object, sorted by name as the library lists them.
pub(super) fn read(file: &mut File, header: &Header) -> Result<Attributes> {
    let mut found = Vec::new();
    for message in header.all(kind::ATTRIBUTE).filter(|message| !message.shared) {
        found.extend(understood(parse(file, &message.bytes))?);
    }
    if let Some(message) = header.find(kind::ATTRIBUTE_INFO) {
        let widths = file.widths;
        let mut fields = Fields::new(&message.bytes);
        let (_version, flags) = (fields.u8()?, fields.u8()?);
        if flags & 1 != 0 {
            fields.skip(2)?;
        }
        let (heap, tree) = (fields.offset(widths)?, fields.offset(widths)?);
        let store = file.store.clone();
        heap_objects(&store, widths, heap, tree, |bytes| {
            found.extend(understood(parse(file, bytes))?);
            Ok(())
        })?;
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found.into_iter().collect())
}

/// Attributes that this version does not understand are left out: they are no
/// reason not to read the tensors.
fn understood(attribute: Result<Option<(String, Value)>>) -> Result<Option<(String, Value)>> {
    match attribute {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
        other => other,
    }
}

/// An attribute message: its name and value; `None` for kinds without a value
/// of ours, such as references.
fn parse(file: &mut File, bytes: &[u8]) -> Result<Option<(String, Value)>> {
    let mut fields = Fields::new(bytes);
    let (version, flags) = (fields.u8()?, fields.u8()?);
    let sizes = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
    match version {
        1 | 2 => {}
        3 => fields.skip(1)?,
        other => return Err(Error::unsupported(format!("attribute version {other}"))),
    }
    let mut part = |len: usize| {
        let bytes = fields.take(len)?;
        if version == 1 {
            fields.align();
        }
        Ok(bytes)
    };
    let name_bytes: &[u8] = part(sizes[0])?;
    let (datatype, dataspace) = (part(sizes[1])?, part(sizes[2])?);
    let name = text(name_bytes.split(|&byte| byte == 0).next().unwrap_or(&[]))?.to_owned();
    file.budget.spend(name.len())?;
    if version > 1 && flags & 2 != 0 {
        return Err(Error::unsupported(format!("the dataspace of attribute {name:?} is shared")));
    }
    let datatype = file.datatype(datatype, version > 1 && flags & 1 != 0)?;
    let space = Dataspace::parse(dataspace, file.widths)?;
    let value = match space.is_null {
        true => Value::Null,
        false => match value(file, &datatype, &space.shape, fields.rest())? {
            Some(value) => value,
            None => return Ok(None),
        },
    };
    Ok(Some((name, value)))
}

fn value(file: &mut File, datatype: &Type, shape: &[u64], data: &[u8]) -> Result<Option<Value>> {
    let size = match datatype {
        // A length, an address and an index.
        Type::LongText => 8 + u64::from(file.widths.offset),
        other => other.size().unwrap_or(0),
    };
    let count = elements(shape).filter(|count| {
        // What the message holds is all there is.
        count.checked_mul(size).is_some_and(|needed| needed <= data.len() as u64)
    });
    let count = count.ok_or_else(|| {
        Error::corrupt("hdf5.attribute", format!("an attribute of shape {shape:?} has {} bytes", data.len()))
    })?;
    if size == 0 {
        return Ok(Some(Value::Null));
    }
    if count == 0 {
        return Ok(Some(Value::Array(Vec::new())));
    }
    let mut values = Vec::new();
    for element in data[..(count * size) as usize].chunks_exact(size as usize) {
        values.push(match datatype {
            Type::Number(number) => scalar(number, element),
            Type::Text { .. } => text_value(element),
            Type::LongText => long_text(file, element)?,
            Type::Array { shape, base } => match value(file, base, shape, element)? {
                Some(value) => value,
                None => return Ok(None),
            },
            Type::Other { layout: "hdf5.opaque" | "hdf5.compound", .. } => Value::Bytes(element.to_vec()),
            Type::Other { .. } => return Ok(None),
        });
    }
    Ok(nested(&mut values.into_iter(), shape))
}

/// The next values, as lists of lists by the shape.
fn nested(values: &mut impl Iterator<Item = Value>, shape: &[u64]) -> Option<Value> {
    match shape {
        [] => values.next(),
        [size, rest @ ..] => {
            (0..*size).map(|_| nested(values, rest)).collect::<Option<Vec<_>>>().map(Value::Array)
        }
    }
}

/// Text that is filled up with zero bytes, or bytes that are no text.
fn text_value(bytes: &[u8]) -> Value {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    match std::str::from_utf8(&bytes[..end]) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Bytes(bytes.to_vec()),
    }
}

fn long_text(file: &mut File, reference: &[u8]) -> Result<Value> {
    let mut fields = Fields::new(reference);
    let len = fields.u32()? as usize;
    let (address, index) = (fields.offset(file.widths)?, fields.u32()?);
    if len == 0 || file.widths.is_undefined(address) || index == 0 {
        return Ok(Value::Text(String::new()));
    }
    file.budget.spend(len)?;
    let heap = match file.heaps.get(&address) {
        Some(heap) => heap.clone(),
        None => {
            let (store, widths) = (file.store.clone(), file.widths);
            let heap = GlobalHeapCollection::parse_at_storage(&*store, address, widths.offset, widths.length);
            let heap = Arc::new(heap.map_err(structure)?);
            file.heaps.insert(address, heap.clone());
            heap
        }
    };
    let object = u16::try_from(index).ok().and_then(|index| heap.get_object(index));
    let bytes = object.and_then(|object| object.data.get(..len)).ok_or_else(|| {
        Error::corrupt("hdf5.attribute", format!("a string of {len} bytes is not in the heap at {address}"))
    })?;
    Ok(text_value(bytes))
}
