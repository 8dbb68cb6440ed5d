//! The one table of tensor types: number, name, and size of a block.

use crate::dtype::DType;

/// The type of a tensor's elements in a GGUF file.
///
/// Most of them are *block types*: a fixed number of consecutive elements of a
/// row is stored as one block of bytes that holds a scale and small integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // the names are those of the format
#[rustfmt::skip]
pub enum GgmlType {
    F32, F16, BF16, F64, I8, I16, I32, I64,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, IQ4_NL, IQ4_XS,
    TQ1_0, TQ2_0,
    MXFP4, NVFP4,
}

struct Row {
    ggml_type: GgmlType,
    id: u32,
    /// The layout of objects of a block type; its end is the type's name.
    layout: &'static str,
    elements: u64,
    bytes: u64,
}

macro_rules! table {
    ($($ggml_type:ident $id:literal $layout:literal $elements:literal $bytes:literal;)*) => {
        const TABLE: [Row; GgmlType::ALL.len()] = [$(Row {
            ggml_type: GgmlType::$ggml_type, id: $id, layout: $layout, elements: $elements, bytes: $bytes,
        }),*];
        impl GgmlType {
            /// Every type, in the order of the table.
            pub const ALL: [GgmlType; [$($id),*].len()] = [$(GgmlType::$ggml_type),*];
        }
    };
}

// Type 9 (`Q8_1`) is left out: it is for computing, not for files, and libraries
// disagree about its size. Like every number that is not here, it is passed
// through as opaque bytes.
#[rustfmt::skip]
table! {
//  type     id  layout       elements and bytes of a block
    F32       0 "gguf.f32"       1   4;
    F16       1 "gguf.f16"       1   2;
    BF16     30 "gguf.bf16"      1   2;
    F64      28 "gguf.f64"       1   8;
    I8       24 "gguf.i8"        1   1;
    I16      25 "gguf.i16"       1   2;
    I32      26 "gguf.i32"       1   4;
    I64      27 "gguf.i64"       1   8;
    Q4_0      2 "gguf.q4_0"     32  18;
    Q4_1      3 "gguf.q4_1"     32  20;
    Q5_0      6 "gguf.q5_0"     32  22;
    Q5_1      7 "gguf.q5_1"     32  24;
    Q8_0      8 "gguf.q8_0"     32  34;
    Q1_0     41 "gguf.q1_0"    128  18;
    Q2_K     10 "gguf.q2_k"    256  84;
    Q3_K     11 "gguf.q3_k"    256 110;
    Q4_K     12 "gguf.q4_k"    256 144;
    Q5_K     13 "gguf.q5_k"    256 176;
    Q6_K     14 "gguf.q6_k"    256 210;
    Q8_K     15 "gguf.q8_k"    256 292;
    IQ2_XXS  16 "gguf.iq2_xxs" 256  66;
    IQ2_XS   17 "gguf.iq2_xs"  256  74;
    IQ2_S    22 "gguf.iq2_s"   256  82;
    IQ3_XXS  18 "gguf.iq3_xxs" 256  98;
    IQ3_S    21 "gguf.iq3_s"   256 110;
    IQ1_S    19 "gguf.iq1_s"   256  50;
    IQ1_M    29 "gguf.iq1_m"   256  56;
    IQ4_NL   20 "gguf.iq4_nl"   32  18;
    IQ4_XS   23 "gguf.iq4_xs"  256 136;
    TQ1_0    34 "gguf.tq1_0"   256  54;
    TQ2_0    35 "gguf.tq2_0"   256  66;
    MXFP4    39 "gguf.mxfp4"    32  17;
    NVFP4    40 "gguf.nvfp4"    64  36;
}

/// The layout of a tensor whose type is not in the table.
pub(crate) const UNKNOWN_LAYOUT: &str = "gguf.unknown";

/// What layouts of GGUF block tensors start with.
const LAYOUT_PREFIX: &str = "gguf.";

/// Whether tensors of that layout hold blocks, of a known or an unknown type.
pub(crate) fn is_block_layout(layout: &str) -> bool {
    layout == UNKNOWN_LAYOUT || GgmlType::from_layout_name(layout).is_some()
}

impl GgmlType {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    fn find(test: impl Fn(&Row) -> bool) -> Option<GgmlType> {
        TABLE.iter().find(|row| test(row)).map(|row| row.ggml_type)
    }

    /// The number in the file.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// The name in lower case, such as `q4_k`.
    pub fn name(self) -> &'static str {
        &self.row().layout[LAYOUT_PREFIX.len()..]
    }

    /// How many elements one block holds; 1 for plain types.
    pub fn block_elements(self) -> u64 {
        self.row().elements
    }

    /// How many bytes one block takes.
    pub fn block_bytes(self) -> u64 {
        self.row().bytes
    }

    /// Whether elements come in blocks, and not one by one.
    pub fn is_block(self) -> bool {
        self.block_elements() > 1
    }

    /// The element type of a plain (not block) type.
    pub fn dtype(self) -> Option<DType> {
        DType::from_gguf_id(self.id())
    }

    /// The layout of objects of this block type, such as `gguf.q4_k`.
    pub fn layout_name(self) -> &'static str {
        self.row().layout
    }

    /// The type of that number.
    pub fn from_id(id: u32) -> Option<GgmlType> {
        Self::find(|row| row.id == id)
    }

    /// The type of that name, in lower or upper case.
    pub fn from_name(name: &str) -> Option<GgmlType> {
        Self::find(|row| row.ggml_type.name().eq_ignore_ascii_case(name))
    }

    /// The block type whose objects have that layout.
    pub fn from_layout_name(layout: &str) -> Option<GgmlType> {
        Self::find(|row| row.layout == layout && row.elements > 1)
    }

    /// Bytes that a tensor of that shape takes, outermost dimension first.
    /// `None` if a row is not a whole number of blocks, or on overflow.
    pub fn byte_len(self, shape: &[u64]) -> Option<u64> {
        let row = shape.last().copied().unwrap_or(1);
        if row % self.block_elements() != 0 {
            return None;
        }
        (crate::catalog::elements(shape)? / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_number_leads_back_to_its_type() {
        for (index, ggml_type) in GgmlType::ALL.into_iter().enumerate() {
            assert_eq!(ggml_type as usize, index);
            assert_eq!(GgmlType::from_id(ggml_type.id()), Some(ggml_type));
            assert_eq!(GgmlType::from_name(&ggml_type.name().to_uppercase()), Some(ggml_type));
            assert!(ggml_type.layout_name().starts_with(LAYOUT_PREFIX));
            let by_layout = GgmlType::from_layout_name(ggml_type.layout_name());
            assert_eq!(by_layout, ggml_type.is_block().then_some(ggml_type));
            assert_eq!(ggml_type.dtype().is_none(), ggml_type.is_block());
            if let Some(dtype) = ggml_type.dtype() {
                assert_eq!(dtype.byte_len(1), Some(ggml_type.block_bytes()));
            }
        }
    }

    #[test]
    fn sizes_need_whole_blocks_and_never_wrap() {
        assert_eq!(GgmlType::Q4_0.byte_len(&[3, 64]), Some(3 * 2 * 18));
        assert_eq!(GgmlType::Q4_0.byte_len(&[64, 3]), None);
        assert_eq!(GgmlType::Q4_0.byte_len(&[]), None);
        assert_eq!(GgmlType::Q4_0.byte_len(&[0, 32]), Some(0));
        assert_eq!(GgmlType::F32.byte_len(&[]), Some(4));
        assert_eq!(GgmlType::F32.byte_len(&[u64::MAX]), None);
        assert_eq!(GgmlType::Q8_K.byte_len(&[u64::MAX / 256 * 256]), None);
    }
}
