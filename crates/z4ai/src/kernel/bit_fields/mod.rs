//! Splits elements into bit fields, and merges them.
//!
//! A float is `sign | symbol | rest`: the symbol is the exponent, possibly with leading mantissa
//! bits. The other bits, `sign | rest`, are *raw*: their low whole bytes are byte planes, and the
//! bits above those are bit-packed, lowest bit first (`mid`). Integers have no sign field: their
//! symbol is the highest byte. Correlated signs are a [separate](crate::kernel::sign_changes)
//! stream: then only `rest` is raw, and the merge leaves the sign clear.
//!
//! The symbol is stored as a one-byte *code*, its distance from `base`. A symbol of more than eight
//! bits may be out of range; such an element is an outlier (PFOR): it has code 0 and is patched
//! after the merge.

#[cfg(target_arch = "x86_64")]
mod avx512_split;
pub(crate) mod blocks;
mod fused_merge;

use std::mem::MaybeUninit;

use crate::bits::BitReader;
use crate::element::Kind;
use crate::kernel::stripe_writer::PartialLine;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
use crate::simd::vector::Vector;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Isa, Portable, Sums, dispatch_wide};

/// Turns run-time fields into constants, so that every shift in a block is an immediate; 0 where
/// blocks have no specialised code.
macro_rules! for_fields {
    ($fields:expr, $size:ident, $bits:ident, $apart:ident, $call:expr) => {
        match ($fields.separate_sign, $fields.signed) {
            (_, false) => 0,
            (false, true) => for_fields!(@bits $fields, $size, $bits, $apart false, $call),
            (true, true) => for_fields!(@bits $fields, $size, $bits, $apart true, $call),
        }
    };
    (@bits $fields:expr, $size:ident, $bits:ident, $apart:ident $a:literal, $call:expr) => {
        match ($fields.size, $fields.symbol_bits) {
            (2, 5) => for_fields!(@one $size 2, $bits 5, $apart $a, $call),
            (2, 6) => for_fields!(@one $size 2, $bits 6, $apart $a, $call),
            (2, 7) => for_fields!(@one $size 2, $bits 7, $apart $a, $call),
            (2, 8) => for_fields!(@one $size 2, $bits 8, $apart $a, $call),
            (2, 9) => for_fields!(@one $size 2, $bits 9, $apart $a, $call),
            (2, 10) => for_fields!(@one $size 2, $bits 10, $apart $a, $call),
            (4, 8) => for_fields!(@one $size 4, $bits 8, $apart $a, $call),
            (4, 9) => for_fields!(@one $size 4, $bits 9, $apart $a, $call),
            (4, 10) => for_fields!(@one $size 4, $bits 10, $apart $a, $call),
            _ => 0,
        }
    };
    (@one $size:ident $s:literal, $bits:ident $b:literal, $apart:ident $a:literal, $call:expr) => {{
        const $size: usize = $s;
        const $bits: u32 = $b;
        const $apart: bool = $a;
        $call
    }};
}

/// The bit fields of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Bytes per element.
    pub(crate) size: usize,
    /// Whether the highest bit is a sign, which is not part of the symbol.
    pub(crate) signed: bool,
    /// Whether that sign is in a stream of its own instead of the raw bits.
    pub(crate) separate_sign: bool,
    /// Bits of the symbol.
    pub(crate) symbol_bits: u32,
    /// The symbol of code 0.
    pub(crate) base: u16,
}

impl Fields {
    /// The fields of `kind` with a symbol of `symbol_bits` bits, if that is valid.
    pub(crate) fn new(kind: Kind, symbol_bits: u32, base: u16) -> Option<Self> {
        let fits = if kind.size() == 1 {
            false
        } else if kind.is_float() {
            symbol_bits >= kind.exponent_bits().min(8) && symbol_bits < kind.bits().min(16)
        } else {
            symbol_bits == 8
        };
        let highest_base = (1u32 << symbol_bits.min(16)).saturating_sub(256);
        (fits && u32::from(base) <= highest_base).then_some(Self {
            size: kind.size(),
            signed: kind.is_float(),
            separate_sign: false,
            symbol_bits,
            base,
        })
    }

    /// Stores the sign bit in a stream of its own. The type must have one.
    pub(crate) fn with_separate_sign(self, separate: bool) -> Self {
        debug_assert!(self.signed || !separate);
        Self { separate_sign: separate, ..self }
    }

    /// Bits per element outside the symbol and a separate sign.
    pub(crate) fn raw_bits(self) -> u32 {
        self.size as u32 * 8 - self.symbol_bits - u32::from(self.separate_sign)
    }

    /// Whether the highest raw bit is the sign.
    fn has_raw_sign(self) -> bool {
        self.signed && !self.separate_sign
    }

    /// Byte planes per element.
    pub(crate) fn planes(self) -> usize {
        self.raw_bits() as usize / 8
    }

    /// Packed bits per element.
    pub(crate) fn mid_bits(self) -> u32 {
        self.raw_bits() % 8
    }

    /// Bytes of the packed bits of `count` elements.
    pub(crate) fn mid_len(self, count: usize) -> usize {
        (count * self.mid_bits() as usize).div_ceil(8)
    }

    /// The lowest bit of the symbol.
    fn symbol_shift(self) -> u32 {
        self.raw_bits() - u32::from(self.has_raw_sign())
    }

    fn symbol_mask(self) -> u64 {
        (1 << self.symbol_bits) - 1
    }

    /// The symbol of an element.
    pub(crate) fn symbol(self, element: u64) -> u64 {
        element >> self.symbol_shift() & self.symbol_mask()
    }

    #[inline(always)]
    fn raw(self, element: u64) -> u64 {
        if self.has_raw_sign() {
            let shift = self.symbol_shift();
            element >> (self.size * 8 - 1) << shift | element & ((1 << shift) - 1)
        } else {
            element & ((1 << self.raw_bits()) - 1)
        }
    }

    #[inline(always)]
    fn merge(self, symbol: u64, raw: u64) -> u64 {
        let shift = self.symbol_shift();
        let low = raw & ((1 << shift) - 1);
        let sign = if self.has_raw_sign() { raw >> shift << (self.size * 8 - 1) } else { 0 };
        sign | symbol << shift | low
    }

    /// Replaces the symbol of the element at `bytes`; returns the previous one.
    pub(crate) fn patch(self, bytes: &mut [u8], symbol: u16) -> u16 {
        let mut element = [0; 8];
        element[..self.size].copy_from_slice(bytes);
        let element = u64::from_le_bytes(element);
        let (mask, shift) = (self.symbol_mask(), self.symbol_shift());
        let patched = (element & !(mask << shift) | u64::from(symbol) << shift).to_le_bytes();
        bytes.copy_from_slice(&patched[..self.size]);
        self.symbol(element) as u16
    }
}

/// Byte planes per element, at most.
pub(crate) const MAX_PLANES: usize = 7;

/// An outlier: an element whose symbol has no code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(crate) index: u32,
    pub(crate) symbol: u16,
}

/// The destination of a split. All slices have exactly the length that the number of elements
/// requires, and every byte is written.
pub(crate) struct FieldStreamsMut<'a> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) mid: &'a mut [MaybeUninit<u8>],
    /// Lowest plane first.
    pub(crate) planes: Vec<&'a mut [MaybeUninit<u8>]>,
    pub(crate) patches: &'a mut Vec<Patch>,
}

/// The source of a merge.
#[derive(Debug, Clone)]
pub(crate) struct FieldStreams<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) mid: &'a [u8],
    /// Lowest plane first; as many as there are.
    pub(crate) planes: [&'a [u8]; MAX_PLANES],
}

impl<'a> FieldStreams<'a> {
    /// The elements from `start` on, a multiple of eight, that have these codes.
    pub(crate) fn part<'b>(&self, fields: Fields, codes: &'b [u8], start: usize) -> FieldStreams<'b>
    where
        'a: 'b,
    {
        let mid = &self.mid[fields.mid_len(start)..];
        let mut planes: [&'b [u8]; MAX_PLANES] = self.planes;
        planes[..fields.planes()].iter_mut().for_each(|plane| *plane = &plane[start..]);
        FieldStreams { codes, mid, planes }
    }
}

/// The source of a fused merge.
#[derive(Debug, Clone)]
pub(crate) struct MergeSource<'a> {
    /// Codes may be indices of four bits into the palette.
    pub(crate) fields: FieldStreams<'a>,
    pub(crate) palette: Option<&'a [u8; 16]>,
    /// One bit per element, where signs are separate.
    pub(crate) signs: &'a [u8],
}

/// Restores elements outside the coded range (outliers) after the merge and before hashing.
pub(crate) trait OutlierPatcher {
    /// The index of the next outlier, relative to the first merged element; `usize::MAX` if there
    /// is none.
    fn next(&self) -> usize;
    /// Patches all outliers in `elements`, which start with element `first`.
    fn patch(&mut self, first: usize, elements: &mut [u8]);
}

/// The destination of a fused merge.
pub(crate) struct MergeSink<'a> {
    pub(crate) patches: &'a mut dyn OutlierPatcher,
    /// The XXH3 accumulators, updated with the merged elements.
    pub(crate) sums: &'a mut Sums,
    /// The output, a whole number of hash blocks.
    pub(crate) out: &'a mut [u8],
    /// Present if the output is written with non-temporal stores: `out` is whole cache lines then,
    /// and starts with the pending bytes.
    pub(crate) pending: Option<&'a mut PartialLine>,
}

/// Merges, hashes and stores a prefix of whole blocks in one pass; returns the number of bytes.
/// That is 0 where fields have no specialised code and where the pending bytes are no multiple of
/// eight.
pub(crate) fn merge_hashed(fields: Fields, from: &MergeSource<'_>, to: MergeSink<'_>) -> usize {
    match &to.pending {
        Some(pending) if !pending.len.is_multiple_of(8) => 0,
        _ => merge_fused(fields, from, to),
    }
}

dispatch_wide! {
    fn merge_fused(fields: Fields, from: &MergeSource<'_>, to: MergeSink<'_>) -> usize = merge_fused_with
}

#[inline(always)]
fn merge_fused_with(isa: impl Vector, fields: Fields, from: &MergeSource<'_>, to: MergeSink<'_>) -> usize {
    for_fields!(
        fields,
        SIZE,
        BITS,
        SEPARATE_SIGN,
        fused_merge::merge_blocks::<SIZE, BITS, SEPARATE_SIGN>(isa, fields.base, from, to)
    )
}

/// Splitting of whole blocks, for which AVX-512 has a version of its own.
trait SplitBlocks: Isa {
    /// Splits a prefix of `elements` so that few are left over; returns their number.
    #[inline(always)]
    fn split_blocks<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
        self,
        base: u16,
        elements: &[u8],
        to: &mut FieldStreamsMut<'_>,
    ) -> usize {
        blocks::split::<SIZE, BITS, SEPARATE_SIGN>(self, base, elements, to)
    }
}

impl SplitBlocks for Portable {}

#[cfg(target_arch = "x86_64")]
impl SplitBlocks for Avx2 {}

#[cfg(target_arch = "aarch64")]
impl SplitBlocks for Neon {}

#[cfg(target_arch = "x86_64")]
impl SplitBlocks for Avx512 {
    #[inline(always)]
    fn split_blocks<const SIZE: usize, const BITS: u32, const SEPARATE_SIGN: bool>(
        self,
        base: u16,
        elements: &[u8],
        to: &mut FieldStreamsMut<'_>,
    ) -> usize {
        self.split_groups::<SIZE, BITS, SEPARATE_SIGN>(base, elements, to)
    }
}

dispatch_wide! {
    /// Splits elements into fields.
    pub(crate) fn split(fields: Fields, elements: &[u8], to: FieldStreamsMut<'_>) = split_with
}

dispatch_wide! {
    /// Merges fields to elements. The symbols of outliers are unspecified until they are patched.
    pub(crate) fn merge(fields: Fields, from: &FieldStreams<'_>, elements: &mut [u8]) = merge_with
}

#[inline(always)]
fn merge_with(isa: impl Isa, fields: Fields, from: &FieldStreams<'_>, elements: &mut [u8]) {
    let count = elements.len() / fields.size;
    let whole = for_fields!(
        fields,
        SIZE,
        BITS,
        SEPARATE_SIGN,
        blocks::merge::<SIZE, BITS, SEPARATE_SIGN>(isa, fields.base, from, elements)
    );
    let mid_bits = fields.mid_bits();
    let mut mid = BitReader::starting_at(from.mid, whole * mid_bits as usize);
    for index in whole..count {
        let mut raw = mid.take(mid_bits).expect("`mid` has the bits of all elements");
        for plane in from.planes[..fields.planes()].iter().rev() {
            raw = raw << 8 | u64::from(plane[index]);
        }
        let symbol = u64::from(from.codes[index]) + u64::from(fields.base);
        let element = fields.merge(symbol, raw).to_le_bytes();
        elements[index * fields.size..][..fields.size].copy_from_slice(&element[..fields.size]);
    }
}

#[inline(always)]
fn split_with(isa: impl SplitBlocks, fields: Fields, elements: &[u8], mut to: FieldStreamsMut<'_>) {
    let count = elements.len() / fields.size;
    let whole = for_fields!(
        fields,
        SIZE,
        BITS,
        SEPARATE_SIGN,
        isa.split_blocks::<SIZE, BITS, SEPARATE_SIGN>(fields.base, elements, &mut to)
    );
    let mut mid = FieldWriter::new(to.mid, fields.mid_bits(), whole);
    for index in whole..count {
        let mut element = [0; 8];
        element[..fields.size].copy_from_slice(&elements[index * fields.size..][..fields.size]);
        let element = u64::from_le_bytes(element);
        let symbol = fields.symbol(element) as u16;
        let code = symbol.wrapping_sub(fields.base);
        to.codes[index] = code as u8;
        if code > 255 {
            to.codes[index] = 0;
            to.patches.push(Patch { index: index as u32, symbol });
        }
        let mut raw = fields.raw(element);
        for plane in &mut to.planes {
            plane[index].write(raw as u8);
            raw >>= 8;
        }
        mid.put(raw as u8);
    }
}

/// Writes packed fields one by one, into memory that is not initialised yet.
struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    bits: u32,
    at: usize,
}

impl<'a> FieldWriter<'a> {
    /// From field `index` on, which starts a byte.
    fn new(bytes: &'a mut [MaybeUninit<u8>], bits: u32, index: usize) -> Self {
        let rest = &mut bytes[index * bits as usize / 8..];
        rest.fill(MaybeUninit::new(0));
        // SAFETY: all of them were just written, and the type is the same but for that.
        let bytes = unsafe { &mut *(std::ptr::from_mut(rest) as *mut [u8]) };
        Self { bytes, bits, at: 0 }
    }

    fn put(&mut self, field: u8) {
        if self.bits == 0 {
            return;
        }
        let [low, high] = (u16::from(field) << (self.at % 8)).to_le_bytes();
        self.bytes[self.at / 8] |= low;
        if high != 0 {
            self.bytes[self.at / 8 + 1] |= high;
        }
        self.at += self.bits as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{bit_packing, sign_changes, streaming, xxh3};
    use crate::simd::{Portable, STRIPE};
    use proptest::prelude::*;

    /// The fields of one element, bit by bit as the format says: symbol and raw.
    fn naive(fields: Fields, element: u64) -> (u64, u64) {
        let total = fields.size * 8;
        let bits: Vec<u64> = (0..total).rev().map(|i| element >> i & 1).collect();
        let number = |bits: &[u64]| bits.iter().fold(0, |n, bit| n << 1 | bit);
        let width = fields.symbol_bits as usize;
        if fields.signed {
            let sign = if fields.separate_sign { &[] } else { &bits[..1] };
            let raw: Vec<u64> = [sign, &bits[1 + width..]].concat();
            (number(&bits[1..1 + width]), number(&raw))
        } else {
            (number(&bits[..width]), number(&bits[width..]))
        }
    }

    /// What may be written only.
    fn uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
        // SAFETY: one layout, and all users only write bytes.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }

    type Outcome = (Vec<u8>, Vec<u8>, Vec<Vec<u8>>, Vec<Patch>);

    /// Splits by the dispatched function, or at the level `by`.
    fn run(fields: Fields, elements: &[u8], by: Option<impl SplitBlocks>) -> Outcome {
        let count = elements.len() / fields.size;
        let mut codes = vec![0; count];
        let mut mid = vec![0xff; fields.mid_len(count)];
        let mut planes = vec![vec![0; count]; fields.planes()];
        let mut patches = Vec::new();
        let to = FieldStreamsMut {
            codes: &mut codes,
            mid: uninit(&mut mid),
            planes: planes.iter_mut().map(|plane| uninit(plane)).collect(),
            patches: &mut patches,
        };
        match by {
            Some(isa) => split_with(isa, fields, elements, to),
            None => split(fields, elements, to),
        }
        (codes, mid, planes, patches)
    }

    fn cuts() -> Vec<Fields> {
        let bits = |kind: Kind| (1..=16).filter_map(move |bits| Fields::new(kind, bits, 0));
        let based = |kind: Kind| (9..=16).filter_map(move |bits| Fields::new(kind, bits, 200));
        let cuts = Kind::all().flat_map(|kind| bits(kind).chain(based(kind)));
        let apart = |fields: Fields| (fields.signed).then(|| fields.with_separate_sign(true));
        cuts.flat_map(|fields| [Some(fields), apart(fields)]).flatten().collect()
    }

    proptest! {
        #[test]
        fn fields_are_those_of_the_format(bytes in prop::collection::vec(any::<u8>(), 0..1200), choice: usize) {
            let cuts = cuts();
            let fields = cuts[choice % cuts.len()];
            let elements = &bytes[..bytes.len() / fields.size * fields.size];
            let best = run(fields, elements, None::<Portable>);
            prop_assert_eq!(&run(fields, elements, Some(Portable)), &best);
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = crate::simd::Avx2::new() {
                prop_assert_eq!(&run(fields, elements, Some(avx2)), &best);
            }
            let (codes, mid, planes, patches) = best;
            let mut expected_patches = Vec::new();
            for (i, element) in elements.chunks_exact(fields.size).enumerate() {
                let mut word = [0; 8];
                word[..fields.size].copy_from_slice(element);
                let (symbol, raw) = naive(fields, u64::from_le_bytes(word));
                match symbol.checked_sub(u64::from(fields.base)) {
                    Some(code @ 0..256) => prop_assert_eq!(u64::from(codes[i]), code),
                    _ => {
                        prop_assert_eq!(codes[i], 0);
                        expected_patches.push(Patch { index: i as u32, symbol: symbol as u16 });
                    }
                }
                for (plane, bytes) in planes.iter().enumerate() {
                    prop_assert_eq!(bytes[i], (raw >> (8 * plane)) as u8);
                }
                for bit in 0..fields.mid_bits() as usize {
                    let at = i * fields.mid_bits() as usize + bit;
                    prop_assert_eq!(u64::from(mid[at / 8] >> (at % 8) & 1), raw >> (8 * planes.len() + bit) & 1);
                }
            }
            prop_assert_eq!(&patches, &expected_patches);
            let plane = |i: usize| planes.get(i).map_or(&[][..], Vec::as_slice);
            let from = FieldStreams { codes: &codes, mid: &mid, planes: std::array::from_fn(plane) };
            let mut joined = vec![vec![0; elements.len()]; 2];
            merge(fields, &from, &mut joined[0]);
            merge_with(Portable, fields, &from, &mut joined[1]);
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = crate::simd::Avx2::new() {
                let mut back = vec![0; elements.len()];
                merge_with(avx2, fields, &from, &mut back);
                joined.push(back);
            }
            let mut expected = elements.to_vec();
            if fields.separate_sign {
                expected.chunks_exact_mut(fields.size).for_each(|element| element[fields.size - 1] &= 0x7f);
            }
            for mut back in joined {
                for patch in &patches {
                    let at = patch.index as usize * fields.size;
                    fields.patch(&mut back[at..at + fields.size], patch.symbol);
                }
                prop_assert_eq!(&back, &expected);
            }
        }
    }

    /// Patches in order.
    struct Few<'a>(Fields, &'a [Patch]);

    impl OutlierPatcher for Few<'_> {
        fn next(&self) -> usize {
            self.1.first().map_or(usize::MAX, |patch| patch.index as usize)
        }

        fn patch(&mut self, first: usize, elements: &mut [u8]) {
            let (size, end) = (self.0.size, first + elements.len() / self.0.size);
            assert!((first..end).contains(&self.next()), "called for elements that need it");
            while let Some((patch, rest)) = self.1.split_first()
                && (patch.index as usize) < end
            {
                let at = (patch.index as usize - first) * size;
                self.0.patch(&mut elements[at..at + size], patch.symbol);
                self.1 = rest;
            }
        }
    }

    /// The elements that [`merge_hashed`] makes, and the sums, one after the other.
    fn merge_then_hash(
        fields: Fields,
        from: &MergeSource<'_>,
        patches: &[Patch],
        count: usize,
    ) -> (Vec<u8>, Sums) {
        let mut codes = vec![0; count];
        match from.palette {
            Some(palette) => {
                bit_packing::expand(4, palette, &from.fields.codes[..count.div_ceil(2)], &mut codes)
            }
            None => codes.copy_from_slice(&from.fields.codes[..count]),
        }
        let mut elements = vec![0; count * fields.size];
        merge(fields, &from.fields.part(fields, &codes, 0), &mut elements);
        if fields.separate_sign {
            sign_changes::put(fields.size, from.signs, &mut elements);
        }
        for patch in patches.iter().filter(|patch| (patch.index as usize) < count) {
            fields.patch(&mut elements[patch.index as usize * fields.size..][..fields.size], patch.symbol);
        }
        let mut sums = [1; 8];
        xxh3::sum_up(&mut sums, &elements);
        (elements, sums)
    }

    proptest! {
        #[test]
        fn joining_in_one_step_is_joining_and_hashing(
            bytes in prop::collection::vec(any::<u8>(), 64..1500), choice: usize, blocks in 0usize..6,
            nibbles: bool, words in 0usize..9, patched in prop::collection::btree_set(0u32..3072, 0..12)
        ) {
            #[repr(align(64))]
            struct Aligned([u8; 6 * xxh3::HASH_BLOCK + STRIPE]);
            let cuts = cuts();
            let fields = cuts[choice % cuts.len()];
            let count = blocks * xxh3::HASH_BLOCK / fields.size;
            // Any bytes are valid fields; there are more than are merged, so that vectors can
            // unpack the last.
            let mut take = bytes.iter().copied().cycle();
            let mut some = |len: usize| take.by_ref().take(len).collect::<Vec<u8>>();
            let (codes, mid, signs) = (some(count), some(fields.mid_len(count) + 40), some(count.div_ceil(8)));
            let planes: Vec<Vec<u8>> = (0..fields.planes()).map(|_| some(count)).collect();
            let palette = std::array::from_fn(|i| bytes[i]);
            let plane = |i: usize| planes.get(i).map_or(&[][..], Vec::as_slice);
            let from = MergeSource {
                fields: FieldStreams { codes: &codes, mid: &mid, planes: std::array::from_fn(plane) },
                palette: nibbles.then_some(&palette),
                signs: &signs,
            };
            let mut aligned = Aligned([0xa5; 6 * xxh3::HASH_BLOCK + STRIPE]);
            let out = &mut aligned.0[..blocks * xxh3::HASH_BLOCK];
            let mut sums = [1; 8];
            let line = std::array::from_fn(|i| bytes[i]);
            let mut pending = (words < 8).then_some(PartialLine { line, len: words * 8 });
            let symbol = |index: u32| (index * 40503) as u16 & ((1 << fields.symbol_bits) - 1) as u16;
            let patches: Vec<Patch> = patched.iter().map(|&index| Patch { index, symbol: symbol(index) }).collect();
            let mut few = Few(fields, &patches);
            let to = MergeSink { patches: &mut few, sums: &mut sums, out, pending: pending.as_mut() };
            let joined = merge_hashed(fields, &from, to);
            streaming::store_fence();
            prop_assert!(few.next() >= joined / fields.size);
            let (expected, expected_sums) = merge_then_hash(fields, &from, &patches, joined / fields.size);
            prop_assert_eq!(sums, expected_sums);
            prop_assert!(aligned.0[joined..].iter().all(|&byte| byte == 0xa5));
            let before = pending.as_ref().map_or(&[][..], |_| &line[STRIPE - words * 8..]);
            let mut written = aligned.0[..joined].to_vec();
            if let Some(pending) = &pending && joined > 0 {
                written.extend(&pending.line[STRIPE - pending.len..]);
                prop_assert_eq!(&written[..before.len()], before);
                written.drain(..before.len());
            }
            prop_assert_eq!(&written, &expected);
            #[cfg(target_arch = "x86_64")]
            if crate::simd::Avx512::new().is_some() && fields.signed && matches!(fields.symbol_bits, 8..=10) {
                prop_assert!(fields.size > 4 || joined == blocks * xxh3::HASH_BLOCK);
            }
        }
    }
}
