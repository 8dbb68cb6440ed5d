//! `info`: what a frame, a delta or a packed model holds.

use std::io::Write;
use std::path::Path;

use serde_json::{Value as Json, json};
use z4ai::{FrameInfo, StreamInfo};

use super::args::Info;
use super::files;
use super::frames::in_file;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;

pub fn run(options: &Info) -> Outcome {
    let path = &options.file;
    let data = files::read(path)?;
    let frame = if z4ai::delta::is_delta(&data) {
        z4ai::delta::inspect(&data)
    } else if z4ai::is_frame(&data) {
        z4ai::inspect(&data)
    } else {
        let message = format!("{} is no z4ai frame, delta or packed model", files::name(path));
        return Err(Failure::bad_file(message));
    };
    let frame = frame.map_err(|error| in_file(path, error))?;
    let streams = z4ai::streams(&data).map_err(|error| in_file(path, error))?;
    let mut out = std::io::BufWriter::new(anstream::stdout().lock());
    match options.json {
        true => writeln!(out, "{:#}", document(path, &frame, &streams))?,
        false => print(&mut out, path, &frame, &streams)?,
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
