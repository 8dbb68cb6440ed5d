//! The loop over the chunks of a frame: encoded on all threads, concatenated in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::error::Result;
use crate::kernel::streaming;
use crate::options::Options;
use crate::parallel::{self, InOrder};

/// Encoded chunks.
#[derive(Default)]
pub(crate) struct Encoded {
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptions: Vec<u8>,
    /// The number of chunks.
    pub(crate) chunks: usize,
    /// Whether any of them needs the palette.
    pub(crate) indexed: bool,
}

impl Encoded {
    pub(crate) fn clear(&mut self) {
        self.payload.clear();
        self.descriptions.clear();
        (self.chunks, self.indexed) = (0, false);
    }

    pub(crate) fn append(&mut self, next: &Self) {
        if self.payload.capacity() >= streaming::MIN_LEN {
            streaming::extend_streaming(&mut self.payload, &next.payload);
        } else {
            self.payload.extend_from_slice(&next.payload);
        }
        self.descriptions.extend_from_slice(&next.descriptions);
        self.chunks += next.chunks;
        self.indexed |= next.indexed;
    }
}

/// Runs `encode(scratch, job, encoded)`, which appends chunks and returns the bytes of their
/// content, for every job; payloads are concatenated in `out`.
pub(crate) fn encode_all<S: Default>(
    options: &Options,
    jobs: usize,
    out: &mut Vec<u8>,
    encode: impl Fn(&mut S, usize, &mut Encoded) -> usize + Sync,
) -> Result<Encoded> {
    encode_probed(options, jobs, out, None, encode).map(Option::unwrap_or_default)
}

/// As [`encode_all`], while one thread runs `probe`, if there is one. `None`, with unspecified
/// bytes appended, if the probe returns `false`.
pub(crate) fn encode_probed<S: Default>(
    options: &Options,
    jobs: usize,
    out: &mut Vec<u8>,
    probe: Option<&Probe<'_>>,
    encode: impl Fn(&mut S, usize, &mut Encoded) -> usize + Sync,
) -> Result<Option<Encoded>> {
    let mut all = Encoded { payload: std::mem::take(out), ..Encoded::default() };
    let workers = parallel::workers(options.threads, jobs);
    let progress = Progress::new(options, probe.is_some());
    let result = if workers == 1 {
        // Chunks are encoded in place.
        let mut scratch = S::default();
        probe.map_or(Ok(()), |probe| progress.probe_done(probe())).and_then(|()| {
            let mut jobs = (0..jobs).take_while(|_| progress.keep());
            jobs.try_for_each(|job| progress.advance(encode(&mut scratch, job, &mut all)))
        })
    } else {
        let sink = InOrder::new(all, workers);
        let probes = usize::from(probe.is_some());
        let result = parallel::for_each(workers, probes + jobs, S::default, |scratch, job| {
            let Some(job) = job.checked_sub(probes) else {
                return probe.map_or(Ok(()), |probe| progress.probe_done(probe()));
            };
            let mut content = 0;
            let make = |encoded: &mut Encoded| {
                encoded.clear();
                if progress.keep() {
                    content = encode(scratch, job, encoded);
                }
            };
            sink.deliver(job, make, |all, encoded| all.append(encoded));
            progress.advance(content)
        });
        all = sink.into_inner().unwrap_or_default();
        result
    };
    *out = std::mem::take(&mut all.payload);
    result.map(|()| progress.keep().then_some(all))
}

/// Decides about all the data while its chunks are encoded: `false` discards them.
pub(crate) type Probe<'a> = dyn Fn() -> bool + Sync + 'a;

/// Progress reports. Content is not reported while the probe may discard it.
struct Progress<'a> {
    options: &'a Options,
    keep: AtomicBool,
    probing: AtomicBool,
    /// Encoded bytes that are not reported yet.
    unreported_bytes: AtomicUsize,
}

impl<'a> Progress<'a> {
    fn new(options: &'a Options, probing: bool) -> Self {
        let (keep, probing) = (AtomicBool::new(true), AtomicBool::new(probing));
        Self { options, keep, probing, unreported_bytes: AtomicUsize::new(0) }
    }

    fn keep(&self) -> bool {
        self.keep.load(SeqCst)
    }

    /// The probe has ended; encoding continues if it found nothing.
    fn probe_done(&self, nothing_found: bool) -> Result<()> {
        self.keep.store(nothing_found, SeqCst);
        self.probing.store(false, SeqCst);
        self.advance(0)
    }

    /// Records `content` more encoded bytes.
    fn advance(&self, content: usize) -> Result<()> {
        self.unreported_bytes.fetch_add(content, SeqCst);
        // If the probe is still running it will report these bytes when it ends; otherwise report
        // them here. SeqCst on both sides so that one of the two always does.
        if self.probing.load(SeqCst) || !self.keep() {
            return Ok(());
        }
        match self.unreported_bytes.swap(0, SeqCst) {
            0 => Ok(()),
            encoded => self.options.advance(encoded),
        }
    }
}
