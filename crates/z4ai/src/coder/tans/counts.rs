//! Normalized counts: how many states of a table each symbol has, and how that is stored.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::bits::BitWriter;
use crate::coder::tans::{MAX_DESCRIBED_LOG, MAX_LOG, MIN_LOG};
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::wire::Reader;

/// Bits of a state that are worth their time, at most. (case: sweep of `balanced`; one less is up to 0.19 % larger,
/// one more up to 0.07 % smaller with tables twice as long)
const USUAL_LOG: u32 = 11;

/// Four bits that announce a run of absent symbols; the next four are its length less two. (format)
const ABSENT_RUN: u32 = 15;
/// Absent symbols of a run, at most. (format)
const LONGEST_RUN: usize = 17;

/// Normalized counts (FSE): the number of states of every symbol; they add up to a power of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NormalizedCounts {
    pub(super) log: u32,
    pub(super) counts: [u16; 256],
}

impl NormalizedCounts {
    /// About as many states as symbols are frequent, at least one for each that occurs; `None` when
    /// fewer than two do.
    pub(crate) fn for_counts(counts: &[u32; 256]) -> Option<Self> {
        Self::up_to(counts, USUAL_LOG)
    }

    /// As [`for_counts`](Self::for_counts), for symbols of many bits: a rare one has a state as well, and
    /// those of many rare ones are a part of all. (case: `entropy.py`, fp8; with half as many states 0.4 %
    /// larger)
    pub(crate) fn for_many_symbols(counts: &[u32; 256]) -> Option<Self> {
        let total: u32 = counts.iter().sum();
        Self::with_log(counts, total.max(1).ilog2().saturating_sub(3).clamp(MIN_LOG, MAX_LOG))
    }

    /// As [`for_counts`](Self::for_counts), as finely as is possible: where all depends on it.
    pub(crate) fn finest(counts: &[u32; 256]) -> Option<Self> {
        Self::up_to(counts, MAX_LOG)
    }

    fn up_to(counts: &[u32; 256], log: u32) -> Option<Self> {
        let total: u32 = counts.iter().sum();
        // A large table costs more than it saves on few symbols, and takes longer to build.
        Self::with_log(counts, total.max(1).ilog2().saturating_sub(4).clamp(MIN_LOG, log))
    }

    /// As [`for_counts`](Self::for_counts), with 2^`log` states; `log` must be 9 to 13.
    pub(crate) fn with_log(counts: &[u32; 256], log: u32) -> Option<Self> {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if counts.iter().filter(|&&count| count > 0).count() < 2 {
            return None;
        }
        let size = 1u64 << log;
        let mut states = [0u16; 256];
        for (states, &count) in states.iter_mut().zip(counts) {
            if count > 0 {
                let share = (2 * u64::from(count) * size + total) / (2 * total);
                *states = share.clamp(1, size - 1) as u16;
            }
        }
        // The rounding error goes to the symbols where it saves most, or comes from where it costs
        // least; ties go to the lowest symbol.
        let value = |s: usize, states: u16| (u64::from(counts[s]) << 20) / u64::from(states);
        let mut sum: u64 = states.iter().map(|&states| u64::from(states)).sum();
        let used = (0..256).filter(|&s| states[s] > 0);
        if sum < size {
            let mut values: BinaryHeap<(u64, Reverse<usize>)> =
                used.map(|s| (value(s, states[s]), Reverse(s))).collect();
            while sum < size {
                let mut most = values.peek_mut()?;
                let Reverse(s) = most.1;
                states[s] += 1;
                most.0 = value(s, states[s]);
                sum += 1;
            }
        } else if sum > size {
            let several = used.filter(|&s| states[s] > 1);
            let mut values: BinaryHeap<Reverse<(u64, usize)>> =
                several.map(|s| Reverse((value(s, states[s] - 1), s))).collect();
            while sum > size {
                let mut least = values.peek_mut()?;
                let Reverse((_, s)) = *least;
                states[s] -= 1;
                sum -= 1;
                match states[s] {
                    1 => drop(PeekMut::pop(least)),
                    several => *least = Reverse((value(s, several - 1), s)),
                }
            }
        }
        Some(Self { log, counts: states })
    }

    /// As [`with_log`](Self::with_log), of any counts: two symbols have states if fewer occur.
    pub(crate) fn of_any(mut counts: [u32; 256], log: u32) -> Self {
        if counts.iter().filter(|&&count| count > 0).count() < 2 {
            counts[0] += 1;
            counts[1] += 1;
        }
        Self::with_log(&counts, log).expect("two symbols")
    }

    /// Writes the log of the number of states, first and last symbol, then for each of the symbols
    /// between them four bits, the number of bits of its number of states, and those but the
    /// highest.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let first = self.counts.iter().position(|&count| count > 0).unwrap_or(0);
        let last = self.counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        out.extend([self.log as u8, first as u8, last as u8]);
        let mut bits = BitWriter::default();
        let mut at = first;
        while at <= last {
            // Symbols that are there come first: see `huffman::lengths`.
            let count = u64::from(self.counts[at]);
            if count > 0 {
                let width = u64::BITS - count.leading_zeros();
                bits.put(u64::from(width), 4, out);
                bits.put(count ^ (1 << width >> 1), width - 1, out);
                at += 1;
                continue;
            }
            let run = self.counts[at..=last].iter().take_while(|&&count| count == 0).count().min(LONGEST_RUN);
            if run == 1 {
                bits.put(0, 4, out);
            } else {
                bits.put(ABSENT_RUN as u64, 4, out);
                bits.put((run - 2) as u64, 4, out);
            }
            at += run;
        }
        bits.finish(out);
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Self::read_up_to(MAX_LOG, reader)
    }

    /// As [`read`](Self::read), of at most 2^`most` states.
    pub(super) fn read_up_to(most: u32, reader: &mut Reader<'_>) -> Result<Self> {
        let log = u32::from(reader.u8()?);
        if !(MIN_LOG..=most).contains(&log) {
            return Err(Error::corrupt(format_args!("states of {log} bits")));
        }
        let (first, last) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        let mut counts = [0u16; 256];
        let (mut word, mut available) = (0u32, 0u32);
        let mut take = |reader: &mut Reader<'_>, width: u32| -> Result<u32> {
            while available < width {
                word |= u32::from(reader.u8()?) << available;
                available += 8;
            }
            let bits = word & ((1 << width) - 1);
            word >>= width;
            available -= width;
            Ok(bits)
        };
        let (mut at, mut sum) = (first, 0u32);
        while at <= last {
            match take(reader, 4)? {
                0 => at += 1,
                ABSENT_RUN => at += take(reader, 4)? as usize + 2,
                width if width <= MAX_DESCRIBED_LOG => {
                    let count = 1 << (width - 1) | take(reader, width - 1)?;
                    counts[at] = count as u16;
                    sum += count;
                    at += 1;
                }
                width => return Err(Error::corrupt(format_args!("{width} bits of a number of states"))),
            }
        }
        if at != last + 1 || word != 0 || sum != 1 << log {
            return Err(Error::corrupt("states that do not add up"));
        }
        Ok(Self { log, counts })
    }

    /// The bits that symbols of these counts take, about. Each that occurs must have a state.
    pub(crate) fn cost_bits(&self, counts: &[u32; 256]) -> u64 {
        let all = u64::from(self.log) * BIT;
        let occurring = counts.iter().zip(self.counts).filter(|&(&count, _)| count > 0);
        let parts =
            occurring.map(|(&count, own)| u64::from(count) * (all - cost::log2(u32::from(own.max(1)))));
        parts.sum::<u64>() / BIT
    }

    /// The logarithm of the number of states.
    pub(crate) fn log(&self) -> u32 {
        self.log
    }

    pub(super) fn size(&self) -> usize {
        1 << self.log
    }

    /// Calls `each` with every state and its symbol, in the order of states.
    #[inline(always)]
    pub(super) fn for_each_state(&self, mut each: impl FnMut(usize, u8)) {
        /// Bytes of a store. (structural)
        const STORE: usize = 16;
        // In the order that states are handed out in; what is stored beyond a symbol's last is
        // overwritten by the next one's.
        let mut handed_out = [0u8; (1 << MAX_DESCRIBED_LOG) + STORE];
        let mut at = 0;
        for (symbol, &count) in self.counts.iter().enumerate() {
            let end = at + usize::from(count);
            let mut to = at;
            while to < end {
                handed_out[to..][..STORE].copy_from_slice(&[symbol as u8; STORE]);
                to += STORE;
            }
            at = end;
        }
        // State i was handed out as number i / step, modulo the number of states, which step is odd to.
        let size = self.size();
        let step = (size >> 1) + (size >> 3) + 3;
        let mut inverse = step;
        for _ in 0..4 {
            inverse = inverse.wrapping_mul(2usize.wrapping_sub(step.wrapping_mul(inverse)));
        }
        // Four at a time, which takes fewer instructions each.
        let mut numbers = [0, inverse, inverse.wrapping_mul(2), inverse.wrapping_mul(3)];
        for state in (0..size).step_by(4) {
            for (i, number) in numbers.iter_mut().enumerate() {
                *number &= size - 1;
                each(state + i, handed_out[*number % (1 << MAX_DESCRIBED_LOG)]);
                *number = number.wrapping_add(inverse.wrapping_mul(4));
            }
        }
    }
}
