//! Plain Rust, which the compiler vectorises for the target's baseline.

use crate::simd::isa::{Bytes, CodeWindow, Isa, LANES, Lanes, STRIPE, Sums, UNPACKED};

/// Plain arithmetic, for every machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    const SHUFFLES: bool = false;

    type Unpacker = u32;

    #[inline(always)]
    fn unpacker(self, bits: u32) -> u32 {
        bits
    }

    #[inline(always)]
    fn unpack(self, bytes: &[u8; UNPACKED], bits: u32) -> Lanes {
        let mask = (1 << bits) - 1;
        std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i / 8 * bits as usize..][..8]);
            (u64::from_le_bytes(word) >> (i as u32 % 8 * bits) & mask) as u16
        })
    }

    #[inline(always)]
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2] {
        [0, 8].map(|first| (0..8).fold(0, |word, i| word | u64::from(fields[first + i]) << (i as u32 * bits)))
    }

    #[inline(always)]
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES] {
        std::array::from_fn(|i| u32::from(top[i]) << 16 | u32::from(high[i]) << 8 | u32::from(low[i]))
    }

    #[inline(always)]
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]) {
        (elements.map(|e| (e >> 16) as u16), elements.map(|e| (e >> 8) as u8), elements.map(|e| e as u8))
    }

    #[inline(always)]
    fn merge_bytes(self, symbols: Bytes, others: Bytes) -> Lanes {
        std::array::from_fn(|i| {
            let other = u16::from(others[i]);
            other >> 7 << 15 | u16::from(symbols[i]) << 7 | other & 0x7f
        })
    }

    #[inline(always)]
    fn merge_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes {
        std::array::from_fn(|i| {
            let symbol = u16::from(codes[i]).wrapping_add(base);
            let raw = plane.map_or(fields[i], |plane| fields[i] << 8 | u16::from(plane[i]));
            raw >> SHIFT << 15 | symbol << SHIFT | raw & ((1 << SHIFT) - 1)
        })
    }

    #[inline(always)]
    fn split_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]) {
        (lanes.map(|lane| (lane >> 7) as u8), lanes.map(|lane| (lane >> 8 & 0x80 | lane & 0x7f) as u8))
    }

    #[inline(always)]
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16] {
        lanes.map(|lane| lane as u8)
    }

    #[inline(always)]
    fn any_above_255(self, lanes: [u16; 16]) -> bool {
        lanes.into_iter().fold(0, |all, lane| all | lane) > 255
    }

    #[inline(always)]
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes {
        std::array::from_fn(|i| palette[usize::from(nibbles[i / 2] >> (i % 2 * 4) & 15)])
    }

    #[inline(always)]
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16] {
        index.map(|i| if i < 128 { bytes[usize::from(i & 15)] } else { 0 })
    }

    #[inline(always)]
    fn sum_clamped(self, bytes: [u8; 32], least: u8) -> u32 {
        bytes.into_iter().map(|byte| u32::from(byte.max(least))).sum()
    }

    #[inline(always)]
    fn equal(self, bytes: [u8; 32], value: u8) -> u32 {
        bytes.iter().rev().fold(0, |bits, &byte| bits << 1 | u32::from(byte == value))
    }

    #[inline(always)]
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums {
        let (words, secret) = (stripe.as_chunks().0, secret.as_chunks().0);
        let mut sums = sums;
        for i in 0..sums.len() {
            let key = u64::from_le_bytes(words[i]) ^ u64::from_le_bytes(secret[i]);
            let product = (key & 0xffff_ffff) * (key >> 32);
            sums[i] = sums[i].wrapping_add(product).wrapping_add(u64::from_le_bytes(words[i ^ 1]));
        }
        sums
    }

    #[inline(always)]
    unsafe fn store_nt(self, to: *mut u8, stripe: [u8; STRIPE]) {
        // SAFETY: as the caller promises.
        unsafe { to.cast::<[u8; STRIPE]>().write(stripe) }
    }

    #[inline(always)]
    fn concat_codes(self, _: [u8; 32], _: &CodeWindow) -> Option<[(u64, u64); 2]> {
        None
    }
}
