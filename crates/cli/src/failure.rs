//! What a failed command tells the person and the script.

use std::path::Path;

use ztensor::{Error, ErrorKind};

use crate::{human, output};

/// Success.
pub const FINE: u8 = 0;
/// Two files differ, or a check failed.
pub const DIFFERS: u8 = 1;
/// A usage error.
pub const USAGE: u8 = 2;
/// A file is corrupt or of an unknown format.
pub const BAD_FILE: u8 = 3;
/// An I/O error.
pub const IO: u8 = 4;

/// Ctrl-C, as shells count it.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed: one line for people, one code for scripts.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    /// The library's error, where it is one.
    error: Option<Error>,
}

impl Failure {
    /// The command line asks for something that cannot be done.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: USAGE, message: message.into(), error: None }
    }

    /// A check failed.
    pub fn differs(message: impl Into<String>) -> Failure {
        Failure { code: DIFFERS, message: message.into(), error: None }
    }

    /// What came is not what was promised.
    pub fn bad_file(message: impl Into<String>) -> Failure {
        Failure { code: BAD_FILE, message: message.into(), error: None }
    }

    /// The operating system or the network failed.
    pub fn io(message: impl Into<String>) -> Failure {
        Failure { code: IO, message: message.into(), error: None }
    }

    /// An I/O error of a file that is named.
    pub fn of_file(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
        move |error| Failure::io(format!("{}: {}", path.display(), human::cause(&error)))
    }

    /// The person or the system stopped it.
    pub fn interrupted() -> Failure {
        Failure { code: INTERRUPTED, message: "interrupted".to_owned(), error: None }
    }

    /// The same, naming what it is about.
    pub fn about(self, what: &str) -> Failure {
        Failure { message: format!("{what}: {}", self.message), ..self }
    }

    /// Whether the reader of standard output stopped early, which is no failure.
    pub fn is_closed_pipe(&self) -> bool {
        self.code == FINE && self.message.is_empty()
    }

    /// The same as an error of the library, for callers that are programs.
    pub fn into_error(self) -> Error {
        let kind = match self.code {
            IO => ErrorKind::Io,
            INTERRUPTED => ErrorKind::Cancelled,
            USAGE => ErrorKind::InvalidArgument,
            _ => ErrorKind::Unsupported,
        };
        self.error.unwrap_or_else(|| Error::new(kind, self.message))
    }

    /// Prints the line and returns the code.
    pub fn report(self) -> u8 {
        if !self.message.is_empty() {
            output::say(Some(output::Label::Error), human::escaped(&self.message));
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::Io => IO,
            ErrorKind::Cancelled => INTERRUPTED,
            ErrorKind::InvalidArgument | ErrorKind::NotFound => USAGE,
            _ => BAD_FILE,
        };
        Failure { code, message: error.to_string(), error: Some(error) }
    }
}

/// Of standard output, which is what `writeln!` writes to here. For files see [`Failure::of_file`].
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        // `ztensor info … | head` is not a failure.
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure { code: FINE, message: String::new(), error: None },
            _ => Failure::io(format!("cannot write to standard output: {}", human::cause(&error))),
        }
    }
}

/// The result of a command: an exit code, or why not.
pub type Outcome = Result<u8, Failure>;
