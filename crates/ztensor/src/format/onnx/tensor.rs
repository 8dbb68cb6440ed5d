//! One `TensorProto`: what it says, and where its elements are.

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Component, Extent, Layout, MAX_RANK, Object, Role, Shape, Storage, elements};
use crate::decode::Refused;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::onnx::Externals;
use crate::format::onnx::elements::{ElementKind, Elements, Pieces};
use crate::format::onnx::properties::{Properties, entry, text_value};
use crate::format::onnx::wire::{Payload, bytes, fields, text, varint};
use crate::source::Cursor;
use crate::tensor::value::Attributes;

/// A tensor as the file describes it, without its elements.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) component: Component,
    /// A layout's name, if the elements are not numbers that can be read.
    pub(super) unreadable: Option<Box<str>>,
    pub(super) attributes: Attributes,
}

impl Tensor {
    pub(super) fn into_object(self) -> (String, Object) {
        let mut object = match self.unreadable {
            None => Object::dense(self.shape, self.component),
            Some(layout) => {
                Object::new(self.shape, Layout::Other(layout), [(Role::Borrowed("data"), self.component)])
            }
        };
        if !self.attributes.is_empty() {
            object.attributes = Some(Box::new(self.attributes));
        }
        (self.name, object)
    }
}

/// The typed fields that elements can stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Typed {
    Float,
    Int32,
    Int64,
    Double,
    Uint64,
}

impl Typed {
    const ALL: [(Typed, u64, &'static str); 5] = [
        (Typed::Float, 4, "float_data"),
        (Typed::Int32, 5, "int32_data"),
        (Typed::Int64, 7, "int64_data"),
        (Typed::Double, 10, "double_data"),
        (Typed::Uint64, 11, "uint64_data"),
    ];

    /// The field for a type, and how its elements stand there.
    fn of(dtype: DType) -> (Typed, ElementKind) {
        match dtype {
            DType::F32 | DType::C64 => (Typed::Float, ElementKind::Fixed(4)),
            DType::F64 | DType::C128 => (Typed::Double, ElementKind::Fixed(8)),
            DType::I64 => (Typed::Int64, ElementKind::Varint(8)),
            DType::U64 => (Typed::Uint64, ElementKind::Varint(8)),
            DType::U32 => (Typed::Uint64, ElementKind::Varint(4)),
            DType::F6E2M3 | DType::F6E3M2 => (Typed::Int32, ElementKind::Sextet),
            other => (Typed::Int32, ElementKind::Varint(other.size().unwrap_or(1) as u8)),
        }
    }
}

/// The fields of a `TensorProto`, before they are made sense of.
#[derive(Debug, Default)]
struct Raw {
    dims: Shape,
    data_type: Option<u64>,
    segment: bool,
    typed: [Pieces; 5],
    strings: u64,
    string_bytes: u64,
    raw: Option<Range<u64>>,
    name: Option<String>,
    location: Option<u64>,
    external: External,
    attributes: Attributes,
    properties: Properties,
}

#[derive(Debug, Default)]
struct External {
    present: bool,
    location: Option<String>,
    offset: Option<u64>,
    length: Option<u64>,
}

/// Sets a field that may come once.
pub(super) fn once<T>(slot: &mut Option<T>, value: T, what: &str) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::corrupt("onnx.twice", format!("{what} comes twice in one message"))),
    }
}

/// Adds dimensions, packed or not; negative ones and too many are refused.
pub(super) fn push_dims(cursor: &mut Cursor<'_>, payload: Payload, dims: &mut Shape) -> Result<()> {
    let mut push = |value: u64| {
        let size = i64::try_from(value).map_err(|_| {
            Error::corrupt("onnx.dims", format!("a dimension is {}, which is negative", value as i64))
        })?;
        if dims.len() == MAX_RANK {
            return Err(Error::corrupt(
                "object.rank",
                format!("a shape has more than {MAX_RANK} dimensions"),
            ));
        }
        dims.push(size as u64);
        Ok(())
    };
    match payload {
        Payload::Varint(value) => push(value),
        Payload::Fixed(_) => Err(Error::corrupt("onnx.wire", "a dimension has a fixed length")),
        Payload::Bytes(range) => {
            cursor.seek(range.start)?;
            while cursor.position() < range.end {
                push(varint(cursor)?)?;
            }
            match cursor.position() == range.end {
                true => Ok(()),
                false => Err(Error::corrupt("onnx.wire", "a dimension passes the end of its field")),
            }
        }
    }
}

/// Reads the `TensorProto` in `range`.
pub(super) fn read(cursor: &mut Cursor<'_>, range: Range<u64>, externals: &mut Externals) -> Result<Tensor> {
    let mut raw = Raw::default();
    fields(cursor, range, |cursor, field| {
        match field.number {
            1 => push_dims(cursor, field.payload, &mut raw.dims)?,
            2 => once(&mut raw.data_type, field.varint()?, "data_type")?,
            3 => raw.segment = true,
            6 => {
                let string = field.bytes()?;
                raw.strings += 1;
                raw.string_bytes += string.end - string.start;
            }
            8 => once(&mut raw.name, text(cursor, field.bytes()?)?.to_owned(), "name")?,
            9 => once(&mut raw.raw, field.bytes()?, "raw_data")?,
            12 => {
                let text = text_value(cursor, field.bytes()?)?;
                raw.attributes.insert("doc_string".to_owned(), text);
            }
            13 => raw.external.read_entry(cursor, field.bytes()?)?,
            14 => once(&mut raw.location, field.varint()?, "data_location")?,
            16 => raw.properties.read(cursor, field.bytes()?)?,
            number => {
                if let Some(slot) = Typed::ALL.iter().position(|(_, field, _)| *field == number) {
                    raw.typed[slot].push(field)?;
                }
            }
        }
        Ok(())
    })?;
    let name = raw.name.take().unwrap_or_default();
    raw.describe(externals).map(|tensor| Tensor { name: name.clone(), ..tensor }).map_err(|e| match &*name {
        "" => e,
        name => e.in_tensor(name),
    })
}

impl External {
    fn read_entry(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<()> {
        self.present = true;
        let (key, value) = entry(cursor, range)?;
        let number = |cursor: &mut Cursor<'_>, slot: &mut Option<u64>, what: &'static str| {
            let text = text(cursor, value.clone())?;
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.then(|| text.parse().ok()).flatten().ok_or_else(|| {
                Error::corrupt(
                    "onnx.external-range",
                    format!(
                        "the {what} of external data is {}, not a number from 0 on",
                        crate::error::quoted(text)
                    ),
                )
            })?;
            once(slot, number, what)
        };
        // Text of any length can stand here; the keys that matter are short.
        match bytes(cursor, key.start..key.end.min(key.start + 16))? {
            b"location" => {
                let location = text(cursor, value)?.to_owned();
                once(&mut self.location, location, "location")
            }
            b"offset" => number(cursor, &mut self.offset, "offset"),
            b"length" => number(cursor, &mut self.length, "length"),
            _ => Ok(()),
        }
    }
}

impl Raw {
    /// The name of the one field with data, if there is one.
    fn data_field(&self) -> Result<Option<&'static str>> {
        let typed = Typed::ALL.iter().zip(&self.typed).filter(|(_, pieces)| !pieces.is_empty());
        let mut filled: Vec<&'static str> = typed.map(|((_, _, name), _)| *name).collect();
        filled.extend(self.raw.is_some().then_some("raw_data"));
        filled.extend((self.strings > 0).then_some("string_data"));
        if filled.len() > 1 {
            return Err(Error::corrupt(
                "onnx.two-data",
                format!("the elements are given twice, as {} and as {}", filled[0], filled[1]),
            ));
        }
        Ok(filled.first().copied())
    }

    fn describe(mut self, externals: &mut Externals) -> Result<Tensor> {
        let field = self.data_field()?;
        let is_external = match self.location {
            None | Some(0) => false,
            Some(1) => true,
            Some(other) => {
                return Err(Error::corrupt("onnx.location", format!("{other} is not a data location")));
            }
        };
        if let Some(field) = field
            && (is_external || self.external.present)
        {
            return Err(Error::corrupt(
                "onnx.two-data",
                format!("the elements are given twice, as {field} and as external data"),
            ));
        }
        let id = self.data_type.unwrap_or(0);
        let count = elements(&self.dims).ok_or_else(|| {
            Error::corrupt(
                "object.overflow",
                format!("the shape {:?} has more than 2^64 elements", self.dims),
            )
        })?;
        let dtype = i32::try_from(id).ok().and_then(DType::from_onnx_id);
        let component = match dtype {
            _ if self.segment => Err(("onnx.segment", "it is one segment of a tensor".to_owned())),
            Some(dtype) if is_external => Ok(self.external_data(dtype, count, externals)?),
            Some(dtype) => Ok(self.own_data(dtype, count, field)?),
            None if id == 8 && !is_external && self.strings != count => {
                return Err(Error::corrupt(
                    "onnx.size",
                    format!("{} strings are given where the shape needs {count}", self.strings),
                ));
            }
            None if id == 8 => Err(("onnx.string", "its elements are strings, not numbers".to_owned())),
            None if id == 0 => Err(("onnx.undefined", "its element type is not defined".to_owned())),
            None => Err(("onnx.unknown", format!("its element type {id} is not known to this version"))),
        };
        let (component, unreadable) = match component {
            Ok(component) => (component, None),
            Err((layout, why)) => {
                let stored = self.stored_len();
                let storage = Storage::Encoded(Arc::new(Refused::new(layout, why, stored)));
                let mut component = Component::new(DType::U8, stored, storage);
                component.unknown_type = Some(layout.into());
                (component, Some(layout.into()))
            }
        };
        self.properties.insert_into(&mut self.attributes);
        let attributes = self.attributes;
        Ok(Tensor { name: String::new(), shape: self.dims, component, unreadable, attributes })
    }

    fn stored_len(&self) -> u64 {
        let raw = self.raw.as_ref().map_or(0, |raw| raw.end - raw.start);
        self.typed.iter().map(Pieces::stored_len).sum::<u64>() + raw + self.string_bytes
    }

    fn external_data(&self, dtype: DType, count: u64, externals: &mut Externals) -> Result<Component> {
        let needed = byte_len(dtype, count)?;
        let location = self
            .external
            .location
            .as_deref()
            .ok_or_else(|| Error::corrupt("onnx.external-path", "external data has no location"))?;
        if let Some(length) = self.external.length
            && length != needed
        {
            return Err(Error::corrupt(
                "onnx.size",
                format!("external data has {length} bytes where the shape needs {needed}"),
            ));
        }
        let offset = self.external.offset.unwrap_or(0);
        if offset.checked_add(needed).is_none() {
            return Err(Error::corrupt(
                "onnx.external-range",
                format!("offset {offset} and length {needed} of external data overflow"),
            ));
        }
        let source = externals.source(location)?;
        Ok(Component::plain(dtype, Extent { source, offset, len: needed }))
    }

    fn own_data(&mut self, dtype: DType, count: u64, field: Option<&'static str>) -> Result<Component> {
        let needed = byte_len(dtype, count)?;
        if let Some(raw) = &self.raw {
            let found = raw.end - raw.start;
            if found != needed {
                return Err(Error::corrupt(
                    "onnx.size",
                    format!("raw_data has {found} bytes where {count} elements of {dtype} take {needed}"),
                ));
            }
            return Ok(Component::plain(dtype, Extent::new(raw.start, found)));
        }
        let Some(field) = field else {
            return match needed {
                0 => Ok(Component::new(dtype, 0, Storage::Inline(Arc::from([])))),
                _ => Err(Error::corrupt("onnx.no-data", format!("{count} elements of {dtype} have no data"))),
            };
        };
        let (typed, kind) = Typed::of(dtype);
        let slot = typed as usize;
        let (_, _, expected) = Typed::ALL[slot];
        if self.typed[slot].is_empty() {
            return Err(Error::corrupt(
                "onnx.field",
                format!("elements of {dtype} stand in {field} instead of {expected}"),
            ));
        }
        component(std::mem::take(&mut self.typed[slot]), dtype, kind, count)
    }
}

fn byte_len(dtype: DType, count: u64) -> Result<u64> {
    dtype.byte_len(count).ok_or_else(|| {
        Error::corrupt("object.overflow", format!("{count} elements of {dtype} take more than 2^64 bytes"))
    })
}

/// A component of `count` elements that stand in a typed field; a single run
/// of fixed numbers already is what memory would hold.
pub(super) fn component(pieces: Pieces, dtype: DType, kind: ElementKind, count: u64) -> Result<Component> {
    let len = byte_len(dtype, count)?;
    let entries = match kind {
        ElementKind::Fixed(width) | ElementKind::Varint(width) => len.div_ceil(u64::from(width)),
        ElementKind::Sextet => count,
    };
    if let (ElementKind::Fixed(_), Some(run)) = (kind, pieces.single_run())
        && run.end - run.start == len
    {
        return Ok(Component::plain(dtype, Extent::new(run.start, len)));
    }
    let storage = Storage::Encoded(Arc::new(Elements::new(pieces, kind, entries, len)?));
    Ok(Component::new(dtype, len, storage))
}
