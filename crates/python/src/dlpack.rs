//! Torch tensors over memory of ours, by way of DLPack capsules.
//!
//! Each tensor gets a storage of its own, exactly as large as the tensor, so
//! that saving or pickling one never carries its neighbours along.

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;
use ztensor::DType;

use crate::arrays::{Dims, Keeps};
use crate::errors::invalid;

const NAME: &CStr = c"dltensor";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// What a capsule points to: the struct that DLPack prescribes, and behind it
/// what it refers to.
#[repr(C)]
struct Exported {
    managed: ManagedTensor,
    sizes: SmallVec<[i64; 8]>,
    _owner: Keeps,
}

/// DLPack's code for a type, for the types that every torch takes this way.
pub(crate) fn code(dtype: DType) -> Option<u8> {
    Some(match dtype {
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => 0,
        DType::U64 | DType::U32 | DType::U16 | DType::U8 => 1,
        DType::F64 | DType::F32 | DType::F16 => 2,
        DType::BF16 => 4,
        DType::C32 | DType::C64 | DType::C128 => 5,
        DType::Bool => 6,
        _ => return None,
    })
}

/// A capsule for a contiguous CPU tensor in memory, given by its address and length, that `owner`
/// keeps alive. A tensor that is not exactly as long as its memory is refused.
///
/// # Safety
/// `data` must be valid for reads and writes of `len` bytes for as long as `owner` lives.
pub(crate) unsafe fn capsule<'py>(
    py: Python<'py>,
    code: u8,
    bits: u32,
    dims: &Dims,
    (data, len): (*mut u8, usize),
    owner: Keeps,
) -> PyResult<Bound<'py, PyAny>> {
    let mut counts = dims.iter().map(|&size| u64::try_from(size).ok());
    let bytes = counts.try_fold(u64::from(bits / 8), |bytes, size| bytes.checked_mul(size?));
    if bytes != Some(len as u64) {
        return Err(invalid(py, format!("a tensor of sizes {dims:?} is not {len} bytes long")));
    }
    // Shape first, then strides in elements, outermost first.
    let mut sizes: SmallVec<[i64; 8]> = dims.iter().map(|&size| size as i64).collect();
    sizes.resize(2 * dims.len(), 1);
    let mut stride = 1i64;
    for (index, &size) in dims.iter().enumerate().rev() {
        sizes[dims.len() + index] = stride;
        stride = stride.saturating_mul(size as i64);
    }
    let mut exported = Box::new(Exported {
        managed: ManagedTensor {
            tensor: Tensor {
                data: data.cast(),
                device: Device { kind: 1, id: 0 },
                ndim: dims.len() as i32,
                dtype: DataType { code, bits: bits as u8, lanes: 1 },
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        sizes,
        _owner: owner,
    });
    // The box does not move any more, so neither do sizes kept inside it.
    let shape = exported.sizes.as_mut_ptr();
    exported.managed.tensor.shape = shape;
    exported.managed.tensor.strides = shape.wrapping_add(dims.len());
    let raw = Box::into_raw(exported);
    // SAFETY: the pointer is not null and the name is static.
    unsafe {
        let capsule = ffi::PyCapsule_New(raw.cast(), NAME.as_ptr(), Some(drop_capsule));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(raw.cast()))
    }
}

/// The consumer is done with the memory. Called with or without the interpreter.
unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
    // SAFETY: DLPack calls this once, with the pointer that `capsule` made from
    // a box whose first field it points to.
    drop(unsafe { Box::from_raw(managed.cast::<Exported>()) });
}

/// An unconsumed capsule still owns its tensor; a consumer renames it.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule that `capsule` made.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
