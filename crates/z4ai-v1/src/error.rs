//! Failures to decode, by what the caller can do about them.

use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The frame breaks a rule of its format.
    Corrupt,
    /// The bytes are no frame of version 1.
    Unsupported,
    /// An argument contradicts the frame.
    InvalidArgument,
    /// The frame decodes to more bytes than the caller's limit, or than there is memory for.
    LimitExceeded,
    /// The reference is not the one the delta was made from.
    Mismatch,
}

/// A failure to decode.
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

    fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
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

    pub(crate) fn mismatch(message: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Mismatch, message)
    }
}
