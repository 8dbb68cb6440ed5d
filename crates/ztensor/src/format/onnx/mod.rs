//! `.onnx` models: the protobuf is walked in place, and the tensors of
//! initializers, constants, subgraphs and functions become objects.

mod constant;
mod elements;
mod graph;
mod properties;
mod sparse;
mod tensor;
pub(crate) mod wire;

use std::ops::Range;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict};
use crate::remote::{self, store::join};
use crate::source::{Cursor, Sources, sibling};
use crate::tensor::value::Value;
use properties::Properties;
use wire::{Field, Payload, fields};

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Onnx,
    extensions: &[Extension::new("onnx").rank(11)],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        sparse: true,
        metadata: Metadata::Typed,
        encodings: &["protobuf"],
        sequential: &["protobuf"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[],
};

/// The fields of a `ModelProto` that are numbers and those that are bytes.
const NUMBERS: [u64; 2] = [1, 5];
const BYTES: [u64; 10] = [2, 3, 4, 6, 7, 8, 14, 20, 25, 26];

/// A protobuf has no magic. A file whose top level is nothing but the fields of
/// a model, to its last byte, is one; a file that at least begins so may be a
/// damaged one, if it is called `.onnx`.
fn detect(probe: &Probe<'_>) -> Verdict {
    /// Models have a dozen fields at the top, libraries of functions hundreds.
    const ENOUGH: usize = 10_000;
    let (mut version, mut graph, mut seen) = (false, false, 0);
    let range = 0..probe.source.len();
    let walked = fields(&mut Cursor::new(probe.source), range, |_, field| {
        seen += 1;
        version |= field.number == 1;
        graph |= field.number == 7;
        match known(&field) && seen < ENOUGH {
            true => Ok(()),
            false => Err(Error::unsupported("not a model")),
        }
    });
    match walked {
        Ok(()) if version && graph => Verdict::Yes,
        _ if seen > 0 => Verdict::Maybe,
        _ => Verdict::No,
    }
}

fn known(field: &Field) -> bool {
    match field.payload {
        Payload::Varint(_) => NUMBERS.contains(&field.number),
        Payload::Bytes(_) => BYTES.contains(&field.number),
        Payload::Fixed(_) => false,
    }
}

fn parse(Input { source, .. }: Input, context: &Context) -> Result<Catalog> {
    let mut catalog = Catalog::new(Format::Onnx, Sources::default());
    let mut externals = Externals::default();
    {
        let mut cursor = Cursor::new(&*source);
        read_model(&mut cursor, 0..source.len(), &mut catalog, &mut externals)?;
    }
    catalog.sources.push(source);
    externals.push_onto(&mut catalog.sources, context);
    Ok(catalog)
}

fn read_model(
    cursor: &mut Cursor<'_>,
    range: Range<u64>,
    catalog: &mut Catalog,
    externals: &mut Externals,
) -> Result<()> {
    let mut graph = None;
    let (mut training, mut functions) = (0u64, 0u64);
    let mut opsets = Vec::new();
    let mut metadata = Properties::default();
    let attributes = &mut catalog.attributes;
    fields(cursor, range.clone(), |cursor, field| {
        let name = match field.number {
            1 => "ir_version",
            2 => "producer_name",
            3 => "producer_version",
            4 => "domain",
            5 => "model_version",
            6 => "doc_string",
            7 => return tensor::once(&mut graph, field.bytes()?, "the graph"),
            8 => {
                opsets.push(properties::opset(cursor, field.bytes()?)?);
                return Ok(());
            }
            14 => return metadata.read(cursor, field.bytes()?),
            20 => {
                training += 1;
                return Ok(());
            }
            25 => {
                functions += 1;
                return Ok(());
            }
            _ => return Ok(()),
        };
        let value = match field.payload {
            Payload::Varint(number) => Value::Int(i128::from(number as i64)),
            _ => properties::text_value(cursor, field.bytes()?)?,
        };
        // A field that comes twice means what it says last, as in every protobuf reader.
        attributes.insert(name.to_owned(), value);
        Ok(())
    })?;
    let Some(graph) = graph else {
        return Err(Error::corrupt("onnx.no-graph", "the model has no graph"));
    };
    if !opsets.is_empty() {
        attributes.insert("opset_import".to_owned(), Value::Map(opsets));
    }
    let mut walk = graph::Walk::new(externals, range.end);
    walk.main_graph(cursor, graph, attributes)?;
    if training + functions > 0 {
        walk.other_graphs(cursor, range)?;
    }
    metadata.insert_into(attributes);
    walk.finish(catalog)
}

/// The external files that tensors name, each opened once and when needed.
#[derive(Debug, Default)]
pub(super) struct Externals(IndexMap<String, ()>);

impl Externals {
    /// The index that the file at `location` will have among the catalog's
    /// sources; the model itself is source 0.
    fn source(&mut self, location: &str) -> Result<u32> {
        let index = match self.0.get_index_of(location) {
            Some(index) => index,
            None => {
                sibling::check(location)?;
                self.0.insert_full(location.to_owned(), ()).0
            }
        };
        u32::try_from(index + 1).map_err(|_| Error::corrupt("onnx.external-path", "too many external files"))
    }

    fn push_onto(self, sources: &mut Sources, context: &Context) {
        for (location, ()) in self.0 {
            let context = context.clone();
            sources.push_lazy(location.clone(), move || match &context.path {
                // What `check` lets through can only name something below the model's folder.
                Some(model) if remote::is_url(model) || context.files.is_some() => {
                    context.open(&join(model.parent().unwrap_or(model), &location))
                }
                Some(model) => Ok(Arc::new(sibling::open(model, &location, context.map_mode)?)),
                None => Err(Error::invalid(format!(
                    "its data is in the file {} beside the model: open the model by its path",
                    crate::error::quoted(&location)
                ))),
            });
        }
    }
}
