//! Context modelling: codes are coded by the magnitude of the elements around them.
//!
//! Two exponential moving averages of magnitudes are kept: of the preceding elements, and of the
//! preceding elements in the same column. Together they choose the tANS table that a code is coded
//! with. The codes are split into four independent runs, so that four dependency chains are in
//! flight.

pub(crate) mod encode;
mod levels;

use crate::bits::BitReader;
use crate::coder::run_range;
use crate::coder::tans::{self, NormalizedCounts, RUNS};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::bit_fields::Fields;
use crate::wire::{Put, Reader};

/// Elements per row, at most. (format)
pub(crate) const MAX_PERIOD: usize = 1 << 16;
/// Tables, at most. (format)
const MAX_TABLES: usize = 64;
/// The lowest exponents, which count as one: they hardly matter, and the others fit a word. (format)
const MERGED_EXPONENTS: u64 = 7;
/// Exponential moving averages: `mean += (x >> SHIFT) - (mean >> SHIFT)`. Each shift rounds down:
/// that is the format. (format)
pub(crate) const NEIGHBOR_EMA_SHIFT: u32 = 2;
pub(crate) const COLUMN_EMA_SHIFT: u32 = 3;

/// Mantissa bits of a symbol, at least: with fewer, magnitudes would not fit a word. (format)
const MIN_JOINED: u32 = 2;

/// The mantissa bits of a symbol; `None` where contexts do not apply: codes must be magnitudes, and
/// code 0 must begin an exponent.
pub(crate) fn joined_bits(kind: Kind, fields: Fields) -> Option<u32> {
    let joined = fields.symbol_bits.checked_sub(kind.exponent_bits()).filter(|_| kind.is_float())?;
    (joined >= MIN_JOINED && fields.base.is_multiple_of(1 << joined)).then_some(joined)
}

/// The magnitude of each code, relative to the smallest.
pub(crate) struct Magnitudes([u64; 256]);

impl Magnitudes {
    /// Of codes with `joined` mantissa bits.
    pub(crate) fn new(joined: u32) -> Self {
        Self(std::array::from_fn(|code| Self::of(code as u64, joined)))
    }

    /// Of one code.
    #[inline(always)]
    pub(crate) fn of(code: u64, joined: u32) -> u64 {
        let mantissa = 1 << joined | (code & ((1 << joined) - 1));
        mantissa << ((code >> joined).max(MERGED_EXPONENTS) - MERGED_EXPONENTS)
    }
}

/// The moving averages before the next element of a run.
pub(crate) struct Means {
    near: u64,
    columns: Vec<u64>,
    at: usize,
}

impl Means {
    /// Before the first element, with rows of `period` elements.
    pub(crate) fn new(period: usize) -> Self {
        Self { near: 0, columns: vec![0; period], at: 0 }
    }

    /// The levels of both means.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [u8; 2] {
        [level(self.near), level(self.columns[self.at])]
    }

    /// Updates both averages with an element of this code.
    #[inline(always)]
    pub(crate) fn update(&mut self, code: u8, magnitudes: &Magnitudes) {
        let magnitude = magnitudes.0[usize::from(code)];
        self.near = self.near - (self.near >> NEIGHBOR_EMA_SHIFT) + (magnitude >> NEIGHBOR_EMA_SHIFT);
        let column = &mut self.columns[self.at];
        *column = *column - (*column >> COLUMN_EMA_SHIFT) + (magnitude >> COLUMN_EMA_SHIFT);
        self.at += 1;
        if self.at == self.columns.len() {
            self.at = 0;
        }
    }
}

/// Four times the logarithm, about: its whole part and the two bits below the leading one.
#[inline(always)]
pub(crate) fn level(mean: u64) -> u8 {
    let mean = mean | 4;
    let whole = mean.ilog2();
    (4 * whole) as u8 | (mean >> (whole - 2) & 3) as u8
}

/// The levels at which classes of the nearest elements and of the column begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thresholds(pub(crate) [Vec<u8>; 2]);

impl Thresholds {
    /// How many contexts there are: for every class of the nearest elements, one per class of the
    /// column.
    pub(crate) fn contexts(&self) -> usize {
        self.0.iter().map(|thresholds| thresholds.len() + 1).product()
    }

    /// Tables from the level of each mean to a term of the context number.
    pub(crate) fn numbers(&self) -> [[u8; 256]; 2] {
        let columns = self.0[1].len() + 1;
        [(0, columns), (1, 1)].map(|(which, times)| {
            let class =
                |level: usize| self.0[which].iter().filter(|&&from| usize::from(from) <= level).count();
            std::array::from_fn(|level| (class(level) * times) as u8)
        })
    }
}

/// How the codes of a chunk are coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contexts {
    pub(crate) joined: u32,
    /// Elements per row.
    pub(crate) period: u32,
    pub(crate) thresholds: Thresholds,
    /// One per context.
    pub(crate) tables: Vec<NormalizedCounts>,
    /// Bytes of each run.
    pub(crate) stored: [u32; RUNS],
}

impl Contexts {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.period);
        for thresholds in &self.thresholds.0 {
            out.put_u8(thresholds.len() as u8);
            out.extend_from_slice(thresholds);
        }
        self.stored.iter().for_each(|&stored| out.put_u32(stored));
        self.tables.iter().for_each(|table| table.write(out));
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, fields: Fields, count: usize) -> Result<Self> {
        let Some(joined) = joined_bits(kind, fields) else {
            return Err(Error::corrupt("contexts of a stream that has no magnitudes"));
        };
        let period = reader.u32()?;
        if period == 0 || period as usize > count.min(MAX_PERIOD) {
            return Err(Error::corrupt(format_args!("rows of {period} elements in contexts")));
        }
        let mut thresholds = [Vec::new(), Vec::new()];
        for thresholds in &mut thresholds {
            let count = usize::from(reader.u8()?);
            thresholds.extend_from_slice(reader.take(count)?);
        }
        let thresholds = Thresholds(thresholds);
        if thresholds.contexts() > MAX_TABLES {
            return Err(Error::corrupt("too many contexts"));
        }
        let mut stored = [0; RUNS];
        for stored in &mut stored {
            *stored = reader.u32()?;
        }
        let tables: Vec<NormalizedCounts> =
            (0..thresholds.contexts()).map(|_| NormalizedCounts::read(reader)).collect::<Result<_>>()?;
        if tables.iter().any(|table| table.log() != tables[0].log()) {
            return Err(Error::corrupt("tables of different sizes in contexts"));
        }
        Ok(Self { joined, period, thresholds, tables, stored })
    }

    pub(crate) fn stored_len(&self) -> u64 {
        self.stored.iter().map(|&stored| u64::from(stored)).sum()
    }

    /// Decodes `stored` to fill `out` with codes. `tables` is scratch.
    pub(crate) fn decode(&self, mut stored: &[u8], out: &mut [u8], tables: &mut Vec<u32>) -> Result<()> {
        let log = self.tables[0].log();
        tables.clear();
        tables.resize(self.tables.len() << log, 0);
        for (states, table) in self.tables.iter().zip(tables.chunks_exact_mut(1 << log)) {
            tans::fill(states, table);
        }
        let model = Model {
            tables,
            log,
            numbers: self.thresholds.numbers(),
            magnitudes: Magnitudes::new(self.joined),
        };
        let total = out.len();
        let mut rest = out;
        let mut runs = Vec::with_capacity(RUNS);
        for (index, &len) in self.stored.iter().enumerate() {
            let Some((bits, others)) = stored.split_at_checked(len as usize) else {
                return Err(Error::corrupt("codes in context are too short"));
            };
            stored = others;
            let (out, tail) = rest.split_at_mut(run_range(index, RUNS, total).len());
            rest = tail;
            runs.push(Run::new(bits, out, log, self.period as usize)?);
        }
        if let [a, b, c, d] = runs.as_mut_slice() {
            // No run is shorter than the last one.
            for i in 0..d.out.len() {
                a.next(i, &model)?;
                b.next(i, &model)?;
                c.next(i, &model)?;
                d.next(i, &model)?;
            }
        }
        let common = runs[RUNS - 1].out.len();
        runs.into_iter().try_for_each(|run| run.finish(common, &model))
    }
}

/// What all runs share.
struct Model<'a> {
    tables: &'a [u32],
    log: u32,
    numbers: [[u8; 256]; 2],
    magnitudes: Magnitudes,
}

/// The decoder's state of one run.
struct Run<'a> {
    bits: BitReader<'a>,
    state: usize,
    means: Means,
    out: &'a mut [u8],
}

impl<'a> Run<'a> {
    fn new(bits: &'a [u8], out: &'a mut [u8], log: u32, period: usize) -> Result<Self> {
        let mut bits = BitReader::new(bits);
        let state = if out.is_empty() { 0 } else { bits.take(log)? as usize };
        Ok(Self { bits, state, means: Means::new(period), out })
    }

    /// Decodes code `i`.
    #[inline(always)]
    fn next(&mut self, i: usize, model: &Model<'_>) -> Result<()> {
        let [near, column] = self.means.levels().map(usize::from);
        let context = usize::from(model.numbers[0][near] + model.numbers[1][column]);
        let entry = model.tables[context << model.log | self.state];
        let code = (entry >> 8) as u8;
        self.out[i] = code;
        self.state = (entry >> 16) as usize + self.bits.take(entry & 0xff)? as usize;
        self.means.update(code, &model.magnitudes);
        Ok(())
    }

    /// Decodes the codes from `done` on, and checks that nothing but zero bits remains.
    fn finish(mut self, done: usize, model: &Model<'_>) -> Result<()> {
        for i in done..self.out.len() {
            self.next(i, model)?;
        }
        if self.state != 0 || !self.bits.is_at_end() {
            return Err(Error::corrupt("codes in context do not end where they should"));
        }
        Ok(())
    }
}
