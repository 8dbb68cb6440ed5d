//! The operations that instruction sets differ in, and the data that they work on.

use crate::simd::level::{self, SimdLevel};

/// Bytes of an XXH3 stripe: the unit that is accumulated, and a cache line.
pub(crate) const STRIPE: usize = 64;
/// The accumulators of XXH3.
pub(crate) type Sums = [u64; 8];

/// Elements per operation.
pub(crate) const LANES: usize = 32;
pub(crate) type Lanes = [u16; LANES];
pub(crate) type Bytes = [u8; LANES];
/// Bytes that unpacking reads: four 16-byte vectors at offsets of at most seven bytes.
pub(crate) const UNPACKED: usize = 3 * 7 + 16;

/// Symbols of a code window.
pub(crate) const WINDOW: usize = 16;
/// Bits that sixteen concatenated codes of a window may have.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) const MAX_WINDOW_BITS: u64 = 57;

/// The Huffman codes of sixteen consecutive symbols, as tables for byte shuffles.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeWindow {
    /// The first of the symbols.
    pub(crate) first: u8,
    /// The bytes of their codes, low ones first.
    pub(crate) codes: [[u8; WINDOW]; 2],
    pub(crate) lens: [u8; WINDOW],
    /// Two to the power of the lengths, low bytes first.
    pub(crate) powers: [[u8; WINDOW]; 2],
}

/// Windows of an alphabet, at most. (case: `codec.py table`, fp16 at `Z4AI_CPU=avx2`)
pub(crate) const MAX_WINDOWS: usize = 8;

/// The Huffman codes of consecutive symbols, sixteen per window, as tables for byte shuffles.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeWindows {
    /// The first of the symbols, after which they wrap around.
    pub(crate) first: u8,
    /// Windows in use.
    pub(crate) count: usize,
    /// The low bytes of the codes; the high bytes, four bits, below the lengths.
    pub(crate) bytes: [[[u8; WINDOW]; 2]; MAX_WINDOWS],
}

impl CodeWindows {
    /// Whether the current level has an [`Isa::concat_eights`] of its own. A condition at run time, so that
    /// callers are compiled for every target.
    pub(crate) fn supported() -> bool {
        cfg!(target_arch = "x86_64") && level::has(SimdLevel::Avx2)
    }
}

/// The operations that instruction sets differ in. Values are arrays; each level casts them to its
/// registers.
pub(crate) trait Isa: Copy {
    /// The constants for unpacking fields of one width.
    type Unpacker: Copy;

    /// Whether [`shuffle`](Self::shuffle) is one instruction.
    const SHUFFLES: bool = true;

    /// For fields of `bits` (1 to 7) bits.
    fn unpacker(self, bits: u32) -> Self::Unpacker;
    /// Unpacks [`LANES`] bit fields, lowest bit first, from the start of `bytes`.
    fn unpack(self, bytes: &[u8; UNPACKED], unpacker: Self::Unpacker) -> Lanes;
    /// Packs fields of `bits` (1 to 7) bits: eight into the low bits of each word.
    fn pack(self, fields: [u16; 16], bits: u32) -> [u64; 2];
    /// Four-byte elements from their upper halves and their two lower bytes.
    fn widen(self, top: Lanes, high: Bytes, low: Bytes) -> [u32; LANES];
    /// The inverse of [`widen`](Self::widen), for sixteen elements.
    fn narrow(self, elements: [u32; 16]) -> ([u16; 16], [u8; 16], [u8; 16]);
    /// `sign | symbol | rest` of 1, 8 and 7 bits; `others` is `sign | rest`.
    fn merge_bytes(self, symbols: Bytes, others: Bytes) -> Lanes;
    /// `sign | symbol | rest` with `SHIFT` bits of rest. Symbols are `codes + base`; the raw bits
    /// are `fields`, above the bytes of `plane` if there is one.
    fn merge_fields<const SHIFT: u32>(
        self,
        base: u16,
        codes: Bytes,
        fields: Lanes,
        plane: Option<Bytes>,
    ) -> Lanes;
    /// The inverse of [`merge_bytes`](Self::merge_bytes) for sixteen elements: symbols, others.
    fn split_bytes(self, lanes: [u16; 16]) -> ([u8; 16], [u8; 16]);
    /// The low byte of each lane.
    fn low_bytes(self, lanes: [u16; 16]) -> [u8; 16];
    /// Whether any lane is above 255.
    fn any_above_255(self, lanes: [u16; 16]) -> bool;
    /// The palette's bytes for 32 nibbles, the low one of each byte first.
    fn look_up(self, palette: [u8; 16], nibbles: [u8; 16]) -> Bytes;
    /// Byte `i` of the result is byte `index[i]` of `bytes`, or 0 where `index[i]` is 128 or more.
    fn shuffle(self, bytes: [u8; 16], index: [u8; 16]) -> [u8; 16];
    /// The sum of `max(byte, least)`.
    fn sum_clamped(self, bytes: [u8; 32], least: u8) -> u32;
    /// The mask of bytes equal to `value`.
    fn equal(self, bytes: [u8; 32], value: u8) -> u32;
    /// The mask of sign bits of elements of `SIZE` bytes.
    #[inline(always)]
    fn sign_mask<const SIZE: usize>(self, elements: &[[u8; SIZE]; 64]) -> u64 {
        let mut signs = 0;
        for (half, elements) in elements.as_chunks::<32>().0.iter().enumerate() {
            let tops = std::array::from_fn(|i| elements[i][SIZE - 1] & 0x80);
            signs |= u64::from(self.equal(tops, 0x80)) << (32 * half);
        }
        signs
    }
    /// XXH3's accumulators after another stripe.
    fn accumulate(self, sums: Sums, stripe: [u8; STRIPE], secret: [u8; STRIPE]) -> Sums;
    /// Stores a stripe, non-temporally where the level can.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of a stripe and aligned to its length.
    unsafe fn store_nt(self, to: *mut u8, stripe: [u8; STRIPE]);
    /// Concatenates the codes of the first and of the last sixteen symbols; returns each with its
    /// number of bits. `None` if a symbol is outside the window, if there are more than
    /// [`MAX_WINDOW_BITS`] bits, or if the level gains nothing from this.
    fn concat_codes(self, symbols: [u8; 32], window: &CodeWindow) -> Option<[(u64, u64); 2]>;
    /// As [`concat_codes`](Self::concat_codes), for every eight symbols and several windows.
    #[inline(always)]
    fn concat_eights(self, symbols: [u8; 32], windows: &CodeWindows) -> Option<[(u64, u64); 4]> {
        let _ = (symbols, windows);
        None
    }
}
