//! `.zstn`: a `.safetensors` file packed with the weight codec, restored byte for byte.
//!
//! A packed file is a sequence of blobs, each a codec frame or bytes as they are, whose
//! contents one after another are the original file: first its header, then its tensors
//! in the order of their data. An index and a footer at the end say where each blob
//! lies, so that one tensor, or some rows of it, can be read without the rest. Tensors of
//! equal bytes are stored once. A file that is not quite a `.safetensors` file (holes,
//! trailing bytes, duplicate keys) is packed without knowledge of its tensors.
//!
//! ```
//! use ztensor::zstn::{PackOptions, UnpackOptions, pack, unpack};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let (model, packed, restored) =
//! #     (folder.path().join("m.safetensors"), folder.path().join("m.zstn"), folder.path().join("r.safetensors"));
//! # let header = br#"{"w":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}}"#;
//! # let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
//! # bytes.extend_from_slice(header);
//! # bytes.resize(bytes.len() + 400, 0);
//! # std::fs::write(&model, &bytes).unwrap();
//! let stats = pack(&model, &packed, &PackOptions::default())?;
//! println!("{} of {} bytes", stats.packed_len, stats.original_len);
//!
//! let reader = ztensor::open(&packed)?; // reads headers only
//! let weights: Vec<f32> = reader.read_as("w")?; // decodes only this tensor
//! # assert_eq!(weights, [0.0; 100]);
//!
//! unpack(&packed, &restored, &UnpackOptions::default())?;
//! # assert_eq!(std::fs::read(&restored).unwrap(), bytes);
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! `docs/spec/zstn.md` has the layout and its rules. Version 3 files are read, version 4 is
//! written.

mod container;
mod contents;
mod duplicates;
mod inspect;
mod pack;
mod unpack;
mod v3;
mod write;

pub use inspect::{Entry, Info, inspect, inspect_source};
pub use pack::{PackOptions, PackStats, pack, pack_source};
pub use unpack::{UnpackOptions, unpack, unpack_source};

use crate::catalog::Catalog;
use crate::error::Result;
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict};
use crate::write::export::ExportFormat;
use container::Container;

pub(crate) const MAGIC: &[u8; 4] = b"ZSTN";

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Zstn,
    extensions: &[Extension::new("zstn").rank(2)],
    merges_files: true,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        writes: true,
        metadata: Metadata::Text,
        encodings: &["z4ai"],
        checksums: &["crc32c", "xxh3"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[(ExportFormat::Zstn, write::export)],
};

/// Whether `head`, the first bytes of a file, are those of a packed file of any version.
pub fn is_packed(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

fn detect(probe: &Probe<'_>) -> Verdict {
    if is_packed(probe.head) { Verdict::Yes } else { Verdict::No }
}

fn parse(Input { source, .. }: Input, _context: &Context) -> Result<Catalog> {
    Container::read(source)?.into_catalog()
}
