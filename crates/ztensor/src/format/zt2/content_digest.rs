//! The content digest of version 2: identity of a model, whatever the placement, order, sharing,
//! encoding and sharding of its parts.

use sha2::Digest as _;

use super::cbor;
use super::layout::from_catalog;
use super::types::Element;
use crate::catalog::Object;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::read::Reader;

/// The first element of what is hashed.
const LABEL: &str = "zt.content/1";

/// The content digest of a `.zt` file of version 2 by SHA-256 and by XXH3, from the digests in its
/// manifest. It is not defined where a part has none, or where the file is of another format.
pub fn content_digest(reader: &Reader) -> Result<[Digest; 2]> {
    if reader.format() != Format::Zt2 {
        let message = format!("only .zt files of version 2 have this digest, not {}", reader.format());
        return Err(Error::unsupported(message));
    }
    let bytes = content(reader.objects().collect())?;
    let mut sha = Hasher::Sha256(sha2::Sha256::new());
    let mut xxh3 = super::hasher();
    sha.update(&bytes);
    xxh3.update(&bytes);
    Ok([sha.finish(), xxh3.finish()])
}

/// What is hashed: names, shapes, layouts, attributes, types, and the digests of all parts.
fn content(mut objects: Vec<(&str, &Object)>) -> Result<Vec<u8>> {
    objects.sort_unstable_by(|a, b| cbor::key_order(a.0, b.0));
    let mut out = Vec::new();
    cbor::array(&mut out, 2);
    cbor::text(&mut out, LABEL);
    cbor::map(&mut out, objects.len());
    for (name, object) in objects {
        cbor::text(&mut out, name);
        one(&mut out, object).map_err(|error| error.in_tensor(name))?;
    }
    Ok(out)
}

fn one(out: &mut Vec<u8>, object: &Object) -> Result<()> {
    let roles = object.components.iter().map(|(role, _)| &**role);
    let written = from_catalog(&object.layout, object.attributes.as_deref(), roles);
    // Keys ascend: "parts", "shape", "layout", "attributes".
    cbor::map(out, 3 + usize::from(written.attributes.is_some()));
    cbor::text(out, "parts");
    let mut parts: Vec<_> =
        object.components.iter().map(|(role, component)| (written.role(role), component)).collect();
    parts.sort_unstable_by(|a, b| cbor::key_order(a.0, b.0));
    cbor::map(out, parts.len());
    for (role, component) in parts {
        let digest = component.digest.as_ref().ok_or_else(|| {
            Error::unsupported(format!(
                "the part {role:?} has no digest, so the content digest is not defined"
            ))
        })?;
        let element = Element::of(component.dtype, component.unknown_type.as_deref());
        cbor::text(out, role);
        cbor::map(out, 2 + usize::from(element.type_name().is_some()));
        if let Some(name) = element.type_name() {
            cbor::text(out, "type");
            cbor::text(out, name);
        }
        cbor::text(out, "dtype");
        cbor::text(out, element.storage_name());
        cbor::text(out, "digest");
        cbor::text(out, &digest.to_string());
    }
    cbor::text(out, "shape");
    cbor::array(out, object.shape.len());
    object.shape.iter().for_each(|&size| cbor::uint(out, size));
    cbor::text(out, "layout");
    cbor::text(out, &written.layout);
    if let Some(attributes) = &written.attributes {
        cbor::text(out, "attributes");
        cbor::attributes(out, attributes, 3)?;
    }
    Ok(())
}
