//! The journal: a small file beside a `.zt` file that says how much of it is good.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::zt::find_manifest;
use crate::platform;
use crate::source::{FileSource, MapMode, Source};
use crate::trusted::{self, Access, Found};

const MAGIC: &[u8; 8] = b"ZTJRNL01";
/// Small enough to lie in one sector of any disk.
const LEN: usize = 128;
const EDITOR: std::ops::Range<usize> = 24..LEN - 4;

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Journal {
    /// The file's length before the edit: it ends with a footer there. 0 while the
    /// journal only says who holds the lock.
    pub(crate) good_len: u64,
    /// CRC-32C of the manifest and the footer that end the good part.
    pub(crate) tail_crc: u32,
    /// Who is editing, for people.
    pub(crate) editor: String,
}

impl Journal {
    /// A journal for the first `good_len` bytes of `source`, which end with a footer.
    pub(crate) fn describe(source: &dyn Source, good_len: u64) -> Result<Journal> {
        let place = find_manifest(source, good_len)?;
        let tail = source.bytes(place.offset, good_len - place.offset)?;
        Ok(Journal { good_len, tail_crc: crc32c::crc32c(&tail), editor: this_process() })
    }

    /// A journal that says who holds the lock, and nothing of the file.
    pub(crate) fn lock_only() -> Journal {
        Journal { good_len: 0, tail_crc: 0, editor: this_process() }
    }

    /// Whether it describes a state of the file.
    pub(crate) fn describes(&self) -> bool {
        self.good_len > 0
    }

    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.good_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tail_crc.to_le_bytes());
        let mut shown = self.editor.len().min(EDITOR.len());
        while !self.editor.is_char_boundary(shown) {
            shown -= 1;
        }
        bytes[EDITOR][..shown].copy_from_slice(&self.editor.as_bytes()[..shown]);
        let crc = crc32c::crc32c(&bytes[..LEN - 4]);
        bytes[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` for anything but a whole journal: an edit that had not begun.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Journal> {
        let bytes: &[u8; LEN] = bytes.get(..LEN)?.try_into().ok()?;
        let crc = u32::from_le_bytes(bytes[LEN - 4..].try_into().ok()?);
        if &bytes[..8] != MAGIC || crc != crc32c::crc32c(&bytes[..LEN - 4]) {
            return None;
        }
        Some(Journal {
            good_len: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
            tail_crc: u32::from_le_bytes(bytes[16..20].try_into().ok()?),
            editor: String::from_utf8_lossy(&bytes[EDITOR]).trim_end_matches('\0').to_owned(),
        })
    }

    /// What an open journal says.
    pub(crate) fn read(file: &File) -> io::Result<Option<Journal>> {
        let mut bytes = [0; LEN];
        match platform::read_exact_at(file, &mut bytes, 0) {
            Ok(()) => Ok(Journal::decode(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether `source` is the file that this journal was written for. One left
    /// over from a file that has since been replaced is not believed.
    pub(crate) fn applies_to(&self, source: &dyn Source) -> Result<bool> {
        if !self.describes() || self.good_len > source.len() {
            return Ok(false);
        }
        match Journal::describe(source, self.good_len) {
            Ok(found) => Ok(found.tail_crc == self.tail_crc),
            Err(error) if error.kind() == crate::error::ErrorKind::Io => Err(error),
            Err(_) => Ok(false),
        }
    }
}

/// Where the journal of a file lies: beside the file itself, not beside a symlink to it.
pub(crate) fn path_of(path: &Path) -> io::Result<PathBuf> {
    let linked = std::fs::symlink_metadata(path)?.is_symlink();
    let mut name = OsString::from(if linked { std::fs::canonicalize(path)? } else { path.to_owned() });
    name.push(".journal");
    Ok(name.into())
}

/// The journal beside `path`, if there is one that is whole and trusted: nothing in it proves
/// that an editor of this file wrote it, only its owner does.
fn beside(path: &Path) -> Result<Option<Journal>> {
    let journal = match path_of(path) {
        Ok(journal) => journal,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("cannot look for a journal", error).in_file(path)),
    };
    let failed = |error| Error::io("cannot read the journal of an edit", error).in_file(&journal);
    let of = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match trusted::open(&journal, Access::Read, Some(&of)).map_err(failed)? {
        Found::File(file) => Journal::read(&file).map_err(failed),
        Found::Absent | Found::Untrusted(_) => Ok(None),
    }
}

/// Whether a trusted journal says that `path` is being edited.
pub(crate) fn is_beside(path: &Path) -> bool {
    beside(path).is_ok_and(|journal| journal.is_some_and(|journal| journal.describes()))
}

/// The good part of a file, and whether a journal said which it is.
pub(crate) struct Committed {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) by_journal: bool,
}

/// The part of a file that is good: `source` itself, unless an editor is at work
/// or died at it, or finished between opening the file and now.
pub(crate) fn committed(path: &Path, source: Arc<dyn Source>, mode: MapMode) -> Result<Committed> {
    if let Some(good_len) = good_len(path, &*source)? {
        if good_len == source.len() {
            return Ok(Committed { source, by_journal: true });
        }
    } else if unchanged(path, &*source) {
        return Ok(Committed { source, by_journal: false });
    }
    drop(source);
    // The length may change again and again while editors come and go.
    const ATTEMPTS: usize = 1000;
    for _ in 0..ATTEMPTS {
        let source = FileSource::open(path, mode)?;
        match good_len(path, &source)? {
            Some(good_len) => {
                return Ok(Committed { source: Arc::new(source.limited_to(good_len)), by_journal: true });
            }
            None if unchanged(path, &source) => {
                return Ok(Committed { source: Arc::new(source), by_journal: false });
            }
            None => std::thread::yield_now(),
        }
    }
    Err(Error::io("cannot open", io::Error::new(io::ErrorKind::WouldBlock, "the file keeps changing"))
        .in_file(path))
}

fn good_len(path: &Path, source: &dyn Source) -> Result<Option<u64>> {
    match beside(path)? {
        Some(journal) if journal.applies_to(source)? => Ok(Some(journal.good_len)),
        _ => Ok(None),
    }
}

/// Whether the file still has the length that the source was opened with. With
/// no journal there, an edit that was under way then would have changed it since.
fn unchanged(path: &Path, source: &dyn Source) -> bool {
    std::fs::metadata(path).map_or(true, |metadata| metadata.len() == source.len())
}

/// Names this process in the error that a second editor gets.
fn this_process() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
    format!("process {} ({})", std::process::id(), program.to_string_lossy())
}
