//! Tensors that Python hands over to be written.

use std::borrow::Cow;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyTuple};
use ztensor::{Array, DType, Layout, Shape, Tensor};

use crate::errors::invalid;
use crate::{dtypes, values};

/// A tensor to be written.
pub(crate) struct Item<'py> {
    pub(crate) name: PyBackedStr,
    parts: Parts<'py>,
}

enum Parts<'py> {
    /// `(name, array)`
    Array(Bound<'py, PyUntypedArray>),
    /// `(name, dtype, shape, memory)`
    Dense(PyBackedStr, Vec<u64>, Memory<'py>),
    /// `(name, format, shape, components, attributes)`
    Object(PyBackedStr, Vec<u64>, Vec<Component<'py>>, Option<Bound<'py, PyDict>>),
}

/// `(role, dtype, type, memory)`
type Component<'py> = (String, PyBackedStr, Option<PyBackedStr>, Memory<'py>);

fn dense(shape: Shape, dtype: DType, bytes: &[u8]) -> Tensor<'_> {
    Tensor {
        shape,
        layout: Layout::Dense,
        components: vec![(Cow::Borrowed("data"), Array::new(dtype, bytes))],
        attributes: None,
    }
}

/// A contiguous array, or the address and size of memory with its owner.
#[derive(FromPyObject)]
pub(crate) enum Memory<'py> {
    Array(Bound<'py, PyUntypedArray>),
    Address(usize, usize, #[allow(dead_code)] Bound<'py, PyAny>),
}

/// Equal for dense tensors that are the same elements in memory, in whatever shape.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Tie {
    address: usize,
    len: usize,
    dtype: DType,
}

impl<'py> FromPyObject<'_, 'py> for Item<'py> {
    type Error = PyErr;

    fn extract(item: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let item = item.cast::<PyTuple>()?;
        let name = item.get_item(0)?.extract()?;
        let parts = match item.len() {
            2 => Parts::Array(item.get_item(1)?.cast_into()?),
            4 => Parts::Dense(
                item.get_item(1)?.extract()?,
                item.get_item(2)?.extract()?,
                item.get_item(3)?.extract()?,
            ),
            _ => Parts::Object(
                item.get_item(1)?.extract()?,
                item.get_item(2)?.extract()?,
                item.get_item(3)?.extract()?,
                item.get_item(4)?.extract()?,
            ),
        };
        Ok(Item { name, parts })
    }
}

impl Item<'_> {
    /// The tensor, over memory that lives as long as the item. The writer checks it.
    pub(crate) fn tensor(&self, py: Python<'_>) -> PyResult<Tensor<'_>> {
        match &self.parts {
            Parts::Array(array) => {
                let dtype = dtypes::of_array(py, array)?.ok_or_else(|| {
                    invalid(
                        py,
                        format!("tensor {:?}: NumPy's {} cannot be stored", &*self.name, array.dtype()),
                    )
                })?;
                let shape = array.shape().iter().map(|&size| size as u64).collect();
                Ok(dense(shape, dtype, array_bytes(py, array)?))
            }
            Parts::Dense(dtype, shape, memory) => {
                Ok(dense(shape[..].into(), dtypes::by_name(py, dtype)?, memory.bytes(py)?))
            }
            Parts::Object(format, shape, components, attributes) => {
                let components = components
                    .iter()
                    .map(|component| Ok((Cow::Owned(component.0.clone()), array(py, component)?)));
                Ok(Tensor {
                    shape: shape[..].into(),
                    layout: Layout::from_name(format),
                    components: components.collect::<PyResult<_>>()?,
                    attributes: attributes.as_ref().map(values::from_dict).transpose()?.map(Box::new),
                })
            }
        }
    }

    /// What a dense tensor shares with others that are the same; nothing for empty ones.
    pub(crate) fn tie(&self, tensor: &Tensor<'_>) -> Option<Tie> {
        let (Parts::Array(_) | Parts::Dense(..), [(_, array)]) = (&self.parts, &tensor.components[..]) else {
            return None;
        };
        let (address, len) = (array.bytes.as_ptr().addr(), array.bytes.len());
        (len > 0).then_some(Tie { address, len, dtype: array.dtype })
    }
}

fn array<'a>(py: Python<'_>, (_, dtype, logical, memory): &'a Component<'_>) -> PyResult<Array<'a>> {
    let storage = dtypes::by_name(py, dtype)?;
    let known = match logical {
        None => Some(storage),
        Some(name) => DType::from_logical_name(name, storage),
    };
    let mut array = Array::new(known.unwrap_or(storage), memory.bytes(py)?);
    if known.is_none() {
        array.unknown_type = logical.as_deref().map(Into::into);
    }
    Ok(array)
}

impl Memory<'_> {
    pub(crate) fn bytes(&self, py: Python<'_>) -> PyResult<&[u8]> {
        match self {
            Memory::Array(array) => array_bytes(py, array),
            Memory::Address(_, 0, _) => Ok(&[]),
            Memory::Address(address, len, _) => {
                // SAFETY: Python passes the address of a contiguous tensor of
                // that size, which lives as long as the reference to it in
                // `self`. Whoever writes to a tensor while it is saved gets some
                // mix of old and new, as with every other library.
                Ok(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(*address), *len) })
            }
        }
    }
}

/// The bytes of a contiguous array, which live as long as the reference to it.
pub(crate) fn array_bytes<'a>(py: Python<'_>, array: &'a Bound<'_, PyUntypedArray>) -> PyResult<&'a [u8]> {
    if !array.is_c_contiguous() {
        return Err(invalid(py, "the array is not contiguous"));
    }
    let len = array.len() * array.dtype().itemsize();
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the array is alive, so its header can be read.
    let data = unsafe { (*array.as_array_ptr()).fields.data };
    // SAFETY: a contiguous array's memory is as large as its header says; for
    // writes by others see above.
    Ok(unsafe { std::slice::from_raw_parts(data.cast_const().cast(), len) })
}
