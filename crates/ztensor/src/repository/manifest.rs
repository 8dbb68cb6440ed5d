//! Manifests: the files of a version, each as a list of literals and objects.
//!
//! ```text
//! zstd frame of: length of the JSON text (u64, little-endian) | JSON text | literals, one after another
//! ```

use std::collections::HashSet;
use std::fmt::Write as _;

use super::names::{RecordId, check_path};
use super::object::ObjectType;
use crate::catalog::{MAX_RANK, Shape};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::json::{Scanner, push_string};
use crate::id::ContentId;

/// BLAKE3's key derivation context of manifests' ids. (format)
const CONTEXT: &str = "ztensor 2026-11-17 repository manifest, version 1";
/// The version of the format. (format)
const FORMAT: u64 = 1;
/// The longest stored and decoded manifest. (limit)
pub(crate) const MAX_STORED: u64 = 256 << 20;
const MAX_DECODED: u64 = 1 << 30;
/// zstd never expands further. (format)
const MAX_EXPANSION: u64 = 1 << 15;
const ZSTD_LEVEL: i32 = 3;

/// The files of a version.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) files: Vec<FileEntry>,
    /// The objects that files consist of, each once.
    pub(crate) objects: Vec<ObjectEntry>,
}

/// A file of a version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FileEntry {
    pub(crate) path: String,
    pub(crate) executable: bool,
    pub(crate) segments: Vec<Segment>,
}

/// An object of a version.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObjectEntry {
    pub(crate) id: ContentId,
    pub(crate) of: ObjectType,
    pub(crate) len: u64,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Segment {
    /// The bytes themselves.
    Literal(Vec<u8>),
    /// The number of an object, and the name of the tensor that it is there; empty for other bytes.
    Object(u32, String),
}

fn broken(message: impl Into<String>) -> Error {
    Error::corrupt("repository.manifest", message)
}

impl Manifest {
    /// The object of a segment.
    pub(crate) fn object(&self, index: u32) -> Result<&ObjectEntry> {
        self.objects.get(index as usize).ok_or_else(|| broken(format!("there is no object {index}")))
    }

    /// The size of a segment. Sums were checked when the manifest was parsed.
    pub(crate) fn segment_len(&self, segment: &Segment) -> u64 {
        match segment {
            Segment::Literal(bytes) => bytes.len() as u64,
            Segment::Object(index, _) => self.objects.get(*index as usize).map_or(0, |object| object.len),
        }
    }

    /// The size of a file.
    pub(crate) fn file_len(&self, file: &FileEntry) -> u64 {
        file.segments.iter().map(|segment| self.segment_len(segment)).fold(0, u64::saturating_add)
    }

    /// The size of all files.
    pub(crate) fn len(&self) -> u64 {
        self.files.iter().map(|file| self.file_len(file)).fold(0, u64::saturating_add)
    }

    /// Tensors by name: file, name, and number of the object.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&FileEntry, &str, u32)> {
        self.files.iter().flat_map(|file| {
            file.segments.iter().filter_map(move |segment| match segment {
                Segment::Object(index, name) if !name.is_empty() => Some((file, name.as_str(), *index)),
                _ => None,
            })
        })
    }

    /// The id, and the bytes to store.
    pub(crate) fn encode(&self) -> Result<(RecordId, Vec<u8>)> {
        let plain = self.plain();
        if plain.len() as u64 > MAX_DECODED {
            return Err(Error::unsupported(format!("the manifest would have {} bytes", plain.len())));
        }
        let stored =
            zstd::bulk::compress(&plain, ZSTD_LEVEL).map_err(|error| Error::io("zstd failed", error))?;
        Ok((RecordId::of(CONTEXT, &plain), stored))
    }

    fn plain(&self) -> Vec<u8> {
        let mut json = format!("{{\"format\":{FORMAT},\"objects\":[");
        for (at, object) in self.objects.iter().enumerate() {
            json.push_str(if at > 0 { ",\n" } else { "\n" });
            let _ = write!(json, "[\"{}\",\"{}\",[", object.id, object.of.dtype.name());
            push_shape(&mut json, &object.of.shape);
            json.push_str("]]");
        }
        json.push_str("],\"files\":[");
        let mut literals = Vec::new();
        for (at, file) in self.files.iter().enumerate() {
            json.push_str(if at > 0 { ",\n" } else { "\n" });
            json.push_str("{\"path\":");
            push_string(&mut json, &file.path);
            if file.executable {
                json.push_str(",\"executable\":true");
            }
            json.push_str(",\"segments\":[");
            for (at, segment) in file.segments.iter().enumerate() {
                json.push_str(if at > 0 { "," } else { "" });
                match segment {
                    Segment::Literal(bytes) => {
                        let _ = write!(json, "{{\"literal\":{}}}", bytes.len());
                        literals.extend_from_slice(bytes);
                    }
                    Segment::Object(index, name) if name.is_empty() => {
                        let _ = write!(json, "{{\"object\":{index}}}");
                    }
                    Segment::Object(index, name) => {
                        let _ = write!(json, "{{\"object\":{index},\"name\":");
                        push_string(&mut json, name);
                        json.push('}');
                    }
                }
            }
            json.push_str("]}");
        }
        json.push_str("]}");
        let mut plain = (json.len() as u64).to_le_bytes().to_vec();
        plain.extend_from_slice(json.as_bytes());
        plain.extend_from_slice(&literals);
        plain
    }

    /// Parses stored bytes and compares their id.
    pub(crate) fn decode(stored: &[u8], id: &RecordId) -> Result<Manifest> {
        let plain = decompress(stored)?;
        if RecordId::of(CONTEXT, &plain) != *id {
            return Err(Error::mismatch(format!(
                "the manifest does not have the id {id}: it is damaged or forged"
            )));
        }
        Self::parse(&plain)
    }

    /// Parses decoded bytes.
    pub(crate) fn parse(plain: &[u8]) -> Result<Manifest> {
        let (len, rest) = plain.split_first_chunk::<8>().ok_or_else(|| broken("it has no length"))?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok().filter(|len| *len <= rest.len());
        let (text, literals) =
            rest.split_at(len.ok_or_else(|| broken("its text is longer than the manifest"))?);
        let text = std::str::from_utf8(text).map_err(|_| broken("its text is not UTF-8"))?;
        let mut manifest = Manifest::default();
        let mut literals = literals;
        let mut seen = 0u8;
        let mut scanner = Scanner::new(text);
        scanner.object(|scanner, key| {
            let (bit, needed) = match &*key {
                "format" => (1, 0),
                "objects" => (2, 1),
                "files" => (4, 3),
                _ => return scanner.skip(),
            };
            if seen & bit != 0 || seen & needed != needed {
                return Err(broken(format!("{} appears twice or out of order", quoted(&key))));
            }
            seen |= bit;
            match &*key {
                "format" => check_format(scanner, FORMAT),
                "objects" => scanner.array(|scanner| {
                    manifest.objects.push(parse_object(scanner)?);
                    Ok(())
                }),
                _ => scanner.array(|scanner| {
                    let file = parse_file(scanner, &mut literals, manifest.objects.len())?;
                    manifest.files.push(file);
                    Ok(())
                }),
            }
        })?;
        scanner.end()?;
        if seen != 7 || !literals.is_empty() {
            return Err(broken("it is not complete, or something follows it"));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Objects come once, paths come once and are not folders of others, and sizes add up.
    fn check(&self) -> Result<()> {
        let mut ids = HashSet::with_capacity(self.objects.len());
        if !self.objects.iter().all(|object| ids.insert(object.id)) {
            return Err(broken("an object comes twice"));
        }
        let mut paths: HashSet<&str> = HashSet::new();
        for file in &self.files {
            if !paths.insert(&file.path) {
                return Err(broken(format!("the file {} comes twice", quoted(&file.path))));
            }
        }
        let mut total = 0u64;
        for file in &self.files {
            let mut folders = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
            if folders.any(|folder| paths.contains(folder)) {
                return Err(broken(format!("{} is inside a path that is a file", quoted(&file.path))));
            }
            for segment in &file.segments {
                let sum = total.checked_add(self.segment_len(segment));
                total = sum.ok_or_else(|| broken("its files have more than 2^64 bytes"))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn check_format(scanner: &mut Scanner<'_>, known: u64) -> Result<()> {
    match scanner.u64()? {
        format if format == known => Ok(()),
        other => Err(Error::unsupported(format!(
            "version {other} of the repository format is not known: a newer version of this library may read it"
        ))),
    }
}

/// Decodes a zstd frame that says how long its content is.
pub(crate) fn decompress(stored: &[u8]) -> Result<Vec<u8>> {
    let declared = zstd::zstd_safe::get_frame_content_size(stored).ok().flatten();
    let len = declared.ok_or_else(|| broken("it is not a zstd frame that declares its length"))?;
    if len > MAX_DECODED || len.div_ceil(MAX_EXPANSION) > stored.len() as u64 {
        return Err(Error::limit(format!(
            "{} bytes cannot decompress to the {len} bytes declared",
            stored.len()
        )));
    }
    let plain = zstd::bulk::decompress(stored, len as usize);
    let plain = plain.map_err(|error| broken(format!("it does not decompress: {error}")))?;
    match plain.len() as u64 == len {
        true => Ok(plain),
        false => Err(broken("it is shorter than it declares")),
    }
}

pub(crate) fn push_shape(json: &mut String, shape: &[u64]) {
    for (at, size) in shape.iter().enumerate() {
        let _ = write!(json, "{}{size}", if at > 0 { "," } else { "" }); // a string takes everything
    }
}

pub(crate) fn parse_shape(scanner: &mut Scanner<'_>) -> Result<Shape> {
    let mut shape = Shape::new();
    scanner.array(|scanner| {
        if shape.len() == MAX_RANK {
            return Err(broken(format!("a shape has more than {MAX_RANK} dimensions")));
        }
        shape.push(scanner.u64()?);
        Ok(())
    })?;
    Ok(shape)
}

pub(crate) fn parse_dtype(scanner: &mut Scanner<'_>) -> Result<DType> {
    let name = scanner.string()?;
    DType::from_name(&name).ok_or_else(|| Error::unsupported(format!("the element type {}", quoted(&name))))
}

fn parse_object(scanner: &mut Scanner<'_>) -> Result<ObjectEntry> {
    scanner.expect(b'[')?;
    let id = scanner.string()?.parse()?;
    scanner.expect(b',')?;
    let dtype = parse_dtype(scanner)?;
    scanner.expect(b',')?;
    let shape = parse_shape(scanner)?;
    scanner.expect(b']')?;
    let of = ObjectType { dtype, shape };
    let len = of.len()?;
    Ok(ObjectEntry { id, of, len })
}

fn parse_file(scanner: &mut Scanner<'_>, literals: &mut &[u8], objects: usize) -> Result<FileEntry> {
    let mut file = FileEntry { path: String::new(), executable: false, segments: Vec::new() };
    let mut seen = false;
    scanner.object(|scanner, key| match &*key {
        "path" => {
            file.path = scanner.string()?.into_owned();
            check_path(&file.path)
        }
        "executable" => {
            file.executable = scanner.word("true");
            if file.executable { Ok(()) } else { scanner.skip() }
        }
        "segments" if !seen => {
            seen = true;
            scanner.array(|scanner| {
                file.segments.push(parse_segment(scanner, literals, objects)?);
                Ok(())
            })
        }
        "segments" => Err(broken("a file lists its segments twice")),
        _ => scanner.skip(),
    })?;
    match file.path.is_empty() || !seen {
        true => Err(broken("a file has no path or no segments")),
        false => Ok(file),
    }
}

fn parse_segment(scanner: &mut Scanner<'_>, literals: &mut &[u8], objects: usize) -> Result<Segment> {
    let mut segment = None;
    let mut tensor = String::new();
    scanner.object(|scanner, key| match &*key {
        "literal" | "object" if segment.is_some() => Err(broken("a segment is both a literal and an object")),
        "literal" => {
            let len = usize::try_from(scanner.u64()?).ok().filter(|len| *len <= literals.len());
            let (bytes, rest) =
                literals.split_at(len.ok_or_else(|| broken("a literal is longer than the data"))?);
            *literals = rest;
            segment = Some(Segment::Literal(bytes.to_vec()));
            Ok(())
        }
        "object" => {
            let index = u32::try_from(scanner.u64()?).ok().filter(|index| (*index as usize) < objects);
            let index = index.ok_or_else(|| broken("a segment names an object that is not there"))?;
            segment = Some(Segment::Object(index, String::new()));
            Ok(())
        }
        "name" => {
            tensor = scanner.string()?.into_owned();
            Ok(())
        }
        _ => scanner.skip(),
    })?;
    match segment {
        Some(Segment::Object(index, _)) => Ok(Segment::Object(index, tensor)),
        Some(literal) => Ok(literal),
        None => Err(broken("a segment is neither a literal nor an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let of = ObjectType { dtype: DType::BF16, shape: Shape::from_slice(&[2, 3]) };
        let object =
            |byte: u8| ObjectEntry { id: ContentId::from_bytes([byte; 32]), of: of.clone(), len: 12 };
        Manifest {
            objects: vec![object(1), object(2)],
            files: vec![
                FileEntry {
                    path: "model.safetensors".into(),
                    executable: false,
                    segments: vec![
                        Segment::Literal(b"head\0\xff".to_vec()),
                        Segment::Object(1, "a\"b".into()),
                        Segment::Object(0, String::new()),
                        Segment::Literal(Vec::new()),
                    ],
                },
                FileEntry { path: "sub/run.sh".into(), executable: true, segments: Vec::new() },
            ],
        }
    }

    #[test]
    fn a_manifest_survives() {
        let manifest = sample();
        let (id, stored) = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&stored, &id).unwrap(), manifest);
        assert_eq!(manifest.encode().unwrap(), (id, stored.clone()));
        assert_eq!((manifest.file_len(&manifest.files[0]), manifest.len()), (30, 30));
        assert!(Manifest::decode(&stored, &RecordId([0; 32])).is_err());
        for cut in 0..stored.len() {
            assert!(Manifest::decode(&stored[..cut], &id).is_err());
        }
    }

    #[test]
    fn forged_manifests_are_refused() {
        let parse = |text: &str, literals: &[u8]| {
            let mut plain = (text.len() as u64).to_le_bytes().to_vec();
            plain.extend_from_slice(text.as_bytes());
            plain.extend_from_slice(literals);
            Manifest::parse(&plain)
        };
        let id = ContentId::from_bytes([1; 32]);
        let object = format!("[\"{id}\",\"u8\",[5]]");
        let file = |path: &str, segments: &str| format!("{{\"path\":\"{path}\",\"segments\":[{segments}]}}");
        let whole = |objects: &str, files: &str| {
            format!("{{\"format\":1,\"objects\":[{objects}],\"files\":[{files}]}}")
        };
        parse(&whole(&object, &file("a", "{\"object\":0},{\"literal\":2}")), b"ab").unwrap();
        for (text, literals) in [
            (whole(&object, &file("../a", "")), &b""[..]),
            (whole(&object, &file("/etc/passwd", "")), b""),
            (whole(&object, &file("a", "{\"object\":1}")), b""),
            (whole(&object, &file("a", "{\"literal\":3}")), b"ab"),
            (whole(&object, &file("a", "{\"literal\":1}")), b"ab"),
            (whole(&object, &file("a", "{}")), b""),
            (whole(&object, &file("a", "{\"object\":0,\"literal\":0}")), b""),
            (whole(&object, &format!("{},{}", file("a", ""), file("a", ""))), b""),
            (whole(&object, &format!("{},{}", file("a/b", ""), file("a", ""))), b""),
            (whole(&format!("{object},{object}"), ""), b""),
            (whole(&format!("[\"{id}\",\"f64\",[{},{}]]", u64::MAX, 2), ""), b""),
            (whole(&format!("[\"{id}\",\"u4\",[2]]"), ""), b""),
            (format!("{{\"format\":2,\"objects\":[{object}],\"files\":[]}}"), b""),
            ("{\"format\":1,\"files\":[],\"objects\":[]}".to_owned(), b""),
            ("{\"format\":1,\"objects\":[]}".to_owned(), b""),
            ("[]".to_owned(), b""),
        ] {
            assert!(parse(&text, literals).is_err(), "{text}");
        }
        assert!(Manifest::parse(&u64::MAX.to_le_bytes()).is_err());
        assert!(Manifest::parse(b"").is_err());
    }

    #[test]
    fn bombs_are_refused_before_they_are_decoded() {
        let bomb = zstd::bulk::compress(&vec![0u8; 64 << 20], 19).unwrap();
        // Within what zstd can do, and yet no manifest.
        assert!(Manifest::decode(&bomb, &RecordId([0; 32])).is_err());
        assert!(decompress(b"").is_err());
        assert!(decompress(&[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0]).is_err());
    }
}
