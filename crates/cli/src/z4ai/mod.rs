//! The `z4ai` command line.

pub mod args;
mod delta;
mod files;
mod folder;
mod frames;
mod info;
pub mod model_delta;
mod pack;

use clap::CommandFactory;

use crate::failure::{Failure, Outcome};
use args::{Arguments, Command};
pub use files::Run;

/// Runs the chosen command.
pub fn run(arguments: Arguments) -> Outcome {
    let limits = arguments.limits.limits();
    let run = files::Run { quiet: arguments.quiet, threads: arguments.threads, limits };
    match &arguments.command {
        Command::Compress(options) => frames::compress(options, run),
        Command::Decompress(options) => frames::decompress(options, run),
        Command::Info(options) => info::run(options),
        Command::Delta(options) => delta::run(options, run),
        Command::Pack(options) => pack::pack(options, run),
        Command::Unpack(options) => pack::unpack(options, run),
        Command::ModelDelta(options) => model_delta::run(options, run),
        Command::Completions(options) => crate::commands::manual::completions(options, Arguments::command()),
        Command::Man => crate::commands::manual::page(Arguments::command()),
    }
}

impl From<::z4ai::Error> for Failure {
    fn from(error: ::z4ai::Error) -> Failure {
        use ::z4ai::ErrorKind::{Cancelled, InvalidArgument};
        let message = error.to_string();
        match error.kind() {
            Cancelled => Failure::interrupted(),
            InvalidArgument => Failure::usage(message),
            _ => Failure::bad_file(message),
        }
    }
}
