//! What stores say when something goes wrong, as errors that say what to do about it.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use object_store::client::{HttpError, HttpErrorKind};

use crate::error::{Error, quoted};

/// The innermost reason that is not a repetition, on one line and not too long.
pub(super) fn cause(error: &object_store::Error) -> String {
    innermost(error)
}

/// The same of any error.
pub(super) fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(inner) = innermost.source() {
        innermost = inner;
    }
    let text = innermost.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(400) {
        None => line,
        Some((cut, _)) => format!("{}…", &line[..cut]),
    }
}

fn http_kind(error: &object_store::Error) -> Option<HttpErrorKind> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return Some(http.kind());
        }
        next = error.source();
    }
    None
}

/// Whether asking again may help: the connection broke while the body came, which the
/// client repeats by itself only for objects that have an `ETag`.
pub(super) fn is_transient(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. })
        && matches!(
            http_kind(error),
            Some(
                HttpErrorKind::Connect
                    | HttpErrorKind::Request
                    | HttpErrorKind::Timeout
                    | HttpErrorKind::Interrupted
                    | HttpErrorKind::Decode
            )
        )
}

/// The object is another one than when it was opened.
pub(super) fn changed(url: &str, how: &str) -> Error {
    Error::mismatch(format!("the object changed while it was being read ({how}): open it again")).in_file(url)
}

fn io(doing: &str, kind: ErrorKind, why: String) -> Error {
    Error::io(doing, io::Error::new(kind, why))
}

/// An error of the store as one of the library. `doing` says what was tried.
pub(super) fn error(doing: &str, url: &str, error: &object_store::Error) -> Error {
    use object_store::Error as Store;
    let why = cause(error);
    let failed = match error {
        Store::NotFound { .. } => {
            io(doing, ErrorKind::NotFound, "there is no such object (404), or no such bucket".to_owned())
        }
        Store::PermissionDenied { .. } => io(
            doing,
            ErrorKind::PermissionDenied,
            format!(
                "access is denied (403): check the credentials and their rights; the store says {}",
                quoted(&why)
            ),
        ),
        Store::Unauthenticated { .. } => io(
            doing,
            ErrorKind::PermissionDenied,
            format!("the store wants credentials (401), or others than these; it says {}", quoted(&why)),
        ),
        Store::Precondition { .. } => return changed(url, "its identity is no longer the same"),
        Store::NotSupported { .. } => Error::unsupported(format!("{doing}: {why}")),
        Store::NotImplemented { .. } => Error::unsupported(format!("{doing}: {error}")),
        Store::InvalidPath { .. } => Error::invalid(format!("{doing}: {why}")),
        _ if why.contains("range requested")
            || why.starts_with("Requested ")
            || why.contains("Content-Range") =>
        {
            Error::corrupt("remote.range", format!("{doing}: the server answers with another range: {why}"))
        }
        _ => {
            let kind = match http_kind(error) {
                Some(HttpErrorKind::Timeout) => ErrorKind::TimedOut,
                Some(HttpErrorKind::Connect) => ErrorKind::NotConnected,
                Some(HttpErrorKind::Interrupted | HttpErrorKind::Request) => ErrorKind::ConnectionAborted,
                _ => ErrorKind::Other,
            };
            io(doing, kind, why)
        }
    };
    failed.in_file(url)
}
