//! The one table of element types, with each type's name in every ecosystem.
//!
//! A `.zt` component has a *storage type* (one of thirteen) and, when its
//! elements mean something else than that, a *logical type*. [`DType`] covers
//! both: `DType::F8E4M3FN` is a logical type stored as `u8`. Sub-byte types are
//! packed, first element in the lowest bits.

use z4ai::Kind;

use crate::error::{Error, Result};

/// The type of one tensor element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it; `DType::ALL` is the documentation
#[rustfmt::skip]
pub enum DType {
    F64, F32, F16, BF16,
    I64, I32, I16, I8,
    U64, U32, U16, U8, Bool,
    F8E4M3FN, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F8E8M0,
    F6E2M3, F6E3M2, F4E2M1,
    I4, U4, I2, U2,
    C32, C64, C128,
}

/// One row of the table: what a type is called where. Empty means that the
/// ecosystem has no such type.
struct Row {
    dtype: DType,
    storage: DType,
    bits: u32,
    /// The `.zt` storage name, or the logical name where `storage != dtype`.
    zt: &'static str,
    /// The long name that the Python API shows.
    python: &'static str,
    /// NumPy's little-endian type string, or the `ml_dtypes` name.
    numpy: &'static str,
    torch: &'static str,
    safetensors: &'static str,
    /// `TensorProto.DataType`, 0 for none.
    onnx: i32,
    /// `ggml_type`, -1 for none.
    gguf: i32,
    /// The element type that the weight codec compresses it as. Complex numbers are two floats
    /// each, packed elements of fewer than eight bits are bytes.
    codec: Kind,
}

macro_rules! table {
    ($($dtype:ident $storage:ident $bits:literal $zt:literal $python:literal $numpy:literal $torch:literal $safetensors:literal $onnx:literal $gguf:literal $codec:ident;)*) => {
        const TABLE: [Row; DType::ALL.len()] = [$(Row {
            dtype: DType::$dtype, storage: DType::$storage, bits: $bits, zt: $zt, python: $python, numpy: $numpy,
            torch: $torch, safetensors: $safetensors, onnx: $onnx, gguf: $gguf, codec: Kind::$codec,
        }),*];
        impl DType {
            /// Every type, in the order of the table.
            pub const ALL: [DType; [$($bits),*].len()] = [$(DType::$dtype),*];
        }
    };
}

#[rustfmt::skip]
table! {
//  type       stored as bits  .zt             python             numpy/ml_dtypes     torch               safetensors  onnx gguf codec
    F64        F64        64 "f64"            "float64"          "<f8"               "float64"           "F64"         11 28 F64;
    F32        F32        32 "f32"            "float32"          "<f4"               "float32"           "F32"          1  0 F32;
    F16        F16        16 "f16"            "float16"          "<f2"               "float16"           "F16"         10  1 F16;
    BF16       BF16       16 "bf16"           "bfloat16"         "bfloat16"          "bfloat16"          "BF16"        16 30 Bf16;
    I64        I64        64 "i64"            "int64"            "<i8"               "int64"             "I64"          7 27 I64;
    I32        I32        32 "i32"            "int32"            "<i4"               "int32"             "I32"          6 26 I32;
    I16        I16        16 "i16"            "int16"            "<i2"               "int16"             "I16"          5 25 I16;
    I8         I8          8 "i8"             "int8"             "|i1"               "int8"              "I8"           3 24 I8;
    U64        U64        64 "u64"            "uint64"           "<u8"               "uint64"            "U64"         13 -1 U64;
    U32        U32        32 "u32"            "uint32"           "<u4"               "uint32"            "U32"         12 -1 U32;
    U16        U16        16 "u16"            "uint16"           "<u2"               "uint16"            "U16"          4 -1 U16;
    U8         U8          8 "u8"             "uint8"            "|u1"               "uint8"             "U8"           2 -1 U8;
    Bool       Bool        8 "bool"           "bool"             "|b1"               "bool"              "BOOL"         9 -1 Bool;
    F8E4M3FN   U8          8 "f8_e4m3fn"      "float8_e4m3fn"    "float8_e4m3fn"     "float8_e4m3fn"     "F8_E4M3"     17 -1 F8E4M3;
    F8E5M2     U8          8 "f8_e5m2"        "float8_e5m2"      "float8_e5m2"       "float8_e5m2"       "F8_E5M2"     19 -1 F8E5M2;
    F8E4M3FNUZ U8          8 "f8_e4m3fnuz"    "float8_e4m3fnuz"  "float8_e4m3fnuz"   "float8_e4m3fnuz"   "F8_E4M3FNUZ" 18 -1 F8E4M3;
    F8E5M2FNUZ U8          8 "f8_e5m2fnuz"    "float8_e5m2fnuz"  "float8_e5m2fnuz"   "float8_e5m2fnuz"   "F8_E5M2FNUZ" 20 -1 F8E5M2;
    F8E8M0     U8          8 "f8_e8m0fnu"     "float8_e8m0fnu"   "float8_e8m0fnu"    "float8_e8m0fnu"    "F8_E8M0"     24 -1 U8;
    F6E2M3     U8          6 "f6_e2m3fn"      "float6_e2m3fn"    ""                  ""                  "F6_E2M3"     27 -1 Raw;
    F6E3M2     U8          6 "f6_e3m2fn"      "float6_e3m2fn"    ""                  ""                  "F6_E3M2"     28 -1 Raw;
    F4E2M1     U8          4 "f4_e2m1fn"      "float4_e2m1fn"    ""                  "float4_e2m1fn_x2"  "F4"          23 -1 Raw;
    I4         U8          4 "i4"             "int4"             ""                  ""                  ""            22 -1 Raw;
    U4         U8          4 "u4"             "uint4"            ""                  ""                  ""            21 -1 Raw;
    I2         U8          2 "i2"             "int2"             ""                  ""                  ""            26 -1 Raw;
    U2         U8          2 "u2"             "uint2"            ""                  ""                  ""            25 -1 Raw;
    C32        F16        32 "complex32"      "complex32"        ""                  "complex32"         ""             0 -1 F16;
    C64        F32        64 "complex64"      "complex64"        "<c8"               "complex64"         "C64"         14 -1 F32;
    C128       F64       128 "complex128"     "complex128"       "<c16"              "complex128"        ""            15 -1 F64;
}

fn named(name: &'static str) -> Option<&'static str> {
    (!name.is_empty()).then_some(name)
}

impl DType {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    fn find(test: impl Fn(&Row) -> bool) -> Option<DType> {
        TABLE.iter().find(|row| test(row)).map(|row| row.dtype)
    }

    /// Size of one element in bits; sub-byte types have 2, 4 or 6.
    pub fn bits(self) -> u32 {
        self.row().bits
    }

    /// Size of one element in bytes, or `None` for a sub-byte type.
    pub fn size(self) -> Option<usize> {
        let bits = self.bits();
        bits.is_multiple_of(8).then_some(bits as usize / 8)
    }

    /// Bytes that `elements` take, packed; `None` on overflow.
    pub fn byte_len(self, elements: u64) -> Option<u64> {
        Some(elements.checked_mul(u64::from(self.bits()))?.div_ceil(8))
    }

    /// Refuses bytes that are not elements of this type: a `bool` is 0 or 1, and frameworks do not
    /// define what any other byte means. All bytes are elements of every other type.
    pub fn check_values(self, bytes: &[u8]) -> Result<()> {
        const CHECKED_BLOCK: usize = 4096;
        if self != DType::Bool {
            return Ok(());
        }
        let fits = |block: &[u8]| block.iter().fold(0, |seen, byte| seen | byte) <= 1;
        match bytes.chunks(CHECKED_BLOCK).position(|block| !fits(block)) {
            None => Ok(()),
            Some(block) => {
                let found = bytes[block * CHECKED_BLOCK..].iter().position(|byte| *byte > 1).unwrap_or(0);
                let at = block * CHECKED_BLOCK + found;
                let message = format!("byte {at} of a bool tensor is {}, neither 0 nor 1", bytes[at]);
                Err(Error::corrupt("bool.value", message))
            }
        }
    }

    /// The `.zt` storage type that carries this one (itself, mostly).
    pub fn storage(self) -> DType {
        self.row().storage
    }

    /// Whether this is one of the thirteen storage types.
    pub fn is_storage(self) -> bool {
        self.storage() == self
    }

    /// The alignment that a typed view of it needs, in bytes.
    pub fn alignment(self) -> usize {
        self.storage().bits() as usize / 8
    }

    /// The `.zt` name of the storage type.
    pub fn storage_name(self) -> &'static str {
        self.storage().row().zt
    }

    /// The `.zt` logical name, for types that are not storage types.
    pub fn logical_name(self) -> Option<&'static str> {
        (!self.is_storage()).then_some(self.row().zt)
    }

    /// The `.zt` name: logical if there is one, storage otherwise.
    pub fn name(self) -> &'static str {
        self.row().zt
    }

    /// The long name that the Python API shows, such as `float32`.
    pub fn python_name(self) -> &'static str {
        self.row().python
    }

    /// NumPy's type string, or the name of the type in `ml_dtypes`.
    pub fn numpy_name(self) -> Option<&'static str> {
        named(self.row().numpy)
    }

    /// The attribute of the `torch` module.
    pub fn torch_name(self) -> Option<&'static str> {
        named(self.row().torch)
    }

    /// The name in a safetensors header.
    pub fn safetensors_name(self) -> Option<&'static str> {
        named(self.row().safetensors)
    }

    /// The number in ONNX's `TensorProto.DataType`.
    pub fn onnx_id(self) -> Option<i32> {
        (self.row().onnx != 0).then_some(self.row().onnx)
    }

    /// The number of the plain (not block) type in GGUF.
    pub fn gguf_id(self) -> Option<u32> {
        u32::try_from(self.row().gguf).ok()
    }

    /// The element type that the weight codec compresses it as.
    pub fn codec_kind(self) -> Kind {
        self.row().codec
    }

    /// A storage type by its `.zt` name.
    pub fn from_storage_name(name: &str) -> Option<DType> {
        Self::find(|row| row.dtype == row.storage && row.zt == name)
    }

    /// A logical type by its `.zt` name, if it is stored as `storage`.
    pub fn from_logical_name(name: &str, storage: DType) -> Option<DType> {
        Self::find(|row| row.zt == name && row.storage == storage)
    }

    /// Any type by its `.zt` name or its long Python name.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::find(|row| row.zt == name || row.python == name)
    }

    /// A type by its safetensors name.
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        Self::find(|row| !name.is_empty() && row.safetensors == name)
    }

    /// A type by its ONNX number.
    pub fn from_onnx_id(id: i32) -> Option<DType> {
        Self::find(|row| id != 0 && row.onnx == id)
    }

    /// A plain type by its GGUF number.
    pub fn from_gguf_id(id: u32) -> Option<DType> {
        Self::find(|row| i64::from(row.gguf) == i64::from(id))
    }

    /// A type by its name in the `torch` module.
    pub fn from_torch_name(name: &str) -> Option<DType> {
        Self::find(|row| !name.is_empty() && row.torch == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that is the element of some storage type, for typed views and reads.
///
/// `bool` has no implementation: a file may hold bytes other than 0 and 1, so
/// booleans are read as `u8`.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The storage type that a slice of `Self` is written as.
    const DTYPE: DType;

    /// Whether elements of `dtype` may be viewed as `Self`.
    fn matches(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl Element for $rust { const DTYPE: DType = DType::$dtype; }
    )*};
}

elements! {
    f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => BF16,
    i64 => I64, i32 => I32, i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16,
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;

    // Bytes are bytes: booleans and the fp8 families have no other Rust type.
    fn matches(dtype: DType) -> bool {
        dtype == DType::Bool || dtype.storage() == DType::U8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum() {
        for (index, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, index);
            assert_eq!(dtype.row().dtype, dtype);
        }
    }

    #[test]
    fn every_name_leads_back_to_its_type() {
        for dtype in DType::ALL {
            assert!(dtype.storage().is_storage());
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::from_name(dtype.python_name()), Some(dtype));
            match dtype.logical_name() {
                Some(name) => {
                    assert_eq!(DType::from_logical_name(name, dtype.storage()), Some(dtype));
                }
                None => assert_eq!(DType::from_storage_name(dtype.name()), Some(dtype)),
            }
            if let Some(name) = dtype.safetensors_name() {
                assert_eq!(DType::from_safetensors_name(name), Some(dtype));
            }
            if let Some(name) = dtype.torch_name() {
                assert_eq!(DType::from_torch_name(name), Some(dtype));
            }
            if let Some(id) = dtype.onnx_id() {
                assert_eq!(DType::from_onnx_id(id), Some(dtype));
            }
            if let Some(id) = dtype.gguf_id() {
                assert_eq!(DType::from_gguf_id(id), Some(dtype));
            }
        }
        assert_eq!(DType::from_safetensors_name(""), None);
        assert_eq!(DType::from_torch_name(""), None);
        assert_eq!(DType::from_onnx_id(0), None);
    }

    #[test]
    fn every_type_is_in_the_specification() {
        let page = include_str!("../../../docs/spec/zt.md");
        for dtype in DType::ALL {
            assert!(page.contains(dtype.name()), "docs/spec/zt.md does not mention {dtype}");
        }
    }

    #[test]
    fn elements_are_whole_elements_of_the_codec() {
        for dtype in DType::ALL {
            let bits = dtype.codec_kind().size() as u32 * 8;
            assert!(bits == dtype.bits() || 2 * bits == dtype.bits() || dtype.bits() < 8, "{dtype}");
        }
    }

    #[test]
    fn packed_lengths_round_up_and_never_wrap() {
        assert_eq!(DType::F4E2M1.byte_len(3), Some(2));
        assert_eq!(DType::F6E2M3.byte_len(4), Some(3));
        assert_eq!(DType::F32.byte_len(0), Some(0));
        assert_eq!(DType::F32.byte_len(u64::MAX), None);
    }
}
