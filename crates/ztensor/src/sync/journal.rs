//! The journal of an apply: all that is about to be written, as absolute bytes.
//!
//! It is complete before the first byte of the checkpoint changes, and is replayed after a crash.
//! Each of its records gives the same result however often it is applied. A journal without its end
//! belongs to an apply that had changed nothing yet, and is dropped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use twox_hash::XxHash3_128;

use super::patch;
use super::state::{INCOMING, JOURNAL, Ledger, Locked, stamp_of};
use crate::base::{CACHE_BLOCK, parallel};
use crate::error::{Error, Result};
use crate::format::shards::is_plain_name;
use crate::platform;
use crate::source::{FileSource, MapMode, Source};
use crate::trusted::{self, Access, Found};
use crate::write::atomic::move_file;
use crate::write::disk;

/// Start of the journals of every version of this library, and of these.
const ANY_MAGIC: &[u8; 6] = b"ZTSYNC";
const MAGIC: &[u8; 8] = b"ZTSYNC02";
/// Kind and length of the body.
const RECORD_HEADER: usize = 9;

const FILE: u8 = 1;
const PATCH: u8 = 2;
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
    hasher: XxHash3_128,
}

/// Bytes that are collected before they are written.
const BUFFER: usize = 1 << 20;

impl<'a> Writer<'a> {
    pub(crate) fn create(locked: &'a Locked) -> Result<Writer<'a>> {
        let path = locked.path(JOURNAL);
        let failed = |error| Error::io("cannot create the journal", error).in_file(&path);
        let file = trusted::create(&path, Access::Write, 0o600).map_err(failed)?;
        disk::created(&path, &file).map_err(failed)?;
        let inner = Inner { file, buffer: Vec::new(), at: 0, hasher: XxHash3_128::new() };
        let writer = Writer { locked, inner: Mutex::new(inner) };
        writer.with(|inner| inner.push(MAGIC))?;
        Ok(writer)
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

    /// The patch of a window of a tensor that begins at `offset` of a file.
    pub(crate) fn patch(&self, file: u32, offset: u64, window: &patch::WindowPatch<'_>) -> Result<()> {
        let start = (offset + window.start).to_le_bytes();
        let (file, len, [head, positions, values]) =
            (file.to_le_bytes(), window.len.to_le_bytes(), window.patch);
        self.with(|inner| inner.record(PATCH, &[&file, &start, &len, head, positions, values]))
    }

    /// A file that lies ready takes its place.
    pub(crate) fn take_in(&self, name: &str) -> Result<()> {
        self.with(|inner| inner.record(MOVE, &[name.as_bytes()]))
    }

    /// A file goes.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        self.with(|inner| inner.record(REMOVE, &[name.as_bytes()]))
    }

    /// Completes the journal; from then on it is replayed until it is gone.
    pub(crate) fn commit(self, ledger: &Ledger, threads: usize, durable: bool) -> Result<()> {
        let completed = self
            .with(|inner| {
                inner.record(LEDGER, &[ledger.to_json().as_bytes()])?;
                inner.record(STATE, &[ledger.version.as_bytes()])?;
                let header = record_header(END, 16);
                inner.push(&header)?;
                let hash = inner.hasher.finish_128();
                inner.push(&hash.to_le_bytes())?;
                inner.flush()?;
                if durable {
                    disk::sync(&inner.file)?;
                }
                Ok(())
            })
            .and_then(|()| match durable {
                true => crate::write::atomic::sync_folder(&self.locked.path(JOURNAL)),
                false => Ok(()),
            });
        if let Err(error) = completed {
            return self.abandon().and(Err(error)); // nothing was changed yet
        }
        replay(self.locked, threads, durable)
    }

    /// Gives up: nothing was changed yet.
    pub(crate) fn abandon(self) -> Result<()> {
        drop_journal(self.locked)
    }
}

impl Inner {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn record(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.push(&record_header(kind, len as u64))?;
        parts.iter().try_for_each(|part| self.push(part))
    }

    fn flush(&mut self) -> io::Result<()> {
        disk::write_at(&self.file, self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

fn record_header(kind: u8, len: u64) -> [u8; RECORD_HEADER] {
    let mut header = [kind; RECORD_HEADER];
    header[1..].copy_from_slice(&len.to_le_bytes());
    header
}

fn drop_journal(locked: &Locked) -> Result<()> {
    let path = locked.path(JOURNAL);
    match disk::remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove the journal", error).in_file(path))
        }
        _ => Ok(()),
    }
}

/// A window of a file that changes.
#[derive(Clone, Copy)]
struct Change<'a> {
    file: usize,
    offset: u64,
    len: u64,
    patch: &'a [u8],
}

/// What a complete journal says.
#[derive(Default)]
struct Parsed<'a> {
    files: Vec<(&'a str, u64)>,
    changes: Vec<Change<'a>>,
    moves: Vec<&'a str>,
    removals: Vec<&'a str>,
    ledger: &'a str,
    version: &'a str,
}

impl<'a> Parsed<'a> {
    /// `None`: it has no valid end, so nothing was changed by it.
    fn parse(bytes: &'a [u8]) -> Option<Parsed<'a>> {
        let mut parsed = Parsed::default();
        let mut rest = bytes.strip_prefix(MAGIC)?;
        loop {
            let (&[kind, ref len @ ..], after) = rest.split_first_chunk::<RECORD_HEADER>()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let (body, after) = after.split_at_checked(len)?;
            let end = bytes.len() - after.len() - len;
            rest = after;
            let text = || std::str::from_utf8(body).ok();
            match kind {
                FILE => {
                    let (len, name) = body.split_first_chunk::<8>()?;
                    let name = std::str::from_utf8(name).ok().filter(|name| is_plain_name(name))?;
                    parsed.files.push((name, u64::from_le_bytes(*len)));
                }
                PATCH => {
                    let (file, body) = body.split_first_chunk::<4>()?;
                    let (offset, body) = body.split_first_chunk::<8>()?;
                    let (len, patch) = body.split_first_chunk::<4>()?;
                    let (file, len) = (u32::from_le_bytes(*file) as usize, u32::from_le_bytes(*len).into());
                    parsed.changes.push(Change { file, offset: u64::from_le_bytes(*offset), len, patch });
                }
                MOVE => parsed.moves.push(text().filter(|name| is_plain_name(name))?),
                REMOVE => parsed.removals.push(text().filter(|name| is_plain_name(name))?),
                LEDGER => parsed.ledger = text()?,
                STATE => parsed.version = text()?,
                END => {
                    let hash = u128::from_le_bytes(*body.first_chunk::<16>()?);
                    let whole = rest.is_empty() && len == 16 && hash == XxHash3_128::oneshot(&bytes[..end]);
                    return whole.then_some(parsed);
                }
                _ => return None,
            }
        }
    }
}

/// Finishes what an interrupted apply began, or drops its journal if it had changed nothing.
pub(crate) fn recover(locked: &Locked, threads: usize, durable: bool) -> Result<()> {
    replay(locked, threads, durable)?;
    // What was made ready for an apply that did not happen.
    let incoming = locked.path(INCOMING);
    match std::fs::remove_dir_all(&incoming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove", error).in_file(incoming))
        }
        _ => Ok(()),
    }
}

/// Whether an apply was interrupted and is to be finished.
pub(crate) fn is_pending(folder: &Path) -> bool {
    folder.join(super::state::STATE_FOLDER).join(JOURNAL).exists()
}

fn replay(locked: &Locked, threads: usize, durable: bool) -> Result<()> {
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
    if bytes.starts_with(ANY_MAGIC) && bytes.len() >= MAGIC.len() && !bytes.starts_with(MAGIC) {
        let message = "another release of this library was interrupted while it changed this checkpoint: finish it with \
                       that one (sync pull), or remove the folder and pull again";
        return Err(Error::unsupported(message).in_file(&path));
    }
    let Some(journal) = Parsed::parse(&bytes) else { return drop_journal(locked) };
    let folder = locked.folder();
    apply_changes(folder, &journal, threads, durable)?;
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
    drop_journal(locked)?;
    if durable {
        crate::write::atomic::sync_folder(&path)?;
    }
    Ok(())
}

/// The ledger with the lengths and times of the files as they are.
fn stamp(folder: &Path, ledger: &str) -> String {
    let Ok(mut ledger) = Ledger::parse(ledger) else { return ledger.to_owned() };
    let names: Vec<String> = ledger.files.keys().cloned().collect();
    ledger.files =
        names.into_iter().filter_map(|name| Some((name.clone(), stamp_of(&folder.join(&name))?))).collect();
    ledger.to_json()
}

fn apply_changes(folder: &Path, journal: &Parsed<'_>, threads: usize, durable: bool) -> Result<()> {
    let broken = |message: &str| Error::corrupt("sync.journal", message).in_file(folder);
    let mut files = BTreeMap::new();
    for (index, (name, len)) in journal.files.iter().enumerate() {
        let path = folder.join(name);
        let failed = |error| Error::io("cannot open", error).in_file(&path);
        let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != *len {
            return Err(broken(
                "a file of the checkpoint has another length than when the journal was written",
            ));
        }
        files.insert(index, (file, path, *len));
    }
    // Several changes of a thread at a time: starting a thread costs more than a change.
    let groups: Vec<_> = journal.changes.chunks(8).collect();
    parallel::for_each(threads, groups, |mut group| {
        let mut buffer = Vec::new();
        while let Some(&Change { file: index, offset, .. }) = group.first() {
            let (file, path, len) = files.get(&index).ok_or_else(|| broken("a change names no file"))?;
            let failed = |error| Error::io("cannot write", error).in_file(path);
            // Windows that lie side by side are read and written together, as long as a second-level cache holds them.
            let (mut end, mut count) = (offset, 0);
            for change in group {
                let adjacent = (change.file, change.offset) == (index, end);
                if count > 0 && !(adjacent && end + change.len - offset <= CACHE_BLOCK as u64) {
                    break;
                }
                check_span(change.offset, change.len, *len)
                    .ok_or_else(|| broken("a patch is outside its file"))?;
                (end, count) = (change.offset + change.len, count + 1);
            }
            let block = page_aligned(&mut buffer, (end - offset) as usize);
            platform::read_exact_at(file, block, offset)
                .map_err(|error| Error::io("cannot read", error).in_file(path))?;
            let (now, later) = group.split_at(count);
            for change in now {
                let start = (change.offset - offset) as usize;
                patch::apply(change.patch, &mut block[start..start + change.len as usize])?;
            }
            disk::write_at(file, offset, block).map_err(failed)?;
            group = later;
        }
        Ok(())
    })?;
    if durable {
        for (file, path, _) in files.values() {
            disk::sync(file).map_err(|error| Error::io("cannot sync", error).in_file(path))?;
        }
    }
    Ok(())
}

/// `len` bytes of a buffer from the start of a page on: the kernel copies pages fastest to and from whole ones.
fn page_aligned(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    const PAGE: usize = 4096;
    if buffer.len() < len + PAGE {
        buffer.resize(len + PAGE, 0);
    }
    let start = buffer.as_ptr().align_offset(PAGE).min(PAGE);
    &mut buffer[start..start + len]
}

fn check_span(offset: u64, span: u64, len: u64) -> Option<()> {
    (offset.checked_add(span)? <= len).then_some(())
}
