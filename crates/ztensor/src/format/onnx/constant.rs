//! The numbers that a `Constant` node may hold instead of a tensor:
//! `value_float`, `value_floats`, `value_int` and `value_ints`.

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Component, Extent, Shape, Storage};
use crate::dtype::DType;
use crate::error::Result;
use crate::format::onnx::elements::{ElementKind, Pieces};
use crate::format::onnx::tensor;
use crate::format::onnx::wire::{Payload, fields, varint};
use crate::source::Cursor;

pub(super) struct Constant;

impl Constant {
    /// The attribute's number or numbers as a component, if `name` is one of the four.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        range: Range<u64>,
        name: &str,
    ) -> Result<Option<(Component, Shape)>> {
        let (single, list, dtype, kind) = match name {
            "value_float" | "value_floats" => (2, 7, DType::F32, ElementKind::Fixed(4)),
            "value_int" | "value_ints" => (3, 8, DType::I64, ElementKind::Varint(8)),
            _ => return Ok(None),
        };
        let is_list = name.ends_with('s');
        let mut scalar = None;
        let (mut pieces, mut count) = (Pieces::default(), 0u64);
        fields(cursor, range, |cursor, field| {
            if !is_list && field.number == single {
                // What protobuf does not write is zero.
                scalar = Some(field.payload);
            } else if is_list && field.number == list {
                count += match (&field.payload, kind) {
                    (Payload::Bytes(run), ElementKind::Fixed(width)) => {
                        (run.end - run.start) / u64::from(width)
                    }
                    (Payload::Bytes(run), _) => count_varints(cursor, run.clone())?,
                    _ => 1,
                };
                pieces.push(field)?;
            }
            Ok(())
        })?;
        if is_list {
            let component = match pieces.is_empty() {
                true => Component::new(dtype, 0, Storage::Inline(Arc::from([]))),
                false => tensor::component(pieces, dtype, kind, count)?,
            };
            return Ok(Some((component, Shape::from_slice(&[count]))));
        }
        let component = match scalar {
            Some(Payload::Fixed(range)) if range.end - range.start == 4 && dtype == DType::F32 => {
                Component::plain(dtype, Extent::new(range.start, 4))
            }
            Some(Payload::Varint(value)) if dtype == DType::I64 => {
                Component::new(dtype, 8, Storage::Inline(Arc::from(value.to_le_bytes())))
            }
            _ => {
                let len = dtype.size().unwrap_or(8);
                Component::new(dtype, len as u64, Storage::Inline(Arc::from(vec![0; len])))
            }
        };
        Ok(Some((component, Shape::new())))
    }
}

fn count_varints(cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<u64> {
    cursor.seek(range.start)?;
    let mut count = 0;
    while cursor.position() < range.end {
        varint(cursor)?;
        count += 1;
    }
    Ok(count)
}
