//! One dataset: what its messages say, and where its elements are.

use std::sync::Arc;

use crate::catalog::{Component, Extent, Object, Shape, Storage, elements};
use crate::decode::Swapped;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::hdf5::attribute;
use crate::format::hdf5::chunks::{Chunked, Fill};
use crate::format::hdf5::datatype::{Number, Type};
use crate::format::hdf5::header::{Header, Message, kind};
use crate::format::hdf5::message::{DataLayout, Dataspace, Filter, fill_value};
use crate::format::hdf5::walk::{File, unreadable};
use crate::tensor::value::Value;

/// Describes the dataset whose header this is.
pub(super) fn read(file: &mut File, header: &Header) -> Result<Object> {
    let attributes = attribute::read(file, header)?;
    let mut object = describe(file, header)?;
    if !attributes.is_empty() {
        object.attributes.get_or_insert_default().extend(attributes);
    }
    Ok(object)
}

fn require<'h>(header: &'h Header, kind: u16, what: &str) -> Result<&'h Message> {
    header.find(kind).ok_or_else(|| Error::corrupt("hdf5.dataset", format!("a dataset has no {what}")))
}

fn describe(file: &File, header: &Header) -> Result<Object> {
    let space = require(header, kind::DATASPACE, "dataspace")?;
    let datatype = require(header, kind::DATATYPE, "datatype")?;
    let layout = require(header, kind::LAYOUT, "data layout")?;
    let pipeline = header.find(kind::PIPELINE);
    if space.shared || layout.shared || pipeline.is_some_and(|message| message.shared) {
        return Err(Error::unsupported("its description is in a table of shared messages"));
    }
    let space = Dataspace::parse(&space.bytes, file.widths)?;
    let extent = if space.is_null { Shape::from_slice(&[0]) } else { space.shape.clone() };
    let datatype = file.datatype(&datatype.bytes, datatype.shared)?;
    let layout = DataLayout::parse(&layout.bytes, file.widths)?;
    let element = datatype.size();
    let (number, shape) = match numbers(datatype, extent.clone()) {
        Ok(found) => found,
        Err((name, what)) => return Ok(unreadable(name, format!("its elements are {what}"), extent, 0)),
    };
    if header.find(kind::EXTERNAL_FILES).is_some() {
        let why = "its elements are in other files, and other files are not opened";
        return Ok(unreadable("hdf5.external_storage", why, shape, 0));
    }
    let (Some(count), Some(element)) = (elements(&shape), element) else {
        return Err(too_large(&shape));
    };
    let len = number.dtype.byte_len(count).ok_or_else(|| too_large(&shape))?;
    let fill = match (header.find(kind::FILL), header.find(kind::FILL_OLD)) {
        (Some(message), _) if !message.shared => fill_value(&message.bytes, false)?,
        (None, Some(message)) if !message.shared => fill_value(&message.bytes, true)?,
        _ => None,
    };
    let fill = Fill::new(fill, element)?;
    let storage = match layout {
        DataLayout::Virtual => {
            let why = "it is a virtual dataset, made of others that may be in other files";
            return Ok(unreadable("hdf5.virtual", why, shape, 0));
        }
        _ if len == 0 => Storage::Inline(Arc::from([])),
        DataLayout::Compact(bytes) => match bytes.len() as u64 == len {
            true => Storage::Inline(bytes),
            false => return Err(wrong_size(bytes.len() as u64, len)),
        },
        DataLayout::Contiguous { address, .. } if file.widths.is_undefined(address) => {
            Storage::Encoded(Arc::new(fill))
        }
        DataLayout::Contiguous { address, size } => contiguous(file, address, size, len)?,
        DataLayout::Chunked(chunking) => {
            let filters = match pipeline {
                Some(message) => Filter::parse_all(&message.bytes)?,
                None => Vec::new(),
            };
            let chunked = Chunked::new(file, chunking, &space, element, filters, fill, len)?;
            Storage::Encoded(Arc::new(chunked))
        }
    };
    let storage = match number.big_endian && number.width() > 1 && len > 0 {
        true => Storage::Encoded(Arc::new(Swapped::new(storage, number.width(), len))),
        false => storage,
    };
    let mut object = Object::dense(shape, Component::new(number.dtype, len, storage));
    if !number.names.is_empty() && number.dtype != DType::Bool {
        object.set_attribute("hdf5.enum", Value::Map(number.names));
    }
    Ok(object)
}

fn too_large(shape: &[u64]) -> Error {
    Error::corrupt("object.overflow", format!("the shape {shape:?} describes more bytes than 2^64"))
}

fn wrong_size(found: u64, expected: u64) -> Error {
    Error::corrupt("hdf5.size", format!("the data has {found} bytes where the shape needs {expected}"))
}

/// The numbers that a dataset's elements are made of; the shape of array types
/// comes behind the dataset's own. Otherwise a layout's name and what they are.
fn numbers(datatype: Type, mut shape: Shape) -> Result<(Number, Shape), (&'static str, String)> {
    match datatype {
        Type::Number(number) => Ok((number, shape)),
        Type::Array { shape: inner, base } => {
            shape.extend(inner);
            numbers(*base, shape)
        }
        Type::Text { .. } | Type::LongText => Err(("hdf5.string", "strings, not numbers".into())),
        Type::Other { layout, what, .. } => Err((layout, what)),
    }
}

fn contiguous(file: &File, address: u64, size: Option<u64>, len: u64) -> Result<Storage> {
    if let Some(size) = size
        && size < len
    {
        return Err(wrong_size(size, len));
    }
    let offset = file.store.locate(address, len)?;
    Ok(Storage::Plain(Extent { source: file.source, offset, len }))
}
