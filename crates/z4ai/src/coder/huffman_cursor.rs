//! Bit streams on their way through the decoder, as many at once as the processor has room for.

use std::marker::PhantomData;

use super::huffman::MAX_LEN;
use super::huffman_stream::{STREAMS, WORD};
use super::huffman_table::{PER_ENTRY, TABLE_SIZE};
use crate::error::{Error, Result};
use crate::kernel::copy;

/// Look-ups per refill: a refill leaves at least 56 bits.
const PER_STEP: usize = 5;
const _: () = assert!(PER_STEP * MAX_LEN as usize <= 56);
/// Input bytes one step may advance by: at most 7 bits left over and 55 consumed.
const STEP_IN: usize = (PER_STEP * MAX_LEN as usize).div_ceil(8);

/// Memory that will be needed when decoding is done, to be fetched meanwhile. By address: it is never
/// read or written through this.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Ahead {
    /// What is read then: the first quarter of it, the others being fetched with it. Machines are faster at
    /// several places at once than at one after the other.
    source: Stretch,
    /// From one quarter to the next.
    apart: usize,
    /// What is written to.
    target: Stretch,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Stretch {
    /// Where to fetch next.
    at: usize,
    /// Up to where that is due, and by how much that moves with every step.
    due: usize,
    per_step: usize,
}

const LINE: usize = 64;
/// Lines per step, at most.
const MOST: usize = 16;
/// Places that are read from at once.
const PLACES: usize = 4;

impl Ahead {
    /// Fetches `source` while `symbols` symbols are decoded, and what lies behind it, which the next
    /// chunk will need, if they take more steps than expected.
    pub(crate) fn new(symbols: usize, source: &[u8]) -> Self {
        let apart = source.len().div_ceil(PLACES).next_multiple_of(LINE);
        let first = &source[..apart.min(source.len())];
        Self { source: Stretch::new(symbols, first, MOST / PLACES), apart, target: Stretch::default() }
    }

    /// Fetches `target` as well.
    pub(crate) fn with_target(self, symbols: usize, target: &[u8]) -> Self {
        Self { target: Stretch::new(symbols, target, MOST), ..self }
    }

    #[inline(always)]
    fn advance(&mut self, steps: usize) {
        self.source.advance::<PLACES>(steps, self.apart);
        self.target.advance::<1>(steps, 0);
    }
}

impl Stretch {
    /// Fetches at most so many lines per step.
    fn new(symbols: usize, memory: &[u8], most: usize) -> Self {
        // A step yields about three symbols per look-up.
        let steps = symbols / (3 * PER_STEP * STREAMS) + 1;
        let at = memory.as_ptr().addr();
        Self { at, due: at, per_step: (memory.len() / steps).min(most * LINE) }
    }

    /// So many steps, in so many places that are `apart`.
    #[inline(always)]
    fn advance<const PLACES: usize>(&mut self, steps: usize, apart: usize) {
        self.due = self.due.saturating_add(steps * self.per_step);
        while self.at < self.due {
            for place in 0..PLACES {
                let at = self.at.wrapping_add(place * apart);
                copy::fetch(std::ptr::without_provenance(at), false);
            }
            self.at = self.at.saturating_add(LINE);
        }
    }
}

/// One stream on its way through the decoder: the rest of its input, from the word that `bits` was
/// loaded from on, and of its output. As pointers, because they move at every step.
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

    /// What is left of input and output.
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
        // SAFETY: a step consumes at most 7 + 55 bits, so `source` advances by at most STEP_IN bytes,
        // and the safe step left a whole word behind that.
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
            // SAFETY: no entry has more symbols than the safe step left room for, each store being a
            // word from where its first symbol goes.
            unsafe {
                self.target.cast::<[u8; WORD]>().write(entry.to_le_bytes());
                self.target = self.target.add((entry >> 56) as usize);
            }
        }
        self.bits = bits;
    }

    /// Decodes what is left, symbol by symbol, and checks that the stream ends where it says.
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

/// Runs the streams for as many whole steps as they have; puts them into any order.
pub(super) fn advance(cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut Ahead) {
    #[cfg(target_arch = "x86_64")]
    if crate::kernel::Avx2::new().is_some() {
        let run = |cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut Ahead, steps: usize| {
            let steps = match cursors.len() {
                STREAMS => steps,
                FEWEST..STREAMS => steps.min(IDLE_STEPS),
                _ => return run_each(cursors, table, ahead, steps),
            };
            // SAFETY: the features were detected, and `advance_with` takes no more steps than are safe
            // for any; with idle streams they are no more than are safe for these.
            unsafe { run_eight(cursors, table, ahead, steps) }
        };
        return advance_with(cursors, table, ahead, run);
    }
    advance_with(cursors, table, ahead, run_each);
}

pub(super) fn run_each(cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut Ahead, steps: usize) {
    for _ in 0..steps {
        ahead.advance(1);
        for cursor in &mut *cursors {
            // SAFETY: `advance_with` takes no more steps than are safe for any.
            unsafe { cursor.step(&table.entries) };
        }
    }
}

/// Streams end one after the other. While there are so many left, it is faster to go on with eight, the
/// others of which are idle: they decode zeros, and nobody looks at what becomes of these.
#[cfg(target_arch = "x86_64")]
const FEWEST: usize = 3;
/// Steps that idle streams have room for.
const IDLE_STEPS: usize = 32;
#[cfg(target_arch = "x86_64")]
static IDLE_SOURCE: [u8; IDLE_STEPS * STEP_IN + WORD] = [0; IDLE_STEPS * STEP_IN + WORD];

/// A table with what [`run_eight`] keeps beside it: it has no register left for another address.
#[repr(C)]
pub(super) struct Entries {
    pub(super) entries: [u64; TABLE_SIZE],
    /// Symbols of an entry, at most.
    pub(super) most: usize,
    /// Addresses of the streams; meaningful inside [`run_eight`] only.
    targets: [usize; STREAMS],
    sources: [usize; STREAMS],
    steps: usize,
    ahead: Ahead,
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
            ahead: Ahead::default(),
            idle_target: [0; IDLE_STEPS * PER_STEP * PER_ENTRY + WORD],
        }
    }
}

/// So many [steps](Cursor::step) of all streams. Written by hand, so that the processor always sees
/// work of several streams: what waits for a look-up of one must not keep it from those of the others.
/// Their bits are in registers, and the streams take turns of two or three look-ups; all that is used
/// once per turn is in memory.
///
/// # Safety
/// There must be at most eight streams, and each must have so many safe steps, at least one; if there are
/// fewer streams, no more than [`IDLE_STEPS`]. The features must have been detected.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
unsafe fn run_eight(cursors: &mut [Cursor<'_>], table: &mut Entries, ahead: &mut Ahead, steps: usize) {
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
    table.ahead = *ahead;
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
    const _: () = assert!(PER_STEP == 5 && MAX_LEN == 11 && STREAMS == 8 && LINE == 64 && PLACES == 4);
    // SAFETY: indices have MAX_LEN bits, as many as the table has entries for. A refill advances a
    // source by at most STEP_IN bytes and reads a word; no entry has more symbols than the safe
    // steps left room for, each store being a word from where its first symbol goes. Idle streams have
    // room for as many steps as there are, whatever they decode.
    unsafe {
        std::arch::asm!(
            "2:",
            // As `Ahead::advance`.
            "mov {index}, [{table} + {source_due}]",
            "add {index}, [{table} + {source_per_step}]",
            "mov [{table} + {source_due}], {index}",
            "mov {to}, [{table} + {source_at}]",
            "cmp {to}, {index}",
            "jae 4f",
            "mov {meta:r}, [{table} + {apart}]",
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
            source_at = const offset_of!(Entries, ahead.source.at),
            source_due = const offset_of!(Entries, ahead.source.due),
            source_per_step = const offset_of!(Entries, ahead.source.per_step),
            apart = const offset_of!(Entries, ahead.apart),
            target_at = const offset_of!(Entries, ahead.target.at),
            target_due = const offset_of!(Entries, ahead.target.due),
            target_per_step = const offset_of!(Entries, ahead.target.per_step),
            options(nostack),
        );
    }
    *ahead = table.ahead;
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
    ahead: &mut Ahead,
    run: impl Fn(&mut [Cursor<'_>], &mut Entries, &mut Ahead, usize),
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
