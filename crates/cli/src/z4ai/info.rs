//! `info`: what a frame, a delta or a packed model holds.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use z4ai::{FrameInfo, StreamInfo};
use ztensor::source::Source;
use ztensor::{OpenOptions, model_delta, zstn};

use super::args::Info;
use super::files;
use super::frames::in_file;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;

pub fn run(options: &Info) -> Outcome {
    let path = &options.file;
    let source = files::open(path)?;
    let data = source.mapped()?;
    if zstn::is_packed(data) {
        return packed(path, source, options.json);
    }
    if model_delta::is_model_delta(data) {
        let info = model_delta::info_source(source).map_err(|error| Failure::from(error.in_file(path)))?;
        return super::model_delta::describe(path, &info, options.json);
    }
    let frame = if z4ai::delta::is_delta(data) {
        z4ai::delta::inspect(data)
    } else if z4ai::is_frame(data) {
        z4ai::inspect(data)
    } else {
        let what = match OpenOptions::default().open_source(Arc::clone(&source)) {
            Ok(reader) => {
                format!("its format is {}, not compressed by z4ai: use `ztensor info`", reader.format())
            }
            Err(_) => {
                let looks = ztensor::format::foreign::looks_like(&data[..data.len().min(4096)]);
                format!("not compressed by z4ai: it looks like {looks}")
            }
        };
        return Err(Failure::bad_file(format!("{}: {what}", files::name(path))));
    };
    let frame = frame.map_err(|error| in_file(path, error))?;
    let streams = z4ai::streams(data).map_err(|error| in_file(path, error))?;
    let mut out = crate::output::stdout();
    match options.json {
        true => writeln!(out, "{:#}", document(path, &frame, &streams))?,
        false => print(&mut out, path, &frame, &streams)?,
    }
    out.flush()?;
    Ok(FINE)
}

/// Describes a packed model, tensor by tensor.
fn packed(path: &Path, source: Arc<dyn Source>, json: bool) -> Outcome {
    let named = |error: ztensor::Error| Failure::from(error.in_file(path));
    let info = zstn::inspect_source(Arc::clone(&source)).map_err(named)?;
    let reader = match info.header {
        None => None,
        Some(_) => Some(OpenOptions::default().open_source(source).map_err(named)?),
    };
    let object = |name: &str| reader.as_ref().and_then(|reader| reader.find(name));
    let mut out = crate::output::stdout();
    if json {
        let tensors: Vec<Json> = info
            .tensors
            .iter()
            .map(|tensor| {
                json!({
                    "name": tensor.name,
                    "dtype": object(&tensor.name).and_then(|object| object.dtype()).map(|dtype| dtype.name()),
                    "shape": object(&tensor.name).map(|object| object.shape.to_vec()),
                    "bytes": tensor.len,
                    "stored_bytes": tensor.stored_len,
                    "encoding": tensor.encoding,
                    "same_as": tensor.same_as.map(|first| &info.tensors[first].name),
                })
            })
            .collect();
        let document = json!({
            "file": path.display().to_string(),
            "format": "ZSTN",
            "version": info.version,
            "bytes": info.original_len,
            "stored_bytes": info.packed_len,
            "opaque": info.header.is_none(),
            "contents": info.contents,
            "tensors": tensors,
        });
        writeln!(out, "{document:#}")?;
        out.flush()?;
        return Ok(FINE);
    }
    writeln!(out, "{:<12}{}", "file", files::name(path))?;
    writeln!(out, "{:<12}ZSTN {}", "format", info.version)?;
    writeln!(out, "{:<12}{}", "original", human::bytes(info.original_len))?;
    let saved = files::saved(info.original_len, info.packed_len);
    writeln!(out, "{:<12}{}{saved}", "compressed", human::bytes(info.packed_len))?;
    match info.header {
        None if info.contents > 1 => {
            let contents = human::count(info.contents);
            writeln!(
                out,
                "{:<12}{contents} (tensors and what is between them; unpack it to read it)",
                "contents"
            )?;
        }
        None => writeln!(out, "{:<12}packed as a whole", "tensors")?,
        Some(_) => writeln!(out, "{:<12}{}", "tensors", human::count(info.tensors.len() as u64))?,
    }
    let names: Vec<_> = info.tensors.iter().map(|tensor| human::escaped(&tensor.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).clamp(4, 60) + 2;
    if !names.is_empty() {
        writeln!(out, "\n{:<width$}{:<8}{:>16}{:>12}{:>12}", "name", "dtype", "shape", "original", "stored")?;
    }
    for (tensor, name) in info.tensors.iter().zip(&names) {
        let object = object(&tensor.name);
        let dtype = object.and_then(|object| object.dtype()).map_or("?", |dtype| dtype.name());
        let shape = object.map_or_else(String::new, |object| human::shape(&object.shape));
        let stored = match tensor.same_as {
            Some(first) => format!("as {}", names[first]),
            None => human::bytes(tensor.stored_len),
        };
        let len = human::bytes(tensor.len);
        writeln!(out, "{name:<width$}{dtype:<8}{shape:>16}{len:>12}{stored:>12}")?;
    }
    out.flush()?;
    Ok(FINE)
}

fn document(path: &Path, frame: &FrameInfo, streams: &[StreamInfo]) -> Json {
    let streams: Vec<Json> = streams
        .iter()
        .map(|stream| {
            json!({
                "role": stream.role,
                "coder": stream.coder,
                "count": stream.count,
                "bytes": stream.content_len,
                "stored_bytes": stream.stored_len,
            })
        })
        .collect();
    json!({
        "file": path.display().to_string(),
        "format": frame.format,
        "version": frame.version,
        "dtype": frame.kind.name(),
        "array": frame.array.as_ref().map(|array| json!({"dtype": array.dtype, "shape": array.shape})),
        "chunks": frame.chunks,
        "bytes": frame.content_len,
        "stored_bytes": frame.frame_len,
        "streams": streams,
    })
}

fn print(
    out: &mut impl Write,
    path: &Path,
    frame: &FrameInfo,
    streams: &[StreamInfo],
) -> std::io::Result<()> {
    writeln!(out, "{:<12}{}", "file", files::name(path))?;
    writeln!(out, "{:<12}{} {}", "format", frame.format, frame.version)?;
    writeln!(out, "{:<12}{}", "dtype", frame.kind.name())?;
    if let Some(array) = &frame.array {
        let shape = human::shape(&array.shape);
        writeln!(out, "{:<12}{}, {shape}", "array", human::escaped(&array.dtype))?;
    }
    writeln!(out, "{:<12}{}", "chunks", human::count(frame.chunks as u64))?;
    writeln!(out, "{:<12}{}", "original", human::bytes(frame.content_len))?;
    let saved = files::saved(frame.content_len, frame.frame_len);
    writeln!(out, "{:<12}{}{saved}", "compressed", human::bytes(frame.frame_len))?;
    if !streams.is_empty() {
        writeln!(out, "\n{:<20}{:<10}{:>8}{:>12}{:>12}", "streams", "coder", "count", "original", "stored")?;
    }
    for stream in streams {
        let (content, stored) = (human::bytes(stream.content_len), human::bytes(stream.stored_len));
        let count = human::count(stream.count as u64);
        writeln!(out, "{:<20}{:<10}{count:>8}{content:>12}{stored:>12}", stream.role, stream.coder)?;
    }
    Ok(())
}
