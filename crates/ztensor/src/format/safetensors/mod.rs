//! `.safetensors`: a header length, a JSON header, and the tensors' bytes one
//! after another.

pub(crate) mod write;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::catalog::{Catalog, Component, Extent, Object, Shape};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::json::Scanner;
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict};
use crate::source::{Source, Sources};
use crate::tensor::value::Value;
use crate::write::export::ExportFormat;

/// Bytes before the header: its length.
pub(crate) const PREFIX: u64 = 8;
/// A longer header is refused before it is read; the format's own limit.
pub(crate) const MAX_HEADER: u64 = 100_000_000;
/// The one key of a header that is not a tensor.
pub(crate) const METADATA: &str = "__metadata__";

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Safetensors,
    extensions: &[Extension::new("safetensors").rank(0)],
    merges_files: true,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities { writes: true, metadata: Metadata::Text, ..Capabilities::READ_ONLY },
    exporters: &[(ExportFormat::Safetensors, write::export)],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    let Some((prefix, rest)) = probe.head.split_first_chunk::<8>() else {
        return Verdict::No;
    };
    let len = u64::from_le_bytes(*prefix);
    let fits = len <= MAX_HEADER && len <= probe.source.len() - PREFIX;
    match (fits, rest.starts_with(b"{")) {
        (true, true) => Verdict::Yes,
        (false, false) => Verdict::No,
        // Broken, but of this format if the name says so: the parser tells what is wrong.
        _ => Verdict::Maybe,
    }
}

pub(crate) fn parse(Input { source, .. }: Input, _context: &Context) -> Result<Catalog> {
    let mut catalog = Catalog::new(Format::Safetensors, Sources::default());
    {
        let prefix = source.bytes(0, PREFIX.min(source.len()))?;
        let Some(prefix) = prefix.first_chunk::<8>() else {
            return Err(Error::corrupt(
                "safetensors.short",
                format!("{} bytes are fewer than a header's length takes", prefix.len()),
            ));
        };
        let len = u64::from_le_bytes(*prefix);
        let room = source.len() - PREFIX;
        let opens = room > 0 && source.bytes(PREFIX, 1)?.as_ref() == b"{";
        if len > room && len <= MAX_HEADER && opens {
            return Err(Error::corrupt(
                "safetensors.header-length",
                format!(
                    "the file ends within its header: {} or more bytes are missing (incomplete download?)",
                    len - room
                ),
            ));
        }
        if len > MAX_HEADER || len > room {
            return Err(Error::corrupt(
                "safetensors.header-length",
                format!(
                    "the header declares {len} bytes: at most {MAX_HEADER} are allowed, and {room} follow in the file"
                ),
            ));
        }
        let header = source.bytes(PREFIX, len)?;
        let header = std::str::from_utf8(&header).map_err(|error| {
            Error::corrupt("safetensors.utf8", format!("the header is not UTF-8: {error}"))
        })?;
        read_header(header, PREFIX + len, room - len, &mut catalog)?;
    }
    catalog.sources.push(source);
    Ok(catalog)
}

/// Reads a header into `catalog`, for data of `data_len` bytes that start at `data_start`.
pub(crate) fn read_header(text: &str, data_start: u64, data_len: u64, catalog: &mut Catalog) -> Result<()> {
    Header { text, data_start, data_len }.read(catalog)
}

/// The tensors of a file that breaks a rule of the format, as far as they are told without
/// contradiction; `None` for what does not start like such a file.
pub(crate) fn parse_leniently(source: Arc<dyn Source>) -> Result<Option<Catalog>> {
    let head = source.bytes(0, source.len().min(PREFIX + 1))?;
    let len = head.first_chunk::<8>().map(|len| u64::from_le_bytes(*len));
    let room = source.len().saturating_sub(PREFIX);
    let (Some(len), Some(b'{')) = (len.filter(|len| *len <= room.min(MAX_HEADER)), head.get(8)) else {
        return Ok(None);
    };
    drop(head);
    let mut catalog = Catalog::new(Format::Safetensors, Sources::default());
    {
        let bytes = source.bytes(PREFIX, len)?;
        let text = std::str::from_utf8(&bytes).unwrap_or("");
        Header { text, data_start: PREFIX + len, data_len: room - len }.read_leniently(&mut catalog);
    }
    catalog.sources.push(source);
    Ok(Some(catalog))
}

/// A header and where the data it describes lies in the file.
struct Header<'a> {
    text: &'a str,
    data_start: u64,
    data_len: u64,
}

/// What the header says of one tensor.
#[derive(Default)]
struct Info {
    dtype: Option<DType>,
    shape: Option<Shape>,
    offsets: Option<(u64, u64)>,
}

impl Header<'_> {
    fn read(&self, catalog: &mut Catalog) -> Result<()> {
        let read = self.read_all(catalog);
        let outside = matches!(&read, Err(error) if error.rule() == Some("safetensors.offsets"));
        match outside.then(|| self.missing()).flatten() {
            Some(missing) => Err(Error::corrupt(
                "safetensors.offsets",
                format!(
                    "the file is truncated: {missing} of its {} bytes are missing (incomplete download?)",
                    self.data_start.saturating_add(self.data_len).saturating_add(missing)
                ),
            )),
            None => read,
        }
    }

    /// How many bytes a file lacks whose header is valid but for its length.
    #[cold]
    fn missing(&self) -> Option<u64> {
        let mut end = 0;
        let mut scanner = Scanner::new(self.text);
        let unlimited = Header { data_len: u64::MAX - self.data_start, ..*self };
        let walked = scanner.object(|scanner, name| {
            if name == METADATA {
                return scanner.skip();
            }
            let mut covered = Vec::new();
            unlimited.tensor(scanner, &mut ("", None), &mut covered)?;
            end = covered.iter().fold(end, |end, (_, next)| end.max(*next));
            Ok(())
        });
        // Beyond any file there has been, the number is damaged rather than the file cut.
        walked
            .ok()
            .and_then(|()| end.checked_sub(self.data_len))
            .filter(|missing| *missing > 0 && end < 1 << 50)
    }

    fn read_all(&self, catalog: &mut Catalog) -> Result<()> {
        if !self.text.starts_with('{') {
            return Err(Error::corrupt("safetensors.start", "the header does not start with {"));
        }
        // Tensors may stand in any order in the header, but together must cover the data.
        let mut covered: Vec<(u64, u64)> = Vec::new();
        let mut last_dtype = ("", None);
        let mut scanner = Scanner::new(self.text);
        let mut metadata = false;
        scanner.object(|scanner, name| {
            if name == METADATA {
                if std::mem::replace(&mut metadata, true) {
                    return Err(duplicate(METADATA));
                }
                return read_metadata(scanner, catalog);
            }
            let before = scanner.position();
            let object = self.tensor(scanner, &mut last_dtype, &mut covered);
            let object = object.map_err(|error| error.in_tensor(&*name))?;
            if covered.len() == 1 {
                // The others are about as long as the first, and none is shorter than 50 bytes.
                let entry = (scanner.position() - before + name.len()).max(50);
                catalog.objects.reserve(self.text.len() / entry);
                covered.reserve(self.text.len() / entry);
            }
            catalog.insert(name, object)
        })?;
        scanner.end()?;
        self.check_cover(covered, catalog)
    }

    /// Takes the entries that make sense; a name that comes twice is none.
    fn read_leniently(&self, catalog: &mut Catalog) {
        let mut twice = HashSet::new();
        let walked = Scanner::new(self.text).object(|scanner, name| {
            let mut attempt = scanner.clone();
            let Ok(object) = self.tensor(&mut attempt, &mut ("", None), &mut Vec::new()) else {
                return scanner.skip();
            };
            *scanner = attempt;
            match catalog.insert(&*name, object) {
                Err(error) if error.rule() == Some("name.duplicate") => drop(twice.insert(name)),
                // Other entries that break a rule are left out.
                Ok(()) | Err(_) => {}
            }
            Ok(())
        });
        if walked.is_err() {
            catalog.objects.clear(); // the text is no JSON, so nothing in it means anything
        }
        if !twice.is_empty() {
            catalog.objects.retain(|name, _| !twice.contains(&**name));
        }
    }

    /// One entry; its range in the data goes to `covered`.
    fn tensor<'a>(
        &self,
        scanner: &mut Scanner<'a>,
        last_dtype: &mut (&'a str, Option<DType>),
        covered: &mut Vec<(u64, u64)>,
    ) -> Result<Object> {
        let mut info = Info::default();
        scanner.object(|scanner, key| match &*key {
            "dtype" => set(&mut info.dtype, "dtype", read_dtype(scanner, last_dtype)?),
            "shape" => {
                let mut shape = Shape::new();
                scanner.array(|scanner| {
                    shape.push(scanner.u64()?);
                    Ok(())
                })?;
                set(&mut info.shape, "shape", shape)
            }
            "data_offsets" => {
                scanner.expect(b'[')?;
                let start = scanner.u64()?;
                scanner.expect(b',')?;
                let end = scanner.u64()?;
                scanner.expect(b']')?;
                set(&mut info.offsets, "data_offsets", (start, end))
            }
            _ => scanner.skip(), // the format's own readers ignore it too
        })?;
        let (Some(dtype), Some(shape), Some((start, end))) = (info.dtype, info.shape, info.offsets) else {
            return Err(Error::corrupt(
                "safetensors.entry",
                "an entry needs \"dtype\", \"shape\" and \"data_offsets\"",
            ));
        };
        if start > end || end > self.data_len {
            return Err(Error::corrupt(
                "safetensors.offsets",
                format!("the offsets {start}..{end} lie outside the {} bytes of data", self.data_len),
            ));
        }
        // The format multiplies in order, so that a zero does not excuse an overflow before it.
        let bits = shape
            .iter()
            .try_fold(1u64, |product, size| product.checked_mul(*size))
            .and_then(|elements| elements.checked_mul(u64::from(dtype.bits())));
        match bits {
            None => {
                return Err(Error::corrupt(
                    "safetensors.overflow",
                    format!("the shape {shape:?} of {dtype} has more than 2^64 bits"),
                ));
            }
            Some(bits) if bits % 8 != 0 => {
                return Err(Error::corrupt(
                    "safetensors.sub-byte",
                    format!("the shape {shape:?} of {dtype} has {bits} bits, which are not whole bytes"),
                ));
            }
            Some(bits) if bits / 8 != end - start => {
                return Err(Error::corrupt(
                    "safetensors.size",
                    format!(
                        "the shape {shape:?} of {dtype} takes {} bytes, the offsets {start}..{end} hold {}",
                        bits / 8,
                        end - start
                    ),
                ));
            }
            Some(_) => {}
        }
        let extent = Extent::new(self.data_start + start, end - start);
        covered.push((start, end));
        Ok(Object::dense(shape, Component::plain(dtype, extent)))
    }

    /// The tensors' ranges must follow each other from the first byte of data to the last.
    fn check_cover(&self, mut covered: Vec<(u64, u64)>, catalog: &Catalog) -> Result<()> {
        if !covered.is_sorted() {
            covered.sort_unstable();
        }
        let mut end = 0;
        for (start, next) in covered {
            if start != end {
                let at = self.data_start + start;
                let name = catalog.objects.iter().find(|(_, object)| {
                    object
                        .components
                        .iter()
                        .any(|(_, c)| c.extent().is_some_and(|extent| extent.offset == at))
                });
                let what = if start > end { "a hole" } else { "an overlap" };
                let error = Error::corrupt(
                    "safetensors.contiguous",
                    format!("{what} in the data: the tensor starts at {start}, the one before ends at {end}"),
                );
                return Err(match name {
                    Some((name, _)) => error.in_tensor(&**name),
                    None => error,
                });
            }
            end = next;
        }
        if end != self.data_len {
            return Err(Error::corrupt(
                "safetensors.trailing",
                format!("the tensors take {end} bytes of data, the file has {}", self.data_len),
            ));
        }
        Ok(())
    }
}

/// The type of that name; most tensors have the type of the one before.
fn read_dtype<'a>(scanner: &mut Scanner<'a>, last: &mut (&'a str, Option<DType>)) -> Result<DType> {
    let name = scanner.string()?;
    if let (known, Some(dtype)) = *last
        && known == name
    {
        return Ok(dtype);
    }
    let dtype = DType::from_safetensors_name(&name).ok_or_else(|| {
        Error::unsupported(format!("the element type {} is not one this version knows", quoted(&name)))
    })?;
    if let Cow::Borrowed(name) = name {
        *last = (name, Some(dtype));
    }
    Ok(dtype)
}

fn read_metadata(scanner: &mut Scanner<'_>, catalog: &mut Catalog) -> Result<()> {
    if scanner.word("null") {
        return Ok(());
    }
    scanner.object(|scanner, key| {
        if scanner.peek() != Some(b'"') {
            return Err(Error::corrupt(
                "safetensors.metadata",
                format!("{METADATA}: the value of {} is not a string", quoted(&key)),
            ));
        }
        let value = Value::Text(scanner.string()?.into_owned());
        match catalog.attributes.insert(key.clone().into_owned(), value) {
            None => Ok(()),
            Some(_) => Err(duplicate(&key)),
        }
    })
}

fn set<T>(slot: &mut Option<T>, key: &str, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(duplicate(key)),
    }
}

fn duplicate(key: &str) -> Error {
    Error::corrupt("safetensors.duplicate", format!("the key {} appears twice", quoted(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    fn leniently(header: &str, data: usize) -> Catalog {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        parse_leniently(Arc::new(MemorySource::new(bytes))).unwrap().unwrap()
    }

    #[test]
    fn names_that_come_twice_are_no_tensors() {
        let entry = |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#);
        let header = format!("{{{},{},{},{}}}", entry("a"), entry("b"), entry("a"), entry("c"));
        let catalog = leniently(&header, 1);
        assert_eq!(catalog.objects.keys().map(|name| &**name).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn very_many_names_that_all_come_twice() {
        // Comparing each with all others would take 10^11 comparisons.
        let entries = (0..600_000u32).map(|number| {
            format!(r#""{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, number % 300_000)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        assert!(leniently(&header, 0).objects.is_empty());
    }
}
