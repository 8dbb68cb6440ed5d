//! The `ZRT1` turbo frame, which stands alone or holds a sparse frame's values.

use crate::body::{Body, Layout};
use crate::bytes::Bytes;
use crate::stream::Methods;
use crate::{Result, check_version, corrupt};

pub(super) const MAGIC: &[u8; 4] = b"ZRT1";
/// The only version there is, despite the digit in the magic.
pub(super) const VERSION: u8 = 2;

/// A turbo frame's body; `None` if the frame is empty and has no streams.
pub(super) fn parse(frame: &[u8]) -> Result<Option<Body<'_>>> {
    let mut bytes = Bytes::new(frame);
    if bytes.take(MAGIC.len(), "turbo magic")? != MAGIC {
        return Err(corrupt("turbo frame has another magic"));
    }
    check_version(bytes.u8("turbo version")?, VERSION, "ZRT1")?;
    let width = bytes.u8("turbo width")?;
    let len = bytes.u64("turbo length")?;
    let transform = bytes.u8("turbo transform")?;
    let streams = bytes.u8("turbo stream count")?;
    let layout = match transform {
        0 => Layout::Opaque,
        1 => Layout::Planes { width: width.into() },
        _ => return Err(corrupt(format!("unknown turbo transform {transform}"))),
    };
    if streams == 0 && len == 0 {
        bytes.finish("an empty turbo frame")?;
        return Ok(None);
    }
    let body = Body::parse(&mut bytes, layout, streams, Methods::Plain, &[])?;
    if body.len() as u64 != len {
        return Err(corrupt(format!("turbo frame states {len} bytes but holds {}", body.len())));
    }
    Ok(Some(body))
}
