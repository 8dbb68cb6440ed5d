//! Answers of a web server, any heads and bodies: an error, or tensors of the size they declare.
//!
//! A server on loopback sends the pieces of the input as its answers, one for each connection. A
//! piece that begins with `@` is an object, of which a right answer to the request is made, so that
//! what follows the first request is reached too; one that begins with `#` is the body to a right
//! head; everything else is sent as it is.
#![no_main]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};

use libfuzzer_sys::fuzz_target;
use ztensor::OpenOptions;
use ztensor::remote::{Options, store};

static ANSWERS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
static PORT: OnceLock<u16> = OnceLock::new();

fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream);
        }
    });
    port
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut range = String::new();
    for line in BufReader::new(&stream).lines() {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(wanted) = line.strip_prefix("range: bytes=") {
            range = wanted.to_owned();
        }
    }
    let piece = ANSWERS.lock().unwrap().pop()?;
    let (kind, body) = (*piece.first()?, piece.get(1..)?);
    if kind != b'@' && kind != b'#' {
        return stream.write_all(&piece).ok();
    }
    let total = body.len() as u64;
    let (first, last) = range.split_once('-').unwrap_or(("0", ""));
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) => (first.min(total), total.min(last.saturating_add(1))),
        (Ok(first), Err(_)) => (first.min(total), total),
        (Err(_), Ok(last)) => (total.saturating_sub(last), total),
        _ => (0, total),
    };
    let head = format!(
        "HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{}/{total}\r\nContent-Length: {}\r\n\
         ETag: \"1\"\r\nConnection: close\r\n\r\n",
        end.saturating_sub(1),
        end.saturating_sub(start)
    );
    stream.write_all(head.as_bytes()).ok()?;
    let body = if kind == b'@' { body.get(start as usize..end as usize)? } else { body };
    stream.write_all(body).ok()
}

fuzz_target!(|input: &[u8]| {
    let port = *PORT.get_or_init(serve);
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut rest = input;
    while let Some(at) = rest.windows(4).position(|four| four == b"\n--\n") {
        pieces.push(rest[..at].to_vec());
        rest = &rest[at + 4..];
    }
    pieces.push(rest.to_vec());
    pieces.truncate(8);
    pieces.reverse();
    *ANSWERS.lock().unwrap() = pieces;
    let options = Options::default().set("retries", "0").set("timeout", "2").set("read_timeout", "1");
    let url = format!("http://127.0.0.1:{port}/m.zt");
    if input.first() == Some(&b'%') {
        let limit = 1000;
        assert!(store::read(&url, limit, &options).map_or(0, |bytes| bytes.len()) <= limit as usize);
        return;
    }
    let open = OpenOptions::default().threads(1).max_component(1 << 20).remote(options);
    let Ok(reader) = open.open(&url) else { return };
    for (name, object) in reader.objects() {
        let Ok(tensor) = reader.read_object(name) else { continue };
        for (role, component) in &object.components {
            assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
        }
    }
});
