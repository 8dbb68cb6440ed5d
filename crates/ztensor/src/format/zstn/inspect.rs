//! What is in a packed file, without decoding its tensors.

use std::path::Path;
use std::sync::Arc;

use super::container::{Container, Mode, Stored, in_data_order};
use crate::catalog::Catalog;
use crate::error::Result;
use crate::format::{Format, safetensors};
use crate::remote::Options;
use crate::source::{self, MapMode, Source, Sources};

/// What a packed file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The version of the packed file: 3 or 4.
    pub version: u8,
    /// Bytes of the packed file.
    pub packed_len: u64,
    /// Bytes of the original.
    pub original_len: u64,
    /// Contents that the original was cut into: tensors, and what is between them.
    pub contents: u64,
    /// The original's JSON header as it is, padding included; `None` if the file was packed
    /// without knowledge of its tensors.
    pub header: Option<String>,
    /// The tensors in the order of their data; none where there is no header.
    pub tensors: Vec<Entry>,
}

/// One tensor of a packed file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Bytes of the tensor.
    pub len: u64,
    /// Bytes that it is stored as, which tensors of equal bytes share.
    pub stored_len: u64,
    /// `z4ai`, or `raw` where that would not be smaller.
    pub encoding: &'static str,
    /// The tensor with the same bytes that it is stored as, by its place in this list.
    pub same_as: Option<usize>,
}

/// Describes a packed file.
pub fn inspect(path: impl AsRef<Path>) -> Result<Info> {
    let path = path.as_ref();
    inspect_source(source::open(path, MapMode::Auto, &Options::default())?)
        .map_err(|error| error.in_file(path))
}

/// Describes a packed file of any source, such as memory.
pub fn inspect_source(source: Arc<dyn Source>) -> Result<Info> {
    let packed_len = source.len();
    let container = Container::read(source)?;
    let (version, original_len) = (container.version, container.content_len);
    let contents = container.blobs.len() as u64;
    let mut info = Info { version, packed_len, original_len, contents, header: None, tensors: Vec::new() };
    if container.mode == Mode::Opaque {
        return Ok(info);
    }
    let header = container.header()?;
    let mut catalog = Catalog::new(Format::Zstn, Sources::default());
    safetensors::read_header(&header, 0, original_len - container.blobs[0].len, &mut catalog)?;
    let names: Vec<String> = match &container.names {
        Some(names) => names.iter().map(|(name, _)| name.clone()).collect(),
        None => {
            let name = |index| catalog.objects.get_index(index).map(|(name, _)| name.to_string());
            in_data_order(&catalog).into_iter().filter_map(name).collect()
        }
    };
    for (name, blob) in names.into_iter().zip(&container.blobs[1..]) {
        let (same_as, stored) = match blob.stored {
            Stored::Same(first) => (first.checked_sub(1), container.blobs[first].stored),
            stored => (None, stored),
        };
        let encoding = if matches!(stored, Stored::Raw(..)) { "raw" } else { "z4ai" };
        let stored_len = stored.extent().map_or(0, |extent| extent.len);
        info.tensors.push(Entry { name, len: blob.len, stored_len, encoding, same_as });
    }
    info.header = Some(header);
    // Whatever the reader would refuse is refused here, too.
    container.into_catalog()?;
    Ok(info)
}
