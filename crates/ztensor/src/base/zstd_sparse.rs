//! zstd frames of buffers that are mostly zeros.
//!
//! A general match finder hashes every position and takes whatever match it finds first. Here the best parse is known:
//! every run of zeros is one match with the byte before it, at offset 1, which repeats and so takes no bits. Frames are
//! a third smaller than those of level 1, are made in less time and decode in less, by any decoder.
//!
//! zstd asks for the parse of each block by a callback (`ZSTD_registerSequenceProducer`), which is not part of the
//! stable interface that the crate `zstd` wraps; hence the calls of the C library.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use z4ai::delta::Comparison;
use zstd::zstd_safe::{self, zstd_sys};
use zstd_sys::ZSTD_cParameter as Parameter;

use crate::base::huge_pages::zeroed_vec;
use crate::base::simd::{self, Kernel};
use crate::error::{Error, Result};

/// Bytes that are compressed at a time. (format: the largest block of a zstd frame)
pub(crate) const BLOCK: usize = 128 << 10;
/// Shorter runs of zeros stay literals. (case: `sync.py`, publish zstd: of 4, 6 and 8 the smallest frames but for
/// 1.5 % at a share of 5 %, and 4 takes 10 % longer at 20 %)
const MIN_RUN: usize = 6;
/// Parameters of zstd: matches are short; the window is a block, since no match leads further back; the strategy
/// chooses entropy tables by their size, where that of level 1 follows rules of thumb; no search by zstd itself, so
/// no tables for it; blocks are not split; offsets that repeat are coded as such. (case: `sync.py`, publish zstd)
const PARAMETERS: [(Parameter, c_int); 9] = [
    (Parameter::ZSTD_c_compressionLevel, 1),
    (Parameter::ZSTD_c_minMatch, 3),
    (Parameter::ZSTD_c_windowLog, 17),
    (Parameter::ZSTD_c_strategy, zstd_sys::ZSTD_strategy::ZSTD_lazy as c_int),
    (Parameter::ZSTD_c_hashLog, 6),
    (Parameter::ZSTD_c_chainLog, 6),
    (USE_ROW_MATCH_FINDER, DISABLE),
    (REPCODE_RESOLUTION, ENABLE),
    (BLOCK_SPLITTER_LEVEL, 1),
];
/// Names of parameters that are not in the stable interface. (structural: zstd 1.5.7)
const USE_ROW_MATCH_FINDER: Parameter = Parameter::ZSTD_c_experimentalParam14;
const REPCODE_RESOLUTION: Parameter = Parameter::ZSTD_c_experimentalParam19;
const BLOCK_SPLITTER_LEVEL: Parameter = Parameter::ZSTD_c_experimentalParam20;
const ENABLE: c_int = 1;
const DISABLE: c_int = 2;

/// A part of a block's parse: literals, and a match behind them.
#[repr(C)]
struct Sequence {
    offset: u32,
    literals: u32,
    matched: u32,
    rep: u32,
}

type Producer = unsafe extern "C" fn(
    state: *mut c_void,
    sequences: *mut Sequence,
    capacity: usize,
    source: *const c_void,
    source_len: usize,
    dictionary: *const c_void,
    dictionary_len: usize,
    level: c_int,
    window: usize,
) -> usize;

unsafe extern "C" {
    fn ZSTD_registerSequenceProducer(
        context: *mut zstd_sys::ZSTD_CCtx,
        state: *mut c_void,
        producer: Option<Producer>,
    );
}

/// The callback of zstd.
///
/// # Safety
/// As zstd calls it: `state` is the [`Nonzero`] that it was registered with, `source` has `source_len` bytes, `sequences`
/// room for `capacity`.
unsafe extern "C" fn produce(
    state: *mut c_void,
    sequences: *mut Sequence,
    capacity: usize,
    source: *const c_void,
    source_len: usize,
    _: *const c_void,
    _: usize,
    _: c_int,
    _: usize,
) -> usize {
    let mut count = 0;
    // SAFETY: of the caller.
    let block = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), source_len) };
    let mut push = |literals: usize, matched: usize| {
        let offset = u32::from(matched > 0);
        let sequence = Sequence { offset, literals: literals as u32, matched: matched as u32, rep: 0 };
        if count < capacity {
            // SAFETY: below the capacity of the caller.
            unsafe { sequences.add(count).write(sequence) };
        }
        count += 1;
    };
    let mut end = 0;
    let each = |run: Range<usize>| {
        // The first zero is a literal, which the others repeat.
        push(run.start + 1 - end, run.len() - 1);
        end = run.end;
    };
    // SAFETY: of the caller; nothing else refers to it while zstd compresses.
    match unsafe { &*state.cast::<Nonzero>() } {
        nonzero if nonzero.is_of(block) => nonzero.zero_runs(source_len, each),
        _ => zero_runs(block, each),
    }
    push(source_len - end, 0);
    count // more than the capacity is an error
}

/// The positions of the bytes of a block that are not zero, where they are known.
#[derive(Default)]
struct Nonzero(Vec<u32>);

impl Nonzero {
    /// Whether these are the positions of a block: zstd may have cut the content otherwise, and believes every parse.
    fn is_of(&self, block: &[u8]) -> bool {
        let mut count = 0;
        simd::run(CountNonzero { block, count: &mut count });
        count == self.0.len()
            && self.0.iter().all(|&at| block.get(at as usize).is_some_and(|byte| *byte != 0))
    }

    /// As the function of this name.
    fn zero_runs(&self, len: usize, mut each: impl FnMut(Range<usize>)) {
        let mut start = 0;
        for at in self.0.iter().map(|&at| at as usize).chain([len]) {
            if at >= start + MIN_RUN {
                each(start..at);
            }
            start = at + 1;
        }
    }
}

/// The loop that counts bytes other than zero.
struct CountNonzero<'a> {
    block: &'a [u8],
    count: &'a mut usize,
}

impl Kernel for CountNonzero<'_> {
    #[inline(always)]
    fn run(self) {
        // Counted in bytes, as many at a time as these can count.
        let count = |part: &[u8]| part.iter().fold(0u8, |count, byte| count + u8::from(*byte != 0));
        let (parts, rest) = self.block.as_chunks::<128>();
        *self.count =
            parts.iter().map(|part| usize::from(count(part))).sum::<usize>() + usize::from(count(rest));
    }
}

/// Calls `each` with all runs of at least [`MIN_RUN`] zeros, in order.
fn zero_runs(block: &[u8], mut each: impl FnMut(Range<usize>)) {
    /// Bytes that are compared with zero at once. (structural: a cache line)
    const LINE: usize = 64;
    let mut start = 0;
    let mut other = |at: usize| {
        if at >= start + MIN_RUN {
            each(start..at);
        }
        start = at + 1;
    };
    let (lines, rest) = block.as_chunks::<LINE>();
    for (index, line) in lines.iter().enumerate() {
        let words = line.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        if words.clone().fold(0, |all, word| all | word) == 0 {
            continue;
        }
        for (word, bits) in words.enumerate() {
            // The lowest bit of each byte that is not zero.
            let low = 0x0101_0101_0101_0101;
            let mut bits = bits | bits >> 4;
            bits |= bits >> 2;
            bits = (bits | bits >> 1) & low;
            // Bits of the next byte reach the upper ones only, which the mask drops.
            while bits != 0 {
                other(index * LINE + word * 8 + bits.trailing_zeros() as usize / 8);
                bits &= bits - 1;
            }
        }
    }
    let at = lines.len() * LINE;
    for (index, _) in rest.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        other(at + index);
    }
    other(block.len());
}

/// A context of zstd, and room for a block.
struct Compressor {
    context: NonNull<zstd_sys::ZSTD_CCtx>,
    block: Vec<u8>,
    /// Of the block, if it was made of what changed; else of none. zstd has its address.
    nonzero: Box<Nonzero>,
}

thread_local! {
    /// This thread's last context: one call per tensor follows another, and a context takes as long to set up as a
    /// small tensor to compress.
    static LAST: Cell<Option<Compressor>> = const { Cell::new(None) };
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used any more.
        unsafe { zstd_sys::ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

fn checked(code: usize) -> Result<usize> {
    // SAFETY: any number is an argument.
    match unsafe { zstd_sys::ZSTD_isError(code) } {
        0 => Ok(code),
        _ => {
            let cause = std::io::Error::other(zstd_safe::get_error_name(code));
            Err(Error::io("zstd cannot compress", cause))
        }
    }
}

impl Compressor {
    fn new() -> Result<Compressor> {
        // SAFETY: no arguments.
        let context = NonNull::new(unsafe { zstd_sys::ZSTD_createCCtx() });
        let context = context.ok_or_else(|| Error::limit("not enough memory for zstd"))?;
        let nonzero = Box::<Nonzero>::default();
        let mut compressor = Compressor { context, block: zeroed_vec(BLOCK as u64)?, nonzero };
        for (parameter, value) in PARAMETERS {
            // SAFETY: the context is valid.
            checked(unsafe { zstd_sys::ZSTD_CCtx_setParameter(context.as_ptr(), parameter, value) })?;
        }
        let state: *mut Nonzero = &mut *compressor.nonzero;
        // SAFETY: the context is valid; the state is dropped with it.
        unsafe { ZSTD_registerSequenceProducer(context.as_ptr(), state.cast(), Some(produce)) };
        Ok(compressor)
    }

    /// Compresses the next bytes of the frame, and all that is left of it with the last ones.
    fn write(&mut self, len: usize, last: bool, frame: &mut Vec<u8>) -> Result<()> {
        use zstd_sys::ZSTD_EndDirective::{ZSTD_e_continue, ZSTD_e_end};
        let mut input = zstd_sys::ZSTD_inBuffer { src: self.block[..len].as_ptr().cast(), size: len, pos: 0 };
        loop {
            frame
                .try_reserve(BLOCK)
                .map_err(|_| Error::limit("not enough memory for a compressed tensor"))?;
            let room = frame.spare_capacity_mut();
            let mut output =
                zstd_sys::ZSTD_outBuffer { dst: room.as_mut_ptr().cast(), size: room.len(), pos: 0 };
            let end = if last { ZSTD_e_end } else { ZSTD_e_continue };
            // SAFETY: the context is valid, both buffers are as long as said.
            let left = checked(unsafe {
                zstd_sys::ZSTD_compressStream2(self.context.as_ptr(), &raw mut output, &raw mut input, end)
            })?;
            // SAFETY: zstd wrote `pos` bytes behind those that were there, at most as many as there was room for.
            unsafe { frame.set_len(frame.len() + output.pos) };
            if input.pos == input.size && (!last || left == 0) {
                return Ok(());
            }
        }
    }
}

/// A frame on the way, with its content size.
pub(crate) struct Frame {
    /// `None` once it is complete.
    compressor: Option<Compressor>,
    frame: Vec<u8>,
    /// Bytes in the block, and bytes of the content that have not come yet.
    filled: usize,
    left: usize,
}

impl Frame {
    /// A frame of `len` bytes.
    pub(crate) fn new(len: usize) -> Result<Frame> {
        use zstd_sys::ZSTD_ResetDirective::ZSTD_reset_session_only;
        let compressor = LAST.take().map_or_else(Compressor::new, Ok)?;
        let context = compressor.context.as_ptr();
        // SAFETY: the context is valid.
        checked(unsafe { zstd_sys::ZSTD_CCtx_reset(context, ZSTD_reset_session_only) })?;
        // SAFETY: the same.
        checked(unsafe { zstd_sys::ZSTD_CCtx_setPledgedSrcSize(context, len as u64) })?;
        Ok(Frame { compressor: Some(compressor), frame: Vec::new(), filled: 0, left: len })
    }

    /// Adds the exclusive or of the next bytes of two buffers.
    pub(crate) fn xor(&mut self, first: &[u8], second: &[u8]) -> Result<()> {
        self.extend(first.len(), |range, out| {
            simd::run(Xor { out, first: &first[range.clone()], second: &second[range] });
        })
    }

    /// Adds the next block, of `len` bytes: the exclusive or of two states, by what changed from one to the other. All
    /// blocks but the last have [`BLOCK`] bytes.
    pub(crate) fn changes(&mut self, len: usize, size: usize, changes: &Comparison) -> Result<()> {
        let Some(compressor) = &mut self.compressor else { return Ok(()) };
        if self.filled > 0 || len != BLOCK.min(self.left) {
            return Err(Error::invalid("a frame of changes has whole blocks"));
        }
        let block = &mut compressor.block[..len];
        block.fill(0);
        let nonzero = &mut compressor.nonzero.0;
        nonzero.clear();
        let [now, before] = changes.elements();
        let mut bits = now.iter().zip(before).map(|(now, before)| now ^ before);
        changes.for_each_position(|position| {
            for (at, bits) in (position * size..(position + 1) * size).zip(&mut bits) {
                block[at] = bits;
                if bits != 0 {
                    nonzero.push(at as u32);
                }
            }
        });
        self.filled = len;
        self.left -= len;
        self.write_block()
    }

    /// Adds the next `len` bytes, which `fill` makes: a range of them at a time.
    fn extend(&mut self, len: usize, mut fill: impl FnMut(Range<usize>, &mut [u8])) -> Result<()> {
        let mut at = 0;
        while at < len {
            let Some(compressor) = &mut self.compressor else { break };
            let next = (len - at).min(BLOCK - self.filled).min(self.left);
            if next == 0 {
                return Err(Error::invalid("more bytes than the frame was begun for"));
            }
            fill(at..at + next, &mut compressor.block[self.filled..self.filled + next]);
            compressor.nonzero.0.clear();
            self.filled += next;
            self.left -= next;
            at += next;
            self.write_block()?;
        }
        Ok(())
    }

    /// Compresses a block that is full, unless it may be the last one.
    fn write_block(&mut self) -> Result<()> {
        if let Some(compressor) = &mut self.compressor
            && self.filled == BLOCK
            && self.left > 0
        {
            compressor.write(BLOCK, false, &mut self.frame)?;
            self.filled = 0;
        }
        Ok(())
    }

    /// The frame, once all bytes have come.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        if let Some(mut compressor) = self.compressor.take() {
            compressor.write(self.filled, true, &mut self.frame)?;
            LAST.set(Some(compressor));
        }
        self.frame.shrink_to_fit();
        Ok(std::mem::take(&mut self.frame))
    }
}

/// The loop of an exclusive or.
struct Xor<'a> {
    out: &'a mut [u8],
    first: &'a [u8],
    second: &'a [u8],
}

impl Kernel for Xor<'_> {
    #[inline(always)]
    fn run(self) {
        let both = self.first.iter().zip(self.second);
        self.out.iter_mut().zip(both).for_each(|(out, (first, second))| *out = first ^ second);
    }
}

/// One frame of the exclusive or of two buffers of equal length.
pub(crate) fn compress_xor(first: &[u8], second: &[u8]) -> Result<Vec<u8>> {
    let mut frame = Frame::new(first.len())?;
    frame.xor(first, second)?;
    frame.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame_of(bytes: &[u8]) -> Vec<u8> {
        let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x5a).collect();
        let frame = compress_xor(&other, &vec![0x5a; bytes.len()]).unwrap();
        let mut parts = Frame::new(bytes.len()).unwrap();
        other.chunks(1000).for_each(|part| parts.xor(part, &vec![0x5a; part.len()]).unwrap());
        assert!(parts.finish().unwrap() == frame);
        frame
    }

    fn check(bytes: &[u8]) {
        let frame = frame_of(bytes);
        assert_eq!(zstd_safe::get_frame_content_size(&frame).unwrap(), Some(bytes.len() as u64));
        assert_eq!(zstd_safe::find_frame_compressed_size(&frame), Ok(frame.len()));
        assert!(zstd::bulk::decompress(&frame, bytes.len()).unwrap() == bytes, "{} bytes", bytes.len());
        assert_eq!(frame_of(bytes), frame, "the same bytes again");
    }

    #[test]
    fn any_share_and_length_comes_back() {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for len in [0, 1, 5, 6, 7, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77] {
            for one_in in [1, 2, 5, 7, 20, 300, 100_000, usize::MAX] {
                let bytes: Vec<u8> =
                    (0..len).map(|_| if random() % one_in == 0 { random() as u8 } else { 0 }).collect();
                check(&bytes);
            }
        }
    }

    #[test]
    fn frames_of_sparse_bytes_are_smaller_than_those_of_level_1() {
        for every in [2000, 300, 50, 11] {
            let mut state = 9u64;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            let bytes: Vec<u8> = (0..1 << 20)
                .map(|at| if at % 2 == 0 && random() % every == 0 { 1 + 2 * (random() % 2) as u8 } else { 0 })
                .collect();
            check(&bytes);
            let (ours, theirs) = (frame_of(&bytes).len(), zstd::bulk::compress(&bytes, 1).unwrap().len());
            assert!(ours < theirs, "one in {every}: {ours} bytes, {theirs} with level 1");
        }
    }

    proptest! {
        #[test]
        fn runs_are_all_zeros_that_are_long_enough(
            bytes in prop::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], 0..400),
        ) {
            let mut found = Vec::new();
            zero_runs(&bytes, |run| found.push(run));
            let mut expected = Vec::new();
            let mut start = 0;
            for at in 0..=bytes.len() {
                if at == bytes.len() || bytes[at] != 0 {
                    if at - start >= MIN_RUN {
                        expected.push(start..at);
                    }
                    start = at + 1;
                }
            }
            prop_assert_eq!(found, expected);
            check(&bytes);
        }
    }
}
