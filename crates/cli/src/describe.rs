//! Tensors and metadata in a few words.

#[cfg(not(target_family = "wasm"))]
use ztensor::{Digest, Format};
use ztensor::{Object, Value};

use crate::untrusted::Untrusted;
use crate::{human, json};

/// What the elements of an object are called: the layout says more than the
/// storage type where blocks are packed.
pub fn dtype(object: &Object) -> Untrusted<'_> {
    match object.layout.name().split_once('.') {
        Some((_, block)) => block.into(),
        None => object.dtype().map_or("none", |dtype| dtype.name()).into(),
    }
}

/// How an object's bytes are stored.
pub fn encoding(object: &Object) -> Untrusted<'_> {
    object.components.first().map_or("", |(_, component)| component.encoding()).into()
}

/// A format as people call it.
#[cfg(not(target_family = "wasm"))]
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::Pickle => "pytorch",
        Format::Zstn => "zstn (compressed by z4ai)",
        Format::Zt2 => "zt version 2",
        other => other.name(),
    }
}

/// Which checksums tensors carry: `no checksums`, `crc32c checksums`, or on how many.
#[cfg(not(target_family = "wasm"))]
pub fn checksums(objects: &[(&str, &Object)]) -> String {
    let mut kinds: Vec<&str> = Vec::new();
    let mut covered = 0;
    for (_, object) in objects {
        let mark = |component: &ztensor::Component| match (&component.digest, component.encoding()) {
            (Some(digest), _) => Some(digest_name(digest)),
            // These encodings carry their own.
            (None, "z4ai") => Some("z4ai"),
            (None, "deflate") => Some("crc32"),
            (None, _) => None,
        };
        let known: Vec<&str> =
            object.components.iter().filter_map(|(_, component)| mark(component)).collect();
        covered += usize::from(!object.components.is_empty() && known.len() == object.components.len());
        for kind in known {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    match covered {
        0 => "no checksums".to_owned(),
        all if all == objects.len() => format!("{} checksums", kinds.join(" and ")),
        some => format!("{} checksums on {some} of {} tensors", kinds.join(" and "), objects.len()),
    }
}

#[cfg(not(target_family = "wasm"))]
fn digest_name(digest: &Digest) -> &'static str {
    match digest {
        Digest::Crc32c(_) => "crc32c",
        Digest::Crc32(_) => "crc32",
        Digest::Sha256(_) => "sha256",
        Digest::Blake3(_) => "blake3",
        Digest::Xxh3(_) => "xxh3",
        _ => "unknown",
    }
}

/// A value on one short line; control characters are escaped.
pub fn preview(value: &Value) -> String {
    const SHOWN: usize = 100;
    let text = match value {
        Value::Text(text) => text.clone(),
        Value::Array(items) if items.len() > 8 => format!("[{} values]", human::count(items.len() as u64)),
        Value::Bytes(bytes) => format!("{} of data", human::bytes(bytes.len() as u64)),
        other => json::value(other).to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", human::escaped(&text[..cut])),
        None => human::escaped(&text).into_owned(),
    }
}
