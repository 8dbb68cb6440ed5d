//! `.gguf`: key-values, a table of tensors, and aligned data.
//!
//! Tensors of plain types are dense objects. Tensors of block types are objects
//! with the layout `gguf.<type>`, their true shape, and one component `blocks`
//! with the bytes as they are; [`dequantize`] turns those into `f32`. A type
//! that is not known is passed through as `gguf.unknown`: its bytes reach to the
//! next tensor. The attribute `ggml_type` has the type's number.
//!
//! Numbers of big-endian files are byte-swapped while they are read. Blocks have
//! numbers inside that no reader and writer agree on how to turn: they stay as
//! they are, with the attribute `byte_order`, and are not dequantized.
//!
//! | rule | what is broken |
//! |---|---|
//! | `gguf.magic` | the first four bytes |
//! | `gguf.count` | more strings, arrays, pairs or tensors than bytes are left for |
//! | `gguf.utf8` | a key or a tensor's name |
//! | `gguf.value-type`, `gguf.bool` | a value's type; a truth value other than 0 and 1 |
//! | `gguf.key-duplicate` | two values for one key |
//! | `gguf.rank`, `gguf.shape` | a shape: too many dimensions, or too many bytes |
//! | `gguf.block` | rows that are not whole blocks |
//! | `gguf.type` | a type number beyond 2^31 |
//! | `gguf.alignment`, `gguf.offset`, `gguf.overflow`, `gguf.range` | where data lies |
//! | `gguf.split` | parts that do not belong together |

mod dequantize;
mod header;
mod split;
mod types;
mod value;
pub(crate) mod write;

use std::borrow::Cow;
use std::sync::Arc;

pub use dequantize::dequantize;
pub use types::GgmlType;

use self::header::{Header, TensorInfo};
use self::types::UNKNOWN_LAYOUT;
use self::value::Order;
use crate::catalog::validate;
use crate::catalog::{Catalog, Component, Extent, Layout, Object, Storage};
use crate::decode::Swapped;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict};
use crate::source::{Source, Sources};
use crate::write::export::ExportFormat;

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Gguf,
    extensions: &[Extension::new("gguf").rank(6)],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        writes: true,
        quantized: true,
        metadata: Metadata::Typed,
        ..Capabilities::READ_ONLY
    },
    exporters: &[(ExportFormat::Gguf, write::export)],
};

/// The attribute of a block tensor that has the number of its type.
pub(crate) const TYPE_ATTRIBUTE: &str = "ggml_type";
/// The attribute of a block tensor whose blocks are not little-endian.
pub const ORDER_ATTRIBUTE: &str = "byte_order";

fn detect(probe: &Probe<'_>) -> Verdict {
    match probe.head.starts_with(header::MAGIC) {
        true => Verdict::Yes,
        false => Verdict::No,
    }
}

fn parse(Input { source, .. }: Input, context: &Context) -> Result<Catalog> {
    let mut first = header::read(&*source)?;
    let rest = split::open_rest(&mut first, context)?;
    let mut catalog = Catalog::new(Format::Gguf, Sources::default());
    catalog.attributes = std::mem::take(&mut first.attributes);
    for (source, header) in std::iter::once((source, first)).chain(rest) {
        let label = source.label().to_owned();
        add_part(&mut catalog, source, header).map_err(|error| error.in_file(label))?;
    }
    validate::overlaps(&catalog)?;
    Ok(catalog)
}

/// Adds the tensors of one file.
fn add_part(catalog: &mut Catalog, source: Arc<dyn Source>, header: Header) -> Result<()> {
    let total = source.len();
    let index = catalog.sources.push(source);
    // Where the data of a type of unknown size ends: at the next tensor or the end.
    let mut offsets: Vec<u64> = header.tensors.iter().map(|tensor| tensor.offset).collect();
    offsets.sort_unstable();
    for tensor in header.tensors {
        let next = offsets.partition_point(|&offset| offset <= tensor.offset);
        let end = offsets.get(next).copied().unwrap_or(total).min(total);
        let object = object(&tensor, index, header.order, end)
            .and_then(|object| {
                check_extents(&object, total)?;
                Ok(object)
            })
            .map_err(|error| error.in_tensor(&*tensor.name))?;
        catalog.insert(tensor.name, object)?;
    }
    Ok(())
}

/// What a tensor's entry describes; `end` is where the bytes of a type of
/// unknown size end.
fn object(tensor: &TensorInfo, source: u32, order: Order, end: u64) -> Result<Object> {
    let known = GgmlType::from_id(tensor.type_id);
    let len = match known {
        Some(known) => byte_len(known, &tensor.shape)?,
        None if tensor.type_id > i32::MAX as u32 => {
            return Err(Error::corrupt(
                "gguf.type",
                format!("the type number {} is out of range", tensor.type_id),
            ));
        }
        None => end.saturating_sub(tensor.offset),
    };
    let extent = Extent { source, offset: tensor.offset, len };
    if let Some(dtype) = known.and_then(GgmlType::dtype) {
        return Ok(Object::dense(tensor.shape.clone(), dense(dtype, extent, order)));
    }
    let layout = known.map_or(UNKNOWN_LAYOUT, GgmlType::layout_name);
    let blocks = Component::plain(DType::U8, extent);
    let mut object =
        Object::new(tensor.shape.clone(), Layout::Other(layout.into()), [(Cow::Borrowed("blocks"), blocks)]);
    object.set_attribute(TYPE_ATTRIBUTE, tensor.type_id);
    if order == Order::Big {
        object.set_attribute(ORDER_ATTRIBUTE, "big");
    }
    Ok(object)
}

/// Bytes of a tensor, or which rule its shape breaks.
fn byte_len(ggml_type: GgmlType, shape: &[u64]) -> Result<u64> {
    ggml_type.byte_len(shape).ok_or_else(|| {
        let row = shape.last().copied().unwrap_or(1);
        let block = ggml_type.block_elements();
        if row % block != 0 {
            let message =
                format!("rows of {row} elements are not whole blocks of {block}, as {ggml_type} has");
            return Error::corrupt("gguf.block", message);
        }
        Error::corrupt("gguf.shape", format!("the shape {shape:?} describes more bytes than 2^64"))
    })
}

/// A plain component, behind a decoder where its byte order is not ours.
fn dense(dtype: DType, extent: Extent, order: Order) -> Component {
    match dtype.size() {
        Some(width) if width > 1 && order == Order::Big => {
            let swapped = Swapped::new(Storage::Plain(extent), width, extent.len);
            Component::new(dtype, extent.len, Storage::Encoded(Arc::new(swapped)))
        }
        _ => Component::plain(dtype, extent),
    }
}

/// Checks that the data lies inside the file.
fn check_extents(object: &Object, total: u64) -> Result<()> {
    for extent in object.components.iter().filter_map(|(_, component)| component.extent()) {
        if extent.offset.checked_add(extent.len).is_none_or(|end| end > total) {
            return Err(Error::corrupt(
                "gguf.range",
                format!(
                    "its {} bytes from byte {} on lie outside the {total} bytes of the file (incomplete download?)",
                    extent.len, extent.offset
                ),
            ));
        }
    }
    Ok(())
}
