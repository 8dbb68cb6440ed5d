//! NumPy arrays over memory of ours, and new ones to be filled.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object};
use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use smallvec::SmallVec;
use ztensor::source::Source;

/// The sizes of an array's dimensions.
pub(crate) type Dims = SmallVec<[isize; 4]>;

/// What an array over a mapping has as its `base`: keeps the mapping.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Mapping {
    source: Arc<dyn Source>,
}

impl Mapping {
    pub(crate) fn new(source: Arc<dyn Source>) -> Mapping {
        Mapping { source }
    }
}

#[pymethods]
impl Mapping {
    fn __repr__(&self) -> String {
        format!("<private mapping of {}>", self.source.label())
    }
}

/// An uninitialised array and its memory.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
) -> PyResult<(Bound<'py, PyUntypedArray>, *mut u8)> {
    // SAFETY: without memory of ours, NumPy allocates its own.
    let array = unsafe { new(py, descr, dims, null_mut()) }?;
    // SAFETY: the array is alive, so its header can be read.
    let data = unsafe { (*array.as_array_ptr()).fields.data };
    Ok((array, data.cast()))
}

/// A writable array over memory that `owner` keeps alive.
///
/// # Safety
/// `data` must be valid for reads and writes of the whole array for as long as `owner` lives.
pub(crate) unsafe fn view<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
    data: *mut u8,
    owner: Bound<'py, Mapping>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    // SAFETY: the caller vouches for the memory.
    let array = unsafe { new(py, descr, dims, data) }?;
    // SAFETY: the array is new and has no base yet; the call takes over the reference to `owner`.
    let failed = unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_array_ptr(), owner.into_ptr()) };
    match failed {
        0 => Ok(array),
        _ => Err(PyErr::fetch(py)),
    }
}

/// # Safety
/// `data` is null, or valid for reads and writes of the whole array while it lives.
unsafe fn new<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
    data: *mut u8,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let flags = if data.is_null() { 0 } else { NPY_ARRAY_WRITEABLE };
    // SAFETY: the call takes over a reference to the dtype, reads as many sizes
    // as it is told there are, and returns a new array or raises.
    unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            get_type_object(py, NpyTypes::PyArray_Type),
            descr.clone().into_ptr().cast(),
            dims.len() as c_int,
            dims.as_ptr().cast_mut(),
            null_mut(),
            data.cast(),
            flags,
            null_mut(),
        );
        Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
    }
}
