//! NumPy arrays over memory of ours, and new ones to be filled.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object};
use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use smallvec::SmallVec;
use ztensor::source::Source;

/// The sizes of an array's dimensions.
pub(crate) type Dims = SmallVec<[isize; 4]>;

/// What an array over memory of ours has as its `base`: keeps that memory.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Mapping(Keeps);

enum Keeps {
    Source(Arc<dyn Source>),
    Slab { _slab: Arc<Slab> },
    Pages { _pages: MmapRaw },
}

impl Mapping {
    pub(crate) fn new(source: Arc<dyn Source>) -> Mapping {
        Mapping(Keeps::Source(source))
    }
}

#[pymethods]
impl Mapping {
    fn __repr__(&self) -> String {
        match &self.0 {
            Keeps::Source(source) => format!("<private mapping of {}>", source.label()),
            Keeps::Slab { .. } => "<memory of several tensors>".to_owned(),
            Keeps::Pages { .. } => "<memory of one tensor>".to_owned(),
        }
    }
}

/// Memory that several arrays share, given back when the last of them is gone.
struct Slab(NonNull<u8>);

// SAFETY: it is only an address; who may use which bytes is settled by `Pool::take`.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Sixteen huge pages.
    const LAYOUT: Layout = match Layout::from_size_align(32 << 20, 2 << 20) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };

    fn new() -> Option<Slab> {
        // SAFETY: the size is not zero.
        let data = NonNull::new(unsafe { alloc(Self::LAYOUT) })?;
        ztensor::advise_huge(data.as_ptr(), Self::LAYOUT.size());
        Some(Slab(data))
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and whoever used it is gone.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}

/// Hands out memory for arrays that live and die together, such as those of one model: several
/// share huge pages, which each of them alone is too small for, and touching fresh memory is
/// most of what decoding costs otherwise.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Option<(Arc<Slab>, usize)>>);

impl Pool {
    /// Smaller arrays are not worth it, larger ones have huge pages of their own.
    const SIZES: RangeInclusive<usize> = 256 << 10..=Slab::LAYOUT.size() / 4;

    /// An uninitialised array of bytes and its memory, if it is of a size that belongs here.
    pub(crate) fn take<'py>(
        &self,
        py: Python<'py>,
        descr: &Bound<'py, PyArrayDescr>,
        len: usize,
    ) -> PyResult<Option<(Bound<'py, PyUntypedArray>, *mut u8)>> {
        const CACHE_LINE: usize = 64;
        if !Self::SIZES.contains(&len) {
            return Ok(None);
        }
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_none_or(|(_, used)| len > Slab::LAYOUT.size() - used) {
            let Some(slab) = Slab::new() else { return Ok(None) };
            *current = Some((Arc::new(slab), 0));
        }
        let Some((slab, used)) = &mut *current else { return Ok(None) };
        let data = slab.0.as_ptr().wrapping_add(*used);
        *used = (*used + len).next_multiple_of(CACHE_LINE).min(Slab::LAYOUT.size());
        let owner = Bound::new(py, Mapping(Keeps::Slab { _slab: Arc::clone(slab) }))?;
        drop(current);
        // SAFETY: `len` bytes from `data` on lie inside the slab, which lives as long as the owner, and
        // nobody else was or will be given them.
        let array = unsafe { view(py, descr, &[len as isize].into_iter().collect(), data, owner) }?;
        Ok(Some((array, data)))
    }
}

/// An uninitialised array of `len` bytes and its memory, in pages of its own if it is large: what
/// the allocator gives starts anywhere, so that both its ends are a huge page short of huge pages,
/// and touching those ends takes as long as all the rest. The memory starts `phase` bytes into a
/// page: where that is as in the file, a device can write to it.
pub(crate) fn large<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
    len: usize,
    phase: usize,
) -> PyResult<(Bound<'py, PyUntypedArray>, *mut u8)> {
    const HUGE_PAGE: usize = 2 << 20;
    const LARGE: usize = 2 * HUGE_PAGE;
    let room = phase.checked_add(len).filter(|_| len >= LARGE).and_then(|room| room.checked_add(HUGE_PAGE));
    let pages = room.and_then(|room| MmapOptions::new().len(room).map_anon().ok());
    let Some(pages) = pages.map(MmapRaw::from) else { return empty(py, descr, dims) };
    let start = pages.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
    ztensor::advise_huge(start, phase + len);
    let data = start.wrapping_add(phase);
    let owner = Bound::new(py, Mapping(Keeps::Pages { _pages: pages }))?;
    // SAFETY: the pages have room for `phase` and `len` after less than a huge page, they live as
    // long as the owner, and nobody else knows them.
    let array = unsafe { view(py, descr, dims, data, owner) }?;
    Ok((array, data))
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
