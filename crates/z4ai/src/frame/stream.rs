//! Encodes a frame whose content comes piece by piece, in bounded memory.
//!
//! Chunks do not depend on each other, so that the frame is the one of [`compress`](crate::compress)
//! but for what needs all of the content at once: a palette of the whole frame and long-range matches.

use crate::error::{Error, Result};
use crate::frame::plan::Plan;
use crate::frame::{self, encode};
use crate::options::Options;

/// Content that is encoded at a time, about: enough chunks for many threads.
/// (structural: 66 chunks; frames do not depend on it)
const BATCH: usize = 16 << 20;

/// Encodes data that comes piece by piece into one frame.
///
/// The payload of the frame is handed over while it is made; the header, which is in front of it
/// and has lengths that are not known before, and the index, which follows it, come at the end. The
/// frame does not depend on how the data was cut into pieces, nor on the number of threads.
///
/// ```
/// use z4ai::{DecodeOptions, Kind, Options, StreamEncoder};
///
/// let weights: Vec<u8> = (0..100_000u32).flat_map(|i| (i as f32).sqrt().to_le_bytes()).collect();
/// let options = Options { kind: Kind::F32, ..Options::default() };
/// let mut encoder = StreamEncoder::new(&options, None)?;
/// let mut payload = Vec::new();
/// let mut put = |bytes: &[u8]| Ok::<_, z4ai::Error>(payload.extend_from_slice(bytes));
/// for piece in weights.chunks(1000) {
///     encoder.write(piece, &mut put)?;
/// }
/// let ends = encoder.finish(&mut put)?;
/// let frame = [&ends.header[..], &payload, &ends.index].concat();
/// assert_eq!(z4ai::decompress(&frame, &DecodeOptions::default())?, weights);
/// # Ok::<(), z4ai::Error>(())
/// ```
pub struct StreamEncoder {
    options: Options,
    /// Where chunks are cut; its lengths are those of the batch that is encoded.
    plan: Plan,
    /// The length that was announced.
    expected: Option<u64>,
    /// Content that is not encoded yet.
    pending: Vec<u8>,
    /// Bytes of a batch: whole groups of chunks.
    batch: usize,
    content_len: u64,
    payload_len: u64,
    payload: Vec<u8>,
    descriptions: Vec<u8>,
    chunks: usize,
}

/// What is in front of a frame's payload, and behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The first bytes of the frame.
    pub header: Vec<u8>,
    /// The last ones.
    pub index: Vec<u8>,
}

impl std::fmt::Debug for StreamEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamEncoder").field("content_len", &self.content_len).finish_non_exhaustive()
    }
}

impl StreamEncoder {
    /// An encoder of `len` bytes, if that is known. A shape in the options says how many there are,
    /// too.
    pub fn new(options: &Options, len: Option<u64>) -> Result<StreamEncoder> {
        options.check()?;
        let size = options.kind.size() as u64;
        let shaped = || options.shape.iter().try_fold(size, |len, &dimension| len.checked_mul(dimension));
        let expected = match len {
            None if !options.shape.is_empty() => {
                Some(shaped().ok_or_else(|| Error::invalid("a shape of more than 2^64 bytes"))?)
            }
            len => len,
        };
        let all = usize::try_from(expected.unwrap_or(0))
            .map_err(|_| Error::invalid("more data than this machine can address"))?;
        let plan = Plan::new(all, options)?;
        let group = plan.chunk * encode::group(&plan, options);
        Ok(StreamEncoder {
            options: options.clone(),
            batch: (BATCH / group).max(1) * group,
            plan,
            expected,
            pending: Vec::new(),
            content_len: 0,
            payload_len: 0,
            payload: Vec::new(),
            descriptions: Vec::new(),
            chunks: 0,
        })
    }

    /// The bytes of content so far.
    pub fn content_len(&self) -> u64 {
        self.content_len
    }

    /// Takes the next bytes of content. `payload` is called with the next bytes of the payload, in
    /// order, when there are any.
    pub fn write<E: From<Error>>(
        &mut self,
        mut data: &[u8],
        mut payload: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.content_len = self.content_len.saturating_add(data.len() as u64);
        if self.expected.is_some_and(|expected| self.content_len > expected) {
            return Err(self.wrong_len().into());
        }
        // A short last chunk is merged with the one before it, which so must not be encoded before
        // the next one is there.
        let enough = self.batch + self.plan.chunk;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(enough - self.pending.len()));
            self.pending.try_reserve(now.len()).map_err(|_| Error::invalid("not enough memory"))?;
            self.pending.extend_from_slice(now);
            data = later;
            if self.pending.len() == enough {
                self.encode(self.batch)?;
                payload(&self.payload)?;
            }
        }
        Ok(())
    }

    /// Encodes the rest, and ends the frame.
    pub fn finish<E: From<Error>>(
        mut self,
        mut payload: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Ends, E> {
        if self.expected.is_some_and(|expected| self.content_len != expected) {
            return Err(self.wrong_len().into());
        }
        if !self.pending.is_empty() {
            self.encode(self.pending.len())?;
            payload(&self.payload)?;
        }
        let mut header = Vec::new();
        encode::write_header(&mut header, &self.options, self.content_len)?;
        let index =
            frame::Index { descriptions: &self.descriptions, chunks: self.chunks, ..frame::Index::default() };
        let index = frame::close(&mut header, self.payload_len, &index)?;
        Ok(Ends { header, index })
    }

    /// Encodes the first `len` bytes that are pending.
    fn encode(&mut self, len: usize) -> Result<()> {
        self.payload.clear();
        crate::memory::reserve(&mut self.payload, encode::max_len(len))?;
        self.plan.shorten(len, &self.options);
        let encoded =
            encode::groups(&self.pending[..len], &self.plan, &self.options, None, None, &mut self.payload)?;
        let encoded = encoded.ok_or_else(|| Error::invalid("a batch was not encoded"))?;
        self.descriptions.extend_from_slice(&encoded.descriptions);
        self.chunks += encoded.chunks;
        self.payload_len += self.payload.len() as u64;
        self.pending.drain(..len);
        Ok(())
    }

    fn wrong_len(&self) -> Error {
        let (found, expected) = (self.content_len, self.expected.unwrap_or_default());
        Error::invalid(format_args!("{found} bytes of content where {expected} were announced"))
    }
}
