//! What was read from a store, kept in a folder under the object's identity.
//!
//! An object's blocks are files of their own, each written beside its name and
//! renamed, so that processes of one user can share the folder; each ends with a checksum, and
//! one that is damaged is fetched again. Identity is the URL, the length and the
//! `ETag` (or the date, where there is none): another version of an object is
//! another object here. Objects that have neither are not kept.
//!
//! A checksum does not say who wrote a block, so the file system has to: folders are this user's
//! alone, and a block of another owner is fetched again.
//!
//! Trouble with the cache is never an error: bytes then come from the store. Only a folder that
//! every user can write to is one.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use object_store::ObjectMeta;
use sha2::{Digest, Sha256};

use super::settings::Settings;
use crate::error::{Error, Result};
use crate::source::zeroed;
use crate::trusted::{self, Access, Found};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;

/// Bytes of the checksum behind a block. (format)
const CHECKSUM: usize = 4;

/// The folder of one object.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The place for an object, if a cache is wanted and the object can be told from others.
    pub(super) fn open(settings: &Settings, url: &str, meta: &ObjectMeta) -> Result<Option<Cache>> {
        let Some((root, limit)) = &settings.cache else { return Ok(None) };
        let date = meta.last_modified.timestamp_millis();
        let identity = match &meta.e_tag {
            Some(tag) => format!("tag {tag}"),
            None if date != 0 => format!("date {date}"),
            None => return Ok(None),
        };
        let name = Sha256::digest(format!("{url}\n{}\n{identity}", meta.size));
        let name: String = name.iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        trusted::private_folder(root, &name)
            .map_err(|error| Error::io(format!("cannot use the cache {}", root.display()), error))?;
        let folder = root.join(name);
        if let Some(limit) = limit {
            trim(root, *limit);
        }
        Ok(Some(Cache { folder }))
    }

    fn path(&self, index: u64) -> PathBuf {
        self.folder.join(format!("{index}.block"))
    }

    /// A block of `len` bytes, if it is there and whole.
    pub(super) fn get(&self, index: u64, len: u64) -> Option<Vec<u8>> {
        let Found::File(mut file) = trusted::open(&self.path(index), Access::Read, None).ok()? else {
            return None;
        };
        if file.metadata().ok()?.len() != len + CHECKSUM as u64 {
            return None;
        }
        let mut bytes = zeroed(len + CHECKSUM as u64).ok()?;
        file.read_exact(&mut bytes).ok()?;
        let checksum = bytes.split_off(len as usize);
        if checksum != crc32c::crc32c(&bytes).to_le_bytes() {
            return None;
        }
        // So that what is used is the last to go.
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    /// Keeps a block, if the disk can.
    pub(super) fn put(&self, index: u64, bytes: &[u8]) {
        let write = || -> Result<()> {
            let to = Destination::derived(&self.folder, format!("{index}.block"))?.overwrite(true).private();
            let failed = |error| Error::io("cannot write", error);
            let mut file = AtomicFile::create(&to)?;
            file.write_all(bytes).map_err(failed)?;
            file.write_all(&crc32c::crc32c(bytes).to_le_bytes()).map_err(failed)?;
            file.commit(false)
        };
        let _ = write(); // a full disk is no reason not to read
    }
}

/// Removes the blocks that were not used for the longest time, until the rest fits.
fn trim(root: &Path, limit: u64) {
    let folders = fs::read_dir(root).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
    let mut blocks: Vec<(SystemTime, u64, PathBuf)> = files
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "block"))
        .filter_map(|file| {
            let metadata = file.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), file.path()))
        })
        .collect();
    let mut total: u64 = blocks.iter().map(|(_, len, _)| len).sum();
    blocks.sort();
    for (_, len, path) in blocks {
        if total <= limit {
            return;
        }
        if fs::remove_file(&path).is_ok() {
            total -= len;
            let _ = path.parent().map(fs::remove_dir); // only where it was the last
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_unless_they_are_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { folder: dir.path().to_owned() };
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        cache.put(3, &bytes);
        assert_eq!(cache.get(3, 1000).as_deref(), Some(&bytes[..]));
        assert_eq!(cache.get(3, 999), None, "another length");
        assert_eq!(cache.get(4, 1000), None, "never put");
        for damage in [0, 500, 1003] {
            let mut file = fs::read(cache.path(3)).unwrap();
            file[damage] ^= 1;
            fs::write(cache.path(3), file).unwrap();
            assert_eq!(cache.get(3, 1000), None, "{damage}");
            cache.put(3, &bytes);
        }
    }

    #[cfg(unix)]
    #[test]
    fn blocks_that_others_may_have_written_are_fetched_again() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache { folder: dir.path().to_owned() };
        let bytes = [7; 100];
        cache.put(0, &bytes);
        assert_eq!(fs::metadata(cache.path(0)).unwrap().mode() & 0o777, 0o600);
        assert!(cache.get(0, 100).is_some());
        fs::set_permissions(cache.path(0), PermissionsExt::from_mode(0o666)).unwrap();
        assert!(cache.get(0, 100).is_none(), "every user can write to it");
        cache.put(0, &bytes);
        fs::rename(cache.path(0), dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", cache.path(0)).unwrap();
        assert!(cache.get(0, 100).is_none(), "a link");
        cache.put(0, &bytes);
        assert!(!cache.path(0).is_symlink() && cache.get(0, 100).is_some());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(cache.path(0), Some(65534), None).unwrap();
            assert!(cache.get(0, 100).is_none(), "another owner");
        }
    }

    #[test]
    fn the_oldest_blocks_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let folders = ["one", "two"].map(|name| dir.path().join(name));
        for (age, folder) in folders.iter().enumerate() {
            fs::create_dir(folder).unwrap();
            let cache = Cache { folder: folder.clone() };
            cache.put(0, &[0; 96]);
            let then = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 * age as u64);
            fs::File::options().append(true).open(cache.path(0)).unwrap().set_modified(then).unwrap();
        }
        trim(dir.path(), 250);
        assert!(folders[0].exists() && folders[1].exists());
        trim(dir.path(), 150);
        assert!(!folders[0].exists() && folders[1].join("0.block").exists());
        trim(dir.path(), 0);
        assert!(!folders[1].exists());
    }
}
