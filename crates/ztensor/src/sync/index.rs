//! The index of a version: what it starts from, how it is encoded, and which shard has which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use indexmap::IndexMap;

use super::checksum::ChecksumFormat;
use crate::catalog::Shape;
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::json::{Scanner, push_string};
use crate::format::shards::is_plain_name;
use crate::id::ContentId;

/// The index's file name in the folder of a version.
pub const INDEX_NAME: &str = "model.safetensors.index.json";
/// A larger index is refused before it is read: it would name millions of tensors.
pub(crate) const MAX_INDEX: u64 = 256 << 20;
/// The top-level key with what only this library writes.
const EXTRAS: &str = "ztensor_sync";
/// The version of these keys.
const EXTRAS_VERSION: u64 = 1;
/// Digits of the digest of an index.
const DIGEST_LEN: usize = 64;

/// What the bytes of a delta's payloads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Encoding {
    /// The exclusive or of the old and the new bytes.
    #[default]
    Xor,
    /// Positions of changed bytes, and their new values.
    Overwrite,
}

impl Encoding {
    /// Its name in an index.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Xor => "xor",
            Encoding::Overwrite => "overwrite",
        }
    }

    /// The encoding of that name.
    pub fn from_name(name: &str) -> Result<Encoding> {
        match name {
            "xor" => Ok(Encoding::Xor),
            "overwrite" => Ok(Encoding::Overwrite),
            other => {
                let message =
                    format!("the delta encoding {} is not known: xor and overwrite are", quoted(other));
                Err(Error::unsupported(message))
            }
        }
    }
}

/// How the payloads of a delta are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PayloadCompression {
    /// One zstd frame each: what every receiver of the shared format reads.
    #[default]
    Zstd,
    /// A z4ai delta each, or a z4ai frame for a tensor without predecessor: smaller, faster, and
    /// read by this library only. Such a delta may add, remove and resize tensors.
    Z4ai,
}

impl PayloadCompression {
    /// Its name in an index.
    pub fn name(self) -> &'static str {
        match self {
            PayloadCompression::Zstd => "zstd",
            PayloadCompression::Z4ai => "z4ai",
        }
    }

    /// The compression of that name.
    pub fn from_name(name: &str) -> Result<PayloadCompression> {
        match name {
            "zstd" => Ok(PayloadCompression::Zstd),
            "z4ai" => Ok(PayloadCompression::Z4ai),
            other => {
                let message =
                    format!("the compression format {} is not known: zstd and z4ai are", quoted(other));
                Err(Error::unsupported(message))
            }
        }
    }
}

/// How a version's tensors are to be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// All tensors as they are.
    Full {
        /// The checksum of every tensor in its shard's metadata, where there is one.
        checksum: Option<ChecksumFormat>,
    },
    /// The tensors that differ from those of another version.
    Delta {
        /// The version that it starts from.
        base: String,
        /// What payloads decode to.
        encoding: Encoding,
        /// How they are compressed.
        compression: PayloadCompression,
        /// The checksum of each tensor's new state.
        checksum: ChecksumFormat,
    },
}

/// What an index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The version's name; `None` in a full version that does not say it.
    pub version: Option<String>,
    /// Full or delta.
    pub kind: Kind,
    /// The shard of each tensor.
    pub weight_map: IndexMap<String, String>,
    /// What only this library writes.
    pub extras: Option<Extras>,
}

/// What this library adds to an index; other receivers ignore it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extras {
    /// Random, the same for all versions that one run publishes.
    pub stream_id: String,
    /// Content id of the model that the delta starts from.
    pub base_id: Option<ContentId>,
    /// Content id of the model that it leads to.
    pub target_id: Option<ContentId>,
    /// The tensors in the shards.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Tensors of the base that the target does not have.
    pub removed: BTreeSet<String>,
    /// Bytes of every shard.
    pub shards: BTreeMap<String, u64>,
}

/// A tensor of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Content id of its old state; `None` where it has none, or none of this size and type.
    pub base: Option<ContentId>,
    /// Content id of its new state.
    pub target: ContentId,
    /// XXH3-128 of the stored payload.
    pub payload: String,
    /// How many elements changed.
    pub changed: Option<u64>,
    /// Euclidean norm of the change, as a decimal number.
    pub norm: Option<String>,
}

impl TensorEntry {
    /// Its size in bytes, if the type and the shape have one.
    pub fn byte_len(&self) -> Option<u64> {
        let bits = crate::catalog::elements(&self.shape)?.checked_mul(u64::from(self.dtype.bits()))?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

fn broken(rule: &'static str, message: impl Into<String>) -> Error {
    Error::corrupt(rule, message)
}

/// A member of an object that may come once.
fn set<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(broken("sync.index", format!("the key {} appears twice", quoted(key)))),
    }
}

/// The values of `metadata` that this library knows.
#[derive(Default)]
struct Metadata {
    known: BTreeMap<&'static str, String>,
}

const KEYS: [&str; 9] = [
    "version",
    "base_version",
    "delta_encoding",
    "compression_format",
    "checksum_format",
    "stream_id",
    "base_id",
    "target_id",
    "index_digest",
];

impl Metadata {
    fn read(scanner: &mut Scanner<'_>) -> Result<Metadata> {
        let mut metadata = Metadata::default();
        scanner.object(|scanner, key| {
            let Some(known) = KEYS.into_iter().find(|known| *known == key) else {
                return scanner.skip();
            };
            if scanner.peek() != Some(b'"') {
                return Err(broken("sync.metadata", format!("metadata: {known} is not text")));
            }
            match metadata.known.insert(known, scanner.string()?.into_owned()) {
                None => Ok(()),
                Some(_) => Err(broken("sync.index", format!("metadata: {known} appears twice"))),
            }
        })?;
        Ok(metadata)
    }

    fn take(&mut self, key: &str) -> Option<String> {
        self.known.remove(key)
    }

    fn require(&mut self, key: &str) -> Result<String> {
        self.take(key).ok_or_else(|| {
            broken("sync.metadata", format!("metadata: a delta needs {key:?}, which is absent"))
        })
    }

    fn id(&mut self, key: &str) -> Result<Option<ContentId>> {
        self.take(key).map(|text| parse_id(&text)).transpose()
    }
}

fn parse_id(text: &str) -> Result<ContentId> {
    let bad = |_| broken("sync.extras", format!("{} is not a content id", quoted(text)));
    text.parse::<ContentId>().map_err(bad)
}

impl Index {
    /// Parses an index and checks everything that can be checked without its shards.
    pub fn parse(bytes: &[u8]) -> Result<Index> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| broken("sync.index", format!("the index is not UTF-8: {error}")))?;
        let (mut metadata, mut weight_map, mut extras) = (None, None, None);
        let mut scanner = Scanner::new(text);
        scanner.object(|scanner, key| match &*key {
            "metadata" => set(&mut metadata, &key, Metadata::read(scanner)?),
            "weight_map" => set(&mut weight_map, &key, read_map(scanner)?),
            EXTRAS => match Extras::read(scanner)? {
                Some(read) => set(&mut extras, &key, read),
                None => Ok(()),
            },
            _ => scanner.skip(),
        })?;
        scanner.end()?;
        let mut metadata = metadata.unwrap_or_default();
        let weight_map = weight_map.ok_or_else(|| broken("sync.index", "the index has no \"weight_map\""))?;
        if let Some(digest) = metadata.take("index_digest") {
            check_digest(text, &digest)?;
        } else if extras.is_some() {
            return Err(broken(
                "sync.index-digest",
                format!("an index with {EXTRAS:?} has a digest of itself"),
            ));
        }
        let version = metadata.take("version");
        let kind = match metadata.take("delta_encoding") {
            None => {
                let checksum = metadata.take("checksum_format");
                Kind::Full { checksum: checksum.map(|name| ChecksumFormat::from_name(&name)).transpose()? }
            }
            Some(encoding) => {
                let base = metadata.require("base_version")?;
                let compression = metadata.require("compression_format")?;
                let checksum = metadata.require("checksum_format")?;
                if version.is_none() {
                    metadata.require("version")?;
                }
                Kind::Delta {
                    base,
                    encoding: Encoding::from_name(&encoding)?,
                    compression: PayloadCompression::from_name(&compression)?,
                    checksum: ChecksumFormat::from_name(&checksum)?,
                }
            }
        };
        if let Some(extras) = &mut extras {
            extras.stream_id = metadata.require("stream_id")?;
            extras.base_id = metadata.id("base_id")?;
            extras.target_id = metadata.id("target_id")?;
        }
        let index = Index { version, kind, weight_map, extras };
        index.check()?;
        Ok(index)
    }

    /// Whether what it says fits together.
    fn check(&self) -> Result<()> {
        for (name, file) in &self.weight_map {
            if !is_plain_name(file) || !file.ends_with(".safetensors") || file.starts_with('.') {
                let message = format!("the shard {} is not a plain .safetensors name", quoted(file));
                return Err(broken("sync.shard-name", message).in_tensor(name));
            }
        }
        let z4ai = matches!(self.kind, Kind::Delta { compression: PayloadCompression::Z4ai, .. });
        let Some(extras) = &self.extras else {
            return match z4ai {
                true => Err(broken("sync.extras", format!("a z4ai delta needs {EXTRAS:?}, which is absent"))),
                false => Ok(()),
            };
        };
        if !extras.tensors.keys().all(|name| self.weight_map.contains_key(name))
            || extras.tensors.len() != self.weight_map.len()
        {
            return Err(broken(
                "sync.extras",
                format!("{EXTRAS:?} describes other tensors than the weight map"),
            ));
        }
        if !self.weight_map.values().all(|file| extras.shards.contains_key(file)) {
            return Err(broken("sync.extras", format!("{EXTRAS:?} lacks the size of a shard")));
        }
        for (name, entry) in &extras.tensors {
            if entry.byte_len().is_none() {
                return Err(broken("sync.extras", "its shape and type have no size in bytes").in_tensor(name));
            }
            if extras.removed.contains(name) {
                return Err(broken("sync.extras", "it is both stored and removed").in_tensor(name));
            }
            let delta = matches!(self.kind, Kind::Delta { .. });
            if delta && !z4ai && entry.base.is_none() {
                let message = "only z4ai deltas can add or resize tensors";
                return Err(broken("sync.structure", message).in_tensor(name));
            }
        }
        if !z4ai && !extras.removed.is_empty() {
            return Err(broken("sync.structure", "only z4ai deltas can remove tensors"));
        }
        Ok(())
    }

    /// Bytes of the shards, where the index says them.
    pub fn shards_len(&self) -> Option<u64> {
        let extras = self.extras.as_ref()?;
        extras.shards.values().try_fold(0u64, |sum, len| sum.checked_add(*len))
    }

    /// The text of the index: the same for the same contents, with sorted keys.
    pub fn to_json(&self) -> String {
        let mut metadata: BTreeMap<&str, String> = BTreeMap::new();
        if let Some(version) = &self.version {
            metadata.insert("version", version.clone());
        }
        match &self.kind {
            Kind::Full { checksum } => {
                if let Some(checksum) = checksum {
                    metadata.insert("checksum_format", checksum.name().to_owned());
                }
            }
            Kind::Delta { base, encoding, compression, checksum } => {
                metadata.insert("base_version", base.clone());
                metadata.insert("delta_encoding", encoding.name().to_owned());
                metadata.insert("compression_format", compression.name().to_owned());
                metadata.insert("checksum_format", checksum.name().to_owned());
            }
        }
        if let Some(extras) = &self.extras {
            metadata.insert("stream_id", extras.stream_id.clone());
            for (key, id) in [("base_id", extras.base_id), ("target_id", extras.target_id)] {
                if let Some(id) = id {
                    metadata.insert(key, id.to_string());
                }
            }
            metadata.insert("index_digest", "0".repeat(DIGEST_LEN));
        }
        let mut json = String::from("{\"metadata\": {");
        for (at, (key, value)) in metadata.iter().enumerate() {
            member(&mut json, at, key);
            push_string(&mut json, value);
        }
        if let (Kind::Full { .. }, Some(total)) = (&self.kind, self.total_size()) {
            member(&mut json, metadata.len(), "total_size");
            let _ = write!(json, "{total}"); // writing to a string cannot fail
        }
        json.push_str("}, \"weight_map\": {");
        let sorted: BTreeMap<_, _> = self.weight_map.iter().collect();
        for (at, (name, file)) in sorted.into_iter().enumerate() {
            member(&mut json, at, name);
            push_string(&mut json, file);
        }
        json.push('}');
        if let Some(extras) = &self.extras {
            extras.push(&mut json);
        }
        json.push('}');
        if self.extras.is_some() {
            let digest = blake3::hash(json.as_bytes()).to_hex();
            let marker = format!("\"index_digest\": \"{}\"", "0".repeat(DIGEST_LEN));
            json = json.replacen(&marker, &format!("\"index_digest\": \"{digest}\""), 1);
        }
        json
    }

    fn total_size(&self) -> Option<u64> {
        let extras = self.extras.as_ref()?;
        extras.tensors.values().try_fold(0u64, |sum, entry| sum.checked_add(entry.byte_len()?))
    }
}

fn member(json: &mut String, at: usize, key: &str) {
    json.push_str(if at > 0 { ", " } else { "" });
    push_string(json, key);
    json.push_str(": ");
}

/// Compares the digest of an index with its text, in which zeros stand for the digest itself.
fn check_digest(text: &str, digest: &str) -> Result<()> {
    let bad = |message: &str| Err(broken("sync.index-digest", message));
    if !ChecksumFormat::Blake3.has_form(digest) || text.matches(digest).count() != 1 {
        return bad("the digest of the index is not 64 hexadecimal digits that appear once");
    }
    let zeroed = text.replacen(digest, &"0".repeat(DIGEST_LEN), 1);
    match blake3::hash(zeroed.as_bytes()).to_hex().as_str() == digest {
        true => Ok(()),
        false => bad("the index does not have the digest that it names: it was changed or damaged"),
    }
}

fn read_map(scanner: &mut Scanner<'_>) -> Result<IndexMap<String, String>> {
    let mut map = IndexMap::new();
    scanner.object(|scanner, name| {
        let file = scanner.string()?.into_owned();
        match map.insert(name.into_owned(), file) {
            None => Ok(()),
            Some(_) => Err(broken("sync.index", "the index names a tensor twice")),
        }
    })?;
    Ok(map)
}

impl Extras {
    /// `None`: of a later version, which says what this one cannot know.
    fn read(scanner: &mut Scanner<'_>) -> Result<Option<Extras>> {
        let mut extras = Extras::default();
        let mut version = None;
        scanner.object(|scanner, key| match &*key {
            "format" => set(&mut version, &key, scanner.u64()?),
            "tensors" => scanner.object(|scanner, name| {
                let entry = TensorEntry::read(scanner).map_err(|error| error.in_tensor(&*name))?;
                match extras.tensors.insert(name.into_owned(), entry) {
                    None => Ok(()),
                    Some(_) => Err(broken("sync.index", "the index describes a tensor twice")),
                }
            }),
            "removed" => scanner.array(|scanner| {
                extras.removed.insert(scanner.string()?.into_owned());
                Ok(())
            }),
            "shards" => scanner.object(|scanner, file| {
                extras.shards.insert(file.into_owned(), scanner.u64()?);
                Ok(())
            }),
            _ => scanner.skip(),
        })?;
        match version {
            Some(EXTRAS_VERSION) => Ok(Some(extras)),
            Some(_) => Ok(None),
            None => Err(broken("sync.extras", format!("{EXTRAS:?} does not say its format"))),
        }
    }

    fn push(&self, json: &mut String) {
        let _ = write!(json, ", \"{EXTRAS}\": {{\"format\": {EXTRAS_VERSION}, \"removed\": [");
        for (at, name) in self.removed.iter().enumerate() {
            json.push_str(if at > 0 { ", " } else { "" });
            push_string(json, name);
        }
        json.push_str("], \"shards\": {");
        for (at, (file, len)) in self.shards.iter().enumerate() {
            member(json, at, file);
            let _ = write!(json, "{len}");
        }
        json.push_str("}, \"tensors\": {");
        for (at, (name, entry)) in self.tensors.iter().enumerate() {
            member(json, at, name);
            entry.push(json);
        }
        json.push_str("}}");
    }
}

impl TensorEntry {
    fn read(scanner: &mut Scanner<'_>) -> Result<TensorEntry> {
        let (mut dtype, mut shape, mut base, mut target) = (None, None, None, None);
        let (mut payload, mut changed, mut norm) = (None, None, None);
        scanner.object(|scanner, key| match &*key {
            "dtype" => {
                let name = scanner.string()?;
                let known = DType::from_safetensors_name(&name).ok_or_else(|| {
                    Error::unsupported(format!("the element type {} is not known", quoted(&name)))
                })?;
                set(&mut dtype, &key, known)
            }
            "shape" => {
                let mut sizes = Shape::new();
                scanner.array(|scanner| {
                    sizes.push(scanner.u64()?);
                    Ok(())
                })?;
                set(&mut shape, &key, sizes)
            }
            "base" => set(&mut base, &key, parse_id(&scanner.string()?)?),
            "target" => set(&mut target, &key, parse_id(&scanner.string()?)?),
            "payload" => set(&mut payload, &key, scanner.string()?.into_owned()),
            "changed" => set(&mut changed, &key, scanner.u64()?),
            "norm" => set(&mut norm, &key, scanner.string()?.into_owned()),
            _ => scanner.skip(),
        })?;
        let payload = payload.filter(|text| ChecksumFormat::Xxh3.has_form(text));
        match (dtype, shape, target, payload) {
            (Some(dtype), Some(shape), Some(target), Some(payload)) => {
                Ok(TensorEntry { dtype, shape, base, target, payload, changed, norm })
            }
            _ => {
                Err(broken("sync.extras", "a tensor needs \"dtype\", \"shape\", \"target\" and \"payload\""))
            }
        }
    }

    fn push(&self, json: &mut String) {
        json.push('{');
        if let Some(base) = self.base {
            let _ = write!(json, "\"base\": \"{base}\", ");
        }
        if let Some(changed) = self.changed {
            let _ = write!(json, "\"changed\": {changed}, ");
        }
        let dtype = self.dtype.safetensors_name().unwrap_or_default();
        let _ = write!(json, "\"dtype\": \"{dtype}\", ");
        if let Some(norm) = &self.norm {
            json.push_str("\"norm\": ");
            push_string(json, norm);
            json.push_str(", ");
        }
        let _ = write!(json, "\"payload\": \"{}\", \"shape\": [", self.payload);
        for (at, size) in self.shape.iter().enumerate() {
            let _ = write!(json, "{}{size}", if at > 0 { ", " } else { "" });
        }
        let _ = write!(json, "], \"target\": \"{}\"}}", self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> ContentId {
        ContentId::from_bytes([byte; 32])
    }

    pub(crate) fn sample() -> Index {
        let entry = TensorEntry {
            dtype: DType::BF16,
            shape: Shape::from_slice(&[2, 3]),
            base: Some(id(1)),
            target: id(2),
            payload: "0".repeat(32),
            changed: Some(3),
            norm: Some("0.5".into()),
        };
        Index {
            version: Some("000002".into()),
            kind: Kind::Delta {
                base: "000001".into(),
                encoding: Encoding::Xor,
                compression: PayloadCompression::Zstd,
                checksum: ChecksumFormat::Xxh3,
            },
            weight_map: [("a \"b\"".to_owned(), "model-00000-of-00001.safetensors".to_owned())].into(),
            extras: Some(Extras {
                stream_id: "5".repeat(32),
                base_id: Some(id(3)),
                target_id: Some(id(4)),
                tensors: [("a \"b\"".to_owned(), entry)].into(),
                removed: BTreeSet::new(),
                shards: [("model-00000-of-00001.safetensors".to_owned(), 99)].into(),
            }),
        }
    }

    #[test]
    fn an_index_survives_and_notices_every_changed_byte() {
        let index = sample();
        let text = index.to_json();
        assert_eq!(Index::parse(text.as_bytes()).unwrap(), index);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                // Without the keys of this library an index is one of another writer.
                let other = Index::parse(&bytes).is_ok_and(|parsed| parsed.extras.is_some());
                assert!(!other, "byte {at} bit {bit}");
            }
            assert!(Index::parse(&text.as_bytes()[..at]).is_err());
        }
    }

    #[test]
    fn what_zstd_deltas_cannot_say_is_refused() {
        let mut index = sample();
        index.extras.as_mut().unwrap().removed.insert("gone".into());
        assert_eq!(Index::parse(index.to_json().as_bytes()).unwrap_err().rule(), Some("sync.structure"));
        let mut index = sample();
        index.extras.as_mut().unwrap().tensors.values_mut().for_each(|entry| entry.base = None);
        assert_eq!(Index::parse(index.to_json().as_bytes()).unwrap_err().rule(), Some("sync.structure"));
    }
}
