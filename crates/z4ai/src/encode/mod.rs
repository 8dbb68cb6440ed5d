//! Encoding: cutting data into chunks, and each chunk into its smallest layout.

mod chunks;
mod classes;
mod contexts;
mod cost;
pub(crate) mod delta;
mod differences;
mod grouped;
mod levels;
mod magnitudes;
mod palette;
mod probe;
mod repeats;
mod split;
mod stream;
mod structure;

use std::sync::OnceLock;

use twox_hash::XxHash3_64;

use crate::coder::{Coder, huffman_encode};
use crate::copies::Copy;
use crate::error::{Error, Result};
use crate::kernel::{copy, hash, histogram};
use crate::layout::Layout;
use crate::options::{Effort, Options};
use crate::{frame, memory, parallel};
use classes::Hint;
pub use stream::DEFAULT_LEVEL;

/// Decoded bytes of a usual chunk: one with its streams and scratch fits the second-level cache. No
/// power of two, lest the streams of a chunk compete for the same lines of the first-level cache.
const CHUNK: usize = 248 << 10;
/// How many times longer chunks of palette indices are: they are small and decode fast.
const CHUNKS_OF_PALETTE: usize = 16;
/// Bytes that are hashed while half as many are fetched.
const FETCHED: usize = 2 * hash::BLOCK;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that are coded in context together, about: tables take a thousandth of that.
const IN_CONTEXT: usize = 2 << 20;
/// A last chunk shorter than this share of a usual one joins the one before it.
const SHORT_LAST: usize = 8;
/// What a frame adds to incompressible data: header, checksum and the largest array description.
const OVERHEAD: usize = 32 + 8 + 1 + 255 + 1 + 255 * 8;
/// What a chunk adds: its description when it is stored as it is.
const OVERHEAD_PER_CHUNK: usize = 14;

/// The largest frame that `len` bytes of data can become.
pub(crate) fn max_len(len: usize) -> usize {
    // Chunks are at least half as long as usual, but for the last and a tail.
    let chunks = len / (CHUNK / 2) + 2;
    len.saturating_add(OVERHEAD + chunks * OVERHEAD_PER_CHUNK)
}

/// Encodes `data` into `out`, which is cleared first.
pub(crate) fn into(data: &[u8], options: &Options, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    options.check()?;
    let mut plan = Plan::new(data.len(), options)?;
    memory::reserve(out, max_len(data.len()))?;
    if !structure::wanted(options) {
        return body(data, &[], plan, options, None, out).map(drop);
    }
    // Most data repeats nothing, so its chunks are encoded while that is found out.
    let found = OnceLock::new();
    let look = || found.get_or_init(|| repeats::find(data, options.kind.size())).is_empty();
    if body(data, &[], plan.clone(), options, Some(&look), out)? {
        return Ok(());
    }
    out.clear();
    let copies = found.into_inner().unwrap_or_default();
    let Some(literals) = repeats::literals(data, &copies) else {
        return body(data, &[], plan, options, None, out).map(drop);
    };
    plan.shorten(literals.len(), options);
    body(&literals, &copies, plan, options, None, out)?;
    options.advance(data.len() - literals.len())
}

/// Encodes all of a frame whose content is `literals` and `copies` of them, unless what `look` finds
/// meanwhile makes it answer `false`; returns whether it did.
fn body(
    literals: &[u8],
    copies: &[Copy],
    mut plan: Plan,
    options: &Options,
    mut look: Option<&chunks::Look<'_>>,
    out: &mut Vec<u8>,
) -> Result<bool> {
    // One thread had better look before anything else.
    if parallel::workers(options.threads, plan.chunk_count()) == 1
        && let Some(look) = look.take()
        && !look()
    {
        return Ok(false);
    }
    let (mut palette, mut shared) = (None, Vec::new());
    if structure::wanted(options)
        && let Some((lookup, bytes)) = palette::find(literals, options, &plan.hint)
    {
        plan.chunk *= CHUNKS_OF_PALETTE;
        (palette, shared) = (Some(lookup), bytes);
    }
    let content_len = literals.len() as u64 + copies.iter().map(|copy| copy.len).sum::<u64>();
    let array = options.array.as_ref();
    let magic = if options.effort > Effort::Default { frame::MAGIC_ZARA } else { frame::MAGIC_Z4AI };
    let format = (magic, frame::VERSION);
    frame::write_header(out, format, options.kind, array, content_len)?;
    let header_len = out.len();
    let group = if options.effort == Effort::Max { (IN_CONTEXT / plan.chunk).max(1) } else { 1 };
    let groups = plan.groups(group);
    let workers = parallel::workers(options.threads, groups.len());
    let encode = |scratch: &mut Scratch, i: usize, encoded: &mut chunks::Encoded| {
        // What this worker will probably need next.
        let next = groups.get(i + workers).map_or(&[][..], |next| &literals[plan.span(next)]);
        huffman_encode::fetch_meanwhile(next, options.kind.size());
        scratch.encode_group(literals, &plan, groups[i].clone(), options, palette.as_ref(), encoded);
        plan.span(&groups[i]).len()
    };
    let Some(encoded) = chunks::encode_and_look(options, groups.len(), out, look, encode)? else {
        return Ok(false);
    };
    let palette = if encoded.indexed { shared.as_slice() } else { &[] };
    let (descriptions, chunks) = (&encoded.descriptions, encoded.chunks);
    frame::write_index(out, header_len, &frame::Index { palette, descriptions, chunks, copies })?;
    Ok(true)
}

/// Where data is cut.
#[derive(Clone)]
struct Plan {
    /// Bytes of whole elements.
    whole: usize,
    /// Bytes of all the data.
    len: usize,
    /// Bytes per chunk.
    chunk: usize,
    hint: Hint,
}

impl Plan {
    fn new(len: usize, options: &Options) -> Result<Self> {
        let size = options.kind.size();
        let whole = len / size * size;
        let fits = |shape: &[u64]| {
            let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            count.and_then(|n| n.checked_mul(size as u64)) == Some(len as u64)
        };
        let shape = if !options.shape.is_empty() {
            if !fits(&options.shape) {
                return Err(Error::invalid(format_args!(
                    "{len} bytes are no tensor of shape {:?} and type {}",
                    options.shape,
                    options.kind.name()
                )));
            }
            options.shape.as_slice()
        } else {
            match &options.array {
                // Its elements need not be of the kind that the data is coded as.
                Some(array) if fits(&array.shape) => array.shape.as_slice(),
                _ => &[],
            }
        };
        let usual = CHUNK / size;
        let mut hint = Hint { searched: options.structure, ..Hint::default() };
        let mut period = 1;
        // No data has no rows either, and its dimensions need not even multiply.
        let shape = if len == 0 { &[] } else { shape };
        for &dimension in shape.iter().skip(1).rev() {
            period *= dimension as usize;
            if dimension > 1 && period <= usual / 4 {
                hint.periods.push(period);
            }
        }
        hint.shaped = !shape.is_empty();
        let row = hint.periods.last().copied().unwrap_or(1);
        Ok(Self { whole, len, chunk: usual / row * row * size, hint })
    }

    /// Cuts only `len` bytes of the same elements.
    fn shorten(&mut self, len: usize, options: &Options) {
        let size = options.kind.size();
        (self.len, self.whole) = (len, len / size * size);
    }

    fn chunk_count(&self) -> usize {
        self.whole_chunks() + usize::from(self.whole < self.len)
    }

    /// All chunks, up to so many at a time; what is left of an element stays alone.
    fn groups(&self, most: usize) -> Vec<std::ops::Range<usize>> {
        let whole = self.whole_chunks();
        let groups = (0..whole).step_by(most).map(|first| first..(first + most).min(whole));
        groups.chain((whole < self.chunk_count()).then_some(whole..whole + 1)).collect()
    }

    /// The bytes of these chunks.
    fn span(&self, chunks: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        self.chunk(chunks.start).start..self.chunk(chunks.end - 1).end
    }

    /// Chunks of whole elements.
    fn whole_chunks(&self) -> usize {
        let (full, rest) = (self.whole / self.chunk, self.whole % self.chunk);
        if rest > self.chunk / SHORT_LAST || full == 0 && rest > 0 { full + 1 } else { full }
    }

    fn chunk(&self, index: usize) -> std::ops::Range<usize> {
        let last = self.whole_chunks();
        if index == last {
            return self.whole..self.len;
        }
        let end = if index + 1 == last { self.whole } else { (index + 1) * self.chunk };
        index * self.chunk..end
    }
}

/// Buffers of one worker.
#[derive(Default)]
struct Scratch {
    content: Vec<u8>,
    split: split::Scratch,
    structure: structure::Scratch,
    /// The chunks of a group, while they are compared with all of them as one.
    apart: chunks::Encoded,
}

impl Scratch {
    /// Appends some chunks to `encoded`, or all of them as one where that is smaller.
    fn encode_group(
        &mut self,
        data: &[u8],
        plan: &Plan,
        chunks: std::ops::Range<usize>,
        options: &Options,
        lookup: Option<&palette::Lookup>,
        encoded: &mut chunks::Encoded,
    ) {
        if options.effort < Effort::Max {
            for chunk in chunks {
                self.start_at_line(plan.chunk(chunk).len());
                self.encode(&data[plan.chunk(chunk)], options, &plan.hint, lookup, encoded);
            }
            return;
        }
        let mut apart = std::mem::take(&mut self.apart);
        apart.clear();
        self.content.clear();
        let most = plan.span(&chunks).len();
        self.content.reserve(most);
        apart.payload.reserve(most);
        for chunk in chunks.clone() {
            self.encode(&data[plan.chunk(chunk)], options, &plan.hint, lookup, &mut apart);
        }
        let most = apart.payload.len() + apart.descriptions.len();
        let (split, payload) = (&mut self.split, &mut encoded.payload);
        let start = payload.len();
        let layout = split::encode_in_context(&self.content, options.kind, &plan.hint, most, split, payload);
        let mut description = Vec::new();
        if let Some(layout) = layout.map(Layout::Split) {
            let checksum = XxHash3_64::oneshot(&self.content);
            frame::write_description(&mut description, self.content.len(), checksum, &layout);
        }
        if !description.is_empty() && payload.len() - start + description.len() < most {
            encoded.descriptions.extend_from_slice(&description);
            encoded.chunks += 1;
        } else {
            payload.truncate(start);
            encoded.append(&apart);
        }
        self.apart = apart;
    }

    /// Leaves no content but what makes the next, of `len` bytes, start with a cache line: it is read and
    /// written by vectors that long.
    fn start_at_line(&mut self, len: usize) {
        self.content.clear();
        self.content.reserve(len + LINE);
        let before = self.content.as_ptr().align_offset(LINE);
        self.content.resize(before.min(LINE), 0);
    }

    /// Appends one chunk to `encoded`. The data is copied first, behind what `content` has: another thread may be changing it, and
    /// what is hashed, counted and coded must be the same bytes.
    fn encode(
        &mut self,
        data: &[u8],
        options: &Options,
        hint: &Hint,
        lookup: Option<&palette::Lookup>,
        encoded: &mut chunks::Encoded,
    ) {
        let first = self.content.len();
        let mut hasher = hash::Hasher::new(data.len());
        // Meanwhile the memory that half of short elements goes to, as it is, is fetched: there is less to
        // compute until then than with longer ones.
        let room = if options.kind.size() == 2 { encoded.payload.spare_capacity_mut() } else { &mut [] };
        let mut room = room.chunks(FETCHED / 2);
        for part in data.chunks(FETCHED) {
            let lines = room.next().unwrap_or_default().iter().step_by(LINE);
            lines.for_each(|line| copy::fetch(line.as_ptr(), false));
            hasher.write_appended(part, &mut self.content);
        }
        let content = &self.content[first..];
        let checksum = hasher.finish(content);
        let payload = &mut encoded.payload;
        let start = payload.len();
        let mut layout = dense(content, options, hint, &mut self.split, payload);
        let mut indexed = false;
        if structure::wanted(options) {
            let mut best = structure::Candidate { layout, payload: &mut *payload, start };
            structure::improve(
                &mut best,
                content,
                options,
                hint,
                lookup,
                &mut self.split,
                &mut self.structure,
            );
            indexed = best.uses_palette();
            layout = best.layout;
        }
        let descriptions = &mut encoded.descriptions;
        let described = descriptions.len();
        frame::write_description(descriptions, content.len(), checksum, &layout);
        let stored = payload.len() - start + descriptions.len() - described;
        if layout == Layout::Opaque(Coder::Raw) || stored > content.len() + OVERHEAD_PER_CHUNK {
            payload.truncate(start);
            payload.extend_from_slice(content);
            descriptions.truncate(described);
            indexed = false;
            frame::write_description(descriptions, content.len(), checksum, &Layout::Opaque(Coder::Raw));
        }
        encoded.chunks += 1;
        encoded.indexed |= indexed;
    }
}

/// Appends the streams of `content`, taken as noise of some scale, to `payload` and describes
/// them; where the layout is `Opaque(Raw)`, what was appended means nothing.
fn dense(
    content: &[u8],
    options: &Options,
    hint: &Hint,
    split: &mut split::Scratch,
    payload: &mut Vec<u8>,
) -> Layout {
    let kind = options.kind;
    if !content.len().is_multiple_of(kind.size()) {
        Layout::Opaque(Coder::Raw)
    } else if kind.size() == 1 {
        Layout::Opaque(encode_bytes(content, options, payload))
    } else if options.effort <= Effort::Default {
        Layout::Split(split::encode(content, kind, options.effort, hint, split, payload))
    } else {
        let start = payload.len();
        let layout = Layout::Split(split::encode(content, kind, options.effort, hint, split, payload));
        let mut best = structure::Candidate { layout, payload, start };
        // What the default effort makes is a candidate of every later one.
        let most = best.cost(content);
        let mut plain = std::mem::take(&mut split.candidate);
        plain.clear();
        if let Some(layout) =
            split::encode_below(most, content, kind, Effort::Default, hint, split, &mut plain)
        {
            best.improve(content, Layout::Split(layout), &plain);
        }
        split.candidate = plain;
        best.layout
    }
}

fn encode_bytes(content: &[u8], options: &Options, payload: &mut Vec<u8>) -> Coder {
    match options.effort {
        Effort::Fast => stream::encode(content, payload),
        _ => stream::encode_opaque(content, options.level.unwrap_or(DEFAULT_LEVEL), payload),
    }
}

/// Appends indices into a palette.
fn encode_indices(indices: &[u8], options: &Options, payload: &mut Vec<u8>) -> Coder {
    stream::encode_codes(indices, &histogram::of_bytes(indices), options.effort, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Kind;

    #[test]
    fn chunks_tile_the_data() {
        for kind in Kind::all() {
            for len in [0, 1, 7, 8, CHUNK - 1, CHUNK + 9, CHUNK * 9 / 8 + 17, 3 * CHUNK + CHUNK / 2 + 3] {
                let options = Options { kind, ..Options::default() };
                let plan = Plan::new(len, &options).unwrap();
                let mut at = 0;
                for i in 0..plan.chunk_count() {
                    let chunk = plan.chunk(i);
                    assert_eq!(chunk.start, at);
                    assert!(chunk.end > at);
                    at = chunk.end;
                }
                assert_eq!(at, len);
                assert!(plan.chunk_count() <= len / (CHUNK / 2) + 2);
            }
        }
    }
}
