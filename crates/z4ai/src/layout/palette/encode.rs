//! Finding the few values that all elements of a buffer are, and encoding chunks as indices.

use crate::coder::EncodeScratch;
use crate::coder::choose::{encode_bytes, encode_indices};
use crate::element::Kind;
use crate::estimate::probe::Sample;
use crate::kernel::difference;
use crate::kernel::sparse::load;
use crate::layout::grouped;
use crate::layout::palette::{self, Indexed, MAX_VALUES, Values, whole_number};
use crate::layout::split::classes::Hint;
use crate::options::Options;

/// Sampled runs of elements, and elements in each. (flat, 0.3 %)
const SAMPLE_RUNS: usize = 64;
const SAMPLE_RUN: usize = 32;
/// Elements per distinct value, at least, for a list of values to pay. (case: `structure.py`)
const MIN_REPEATS: usize = 8;
/// Elements that a buffer must have, so that even the least gain pays for the list. (flat)
const LEAST: usize = 1024;
/// Values of two bytes, at most: the indices of more would be no shorter.
/// (structural: indices of 12 bits)
const MAX_NARROW: usize = 1 << 12;

/// Marks values that are not in the palette. (structural)
const ABSENT: u32 = u32::MAX;

/// The index of every value.
pub(crate) struct Lookup {
    size: usize,
    slots: Slots,
    count: usize,
}

enum Slots {
    /// By value.
    Direct(Vec<u32>),
    /// Hashed, as pairs of value and index; a power of two of them, at least half unused.
    Hashed(Vec<(u64, u32)>),
}

/// The palette of `data`, if it is worth having one: the look-up, and its bytes in the index.
pub(crate) fn find(data: &[u8], options: &Options, hint: &Hint) -> Option<(Lookup, Vec<u8>)> {
    let kind = options.kind;
    let size = kind.size();
    let count = data.len() / size;
    if size == 1 || count < LEAST {
        return None;
    }
    let sample = Sample::of(data, size, SAMPLE_RUNS, SAMPLE_RUN);
    // Wide elements hardly ever meet by chance; narrow ones do, however many values there are.
    let few = if size == 2 { sample.taken / 3 } else { sample.taken - sample.taken / 128 };
    if sample.distinct > few {
        return None;
    }
    let most = if size == 2 { MAX_NARROW } else { MAX_VALUES }.min(count / MIN_REPEATS);
    let mut values = distinct(data, size, most)?;
    // Rows of few values may have many overall: indices into a row's values are shorter.
    let bits = sample.entropy();
    if values.len() > 256 && grouped::encode::find(data, size, hint).is_some_and(|(cost, _)| cost < bits) {
        return None;
    }
    let mut bytes = Vec::new();
    let consecutive = consecutive(kind, &mut values);
    palette::write(values.len(), &consecutive.unwrap_or_else(|| listed(options, &values)), &mut bytes);
    let mut slots = Slots::new(size, values.len());
    for (index, &value) in values.iter().enumerate() {
        slots.insert(value, index as u32);
    }
    Some((Lookup { size, slots, count: values.len() }, bytes))
}

/// All values that occur, in order of their bits; `None` if they are more than `most`.
fn distinct(data: &[u8], size: usize, most: usize) -> Option<Vec<u64>> {
    let mut slots = Slots::new(size, most);
    let mut values = Vec::new();
    for element in data.chunks_exact(size) {
        if slots.insert(load(element), 0) {
            values.push(load(element));
            if values.len() > most {
                return None;
            }
        }
    }
    values.sort_unstable();
    Some(values)
}

/// The values as whole numbers without a gap, in their order, if they are such.
fn consecutive(kind: Kind, values: &mut [u64]) -> Option<Values> {
    let mut numbers = Vec::with_capacity(values.len());
    for &value in values.iter() {
        let number = number_of(kind, value)?;
        if whole_number(kind, number)? != value {
            return None;
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    let first = *numbers.first()?;
    let gapless = numbers.iter().zip(first..).all(|(&number, expected)| number == expected);
    let first_stored = i32::try_from(first).ok().filter(|_| gapless)?;
    for (value, number) in values.iter_mut().zip(first..) {
        *value = whole_number(kind, number)?;
    }
    Some(Values::Consecutive(first_stored))
}

/// The whole number nearest to zero that an element may be; not exact for fractions.
fn number_of(kind: Kind, value: u64) -> Option<i64> {
    let bits = kind.bits();
    if !kind.is_float() {
        let unused = 64 - bits;
        return Some((value << unused) as i64 >> unused);
    }
    let mantissa_bits = bits - 1 - kind.exponent_bits();
    let bias = (1i64 << (kind.exponent_bits() - 1)) - 1;
    let exponent = (value >> mantissa_bits & ((1 << kind.exponent_bits()) - 1)) as i64;
    let power = exponent - bias;
    if power < 0 {
        return Some(0);
    }
    let mantissa = value & ((1 << mantissa_bits) - 1) | 1 << mantissa_bits;
    let shift = power - i64::from(mantissa_bits);
    let magnitude = match shift {
        ..=0 => mantissa >> -shift,
        1..=31 => mantissa.checked_shl(shift as u32).filter(|&m| m < 1 << 40)?,
        _ => return None,
    };
    Some(if value >> (bits - 1) == 1 { -(magnitude as i64) } else { magnitude as i64 })
}

/// The values in full: sorted ones share their high bytes, so each byte is a plane.
fn listed(options: &Options, values: &[u64]) -> Values {
    let size = options.kind.size();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)).collect();
    let mut planes = vec![0; bytes.len()];
    for (byte, plane) in planes.chunks_exact_mut(values.len()).enumerate() {
        difference::take_plane(size, &bytes, byte, plane);
    }
    let mut stored = Vec::new();
    let coder = encode_bytes(&planes, options, &mut stored, &mut EncodeScratch::default());
    Values::Listed(coder, stored)
}

impl Slots {
    /// Room for `most` values of `size` bytes, and one more.
    fn new(size: usize, most: usize) -> Self {
        match size {
            2 => Self::Direct(vec![ABSENT; 1 << 16]),
            _ => Self::Hashed(vec![(0, ABSENT); (2 * most + 2).next_power_of_two()]),
        }
    }

    /// Keeps the index of a value; whether it is the first for it.
    #[inline(always)]
    fn insert(&mut self, value: u64, index: u32) -> bool {
        let slot = match self {
            Self::Direct(slots) => &mut slots[value as usize & 0xffff],
            Self::Hashed(slots) => {
                let at = place(slots, value);
                slots[at].0 = value;
                &mut slots[at].1
            }
        };
        let new = *slot == ABSENT;
        *slot = index;
        new
    }

    /// The index of a value, or [`ABSENT`].
    #[inline(always)]
    fn get(&self, value: u64) -> u32 {
        match self {
            Self::Direct(slots) => slots[value as usize & 0xffff],
            Self::Hashed(slots) => slots[place(slots, value)].1,
        }
    }
}

/// Where a value is, or would be.
#[inline(always)]
fn place(slots: &[(u64, u32)], value: u64) -> usize {
    let mask = slots.len() - 1;
    let mut at = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
    while slots[at].1 != ABSENT && slots[at].0 != value {
        at = (at + 1) & mask;
    }
    at
}

/// Appends `elements` as indices to `payload`; `None` if one of them is not in the palette.
pub(crate) fn encode(
    elements: &[u8],
    lookup: &Lookup,
    options: &Options,
    buffers: &mut [Vec<u8>; 2],
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Option<Indexed> {
    let [low, high] = buffers;
    low.clear();
    high.clear();
    let wide = lookup.count > 256;
    for element in elements.chunks_exact(lookup.size) {
        let index = lookup.slots.get(load(element));
        if index == ABSENT {
            return None;
        }
        low.push(index as u8);
        if wide {
            high.push((index >> 8) as u8);
        }
    }
    let low = encode_indices(low, options, payload, scratch);
    let high = wide.then(|| encode_indices(high, options, payload, scratch));
    Some(Indexed { size: lookup.size, low, high })
}
