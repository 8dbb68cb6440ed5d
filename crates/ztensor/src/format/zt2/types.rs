//! Storage and logical types of version 2, and how many bytes their elements take.

use crate::dtype::DType;
use crate::error::{Error, Result, quoted};

/// The twelve storage types. There is no stored `bool`.
pub(super) fn storage(name: &str) -> Option<DType> {
    Some(match name {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        "u8" => DType::U8,
        "f64" => DType::F64,
        "i64" => DType::I64,
        "u64" => DType::U64,
        "i32" => DType::I32,
        "u32" => DType::U32,
        "i16" => DType::I16,
        "u16" => DType::U16,
        "i8" => DType::I8,
        _ => return None,
    })
}

/// The registered logical types.
const REGISTERED: [(&str, DType); 9] = [
    ("bool", DType::Bool),
    ("f8_e4m3fn", DType::F8E4M3FN),
    ("f8_e5m2", DType::F8E5M2),
    ("f8_e4m3fnuz", DType::F8E4M3FNUZ),
    ("f8_e5m2fnuz", DType::F8E5M2FNUZ),
    ("f8_e8m0", DType::F8E8M0),
    ("f4_e2m1", DType::F4E2M1),
    ("complex64", DType::C64),
    ("complex128", DType::C128),
];

/// Types that only this library has a name for, in its own name space.
const OWN: [(&str, DType); 7] = [
    ("ztensor.f6_e2m3fn", DType::F6E2M3),
    ("ztensor.f6_e3m2fn", DType::F6E3M2),
    ("ztensor.i4", DType::I4),
    ("ztensor.u4", DType::U4),
    ("ztensor.i2", DType::I2),
    ("ztensor.u2", DType::U2),
    ("ztensor.complex32", DType::C32),
];

/// The elements of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// Elements of the storage type itself.
    Plain(DType),
    /// Elements of a known logical type.
    Logical(DType),
    /// Elements of a logical type that is not known, and how they are stored.
    Unknown(DType, &'a str),
}

impl<'a> Element<'a> {
    /// What a part's `dtype` and `type` say. A registered type over another storage type is refused.
    pub(super) fn new(dtype: DType, logical: Option<&'a str>) -> Result<Element<'a>> {
        let Some(name) = logical else { return Ok(Element::Plain(dtype)) };
        if let Some((_, known)) = REGISTERED.iter().find(|(known, _)| *known == name) {
            return match stored_as(*known) == dtype {
                true => Ok(Element::Logical(*known)),
                false => Err(Error::corrupt(
                    "zt2.Schema",
                    format!("{name} is stored as {}, not as {dtype}", stored_as(*known)),
                )),
            };
        }
        let own = OWN.iter().find(|(known, element)| *known == name && stored_as(*element) == dtype);
        Ok(own.map_or(Element::Unknown(dtype, name), |(_, element)| Element::Logical(*element)))
    }

    /// What a component of the catalog is.
    pub(super) fn of(dtype: DType, unknown: Option<&'a str>) -> Element<'a> {
        match unknown {
            Some(name) => Element::Unknown(stored_as(dtype), name),
            None if dtype.is_storage() && dtype != DType::Bool => Element::Plain(dtype),
            None => Element::Logical(dtype),
        }
    }

    /// The type of the catalog.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Element::Plain(dtype) | Element::Logical(dtype) | Element::Unknown(dtype, _) => *dtype,
        }
    }

    /// The storage type's name.
    pub(super) fn storage_name(&self) -> &'static str {
        stored_as(self.dtype()).name()
    }

    /// The logical type's name.
    pub(super) fn type_name(&self) -> Option<&'a str> {
        match self {
            Element::Plain(_) => None,
            Element::Unknown(_, name) => Some(name),
            Element::Logical(dtype) => {
                REGISTERED.iter().chain(&OWN).find(|(_, known)| known == dtype).map(|(name, _)| *name)
            }
        }
    }

    /// Bytes of `count` elements. `None` for a type whose size is not known, `Some(None)` on overflow.
    pub(super) fn size(&self, count: u64) -> Option<Option<u64>> {
        match self {
            Element::Unknown(..) => None,
            Element::Plain(dtype) | Element::Logical(dtype) => Some(dtype.byte_len(count)),
        }
    }

    /// The width of an index: `u32` or `u64` without a logical type.
    pub(super) fn index_width(&self) -> Option<u64> {
        match self {
            Element::Plain(DType::U32) => Some(4),
            Element::Plain(DType::U64) => Some(8),
            _ => None,
        }
    }

    /// The name that messages show.
    pub(super) fn shown(&self) -> String {
        match self {
            Element::Unknown(_, name) => quoted(name),
            known => known.dtype().to_string(),
        }
    }
}

/// The storage type of a type of the catalog.
fn stored_as(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U8,
        other => other.storage(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_a_name_that_leads_back() {
        for dtype in DType::ALL {
            let element = Element::of(dtype, None);
            let stored = storage(element.storage_name()).unwrap();
            let again = Element::new(stored, element.type_name()).unwrap();
            assert_eq!(again.dtype(), dtype);
            assert_eq!(again, element);
        }
        assert_eq!(storage("bool"), None);
        assert_eq!(Element::new(DType::F32, Some("bool")).unwrap_err().rule(), Some("zt2.Schema"));
        assert_eq!(Element::new(DType::F32, Some("x.y")).unwrap(), Element::Unknown(DType::F32, "x.y"));
        assert_eq!(Element::Logical(DType::F4E2M1).size(5), Some(Some(3)));
        assert_eq!(Element::Plain(DType::F64).size(1 << 62), Some(None));
    }
}
