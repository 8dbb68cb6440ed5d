//! A file as a list of pieces: the tensors that lie in it as they are in memory, and what is between.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::pool::BufferPool;
use crate::catalog::{Layout, Shape, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::gguf::GgmlType;
use crate::format::{Context, parse};
use crate::platform;
use crate::remote::Options;
use crate::source::{FileSource, MapMode, Source, check_range};
use crate::write::export::{ExportFormat, ExportOptions, Plan, TensorList};

/// Shorter arrays are no objects: each would take as much room in the lists of contents. (structural)
const SHORTEST: u64 = 512;
/// What is no tensor is cut into pieces of this size. (limit)
const OTHER: u64 = 32 << 20;

/// A file to commit.
pub(crate) struct FileInput<'a> {
    pub(crate) path: String,
    pub(crate) executable: bool,
    pub(crate) pieces: Vec<Piece<'a>>,
}

/// A part of a file.
pub(crate) struct Piece<'a> {
    pub(crate) content: Content<'a>,
    pub(crate) kind: PieceKind,
}

pub(crate) enum PieceKind {
    /// An array of that name, type and shape.
    Tensor(String, DType, Shape),
    /// Quantized blocks of that name and type, of a tensor of that shape.
    Blocks(String, GgmlType, Shape),
    /// What stands between the tensors of a file: its headers.
    Header,
    /// Part of a file that is no tensor file.
    Other,
}

impl PieceKind {
    fn name(&self) -> &str {
        match self {
            PieceKind::Tensor(name, ..) | PieceKind::Blocks(name, ..) => name,
            PieceKind::Header | PieceKind::Other => "",
        }
    }
}

/// Bytes, in memory or not yet.
pub(crate) enum Content<'a> {
    Source(Arc<dyn Source>, u64, u64),
    Memory(Cow<'a, [u8]>),
}

impl Content<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Content::Source(_, _, len) => *len,
            Content::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Calls `with` with the bytes, read into a buffer of the pool if they are not in memory.
    pub(crate) fn with_bytes<T>(
        &self,
        pool: &BufferPool,
        with: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let (source, offset, len) = match self {
            Content::Memory(bytes) => return with(bytes),
            Content::Source(source, offset, len) => (source, *offset, *len),
        };
        check_range(source.len(), offset, len).map_err(|error| error.in_file(source.label()))?;
        let mut buffer = pool.take(len)?;
        source.read_at(offset, &mut buffer[..len as usize])?;
        let result = with(&buffer[..len as usize]);
        pool.put(buffer);
        result
    }
}

/// A file of a folder, by its path from there and where it is.
pub(crate) fn open(path: String, from: &Path) -> Result<FileInput<'static>> {
    let metadata = std::fs::metadata(from).map_err(|error| Error::io("cannot read", error).in_file(from))?;
    // Read and not mapped: what is hashed has to be what is stored, even if the file changes meanwhile.
    let source: Arc<dyn Source> = Arc::new(FileSource::open(from, MapMode::Never)?);
    let pieces = pieces(source, Some(from))?;
    Ok(FileInput { path, executable: platform::mode_of(&metadata) & 0o100 != 0, pieces })
}

/// The pieces of a file. One that cannot be parsed, for whatever reason, is not a tensor file here.
fn pieces(source: Arc<dyn Source>, from: Option<&Path>) -> Result<Vec<Piece<'static>>> {
    let tensors = tensors(&source, from);
    let headers = !tensors.is_empty();
    let mut pieces = Vec::with_capacity(2 * tensors.len() + 1);
    let mut end = 0;
    let other = |pieces: &mut Vec<Piece<'static>>, from: u64, to: u64| {
        for start in (from..to).step_by(OTHER as usize) {
            let len = (to - start).min(OTHER);
            let kind = match headers {
                true => PieceKind::Header,
                false => PieceKind::Other,
            };
            pieces.push(Piece { content: Content::Source(source.clone(), start, len), kind });
        }
    };
    for (offset, len, kind) in tensors {
        // Tied tensors come once, and of those that overlap the first.
        if offset >= end {
            other(&mut pieces, end, offset);
            let content = Content::Source(source.clone(), offset, len);
            pieces.push(Piece { content, kind });
            end = offset + len;
        }
    }
    other(&mut pieces, end, source.len());
    Ok(pieces)
}

type Found = (u64, u64, PieceKind);

/// Offset, length and kind of the arrays that lie in a file as they are in memory.
fn tensors(source: &Arc<dyn Source>, from: Option<&Path>) -> Vec<Found> {
    let context = Context { path: from.map(Path::to_owned), map_mode: MapMode::Never, ..Context::default() };
    let Ok(catalog) = parse(source.clone(), &context) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, object) in &catalog.objects {
        for (role, component) in &object.components {
            let Storage::Plain(extent) = component.storage else { continue };
            if extent.source != 0 || extent.len < SHORTEST || component.unknown_type.is_some() {
                continue;
            }
            let dense = object.layout == Layout::Dense && role == "data";
            let blocks = GgmlType::from_layout_name(object.layout.name()).filter(|_| role == "blocks");
            let part = || format!("{name}:{role}");
            let kind = match blocks {
                Some(blocks) => PieceKind::Blocks(part(), blocks, object.shape.clone()),
                None if dense => PieceKind::Tensor(name.to_string(), component.dtype, object.shape.clone()),
                None => {
                    let size = component.dtype.size().unwrap_or(1) as u64;
                    PieceKind::Tensor(part(), component.dtype, Shape::from_slice(&[extent.len / size]))
                }
            };
            found.push((extent.offset, extent.len, kind));
        }
    }
    found.sort_by(|a, b| (a.0, a.1, a.2.name()).cmp(&(b.0, b.1, b.2.name())));
    found.retain(|(offset, len, _)| offset.checked_add(*len).is_some_and(|end| end <= source.len()));
    found
}

/// Whether a name matches a pattern, in which `*` stands for any text and `?` for any character.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where the last star was, and what it stands for so far.
    let (mut at, mut place, mut star) = (0, 0, None);
    while place < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(char) if *char == '?' || *char == name[place] => (at, place) = (at + 1, place + 1),
            _ => match star {
                Some((star_at, from)) => {
                    (at, place) = (star_at + 1, from + 1);
                    star = Some((star_at, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|char| *char == '*')
}

/// The files of a path but for those whose names match: those of a folder, or one. Links are followed, as download caches keep their
/// files behind them; folders behind links are not.
pub(crate) fn files(path: &Path, exclude: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let failed = |error| Error::io("cannot read", error).in_file(path);
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Error::invalid("this path has no name").in_file(path))?;
        return Ok(vec![(name, path.to_owned())]);
    }
    let listed = crate::remote::store::list(path, &Options::default())?;
    let listed = listed.into_iter().filter(|entry| !exclude.iter().any(|one| matches(one, &entry.name)));
    let files: Vec<_> = listed.map(|entry| (entry.name.clone(), path.join(&entry.name))).collect();
    match files.is_empty() {
        true => Err(Error::invalid("there are no files in this folder").in_file(path)),
        false => Ok(files),
    }
}

/// Tensors in memory as the `.safetensors` file that they would be.
pub(crate) fn tensor_file<'a>(path: String, list: &'a TensorList<'_>) -> Result<FileInput<'a>> {
    let options = ExportOptions::default();
    let plan = Plan::new(list, &options, ExportFormat::Safetensors)?;
    let (start, order) = crate::format::safetensors::write::start(&plan)?;
    let mut pieces = vec![Piece { content: Content::Memory(start.into()), kind: PieceKind::Header }];
    for index in order {
        let (name, tensor) = &list.tensors[index];
        let data = tensor.require("data")?;
        let kind = match data.bytes.len() as u64 >= SHORTEST {
            true => PieceKind::Tensor(name.clone(), data.dtype, tensor.shape.clone()),
            false => PieceKind::Header,
        };
        pieces.push(Piece { content: Content::Memory(Cow::Borrowed(&data.bytes)), kind });
    }
    Ok(FileInput { path, executable: false, pieces })
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_have_stars_and_question_marks() {
        for (pattern, name) in [("*.pt", "a.pt"), ("a?c", "abc"), ("*", ""), ("a*b*c", "aXbYbZc"), ("x", "x")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.pt", "a.ptx"), ("a?c", "ac"), ("", "x"), ("a*b", "ba"), ("x", "xx")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
