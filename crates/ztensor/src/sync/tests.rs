//! A kill or a power cut at any step of publishing and applying.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::chain::Anchors;
use super::*;
use crate::dtype::DType;
use crate::edit::tests::crashes::{self, Disk};
use crate::read::Reader;
use crate::tensor::Tensor;
use crate::write::disk::watch;
use crate::write::export::{ExportFormat, TensorList, export};

type Tensors = BTreeMap<String, Vec<u8>>;

fn base() -> Tensors {
    let bytes = |len: usize, seed: u8| (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect();
    [("a".into(), bytes(900, 1)), ("b".into(), bytes(33, 2)), ("c".into(), bytes(64, 3))].into()
}

fn stepped(mut tensors: Tensors, step: u8) -> Tensors {
    for name in ["a", "b"] {
        let bytes = tensors.get_mut(name).unwrap();
        for at in (step as usize..bytes.len()).step_by(29) {
            bytes[at] = bytes[at].wrapping_add(step);
        }
    }
    tensors
}

/// A checkpoint of two files.
fn save(tensors: &Tensors, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for (file, names) in
        [("model-00001-of-00002.safetensors", &["a"][..]), ("model-00002-of-00002.safetensors", &["b", "c"])]
    {
        let mut list = TensorList::default();
        for name in names {
            let bytes = &tensors[*name][..];
            let tensor = Tensor::from_bytes(&[bytes.len() as u64][..], DType::U8, bytes).unwrap();
            list.tensors.push(((*name).to_owned(), tensor));
        }
        export(&list, folder.join(file), ExportFormat::Safetensors, &Default::default()).unwrap();
    }
}

fn load(folder: &Path) -> Tensors {
    let reader = Reader::open(folder).unwrap();
    reader.keys().map(|name| (name.to_owned(), reader.read(name).unwrap())).collect()
}

fn inputs(tensors: &Tensors) -> Vec<TensorInput<'_>> {
    let input = |(name, bytes)| -> TensorInput<'_> {
        let bytes: &Vec<u8> = bytes;
        let shape = crate::catalog::Shape::from_slice(&[bytes.len() as u64]);
        let name: &String = name;
        TensorInput { name, dtype: DType::U8, shape, bytes }
    };
    tensors.iter().map(input).collect()
}

const FORMS: [(PayloadCompression, Encoding); 3] = [
    (PayloadCompression::Zstd, Encoding::Xor),
    (PayloadCompression::Zstd, Encoding::Overwrite),
    (PayloadCompression::Z4ai, Encoding::Xor),
];

fn publish_options((compression, encoding): (PayloadCompression, Encoding), full: bool) -> PublishOptions {
    let anchors = Anchors { every: full.then_some(0), ratio: None };
    PublishOptions { compression, encoding, anchors, threads: 1, ..PublishOptions::default() }
}

fn pull_options(base: &Path, version: &str) -> PullOptions<'static> {
    PullOptions {
        version: Some(version.to_owned()),
        base: Some(base.to_owned()),
        threads: 1,
        ..PullOptions::default()
    }
}

#[test]
fn a_killed_pull_leaves_the_old_or_the_new_state() {
    for form in FORMS {
        for (full, durable) in [(false, true), (false, false), (true, true)] {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            save(&base(), &path("base"));
            let stream = Arc::new(Stream::new(path("stream"), Layout::Numbered, Default::default()));
            let reader = Reader::open(path("base")).unwrap();
            let mut publisher = Publisher::new(stream.clone(), &reader, publish_options(form, full)).unwrap();
            let mut states = vec![base()];
            for step in 1..=2 {
                states.push(stepped(states.last().unwrap().clone(), step));
                publisher.publish(&inputs(states.last().unwrap())).unwrap();
            }
            let (mut at, mut unfinished) = (0, 0);
            loop {
                let local = path("local");
                let _ = std::fs::remove_dir_all(&local);
                let options = |version| PullOptions { durable, ..pull_options(&path("base"), version) };
                pull(&stream, &local, &options("0")).unwrap();
                let killed = watch::killed_at(at, || {
                    let _ = pull(&stream, &local, &options("2"));
                });
                let verified = verify(&local, 1).unwrap();
                assert_eq!(
                    (verified.differ.len(), verified.unknown.len()),
                    (0, 0),
                    "{form:?} {full} {durable} step {at}"
                );
                let version: usize = verified.version.unwrap().parse().unwrap();
                assert_eq!(load(&local), states[version], "{form:?} {full} {durable} step {at}: a mixture");
                unfinished += usize::from(version == 0);
                pull(&stream, &local, &options("2")).unwrap();
                assert_eq!(load(&local), states[2]);
                let left: Vec<_> = std::fs::read_dir(local.join(".weight_sync"))
                    .unwrap()
                    .map(|e| e.unwrap().file_name())
                    .collect();
                assert!(!left.iter().any(|name| name == "journal"), "{left:?}");
                if !killed {
                    break;
                }
                at += 1;
            }
            assert!(at > 10 && unfinished > 0, "{at} {unfinished}");
        }
    }
}

#[test]
fn a_power_cut_during_a_pull_leaves_the_old_or_the_new_state() {
    for form in FORMS {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        save(&base(), &path("base"));
        let stream = Arc::new(Stream::new(path("stream"), Layout::Numbered, Default::default()));
        let reader = Reader::open(path("base")).unwrap();
        let mut publisher = Publisher::new(stream.clone(), &reader, publish_options(form, false)).unwrap();
        let new = stepped(base(), 5);
        publisher.publish(&inputs(&new)).unwrap();
        let local = path("local");
        let state = local.join(".weight_sync");
        pull(&stream, &local, &pull_options(&path("base"), "0")).unwrap();
        let mut start = Disk::default();
        start.add(&local);
        start.add(&state);
        let ops = crashes::noted(|| drop(pull(&stream, &local, &pull_options(&path("base"), "1")).unwrap()));
        let (mut olds, mut news) = (0, 0);
        crashes::crash_states(&start, &crashes::by_sector(ops), |disk, last| {
            for folder in [&state, &local] {
                for entry in std::fs::read_dir(folder).unwrap() {
                    let entry = entry.unwrap().path();
                    if entry.is_file() {
                        std::fs::remove_file(entry).unwrap();
                    }
                }
            }
            for (name, file) in &disk.names {
                let folder = if name.ends_with(".safetensors") { &local } else { &state };
                std::fs::write(folder.join(name), disk.files.get(file).map_or(&[][..], |bytes| bytes))
                    .unwrap();
            }
            for name in ["journal", "lock"] {
                if state.join(name).exists() {
                    crate::platform::set_mode(&state.join(name), 0o600).unwrap();
                }
            }
            let verified = verify(&local, 1).unwrap();
            let found = load(&local);
            assert!(verified.differ.is_empty());
            assert!(found == new || (found == base() && !last), "{form:?}: a mixture");
            assert_eq!(verified.version.as_deref() == Some("000001"), found == new);
            *if found == new { &mut news } else { &mut olds } += 1;
        });
        assert!(olds > 0 && news > 0, "{olds} {news}");
    }
}

#[test]
fn a_killed_publish_shows_nothing_or_all_of_a_version() {
    for form in FORMS {
        for full in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = |name: &str| dir.path().join(name);
            save(&base(), &path("base"));
            let (first, second) = (stepped(base(), 1), stepped(stepped(base(), 1), 2));
            let mut at = 0;
            loop {
                let _ = std::fs::remove_dir_all(path("stream"));
                let _ = std::fs::remove_dir_all(path("local"));
                let stream = Arc::new(Stream::new(path("stream"), Layout::Numbered, Default::default()));
                let reader = Reader::open(path("base")).unwrap();
                let options = publish_options(form, full);
                let mut publisher = Publisher::new(stream.clone(), &reader, options.clone()).unwrap();
                let mut failed = false;
                let killed = watch::killed_at(at, || failed = publisher.publish(&inputs(&first)).is_err());
                // After an error that came when the version had its name, it is there all the same.
                let visible = !stream.versions().unwrap().is_empty();
                assert!(visible || failed, "{form:?} {full} step {at}");
                if visible {
                    pull(&stream, path("local"), &pull_options(&path("base"), "1")).unwrap();
                    assert_eq!(load(&path("local")), first, "{form:?} {full} step {at}");
                }
                // The publisher goes on after an error, and so does one that starts anew.
                if !visible && at % 2 == 0 {
                    publisher = Publisher::new(stream.clone(), &reader, options).unwrap();
                }
                publisher.publish(&inputs(&second)).unwrap();
                let options = pull_options(&path("base"), publisher.version());
                pull(&stream, path("local"), &options).unwrap();
                assert_eq!(load(&path("local")), second, "{form:?} {full} step {at}");
                if !killed {
                    break;
                }
                at += 1;
            }
            assert!(at > 4, "{at}");
        }
    }
}

/// A folder with a base, and a publisher of z4ai deltas from it.
fn publisher_of_base() -> (tempfile::TempDir, Arc<Stream>, Publisher) {
    let dir = tempfile::tempdir().unwrap();
    let base_folder = dir.path().join("base");
    save(&base(), &base_folder);
    let stream = Arc::new(Stream::new(dir.path().join("stream"), Layout::Numbered, Default::default()));
    let reader = Reader::open(base_folder).unwrap();
    let publisher = Publisher::new(stream.clone(), &reader, publish_options(FORMS[2], false)).unwrap();
    (dir, stream, publisher)
}

#[test]
fn a_full_disk_changes_nothing() {
    let (dir, stream, mut publisher) = publisher_of_base();
    let path = |name: &str| dir.path().join(name);
    let new = stepped(base(), 3);
    publisher.publish(&inputs(&new)).unwrap();
    let local = path("local");
    pull(&stream, &local, &pull_options(&path("base"), "0")).unwrap();
    let error = watch::during(watch::full_disk, || pull(&stream, &local, &pull_options(&path("base"), "1")))
        .unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(load(&local), base());
    assert!(!local.join(".weight_sync/journal").exists());
    let published = watch::during(watch::full_disk, || publisher.publish(&inputs(&base())));
    assert!(published.is_err());
    let names: Vec<_> =
        std::fs::read_dir(path("stream")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}: the version and the lock");
    pull(&stream, &local, &pull_options(&path("base"), "1")).unwrap();
    assert_eq!(load(&local), new);
}

#[test]
fn verifying_a_missing_checkpoint_makes_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let error = verify(&dir.path().join("missing"), 1).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_journal_of_another_release_is_refused() {
    let (dir, stream, mut publisher) = publisher_of_base();
    let path = |name: &str| dir.path().join(name);
    publisher.publish(&inputs(&stepped(base(), 3))).unwrap();
    let local = path("local");
    pull(&stream, &local, &pull_options(&path("base"), "0")).unwrap();
    let journal = local.join(".weight_sync/journal");
    std::fs::write(&journal, b"ZTSYNC01 and records that are not known").unwrap();
    crate::platform::set_mode(&journal, 0o600).unwrap();
    let error = pull(&stream, &local, &pull_options(&path("base"), "1")).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Unsupported, "{error}");
    assert!(journal.exists() && load(&local) == base());
}

/// Tensors of many windows, of which no offset need be a multiple of anything.
#[test]
fn windows_of_large_tensors_are_changed_wherever_they_begin() {
    let bytes = |len: usize| (0..len).map(|at| ((at / 2 * 40_503) >> 5) as u8).collect::<Vec<u8>>();
    let old =
        [("a", DType::U8, bytes(77)), ("b", DType::BF16, bytes(700_002)), ("c", DType::F32, bytes(900_000))];
    for (every, form) in [1, 3, 150, 40_000].into_iter().flat_map(|every| FORMS.map(|form| (every, form))) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("base")).unwrap();
        let mut list = TensorList::default();
        let shape = |dtype: DType, bytes: &[u8]| vec![bytes.len() as u64 / dtype.size().unwrap() as u64];
        for (name, dtype, bytes) in &old {
            let tensor = Tensor::from_bytes(shape(*dtype, bytes), *dtype, bytes.clone()).unwrap();
            list.tensors.push(((*name).to_owned(), tensor));
        }
        export(&list, path("base/model.safetensors"), ExportFormat::Safetensors, &Default::default())
            .unwrap();
        let mut new = old.clone();
        for (_, dtype, bytes) in &mut new {
            let elements = bytes.chunks_mut(dtype.size().unwrap());
            elements.skip(every / 2).step_by(every).for_each(|element| element[0] ^= 1);
        }
        let stream = Arc::new(Stream::new(path("stream"), Layout::Numbered, Default::default()));
        let reader = Reader::open(path("base")).unwrap();
        let mut publisher = Publisher::new(stream.clone(), &reader, publish_options(form, false)).unwrap();
        let inputs: Vec<_> = new
            .iter()
            .map(|(name, dtype, bytes)| TensorInput {
                name,
                dtype: *dtype,
                shape: shape(*dtype, bytes).into(),
                bytes,
            })
            .collect();
        publisher.publish(&inputs).unwrap();
        pull(&stream, path("local"), &pull_options(&path("base"), "1")).unwrap();
        let found = load(&path("local"));
        assert!(new.iter().all(|(name, _, bytes)| found[*name] == *bytes), "{every} {form:?}");
        assert!(verify(&path("local"), 1).unwrap().differ.is_empty());
    }
}
