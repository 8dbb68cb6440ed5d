//! `convert`, `compress`, `decompress` and `migrate` on files of every format.

use crate::support::{FORMATS, Place, fixture};
use ztensor::{Layout, Writer};

#[test]
fn every_format_becomes_a_zt_file_that_is_the_same() {
    for path in FORMATS {
        let place = Place::new();
        let input = fixture(path);
        let input = input.to_str().unwrap();
        for (output, extra) in [("raw.zt", &[][..]), ("small.zt", &["-c", "--checksum", "sha256"][..])] {
            let run =
                place.run(&[&["convert", input, "-o", output, "--threads", "2"], extra].concat()).ends(0);
            assert_eq!(run.out, "", "{path}");
            assert!(run.err.contains(output), "{path}: {}", run.err);
            place.run(&["diff", input, output]).ends(0);
            let verified = place.run(&["verify", output]).ends(0);
            assert!(verified.out.starts_with(&format!("{output}: OK (")), "{}", verified.out);
        }
        place.run(&["compress", input, "-o", "c.zt", "-l", "5", "--quiet"]).ends(0);
        place.run(&["compress", input, "-o", "w.zt", "--codec", "z4ai", "-q"]).ends(0);
        place.run(&["diff", "c.zt", "w.zt"]).ends(0);
        place.run(&["decompress", "c.zt", "-o", "d.zt", "-q"]).ends(0);
        place.run(&["diff", input, "d.zt"]).ends(0);
        assert_eq!(place.list(), ["c.zt", "d.zt", "raw.zt", "small.zt", "w.zt"]);
    }
}

#[test]
fn the_codec_is_chosen_by_name() {
    let place = Place::new();
    place.single("m.zt", "w", &[0.5; 4096]);
    let encodings = |file: &str| -> Vec<String> {
        let reader = ztensor::open(place.path(file)).unwrap();
        let components = reader.objects().flat_map(|(_, object)| &object.components);
        components.map(|(_, component)| component.encoding().to_owned()).collect()
    };
    let runs: [(&[&str], &str); 5] = [
        (&["compress", "m.zt"], "zstd"),
        (&["compress", "m.zt", "--codec", "z4ai"], "z4ai"),
        (&["compress", "m.zt", "--effort", "fast"], "z4ai"),
        (&["convert", "m.zt", "-c", "--codec", "z4ai", "--effort", "default"], "z4ai"),
        (&["convert", "m.zt", "--codec", "zstd", "-l", "9"], "zstd"),
    ];
    for (args, expected) in runs {
        place.run(&[args, &["-o", "out.zt", "--force", "--checksum", "crc32c"]].concat()).ends(0);
        assert!(encodings("out.zt").iter().any(|encoding| encoding == expected), "{args:?}");
        place.run(&["diff", "m.zt", "out.zt"]).ends(0);
        place.run(&["verify", "out.zt"]).ends(0);
    }
    let before = place.list();
    place
        .run(&["compress", "m.zt", "-o", "x.zt", "--codec", "zstd", "--effort", "fast"])
        .fails(2, &["--effort"]);
    place.run(&["compress", "m.zt", "-o", "x.zt", "--codec", "z4ai", "-l", "3"]).fails(2, &["--level"]);
    place.run(&["compress", "m.zt", "-o", "x.zt", "--effort", "huge"]).ends(2);
    place.run(&["convert", "m.zt", "-o", "x.npz", "--codec", "z4ai"]).fails(2, &[".npz"]);
    assert_eq!(place.list(), before);
}

#[test]
fn the_extension_says_the_format() {
    let place = Place::new();
    place.model("m.zt");
    for output in ["m.safetensors", "m.gguf", "m.npz", "UPPER.NPZ", "m.zstn"] {
        place.run(&["convert", "m.zt", "-o", output, "--drop-metadata"]).ends(0);
        place.run(&["diff", "m.zt", output]).ends(0);
    }
    // A packed file is what packing the other one gives, and can be converted like any file.
    place.z4ai(&["pack", "m.safetensors", "-o", "packed.zstn"]).ends(0);
    assert!(
        std::fs::read(place.path("m.zstn")).unwrap() == std::fs::read(place.path("packed.zstn")).unwrap()
    );
    for (output, extra) in
        [("again.zt", &["--codec", "z4ai"][..]), ("again.safetensors", &[]), ("again.npz", &[])]
    {
        place.run(&[&["convert", "m.zstn", "-o", output, "--drop-metadata"], extra].concat()).ends(0);
        place.run(&["diff", "m.zt", output]).ends(0);
    }
    for effort in ["fast", "default", "balanced", "max"] {
        let args = ["convert", "m.zt", "-o", "e.zstn", "--effort", effort, "--drop-metadata", "--force"];
        place.run(&args).ends(0);
        place.run(&["diff", "m.zt", "e.zstn"]).ends(0);
    }
    place.run(&["convert", "m.zt", "-o", "c.npz", "-l", "9", "--drop-metadata"]).ends(0);
    place.run(&["diff", "m.zt", "c.npz"]).ends(0);
    place.run(&["convert", "m.zt", "-o", "norm.npy", "--only", "norm", "--drop-metadata"]).ends(0);
    let before = place.list();
    place.run(&["convert", "m.zt", "-o", "m.pt"]).fails(2, &["m.pt", ".zt, .safetensors, .gguf, .npz"]);
    place.run(&["convert", "m.zt", "-o", "x.npz", "-l", "10"]).fails(2, &["1 to 9"]);
    place.run(&["convert", "m.zt", "-o", "x.safetensors", "-c"]).fails(2, &["cannot be compressed"]);
    place.run(&["convert", "m.zt", "-o", "x.gguf", "--checksum", "crc32c"]).fails(2, &["--checksum"]);
    place.run(&["convert", "m.zt", "-o", "x.zstn", "--codec", "zstd"]).fails(2, &["z4ai"]);
    place.run(&["compress", "m.zt", "-o", "x.npz"]).fails(2, &["ztensor convert"]);
    assert_eq!(place.list(), before);
}

#[test]
fn what_the_target_cannot_hold_is_refused_by_name() {
    let place = Place::new();
    let sparse = fixture("zt/sparse.zt");
    let sparse = sparse.to_str().unwrap();
    let name = ztensor::open(sparse).unwrap().keys().next().unwrap().to_owned();
    for output in ["s.safetensors", "s.npz", "s.gguf", "s.zstn"] {
        place.run(&["convert", sparse, "-o", output]).fails(3, &[&name, "sparse"]);
    }
    place.model("m.zt");
    place.run(&["convert", "m.zt", "-o", "m.npz"]).fails(3, &["license", "--drop-metadata"]);
    assert_eq!(place.list(), ["m.zt"]);
}

/// Metadata that the target has no type for is written as JSON text, and that is said.
#[test]
fn metadata_becomes_text_where_the_target_holds_text_only() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("m.zt")).unwrap();
    writer.add("w", &[1], &[1f32]).unwrap();
    writer.set_attribute("step", 7i64);
    writer.set_attribute("langs", vec![ztensor::Value::from("en"), ztensor::Value::from("de")]);
    writer.set_attribute("note", "text");
    writer.finish().unwrap();
    let run = place.run(&["convert", "m.zt", "m.safetensors"]).ends(0);
    assert!(run.err.contains("metadata written as JSON text: step, langs"), "{}", run.err);
    let metadata = place.run(&["info", "m.safetensors", "--json"]).ends(0).json()["metadata"].clone();
    assert_eq!(metadata, serde_json::json!({"step": "7", "langs": "[\"en\",\"de\"]", "note": "text"}));
    let run = place.run(&["convert", "m.zt", "d.safetensors", "--drop-metadata"]).ends(0);
    assert!(run.err.contains("dropped metadata: step, langs"), "{}", run.err);
    place.run(&["convert", "m.zt", "m.npz"]).fails(3, &["step, langs, note", "--drop-metadata"]);
}

#[test]
fn types_and_names_change_on_the_way() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("m.zt")).unwrap();
    writer.add("model.layers.0.w", &[2], &[1.5f32, 1e10]).unwrap();
    writer.add("model.layers.1.w", &[2], &[0.1f32, f32::INFINITY]).unwrap();
    writer.add("step", &[1], &[3i64]).unwrap();
    writer.finish().unwrap();
    for output in ["o.zt", "o.safetensors"] {
        let args = ["convert", "m.zt", output, "--dtype", "f16", "--strip-prefix", "model."];
        let run = place.run(&[&args[..], &["--rename", "layers.*.w=blocks.*.weight"]].concat()).ends(0);
        assert!(run.err.contains("1 value too large"), "{}", run.err);
        let reader = ztensor::open(place.path(output)).unwrap();
        let mut names: Vec<_> = reader.keys().collect();
        names.sort_unstable();
        assert_eq!(names, ["blocks.0.weight", "blocks.1.weight", "step"]);
        assert_eq!(reader.read("blocks.0.weight").unwrap(), [0x00, 0x3e, 0x00, 0x7c]);
        assert_eq!(reader.read_as::<i64>("step").unwrap(), [3]);
    }
    place.run(&["convert", "m.zt", "x.zt", "--strip-prefix", "nothing."]).fails(2, &["--strip-prefix"]);
    place.run(&["convert", "m.zt", "x.zt", "--rename", "step=model.layers.0.w"]).fails(2, &["both be named"]);
    place.run(&["convert", "m.zt", "x.zt", "--dtype", "i8"]).ends(2);
    place.run(&["convert", "m.zt"]).fails(2, &["no output"]);
}

#[test]
fn shards_have_an_index_and_open_as_one() {
    let place = Place::new();
    place.model("m.zt");
    for output in ["s.safetensors", "s.zt"] {
        let run = place.run(&["convert", "m.zt", output, "--max-shard-size", "200B"]).ends(0);
        assert!(run.err.contains("2 shards"), "{}", run.err);
        let index = format!("{output}.index.json");
        assert!(place.list().contains(&index) && !place.list().contains(&output.to_owned()));
        place.run(&["diff", "m.zt", &index]).ends(0);
    }
    place
        .run(&["convert", "m.zt", "s.safetensors", "--max-shard-size", "200B"])
        .fails(2, &["exists already"]);
    place.run(&["convert", "m.zt", "one.safetensors", "--max-shard-size", "5 GB"]).ends(0);
    assert!(place.list().contains(&"one.safetensors".to_owned()));
    place.run(&["convert", "m.zt", "x.zt", "--max-shard-size", "5 apples"]).ends(2);
}

#[test]
fn quantized_tensors_are_dequantized_only_on_request() {
    let place = Place::new();
    let types = fixture("gguf/types.gguf");
    let types = types.to_str().unwrap();
    place
        .run(&["convert", types, "-o", "t.safetensors", "--drop-metadata"])
        .fails(3, &["gguf.", "--dequantize"]);
    let reader = ztensor::open(types).unwrap();
    let is_block = |layout: &Layout| matches!(layout, Layout::Other(name) if name.starts_with("gguf."));
    let known: Vec<&str> = reader
        .objects()
        .filter(|(name, object)| {
            is_block(&object.layout) && reader.read_object(name).unwrap().dequantize().is_ok()
        })
        .map(|(name, _)| name)
        .collect();
    assert!(known.len() > 10, "{known:?}");
    let only: Vec<&str> = known.iter().flat_map(|name| ["--only", *name]).collect();
    for output in ["t.zt", "t.safetensors"] {
        let args = [&["convert", types, "-o", output, "--dequantize", "--drop-metadata"], &only[..]].concat();
        place.run(&args).ends(0);
        let written = ztensor::open(place.path(output)).unwrap();
        for name in &known {
            let expected = reader.read_object(name).unwrap().dequantize().unwrap().data;
            let got = written.read_as::<f32>(name).unwrap();
            assert!(expected.iter().map(|n| n.to_bits()).eq(got.iter().map(|n| n.to_bits())), "{name}");
        }
    }
    place.run(&["convert", types, "-o", "same.gguf"]).ends(0);
    place.run(&["diff", types, "same.gguf"]).ends(0);
}

#[test]
fn quantized_groups_that_are_unclear_are_refused_not_passed_on() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("q.zt")).unwrap();
    let parts = [
        ("packed_weight", ztensor::Array::from_slice(&[1i32, 2])),
        ("scales", ztensor::Array::from_slice(&[1f32])),
        ("zeros", ztensor::Array::from_slice(&[0i32])),
    ];
    let parts = parts.into_iter().map(|(role, array)| (role.into(), array));
    let tensor = ztensor::Tensor::new(&[4u64, 4][..], Layout::QuantizedGroup, parts, None).unwrap();
    writer.write_object("q", &tensor).unwrap();
    writer.finish().unwrap();
    place.run(&["convert", "q.zt", "-o", "d.zt", "--dequantize"]).fails(3, &["\"q\"", "bits"]);
    place.run(&["convert", "q.zt", "-o", "copy.zt"]).ends(0);
    place.run(&["diff", "q.zt", "copy.zt"]).ends(0);
}

#[test]
fn several_files_become_one() {
    let place = Place::new();
    place.single("a.zt", "a", &[1.0, 2.0]);
    place.single("b.zt", "b", &[3.0]);
    place.run(&["convert", "a.zt", "b.zt", "-o", "ab.safetensors"]).ends(0);
    let reader = ztensor::open(place.path("ab.safetensors")).unwrap();
    assert_eq!(reader.read_as::<f32>("a").unwrap(), [1.0, 2.0]);
    assert_eq!(reader.read_as::<f32>("b").unwrap(), [3.0]);
    // A pattern has to match in one of them only.
    place.run(&["convert", "a.zt", "b.zt", "-o", "only.zt", "--only", "b"]).ends(0);
    place.run(&["diff", "b.zt", "only.zt"]).ends(0);
    place.run(&["convert", "a.zt", "b.zt", "-o", "x.zt", "--only", "c*"]).fails(2, &["c*"]);
    place.run(&["convert", "a.zt", "ab.safetensors", "-o", "x.zt"]).fails(2, &["\"a\"", "both"]);
    place.model("m.zt");
    let mut writer = Writer::create(place.path("other.zt")).unwrap();
    writer.set_attribute("license", "other");
    writer.finish().unwrap();
    place.run(&["convert", "m.zt", "other.zt", "-o", "x.zt"]).fails(2, &["license", "--metadata"]);
    assert!(!place.path("x.zt").exists());
    for (choice, license) in [("first", "mit"), ("last", "other")] {
        place.run(&["convert", "m.zt", "other.zt", "-o", "x.zt", "--force", "--metadata", choice]).ends(0);
        let reader = ztensor::open(place.path("x.zt")).unwrap();
        assert_eq!(reader.attributes()["license"].as_text(), Some(license));
    }
}

#[test]
fn originals_are_deleted_only_after_everything_was_copied() {
    let place = Place::new();
    place.model("m.zt");
    place.run(&["convert", "m.zt", "-o", "n.zt", "--delete-original", "--only", "norm"]).ends(2);
    place.run(&["convert", "m.zt", "-o", "m.npz", "--delete-original"]).ends(3);
    assert_eq!(place.list(), ["m.zt"]);
    place.run(&["convert", "m.zt", "-o", "n.zt", "-c", "--delete-original"]).ends(0);
    assert_eq!(place.list(), ["n.zt"]);
    std::fs::create_dir(place.path("shards")).unwrap();
    place.model("shards/m.zt");
    place.run(&["convert", "shards", "-o", "x.zt", "--delete-original"]).ends(2);
    assert_eq!(place.list(), ["n.zt", "shards"]);
}

#[test]
fn old_files_are_migrated() {
    let place = Place::new();
    let old = place.fixture("zt/legacy_v01.zt");
    place.run(&["migrate", &old, "-o", "new.zt"]).ends(0);
    place.run(&["diff", &old, "new.zt"]).ends(0);
    let start = std::fs::read(place.path("new.zt")).unwrap()[..8].to_vec();
    assert_eq!(start, std::fs::read(fixture("zt/zstd3.zt")).unwrap()[..8]);
    let other = fixture("npz/shapes.npz");
    place.run(&["migrate", other.to_str().unwrap(), "-o", "x.zt"]).fails(2, &["ztensor convert"]);
}

#[test]
fn nothing_is_left_of_a_failed_command_and_nothing_is_overwritten() {
    let place = Place::new();
    place.model("m.zt");
    std::fs::write(place.path("taken.zt"), "mine").unwrap();
    std::fs::write(place.path("bad.zt"), "not a tensor file at all").unwrap();
    let damaged = {
        let mut bytes = std::fs::read(fixture("zt/zstd_crc32c.zt")).unwrap();
        bytes[70] ^= 1;
        bytes
    };
    std::fs::write(place.path("damaged.zt"), damaged).unwrap();
    let before = place.list();
    for command in ["convert", "compress", "decompress", "migrate"] {
        place.run(&[command, "m.zt", "-o", "taken.zt"]).fails(2, &["taken.zt", "--force"]);
        place.run(&[command, "m.zt", "-o", "m.zt"]).fails(2, &["input"]);
        place.run(&[command, "m.zt", "-o", "m.zt", "--force"]).fails(2, &["input"]);
        place.run(&[command, "bad.zt", "-o", "x.zt"]).fails(3, &["bad.zt"]);
        place.run(&[command, "damaged.zt", "-o", "x.zt"]).fails(3, &["damaged.zt"]);
        place.run(&[command, "absent.zt", "-o", "x.zt"]).fails(4, &["absent.zt"]);
        place.run(&[command, "m.zt", "-o", "absent/x.zt"]).fails(4, &["absent"]);
        place.run(&[command, "m.zt"]).ends(2);
    }
    assert_eq!(place.list(), before);
    assert_eq!(std::fs::read(place.path("taken.zt")).unwrap(), b"mine");
    place.run(&["convert", "m.zt", "-o", "taken.zt", "--force"]).ends(0);
    place.run(&["diff", "m.zt", "taken.zt"]).ends(0);
}
