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
/// Bytes that classes are compared by, about. (unmeasured)
const COUNTED: usize = 1 << 16;
/// What a class that shares its streams takes, about, in bytes: its shape, and what that misses of the counts. (case: `entropy.py`, fp8;
/// with 30, e4m3 is up to 0.05 % larger and decodes at 0.9 of the speed)
const PER_CELL: u64 = 80;
/// Contexts of neighbours replace classes where they save one part in this many. (case: `entropy.py`, fp8)
const MIN_ORDER_SAVING: u64 = 100;

/// The description of a chunk of bytes in classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Classed {
    /// Classes of rows or of columns, with a stream each.
    Apart(ClassMap, Vec<Coder>),
    /// Classes of rows and columns, which share their streams.
    Cells(CellMap, Pooled),
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
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind.size() != 1 {
            return Err(Error::corrupt(format_args!("classes of {} elements", kind.name())));
        }
        let form = reader.u8()?;
        if form == CELLS {
            let period = reader.u32()? as usize;
            if period == 0 || period > len {
                return Err(Error::corrupt("scale classes that do not fit their chunk"));
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
        }
        out.copy_from_slice(&gathered[..out.len()]);
        Ok(())
    }
}

/// Buffers that decoding reuses: the bytes, and those of each class.
#[derive(Default)]
pub(crate) struct Buffers {
    gathered: Vec<u8>,
    runs: [Vec<u8>; MAX_CLASSES * MAX_CLASSES],
}

/// Appends `content` in classes of rows and columns, or in contexts of the bytes before, if such are found that pay.
pub(crate) fn encode(
    content: &[u8],
    options: &Options,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<ChunkLayout> {
    let (kind, effort) = (options.kind, options.effort);
    if !kind.is_float() || effort == Effort::Fast || options.dense {
        return None;
    }
    let SplitEncoder { codes, runs, coder, .. } = scratch;
    grow(codes, content.len() + SLACK);
    let magnitudes = &mut codes[..content.len()];
    // Classes are of magnitudes.
    magnitudes.iter_mut().zip(content).for_each(|(magnitude, byte)| *magnitude = byte & 0x7f);
    let counts = histogram::halved(content, &mut coder.pairs);
    let entropy = cost::entropy(&counts);
    let fine = effort > Effort::Default || entropy >= choose::MIN_FINE_BITS * content.len() as u64;
    let price = if fine { SHARED_PRICE } else { PRICE };
    let map = classes::find(magnitudes, &classes::periods_of(magnitudes, hint), price);
    let cells = map.as_ref().filter(|_| fine).map(|map| {
        let other = classes::find_other(magnitudes, map, price);
        choose_cells(content, map, other.as_ref())
    });
    let cost = cells.as_ref().map_or(entropy / (8 * BIT), |(cost, _)| *cost);
    if fine && let Some(layout) = encode_in_contexts(content, cost, effort, payload, coder) {
        return Some(layout);
    }
    let map = map?;
    magnitudes.copy_from_slice(content);
    if let Some((_, cells)) = cells {
        let sizes = cells.sizes(content.len());
        runs.resize_with(runs.len().max(sizes.len()), Vec::new);
        runs.iter_mut().zip(&sizes).for_each(|(run, &size)| grow(run, size + SLACK));
        scale_classes::scatter_cells(&cells, codes, content.len(), &mut runs[..sizes.len()]);
        let runs: Vec<&[u8]> = runs.iter().zip(&sizes).map(|(run, &size)| &run[..size]).collect();
        let described = Described::PackedFloats(7 - kind.exponent_bits());
        let pooled = pooled::encode(&runs, described, &mut coder.numbered, payload, &mut coder.tans);
        return Some(ChunkLayout::Classed(Classed::Cells(cells, pooled)));
    }
    let sizes = map.sizes(content.len());
    runs.resize_with(runs.len().max(map.count()), Vec::new);
    runs.iter_mut().zip(sizes).take(map.count()).for_each(|(run, size)| grow(run, size + SLACK));
    scale_classes::scatter(&map, codes, content.len(), &mut runs[..map.count()]);
    let codes = runs[..map.count()].iter().zip(sizes).map(|(run, size)| {
        let counts = histogram::halved(&run[..size], &mut coder.pairs);
        choose::encode_codes(&run[..size], &counts, effort, payload, coder)
    });
    let codes = codes.collect();
    Some(ChunkLayout::Classed(Classed::Apart(map, codes)))
}

/// Appends `content` in contexts of the bytes before, if this takes less than `cost` bytes.
fn encode_in_contexts(
    content: &[u8],
    cost: u64,
    effort: Effort,
    payload: &mut Vec<u8>,
    coder: &mut EncodeScratch,
) -> Option<ChunkLayout> {
    // Magnitudes are logarithms of values, which is all that is needed to order them.
    let value = |byte: usize| if byte < 128 { byte as i32 } else { 128 - byte as i32 };
    let choice = order_one::choose(content, &std::array::from_fn(value), false, effort)?;
    (choice.cost < cost - cost / MIN_ORDER_SAVING)
        .then(|| ChunkLayout::Opaque(choose::encode_order_one(content, &choice, payload, coder)))
}

/// The classes of `map`, or those of both, whichever take less; and the bytes that they take, about.
fn choose_cells(content: &[u8], map: &ClassMap, other: Option<&ClassMap>) -> (u64, CellMap) {
    let none = |units: usize| vec![0; units];
    let (rows, period) = (content.len().div_ceil(map.period), map.period);
    let cells = |map: &ClassMap| match map.columns {
        true => CellMap { period, rows: none(rows), columns: map.classes.clone() },
        false => CellMap { period, rows: map.classes.clone(), columns: none(period) },
    };
    let one = cells(map);
    let one = (cost_of(content, &one), one);
    let Some(other) = other else { return one };
    let both = match map.columns {
        true => CellMap { period, rows: other.classes.clone(), columns: map.classes.clone() },
        false => CellMap { period, rows: map.classes.clone(), columns: other.classes.clone() },
    };
    let both = (cost_of(content, &both), both);
    if both.0 < one.0 { both } else { one }
}

/// The bytes that `content` takes in these classes, about: by a part of all rows.
fn cost_of(content: &[u8], map: &CellMap) -> u64 {
    let [rows, columns] = map.counts();
    let mut counts = vec![[0u32; 256]; rows * columns];
    // Odd, lest it be in step with groups of rows.
    let every = (content.len() / COUNTED).min(map.rows.len() / 16) | 1;
    for (row, &class) in content.chunks(map.period).zip(&map.rows).step_by(every) {
        let own = &mut counts[usize::from(class) * columns..][..columns];
        for (&byte, &column) in row.iter().zip(&map.columns) {
            own[usize::from(column)][usize::from(byte)] += 1;
        }
    }
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
