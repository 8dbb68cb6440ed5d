//! `id`: content ids, which do not depend on the file format.

use std::cell::RefCell;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value as Json, json};
use ztensor::Digest;
use ztensor::format::zt2;
use ztensor::id::{ContentIds, Evidence};

use super::Common;
use crate::args::Id;
use crate::failure::{FINE, Failure, Outcome};
use crate::ui::Progress;
use crate::{files, human};

pub fn run(options: &Id, common: Common) -> Outcome {
    let paths = files::expanded(&options.files)?;
    let documents = RefCell::new(Vec::new());
    let outcome = files::each(&paths, |path| {
        let (ids, own) = ids(path, options, common)?;
        match options.json {
            true => documents.borrow_mut().push(document(path, &ids, &own, options.per_tensor)),
            false => print(path, &ids, &own, options.per_tensor)?,
        }
        Ok(FINE)
    });
    if options.json {
        let mut documents = documents.into_inner();
        let document = match paths.len() {
            1 => documents.pop(),
            _ => Some(Json::Array(documents)),
        };
        if let Some(document) = document {
            let mut out = crate::output::stdout();
            let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
            writeln!(out, "{text}")?;
            out.flush()?;
        }
    }
    outcome
}

/// The content ids of a file, and the digests that its format defines for the same purpose.
fn ids(path: &Path, options: &Id, common: Common) -> Result<(ContentIds, Vec<Digest>), Failure> {
    let reader = common.open(path)?;
    let total = reader.objects().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    let progress = Progress::new("hashing", total, common.quiet);
    let evidence = if options.stored { Evidence::StoredDigests } else { Evidence::Bytes };
    // Not defined where a part has no digest.
    let own = zt2::content_digest(&reader).map_or_else(|_| Vec::new(), Vec::from);
    Ok((reader.content_ids(evidence, Some(&progress))?, own))
}

fn print(path: &Path, ids: &ContentIds, own: &[Digest], per_tensor: bool) -> std::io::Result<()> {
    let mut out = crate::output::stdout();
    if per_tensor {
        for (name, id) in &ids.tensors {
            writeln!(out, "{id}  {}", human::escaped(name))?;
        }
    }
    writeln!(out, "{}  {}", ids.model, human::escaped(&path.to_string_lossy()))?;
    for digest in own {
        writeln!(out, "{digest}  {} (zt.content/1)", human::escaped(&path.to_string_lossy()))?;
    }
    out.flush()
}

fn document(path: &Path, ids: &ContentIds, own: &[Digest], per_tensor: bool) -> Json {
    let mut document = json!({
        "file": path.to_string_lossy(),
        "id": ids.model.to_string(),
    });
    if !own.is_empty() {
        document["zt.content/1"] = own.iter().map(ToString::to_string).collect();
    }
    if per_tensor {
        let tensors: Map<String, Json> =
            ids.tensors.iter().map(|(name, id)| (name.clone(), id.to_string().into())).collect();
        document["tensors"] = tensors.into();
    }
    document
}
