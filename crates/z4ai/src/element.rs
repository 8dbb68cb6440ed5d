//! Element types: the codec's table of sizes, exponents and names.

/// The type of the elements in a buffer.
///
/// It only steers how bytes are split into fields: any bytes of any length round-trip under any
/// kind, but the right kind compresses best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Kind {
    /// Bytes of unknown meaning.
    #[default]
    Raw,
    /// One byte per truth value.
    Bool,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit signed integer.
    I16,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer.
    I64,
    /// 64-bit unsigned integer.
    U64,
    /// 8-bit float: 4 exponent and 3 mantissa bits.
    F8E4M3,
    /// 8-bit float: 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// IEEE half precision: 5 exponent and 10 mantissa bits.
    F16,
    /// bfloat16: 8 exponent and 7 mantissa bits.
    Bf16,
    /// IEEE single precision: 8 exponent and 23 mantissa bits.
    F32,
    /// IEEE double precision: 11 exponent and 52 mantissa bits.
    F64,
}

/// One row of the table: kind, code in a frame, name, bytes per element, exponent bits.
type Row = (Kind, u8, &'static str, usize, u32);

const TABLE: [Row; 16] = [
    (Kind::Raw, 0, "raw", 1, 0),
    (Kind::Bool, 1, "bool", 1, 0),
    (Kind::I8, 2, "int8", 1, 0),
    (Kind::U8, 3, "uint8", 1, 0),
    (Kind::I16, 4, "int16", 2, 0),
    (Kind::U16, 5, "uint16", 2, 0),
    (Kind::I32, 6, "int32", 4, 0),
    (Kind::U32, 7, "uint32", 4, 0),
    (Kind::I64, 8, "int64", 8, 0),
    (Kind::U64, 9, "uint64", 8, 0),
    (Kind::F8E4M3, 10, "fp8_e4m3", 1, 4),
    (Kind::F8E5M2, 11, "fp8_e5m2", 1, 5),
    (Kind::F16, 12, "fp16", 2, 5),
    (Kind::Bf16, 13, "bf16", 2, 8),
    (Kind::F32, 14, "fp32", 4, 8),
    (Kind::F64, 15, "fp64", 8, 11),
];

impl Kind {
    /// Every kind, in the order of their codes.
    pub fn all() -> impl Iterator<Item = Kind> {
        TABLE.iter().map(|row| row.0)
    }

    /// The kind of this canonical name (`"bf16"`, `"int32"`, `"raw"`, …).
    pub fn from_name(name: &str) -> Option<Kind> {
        TABLE.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// The canonical name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        self.row().3
    }

    /// Bits per element.
    pub fn bits(self) -> u32 {
        self.size() as u32 * 8
    }

    /// Exponent bits of a float, 0 for everything else.
    pub fn exponent_bits(self) -> u32 {
        self.row().4
    }

    /// Whether elements have sign, exponent and mantissa.
    pub fn is_float(self) -> bool {
        self.exponent_bits() > 0
    }

    pub(crate) fn code(self) -> u8 {
        self.row().1
    }

    pub(crate) fn from_code(code: u8) -> Option<Kind> {
        TABLE.get(usize::from(code)).map(|row| row.0)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_where_codes_and_discriminants_say() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
            assert_eq!(usize::from(row.1), i);
            assert_eq!(Kind::from_code(row.1), Some(row.0));
            assert_eq!(Kind::from_name(row.2), Some(row.0));
        }
        assert_eq!(Kind::from_code(16), None);
    }
}
