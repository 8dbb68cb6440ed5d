//! A model's files on the Hugging Face Hub, or a server that speaks the same paths.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use ztensor::remote::web::{Answer, Web};
use ztensor::{Destination, Observer};

use crate::failure::Failure;

/// Attempts at one file; each goes on where the last one stopped.
const ATTEMPTS: u32 = 5;
/// Longest page of a listing.
const MAX_PAGE: u64 = 32 << 20;
/// Most pages of a listing, and most entries of them all: a server could go on for ever.
const MAX_PAGES: usize = 1000;
const MAX_ENTRIES: usize = 1_000_000;

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
    web: Web,
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
            return Err(Failure::usage(format!("{repo:?} is not a model name: write owner/name")));
        }
        Ok(Model {
            web: Web::new(endpoint)?,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            repo: repo.to_owned(),
            revision: encoded(revision),
            token,
        })
    }

    /// The files of the model's top folder.
    pub fn files(&self) -> Result<Vec<RemoteFile>, Failure> {
        let mut url = format!("{}/api/models/{}/tree/{}", self.endpoint, self.repo, self.revision);
        let (mut files, mut entries) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let response = self.get(&url, None)?;
            let next = response.next_page();
            let text = response.collect(MAX_PAGE)?;
            let unclear = || Failure::bad_file(format!("{url}: not a list of files"));
            let page: Json = serde_json::from_slice(&text).map_err(|_| unclear())?;
            let page = page.as_array().ok_or_else(unclear)?;
            entries += page.len();
            if entries > MAX_ENTRIES {
                let message = format!("{url}: the server lists more than {MAX_ENTRIES} files");
                return Err(Failure::bad_file(message));
            }
            for entry in page {
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
        Err(Failure::bad_file(format!("{url}: the list of files has more than {MAX_PAGES} pages")))
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
            std::fs::remove_file(&part).map_err(Failure::of_file(&part))?;
            let name = &file.name;
            return Err(Failure::bad_file(format!(
                "{name}: the download was damaged and has been deleted: run the command again"
            )));
        }
        ztensor::rename_new(&part, &Destination::derived(folder, &file.name)?)?;
        Ok(())
    }

    fn fetch_rest(&self, file: &RemoteFile, part: &Path, observer: &dyn Observer) -> Result<(), Stop> {
        let failed = Failure::of_file(part);
        let mut out = ztensor::trusted::append(part).map_err(|error| match error.raw_os_error() {
            Some(_) => failed(error),
            // Names the file itself.
            None => Failure::io(error.to_string()),
        })?;
        let mut have = out.metadata().map_err(&failed)?.len();
        if have > file.size {
            out.set_len(0).map_err(&failed)?;
            have = 0;
        }
        if have == file.size {
            return Ok(());
        }
        let url =
            format!("{}/{}/resolve/{}/{}", self.endpoint, self.repo, self.revision, encoded(&file.name));
        let range = (have > 0).then(|| format!("bytes={have}-"));
        let mut response = self.get(&url, range.as_deref())?;
        match (response.status(), range_start(&response)) {
            (206, Some(start)) if start == have => {}
            (206, _) => {
                let message = format!("{url}: the server sent another part of the file than was asked for");
                return Err(Stop::Failed(Failure::io(message)));
            }
            _ => {
                // The server sends everything.
                out.set_len(0).map_err(&failed)?;
                have = 0;
            }
        }
        let mut buffer = vec![0; 1 << 18];
        loop {
            // Not more than is missing, whatever the server sends.
            let room = usize::try_from(file.size - have).map_or(buffer.len(), |left| left.min(buffer.len()));
            let interrupted = |error: ztensor::Error| Stop::Retry(error.into());
            let count = response.read(&mut buffer[..room]).map_err(interrupted)?;
            if count == 0 {
                break;
            }
            out.write_all(&buffer[..count]).map_err(&failed)?;
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

    /// Asks for an address of the endpoint. The Hub keeps large files on other servers, which are
    /// not told the token.
    fn get(&self, url: &str, range: Option<&str>) -> Result<Answer, Failure> {
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let token = token.as_deref().map(|token| ("Authorization", token));
        let headers: Vec<_> = token.into_iter().chain(range.map(|range| ("Range", range))).collect();
        let answer = self.web.get(url, &headers)?;
        match answer.status() {
            200 | 206 => Ok(answer),
            401 | 403 => Err(Failure::usage(format!("{url}: access denied: pass --token or set HF_TOKEN"))),
            404 => Err(Failure::usage(format!("{url}: there is no such model or revision"))),
            code => Err(Failure::io(format!("{url}: the server answered {code}"))),
        }
    }
}

/// Where the part of a file begins that an answer carries.
fn range_start(response: &Answer) -> Option<u64> {
    let range = response.header("content-range")?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
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
    let failed = Failure::of_file(path);
    let mut local = File::open(path).map_err(&failed)?;
    if local.metadata().map_err(&failed)?.len() != file.size {
        return Ok(false);
    }
    let Some(expected) = &file.sha256 else { return Ok(true) };
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = local.read(&mut buffer).map_err(&failed)?;
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
    let size = size.ok_or_else(|| Failure::bad_file(format!("the server gives no size for {path:?}")))?;
    let sha256 = entry.get("lfs").and_then(|lfs| lfs.get("oid")).and_then(Json::as_str);
    let sha256 = sha256.map(|oid| oid.trim_start_matches("sha256:").to_owned());
    Ok(Some(RemoteFile { name: path.to_owned(), size, sha256 }))
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
        assert_eq!(encoded("refs/pr/1 é"), "refs%2Fpr%2F1%20%C3%A9");
    }
}
