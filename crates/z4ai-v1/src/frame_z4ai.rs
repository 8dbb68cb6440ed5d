//! The `Z4AI` frame, version 1.

use crate::array::ArrayField;
use crate::bits::{FloatSpec, Mantissa};
use crate::body::{Body, Layout};
use crate::bytes::Bytes;
use crate::stream::Methods;
use crate::{IS_ARRAY, Result, check_version, corrupt};

pub(super) const MAGIC: &[u8; 4] = b"Z4AI";
pub(super) const VERSION: u8 = 1;

/// Header fields in the order they are written, then the planes.
pub(super) fn parse(frame: &[u8]) -> Result<(Body<'_>, Option<ArrayField<'_>>)> {
    let mut bytes = Bytes::new(frame);
    bytes.take(MAGIC.len(), "magic")?;
    check_version(bytes.u8("version")?, VERSION, "Z4AI")?;
    let flags = bytes.u8("flags")?;
    let transform = bytes.u8("transform")?;
    let width = bytes.u8("width")?;
    let planes = bytes.u8("plane count")?;
    let dtype_len = bytes.u8("array dtype length")?;
    let dtype = bytes.take(dtype_len.into(), "array dtype")?;
    let spec_len = bytes.u8("float type length")?;
    let spec = bytes.take(spec_len.into(), "float type")?;
    let dims = bytes.u8("dimensions")?;
    let array = ArrayField::new(&mut bytes, dtype, dims)?;
    let tail_len = bytes.u32("tail length")?;
    let tail = bytes.take(tail_len as usize, "tail")?;
    let layout = match transform {
        0 => Layout::Opaque,
        1 => Layout::Planes { width: width.into() },
        // The only float type this transform was ever written for.
        2 if spec == b"bfloat16" => {
            Layout::Fields { spec: FloatSpec::named(spec)?, mantissa: Mantissa::Planes, count: None }
        }
        _ => {
            return Err(corrupt(format!("unknown transform {transform} of \"{}\"", spec.escape_ascii())));
        }
    };
    let body = Body::parse(&mut bytes, layout, planes, Methods::Planes, tail)?;
    Ok((body, (flags & IS_ARRAY != 0).then_some(array)))
}
