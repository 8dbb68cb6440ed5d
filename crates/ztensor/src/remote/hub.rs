//! The Hugging Face Hub: `hf://owner/repo[@revision]/file`, with the environment variables of the
//! Hub's own tools.
//!
//! Such a URL is another way to write the `https://` URL under which the Hub serves the file, so
//! everything that reads web servers reads the Hub. Added to it are the token, which goes to the
//! Hub's endpoint and to no other host, and a listing of folders.

#[cfg(feature = "remote")]
use std::path::PathBuf;

use super::store::{self, Entry};
use super::{Location, Options};
use crate::error::{Error, Result, quoted};
use crate::format::json::Scanner;

/// The Hub itself; `HF_ENDPOINT` names a mirror or a server of one's own.
const ENDPOINT: &str = "https://huggingface.co";

/// A longer listing, and one of more pages, is not of a model. (limit)
const MAX_LISTING: u64 = 32 << 20;
const MAX_PAGES: usize = 1000;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable says yes, as the Hub's tools understand it.
fn is_on(name: &str) -> bool {
    let yes = ["1", "ON", "YES", "TRUE"];
    variable(name).is_some_and(|value| yes.contains(&value.to_ascii_uppercase().as_str()))
}

fn endpoint() -> String {
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
    endpoint.trim_end_matches('/').to_owned()
}

/// The web URL of what `hf://` and `rest` name: a file, or a folder, which ends with a slash.
pub(super) fn url(rest: &str) -> Result<String> {
    if is_on("HF_HUB_OFFLINE") {
        let message = "HF_HUB_OFFLINE is set: unset it, or open a file of this machine";
        return Err(Error::unsupported(message));
    }
    let (kind, rest) = match rest.split_once('/') {
        Some((kind @ ("datasets" | "spaces"), rest)) => (format!("{kind}/"), rest),
        Some(("models", rest)) => (String::new(), rest),
        _ => (String::new(), rest),
    };
    let bad = || {
        let message = format!(
            "{} is not a URL of the Hub: write hf://owner/repo[@revision]/file",
            quoted(&format!("hf://{kind}{rest}"))
        );
        Error::invalid(message)
    };
    let (owner, rest) = rest.split_once('/').ok_or_else(bad)?;
    let (repo, file) = rest.split_once('/').unwrap_or((rest, ""));
    let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = |part: &str| !part.is_empty() && !part.contains("..") && part.chars().all(plain);
    // A revision may be a path, such as refs%2Fpr%2F1.
    let revision_is_good = !revision.is_empty() && revision.chars().all(|c| plain(c) || "%/".contains(c));
    if !good(owner) || !good(repo) || !revision_is_good || file.split('/').any(|part| part == "..") {
        return Err(bad());
    }
    Ok(format!("{}/{kind}{owner}/{repo}/resolve/{revision}/{}", endpoint(), escaped(file)))
}

/// A file's name as part of a URL that will be parsed.
fn escaped(file: &str) -> String {
    file.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// A URL of the Hub, as a repository and what follows `resolve/`.
fn resolved<'a>(url: &'a str, endpoint: &str) -> Option<(&'a str, &'a str)> {
    url.strip_prefix(endpoint)?.strip_prefix('/')?.split_once("/resolve/")
}

/// The token for a URL, if it is one of the Hub and there is a token to be used without being asked.
#[cfg(feature = "remote")]
pub(super) fn token(url: &str) -> Option<String> {
    let endpoint = endpoint();
    let api = format!("{endpoint}/api/");
    if !(url.starts_with(&api) || resolved(url, &endpoint).is_some()) {
        return None;
    }
    if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return None;
    }
    let named = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let token = named.or_else(|| std::fs::read_to_string(token_file()?).ok())?;
    let token = token.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

/// Where `hf auth login` keeps the token.
#[cfg(feature = "remote")]
fn token_file() -> Option<PathBuf> {
    if let Some(path) = variable("HF_TOKEN_PATH") {
        return Some(path.into());
    }
    let home = variable("HF_HOME").map(PathBuf::from).or_else(|| {
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
        Some(cache.join("huggingface"))
    })?;
    Some(home.join("token"))
}

/// The files directly in a folder of a repository; `None` if the URL is not one of the Hub.
pub(super) fn listing(location: &Location, options: &Options) -> Result<Option<Vec<Entry>>> {
    let (endpoint, url) = (endpoint(), location.url());
    let Some((repo, rest)) = resolved(&url, &endpoint) else { return Ok(None) };
    let (revision, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let folder = folder.trim_end_matches('/');
    let kind = if repo.starts_with("datasets/") || repo.starts_with("spaces/") { "" } else { "models/" };
    let mut api = format!("{endpoint}/api/{kind}{repo}/tree/{revision}");
    if !folder.is_empty() {
        api.push('/');
        api.push_str(folder);
    }
    let unclear = |why: &str| Error::unsupported(format!("not a listing of the Hub: {why}")).in_file(&api);
    let (mut listed, mut left) = (Vec::new(), MAX_LISTING);
    let mut page = api.clone();
    for _ in 0..MAX_PAGES {
        let (bytes, next) = store::read_page(&page, left, options)?;
        left -= bytes.len() as u64;
        let text = std::str::from_utf8(&bytes).map_err(|error| unclear(&error.to_string()))?;
        listed.extend(entries(text).map_err(|error| unclear(&error.to_string()))?);
        let Some(next) = next else { return Ok(Some(listed)) };
        // Of the next page only the query is taken: no other host is asked, and mirrors work whose
        // pages name the Hub.
        let (_, query) = next.split_once('?').ok_or_else(|| unclear("its next page has no query"))?;
        page = format!("{api}?{query}");
    }
    Err(unclear(&format!("it has more than {MAX_PAGES} pages")))
}

fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut scanner = Scanner::new(text);
    scanner.array(|scanner| {
        let (mut is_file, mut path, mut len) = (false, String::new(), 0);
        scanner.object(|scanner, key| {
            match &*key {
                "type" => is_file = scanner.string()? == "file",
                "path" => path = scanner.string()?.into_owned(),
                "size" => len = scanner.u64()?,
                _ => scanner.skip()?,
            }
            Ok(())
        })?;
        if is_file {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            entries.push(Entry { name, len });
        }
        Ok(())
    })?;
    scanner.end()?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_urls() {
        let expected = [
            ("owner/repo/model.safetensors", "owner/repo/resolve/main/model.safetensors"),
            ("owner/repo@v1.0/sub/a b.zt", "owner/repo/resolve/v1.0/sub/a b.zt"),
            ("owner/repo", "owner/repo/resolve/main/"),
            ("owner/repo@abc/", "owner/repo/resolve/abc/"),
            ("datasets/owner/data/x.npz", "datasets/owner/data/resolve/main/x.npz"),
            ("models/owner/repo/50%.zt", "owner/repo/resolve/main/50%25.zt"),
        ];
        for (given, path) in expected {
            let url = url(given).unwrap();
            assert!(url.ends_with(&format!("/{path}")), "{given}: {url}");
        }
        for bad in ["", "owner", "/repo/x", "owner/", "owner/../x", "owner/repo@/x", "a b/c/d", "o/r/../x"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listings_hold_files_and_other_things() {
        let text = r#"[{"type":"directory","path":"onnx","size":0},
            {"type":"file","path":"a/model.safetensors","size":12,"lfs":{"size":12,"oid":"x"}}]"#;
        assert_eq!(entries(text).unwrap(), [Entry { name: "model.safetensors".into(), len: 12 }]);
        for bad in ["", "{}", "[1]", r#"[{"type":"file","size":-1}]"#, "[] x"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
