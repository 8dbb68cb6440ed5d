//! What a path means: a local file, or an object somewhere else.

use std::path::{Path, PathBuf};

use super::hub;
use crate::error::{Error, Result, quoted};

/// The kind of place that a URL names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// Amazon S3, or anything that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gs,
    /// Azure Blob Storage.
    Az,
    /// A web server.
    Http,
    /// A web server behind TLS.
    Https,
}

impl Scheme {
    const ALL: [(&'static str, Scheme); 5] = [
        ("s3", Scheme::S3),
        ("gs", Scheme::Gs),
        ("az", Scheme::Az),
        ("http", Scheme::Http),
        ("https", Scheme::Https),
    ];

    /// What stands before `://`.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::S3 => "s3",
            Scheme::Gs => "gs",
            Scheme::Az => "az",
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// Whether it is a web server, whose paths are percent-encoded and which is only read from.
    pub fn is_web(self) -> bool {
        matches!(self, Scheme::Http | Scheme::Https)
    }
}

/// An object in a store or on a web server: a URL that was parsed.
///
/// There are no control characters in any part of it, and no spaces where a URL has none, so that
/// requests can be put together from it and from nothing else.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Location {
    scheme: Scheme,
    authority: String,
    key: String,
    query: Option<String>,
}

/// Without the query, which may be a secret.
impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Location").field(&self.url()).finish()
    }
}

impl Location {
    fn new(scheme: Scheme, authority: &str, key: String, query: Option<&str>) -> Result<Location> {
        // Not with the URL in a message: its query may be a secret.
        let bad = |why: &str| Err(Error::invalid(format!("the URL {why}")));
        if authority.is_empty() {
            return bad("names no bucket or host");
        }
        if authority.contains('@') {
            return bad("must not hold a user or a password: use the store's settings or bearer_token");
        }
        if authority.contains(|c: char| c.is_control() || c.is_whitespace() || "\\?#/".contains(c)) {
            return bad("has an invalid bucket or host name");
        }
        if key.contains(char::is_control) || query.is_some_and(|query| query.contains(char::is_control)) {
            return bad("has control characters in it");
        }
        let query = query.map(query_encoded);
        Ok(Location { scheme, authority: authority.to_owned(), key, query })
    }

    /// What kind of place it is in.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket, the container, or the host with its port.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host of a web server, without its port.
    #[cfg(feature = "remote")]
    pub(crate) fn host(&self) -> &str {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.authority,
        }
    }

    /// The key, as the store knows it: no leading slash, nothing encoded.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What follows `?` in the URL of a web server, such as a signature.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The store or the server itself, with the query.
    #[cfg(feature = "remote")]
    pub(crate) fn root(&self) -> Location {
        Location { key: String::new(), ..self.clone() }
    }

    /// The URL without its query, which may be a secret.
    pub fn url(&self) -> String {
        match self.scheme.is_web() {
            true => format!("{}://{}/{}", self.scheme.name(), self.authority, encoded(&self.key)),
            false => format!("{}://{}/{}", self.scheme.name(), self.authority, self.key),
        }
    }

    /// The extension of the last part of the key, in lower case.
    pub fn extension(&self) -> Option<String> {
        Some(Path::new(&self.key).extension()?.to_str()?.to_ascii_lowercase())
    }

    /// The same place with another key and without the query.
    pub(crate) fn with_key(&self, key: impl Into<String>) -> Result<Location> {
        Location::new(self.scheme, &self.authority, key.into(), None)
    }
}

/// What a path means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file of this machine.
    Local(PathBuf),
    /// An object somewhere else.
    Remote(Location),
}

/// Whether a path is a URL rather than a file name.
pub fn is_url(path: &Path) -> bool {
    split(path).is_some()
}

/// The scheme, in lower case, and what follows `://`.
fn split(path: &Path) -> Option<(String, &str)> {
    let (scheme, rest) = path.to_str()?.split_once("://")?;
    let mut letters = scheme.bytes();
    let first = letters.next()?;
    let plain = first.is_ascii_alphabetic()
        && letters.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    plain.then(|| (scheme.to_ascii_lowercase(), rest))
}

/// Whether a path looks like a URL that went through something that tidies paths.
fn lost_a_slash(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    let schemes = Scheme::ALL.iter().map(|(name, _)| *name).chain(["hf", "file"]);
    schemes.filter_map(|name| text.strip_prefix(name)).any(|rest| rest.starts_with(":/"))
}

/// What a path means: `s3://`, `gs://`, `az://`, `hf://`, `http://`, `https://` and `file://` are
/// URLs, everything else is the name of a file.
pub fn place(path: &Path) -> Result<Place> {
    let Some((name, rest)) = split(path) else {
        if lost_a_slash(path) && !path.exists() {
            let message = "a URL has two slashes behind its scheme; programs that take it for a path \
                           (Python's pathlib) drop one: pass it as a string";
            return Err(Error::invalid(message).in_file(path));
        }
        return Ok(Place::Local(path.to_owned()));
    };
    let bad = |why: &str| Error::invalid(format!("the URL {why}")).in_file(path);
    if name == "file" {
        let rest = rest.strip_prefix("localhost").unwrap_or(rest);
        if !rest.starts_with('/') {
            return Err(bad("of a file names another machine: write file:///folder/name"));
        }
        return Ok(Place::Local(file_path(decoded(rest).ok_or_else(|| bad("is not UTF-8"))?)));
    }
    if name == "hf" {
        return place(Path::new(&hub::url(rest)?));
    }
    let Some(&(_, scheme)) = Scheme::ALL.iter().find(|(known, _)| *known == name) else {
        if path.exists() {
            return Ok(Place::Local(path.to_owned()));
        }
        let known: Vec<_> = Scheme::ALL.iter().map(|(name, _)| *name).chain(["hf", "file"]).collect();
        let message = format!("nothing can be opened by {}: there are {}", quoted(&name), known.join(", "));
        return Err(Error::unsupported(message).in_file(path));
    };
    let (rest, query) = match scheme.is_web() {
        true => {
            let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
            rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)))
        }
        false => (rest, None),
    };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    let key = match scheme.is_web() {
        true => decoded(key).ok_or_else(|| bad("is not UTF-8"))?,
        false => key.to_owned(),
    };
    Location::new(scheme, authority, key, query).map(Place::Remote).map_err(|error| {
        // What stands before an @ may be a password.
        if authority.contains('@') || query.is_some() { error } else { error.in_file(path) }
    })
}

/// The file that the path of a `file:` URL names: on Windows `/C:/folder` is `C:/folder`.
fn file_path(path: String) -> PathBuf {
    let has_drive =
        |path: &str| matches!(path.as_bytes(), [b'/', drive, b':', ..] if drive.is_ascii_alphabetic());
    match cfg!(windows) && has_drive(&path) {
        true => PathBuf::from(&path[1..]),
        false => PathBuf::from(path),
    }
}

/// The `file:` URL of an absolute path.
#[cfg(test)]
pub(crate) fn file_url(path: &Path) -> String {
    let path = path.display().to_string().replace('\\', "/");
    format!("file:///{}", path.trim_start_matches('/'))
}

/// The file of this machine that a path means, for what can be done only to those.
pub(crate) fn local(path: &Path) -> Result<PathBuf> {
    match place(path)? {
        Place::Local(path) => Ok(path),
        Place::Remote(location) => {
            let message = "a remote file cannot be edited in place: write a new one, or edit a copy";
            Err(Error::unsupported(message).in_file(location.url()))
        }
    }
}

/// Undoes percent-encoding; `None` if what comes out is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if digit(*high).is_some() && digit(*low).is_some() => {
                bytes.push(digit(*high)? << 4 | digit(*low)?);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// A query as part of a URL: what is encoded already stays.
fn query_encoded(query: &str) -> String {
    let mut text = String::with_capacity(query.len());
    for byte in query.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                text.push_str(&format!("%{byte:02X}"))
            }
            b'!'..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// A key as part of a URL.
fn encoded(key: &str) -> String {
    let mut url = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b'/'
            | b'='
            | b':'
            | b'@'
            | b'+' => {
                url.push(char::from(byte));
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str) -> Location {
        match place(Path::new(url)).unwrap() {
            Place::Remote(location) => location,
            Place::Local(path) => panic!("{url} is the file {}", path.display()),
        }
    }

    #[test]
    fn urls_of_stores_are_taken_literally() {
        for (scheme, name) in [(Scheme::S3, "s3"), (Scheme::Gs, "gs"), (Scheme::Az, "az")] {
            let location = remote(&format!("{name}://bucket/a folder/50%25?#.zt"));
            assert_eq!((location.scheme, location.authority.as_str()), (scheme, "bucket"));
            assert_eq!(location.key, "a folder/50%25?#.zt");
            assert_eq!(location.url(), format!("{name}://bucket/a folder/50%25?#.zt"));
        }
        assert_eq!(remote("S3://b/k").scheme, Scheme::S3);
        assert_eq!(remote("s3://bucket").key, "");
        assert_eq!(remote("s3://b/x.SafeTensors").extension().as_deref(), Some("safetensors"));
    }

    #[test]
    fn urls_of_web_servers_are_decoded_and_keep_their_query() {
        let location = remote("https://host:8443/a%20b/model.zt?sig=a%2Fb#part");
        assert_eq!((location.authority.as_str(), location.key.as_str()), ("host:8443", "a b/model.zt"));
        assert_eq!(location.query.as_deref(), Some("sig=a%2Fb"));
        assert_eq!(location.url(), "https://host:8443/a%20b/model.zt");
        assert_eq!(location.extension().as_deref(), Some("zt"));
    }

    #[test]
    fn urls_of_files_are_files() {
        let local = |url: &str| place(Path::new(url)).unwrap();
        assert_eq!(local("file:///a%20b/c"), Place::Local("/a b/c".into()));
        let drive = if cfg!(windows) { "C:/a/b" } else { "/C:/a/b" };
        assert_eq!(local("file:///C:/a/b"), Place::Local(drive.into()));
        assert_eq!(local("file://localhost/c"), Place::Local("/c".into()));
        assert_eq!(local("a/b:c"), Place::Local("a/b:c".into()));
        assert_eq!(local("1:://x"), Place::Local("1:://x".into()));
        assert!(place(Path::new("file://other/c")).is_err());
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["ftp://host/x", "s3://", "s3:///key", "http:///x", "s3://a b/x", "s3:/b/x", "file:/x"] {
            let error = place(Path::new(bad)).unwrap_err();
            assert!(error.to_string().starts_with(bad), "{error}");
        }
        for bad in
            ["http://h\r\nx:y/k", "http://h/k\n", "http://h/%0d%0ak", "http://h/k?a\tb", "s3://b/\u{85}k"]
        {
            let error = place(Path::new(bad)).unwrap_err();
            assert!(error.to_string().contains("the URL"), "{error}");
        }
        assert_eq!(remote("http://h/k?a=é b").query(), Some("a=%C3%A9%20b"));
        assert!(remote("http://h/k").with_key("a\r\nb").is_err());
        assert!(!format!("{:?}", remote("http://h/k?sig=secret")).contains("secret"));
        let error = place(Path::new("https://me:secret@host/x")).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
