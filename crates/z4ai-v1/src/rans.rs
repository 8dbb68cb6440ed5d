//! The byte-wise rANS coder of version 1, order 0.
//!
//! Four lanes take turns, symbol by symbol, and share one run of bytes. There
//! is no checksum, but a valid stream ends with every lane back in its start
//! state and no byte unread, and that is checked.

use crate::bytes::{Bytes, Lengths, zeroed};
use crate::zstd_frame::{Zstd, ZstdFrame};
use crate::{Result, corrupt};

const LANES: usize = 4;
/// Four start states of four bytes.
const LEAST_STREAM: usize = 16;
const SCALE_BITS: u32 = 14;
const SCALE: usize = 1 << SCALE_BITS;
/// Frequencies of all 256 symbols, two bytes each.
const TABLE_BYTES: usize = 512;
/// The interval of a lane's state: `LOWEST..HIGHEST`.
pub(super) const LOWEST: u32 = 1 << 23;
const HIGHEST: u32 = 1 << 31;

/// Below this many symbols, searching the model beats filling a slot table.
/// Without the distinction a stream of many one-symbol chunks would cost
/// 16 KiB of table for each.
const WORTH_A_TABLE: usize = 4096;

/// The lane state a stream starts with.
pub(super) fn start_state(bytes: &mut Bytes<'_>) -> Result<u32> {
    let state = bytes.u32("rANS state")?;
    if !(LOWEST..HIGHEST).contains(&state) {
        return Err(corrupt(format!("rANS start state {state:#x} out of range")));
    }
    Ok(state)
}

/// Where the part `index` of `parts` starts in a plane of `len` bytes.
pub(super) fn part_start(index: u64, parts: u64, len: usize) -> usize {
    // At most `len`, since `index` is at most `parts`.
    (u128::from(index) * len as u128 / u128::from(parts)) as usize
}

/// Shifts bytes into `state` until it is back in its interval.
///
/// `state` is at least 512 here (a frequency of one or more times a state of
/// `LOWEST >> 14` or more), so that two bytes are always enough.
#[inline(always)]
pub(super) fn refill(state: &mut u32, bytes: &mut std::slice::Iter<'_, u8>) -> Result<()> {
    while *state < LOWEST {
        let Some(&byte) = bytes.next() else {
            return Err(corrupt("rANS stream ends early"));
        };
        *state = *state << 8 | u32::from(byte);
    }
    Ok(())
}

/// Frequencies and their running sums.
pub(super) struct Model {
    frequency: [u32; 256],
    start: [u32; 256],
}

impl Model {
    fn parse(table: &[u8; TABLE_BYTES]) -> Result<Self> {
        let mut model = Self { frequency: [0; 256], start: [0; 256] };
        let mut sum = 0;
        for (symbol, raw) in table.as_chunks::<2>().0.iter().enumerate() {
            let frequency = u32::from(u16::from_le_bytes(*raw));
            model.frequency[symbol] = frequency;
            model.start[symbol] = sum;
            sum += frequency;
        }
        if sum != SCALE as u32 {
            return Err(corrupt(format!("rANS frequencies add up to {sum} instead of {SCALE}")));
        }
        Ok(model)
    }

    /// The symbol that owns `slot`: the last one that starts at or before it,
    /// which is never one of frequency zero as the next starts there too.
    fn find(&self, slot: u32) -> u8 {
        (self.start.partition_point(|&start| start <= slot) - 1) as u8
    }

    fn fill_slots(&self, slots: &mut [u8; SCALE]) {
        let mut at = 0;
        for (symbol, &frequency) in self.frequency.iter().enumerate() {
            let end = at + frequency as usize;
            slots[at..end].fill(symbol as u8);
            at = end;
        }
    }

    /// Decodes one stream, using `slots` as scratch.
    fn decode(&self, stream: &[u8], out: &mut [u8], slots: &mut [u8; SCALE]) -> Result<()> {
        if out.len() < WORTH_A_TABLE {
            self.decode_with(stream, out, |slot| self.find(slot as u32))
        } else {
            self.fill_slots(slots);
            self.decode_with(stream, out, |slot| slots[slot])
        }
    }

    #[inline(always)]
    fn decode_with(&self, stream: &[u8], out: &mut [u8], symbol_at: impl Fn(usize) -> u8) -> Result<()> {
        let mut bytes = Bytes::new(stream);
        let mut states = [0; LANES];
        for state in &mut states {
            *state = start_state(&mut bytes)?;
        }
        let mut bytes = bytes.take_rest().iter();
        let mut step = |state: &mut u32| {
            let slot = *state as usize % SCALE;
            let symbol = symbol_at(slot);
            let at = usize::from(symbol);
            *state = self.frequency[at] * (*state >> SCALE_BITS) + slot as u32 - self.start[at];
            refill(state, &mut bytes).map(|()| symbol)
        };
        for group in out.chunks_mut(LANES) {
            for (out, state) in group.iter_mut().zip(&mut states) {
                *out = step(state)?;
            }
        }
        if states != [LOWEST; LANES] || bytes.len() > 0 {
            return Err(corrupt("rANS stream does not end in its start state"));
        }
        Ok(())
    }
}

fn scratch() -> Result<Box<[u8; SCALE]>> {
    // The conversion cannot fail: the length is the array's.
    Box::try_from(zeroed(SCALE)?.into_boxed_slice()).map_err(|_| corrupt("rANS scratch"))
}

/// Streams of a plane that was cut into equal parts.
pub(super) struct Parts<'a> {
    lengths: Lengths<'a>,
    streams: &'a [u8],
    count: u32,
}

impl<'a> Parts<'a> {
    fn parse(lengths: Lengths<'a>, streams: &'a [u8], count: u32, len: usize) -> Result<Self> {
        if count == 0 || u64::from(count) > len as u64 {
            return Err(corrupt(format!("{len} symbols in {count} rANS chunks")));
        }
        lengths.check(LEAST_STREAM, streams.len(), "rANS stream")?;
        Ok(Self { lengths, streams, count })
    }

    /// Decodes every stream into its part of `out`, with the model that
    /// `model` gives for its index.
    fn decode_into<M: std::ops::Deref<Target = Model>>(
        &self,
        mut out: &mut [u8],
        mut model: impl FnMut(usize) -> Result<M>,
    ) -> Result<()> {
        let mut slots = scratch()?;
        let (len, count) = (out.len(), u64::from(self.count));
        let mut start = 0;
        let streams = self.lengths.cut(self.streams, "rANS stream");
        for (index, stream) in streams.enumerate() {
            let end = part_start(index as u64 + 1, count, len);
            let (part, rest) = out.split_at_mut(end - start);
            model(index)?.decode(stream?, part, &mut slots)?;
            (start, out) = (end, rest);
        }
        Ok(())
    }
}

/// One model for the whole plane (plane method 3, auto stream method 3).
pub(super) enum RansShared<'a> {
    Empty,
    One { model: Box<Model>, stream: &'a [u8] },
    Many { model: Box<Model>, parts: Parts<'a> },
}

impl<'a> RansShared<'a> {
    const MANY: u64 = 1 << 63;

    pub(super) fn parse(payload: &'a [u8], len: usize) -> Result<Self> {
        let mut bytes = Bytes::new(payload);
        let head = bytes.u64("rANS header")?;
        check_count(head & !Self::MANY, len)?;
        if head == 0 {
            bytes.finish("an empty rANS plane")?;
            return Ok(Self::Empty);
        }
        let many = head & Self::MANY != 0;
        let count = if many { bytes.u16("rANS chunk count")? } else { 1 };
        let model = Box::new(model_from(&mut bytes)?);
        if !many {
            let stream = bytes.take_rest();
            return Ok(Self::One { model, stream });
        }
        let lengths = bytes.lengths(count.into(), "rANS stream lengths")?;
        let parts = Parts::parse(lengths, bytes.take_rest(), count.into(), len)?;
        Ok(Self::Many { model, parts })
    }

    pub(super) fn decode_into(&self, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Empty => Ok(()),
            Self::One { model, stream } => model.decode(stream, out, &mut *scratch()?),
            Self::Many { model, parts } => parts.decode_into(out, |_| Ok(&**model)),
        }
    }
}

/// One model for each chunk (plane method 4).
pub(super) enum RansChunks<'a> {
    Empty,
    Chunks { tables: ZstdFrame<'a>, parts: Parts<'a> },
}

impl<'a> RansChunks<'a> {
    const MARK: u64 = 1 << 62;

    pub(super) fn parse(payload: &'a [u8], len: usize) -> Result<Self> {
        let mut bytes = Bytes::new(payload);
        let head = bytes.u64("rANS header")?;
        if head == 0 {
            check_count(0, len)?;
            bytes.finish("an empty rANS plane")?;
            return Ok(Self::Empty);
        }
        if head & Self::MARK == 0 {
            return Err(corrupt("rANS header lacks the mark of chunked models"));
        }
        check_count(head & !Self::MARK, len)?;
        let count = bytes.u32("rANS chunk count")?;
        let tables_len = bytes.u32("rANS table length")?;
        let lengths = bytes.lengths(count, "rANS stream lengths")?;
        let tables = bytes.take(tables_len as usize, "rANS tables")?;
        let parts = Parts::parse(lengths, bytes.take_rest(), count, len)?;
        // Every chunk has at least sixteen bytes of stream, so that the
        // tables cannot outgrow the payload by more than a small factor.
        let tables = ZstdFrame::parse(tables, parts.count as usize * TABLE_BYTES)?;
        Ok(Self::Chunks { tables, parts })
    }

    pub(super) fn decode_into(&self, out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let Self::Chunks { tables, parts } = self else {
            return Ok(());
        };
        let mut raw = zeroed(parts.count as usize * TABLE_BYTES)?;
        tables.decode_into(&mut raw, zstd)?;
        let (raw, _) = raw.as_chunks::<TABLE_BYTES>();
        parts.decode_into(out, |index| Model::parse(&raw[index]).map(Box::new))
    }
}

fn check_count(stated: u64, len: usize) -> Result<()> {
    if stated != len as u64 {
        return Err(corrupt(format!("rANS header states {stated} symbols where {len} are expected")));
    }
    Ok(())
}

fn model_from(bytes: &mut Bytes<'_>) -> Result<Model> {
    let mut table = [0; TABLE_BYTES];
    table.copy_from_slice(bytes.take(TABLE_BYTES, "rANS frequencies")?);
    Model::parse(&table)
}
