//! The search for the smallest encoding of a chunk.

pub(crate) mod structure;

use crate::coder::Coder;
use crate::coder::choose;
use crate::kernel::histogram;
use crate::layout::ChunkLayout;
use crate::layout::split;
use crate::layout::split::classes::Hint;
use crate::layout::{classed, leveled};
use crate::options::{Effort, Options};

/// Encodes `content` without searching for structure: the split layout, or bytes. For
/// `Opaque(Raw)`, the bytes appended are unspecified.
pub(crate) fn dense(
    content: &[u8],
    options: &Options,
    hint: &Hint,
    split: &mut split::encode::SplitEncoder,
    payload: &mut Vec<u8>,
) -> ChunkLayout {
    let kind = options.kind;
    if !content.len().is_multiple_of(kind.size()) {
        ChunkLayout::Opaque(Coder::Raw)
    } else if kind.size() == 1 {
        if !classed::encode::is_wanted(options) {
            return ChunkLayout::Opaque(choose::encode_bytes(content, options, payload, &mut split.coder));
        }
        let counts = histogram::halved(content, &mut split.coder.pairs);
        if let Some(layout) = classed::encode::encode(content, &counts, options, hint, split, payload) {
            return layout;
        }
        ChunkLayout::Opaque(choose::encode_opaque(content, Some(&counts), options, payload, &mut split.coder))
    } else if options.effort <= Effort::Default {
        let start = payload.len();
        let layout =
            ChunkLayout::Split(split::encode::encode(content, kind, options.effort, hint, split, payload));
        let mut best = structure::Candidate { layout, payload, start };
        with_levels(&mut best, content, options, hint, split);
        best.layout
    } else {
        let start = payload.len();
        let layout =
            ChunkLayout::Split(split::encode::encode(content, kind, options.effort, hint, split, payload));
        let mut best = structure::Candidate { layout, payload, start };
        // The encoding of the default effort is a candidate of every later one.
        let most = best.cost(content);
        let mut plain = std::mem::take(&mut split.candidate);
        plain.clear();
        if let Some(layout) =
            split::encode::encode_below(most, content, kind, Effort::Default, hint, split, &mut plain)
        {
            best.improve(content, ChunkLayout::Split(layout), &plain);
        }
        split.candidate = plain;
        with_levels(&mut best, content, options, hint, split);
        best.layout
    }
}

/// Tries levels of rows and columns.
fn with_levels(
    best: &mut structure::Candidate<'_>,
    content: &[u8],
    options: &Options,
    hint: &Hint,
    split: &mut split::encode::SplitEncoder,
) {
    let mut candidate = std::mem::take(&mut split.candidate);
    candidate.clear();
    if let Some(leveled) = leveled::encode(content, options, hint, split, &mut candidate) {
        best.improve(content, ChunkLayout::Leveled(leveled), &candidate);
    }
    split.candidate = candidate;
}
