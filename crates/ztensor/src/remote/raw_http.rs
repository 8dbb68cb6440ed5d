//! Bodies of plain HTTP, read straight into their place.
//!
//! The stores' client hands out bodies in buffers of its own. Copying them to where they belong
//! costs a fifth of the time when the other side is near and nothing is encrypted, so for such
//! servers ranges are also asked for here, by hand: one request, a head that has to be exactly as
//! expected, and then the socket is read into the caller's memory.
//!
//! Whatever is not as expected, from a status to a broken connection, is no error here: what is
//! missing is then asked for in the ordinary way, which knows retries, redirects and what to tell
//! the user.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::ObjectMeta;
use object_store::path::Path as Key;
use reqwest::Url;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::coalesce::{Place, Span};
use super::{Location, http};

/// Heads of answers are shorter, or not for us. (limit)
const LONGEST_HEAD: usize = 16 << 10;
const MOST_HEADERS: usize = 64;

/// A server that has answered otherwise so often is not asked this way again. (limit)
const STRIKES: usize = 3;

/// A plain-HTTP server and its idle keep-alive connections.
pub(super) struct Direct {
    base: Url,
    /// Header lines of every request.
    lines: String,
    timeouts: Timeouts,
    idle: Mutex<Vec<TcpStream>>,
    strikes: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) connect: Duration,
    /// Between two pieces of a body.
    pub(super) read: Duration,
    pub(super) whole: Duration,
}

impl Direct {
    /// For a web server; none if that names more than a host.
    pub(super) fn new(place: &Location, bearer: Option<&str>, timeouts: Timeouts) -> Option<Direct> {
        let mut base = Url::parse(&place.root().url()).ok()?;
        if !base.username().is_empty() || base.password().is_some() || base.path() != "/" {
            return None;
        }
        base.set_query(place.query());
        let mut lines = String::new();
        line(&mut lines, "Host", base.authority())?;
        line(&mut lines, "User-Agent", http::AGENT)?;
        line(&mut lines, "Accept", "*/*")?;
        if let Some(token) = bearer {
            line(&mut lines, "Authorization", &format!("Bearer {token}"))?;
        }
        let (idle, strikes) = (Mutex::default(), AtomicUsize::new(0));
        Some(Direct { base, lines, timeouts, idle, strikes })
    }

    /// Fills what is missing of a span; says whether it did. Only an object with a tag of its own
    /// can be recognised.
    pub(super) async fn fetch(&self, key: &Key, meta: &ObjectMeta, span: &mut Span<'_>) -> bool {
        if self.strikes.load(Ordering::Relaxed) >= STRIKES {
            return false;
        }
        let Some(request) = self.request(key, meta, &span.missing()) else { return false };
        let answered = tokio::time::timeout(self.timeouts.whole, self.answered(&request, meta, span)).await;
        let fetched = matches!(answered, Ok(Ok(()))) && span.is_done();
        if !fetched {
            self.strikes.fetch_add(1, Ordering::Relaxed);
        }
        fetched
    }

    fn request(&self, key: &Key, meta: &ObjectMeta, range: &Range<u64>) -> Option<String> {
        let tag = meta.e_tag.as_deref().filter(|tag| !tag.starts_with("W/"))?;
        let mut url = self.base.clone();
        url.path_segments_mut().ok()?.extend(key.parts());
        let mut request = format!("GET {}", url.path());
        if let Some(query) = url.query() {
            write!(request, "?{query}").ok()?;
        }
        write!(request, " HTTP/1.1\r\n{}", self.lines).ok()?;
        write!(request, "Range: bytes={}-{}\r\n", range.start, range.end - 1).ok()?;
        line(&mut request, "If-Match", tag)?;
        request.push_str("\r\n");
        Some(request)
    }

    async fn answered(&self, request: &str, meta: &ObjectMeta, span: &mut Span<'_>) -> io::Result<()> {
        let unused = self.idle().pop();
        let reused = unused.is_some();
        let mut stream = match unused {
            Some(stream) => stream,
            None => self.connect().await?,
        };
        let mut head = Vec::with_capacity(LONGEST_HEAD);
        let mut asked = self.ask(&mut stream, request, &mut head).await;
        if reused && asked.is_err() && head.is_empty() {
            // The other side had closed it meanwhile.
            stream = self.connect().await?;
            asked = self.ask(&mut stream, request, &mut head).await;
        }
        let (head, first) = head.split_at(asked?);
        let keep = expected(head, meta, &span.missing())?;
        self.receive(&mut stream, first, span).await?;
        if keep {
            self.idle().push(stream);
        }
        Ok(())
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let host = self.base.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.base.port_or_known_default().unwrap_or(80);
        let stream = within(self.timeouts.connect, TcpStream::connect((host, port))).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request and reads the head of its answer; says how long that is.
    async fn ask(&self, stream: &mut TcpStream, request: &str, head: &mut Vec<u8>) -> io::Result<usize> {
        within(self.timeouts.read, stream.write_all(request.as_bytes())).await?;
        loop {
            if within(self.timeouts.read, stream.read_buf(head)).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(end + 4);
            }
            if head.len() >= LONGEST_HEAD {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    /// Reads a body to where it belongs, after what came of it with the head.
    async fn receive(&self, stream: &mut TcpStream, first: &[u8], span: &mut Span<'_>) -> io::Result<()> {
        span.take(first).map_err(io::Error::other)?;
        let mut unwanted = Vec::new();
        loop {
            let out = match span.place() {
                Place::Wanted(out) => out,
                Place::Between(len) => {
                    unwanted.resize(len, 0);
                    &mut unwanted[..]
                }
                Place::Done => return Ok(()),
            };
            match within(self.timeouts.read, stream.read(out)).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                received => span.advance(received),
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn within<T>(limit: Duration, io: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, io).await?
}

/// Adds a header line, unless the value would be more than that.
fn line(lines: &mut String, name: &str, value: &str) -> Option<()> {
    let fits = value.bytes().all(|byte| byte == b'\t' || (b' '..0x7F).contains(&byte));
    fits.then(|| write!(lines, "{name}: {value}\r\n").ok())?
}

/// Whether an answer brings just the bytes that were asked for, of this object; then, whether the
/// connection can be used again.
fn expected(head: &[u8], meta: &ObjectMeta, range: &Range<u64>) -> io::Result<bool> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = answer.parse(head).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    let wrong = || io::Error::from(ErrorKind::InvalidData);
    if !parsed.is_complete() || answer.version != Some(1) || answer.code != Some(206) {
        return Err(wrong());
    }
    let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, meta.size);
    let content_length = (range.end - range.start).to_string();
    let (mut ranges, mut lengths, mut tags, mut keep) = (0, 0, 0, true);
    for header in answer.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let said = |value: &str| header.value == value.as_bytes();
        if is("content-range") && said(&content_range) {
            ranges += 1;
        } else if is("content-length") && said(&content_length) {
            lengths += 1;
        } else if is("etag") && meta.e_tag.as_deref().is_some_and(said) {
            tags += 1;
        } else if ["content-range", "content-length", "etag", "transfer-encoding", "content-encoding"]
            .into_iter()
            .any(is)
        {
            return Err(wrong()); // another value, or a body that is not the bytes themselves
        } else if is("connection") {
            keep = keep && header.value.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    match (ranges, lengths, tags) {
        (1, 1, 1) => Ok(keep),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;
    use crate::remote::coalesce;

    const TIMEOUTS: Timeouts = Timeouts {
        connect: Duration::from_secs(5),
        read: Duration::from_millis(300),
        whole: Duration::from_secs(5),
    };

    fn meta() -> ObjectMeta {
        let last_modified = Default::default();
        let (location, e_tag) = (Key::from("a folder/m.zt"), Some("\"one\"".to_owned()));
        ObjectMeta { location, last_modified, size: 100, e_tag, version: None }
    }

    fn location(server: &str) -> Location {
        let url = format!("http://{server}");
        match crate::remote::place(url.as_ref()).unwrap() {
            crate::remote::Place::Remote(location) => location,
            crate::remote::Place::Local(path) => panic!("{} is local", path.display()),
        }
    }

    fn reader(server: &str, bearer: Option<&str>) -> Direct {
        Direct::new(&location(server), bearer, TIMEOUTS).unwrap()
    }

    fn body(range: Range<u64>) -> Vec<u8> {
        range.map(|at| at as u8).collect()
    }

    /// The answer to a request for bytes 10 to 49, with some lines replaced.
    fn answer(replaced: &[(&str, &str)]) -> Vec<u8> {
        let mut head = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-49/100\r\n\
                        content-length: 40\r\nETag: \"one\"\r\nServer: test\r\n\r\n"
            .to_owned();
        for (old, new) in replaced {
            assert!(head.contains(old), "{old}");
            head = head.replace(old, new);
        }
        [head.into_bytes(), body(10..50)].concat()
    }

    /// A server that gives one of these answers to each request, in pieces; an empty one hangs up,
    /// and after the last nothing comes any more. Says what was asked for.
    fn serve(answers: Vec<Vec<u8>>) -> (String, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let (asked, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut answers = answers.into_iter().peekable();
            while answers.peek().is_some() {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).unwrap_or(0) == 1 {
                    request.push(byte[0]);
                    if !request.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let _ = asked.send(String::from_utf8(std::mem::take(&mut request)).unwrap());
                    let Some(answer) = answers.next().filter(|answer| !answer.is_empty()) else { break };
                    for piece in answer.chunks(60) {
                        let _ = stream.write_all(piece);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
        (authority, requests)
    }

    /// Asks for bytes 10 to 20 and 30 to 50 in one request; says whether that was answered, what
    /// is missing, and what came.
    async fn fetch(direct: &Direct) -> (bool, Range<u64>, Vec<u8>) {
        let mut out = vec![0; 30];
        let (first, second) = out.split_at_mut(10);
        let mut span = coalesce::coalesce_ranges(vec![(10, first), (30, second)], 1).pop().unwrap();
        let fetched = direct.fetch(&meta().location, &meta(), &mut span).await;
        (fetched, span.missing(), out)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn bytes_come_to_their_place_over_one_connection() {
        let (authority, requests) = serve(vec![answer(&[]); 3]);
        let direct = reader(&format!("{authority}/?key=1"), Some("token"));
        run(async {
            for _ in 0..3 {
                let wanted = [body(10..20), body(30..50)].concat();
                assert_eq!(fetch(&direct).await, (true, 50..50, wanted));
                assert_eq!(direct.idle().len(), 1);
            }
        });
        let request = requests.recv().unwrap();
        assert!(request.starts_with("GET /a%20folder/m.zt?key=1 HTTP/1.1\r\n"), "{request}");
        for line in [
            format!("Host: {authority}"),
            "Range: bytes=10-49".into(),
            "If-Match: \"one\"".into(),
            "Authorization: Bearer token".into(),
        ] {
            assert!(request.contains(&format!("\r\n{line}\r\n")), "{request}");
        }
    }

    #[test]
    fn what_is_not_as_expected_is_left_to_others() {
        let wrong: &[&[(&str, &str)]] = &[
            &[("206 Partial Content", "200 OK")],
            &[("206 Partial Content", "503 Busy")],
            &[("HTTP/1.1", "HTTP/1.0")],
            &[("HTTP/1.1", "ICY")],
            &[("10-49/100", "11-50/100")],
            &[("10-49/100", "10-49/101")],
            &[("length: 40", "length: 41")],
            &[("length: 40", "length: 40\r\nContent-Length: 39")],
            &[("content-length: 40\r\n", "")],
            &[("\"one\"", "\"two\"")],
            &[("ETag: \"one\"\r\n", "")],
            &[("Server: test", "Transfer-Encoding: chunked")],
            &[("Server: test", "Content-Encoding: gzip")],
        ];
        for replaced in wrong {
            let (authority, _requests) = serve(vec![answer(replaced)]);
            let direct = reader(&authority, None);
            let (fetched, missing, out) = run(fetch(&direct));
            assert!(!fetched && missing == (10..50) && out == [0; 30], "{replaced:?}");
        }
        // What breaks off leaves what came; the rest can be asked for.
        let mut short = answer(&[]);
        short.truncate(short.len() - 15);
        let (authority, _requests) = serve(vec![short, Vec::new()]);
        let direct = reader(&authority, None);
        let (fetched, missing, out) = run(fetch(&direct));
        assert_eq!((fetched, missing), (false, 35..50));
        assert_eq!(out[..15], [body(10..20), body(30..35)].concat());
        let endless = [b"HTTP/1.1 206 Partial Content\r\n".to_vec(), vec![b'x'; LONGEST_HEAD]].concat();
        let (authority, _requests) = serve(vec![endless]);
        assert!(!run(fetch(&reader(&authority, None))).0);
    }

    #[test]
    fn connections_end_and_servers_are_given_up() {
        let close = answer(&[("Server: test", "Connection: close")]);
        let (authority, requests) = serve(vec![answer(&[]), Vec::new(), close, Vec::new(), Vec::new()]);
        let direct = reader(&authority, None);
        run(async {
            assert!(fetch(&direct).await.0);
            // The server hangs up on the second request over this connection: it is made again.
            assert!(fetch(&direct).await.0);
            assert!(direct.idle().is_empty(), "the server said that it would close");
            for _ in 0..STRIKES {
                assert!(!fetch(&direct).await.0);
            }
            let asked = requests.try_iter().count();
            assert!(!fetch(&direct).await.0);
            assert_eq!((asked > 0, requests.try_iter().count()), (true, 0), "it is not asked again");
        });
    }

    #[test]
    fn only_plain_places_and_recognisable_objects_are_asked() {
        // A URL with a user, a path or line ends in its host never becomes a place.
        for url in ["http://user@host", "http://user:secret@host", "http://", "http://h\r\nX: y/"] {
            assert!(crate::remote::place(url.as_ref()).is_err(), "{url}");
        }
        assert!(Direct::new(&location("host:port"), None, TIMEOUTS).is_none());
        assert!(Direct::new(&location("host"), Some("a\r\nHost: other"), TIMEOUTS).is_none());
        let direct = reader("[::1]:80", None);
        let key = meta().location;
        assert!(direct.request(&key, &meta(), &(0..1)).is_some());
        for tag in [None, Some("W/\"one\""), Some("\"\r\nX: y\"")] {
            let meta = ObjectMeta { e_tag: tag.map(str::to_owned), ..meta() };
            assert!(direct.request(&key, &meta, &(0..1)).is_none(), "{tag:?}");
        }
    }

    proptest! {
        #[test]
        fn any_head_is_read_or_refused(head in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..200) {
            prop_assert!(expected(&head, &meta(), &(10..50)).is_err());
            // A true one that is damaged in one place says the same, or is refused.
            let mut true_one = answer(&[]);
            true_one.truncate(true_one.len() - 40);
            let at = cut % true_one.len();
            true_one[at] = head.first().copied().unwrap_or(b'x');
            let _ = expected(&true_one, &meta(), &(10..50));
        }
    }
}
