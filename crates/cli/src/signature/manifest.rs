//! The files of a model and their digests.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};
use ztensor::source::{FileSource, MapMode, Source};

use crate::failure::Failure;
use crate::human;

/// Paths that belong to a version control system and not to the model.
pub const USUALLY_IGNORED: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;
/// Folders nested deeper than this are refused.
const MAX_DEPTH: usize = 64;

/// How files are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    Sha256,
    Blake3,
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Blake3 => "blake3",
        }
    }

    pub fn from_name(name: &str) -> Option<Algorithm> {
        [Algorithm::Sha256, Algorithm::Blake3].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// How a model's files are listed.
pub struct Listing<'a> {
    pub algorithm: Algorithm,
    /// Paths in the folder that are left out, with all that is in them.
    pub ignored: &'a [String],
    /// Whether links to files count as files; otherwise they are refused.
    pub follow_links: bool,
    pub threads: usize,
}

impl Listing<'_> {
    /// The digests of all files of a model, by their paths in it, ascending; of a single file, by
    /// the path `.`.
    pub fn digests(
        &self,
        model: &Path,
        observer: &dyn ztensor::Observer,
    ) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        let mut files = Vec::new();
        if self.kind(model)?.is_dir() {
            self.walk(model, "", 0, &mut files)?;
        } else {
            files.push((".".to_owned(), model.to_owned()));
        }
        let found = Mutex::new(Vec::with_capacity(files.len()));
        ztensor::parallel::for_each(self.threads, files, |(name, path)| {
            let digest = self.digest(&path, observer)?;
            found.lock().unwrap_or_else(PoisonError::into_inner).push((name, digest));
            Ok(())
        })?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort();
        Ok(found)
    }

    fn kind(&self, path: &Path) -> Result<std::fs::FileType, Failure> {
        let failed = |error| Failure::io(format!("cannot read {}: {}", path.display(), human::cause(&error)));
        let kind = std::fs::symlink_metadata(path).map_err(failed)?.file_type();
        match kind.is_symlink() {
            false => Ok(kind),
            true if !self.follow_links => Err(Failure::usage(format!(
                "{} is a symbolic link, which the signature does not cover (--allow-symlinks signs what it leads to)",
                path.display()
            ))),
            true => {
                let target = std::fs::metadata(path).map_err(failed)?.file_type();
                match target.is_file() {
                    true => Ok(target),
                    false => Err(Failure::usage(format!("{} is a link to no file", path.display()))),
                }
            }
        }
    }

    fn walk(
        &self,
        folder: &Path,
        prefix: &str,
        depth: usize,
        files: &mut Vec<(String, PathBuf)>,
    ) -> Result<(), Failure> {
        let failed =
            |error| Failure::io(format!("cannot read {}: {}", folder.display(), human::cause(&error)));
        if depth > MAX_DEPTH {
            return Err(Failure::usage(format!("{} is nested too deep", folder.display())));
        }
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().into_string().map_err(|name| {
                Failure::usage(format!("the name {} is not UTF-8, which signatures need", name.display()))
            })?;
            let name = format!("{prefix}{name}");
            if self.ignored.contains(&name) {
                continue;
            }
            let kind = self.kind(&entry.path())?;
            if kind.is_dir() {
                self.walk(&entry.path(), &format!("{name}/"), depth + 1, files)?;
            } else if kind.is_file() {
                files.push((name, entry.path()));
            } else {
                return Err(Failure::usage(format!("{} is not a regular file", entry.path().display())));
            }
        }
        Ok(())
    }

    fn digest(&self, path: &Path, observer: &dyn ztensor::Observer) -> ztensor::Result<Vec<u8>> {
        // Read and not mapped: another program may be writing to it.
        let source = FileSource::open(path, MapMode::Never)?;
        let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
        let mut piece = vec![0; PIECE.min(usize::try_from(source.len()).unwrap_or(PIECE))];
        let mut at = 0;
        while at < source.len() {
            let len = (source.len() - at).min(PIECE as u64);
            let piece = &mut piece[..len as usize];
            source.read_at(at, piece)?;
            match self.algorithm {
                Algorithm::Sha256 => sha256.update(&*piece),
                Algorithm::Blake3 => {
                    blake3.update(piece);
                }
            }
            at += len;
            if !observer.advance(len) {
                return Err(ztensor::Error::new(ztensor::ErrorKind::Cancelled, "cancelled"));
            }
        }
        Ok(match self.algorithm {
            Algorithm::Sha256 => sha256.finalize().to_vec(),
            Algorithm::Blake3 => blake3.finalize().as_bytes().to_vec(),
        })
    }
}
