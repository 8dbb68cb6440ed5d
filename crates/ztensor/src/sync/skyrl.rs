//! SkyRL's manifest, as an index.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::checksum::ChecksumFormat;
use super::index::{Encoding, Index, Kind, PayloadCompression};
use super::stream::version_name;
use crate::error::{Error, Result, quoted};
use crate::format::json::Scanner;
use crate::format::shards::is_plain_name;

/// Its file name, the last that a version gets.
pub(crate) const MANIFEST: &str = "manifest.json";

/// An index, the keys of payloads that differ from tensor names, and checksums.
type Parsed = (Index, BTreeMap<String, String>, BTreeMap<String, (ChecksumFormat, String)>);

#[derive(Default)]
struct Record {
    name: Option<String>,
    file: Option<String>,
    key: Option<String>,
    checksum: Option<String>,
    algorithm: Option<String>,
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed> {
    let broken = |message: &str| Error::corrupt("sync.manifest", message);
    let text = std::str::from_utf8(bytes).map_err(|_| broken("the manifest is not UTF-8"))?;
    let (mut version, mut base) = (None, None);
    let mut records = Vec::new();
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| match &*key {
        "version" => {
            version = Some(scanner.u64()?);
            Ok(())
        }
        "base_version" => {
            base = Some(scanner.u64()?);
            Ok(())
        }
        "tensors" => scanner.array(|scanner| {
            let mut record = Record::default();
            scanner.object(|scanner, key| {
                let slot = match &*key {
                    "name" => &mut record.name,
                    "payload_file" => &mut record.file,
                    "payload_key" => &mut record.key,
                    "checksum" => &mut record.checksum,
                    "checksum_algorithm" => &mut record.algorithm,
                    _ => return scanner.skip(),
                };
                *slot = Some(scanner.string()?.into_owned());
                Ok(())
            })?;
            records.push(record);
            Ok(())
        }),
        _ => scanner.skip(),
    })?;
    scanner.end()?;
    let (Some(version), Some(base)) = (version, base) else {
        return Err(broken("the manifest needs \"version\" and \"base_version\""));
    };
    let (mut weight_map, mut keys, mut digests) = (IndexMap::new(), BTreeMap::new(), BTreeMap::new());
    for record in records {
        let Record { name: Some(name), file: Some(file), key, checksum: Some(checksum), algorithm } = record
        else {
            return Err(broken("a tensor needs \"name\", \"payload_file\" and \"checksum\""));
        };
        if !is_plain_name(&file) || !file.ends_with(".safetensors") {
            let message = format!("the shard {} is not a plain .safetensors name", quoted(&file));
            return Err(Error::corrupt("sync.shard-name", message).in_tensor(name));
        }
        let format = match algorithm.as_deref() {
            Some("sha256") | None => ChecksumFormat::Sha256,
            Some(other) => ChecksumFormat::from_name(other)?,
        };
        if !format.has_form(&checksum) {
            return Err(Error::corrupt("sync.digest", format!("it has no {format} checksum")).in_tensor(name));
        }
        if let Some(key) = key.filter(|key| *key != name) {
            keys.insert(name.clone(), key);
        }
        digests.insert(name.clone(), (format, checksum));
        if weight_map.insert(name.clone(), file).is_some() {
            return Err(broken("the manifest names a tensor twice").in_tensor(name));
        }
    }
    let kind = Kind::Delta {
        base: version_name(base),
        encoding: Encoding::Xor,
        compression: PayloadCompression::Zstd,
        checksum: ChecksumFormat::Xxh3,
    };
    Ok((Index { version: Some(version_name(version)), kind, weight_map, extras: None }, keys, digests))
}
