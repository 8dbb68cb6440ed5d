//! A web server on loopback that serves ranges, counts requests and misbehaves on request.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How one answer is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another status, without the object.
    Status(u16),
    /// The connection is closed before an answer.
    HangUp,
    /// The body ends early.
    Truncate,
    /// Nothing comes for a while.
    Stall(Duration),
    /// The whole object where a range was asked for.
    IgnoreRange,
    /// The next bytes instead of those that were asked for.
    WrongRange,
    /// A body that goes on for ever after what was asked for, with this status (0 is the right one).
    Endless(u16),
    /// The client is sent to another server, which has the object under the same name.
    Redirect(u16),
}

/// A server gives up an endless body after this many bytes.
pub const ENOUGH: u64 = 256 << 20;

#[derive(Default)]
struct State {
    objects: HashMap<String, (Vec<u8>, Option<String>)>,
    requests: Vec<(String, Option<Range<u64>>)>,
    heads: Vec<String>,
    /// Bytes of the longest endless body.
    most_sent: u64,
    faults: VecDeque<Fault>,
    always: Option<Fault>,
    under_way: usize,
    most_under_way: usize,
    /// How long a request waits for a second one.
    patience: Duration,
}

/// The server; it goes on until the program ends.
#[derive(Clone)]
pub struct Server {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Server { url, state: Arc::default() };
        let state = Arc::clone(&server.state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || while serve(&stream, &state).is_some() {});
            }
        });
        server
    }

    /// Puts an object there and says its URL. Without a tag it has no identity but its length.
    pub fn put(&self, name: &str, bytes: &[u8], tag: Option<&str>) -> String {
        let tag = tag.map(|tag| format!("\"{tag}\""));
        self.state.lock().unwrap().objects.insert(format!("/{name}"), (bytes.to_vec(), tag));
        format!("{}/{name}", self.url)
    }

    /// The next answers are wrong in these ways.
    pub fn fail(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults = faults.iter().copied().collect();
    }

    /// All answers are.
    pub fn fail_always(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().always = fault;
    }

    /// What was asked for since the last time, in the order of arrival.
    pub fn requests(&self) -> Vec<(String, Option<Range<u64>>)> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Every line of every request, since the last time.
    pub fn heads(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().heads)
    }

    /// Bytes of the longest endless body that clients have let it send, since the last time. Waits
    /// for answers under way, which end when the server notices that the client has hung up.
    pub fn most_sent(&self) -> u64 {
        loop {
            let mut state = self.state.lock().unwrap();
            if state.under_way == 0 {
                return std::mem::take(&mut state.most_sent);
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.url.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// From now on a request waits for another one to be under way, so that it does not depend on
    /// the machine's speed whether two meet.
    pub fn wait_for_company(&self) {
        self.state.lock().unwrap().patience = Duration::from_secs(5);
    }

    /// How many requests were being answered at the same time.
    pub fn most_under_way(&self) -> usize {
        self.state.lock().unwrap().most_under_way
    }
}

/// Answers one request; `None` when the connection is to be closed.
fn serve(mut stream: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut headers = HashMap::new();
    state.lock().unwrap().heads.push(first.clone());
    for line in lines {
        let line = line.ok()?;
        state.lock().unwrap().heads.push(line.clone());
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?.split('?').next()?);
    let (object, fault) = {
        let mut state = state.lock().unwrap();
        let object = state.objects.get(path).cloned();
        let range = object.as_ref().and_then(|(bytes, _)| range(headers.get("range")?, bytes.len() as u64));
        state.requests.push((method.to_owned(), range));
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
        let next = state.faults.pop_front();
        (object, next.or(state.always))
    };
    let began = Instant::now();
    let alone = |state: &State| state.most_under_way < 2 && began.elapsed() < state.patience;
    while alone(&state.lock().unwrap()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let answered = match fault {
        Some(Fault::Endless(status)) if method != "HEAD" => {
            let sent = endless(&mut stream, &headers, object, status);
            let mut state = state.lock().unwrap();
            state.most_sent = state.most_sent.max(sent);
            None
        }
        Some(Fault::Redirect(port)) => {
            let head = format!(
                "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}{path}\r\ncontent-length: 0\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).ok()
        }
        fault => answer(&mut stream, method, &headers, object, fault),
    };
    state.lock().unwrap().under_way -= 1;
    answered
}

/// An answer whose body does not end; says how much of it was sent before the client hung up.
fn endless(
    out: &mut &TcpStream,
    headers: &HashMap<String, String>,
    object: Option<(Vec<u8>, Option<String>)>,
    status: u16,
) -> u64 {
    let (bytes, tag) = object.unwrap_or_default();
    let wanted = headers.get("range").and_then(|text| range(text, 1 << 40));
    let mut head = match (status, wanted) {
        (0, Some(range)) => {
            // The end of the object that it claims to have, or the middle.
            let (first, last) = (range.start, range.end - 1);
            format!("HTTP/1.1 206 Partial\r\ncontent-range: bytes {first}-{last}/{}\r\n", 1u64 << 40)
        }
        (0, None) => "HTTP/1.1 200 OK\r\n".to_owned(),
        (status, _) => format!("HTTP/1.1 {status} No\r\n"),
    };
    if let Some(tag) = tag {
        head += &format!("etag: {tag}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", 1u64 << 40);
    let mut sent = 0;
    let block = [bytes, vec![b'x'; 1 << 16]].concat();
    let block = &block[block.len() - (1 << 16)..];
    if out.write_all(head.as_bytes()).is_ok() {
        while sent < ENOUGH && out.write_all(block).is_ok() {
            sent += block.len() as u64;
        }
    }
    sent
}

fn answer(
    out: &mut &TcpStream,
    method: &str,
    headers: &HashMap<String, String>,
    object: Option<(Vec<u8>, Option<String>)>,
    fault: Option<Fault>,
) -> Option<()> {
    let refuse = |out: &mut &TcpStream, status: u16| {
        out.write_all(format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n").as_bytes()).ok()
    };
    match fault {
        Some(Fault::Status(status)) => return refuse(out, status),
        Some(Fault::HangUp) => return None,
        Some(Fault::Stall(time)) => std::thread::sleep(time),
        _ => {}
    }
    let Some((bytes, tag)) = object else { return refuse(out, 404) };
    if headers.get("if-match").is_some_and(|wanted| Some(wanted) != tag.as_ref()) {
        return refuse(out, 412);
    }
    let total = bytes.len() as u64;
    let wanted = match (headers.get("range"), fault) {
        (Some(text), fault) if fault != Some(Fault::IgnoreRange) => match range(text, total) {
            Some(range) => Some(range),
            None => return refuse(out, 416),
        },
        _ => None,
    };
    let sent = wanted.clone().unwrap_or(0..total);
    let mut head = match &wanted {
        None => "HTTP/1.1 200 OK\r\n".to_owned(),
        Some(range) => {
            let shift = u64::from(fault == Some(Fault::WrongRange));
            let (first, last) = (range.start + shift, range.end - 1 + shift);
            format!("HTTP/1.1 206 Partial\r\ncontent-range: bytes {first}-{last}/{total}\r\n")
        }
    };
    head += &format!("content-length: {}\r\n", sent.end - sent.start);
    if let Some(tag) = &tag {
        head += &format!("etag: {tag}\r\n");
    }
    out.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if method == "HEAD" {
        return Some(());
    }
    let mut body = &bytes[sent.start as usize..sent.end as usize];
    if fault == Some(Fault::Truncate) {
        body = &body[..body.len() / 2];
    }
    out.write_all(body).ok()?;
    (fault != Some(Fault::Truncate)).then_some(())
}

/// The bytes that a `Range` header asks for, as far as there are such.
fn range(text: &str, total: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", last) => total.saturating_sub(last.parse().ok()?)..total,
        (first, "") => first.parse().ok()?..total,
        (first, last) => first.parse().ok()?..total.min(last.parse::<u64>().ok()? + 1),
    };
    (range.start < range.end).then_some(range)
}
