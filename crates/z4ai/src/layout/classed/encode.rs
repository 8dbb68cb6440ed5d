//! Encodes a chunk of bytes in the classed layout: chooses between classes, contexts of the byte before or above, and both
//! axes, as thoroughly as the effort says.

use super::cells::{PER_CELL, cells_of, find_cells, magnitudes_of, values_of};
use super::{Classed, for_each_turned};
use crate::coder::tans::{Described, order_one, pooled};
use crate::coder::{EncodeScratch, choose};
use crate::element::Kind;
use crate::estimate::cost::{self, BIT};
use crate::kernel::histogram;
use crate::kernel::scale_classes::{self, CellMap, SLACK};
use crate::layout::ChunkLayout;
use crate::layout::split::classes::{self, Hint, Price};
use crate::layout::split::encode::SplitEncoder;
use crate::memory::grow;
use crate::options::{Effort, Options};

/// What classes must save, and how often rows move to a better one. (case: `codec.py table`, fp8)
const PRICE: Price = Price { must_save: 1, moves: 3, per_class: classes::PER_CLASS };
/// Contexts of neighbours replace classes where they save one part in this many. (case: `entropy.py`, fp8)
const MIN_ORDER_SAVING: u64 = 100;
/// Columns of the blocks that have a scale each in checkpoints of fp8, so that parts of rows as long have a scale. (case: `entropy.py`, fp8
/// per block: layers are up to 1.8 % smaller)
const TILE: usize = 128;
/// Bits of the mantissa from which on the default effort looks for classes of one axis only. (case: `entropy.py`, fp8: e4m3
/// compresses at 1.7 to 2.9 x the speed; e5m2 would be 0.1 to 1.0 % larger, and larger than with zstd)
const MIN_QUICK_MANTISSA: u32 = 3;
/// As [`PRICE`], of a quick search: a class must save 1 %, for it takes a third longer to encode. (case: `entropy.py`, fp8; with
/// half, e4m3 is up to 0.5 % smaller and compresses at 0.8 to 0.9 of the speed; without moves, up to 0.5 % larger and at 1.05 to 1.15)
const QUICK_PRICE: Price = Price { must_save: 4, moves: 1, per_class: PER_CELL };
/// A quick search is ruled out by one in this many rows. (case: `entropy.py`, fp8; with twice as many, words are 1.4 % larger)
const PART_STRIDE: usize = 4;
/// Classes of the other axis are looked for where those of one save one part in this many. (case: `entropy.py`, fp8; with half, one
/// model is 0.4 % larger)
const MIN_SAVING_OF_ONE: u64 = 64;
/// The other axis has classes where they save one part in this many more. (case: `entropy.py`, fp8; with a quarter, words are 1.8 % larger,
/// with all that save anything 0.6 % smaller and compress at 0.9 of the speed)
const MIN_SAVING_OF_OTHER: u64 = 256;
/// Contexts of the byte before are tried where it explains one part in this many of the variance, and no classes where these contexts
/// save one. (case: `entropy.py`, fp8; where they save half of it, convolutions are up to 1.9 % larger and compress at 1.1 of the speed)
const MIN_ORDERED: i64 = 32;
/// Columns are tried where bytes explain one part in this many of the variance of those below them. (unmeasured: chance explains one in
/// `SAMPLE`)
const MIN_EXPLAINED: i64 = 16;

/// Whether bytes may have classes, or contexts of the bytes before.
pub(crate) fn is_wanted(options: &Options) -> bool {
    options.kind.is_float() && options.effort > Effort::Fast && !options.dense
}

/// Appends `content` in classes of rows and columns, or in contexts of the bytes before, if such are found that pay. `counts`
/// are its [`histogram::halved`].
pub(crate) fn encode(
    content: &[u8],
    counts: &[u32; 256],
    options: &Options,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<ChunkLayout> {
    let (kind, entropy, len) = (options.kind, cost::entropy(counts), content.len() as u64);
    grow(&mut scratch.codes, content.len() + SLACK);
    let by_default = options.effort == Effort::Default;
    let in_tiles = |row: &&usize| !by_default && row.is_multiple_of(TILE) && hint.searched;
    let tile = hint.periods.last().filter(in_tiles).map(|_| TILE);
    if by_default && entropy < choose::MIN_FINE_BITS * len {
        encode_apart(content, hint, scratch, payload)
    } else if by_default && mantissa_bits(kind) >= MIN_QUICK_MANTISSA {
        encode_quickly(content, entropy, kind, hint, scratch, payload)
    } else {
        encode_thoroughly(content, entropy, kind, hint, tile, scratch, payload)
    }
}

/// Bits below sign and exponent of a float of one byte.
fn mantissa_bits(kind: Kind) -> u32 {
    7 - kind.exponent_bits()
}

/// Classes of rows or of columns, each with a stream of its own.
fn encode_apart(
    content: &[u8],
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<ChunkLayout> {
    let SplitEncoder { codes, runs, coder, .. } = scratch;
    let magnitudes = &mut codes[..content.len()];
    magnitudes_of(content, magnitudes);
    let map = classes::find(magnitudes, &classes::periods_of(magnitudes, hint), PRICE)?;
    magnitudes.copy_from_slice(content);
    let sizes = map.sizes(content.len());
    runs.resize_with(runs.len().max(map.count()), Vec::new);
    runs.iter_mut().zip(sizes).take(map.count()).for_each(|(run, size)| grow(run, size + SLACK));
    scale_classes::scatter(&map, codes, content.len(), &mut runs[..map.count()]);
    let codes = runs[..map.count()].iter().zip(sizes).map(|(run, size)| {
        let counts = histogram::halved(&run[..size], &mut coder.pairs);
        choose::encode_codes(&run[..size], &counts, Effort::Default, payload, coder)
    });
    let codes = codes.collect();
    Some(ChunkLayout::Classed(Classed::Apart(map, codes)))
}

/// Contexts of the byte before or above, or classes of one axis, if samples say that they pay.
fn encode_quickly(
    content: &[u8],
    entropy: u64,
    kind: Kind,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<ChunkLayout> {
    let SplitEncoder { codes, coder, .. } = scratch;
    let ordered = &mut codes[..content.len()];
    let plain = entropy / (8 * BIT);
    let before = match follows(content, 1, MIN_ORDERED) {
        true => contexts_below(plain, content, Effort::Default),
        false => None,
    };
    let much = plain - plain / MIN_ORDERED as u64;
    if let Some(contexts) = before.as_ref().filter(|contexts| contexts.cost < much) {
        return Some(ChunkLayout::Opaque(choose::encode_order_one(content, contexts, payload, coder)));
    }
    let found = find_quickly(content, entropy, hint, ordered);
    let saved = found.as_ref().map_or(0, |(saved, _)| *saved);
    let cost = entropy.saturating_sub(saved) / (8 * BIT);
    if let Some(contexts) = before.filter(|contexts| saves_enough(contexts, cost)) {
        return Some(ChunkLayout::Opaque(choose::encode_order_one(content, &contexts, payload, coder)));
    }
    let turned = encode_turned(content, hint, cost, Effort::Default, ordered, payload, coder);
    if turned.is_some() {
        return turned;
    }
    let (_, cells) = found.filter(|(_, cells)| are_several(cells))?;
    Some(encode_cells(content, cells, kind, scratch, payload))
}

/// Classes of rows or of columns, by magnitude or by value, whichever save more, and of both where those of one save much; and
/// what they save, about, in units of [`BIT`]. `ordered` is scratch.
fn find_quickly(content: &[u8], entropy: u64, hint: &Hint, ordered: &mut [u8]) -> Option<(u64, CellMap)> {
    // Whole rows from the middle.
    let row = hint.periods.last().copied().unwrap_or(1);
    let len = content.len() / PART_STRIDE / row * row;
    let start = (content.len() - len) / 2 / row * row;
    let part = start..start + len;
    let mut find = |order: fn(&[u8], &mut [u8])| {
        order(&content[part.clone()], &mut ordered[..part.len()]);
        let some = &ordered[..part.len()];
        let mut periods = classes::periods_of(some, hint);
        periods.retain(|&period| classes::is_open(some, period, content.len(), QUICK_PRICE));
        if periods.is_empty() {
            return None;
        }
        order(content, ordered);
        classes::find_saving(ordered, &periods, QUICK_PRICE)
    };
    let found = [find(magnitudes_of), find(values_of)];
    let (saved, map) = found.into_iter().flatten().max_by_key(|(saved, _)| *saved)?;
    let mut other = None;
    if saved * MIN_SAVING_OF_ONE > entropy {
        magnitudes_of(content, ordered);
        let least = (entropy / MIN_SAVING_OF_OTHER) as i64;
        other = classes::find_along(ordered, !map.columns, map.period, QUICK_PRICE, least);
    }
    let (more, other) = other.unzip();
    Some((saved + more.unwrap_or(0), cells_of(content.len(), &map, other.as_ref())))
}

/// Classes of rows and of columns, or contexts, whichever is smallest. Parts of rows as long as a `tile` may have classes, too.
fn encode_thoroughly(
    content: &[u8],
    entropy: u64,
    kind: Kind,
    hint: &Hint,
    tile: Option<usize>,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<ChunkLayout> {
    let SplitEncoder { codes, coder, .. } = scratch;
    let magnitudes = &mut codes[..content.len()];
    magnitudes_of(content, magnitudes);
    let periods = classes::periods_of(magnitudes, hint);
    let mut cells = find_cells(content, magnitudes, &periods);
    if let Some(tile) = tile.filter(|tile| !periods.contains(tile)) {
        magnitudes_of(content, magnitudes);
        let of_tiles = find_cells(content, magnitudes, &[tile]);
        cells = [cells, of_tiles].into_iter().flatten().min_by_key(|(cost, _)| *cost);
    }
    let cost = cells.as_ref().map_or(entropy / (8 * BIT), |(cost, _)| *cost);
    if let Some(contexts) = contexts_below(cost, content, Effort::Balanced) {
        return Some(ChunkLayout::Opaque(choose::encode_order_one(content, &contexts, payload, coder)));
    }
    let turned = encode_turned(content, hint, cost, Effort::Balanced, magnitudes, payload, coder);
    if turned.is_some() {
        return turned;
    }
    let (_, cells) = cells.filter(|(_, cells)| are_several(cells))?;
    Some(encode_cells(content, cells, kind, scratch, payload))
}

/// Whether there are several classes: all rows and columns may have moved to one, which is no layout.
fn are_several(cells: &CellMap) -> bool {
    cells.counts() != [1, 1]
}

/// Appends `content` in these classes.
fn encode_cells(
    content: &[u8],
    cells: CellMap,
    kind: Kind,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> ChunkLayout {
    let SplitEncoder { codes, runs, coder, .. } = scratch;
    codes[..content.len()].copy_from_slice(content);
    let sizes = cells.sizes(content.len());
    runs.resize_with(runs.len().max(sizes.len()), Vec::new);
    runs.iter_mut().zip(&sizes).for_each(|(run, &size)| grow(run, size + SLACK));
    scale_classes::scatter_cells(&cells, codes, content.len(), &mut runs[..sizes.len()]);
    let runs: Vec<&[u8]> = runs.iter().zip(&sizes).map(|(run, &size)| &run[..size]).collect();
    let described = Described::PackedFloats(mantissa_bits(kind));
    let pooled = pooled::encode(&runs, described, &mut coder.numbered, payload, &mut coder.tans);
    ChunkLayout::Classed(Classed::Cells(cells, pooled))
}

/// Appends `content` in the order of columns and in contexts of the bytes above, if this takes less than `cost` bytes.
fn encode_turned(
    content: &[u8],
    hint: &Hint,
    cost: u64,
    effort: Effort,
    turned: &mut [u8],
    payload: &mut Vec<u8>,
    coder: &mut EncodeScratch,
) -> Option<ChunkLayout> {
    let &period =
        hint.periods.iter().find(|&&period| hint.searched && follows(content, period, MIN_EXPLAINED))?;
    for_each_turned(content.len(), period, |place, of_rows| turned[place] = content[of_rows]);
    let contexts = contexts_below(cost, turned, effort)?;
    let stream = choose::encode_order_one(turned, &contexts, payload, coder);
    Some(ChunkLayout::Classed(Classed::Turned(period, stream)))
}

/// What bytes stand for: magnitudes are logarithms of values, which is all that is needed to order them.
const VALUES: [i32; 256] = {
    let (mut values, mut byte) = ([0; 256], 0);
    while byte < 256 {
        values[byte] = if byte < 128 { byte as i32 } else { 128 - byte as i32 };
        byte += 1;
    }
    values
};

/// The cheapest contexts of the bytes before, if bytes take less than `cost` in them.
fn contexts_below(cost: u64, content: &[u8], effort: Effort) -> Option<order_one::Choice> {
    let contexts = order_one::choose(content, &VALUES, order_one::Alphabet::Many, effort)?;
    saves_enough(&contexts, cost).then_some(contexts)
}

/// Whether these contexts are worth it beside something else that takes `cost` bytes.
fn saves_enough(contexts: &order_one::Choice, cost: u64) -> bool {
    contexts.cost < cost - cost / MIN_ORDER_SAVING
}

/// Whether bytes tell something of those `period` after them: by a sample of both.
fn follows(content: &[u8], period: usize, min_explained: i64) -> bool {
    /// Bytes sampled. (unmeasured)
    const SAMPLE: usize = 1 << 11;
    if content.len() < 4 * period || content.len() < 2 * SAMPLE {
        return false;
    }
    // Odd, lest it be in step with rows.
    let step = ((content.len() - period) / SAMPLE) | 1;
    // Products of centred values: both samples have one mean, nearly, which is small.
    let (mut both, mut squares) = (0i64, 0i64);
    for (&above, &below) in content.iter().zip(&content[period..]).step_by(step) {
        let [above, below] = [above, below].map(|byte| i64::from(VALUES[usize::from(byte)]));
        both += above * below;
        squares += above * above + below * below;
    }
    // The square of the correlation.
    4 * both * both * min_explained > squares * squares
}
