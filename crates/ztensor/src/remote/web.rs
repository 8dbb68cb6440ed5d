//! Requests to web servers that are not for tensor files: listings and downloads of model hubs.

use std::time::Duration;

use super::{failure, http, runtime};
use crate::error::{Error, Result};

/// A client for one server, which is named by a URL of it.
///
/// Its rules are those of every client here: redirects are limited and never lead to plain HTTP or
/// into a private network, and what is secret, such as an `Authorization` header, is told to no
/// other host.
#[derive(Debug, Clone)]
pub struct Web {
    client: reqwest::Client,
    timeout: Duration,
}

/// The head of an answer, and its body, which has not been received yet.
#[derive(Debug)]
pub struct Answer {
    url: String,
    answer: reqwest::Response,
    timeout: Duration,
    /// What has been received and not yet taken.
    rest: Vec<u8>,
}

fn parsed(url: &str) -> Result<reqwest::Url> {
    // The parser would drop line ends and tabs instead of refusing them.
    let bad = |why: &str| Error::invalid(format!("the URL {why}"));
    if url.contains(char::is_control) {
        return Err(bad("has control characters in it"));
    }
    let parsed =
        reqwest::Url::parse(url).map_err(|error| bad(&format!("is invalid: {error}")).in_file(url))?;
    match parsed.scheme() {
        "http" | "https" => Ok(parsed),
        _ => Err(bad("is not one of a web server").in_file(url)),
    }
}

impl Web {
    /// A client for the server of a URL. It opens no connection yet.
    pub fn new(url: &str) -> Result<Web> {
        let client = http::web(parsed(url)?.host_str())?;
        Ok(Web { client, timeout: Duration::from_secs(60) })
    }

    /// Asks for a URL, with some headers, and follows redirects.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        let mut request = self.client.get(parsed(url)?);
        for (name, value) in headers {
            let mut value = reqwest::header::HeaderValue::try_from(*value)
                .map_err(|_| Error::invalid(format!("the value of the header {name} cannot be sent")))?;
            value.set_sensitive(*name == "Authorization");
            request = request.header(*name, value);
        }
        // Sending starts timers, which need the runtime around them.
        let answer = runtime::wait(async { request.send().await })?.map_err(|error| failed(url, error))?;
        Ok(Answer { url: url.to_owned(), answer, timeout: self.timeout, rest: Vec::new() })
    }
}

/// The innermost reason, without URLs, which may have a signature in them.
fn failed(url: &str, error: reqwest::Error) -> Error {
    let mut next = std::error::Error::source(&error);
    let mut refused = false;
    while let Some(inner) = next {
        refused |= inner.downcast_ref::<http::Refused>().is_some_and(|refused| !refused.is_loop());
        next = inner.source();
    }
    let kind = match () {
        () if error.is_timeout() => std::io::ErrorKind::TimedOut,
        () if error.is_connect() => std::io::ErrorKind::NotConnected,
        () => std::io::ErrorKind::Other,
    };
    let server = error.url().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    let server = server.map(|(host, port)| format!("{host}:{port}"));
    if let Some(unreachable) = server.and_then(|server| http::Unreachable::of(&error, &server)) {
        return Error::io("the request failed", std::io::Error::new(unreachable.kind, unreachable))
            .in_file(url);
    }
    let why = failure::innermost(&error.without_url());
    if refused {
        return Error::corrupt("remote.redirect", why).in_file(url);
    }
    Error::io("the request failed", std::io::Error::new(kind, why)).in_file(url)
}

impl Answer {
    /// The status.
    pub fn status(&self) -> u16 {
        self.answer.status().as_u16()
    }

    /// The value of a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.answer.headers().get(name)?.to_str().ok()
    }

    /// The URL of the next page, of a listing that has several (`Link: …; rel="next"`).
    pub fn next_page(&self) -> Option<String> {
        http::NextPage::parse(self.header("link")?).map(|next| next.0)
    }

    /// All of the body, which must not be longer than `limit`.
    pub fn collect(mut self, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece()? {
            if piece.len() as u64 > limit - bytes.len() as u64 {
                let message = format!("the server sends more than the {limit} bytes that are allowed");
                return Err(Error::corrupt("remote.long", message).in_file(&self.url));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// The next bytes of the body; none at its end.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.rest.is_empty() {
            match self.piece()? {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let len = out.len().min(self.rest.len());
        out[..len].copy_from_slice(&self.rest[..len]);
        self.rest.drain(..len);
        Ok(len)
    }

    fn piece(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let next = async { tokio::time::timeout(self.timeout, self.answer.chunk()).await };
            let next = runtime::wait(next)?.map_err(|_| {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                Error::io("cannot read the answer", late).in_file(&self.url)
            })?;
            match next.map_err(|error| failed(&self.url, error))? {
                Some(piece) if piece.is_empty() => {}
                piece => return Ok(piece.map(|piece| piece.to_vec())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_none_are_refused() {
        for url in ["", "host/x", "ftp://host/x", "file:///etc/passwd", "http://h\r\nx: y/", "https://h/\n"] {
            assert!(Web::new(url).is_err(), "{url:?}");
        }
        let web = Web::new("http://127.0.0.1:9/").unwrap();
        assert!(web.get("http://127.0.0.1:9/\r\nx: y", &[]).is_err());
        assert!(web.get("http://127.0.0.1:9/", &[("Range", "a\r\nb: c")]).is_err());
    }
}
