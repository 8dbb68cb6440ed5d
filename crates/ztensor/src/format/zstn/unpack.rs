//! Unpacking: the contents one after another are the original file.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::container::{Blob, Container, Stored, check_crc};
use crate::base::parallel;
use crate::catalog::Extent;
use crate::decode::{DECODED_PIECE, Z4ai};
use crate::error::{Error, ErrorKind, Result};
use crate::progress::{Observer, advance, finish};
use crate::read::Limits;
use crate::remote::Options;
use crate::source::{self, MapMode, Source, Sources, zeroed};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;

/// How to unpack.
#[derive(Clone, Copy, Default)]
pub struct UnpackOptions<'a> {
    /// Threads to use; 0 is one per core.
    pub threads: usize,
    /// Refuses files that unpack to more, before anything is written.
    pub limits: Limits,
    /// Whether [`unpack`] waits until the disk has it all.
    pub durable: bool,
    /// Is told how many bytes of the original are restored, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// Restores the file that was packed, byte for byte, and returns its size. It appears under
/// its name when it is complete and every checksum was right.
pub fn unpack(
    input: impl AsRef<Path>,
    output: impl Into<Destination>,
    options: &UnpackOptions<'_>,
) -> Result<u64> {
    let (input, to) = (input.as_ref(), output.into());
    let output = to.path();
    let source = source::open(input, MapMode::Auto, &Options::default())?;
    let container = Container::read(source).map_err(|error| error.in_file(input))?;
    check_limits(&container, &options.limits).map_err(|error| error.in_file(input))?;
    let mut file = AtomicFile::create(&to)?;
    file.reserve(container.content_len).map_err(|error| write_failed(error).in_file(output))?;
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let restored = restore(container, &mut out, options).map_err(|error| match error.kind() {
        ErrorKind::Io => error.in_file(output),
        _ => error.in_file(input),
    })?;
    let file = out.into_inner().map_err(|error| write_failed(error.into_error()).in_file(output))?;
    file.commit(options.durable)?;
    Ok(restored)
}

/// Like [`unpack`], from any source, such as memory, to anything that can be written to.
/// What was written before an error is not the file.
pub fn unpack_source(
    source: Arc<dyn Source>,
    out: &mut (dyn Write + Send),
    options: &UnpackOptions<'_>,
) -> Result<u64> {
    restore(Container::read(source)?, out, options)
}

fn write_failed(error: std::io::Error) -> Error {
    Error::io("cannot write", error)
}

fn restore(container: Container, out: &mut (dyn Write + Send), options: &UnpackOptions<'_>) -> Result<u64> {
    check_limits(&container, &options.limits)?;
    check_padding(&container)?;
    let sources = Sources::one(container.source.clone());
    let unpacker = Unpacker { container: &container, sources: &sources, options };
    let mut runs = runs(&container.blobs).peekable();
    while let Some(first) = runs.peek().cloned() {
        if container.blobs[first.start].len > LARGE {
            runs.next();
            unpacker.large(first.start, out)?;
            continue;
        }
        // Several at once, while the ones before them are written.
        let small = |run: &Range<usize>| container.blobs[run.start].len <= LARGE;
        let fill = |buffer: &mut Vec<u8>| match runs.next_if(small) {
            Some(run) => unpacker.several(run, buffer).map(|()| true),
            None => Ok(false),
        };
        parallel::pipeline(fill, |bytes| out.write_all(bytes).map_err(write_failed))?;
    }
    out.flush().map_err(write_failed)?;
    finish(options.observer)?;
    Ok(container.content_len)
}

fn check_limits(container: &Container, limits: &Limits) -> Result<()> {
    container.blobs.iter().try_for_each(|blob| limits.check_component(blob.len))?;
    limits.check_total(container.content_len, container.source.len())
}

/// Between blobs there is nothing but zeros. (What else there is lies in blobs or the index.)
fn check_padding(container: &Container) -> Result<()> {
    let mut end = super::container::PREFIX;
    for extent in container.blobs.iter().filter_map(|blob| blob.stored.extent()) {
        // Version 3 has no padding, and its blobs may start anywhere.
        if container.version == super::container::VERSION && extent.offset > end {
            let padding = container.source.bytes(end, extent.offset - end)?;
            if padding.iter().any(|&byte| byte != 0) {
                return Err(Error::corrupt(
                    "zstn.padding",
                    format!("bytes before {} are not zero", extent.offset),
                ));
            }
        }
        end = extent.offset + extent.len;
    }
    Ok(())
}

/// Contents are restored in runs of this size, or alone.
const RUN_LEN: u64 = 8 << 20;
/// Larger contents are restored piece by piece.
const LARGE: u64 = DECODED_PIECE / 2;

/// Runs of contents that fit a buffer, or one larger content.
fn runs(blobs: &[Blob]) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let mut bytes = 0u64;
        while next < blobs.len() && (next == start || bytes.saturating_add(blobs[next].len) <= RUN_LEN) {
            bytes = bytes.saturating_add(blobs[next].len);
            next += 1;
        }
        (start < next).then_some(start..next)
    })
}

struct Unpacker<'a> {
    container: &'a Container,
    sources: &'a Sources,
    options: &'a UnpackOptions<'a>,
}

impl Unpacker<'_> {
    /// The blob that holds content `index`.
    fn stored(&self, index: usize) -> Stored {
        match self.container.blobs[index].stored {
            Stored::Same(first) => self.container.blobs[first].stored,
            stored => stored,
        }
    }

    /// Makes `buffer` the contents of a run.
    fn several(&self, run: Range<usize>, buffer: &mut Vec<u8>) -> Result<()> {
        let blobs = &self.container.blobs[run.clone()];
        let total = blobs.iter().map(|blob| blob.len).sum::<u64>();
        if (buffer.capacity() as u64) < total {
            *buffer = zeroed(total.max(RUN_LEN.min(self.container.content_len)))?;
        }
        buffer.resize(total as usize, 0);
        let mut rest = &mut buffer[..];
        let mut jobs = Vec::with_capacity(run.len());
        for index in run {
            let (part, tail) = rest.split_at_mut(self.container.blobs[index].len as usize);
            rest = tail;
            jobs.push((index, part));
        }
        parallel::for_each(self.options.threads, jobs, |(index, part)| {
            let threads = parallel::share(self.options.threads, part.len() as u64, total);
            self.content(index, part, threads)?;
            advance(self.options.observer, part.len() as u64)
        })
    }

    fn content(&self, index: usize, out: &mut [u8], threads: usize) -> Result<()> {
        let len = out.len() as u64;
        match self.stored(index) {
            Stored::Raw(extent, crc) => {
                self.sources.read(extent, 0, out)?;
                crc.map_or(Ok(()), |crc| check_crc(crc32c::crc32c(out), crc))
            }
            // The storage of a reference is that of what it refers to.
            _ => self.container.storage(index)?.read(self.sources, 0..len, out, threads),
        }
    }

    /// Restores one large content piece by piece.
    fn large(&self, index: usize, out: &mut (dyn Write + Send)) -> Result<()> {
        let mut put = |piece: &[u8]| {
            out.write_all(piece).map_err(write_failed)?;
            advance(self.options.observer, piece.len() as u64)
        };
        match self.stored(index) {
            Stored::Frame(extent, generation) => {
                let frame = Z4ai::new(extent, self.container.blobs[index].len, generation)?;
                frame.pieces(self.sources, self.options.threads, put)
            }
            Stored::Raw(extent, crc) => {
                let mut found = 0;
                for skip in (0..extent.len).step_by(DECODED_PIECE as usize) {
                    let len = (extent.len - skip).min(DECODED_PIECE);
                    let piece = self.sources.bytes(Extent { offset: extent.offset + skip, len, ..extent })?;
                    found = crc32c::crc32c_append(found, &piece);
                    put(&piece)?;
                }
                crc.map_or(Ok(()), |crc| check_crc(found, crc))
            }
            Stored::Same(_) => Err(Error::corrupt("zstn.reference", "a reference to a reference")),
        }
    }
}
