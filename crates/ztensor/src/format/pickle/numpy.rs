//! NumPy arrays and scalars inside pickles.

use std::sync::Arc;

use super::arena::{Arena, Item, Object};
use super::build::{Builder, Number};
use super::globals::Known;
use super::storage::{Blobs, bytes_of};
use super::torch::{Absent, sizes};
use crate::catalog::{self, Component, Storage, elements};
use crate::decode::{Swapped, fortran_strides, strided};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};

/// The longest code of an element type, such as `M8[ns]`: arrays that are listed without being
/// readable keep it.
const MAX_CODE: usize = 64;

fn malformed(what: &str) -> Error {
    Error::corrupt("numpy.array", format!("a NumPy array's {what}"))
}

/// An array, or what of it can be said where its elements cannot be read.
pub(super) fn array(
    build: &Builder,
    arena: &Arena,
    blobs: Blobs<'_>,
    array: &Object,
) -> Result<catalog::Object> {
    let (shape, dtype, fortran, data) = match array.known {
        Known::NumpyReconstruct => {
            let state = array.state.ok_or_else(|| malformed("contents are missing"))?;
            let (shape, dtype, fortran, data) = match arena.tuple(state) {
                Some(&[_version, shape, dtype, fortran, data]) => (shape, dtype, fortran, data),
                Some(&[shape, dtype, fortran, data]) => (shape, dtype, fortran, data),
                _ => return Err(malformed("state is not a tuple of five")),
            };
            let fortran = match fortran {
                Item::Bool(fortran) => fortran,
                Item::Int(fortran @ 0..=1) => fortran == 1,
                _ => return Err(malformed("order is not a flag")),
            };
            (shape, dtype, fortran, data)
        }
        _ => {
            let Some(&[data, dtype, shape, order]) = arena.tuple(array.args) else {
                return Err(malformed("there are not four arguments"));
            };
            let fortran = match arena.as_name(order) {
                Some("C") => false,
                Some("F") => true,
                _ => return Err(malformed("order is neither \"C\" nor \"F\"")),
            };
            (shape, dtype, fortran, data)
        }
    };
    let shape = sizes(arena, shape)?;
    let (dtype, width) = match element(arena, dtype)? {
        NumpyType::Known { dtype, swapped } => (dtype, swapped),
        NumpyType::Other(name) => {
            let why = format!("its elements are NumPy's {}, which are not numbers", quoted(&name));
            return Ok(Absent::object(shape, DType::U8, Some(&format!("numpy.{name}")), why));
        }
    };
    let (storage, len) =
        bytes_of(build, arena, blobs, data)?.ok_or_else(|| malformed("contents are not bytes"))?;
    let expected = elements(&shape).and_then(|count| dtype.byte_len(count));
    if expected != Some(len) {
        return Err(Error::corrupt(
            "numpy.size",
            format!("an array of shape {shape:?} and type {dtype} cannot have {len} bytes"),
        ));
    }
    let storage = match fortran {
        true => strided(storage, len, dtype.bits() as usize / 8, 0, &shape, &fortran_strides(&shape))?,
        false => storage,
    };
    let storage = match width {
        Some(width) => Storage::Encoded(Arc::new(Swapped::new(storage, width, len))),
        None => storage,
    };
    Ok(catalog::Object::dense(shape, Component::new(dtype, len, storage)))
}

/// A scalar as a number; `None` for types that have no plain one.
pub(super) fn scalar(
    build: &Builder,
    arena: &Arena,
    blobs: Blobs<'_>,
    scalar: &Object,
) -> Result<Option<Number>> {
    let Some(&[dtype, data]) = arena.tuple(scalar.args) else {
        return Err(malformed("scalar has no type and bytes"));
    };
    let NumpyType::Known { dtype, swapped } = element(arena, dtype)? else { return Ok(None) };
    let Some((Storage::Inline(bytes), len)) = bytes_of(build, arena, blobs, data)? else {
        return Err(malformed("scalar has no bytes"));
    };
    if dtype.byte_len(1) != Some(len) {
        return Err(malformed("scalar has too many bytes or too few"));
    }
    let mut number = [0; 16];
    let number = &mut number[..bytes.len().min(16)];
    number.copy_from_slice(&bytes[..number.len()]);
    if swapped.is_some() {
        number.reverse();
    }
    Ok(number_value(dtype, number))
}

fn number_value(dtype: DType, bytes: &[u8]) -> Option<Number> {
    macro_rules! number {
        ($($dtype:ident $rust:ty => $variant:ident),*) => {
            match dtype {
                $(DType::$dtype => Number::$variant(<$rust>::from_le_bytes(bytes.try_into().ok()?).into()),)*
                DType::Bool => Number::Bool(bytes != [0]),
                _ => return None,
            }
        };
    }
    Some(number!(
        F64 f64 => Float, F32 f32 => Float, F16 half::f16 => Float, BF16 half::bf16 => Float,
        I64 i64 => Int, I32 i32 => Int, I16 i16 => Int, I8 i8 => Int,
        U64 u64 => Int, U32 u32 => Int, U16 u16 => Int, U8 u8 => Int
    ))
}

enum NumpyType {
    /// `swapped` is the size of the numbers whose bytes are in big-endian order.
    Known { dtype: DType, swapped: Option<usize> },
    /// Objects, text, records, dates: by name.
    Other(String),
}

/// `numpy.dtype('f4', …)` with the state `(3, '<', …)`.
fn element(arena: &Arena, item: Item) -> Result<NumpyType> {
    let bad = || Error::corrupt("numpy.dtype", "the type of a NumPy array is not given as one");
    let dtype = arena.object(item).filter(|object| object.known == Known::NumpyDType).ok_or_else(bad)?;
    let first = *arena.tuple(dtype.args).and_then(|args| args.first()).ok_or_else(bad)?;
    let state = match dtype.state {
        Some(state) => arena.tuple(state).ok_or_else(bad)?,
        None => &[],
    };
    let order = state.get(1).and_then(|order| arena.as_name(*order)).unwrap_or("=");
    // A subtype or field names make it a record.
    let is_record = state.get(2..5).is_some_and(|parts| parts.iter().any(|part| *part != Item::None));
    let (name, dtype) = match arena.known(first) {
        Some(Known::MlDType(dtype)) => (dtype.python_name(), Some(dtype)),
        _ => {
            let code = arena.as_name(first).filter(|code| code.len() <= MAX_CODE).ok_or_else(bad)?;
            let plain = code.trim_start_matches(['<', '|', '=']);
            let same = |name: &str| name.trim_start_matches(['<', '|']) == plain;
            let dtype = DType::ALL.into_iter().find(|dtype| {
                dtype.numpy_name().is_some_and(|name| name.starts_with(['<', '|']) && same(name))
            });
            (code, dtype)
        }
    };
    let Some(dtype) = dtype.filter(|_| !is_record) else { return Ok(NumpyType::Other(name.to_owned())) };
    let parts = if matches!(dtype, DType::C64 | DType::C128) { 2 } else { 1 };
    let width = dtype.bits() as usize / 8 / parts;
    let swapped = match order {
        ">" if width > 1 => Some(width),
        "<" | ">" | "=" | "|" => None,
        _ => {
            return Err(Error::corrupt(
                "numpy.dtype",
                "the byte order of a NumPy type is none of <, >, = and |",
            ));
        }
    };
    Ok(NumpyType::Known { dtype, swapped })
}
