//! Chunks that are not noise: few values, mostly one value, or integers of a small range.
//!
//! A sample rules candidates out; those that remain are encoded, and the smallest is kept.

use super::palette::Lookup;
use super::probe::{Sample, Sketch};
use super::{classes::Hint, dense, encode_bytes, encode_indices, grouped, palette, split, stream};
use crate::coder::Coder;
use crate::kernel::difference;
use crate::kernel::sparse::{for_bytes, gather, load, take_signs};
use crate::layout::Layout;
use crate::layout::grouped::Grouped;
use crate::layout::range::{Range, shift};
use crate::layout::sparse::Sparse;
use crate::options::{Effort, Options};

/// Runs of elements of a chunk that are looked at, and elements in each.
const RUNS: usize = 8;
const RUN: usize = 64;

/// Buffers that encoding reuses.
#[derive(Default)]
pub(super) struct Scratch {
    /// The candidate that is made, beside the best so far.
    candidate: Vec<u8>,
    mask: Vec<u8>,
    values: Vec<u8>,
    signs: Vec<u8>,
    groups: grouped::Groups,
    planes: [Vec<u8>; 2],
}

/// A chunk in a layout, with what the layout stores.
pub(super) struct Candidate<'a> {
    pub(super) layout: Layout,
    pub(super) payload: &'a mut Vec<u8>,
    /// Where what is stored begins in the payload.
    pub(super) start: usize,
}

impl Candidate<'_> {
    /// Whether the palette is needed to decode this.
    pub(super) fn uses_palette(&self) -> bool {
        match &self.layout {
            Layout::Indexed(_) => true,
            Layout::Sparse(sparse) => matches!(sparse.values.as_deref(), Some(Layout::Indexed(_))),
            _ => false,
        }
    }

    /// The bytes that this takes.
    pub(super) fn cost(&self, content: &[u8]) -> usize {
        cost(&self.layout, &self.payload[self.start..], content)
    }

    /// Takes a smaller candidate over.
    pub(super) fn improve(&mut self, content: &[u8], layout: Layout, payload: &[u8]) {
        if cost(&layout, payload, content) < self.cost(content) {
            self.layout = layout;
            self.payload.truncate(self.start);
            self.payload.extend_from_slice(payload);
        }
    }
}

fn cost(layout: &Layout, payload: &[u8], content: &[u8]) -> usize {
    let mut description = Vec::new();
    layout.write(&mut description);
    // What is stored as it is has not been appended yet.
    let stored = if *layout == Layout::Opaque(Coder::Raw) { content.len() } else { payload.len() };
    description.len() + stored
}

/// Whether to look for structure at all.
pub(super) fn wanted(options: &Options) -> bool {
    options.structure && !options.dense && options.effort > Effort::Fast
}

/// Replaces `best`, an encoding of `content`, by the smallest that its structure allows.
pub(super) fn improve(
    best: &mut Candidate<'_>,
    content: &[u8],
    options: &Options,
    hint: &Hint,
    lookup: Option<&Lookup>,
    split: &mut split::Scratch,
    scratch: &mut Scratch,
) {
    let size = options.kind.size();
    if !content.len().is_multiple_of(size) || content.is_empty() {
        return;
    }
    few_values(best, content, options, lookup, scratch);
    if lookup.is_none()
        && size > 1
        && let Some((_, length)) = grouped::find(content, size, hint)
    {
        groups(best, content, length, options, split, scratch);
    }
    // A code of one bit is all that a frequent byte takes; wider elements have more to lose.
    let needed = |taken: usize| if size == 1 { taken / 2 } else { taken / 12 };
    let sketch = Sketch::of(content, size, RUNS, RUN);
    if sketch.most() > needed(sketch.taken) {
        let sample = Sample::of(content, size, RUNS, RUN);
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
    scratch: &mut Scratch,
) {
    let mut candidate = std::mem::take(&mut scratch.candidate);
    if let Some(lookup) = lookup {
        candidate.clear();
        if let Some(indexed) = palette::encode(content, lookup, options, &mut scratch.planes, &mut candidate)
        {
            best.improve(content, Layout::Indexed(indexed), &candidate);
        }
    }
    if !options.kind.is_float() && options.kind.size() > 1 {
        let (base, bytes) = range_of(content, options.kind.size());
        if bytes < options.kind.size() {
            candidate.clear();
            let range = encode_range(content, options.kind.size(), base, scratch, &mut candidate);
            best.improve(content, Layout::Range(range), &candidate);
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
    scratch: &mut Scratch,
    payload: &mut Vec<u8>,
) -> Range {
    let [distances, plane] = &mut scratch.planes;
    distances.clear();
    distances.extend_from_slice(elements);
    for_bytes!(size, shift(distances, base.wrapping_neg()));
    plane.resize(elements.len() / size, 0);
    let planes = (0..size).map(|byte| {
        difference::take_plane(size, distances, byte, plane);
        stream::encode(plane, payload)
    });
    Range { base, planes: planes.collect() }
}

/// Appends `values`, which have no rows or columns, to `payload` in a layout without one inside.
fn encode_inner(
    values: &[u8],
    options: &Options,
    lookup: Option<&Lookup>,
    split: &mut split::Scratch,
    scratch: &mut Scratch,
    payload: &mut Vec<u8>,
) -> Box<Layout> {
    let hint = Hint::default();
    let mut stored = Vec::new();
    let layout = dense(values, options, &hint, split, &mut stored);
    let mut inner = Candidate { layout, payload: &mut stored, start: 0 };
    few_values(&mut inner, values, options, lookup, scratch);
    match inner.layout {
        Layout::Opaque(Coder::Raw) => payload.extend_from_slice(values),
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
    split: &mut split::Scratch,
    scratch: &mut Scratch,
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
        sparse.mask = encode_bytes(&mask, options, &mut payload);
    }
    if sign != 0 && take_signs(size, &mask, content, fill, &mut scratch.signs) {
        sparse.signs = Some(encode_bytes(&scratch.signs, options, &mut payload));
    }
    if present > 0 {
        let others = &values[..present * size];
        sparse.values = Some(encode_inner(others, options, lookup, split, scratch, &mut payload));
    }
    best.improve(content, Layout::Sparse(sparse), &payload);
    (scratch.mask, scratch.values) = (mask, values);
}

fn groups(
    best: &mut Candidate<'_>,
    content: &[u8],
    length: usize,
    options: &Options,
    split: &mut split::Scratch,
    scratch: &mut Scratch,
) {
    let size = options.kind.size();
    let mut groups = std::mem::take(&mut scratch.groups);
    if grouped::list(content, size, length, &mut groups) {
        let mut payload = Vec::new();
        let counts = stream::encode(&groups.counts, &mut payload);
        let values = encode_inner(&groups.values, options, None, split, scratch, &mut payload);
        let indices = encode_indices(&groups.indices, options, &mut payload);
        let total = (groups.values.len() / size) as u32;
        let layout = Grouped { size, group: length as u32, total, counts, values, indices };
        best.improve(content, Layout::Grouped(layout), &payload);
    }
    scratch.groups = groups;
}
