//! Names of a repository's files, and ids of its records.

use std::fmt;
use std::hash::{BuildHasher, Hasher as _};
use std::str::FromStr;

use crate::error::{Error, Result, quoted};
use crate::format::shards::is_plain_name;

/// The file that makes a folder or a prefix a repository.
pub(crate) const MARKER: &str = "ztensor-repository.json";
pub(crate) const PACKS: &str = "packs";
pub(crate) const MANIFESTS: &str = "manifests";
pub(crate) const COMMITS: &str = "commits";
pub(crate) const LOCATIONS: &str = "locations";
pub(crate) const INDEXES: &str = "indexes";
pub(crate) const REFS: &str = "refs";
pub(crate) const CONDEMNED: &str = "condemned";
pub(crate) const FORGOTTEN: &str = "forgotten";
/// The advisory lock of a repository in a folder.
pub(crate) const LOCK: &str = ".lock";

/// Digits of a pack's name, and of a ref's entries. (format)
const PACK_DIGITS: usize = 32;
pub(crate) const ENTRY_DIGITS: usize = 12;
/// The longest name of a branch or a tag. (limit)
const LONGEST_REF: usize = 200;
/// The longest path of a file in a version. (limit)
const LONGEST_PATH: usize = 4096;
/// The shortest abbreviation of an id. (limit)
const SHORTEST_PREFIX: usize = 6;

/// The id of a manifest or a commit: BLAKE3 of its bytes, under a context of its own.
///
/// Its text form is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RecordId(pub(crate) [u8; 32]);

impl RecordId {
    /// The id of a record's bytes, which `context` tells from those of other kinds.
    pub(crate) fn of(context: &str, bytes: &[u8]) -> RecordId {
        RecordId(*blake3::Hasher::new_derive_key(context).update(bytes).finalize().as_bytes())
    }

    /// The first digits, for people.
    pub fn short(&self) -> String {
        self.0[..5].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

impl FromStr for RecordId {
    type Err = Error;

    fn from_str(text: &str) -> Result<RecordId> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let parse = || {
            let mut bytes = [0; 32];
            (text.len() == 64).then_some(())?;
            for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
                *byte = digit(pair[0])? << 4 | digit(pair[1])?;
            }
            Some(RecordId(bytes))
        };
        parse().ok_or_else(|| {
            Error::corrupt("repository.id", format!("{} is not an id of 64 hexadecimal digits", quoted(text)))
        })
    }
}

/// A random name of 32 digits, for a pack: no two writers choose the same.
pub(crate) fn random_name() -> String {
    // Both are seeded by the system's random numbers.
    let word = || {
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u128(
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos()),
        );
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    format!("{:016x}{:016x}", word(), word())
}

/// Whether a name from a file is that of a pack.
pub(crate) fn is_pack_name(name: &str) -> bool {
    name.len() == PACK_DIGITS && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The file of a pack.
pub(crate) fn pack_file(name: &str) -> String {
    format!("{PACKS}/{name}.zt")
}

/// Whether `text` can be the beginning of an id.
pub(crate) fn is_id_prefix(text: &str) -> bool {
    (SHORTEST_PREFIX..=64).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Refuses names that no branch or tag can have: they become names of files.
pub(crate) fn check_ref_name(name: &str) -> Result<()> {
    let good = |part: &str| {
        let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@=".contains(&byte));
        let entry = part.len() == ENTRY_DIGITS && part.bytes().all(|byte| byte.is_ascii_digit());
        !part.is_empty() && plain && !part.starts_with('.') && !part.ends_with(".lock") && !entry
    };
    match name.len() <= LONGEST_REF && name.split('/').all(good) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{} is not a valid name of a branch or tag: use letters, digits and . _ - + @ = in parts between slashes",
            quoted(name)
        ))),
    }
}

/// Refuses a path of a version's file that could lead out of the folder that it is restored into.
pub(crate) fn check_path(path: &str) -> Result<()> {
    let good = |part: &str| is_plain_name(part) && !part.chars().any(char::is_control);
    match path.len() <= LONGEST_PATH && path.split('/').all(good) {
        true => Ok(()),
        false => Err(Error::corrupt(
            "repository.path",
            format!("{} is not a relative path of plain names", quoted(path)),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for good in ["a", "a/b.c", ".gitattributes", "ä/ü", "a b"] {
            check_path(good).unwrap();
        }
        for bad in ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\\b", "c:", "a\nb", "a\0", "./a"] {
            assert_eq!(check_path(bad).unwrap_err().rule(), Some("repository.path"), "{bad:?}");
        }
        assert!(check_path(&"a".repeat(5000)).is_err());
    }

    #[test]
    fn refs_are_plain_names() {
        for good in ["main", "exp/a-1", "v1.0", "step=100"] {
            check_ref_name(good).unwrap();
        }
        for bad in
            ["", "/", "a/", "..", "a/../b", "a b", "é", "000000000001", "a/000000000001", ".a", "x.lock"]
        {
            assert!(check_ref_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_and_names_have_one_form() {
        let id = RecordId::of("test", b"x");
        assert_eq!(id.to_string().parse::<RecordId>().unwrap(), id);
        assert!(id.to_string().to_uppercase().parse::<RecordId>().is_err());
        assert_ne!(id, RecordId::of("other", b"x"));
        let (a, b) = (random_name(), random_name());
        assert!(is_pack_name(&a) && is_pack_name(&b) && a != b);
        assert!(!is_pack_name("../../../../../../../etc/passwd0"));
        assert!(is_id_prefix(&id.to_string()[..8]) && !is_id_prefix("abc") && !is_id_prefix("main00"));
    }
}
