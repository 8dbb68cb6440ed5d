//! Split and merge of whole blocks of 2- and 4-byte floats; see
//! [`bit_fields`](crate::kernel::bit_fields).

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::kernel::bit_fields::{FieldStreams, FieldStreamsMut, Patch};
use crate::simd::prefetch::{DISTANCE, Hint, prefetch};
use crate::simd::{Isa, LANES, UNPACKED};

/// Elements per block: what [`Isa`] packs at a time.
const BLOCK: usize = 16;

type Block = [u8; BLOCK];
/// One byte of each of [`LANES`] elements.
type Lane = [u8; LANES];

/// The constants of floats of `SIZE` bytes with a symbol of `BITS` bits. The upper sixteen bits
/// hold the sign, the symbol and `SHIFT` bits of the rest; with `SEPARATE_SIGN` the sign is no
/// field.
pub(crate) struct Shape<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>;

impl<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool> Shape<SIZE, BITS, SEPARATE_SIGN> {
    pub(crate) const SHIFT: u32 = 15 - BITS;
    pub(crate) const MID_BITS: u32 = (SIZE as u32 * 8 - BITS - SEPARATE_SIGN as u32) % 8;
    /// Bytes of eight packed fields.
    const MID_WIDTH: usize = Self::MID_BITS as usize;
    /// Whether the upper sixteen bits give a whole byte plane.
    pub(crate) const HIGH_PLANE: bool = BITS + SEPARATE_SIGN as u32 <= 8;
    /// Planes of the bytes below the upper two.
    pub(crate) const LOW_PLANES: usize = SIZE - 2;
    /// Symbol and raw are a byte each.
    const BYTES: bool = BITS == 8 && !SEPARATE_SIGN;
}

#[inline(always)]
fn blocks_of_mut<T>(bytes: &mut [T], count: usize) -> &mut [[T; BLOCK]] {
    &mut bytes[..count].as_chunks_mut().0[..count / BLOCK]
}

/// The codes of elements, [`LANES`] at a time.
pub(crate) trait Codes: Copy {
    /// The codes of turn `turn`.
    fn of(self, isa: impl Isa, turn: usize) -> Lane;
    /// Prefetches the codes of a later turn, if they come from memory.
    fn fetch_ahead(self, turn: usize);
}

impl Codes for &[Lane] {
    #[inline(always)]
    fn of(self, _: impl Isa, turn: usize) -> Lane {
        self[turn]
    }

    #[inline(always)]
    fn fetch_ahead(self, _: usize) {}
}

/// Codes as nibbles, the low one of each byte first, that are indices into a palette.
#[derive(Clone, Copy)]
pub(crate) struct Nibbles<'a> {
    palette: [u8; 16],
    nibbles: &'a [[u8; LANES / 2]],
}

impl<'a> Nibbles<'a> {
    /// The codes of all whole turns in `nibbles`.
    pub(crate) fn new(palette: &[u8; 16], nibbles: &'a [u8]) -> Self {
        Self { palette: *palette, nibbles: nibbles.as_chunks().0 }
    }

    pub(crate) fn turns(&self) -> usize {
        self.nibbles.len()
    }
}

impl Codes for Nibbles<'_> {
    #[inline(always)]
    fn of(self, isa: impl Isa, turn: usize) -> Lane {
        isa.look_up(self.palette, self.nibbles[turn])
    }

    #[inline(always)]
    fn fetch_ahead(self, turn: usize) {
        let at = turn * (LANES / 2) + DISTANCE;
        prefetch(self.nibbles.as_ptr().cast::<u8>().wrapping_add(at), Hint::L1);
    }
}

/// The sources of a merge, [`LANES`] elements per turn.
pub(crate) struct Merger<'a, I: Isa, C: Codes, const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>
{
    isa: I,
    base: u16,
    /// The number of turns.
    pub(crate) turns: usize,
    codes: C,
    /// The byte planes, lowest first; a plane that the type lacks is empty.
    low: &'a [Lane],
    middle: &'a [Lane],
    high: &'a [Lane],
    /// The packed fields, readable for all turns.
    mid: &'a [u8],
    unpacker: I::Unpacker,
}

impl<'a, I: Isa, C: Codes, const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>
    Merger<'a, I, C, SIZE, BITS, SEPARATE_SIGN>
{
    /// For at most `turns` turns, which `codes` must have.
    #[inline(always)]
    pub(crate) fn new(isa: I, base: u16, from: &FieldStreams<'a>, codes: C, mut turns: usize) -> Self {
        let width = Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_WIDTH * LANES / 8;
        if let Some(readable) = (from.mid.len() + width).saturating_sub(UNPACKED).checked_div(width) {
            turns = turns.min(readable);
        }
        let lanes = |bytes: &'a [u8]| &bytes[..turns * LANES].as_chunks().0[..turns];
        let plane = |index: usize| lanes(from.planes[index]);
        let high = if Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE {
            plane(Shape::<SIZE, BITS, SEPARATE_SIGN>::LOW_PLANES)
        } else {
            &[]
        };
        let (low, middle) = if SIZE == 4 { (plane(0), plane(1)) } else { (&[][..], &[][..]) };
        let unpacker = isa.unpacker(Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_BITS.max(1));
        Self { isa, base, turns, codes, low, middle, high, mid: from.mid, unpacker }
    }

    /// The upper sixteen bits of the elements of a turn.
    #[inline(always)]
    pub(crate) fn top(&self, turn: usize) -> [u16; LANES] {
        assert!(turn < self.turns);
        let codes = self.codes.of(self.isa, turn);
        if Shape::<SIZE, BITS, SEPARATE_SIGN>::BYTES && self.base == 0 {
            return self.isa.merge_bytes(codes, self.high[turn]);
        }
        let width = Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_WIDTH * LANES / 8;
        let mut fields = [0u16; LANES];
        if width > 0 {
            // SAFETY: `new` limited the turns so that as many bytes from here on are in `mid`.
            let bytes = unsafe { &*self.mid.as_ptr().add(turn * width).cast::<[u8; UNPACKED]>() };
            fields = self.isa.unpack(bytes, self.unpacker);
        }
        let plane = if Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE { Some(self.high[turn]) } else { None };
        match Shape::<SIZE, BITS, SEPARATE_SIGN>::SHIFT {
            10 => self.isa.merge_fields::<10>(self.base, codes, fields, plane),
            9 => self.isa.merge_fields::<9>(self.base, codes, fields, plane),
            8 => self.isa.merge_fields::<8>(self.base, codes, fields, plane),
            7 => self.isa.merge_fields::<7>(self.base, codes, fields, plane),
            6 => self.isa.merge_fields::<6>(self.base, codes, fields, plane),
            _ => self.isa.merge_fields::<5>(self.base, codes, fields, plane),
        }
    }

    /// Elements of four bytes from these upper halves.
    #[inline(always)]
    pub(crate) fn widen(&self, turn: usize, top: [u16; LANES]) -> [u32; LANES] {
        self.isa.widen(top, self.middle[turn], self.low[turn])
    }

    /// Prefetches one cache line of each plane of a later turn.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, turn: usize) {
        let at = turn * LANES + DISTANCE;
        if SIZE == 4 {
            prefetch(self.low.as_ptr().cast::<u8>().wrapping_add(at), Hint::L1);
            prefetch(self.middle.as_ptr().cast::<u8>().wrapping_add(at), Hint::L1);
        }
        if Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE {
            prefetch(self.high.as_ptr().cast::<u8>().wrapping_add(at), Hint::L1);
        }
    }

    /// As [`fetch_ahead`](Self::fetch_ahead), for the codes.
    #[inline(always)]
    pub(crate) fn fetch_codes_ahead(&self, turn: usize) {
        self.codes.fetch_ahead(turn);
    }
}

/// Merges the elements that fill whole [`LANES`]; returns their number.
#[inline(always)]
pub(crate) fn merge<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    isa: impl Isa,
    base: u16,
    from: &FieldStreams<'_>,
    elements: &mut [u8],
) -> usize {
    const {
        assert!(
            Shape::<SIZE, BITS, SEPARATE_SIGN>::SHIFT >= 5 && Shape::<SIZE, BITS, SEPARATE_SIGN>::SHIFT <= 10
        )
    };
    let codes = from.codes.as_chunks().0;
    let turns = codes.len().min(elements.len() / SIZE / LANES);
    let merger = Merger::<_, _, SIZE, BITS, SEPARATE_SIGN>::new(isa, base, from, codes, turns);
    let turns = merger.turns;
    let bytes = &mut elements[..turns * LANES * SIZE];
    if SIZE == 2 {
        for (turn, out) in bytes.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
            merger.fetch_ahead(turn);
            for (out, top) in out.as_chunks_mut::<2>().0.iter_mut().zip(merger.top(turn)) {
                *out = top.to_le_bytes();
            }
        }
    } else {
        for (turn, out) in bytes.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().enumerate() {
            merger.fetch_ahead(turn);
            let wide = merger.widen(turn, merger.top(turn));
            for (out, wide) in out.as_chunks_mut::<4>().0.iter_mut().zip(wide) {
                *out = wide.to_le_bytes();
            }
        }
    }
    turns * LANES
}

/// Splits whole blocks; returns the number of elements.
#[inline(always)]
pub(crate) fn split<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
    isa: impl Isa,
    base: u16,
    elements: &[u8],
    to: &mut FieldStreamsMut<'_>,
) -> usize {
    let blocks = elements.len() / SIZE / BLOCK;
    let count = blocks * BLOCK;
    // All slices have the same number of blocks, so that no index needs a check.
    let halves = if SIZE == 2 { &elements.as_chunks::<{ 2 * BLOCK }>().0[..blocks] } else { &[] };
    let words = if SIZE == 4 { &elements.as_chunks::<{ 4 * BLOCK }>().0[..blocks] } else { &[] };
    let codes = &mut blocks_of_mut(to.codes, count)[..blocks];
    let mut planes = to.planes.iter_mut().map(|plane| blocks_of_mut(plane, count));
    let (low, middle) = match SIZE {
        4 => (
            &mut planes.next().unwrap_or_default()[..blocks],
            &mut planes.next().unwrap_or_default()[..blocks],
        ),
        _ => Default::default(),
    };
    let high = match Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE {
        true => &mut planes.next().unwrap_or_default()[..blocks],
        false => Default::default(),
    };
    let width = Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_WIDTH;
    let mut mid = to.mid[..blocks * 2 * width].chunks_exact_mut((2 * width).max(1));
    for block in 0..blocks {
        let mut top = [0u16; BLOCK];
        if SIZE == 2 {
            for (top, element) in top.iter_mut().zip(halves[block].as_chunks::<2>().0) {
                *top = u16::from_le_bytes(*element);
            }
        } else {
            let mut wide = [0u32; BLOCK];
            for (wide, element) in wide.iter_mut().zip(words[block].as_chunks::<4>().0) {
                *wide = u32::from_le_bytes(*element);
            }
            let (tops, middles, lows) = isa.narrow(wide);
            (top, middle[block], low[block]) = (tops, written(middles), written(lows));
        }
        if Shape::<SIZE, BITS, SEPARATE_SIGN>::BYTES && base == 0 {
            let (symbols, others) = isa.split_bytes(top);
            (codes[block], high[block]) = (symbols, written(others));
            continue;
        }
        let shift = Shape::<SIZE, BITS, SEPARATE_SIGN>::SHIFT;
        let code = top.map(|top| (top >> shift & ((1 << BITS) - 1)).wrapping_sub(base));
        let rest = (1 << shift) - 1;
        let mut raw = match SEPARATE_SIGN {
            true => top.map(|top| top & rest),
            false => top.map(|top| top >> 15 << shift | top & rest),
        };
        codes[block] = isa.low_bytes(code);
        if BITS > 8 && isa.any_above_255(code) {
            let some = block * BLOCK..(block + 1) * BLOCK;
            extract_outliers::<SIZE, BITS>(base, elements, some, codes.as_flattened_mut(), to.patches);
        }
        if Shape::<SIZE, BITS, SEPARATE_SIGN>::HIGH_PLANE {
            high[block] = written(isa.low_bytes(raw));
            raw = raw.map(|raw| raw >> 8);
        }
        if width > 0
            && let Some(mid) = mid.next()
        {
            let [first, second] = isa.pack(raw, Shape::<SIZE, BITS, SEPARATE_SIGN>::MID_BITS);
            let packed = u128::from(first) | u128::from(second) << (8 * width);
            mid.copy_from_slice(&written(packed.to_le_bytes())[..2 * width]);
        }
    }
    count
}

/// A block for memory that may not have been written yet.
#[inline(always)]
fn written(block: Block) -> [MaybeUninit<u8>; BLOCK] {
    // SAFETY: these are written bytes, which the other type allows.
    unsafe { std::mem::transmute::<Block, [MaybeUninit<u8>; BLOCK]>(block) }
}

/// Lists the outliers among elements `some`: their symbols have no code, and their code becomes 0.
#[cold]
#[inline(never)]
pub(crate) fn extract_outliers<const SIZE: usize, const BITS: u32>(
    base: u16,
    elements: &[u8],
    some: Range<usize>,
    codes: &mut [u8],
    patches: &mut Vec<Patch>,
) {
    for index in some {
        let top = [elements[(index + 1) * SIZE - 2], elements[(index + 1) * SIZE - 1]];
        let symbol = u16::from_le_bytes(top) >> Shape::<SIZE, BITS, false>::SHIFT & ((1 << BITS) - 1);
        if symbol.wrapping_sub(base) > 255 {
            codes[index] = 0;
            patches.push(Patch { index: index as u32, symbol });
        }
    }
}
