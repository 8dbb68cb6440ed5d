//! Weight streams that are damaged or lie: nothing of a checkpoint or of tensors in memory changes.

mod common;

use common::sync::{
    FORMS, Memory, Model, data, digests, expected, kind_of, manifest, options, publish_options, pull_from,
    stream, versions_of,
};
use ztensor::Reader;
use ztensor::sync::{Layout, Publisher, pull};

#[test]
fn hostile_streams_leave_the_base_untouched() {
    let manifest = manifest();
    let base = expected(&manifest["base"]["tensors"]);
    let cases = manifest["hostile"].as_array().unwrap();
    assert!(cases.len() >= 36);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let local = scratch.path().join("local");
        pull(&stream(&data().join("slime"), Layout::Numbered), &local, &options(Some("0"))).unwrap();
        let hostile = stream(&data().join(case["folder"].as_str().unwrap()), Layout::Numbered);
        let mut memory = Memory::open(&local);
        let live = memory.pull(&hostile, Some("1"), true);
        let folder = pull(&hostile, &local, &options(Some(&case["want"].to_string())));
        match case["expect"]["error"].as_str() {
            None => {
                folder.unwrap();
                live.unwrap();
                let after = expected(&case["expect"]["tensors_after"]);
                assert_eq!(digests(&local), after, "{name}");
                assert_eq!(memory.digests(), after, "{name}");
            }
            Some(kind) => {
                let error = folder.unwrap_err();
                assert_eq!(error.kind(), kind_of(kind), "{name}: {error}");
                assert!(live.is_err(), "{name}");
                assert_eq!(memory.digests(), base, "{name}");
                assert_eq!(digests(&local), base, "{name}");
                let state = std::fs::read_to_string(local.join(".weight_sync/state.json")).unwrap();
                assert_eq!(state, "{\"version\": \"000000\"}", "{name}");
                // A good version still applies.
                let good = stream(&data().join("slime"), Layout::Numbered);
                pull(&good, &local, &options(Some("1"))).unwrap_or_else(|error| panic!("{name}: {error}"));
                let after = expected(&versions_of(&manifest, "slime")[0]["tensors_after"]);
                assert_eq!(digests(&local), after, "{name}");
            }
        }
    }
}

#[test]
fn every_flipped_bit_and_truncation_of_a_version_is_noticed() {
    for (compression, encoding) in FORMS {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut model = Model::new();
        model.tensors.truncate(3);
        model.tensors[0].2 = vec![20, 8];
        model.tensors[0].3.truncate(320);
        model.tensors[1].2 = vec![10];
        model.tensors[1].3.truncate(20);
        model.save(&path("base"));
        let root = path("stream");
        let options = publish_options(compression, encoding);
        let mut publisher =
            Publisher::new(stream(&root, Layout::Numbered), &Reader::open(path("base")).unwrap(), options)
                .unwrap();
        model.step();
        publisher.publish(&model.inputs()).unwrap();
        pull_from(&stream(&root, Layout::Numbered), &path("base"), &path("local"), Some("0")).unwrap();
        let before = digests(&path("local"));
        let (mut refused, mut harmless) = (0, 0);
        for file in ["model-00000-of-00001.safetensors", "model.safetensors.index.json"] {
            let file = root.join("weight_v000001").join(file);
            let good = std::fs::read(&file).unwrap();
            let mut damaged: Vec<Vec<u8>> =
                (0..good.len()).step_by(3).map(|len| good[..len].to_vec()).collect();
            for at in 0..good.len() {
                let mut bytes = good.clone();
                bytes[at] ^= 1 << (at % 8);
                damaged.push(bytes);
            }
            for bytes in damaged {
                std::fs::write(&file, &bytes).unwrap();
                let stream = stream(&root, Layout::Numbered);
                match pull_from(&stream, &path("base"), &path("local"), Some("1")) {
                    Err(_) => {
                        refused += 1;
                        assert_eq!(digests(&path("local")), before);
                    }
                    // Blank padding of the header, or a key that is not read.
                    Ok(_) => {
                        harmless += 1;
                        assert_eq!(digests(&path("local")), model.digests());
                        std::fs::remove_dir_all(path("local")).unwrap();
                        pull_from(&stream, &path("base"), &path("local"), Some("0")).unwrap();
                    }
                }
            }
            std::fs::write(&file, &good).unwrap();
        }
        assert!(refused > 500 && harmless < 10, "{refused} {harmless}");
    }
}
