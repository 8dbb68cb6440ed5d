//! Structured chunks: few values, mostly one value, or integers of a small range.
//!
//! A sample rules candidates out; the others are encoded, and the smallest is kept.

use crate::coder::choose::{self, encode_bytes, encode_indices};
use crate::coder::{Coder, EncodeScratch};
use crate::estimate::probe::{Sample, Sketch};
use crate::kernel::difference;
use crate::kernel::sparse::{for_bytes, gather, load, take_signs};
use crate::layout::grouped::{self, Grouped};
use crate::layout::palette::encode::Lookup;
use crate::layout::range::{RangeLayout, shift};
use crate::layout::sparse::Sparse;
use crate::layout::split::classes::Hint;
use crate::layout::{ChunkLayout, palette, split};
use crate::options::{Effort, Options};
use crate::search::dense;

/// Sampled runs of a chunk, and elements in each. (flat, 0.15 %)
const SAMPLE_RUNS: usize = 8;
const SAMPLE_RUN: usize = 64;

/// Buffers that encoding reuses.
#[derive(Default)]
pub(crate) struct StructureScratch {
    /// The payload of a candidate.
    candidate: Vec<u8>,
    mask: Vec<u8>,
    values: Vec<u8>,
    signs: Vec<u8>,
    groups: grouped::encode::Groups,
    planes: [Vec<u8>; 2],
}

/// An encoding of a chunk.
pub(crate) struct Candidate<'a> {
    pub(crate) layout: ChunkLayout,
    pub(crate) payload: &'a mut Vec<u8>,
    /// The start of its payload.
    pub(crate) start: usize,
}

impl Candidate<'_> {
    /// Whether the palette is needed to decode this.
    pub(crate) fn uses_palette(&self) -> bool {
        match &self.layout {
            ChunkLayout::Indexed(_) => true,
            ChunkLayout::Sparse(sparse) => matches!(sparse.values.as_deref(), Some(ChunkLayout::Indexed(_))),
            _ => false,
        }
    }

    /// The bytes that this takes.
    pub(crate) fn cost(&self, content: &[u8]) -> usize {
        cost(&self.layout, &self.payload[self.start..], content)
    }

    /// Takes a smaller candidate over.
    pub(crate) fn improve(&mut self, content: &[u8], layout: ChunkLayout, payload: &[u8]) {
        if cost(&layout, payload, content) < self.cost(content) {
            self.layout = layout;
            self.payload.truncate(self.start);
            self.payload.extend_from_slice(payload);
        }
    }
}

fn cost(layout: &ChunkLayout, payload: &[u8], content: &[u8]) -> usize {
    let mut description = Vec::new();
    layout.write(&mut description);
    // The payload of a raw layout has not been appended yet.
    let stored = if *layout == ChunkLayout::Opaque(Coder::Raw) { content.len() } else { payload.len() };
    description.len() + stored
}

/// Whether to look for structure at all.
pub(crate) fn wanted(options: &Options) -> bool {
    options.structure && !options.dense && options.effort > Effort::Fast
}

/// Replaces `best`, an encoding of `content`, by the smallest that its structure allows.
pub(crate) fn improve(
    best: &mut Candidate<'_>,
    content: &[u8],
    options: &Options,
    hint: &Hint,
    lookup: Option<&Lookup>,
    split: &mut split::encode::SplitEncoder,
    scratch: &mut StructureScratch,
) {
    let size = options.kind.size();
    if !content.len().is_multiple_of(size) || content.is_empty() {
        return;
    }
    few_values(best, content, options, lookup, &mut split.coder, scratch);
    if lookup.is_none()
        && size > 1
        && let Some((_, length)) = grouped::encode::find(content, size, hint)
    {
        groups(best, content, length, options, split, scratch);
    }
    // A code of one bit is all that a frequent byte takes; wider elements have more to lose.
    let needed = |taken: usize| if size == 1 { taken / 2 } else { taken / 12 };
    let sketch = Sketch::of(content, size, SAMPLE_RUNS, SAMPLE_RUN);
    if sketch.most() > needed(sketch.taken) {
        let sample = Sample::of(content, size, SAMPLE_RUNS, SAMPLE_RUN);
        let (fill, share) = sample.most_frequent();
        if share > needed(sample.taken) {
            sparse(best, content, fill, options, lookup, split, scratch);
        }
    }
}

/// Candidates that depend on no sample.
fn few_values(
    best: &mut Candidate<'_>,
    content: &[u8],
    options: &Options,
    lookup: Option<&Lookup>,
    coder: &mut EncodeScratch,
    scratch: &mut StructureScratch,
) {
    let mut candidate = std::mem::take(&mut scratch.candidate);
    if let Some(lookup) = lookup {
        candidate.clear();
        if let Some(indexed) =
            palette::encode::encode(content, lookup, options, &mut scratch.planes, &mut candidate, coder)
        {
            best.improve(content, ChunkLayout::Indexed(indexed), &candidate);
        }
    }
    if !options.kind.is_float() && options.kind.size() > 1 {
        let (base, bytes) = range_of(content, options.kind.size());
        if bytes < options.kind.size() {
            candidate.clear();
            let range = encode_range(content, options.kind.size(), base, scratch, &mut candidate, coder);
            best.improve(content, ChunkLayout::Range(range), &candidate);
        }
    }
    scratch.candidate = candidate;
}

/// The smallest of integers that are taken as signed, and the bytes of their largest distance
/// from it.
fn range_of(elements: &[u8], size: usize) -> (u64, usize) {
    let unused = 64 - 8 * size as u32;
    let signed = |element| (load(element) << unused) as i64 >> unused;
    let numbers = elements.chunks_exact(size).map(signed);
    let (least, most) = numbers.fold((i64::MAX, i64::MIN), |(a, b), n| (a.min(n), b.max(n)));
    let widest = most.wrapping_sub(least) as u64;
    (least as u64, (u64::BITS - widest.leading_zeros()).div_ceil(8) as usize)
}

fn encode_range(
    elements: &[u8],
    size: usize,
    base: u64,
    scratch: &mut StructureScratch,
    payload: &mut Vec<u8>,
    coder: &mut EncodeScratch,
) -> RangeLayout {
    let [distances, plane] = &mut scratch.planes;
    distances.clear();
    distances.extend_from_slice(elements);
    for_bytes!(size, shift(distances, base.wrapping_neg()));
    plane.resize(elements.len() / size, 0);
    let planes = (0..size).map(|byte| {
        difference::take_plane(size, distances, byte, plane);
        choose::encode(plane, payload, coder)
    });
    RangeLayout { base, planes: planes.collect() }
}

/// Appends `values`, which have no rows or columns, to `payload` in a layout without one inside.
fn encode_inner(
    values: &[u8],
    options: &Options,
    lookup: Option<&Lookup>,
    split: &mut split::encode::SplitEncoder,
    scratch: &mut StructureScratch,
    payload: &mut Vec<u8>,
) -> Box<ChunkLayout> {
    let hint = Hint::default();
    let mut stored = Vec::new();
    let layout = dense(values, options, &hint, split, &mut stored);
    let mut inner = Candidate { layout, payload: &mut stored, start: 0 };
    few_values(&mut inner, values, options, lookup, &mut split.coder, scratch);
    match inner.layout {
        ChunkLayout::Opaque(Coder::Raw) => payload.extend_from_slice(values),
        _ => payload.extend_from_slice(inner.payload),
    }
    Box::new(inner.layout)
}

fn sparse(
    best: &mut Candidate<'_>,
    content: &[u8],
    fill: u64,
    options: &Options,
    lookup: Option<&Lookup>,
    split: &mut split::encode::SplitEncoder,
    scratch: &mut StructureScratch,
) {
    let size = options.kind.size();
    let count = content.len() / size;
    let (mut mask, mut values) = (std::mem::take(&mut scratch.mask), std::mem::take(&mut scratch.values));
    mask.resize(count.div_ceil(8), 0);
    values.resize(content.len() + size, 0);
    // Floats of either sign are one value: weights times a mask leave negative zeros.
    let sign = if options.kind.is_float() { 1 << (8 * size - 1) } else { 0 };
    let present = gather(size, content, fill, !sign, &mut mask, &mut values);
    let mut payload = Vec::new();
    let mut sparse =
        Sparse { size, fill, present: present as u32, mask: Coder::Constant(0), signs: None, values: None };
    if present > 0 {
        sparse.mask = encode_bytes(&mask, options, &mut payload, &mut split.coder);
    }
    if sign != 0 && take_signs(size, &mask, content, fill, &mut scratch.signs) {
        sparse.signs = Some(encode_bytes(&scratch.signs, options, &mut payload, &mut split.coder));
    }
    if present > 0 {
        let others = &values[..present * size];
        sparse.values = Some(encode_inner(others, options, lookup, split, scratch, &mut payload));
    }
    best.improve(content, ChunkLayout::Sparse(sparse), &payload);
    (scratch.mask, scratch.values) = (mask, values);
}

fn groups(
    best: &mut Candidate<'_>,
    content: &[u8],
    length: usize,
    options: &Options,
    split: &mut split::encode::SplitEncoder,
    scratch: &mut StructureScratch,
) {
    let size = options.kind.size();
    let mut groups = std::mem::take(&mut scratch.groups);
    if grouped::encode::list(content, size, length, &mut groups) {
        let mut payload = Vec::new();
        let counts = choose::encode(&groups.counts, &mut payload, &mut split.coder);
        let values = encode_inner(&groups.values, options, None, split, scratch, &mut payload);
        let indices = encode_indices(&groups.indices, options, &mut payload, &mut split.coder);
        let total = (groups.values.len() / size) as u32;
        let layout = Grouped { size, group: length as u32, total, counts, values, indices };
        best.improve(content, ChunkLayout::Grouped(layout), &payload);
    }
    scratch.groups = groups;
}
