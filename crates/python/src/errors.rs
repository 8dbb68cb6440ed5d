//! Errors of the library as Python exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ztensor::{Error, ErrorKind};

static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception for an error of the library. The classes, which also are
/// `KeyError`, `ValueError` or `OSError`, are defined in `ztensor._errors`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let make = MAKE.import(py, "ztensor._errors", "make")?;
        let kind = match error.kind() {
            ErrorKind::Io => "io",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::NotFound => "not_found",
            ErrorKind::InvalidArgument => "invalid_argument",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Limit => "limit",
            ErrorKind::UnknownFormat => "unknown_format",
            _ => "unsupported",
        };
        let errno = error.io_error().and_then(number);
        let args = (kind, error.to_string(), errno, error.file(), error.tensor(), error.rule());
        Ok(PyErr::from_value(make.call1(args)?))
    };
    make().unwrap_or_else(|failure| failure)
}

/// The operating system's number for an error, also for one that a store answered with.
fn number(cause: &std::io::Error) -> Option<i32> {
    use std::io::ErrorKind;
    cause.raw_os_error().or(match cause.kind() {
        ErrorKind::NotFound => Some(2),
        ErrorKind::PermissionDenied => Some(13),
        ErrorKind::TimedOut => Some(110),
        ErrorKind::ConnectionAborted => Some(103),
        ErrorKind::NotConnected => Some(107),
        ErrorKind::ConnectionRefused => Some(111),
        ErrorKind::NetworkUnreachable => Some(101),
        ErrorKind::HostUnreachable => Some(113),
        _ => None,
    })
}

/// Turns the library's results into Python's.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for ztensor::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}

/// The exception for a call that is wrong, whatever the file says.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::invalid(message))
}

/// The exception for a writer that can write no more.
pub(crate) fn finished(py: Python<'_>, message: &str) -> PyErr {
    let make = || MAKE.import(py, "ztensor._errors", "make")?.call1(("finished", message));
    make().map_or_else(|failure| failure, PyErr::from_value)
}

/// An error of the codec as one of the library.
pub(crate) fn of_codec(error: z4ai::Error) -> Error {
    let kind = match error.kind() {
        z4ai::ErrorKind::Corrupt => ErrorKind::Corrupt,
        z4ai::ErrorKind::InvalidArgument => ErrorKind::InvalidArgument,
        z4ai::ErrorKind::LimitExceeded => ErrorKind::Limit,
        z4ai::ErrorKind::Mismatch => ErrorKind::Mismatch,
        z4ai::ErrorKind::Cancelled => ErrorKind::Cancelled,
        _ => ErrorKind::Unsupported,
    };
    Error::new(kind, error.to_string())
}
