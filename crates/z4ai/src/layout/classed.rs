//! The classed layout: elements of one byte, whose rows or columns have few scales.
//!
//! Floats of eight bits are all symbols. With one scale for the whole tensor, or one per block, rows and
//! columns still differ in scale, and those of similar scale share a code; or each class of rows has a code for each class
//! of columns, in streams that all of them share.
//!
//! Payload: the bytes of each class, in their order.

use crate::coder::tans::pooled::{self, Pooled};
use crate::coder::tans::{Described, order_one};
use crate::coder::{Coder, EncodeScratch, choose};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::kernel::histogram;
use crate::kernel::scale_classes::{self, CellMap, ClassMap, MAX_CLASSES, SLACK};
use crate::layout::split::classes::{self, Hint, Price};
use crate::layout::split::encode::SplitEncoder;
use crate::layout::split::{read_class_numbers, read_classes_of, write_axis, write_class_numbers};
use crate::layout::streams::Streams;
use crate::layout::{ChunkLayout, ChunkScratch};
use crate::memory::grow;
use crate::options::{Effort, Options};
use crate::wire::{Put, Reader};

/// What classes must save, and how often rows move to a better one. (case: `codec.py table`, fp8)
const PRICE: Price = Price { must_save: 1, moves: 3, per_class: classes::PER_CLASS };
/// As [`PRICE`], of classes that share their streams. (case: `entropy.py`, fp8)
const SHARED_PRICE: Price = Price { must_save: 0, moves: 3, per_class: PER_CELL };
/// The form of classes of rows and columns that share their streams. (format)
const CELLS: u8 = 4;
/// The form of bytes in the order of columns. (format)
const TURNED: u8 = 5;
/// Bytes that classes are compared by, about. (unmeasured)
const COUNTED: usize = 1 << 16;
/// What a class that shares its streams takes, about, in bytes: its shape, and what that misses of the counts. (case: `entropy.py`, fp8;
/// with 30, e4m3 is up to 0.05 % larger and decodes at 0.9 of the speed)
const PER_CELL: u64 = 80;
/// Contexts of neighbours replace classes where they save one part in this many. (case: `entropy.py`, fp8)
const MIN_ORDER_SAVING: u64 = 100;

/// Columns of the blocks that have a scale each in checkpoints of fp8, so that parts of rows as long have a scale. (case: `entropy.py`, fp8
/// per block: layers are up to 1.8 % smaller)
const TILE: usize = 128;
/// Bits of the mantissa from which on the default effort looks for classes of one axis only. (case: `entropy.py`, fp8: e4m3
/// compresses at 1.7 to 2.9 x the speed; e5m2 would be 0.1 to 1.0 % larger, and larger than with zstd)
const MIN_QUICK_MANTISSA: u32 = 3;
/// As [`SHARED_PRICE`], of a quick search: a class must save 1 %, for it takes a third longer to encode. (case: `entropy.py`, fp8; with
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

/// Classes of values are tried where they might save a bit in this many bytes. (case: `entropy.py`, fp8; with half, minilm is up to
/// 0.3 % larger; with twice, weights that they save nothing of compress at 0.75 of the speed)
const MIN_SIGNED_GAIN: u64 = 32;

/// The description of a chunk of bytes in classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Classed {
    /// Classes of rows or of columns, with a stream each.
    Apart(ClassMap, Vec<Coder>),
    /// Classes of rows and columns, which share their streams.
    Cells(CellMap, Pooled),
    /// One stream of all bytes in the order of columns; and the bytes of a row.
    Turned(usize, Coder),
}

impl Classed {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Classed::Apart(map, codes) => {
                write_axis(map, out);
                codes.iter().for_each(|coder| coder.write(out));
            }
            Classed::Cells(map, pooled) => {
                out.put_u8(CELLS);
                out.put_u32(map.period as u32);
                write_class_numbers(&map.rows, out);
                write_class_numbers(&map.columns, out);
                pooled.write(out);
            }
            Classed::Turned(period, coder) => {
                out.put_u8(TURNED);
                out.put_u32(*period as u32);
                coder.write(out);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind.size() != 1 {
            return Err(Error::corrupt(format_args!("classes of {} elements", kind.name())));
        }
        let form = reader.u8()?;
        if form == CELLS || form == TURNED {
            let period = reader.u32()? as usize;
            if period == 0 || period > len {
                return Err(Error::corrupt("scale classes that do not fit their chunk"));
            }
            if form == TURNED {
                return Ok(Classed::Turned(period, Coder::read(reader)?));
            }
            let mut numbers = |units: usize| {
                let width = reader.u8()?;
                read_class_numbers(reader, width, units)
            };
            let (rows, columns) = (numbers(len.div_ceil(period))?, numbers(period)?);
            let map = CellMap { period, rows, columns };
            let classes = map.counts().iter().product();
            if classes == 1 {
                return Err(Error::corrupt("one class that shares its streams"));
            }
            let pooled = Pooled::read(reader, classes)?;
            return Ok(Classed::Cells(map, pooled));
        }
        let Some(map) = read_classes_of(form, reader, len)? else {
            return Err(Error::corrupt("classes of neither rows nor columns"));
        };
        let codes = (0..map.count()).map(|_| Coder::read(reader)).collect::<Result<_>>()?;
        Ok(Classed::Apart(map, codes))
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        match self {
            Classed::Apart(map, codes) => {
                codes.iter().zip(map.sizes(len)).map(|(coder, size)| coder.stored_len(size)).sum()
            }
            Classed::Cells(_, pooled) => pooled.stored_len(),
            Classed::Turned(_, coder) => coder.stored_len(len),
        }
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        match self {
            Classed::Apart(map, codes) => {
                let sizes = map.sizes(len);
                codes.iter().zip(sizes).for_each(|(coder, size)| streams.add("symbols", coder, size));
            }
            Classed::Cells(_, pooled) => {
                streams.add_stored("symbols", "pooled tans", len, pooled.stored_len());
            }
            Classed::Turned(_, coder) => streams.add("columns", coder, len),
        }
    }

    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut ChunkScratch) -> Result<()> {
        let Buffers { gathered, runs } = &mut scratch.classed;
        grow(gathered, out.len() + SLACK);
        let mut payload = Reader::new(payload);
        match self {
            Classed::Apart(map, codes) => {
                for ((coder, run), size) in codes.iter().zip(&mut *runs).zip(map.sizes(out.len())) {
                    grow(run, size + SLACK);
                    let stored = usize::try_from(coder.stored_len(size))
                        .map_err(|_| Error::corrupt("a class beyond its chunk"))?;
                    coder.decode(payload.take(stored)?, &mut run[..size], &mut scratch.coder)?;
                }
                let runs: [&[u8]; MAX_CLASSES] = std::array::from_fn(|i| runs[i].as_slice());
                scale_classes::gather(map, &runs[..codes.len()], out.len(), gathered);
            }
            Classed::Cells(map, pooled) => {
                let sizes = map.sizes(out.len());
                let symbols = runs.iter_mut().zip(&sizes).map(|(run, &size)| {
                    grow(run, size + SLACK);
                    &mut run[..size]
                });
                let stored = usize::try_from(pooled.stored_len())
                    .map_err(|_| Error::corrupt("a class beyond its chunk"))?;
                pooled.decode(payload.take(stored)?, symbols.collect(), &mut scratch.coder.tans)?;
                let runs: Vec<&[u8]> = runs[..sizes.len()].iter().map(Vec::as_slice).collect();
                scale_classes::gather_cells(map, &runs, out.len(), gathered);
            }
            Classed::Turned(period, coder) => {
                let stored = usize::try_from(coder.stored_len(out.len()))
                    .map_err(|_| Error::corrupt("columns beyond their chunk"))?;
                let turned = &mut gathered[..out.len()];
                coder.decode(payload.take(stored)?, turned, &mut scratch.coder)?;
                turn_back(turned, *period, out);
                return Ok(());
            }
        }
        out.copy_from_slice(&gathered[..out.len()]);
        Ok(())
    }
}

/// Columns of a matrix that are turned together. (structural: bytes of a cache line)
const TURNED_TOGETHER: usize = 64;

/// The column and row of each byte of a matrix, in an order that touches few cache lines at a time: calls `each` with
/// its place in the order of columns and that in the order of rows.
#[inline(always)]
fn for_each_turned(len: usize, period: usize, mut each: impl FnMut(usize, usize)) {
    let (rows, rest) = (len / period, len % period);
    // Columns before `rest` have a byte more.
    let start = |column: usize| column * rows + column.min(rest);
    for columns in (0..period).step_by(TURNED_TOGETHER) {
        let columns = columns..period.min(columns + TURNED_TOGETHER);
        for first in (0..len.div_ceil(period)).step_by(TURNED_TOGETHER) {
            for column in columns.clone() {
                let end = (first + TURNED_TOGETHER).min(rows + usize::from(column < rest));
                for row in first..end {
                    each(start(column) + row, row * period + column);
                }
            }
        }
    }
}

/// Puts bytes in the order of columns into that of rows of `period` bytes.
fn turn_back(turned: &[u8], period: usize, out: &mut [u8]) {
    for_each_turned(out.len(), period, |turned_place, place| out[place] = turned[turned_place]);
}

/// Buffers that decoding reuses: the bytes, and those of each class.
#[derive(Default)]
pub(crate) struct Buffers {
    gathered: Vec<u8>,
    runs: [Vec<u8>; MAX_CLASSES * MAX_CLASSES],
}

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

/// The cheapest classes of rows of one of these lengths, of their columns, or of both; and the bytes that they take, about. `ordered`,
/// the magnitudes, is then scratch.
fn find_cells(content: &[u8], ordered: &mut [u8], periods: &[usize]) -> Option<(u64, CellMap)> {
    let map = classes::find(ordered, periods, SHARED_PRICE)?;
    let other = classes::find_other(ordered, &map, SHARED_PRICE);
    let by_magnitude = choose_cells(content, &map, other.as_ref());
    Some(choose_signed(content, ordered, &map, other.as_ref(), by_magnitude))
}

/// Magnitudes, which classes are of.
fn magnitudes_of(content: &[u8], magnitudes: &mut [u8]) {
    magnitudes.iter_mut().zip(content).for_each(|(magnitude, byte)| *magnitude = byte & 0x7f);
}

/// The places of values, from the smallest to the largest.
fn values_of(content: &[u8], places: &mut [u8]) {
    let place = |byte: u8| if byte < 128 { 128 | byte } else { !byte };
    places.iter_mut().zip(content).for_each(|(place_of, &byte)| *place_of = place(byte));
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

/// Columns are tried where bytes explain one part in this many of the variance of those below them. (unmeasured: chance explains one in
/// `SAMPLE`)
const MIN_EXPLAINED: i64 = 16;

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
        let [above, below] = [above, below].map(|byte| match i64::from(byte) {
            byte @ 0..128 => byte,
            byte => 128 - byte,
        });
        both += above * below;
        squares += above * above + below * below;
    }
    // The square of the correlation.
    4 * both * both * min_explained > squares * squares
}

/// The classes of `map`, or those of both, whichever take less; and the bytes that they take, about.
fn choose_cells(content: &[u8], map: &ClassMap, other: Option<&ClassMap>) -> (u64, CellMap) {
    let one = cells_of(content.len(), map, None);
    let one = (cost_of(content, &one), one);
    if other.is_none() {
        return one;
    }
    let both = cells_of(content.len(), map, other);
    let both = (cost_of(content, &both), both);
    if both.0 < one.0 { both } else { one }
}

/// Classes of `map` and, if there are any, of `other`, which is of columns if `map` is of rows.
fn cells_of(len: usize, map: &ClassMap, other: Option<&ClassMap>) -> CellMap {
    let (rows, period) = (len.div_ceil(map.period), map.period);
    let other = |units: usize| other.map_or_else(|| vec![0; units], |other| other.classes.clone());
    match map.columns {
        true => CellMap { period, rows: other(rows), columns: map.classes.clone() },
        false => CellMap { period, rows: map.classes.clone(), columns: other(period) },
    }
}

/// The cheapest of `found` and of classes of values, instead of magnitudes, of rows or columns: the embeddings of words
/// have something in common, so that values of a column are of one sign more often than not. `ordered` is scratch.
fn choose_signed(
    content: &[u8],
    ordered: &mut [u8],
    map: &ClassMap,
    other: Option<&ClassMap>,
    found: (u64, CellMap),
) -> (u64, CellMap) {
    let mut best = found;
    values_of(content, ordered);
    let least = (content.len() as u64 * BIT / MIN_SIGNED_GAIN) as i64;
    for columns in [false, true] {
        let Some((_, signed)) = classes::find_along(ordered, columns, map.period, SHARED_PRICE, least) else {
            continue;
        };
        let across = if map.columns == columns { other } else { Some(map) };
        let mut cells = cells_of(content.len(), &signed, across);
        refine_cells(content, &mut cells);
        let cost = cost_of(content, &cells);
        if cost < best.0 {
            best = (cost, cells);
        }
    }
    best
}

/// Moves rows and columns to the classes that suit them best, given those of the others.
fn refine_cells(content: &[u8], map: &mut CellMap) {
    /// How often. (case: `entropy.py`, fp8; without, minilm is up to 0.6 % larger, with one round fewer 0.03 %)
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        let costs = costs_of(content, map, |row, column| (column, row));
        for (row, class) in content.chunks(map.period).zip(&mut map.rows) {
            let mut wide = [0; MAX_CLASSES];
            for (bytes, columns) in row.chunks(TERMS).zip(map.columns.chunks(TERMS)) {
                let terms = bytes.iter().zip(columns);
                let sum = terms.map(|(&byte, &column)| costs[usize::from(column)][usize::from(byte)]).sum();
                widen(&mut wide, sum);
            }
            *class = cheapest(&wide);
        }
        let costs = costs_of(content, map, |row, column| (row, column));
        let mut wide = vec![[0; MAX_CLASSES]; map.period];
        let mut sums = vec![0; map.period];
        for (rows, classes) in content.chunks(TERMS * map.period).zip(map.rows.chunks(TERMS)) {
            sums.fill(0);
            for (row, &class) in rows.chunks(map.period).zip(classes) {
                let costs = &costs[usize::from(class)];
                sums.iter_mut().zip(row).for_each(|(sum, &byte)| *sum += costs[usize::from(byte)]);
            }
            wide.iter_mut().zip(&sums).for_each(|(wide, &sum)| widen(wide, sum));
        }
        map.columns.iter_mut().zip(&wide).for_each(|(class, wide)| *class = cheapest(wide));
    }
}

/// Costs that a sum of sixteen bits holds. (structural: each is below 256)
const TERMS: usize = 256;

/// Adds four sums of sixteen bits.
fn widen(wide: &mut [u64; MAX_CLASSES], sums: u64) {
    wide.iter_mut().enumerate().for_each(|(class, wide)| *wide += sums >> (16 * class) & 0xffff);
}

fn cheapest(costs: &[u64; MAX_CLASSES]) -> u8 {
    (0..MAX_CLASSES).min_by_key(|&class| costs[class]).unwrap_or(0) as u8
}

/// What a byte costs in sixteenths of a bit by the class that `moved` makes of one of rows and one of columns: for each first
/// number and byte, sixteen bits for each second number. Classes that there are not cost the most.
fn costs_of(
    content: &[u8],
    map: &CellMap,
    moved: impl Fn(usize, usize) -> (usize, usize),
) -> Vec<[u64; 256]> {
    let [rows, columns] = map.counts();
    let counts = count_cells(content, map, 1);
    let mut costs = vec![[0x00ff_00ff_00ff_00ff; 256]; MAX_CLASSES];
    for row in 0..rows {
        for column in 0..columns {
            let (known, class) = moved(row, column);
            let own = cost::per_symbol(&counts[row * columns + column], 16, 255);
            for (costs, own) in costs[known].iter_mut().zip(own) {
                *costs = *costs & !(0xffff << (16 * class)) | own << (16 * class);
            }
        }
    }
    costs
}

/// The histogram of each class, of one row in `every`.
fn count_cells(content: &[u8], map: &CellMap, every: usize) -> Vec<[u32; 256]> {
    let [rows, columns] = map.counts();
    let mut counts = vec![[0u32; 256]; rows * columns];
    for (row, &class) in content.chunks(map.period).zip(&map.rows).step_by(every) {
        let own = &mut counts[usize::from(class) * columns..][..columns];
        for (&byte, &column) in row.iter().zip(&map.columns) {
            own[usize::from(column)][usize::from(byte)] += 1;
        }
    }
    counts
}

/// The bytes that `content` takes in these classes, about: by a part of all rows.
fn cost_of(content: &[u8], map: &CellMap) -> u64 {
    let [rows, columns] = map.counts();
    // Odd, lest it be in step with groups of rows.
    let every = (content.len() / COUNTED).min(map.rows.len() / 16) | 1;
    let counts = count_cells(content, map, every);
    let counted: u64 = counts.iter().flatten().map(|&count| u64::from(count)).sum();
    let bits: u64 = counts.iter().map(|counts| cost::entropy(counts)).sum();
    // The entropy of a sample is too low by about half a bit per symbol and class.
    let used = counts.iter().flatten().filter(|&&count| count > 0).count() as u64;
    let missed = if every > 1 { used * BIT * 72 / 100 } else { 0 };
    let numbers = (map.rows.len() * usize::from(rows > 1) + map.period * usize::from(columns > 1)) / 4;
    (bits + missed) / (8 * BIT) * content.len() as u64 / counted.max(1)
        + counts.len() as u64 * PER_CELL
        + numbers as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn columns_are_turned_and_back(len in 1usize..3000, period in 1usize..300) {
            let period = period.min(len);
            let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let expected: Vec<u8> =
                (0..period).flat_map(|column| content[column..].iter().step_by(period).copied()).collect();
            let mut turned = vec![0; len];
            for_each_turned(len, period, |place, of_rows| turned[place] = content[of_rows]);
            prop_assert!(turned == expected);
            let mut back = vec![0; len];
            turn_back(&turned, period, &mut back);
            prop_assert!(back == content);
        }

        #[test]
        fn refined_cells_are_not_worse(noise in prop::collection::vec(any::<u8>(), 4000), period in 8usize..60) {
            let mean = |i: usize| if (i % period).is_multiple_of(3) { 3 } else { 0 };
            let content: Vec<u8> = noise.iter().enumerate().map(|(i, byte)| byte % 8 + mean(i)).collect();
            let numbers = |units: usize| (0..units).map(|unit| (unit % 3) as u8).collect();
            let mut map = CellMap { period, rows: numbers(content.len().div_ceil(period)), columns: numbers(period) };
            let before = cost_of(&content, &map);
            refine_cells(&content, &mut map);
            prop_assert!(map.rows.iter().chain(&map.columns).all(|&class| usize::from(class) < MAX_CLASSES));
            prop_assert!(cost_of(&content, &map) <= before + before / 50);
        }
    }
}
