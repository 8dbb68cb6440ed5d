//! What stores say when something goes wrong, as errors that say what to do about it.

use std::error::Error as _;
use std::io::{self, ErrorKind};

use object_store::client::{HttpError, HttpErrorKind};

use super::http::Unreachable;
use crate::error::{Error, quoted};

/// What is done by an upload.
pub(super) const UPLOADING: &str = "cannot upload";

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

/// The first error of a type among the causes of an error.
fn find<E: std::error::Error + 'static>(error: &object_store::Error) -> Option<&E> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn http_kind(error: &object_store::Error) -> Option<HttpErrorKind> {
    find::<HttpError>(error).map(HttpError::kind)
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

/// Whether there is no connection to the server.
pub(super) fn is_unreachable(error: &object_store::Error) -> bool {
    find::<Unreachable>(error).is_some()
}

/// The object is another one than when it was opened.
pub(super) fn changed(url: &str, how: &str) -> Error {
    Error::mismatch(format!("the object changed while it was being read ({how}): open it again")).in_file(url)
}

fn io(doing: &str, kind: ErrorKind, why: String) -> Error {
    Error::io(doing, io::Error::new(kind, why))
}

/// The host and the port of a URL.
fn server(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}

/// What it is that is not there. A new object needs no object, so that only its bucket can be missing.
fn missing(doing: &str, url: &str, error: &object_store::Error) -> String {
    let said = error.to_string();
    let no_bucket = ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"];
    match url.starts_with("http") {
        true => "there is no such file on the server (404)".to_owned(),
        false if doing == UPLOADING || no_bucket.iter().any(|code| said.contains(code)) => {
            format!("there is no such bucket or container: {}", quoted(server(url)))
        }
        false => "there is no such object (404)".to_owned(),
    }
}

/// An error of the store as one of the library. `doing` says what was tried.
pub(super) fn error(doing: &str, url: &str, error: &object_store::Error) -> Error {
    use object_store::Error as Store;
    let why = cause(error);
    let failed = match error {
        Store::NotFound { .. } => io(doing, ErrorKind::NotFound, missing(doing, url, error)),
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
            format!("the store wants other credentials (401): check them; it says {}", quoted(&why)),
        ),
        Store::Precondition { .. } => return changed(url, "its identity is no longer the same"),
        Store::NotSupported { .. } if why.starts_with("Range request not supported") => {
            Error::unsupported(format!(
                "{doing}: the server {} does not support range requests, which are needed to read parts of a \
                 file: download the file and open it from disk",
                quoted(server(url))
            ))
        }
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
            let kind = match (find::<Unreachable>(error), http_kind(error)) {
                (Some(unreachable), _) => unreachable.kind,
                (_, Some(HttpErrorKind::Timeout)) => ErrorKind::TimedOut,
                (_, Some(HttpErrorKind::Connect)) => ErrorKind::NotConnected,
                (_, Some(HttpErrorKind::Interrupted | HttpErrorKind::Request)) => {
                    ErrorKind::ConnectionAborted
                }
                _ => ErrorKind::Other,
            };
            io(doing, kind, why)
        }
    };
    failed.in_file(url)
}
