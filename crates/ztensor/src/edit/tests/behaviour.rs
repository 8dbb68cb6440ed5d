//! What each edit does, and what it refuses.

use super::*;
use crate::edit::{Clash, Compacted, CopyOptions, Placement, Repaired, compact_to, merge_with};
use crate::{ErrorKind, Verification};

fn base() -> (tempfile::TempDir, PathBuf) {
    let folder = scratch();
    let path = folder.path().join("model.zt");
    plain(&path);
    (folder, path)
}

/// Runs something that must be refused and must change nothing.
fn refused<T: std::fmt::Debug>(path: &Path, edit: impl FnOnce(&Path) -> crate::Result<T>) -> crate::Error {
    let before = std::fs::read(path).unwrap();
    let names = listing(path.parent().unwrap());
    let error = edit(path).unwrap_err();
    assert!(std::fs::read(path).unwrap() == before, "{error}");
    assert_eq!(listing(path.parent().unwrap()), names, "{error}");
    error
}

#[test]
fn appending_adds_and_keeps_the_rest_in_place() {
    let (_folder, path) = base();
    let old = std::fs::read(&path).unwrap();
    let before = snapshot(&path).unwrap();
    append(&path).unwrap();
    let new = std::fs::read(&path).unwrap();
    assert!(new.starts_with(&old), "the old file is the start of the new one");
    let after = snapshot(&path).unwrap();
    for (name, object) in &before.objects {
        assert_eq!(after.objects[name], *object);
    }
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.read_as::<f32>("new").unwrap(), numbers(300, 5));
    assert_eq!(reader.verify("new").unwrap(), Verification::Checked);
    assert_eq!(extent_of(&path, "new.tied"), extent_of(&path, "a"));
    assert_eq!(reader.attributes()["edited"], Value::Bool(true));
    assert_eq!(reader.catalog().version.as_deref(), Some("1.7.0"));
}

#[test]
fn a_dropped_append_leaves_the_file_byte_for_byte() {
    let (folder, path) = base();
    let before = std::fs::read(&path).unwrap();
    let mut writer = Writer::append(&path).unwrap();
    writer.add("large", &[3 << 20], &vec![1u8; 3 << 20]).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > before.len() as u64);
    assert!(!Reader::open(&path).unwrap().contains("large"));
    drop(writer);
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(listing(folder.path()), ["model.zt", "other.zt"]);
}

#[test]
fn a_name_that_is_there_cannot_be_appended() {
    let (_folder, path) = base();
    let mut writer = Writer::append(&path).unwrap();
    assert_eq!(writer.add("a", &[1], &[1u8]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    writer.add("fine", &[1], &[1u8]).unwrap();
    writer.finish().unwrap();
    assert!(Reader::open(&path).unwrap().contains("fine"));
}

#[test]
fn replacing_in_place_changes_the_one_tensor_and_its_digest() {
    let (_folder, path) = base();
    let len = std::fs::metadata(&path).unwrap().len();
    let (before, place) = (snapshot(&path).unwrap(), extent_of(&path, "a"));
    assert_eq!(replace_tensor_as(&path, "a", &numbers(400, 3)).unwrap(), Placement::InPlace);
    assert_eq!(extent_of(&path, "a"), place);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    let mut after = snapshot(&path).unwrap();
    assert_eq!(Reader::open(&path).unwrap().verify("a").unwrap(), Verification::Checked);
    assert_eq!(Reader::open(&path).unwrap().read_as::<f32>("a").unwrap(), numbers(400, 3));
    assert_ne!(after.objects["a"].0, before.objects["a"].0, "the digest is another");
    after.objects.insert("a".into(), before.objects["a"].clone());
    assert_eq!(after, before);
    assert_eq!(Reader::open(&path).unwrap().catalog().dead_bytes(), Some(0));
    // And again, with the same bytes as at first.
    replace_tensor_as(&path, "a", &numbers(400, 1)).unwrap();
    assert_eq!(snapshot(&path).unwrap(), before);
}

#[test]
fn replacing_under_a_reader_or_a_tie_appends() {
    let (_folder, path) = base();
    for (mode, seed) in [(MapMode::Auto, 10), (MapMode::Never, 11)] {
        let reader = OpenOptions::default().map(mode).open(&path).unwrap();
        let old = reader.read("a").unwrap();
        assert_eq!(replace_tensor_as(&path, "a", &numbers(400, seed)).unwrap(), Placement::Appended);
        assert_eq!(reader.read("a").unwrap(), old);
        assert_eq!(Reader::open(&path).unwrap().read_as::<f32>("a").unwrap(), numbers(400, seed));
    }
    assert_eq!(replace_tensor(&path, "b.tied", &[8; 400]).unwrap(), Placement::Appended);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.read_as::<f32>("b").unwrap(), numbers(100, 2));
    assert_eq!(reader.read("b.tied").unwrap(), [8; 400]);
    drop(reader);
    // No longer tied, and without readers.
    assert_eq!(replace_tensor(&path, "b", &[7; 400]).unwrap(), Placement::InPlace);
    let dead = Reader::open(&path).unwrap().catalog().dead_bytes().unwrap();
    assert!(dead > 2 * 1600);
    let before = snapshot(&path).unwrap();
    let Compacted { before: size, after } = compact(&path).unwrap();
    assert!(size - after >= dead, "{dead} dead bytes, but only {} saved", size - after);
    assert_eq!(Reader::open(&path).unwrap().catalog().dead_bytes(), Some(0));
    assert_eq!(snapshot(&path).unwrap(), before);
}

#[test]
fn what_cannot_be_replaced_is_refused() {
    let (_folder, path) = base();
    let kind = |name, data: &[u8]| refused(&path, |path| replace_tensor(path, name, data)).kind();
    assert_eq!(kind("absent", &[]), ErrorKind::NotFound);
    assert_eq!(kind("a", &[0; 1599]), ErrorKind::InvalidArgument);
    assert_eq!(kind("packed", &[0; 1000]), ErrorKind::Unsupported);
    assert_eq!(kind("sparse", &[0; 16]), ErrorKind::Unsupported);
    assert_eq!(kind("future", &[0; 50]), ErrorKind::Unsupported);
    let error = refused(&path, |path| replace_tensor_as(path, "a", &[1i32; 400]));
    assert!(error.to_string().contains("\"a\""), "{error}");
    replace_tensor(&path, "empty", &[]).unwrap();
}

#[test]
fn removing_copies_the_rest_as_it_is_stored() {
    let (folder, path) = base();
    let output = folder.path().join("less.zt");
    let before = snapshot(&path).unwrap();
    let size = remove_tensors(&path, &output, &["a", "scalar"]).unwrap();
    assert_eq!(size, std::fs::metadata(&output).unwrap().len());
    let after = snapshot(&output).unwrap();
    assert_eq!(after.objects.len(), before.objects.len() - 2);
    for (name, object) in &after.objects {
        assert_eq!(*object, before.objects[name]);
    }
    assert_eq!(before.root.replace("\"a\", ", "").replace("\"scalar\", ", ""), after.root);
    assert_eq!(extent_of(&output, "b"), extent_of(&output, "b.tied"));
    assert_eq!(snapshot(&path).unwrap(), before);

    let missing = folder.path().join("missing.zt");
    let error = refused(&path, |path| remove_tensors(path, &missing, &["a", "absent"]));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn merging_keeps_everything_and_refuses_clashes() {
    let (folder, path) = base();
    let (other, output) = (sibling(&path), folder.path().join("both.zt"));
    merge(&[&path, &other], &output).unwrap();
    let (a, b, both) = (snapshot(&path).unwrap(), snapshot(&other).unwrap(), snapshot(&output).unwrap());
    let mut expected = a.objects.clone();
    expected.extend(b.objects);
    assert_eq!(both.objects, expected);
    let reader = Reader::open(&output).unwrap();
    assert_eq!(reader.attributes().keys().collect::<Vec<_>>(), ["author", "second"]);
    assert_eq!(reader.catalog().unknown.pairs()[0].0, "x-root");
    drop(reader);

    let error = refused(&path, |path| merge(&[path, &output], folder.path().join("no.zt")));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for part in ["model.zt", "both.zt", "\"a\""] {
        assert!(error.to_string().contains(part), "{error}");
    }

    let mut writer = Writer::create(&other).unwrap();
    writer.set_attribute("author", "somebody else");
    writer.finish().unwrap();
    let error = refused(&path, |path| merge(&[path, &other], folder.path().join("no.zt")));
    assert!(error.to_string().contains("author") && error.to_string().contains("other.zt"), "{error}");
    for (clash, author) in [(Clash::KeepFirst, "test"), (Clash::KeepLast, "somebody else")] {
        merge_with(&[&path, &other], &output, clash).unwrap();
        assert_eq!(Reader::open(&output).unwrap().attributes()["author"].as_text(), Some(author));
    }
    // Nothing at all merges to an empty file.
    merge::<&Path>(&[], &output).unwrap();
    assert!(Reader::open(&output).unwrap().is_empty());
}

#[test]
fn a_copying_edit_is_watched_and_can_be_cancelled() {
    let (_folder, path) = base();
    let copied = std::sync::atomic::AtomicU64::new(0);
    let count = |bytes| {
        copied.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        true
    };
    CopyOptions::default().observer(&count).compact_to(&path, &path).unwrap();
    let reader = Reader::open(&path).unwrap();
    let tied = reader.get("b").unwrap().stored_len();
    let stored: u64 = reader.objects().map(|(_, object)| object.stored_len()).sum();
    assert_eq!(copied.into_inner(), stored - tied);
    let cancelled = refused(&path, |path| CopyOptions::default().observer(&|_| false).merge(&[path], path));
    assert_eq!(cancelled.kind(), ErrorKind::Cancelled);
}

#[test]
fn compacting_to_another_file_leaves_the_first() {
    let (folder, path) = base();
    append(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let output = folder.path().join("small.zt");
    let sizes = compact_to(&path, &output).unwrap();
    assert_eq!(sizes.before, before.len() as u64);
    assert_eq!(sizes.after, std::fs::metadata(&output).unwrap().len());
    assert!(sizes.after < sizes.before);
    assert!(std::fs::read(&path).unwrap() == before);
    assert_eq!(snapshot(&output).unwrap(), snapshot(&path).unwrap());
}

#[test]
fn a_second_editor_is_refused_by_name() {
    let (_folder, path) = base();
    let writer = Writer::append(&path).unwrap();
    let process = format!("process {}", std::process::id());
    let busy = [
        refused(&path, Writer::append_unit),
        refused(&path, |path| replace_tensor(path, "a", &[0; 1600])),
        refused(&path, |path| remove_tensors(path, path, &["a"])),
        refused(&path, |path| merge(&[path], path)),
        refused(&path, |path| compact(path)),
        refused(&path, |path| repair(path)),
    ];
    for error in busy {
        assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::WouldBlock, "{error}");
        assert!(error.to_string().contains(&process), "{error}");
        assert!(error.to_string().contains("model.zt"), "{error}");
    }
    drop(writer);
    append(&path).unwrap();
}

impl Writer<'static> {
    /// A writer is not `Debug`, which `unwrap_err` wants.
    fn append_unit(path: &Path) -> crate::Result<()> {
        Writer::append(path).map(drop)
    }
}

#[test]
fn what_is_no_current_file_cannot_be_edited() {
    let (folder, path) = base();
    let old = folder.path().join("old.zt");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/zt/legacy_v01.zt"), &old).unwrap();
    let error = refused(&old, Writer::append_unit);
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("0.1"), "{error}");
    let error = refused(&old, |old| compact(old));
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("0.1"), "{error}");
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "no tensors").unwrap();
    assert_eq!(refused(&text, Writer::append_unit).kind(), ErrorKind::Unsupported);
    // Unix opens no folder to write to it.
    let of_a_folder = if cfg!(windows) { ErrorKind::InvalidArgument } else { ErrorKind::Io };
    assert_eq!(Writer::append_unit(folder.path()).unwrap_err().kind(), of_a_folder);
    assert_eq!(Writer::append_unit(&folder.path().join("nothing.zt")).unwrap_err().kind(), ErrorKind::Io);

    let several = folder.path().join("several");
    std::fs::create_dir(&several).unwrap();
    make_other(&several.join("model.zt"));
    make_base(&several.join("model-2.zt"));
    for (input, kind) in [(&several, ErrorKind::Unsupported), (&text, ErrorKind::UnknownFormat)] {
        let error = compact_to(input, folder.path().join("no.zt")).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    std::fs::remove_dir_all(&several).unwrap();

    let twin = folder.path().join("twin.zt");
    std::fs::hard_link(&path, &twin).unwrap();
    let error = refused(&path, Writer::append_unit);
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("hard link"), "{error}");
}

#[cfg(unix)]
#[test]
fn an_edit_through_a_symlink_changes_the_file_it_leads_to() {
    let (folder, path) = base();
    let links = folder.path().join("links");
    std::fs::create_dir(&links).unwrap();
    let link = links.join("latest.zt");
    std::os::unix::fs::symlink("../model.zt", &link).unwrap();
    let mut writer = Writer::append(&link).unwrap();
    writer.add("x", &[1], &[1u8]).unwrap();
    assert_eq!(listing(&links), ["latest.zt"], "the journal lies beside the file");
    assert!(!Reader::open(&link).unwrap().contains("x"));
    writer.finish().unwrap();
    compact(&link).unwrap();
    assert!(Reader::open(&path).unwrap().contains("x"));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// Windows does not replace or remove a file that is open.
#[cfg(not(windows))]
#[test]
fn a_file_or_folder_that_vanishes_is_noticed() {
    let (folder, path) = base();
    let mut writer = Writer::append(&path).unwrap();
    writer.add("x", &[1], &[1u8]).unwrap();
    // Somebody puts another file in its place.
    make_other(&path);
    let other = std::fs::read(&path).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(error.to_string().contains("replaced"), "{error}");
    assert!(std::fs::read(&path).unwrap() == other);
    assert_eq!(listing(folder.path()), ["model.zt", "other.zt"]);

    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("model.zt");
    make_base(&path);
    let mut writer = Writer::append(&path).unwrap();
    writer.add("x", &[1], &[1u8]).unwrap();
    std::fs::remove_dir_all(&inner).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::Io);
    assert!(remove_tensors(sibling(&folder.path().join("a")), inner.join("out.zt"), &["other"]).is_err());
}

#[test]
fn a_torn_file_opens_and_is_repaired_at_every_length() {
    let (_folder, path) = base();
    let before = snapshot(&path).unwrap();
    let old = std::fs::read(&path).unwrap();
    let mut writer = Writer::append(&path).unwrap();
    let journal = std::fs::read(journal_of(&path)).unwrap();
    writer.add("x", &[40], &[1u8; 40]).unwrap();
    writer.finish().unwrap();
    let new = std::fs::read(&path).unwrap();
    let step = if cfg!(miri) { 97 } else { 1 };
    for len in (old.len()..=new.len()).step_by(step) {
        std::fs::write(&path, &new[..len]).unwrap();
        std::fs::write(journal_of(&path), &journal).unwrap();
        assert!(snapshot(&path).unwrap() == before, "cut at {len}");
        let dropped = (len - old.len()) as u64;
        let expected = if dropped == 0 { Repaired::Whole } else { Repaired::Restored { dropped } };
        assert_eq!(repair(&path).unwrap(), expected);
        assert!(std::fs::read(&path).unwrap() == old);
    }
    // Without the journal there is nothing to go by, and nothing is touched.
    std::fs::write(&path, &new[..new.len() - 1]).unwrap();
    assert_eq!(refused(&path, |path| repair(path)).kind(), ErrorKind::Corrupt);
}

#[cfg(unix)]
#[test]
fn a_journal_of_another_file_is_not_believed() {
    let (folder, path) = base();
    let writer = Writer::append(&path).unwrap();
    let journal = std::fs::read(journal_of(&path)).unwrap();
    drop(writer);
    let other = sibling(&path);
    let expected = snapshot(&other).unwrap();
    let journals = [
        journal.clone(),
        journal[..127].to_vec(),
        Vec::new(),
        vec![0xFF; 128],
        // A good length in the middle of the file, or far behind its end.
        super::super::journal::Journal { good_len: 100, tail_crc: 0, editor: "x".into() }.encode().to_vec(),
        super::super::journal::Journal { good_len: u64::MAX, tail_crc: 0, editor: "x".into() }
            .encode()
            .to_vec(),
    ];
    for journal in journals {
        std::fs::write(journal_of(&other), &journal).unwrap();
        assert_eq!(snapshot(&other).unwrap(), expected);
        append_x(&other);
        assert!(!journal_of(&other).exists());
        remove_tensors(&other, &other, &["x"]).unwrap();
    }
    // Nor is anything that is no file.
    std::os::unix::fs::symlink("/dev/zero", journal_of(&other)).unwrap();
    assert_eq!(snapshot(&other).unwrap(), expected);
    assert_eq!(Writer::append_unit(&other).unwrap_err().kind(), ErrorKind::Io);
    std::fs::remove_file(journal_of(&other)).unwrap();
    std::fs::create_dir(journal_of(&other)).unwrap();
    assert_eq!(snapshot(&other).unwrap(), expected);
    assert_eq!(Writer::append_unit(&other).unwrap_err().kind(), ErrorKind::Io);
    drop(folder);
}

#[cfg_attr(not(unix), allow(dead_code))] // what only tests with links use
fn append_x(path: &Path) {
    let mut writer = Writer::append(path).unwrap();
    writer.add("x", &[1], &[1u8]).unwrap();
    writer.finish().unwrap();
}

#[test]
fn a_tensor_that_holds_a_whole_file_is_not_mistaken_for_the_end() {
    let (_folder, path) = base();
    let inner = std::fs::read(sibling(&path)).unwrap();
    let before = snapshot(&path).unwrap();
    let mut writer = Writer::append(&path).unwrap();
    // As large as the writer's buffer, so that it is in the file at once, footer last.
    let mut blob = vec![0u8; (1 << 20) + 64 - inner.len() % 64];
    blob.extend_from_slice(&inner);
    writer.add("file", &[blob.len() as u64], &blob).unwrap();
    assert!(std::fs::read(&path).unwrap().ends_with(&inner));
    assert_eq!(snapshot(&path).unwrap(), before);
    writer.finish().unwrap();
    assert_eq!(Reader::open(&path).unwrap().read("file").unwrap(), blob);
}

#[test]
fn new_data_that_changes_meanwhile_matches_its_digest() {
    use crate::source::{FileSource, Source};
    let (folder, path) = base();
    let memory = folder.path().join("memory");
    std::fs::write(&memory, [0; 1600]).unwrap();
    let source = FileSource::open(&memory, MapMode::Auto).unwrap();
    let data = source.mapped().unwrap();
    let mut round = 0;
    let meddle = move |_: crate::write::disk::Step<'_>| {
        round += 1;
        crate::platform::write_all_at(&std::fs::File::options().write(true).open(&memory)?, &[round; 1600], 0)
    };
    crate::write::disk::watch::during(meddle, || replace_tensor(&path, "a", data)).unwrap();
    let reader = Reader::open(&path).unwrap();
    reader.verify_all(None).unwrap();
    let saved = reader.read("a").unwrap();
    assert!(saved.iter().all(|byte| *byte == saved[0]), "a mix of two moments");
}

#[cfg(unix)]
#[test]
fn a_journal_of_another_user_is_not_believed() {
    let (_folder, path) = base();
    let before = snapshot(&path).unwrap();
    // What an interrupted append leaves: a longer file and a journal for the old length.
    let writer = Writer::append(&path).unwrap();
    let journal = std::fs::read(journal_of(&path)).unwrap();
    drop(writer);
    append_x(&path);
    let after = snapshot(&path).unwrap();
    std::fs::write(journal_of(&path), &journal).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert!(reader.is_limited_by_journal());
    assert_eq!(snapshot(&path).unwrap(), before);
    drop(reader);
    let set_mode = |mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(journal_of(&path), mode).unwrap();
    };
    let ignored = || {
        assert_eq!(snapshot(&path).unwrap(), after);
        assert!(!Reader::open(&path).unwrap().is_limited_by_journal());
        let error = Writer::append_unit(&path).unwrap_err();
        assert!(error.to_string().contains("remove it"), "{error}");
        assert_eq!(snapshot(&path).unwrap(), after, "an editor cut the file");
    };
    set_mode(0o646);
    ignored();
    set_mode(0o600);
    assert_eq!(snapshot(&path).unwrap(), before);
    if !rustix::process::geteuid().is_root() {
        return; // only root can give files away
    }
    std::os::unix::fs::chown(journal_of(&path), Some(65534), None).unwrap();
    ignored();
    // The file's own owner may leave one.
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    assert_eq!(snapshot(&path).unwrap(), before);
}
