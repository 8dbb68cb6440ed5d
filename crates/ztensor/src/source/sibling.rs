//! Files that a model file names: opened only where the model has a right to
//! point, which is its own folder.
//!
//! A name in a file is a stranger's claim. It may use only plain relative
//! components, and the file it leads to, with every symbolic link resolved,
//! must lie inside the folder of the path that the model was opened by. The one
//! exception is a Hugging Face cache, where `snapshots/<revision>/…` is made of
//! links into `blobs/` of the same repository: from such a folder a link may
//! lead to a file directly in that `blobs/`. Files with several hard links are
//! refused, since one of their other names may be anybody's, and so is
//! everything that is not a regular file.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result, quoted};
use crate::platform;
use crate::source::{FileSource, MapMode};

/// Longer locations are refused; no file system has such names. (limit)
const MAX_LOCATION: usize = 4096;

fn refused(location: &str, why: &str) -> Error {
    Error::corrupt("path.outside", format!("the location {} {why}", quoted(location)))
}

/// Checks that a location can only name something below the model's folder.
/// Links are another matter, for [`open`].
pub(crate) fn check(location: &str) -> Result<()> {
    if location.is_empty() || location.len() > MAX_LOCATION {
        return Err(refused(location, "is empty or far too long"));
    }
    if location.contains('\0') {
        return Err(refused(location, "holds a zero byte"));
    }
    if location.contains('\\') {
        return Err(refused(location, "holds a backslash, which separates folders on some systems"));
    }
    if location.starts_with('/') {
        return Err(refused(location, "is absolute"));
    }
    if let [letter, b':', ..] = location.as_bytes()
        && letter.is_ascii_alphabetic()
    {
        return Err(refused(location, "names a drive"));
    }
    for part in location.split('/') {
        if part == ".." {
            return Err(refused(location, "leaves its folder with \"..\""));
        }
        if !platform::is_file_name(part) && part != "." {
            return Err(refused(location, "has a name that cannot be a file's on this system"));
        }
    }
    match Path::new(location).components().any(|part| matches!(part, Component::Normal(_))) {
        true => Ok(()),
        false => Err(refused(location, "names no file")),
    }
}

/// Opens the file that `location` names beside `model`.
pub(crate) fn open(model: &Path, location: &str, mode: MapMode) -> Result<FileSource> {
    check(location)?;
    let folder = match model.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let named = folder.join(location);
    let examine = |path: &Path| {
        path.canonicalize().map_err(|error| Error::io("cannot open external data", error).in_file(&named))
    };
    let root = examine(folder)?;
    let target = examine(&named)?;
    if !target.starts_with(&root) && target.parent() != blobs_of(&root).as_deref() {
        return Err(
            refused(location, "leads out of the model's folder through a symbolic link").in_file(&named)
        );
    }
    let file = platform::open_without_links(&target)
        .map_err(|error| Error::io("cannot open external data", error).in_file(&named))?;
    let examined = |error| Error::io("cannot examine", error).in_file(&named);
    let metadata = file.metadata().map_err(examined)?;
    if metadata.is_file() && platform::link_count(&file).map_err(examined)? > 1 {
        return Err(refused(
            location,
            "is a file with several hard links, whose contents may belong to another folder: copy it first",
        )
        .in_file(&named));
    }
    FileSource::from_file(file, named, mode)
}

/// The `blobs` folder of the Hugging Face cache that `root` is a snapshot of:
/// `…/models--owner--name/snapshots/<revision>[/…]`.
fn blobs_of(root: &Path) -> Option<PathBuf> {
    let mut child: Option<&OsStr> = None;
    for folder in root.ancestors() {
        if folder.file_name() == Some(OsStr::new("snapshots")) && child.is_some() {
            let repository = folder.parent()?;
            let name = repository.file_name()?.to_str()?;
            let known = ["models--", "datasets--", "spaces--"].iter().any(|kind| name.starts_with(kind));
            return known.then(|| repository.join("blobs"));
        }
        child = folder.file_name();
    }
    None
}

#[cfg(test)]
#[cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links use
mod tests {
    use super::*;
    #[cfg(unix)]
    use std::os::unix::fs::symlink;

    use crate::source::Source;

    fn write(path: &Path, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn locations_that_could_leave_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "//server/share",
            "\\\\server\\share",
            "C:\\x",
            "c:x",
            "../x",
            "a/../../x",
            "a/..",
            "..",
            ".",
            "./",
            "a\0b",
            "a\\b",
        ] {
            assert_eq!(check(bad).unwrap_err().rule(), Some("path.outside"), "{bad:?}");
        }
        for good in ["weights.bin", "a/b/c", "./a", "a b", "..a", "a..b/c", "ünï"] {
            check(good).unwrap();
        }
        // Windows drops a dot at the end of a name.
        assert_eq!(check("a/b.").is_ok(), cfg!(not(windows)));
        assert!(check(&"x".repeat(5000)).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn plain_files_and_links_inside_the_folder_open() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m/model.onnx");
        write(&model, b"");
        write(&dir.path().join("m/sub/w.bin"), b"weights");
        symlink("sub/w.bin", dir.path().join("m/link")).unwrap();
        symlink("sub", dir.path().join("m/folder")).unwrap();
        for location in ["sub/w.bin", "./sub/w.bin", "link", "folder/w.bin"] {
            assert_eq!(open(&model, location, MapMode::Never).unwrap().len(), 7, "{location}");
        }
        // The model's own path may lead through links.
        symlink(dir.path().join("m"), dir.path().join("alias")).unwrap();
        assert!(open(&dir.path().join("alias/model.onnx"), "link", MapMode::Auto).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn links_that_leave_the_folder_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m/model.onnx");
        write(&model, b"");
        write(&dir.path().join("secret/w.bin"), b"secret");
        symlink("../secret/w.bin", dir.path().join("m/file")).unwrap();
        symlink("../secret", dir.path().join("m/folder")).unwrap();
        symlink("file", dir.path().join("m/twice")).unwrap();
        for location in ["file", "folder/w.bin", "twice"] {
            let error = open(&model, location, MapMode::Never).unwrap_err();
            assert_eq!(error.rule(), Some("path.outside"), "{location}: {error}");
        }
        // A folder whose name merely begins alike is another folder.
        write(&dir.path().join("m2/w.bin"), b"secret");
        symlink("../m2/w.bin", dir.path().join("m/near")).unwrap();
        assert!(open(&model, "near", MapMode::Never).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn loops_pipes_folders_and_hard_links_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m/model.onnx");
        write(&model, b"");
        symlink("loop", dir.path().join("m/loop")).unwrap();
        std::fs::create_dir(dir.path().join("m/sub")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("m/pipe")).status().unwrap();
        assert!(pipe.success());
        write(&dir.path().join("other/w.bin"), b"secret");
        std::fs::hard_link(dir.path().join("other/w.bin"), dir.path().join("m/hard")).unwrap();
        for location in ["loop", "sub", "pipe", "hard", "absent"] {
            assert!(open(&model, location, MapMode::Never).is_err(), "{location}");
        }
        let error = open(&model, "hard", MapMode::Never).unwrap_err();
        assert_eq!(error.rule(), Some("path.outside"));
    }

    #[cfg(unix)]
    #[test]
    fn a_hugging_face_cache_works_and_its_neighbours_stay_closed() {
        let dir = tempfile::tempdir().unwrap();
        let repo = dir.path().join("hub/models--org--name");
        let model = repo.join("snapshots/abc123/model.onnx");
        write(&repo.join("blobs/111"), b"model");
        write(&repo.join("blobs/222"), b"weights");
        write(&repo.join("refs/main"), b"abc123");
        write(&dir.path().join("hub/models--org--other/blobs/333"), b"private");
        std::fs::create_dir_all(repo.join("snapshots/abc123/onnx")).unwrap();
        symlink("../../blobs/111", &model).unwrap();
        symlink("../../blobs/222", repo.join("snapshots/abc123/model.onnx_data")).unwrap();
        symlink("../../../blobs/222", repo.join("snapshots/abc123/onnx/w")).unwrap();
        symlink("../../refs/main", repo.join("snapshots/abc123/ref")).unwrap();
        symlink("../../../models--org--other/blobs/333", repo.join("snapshots/abc123/other")).unwrap();
        assert_eq!(open(&model, "model.onnx_data", MapMode::Never).unwrap().len(), 7);
        assert_eq!(open(&model, "onnx/w", MapMode::Never).unwrap().len(), 7);
        let inner = repo.join("snapshots/abc123/onnx/model.onnx");
        assert_eq!(open(&inner, "w", MapMode::Never).unwrap().len(), 7);
        for location in ["ref", "other"] {
            assert_eq!(open(&model, location, MapMode::Never).unwrap_err().rule(), Some("path.outside"));
        }
        // The same arrangement outside a cache is just a link that leaves.
        let plain = dir.path().join("plain");
        write(&plain.join("blobs/222"), b"weights");
        std::fs::create_dir_all(plain.join("snapshots/abc123")).unwrap();
        symlink("../../blobs/222", plain.join("snapshots/abc123/w")).unwrap();
        assert!(open(&plain.join("snapshots/abc123/model.onnx"), "w", MapMode::Never).is_err());
    }
}
