//! Cutting and joining whole blocks of 2- and 4-byte floats; see [`fields`](super::fields).

use std::mem::MaybeUninit;
use std::ops::Range;

use super::fields::{Cut, Join, Patch};
use super::{Isa, LANES, UNPACKED, copy};

/// Elements per block: what [`Isa`] packs at a time.
const BLOCK: usize = 16;

type Block = [u8; BLOCK];
/// A byte of each of the elements that are joined at a time.
type Lane = [u8; LANES];

/// What is constant about floats of `SIZE` bytes with a symbol of `BITS` bits. The sixteen bits from
/// the sign down hold the sign, the symbol and `SHIFT` bits of the rest; the sign is no field where it is
/// `APART`.
pub(super) struct Shape<const SIZE: usize, const BITS: u32, const APART: bool>;

impl<const SIZE: usize, const BITS: u32, const APART: bool> Shape<SIZE, BITS, APART> {
    pub(super) const SHIFT: u32 = 15 - BITS;
    pub(super) const MID_BITS: u32 = (SIZE as u32 * 8 - BITS - APART as u32) % 8;
    /// Bytes of eight packed fields.
    const MID_WIDTH: usize = Self::MID_BITS as usize;
    /// Whether the upper sixteen bits give a whole byte plane.
    pub(super) const HIGH_PLANE: bool = BITS + APART as u32 <= 8;
    /// Planes of the bytes below the upper two.
    pub(super) const LOW_PLANES: usize = SIZE - 2;
    /// Symbol and raw are a byte each.
    const BYTES: bool = BITS == 8 && !APART;
}

#[inline(always)]
fn blocks_of_mut<T>(bytes: &mut [T], count: usize) -> &mut [[T; BLOCK]] {
    &mut bytes[..count].as_chunks_mut().0[..count / BLOCK]
}

/// The codes of elements, [`LANES`] at a time.
pub(super) trait Codes: Copy {
    /// Those of a turn.
    fn of(self, isa: impl Isa, turn: usize) -> Lane;
    /// Asks for those of a turn that comes later, if they come from memory.
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
pub(super) struct Nibbles<'a> {
    palette: [u8; 16],
    nibbles: &'a [[u8; LANES / 2]],
}

impl<'a> Nibbles<'a> {
    /// Those of as many whole turns as there are.
    pub(super) fn new(palette: &[u8; 16], nibbles: &'a [u8]) -> Self {
        Self { palette: *palette, nibbles: nibbles.as_chunks().0 }
    }

    pub(super) fn turns(&self) -> usize {
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
        let at = turn * (LANES / 2) + copy::AHEAD;
        copy::fetch(self.nibbles.as_ptr().cast::<u8>().wrapping_add(at), true);
    }
}

/// What elements are joined from, [`LANES`] at a time.
pub(super) struct Joiner<'a, I: Isa, C: Codes, const SIZE: usize, const BITS: u32, const APART: bool> {
    isa: I,
    base: u16,
    /// How often there are as many.
    pub(super) turns: usize,
    codes: C,
    /// Planes, the lowest first; of these there may be none.
    low: &'a [Lane],
    middle: &'a [Lane],
    high: &'a [Lane],
    /// The packed fields, from which as many can be read.
    mid: &'a [u8],
    unpacker: I::Unpacker,
}

impl<'a, I: Isa, C: Codes, const SIZE: usize, const BITS: u32, const APART: bool>
    Joiner<'a, I, C, SIZE, BITS, APART>
{
    /// For at most so many turns, of which there are codes.
    #[inline(always)]
    pub(super) fn new(isa: I, base: u16, from: &Join<'a>, codes: C, mut turns: usize) -> Self {
        let width = Shape::<SIZE, BITS, APART>::MID_WIDTH * LANES / 8;
        if let Some(readable) = (from.mid.len() + width).saturating_sub(UNPACKED).checked_div(width) {
            turns = turns.min(readable);
        }
        let lanes = |bytes: &'a [u8]| &bytes[..turns * LANES].as_chunks().0[..turns];
        let plane = |index: usize| lanes(from.planes[index]);
        let high = if Shape::<SIZE, BITS, APART>::HIGH_PLANE {
            plane(Shape::<SIZE, BITS, APART>::LOW_PLANES)
        } else {
            &[]
        };
        let (low, middle) = if SIZE == 4 { (plane(0), plane(1)) } else { (&[][..], &[][..]) };
        let unpacker = isa.unpacker(Shape::<SIZE, BITS, APART>::MID_BITS.max(1));
        Self { isa, base, turns, codes, low, middle, high, mid: from.mid, unpacker }
    }

    /// The upper sixteen bits of the elements of a turn.
    #[inline(always)]
    pub(super) fn top(&self, turn: usize) -> [u16; LANES] {
        assert!(turn < self.turns);
        let codes = self.codes.of(self.isa, turn);
        if Shape::<SIZE, BITS, APART>::BYTES && self.base == 0 {
            return self.isa.join_bytes(codes, self.high[turn]);
        }
        let width = Shape::<SIZE, BITS, APART>::MID_WIDTH * LANES / 8;
        let mut fields = [0u16; LANES];
        if width > 0 {
            // SAFETY: `new` limited the turns so that as many bytes from here on are in `mid`.
            let bytes = unsafe { &*self.mid.as_ptr().add(turn * width).cast::<[u8; UNPACKED]>() };
            fields = self.isa.unpack(bytes, self.unpacker);
        }
        let plane = if Shape::<SIZE, BITS, APART>::HIGH_PLANE { Some(self.high[turn]) } else { None };
        match Shape::<SIZE, BITS, APART>::SHIFT {
            10 => self.isa.join_fields::<10>(self.base, codes, fields, plane),
            9 => self.isa.join_fields::<9>(self.base, codes, fields, plane),
            8 => self.isa.join_fields::<8>(self.base, codes, fields, plane),
            7 => self.isa.join_fields::<7>(self.base, codes, fields, plane),
            6 => self.isa.join_fields::<6>(self.base, codes, fields, plane),
            _ => self.isa.join_fields::<5>(self.base, codes, fields, plane),
        }
    }

    /// Elements of four bytes from these upper halves.
    #[inline(always)]
    pub(super) fn widen(&self, turn: usize, top: [u16; LANES]) -> [u32; LANES] {
        self.isa.widen(top, self.middle[turn], self.low[turn])
    }

    /// Asks for the planes of a turn that comes later, a line of each.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self, turn: usize) {
        let at = turn * LANES + copy::AHEAD;
        if SIZE == 4 {
            copy::fetch(self.low.as_ptr().cast::<u8>().wrapping_add(at), true);
            copy::fetch(self.middle.as_ptr().cast::<u8>().wrapping_add(at), true);
        }
        if Shape::<SIZE, BITS, APART>::HIGH_PLANE {
            copy::fetch(self.high.as_ptr().cast::<u8>().wrapping_add(at), true);
        }
    }

    /// As [`fetch_ahead`](Self::fetch_ahead), for the codes.
    #[inline(always)]
    pub(super) fn fetch_codes_ahead(&self, turn: usize) {
        self.codes.fetch_ahead(turn);
    }
}

/// Joins as many elements as go by whole [`LANES`]; returns how many that were.
#[inline(always)]
pub(super) fn join<const SIZE: usize, const BITS: u32, const APART: bool>(
    isa: impl Isa,
    base: u16,
    from: &Join<'_>,
    elements: &mut [u8],
) -> usize {
    const { assert!(Shape::<SIZE, BITS, APART>::SHIFT >= 5 && Shape::<SIZE, BITS, APART>::SHIFT <= 10) };
    let codes = from.codes.as_chunks().0;
    let turns = codes.len().min(elements.len() / SIZE / LANES);
    let joiner = Joiner::<_, _, SIZE, BITS, APART>::new(isa, base, from, codes, turns);
    let turns = joiner.turns;
    let bytes = &mut elements[..turns * LANES * SIZE];
    if SIZE == 2 {
        for (turn, out) in bytes.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().enumerate() {
            joiner.fetch_ahead(turn);
            for (out, top) in out.as_chunks_mut::<2>().0.iter_mut().zip(joiner.top(turn)) {
                *out = top.to_le_bytes();
            }
        }
    } else {
        for (turn, out) in bytes.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().enumerate() {
            joiner.fetch_ahead(turn);
            let wide = joiner.widen(turn, joiner.top(turn));
            for (out, wide) in out.as_chunks_mut::<4>().0.iter_mut().zip(wide) {
                *out = wide.to_le_bytes();
            }
        }
    }
    turns * LANES
}

/// Cuts whole blocks; returns how many elements that were.
#[inline(always)]
pub(super) fn cut<const SIZE: usize, const BITS: u32, const APART: bool>(
    isa: impl Isa,
    base: u16,
    elements: &[u8],
    to: &mut Cut<'_>,
) -> usize {
    let blocks = elements.len() / SIZE / BLOCK;
    let count = blocks * BLOCK;
    // All have as many blocks, so that no index needs a check.
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
    let high = match Shape::<SIZE, BITS, APART>::HIGH_PLANE {
        true => &mut planes.next().unwrap_or_default()[..blocks],
        false => Default::default(),
    };
    let width = Shape::<SIZE, BITS, APART>::MID_WIDTH;
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
        if Shape::<SIZE, BITS, APART>::BYTES && base == 0 {
            let (symbols, others) = isa.cut_bytes(top);
            (codes[block], high[block]) = (symbols, written(others));
            continue;
        }
        let shift = Shape::<SIZE, BITS, APART>::SHIFT;
        let code = top.map(|top| (top >> shift & ((1 << BITS) - 1)).wrapping_sub(base));
        let rest = (1 << shift) - 1;
        let mut raw = match APART {
            true => top.map(|top| top & rest),
            false => top.map(|top| top >> 15 << shift | top & rest),
        };
        codes[block] = isa.low_bytes(code);
        if BITS > 8 && isa.any_high(code) {
            let some = block * BLOCK..(block + 1) * BLOCK;
            take_patches::<SIZE, BITS>(base, elements, some, codes.as_flattened_mut(), to.patches);
        }
        if Shape::<SIZE, BITS, APART>::HIGH_PLANE {
            high[block] = written(isa.low_bytes(raw));
            raw = raw.map(|raw| raw >> 8);
        }
        if width > 0
            && let Some(mid) = mid.next()
        {
            let [first, second] = isa.pack(raw, Shape::<SIZE, BITS, APART>::MID_BITS);
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

/// Lists those of some elements whose symbols have no code, which gets to be 0.
#[cold]
#[inline(never)]
pub(super) fn take_patches<const SIZE: usize, const BITS: u32>(
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
