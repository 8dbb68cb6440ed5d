//! NumPy arrays over memory of ours, and new ones to be filled.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};

use memmap2::{MmapOptions, MmapRaw};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NpyTypes, PY_ARRAY_API, get_type_object};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use smallvec::SmallVec;
use ztensor::source::Source;

use crate::errors::invalid;

/// The sizes of an array's dimensions.
pub(crate) type Dims = SmallVec<[isize; 4]>;

/// What an array over memory of ours has as its `base`: keeps that memory.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Mapping(Keeps);

pub(crate) enum Keeps {
    Source(Arc<dyn Source>),
    Slab { _part: SlabPart },
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

/// Pages for arrays that share them, given back when the last of those is gone.
struct Slab {
    /// Absent only while it is being dropped.
    pages: Option<(MmapRaw, NonNull<u8>)>,
    /// Where they are kept for other arrays, as long as the pool is there. Without one, memory of
    /// single arrays is given back as they go.
    spare: Option<Weak<Spare>>,
}

/// An array's part of a slab.
pub(crate) struct SlabPart {
    slab: Arc<Slab>,
    range: Range<usize>,
}

impl Drop for SlabPart {
    fn drop(&mut self) {
        // The last one gives back all of it.
        if self.slab.spare.is_none() && Arc::strong_count(&self.slab) > 1 {
            self.slab.release(self.range.clone());
        }
    }
}

/// Pages that arrays have come and gone in, such as those that were converted to another type: what
/// is touched already need not be cleared by the system.
#[derive(Default)]
struct Spare(Mutex<Vec<(MmapRaw, NonNull<u8>)>>);

// SAFETY: it is only an address; who may use which bytes is settled by `Pool::take`.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}
// SAFETY: as above; these bytes have no other owner.
unsafe impl Send for Spare {}
// SAFETY: as above.
unsafe impl Sync for Spare {}

impl Slab {
    /// Sixteen huge pages.
    const SIZE: usize = 32 << 20;
    /// Free slabs that are kept for reuse.
    const SPARE: usize = 2;

    fn new(spare: Option<&Arc<Spare>>) -> Option<Slab> {
        // After a fork, a thread that only the parent has may hold the lock: no waiting for it.
        let kept = spare.and_then(|spare| spare.0.try_lock().ok().and_then(|mut spare| spare.pop()));
        let pages = match kept {
            Some(pages) => pages,
            None => {
                let (pages, start) = huge_pages(Self::SIZE)?;
                (pages, NonNull::new(start)?)
            }
        };
        Some(Slab { pages: Some(pages), spare: spare.map(Arc::downgrade) })
    }

    /// Gives the whole pages of an array that is gone back to the system: one array that is kept
    /// does not keep the memory of its neighbours.
    fn release(&self, range: Range<usize>) {
        let Some((pages, start)) = &self.pages else { return };
        let (first, last) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        let skipped = start.as_ptr().addr() - pages.as_mut_ptr().addr();
        #[cfg(unix)]
        if first < last {
            // SAFETY: whole pages of an array that no reference is left to.
            let released = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                pages.unchecked_advise_range(advice, skipped + first, last - first)
            };
            drop(released); // advice only
        }
        #[cfg(not(unix))]
        let _ = (first, last, skipped);
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let spare = self.spare.as_ref().and_then(Weak::upgrade);
        // As in `new`.
        if let Some(mut spare) = spare.as_ref().and_then(|spare| spare.0.try_lock().ok())
            && spare.len() < Self::SPARE
        {
            spare.extend(self.pages.take());
        }
    }
}

/// Memory that an array can be made of later, on whatever thread.
pub(crate) struct Memory {
    data: NonNull<u8>,
    len: usize,
    keeps: Keeps,
}

// SAFETY: no other reference to these bytes exists, and what keeps them can be dropped anywhere.
unsafe impl Send for Memory {}

impl Memory {
    /// An array of bytes over it.
    pub(crate) fn into_array<'py>(
        self,
        py: Python<'py>,
        descr: &Bound<'py, PyArrayDescr>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let dims = [self.len as isize].into_iter().collect();
        self.into_array_of(py, descr, &dims)
    }

    /// An array over it; one that is not exactly as long is refused.
    pub(crate) fn into_array_of<'py>(
        self,
        py: Python<'py>,
        descr: &Bound<'py, PyArrayDescr>,
        dims: &Dims,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let owner = Bound::new(py, Mapping(self.keeps))?;
        // SAFETY: the owner keeps `len` bytes from `data` on, which nothing else was or will be given.
        unsafe { view(py, descr, dims, (self.data.as_ptr(), self.len), owner) }
    }

    /// Its address and length, and what keeps them.
    pub(crate) fn into_parts(self) -> ((*mut u8, usize), Keeps) {
        ((self.data.as_ptr(), self.len), self.keeps)
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `keeps` holds `len` bytes from `data` on, which are handed out once, in pages that
        // came cleared from the system, or were written to by others before.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

/// A slab, with how much of it is taken.
type Slot = Mutex<Option<(Arc<Slab>, usize)>>;

/// Hands out memory for arrays that live and die together, such as those of one model: several
/// share huge pages, which each of them alone is too small for, and touching fresh memory is
/// most of what decoding costs otherwise.
///
/// Every thread has a slab of its own to take from, as far as there are slots: two that touch one
/// fresh huge page at the same time would both clear one, of which one is thrown away.
///
/// No call waits for a lock: after a fork, the child may find any of them held by a thread that
/// only the parent has. A slot that is held is passed over.
pub(crate) struct Pool {
    slots: [Slot; Pool::SLOTS],
    spare: Option<Arc<Spare>>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { slots: Default::default(), spare: Some(Arc::default()) }
    }
}

impl Pool {
    /// Smaller arrays are not worth it.
    const SMALLEST: usize = 256 << 10;
    /// Larger ones have huge pages of their own.
    const LARGEST: usize = Slab::SIZE / 4;
    /// Threads that have a slab of their own.
    const SLOTS: usize = 32;

    /// A pool for arrays that are kept: the memory of each is given back when it is gone.
    pub(crate) fn of_kept_arrays() -> Pool {
        Pool { slots: Default::default(), spare: None }
    }

    /// Memory for an array of this size, if it is one that belongs here and there is any.
    pub(crate) fn take(&self, len: usize) -> Option<Memory> {
        self.take_at(len, None)
    }

    /// The same, `phase` bytes into a page: where that is as in the file, a device can write to it.
    pub(crate) fn take_at(&self, len: usize, phase: Option<usize>) -> Option<Memory> {
        const CACHE_LINE: usize = 64;
        match len {
            ..Self::SMALLEST => return None,
            Self::SMALLEST..=Self::LARGEST => {}
            _ => {
                let phase = phase.unwrap_or(0);
                let (pages, start) = huge_pages(len.checked_add(phase)?)?;
                let data = NonNull::new(start.wrapping_add(phase))?;
                return Some(Memory { data, len, keeps: Keeps::Pages { _pages: pages } });
            }
        }
        let first = thread_number();
        let mut slots = (0..Self::SLOTS).map(|index| &self.slots[(first + index) % Self::SLOTS]);
        let mut slot = slots.find_map(|slot| match slot.try_lock() {
            Ok(slot) => Some(slot),
            Err(TryLockError::Poisoned(slot)) => Some(slot.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })?;
        // Slabs start with a page.
        let placed = |used: usize| match phase {
            None => used.next_multiple_of(CACHE_LINE),
            Some(phase) => used.saturating_sub(phase).next_multiple_of(PAGE) + phase,
        };
        if slot.as_ref().is_none_or(|(_, used)| placed(*used) + len > Slab::SIZE) {
            *slot = None; // given back, if no array is left in it
            *slot = Some((Arc::new(Slab::new(self.spare.as_ref())?), 0));
        }
        let (slab, used) = slot.as_mut()?;
        // Inside the slab, and behind all that was handed out of it.
        let start = placed(*used);
        let data = NonNull::new(slab.pages.as_ref()?.1.as_ptr().wrapping_add(start))?;
        *used = start + len;
        let part = SlabPart { slab: Arc::clone(slab), range: start..start + len };
        Some(Memory { data, len, keeps: Keeps::Slab { _part: part } })
    }
}

/// The number of this thread, in the order in which threads first asked.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Pages of which `len` bytes from the address on, where a huge page starts, are advised to be huge.
fn huge_pages(len: usize) -> Option<(MmapRaw, *mut u8)> {
    let pages = MmapOptions::new().len(len.checked_add(HUGE_PAGE)?).map_anon().ok()?;
    let pages = MmapRaw::from(pages);
    let start = pages.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(HUGE_PAGE));
    ztensor::advise_huge(start, len);
    Some((pages, start))
}

/// Bytes of an array, if they can be addressed.
pub(crate) fn byte_len(descr: &Bound<'_, PyArrayDescr>, dims: &Dims) -> Option<usize> {
    let mut sizes = dims.iter().map(|&size| usize::try_from(size).ok());
    let len = match dims.contains(&0) {
        true => 0,
        false => sizes.try_fold(descr.itemsize(), |bytes, size| bytes.checked_mul(size?))?,
    };
    isize::try_from(len).is_ok().then_some(len)
}

/// An uninitialised array.
pub(crate) fn empty<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    // SAFETY: without memory of ours, NumPy allocates its own.
    unsafe { new(py, descr, dims, null_mut()) }
}

/// A writable array over memory, given by its address and length, that `owner` keeps alive. An
/// array that is not exactly as long as its memory is refused.
///
/// # Safety
/// `data` must be valid for reads and writes of `len` bytes for as long as `owner` lives.
pub(crate) unsafe fn view<'py>(
    py: Python<'py>,
    descr: &Bound<'py, PyArrayDescr>,
    dims: &Dims,
    (data, len): (*mut u8, usize),
    owner: Bound<'py, Mapping>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    if byte_len(descr, dims) != Some(len) {
        return Err(invalid(py, format!("an array of sizes {dims:?} is not {len} bytes long")));
    }
    // SAFETY: the caller vouches for `len` bytes, and the array is exactly as long.
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
