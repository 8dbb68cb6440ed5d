//! The modelled layout: symbols coded in the context of how large their neighbours were.
//!
//! Two running means of magnitudes are kept: of the elements just before, and of those before in
//! the same column. What they say together chooses the table of states that a symbol is coded
//! with. Signs, which lean on the sign before, are a stream of their own; all other bits are noise.
//!
//! Payload: the bits of the symbols, the signs, the other bits, then the patches: all indices, then
//! all symbols.

use super::Scratch;
use super::split::{PATCH, decode_stream};
use crate::coder::tans::{self, States};
use crate::coder::{Coder, check_packed_padding};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::sparse::{for_bytes, load};
use crate::streams::Streams;
use crate::wire::{Put, Reader};

/// Elements per row, at most.
pub(crate) const MAX_PERIOD: usize = 1 << 16;
/// Tables, at most.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// Means move by one part in so many (as powers of two) of the way to what comes.
const NEAR: u32 = 2;
const COLUMN: u32 = 3;

/// How elements are cut: `sign | symbol | rest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes per element.
    pub(crate) size: usize,
    /// Bits of the symbol.
    pub(crate) symbol_bits: u32,
    /// How many of these are of the mantissa.
    pub(crate) joined: u32,
}

impl Cut {
    /// The cut for floats of this kind; none for other elements.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        if !kind.is_float() || kind.size() == 1 {
            return None;
        }
        let symbol_bits = if kind == Kind::F16 { 8 } else { kind.exponent_bits() + 2 };
        Some(Self { size: kind.size(), symbol_bits, joined: symbol_bits - kind.exponent_bits() })
    }

    /// Bits per element beside sign and symbol.
    pub(crate) fn rest_bits(self) -> u32 {
        self.size as u32 * 8 - 1 - self.symbol_bits
    }

    /// Bytes of those bits of `count` elements.
    pub(crate) fn rest_len(self, count: usize) -> usize {
        (count * self.rest_bits() as usize).div_ceil(8)
    }

    /// The highest first symbol of a window of 256.
    pub(crate) fn last_base(self) -> u16 {
        ((1u32 << self.symbol_bits) - 256) as u16
    }
}

/// What is known about an element before it is decoded.
pub(crate) struct Model {
    /// The magnitude that each code stands for, relative to the smallest.
    linear: [u64; 256],
    near: u64,
    columns: Vec<u64>,
    at: usize,
}

impl Model {
    pub(crate) fn new(cut: Cut, period: usize) -> Self {
        let linear = std::array::from_fn(|code| {
            let mantissa = 1u64 << cut.joined | (code as u64 & ((1 << cut.joined) - 1));
            mantissa << (code as u32 >> cut.joined).min(56)
        });
        Self { linear, near: 0, columns: vec![0; period], at: 0 }
    }

    /// The levels of both means, for the next element.
    #[inline(always)]
    pub(crate) fn levels(&self) -> [u8; 2] {
        [level(self.near), level(self.columns[self.at])]
    }

    /// Moves on by an element of this code.
    #[inline(always)]
    pub(crate) fn update(&mut self, code: u8) {
        let linear = self.linear[usize::from(code)];
        self.near = self.near - (self.near >> NEAR) + (linear >> NEAR);
        let column = &mut self.columns[self.at];
        *column = *column - (*column >> COLUMN) + (linear >> COLUMN);
        self.at += 1;
        if self.at == self.columns.len() {
            self.at = 0;
        }
    }
}

/// Four times the logarithm, about: its whole part and the two bits below the leading one.
#[inline(always)]
fn level(mean: u64) -> u8 {
    let mean = mean | 4;
    let whole = mean.ilog2();
    (4 * whole) as u8 | (mean >> (whole - 2) & 3) as u8
}

/// The class of each level, from the levels at which classes begin.
pub(crate) fn classes(thresholds: &[u8]) -> [u8; 256] {
    std::array::from_fn(|level| thresholds.iter().filter(|&&from| usize::from(from) <= level).count() as u8)
}

/// The description of a modelled chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modelled {
    pub(crate) cut: Cut,
    /// The symbol of code 0.
    pub(crate) base: u16,
    pub(crate) patches: u32,
    /// Elements per row.
    pub(crate) period: u32,
    /// The levels at which classes of the nearest elements and of the column begin.
    pub(crate) thresholds: [Vec<u8>; 2],
    /// For every class of the nearest elements, one per class of the column.
    pub(crate) tables: Vec<States>,
    /// Bytes of the coded symbols.
    pub(crate) stored: u32,
    pub(crate) signs: Coder,
}

/// How many contexts classes with these thresholds make.
pub(crate) fn contexts(thresholds: &[Vec<u8>; 2]) -> usize {
    (thresholds[0].len() + 1) * (thresholds[1].len() + 1)
}

impl Modelled {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.base);
        out.put_u32(self.patches);
        out.put_u32(self.period);
        for thresholds in &self.thresholds {
            out.put_u8(thresholds.len() as u8);
            out.extend_from_slice(thresholds);
        }
        out.put_u32(self.stored);
        self.tables.iter().for_each(|table| table.write(out));
        self.signs.write(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        let Some(cut) = Cut::of(kind).filter(|cut| len.is_multiple_of(cut.size)) else {
            return Err(Error::corrupt(format_args!("a model of {} elements", kind.name())));
        };
        let count = len / cut.size;
        let base = reader.u16()?;
        let (patches, period) = (reader.u32()?, reader.u32()?);
        let first_of_exponent = base.is_multiple_of(1 << cut.joined);
        if base > cut.last_base() || !first_of_exponent || patches as usize > count {
            return Err(Error::corrupt(format_args!("symbols from {base} with {patches} patches")));
        }
        if period == 0 || period as usize > count.min(MAX_PERIOD) {
            return Err(Error::corrupt(format_args!("rows of {period} elements in a model")));
        }
        let mut thresholds = [Vec::new(), Vec::new()];
        for thresholds in &mut thresholds {
            let count = usize::from(reader.u8()?);
            thresholds.extend_from_slice(reader.take(count)?);
        }
        if contexts(&thresholds) > MAX_CONTEXTS {
            return Err(Error::corrupt("too many contexts"));
        }
        let stored = reader.u32()?;
        let tables: Vec<States> =
            (0..contexts(&thresholds)).map(|_| States::read(reader)).collect::<Result<_>>()?;
        if tables.iter().any(|table| table.log() != tables[0].log()) {
            return Err(Error::corrupt("tables of different sizes in a model"));
        }
        let signs = Coder::read(reader)?;
        Ok(Self { cut, base, patches, period, thresholds, tables, stored, signs })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.cut.size;
        u64::from(self.stored)
            + self.signs.stored_len(count.div_ceil(8))
            + self.cut.rest_len(count) as u64
            + u64::from(self.patches) * PATCH as u64
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let count = len / self.cut.size;
        streams.add_stored("symbols", "modelled", count, u64::from(self.stored));
        streams.add("signs", &self.signs, count.div_ceil(8));
        streams.add("bits", &Coder::Raw, self.cut.rest_len(count));
        if self.patches > 0 {
            streams.add("patches", &Coder::Raw, self.patches as usize * PATCH);
        }
    }

    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let count = out.len() / self.cut.size;
        let mut payload = Reader::new(payload);
        let symbols = payload.take(self.stored as usize)?;
        let [signs, ..] = &mut scratch.planes;
        let signs = decode_stream(&self.signs, &mut payload, count.div_ceil(8), signs, &mut scratch.coder)?;
        check_packed_padding(1, signs, count)?;
        let rest = payload.take(self.cut.rest_len(count))?;
        check_packed_padding(self.cut.rest_bits(), rest, count)?;
        let log = self.tables[0].log();
        let tables = &mut scratch.tables;
        tables.clear();
        tables.resize(self.tables.len() << log, 0);
        for (states, table) in self.tables.iter().zip(tables.chunks_exact_mut(1 << log)) {
            tans::fill(states, table);
        }
        for_bytes!(self.cut.size, decode_elements(self, symbols, signs, rest, tables, out))?;
        self.apply_patches(payload, out)
    }

    fn apply_patches(&self, mut payload: Reader<'_>, out: &mut [u8]) -> Result<()> {
        let count = self.patches as usize;
        let mut indices = Reader::new(payload.take(count * 4)?);
        let mut symbols = Reader::new(payload.take(count * 2)?);
        let (size, shift) = (self.cut.size, self.cut.rest_bits());
        let mut next = 0;
        for _ in 0..count {
            let index = indices.u32()? as usize;
            if index < next {
                return Err(Error::corrupt("patches out of order"));
            }
            next = index + 1;
            let symbol = u64::from(symbols.u16()?);
            let Some(element) = out.chunks_exact_mut(size).nth(index) else {
                return Err(Error::corrupt("a patch outside its chunk"));
            };
            if symbol >> self.cut.symbol_bits != 0 {
                return Err(Error::corrupt("a patch wider than its symbol"));
            }
            let mask = ((1u64 << self.cut.symbol_bits) - 1) << shift;
            let patched = load(element) & !mask | symbol << shift;
            element.copy_from_slice(&patched.to_le_bytes()[..size]);
        }
        Ok(())
    }
}

/// Decodes all elements but the patched ones.
fn decode_elements<const SIZE: usize>(
    layout: &Modelled,
    symbols: &[u8],
    signs: &[u8],
    rest: &[u8],
    tables: &[u32],
    out: &mut [u8],
) -> Result<()> {
    let cut = layout.cut;
    let log = layout.tables[0].log();
    let [near, column] = [0, 1].map(|i| classes(&layout.thresholds[i]));
    let columns = layout.thresholds[1].len() + 1;
    let mut model = Model::new(cut, layout.period as usize);
    let (mut symbols, mut rest) = (Bits::new(symbols), Bits::new(rest));
    let mut state = symbols.take(log)? as usize;
    let mut sign = 0u64;
    let shift = cut.rest_bits();
    for (i, element) in out.as_chunks_mut::<SIZE>().0.iter_mut().enumerate() {
        let [a, b] = model.levels();
        let context = usize::from(near[usize::from(a)]) * columns + usize::from(column[usize::from(b)]);
        let entry = tables[context << log | state];
        let code = (entry >> 8) as u8;
        state = (entry >> 16) as usize + symbols.take(entry & 0xff)? as usize;
        model.update(code);
        sign ^= u64::from(signs[i / 8] >> (i % 8) & 1);
        let symbol = u64::from(code) + u64::from(layout.base);
        let bits = sign << (8 * SIZE - 1) | symbol << shift | rest.take(shift)?;
        element.copy_from_slice(&bits.to_le_bytes()[..SIZE]);
    }
    if state != 0 || !symbols.is_at_end() {
        return Err(Error::corrupt("modelled symbols do not end where they should"));
    }
    Ok(())
}

/// Bits, lowest of a byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `width` bits, at most 56.
    #[inline(always)]
    fn take(&mut self, width: u32) -> Result<u64> {
        let word = match self.bytes.get(self.at / 8..self.at / 8 + 8) {
            Some(bytes) => load(bytes),
            None => {
                if self.at + width as usize > self.bytes.len() * 8 {
                    return Err(Error::corrupt("a bit stream ends too early"));
                }
                load(&self.bytes[self.at / 8..])
            }
        };
        let bits = word >> (self.at % 8) & ((1 << width) - 1);
        self.at += width as usize;
        Ok(bits)
    }

    /// Whether only zero bits of the last byte are left.
    fn is_at_end(&self) -> bool {
        let left = self.bytes.len() * 8 - self.at;
        left < 8 && self.bytes.last().is_none_or(|&last| u32::from(last) >> (8 - left) == 0)
    }
}
