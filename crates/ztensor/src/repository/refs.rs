//! Branches and tags: numbered entries, of which the last one counts.
//!
//! An entry is made where none is, and never changed: of two writers that saw the same last entry,
//! one makes the next, and the other is told. What a ref was before stays readable.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::manifest::check_format;
use super::names::{ENTRY_DIGITS, REFS, RecordId, check_ref_name, random_name};
use super::store::Store;
use crate::error::{Error, Result, quoted};
use crate::format::json::{Scanner, push_string};

/// The version of the format. (format)
const FORMAT: u64 = 1;
/// The longest entry. (limit)
const MAX_ENTRY: u64 = 64 << 10;

/// What a ref is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RefKind {
    /// It follows the commits that are made on it.
    Branch,
    /// It stays where it was put.
    Tag,
}

impl RefKind {
    /// The folder of all refs of this kind.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            RefKind::Branch => "heads",
            RefKind::Tag => "tags",
        }
    }
}

/// The last entry of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefEntry {
    /// Its number; the first one has 1.
    pub(crate) number: u64,
    /// The commit; `None` where the ref was removed.
    pub(crate) commit: Option<RecordId>,
    /// The commit's manifest, so that it can be fetched without the commit.
    pub(crate) manifest: Option<RecordId>,
    /// What was done.
    pub(crate) reason: String,
    pub(crate) time: u64,
    /// A random text that tells whose entry it is.
    pub(crate) writer: String,
}

/// A branch or a tag and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ref {
    /// Whether it is a branch or a tag.
    pub kind: RefKind,
    /// Its name.
    pub name: String,
    /// The commit.
    pub commit: RecordId,
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn folder(kind: RefKind, name: &str) -> String {
    format!("{REFS}/{}/{name}", kind.folder())
}

fn entry_name(kind: RefKind, name: &str, number: u64) -> String {
    format!("{}/{number:0width$}", folder(kind, name), width = ENTRY_DIGITS)
}

/// The number of an entry's file.
fn entry_number(file: &str) -> Option<u64> {
    let digits = file.len() == ENTRY_DIGITS && file.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| file.parse().ok()).flatten()
}

/// The last entry of a ref; `None` if there never was one.
pub(crate) fn last(store: &Store, kind: RefKind, name: &str) -> Result<Option<RefEntry>> {
    check_ref_name(name)?;
    let listed = store.list(&folder(kind, name))?;
    let Some(mut number) = listed.iter().filter_map(|entry| entry_number(&entry.name)).max() else {
        return Ok(None);
    };
    // A listing may be older than what is there, but not what is read by its name.
    let mut found = read(store, kind, name, number)?;
    if !store.is_local() {
        return Ok(found);
    }
    while let Some(next) = read(store, kind, name, number + 1)? {
        (found, number) = (Some(next), number + 1);
    }
    Ok(found)
}

/// The last entry of a ref that has at least the entry `known`, whatever a listing says.
pub(crate) fn last_from(store: &Store, kind: RefKind, name: &str, known: u64) -> Result<Option<RefEntry>> {
    let listed = last(store, kind, name)?;
    if listed.as_ref().map_or(0, |entry| entry.number) >= known {
        return Ok(listed);
    }
    let (mut found, mut number) = (read(store, kind, name, known)?, known);
    while let Some(next) = read(store, kind, name, number + 1)? {
        (found, number) = (Some(next), number + 1);
    }
    Ok(found)
}

/// The entry of that number.
pub(crate) fn read(store: &Store, kind: RefKind, name: &str, number: u64) -> Result<Option<RefEntry>> {
    let file = entry_name(kind, name, number);
    let Some(bytes) = store.read(&file, MAX_ENTRY)? else { return Ok(None) };
    parse(&bytes, number).map(Some).map_err(|error| error.in_file(store.path(&file)))
}

/// Makes an entry behind `before`; `None` if another writer was faster.
pub(crate) fn advance(
    store: &Store,
    kind: RefKind,
    name: &str,
    before: u64,
    to: Option<(RecordId, RecordId)>,
    reason: &str,
) -> Result<Option<RefEntry>> {
    check_ref_name(name)?;
    let entry = RefEntry {
        number: before + 1,
        commit: to.map(|to| to.0),
        manifest: to.map(|to| to.1),
        reason: reason.to_owned(),
        time: now(),
        writer: random_name(),
    };
    let file = entry_name(kind, name, entry.number);
    match store.write_new(&file, encode(&entry).as_bytes())? {
        true => Ok(Some(entry)),
        // The answer to an earlier attempt may have been lost.
        false => Ok(read(store, kind, name, entry.number)?.filter(|there| there.writer == entry.writer)),
    }
}

/// The last entries of all refs, those that were removed included.
pub(crate) fn all(store: &Store) -> Result<Vec<(RefKind, String, u64)>> {
    let mut last: BTreeMap<(RefKind, String), u64> = BTreeMap::new();
    for entry in store.list(REFS)? {
        let Some((path, file)) = entry.name.rsplit_once('/') else { continue };
        let (Some(number), Some((kind, name))) = (entry_number(file), path.split_once('/')) else { continue };
        let kind = match kind {
            "heads" => RefKind::Branch,
            "tags" => RefKind::Tag,
            _ => continue,
        };
        if check_ref_name(name).is_ok() {
            let slot = last.entry((kind, name.to_owned())).or_default();
            *slot = number.max(*slot);
        }
    }
    Ok(last.into_iter().map(|((kind, name), number)| (kind, name, number)).collect())
}

fn encode(entry: &RefEntry) -> String {
    let mut json = format!("{{\"format\":{FORMAT}");
    if let (Some(commit), Some(manifest)) = (entry.commit, entry.manifest) {
        let _ = write!(json, ",\"commit\":\"{commit}\",\"manifest\":\"{manifest}\"");
    }
    let _ = write!(json, ",\"time\":{},\"writer\":\"{}\",\"reason\":", entry.time, entry.writer);
    push_string(&mut json, &entry.reason);
    json.push_str("}\n");
    json
}

/// Parses an entry.
pub(crate) fn parse(bytes: &[u8], number: u64) -> Result<RefEntry> {
    let broken = |message: &str| Error::corrupt("repository.ref", message);
    let text = std::str::from_utf8(bytes).map_err(|_| broken("it is not UTF-8"))?;
    let (reason, writer) = (String::new(), String::new());
    let mut entry = RefEntry { number, commit: None, manifest: None, reason, time: 0, writer };
    let mut format = false;
    let mut scanner = Scanner::new(text);
    scanner.object(|scanner, key| {
        match &*key {
            "format" => {
                check_format(scanner, FORMAT)?;
                format = true;
            }
            "commit" => entry.commit = Some(scanner.string()?.parse()?),
            "manifest" => entry.manifest = Some(scanner.string()?.parse()?),
            "time" => entry.time = scanner.u64()?,
            "reason" => entry.reason = scanner.string()?.into_owned(),
            "writer" => entry.writer = scanner.string()?.into_owned(),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    scanner.end()?;
    match format && entry.commit.is_some() == entry.manifest.is_some() {
        true => Ok(entry),
        false => Err(broken("it names no format, or a commit without its manifest")),
    }
}

/// The error for a ref that another writer changed meanwhile.
pub(crate) fn conflict(kind: RefKind, name: &str) -> Error {
    let what = match kind {
        RefKind::Branch => "branch",
        RefKind::Tag => "tag",
    };
    let message = format!("another writer changed the {what} {} meanwhile: try again", quoted(name));
    Error::mismatch(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_writers_makes_the_next_entry() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), Default::default()).unwrap();
        let to = |byte| Some((RecordId([byte; 32]), RecordId([byte + 1; 32])));
        assert_eq!(last(&store, RefKind::Branch, "main").unwrap(), None);
        let first = advance(&store, RefKind::Branch, "main", 0, to(1), "commit").unwrap().unwrap();
        assert!(advance(&store, RefKind::Branch, "main", 0, to(3), "commit").unwrap().is_none());
        assert_eq!(last(&store, RefKind::Branch, "main").unwrap(), Some(first));
        advance(&store, RefKind::Branch, "main", 1, to(5), "a \"b\"").unwrap().unwrap();
        advance(&store, RefKind::Branch, "main/x", 0, to(7), "").unwrap().unwrap();
        advance(&store, RefKind::Tag, "t", 0, to(9), "").unwrap().unwrap();
        advance(&store, RefKind::Tag, "t", 1, None, "removed").unwrap().unwrap();
        let there = last(&store, RefKind::Branch, "main").unwrap().unwrap();
        assert_eq!((there.number, there.commit, &*there.reason), (2, Some(RecordId([5; 32])), "a \"b\""));
        assert_eq!(last(&store, RefKind::Tag, "t").unwrap().unwrap().commit, None);
        let all = all(&store).unwrap();
        let names: Vec<_> = all.iter().map(|(_, name, number)| (name.as_str(), *number)).collect();
        assert_eq!(names, [("main", 2), ("main/x", 1), ("t", 2)]);
        assert!(advance(&store, RefKind::Branch, "../x", 0, None, "").is_err());
    }

    #[test]
    fn forged_entries_are_refused() {
        let id = RecordId([1; 32]);
        for bad in [
            String::new(),
            "{}".into(),
            format!("{{\"format\":1,\"commit\":\"{id}\"}}"),
            "{\"format\":1,\"commit\":\"..\",\"manifest\":\"..\"}".into(),
            "{\"format\":7}".into(),
            "{\"format\":1}x".into(),
        ] {
            assert!(parse(bad.as_bytes(), 1).is_err(), "{bad}");
        }
        assert_eq!(parse(b"{\"format\":1}", 1).unwrap().commit, None);
    }
}
