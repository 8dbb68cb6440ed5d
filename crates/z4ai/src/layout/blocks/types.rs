//! The table of block types: where the parameters and the quants of a block are.

/// A block format of quantized elements, as GGUF files have them: a fixed number of bytes that hold
/// scales, perhaps offsets, and small integers.
///
/// It tells the codec what bytes are; whatever is in them comes back as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // the names are those of the format
#[non_exhaustive]
#[rustfmt::skip]
pub enum BlockType {
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, IQ4_NL, IQ4_XS,
    TQ1_0, TQ2_0,
    MXFP4, NVFP4,
}

/// Parameters of a block: the bytes of one or two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameters {
    /// `count` bytes from `at` on, `step` apart: one stream.
    Bytes { at: usize, step: usize, count: usize },
    /// Eight scales and eight offsets of six bits in twelve bytes: a stream each.
    ScalesAndOffsets { at: usize },
    /// Sixteen scales of six bits in twelve bytes: one stream.
    Scales { at: usize },
}

/// How the quants of a block become symbols of one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quants {
    /// There are none: all bytes are parameters.
    None,
    /// `len` bytes from `at` on.
    Bytes { at: usize, len: usize },
    /// `sets` runs of `2 * half` bytes from `at` on: low nibbles, then high ones. Two neighbours
    /// per symbol.
    Nibbles { at: usize, sets: usize, half: usize },
    /// 32 quants of five bits: the highest bits from `high` on, nibbles as above from `low` on.
    Five { high: usize, low: usize },
    /// 256 quants of five bits: bit `j` of the bytes from `high` on belongs to group `j`.
    FiveOfGroups { high: usize, low: usize },
    /// 256 quants of six bits.
    Six { low: usize, high: usize },
    /// 256 quants of three bits, two neighbours per symbol.
    Three { high: usize, low: usize },
    /// 256 quants of two bits, four neighbours per symbol.
    Two { at: usize },
}

/// Which parameters say how large the quants of a group may be. Numbers are those of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Nothing: all groups are of one class.
    None,
    /// fp16, its low and high bytes in two streams from this one on.
    Half(usize),
    /// fp16, and an offset of fp16 in the two streams behind it.
    HalfAndOffset(usize),
    /// An exponent of two.
    Exponent(usize),
    /// fp8 e4m3 without a sign, one per group.
    Fp8(usize),
    /// fp16 scale and offset in four streams from `half` on, times integers per group, in the
    /// streams `scales` and the one behind it.
    Integers { half: usize, scales: usize },
    /// The same, with scales in the low and offsets in the high nibbles of one stream.
    Nibbles { half: usize, scales: usize },
    /// fp16, times signed integers per group: bytes of two's complement.
    Signed { half: usize, scales: usize },
    /// fp16, times integers per group from which 32 is subtracted.
    Biased { half: usize, scales: usize },
    /// fp16, times integers per group from which 32 is subtracted: two high bits of each in the
    /// streams `high` and the one behind it, nibbles in `low`.
    Cut { half: usize, high: usize, low: usize },
}

/// One row of the table.
pub(super) struct Row {
    pub(super) block_type: BlockType,
    /// The type's number in GGUF files, and in frames.
    pub(super) id: u8,
    pub(super) name: &'static str,
    /// Elements of a block.
    pub(super) elements: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    pub(super) parameters: &'static [Parameters],
    pub(super) quants: Quants,
    /// Groups of a block with a scale each.
    pub(super) groups: usize,
    pub(super) scale: Scale,
}

const fn byte(at: usize) -> Parameters {
    bytes(at, 1)
}

const fn bytes(at: usize, count: usize) -> Parameters {
    Parameters::Bytes { at, step: 1, count }
}

const fn strided(at: usize, step: usize, count: usize) -> Parameters {
    Parameters::Bytes { at, step, count }
}

macro_rules! table {
    ($($name:ident $id:literal $text:literal $elements:literal $bytes:literal $groups:literal
       [$($parameters:expr),* $(,)?] $quants:expr, $scale:expr;)*) => {
        pub(super) const TABLE: [Row; BlockType::ALL.len()] = [$(Row {
            block_type: BlockType::$name, id: $id, name: $text, elements: $elements, bytes: $bytes,
            parameters: &[$($parameters),*], quants: $quants, groups: $groups, scale: $scale,
        }),*];
        impl BlockType {
            /// Every type, in the order of the table.
            pub const ALL: [BlockType; [$($id),*].len()] = [$(BlockType::$name),*];
        }
    };
}

#[rustfmt::skip]
table! {
//  type     id  name     elements, bytes, groups; parameters; quants; scale
    Q4_0      2 "q4_0"     32  18  1 [byte(0), byte(1)] Quants::Nibbles { at: 2, sets: 1, half: 8 }, Scale::Half(0);
    Q4_1      3 "q4_1"     32  20  1 [byte(0), byte(1), byte(2), byte(3)] Quants::Nibbles { at: 4, sets: 1, half: 8 }, Scale::HalfAndOffset(0);
    Q5_0      6 "q5_0"     32  22  1 [byte(0), byte(1)] Quants::Five { high: 2, low: 6 }, Scale::Half(0);
    Q5_1      7 "q5_1"     32  24  1 [byte(0), byte(1), byte(2), byte(3)] Quants::Five { high: 4, low: 8 }, Scale::HalfAndOffset(0);
    Q8_0      8 "q8_0"     32  34  1 [byte(0), byte(1)] Quants::Bytes { at: 2, len: 32 }, Scale::Half(0);
    Q1_0     41 "q1_0"    128  18  1 [byte(0), byte(1)] Quants::Bytes { at: 2, len: 16 }, Scale::None;
    Q2_K     10 "q2_k"    256  84 16 [byte(80), byte(81), byte(82), byte(83), bytes(0, 16)] Quants::Two { at: 16 }, Scale::Nibbles { half: 0, scales: 4 };
    Q3_K     11 "q3_k"    256 110 16 [byte(108), byte(109), Parameters::Scales { at: 96 }] Quants::Three { high: 0, low: 32 }, Scale::Biased { half: 0, scales: 2 };
    Q4_K     12 "q4_k"    256 144  8 [byte(0), byte(1), byte(2), byte(3), Parameters::ScalesAndOffsets { at: 4 }] Quants::Nibbles { at: 16, sets: 4, half: 16 }, Scale::Integers { half: 0, scales: 4 };
    Q5_K     13 "q5_k"    256 176  8 [byte(0), byte(1), byte(2), byte(3), Parameters::ScalesAndOffsets { at: 4 }] Quants::FiveOfGroups { high: 16, low: 48 }, Scale::Integers { half: 0, scales: 4 };
    Q6_K     14 "q6_k"    256 210 16 [byte(208), byte(209), bytes(192, 16)] Quants::Six { low: 0, high: 128 }, Scale::Signed { half: 0, scales: 2 };
    Q8_K     15 "q8_k"    256 292  1 [byte(0), byte(1), byte(2), byte(3), strided(260, 2, 16), strided(261, 2, 16)] Quants::Bytes { at: 4, len: 256 }, Scale::None;
    IQ2_XXS  16 "iq2_xxs" 256  66  0 [byte(0), byte(1), strided(9, 8, 8), strided(2, 8, 8), strided(3, 8, 8), strided(4, 8, 8), strided(5, 8, 8), strided(6, 8, 8), strided(7, 8, 8), strided(8, 8, 8)] Quants::None, Scale::None;
    IQ2_XS   17 "iq2_xs"  256  74  0 [byte(0), byte(1), bytes(66, 8), strided(2, 2, 32), strided(3, 2, 32)] Quants::None, Scale::None;
    IQ2_S    22 "iq2_s"   256  82  0 [byte(0), byte(1), bytes(74, 8), bytes(2, 32), bytes(34, 32), bytes(66, 8)] Quants::None, Scale::None;
    IQ3_XXS  18 "iq3_xxs" 256  98  0 [byte(0), byte(1), strided(69, 4, 8), strided(66, 4, 8), strided(67, 4, 8), strided(68, 4, 8), bytes(2, 64)] Quants::None, Scale::None;
    IQ3_S    21 "iq3_s"   256 110  0 [byte(0), byte(1), bytes(106, 4), bytes(2, 64), bytes(66, 8), bytes(74, 32)] Quants::None, Scale::None;
    IQ1_S    19 "iq1_s"   256  50  0 [byte(0), byte(1), strided(34, 2, 8), strided(35, 2, 8), bytes(2, 32)] Quants::None, Scale::None;
    IQ1_M    29 "iq1_m"   256  56  0 [strided(48, 2, 4), strided(49, 2, 4), bytes(0, 32), bytes(32, 16)] Quants::None, Scale::None;
    IQ4_NL   20 "iq4_nl"   32  18  1 [byte(0), byte(1)] Quants::Nibbles { at: 2, sets: 1, half: 8 }, Scale::Half(0);
    IQ4_XS   23 "iq4_xs"  256 136  8 [byte(0), byte(1), byte(2), byte(3), bytes(4, 4)] Quants::Nibbles { at: 8, sets: 8, half: 8 }, Scale::Cut { half: 0, high: 2, low: 4 };
    TQ1_0    34 "tq1_0"   256  54  0 [byte(52), byte(53), bytes(0, 48), bytes(48, 4)] Quants::None, Scale::None;
    TQ2_0    35 "tq2_0"   256  66  1 [byte(64), byte(65)] Quants::Two { at: 0 }, Scale::None;
    MXFP4    39 "mxfp4"    32  17  1 [byte(0)] Quants::Nibbles { at: 1, sets: 1, half: 8 }, Scale::Exponent(0);
    NVFP4    40 "nvfp4"    64  36  4 [bytes(0, 4)] Quants::Nibbles { at: 4, sets: 4, half: 4 }, Scale::Fp8(0);
}

impl Parameters {
    /// Bytes per block of each of its streams.
    pub(super) fn streams(self) -> &'static [usize] {
        /// All numbers of bytes, for slices of one.
        const COUNTS: [usize; 65] = {
            let mut counts = [0; 65];
            let mut i = 0;
            while i < counts.len() {
                counts[i] = i;
                i += 1;
            }
            counts
        };
        match self {
            Parameters::Bytes { count, .. } => &COUNTS[count..=count],
            Parameters::ScalesAndOffsets { .. } => &[8, 8],
            Parameters::Scales { .. } => &[16],
        }
    }
}

impl Quants {
    /// Symbols per block.
    pub(super) fn symbols(self) -> usize {
        match self {
            Quants::None => 0,
            Quants::Bytes { len, .. } => len,
            Quants::Nibbles { sets, half, .. } => 2 * sets * half,
            Quants::Five { .. } => 32,
            Quants::FiveOfGroups { .. } | Quants::Six { .. } => 256,
            Quants::Three { .. } => 128,
            Quants::Two { .. } => 64,
        }
    }

    /// Whether a symbol is one quant.
    pub(super) fn is_one(self) -> bool {
        !matches!(self, Quants::Nibbles { .. } | Quants::Three { .. } | Quants::Two { .. })
    }

    /// Bits of a symbol.
    pub(super) fn bits(self) -> u32 {
        match self {
            Quants::Five { .. } | Quants::FiveOfGroups { .. } => 5,
            Quants::Six { .. } | Quants::Three { .. } => 6,
            _ => 8,
        }
    }
}

impl Row {
    /// Bytes per block of every stream of parameters.
    pub(super) fn parameter_streams(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().flat_map(|parameters| parameters.streams().iter().copied())
    }

    /// Whether groups have a scale, and whether they have an offset.
    pub(super) fn has_levels(&self) -> (bool, bool) {
        let offset =
            matches!(self.scale, Scale::HalfAndOffset(_) | Scale::Integers { .. } | Scale::Nibbles { .. });
        (self.scale != Scale::None, offset)
    }

    /// What the first quant of each symbol stands for, in any unit; `None` if quants are not numbers.
    pub(super) fn values(&self) -> Option<[i32; 256]> {
        /// Twice the magnitudes of fp4 (e2m1). (format)
        const FP4: [i32; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
        let fp4 = matches!(self.block_type, BlockType::MXFP4 | BlockType::NVFP4);
        let value = |symbol: usize| match self.quants {
            Quants::Bytes { .. } => i32::from(symbol as u8 as i8),
            Quants::Nibbles { .. } if fp4 && symbol & 8 != 0 => -FP4[symbol & 7],
            Quants::Nibbles { .. } if fp4 => FP4[symbol & 7],
            Quants::Nibbles { .. } => symbol as i32 & 15,
            Quants::Three { .. } => symbol as i32 & 7,
            Quants::Two { .. } => symbol as i32 & 3,
            Quants::None | Quants::Five { .. } | Quants::FiveOfGroups { .. } | Quants::Six { .. } => {
                symbol as i32
            }
        };
        let numbers = !matches!(self.block_type, BlockType::Q1_0);
        numbers.then(|| std::array::from_fn(value))
    }

    /// Symbols per group.
    pub(super) fn group_symbols(&self) -> usize {
        self.quants.symbols() / self.groups.max(1)
    }
}

impl BlockType {
    pub(super) fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The type of this number in GGUF files, if elements of it come in blocks.
    pub fn from_id(id: u32) -> Option<BlockType> {
        TABLE.iter().find(|row| u32::from(row.id) == id).map(|row| row.block_type)
    }

    /// The type of this name, such as `q4_k`.
    pub fn from_name(name: &str) -> Option<BlockType> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.block_type)
    }

    /// The number in GGUF files.
    pub fn id(self) -> u32 {
        u32::from(self.row().id)
    }

    /// The name in lower case.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().bytes
    }

    /// Elements of a block.
    pub fn block_elements(self) -> usize {
        self.row().elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.block_type as usize, i);
            assert_eq!(BlockType::from_id(u32::from(row.id)), Some(row.block_type));
            assert_eq!(BlockType::from_name(row.name), Some(row.block_type));
            assert!(row.groups == 0 || row.quants.symbols() % row.groups == 0);
            assert_eq!(row.groups == 0, row.quants == Quants::None);
        }
    }

    #[test]
    fn parameters_and_quants_cover_every_byte_once() {
        for row in &TABLE {
            let mut seen = vec![0; row.bytes];
            let mut mark = |places: &mut dyn Iterator<Item = usize>| places.for_each(|at| seen[at] += 1);
            for parameters in row.parameters {
                match *parameters {
                    Parameters::Bytes { at, step, count } => mark(&mut (0..count).map(|i| at + i * step)),
                    Parameters::ScalesAndOffsets { at } | Parameters::Scales { at } => {
                        mark(&mut (at..at + 12))
                    }
                }
            }
            match row.quants {
                Quants::None => {}
                Quants::Bytes { at, len } => mark(&mut (at..at + len)),
                Quants::Nibbles { at, sets, half } => mark(&mut (at..at + 2 * sets * half)),
                Quants::Five { high, low } => mark(&mut (high..high + 4).chain(low..low + 16)),
                Quants::FiveOfGroups { high, low } => mark(&mut (high..high + 32).chain(low..low + 128)),
                Quants::Six { low, high } => mark(&mut (low..low + 128).chain(high..high + 64)),
                Quants::Three { high, low } => mark(&mut (high..high + 32).chain(low..low + 64)),
                Quants::Two { at } => mark(&mut (at..at + 64)),
            }
            assert!(seen.iter().all(|&times| times == 1), "{}: {seen:?}", row.name);
        }
    }
}
