//! One module per command.

pub mod convert;
mod diff;
#[cfg(feature = "remote")]
mod download;
mod edit;
mod export;
mod id;
mod info;
pub mod manual;
pub mod repo;
mod report;
mod scan;
mod show;
#[cfg(feature = "signatures")]
mod sign;
mod sync;
mod verify;

use std::path::Path;

use clap::CommandFactory;
use ztensor::{Destination, PicklePolicy};

use crate::args::{Arguments, Command, Output};
use crate::failure::{Failure, Outcome};
use crate::human;

/// What every command is told besides its own options.
#[derive(Debug, Clone, Copy)]
pub struct Common {
    pub quiet: bool,
    pub threads: usize,
    pub limits: ztensor::Limits,
    /// Refuse pickles that are dangerous in tools that unpickle them.
    pub strict: bool,
}

impl Common {
    /// Opens a file of any format; `-` is standard input.
    fn open(self, path: &Path) -> Result<ztensor::Reader, Failure> {
        let policy = if self.strict { PicklePolicy::Strict } else { PicklePolicy::Report };
        let options = ztensor::OpenOptions::default().threads(self.threads).limits(self.limits);
        let options = options.pickle(policy);
        let reader = match crate::files::is_pipe(path) {
            true => options.open_source(crate::files::stdin()?).map_err(|error| error.in_file("-"))?,
            false => options.open(path)?,
        };
        if !reader.unsafe_globals().is_empty() {
            self.warn(format_args!(
                "{}: tools that unpickle this file would reach {}; nothing was run",
                human::escaped(&path.to_string_lossy()),
                human::escaped(&reader.unsafe_globals().join(", "))
            ));
        }
        Ok(reader)
    }

    /// The closing line of a command that wrote something; on standard error, so
    /// that pipes see only data.
    fn say(self, line: impl std::fmt::Display) {
        if !crate::ui::noted(&line) && !self.quiet {
            crate::output::say(None, line);
        }
    }

    /// A warning about a file, on standard error.
    fn warn(self, line: impl std::fmt::Display) {
        if !crate::ui::noted(&format_args!("warning: {line}")) && !self.quiet {
            crate::output::say(Some(crate::output::Label::Warning), line);
        }
    }
}

/// Runs the chosen command.
pub fn run(arguments: Arguments) -> Outcome {
    let limits = arguments.limits.limits();
    let Arguments { quiet, threads, strict, .. } = arguments;
    let common = Common { quiet, threads, limits, strict };
    if arguments.command.writes() {
        crate::ui::catch_interrupts();
    }
    match &arguments.command {
        Command::Info(options) => info::run(options, common),
        Command::Convert(options) => convert::convert(options, common),
        Command::Export(options) => export::run(options, common),
        Command::Compress(options) => convert::compress(options, common),
        Command::Decompress(options) => convert::decompress(options, common),
        Command::Migrate(options) => convert::migrate(options, common),
        Command::Merge(options) => edit::merge(options, common),
        Command::Append(options) => edit::append(options, common),
        Command::Remove(options) => edit::remove(options, common),
        Command::Compact(options) => edit::compact(options, common),
        Command::Repair(options) => edit::repair(options, common),
        #[cfg(feature = "signatures")]
        Command::Sign(options) => sign::sign(options, common),
        #[cfg(feature = "signatures")]
        Command::Verify(options) if options.signature.is_some() => sign::verify(options, common),
        #[cfg(not(feature = "signatures"))]
        Command::Sign(_) => Err(without_signatures()),
        #[cfg(not(feature = "signatures"))]
        Command::Verify(options) if options.signature.is_some() => Err(without_signatures()),
        Command::Verify(options) => verify::run(options, common),
        Command::Id(options) => id::run(options, common),
        Command::Scan(options) => scan::run(options, common),
        Command::Diff(options) => diff::run(options, common),
        Command::Show(options) => show::run(options, common),
        Command::Report(options) => report::run(options, common),
        #[cfg(feature = "remote")]
        Command::DownloadHf(options) => download::run(options, common),
        #[cfg(not(feature = "remote"))]
        Command::DownloadHf(_) => {
            Err(Failure::usage("this build has no network support (the feature `remote`)"))
        }
        Command::ModelDelta(options) => {
            let run = crate::z4ai::Run { quiet: arguments.quiet, threads: arguments.threads, limits };
            crate::z4ai::model_delta::run(options, run)
        }
        Command::Sync(options) => sync::run(options, common),
        Command::Repo(options) => repo::run(options, common),
        Command::Completions(options) => manual::completions(options, Arguments::command()),
        Command::Man => manual::page(Arguments::command()),
    }
}

#[cfg(not(feature = "signatures"))]
fn without_signatures() -> Failure {
    Failure::usage("this build has no support for signatures (the feature `signatures`)")
}

impl Output {
    /// Refuses to overwrite, unless told to, and to write over an input.
    fn check(&self, inputs: &[&Path]) -> Result<Destination, Failure> {
        let output = &self.output;
        let same = |input: &&&Path| match (input.canonicalize(), output.canonicalize()) {
            (Ok(input), Ok(output)) => input == output,
            _ => false,
        };
        if let Some(input) = inputs.iter().find(same) {
            let message = format!("{} is also an input: choose another output", input.display());
            return Err(Failure::usage(message));
        }
        let destination = Destination::explicit(output, self.force);
        // A symbolic link is there too, whatever it leads to, and so is a named pipe.
        if !self.force && destination.is_taken()? {
            let message = format!("{} exists already: --force overwrites it", output.display());
            return Err(Failure::usage(message));
        }
        Ok(destination)
    }
}
