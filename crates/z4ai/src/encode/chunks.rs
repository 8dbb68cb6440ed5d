//! The loop over the chunks of a frame: encoded on all threads, put together in order.

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
    let mut all = Encoded { payload: std::mem::take(out), ..Encoded::default() };
    let workers = parallel::workers(options.threads, jobs);
    let result = if workers == 1 {
        // What is made is already where it belongs.
        let mut scratch = S::default();
        (0..jobs).try_for_each(|job| options.advance(encode(&mut scratch, job, &mut all)))
    } else {
        let sink = InOrder::new(all, workers);
        let result = parallel::for_each(workers, jobs, S::default, |scratch, job| {
            let mut content = 0;
            let make = |encoded: &mut Encoded| {
                encoded.clear();
                content = encode(scratch, job, encoded);
            };
            sink.deliver(job, make, |all, encoded| all.append(encoded));
            options.advance(content)
        });
        all = sink.into_inner().unwrap_or_default();
        result
    };
    *out = std::mem::take(&mut all.payload);
    result.map(|()| all)
}
