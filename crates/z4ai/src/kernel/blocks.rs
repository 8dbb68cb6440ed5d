//! Cutting and joining whole blocks of 2- and 4-byte floats; see [`fields`](super::fields).

use std::mem::MaybeUninit;

use super::fields::{Cut, Join, Patch};
use super::hash::STRIPE;
use super::{Isa, copy};

/// Elements per block: what [`Isa`] packs at a time.
const BLOCK: usize = 16;

type Block = [u8; BLOCK];

/// What is constant about floats of `SIZE` bytes with a symbol of `BITS` bits. The sixteen bits from
/// the sign down hold the sign, the symbol and `SHIFT` bits of the rest.
struct Shape<const SIZE: usize, const BITS: u32>;

impl<const SIZE: usize, const BITS: u32> Shape<SIZE, BITS> {
    const SHIFT: u32 = 15 - BITS;
    const MID_BITS: u32 = (SIZE as u32 * 8 - BITS) % 8;
    /// Bytes of eight packed fields.
    const MID_WIDTH: usize = Self::MID_BITS as usize;
    /// Whether the upper sixteen bits give a whole byte plane.
    const HIGH_PLANE: bool = BITS <= 8;
    /// Planes of the bytes below the upper two.
    const LOW_PLANES: usize = SIZE - 2;
    /// Symbol and raw are a byte each.
    const BYTES: bool = BITS == 8;
}

/// Whole blocks of the first `count` bytes.
#[inline(always)]
fn blocks_of(bytes: &[u8], count: usize) -> &[Block] {
    &bytes[..count].as_chunks().0[..count / BLOCK]
}

#[inline(always)]
fn blocks_of_mut<T>(bytes: &mut [T], count: usize) -> &mut [[T; BLOCK]] {
    &mut bytes[..count].as_chunks_mut().0[..count / BLOCK]
}

/// What whole blocks of elements are joined from.
struct Joiner<'a, I: Isa, const SIZE: usize, const BITS: u32> {
    isa: I,
    base: u16,
    codes: &'a [Block],
    /// Planes, the lowest first; of these there may be none.
    low: &'a [Block],
    middle: &'a [Block],
    high: &'a [Block],
    /// The packed fields, from which as many blocks can be read.
    mid: &'a [u8],
    unpacker: I::Unpacker,
}

impl<'a, I: Isa, const SIZE: usize, const BITS: u32> Joiner<'a, I, SIZE, BITS> {
    /// Elements of a stripe.
    const PER_STRIPE: usize = STRIPE / SIZE;

    /// For at most `bytes` bytes of elements; returns how many are whole stripes.
    #[inline(always)]
    fn new(isa: I, base: u16, from: &Join<'a>, bytes: usize) -> (Self, usize) {
        let mut blocks = bytes / SIZE / BLOCK;
        let width = Shape::<SIZE, BITS>::MID_WIDTH;
        if width > 0 {
            // A block's packed fields are read as two whole vectors.
            let readable = (from.mid.len() + width).saturating_sub(BLOCK) / (2 * width);
            blocks = blocks.min(readable);
        }
        let bytes = blocks * BLOCK * SIZE / STRIPE * STRIPE;
        let count = bytes / SIZE;
        let plane = |index: usize| blocks_of(from.planes[index], count);
        let high = if Shape::<SIZE, BITS>::HIGH_PLANE { plane(Shape::<SIZE, BITS>::LOW_PLANES) } else { &[] };
        let (low, middle) = if SIZE == 4 { (plane(0), plane(1)) } else { (&[][..], &[][..]) };
        let unpacker = isa.unpacker(Shape::<SIZE, BITS>::MID_BITS.max(1));
        let codes = blocks_of(from.codes, count);
        (Self { isa, base, codes, low, middle, high, mid: from.mid, unpacker }, bytes)
    }

    /// The upper sixteen bits of the elements of block `block`.
    #[inline(always)]
    fn top(&self, block: usize) -> [u16; BLOCK] {
        let codes = &self.codes[block];
        if Shape::<SIZE, BITS>::BYTES && self.base == 0 {
            return self.isa.join_bytes(*codes, self.high[block]);
        }
        let width = Shape::<SIZE, BITS>::MID_WIDTH;
        let mut fields = [0u16; BLOCK];
        if width > 0 {
            let start = block * 2 * width;
            // SAFETY: `block` is one that `codes` has, which `new` limited so that `start + width +
            // BLOCK` is in `mid`.
            let (first, second) = unsafe {
                let first = self.mid.as_ptr().add(start);
                (first.cast::<Block>().read(), first.add(width).cast::<Block>().read())
            };
            fields = self.isa.unpack(first, second, self.unpacker);
        }
        let mut plane = [0u16; BLOCK];
        if Shape::<SIZE, BITS>::HIGH_PLANE {
            plane = self.isa.lanes(self.high[block]);
        }
        let symbols = self.isa.lanes(*codes);
        let shift = Shape::<SIZE, BITS>::SHIFT;
        // Loops, not closures: those would be compiled without the instruction set, and called.
        let mut top = [0; BLOCK];
        for i in 0..BLOCK {
            let symbol = symbols[i].wrapping_add(self.base);
            let raw = if Shape::<SIZE, BITS>::HIGH_PLANE { fields[i] << 8 | plane[i] } else { fields[i] };
            top[i] = raw >> shift << 15 | symbol << shift | raw & ((1 << shift) - 1);
        }
        top
    }

    /// Asks for the planes of a stripe that comes later.
    #[inline(always)]
    fn fetch_ahead(&self, index: usize) {
        let at = index * Self::PER_STRIPE + copy::AHEAD;
        if SIZE == 4 {
            copy::fetch(self.low.as_ptr().cast::<u8>().wrapping_add(at), true);
            copy::fetch(self.middle.as_ptr().cast::<u8>().wrapping_add(at), true);
        }
        if Shape::<SIZE, BITS>::HIGH_PLANE {
            copy::fetch(self.high.as_ptr().cast::<u8>().wrapping_add(at), true);
        }
    }

    /// The elements of stripe `index`.
    #[inline(always)]
    fn stripe(&self, index: usize) -> [u8; STRIPE] {
        let mut stripe = [0; STRIPE];
        let block = index * Self::PER_STRIPE / BLOCK;
        if SIZE == 2 && Shape::<SIZE, BITS>::BYTES && self.base == 0 {
            let (mut codes, mut others) = ([0; 2 * BLOCK], [0; 2 * BLOCK]);
            codes.copy_from_slice(self.codes[block..block + 2].as_flattened());
            others.copy_from_slice(self.high[block..block + 2].as_flattened());
            return self.isa.join_stripe(codes, others);
        }
        if SIZE == 2 {
            for (half, out) in stripe.as_chunks_mut::<{ 2 * BLOCK }>().0.iter_mut().enumerate() {
                for (out, top) in out.as_chunks_mut::<2>().0.iter_mut().zip(self.top(block + half)) {
                    *out = top.to_le_bytes();
                }
            }
        } else {
            let wide = self.isa.widen(self.top(block), self.middle[block], self.low[block]);
            for (out, wide) in stripe.as_chunks_mut::<4>().0.iter_mut().zip(wide) {
                *out = wide.to_le_bytes();
            }
        }
        stripe
    }
}

/// Joins whole stripes; returns how many elements that were.
#[inline(always)]
pub(super) fn join<const SIZE: usize, const BITS: u32>(
    isa: impl Isa,
    base: u16,
    from: &Join<'_>,
    elements: &mut [u8],
) -> usize {
    let (joiner, bytes) = Joiner::<_, SIZE, BITS>::new(isa, base, from, elements.len());
    for (index, out) in elements[..bytes].as_chunks_mut().0.iter_mut().enumerate() {
        joiner.fetch_ahead(index);
        *out = joiner.stripe(index);
    }
    bytes / SIZE
}

/// Cuts whole blocks; returns how many elements that were.
#[inline(always)]
pub(super) fn cut<const SIZE: usize, const BITS: u32>(
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
    let high = match Shape::<SIZE, BITS>::HIGH_PLANE {
        true => &mut planes.next().unwrap_or_default()[..blocks],
        false => Default::default(),
    };
    let width = Shape::<SIZE, BITS>::MID_WIDTH;
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
        if Shape::<SIZE, BITS>::BYTES && base == 0 {
            let (symbols, others) = isa.cut_bytes(top);
            (codes[block], high[block]) = (symbols, written(others));
            continue;
        }
        let shift = Shape::<SIZE, BITS>::SHIFT;
        let code = top.map(|top| (top >> shift & ((1 << BITS) - 1)).wrapping_sub(base));
        let mut raw = top.map(|top| top >> 15 << shift | top & ((1 << shift) - 1));
        codes[block] = isa.low_bytes(code);
        if BITS > 8 && isa.any_high(code) {
            take_patches(&code, base, block, &mut codes[block], to.patches);
        }
        if Shape::<SIZE, BITS>::HIGH_PLANE {
            high[block] = written(isa.low_bytes(raw));
            raw = raw.map(|raw| raw >> 8);
        }
        if width > 0
            && let Some(mid) = mid.next()
        {
            let [first, second] = isa.pack(raw, Shape::<SIZE, BITS>::MID_BITS);
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

/// Lists the elements of a block whose symbols have no code, which gets to be 0.
#[cold]
#[inline(never)]
fn take_patches(code: &[u16; BLOCK], base: u16, block: usize, codes: &mut Block, patches: &mut Vec<Patch>) {
    for i in (0..BLOCK).filter(|&i| code[i] > 255) {
        codes[i] = 0;
        let symbol = code[i].wrapping_add(base);
        patches.push(Patch { index: (block * BLOCK + i) as u32, symbol });
    }
}
