//! Tensors that Python hands over to be written.

use std::borrow::Cow;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyDict, PyTuple};
use ztensor::{Array, DType, Layout, Shape, Tensor};

use crate::errors::invalid;
use crate::memory::Memory;
use crate::{dtypes, values};

/// A tensor to be written.
pub(crate) struct Item<'py> {
    pub(crate) name: PyBackedStr,
    parts: Parts<'py>,
}

enum Parts<'py> {
    /// `(name, array)`
    Array(Bound<'py, PyUntypedArray>, Elements),
    /// `(name, dtype, shape, memory)`
    Dense(PyBackedStr, Vec<u64>, Elements),
    /// `(name, format, shape, components, attributes)`
    Object(PyBackedStr, Vec<u64>, Vec<Component>, Option<Bound<'py, PyDict>>),
}

/// `(role, dtype, type, memory)`
type Component = (String, PyBackedStr, Option<PyBackedStr>, Elements);

fn dense(shape: Shape, dtype: DType, bytes: &[u8]) -> Tensor<'_> {
    Tensor {
        shape,
        layout: Layout::Dense,
        components: vec![(Cow::Borrowed("data"), Array::new(dtype, bytes))],
        attributes: None,
    }
}

/// A contiguous array or CPU tensor.
pub(crate) struct Elements(Memory);

impl FromPyObject<'_, '_> for Elements {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        Memory::of(&object).map(Elements)
    }
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
            2 => {
                let array = item.get_item(1)?;
                let elements = array.extract()?;
                Parts::Array(array.cast_into()?, elements)
            }
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
            Parts::Array(array, elements) => {
                let dtype = dtypes::of_array(py, array)?.ok_or_else(|| {
                    invalid(
                        py,
                        format!("tensor {:?}: NumPy's {} cannot be stored", &*self.name, array.dtype()),
                    )
                })?;
                let shape = array.shape().iter().map(|&size| size as u64).collect();
                Ok(dense(shape, dtype, elements.0.bytes()))
            }
            Parts::Dense(dtype, shape, elements) => {
                Ok(dense(shape[..].into(), dtypes::by_name(py, dtype)?, elements.0.bytes()))
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
        let (Parts::Array(..) | Parts::Dense(..), [(_, array)]) = (&self.parts, &tensor.components[..])
        else {
            return None;
        };
        let (address, len) = (array.bytes.as_ptr().addr(), array.bytes.len());
        (len > 0).then_some(Tie { address, len, dtype: array.dtype })
    }
}

fn array<'a>(py: Python<'_>, (_, dtype, logical, elements): &'a Component) -> PyResult<Array<'a>> {
    let storage = dtypes::by_name(py, dtype)?;
    let known = match logical {
        None => Some(storage),
        Some(name) => DType::from_logical_name(name, storage),
    };
    let mut array = Array::new(known.unwrap_or(storage), elements.0.bytes());
    if known.is_none() {
        array.unknown_type = logical.as_deref().map(Into::into);
    }
    Ok(array)
}
