//! `repo serve`: the files of all versions by HTTP/1.1, read-only, with ranges.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use ztensor::repository::{RecordId, Repository, Version};
use ztensor::source::Source;

use super::super::Common;
use super::args::Serve;
use crate::failure::{Failure, Outcome};
use crate::human;

/// Bytes of a request's head, at most. (limit)
const LONGEST_HEAD: u64 = 16 << 10;
/// Connections at a time. (limit)
const CONNECTIONS: usize = 64;
/// A connection on which nothing happens is closed. (limit)
const IDLE: Duration = Duration::from_secs(60);
/// Bytes that are restored and sent at a time. (limit)
const PIECE: u64 = 8 << 20;
/// Versions that are kept open. (limit)
const KEPT: usize = 32;

struct Server {
    repository: Repository,
    versions: Mutex<HashMap<RecordId, Version>>,
    connections: AtomicUsize,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    head: bool,
    path: String,
    range: Option<Range>,
    close: bool,
}

/// A range as it is asked for: from a place on, up to a place if that is named, or the last bytes.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Range {
    From(u64, Option<u64>),
    Last(u64),
}

impl Range {
    /// `bytes=0-99`, `bytes=100-` or `bytes=-50`. Anything else asks for the whole.
    fn parse(text: &str) -> Option<Range> {
        let (start, end) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
        match (start, end) {
            ("", last) => Some(Range::Last(last.parse().ok()?)),
            (start, "") => Some(Range::From(start.parse().ok()?, None)),
            (start, end) => Some(Range::From(start.parse().ok()?, Some(end.parse().ok()?))),
        }
    }

    /// The bytes of a file of `len` bytes; `None` if it has none of them.
    fn of(self, len: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Range::From(start, end) => (start, end.map_or(len, |end| end.saturating_add(1)).min(len)),
            Range::Last(count) => (len.saturating_sub(count), len),
        };
        (start < end).then_some((start, end))
    }
}

pub fn run(options: &Serve, common: Common) -> Outcome {
    let repository = super::open(&options.repo)?;
    let address = (options.host.as_str(), options.port);
    let failed = |error| {
        Failure::io(format!("cannot listen on {}:{}: {}", options.host, options.port, human::cause(&error)))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let server = Server { repository, versions: Mutex::default(), connections: AtomicUsize::new(0) };
    common.say(format_args!("serving {} on http://{bound}/", human::path(&options.repo)));
    serve(&listener, &Arc::new(server))
}

fn serve(listener: &TcpListener, server: &Arc<Server>) -> Outcome {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if server.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
            server.connections.fetch_sub(1, Ordering::Relaxed);
            let _ = answer(&stream, 503, "text/plain", b"too many connections\n", false, &[]);
            continue;
        }
        let shared = Arc::clone(server);
        let started = std::thread::Builder::new().spawn(move || {
            // A client that goes away is no reason to stop.
            let _ = connection(&shared, &stream);
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            server.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(crate::failure::FINE)
}

fn connection(server: &Server, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = match read(&mut reader)? {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(status) => return answer(stream, status, "text/plain", b"not understood\n", false, &[]),
        };
        respond(server, stream, &request)?;
        if request.close {
            return Ok(());
        }
    }
}

/// Reads the head of a request; the status of the answer if it cannot be served.
fn read(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Result<Option<Request>, u16>> {
    let mut head = reader.take(LONGEST_HEAD);
    let mut line = String::new();
    if head.read_line(&mut line)? == 0 {
        return Ok(Ok(None));
    }
    let mut words = line.split_ascii_whitespace();
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Ok(Err(400));
    };
    let is_head = match method {
        "GET" => false,
        "HEAD" => true,
        _ => return Ok(Err(405)),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let Some(path) = decoded(path) else { return Ok(Err(400)) };
    let mut request = Request { head: is_head, path, range: None, close: version != "HTTP/1.1" };
    loop {
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(Err(431)); // the head ended, or it is too long
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(Ok(Some(request)));
        }
        if let Some((name, value)) = line.split_once(':') {
            let value = value.trim();
            if name.eq_ignore_ascii_case("range") {
                request.range = Range::parse(value);
            } else if name.eq_ignore_ascii_case("connection") {
                request.close |= value.eq_ignore_ascii_case("close");
            } else if name.eq_ignore_ascii_case("content-length") && value != "0"
                || name.eq_ignore_ascii_case("transfer-encoding")
            {
                return Ok(Err(400)); // no request that is served has a body
            }
        }
    }
}

/// A path without percent signs.
fn decoded(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let digits = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                at += 3;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

fn respond(server: &Server, stream: &TcpStream, request: &Request) -> std::io::Result<()> {
    let path = request.path.trim_start_matches('/');
    let found = if path.is_empty() { index(server) } else { find(server, path) };
    match found {
        Ok(Found::Listing(text)) => {
            answer(stream, 200, "application/json", text.as_bytes(), request.head, &[])
        }
        Ok(Found::File(file, tag)) => send(stream, &*file, &tag, request),
        Err(error) => {
            let status = match error.kind() {
                ztensor::ErrorKind::NotFound | ztensor::ErrorKind::InvalidArgument => 404,
                _ => 500,
            };
            // Of damage, only that there is some.
            let text: &[u8] = if status == 404 { b"not found\n" } else { b"cannot be read\n" };
            answer(stream, status, "text/plain", text, request.head, &[])
        }
    }
}

enum Found {
    Listing(String),
    File(Arc<dyn Source>, String),
}

fn index(server: &Server) -> ztensor::Result<Found> {
    let refs: Vec<_> = server
        .repository
        .refs()?
        .into_iter()
        .map(|there| json!({"ref": there.name, "commit": there.commit.to_string()}))
        .collect();
    Ok(Found::Listing(format!("{}\n", json!({"refs": refs}))))
}

/// A version, and perhaps a file of it: refs may have slashes.
fn find(server: &Server, path: &str) -> ztensor::Result<Found> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    let mut last = None;
    for end in ends {
        let (name, rest) = (&path[..end], path[end..].trim_matches('/'));
        let version = match version(server, name) {
            Ok(version) => version,
            Err(error) => {
                last.get_or_insert(error);
                continue;
            }
        };
        if rest.is_empty() {
            let files: Vec<_> = version
                .files()
                .into_iter()
                .map(|file| json!({"path": file.path, "bytes": file.len}))
                .collect();
            let listing = json!({"commit": version.id().to_string(), "files": files});
            return Ok(Found::Listing(format!("{listing}\n")));
        }
        match version.file(rest) {
            Ok(file) => return Ok(Found::File(file, version.id().to_string())),
            Err(error) => drop(last.replace(error)),
        }
    }
    Err(last.unwrap_or_else(|| ztensor::Error::not_found("nothing is there")))
}

fn version(server: &Server, name: &str) -> ztensor::Result<Version> {
    let id = server.repository.resolve(name)?;
    let versions = || server.versions.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(version) = versions().get(&id) {
        return Ok(version.clone());
    }
    let version = server.repository.version(&id.to_string())?;
    let mut versions = versions();
    if versions.len() >= KEPT {
        versions.clear();
    }
    versions.insert(id, version.clone());
    Ok(version)
}

fn send(stream: &TcpStream, file: &dyn Source, tag: &str, request: &Request) -> std::io::Result<()> {
    let len = file.len();
    let tag = format!("ETag: \"{tag}\"");
    let ranges = "Accept-Ranges: bytes".to_owned();
    let (status, start, end, extra) = match request.range {
        None => (200, 0, len, vec![tag, ranges]),
        Some(range) => match range.of(len) {
            Some((start, end)) => {
                let place = format!("Content-Range: bytes {start}-{}/{len}", end - 1);
                (206, start, end, vec![tag, ranges, place])
            }
            None => {
                let place = format!("Content-Range: bytes */{len}");
                return answer(stream, 416, "text/plain", b"no such range\n", request.head, &[place]);
            }
        },
    };
    head(stream, status, "application/octet-stream", end - start, &extra)?;
    if request.head {
        return Ok(());
    }
    let mut out = stream;
    let mut buffer = Vec::new();
    for at in (start..end).step_by(PIECE as usize) {
        buffer.resize((end - at).min(PIECE) as usize, 0);
        // Too late for another status: the client sees that bytes are missing.
        file.read_at(at, &mut buffer).map_err(|error| std::io::Error::other(error.to_string()))?;
        out.write_all(&buffer)?;
    }
    out.flush()
}

fn answer(
    stream: &TcpStream,
    status: u16,
    kind: &str,
    body: &[u8],
    is_head: bool,
    extra: &[String],
) -> std::io::Result<()> {
    head(stream, status, kind, body.len() as u64, extra)?;
    let mut out = stream;
    out.write_all(if is_head { b"" } else { body })?;
    out.flush()
}

fn head(stream: &TcpStream, status: u16, kind: &str, len: u64, extra: &[String]) -> std::io::Result<()> {
    let reason = match status {
        200 => "OK",
        206 => "Partial Content",
        404 => "Not Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        500 => "Internal Server Error",
        _ => "Bad Request",
    };
    let mut text = format!("HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n");
    for line in extra {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("X-Content-Type-Options: nosniff\r\n\r\n");
    let mut out = stream;
    out.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside_of_the_file() {
        for (text, expected) in [
            ("bytes=0-9", Some((0, 10))),
            ("bytes=5-", Some((5, 20))),
            ("bytes=-5", Some((15, 20))),
            ("bytes=-50", Some((0, 20))),
            ("bytes=10-99", Some((10, 20))),
            ("bytes=20-", None),
            ("bytes=9-3", None),
            ("bytes=0-18446744073709551615", Some((0, 20))),
        ] {
            assert_eq!(Range::parse(text).unwrap().of(20), expected, "{text}");
        }
        for text in ["bytes=a-b", "bytes=0-1,3-4", "items=0-1", "bytes=", "bytes=-"] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
        assert_eq!(decoded("/a%20b/%C3%A4").unwrap(), "/a b/ä");
        assert!(decoded("/%").is_none() && decoded("/%zz").is_none() && decoded("/%ff").is_none());
    }
}
