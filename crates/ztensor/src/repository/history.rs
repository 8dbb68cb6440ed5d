//! Commits: a manifest, the commits before it, and what people say about it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::manifest::check_format;
use super::names::RecordId;
use crate::error::{Error, Result};
use crate::format::json::{Scanner, push_string};

/// BLAKE3's key derivation context of commits' ids. (format)
const CONTEXT: &str = "ztensor 2026-11-17 repository commit, version 1";
/// The version of the format. (format)
const FORMAT: u64 = 1;
/// The longest commit. (limit)
pub(crate) const MAX_COMMIT: u64 = 1 << 20;
/// Parents of a commit, at most. (limit)
const MOST_PARENTS: usize = 16;

/// A version and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Commit {
    /// The commits that it follows: none for the first one, several for a merge.
    pub parents: Vec<RecordId>,
    /// The id of its manifest.
    pub manifest: RecordId,
    /// What was said about it.
    pub message: String,
    /// By whom.
    pub author: String,
    /// When: seconds since 1970.
    pub time: u64,
    /// How many files it has.
    pub files: u64,
    /// How many tensors.
    pub tensors: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were stored for it when it was made.
    pub stored: u64,
    /// Anything else, such as a step or a loss.
    pub metadata: BTreeMap<String, String>,
}

impl Commit {
    /// The id, and the bytes to store.
    pub(crate) fn encode(&self) -> Result<(RecordId, Vec<u8>)> {
        let mut json = format!("{{\"format\":{FORMAT},\"manifest\":\"{}\",\"parents\":[", self.manifest);
        for (at, parent) in self.parents.iter().enumerate() {
            let _ = write!(json, "{}\"{parent}\"", if at > 0 { "," } else { "" });
        }
        let _ = write!(json, "],\"time\":{},\"author\":", self.time);
        push_string(&mut json, &self.author);
        json.push_str(",\"message\":");
        push_string(&mut json, &self.message);
        let (files, tensors, bytes, stored) = (self.files, self.tensors, self.bytes, self.stored);
        let _ = write!(
            json,
            ",\"files\":{files},\"tensors\":{tensors},\"bytes\":{bytes},\"stored\":{stored},\"metadata\":{{"
        );
        for (at, (key, value)) in self.metadata.iter().enumerate() {
            json.push_str(if at > 0 { "," } else { "" });
            push_string(&mut json, key);
            json.push(':');
            push_string(&mut json, value);
        }
        json.push_str("}}\n");
        if json.len() as u64 > MAX_COMMIT || self.parents.len() > MOST_PARENTS {
            let message = format!("a commit has at most {MAX_COMMIT} bytes and {MOST_PARENTS} parents");
            return Err(Error::invalid(message));
        }
        Ok((RecordId::of(CONTEXT, json.as_bytes()), json.into_bytes()))
    }

    /// Parses stored bytes and compares their id.
    pub(crate) fn decode(stored: &[u8], id: &RecordId) -> Result<Commit> {
        if RecordId::of(CONTEXT, stored) != *id {
            return Err(Error::mismatch(format!(
                "the commit does not have the id {id}: it is damaged or forged"
            )));
        }
        Self::parse(stored)
    }

    /// Parses bytes.
    pub(crate) fn parse(stored: &[u8]) -> Result<Commit> {
        let broken = |message: &str| Error::corrupt("repository.commit", message);
        let text = std::str::from_utf8(stored).map_err(|_| broken("it is not UTF-8"))?;
        let mut commit = Commit::default();
        let (mut format, mut manifest) = (false, false);
        let mut scanner = Scanner::new(text);
        scanner.object(|scanner, key| {
            match &*key {
                "format" => {
                    check_format(scanner, FORMAT)?;
                    format = true;
                }
                "manifest" => {
                    commit.manifest = scanner.string()?.parse()?;
                    manifest = true;
                }
                "parents" => scanner.array(|scanner| {
                    if commit.parents.len() == MOST_PARENTS {
                        return Err(broken("too many parents"));
                    }
                    commit.parents.push(scanner.string()?.parse()?);
                    Ok(())
                })?,
                "time" => commit.time = scanner.u64()?,
                "author" => commit.author = scanner.string()?.into_owned(),
                "message" => commit.message = scanner.string()?.into_owned(),
                "files" => commit.files = scanner.u64()?,
                "tensors" => commit.tensors = scanner.u64()?,
                "bytes" => commit.bytes = scanner.u64()?,
                "stored" => commit.stored = scanner.u64()?,
                "metadata" => scanner.object(|scanner, key| {
                    let value = scanner.string()?.into_owned();
                    commit.metadata.insert(key.into_owned(), value);
                    Ok(())
                })?,
                _ => scanner.skip()?,
            }
            Ok(())
        })?;
        scanner.end()?;
        match format && manifest {
            true => Ok(commit),
            false => Err(broken("it names no format or no manifest")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_survives() {
        let commit = Commit {
            parents: vec![RecordId([1; 32]), RecordId([2; 32])],
            manifest: RecordId([3; 32]),
            message: "first\n\"line\"".into(),
            author: "ä".into(),
            time: u64::MAX,
            files: 1,
            tensors: 2,
            bytes: 3,
            stored: 4,
            metadata: [("step".to_owned(), "100".to_owned())].into(),
        };
        let (id, stored) = commit.encode().unwrap();
        assert_eq!(Commit::decode(&stored, &id).unwrap(), commit);
        for cut in 0..stored.len() - 1 {
            assert!(Commit::parse(&stored[..cut]).is_err(), "{cut}");
        }
        let mut forged = stored.clone();
        let at = forged.iter().position(|byte| *byte == b'3').unwrap();
        forged[at] = b'4';
        assert_eq!(Commit::decode(&forged, &id).unwrap_err().kind(), crate::ErrorKind::Mismatch);
        assert!(Commit::parse(b"{\"format\":1}").is_err());
        assert!(Commit::parse(b"{\"format\":9,\"manifest\":\"00\"}").is_err());
    }
}
