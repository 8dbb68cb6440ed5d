//! The NEON level: AArch64.
//!
//! NEON is part of AArch64's baseline, so that plain Rust is vectorised as well; what is here are
//! the operations that compilers do not find: table look-ups, masks, widening multiplication.

use std::arch::aarch64::*;

use crate::simd::casts::{cast, unpackers};
use crate::simd::isa::{Bytes, CodeWindow, Isa, LANES, Lanes, STRIPE, Sums, UNPACKED};
use crate::simd::level::{self, SimdLevel};
use crate::simd::vector::{Lane, VECTOR, Vector, tables};
use crate::simd::{Portable, vector_portable};

/// A value of this type proves that the current level is NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, if the current level is NEON.
    #[inline]
    pub(crate) fn new() -> Option<Self> {
        level::has(SimdLevel::Neon).then_some(Self(()))
    }
}

/// Lane `i` of eight takes the two bytes that its field lies in, and shifts it down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpacker {
    places: [u8; 16],
    /// Negative: to lower bits.
    shifts: [i16; 8],
    mask: u16,
    /// Bytes of eight fields.
    width: usize,
}

impl Unpacker {
    const fn new(bits: u32) -> Self {
        let mut places = [0; 16];
        let mut shifts = [0; 8];
        let mut i = 0;
        while i < 8 {
            let bit = i as u32 * bits;
            places[2 * i] = (bit / 8) as u8;
            places[2 * i + 1] = (bit / 8 + 1) as u8;
            shifts[i] = -((bit % 8) as i16);
            i += 1;
        }
        Self { places, shifts, mask: (1 << bits) - 1, width: bits as usize }
    }
}

impl Isa for Neon {
    unpackers!(Unpacker);

    #[inline(always)]
    fn unpack(self, bytes: &[u8; UNPACKED], unpacker: Unpacker) -> Lanes {
        let places = cast!(unpacker.places, [u8; 16] => uint8x16_t);
        let shifts = cast!(unpacker.shifts, [i16; 8] => int16x8_t);
        let mut fields = [[0; 16]; 4];
        for (i, fields) in fields.iter_mut().enumerate() {
            let mut eight = [0; 16];
            eight.copy_from_slice(&bytes[i * unpacker.width..][..16]);
            let eight = cast!(eight, [u8; 16] => uint8x16_t);
            // SAFETY: NEON is part of the target's baseline, here and below.
            let eight = unsafe {
                let pairs = vreinterpretq_u16_u8(vqtbl1q_u8(eight, places));
                vandq_u16(vshlq_u16(pairs, shifts), vdupq_n_u16(unpacker.mask))
            };
            *fields = cast!(eight, uint16x8_t => [u8; 16]);
        }
        cast!(fields, [[u8; 16]; 4] => Lanes)
    }

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        Portable.pack(fields, bits)
    }

    #[inline(always)]
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES] {
        Portable.widen(top, high, low)
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        Portable.narrow(elements)
    }

    #[inline(always)]
    fn merge_bytes(self, symbols: Bytes, others: Bytes) -> Lanes {
        Portable.merge_bytes(symbols, others)
    }

    #[inline(always)]
    fn merge_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes {
        Portable.merge_fields::<SHIFT>(base, codes, fields, plane)
    }

    #[inline(always)]
    fn split_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        Portable.split_bytes(lanes)
    }

    #[inline(always)]
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16] {
        Portable.low_bytes(lanes)
    }

    #[inline(always)]
    fn any_above_255(self, lanes: [u16; 16]) -> bool {
        Portable.any_above_255(lanes)
    }

    #[inline(always)]
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes {
        let palette = cast!(palette, [u8; 16] => uint8x16_t);
        let nibbles = cast!(nibbles, [u8; 16] => uint8x16_t);
        // SAFETY: as above.
        let found = unsafe {
            let low = vqtbl1q_u8(palette, vandq_u8(nibbles, vdupq_n_u8(15)));
            let high = vqtbl1q_u8(palette, vshrq_n_u8::<4>(nibbles));
            [vzip1q_u8(low, high), vzip2q_u8(low, high)]
        };
        cast!(found, [uint8x16_t; 2] => Bytes)
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        let (bytes, index) = (cast!(bytes, [u8; 16] => uint8x16_t), cast!(index, [u8; 16] => uint8x16_t));
        // SAFETY: as above. Only the low four bits and the highest one of an index count.
        let shuffled = unsafe { vqtbl1q_u8(bytes, vandq_u8(index, vdupq_n_u8(0x8f))) };
        cast!(shuffled, uint8x16_t => [u8; 16])
    }

    #[inline(always)]
    fn sum_clamped(self, bytes: [u8; 32], least: u8) -> u32 {
        let [first, second] = cast!(bytes, [u8; 32] => [uint8x16_t; 2]);
        // SAFETY: as above.
        unsafe {
            let least = vdupq_n_u8(least);
            u32::from(vaddlvq_u8(vmaxq_u8(first, least))) + u32::from(vaddlvq_u8(vmaxq_u8(second, least)))
        }
    }

    #[inline(always)]
    fn equal(self, bytes: [u8; 32], value: u8) -> u32 {
        let halves = cast!(bytes, [u8; 32] => [uint8x16_t; 2]);
        // SAFETY: as above.
        unsafe {
            let zero = vdupq_n_u8(0);
            let [first, second] = halves.map(|half| vceqq_u8(half, vdupq_n_u8(value)));
            mask_of_bytes([first, second, zero, zero]) as u32
        }
    }

    #[inline(always)]
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums {
        let mut sums = cast!(sums, Sums => [uint64x2_t; 4]);
        let stripe = cast!(stripe, [u8; STRIPE] => [uint64x2_t; 4]);
        let secret = cast!(secret, [u8; STRIPE] => [uint64x2_t; 4]);
        for i in 0..4 {
            // SAFETY: as above.
            sums[i] = unsafe {
                let keys = veorq_u64(stripe[i], secret[i]);
                let swapped = vextq_u64::<1>(stripe[i], stripe[i]);
                vmlal_u32(vaddq_u64(sums[i], swapped), vmovn_u64(keys), vshrn_n_u64::<32>(keys))
            };
        }
        cast!(sums, [uint64x2_t; 4] => Sums)
    }

    #[inline(always)]
    unsafe fn store_nt(self, to: *mut u8, stripe: [u8; STRIPE]) {
        // SAFETY: as the caller promises. There is no intrinsic for non-temporal stores.
        unsafe { to.cast::<[u8; STRIPE]>().write(stripe) }
    }

    #[inline(always)]
    fn concat_codes(self, _: [u8; 32], _: &CodeWindow) -> Option<[(u64, u64); 2]> {
        None
    }
}

type V = [uint8x16_t; 4];

/// The mask of bytes, each of which is 255 or 0.
///
/// # Safety
/// The machine must have NEON.
#[inline(always)]
unsafe fn mask_of_bytes(bytes: V) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let [a, b, c, d] = bytes.map(|bytes| vandq_u8(bytes, bit));
        // Each step adds neighbours: eight bits become one byte.
        let fours = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)))
    }
}

/// The mask of lanes, each of which is all ones or zero.
///
/// # Safety
/// The machine must have NEON.
#[inline(always)]
unsafe fn mask_of<L: Lane>(lanes: V) -> u64 {
    // SAFETY: as the caller promises.
    unsafe {
        let zero = vdupq_n_u8(0);
        // The low byte of each lane of two, four or eight bytes, side by side.
        let even = |a: uint8x16_t, b: uint8x16_t| vuzp1q_u8(a, b);
        let [a, b, c, d] = lanes;
        match L::SIZE {
            1 => mask_of_bytes(lanes),
            2 => mask_of_bytes([even(a, b), even(c, d), zero, zero]),
            4 => mask_of_bytes([even(even(a, b), even(c, d)), zero, zero, zero]),
            _ => {
                let fours = even(even(a, b), even(c, d));
                mask_of_bytes([even(fours, zero), zero, zero, zero])
            }
        }
    }
}

/// An intrinsic on all registers, one of four by the size of a lane.
macro_rules! all {
    ($lane:ident, $one:ident, $two:ident, $four:ident, $eight:ident, $a:expr, $b:expr) => {{
        let (a, b): (V, V) = ($a, $b);
        let mut out = a;
        for i in 0..4 {
            // SAFETY: NEON is part of the target's baseline; registers are plain data of one size.
            out[i] = unsafe {
                match $lane::SIZE {
                    1 => $one(a[i], b[i]),
                    2 => vreinterpretq_u8_u16($two(vreinterpretq_u16_u8(a[i]), vreinterpretq_u16_u8(b[i]))),
                    4 => vreinterpretq_u8_u32($four(vreinterpretq_u32_u8(a[i]), vreinterpretq_u32_u8(b[i]))),
                    _ => vreinterpretq_u8_u64($eight(vreinterpretq_u64_u8(a[i]), vreinterpretq_u64_u8(b[i]))),
                }
            };
        }
        out
    }};
}

impl Neon {
    /// Shifts lanes, to lower bits where `bits` is negative.
    #[inline(always)]
    fn shift<L: Lane>(self, vector: V, bits: i32) -> V {
        // SAFETY: NEON is part of the target's baseline.
        vector.map(|register| unsafe {
            match L::SIZE {
                2 => {
                    let by = vdupq_n_s16(bits as i16);
                    vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(register), by))
                }
                4 => {
                    let by = vdupq_n_s32(bits);
                    vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(register), by))
                }
                _ => {
                    let by = vdupq_n_s64(i64::from(bits));
                    vreinterpretq_u8_u64(vshlq_u64(vreinterpretq_u64_u8(register), by))
                }
            }
        })
    }

    /// The shuffle of one register that places its lanes by a mask, from a table for eight lanes of
    /// two bytes; lanes of four and eight bytes are two and four of those.
    #[inline(always)]
    fn order<L: Lane>(self, table: &[[u8; 16]; 256], mask: u64) -> (uint8x16_t, usize) {
        let pick = match L::SIZE {
            2 => mask as usize & 255,
            4 => usize::from(tables::TWICE[mask as usize & 15]),
            // Two bits, each four times.
            _ => (mask as usize & 1) * 0x0f | (mask as usize >> 1 & 1) * 0xf0,
        };
        (cast!(table[pick], [u8; 16] => uint8x16_t), pick.count_ones() as usize * 2)
    }
}

impl Vector for Neon {
    type V = V;

    #[inline(always)]
    fn load(self, bytes: &[u8; VECTOR]) -> V {
        cast!(*bytes, [u8; VECTOR] => V)
    }

    #[inline(always)]
    fn store(self, vector: V, bytes: &mut [u8; VECTOR]) {
        *bytes = cast!(vector, V => [u8; VECTOR]);
    }

    #[inline(always)]
    fn splat<L: Lane>(self, number: u64) -> V {
        let bytes: [u8; 16] = std::array::from_fn(|i| number.to_le_bytes()[i % L::SIZE]);
        [cast!(bytes, [u8; 16] => uint8x16_t); 4]
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        all!(u8, vandq_u8, vandq_u16, vandq_u32, vandq_u64, a, b)
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        all!(u8, vorrq_u8, vorrq_u16, vorrq_u32, vorrq_u64, a, b)
    }

    #[inline(always)]
    fn xor(self, a: V, b: V) -> V {
        all!(u8, veorq_u8, veorq_u16, veorq_u32, veorq_u64, a, b)
    }

    #[inline(always)]
    fn add<L: Lane>(self, a: V, b: V) -> V {
        all!(L, vaddq_u8, vaddq_u16, vaddq_u32, vaddq_u64, a, b)
    }

    #[inline(always)]
    fn sub<L: Lane>(self, a: V, b: V) -> V {
        all!(L, vsubq_u8, vsubq_u16, vsubq_u32, vsubq_u64, a, b)
    }

    #[inline(always)]
    fn shl<L: Lane>(self, vector: V, bits: u32) -> V {
        self.shift::<L>(vector, bits as i32)
    }

    #[inline(always)]
    fn shr<L: Lane>(self, vector: V, bits: u32) -> V {
        self.shift::<L>(vector, -(bits as i32))
    }

    #[inline(always)]
    fn zero_extend<L: Lane>(self, bytes: &[u8]) -> V {
        // Zipped with zeros, once or twice.
        let bytes = &bytes[..L::COUNT];
        // SAFETY: as above; there are as many bytes as are loaded.
        unsafe {
            let zero = vdupq_n_u8(0);
            if L::SIZE == 2 {
                let (a, b) = (vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16)));
                return [vzip1q_u8(a, zero), vzip2q_u8(a, zero), vzip1q_u8(b, zero), vzip2q_u8(b, zero)];
            }
            let a = vld1q_u8(bytes.as_ptr());
            let pairs = [vzip1q_u8(a, zero), vzip2q_u8(a, zero)].map(|half| vreinterpretq_u16_u8(half));
            let zero = vdupq_n_u16(0);
            let quads = [
                vzip1q_u16(pairs[0], zero),
                vzip2q_u16(pairs[0], zero),
                vzip1q_u16(pairs[1], zero),
                vzip2q_u16(pairs[1], zero),
            ];
            quads.map(|quad| vreinterpretq_u8_u16(quad))
        }
    }

    #[inline(always)]
    fn test_mask<L: Lane>(self, vector: V, bits: V) -> u64 {
        let found = all!(L, vtstq_u8, vtstq_u16, vtstq_u32, vtstq_u64, vector, bits);
        // SAFETY: NEON is part of the target's baseline, here and below.
        unsafe { mask_of::<L>(found) }
    }

    #[inline(always)]
    fn cmpge_mask<L: Lane>(self, a: V, b: V) -> u64 {
        let found = all!(L, vcgeq_u8, vcgeq_u16, vcgeq_u32, vcgeq_u64, a, b);
        // SAFETY: as above.
        unsafe { mask_of::<L>(found) }
    }

    #[inline(always)]
    fn compress<L: Lane>(self, mask: u64, vector: V, to: &mut [u8; VECTOR]) {
        // Groups of lanes overwrite what the group before left behind its lanes. A group starts no
        // later than its own place in the vector, so that its store ends within `to`.
        let (mut mask, mut at, to) = (mask, 0, to.as_mut_ptr());
        if L::SIZE == 1 {
            for eight in cast!(vector, V => [uint8x8_t; 8]) {
                let order = cast!(tables::COMPRESS[mask as usize & 255], [u8; 8] => uint8x8_t);
                // SAFETY: as above; the store is within `to`.
                unsafe { vst1_u8(to.add(at), vtbl1_u8(eight, order)) };
                at += (mask & 255).count_ones() as usize;
                mask >>= 8;
            }
            return;
        }
        for register in vector {
            let (order, len) = self.order::<L>(&tables::COMPRESS_PAIRS, mask);
            // SAFETY: as above; the store is within `to`.
            unsafe { vst1q_u8(to.add(at), vqtbl1q_u8(register, order)) };
            at += len;
            mask >>= 16 / L::SIZE;
        }
    }

    #[inline(always)]
    fn expand<L: Lane>(self, mask: u64, from: &[u8; VECTOR]) -> V {
        let (mut mask, mut at, from) = (mask, 0, from.as_ptr());
        if L::SIZE == 1 {
            let mut words = [0u64; 8];
            for word in &mut words {
                let order = cast!(tables::EXPAND[mask as usize & 255], [u8; 8] => uint8x8_t);
                // SAFETY: as above; a group loads from no later than its own place in the vector.
                *word = unsafe {
                    vget_lane_u64::<0>(vreinterpret_u64_u8(vtbl1_u8(vld1_u8(from.add(at)), order)))
                };
                at += (mask & 255).count_ones() as usize;
                mask >>= 8;
            }
            return cast!(words, [u64; 8] => V);
        }
        let mut registers = self.splat::<u8>(0);
        for register in &mut registers {
            let (order, len) = self.order::<L>(&tables::EXPAND_PAIRS, mask);
            // SAFETY: as above; a group loads from no later than its own place in the vector.
            *register = unsafe { vqtbl1q_u8(vld1q_u8(from.add(at)), order) };
            at += len;
            mask >>= 16 / L::SIZE;
        }
        registers
    }

    #[inline(always)]
    fn select16(self, mask: u32) -> V {
        let bit = cast!([1u16, 2, 4, 8, 16, 32, 64, 128], [u16; 8] => uint16x8_t);
        let of = |i: u32| {
            // SAFETY: as above.
            unsafe { vreinterpretq_u8_u16(vtstq_u16(vdupq_n_u16((mask >> (8 * i)) as u16), bit)) }
        };
        [of(0), of(1), of(2), of(3)]
    }

    #[inline(always)]
    fn align_words(self, before: V, after: V, words: usize) -> V {
        let aligned = vector_portable::align_words(self.bytes(before), self.bytes(after), words);
        self.load(&aligned)
    }
}
