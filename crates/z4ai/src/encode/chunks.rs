//! The loop over the chunks of a frame: encoded on all threads, put together in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::error::Result;
use crate::kernel::copy;
use crate::options::Options;
use crate::parallel::{self, InOrder};

/// What is put together to this size is written past the caches.
const LARGE: usize = 8 << 20;

/// What some chunks became.
#[derive(Default)]
pub(super) struct Encoded {
    pub(super) payload: Vec<u8>,
    pub(super) descriptions: Vec<u8>,
    /// How many they are.
    pub(super) chunks: usize,
    /// Whether any of them needs the palette.
    pub(super) indexed: bool,
}

impl Encoded {
    pub(super) fn clear(&mut self) {
        self.payload.clear();
        self.descriptions.clear();
        (self.chunks, self.indexed) = (0, false);
    }

    pub(super) fn append(&mut self, next: &Self) {
        if self.payload.capacity() >= LARGE {
            copy::append_past_caches(&mut self.payload, &next.payload);
        } else {
            self.payload.extend_from_slice(&next.payload);
        }
        self.descriptions.extend_from_slice(&next.descriptions);
        self.chunks += next.chunks;
        self.indexed |= next.indexed;
    }
}

/// Runs `encode(scratch, job, encoded)`, which appends chunks and returns how many bytes of content they
/// have, for every job; their payloads follow one another in `out`.
pub(super) fn encode_all<S: Default>(
    options: &Options,
    jobs: usize,
    out: &mut Vec<u8>,
    encode: impl Fn(&mut S, usize, &mut Encoded) -> usize + Sync,
) -> Result<Encoded> {
    encode_and_look(options, jobs, out, None, encode).map(Option::unwrap_or_default)
}

/// As [`encode_all`], while one thread runs `look`, if there is one: `None`, and nothing appended that
/// matters, if that answers `false`.
pub(super) fn encode_and_look<S: Default>(
    options: &Options,
    jobs: usize,
    out: &mut Vec<u8>,
    look: Option<&Look<'_>>,
    encode: impl Fn(&mut S, usize, &mut Encoded) -> usize + Sync,
) -> Result<Option<Encoded>> {
    let mut all = Encoded { payload: std::mem::take(out), ..Encoded::default() };
    let workers = parallel::workers(options.threads, jobs);
    let progress = Progress::new(options, look.is_some());
    let result = if workers == 1 {
        // What is made is already where it belongs.
        let mut scratch = S::default();
        look.map_or(Ok(()), |look| progress.looked(look())).and_then(|()| {
            let mut jobs = (0..jobs).take_while(|_| progress.goes_on());
            jobs.try_for_each(|job| progress.advance(encode(&mut scratch, job, &mut all)))
        })
    } else {
        let sink = InOrder::new(all, workers);
        let looks = usize::from(look.is_some());
        let result = parallel::for_each(workers, looks + jobs, S::default, |scratch, job| {
            let Some(job) = job.checked_sub(looks) else {
                return look.map_or(Ok(()), |look| progress.looked(look()));
            };
            let mut content = 0;
            let make = |encoded: &mut Encoded| {
                encoded.clear();
                if progress.goes_on() {
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
    result.map(|()| progress.goes_on().then_some(all))
}

/// What is found out about all the data while its chunks are encoded: whether they are worth it.
pub(super) type Look<'a> = dyn Fn() -> bool + Sync + 'a;

/// Content is not called encoded as long as it may have to be encoded again.
struct Progress<'a> {
    options: &'a Options,
    goes_on: AtomicBool,
    looking: AtomicBool,
    /// Bytes that were encoded meanwhile.
    meanwhile: AtomicUsize,
}

impl<'a> Progress<'a> {
    fn new(options: &'a Options, looking: bool) -> Self {
        let (goes_on, looking) = (AtomicBool::new(true), AtomicBool::new(looking));
        Self { options, goes_on, looking, meanwhile: AtomicUsize::new(0) }
    }

    fn goes_on(&self) -> bool {
        self.goes_on.load(SeqCst)
    }

    /// Nobody looks any more; encoding goes on if nothing was found.
    fn looked(&self, nothing_found: bool) -> Result<()> {
        self.goes_on.store(nothing_found, SeqCst);
        self.looking.store(false, SeqCst);
        self.advance(0)
    }

    /// So many bytes more of the content are encoded.
    fn advance(&self, content: usize) -> Result<()> {
        self.meanwhile.fetch_add(content, SeqCst);
        // Whoever looks tells of all that was added before this, and if that is no more so, this does.
        if self.looking.load(SeqCst) || !self.goes_on() {
            return Ok(());
        }
        match self.meanwhile.swap(0, SeqCst) {
            0 => Ok(()),
            encoded => self.options.advance(encoded),
        }
    }
}
