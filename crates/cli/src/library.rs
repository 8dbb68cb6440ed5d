//! Commands for programs that link this crate: failures and notes are returned, not printed.

use std::ffi::OsString;

use clap::Parser;
use ztensor::Error;

use crate::args::{Arguments, Command};
use crate::commands::{self, Common};
use crate::ui;
pub use crate::ui::Watcher;

/// Runs `ztensor convert` with these arguments, which do not name the command itself. Returns the
/// notes that the command line prints, such as which metadata was left out.
pub fn convert(
    args: impl IntoIterator<Item = OsString>,
    threads: usize,
    watcher: Watcher,
) -> ztensor::Result<Vec<String>> {
    let start = [OsString::from("ztensor"), OsString::from("convert")];
    let arguments = Arguments::try_parse_from(start.into_iter().chain(args))
        .map_err(|error| Error::invalid(error.render().to_string().trim().to_owned()))?;
    let Command::Convert(options) = &arguments.command else {
        return Err(Error::invalid("these are not arguments of convert"));
    };
    let common =
        Common { quiet: false, threads, limits: arguments.limits.limits(), strict: arguments.strict };
    let (outcome, notes) = ui::collected(watcher, || commands::convert::convert(options, common));
    match outcome {
        Ok(_) => Ok(notes),
        Err(failure) => Err(failure.into_error()),
    }
}
