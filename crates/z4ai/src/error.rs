//! The one error type: what went wrong, as a kind to act on and a sentence to read.

use std::fmt;

/// What every fallible call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure, which tells what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The frame breaks a rule of its format or fails a checksum: fetch it again.
    Corrupt,
    /// The bytes are no frame this version knows: another tool or a newer version may read them.
    Unsupported,
    /// An argument contradicts itself or the frame: fix the call.
    InvalidArgument,
    /// The frame asks for more memory than the caller's limit, or than there is.
    LimitExceeded,
    /// A frame and the buffer it is applied to do not belong together.
    Mismatch,
    /// The caller's observer stopped the work.
    Cancelled,
}

/// A failure to encode or decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence that names the broken rule, what was found and what was expected.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string() }
    }

    pub(crate) fn corrupt(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Corrupt, format_args!("corrupt frame: {message}"))
    }

    pub(crate) fn unsupported(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn limit(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::LimitExceeded, message)
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "stopped by the caller")
    }

    pub(crate) fn mismatch(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Mismatch, message)
    }
}
