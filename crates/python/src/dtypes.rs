//! Element types: the library's one table as Python objects.

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use ztensor::DType;

use crate::errors::invalid;

/// The table as Python sees it: name, `.zt` name, storage type's name, logical
/// name or `None`, bits, the names in NumPy, torch and safetensors or `None`, and the weight
/// codec's element type.
pub(crate) fn table(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let rows = DType::ALL.map(|dtype| {
        (
            dtype.python_name(),
            dtype.name(),
            dtype.storage().python_name(),
            dtype.logical_name(),
            dtype.bits(),
            dtype.numpy_name(),
            dtype.torch_name(),
            dtype.safetensors_name(),
            dtype.codec_kind().name(),
        )
    });
    PyList::new(py, rows)
}

/// The type of that name, in the long or the `.zt` form.
pub(crate) fn by_name(py: Python<'_>, name: &str) -> PyResult<DType> {
    DType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.python_name()).collect();
        invalid(py, format!("unknown dtype {name:?}: choose one of {}", known.join(", ")))
    })
}

/// A lookup table with one Python object per type, where there is one.
type PerType<T> = [Option<Py<T>>; DType::ALL.len()];

/// NumPy's dtype object, if NumPy itself or `ml_dtypes` has the type.
pub(crate) fn descr<'py>(py: Python<'py>, dtype: DType) -> PyResult<Option<&'py Bound<'py, PyArrayDescr>>> {
    static OWN: PyOnceLock<PerType<PyArrayDescr>> = PyOnceLock::new();
    static ML_DTYPES: PyOnceLock<PerType<PyArrayDescr>> = PyOnceLock::new();
    // NumPy's own names are type strings; the others are names in `ml_dtypes`.
    let is_own = |name: &str| name.starts_with(['<', '|']);
    let Some(name) = dtype.numpy_name() else { return Ok(None) };
    let table = match is_own(name) {
        true => OWN.get_or_try_init(py, || {
            collect(|dtype| match dtype.numpy_name().filter(|name| is_own(name)) {
                Some(name) => Ok(Some(PyArrayDescr::new(py, name)?.unbind())),
                None => Ok(None),
            })
        })?,
        false => ML_DTYPES.get_or_try_init(py, || {
            let module = py.import("ml_dtypes").ok();
            collect(|dtype| {
                let name = dtype.numpy_name().filter(|name| !is_own(name));
                let (Some(module), Some(name)) = (&module, name) else { return Ok(None) };
                // Older versions lack the newer types.
                let Some(class) = module.getattr_opt(name)? else { return Ok(None) };
                Ok(Some(PyArrayDescr::new(py, class)?.unbind()))
            })
        })?,
    };
    Ok(table[dtype as usize].as_ref().map(|descr| descr.bind(py)))
}

/// The type of an array's elements, if files can hold them as they are.
pub(crate) fn of_array(py: Python<'_>, array: &Bound<'_, PyUntypedArray>) -> PyResult<Option<DType>> {
    let found = array.dtype();
    let find = |test: &dyn Fn(&Bound<'_, PyArrayDescr>) -> bool| -> PyResult<Option<DType>> {
        for dtype in DType::ALL {
            if descr(py, dtype)?.is_some_and(test) {
                return Ok(Some(dtype));
            }
        }
        Ok(None)
    };
    // NumPy mostly uses one object for each type, but need not.
    match find(&|descr| descr.is(&found))? {
        Some(dtype) => Ok(Some(dtype)),
        None => find(&|descr| descr.is_equiv_to(&found)),
    }
}

/// Torch's dtype object, if this torch has the type.
pub(crate) fn torch<'py>(py: Python<'py>, dtype: DType) -> PyResult<Option<&'py Bound<'py, PyAny>>> {
    static TORCH: PyOnceLock<PerType<PyAny>> = PyOnceLock::new();
    let table = TORCH.get_or_try_init(py, || {
        let module = py.import("torch")?;
        collect(|dtype| match dtype.torch_name() {
            Some(name) => Ok(module.getattr_opt(name)?.map(Bound::unbind)),
            None => Ok(None),
        })
    })?;
    Ok(table[dtype as usize].as_ref().map(|dtype| dtype.bind(py)))
}

fn collect<T>(mut one: impl FnMut(DType) -> PyResult<Option<Py<T>>>) -> PyResult<PerType<T>> {
    let mut table = [const { None }; DType::ALL.len()];
    for dtype in DType::ALL {
        table[dtype as usize] = one(dtype)?;
    }
    Ok(table)
}
