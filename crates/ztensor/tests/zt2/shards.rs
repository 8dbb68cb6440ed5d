//! Shards and overlays.

use std::path::Path;

use crate::common::fixtures;
use sha2::{Digest as _, Sha256};
use ztensor::source::MapMode;
use ztensor::{ErrorKind, OpenOptions, Reader, Result};

use super::rules::{find, rehash};
use super::*;

/// Copies files into a folder of their own.
pub(super) fn folder_with(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let bytes = fixtures::bytes("zt2", &format!("written/{file}"));
        std::fs::write(folder.path().join(file), bytes).unwrap();
    }
    folder
}

const SHARDED: [&str; 3] = ["sharded.zt", "sharded-00001-of-00002.zt", "sharded-00002-of-00002.zt"];

fn read_all(path: &Path) -> Result<usize> {
    let reader = Reader::open(path)?;
    reader.keys().try_fold(0, |sum, name| Ok(sum + reader.read(name)?.len()))
}

#[test]
fn shards_are_found_by_name_by_digest_and_in_a_store() {
    let folder = folder_with(&SHARDED);
    let root = folder.path().join("sharded.zt");
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // Renamed: by size and digest.
    std::fs::rename(folder.path().join(SHARDED[1]), folder.path().join("other.zt")).unwrap();
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // In a content-addressed store.
    let bytes = std::fs::read(folder.path().join(SHARDED[2])).unwrap();
    let blobs = folder.path().join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::rename(folder.path().join(SHARDED[2]), blobs.join(hex(Sha256::digest(bytes)))).unwrap();
    assert_eq!(read_all(&root).unwrap(), 384 + 200 + 12);
    // Not there: listing works, what is here can be read, the rest is missed by name.
    std::fs::remove_dir_all(folder.path().join("blobs")).unwrap();
    let reader = Reader::open(&root).unwrap();
    assert_eq!(reader.len(), 3);
    assert_eq!(reader.read("head").unwrap().len(), 12);
    let error = reader.read("blk.1.w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("sharded-00002-of-00002.zt"), "{error}");
    // Without a path there is no place to look.
    let memory = Reader::from_bytes(std::fs::read(&root).unwrap()).unwrap();
    assert_eq!(memory.read("blk.1.w").unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn another_file_in_place_of_a_shard_is_noticed() {
    for (what, damage) in [
        ("longer", &(|bytes: &mut Vec<u8>| bytes.push(0)) as &dyn Fn(&mut Vec<u8>)),
        ("no magic", &|bytes| bytes[0] = 0),
        ("another version", &|bytes| {
            let at = bytes.len() - 16;
            bytes[at] = 3;
        }),
    ] {
        let folder = folder_with(&SHARDED);
        let shard = folder.path().join(SHARDED[1]);
        let mut bytes = std::fs::read(&shard).unwrap();
        damage(&mut bytes);
        std::fs::write(&shard, bytes).unwrap();
        let error = read_all(&folder.path().join("sharded.zt")).unwrap_err();
        assert_eq!(error.rule(), Some("zt2.ShardIdentity"), "{what}: {error}");
    }
    // Bytes that no part refers to are noticed when whole shards are compared.
    let folder = folder_with(&SHARDED);
    let shard = folder.path().join(SHARDED[1]);
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let reader = Reader::open(folder.path().join("sharded.zt")).unwrap();
    reader.read("blk.0.w").unwrap();
    assert_eq!(reader.verify_all(None).unwrap_err().rule(), Some("zt2.ShardIdentity"));
}

#[cfg(unix)]
#[test]
fn overlays_never_leave_their_folder() {
    // The base as a link that leads out of the folder, or a hard link to it.
    let outside = folder_with(&["overlay-base.zt"]);
    let base = outside.path().join("overlay-base.zt");
    for link in [true, false] {
        let folder = folder_with(&["overlay.zt"]);
        let place = folder.path().join("overlay-base.zt");
        match link {
            true => std::os::unix::fs::symlink(&base, &place).unwrap(),
            false => std::fs::hard_link(&base, &place).unwrap(),
        }
        let reader = Reader::open(folder.path().join("overlay.zt")).unwrap();
        assert_eq!(reader.read("emb").unwrap_err().rule(), Some("path.outside"));
        reader.read("emb.lora_a").unwrap();
    }
    let folder = folder_with(&["overlay.zt", "overlay-base.zt"]);
    assert_eq!(read_all(&folder.path().join("overlay.zt")).unwrap(), 256 + 32 + 128 + 256);
}

#[cfg(unix)]
#[test]
fn a_file_is_no_shard_of_itself() {
    // The root's table names a shard of the root's own size that only the root has.
    let folder = folder_with(&["overlay.zt"]);
    let path = folder.path().join("overlay.zt");
    let size = std::fs::metadata(&path).unwrap().len();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = find(&bytes, b"dsize").unwrap() + 5;
    assert_eq!(bytes[at..at + 3], [0x19, 0x30, 0xe8]);
    bytes[at + 1..at + 3].copy_from_slice(&(size as u16).to_be_bytes());
    rehash(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    std::os::unix::fs::symlink("overlay.zt", folder.path().join("overlay-base.zt")).unwrap();
    let error = Reader::open(&path).unwrap().read("emb").unwrap_err();
    assert_eq!(error.rule(), Some("zt2.ShardIdentity"), "{error}");
    assert!(error.to_string().contains("itself"), "{error}");
}

#[test]
fn a_base_that_changes_under_its_overlay_is_noticed() {
    let folder = folder_with(&["overlay.zt", "overlay-base.zt"]);
    let base = folder.path().join("overlay-base.zt");
    let reader = OpenOptions::default().map(MapMode::Never).open(folder.path().join("overlay.zt")).unwrap();
    reader.read("emb").unwrap();
    let mut bytes = std::fs::read(&base).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(&base, &bytes).unwrap();
    assert_eq!(reader.read("emb").unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(reader.verify("emb").unwrap_err().rule(), Some("zt2.Digest"));
    std::fs::write(&base, &bytes[..4100]).unwrap();
    assert_eq!(reader.read("emb").unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_folder_of_one_sharded_model_opens_as_that_model() {
    let folder = folder_with(&SHARDED);
    let reader = Reader::open(folder.path()).unwrap();
    assert_eq!(reader.len(), 3);
    assert_eq!(reader.read("blk.0.w").unwrap().len(), 384);
}
