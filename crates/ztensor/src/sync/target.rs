//! A new folder below a root, local or in an object store, that becomes visible whole.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::format::shards::is_plain_name;
use crate::platform;
use crate::remote::{self, Options, Place, store};
use crate::trusted;
use crate::write::atomic::{rename_folder_new, scratch_folder, sync_folder};
use crate::write::destination::Destination;
use crate::write::export::{ExportFormat, ExportOptions, TensorList, export, export_to};

/// The lock of a root on this machine, held while a folder below it is written.
const LOCK: &str = ".publish.lock";

/// A folder that is to be written.
#[derive(Debug, Clone)]
pub(crate) struct NewFolder<'a> {
    /// The folder or URL that it is created in.
    pub(crate) root: &'a Path,
    pub(crate) remote: &'a Options,
    pub(crate) name: String,
    /// The file that makes it valid, written last.
    pub(crate) index: &'static str,
    /// Starts of folder names below the root: temporary folders that killed writers left of these are removed.
    pub(crate) siblings: &'static [&'static str],
    /// Wait until the disk has the folder before it appears.
    pub(crate) durable: bool,
    /// Replace objects of a store that belong to no index: those of a writer that was killed.
    pub(crate) replace_unfinished: bool,
}

/// Where the files of a [`NewFolder`] go: a temporary folder that is renamed when it is complete, or a
/// prefix of a store whose index comes last.
pub(crate) struct Target<'a> {
    new: NewFolder<'a>,
    local: Option<Local>,
}

struct Local {
    root: PathBuf,
    /// The folder until it is complete; removed on drop.
    scratch: PathBuf,
    _lock: std::fs::File,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Nothing is there once it has its name.
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

impl<'a> Target<'a> {
    /// Takes the lock of a local root and creates the temporary folder; in a store nothing yet.
    pub(crate) fn begin(new: NewFolder<'a>) -> Result<Target<'a>> {
        let local = match remote::place(new.root)? {
            Place::Remote(_) => None,
            Place::Local(root) => Some(Local::create(root, &new)?),
        };
        Ok(Target { new, local })
    }

    fn path(&self, file: &str) -> PathBuf {
        store::join(store::join(self.new.root, &self.new.name), file)
    }

    /// Writes a file of tensors; returns its size.
    pub(crate) fn shard(&self, file: &str, list: &TensorList<'_>) -> Result<u64> {
        let options = ExportOptions::default().durable(self.new.durable).remote(self.new.remote.clone());
        if let Some(local) = &self.local {
            let path = local.scratch.join(file);
            export(list, Destination::derived(&local.scratch, file)?, ExportFormat::Safetensors, &options)?;
            let metadata = std::fs::metadata(&path)
                .map_err(|error| Error::io("cannot examine", error).in_file(&path))?;
            return Ok(metadata.len());
        }
        let path = self.path(file);
        const IN_MEMORY: u64 = 256 << 20;
        let total: u64 = list
            .tensors
            .iter()
            .filter_map(|(_, tensor)| Some(tensor.component("data")?.bytes.len() as u64))
            .sum();
        if total > IN_MEMORY {
            export(list, &path, ExportFormat::Safetensors, &options)?;
            let len = store::len(&path, self.new.remote)?;
            return len.ok_or_else(|| Error::not_found("the shard is gone").in_file(&path));
        }
        let mut bytes = Vec::new();
        export_to(list, &mut bytes, ExportFormat::Safetensors, &options)?;
        self.put(file, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Writes a file.
    pub(crate) fn write(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let Some(local) = &self.local else { return self.put(file, bytes) };
        let to = Destination::derived(&local.scratch, file)?;
        let mut new = store::NewFile::create(to, &Default::default())?;
        new.write(bytes)?;
        new.finish(self.new.durable)
    }

    /// Writes an object that must not be there, or be the same.
    fn put(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(file);
        let remote = self.new.remote;
        if store::write_new(&path, bytes, remote)? {
            return Ok(());
        }
        if store::len(&path, remote)? == Some(bytes.len() as u64)
            && store::read(&path, bytes.len() as u64, remote)? == bytes
        {
            return Ok(()); // written by an attempt that failed later
        }
        if self.new.replace_unfinished
            && file != self.new.index
            && !store::exists(self.path(self.new.index), remote)?
        {
            return store::write(&path, bytes, remote);
        }
        let cause = std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "another publisher wrote it, or one was killed: replace_unfinished (--replace-unfinished) replaces versions without an index",
        );
        Err(Error::io("this exists already with other contents", cause).in_file(&path))
    }

    /// Copies the plain files of a model's folder that hold no tensors.
    pub(crate) fn copy_files(&self, from: &Path) -> Result<u64> {
        const LARGEST: u64 = 256 << 20;
        let mut total = 0;
        for entry in store::list(from, &Default::default())? {
            let tensors = [".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".zt", ".index.json"];
            let plain = is_plain_name(&entry.name) && !entry.name.starts_with('.');
            if !plain || tensors.iter().any(|end| entry.name.ends_with(end)) || entry.len > LARGEST {
                continue;
            }
            let bytes = store::read(store::join(from, &entry.name), LARGEST, &Default::default())?;
            self.write(&entry.name, &bytes)?;
            total += bytes.len() as u64;
        }
        Ok(total)
    }

    /// Writes the index and makes the folder visible.
    pub(crate) fn finish(self, index: &str) -> Result<()> {
        self.write(self.new.index, index.as_bytes())?;
        let Some(local) = &self.local else { return Ok(()) };
        if self.new.durable {
            sync_folder(&local.scratch.join(self.new.index))?;
        }
        let to = local.root.join(&self.new.name);
        rename_folder_new(&local.scratch, &to)?;
        if self.new.durable {
            sync_folder(&to)?;
        }
        Ok(())
    }
}

impl Local {
    fn create(root: PathBuf, new: &NewFolder<'_>) -> Result<Local> {
        let failed = |error| Error::io("cannot create", error).in_file(&root);
        std::fs::create_dir_all(&root).map_err(failed)?;
        let lock = lock(&root)?;
        let prefix = format!(".{}.", new.name);
        // Left by writers that were killed: with the lock held, none is at work.
        for entry in std::fs::read_dir(&root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let sibling = |start: &&str| name.strip_prefix('.').is_some_and(|name| name.starts_with(*start));
            let ours = new.siblings.iter().any(sibling) || name.starts_with(&prefix);
            if ours && name.ends_with(".tmp") {
                let _ = std::fs::remove_dir_all(entry.path()); // it is not in the way
            }
        }
        let scratch = scratch_folder(&root, &prefix)?;
        // As readable as other new folders: the random one is private.
        platform::set_mode(&scratch, 0o755).map_err(failed)?;
        Ok(Local { root, scratch, _lock: lock })
    }
}

/// Takes the lock of a local root.
fn lock(root: &Path) -> Result<std::fs::File> {
    let path = root.join(LOCK);
    let failed = |error| Error::io("cannot lock", error).in_file(&path);
    let file = trusted::append(&path).map_err(failed)?;
    match platform::try_lock_exclusive(&file) {
        Ok(true) => Ok(file),
        Ok(false) => {
            let cause = std::io::Error::new(
                std::io::ErrorKind::WouldBlock,
                "another publisher writes this stream: stop it first",
            );
            Err(failed(cause))
        }
        Err(error) => Err(failed(error)),
    }
}
