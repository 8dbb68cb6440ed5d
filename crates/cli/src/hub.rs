//! A model's files on the Hugging Face Hub, or a server that speaks the same paths.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};
use ztensor::{Destination, Observer};

use crate::failure::Failure;

/// Attempts at one file; each goes on where the last one stopped.
const ATTEMPTS: u32 = 5;
/// Redirects that are followed for one request.
const REDIRECTS: u32 = 10;
/// Longest answer that is not a file.
const MAX_LISTING: u64 = 32 << 20;

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its name, which is a plain one.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// Its SHA-256, in hexadecimal, where the server tells.
    pub sha256: Option<String>,
}

/// A model on a server.
pub struct Model {
    agent: Agent,
    endpoint: String,
    repo: String,
    revision: String,
    token: Option<String>,
}

impl Model {
    /// The model `repo` (`owner/name`) at a branch, tag or commit.
    pub fn new(endpoint: &str, repo: &str, revision: &str, token: Option<String>) -> Result<Model, Failure> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let good = |part: &str| !part.is_empty() && !part.contains("..") && part.chars().all(plain);
        if repo.split('/').count() > 2 || !repo.split('/').all(good) {
            return Err(Failure::usage(format!("{repo:?} is not the name of a model: owner/name is")));
        }
        let config = Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .http_status_as_error(false)
            // Followed here, where it is known which servers may see the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(TlsConfig::builder().root_certs(root_certificates()?).build())
            .user_agent(concat!("ztensor/", env!("CARGO_PKG_VERSION")));
        Ok(Model {
            agent: config.build().into(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            repo: repo.to_owned(),
            revision: encoded(revision),
            token,
        })
    }

    /// The files of the model's top folder.
    pub fn files(&self) -> Result<Vec<RemoteFile>, Failure> {
        let mut url = format!("{}/api/models/{}/tree/{}", self.endpoint, self.repo, self.revision);
        let mut files = Vec::new();
        loop {
            let mut response = self.get(&url, None)?;
            let next = next_page(&response);
            let text = response.body_mut().with_config().limit(MAX_LISTING).read_to_string();
            let text = text.map_err(|error| Failure::io(format!("{url}: {error}")))?;
            let unclear = || Failure::bad_file(format!("{url}: not a list of files"));
            let page: Json = serde_json::from_str(&text).map_err(|_| unclear())?;
            for entry in page.as_array().ok_or_else(unclear)? {
                if let Some(file) = listed(entry)? {
                    files.push(file);
                }
            }
            match next {
                // Another server could be told the token.
                Some(next) if next.starts_with(&format!("{}/", self.endpoint)) && next != url => url = next,
                _ => return Ok(files),
            }
        }
    }

    /// Brings a file into a folder, going on where an earlier attempt stopped. It
    /// gets its name when its size, and its digest where there is one, are right.
    pub fn fetch(&self, file: &RemoteFile, folder: &Path, observer: &dyn Observer) -> Result<(), Failure> {
        let part = folder.join(format!("{}.part", file.name));
        let mut attempt = 1;
        loop {
            match self.fetch_rest(file, &part, observer) {
                Ok(()) => break,
                Err(Stop::Retry(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(Stop::Retry(failure) | Stop::Failed(failure)) => return Err(failure),
            }
            std::thread::sleep(Duration::from_millis(200) * attempt);
        }
        if !is_right(file, &part)? {
            std::fs::remove_file(&part)?;
            let name = &file.name;
            return Err(Failure::bad_file(format!("{name}: arrived damaged and was deleted: run again")));
        }
        ztensor::rename_new(&part, &Destination::derived(folder, &file.name)?)?;
        Ok(())
    }

    fn fetch_rest(&self, file: &RemoteFile, part: &Path, observer: &dyn Observer) -> Result<(), Stop> {
        let mut out = ztensor::trusted::append(part)?;
        let mut have = out.metadata()?.len();
        if have > file.size {
            out.set_len(0)?;
            have = 0;
        }
        if have == file.size {
            return Ok(());
        }
        let url =
            format!("{}/{}/resolve/{}/{}", self.endpoint, self.repo, self.revision, encoded(&file.name));
        let range = (have > 0).then(|| format!("bytes={have}-"));
        let response = self.get(&url, range.as_deref())?;
        match (response.status().as_u16(), range_start(&response)) {
            (206, Some(start)) if start == have => {}
            (206, _) => {
                let message = format!("{url}: the server sent another part of the file than was asked for");
                return Err(Stop::Failed(Failure::io(message)));
            }
            _ => {
                // The server sends everything.
                out.set_len(0)?;
                have = 0;
            }
        }
        let mut body = response.into_body().into_reader().take(file.size - have);
        let mut buffer = vec![0; 1 << 18];
        loop {
            let interrupted = |error| Stop::Retry(Failure::io(format!("{url}: {error}")));
            let count = body.read(&mut buffer).map_err(interrupted)?;
            if count == 0 {
                break;
            }
            out.write_all(&buffer[..count])?;
            have += count as u64;
            if !observer.advance(count as u64) {
                return Err(Stop::Failed(ztensor::Error::cancelled().into()));
            }
        }
        match have == file.size {
            true => Ok(()),
            false => {
                let message = format!("{url}: ended after {have} of {} bytes", file.size);
                Err(Stop::Retry(Failure::io(message)))
            }
        }
    }

    /// Asks for an address, following redirects: the Hub keeps large files on other
    /// servers, which are not told the token.
    fn get(&self, url: &str, range: Option<&str>) -> Result<Response<Body>, Failure> {
        let mut place = url.to_owned();
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&place);
            if let Some(token) = &self.token
                && origin(&place) == origin(&self.endpoint)
            {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            let response = request.call().map_err(|error| Failure::io(format!("{url}: {error}")))?;
            match response.status().as_u16() {
                200 | 206 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let location = response.headers().get("location").and_then(|value| value.to_str().ok());
                    place = location.and_then(|location| redirected(&place, location)).ok_or_else(|| {
                        Failure::bad_file(format!("{url}: the server redirects to nowhere or to plain HTTP"))
                    })?;
                }
                401 | 403 => {
                    return Err(Failure::usage(format!("{url}: not allowed: give --token or set HF_TOKEN")));
                }
                404 => return Err(Failure::usage(format!("{url}: there is no such model or revision"))),
                code => return Err(Failure::io(format!("{url}: the server answered {code}"))),
            }
        }
        Err(Failure::io(format!("{url}: redirected more than {REDIRECTS} times")))
    }
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Where `location` leads from `url`; nowhere if that is less secure.
fn redirected(url: &str, location: &str) -> Option<String> {
    let next = match location {
        _ if location.starts_with("https://") || location.starts_with("http://") => location.to_owned(),
        _ if location.starts_with("//") => format!("{}{location}", url.split_once("//")?.0),
        _ if location.starts_with('/') => format!("{}{location}", origin(url)),
        _ => return None,
    };
    (next.starts_with("https://") || !url.starts_with("https://")).then_some(next)
}

/// Where the part of a file begins that an answer carries.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get("content-range")?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Who vouches for servers: those that browsers trust, or those in the file that
/// `SSL_CERT_FILE` names, as networks with authorities of their own have them.
fn root_certificates() -> Result<RootCerts, Failure> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()) else {
        return Ok(RootCerts::WebPki);
    };
    let unclear = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("SSL_CERT_FILE: {}: {error}", Path::new(&path).display()))
    };
    let text = std::fs::read(&path).map_err(|error| unclear(&error))?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unclear(&error))? {
            certificates.push(certificate);
        }
    }
    match certificates.is_empty() {
        true => Err(unclear(&"there are no certificates in it")),
        false => Ok(RootCerts::new_with_certs(&certificates)),
    }
}

/// Whether to try again.
enum Stop {
    Retry(Failure),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(error.into())
    }
}

/// Whether a file has the promised size and digest.
pub fn is_right(file: &RemoteFile, path: &Path) -> Result<bool, Failure> {
    let mut local = File::open(path)?;
    if local.metadata()?.len() != file.size {
        return Ok(false);
    }
    let Some(expected) = &file.sha256 else { return Ok(true) };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = local.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    let digest: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(digest.eq_ignore_ascii_case(expected))
}

/// A file in the listing; `None` for folders and what lies in them. Names that
/// would lead elsewhere are refused: the server does not choose where files go.
fn listed(entry: &Json) -> Result<Option<RemoteFile>, Failure> {
    let text = |key: &str| entry.get(key).and_then(Json::as_str);
    let (Some(kind), Some(path)) = (text("type"), text("path")) else {
        return Err(Failure::bad_file("the server lists a file without a name"));
    };
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if path.split('/').any(odd) || path.contains(|c: char| c.is_control() || c == '\\') {
        return Err(Failure::bad_file(format!("the server lists a file named {path:?}")));
    }
    if kind != "file" || path.contains('/') {
        return Ok(None);
    }
    let size = entry.get("size").and_then(Json::as_u64);
    let size = size.ok_or_else(|| Failure::bad_file(format!("the server tells no size of {path:?}")))?;
    let sha256 = entry.get("lfs").and_then(|lfs| lfs.get("oid")).and_then(Json::as_str);
    let sha256 = sha256.map(|oid| oid.trim_start_matches("sha256:").to_owned());
    Ok(Some(RemoteFile { name: path.to_owned(), size, sha256 }))
}

/// The address of the next page, from a `Link` header.
fn next_page(response: &Response<Body>) -> Option<String> {
    let link = response.headers().get("link")?.to_str().ok()?;
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    Some(next.split_once('<')?.1.split_once('>')?.0.to_owned())
}

/// A part of an address, percent-encoded.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for &byte in text.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_addresses_that_lead_elsewhere_are_refused() {
        for path in ["../a.json", "/etc/passwd", "a/../../b", "a\\b", "a\u{0}b", "", ".", "a//b"] {
            assert!(listed(&json!({"type": "file", "path": path, "size": 1})).is_err(), "{path}");
        }
        assert_eq!(listed(&json!({"type": "file", "path": "onnx/a.json", "size": 1})).unwrap(), None);
        let file = listed(&json!({"type": "file", "path": "a.json", "size": 1})).unwrap();
        assert_eq!(file, Some(RemoteFile { name: "a.json".to_owned(), size: 1, sha256: None }));
        for repo in ["", "a/b/c", "../a", "a/", "a b", "a/..", "a?x=1"] {
            assert!(Model::new("http://localhost", repo, "main", None).is_err(), "{repo}");
        }
        assert_eq!(origin("https://a:1/b?c"), "https://a:1");
        assert_eq!(origin("http://a?b"), "http://a");
        let from = "https://hub.example/m/resolve/main/a";
        for (location, expected) in [
            ("https://cdn.example/a?b", Some("https://cdn.example/a?b")),
            ("//cdn.example/a", Some("https://cdn.example/a")),
            ("/n/a", Some("https://hub.example/n/a")),
            ("http://hub.example/a", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(redirected(from, location).as_deref(), expected, "{location}");
        }
        assert_eq!(encoded("refs/pr/1 é"), "refs%2Fpr%2F1%20%C3%A9");
    }
}
