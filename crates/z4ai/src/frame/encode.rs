//! Encodes a frame: plans chunks, searches long-range matches, encodes chunks in parallel.

use std::cell::Cell;
use std::sync::OnceLock;

use twox_hash::XxHash3_64;

use crate::coder::Coder;
use crate::error::Result;
use crate::frame::matches::Match;
use crate::frame::plan::{MIN_CHUNK, Plan};
use crate::frame::{self, chunks, match_finder};
use crate::kernel::xxh3;
use crate::layout::blocks;
use crate::layout::leveled;
use crate::layout::split;
use crate::layout::split::classes::Hint;
use crate::layout::{ChunkLayout, palette};
use crate::options::{Effort, Options};
use crate::reused::{Last, Reusable, Reused};
use crate::search::{self, structure};
use crate::simd::prefetch::{CACHE_LINE, Hint as CacheHint, Prefetcher, prefetch};
use crate::{memory, parallel};

/// Factor on the chunk length for palette indices: they are small and decode fast. (case:
/// `structure.py`)
const PALETTE_CHUNK_FACTOR: usize = 16;
/// Bytes that are hashed while half as many are prefetched. (case: `codec.py`, compress)
const HASH_PART: usize = 2 * xxh3::HASH_BLOCK;
/// Content per context-modelled chunk, about: tables take a thousandth of that. (case: `codec.py`,
/// effort max)
const CONTEXT_CHUNK: usize = 2 << 20;
/// What a frame adds to incompressible data: header, checksum and the largest array description.
/// (format)
pub(crate) const OVERHEAD: usize = 32 + 8 + 1 + 255 + 1 + 255 * 8;
/// What a chunk adds: its description when it is stored as it is. (format)
const OVERHEAD_PER_CHUNK: usize = 14;

/// The largest frame that `len` bytes of data can become.
pub(crate) fn max_len(len: usize) -> usize {
    // But for the last and a tail.
    let chunks = len / MIN_CHUNK + 2;
    len.saturating_add(OVERHEAD + chunks * OVERHEAD_PER_CHUNK)
}

/// Encodes `data` into `out`, which is cleared first.
pub(crate) fn into(data: &[u8], options: &Options, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    options.check()?;
    let mut plan = Plan::new(data.len(), options)?;
    memory::reserve(out, max_len(data.len()))?;
    if !structure::wanted(options) || options.blocks.is_some() {
        return body(data, &[], plan, options, None, out).map(drop);
    }
    // Most data has no long matches, so that its chunks are encoded while they are searched.
    let found = OnceLock::new();
    let probe = || found.get_or_init(|| match_finder::find(data, options.kind.size())).is_empty();
    if body(data, &[], plan.clone(), options, Some(&probe), out)? {
        return Ok(());
    }
    out.clear();
    let copies = found.into_inner().unwrap_or_default();
    let Some(literals) = match_finder::literals(data, &copies) else {
        return body(data, &[], plan, options, None, out).map(drop);
    };
    plan.shorten(literals.len(), options);
    body(&literals, &copies, plan, options, None, out)?;
    options.advance(data.len() - literals.len())
}

/// Encodes a frame whose content is `literals` and matches (`copies`) of them, unless `probe`
/// returns `false` meanwhile; returns whether the frame is complete.
fn body(
    literals: &[u8],
    copies: &[Match],
    mut plan: Plan,
    options: &Options,
    mut probe: Option<&chunks::Probe<'_>>,
    out: &mut Vec<u8>,
) -> Result<bool> {
    // A single thread runs the probe first.
    if parallel::workers(options.threads, plan.chunk_count()) == 1
        && let Some(probe) = probe.take()
        && !probe()
    {
        return Ok(false);
    }
    let (mut palette, mut shared) = (None, Vec::new());
    if structure::wanted(options)
        && options.blocks.is_none()
        && let Some((lookup, bytes)) = palette::encode::find(literals, options, &plan.hint)
    {
        plan.chunk *= PALETTE_CHUNK_FACTOR;
        (palette, shared) = (Some(lookup), bytes);
    } else if structure::wanted(options)
        && let Some(len) = leveled::chunk_len(literals, options, &plan.hint)
    {
        plan.chunk = plan.chunk.max(len);
    }
    let content_len = literals.len() as u64 + copies.iter().map(|copy| copy.len).sum::<u64>();
    write_header(out, options, content_len)?;
    let header_len = out.len();
    let Some(encoded) = groups(literals, &plan, options, palette.as_ref(), probe, out)? else {
        return Ok(false);
    };
    let palette = if encoded.indexed { shared.as_slice() } else { &[] };
    let (descriptions, chunks) = (&encoded.descriptions, encoded.chunks);
    frame::write_index(out, header_len, &frame::Index { palette, descriptions, chunks, copies })?;
    Ok(true)
}

/// Starts a frame: everything up to the payload, lengths still open.
pub(crate) fn write_header(out: &mut Vec<u8>, options: &Options, content_len: u64) -> Result<()> {
    let magic = if options.effort > Effort::Default { frame::MAGIC_ZARA } else { frame::MAGIC_Z4AI };
    frame::write_header(out, (magic, frame::VERSION), options.kind, options.array.as_ref(), content_len)
}

/// Chunks that are encoded together.
pub(crate) fn group(plan: &Plan, options: &Options) -> usize {
    if options.effort == Effort::Max { (CONTEXT_CHUNK / plan.chunk).max(1) } else { 1 }
}

/// Encodes all chunks of `literals`; payloads are appended to `out`.
pub(crate) fn groups(
    literals: &[u8],
    plan: &Plan,
    options: &Options,
    palette: Option<&palette::encode::Lookup>,
    probe: Option<&chunks::Probe<'_>>,
    out: &mut Vec<u8>,
) -> Result<Option<chunks::Encoded>> {
    let groups = plan.groups(group(plan, options));
    let workers = parallel::workers(options.threads, groups.len());
    let encode = |Reused(scratch): &mut Reused<ChunkEncoder>, i: usize, encoded: &mut chunks::Encoded| {
        // The data that this worker will probably encode next, to prefetch.
        let next = groups.get(i + workers).map_or(&[][..], |next| &literals[plan.span(next)]);
        scratch.split.coder.prefetch = Prefetcher::at_rate(next, options.kind.size());
        scratch.encode_group(literals, plan, groups[i].clone(), options, palette, encoded);
        plan.span(&groups[i]).len()
    };
    chunks::encode_probed(options, groups.len(), out, probe, encode)
}

thread_local! {
    static LAST: Cell<Option<Box<ChunkEncoder>>> = const { Cell::new(None) };
}

impl Reusable for ChunkEncoder {
    fn last() -> &'static Last<Self> {
        &LAST
    }
}

/// Buffers of one worker.
#[derive(Default)]
struct ChunkEncoder {
    content: Vec<u8>,
    split: split::encode::SplitEncoder,
    structure: structure::StructureScratch,
    blocks: blocks::encode::BlocksEncoder,
    /// The chunks of a group, while they are compared with all of them as one.
    apart: chunks::Encoded,
}

impl ChunkEncoder {
    /// Appends some chunks to `encoded`, or all of them as one where that is smaller.
    fn encode_group(
        &mut self,
        data: &[u8],
        plan: &Plan,
        chunks: std::ops::Range<usize>,
        options: &Options,
        lookup: Option<&palette::encode::Lookup>,
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
        let layout =
            split::encode::encode_in_context(&self.content, options.kind, &plan.hint, most, split, payload);
        let mut description = Vec::new();
        if let Some(layout) = layout.map(ChunkLayout::Split) {
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

    /// Clears the content up to padding that aligns the next content, of `len` bytes, to a cache
    /// line: it is read and written by vectors of that length.
    fn start_at_line(&mut self, len: usize) {
        self.content.clear();
        self.content.reserve(len + CACHE_LINE);
        let before = self.content.as_ptr().align_offset(CACHE_LINE);
        self.content.resize(before.min(CACHE_LINE), 0);
    }

    /// Appends one chunk to `encoded`. The data is copied first, behind `content`: another thread
    /// may be changing it, and hash, histogram and code must be of the same bytes.
    fn encode(
        &mut self,
        data: &[u8],
        options: &Options,
        hint: &Hint,
        lookup: Option<&palette::encode::Lookup>,
        encoded: &mut chunks::Encoded,
    ) {
        let first = self.content.len();
        let mut hasher = xxh3::Hasher::new(data.len());
        // Prefetches the memory that the raw half of 2-byte elements will be written to. Longer
        // elements have more computation before their writes.
        let room = if options.kind.size() == 2 { encoded.payload.spare_capacity_mut() } else { &mut [] };
        let mut room = room.chunks(HASH_PART / 2);
        for part in data.chunks(HASH_PART) {
            let lines = room.next().unwrap_or_default().iter().step_by(CACHE_LINE);
            lines.for_each(|line| prefetch(line.as_ptr(), CacheHint::L2));
            hasher.write_appended(part, &mut self.content);
        }
        let content = &self.content[first..];
        let checksum = hasher.finish(content);
        let payload = &mut encoded.payload;
        let start = payload.len();
        let mut layout = match options.blocks {
            Some(block_type) => {
                let row = hint.periods.last().map_or(0, |row| row / block_type.block_bytes());
                let (scratch, coder) = (&mut self.blocks, &mut self.split.coder);
                let blocks =
                    blocks::encode::encode(content, block_type, row, options.effort, scratch, coder, payload);
                ChunkLayout::Blocks(blocks)
            }
            None => search::dense(content, options, hint, &mut self.split, payload),
        };
        let mut indexed = false;
        if structure::wanted(options) && options.blocks.is_none() {
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
        if layout == ChunkLayout::Opaque(Coder::Raw) || stored > content.len() + OVERHEAD_PER_CHUNK {
            payload.truncate(start);
            payload.extend_from_slice(content);
            descriptions.truncate(described);
            indexed = false;
            frame::write_description(descriptions, content.len(), checksum, &ChunkLayout::Opaque(Coder::Raw));
        }
        encoded.chunks += 1;
        encoded.indexed |= indexed;
    }
}
