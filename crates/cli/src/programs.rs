//! The two command lines.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::{commands, failure, z4ai};

/// Runs the `ztensor` command line with the program's arguments, its own name first, and
/// returns the exit code: 0 success, 1 files differ or a check failed, 2 usage error,
/// 3 bad file, 4 I/O error, 130 interrupted.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(run_code(args))
}

/// Like [`run`], for callers that need the number.
pub fn run_code(args: impl IntoIterator<Item = OsString>) -> u8 {
    parsed(args, commands::run)
}

/// Runs the `z4ai` command line, with the same exit codes.
pub fn run_z4ai(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(run_z4ai_code(args))
}

/// Like [`run_z4ai`], for callers that need the number.
pub fn run_z4ai_code(args: impl IntoIterator<Item = OsString>) -> u8 {
    parsed(args, z4ai::run)
}

fn parsed<A: Parser>(args: impl IntoIterator<Item = OsString>, run: fn(A) -> failure::Outcome) -> u8 {
    let arguments = match A::try_parse_from(args) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are errors to the parser, but not to the caller.
            let usage = error.use_stderr();
            let _ = error.print();
            return if usage { failure::USAGE } else { failure::FINE };
        }
    };
    match run(arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
