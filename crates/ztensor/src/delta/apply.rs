//! Applying a delta: base and delta become the target.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use twox_hash::XxHash3_128;

use super::container;
use super::model::Model;
use super::segments::{BaseCheck, Delta, How, Place};
use super::v1;
use crate::base::parallel;
use crate::catalog::{Decode, Storage};
use crate::decode::{Z4ai, broken_frame, decode_options};
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ContentId;
use crate::progress::{Observer, advance, finish};
use crate::read::Limits;
use crate::remote::Options;
use crate::source::{self, MapMode, Source, Sources, zeroed};
use crate::write::atomic::{AtomicFile, scratch_file};
use crate::write::destination::Destination;

/// How to apply a delta.
#[derive(Clone, Copy, Default)]
pub struct ApplyOptions<'a> {
    /// Threads to use; 0 is one per core.
    pub threads: usize,
    /// Refuses targets that are larger, before anything is written, and bases that decode to more.
    /// What the default allows depends on the size of base and delta together.
    pub limits: Limits,
    /// The content id that the base must have. A delta knows its base by a hash that is not
    /// cryptographic; with the id from a trusted place, no forged base is accepted.
    pub base_id: Option<ContentId>,
    /// Whether [`apply`] waits until the disk has it all.
    pub durable: bool,
    /// Is told how many bytes of the target are restored, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// Writes the target that a delta makes of its base, and returns its size.
///
/// Any other base is refused before anything is written, and the target appears under its name
/// when it is complete and known to be right.
pub fn apply(
    base: impl AsRef<Path>,
    delta: impl AsRef<Path>,
    output: impl Into<Destination>,
    options: &ApplyOptions<'_>,
) -> Result<u64> {
    apply_one(base.as_ref(), &Arc::new(open(delta.as_ref())?), &output.into(), options)
}

/// Applies several deltas one after another, each to what the one before it made.
///
/// Deltas that do not follow each other are refused before anything is done.
pub fn apply_chain<P: AsRef<Path>>(
    base: impl AsRef<Path>,
    deltas: &[P],
    output: impl Into<Destination>,
    options: &ApplyOptions<'_>,
) -> Result<u64> {
    let output = &output.into();
    let opened = deltas.iter().map(|delta| open(delta.as_ref()).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    check_links(&opened)?;
    let Some((last, others)) = opened.split_last() else {
        return Err(Error::invalid("no delta to apply"));
    };
    let mut step: Option<tempfile::TempPath> = None;
    for delta in others {
        // Closed: Windows may refuse to replace an open file.
        let next = scratch_file(output, "")?.into_temp_path();
        let before = step.as_deref().unwrap_or(base.as_ref());
        let base_id = options.base_id.filter(|_| step.is_none());
        let options = ApplyOptions { durable: false, base_id, ..*options };
        apply_one(before, delta, &(&*next).into(), &options)?;
        step = Some(next);
    }
    let options = &ApplyOptions { base_id: options.base_id.filter(|_| step.is_none()), ..*options };
    apply_one(step.as_deref().unwrap_or(base.as_ref()), last, output, options)
}

/// Like [`apply`], from any sources, such as memory, to anything that can be written to.
/// What was written before an error is not the target.
pub fn apply_to(
    base: Arc<dyn Source>,
    delta: Arc<dyn Source>,
    out: &mut (dyn Write + Send),
    options: &ApplyOptions<'_>,
) -> Result<u64> {
    let delta = Delta::read(delta)?;
    let base = Model::open_source(base, options.threads, options.limits)?;
    Applier::new(base, Arc::new(delta), options)?.write(out, options)
}

pub(super) fn open(path: &Path) -> Result<Delta> {
    Delta::read(source::open(path, MapMode::Auto, &Options::default())?).map_err(|error| error.in_file(path))
}

fn apply_one(base: &Path, delta: &Arc<Delta>, to: &Destination, options: &ApplyOptions<'_>) -> Result<u64> {
    let output = to.path();
    let base = Model::open(base, options.threads, options.limits)?;
    let applier = Applier::new(base, delta.clone(), options)?;
    let mut file = AtomicFile::create(to)?;
    // No more than base and delta earn: the rest is asked for when it is written.
    file.reserve(delta.target_len.min(applier.stored()))
        .map_err(|error| Error::io("cannot write", error).in_file(output))?;
    let mut out = BufWriter::with_capacity(1 << 16, file);
    let len = applier.write(&mut out, options).map_err(|error| match error.kind() {
        ErrorKind::Io => error.in_file(output),
        _ => error.in_file(delta.source.label()),
    })?;
    let file =
        out.into_inner().map_err(|error| Error::io("cannot write", error.into_error()).in_file(output))?;
    file.commit(options.durable)?;
    Ok(len)
}

/// Each delta is made for what the one before it makes.
fn check_links(deltas: &[Arc<Delta>]) -> Result<()> {
    for pair in deltas.windows(2) {
        // Version 1 does not say what it makes: its successor finds out.
        let (Some((made, _)), BaseCheck::Model(needed)) = (pair[0].target, pair[1].base) else { continue };
        if made != needed {
            return Err(Error::mismatch(format!(
                "these deltas do not follow each other: {} makes the model {made}, {} needs {needed}",
                pair[0].source.label(),
                pair[1].source.label()
            )));
        }
    }
    Ok(())
}

/// A delta and the base that belongs to it.
pub(super) struct Applier {
    pub(super) base: Model,
    pub(super) delta: Arc<Delta>,
    sources: Sources,
    limits: Limits,
    /// Bytes of the base that were decoded for segments.
    decoded: AtomicU64,
    /// The base tensor that was decoded last for a part of it: many segments may lie in one tensor.
    last: Mutex<Option<Decoded>>,
}

/// The number of a base tensor and its decoded bytes.
type Decoded = (usize, Arc<Vec<u8>>);

impl Applier {
    /// Refuses a base other than the one that the delta was made from.
    pub(super) fn new(base: Model, delta: Arc<Delta>, options: &ApplyOptions<'_>) -> Result<Applier> {
        let limits = options.limits;
        let sources = Sources::one(delta.source.clone());
        let (decoded, last) = (AtomicU64::new(0), Mutex::new(None));
        let applier = Applier { base, delta, sources, limits, decoded, last };
        applier.check_size()?;
        applier.check_id(options.base_id)?;
        applier.check_base(options)?;
        Ok(applier)
    }

    /// Refuses a base of another content id.
    fn check_id(&self, expected: Option<ContentId>) -> Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        let found = self.base.reader.content_id()?;
        match found == expected {
            true => Ok(()),
            false => {
                let message = format!("the base has the content id {found}, not {expected}");
                Err(Error::mismatch(message).in_file(self.base.label()))
            }
        }
    }

    /// Bytes of base and delta: what the target is measured by.
    fn stored(&self) -> u64 {
        self.base.reader.catalog().sources.open_len().saturating_add(self.delta.source.len())
    }

    /// Refuses a target that is larger than the limits allow.
    fn check_size(&self) -> Result<()> {
        let refused = |error: Error| error.in_file(self.delta.source.label());
        self.limits.check_total(self.delta.target_len, self.stored()).map_err(refused)?;
        for segment in &self.delta.segments {
            self.limits
                .check_component(segment.len)
                .map_err(|error| refused(error.in_tensor(&*segment.name)))?;
        }
        Ok(())
    }

    fn check_base(&self, options: &ApplyOptions<'_>) -> Result<()> {
        let Applier { base, delta, .. } = self;
        match delta.base {
            BaseCheck::Model(expected) => {
                let found = base.digest(&base.fingerprints(options.threads, None)?)?;
                if found != expected {
                    let why = format!("it is the model {found}, the delta needs {expected}");
                    return Err(wrong_base(base, why));
                }
            }
            BaseCheck::Data(expected) => v1::check_base(base, expected)?,
        }
        for segment in &delta.segments {
            let Some(place) = segment.how.place() else { continue };
            let len = base.part(base.require(&place.name, &place.role)?)?.1.len;
            // Version 1 knows whole tensors only.
            let whole = delta.version == container::VERSION || len == segment.len;
            if !whole || place.offset.checked_add(segment.len).is_none_or(|end| end > len) {
                return Err(wrong_base(base, format!("its tensor {:?} has {len} bytes", place.name)));
            }
        }
        Ok(())
    }

    fn write(&self, out: &mut (dyn Write + Send), options: &ApplyOptions<'_>) -> Result<u64> {
        let mut hasher = XxHash3_128::new();
        let mut runs = runs(&self.delta).into_iter();
        let fill = |buffer: &mut Vec<u8>| match runs.next() {
            Some((run, total)) => self.fill(run, total, buffer, options).map(|()| true),
            None => Ok(false),
        };
        parallel::pipeline(fill, |bytes| {
            hasher.write(bytes);
            out.write_all(bytes).map_err(|error| Error::io("cannot write", error))
        })?;
        if let Some((_, expected)) = self.delta.target
            && hasher.finish_128() != expected
        {
            return Err(Error::mismatch(
                "the restored file is not the one that the delta was made from: the delta or the base is damaged",
            ));
        }
        out.flush().map_err(|error| Error::io("cannot write", error))?;
        finish(options.observer)?;
        Ok(self.delta.target_len)
    }

    /// Makes `buffer` the contents of a run of segments, which have `total` bytes.
    fn fill(
        &self,
        run: Range<usize>,
        total: u64,
        buffer: &mut Vec<u8>,
        options: &ApplyOptions<'_>,
    ) -> Result<()> {
        if (buffer.capacity() as u64) < total {
            *buffer = zeroed(total.max(RUN_LEN.min(self.delta.target_len)))?;
        }
        buffer.resize(total as usize, 0);
        let mut rest = &mut buffer[..];
        let mut jobs = Vec::with_capacity(run.len());
        for index in run {
            let (part, tail) = rest.split_at_mut(self.delta.segments[index].len as usize);
            rest = tail;
            jobs.push((index, part));
        }
        parallel::for_each(options.threads, jobs, |(index, part)| {
            let threads = parallel::share(options.threads, part.len() as u64, total);
            let name = &self.delta.segments[index].name;
            self.content(index, part, threads).map_err(|error| match name.is_empty() {
                true => error,
                false => error.in_tensor(&**name),
            })?;
            advance(options.observer, part.len() as u64)
        })
    }

    /// Fills `out` with the bytes of one segment.
    pub(super) fn content(&self, index: usize, out: &mut [u8], threads: usize) -> Result<()> {
        match &self.delta.segments[index].how {
            How::Frame(extent, generation) => {
                let frame = Z4ai::new(*extent, out.len() as u64, *generation)?;
                frame.decode(&self.sources, 0..out.len() as u64, out, threads)
            }
            How::Raw(extent, crc) => {
                self.sources.read(*extent, 0, out)?;
                match crc.filter(|crc| crc32c::crc32c(out) != *crc) {
                    None => Ok(()),
                    Some(crc) => Err(Error::mismatch(format!(
                        "the stored bytes do not have the checksum {} that the file says",
                        Digest::Crc32c(crc)
                    ))),
                }
            }
            How::Copy(place) => self.with_base(place, out.len(), threads, |bytes| {
                out.copy_from_slice(bytes);
                Ok(())
            }),
            How::Delta(extent, place) => {
                let frame = self.sources.bytes(*extent)?;
                let legacy = z4ai::legacy::is_legacy_delta(&frame);
                if legacy != (self.delta.version == v1::VERSION) || !z4ai::delta::is_delta(&frame) {
                    return Err(Error::corrupt(
                        "z4dm.delta",
                        "a stored frame is not a delta of this version",
                    ));
                }
                let options = decode_options(out.len() as u64, threads);
                // The base is known to be the right one, and what comes out is checked.
                self.with_base(place, out.len(), threads, |reference| {
                    z4ai::delta::restore_into(&frame, reference, out, &options).map_err(broken_frame)
                })
            }
            How::Same(first) => self.content(*first, out, threads),
            How::Zeros => {
                out.fill(0);
                Ok(())
            }
        }
    }

    /// Shows the bytes that the base has at a place.
    fn with_base(
        &self,
        place: &Place,
        len: usize,
        threads: usize,
        show: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let part = self.base.require(&place.name, &place.role)?;
        // Inside the tensor: that was checked before anything was written.
        let start = place.offset as usize;
        let component = self.base.part(part)?.1;
        if matches!(component.storage, Storage::Plain(_) | Storage::Inline(_)) {
            return show(&self.base.content(part, threads)?[start..start + len]);
        }
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = last().as_ref().filter(|(kept, _)| *kept == part).map(|(_, bytes)| bytes.clone());
        let content = match kept {
            Some(content) => content,
            None => {
                self.charge(component.len)?;
                let content = Arc::new(self.base.content(part, threads)?.into_owned());
                if (len as u64) < component.len {
                    *last() = Some((part, content.clone()));
                }
                content
            }
        };
        show(&content[start..start + len])
    }

    /// Counts bytes of the base that are about to be decoded: a delta can ask for the same tensors
    /// again and again.
    fn charge(&self, bytes: u64) -> Result<()> {
        let before = self.decoded.fetch_add(bytes, Ordering::Relaxed);
        let refused = |error: Error| error.in_file(self.delta.source.label());
        self.limits.check_total(before.saturating_add(bytes), self.stored()).map_err(refused)
    }
}

pub(super) fn wrong_base(base: &Model, why: String) -> Error {
    let message = format!("this is not the base that the delta was made from: {why}");
    Error::mismatch(message).in_file(base.label())
}

/// Segments are restored in runs of this size; a larger one alone.
const RUN_LEN: u64 = 8 << 20;

/// Runs of segments that fit a buffer, or one larger segment, with their lengths.
fn runs(delta: &Delta) -> Vec<(Range<usize>, u64)> {
    let segments = &delta.segments;
    let mut runs = Vec::new();
    let mut next = 0;
    while next < segments.len() {
        let (start, mut bytes) = (next, 0u64);
        while next < segments.len() && (next == start || bytes.saturating_add(segments[next].len) <= RUN_LEN)
        {
            bytes += segments[next].len;
            next += 1;
        }
        runs.push((start..next, bytes));
    }
    runs
}
