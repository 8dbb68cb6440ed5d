//! Memory of Python objects that is filled or read while the interpreter runs on: where it is and
//! how long it is come from the object that owns it, never from a file or from a caller's numbers.

use std::ops::Range;

use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyWeakrefReference};

use crate::errors::invalid;

/// Bytes of a contiguous array or tensor, which it keeps alive.
pub(crate) struct Memory {
    data: *mut u8,
    len: usize,
    _owner: Py<PyAny>,
    _pin: Option<Py<PyAny>>,
}

// SAFETY: an address and a length of memory that does not move, and references to Python objects,
// which may be anywhere.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The bytes of a contiguous array.
    pub(crate) fn of_array(array: &Bound<'_, PyUntypedArray>) -> PyResult<Memory> {
        if !array.is_c_contiguous() {
            return Err(invalid(array.py(), "the array is not contiguous"));
        }
        // SAFETY: the array is alive, so its header can be read.
        let data = unsafe { (*array.as_array_ptr()).fields.data };
        let len = array.len() * array.dtype().itemsize();
        let _pin = pin(array.as_any())?;
        Ok(Memory { data: data.cast(), len, _owner: array.clone().into_any().unbind(), _pin })
    }

    /// The bytes of a contiguous CPU tensor.
    ///
    /// Torch has no way to keep a storage from being resized for a while: doing that to a tensor
    /// that is being read or filled is the caller's error, as it is in torch itself.
    pub(crate) fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let py = tensor.py();
        let on_cpu: bool = tensor.getattr(pyo3::intern!(py, "is_cpu"))?.extract()?;
        if !on_cpu || !tensor.call_method0(pyo3::intern!(py, "is_contiguous"))?.extract::<bool>()? {
            return Err(invalid(py, "the tensor is not a contiguous one on the CPU"));
        }
        let address: usize = tensor.call_method0(pyo3::intern!(py, "data_ptr"))?.extract()?;
        let len: usize = tensor.getattr(pyo3::intern!(py, "nbytes"))?.extract()?;
        if len > 0 && address == 0 {
            return Err(invalid(py, "the tensor has no memory"));
        }
        let data = std::ptr::with_exposed_provenance_mut(address);
        Ok(Memory { data, len, _owner: tensor.clone().unbind(), _pin: None })
    }

    /// The bytes of a NumPy array or of a torch tensor.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        match object.cast::<PyUntypedArray>() {
            Ok(array) => Memory::of_array(array),
            Err(_) => Memory::of_tensor(object),
        }
    }

    /// The bytes of an array or a tensor of the caller's that is to be filled.
    pub(crate) fn of_destination(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            // SAFETY: the array is alive, so its header can be read.
            let flags = unsafe { (*array.as_array_ptr()).fields.flags };
            if flags & NPY_ARRAY_WRITEABLE == 0 {
                return Err(invalid(object.py(), "the destination is read-only"));
            }
        }
        Memory::of(object)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.data
    }

    /// The addresses of its bytes.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.data.addr()..self.data.addr() + self.len
    }

    /// The bytes, to be read. Other threads that write to the object meanwhile make them some mix
    /// of old and new: callers do not rely on finding the same value twice.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: the object's own length of memory from its own address on, and `_owner` keeps
            // the object.
            len => unsafe { std::slice::from_raw_parts(self.data, len) },
        }
    }

    /// The bytes, to be filled.
    ///
    /// # Safety
    /// No other slice of these bytes is in use, from this object or another one.
    #[allow(clippy::mut_from_ref)] // the memory is not `self`
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        match self.len {
            0 => &mut [],
            // SAFETY: the object's own length of memory from its own address on, and `_owner` keeps
            // the object; bytes of any value are valid.
            len => unsafe { std::slice::from_raw_parts_mut(self.data, len) },
        }
    }
}

/// Refuses destinations that overlap in memory.
pub(crate) fn refuse_overlaps<'a>(
    py: Python<'_>,
    destinations: impl Iterator<Item = &'a Memory>,
) -> PyResult<()> {
    let mut ranges: Vec<_> = destinations.map(Memory::addresses).filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    match ranges.windows(2).any(|pair| pair[0].end > pair[1].start) {
        true => Err(invalid(py, "two destinations overlap in memory: give each tensor its own")),
        false => Ok(()),
    }
}

/// What keeps a NumPy array's memory where it is while it is held: `ndarray.resize` refuses arrays
/// that a weak reference points to, with `refcheck=False` too. A PEP 3118 buffer does not stop it.
pub(crate) fn pin(object: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    const DEEPEST: usize = 64;
    let mut owner = object.clone();
    for _ in 0..DEEPEST {
        let base = if let Ok(array) = owner.cast::<PyUntypedArray>() {
            array.getattr(pyo3::intern!(object.py(), "base"))?
        } else if owner.is_instance_of::<PyMemoryView>() {
            owner.getattr(pyo3::intern!(object.py(), "obj"))?
        } else {
            return Ok(None);
        };
        if base.is_none() {
            return match owner.is_instance_of::<PyMemoryView>() {
                true => Ok(None),
                false => Ok(Some(PyWeakrefReference::new(&owner)?.into_any().unbind())),
            };
        }
        owner = base;
    }
    Ok(None)
}
