//! What an HTML report shows of a file: `ztensor report` writes it, the viewer in a browser shows it.

pub mod analysis;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod page;

use serde_json::{Value as Json, json};
use ztensor::Reader;

use crate::{describe, human, quantization};

/// What the page says of the whole file.
pub fn head(title: &str, reader: &Reader) -> ztensor::Result<Json> {
    let metadata: Vec<_> = reader
        .attributes()
        .iter()
        .map(|(name, value)| [human::escaped(name).into_owned(), describe::preview(value)])
        .collect();
    let schemes = quantization::schemes(reader)?;
    let quantized: Vec<_> = schemes.iter().map(quantization::Total::line).collect();
    Ok(json!({
        "file": human::escaped(title),
        "format": reader.format().name(),
        "metadata": metadata,
        "quantized": quantized,
        "bits_per_weight": quantization::bits_per_weight(reader),
    }))
}
