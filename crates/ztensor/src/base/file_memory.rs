//! Memory in a file without a name: the system can write it to the disk instead of keeping it.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};

use crate::error::{Error, Result};
use crate::write::atomic;

/// Bytes in a mapped file of this process alone.
#[derive(Debug)]
pub(crate) struct FileMemory(Option<MmapMut>);

impl FileMemory {
    /// A copy of `bytes` in a file in `folder`, which is gone when it is dropped, however the process ends.
    pub(crate) fn copy_of(bytes: &[u8], folder: &Path) -> Result<FileMemory> {
        let failed = |error| Error::io("cannot make a temporary file", error).in_file(folder);
        if bytes.is_empty() {
            return Ok(FileMemory(None)); // nothing cannot be mapped
        }
        let file = atomic::unnamed(Some(folder)).map_err(failed)?;
        // Room on the disk now, and not a signal when a page is written.
        crate::write::disk::reserve(&file, 0, bytes.len() as u64).map_err(failed)?;
        file.set_len(bytes.len() as u64).map_err(failed)?;
        // SAFETY: the file was made here and has no name, so that nothing else changes its bytes or its length
        // while it is mapped.
        let mut map = unsafe { MmapOptions::new().len(bytes.len()).map_mut(&file) }.map_err(failed)?;
        map.copy_from_slice(bytes);
        Ok(FileMemory(Some(map)))
    }
}

impl Deref for FileMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl DerefMut for FileMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_bytes_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
        let mut memory = FileMemory::copy_of(&bytes, dir.path()).unwrap();
        assert!(*memory == bytes[..]);
        let other = vec![7; bytes.len()];
        memory.copy_from_slice(&other);
        assert!(*memory == other[..]);
        assert!(FileMemory::copy_of(&[], dir.path()).unwrap().is_empty());
        // On Windows it has a name until it is closed.
        assert!(cfg!(windows) || std::fs::read_dir(dir.path()).unwrap().count() == 0);
        drop(memory);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(FileMemory::copy_of(&bytes, &dir.path().join("none")).is_err());
    }
}
