//! Where the objects of one version are: what `open` needs beside the manifest.
//!
//! It says nothing that the packs' own indexes do not say; it saves reading all of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::manifest::{check_format, decompress, parse_dtype, parse_shape, push_shape};
use super::names::{LOCATIONS, RecordId, is_pack_name};
use super::object::{ObjectType, Sketch};
use super::pack::{Blob, Coding, Form, PackSizes, Stored};
use super::store::Store;
use crate::error::{Error, Result, quoted};
use crate::format::json::{Scanner, push_string};
use crate::id::ContentId;

/// The version of the format. (format)
const FORMAT: u64 = 1;
/// The longest stored file. (limit)
pub(crate) const MAX_STORED: u64 = 256 << 20;
const ZSTD_LEVEL: i32 = 3;

/// Objects by their ids.
pub(crate) type Objects = HashMap<ContentId, Arc<Stored>>;

fn broken(message: impl Into<String>) -> Error {
    Error::corrupt("repository.locations", message)
}

pub(crate) fn file(manifest: &RecordId) -> String {
    format!("{LOCATIONS}/{manifest}")
}

/// Where the objects of a manifest are, and the sizes of packs as far as they are known; `None` without
/// a list.
pub(crate) fn read(store: &Store, manifest: &RecordId) -> Result<Option<(Objects, PackSizes)>> {
    let name = file(manifest);
    let Some(stored) = store.read(&name, MAX_STORED)? else { return Ok(None) };
    let objects = decompress(&stored).and_then(|plain| parse(&plain));
    objects.map(Some).map_err(|error| error.in_file(store.path(&name)))
}

/// Writes where the objects of a manifest are, in the place of what was known before.
pub(crate) fn write(store: &Store, manifest: &RecordId, objects: &Objects, sizes: &PackSizes) -> Result<()> {
    store.replace(&file(manifest), &stored(objects, sizes)?)
}

/// The file that says where objects are.
pub(crate) fn stored(objects: &Objects, sizes: &PackSizes) -> Result<Vec<u8>> {
    compress(&encode(objects, sizes))
}

/// A list as it is stored.
pub(crate) fn compress(plain: &str) -> Result<Vec<u8>> {
    zstd::bulk::compress(plain.as_bytes(), ZSTD_LEVEL).map_err(|error| Error::io("zstd failed", error))
}

fn encode(objects: &Objects, sizes: &PackSizes) -> String {
    let mut sorted: Vec<(ContentId, &Stored)> = objects.iter().map(|(id, stored)| (*id, &**stored)).collect();
    sorted.sort_by_key(|(id, _)| *id);
    let packs = sorted.iter().map(|(_, stored)| stored.pack.clone()).collect();
    encode_entries(&sorted, packs, sizes, false)
}

/// A list of objects in packs, in the order in which they are given.
pub(crate) fn encode_entries(
    entries: &[(ContentId, &Stored)],
    mut packs: Vec<Arc<str>>,
    sizes: &PackSizes,
    sketches: bool,
) -> String {
    packs.sort_unstable();
    packs.dedup();
    let mut json = format!("{{\"format\":{FORMAT},\"packs\":[");
    for (at, pack) in packs.iter().enumerate() {
        json.push_str(if at > 0 { "," } else { "" });
        push_string(&mut json, pack);
    }
    json.push_str("],\"sizes\":[");
    for (at, pack) in packs.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(json, "{comma}{}", sizes.get(pack).copied().unwrap_or(0));
    }
    json.push_str("],\"objects\":[");
    for (at, (id, stored)) in entries.iter().enumerate() {
        json.push_str(if at > 0 { ",\n" } else { "\n" });
        let pack = packs.binary_search(&stored.pack).unwrap_or(0);
        let _ = write!(
            json,
            "{{\"id\":\"{id}\",\"pack\":{pack},\"dtype\":\"{}\",\"shape\":[",
            stored.of.dtype.name()
        );
        push_shape(&mut json, &stored.of.shape);
        json.push(']');
        match &stored.form {
            Form::Whole(blob) => push_blob(&mut json, "whole", blob),
            Form::Delta { base, common, change, rest } => {
                let _ = write!(json, ",\"base\":\"{base}\",\"common\":{common}");
                push_blob(&mut json, "delta", change);
                rest.iter().for_each(|rest| push_blob(&mut json, "rest", rest));
            }
            Form::Cast { base } => {
                let _ = write!(json, ",\"base\":\"{base}\"");
            }
        }
        if let Some(sketch) = stored.sketch.as_ref().filter(|_| sketches) {
            let _ = write!(json, ",\"sketch\":\"{}\"", sketch.to_hex());
        }
        json.push('}');
    }
    json.push_str("]}\n");
    json
}

fn push_blob(json: &mut String, key: &str, blob: &Blob) {
    let _ = write!(json, ",\"{key}\":[\"{}\",{},{}", blob.coding.name(), blob.offset, blob.len);
    if let Some(crc) = blob.crc {
        let _ = write!(json, ",{crc}");
    }
    json.push(']');
}

/// Parses decoded bytes.
pub(crate) fn parse(plain: &[u8]) -> Result<(Objects, PackSizes)> {
    let Entries { packs, sizes, entries } = parse_entries(plain)?;
    let mut objects = Objects::new();
    for (id, stored) in entries {
        if objects.insert(id, Arc::new(stored)).is_some() {
            return Err(broken("an object comes twice"));
        }
    }
    // Zero where a size is not known; older lists have none.
    let sizes = packs.into_iter().zip(sizes).filter(|(_, size)| *size > 0).collect();
    Ok((objects, sizes))
}

/// What a list of objects in packs has.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) packs: Vec<Arc<str>>,
    sizes: Vec<u64>,
    pub(crate) entries: Vec<(ContentId, Stored)>,
}

/// Parses a list of objects, of which one may be in several packs.
pub(crate) fn parse_entries(plain: &[u8]) -> Result<Entries> {
    let text = std::str::from_utf8(plain).map_err(|_| broken("it is not UTF-8"))?;
    let mut packs: Vec<Arc<str>> = Vec::new();
    let mut entries = Vec::new();
    let mut sizes: Vec<u64> = Vec::new();
    let mut format = false;
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| match &*key {
        "format" => {
            format = true;
            check_format(scanner, FORMAT)
        }
        "packs" => scanner.array(|scanner| {
            let name = scanner.string()?;
            if !is_pack_name(&name) {
                return Err(broken(format!("{} is not the name of a pack", quoted(&name))));
            }
            packs.push(name.into());
            Ok(())
        }),
        "sizes" => scanner.array(|scanner| {
            sizes.push(scanner.u64()?);
            Ok(())
        }),
        "objects" => scanner.array(|scanner| {
            entries.push(parse_object(scanner, &packs)?);
            Ok(())
        }),
        _ => scanner.skip(),
    })?;
    scanner.end()?;
    if !format {
        return Err(broken("it names no format"));
    }
    Ok(Entries { packs, sizes, entries })
}

fn parse_object(scanner: &mut Scanner<'_>, packs: &[Arc<str>]) -> Result<(ContentId, Stored)> {
    let (mut id, mut pack, mut dtype, mut shape, mut base, mut common) = (None, None, None, None, None, None);
    let (mut whole, mut delta, mut rest, mut sketch) = (None, None, None, None);
    scanner.object(|scanner, key| {
        match &*key {
            "id" => id = Some(scanner.string()?.parse::<ContentId>()?),
            "pack" => {
                let index = usize::try_from(scanner.u64()?).ok();
                pack = index.and_then(|index| packs.get(index)).cloned();
            }
            "dtype" => dtype = Some(parse_dtype(scanner)?),
            "shape" => shape = Some(parse_shape(scanner)?),
            "base" => base = Some(scanner.string()?.parse::<ContentId>()?),
            "common" => common = Some(scanner.u64()?),
            "whole" => whole = Some(parse_blob(scanner)?),
            "delta" => delta = Some(parse_blob(scanner)?),
            "rest" => rest = Some(parse_blob(scanner)?),
            "sketch" => sketch = Sketch::from_hex(&scanner.string()?),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    let incomplete = || broken("an object is not described completely");
    let of = ObjectType { dtype: dtype.ok_or_else(incomplete)?, shape: shape.ok_or_else(incomplete)? };
    let len = of.len()?;
    let form = match (whole, delta, base) {
        (Some(blob), None, None) => Form::Whole(blob),
        (None, Some(change), Some(base)) => {
            let common = common.filter(|common| *common <= len && (rest.is_some() == (*common < len)));
            Form::Delta { base, common: common.ok_or_else(incomplete)?, change, rest }
        }
        (None, None, Some(base)) => Form::Cast { base },
        _ => return Err(incomplete()),
    };
    let stored = Stored { pack: pack.ok_or_else(incomplete)?, of, form, sketch };
    Ok((id.ok_or_else(incomplete)?, stored))
}

fn parse_blob(scanner: &mut Scanner<'_>) -> Result<Blob> {
    scanner.expect(b'[')?;
    let name = scanner.string()?;
    let coding = Coding::from_name(&name)
        .ok_or_else(|| broken(format!("the encoding {} is not known", quoted(&name))))?;
    scanner.expect(b',')?;
    let offset = scanner.u64()?;
    scanner.expect(b',')?;
    let len = scanner.u64()?;
    let crc = match scanner.take(b',') {
        true => Some(u32::try_from(scanner.u64()?).map_err(|_| broken("a checksum has more than 32 bits"))?),
        false => None,
    };
    scanner.expect(b']')?;
    match offset.checked_add(len) {
        Some(_) => Ok(Blob { coding, offset, len, crc }),
        None => Err(broken("a range ends beyond 2^64")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Shape;
    use crate::dtype::DType;

    #[test]
    fn locations_survive() {
        let of = ObjectType { dtype: DType::F32, shape: Shape::from_slice(&[4]) };
        let blob = |coding, crc| Blob { coding, offset: 64, len: 9, crc };
        let base = ContentId::from_bytes([9; 32]);
        let (change, rest) = (blob(Coding::Raw, Some(u32::MAX)), Some(blob(Coding::Zstd, None)));
        let forms = [
            Form::Whole(blob(Coding::Z4ai, None)),
            Form::Delta { base, common: 12, change, rest },
            Form::Delta { base, common: 16, change, rest: None },
            Form::Cast { base },
        ];
        let objects: Objects = forms
            .into_iter()
            .zip(1u8..)
            .map(|(form, number)| {
                let pack = format!("{:032x}", number % 2).into();
                let stored = Stored { pack, of: of.clone(), form, sketch: None };
                (ContentId::from_bytes([number; 32]), Arc::new(stored))
            })
            .collect();
        let known = format!("{:032x}", 1).into();
        let sizes = PackSizes::from_iter([(known, 777), ("other".into(), 5)]);
        let text = encode(&objects, &sizes);
        let (again, found) = parse(text.as_bytes()).unwrap();
        assert_eq!(again, objects);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(format!("{:032x}", 1).into(), 777)]);
        // Entries of an index have sketches, and one object may come twice.
        let mut entries: Vec<(ContentId, Stored)> =
            objects.iter().map(|(id, stored)| (*id, Stored::clone(stored))).collect();
        entries[0].1.sketch = Some(Sketch(std::array::from_fn(|at| at as u8 * 2)));
        entries.push(entries[0].clone());
        let packs = entries.iter().map(|(_, stored)| stored.pack.clone()).collect();
        let borrowed: Vec<_> = entries.iter().map(|(id, stored)| (*id, stored)).collect();
        let list = encode_entries(&borrowed, packs, &PackSizes::new(), true);
        assert_eq!(parse_entries(list.as_bytes()).unwrap().entries, entries);
        assert!(parse(list.as_bytes()).is_err(), "twice");
        let older = text.replacen("\"sizes\":[0,777],", "", 1);
        assert_ne!(older, text);
        assert_eq!(parse(older.as_bytes()).unwrap(), (again, PackSizes::new()));
        for cut in 0..text.len() - 1 {
            assert!(parse(&text.as_bytes()[..cut]).is_err());
        }
        for (from, to) in [
            ("\"pack\":1", "\"pack\":2"),
            ("\"common\":12", "\"common\":17"),
            ("\"common\":16", "\"common\":15"),
            ("00000000000000000000000000000001", "../../../../../../../../etc/passw"),
            ("64,9", "18446744073709551615,9"),
            ("\"zstd\"", "\"lzma\""),
        ] {
            let forged = text.replacen(from, to, 1);
            assert_ne!(forged, text, "{from}");
            assert!(parse(forged.as_bytes()).is_err(), "{to}");
        }
    }
}
