//! One `SparseTensorProto`, as coordinates and values.

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Component, Decode, Extent, Layout, Object, Role, Shape, Storage, elements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::onnx::Externals;
use crate::format::onnx::tensor::{self, Tensor, once, push_dims};
use crate::format::onnx::wire::fields;
use crate::source::{Cursor, Sources, zeroed};

/// Reads the `SparseTensorProto` in `range`; it is named after its values.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    range: Range<u64>,
    externals: &mut Externals,
) -> Result<(String, Object)> {
    let (mut values, mut indices, mut dims) = (None, None, Shape::new());
    fields(cursor, range, |cursor, field| match field.number {
        1 => once(&mut values, tensor::read(cursor, field.bytes()?, externals)?, "values"),
        2 => once(&mut indices, tensor::read(cursor, field.bytes()?, externals)?, "indices"),
        3 => push_dims(cursor, field.payload, &mut dims),
        _ => Ok(()),
    })?;
    let values: Tensor =
        values.ok_or_else(|| Error::corrupt("onnx.sparse", "a sparse tensor has no values"))?;
    let name = values.name.clone();
    let object = describe(values, indices, dims).map_err(|error| error.in_tensor(&*name))?;
    Ok((name, object))
}

fn describe(values: Tensor, indices: Option<Tensor>, dims: Shape) -> Result<Object> {
    let broken = |what: String| Error::corrupt("onnx.sparse", what);
    let &[count] = &values.shape[..] else {
        return Err(broken(format!("its values have {} dimensions instead of one", values.shape.len())));
    };
    if dims.is_empty() {
        return Err(broken("it has no dimensions".into()));
    }
    let dense = elements(&dims).filter(|&elements| elements <= i64::MAX as u64);
    let dense = dense.ok_or_else(|| broken(format!("the shape {dims:?} has more than 2^63 elements")))?;
    if count > dense {
        return Err(broken(format!("it has {count} values and room for {dense}")));
    }
    if let Some(layout) = values.unreadable {
        return Ok(Object::new(dims, Layout::Other(layout), [(Role::Borrowed("values"), values.component)]));
    }
    let rank = dims.len() as u64;
    let overflow = || broken(format!("{count} coordinates of {rank} dimensions overflow"));
    let len = count.checked_mul(rank).and_then(|entries| entries.checked_mul(8)).ok_or_else(overflow)?;
    let storage = match indices {
        None if count == 0 => Storage::Inline(Arc::from([])),
        None => return Err(broken("it has values but no indices".into())),
        Some(indices) => {
            if indices.component.dtype != DType::I64 || indices.unreadable.is_some() {
                return Err(broken(format!("its indices are {} instead of i64", indices.component.dtype)));
            }
            let linear = match &indices.shape[..] {
                [rows] if *rows == count => true,
                [rows, columns] if *rows == count && *columns == rank => false,
                other => {
                    return Err(broken(format!(
                        "its indices have the shape {other:?} instead of [{count}] or [{count}, {rank}]"
                    )));
                }
            };
            let inner = indices.component.storage;
            Storage::Encoded(Arc::new(Coordinates { inner, linear, count, shape: dims.clone() }))
        }
    };
    let coords = Component::new(DType::U64, len, storage);
    let mut object = Object::new(
        dims,
        Layout::SparseCoo,
        [(Role::Borrowed("values"), values.component), (Role::Borrowed("coords"), coords)],
    );
    if !values.attributes.is_empty() {
        object.attributes = Some(Box::new(values.attributes));
    }
    Ok(object)
}

/// ONNX indices, one row per value or one linear index per value, turned into
/// coordinates with all of dimension 0 first.
#[derive(Debug)]
struct Coordinates {
    /// The indices, as `i64`.
    inner: Storage,
    linear: bool,
    count: u64,
    shape: Shape,
}

impl Coordinates {
    /// Numbers that the indices hold per value.
    fn columns(&self) -> u64 {
        if self.linear { 1 } else { self.shape.len() as u64 }
    }

    /// The indices of values `rows`, checked: inside the shape and ascending.
    fn indices(&self, sources: &Sources, rows: Range<u64>, threads: usize) -> Result<Vec<u8>> {
        let row = self.columns() * 8;
        let mut bytes = zeroed((rows.end - rows.start) * row)?;
        self.inner.read(sources, rows.start * row..rows.end * row, &mut bytes, threads)?;
        // The product fits: it was checked when the tensor was described.
        let dense = elements(&self.shape).unwrap_or(0);
        let mut before: Option<u64> = None;
        for row in bytes.chunks_exact(row as usize) {
            let linear = match self.linear {
                true => Some(number(row)).filter(|&index| index < dense),
                false => row
                    .chunks_exact(8)
                    .map(number)
                    .zip(&self.shape)
                    .try_fold(0, |linear, (index, &size)| (index < size).then(|| linear * size + index)),
            };
            let linear = linear.ok_or_else(|| {
                Error::corrupt("onnx.sparse", format!("an index lies outside the shape {:?}", self.shape))
            })?;
            if before.is_some_and(|before| before >= linear) {
                return Err(Error::corrupt("onnx.sparse", "the indices do not ascend"));
            }
            before = Some(linear);
        }
        Ok(bytes)
    }
}

/// A little-endian number; a negative index becomes one outside every shape.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Decode for Coordinates {
    fn encoding(&self) -> &str {
        "onnx.indices"
    }

    fn stored_len(&self) -> u64 {
        self.inner.stored_len()
    }

    fn extent(&self) -> Option<Extent> {
        self.inner.extent()
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (first, last) = (range.start / 8, (range.end - 1) / 8);
        // One dimension's coordinates are `count` numbers; a range within one
        // dimension needs only the rows it names, any other needs all.
        let rows = match first / self.count == last / self.count {
            true => first % self.count..last % self.count + 1,
            false => 0..self.count,
        };
        let indices = self.indices(sources, rows.clone(), threads)?;
        let columns = self.columns() as usize;
        let mut strides = vec![1u64; self.shape.len()];
        for axis in (1..strides.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis];
        }
        let mut at = 0usize;
        for entry in first..=last {
            let (axis, row) = ((entry / self.count) as usize, (entry % self.count - rows.start) as usize);
            let coordinate = match self.linear {
                true => number(&indices[row * 8..][..8]) / strides[axis] % self.shape[axis],
                false => number(&indices[(row * columns + axis) * 8..][..8]),
            };
            // The first and the last number may be wanted in part.
            let from = range.start.saturating_sub(entry * 8) as usize;
            let to = (range.end - entry * 8).min(8) as usize;
            out[at..at + to - from].copy_from_slice(&coordinate.to_le_bytes()[from..to]);
            at += to - from;
        }
        Ok(())
    }
}
