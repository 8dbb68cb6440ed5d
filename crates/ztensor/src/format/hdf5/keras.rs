//! `.keras` archives: a zip whose member `model.weights.h5` is an HDF5 file,
//! read where it stands when it is stored, and from memory when it is deflated.

use std::sync::Arc;

use crate::catalog::{Catalog, Decode};
use crate::decode::Deflate;
use crate::error::{Error, Result};
use crate::format::zip::{Entry, Method};
use crate::format::{Format, Input, Probe, Verdict};
use crate::source::{MemorySource, Source, Sources, zeroed};
use crate::tensor::value::Value;

const WEIGHTS: &str = "model.weights.h5";
/// Descriptions of the model, which become attributes of the file.
const DESCRIPTIONS: [&str; 2] = ["metadata.json", "config.json"];

/// A deflated member may be this many times its stored size, and this much more.
const EXPANSION: (u64, u64) = (32, 1 << 20);

pub(super) fn detect(probe: &Probe<'_>) -> Verdict {
    match probe.directory.entries(probe.source) {
        Ok(entries) if entries.iter().any(|entry| entry.name == WEIGHTS) => Verdict::Yes,
        Ok(_) => Verdict::No,
        Err(_) => Verdict::Maybe,
    }
}

pub(super) fn parse(input: &Input) -> Result<Catalog> {
    let source = Arc::clone(&input.source);
    let entries = input.directory.entries(&*source)?;
    let sources = Sources::one(source.clone());
    let weights = entries.iter().find(|entry| entry.name == WEIGHTS);
    let weights =
        weights.ok_or_else(|| Error::corrupt("keras.weights", format!("the archive has no {WEIGHTS}")))?;
    let mut texts = Vec::new();
    for entry in entries.iter().filter(|entry| DESCRIPTIONS.contains(&&*entry.name)) {
        let bytes = unpack(entry, &sources)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::corrupt("keras.text", format!("{} is not UTF-8", entry.name)))?;
        texts.push((entry.name.clone(), Value::Text(text)));
    }
    let mut catalog = Catalog::new(Format::Hdf5, sources);
    match weights.method {
        Method::Stored => {
            let start = weights.data.offset;
            super::read(source, 0, start..start + weights.data.len, &mut catalog)?;
        }
        Method::Deflated => {
            let memory: Arc<dyn Source> = Arc::new(MemorySource::new(unpack(weights, &catalog.sources)?));
            let index = catalog.sources.push(memory.clone());
            let len = memory.len();
            super::read(memory, index, 0..len, &mut catalog)?;
        }
    }
    catalog.attributes.extend(texts);
    Ok(catalog)
}

/// The decoded bytes of a member; its checksum is compared.
fn unpack(entry: &Entry, sources: &Sources) -> Result<Vec<u8>> {
    let (factor, extra) = EXPANSION;
    if entry.len > entry.data.len.saturating_mul(factor).saturating_add(extra) {
        return Err(Error::unsupported(format!(
            "{} is compressed {} to 1: unpack the archive first",
            entry.name,
            entry.len / entry.data.len.max(1)
        )));
    }
    let mut bytes = zeroed(entry.len)?;
    match entry.method {
        Method::Stored => sources.read(entry.data, 0, &mut bytes)?,
        Method::Deflated => {
            Deflate::new(entry.data, entry.len, Some(entry.crc))?.decode(
                sources,
                0..entry.len,
                &mut bytes,
                1,
            )?;
        }
    }
    Ok(bytes)
}
