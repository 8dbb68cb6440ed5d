//! The journal of an apply: how what it changes is undone, and what remains to be done once it is complete.
//!
//! An undo log: it has the elements that a change in place overwrites, and they are in the file before the checkpoint
//! changes. A journal without its end belongs to an interrupted apply, which is rolled back; after the end only whole
//! files are moved and removed, and the ledger is written. Each record gives the same result however often it is applied.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use twox_hash::XxHash3_64;
use z4ai::delta::{UndoLog, roll_back};

use super::state::{INCOMING, JOURNAL, Ledger, Locked, stamp_of};
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::error::{Error, Result};
use crate::format::shards::is_plain_name;
use crate::platform;
use crate::source::{FileSource, MapMode, Source};
use crate::trusted::{self, Access, Found};
use crate::write::atomic::move_file;
use crate::write::disk;

const MAGIC: &[u8; 8] = b"ZTSYNC02";
/// Journals whose patches had the new bytes, and were applied after the end.
const REDO_MAGIC: &[u8; 8] = b"ZTSYNC01";
/// Kind, length of the body, and XXH3-64 of both and of the body.
const RECORD_HEADER: usize = 17;
/// File, offset, length of the range and size of an element, before marks and elements.
const UNDO_HEADER: usize = 17;

const FILE: u8 = 1;
const UNDO: u8 = 2;
const MOVE: u8 = 4;
const REMOVE: u8 = 5;
const LEDGER: u8 = 6;
const STATE: u8 = 7;
const END: u8 = 9;

/// A journal that is being written.
pub(crate) struct Writer<'a> {
    locked: &'a Locked,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    /// Bytes that were not written yet.
    buffer: Vec<u8>,
    at: u64,
}

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

impl<'a> Writer<'a> {
    pub(crate) fn create(locked: &'a Locked) -> Result<Writer<'a>> {
        let path = locked.path(JOURNAL);
        let failed = |error| Error::io("cannot create the journal", error).in_file(&path);
        let file = trusted::create(&path, Access::Write, 0o600).map_err(failed)?;
        disk::created(&path, &file).map_err(failed)?;
        let inner = Inner { file, buffer: MAGIC.to_vec(), at: 0 };
        Ok(Writer { locked, inner: Mutex::new(inner) })
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> Result<T> {
        let path = || self.locked.path(JOURNAL);
        let mut inner = self.inner.lock().map_err(|_| Error::invalid("a writer of the journal panicked"))?;
        work(&mut inner).map_err(|error| Error::io("cannot write the journal", error).in_file(path()))
    }

    /// Names a file of the checkpoint; files are numbered in this order.
    pub(crate) fn file(&self, name: &str, len: u64) -> Result<()> {
        self.with(|inner| inner.record(FILE, &[&len.to_le_bytes(), name.as_bytes()]))
    }

    /// What undoes a change of the `span` bytes at `offset` of a file, elements of `size` bytes. It may be in the buffer
    /// until the next [`flush`](Self::flush).
    pub(crate) fn undo(&self, file: u32, offset: u64, span: u32, size: usize, log: &UndoLog) -> Result<()> {
        let mut header = [size as u8; UNDO_HEADER];
        header[..4].copy_from_slice(&file.to_le_bytes());
        header[4..12].copy_from_slice(&offset.to_le_bytes());
        header[12..16].copy_from_slice(&span.to_le_bytes());
        self.with(|inner| inner.record(UNDO, &[&header, log.marks(), log.elements()]))
    }

    /// Writes all records so far: what they undo may be changed then, if a kill is all that is feared.
    pub(crate) fn flush(&self) -> Result<()> {
        self.with(Inner::flush)
    }

    /// The same for power cuts: the disk has the records.
    pub(crate) fn sync(&self) -> Result<()> {
        self.with(|inner| {
            inner.flush()?;
            disk::sync(&inner.file)
        })?;
        crate::write::atomic::sync_folder(&self.locked.path(JOURNAL))
    }

    /// A file that lies ready takes its place.
    pub(crate) fn take_in(&self, name: &str) -> Result<()> {
        self.with(|inner| inner.record(MOVE, &[name.as_bytes()]))
    }

    /// A file goes.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.with(|inner| inner.record(REMOVE, &[name.as_bytes()]))
    }

    /// Completes the journal, and does what remains: from then on nothing is undone.
    pub(crate) fn commit(self, ledger: &Ledger, threads: usize, durable: bool) -> Result<()> {
        let completed = self
            .with(|inner| {
                inner.record(LEDGER, &[ledger.to_json().as_bytes()])?;
                inner.record(STATE, &[ledger.version.as_bytes()])?;
                inner.record(END, &[])?;
                inner.flush()
            })
            .and_then(|()| if durable { self.sync() } else { Ok(()) });
        if let Err(error) = completed {
            return self.abandon(threads, durable).and(Err(error));
        }
        finish(self.locked, threads, durable)
    }

    /// Gives up: what was changed is undone.
    pub(crate) fn abandon(self, threads: usize, durable: bool) -> Result<()> {
        finish(self.locked, threads, durable)
    }
}

impl Inner {
    fn record(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let len = (len as u64).to_le_bytes();
        self.buffer.push(kind);
        self.buffer.extend_from_slice(&len);
        self.buffer.extend_from_slice(&hash_of(kind, &len, parts));
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        disk::write_at(&self.file, self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// The checksum of a record.
fn hash_of(kind: u8, len: &[u8; 8], parts: &[&[u8]]) -> [u8; 8] {
    let mut hasher = XxHash3_64::new();
    hasher.write(&[kind]);
    hasher.write(len);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish().to_le_bytes()
}

fn remove(locked: &Locked, durable: bool) -> Result<()> {
    let path = locked.path(JOURNAL);
    match disk::remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("cannot remove the journal", error).in_file(path));
        }
        _ => {}
    }
    if durable { crate::write::atomic::sync_folder(&path) } else { Ok(()) }
}

/// What a journal says.
#[derive(Default)]
struct Parsed<'a> {
    files: Vec<(&'a str, u64)>,
    changes: Vec<Undo<'a>>,
    moves: Vec<&'a str>,
    removals: Vec<&'a str>,
    ledger: &'a str,
    version: &'a str,
    /// Whether it has a valid end.
    complete: bool,
}

/// A range of a file before it changed.
struct Undo<'a> {
    file: u32,
    offset: u64,
    span: u32,
    size: u8,
    marks: &'a [u8],
    elements: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// Up to the end, or to the first record that is not whole: nothing was changed after that one.
    fn parse(bytes: &'a [u8]) -> Parsed<'a> {
        let mut parsed = Parsed::default();
        let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
        while let Some(after) = parsed.record(rest) {
            rest = after;
        }
        parsed
    }

    /// Takes the first record of `rest` in; returns what follows it.
    fn record(&mut self, rest: &'a [u8]) -> Option<&'a [u8]> {
        let (&[kind, ref len @ ..], rest) = rest.split_first_chunk::<9>()?;
        let (hash, after) = rest.split_first_chunk::<{ RECORD_HEADER - 9 }>()?;
        let (body, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        if *hash != hash_of(kind, len, &[body]) {
            return None;
        }
        let text = || std::str::from_utf8(body).ok();
        match kind {
            FILE => {
                let (len, name) = body.split_first_chunk::<8>()?;
                let name = std::str::from_utf8(name).ok().filter(|name| is_plain_name(name))?;
                self.files.push((name, u64::from_le_bytes(*len)));
            }
            UNDO => self.changes.push(Undo::parse(body)?),
            MOVE => self.moves.push(text().filter(|name| is_plain_name(name))?),
            REMOVE => self.removals.push(text().filter(|name| is_plain_name(name))?),
            LEDGER => self.ledger = text()?,
            STATE => self.version = text()?,
            END => {
                self.complete = after.is_empty();
                return None;
            }
            _ => return None,
        }
        Some(after)
    }
}

impl<'a> Undo<'a> {
    fn parse(body: &'a [u8]) -> Option<Undo<'a>> {
        let (file, rest) = body.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (span, rest) = rest.split_first_chunk()?;
        let (&[size], rest) = rest.split_first_chunk()?;
        let span = u32::from_le_bytes(*span);
        let (marks, elements) =
            rest.split_at_checked((span as usize).checked_div(size.into())?.div_ceil(8))?;
        let (file, offset) = (u32::from_le_bytes(*file), u64::from_le_bytes(*offset));
        Some(Undo { file, offset, span, size, marks, elements })
    }
}

/// Undoes what an interrupted apply changed, or does what remains of one that was complete.
pub(crate) fn recover(locked: &Locked, threads: usize, durable: bool) -> Result<()> {
    finish(locked, threads, durable)?;
    // What was made ready for an apply that did not happen.
    let incoming = locked.path(INCOMING);
    match std::fs::remove_dir_all(&incoming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove", error).in_file(incoming))
        }
        _ => Ok(()),
    }
}

/// Whether an apply was interrupted.
pub(crate) fn is_pending(folder: &Path) -> bool {
    folder.join(super::state::STATE_FOLDER).join(JOURNAL).exists()
}

/// Does what the journal asks for, and removes it.
fn finish(locked: &Locked, threads: usize, durable: bool) -> Result<()> {
    let path = locked.path(JOURNAL);
    let failed = |error| Error::io("cannot read the journal", error).in_file(&path);
    let file = match trusted::open(&path, Access::Read, None).map_err(failed)? {
        Found::Absent => return Ok(()),
        Found::File(file) => file,
        Found::Untrusted(why) => return Err(failed(trusted::refused(&path, &why))),
    };
    let source = FileSource::from_file(file, &path, MapMode::Auto)?;
    let source: &dyn Source = &source;
    let bytes = source.bytes(0, source.len())?;
    if bytes.starts_with(REDO_MAGIC) {
        let message = "an interrupted apply of an earlier version of this library: finish it with that version, or \
                       make the checkpoint anew";
        return Err(Error::unsupported(message).in_file(&path));
    }
    let journal = Parsed::parse(&bytes);
    let folder = locked.folder();
    if !journal.complete {
        undo_changes(folder, &journal, threads, durable)?;
        return remove(locked, durable);
    }
    for name in &journal.moves {
        let from = locked.path(INCOMING).join(name);
        // Moved already, before a crash.
        if std::fs::symlink_metadata(&from).is_ok() {
            move_file(&from, &folder.join(name))?;
        }
    }
    for name in &journal.removals {
        match disk::remove(&folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", error).in_file(folder.join(name)));
            }
            _ => {}
        }
    }
    if durable && !(journal.moves.is_empty() && journal.removals.is_empty()) {
        crate::write::atomic::sync_folder(&folder.join(JOURNAL))?;
    }
    // Times of change are those of the files as they are now.
    let stamped = stamp(folder, journal.ledger);
    locked.write_ledger(&stamped, durable)?;
    locked.write_state(journal.version, durable)?;
    remove(locked, durable)
}

/// The ledger with the lengths and times of the files as they are.
fn stamp(folder: &Path, ledger: &str) -> String {
    let Ok(mut ledger) = Ledger::parse(ledger) else { return ledger.to_owned() };
    let names: Vec<String> = ledger.files.keys().cloned().collect();
    ledger.files =
        names.into_iter().filter_map(|name| Some((name.clone(), stamp_of(&folder.join(&name))?))).collect();
    ledger.to_json()
}

/// Opens a file of a checkpoint to change it; it must have the length that it had.
pub(crate) fn open_to_change(folder: &Path, name: &str, len: u64) -> Result<File> {
    let path = folder.join(name);
    let failed = |error| Error::io("cannot open", error).in_file(&path);
    let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
    match file.metadata().map_err(failed)?.len() == len {
        true => Ok(file),
        false => {
            let message = "a file of the checkpoint has another length than when the apply began";
            Err(Error::corrupt("sync.journal", message).in_file(&path))
        }
    }
}

/// Puts the elements from before the changes back.
fn undo_changes(folder: &Path, journal: &Parsed<'_>, threads: usize, durable: bool) -> Result<()> {
    if journal.changes.is_empty() {
        return Ok(());
    }
    let broken = |message: &str| Error::corrupt("sync.journal", message).in_file(folder);
    let mut files = Vec::new();
    for (name, len) in &journal.files {
        files.push((open_to_change(folder, name, *len)?, folder.join(name), *len));
    }
    parallel::for_each(threads, journal.changes.iter().collect(), |change| {
        let (file, path, len) =
            files.get(change.file as usize).ok_or_else(|| broken("a change names no file"))?;
        if change.offset.checked_add(change.span.into()).is_none_or(|end| end > *len) {
            return Err(broken("a change is outside its file"));
        }
        let mut block = zeroed_vec::<u8>(change.span.into())?;
        platform::read_exact_at(file, &mut block, change.offset)
            .map_err(|error| Error::io("cannot read", error).in_file(path))?;
        roll_back(change.size.into(), change.marks, change.elements, &mut block)
            .map_err(|error| broken(&error.to_string()))?;
        disk::write_at(file, change.offset, &block)
            .map_err(|error| Error::io("cannot write", error).in_file(path))
    })?;
    if durable {
        for (file, path, _) in &files {
            disk::sync(file).map_err(|error| Error::io("cannot sync", error).in_file(path))?;
        }
    }
    Ok(())
}
