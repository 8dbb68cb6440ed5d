//! The decoder's inner loop: up to eight interleaved bit streams.

use std::marker::PhantomData;

use crate::coder::huffman::lengths::MAX_LEN;
use crate::coder::huffman::table::{PER_ENTRY, TABLE_SIZE};
use crate::coder::huffman::wire::{STREAMS, WORD};
use crate::error::{Error, Result};
use crate::simd::prefetch::{self, CACHE_LINE, Prefetcher};

/// Look-ups per refill: a refill leaves at least 56 bits. (structural)
const PER_STEP: usize = 5;
const _: () = assert!(PER_STEP * MAX_LEN as usize <= 56);
/// Input bytes one step may advance by: at most 7 bits left over and 55 consumed. (structural)
const STEP_IN: usize = (PER_STEP * MAX_LEN as usize).div_ceil(8);

/// Prefetch of the memory that the caller reads and writes right after decoding.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DecodePrefetch {
    source: Prefetcher,
    target: Prefetcher,
}

/// Cache lines to prefetch per step, at most. (flat; times within the noise of 5 %)
const MAX_LINES_PER_STEP: usize = 16;

impl DecodePrefetch {
    /// Prefetches `source` while `symbols` symbols are decoded, and then the memory behind it,
    /// which the next chunk needs, if they take more steps than expected.
    pub(crate) fn new(symbols: usize, source: &[u8]) -> Self {
        let stride = source.len().div_ceil(prefetch::STREAMS).next_multiple_of(CACHE_LINE);
        let first = &source[..stride.min(source.len())];
        let per_step = bytes_per_step(symbols, first, MAX_LINES_PER_STEP / prefetch::STREAMS);
        let source = Prefetcher::at_rate(first, per_step).with_stride(stride).open_ended();
        Self { source, target: Prefetcher::default() }
    }

    /// Prefetches `target` as well.
    pub(crate) fn with_target(self, symbols: usize, target: &[u8]) -> Self {
        let per_step = bytes_per_step(symbols, target, MAX_LINES_PER_STEP);
        Self { target: Prefetcher::at_rate(target, per_step).open_ended(), ..self }
    }

    #[inline(always)]
    fn advance(&mut self, steps: usize) {
        self.source.advance(steps);
        self.target.advance(steps);
    }
}

/// Bytes of `memory` per step, so that all of it is prefetched while `symbols` symbols are decoded.
fn bytes_per_step(symbols: usize, memory: &[u8], max_lines: usize) -> usize {
    // A step yields about three symbols per look-up.
    let steps = symbols / (3 * PER_STEP * STREAMS) + 1;
    (memory.len() / steps).min(max_lines * CACHE_LINE)
}

/// The state of one stream: the rest of its input, from the word that `bits` was loaded from on,
/// and of its output. Pointers, because they move at every step.
pub(super) struct Cursor<'a> {
    source: *const u8,
    source_end: *const u8,
    target: *mut u8,
    target_end: *mut u8,
    /// Unread bits at the top, below them the sentinel, below that zeros.
    bits: u64,
    of: PhantomData<(&'a [u8], &'a mut [u8])>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        let source = input.as_ptr_range();
        let target = output.as_mut_ptr_range();
        Self {
            source: source.start,
            source_end: source.end,
            target: target.start,
            target_end: target.end,
            bits: 1,
            of: PhantomData,
        }
    }

    /// The rest of input and output.
    fn rest(&mut self) -> (&[u8], &mut [u8]) {
        // SAFETY: steps leave each pointer inside the slice it was made from, which is borrowed for
        // as long as this exists.
        unsafe {
            let input = self.source_end.offset_from_unsigned(self.source);
            let output = self.target_end.offset_from_unsigned(self.target);
            (
                std::slice::from_raw_parts(self.source, input),
                std::slice::from_raw_parts_mut(self.target, output),
            )
        }
    }

    /// Steps that stay in bounds whatever the data: each needs a whole word of input after its
    /// advance, and room for a whole word of output after its last symbol but one entry.
    fn safe_steps(&mut self, table: &Entries) -> usize {
        let (input, output) = self.rest();
        let input = input.len().saturating_sub(WORD) / STEP_IN;
        let output = output.len().saturating_sub(WORD) / (PER_STEP * table.most);
        input.min(output)
    }

    /// At least 56 bits and the sentinel.
    ///
    /// # Safety
    /// There must be a [safe step](Self::safe_steps).
    #[inline(always)]
    unsafe fn refill(&mut self) -> u64 {
        let consumed = self.bits.trailing_zeros();
        // SAFETY: a step consumes at most 7 + 55 bits, so `source` advances by at most STEP_IN
        // bytes, and the safe step left a whole word behind that.
        let word = unsafe {
            self.source = self.source.add(consumed as usize / 8);
            self.source.cast::<[u8; WORD]>().read()
        };
        (u64::from_be_bytes(word) | 1) << (consumed % 8)
    }

    /// Refills the bits and makes [`PER_STEP`] look-ups.
    ///
    /// # Safety
    /// There must be a [safe step](Self::safe_steps).
    #[inline(always)]
    unsafe fn step(&mut self, table: &[u64; TABLE_SIZE]) {
        // SAFETY: as the caller promises.
        let mut bits = unsafe { self.refill() };
        for _ in 0..PER_STEP {
            let entry = table[(bits >> (64 - MAX_LEN)) as usize];
            bits <<= entry >> 48 & 63;
            // SAFETY: no entry has more symbols than the safe step left room for, each store being
            // a word from where its first symbol goes.
            unsafe {
                self.target.cast::<[u8; WORD]>().write(entry.to_le_bytes());
                self.target = self.target.add((entry >> 56) as usize);
            }
        }
        self.bits = bits;
    }

    /// Decodes the rest symbol by symbol, and checks that the stream ends where it says.
    pub(super) fn finish(&mut self, single: &[u16; TABLE_SIZE]) -> Result<()> {
        let mut at = self.bits.trailing_zeros() as usize;
        let (input, output) = self.rest();
        let mut done = 0;
        // While there are whole words, one is enough for the symbols of a step.
        while let Some(word) = input.get(at / 8..).and_then(|rest| rest.first_chunk::<WORD>())
            && let Some(slots) = output.get_mut(done..done + PER_STEP)
        {
            let mut bits = u64::from_be_bytes(*word) << (at % 8);
            for slot in slots {
                let entry = single[(bits >> (64 - MAX_LEN)) as usize];
                *slot = entry as u8;
                bits <<= entry >> 8;
                at += usize::from(entry >> 8);
            }
            done += PER_STEP;
        }
        for slot in &mut output[done..] {
            let mut window = 0u32;
            for byte in at / 8..at / 8 + 3 {
                window = window << 8 | u32::from(input.get(byte).copied().unwrap_or(0));
            }
            let index = window >> (24 - MAX_LEN as usize - at % 8) & (TABLE_SIZE as u32 - 1);
            let entry = single[index as usize];
            *slot = entry as u8;
            at += usize::from(entry >> 8);
        }
        let padding = match at % 8 {
            0 => 0,
            used => input.get(at / 8).copied().unwrap_or(0) << used,
        };
        if at.div_ceil(8) != input.len() || padding != 0 {
            return Err(Error::corrupt("a Huffman stream does not end with its symbols"));
        }
        Ok(())
    }
}

/// Runs the streams for as many whole steps as they have; reorders `cursors`.
pub(super) fn advance(cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut DecodePrefetch) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::Avx2::new().is_some() {
        let run =
            |cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut DecodePrefetch, steps: usize| {
                let steps = match cursors.len() {
                    STREAMS => steps,
                    MIN_INTERLEAVED..STREAMS => steps.min(IDLE_STEPS),
                    _ => return run_portable(cursors, table, ahead, steps),
                };
                // SAFETY: the features were detected, and `advance_with` takes no more steps than
                // are safe for any; with idle streams they are no more than are safe for these.
                unsafe { run_interleaved(cursors, table, ahead, steps) }
            };
        return advance_with(cursors, table, ahead, run);
    }
    advance_with(cursors, table, ahead, run_portable);
}

pub(super) fn run_portable(
    cursors: &mut [Cursor<'_>],
    table: &mut Entries,
    ahead: &mut DecodePrefetch,
    steps: usize,
) {
    for _ in 0..steps {
        ahead.advance(1);
        for cursor in &mut *cursors {
            // SAFETY: `advance_with` takes no more steps than are safe for any.
            unsafe { cursor.step(&table.entries) };
        }
    }
}

/// The fewest live streams for which the eight-stream loop is faster than [`run_portable`]. The
/// other streams are idle: they decode zeros into a dummy buffer. (case: steps of streams in the
/// cache, AVX-512: four take 25 ns one after the other and five 31, this loop takes 26)
#[cfg(target_arch = "x86_64")]
const MIN_INTERLEAVED: usize = 5;
/// Steps per call while streams are idle, bounded by their buffers.
/// (structural: the length of the dummy buffer)
const IDLE_STEPS: usize = 32;
#[cfg(target_arch = "x86_64")]
static IDLE_SOURCE: [u8; IDLE_STEPS * STEP_IN + WORD] = [0; IDLE_STEPS * STEP_IN + WORD];

/// A decoding table, and state of [`run_interleaved`], which has no register left for a second base
/// address.
#[repr(C)]
pub(super) struct Entries {
    pub(super) entries: [u64; TABLE_SIZE],
    /// Symbols of an entry, at most.
    pub(super) most: usize,
    /// Addresses of the streams; meaningful inside [`run_interleaved`] only.
    targets: [usize; STREAMS],
    sources: [usize; STREAMS],
    steps: usize,
    prefetch: DecodePrefetch,
    idle_target: [u8; IDLE_STEPS * PER_STEP * PER_ENTRY + WORD],
}

impl Default for Entries {
    fn default() -> Self {
        Self {
            entries: [0; TABLE_SIZE],
            most: PER_ENTRY,
            targets: [0; STREAMS],
            sources: [0; STREAMS],
            steps: 0,
            prefetch: DecodePrefetch::default(),
            idle_target: [0; IDLE_STEPS * PER_STEP * PER_ENTRY + WORD],
        }
    }
}

/// Runs `steps` [steps](Cursor::step) of eight streams. Assembly, so that the look-ups of several
/// streams are always in flight and none waits for another: the bits of all streams are in
/// registers, streams take turns of two or three look-ups, and state that is used once per turn is
/// in memory.
///
/// # Safety
///
/// There must be at most eight streams, each with `steps` safe steps, at least one; with fewer
/// streams, no more than [`IDLE_STEPS`]. The features must have been detected.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn run_interleaved(
    cursors: &mut [Cursor<'_>],
    table: &mut Entries,
    ahead: &mut DecodePrefetch,
    steps: usize,
) {
    use std::mem::offset_of;
    table.targets = [table.idle_target.as_mut_ptr().expose_provenance(); STREAMS];
    table.sources = [IDLE_SOURCE.as_ptr().expose_provenance(); STREAMS];
    let mut bits = [1; STREAMS];
    for (i, cursor) in cursors.iter().enumerate() {
        table.targets[i] = cursor.target.expose_provenance();
        table.sources[i] = cursor.source.expose_provenance();
        bits[i] = cursor.bits;
    }
    table.steps = steps;
    table.prefetch = *ahead;
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = bits;
    macro_rules! each {
        ($turn:ident) => {
            concat!(
                $turn!("a", "0"),
                $turn!("b", "8"),
                $turn!("c", "16"),
                $turn!("d", "24"),
                $turn!("e", "32"),
                $turn!("f", "40"),
                $turn!("g", "48"),
                $turn!("h", "56")
            )
        };
    }
    // As `Cursor::refill`.
    macro_rules! refill {
        ($bits:literal, $at:literal) => {
            concat!(
                "tzcnt {index}, {",
                $bits,
                "}\n",
                "mov {to}, [{table} + {sources} + ",
                $at,
                "]\n",
                "mov {meta:e}, {index:e}\n",
                "shr {meta:e}, 3\n",
                "add {to}, {meta:r}\n",
                "mov [{table} + {sources} + ",
                $at,
                "], {to}\n",
                "mov {",
                $bits,
                "}, [{to}]\n",
                "bswap {",
                $bits,
                "}\n",
                "or {",
                $bits,
                "}, 1\n",
                "and {index:e}, 7\n",
                "shlx {",
                $bits,
                "}, {",
                $bits,
                "}, {index}\n",
            )
        };
    }
    macro_rules! look_up {
        ($bits:literal) => {
            concat!(
                "shrx {index}, {",
                $bits,
                "}, {index_shift}\n",
                "movzx {meta:e}, word ptr [{table} + 8*{index} + 6]\n",
                "mov {index}, [{table} + 8*{index}]\n",
                "shlx {",
                $bits,
                "}, {",
                $bits,
                "}, {meta:r}\n",
                "mov [{to}], {index}\n",
                "movzx {meta:e}, {meta:h}\n",
                "add {to}, {meta:r}\n",
            )
        };
    }
    macro_rules! two {
        ($bits:literal, $at:literal) => {
            concat!(
                "mov {to}, [{table} + {targets} + ",
                $at,
                "]\n",
                look_up!($bits),
                look_up!($bits),
                "mov [{table} + {targets} + ",
                $at,
                "], {to}\n",
            )
        };
    }
    macro_rules! three {
        ($bits:literal, $at:literal) => {
            concat!(
                "mov {to}, [{table} + {targets} + ",
                $at,
                "]\n",
                look_up!($bits),
                look_up!($bits),
                look_up!($bits),
                "mov [{table} + {targets} + ",
                $at,
                "], {to}\n",
            )
        };
    }
    const _: () =
        assert!(PER_STEP == 5 && MAX_LEN == 11 && STREAMS == 8 && CACHE_LINE == 64 && prefetch::STREAMS == 4);
    // SAFETY: indices have MAX_LEN bits, as many as the table has entries for. A refill advances a
    // source by at most STEP_IN bytes and reads a word; no entry has more symbols than the safe
    // steps left room for, each store being a word from where its first symbol goes. Idle streams
    // have room for as many steps as there are, whatever they decode.
    unsafe {
        std::arch::asm!(
            "2:",
            // As `DecodePrefetch::advance`.
            "mov {index}, [{table} + {source_due}]",
            "add {index}, [{table} + {source_per_step}]",
            "mov [{table} + {source_due}], {index}",
            "mov {to}, [{table} + {source_at}]",
            "cmp {to}, {index}",
            "jae 4f",
            "mov {meta:r}, [{table} + {stride}]",
            "lea {index}, [{meta:r} + 2*{meta:r}]",
            "3:",
            "prefetcht1 [{to}]",
            "prefetcht1 [{to} + {meta:r}]",
            "prefetcht1 [{to} + 2*{meta:r}]",
            "prefetcht1 [{to} + {index}]",
            "add {to}, 64",
            "cmp {to}, [{table} + {source_due}]",
            "jb 3b",
            "mov [{table} + {source_at}], {to}",
            "4:",
            "mov {index}, [{table} + {target_due}]",
            "add {index}, [{table} + {target_per_step}]",
            "mov [{table} + {target_due}], {index}",
            "mov {to}, [{table} + {target_at}]",
            "cmp {to}, {index}",
            "jae 6f",
            "5:",
            "prefetcht1 [{to}]",
            "add {to}, 64",
            "cmp {to}, {index}",
            "jb 5b",
            "mov [{table} + {target_at}], {to}",
            "6:",
            each!(refill),
            each!(two),
            each!(three),
            "dec qword ptr [{table} + {steps}]",
            "jnz 2b",
            a = inout(reg) a, b = inout(reg) b, c = inout(reg) c, d = inout(reg) d,
            e = inout(reg) e, f = inout(reg) f, g = inout(reg) g, h = inout(reg) h,
            table = in(reg) &raw mut *table,
            index_shift = in(reg) u64::from(u64::BITS - MAX_LEN),
            index = out(reg) _,
            to = out(reg) _,
            meta = out(reg_abcd) _,
            targets = const offset_of!(Entries, targets),
            sources = const offset_of!(Entries, sources),
            steps = const offset_of!(Entries, steps),
            source_at = const offset_of!(Entries, prefetch.source.at),
            source_due = const offset_of!(Entries, prefetch.source.due),
            source_per_step = const offset_of!(Entries, prefetch.source.per_step),
            stride = const offset_of!(Entries, prefetch.source.stride),
            target_at = const offset_of!(Entries, prefetch.target.at),
            target_due = const offset_of!(Entries, prefetch.target.due),
            target_per_step = const offset_of!(Entries, prefetch.target.per_step),
            options(nostack),
        );
    }
    *ahead = table.prefetch;
    for (i, (cursor, bits)) in cursors.iter_mut().zip([a, b, c, d, e, f, g, h]).enumerate() {
        cursor.bits = bits;
        cursor.target = cursor.target.with_addr(table.targets[i]);
        cursor.source = cursor.source.with_addr(table.sources[i]);
    }
}

#[inline(always)]
pub(super) fn advance_with(
    mut cursors: &mut [Cursor<'_>],
    table: &mut Entries,
    ahead: &mut DecodePrefetch,
    run: impl Fn(&mut [Cursor<'_>], &mut Entries, &mut DecodePrefetch, usize),
) {
    loop {
        let mut steps = usize::MAX;
        let mut running = cursors.len();
        for i in (0..cursors.len()).rev() {
            match cursors[i].safe_steps(table) {
                0 => {
                    running -= 1;
                    cursors.swap(i, running);
                }
                safe => steps = steps.min(safe),
            }
        }
        if running == 0 {
            return;
        }
        cursors = &mut cursors[..running];
        run(cursors, table, ahead, steps);
    }
}
