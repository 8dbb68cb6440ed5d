//! Shapes described in bits: levels by how they differ from a straight line through the two before.
//!
//! Logarithms of probabilities are smooth, so that these differences are small. They are Rice codes: a number in
//! unary and some bits below it. What is too far from the line is written as it is.

use super::shape::{CURVE, FLOATS, MAX_SPACING, Shape, read_changes};
use crate::bits::BitWriter;
use crate::coder::tans::{MAX_LOG, MIN_LOG, NormalizedCounts};
use crate::error::{Error, Result};
use crate::wire::{Put, Reader};

/// Ones that announce a level as it is. (format)
const ESCAPE: u32 = 11;
/// Bits below the unary number, at most. (format)
const MAX_RICE: u32 = 7;
/// The bit of the first byte that says that there are changes. (format)
const CHANGED: u8 = 128;
/// The bits of mantissas that there are. (format: e5m2 and e4m3)
const MANTISSAS: std::ops::RangeInclusive<u32> = 2..=3;

/// What a level is expected to be after two others.
fn expected(levels: &[u8]) -> i32 {
    match levels {
        [] => 0,
        [only] => i32::from(*only),
        [.., before, last] => (2 * i32::from(*last) - i32::from(*before)).clamp(0, 255),
    }
}

/// The distance of a level from what is expected, as a number that is small if it is.
fn zigzag(level: u8, expected: i32) -> u32 {
    let distance = i32::from(level) - expected;
    (distance << 1 ^ distance >> 31) as u32
}

impl Shape {
    /// The numbers of all levels but the first one.
    fn zigzags(&self) -> impl Iterator<Item = u32> {
        (1..self.levels.len()).map(|i| zigzag(self.levels[i], expected(&self.levels[..i])))
    }

    /// The bits below unary numbers that make the levels shortest, and the bits that all levels take.
    fn best_rice(&self) -> (u32, u32) {
        let bits = |rice: u32| {
            let bits = self.zigzags().map(|number| match number >> rice {
                unary if unary < ESCAPE => unary + 1 + rice,
                _ => ESCAPE + 8,
            });
            8 + bits.sum::<u32>()
        };
        let every = (0..=MAX_RICE).map(|rice| (bits(rice), rice));
        let (bits, rice) = every.min().unwrap_or((8, 0));
        (rice, bits)
    }

    /// Bytes of the description.
    pub(super) fn packed_len(&self) -> u64 {
        let fields = match self.width {
            CURVE => 4,
            FLOATS => 3,
            _ => 2,
        };
        let changes = if self.changes.is_empty() { 0 } else { 1 + 2 * self.changes.len() };
        fields + u64::from(self.best_rice().1).div_ceil(8) + changes as u64
    }

    pub(super) fn write_packed(&self, out: &mut Vec<u8>) {
        let (rice, _) = self.best_rice();
        let (kind, fields): (u8, &[u8]) = match self.width {
            CURVE => (2, &[self.spacing as u8, self.first, self.last]),
            FLOATS => (3, &[(self.spacing | self.mantissa << 4) as u8, self.last]),
            width => (width as u8 - 3, &[self.last]),
        };
        let changed = if self.changes.is_empty() { 0 } else { CHANGED };
        out.put_u8(
            (self.log - MIN_LOG - u32::from(self.is_fine())) as u8 | kind << 2 | (rice as u8) << 4 | changed,
        );
        out.extend_from_slice(fields);
        let mut bits = BitWriter::default();
        bits.put(u64::from(self.levels[0]), 8, out);
        for (number, &level) in self.zigzags().zip(&self.levels[1..]) {
            match number >> rice {
                unary if unary < ESCAPE => {
                    bits.put((1 << unary) - 1, unary + 1, out);
                    bits.put(u64::from(number) & ((1 << rice) - 1), rice, out);
                }
                _ => bits.put(((1 << ESCAPE) - 1) | u64::from(level) << ESCAPE, ESCAPE + 8, out),
            }
        }
        bits.finish(out);
        if changed != 0 {
            out.put_u8(self.changes.len() as u8);
            self.changes.iter().for_each(|&(symbol, change)| out.extend([symbol, change]));
        }
    }

    /// Whether there are more states than the description has a number for.
    pub(super) fn is_fine(&self) -> bool {
        self.log > MAX_LOG
    }

    /// Reads what `write_packed` wrote. A `fine` shape has twice as many states as the description says.
    pub(super) fn read_packed(fine: bool, reader: &mut Reader<'_>) -> Result<(Self, NormalizedCounts)> {
        let head = reader.u8()?;
        let (log, rice) = (MIN_LOG + u32::from(fine) + u32::from(head & 3), u32::from(head >> 4 & 7));
        let (width, spacing, mantissa, first) = match head >> 2 & 3 {
            2 => (CURVE, u32::from(reader.u8()?), 0, reader.u8()?),
            3 => {
                let both = u32::from(reader.u8()?);
                (FLOATS, both & 15, both >> 4, 0)
            }
            kind => (3 + u32::from(kind), 0, 0, 0),
        };
        let last = reader.u8()?;
        let sound = match width {
            CURVE => spacing <= MAX_SPACING && first <= last,
            FLOATS => MANTISSAS.contains(&mantissa) && (1..=mantissa).contains(&spacing) && last < 128,
            _ => true,
        };
        if !sound {
            return Err(Error::corrupt(format_args!(
                "a shape of symbols {first} to {last}, {spacing} apart"
            )));
        }
        let number = Self::number_of_levels(width, spacing, last - first);
        let levels = read_levels(number, rice, reader)?;
        let changes = match head & CHANGED {
            0 => Vec::new(),
            _ => {
                let number = reader.u8()?;
                read_changes(number, reader)?
            }
        };
        let shape = Self { packed: true, log, width, spacing, mantissa, first, last, levels, changes };
        let states = shape.states().ok_or_else(|| Error::corrupt("a shape of fewer than two symbols"))?;
        Ok((shape, states))
    }
}

fn read_levels(number: usize, rice: u32, reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    // Bits are read ahead of the reader, which then skips the bytes that they were in.
    let (mut ahead, mut word, mut available, mut used) = (reader.clone(), 0u64, 0u32, 0);
    let mut levels = Vec::with_capacity(number);
    while levels.len() < number {
        // A level takes at most 19 bits.
        while available < 32 && ahead.remaining() > 0 {
            word |= u64::from(ahead.u8()?) << available;
            available += 8;
        }
        let unary = word.trailing_ones();
        let (level, taken) = if levels.is_empty() {
            (word as i32 & 255, 8)
        } else if unary >= ESCAPE {
            ((word >> ESCAPE) as i32 & 255, ESCAPE + 8)
        } else {
            let number = (unary << rice | (word >> (unary + 1)) as u32 & ((1 << rice) - 1)) as i32;
            (expected(&levels) + (number >> 1 ^ -(number & 1)), unary + 1 + rice)
        };
        if taken > available || !(0..256).contains(&level) {
            return Err(Error::corrupt("levels of a shape that are cut off or too high"));
        }
        (word, available, used) = (word >> taken, available - taken, used + taken as usize);
        levels.push(level as u8);
    }
    let bytes = reader.take(used.div_ceil(8))?;
    if used % 8 > 0 && bytes.last().is_some_and(|last| last >> (used % 8) != 0) {
        return Err(Error::corrupt("bits after the last level of a shape"));
    }
    Ok(levels)
}
