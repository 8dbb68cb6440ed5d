//! Where data comes from and where it goes: files, or pipes named `-`.

use std::fs::File;
use std::io::{IoSlice, IsTerminal, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use z4ai::SharedObserver;
use ztensor::source::{FileSource, MapMode, MemorySource, Source};
use ztensor::{Destination, Observer as _};

use crate::failure::Failure;
use crate::human;
use crate::ui::Progress;

/// Bytes read or written between two looks at the progress.
const STEP: usize = 8 << 20;

/// What every command is told besides its own options.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub quiet: bool,
    pub threads: usize,
    /// How much may be decoded.
    pub limits: ztensor::Limits,
}

impl Run {
    /// The closing line; on standard error, so that pipes see only data.
    pub fn say(self, line: impl std::fmt::Display) {
        if !self.quiet {
            crate::output::say(None, line);
        }
    }

    /// A bar that the codec moves on.
    pub fn observer(self, what: &str, total: u64) -> SharedObserver {
        SharedObserver::new(Progress::new(what, total, self.quiet))
    }

    /// Says how much smaller something became.
    pub fn say_smaller(self, input: &Path, before: u64, after: u64) {
        let (from, to) = (human::bytes(before), human::bytes(after));
        self.say(format_args!("{}: {from} to {to}{}", name(input), saved(before, after)));
    }

    /// Says how large something is again.
    pub fn say_restored(self, input: &Path, before: u64, after: u64) {
        self.say(format_args!("{}: {} to {}", name(input), human::bytes(before), human::bytes(after)));
    }
}

/// `(1.50 x, 33.3 % saved)`, where there is something to divide.
pub fn saved(before: u64, after: u64) -> String {
    if before == 0 || after == 0 {
        return String::new();
    }
    if after > before {
        return format!(" ({:.1} % larger)", 100.0 * (after as f64 / before as f64 - 1.0));
    }
    let ratio = before as f64 / after as f64;
    format!(" ({ratio:.3} x, {:.1} % saved)", 100.0 - 100.0 / ratio)
}

/// Whether a path stands for standard input or output.
pub fn is_pipe(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A path as messages name it.
pub fn name(path: &Path) -> String {
    match is_pipe(path) {
        true => "-".to_owned(),
        false => human::escaped(&path.display().to_string()).into_owned(),
    }
}

/// Longest remote file that is received into memory as a whole.
const LONGEST_BODY: u64 = 64 << 30;

/// A file, mapped, so that it costs no memory; or what comes through a pipe, read.
pub fn open(path: &Path) -> Result<Arc<dyn Source>, Failure> {
    let failed =
        |error: std::io::Error| Failure::io(format!("cannot read {}: {}", name(path), human::cause(&error)));
    if is_pipe(path) {
        return Ok(Arc::new(MemorySource::new(read(&mut std::io::stdin().lock(), path)?)));
    }
    if ztensor::remote::is_url(path) {
        let bytes = ztensor::remote::store::read(path, LONGEST_BODY, &Default::default())?;
        return Ok(Arc::new(MemorySource::new(bytes)));
    }
    // Before it is opened: Windows says of a folder only that access is denied.
    if path.is_dir() {
        return Err(Failure::usage(format!("{} is a folder, not a file", name(path))));
    }
    let mut file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        let source = FileSource::from_file(file.try_clone().map_err(failed)?, path, MapMode::Auto)?;
        if source.is_mapped() {
            return Ok(Arc::new(source));
        }
    }
    Ok(Arc::new(MemorySource::new(read(&mut file, path)?)))
}

/// All that there is to read.
fn read(from: &mut dyn Read, path: &Path) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    match from.read_to_end(&mut data) {
        Ok(_) => Ok(data),
        Err(error) => Err(Failure::io(format!("cannot read {}: {}", name(path), human::cause(&error)))),
    }
}

/// Where a result goes: chosen, or named after the input.
pub enum Target {
    /// Standard output.
    Pipe,
    /// A file of either kind, or a URL.
    File(Destination),
}

impl Target {
    /// Refuses to overwrite, unless told to, and to write over an input.
    pub fn new(
        chosen: Option<&Path>,
        usual: impl FnOnce() -> PathBuf,
        force: bool,
        inputs: &[&Path],
    ) -> Result<Target, Failure> {
        let path = chosen.map_or_else(usual, Path::to_owned);
        if is_pipe(&path) {
            if crate::output::raw().is_terminal() && !force {
                let message = "standard output is a terminal: choose a file with -o, or --force";
                return Err(Failure::usage(message));
            }
            return Ok(Target::Pipe);
        }
        let same = |input: &&&Path| match (input.canonicalize(), path.canonicalize()) {
            (Ok(input), Ok(output)) => input == output,
            _ => false,
        };
        if let Some(input) = inputs.iter().find(same) {
            return Err(Failure::usage(format!("{} is also an input: choose another output", name(input))));
        }
        let destination = match (chosen, path.parent(), path.file_name()) {
            // Made up here, perhaps in a folder that came from elsewhere: links in it do not count.
            (None, Some(folder), Some(name)) if !ztensor::remote::is_url(&path) => {
                Destination::derived(folder, name)?.overwrite(force)
            }
            _ => Destination::explicit(&path, force),
        };
        if !force && destination.is_taken()? {
            return Err(Failure::usage(format!("{} exists already: --force overwrites it", name(&path))));
        }
        Ok(Target::File(destination))
    }

    /// The place, where only a file will do; from here on Ctrl-C is caught, to clean up.
    pub fn file(&self) -> Result<Destination, Failure> {
        match self {
            Target::Pipe => Err(Failure::usage("this command writes files, not pipes: choose one with -o")),
            Target::File(destination) => {
                crate::ui::catch_interrupts();
                Ok(destination.clone())
            }
        }
    }

    /// Writes what `fill` hands over; a file appears under its name when that is all.
    pub fn write(
        &self,
        fill: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Target::File(destination) = self else {
            let mut out = Watched { out: &mut crate::output::raw(), failure: None };
            fill(&mut out).map_err(|failure| out.blame(Path::new("-"), failure))?;
            return Ok(out.flush()?);
        };
        // From here on there is something to clean up; before, the system's own way is best.
        crate::ui::catch_interrupts();
        let mut failure = None;
        let written = ztensor::write_atomically(destination.clone(), |out| {
            let mut out = Watched { out, failure: None };
            fill(&mut out).map_err(|error| {
                failure = Some(out.blame(destination.path(), error));
                ztensor::Error::cancelled()
            })
        });
        match (failure, written) {
            (Some(failure), _) => Err(failure),
            (None, written) => Ok(written?),
        }
    }

    /// Writes these bytes.
    pub fn write_all(&self, data: &[u8], run: Run) -> Result<(), Failure> {
        let progress = Progress::new("writing", data.len() as u64, run.quiet);
        self.write(|out| data.chunks(STEP).try_for_each(|part| write_part(out, part, &progress)))
    }
}

/// An output that remembers why it could not be written: by the time the failure arrives it may
/// have been taken for one of the input.
struct Watched<'a> {
    out: &'a mut (dyn Write + Send),
    failure: Option<std::io::Error>,
}

impl Watched<'_> {
    /// The failure, if it is not about the output at `path` after all.
    fn blame(&mut self, path: &Path, failure: Failure) -> Failure {
        match self.failure.take() {
            None => failure,
            Some(error) if error.kind() == std::io::ErrorKind::BrokenPipe => error.into(),
            Some(error) => Failure::io(format!("cannot write {}: {}", name(path), human::cause(&error))),
        }
    }

    fn noted<T>(&mut self, result: std::io::Result<T>) -> std::io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if kind == std::io::ErrorKind::Interrupted {
                return error; // it is tried again
            }
            let copy = std::io::Error::new(kind, error.to_string());
            self.failure = Some(error);
            copy
        })
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let result = self.out.write(bytes);
        self.noted(result)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let result = self.out.write_vectored(pieces);
        self.noted(result)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let result = self.out.flush();
        self.noted(result)
    }
}

/// Bytes decoded at a time: what a restored file costs in memory.
const PART: u64 = 64 << 20;

/// Writes `len` bytes as `decode` makes them, part by part; all at once where they cannot be
/// made otherwise.
pub fn write_parts(
    out: &mut dyn Write,
    len: u64,
    at_once: bool,
    progress: &Progress,
    mut decode: impl FnMut(Range<u64>, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let step = if at_once { len } else { len.min(PART) };
    let step_len = usize::try_from(step).unwrap_or(usize::MAX);
    let mut part = Vec::new();
    part.try_reserve_exact(step_len).map_err(|_| Failure::io(format!("no memory for {step} bytes")))?;
    part.resize(step_len, 0);
    for start in (0..len).step_by(step_len.max(1)) {
        let end = len.min(start + step);
        let part = &mut part[..(end - start) as usize];
        decode(start..end, part)?;
        for piece in part.chunks(STEP) {
            write_part(out, piece, progress)?;
        }
    }
    Ok(())
}

/// Writes one part and looks whether to go on.
pub fn write_part(out: &mut dyn Write, part: &[u8], progress: &Progress) -> Result<(), Failure> {
    out.write_all(part)?;
    match progress.advance(part.len() as u64) {
        true => Ok(()),
        false => Err(Failure::interrupted()),
    }
}

/// `path` with `suffix` added.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether there is a name before that suffix, which is ASCII.
pub fn has_suffix(path: &Path, suffix: &str) -> bool {
    stem_len(path, suffix).is_some()
}

/// Bytes of the file's name before the suffix.
fn stem_len(path: &Path, suffix: &str) -> Option<usize> {
    let name = path.file_name()?.as_encoded_bytes();
    let stem = name.strip_suffix(suffix.as_bytes())?;
    (!stem.is_empty()).then_some(stem.len())
}

/// `path` without its suffix, or with `.out` where it has another.
pub fn without_suffix(path: &Path, suffix: &str) -> PathBuf {
    let parts = suffix.matches('.').count();
    match has_suffix(path, suffix) {
        false => with_suffix(path, ".out"),
        // Each part begins with a dot, so it is an extension.
        true => (0..parts).fold(path.to_owned(), |path, _| path.with_extension("")),
    }
}
