//! One error type for the whole library.
//!
//! An [`Error`] says what kind of failure it is, so that a program can act on
//! it, and names the file, the tensor and the broken rule, so that a person can.

use std::fmt;
use std::path::Path;

/// The result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused or failed: look at the path, the disk, the permissions.
    Io,
    /// The file breaks a rule of its format: get another copy of it.
    Corrupt,
    /// The file may be fine, but uses something this version does not know.
    Unsupported,
    /// The file is of no format that this version reads, or it is no tensor file.
    UnknownFormat,
    /// No tensor, component or member has that name.
    NotFound,
    /// The call itself is wrong: a shape, a type, a level out of range.
    InvalidArgument,
    /// Stored bytes and their digest, or two things that must agree, differ.
    Mismatch,
    /// The declared size exceeds the caller's limit: raise the limit if the file is trusted.
    Limit,
    /// The caller's observer asked to stop.
    Cancelled,
}

/// What went wrong, where, and what was expected instead.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    rule: Option<&'static str>,
    message: String,
    file: Option<String>,
    tensor: Option<String>,
    cause: Option<std::io::Error>,
}

impl Error {
    /// An error of `kind` with a message that says what was found and expected.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            rule: None,
            message: message.into(),
            file: None,
            tensor: None,
            cause: None,
        }))
    }

    /// The file breaks `rule`, an identifier that the format's documentation explains.
    pub fn corrupt(rule: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Corrupt, message);
        error.0.rule = Some(rule);
        error
    }

    /// The file uses something that this version does not know.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Nothing has that name.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// The call is wrong, whatever the file says.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// Two things that must agree differ.
    pub fn mismatch(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Mismatch, message)
    }

    /// A declared size exceeds a limit.
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }

    /// The observer asked to stop.
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "cancelled by the caller")
    }

    /// An operating-system error, with what was being done.
    pub fn io(doing: impl fmt::Display, cause: std::io::Error) -> Self {
        let message = format!("{doing}: {}", plain(&cause));
        Self::io_message(message, cause)
    }

    /// An operating-system error that `message` describes in full.
    pub(crate) fn io_message(message: String, cause: std::io::Error) -> Self {
        let mut error = Self::new(ErrorKind::Io, message);
        error.0.cause = Some(cause);
        error
    }

    /// Names the file, unless an inner layer already did.
    pub fn in_file(mut self, file: impl AsRef<Path>) -> Self {
        // The folder of the files in a container has no name of its own: an outer layer knows it.
        if self.0.file.is_none() && !file.as_ref().as_os_str().is_empty() {
            self.0.file = Some(file.as_ref().display().to_string());
        }
        self
    }

    /// Names the tensor, unless an inner layer already did.
    pub fn in_tensor(mut self, tensor: impl Into<String>) -> Self {
        if self.0.tensor.is_none() {
            self.0.tensor = Some(tensor.into());
        }
        self
    }

    /// Says in front of the message which part of the file it is about.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        self.0.message = format!("{place}: {}", self.0.message);
        self
    }

    /// Names the broken rule in place of another.
    pub(crate) fn under(mut self, rule: &'static str) -> Self {
        self.0.rule = Some(rule);
        self
    }

    /// Bytes of an unknown format as unsupported data: what the codec's callers are promised.
    pub(crate) fn into_unsupported(mut self) -> Self {
        if self.0.kind == ErrorKind::UnknownFormat {
            self.0.kind = ErrorKind::Unsupported;
        }
        self
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The broken rule of the format, when the file broke one.
    pub fn rule(&self) -> Option<&'static str> {
        self.0.rule
    }

    /// The file concerned, when known.
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// The tensor concerned, when known.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The operating system's error, when there is one.
    pub fn io_error(&self) -> Option<&std::io::Error> {
        self.0.cause.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.0.file {
            write!(f, "{file}: ")?;
        }
        if let Some(tensor) = &self.0.tensor {
            write!(f, "tensor {}: ", quoted(tensor))?;
        }
        f.write_str(&self.0.message)?;
        if let Some(rule) = self.0.rule {
            write!(f, " [{rule}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_ref().map(|cause| cause as _)
    }
}

/// The operating system's words without the number behind them, which programs find in the error.
fn plain(cause: &std::io::Error) -> String {
    let text = cause.to_string();
    match (cause.raw_os_error(), text.rfind(" (os error ")) {
        (Some(_), Some(end)) => text[..end].to_owned(),
        _ => text,
    }
}

/// A name from a file, safe to print: escaped, and cut when it is absurdly long.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN: usize = 120;
    match name.char_indices().nth(SHOWN) {
        None => format!("{name:?}"),
        Some((cut, _)) => format!("{:?}… ({} bytes)", &name[..cut], name.len()),
    }
}
