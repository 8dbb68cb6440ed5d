//! Weight streams: those of other implementations, and our own. `sync_hostile.rs` has those that lie.

mod common;

use std::path::{Path, PathBuf};

use common::sync::{
    FORMS, Memory, Model, copy_folder, data, digests, expected, kind_of, manifest, model_in_folder, options,
    publish_options, publisher, pull_from, stream, versions_of,
};
use ztensor::sync::{
    ChecksumFormat, Encoding, Layout, LiveTensor, PayloadCompression, PublishOptions, Publisher, PullOptions,
    chain::Anchors, fold, log, prune, pull, status, verify,
};
use ztensor::{DType, ErrorKind, Reader};

/// Streams that are parts of the slime samples.
fn source(name: &str, scratch: &Path) -> PathBuf {
    let parts: &[u64] = match name {
        "pruned" => &[4, 5, 6],
        "pruned-no-full" => &[2, 3],
        other => return data().join(other),
    };
    let root = scratch.join(name);
    for part in parts {
        let folder = format!("weight_v{part:06}");
        copy_folder(&data().join("slime").join(&folder), &root.join(&folder));
    }
    root
}

#[test]
fn every_walk_of_the_samples_ends_where_it_should() {
    let manifest = manifest();
    let mut walked = 0;
    for walk in manifest["walks"].as_array().unwrap() {
        let name = walk["source"].as_str().unwrap();
        if name.contains("modelexpress") || name.contains("then") {
            continue; // tested below
        }
        let scratch = tempfile::tempdir().unwrap();
        let local = scratch.path().join("local");
        let stream = stream(&source(name, scratch.path()), Layout::Numbered);
        if let Some(have) = walk["have"].as_u64() {
            let whole = common::sync::stream(&data().join("slime"), Layout::Numbered);
            pull(&whole, &local, &options(Some(&have.to_string()))).unwrap();
        }
        let pulled = pull(&stream, &local, &options(Some(&walk["want"].to_string())));
        let expect = &walk["expect"];
        match expect["error"].as_str() {
            None => {
                let pulled = pulled.unwrap_or_else(|error| panic!("{walk}: {error}"));
                let steps: Vec<&str> =
                    expect["steps"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
                assert_eq!(pulled.steps, steps, "{walk}");
                let want = walk["want"].as_u64().unwrap();
                let after = match want {
                    0 => expected(&manifest["base"]["tensors"]),
                    want => expected(&versions_of(&manifest, "slime")[want as usize - 1]["tensors_after"]),
                };
                assert_eq!(digests(&local), after, "{walk}");
                assert!(verify(&local, 1).unwrap().differ.is_empty());
            }
            Some(kind) => {
                let error = pulled.unwrap_err();
                assert_eq!(error.kind(), kind_of(kind), "{walk}: {error}");
            }
        }
        walked += 1;
    }
    assert_eq!(walked, 14);
}

#[test]
fn every_version_of_every_stream_is_applied_bit_for_bit() {
    let manifest = manifest();
    for (name, folder, layout) in [
        ("slime", "slime", Layout::Numbered),
        ("modelexpress", "modelexpress/s3/weights/tiny", Layout::Named),
        ("skyrl", "skyrl", Layout::SkyRl),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let local = scratch.path().join("local");
        let stream = stream(&data().join(folder), layout);
        if layout == Layout::Named {
            // Its base is called v0: a checkpoint that another receiver left.
            copy_folder(&data().join("base"), &local);
            std::fs::create_dir(local.join(".weight_sync")).unwrap();
            std::fs::write(local.join(".weight_sync/state.json"), "{\"version\": \"v0\"}").unwrap();
        }
        for version in versions_of(&manifest, name) {
            let wanted =
                version["version"].as_str().map_or_else(|| version["version"].to_string(), str::to_owned);
            if version["tensors_after"].is_null() {
                continue;
            }
            let pulled = pull(&stream, &local, &options(Some(&wanted)))
                .unwrap_or_else(|error| panic!("{name} {wanted}: {error}"));
            assert_eq!(digests(&local), expected(&version["tensors_after"]), "{name} {wanted}");
            let again = pull(&stream, &local, &options(Some(&wanted))).unwrap();
            assert_eq!((again.steps.len(), again.changed.len()), (0, 0), "{name} {wanted}");
            if let Some(tensors) = version["tensors_in_delta"].as_array() {
                let mut names: Vec<&str> = tensors.iter().map(|name| name.as_str().unwrap()).collect();
                names.sort_unstable();
                let mut changed: Vec<&str> = pulled.changed.iter().map(|tensor| &*tensor.name).collect();
                changed.sort_unstable();
                if version["kind"] == "delta" && pulled.from.is_some() {
                    assert_eq!(changed, names, "{name} {wanted}");
                }
            }
        }
    }
    let stream = stream(&data().join("modelexpress/s3/weights/tiny"), Layout::Named);
    let scratch = tempfile::tempdir().unwrap();
    let fresh = PullOptions { base: None, ..options(Some("v5")) };
    let pulled = pull(&stream, scratch.path().join("local"), &fresh).unwrap();
    assert_eq!(pulled.steps, ["full v3", "delta v4", "delta v5"]);
    let error = pull(&stream, scratch.path().join("local"), &options(Some("v6"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn what_is_published_is_what_is_pulled() {
    for (compression, encoding) in FORMS {
        for checksum in ChecksumFormat::ALL {
            let (dir, mut model) = model_in_folder();
            let path = |name: &str| dir.path().join(name);
            let stream = stream(&path("stream"), Layout::Numbered);
            let options =
                PublishOptions { checksum: Some(checksum), ..publish_options(compression, encoding) };
            let mut publisher = publisher(&stream, &path("base"), options);
            let (mut live, mut direct) = (None, None);
            for step in 1..=5 {
                model.step();
                let published = publisher.publish(&model.inputs()).unwrap();
                assert_eq!((published.version.as_str(), published.full), (&*format!("{step:06}"), None));
                assert_eq!(published.changed, 4);
                let pulled = pull_from(&stream, &path("base"), &path("local"), None).unwrap();
                assert_eq!(pulled.version, published.version);
                assert_eq!(
                    digests(&path("local")),
                    model.digests(),
                    "{compression:?} {encoding:?} {checksum}"
                );
                let memory = live.get_or_insert_with(|| Memory::open(&path("base")));
                assert_eq!(memory.pull(&stream, None, true).unwrap().changed.len(), 4);
                assert_eq!(memory.digests(), model.digests());
                let memory = direct.get_or_insert_with(|| Memory::open(&path("base")));
                memory.pull(&stream, None, false).unwrap();
                assert_eq!(memory.digests(), model.digests());
            }
            // Nothing changed: the version exists all the same.
            let published = publisher.publish(&model.inputs()).unwrap();
            assert_eq!((published.version.as_str(), published.changed), ("000006", 0));
            // A late host folds all of them.
            let pulled = pull_from(&stream, &path("base"), &path("late"), None).unwrap();
            assert_eq!(pulled.steps.len(), 7);
            assert_eq!(digests(&path("late")), model.digests());
            assert!(verify(&path("late"), 2).unwrap().differ.is_empty());
            assert!(path("late/config.json").exists());
            let entries = log(&stream).unwrap();
            assert_eq!(entries.len(), 6);
            assert!(entries[0].changed.unwrap().0 > 0 && entries[0].norm.is_some());
        }
    }
}

#[test]
fn large_tensors_change_in_parts() {
    const BLOCK: usize = 256 << 10;
    for (compression, encoding) in FORMS {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut model = Model::new();
        let bytes = (0..(3 << 20) + 12).map(|_| model.next() as u8).collect::<Vec<u8>>();
        model.tensors.push(("large".into(), DType::U8, vec![bytes.len() as u64], bytes));
        model.save(&path("base"));
        let stream = stream(&path("stream"), Layout::Numbered);
        let mut publisher = publisher(&stream, &path("base"), publish_options(compression, encoding));
        let mut memory = Memory::open(&path("base"));
        // Few and scattered; a range over borders of blocks; nothing of most chunks; nearly everything.
        for step in 0..4 {
            let last = model.tensors.len() - 1;
            for at in 0..model.tensors[last].3.len() {
                let changes = match step {
                    0 => model.next().is_multiple_of(300),
                    1 => at % BLOCK < 20 || at % BLOCK > BLOCK - 20,
                    2 => at == 3_000_001 || at == (3 << 20) + 11,
                    _ => !model.next().is_multiple_of(5),
                };
                if changes {
                    model.tensors[last].3[at] ^= 1 + model.next() as u8 % 3;
                }
            }
            publisher.publish(&model.inputs()).unwrap();
            pull_from(&stream, &path("base"), &path("local"), None).unwrap();
            assert!(digests(&path("local")) == model.digests(), "{compression:?} {encoding:?} {step}");
            memory.pull(&stream, None, step % 2 == 0).unwrap();
            assert!(memory.digests() == model.digests(), "{compression:?} {encoding:?} {step}");
        }
        assert!(verify(&path("local"), 2).unwrap().differ.is_empty());
    }
}

#[test]
fn sparse_changes_are_the_changed_elements() {
    let (dir, mut model) = model_in_folder();
    let path = |name: &str| dir.path().join(name);
    let mut memory = Memory::open(&path("base"));
    let stream = stream(&path("stream"), Layout::Numbered);
    let options = publish_options(PayloadCompression::Z4ai, Encoding::Xor);
    let mut publisher = publisher(&stream, &path("base"), options);
    for _ in 0..2 {
        model.step();
        publisher.publish(&model.inputs()).unwrap();
    }
    let mut changes = Vec::new();
    let live: Vec<LiveTensor<'_>> = memory
        .tensors
        .iter_mut()
        .map(|(name, dtype, shape, bytes)| LiveTensor {
            name,
            dtype: *dtype,
            shape: shape.clone().into(),
            bytes,
        })
        .collect();
    let next = memory.target.sparse_changes(&stream, &live, None, |change| {
        changes.push(change);
        Ok(())
    });
    assert_eq!(next.unwrap().version(), "000002");
    drop(live);
    assert_eq!(changes.len(), 4);
    for change in changes {
        let size = change.dtype.size().unwrap();
        let tensor = memory.tensors.iter_mut().find(|tensor| tensor.0 == change.name).unwrap();
        assert!(change.positions.is_sorted() && change.positions.len() * 20 < tensor.3.len());
        for (position, value) in change.positions.iter().zip(change.values.chunks(size)) {
            let at = *position as usize * size;
            assert_ne!(&tensor.3[at..at + size], value);
            tensor.3[at..at + size].copy_from_slice(value);
        }
    }
    assert_eq!(memory.digests(), model.digests());
}

#[test]
fn other_tensors_need_a_full_version_or_z4ai() {
    for (compression, encoding) in FORMS {
        let (dir, mut model) = model_in_folder();
        let path = |name: &str| dir.path().join(name);
        let stream = stream(&path("stream"), Layout::Numbered);
        let options = publish_options(compression, encoding);
        let mut publisher = publisher(&stream, &path("base"), options);
        model.step();
        publisher.publish(&model.inputs()).unwrap();
        pull_from(&stream, &path("base"), &path("local"), None).unwrap();
        model.tensors.retain(|tensor| tensor.0 != "frozen");
        model.tensors.push(("added".into(), DType::F32, vec![50], vec![7; 200]));
        model.tensors[1].2 = vec![97, 101];
        model.tensors[1].3.resize(97 * 101 * 2, 3);
        let published = publisher.publish(&model.inputs()).unwrap();
        let full = compression == PayloadCompression::Zstd;
        assert_eq!(published.full.is_some(), full);
        let options = PullOptions { base: Some(path("base")), durable: false, ..PullOptions::default() };
        if full {
            let error = pull(&stream, path("local"), &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
        let options = PullOptions { allow_structure: true, ..options };
        pull(&stream, path("local"), &options).unwrap();
        assert_eq!(digests(&path("local")), model.digests());
        model.step();
        publisher.publish(&model.inputs()).unwrap();
        for local in ["local", "fresh"] {
            pull(&stream, path(local), &options).unwrap();
            assert_eq!(digests(&path(local)), model.digests(), "{local}");
            assert!(verify(&path(local), 1).unwrap().differ.is_empty());
        }
    }
}

#[test]
fn the_base_is_checked_before_anything_changes() {
    for (compression, encoding) in FORMS {
        let (dir, mut model) = model_in_folder();
        let path = |name: &str| dir.path().join(name);
        let mut other = Model::new();
        // A tensor that no delta changes, and one that each does.
        for (name, index) in [("frozen base", 4), ("other base", 0)] {
            other.tensors[index].3[9] ^= 1;
            other.save(&path(name));
            other.tensors[index].3[9] ^= 1;
        }
        let stream = stream(&path("stream"), Layout::Numbered);
        let options = publish_options(compression, encoding);
        let mut publisher = publisher(&stream, &path("base"), options);
        model.step();
        publisher.publish(&model.inputs()).unwrap();
        for base in ["frozen base", "other base"] {
            let error = pull_from(&stream, &path(base), &path("local"), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{base}: {error}");
            assert_eq!(digests(&path("local")), digests(&path(base)));
            let mut memory = Memory::open(&path(base));
            assert_eq!(memory.pull(&stream, None, true).is_err(), base == "other base");
            if base == "other base" {
                assert_eq!(memory.digests(), digests(&path(base)), "all or nothing");
            }
            std::fs::remove_dir_all(path("local")).unwrap();
        }
        // Changed by another program after it was applied.
        pull_from(&stream, &path("base"), &path("local"), None).unwrap();
        let file = path("local/model.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 4;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(verify(&path("local"), 1).unwrap().differ.len(), 1);
    }
}

#[test]
fn another_run_and_an_older_version_are_refused_or_rebuilt() {
    let (dir, mut model) = model_in_folder();
    let path = |name: &str| dir.path().join(name);
    let mut states = Vec::new();
    let mut runs = Vec::new();
    for run in ["one", "two"] {
        let stream = stream(&path(run), Layout::Numbered);
        let options = publish_options(PayloadCompression::Zstd, Encoding::Xor);
        let mut publisher = publisher(&stream, &path("base"), options);
        for _ in 0..3 {
            model.step();
            publisher.publish(&model.inputs()).unwrap();
            states.push(model.digests());
        }
        runs.push(stream);
    }
    pull_from(&runs[0], &path("base"), &path("local"), None).unwrap();
    for (run, version) in [(0, "1"), (1, "3"), (1, "2"), (0, "2")] {
        let error = pull_from(&runs[run], &path("base"), &path("local"), Some(version)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{run} {version}");
        assert_eq!(digests(&path("local")), states[2]);
    }
    for (run, version) in [(0, 1), (1, 3), (1, 2), (0, 3)] {
        let options = PullOptions {
            base: Some(path("base")),
            restart: true,
            version: Some(version.to_string()),
            ..PullOptions::default()
        };
        pull(&runs[run], path("local"), &options).unwrap();
        assert_eq!(digests(&path("local")), states[run * 3 + version - 1]);
    }
}

#[test]
fn two_publishers_do_not_mix() {
    let (dir, mut model) = model_in_folder();
    let path = |name: &str| dir.path().join(name);
    let stream = stream(&path("stream"), Layout::Numbered);
    let options = publish_options(PayloadCompression::Z4ai, Encoding::Xor);
    let open = || Publisher::new(stream.clone(), &Reader::open(path("base")).unwrap(), options.clone());
    let (mut first, mut second) = (open().unwrap(), open().unwrap());
    model.step();
    first.publish(&model.inputs()).unwrap();
    model.step();
    let error = second.publish(&model.inputs()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert_eq!(open().unwrap_err().kind(), ErrorKind::Mismatch, "the base is not the newest version");
    first.publish(&model.inputs()).unwrap();
    pull_from(&stream, &path("base"), &path("local"), None).unwrap();
    assert_eq!(digests(&path("local")), model.digests());
    // From the state of the newest version a publisher goes on.
    let mut third = publisher(&stream, &path("local"), options.clone());
    assert_eq!((third.version(), third.stream_id()), ("000002", first.stream_id()));
    model.step();
    third.publish(&model.inputs()).unwrap();
    pull_from(&stream, &path("base"), &path("local"), None).unwrap();
    assert_eq!(digests(&path("local")), model.digests());
    // At the same time: one of them publishes, the others say why not.
    let base = Reader::open(path("local")).unwrap();
    let publishers: Vec<_> =
        (0..4).map(|_| Publisher::new(stream.clone(), &base, options.clone()).unwrap()).collect();
    model.step();
    let model = &model;
    let published: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = publishers
            .into_iter()
            .map(|mut publisher| scope.spawn(move || usize::from(publisher.publish(&model.inputs()).is_ok())))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(published, 1);
    pull_from(&stream, &path("base"), &path("local"), None).unwrap();
    assert_eq!(digests(&path("local")), model.digests());
}

#[test]
fn anchors_folds_and_pruning() {
    for (compression, encoding) in FORMS {
        let (dir, mut model) = model_in_folder();
        let path = |name: &str| dir.path().join(name);
        let stream = stream(&path("stream"), Layout::Numbered);
        let options = PublishOptions {
            anchors: Anchors { every: Some(4), ratio: None },
            files_from: Some(path("base")),
            // In memory, and in files.
            snapshot_folder: (encoding == Encoding::Xor).then(|| dir.path().to_owned()),
            ..publish_options(compression, encoding)
        };
        let mut publisher = publisher(&stream, &path("base"), options.clone());
        let mut states = vec![model.digests()];
        for step in 1..=12 {
            model.step();
            let published = publisher.publish(&model.inputs()).unwrap();
            assert_eq!(published.full.is_some(), step % 5 == 0, "{step}");
            states.push(model.digests());
        }
        let newest = status(&stream, None).unwrap();
        assert_eq!(
            (newest.newest.as_deref(), newest.newest_full.as_deref()),
            (Some("000012"), Some("000010"))
        );
        // Folded deltas are taken where they are cheaper.
        pull_from(&stream, &path("base"), &path("v5"), Some("5")).unwrap();
        let base = Reader::open(path("v5")).unwrap();
        let without = fold(&stream, "000005", "000009", None, &options);
        assert_eq!(without.is_ok(), compression == PayloadCompression::Zstd, "{without:?}");
        if without.is_err() {
            fold(&stream, "000005", "000009", Some(&base), &options).unwrap();
        }
        drop(base);
        let pulled = pull_from(&stream, &path("base"), &path("v5"), Some("9")).unwrap();
        assert_eq!(pulled.steps, ["fold 5 to 9"], "{compression:?}");
        assert_eq!(digests(&path("v5")), states[9]);
        assert!(verify(&path("v5"), 1).unwrap().differ.is_empty());
        // Pruning keeps what a new host and the hosts in use need.
        let planned = prune(&stream, 2, &["000008".into()], true).unwrap();
        assert_eq!(prune(&stream, 2, &["000008".into()], false).unwrap(), planned);
        assert!(!planned.is_empty());
        pull_from(&stream, &path("base"), &path("new"), None).unwrap();
        assert_eq!(digests(&path("new")), states[12]);
        pull_from(&stream, &path("base"), &path("v5"), None).unwrap();
        assert_eq!(digests(&path("v5")), states[12]);
        let error = pull_from(&stream, &path("base"), &path("gone"), Some("2")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(prune(&stream, 3, &[], false).unwrap().iter().all(|folder| !folder.contains("000012")));
        model.step();
        publisher.publish(&model.inputs()).unwrap();
        pull_from(&stream, &path("base"), &path("new"), None).unwrap();
        assert_eq!(digests(&path("new")), model.digests());
    }
}

#[test]
fn without_a_full_version_nothing_is_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("stream");
    for version in 1..=3 {
        let folder = format!("weight_v{version:06}");
        copy_folder(&data().join("slime").join(&folder), &root.join(&folder));
    }
    assert!(prune(&stream(&root, Layout::Numbered), 1, &[], false).unwrap().is_empty());
}
