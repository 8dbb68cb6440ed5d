//! The byte-wise rANS coder of version 1, order 1 (plane method 5).
//!
//! The previous byte selects one of up to 256 models. Every chunk is cut into
//! four segments, each with its own state and bytes, starting from context 0.

use crate::bytes::{Bytes, Lengths, zeroed};
use crate::rans::{LOWEST, part_start, refill, start_state};
use crate::zstd_frame::{Zstd, ZstdFrame};
use crate::{Result, corrupt};

const SEGMENTS: usize = 4;
const SCALE_BITS: u32 = 12;
const SCALE: usize = 1 << SCALE_BITS;
/// Four lengths, then four states of four bytes.
const LEAST_CHUNK: usize = 4 * SEGMENTS + LEAST_SEGMENT * SEGMENTS;
const LEAST_SEGMENT: usize = 4;
/// 256 contexts with all 256 symbols each.
const MAX_MODEL: u64 = 256 * (3 + 256 * 3);
/// No row of the models exists for this context.
const NO_ROW: u16 = u16::MAX;

pub(super) enum RansOrder1<'a> {
    Empty,
    Chunks { model: ZstdFrame<'a>, lengths: Lengths<'a>, chunks: &'a [u8], count: u16 },
}

impl<'a> RansOrder1<'a> {
    pub(super) fn parse(payload: &'a [u8], len: usize) -> Result<Self> {
        let mut bytes = Bytes::new(payload);
        if bytes.take(2, "order-1 magic")? != b"R1" {
            return Err(corrupt("order-1 plane does not start with \"R1\""));
        }
        let segments = bytes.u8("order-1 segments")?;
        let pad = bytes.u8("order-1 padding")?;
        if usize::from(segments) != SEGMENTS || pad != 0 {
            return Err(corrupt(format!("order-1 plane with {segments} segments a chunk and padding {pad}")));
        }
        let stated = bytes.u32("order-1 symbol count")?;
        if stated as usize != len {
            return Err(corrupt(format!("order-1 plane states {stated} symbols where {len} are expected")));
        }
        let model_bytes = bytes.u32("order-1 model length")?;
        let count = bytes.u16("order-1 chunk count")?;
        if len == 0 && model_bytes == 0 && count == 0 {
            bytes.finish("an empty order-1 plane")?;
            return Ok(Self::Empty);
        }
        if count == 0 || usize::from(count) > len {
            return Err(corrupt(format!("{len} symbols in {count} order-1 chunks")));
        }
        let model = bytes.take(model_bytes as usize, "order-1 model")?;
        // The model's own header is all that tells its size.
        let model = ZstdFrame::parse_sized(model, MAX_MODEL)?;
        let lengths = bytes.lengths(count.into(), "order-1 chunk lengths")?;
        let chunks = bytes.take_rest();
        lengths.check(LEAST_CHUNK, chunks.len(), "order-1 chunk")?;
        Ok(Self::Chunks { model, lengths, chunks, count })
    }

    pub(super) fn decode_into(&self, mut out: &mut [u8], zstd: &mut Zstd) -> Result<()> {
        let &Self::Chunks { ref model, lengths, chunks, count } = self else {
            return Ok(());
        };
        let mut records = zeroed(model.content())?;
        model.decode_into(&mut records, zstd)?;
        let models = Models::parse(&records)?;
        let len = out.len();
        let mut start = 0;
        for (index, chunk) in lengths.cut(chunks, "order-1 chunk").enumerate() {
            let end = part_start(index as u64 + 1, count.into(), len);
            let (part, rest) = out.split_at_mut(end - start);
            models.decode_chunk(chunk?, part)?;
            (start, out) = (end, rest);
        }
        Ok(())
    }
}

/// For each context that occurs, which symbol owns each of `SCALE` slots, and
/// where each symbol's slots start and how many they are.
struct Models {
    row_of: [u16; 256],
    slots: Vec<[u8; SCALE]>,
    spans: Vec<[Span; 256]>,
}

#[derive(Clone, Copy, Default)]
struct Span {
    start: u16,
    frequency: u16,
}

impl Models {
    fn parse(records: &[u8]) -> Result<Self> {
        let mut models = Self { row_of: [NO_ROW; 256], slots: Vec::new(), spans: Vec::new() };
        let mut bytes = Bytes::new(records);
        let mut least_context = 0;
        while bytes.remaining() > 0 {
            let context = bytes.u8("order-1 context")?;
            if u16::from(context) < least_context {
                return Err(corrupt("order-1 contexts do not ascend"));
            }
            least_context = u16::from(context) + 1;
            models.row_of[usize::from(context)] = models.slots.len() as u16;
            let mut slots = [0; SCALE];
            models.spans.push(parse_row(&mut bytes, &mut slots)?);
            models.slots.push(slots);
        }
        Ok(models)
    }

    fn decode_chunk(&self, chunk: &[u8], mut out: &mut [u8]) -> Result<()> {
        let mut bytes = Bytes::new(chunk);
        let lengths = bytes.lengths(SEGMENTS as u32, "order-1 segment lengths")?;
        let streams = bytes.take_rest();
        lengths.check(LEAST_SEGMENT, streams.len(), "order-1 segment")?;
        let len = out.len();
        let mut start = 0;
        for (index, stream) in lengths.cut(streams, "order-1 segment").enumerate() {
            let end = part_start(index as u64 + 1, SEGMENTS as u64, len);
            let (part, rest) = out.split_at_mut(end - start);
            self.decode_segment(stream?, part)?;
            (start, out) = (end, rest);
        }
        Ok(())
    }

    fn decode_segment(&self, stream: &[u8], out: &mut [u8]) -> Result<()> {
        let mut bytes = Bytes::new(stream);
        let mut state = start_state(&mut bytes)?;
        let mut bytes = bytes.take_rest().iter();
        let mut context = 0u8;
        for out in out {
            let row = self.row_of[usize::from(context)];
            if row == NO_ROW {
                return Err(corrupt(format!("order-1 context {context} has no model")));
            }
            let slot = state as usize % SCALE;
            context = self.slots[usize::from(row)][slot];
            let span = self.spans[usize::from(row)][usize::from(context)];
            // The slot lies in the span of the symbol that owns it.
            let place = slot as u32 - u32::from(span.start);
            state = u32::from(span.frequency) * (state >> SCALE_BITS) + place;
            refill(&mut state, &mut bytes)?;
            *out = context;
        }
        if state != LOWEST || bytes.len() > 0 {
            return Err(corrupt("order-1 stream does not end in its start state"));
        }
        Ok(())
    }
}

fn parse_row(bytes: &mut Bytes<'_>, slots: &mut [u8; SCALE]) -> Result<[Span; 256]> {
    let mut spans = [Span::default(); 256];
    let count = bytes.u16("order-1 symbols")?;
    let mut least_symbol = 0;
    let mut start = 0;
    for _ in 0..count {
        let symbol = bytes.u8("order-1 symbol")?;
        let frequency = bytes.u16("order-1 frequency")?;
        if u16::from(symbol) < least_symbol {
            return Err(corrupt("order-1 symbols do not ascend"));
        }
        least_symbol = u16::from(symbol) + 1;
        let end = start + usize::from(frequency);
        let Some(owned) = slots.get_mut(start..end) else {
            return Err(corrupt("order-1 frequencies overfill their row"));
        };
        owned.fill(symbol);
        spans[usize::from(symbol)] = Span { start: start as u16, frequency };
        start = end;
    }
    if start != SCALE {
        return Err(corrupt("order-1 frequencies do not fill their row"));
    }
    Ok(spans)
}
