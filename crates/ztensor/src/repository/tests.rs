//! A kill at any step of commit, transfer, collection of garbage and checkout, and packs that lie.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::gc::Retention;
use super::names::{PACKS, pack_file};
use super::pack::{Coding, Encoded, EncodedForm, PackWriter};
use super::*;
use crate::id::ContentId;
use crate::write::Writer;
use crate::write::disk::watch;

/// Weights of 2,500 elements and a configuration; one element in 50 changes with each step.
fn save(folder: &Path, step: usize) {
    std::fs::create_dir_all(folder).unwrap();
    let mut writer = Writer::create(folder.join("model.zt")).unwrap();
    for (name, seed) in [("a.0.weight", 1u32), ("a.1.weight", 2), ("head", 3)] {
        let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        let noise = std::iter::successors(Some(seed), next).take(2500);
        let mut values: Vec<f32> = noise.map(|state| (state >> 8) as f32 / 8e7 - 0.1).collect();
        for done in 1..=step {
            values.iter_mut().skip(done * 7 % 50).step_by(50).for_each(|value| *value += 1e-3);
        }
        writer.add(name, &[50, 50], &values).unwrap();
    }
    writer.finish().unwrap();
    std::fs::write(folder.join("config.json"), format!("{{\"step\": {step}}}")).unwrap();
}

fn options(message: &str) -> CommitOptions<'static> {
    CommitOptions { message: message.into(), threads: 1, ..CommitOptions::default() }
}

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap()))
        .collect();
    found.sort();
    found
}

fn clean(repository: &Repository) {
    let found = repository.fsck(&FsckOptions { full: true, threads: 1, ..FsckOptions::default() }).unwrap();
    assert_eq!(found.errors, [""; 0]);
    assert_eq!(found.warnings, [""; 0]);
}

/// What a version restores to.
fn restored(repository: &Repository, name: &str, to: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let _ = std::fs::remove_dir_all(to);
    let options = CheckoutOptions { threads: 1, ..CheckoutOptions::default() };
    repository.version(name).unwrap().checkout(to, &options).unwrap();
    files(to)
}

#[test]
fn a_killed_commit_leaves_the_old_or_the_new_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..3).for_each(|step| save(&path(&format!("step{step}")), step));
    let (mut at, mut olds, mut news) = (0, 0, 0);
    loop {
        let _ = std::fs::remove_dir_all(path("repo"));
        let repository = Repository::init(path("repo"), Default::default()).unwrap();
        repository.commit(path("step0"), &options("0")).unwrap();
        let killed = watch::killed_at(at, || {
            let tagged = CommitOptions { tag: Some("t".into()), ..options("1") };
            let _ = repository.commit(path("step1"), &tagged);
        });
        let repository = Repository::open(path("repo"), Default::default()).unwrap();
        clean(&repository);
        let log = repository.log("main", None).unwrap();
        let step = log.len() - 1;
        *if step == 0 { &mut olds } else { &mut news } += 1;
        let expected = files(&path(&format!("step{step}")));
        assert_eq!(restored(&repository, "main", &path("out")), expected, "step {at}");
        // What is left does not stand in the way.
        repository.commit(path("step2"), &options("2")).unwrap();
        assert_eq!(restored(&repository, "main", &path("out")), files(&path("step2")));
        let now = GcOptions { grace: Duration::ZERO, ..GcOptions::default() };
        repository.gc(&now).unwrap();
        clean(&repository);
        assert_eq!(restored(&repository, "main~1", &path("out")), expected);
        if !killed {
            break;
        }
        at += 1;
    }
    assert!(at > 10 && olds > 5 && news > 0, "{at} {olds} {news}");
}

#[test]
fn a_killed_collection_loses_nothing_that_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..4).for_each(|step| save(&path(&format!("step{step}")), step));
    let mut at = 0;
    loop {
        let _ = std::fs::remove_dir_all(path("repo"));
        let repository = Repository::init(path("repo"), Default::default()).unwrap();
        for step in 0..4 {
            repository.commit(path(&format!("step{step}")), &options("x")).unwrap();
        }
        repository.create_branch("dead", "main~1", false).unwrap();
        repository.delete_ref(RefKind::Branch, "dead").unwrap();
        let retention = Retention { keep_last: Some(1), ..Retention::default() };
        let collect = GcOptions { retention, grace: Duration::ZERO, threads: 1, ..GcOptions::default() };
        let killed = watch::killed_at(at, || drop(repository.gc(&collect)));
        for again in [false, true] {
            let repository = Repository::open(path("repo"), Default::default()).unwrap();
            clean(&repository);
            assert_eq!(restored(&repository, "main", &path("out")), files(&path("step3")), "step {at}");
            assert_eq!(repository.log("main", None).unwrap().len(), 4);
            if !again {
                repository.gc(&collect).unwrap();
            }
        }
        let error = repository.version("main~2").unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotFound);
        if !killed {
            break;
        }
        at += 1;
    }
    assert!(at > 10, "{at}");
}

#[test]
fn a_killed_transfer_or_checkout_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..3).for_each(|step| save(&path(&format!("step{step}")), step));
    let source = Repository::init(path("source"), Default::default()).unwrap();
    for step in 0..3 {
        source.commit(path(&format!("step{step}")), &options("x")).unwrap();
    }
    let mut at = 0;
    loop {
        let _ = std::fs::remove_dir_all(path("target"));
        let target = Repository::init(path("target"), Default::default()).unwrap();
        let killed = watch::killed_at(at, || drop(source.push(&target, &TransferOptions::default())));
        let target = Repository::open(path("target"), Default::default()).unwrap();
        clean(&target);
        let there = target.refs().unwrap().len();
        if there == 1 {
            assert_eq!(restored(&target, "main", &path("out")), files(&path("step2")));
        }
        source.push(&target, &TransferOptions::default()).unwrap();
        clean(&target);
        assert_eq!(restored(&target, "main~2", &path("out")), files(&path("step0")));
        if !killed {
            break;
        }
        at += 1;
    }
    assert!(at > 10, "{at}");
    at = 0;
    loop {
        let _ = std::fs::remove_dir_all(path("out"));
        let version = source.version("main").unwrap();
        let checkout = CheckoutOptions { threads: 1, ..CheckoutOptions::default() };
        let killed = watch::killed_at(at, || drop(version.checkout(path("out"), &checkout)));
        assert!(!path("out").exists() || files(&path("out")) == files(&path("step2")), "step {at}");
        let hidden = std::fs::read_dir(dir.path()).unwrap();
        let hidden =
            hidden.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 0, "a checkout left something");
        if !killed {
            break;
        }
        at += 1;
    }
    assert!(at > 3, "{at}");
}

#[test]
fn a_full_disk_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..2).for_each(|step| save(&path(&format!("step{step}")), step));
    let repository = Repository::init(path("repo"), Default::default()).unwrap();
    repository.commit(path("step0"), &options("0")).unwrap();
    let error =
        watch::during(watch::full_disk, || repository.commit(path("step1"), &options("1"))).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::StorageFull);
    clean(&repository);
    assert_eq!(std::fs::read_dir(path("repo").join(PACKS)).unwrap().count(), 1);
    assert_eq!(repository.log("main", None).unwrap().len(), 1);
}

/// Adds a pack that says anything.
fn forge(repository: &Repository, objects: &[(ContentId, EncodedForm)], of: &object::ObjectType) {
    let mut packs = PackWriter::new(&repository.store);
    for (id, bytes) in objects {
        let bytes = match bytes {
            EncodedForm::Whole(coding, bytes) => EncodedForm::Whole(*coding, bytes.clone()),
            EncodedForm::Cast { base } => EncodedForm::Cast { base: *base },
            EncodedForm::Delta { base, common, change, .. } => {
                EncodedForm::Delta { base: *base, common: *common, change: change.clone(), rest: None }
            }
        };
        packs.add(id, &Encoded { of: of.clone(), bytes, sketch: None }).unwrap();
    }
    packs.finish().unwrap();
}

#[test]
fn objects_that_depend_on_themselves_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    save(&path("step0"), 0);
    let repository = Repository::init(path("repo"), Default::default()).unwrap();
    repository.commit(path("step0"), &options("0")).unwrap();
    let version = repository.version("main").unwrap();
    let tensor = version.tensors().unwrap()[0].clone();
    let of = object::ObjectType { dtype: tensor.dtype, shape: tensor.shape.clone() };
    // The pack is replaced by one in which the first object leads to the second, and that to the first.
    let other = ContentId::from_bytes([7; 32]);
    for (pack, _) in index::packs(&repository.store).unwrap() {
        std::fs::remove_file(path("repo").join(pack_file(&pack))).unwrap();
    }
    let delta = |base| EncodedForm::Delta { base, common: tensor.len, change: vec![1, 2, 3], rest: None };
    forge(&repository, &[(tensor.id, delta(other)), (other, delta(tensor.id))], &of);
    std::fs::remove_dir_all(path("repo/locations")).unwrap();
    let version = repository.version("main").unwrap();
    let error = version.checkout(path("out"), &CheckoutOptions::default()).unwrap_err();
    assert_eq!(error.rule(), Some("repository.chain"), "{error}");
    assert!(!path("out").exists());
    let found = repository.fsck(&FsckOptions { full: true, ..FsckOptions::default() }).unwrap();
    assert!(found.errors.iter().any(|error| error.contains("repository.chain")), "{:?}", found.errors);
}

#[test]
fn objects_that_are_not_what_their_id_says_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    save(&path("step0"), 0);
    let repository = Repository::init(path("repo"), Default::default()).unwrap();
    repository.commit(path("step0"), &options("0")).unwrap();
    let tensors = repository.version("main").unwrap().tensors().unwrap();
    for (pack, _) in index::packs(&repository.store).unwrap() {
        std::fs::remove_file(path("repo").join(pack_file(&pack))).unwrap();
    }
    let of = object::ObjectType { dtype: tensors[0].dtype, shape: tensors[0].shape.clone() };
    let bytes = vec![0u8; tensors[0].len as usize];
    let forged: Vec<_> =
        tensors.iter().map(|tensor| (tensor.id, EncodedForm::Whole(Coding::Raw, bytes.clone()))).collect();
    forge(&repository, &forged, &of);
    std::fs::remove_dir_all(path("repo/locations")).unwrap();
    let version = repository.version("main").unwrap();
    let error = version.checkout(path("out"), &CheckoutOptions::default()).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Mismatch, "{error}");
    let found = repository.fsck(&FsckOptions { full: true, ..FsckOptions::default() }).unwrap();
    assert_eq!(found.errors.len(), 3, "{:?}", found.errors);
}

#[test]
fn a_commit_is_built_anew_when_garbage_is_collected_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..2).for_each(|step| save(&path(&format!("step{step}")), step));
    let repository = Arc::new(Repository::init(path("repo"), Default::default()).unwrap());
    repository.commit(path("step0"), &options("0")).unwrap();
    // All that is not visible yet goes when the manifest of the new version is about to appear.
    let beside = repository.clone();
    let collected = Rc::new(Cell::new(0));
    let count = collected.clone();
    let watcher = move |step: crate::write::disk::Step<'_>| {
        if let crate::write::disk::Step::Rename(_, to) = step
            && to.parent().is_some_and(|folder| folder.ends_with("locations"))
            && count.get() == 0
        {
            let now = GcOptions { grace: Duration::ZERO, ..GcOptions::default() };
            count.set(beside.gc(&now).unwrap().removed.len());
        }
        Ok(())
    };
    watch::during(watcher, || repository.commit(path("step1"), &options("1"))).unwrap();
    assert!(collected.get() > 0, "nothing was collected");
    clean(&repository);
    assert_eq!(restored(&repository, "main", &path("out")), files(&path("step1")));
}

#[test]
fn garbage_is_condemned_first_and_what_was_condemned_is_not_built_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    (0..2).for_each(|step| save(&path(&format!("step{step}")), step));
    let repository = Repository::init(path("repo"), Default::default()).unwrap();
    repository.commit(path("step0"), &options("0")).unwrap();
    let on = |branch: &str| CommitOptions { branch: Some(branch.into()), ..options("1") };
    let first = repository.commit(path("step1"), &on("other")).unwrap();
    repository.delete_ref(RefKind::Branch, "other").unwrap();
    let later = GcOptions::default();
    let condemned = repository.gc(&later).unwrap();
    assert!(condemned.removed.is_empty() && condemned.condemned.len() >= 3, "{condemned:?}");
    assert!(repository.version(&first.id.to_string()).is_ok(), "it is still there");
    assert!(repository.gc(&later).unwrap().condemned.is_empty(), "condemned once");
    // The same objects come again: they are stored again.
    let again = repository.commit(path("step1"), &on("third")).unwrap();
    assert!(again.deltas + again.whole > 0 && again.stored > 0, "{again:?}");
    clean(&repository);
    assert_eq!(restored(&repository, "third", &path("out")), files(&path("step1")));
}
