//! The extension module `ztensor._native`: conversions between Python's objects
//! and the library, and no logic of its own. Its types are private; the
//! documented classes are in the Python package around it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod arrays;
mod chain;
mod codec;
mod dlpack;
mod dtypes;
mod errors;
mod export;
mod fetch;
mod identity;
mod items;
mod memory;
mod model_delta;
mod packed;
mod reader;
mod repository;
mod store;
mod sync;
mod values;
mod watch;
mod writer;

use pyo3::prelude::*;

/// Runs the command line, the program's name first; returns the exit code.
#[pyfunction]
fn cli_main(py: Python<'_>, args: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| ztensor_cli::run_code(args))
}

/// Converts files with the arguments of `ztensor convert`; returns what it noted.
#[pyfunction]
#[pyo3(signature = (args, threads = 0, progress = None))]
fn convert(
    py: Python<'_>,
    args: Vec<std::ffi::OsString>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<String>> {
    let watch = std::sync::Arc::new(watch::Watch::new(progress));
    let watcher = std::sync::Arc::clone(&watch);
    watch.run(py, |_| ztensor_cli::library::convert(args, threads, watcher))
}

/// Runs the `z4ai` command line, likewise.
#[pyfunction]
fn z4ai_main(py: Python<'_>, args: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| ztensor_cli::run_z4ai_code(args))
}

/// Private: use the `ztensor` package.
///
/// Safe without Python's global lock: classes are frozen, or borrowed for the length of a call; what
/// changes in them is behind a mutex that is never waited for while attached; and shared state is in
/// `PyOnceLock`s, atomics and mutexes. Arrays are the callers' to synchronise, as in NumPy.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    // NumPy's C API is looked up on first use, which runs Python code, and panics if that raises:
    // done here, Ctrl-C during a later call cannot hit it.
    py.import("numpy")?;
    numpy::dtype::<u8>(py);
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("DEBUG_ASSERTIONS", cfg!(debug_assertions))?;
    module.add("EFFORTS", ztensor::Effort::all().map(ztensor::Effort::name).collect::<Vec<_>>())?;
    module.add("DTYPES", dtypes::table(py)?)?;
    module.add_class::<arrays::Mapping>()?;
    module.add_class::<reader::Reader>()?;
    module.add_class::<writer::Writer>()?;
    module.add_function(wrap_pyfunction!(reader::assemble, module)?)?;
    module.add_function(wrap_pyfunction!(reader::decode_ahead, module)?)?;
    module.add_function(wrap_pyfunction!(reader::prove_partition, module)?)?;
    module.add_function(wrap_pyfunction!(writer::dequantize, module)?)?;
    module.add_function(wrap_pyfunction!(writer::remove_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(writer::replace_tensor, module)?)?;
    module.add_function(wrap_pyfunction!(writer::zt_plan, module)?)?;
    module.add_function(wrap_pyfunction!(cli_main, module)?)?;
    module.add_function(wrap_pyfunction!(convert, module)?)?;
    module.add_function(wrap_pyfunction!(z4ai_main, module)?)?;
    model_delta::register(module)?;
    export::register(module)?;
    identity::register(module)?;
    packed::register(module)?;
    repository::register(module)?;
    store::register(module)?;
    sync::register(module)?;
    chain::register(module)?;
    codec::register(module)
}
