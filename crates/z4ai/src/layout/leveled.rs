//! The leveled layout: floats whose magnitude is about a product of a scale per row and one per column.
//!
//! Second moments of an optimizer are such: the squared gradient of a weight is that of its output
//! times that of its input. The logarithm of a magnitude is nearly its bits without the sign, so that
//! subtracting a level per row and one per column leaves numbers of one scale, in an inner layout.
//! Levels have [`PER_OCTAVE`] steps per power of two, and all is integer arithmetic that wraps: no bit
//! is lost, whatever the levels are.
//!
//! Payload: the levels of rows, low and high bytes, those of columns, then the inner layout's payload.

use crate::coder::{Coder, choose};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::estimate::cost::BIT;
use crate::layout::split::classes::Hint;
use crate::layout::split::decode_stream;
use crate::layout::split::encode::SplitEncoder;
use crate::layout::streams::Streams;
use crate::layout::{ChunkLayout, ChunkScratch, Context, split};
use crate::options::{Effort, Options};
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;
use crate::wire::{Put, Reader};

/// Logarithm of the steps of levels per power of two. (format)
const STEP_BITS: u32 = 3;
/// Streams of levels: low and high bytes of rows and columns. (format)
const LEVEL_STREAMS: usize = 4;
/// Rows that the gain is estimated by. (case: `entropy.py`, optimizer)
const SAMPLED_ROWS: usize = 16;
/// Columns that the gain is estimated by, at most. (case: `entropy.py`, optimizer)
const SAMPLED_COLUMNS: usize = 1024;
/// Rows and columns, at least. (flat)
const MIN_UNITS: usize = 32;
/// Rows of a chunk, and its bytes at most. (case: `entropy.py`, optimizer)
const ROWS_PER_CHUNK: usize = 128;
const MAX_CHUNK: usize = 8 << 20;
/// The estimated gain over levels of rows alone or of columns alone, in [`BIT`] per element, from which
/// both are tried. (case: `entropy.py`, optimizer)
const MIN_GAIN: u64 = BIT / 8;

/// The description of a leveled chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leveled {
    kind: Kind,
    /// Elements per row.
    period: usize,
    levels: [Coder; LEVEL_STREAMS],
    inner: Box<ChunkLayout>,
}

/// Bits that a level is shifted by.
fn shift(kind: Kind) -> u32 {
    kind.bits() - 1 - kind.exponent_bits() - STEP_BITS
}

impl Leveled {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.period as u32);
        self.levels.iter().for_each(|coder| coder.write(out));
        self.inner.write(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let count = len / kind.size();
        let period = reader.u32()? as usize;
        let fits = kind.is_float() && kind.size() > 1 && len.is_multiple_of(kind.size());
        if !fits || period == 0 || period > count {
            return Err(Error::corrupt(format_args!(
                "levels of rows of {period} in {count} {} elements",
                kind.name()
            )));
        }
        let mut levels = [Coder::Raw, Coder::Raw, Coder::Raw, Coder::Raw];
        for coder in &mut levels {
            *coder = Coder::read(reader)?;
        }
        Ok(Self { kind, period, levels, inner: Box::new(ChunkLayout::read_inner(reader, kind, len)?) })
    }

    /// Bytes of each stream of levels.
    fn lens(&self, len: usize) -> [usize; LEVEL_STREAMS] {
        let rows = (len / self.kind.size()).div_ceil(self.period);
        [rows, rows, self.period, self.period]
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let levels = self.levels.iter().zip(self.lens(len)).map(|(coder, len)| coder.stored_len(len));
        levels.fold(self.inner.payload_len(len), u64::saturating_add)
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        for (coder, len) in self.levels.iter().zip(self.lens(len)) {
            streams.add("levels", coder, len);
        }
        self.inner.streams(len, streams);
    }

    pub(crate) fn decode(
        &self,
        payload: &[u8],
        out: &mut [u8],
        context: Context<'_>,
        scratch: &mut ChunkScratch,
    ) -> Result<()> {
        let mut payload = Reader::new(payload);
        let mut buffers: [Vec<u8>; LEVEL_STREAMS] = Default::default();
        let mut planes: [&[u8]; LEVEL_STREAMS] = [&[]; LEVEL_STREAMS];
        let streams = self.levels.iter().zip(self.lens(out.len())).zip(&mut buffers).zip(&mut planes);
        for (((coder, len), buffer), plane) in streams {
            *plane = decode_stream(coder, &mut payload, len, buffer, &mut scratch.coder)?;
        }
        let join = |low: &[u8], high: &[u8]| -> Vec<i16> {
            low.iter().zip(high).map(|(&low, &high)| i16::from_le_bytes([low, high])).collect()
        };
        let (rows, columns) = (join(planes[0], planes[1]), join(planes[2], planes[3]));
        let stored = usize::try_from(self.inner.payload_len(out.len()))
            .map_err(|_| Error::corrupt("elements beyond their chunk"))?;
        self.inner.decode(payload.take(stored)?, out, context, scratch)?;
        add(self.kind, &rows, &columns, out);
        Ok(())
    }
}

/// Adds the levels of their row and column to the magnitudes of all elements.
fn add(kind: Kind, rows: &[i16], columns: &[i16], elements: &mut [u8]) {
    match kind.size() {
        2 => add_of_2(rows, columns, shift(kind), elements),
        4 => add_of_4(rows, columns, shift(kind), elements),
        _ => add_of_8(rows, columns, shift(kind), elements),
    }
}

macro_rules! adders {
    ($($name:ident $body:ident $type:ty;)*) => {
        $(
            dispatch_wide! {
                fn $name(rows: &[i16], columns: &[i16], shift: u32, elements: &mut [u8]) = $body
            }

            #[inline(always)]
            fn $body(_isa: impl Vector, rows: &[i16], columns: &[i16], shift: u32, elements: &mut [u8]) {
                /// (structural)
                const SIZE: usize = size_of::<$type>();
                const SIGN: $type = 1 << (8 * SIZE - 1);
                let columns: Vec<$type> = columns.iter().map(|&level| (level as $type) << shift).collect();
                let parts = elements.as_chunks_mut::<SIZE>().0.chunks_mut(columns.len().max(1));
                for (part, &level) in parts.zip(rows) {
                    let level = (level as $type) << shift;
                    for (element, &column) in part.iter_mut().zip(&columns) {
                        let bits = <$type>::from_le_bytes(*element);
                        let moved = bits.wrapping_add(level).wrapping_add(column);
                        *element = (bits & SIGN | moved & !SIGN).to_le_bytes();
                    }
                }
            }
        )*
    };
}

adders! {
    add_of_2 add_of_2_with u16;
    add_of_4 add_of_4_with u32;
    add_of_8 add_of_8_with u64;
}

/// The level of an element, or `None` for zero.
#[inline(always)]
fn level_of(kind: Kind, element: &[u8]) -> Option<i32> {
    let bits = element.iter().rev().fold(0, |bits: u64, &byte| bits << 8 | u64::from(byte));
    let magnitude = bits & (u64::MAX >> (65 - kind.bits()));
    (magnitude != 0).then(|| (magnitude >> shift(kind)) as i32)
}

/// Sums and numbers of the levels of rows and columns.
struct Sums {
    rows: Vec<(i64, i64)>,
    columns: Vec<(i64, i64)>,
}

impl Sums {
    fn of<'a>(kind: Kind, rows: impl Iterator<Item = &'a [u8]>, columns: usize) -> Self {
        let mut sums = Self { rows: Vec::new(), columns: vec![(0, 0); columns] };
        for row in rows {
            let mut own = (0, 0);
            for (element, column) in row.chunks_exact(kind.size()).zip(&mut sums.columns) {
                if let Some(level) = level_of(kind, element) {
                    let level = i64::from(level);
                    own = (own.0 + level, own.1 + 1);
                    *column = (column.0 + level, column.1 + 1);
                }
            }
            sums.rows.push(own);
        }
        sums
    }

    fn mean(&(sum, count): &(i64, i64), otherwise: i64) -> i64 {
        if count == 0 { otherwise } else { sum.div_euclid(count) }
    }

    /// Levels of rows and columns whose sum leaves elements near one.
    fn levels(&self, kind: Kind) -> (Vec<i16>, Vec<i16>) {
        let total = self.rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        let mean = Self::mean(&total, 0);
        let one = ((1i64 << (kind.exponent_bits() - 1)) - 1) << STEP_BITS;
        let rows = self.rows.iter().map(|row| (Self::mean(row, mean) - one) as i16);
        let columns = self.columns.iter().map(|column| (Self::mean(column, mean) - mean) as i16);
        (rows.collect(), columns.collect())
    }
}

/// Whether levels of rows and columns explain more than those of either alone, by a sample.
fn promising(content: &[u8], kind: Kind, period: usize) -> bool {
    let row_len = period * kind.size();
    let rows = content.len() / row_len;
    let taken = SAMPLED_ROWS.min(rows);
    let columns = period.min(SAMPLED_COLUMNS);
    let sampled: Vec<&[u8]> =
        (0..taken).map(|i| &content[i * rows / taken * row_len..][..columns * kind.size()]).collect();
    let sums = Sums::of(kind, sampled.iter().copied(), columns);
    let total = sums.rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let mean = Sums::mean(&total, 0);
    // Squares of what is left by levels of rows, of columns, and of both, in 1/64 of a step squared.
    let mut left = [0i64; 3];
    for (row, own) in sampled.iter().zip(&sums.rows) {
        let of_row = Sums::mean(own, mean);
        for (element, column) in row.chunks_exact(kind.size()).zip(&sums.columns) {
            let Some(level) = level_of(kind, element) else { continue };
            let of_column = Sums::mean(column, mean);
            let rests = [of_row, of_column, of_row + of_column - mean].map(|known| i64::from(level) - known);
            left.iter_mut().zip(rests).for_each(|(sum, rest)| *sum += rest * rest);
        }
    }
    // A mean of as few rows follows each of them: what is left by columns is that much too small.
    let (few, one_less) = (taken as i64, (taken as i64 - 1).max(1));
    let (alone, both) = (left[0].min(left[1] * few / one_less), left[2] * few / one_less);
    // Half of the binary logarithm of the ratio, compared without logarithms: 2^(2 gain) times.
    let factor = MIN_GAIN * 2 * 710 / 1024 / (BIT / 1024);
    both > 0 && alone > both + both * factor as i64 / 1024
}

/// The length of a chunk of `data`, if its rows and columns have levels: enough rows that the levels of
/// columns are small beside them.
pub(crate) fn chunk_len(data: &[u8], options: &Options, hint: &Hint) -> Option<usize> {
    let period = wanted(data, options, hint)?;
    let row = period * options.kind.size();
    promising(data, options.kind, period).then(|| (ROWS_PER_CHUNK * row).min(MAX_CHUNK / row * row))
}

/// The row length of data that may have levels.
fn wanted(data: &[u8], options: &Options, hint: &Hint) -> Option<usize> {
    let kind = options.kind;
    let period = *hint.periods.last().filter(|_| hint.searched && hint.shaped)?;
    let rows = data.len() / kind.size() / period.max(1);
    let searched = kind.is_float() && kind.size() > 1 && options.effort > Effort::Fast && !options.dense;
    (searched && period >= MIN_UNITS && rows >= MIN_UNITS).then_some(period)
}

/// Appends `content` with levels of rows and columns, if a sample says that they explain much.
pub(crate) fn encode(
    content: &[u8],
    options: &Options,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<Leveled> {
    let kind = options.kind;
    let period = wanted(content, options, hint)?;
    if !promising(content, kind, period) {
        return None;
    }
    let (rows, columns) = Sums::of(kind, content.chunks(period * kind.size()), period).levels(kind);
    let negated = |levels: &[i16]| levels.iter().map(|level| level.wrapping_neg()).collect::<Vec<_>>();
    let mut moved = content.to_vec();
    add(kind, &negated(&rows), &negated(&columns), &mut moved);
    let plane = |levels: &[i16], byte: usize| -> Vec<u8> {
        levels.iter().map(|level| level.to_le_bytes()[byte]).collect()
    };
    let levels = [plane(&rows, 0), plane(&rows, 1), plane(&columns, 0), plane(&columns, 1)]
        .map(|plane| choose::encode(&plane, payload, &mut scratch.coder));
    let inner = split::encode::encode(&moved, kind, options.effort, hint, scratch, payload);
    Some(Leveled { kind, period, levels, inner: Box::new(ChunkLayout::Split(inner)) })
}
