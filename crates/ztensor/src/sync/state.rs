//! What a host keeps beside its checkpoint: a lock, the applied version, and a ledger of its tensors.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::checksum::ChecksumFormat;
use super::stream::version_name;
use crate::error::{Error, Result};
use crate::format::json::{Scanner, push_string};
use crate::id::ContentId;
use crate::platform;
use crate::trusted::{self, Access, Found};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;
use crate::write::disk;

/// The folder of all state inside a checkpoint's folder.
pub(crate) const STATE_FOLDER: &str = ".weight_sync";
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const INCOMING: &str = "incoming";
const STATE: &str = "state.json";
const LEDGER: &str = "ledger.json";
const LOCK: &str = "lock";
/// A larger state file is not one of ours.
const MAX_STATE: u64 = 256 << 20;
/// Time between two attempts to take a lock.
const POLL: Duration = Duration::from_millis(20);

/// The state folder of a checkpoint, locked: one apply at a time on a host.
#[derive(Debug)]
pub(crate) struct Locked {
    folder: PathBuf,
    _lock: File,
}

impl Locked {
    /// Takes the lock, waiting for others up to `patience`. The folder is made if there is none.
    pub(crate) fn take(folder: &Path, patience: Duration) -> Result<Locked> {
        let state = folder.join(STATE_FOLDER);
        let failed = |error| Error::io("cannot make the state folder", error).in_file(&state);
        std::fs::create_dir_all(&state).map_err(failed)?;
        let lock = open_lock(&state.join(LOCK))?;
        let start = Instant::now();
        loop {
            match platform::try_lock_exclusive(&lock) {
                Ok(true) => return Ok(Locked { folder: folder.to_owned(), _lock: lock }),
                Ok(false) if start.elapsed() < patience => std::thread::sleep(POLL),
                Ok(false) => {
                    let cause =
                        io::Error::new(io::ErrorKind::WouldBlock, "another process is applying a version");
                    return Err(Error::io("cannot lock", cause).in_file(folder));
                }
                Err(error) => return Err(Error::io("cannot lock", error).in_file(folder)),
            }
        }
    }

    /// The checkpoint's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file of the state folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(STATE_FOLDER).join(name)
    }

    /// The applied version and the ledger, if it belongs to it.
    pub(crate) fn read(&self) -> Result<(Option<String>, Option<Ledger>)> {
        read_state(&self.folder)
    }

    /// Writes a file of the state folder.
    pub(crate) fn write(&self, name: &str, text: &str, durable: bool) -> Result<()> {
        use std::io::Write as _;
        let path = self.path(name);
        let to = Destination::derived(self.folder.join(STATE_FOLDER), name)?.overwrite(true);
        let mut file = AtomicFile::create(&to)?;
        file.write_all(text.as_bytes()).map_err(|error| Error::io("cannot write", error).in_file(&path))?;
        file.commit(durable)
    }

    pub(crate) fn write_state(&self, version: &str, durable: bool) -> Result<()> {
        let mut text = String::from("{\"version\": ");
        push_string(&mut text, version);
        text.push('}');
        self.write(STATE, &text, durable)
    }

    pub(crate) fn write_ledger(&self, ledger: &str, durable: bool) -> Result<()> {
        self.write(LEDGER, ledger, durable)
    }
}

/// The applied version of a folder and its ledger, read without the lock.
pub(crate) fn read_state(folder: &Path) -> Result<(Option<String>, Option<Ledger>)> {
    let read = |name: &str| -> Result<Option<String>> {
        let path = folder.join(STATE_FOLDER).join(name);
        let bytes = match crate::remote::store::read(&path, MAX_STATE, &Default::default()) {
            Ok(bytes) => bytes,
            Err(error) if super::stream::is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(String::from_utf8(bytes).ok())
    };
    let version = read(STATE)?.as_deref().and_then(parse_state);
    let ledger = read(LEDGER)?.as_deref().and_then(|text| Ledger::parse(text).ok());
    // Of another version: another program has applied something since.
    let ledger = ledger.filter(|ledger| Some(&ledger.version) == version.as_ref());
    Ok((version, ledger))
}

fn open_lock(path: &Path) -> Result<File> {
    let failed = |error| Error::io("cannot open the lock", error).in_file(path);
    loop {
        match trusted::open(path, Access::Write, None).map_err(failed)? {
            Found::File(file) => return Ok(file),
            Found::Untrusted(why) => return Err(failed(trusted::refused(path, &why))),
            Found::Absent => match trusted::create(path, Access::Write, 0o644) {
                Ok(file) => {
                    disk::created(path, &file).map_err(failed)?;
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            },
        }
    }
}

fn parse_state(text: &str) -> Option<String> {
    let mut version = None;
    let mut scanner = Scanner::new(text);
    let walked = scanner.object(|scanner, key| match &*key {
        "version" => {
            version = Some(match scanner.peek() {
                Some(b'"') => scanner.string()?.into_owned(),
                _ => version_name(scanner.u64()?),
            });
            Ok(())
        }
        _ => scanner.skip(),
    });
    walked.ok().and(version)
}

/// Ids and checksums of the tensors of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ledger {
    pub(crate) version: String,
    /// The run whose versions were applied; `None` if they did not say.
    pub(crate) stream_id: Option<String>,
    pub(crate) tensors: BTreeMap<String, Known>,
    /// Length and time of the last change of every file with tensors, when the ledger was written.
    pub(crate) files: BTreeMap<String, (u64, u64)>,
}

/// Id and checksum of one tensor, as far as they were published or computed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Known {
    pub(crate) id: Option<ContentId>,
    pub(crate) checksum: Option<(ChecksumFormat, String)>,
}

impl Ledger {
    /// The content id of the model, if that of every tensor is known.
    pub(crate) fn model_id(&self) -> Option<ContentId> {
        if self.tensors.is_empty() {
            return None; // nothing is known yet
        }
        let ids: Option<Vec<_>> =
            self.tensors.iter().map(|(name, known)| Some((name.as_str(), known.id?))).collect();
        ids.map(crate::id::model_id)
    }

    /// Whether the files are as they were when the ledger was written.
    pub(crate) fn is_fresh(&self, folder: &Path) -> bool {
        self.files.iter().all(|(name, stamp)| stamp_of(&folder.join(name)).as_ref() == Some(stamp))
    }

    pub(crate) fn parse(text: &str) -> Result<Ledger> {
        let mut ledger = Ledger::default();
        let mut scanner = Scanner::new(text);
        let malformed = || Error::corrupt("sync.ledger", "the ledger is malformed");
        scanner.object(|scanner, key| match &*key {
            "version" => {
                ledger.version = scanner.string()?.into_owned();
                Ok(())
            }
            "stream_id" => {
                ledger.stream_id = Some(scanner.string()?.into_owned());
                Ok(())
            }
            "files" => scanner.object(|scanner, name| {
                scanner.expect(b'[')?;
                let len = scanner.u64()?;
                scanner.expect(b',')?;
                let changed = scanner.u64()?;
                scanner.expect(b']')?;
                ledger.files.insert(name.into_owned(), (len, changed));
                Ok(())
            }),
            "tensors" => scanner.object(|scanner, name| {
                let mut known = Known::default();
                scanner.object(|scanner, key| {
                    let text = scanner.string()?;
                    match &*key {
                        "id" => known.id = Some(text.parse()?),
                        format => {
                            let format = ChecksumFormat::from_name(format)?;
                            if !format.has_form(&text) {
                                return Err(malformed());
                            }
                            known.checksum = Some((format, text.into_owned()));
                        }
                    }
                    Ok(())
                })?;
                ledger.tensors.insert(name.into_owned(), known);
                Ok(())
            }),
            _ => scanner.skip(),
        })?;
        scanner.end()?;
        Ok(ledger)
    }

    pub(crate) fn to_json(&self) -> String {
        let mut json = String::from("{\"format\": 1, \"version\": ");
        push_string(&mut json, &self.version);
        if let Some(stream) = &self.stream_id {
            json.push_str(", \"stream_id\": ");
            push_string(&mut json, stream);
        }
        json.push_str(", \"files\": {");
        for (at, (name, (len, changed))) in self.files.iter().enumerate() {
            json.push_str(if at > 0 { ", " } else { "" });
            push_string(&mut json, name);
            let _ = write!(json, ": [{len}, {changed}]"); // writing to a string cannot fail
        }
        json.push_str("}, \"tensors\": {");
        for (at, (name, known)) in self.tensors.iter().enumerate() {
            json.push_str(if at > 0 { ", " } else { "" });
            push_string(&mut json, name);
            json.push_str(": {");
            if let Some(id) = known.id {
                let _ = write!(json, "\"id\": \"{id}\"");
            }
            if let Some((format, digest)) = &known.checksum {
                let separator = if known.id.is_some() { ", " } else { "" };
                let _ = write!(json, "{separator}\"{format}\": \"{digest}\"");
            }
            json.push('}');
        }
        json.push_str("}}");
        json
    }
}

/// Length and time of the last change of a file, in nanoseconds.
pub(crate) fn stamp_of(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((metadata.len(), u64::try_from(changed.as_nanos()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_survives() {
        let mut ledger = Ledger { version: "000003".into(), ..Ledger::default() };
        ledger.files.insert("model.safetensors".into(), (5, 1_794_875_667_526_429_384));
        let known = Known {
            id: Some(ContentId::from_bytes([7; 32])),
            checksum: Some((ChecksumFormat::Adler32, "00000001".into())),
        };
        ledger.tensors.insert("a\"".into(), known);
        ledger.tensors.insert("b".into(), Known::default());
        for stream_id in [None, Some("ab".to_owned())] {
            ledger.stream_id = stream_id;
            assert_eq!(Ledger::parse(&ledger.to_json()).unwrap(), ledger);
        }
        assert!(ledger.model_id().is_none());
    }

    #[test]
    fn one_holds_the_lock_and_state_of_others_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let locked = Locked::take(dir.path(), Duration::ZERO).unwrap();
        let error = Locked::take(dir.path(), Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.io_error().unwrap().kind(), io::ErrorKind::WouldBlock);
        std::fs::write(locked.path(STATE), "{\"version\": \"000006\"}").unwrap();
        assert_eq!(locked.read().unwrap().0.as_deref(), Some("000006"));
        let ledger = Ledger { version: "000005".into(), ..Ledger::default() };
        locked.write_ledger(&ledger.to_json(), false).unwrap();
        assert!(locked.read().unwrap().1.is_none(), "a ledger of another version is believed");
        locked.write_state("000005", true).unwrap();
        assert_eq!(locked.read().unwrap(), (Some("000005".into()), Some(ledger)));
        drop(locked);
        Locked::take(dir.path(), Duration::ZERO).unwrap();
    }
}
