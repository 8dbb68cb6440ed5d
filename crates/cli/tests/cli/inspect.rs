//! `info`, `verify`, `diff` and `show`.

use serde_json::Value;

use crate::support::{FORMATS, Place, fixture};
use ztensor::{Compression, Writer};

#[test]
fn info_prints_a_table() {
    let place = Place::new();
    place.model("m.zt");
    let out = place.run(&["info", "m.zt"]).ends(0).out;
    let lines: Vec<String> = out.lines().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(
        lines,
        [
            "name                  shape       dtype   size  encoding",
            "layers.{0..2}.weight  3 × [4, 6]  f32    288 B  raw",
            "norm                  [4]         i64     30 B  zstd",
            "",
            "f32          3 tensors, 72 elements, 288 B",
            "i64          1 tensor, 4 elements, 30 B",
            "total        4 tensors, 72 params, 320 B (318 B in the file)",
            "format       zt, crc32c checksums on 1 of 4 tensors",
            "",
            "metadata",
            "  license = mit",
        ]
    );
}

#[test]
fn info_and_verify_take_several_files_patterns_and_pipes() {
    let place = Place::new();
    place.model("a.zt");
    place.single("b.zt", "w", &[1.0]);
    let both = place.run(&["info", "a.zt", "b.zt"]).ends(0).out;
    assert!(both.starts_with("a.zt:\n") && both.contains("\nb.zt:\n"), "{both}");
    assert!(both.ends_with("2 files: 5 tensors, 73 params, 324 B (322 B in the file)\n"), "{both}");
    assert_eq!(place.run(&["info", "*.zt"]).ends(0).out, both);
    place.run(&["info", "*.gguf"]).fails(2, &["no file matches"]);
    let list = place.run(&["info", "*.zt", "--json"]).ends(0).json();
    assert_eq!((&list[0]["file"], &list[1]["totals"]["tensors"]), (&"a.zt".into(), &1.into()));
    let csv = place.run(&["info", "b.zt", "a.zt", "--csv"]).ends(0).out;
    assert!(csv.starts_with("file,name,shape,") && csv.contains("\nb.zt,w,1,f32,"), "{csv}");
    let bytes = std::fs::read(place.path("a.zt")).unwrap();
    let piped = place.command(&["info", "-", "--json"]).write_stdin(bytes).output().unwrap();
    let document: Value = serde_json::from_slice(&piped.stdout).unwrap();
    assert_eq!((&document["file"], &document["totals"]["tensors"]), (&"-".into(), &4.into()));
    // A file that cannot be read does not keep the others from being read.
    std::fs::write(place.path("bad.zt"), [0; 100]).unwrap();
    let run = place.run(&["verify", "a.zt", "bad.zt", "b.zt"]).ends(3);
    assert_eq!(run.out.lines().count(), 2, "{}", run.out);
    assert!(run.out.contains("b.zt: OK (1 tensor, structure only: stored without checksums"), "{}", run.out);
    assert!(run.err.contains("bad.zt"), "{}", run.err);
}

#[test]
fn info_fits_the_terminal() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("long.zt")).unwrap();
    writer
        .add("a.very.long.name.of.a.tensor.in.some.model.with.many.parts.weight", &[2, 3], &[0f32; 6])
        .unwrap();
    writer.set_attribute("text", "x".repeat(90));
    writer.finish().unwrap();
    let output = place.command(&["info", "long.zt"]).env("COLUMNS", "60").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    assert!(text.contains("…") && text.contains("parts.weight"), "{text}");
}

#[test]
fn info_sorts_and_filters() {
    let place = Place::new();
    place.model("m.zt");
    let names = |args: &[&str]| -> Vec<String> {
        let run = place.run(&[&["info", "m.zt", "--csv"], args].concat()).ends(0);
        run.out.lines().skip(1).map(|line| line.split(',').next().unwrap().to_owned()).collect()
    };
    let layers = ["layers.0.weight", "layers.1.weight", "layers.2.weight"];
    assert_eq!(names(&["--only", "layers.*"]), layers);
    assert_eq!(names(&["--exclude", "layers.*"]), ["norm"]);
    assert_eq!(names(&["--sort", "name", "--exclude", "*.1.*"]), [layers[0], layers[2], "norm"]);
    assert_eq!(names(&["--sort", "size"])[3], "norm");
    assert!(place.run(&["info", "m.zt", "--all"]).ends(0).out.contains("layers.1.weight"));
    place.run(&["info", "m.zt", "--only", "x"]).fails(2, &["x", "ztensor info"]);
    place.run(&["info", "m.zt", "--json", "--csv"]).ends(2);
}

#[test]
fn info_as_csv_quotes_names() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("n.zt")).unwrap();
    writer.add("a,\"b\"", &[2, 3], &[0u8; 6]).unwrap();
    writer.add("scalar", &[], &[0f64]).unwrap();
    writer.finish().unwrap();
    let out = place.run(&["info", "n.zt", "--csv"]).ends(0).out;
    let expected = "name,shape,dtype,layout,bytes,stored_bytes,encoding\n\
                    \"a,\"\"b\"\"\",2x3,u8,dense,6,6,raw\nscalar,,f64,dense,8,8,raw\n";
    assert_eq!(out, expected);
}

/// What `info --json` promises, for every format.
fn check_schema(document: &Value) {
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("a count, not {value}"));
    let total = |value: &Value| {
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["bytes", "elements", "parameters", "stored_bytes", "tensors"]);
        assert!(value.as_object().unwrap().values().all(Value::is_u64));
    };
    let mut keys: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let promised = [
        "by_dtype",
        "dead_bytes",
        "file",
        "format",
        "limited_by_journal",
        "metadata",
        "quantized",
        "tensors",
        "totals",
    ];
    assert_eq!(keys, promised);
    assert!(document["limited_by_journal"].is_boolean());
    assert!(document["file"].is_string() && document["format"].is_string());
    assert!(document["dead_bytes"].is_null() || document["dead_bytes"].is_u64());
    assert!(document["metadata"].is_object());
    total(&document["totals"]);
    document["by_dtype"].as_object().unwrap().values().for_each(total);
    let tensors = document["tensors"].as_array().unwrap();
    assert_eq!(count(&document["totals"]["tensors"]), tensors.len() as u64);
    for tensor in tensors {
        assert!(tensor["name"].is_string() && tensor["layout"].is_string(), "{tensor}");
        assert!(tensor["dtype"].is_string() || tensor["dtype"].is_null(), "{tensor}");
        assert!(tensor["attributes"].is_object(), "{tensor}");
        assert!(tensor["shape"].as_array().unwrap().iter().all(Value::is_u64), "{tensor}");
        count(&tensor["bytes"]);
        for (_, component) in tensor["components"].as_object().unwrap() {
            assert!(component["dtype"].is_string() && component["encoding"].is_string(), "{tensor}");
            assert!(component["type"].is_string() || component["type"].is_null(), "{tensor}");
            assert!(component["digest"].is_string() || component["digest"].is_null(), "{tensor}");
            count(&component["bytes"]);
            count(&component["stored_bytes"]);
        }
    }
}

#[test]
fn every_format_is_described_and_verified() {
    for path in FORMATS {
        let place = Place::new();
        let file = fixture(path);
        let file = file.to_str().unwrap();
        let reader = ztensor::open(file).unwrap();
        let document = place.run(&["info", file, "--json"]).ends(0).json();
        check_schema(&document);
        assert_eq!(document["format"], reader.format().name(), "{path}");
        assert_eq!(document["tensors"].as_array().unwrap().len(), reader.len(), "{path}");
        let csv = place.run(&["info", file, "--csv"]).ends(0).out;
        assert!(csv.lines().count() > reader.len(), "{path}");
        for args in [&["info", file][..], &["info", file, "--all"], &["verify", file, "--values"]] {
            assert!(!place.run(args).ends(0).out.is_empty(), "{path}");
        }
        place.run(&["diff", file, file]).ends(0);
        for name in reader.keys() {
            assert!(place.run(&["show", file, name]).ends(0).out.lines().count() > 1, "{path} {name}");
        }
        assert!(place.list().is_empty());
    }
}

#[test]
fn folders_and_indexes_are_one_file() {
    let place = Place::new();
    std::fs::create_dir(place.path("model")).unwrap();
    for (shard, name) in [("1", "a"), ("2", "b")] {
        place.single("x.zt", name, &[1.0]);
        let output = format!("model/model-0000{shard}-of-00002.safetensors");
        place.run(&["convert", "x.zt", "-o", &output]).ends(0);
        std::fs::remove_file(place.path("x.zt")).unwrap();
    }
    let index = r#"{"metadata": {}, "weight_map": {
        "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    std::fs::write(place.path("model/model.safetensors.index.json"), index).unwrap();
    for input in ["model", "model/model.safetensors.index.json"] {
        assert_eq!(place.run(&["info", input, "--json"]).ends(0).json()["totals"]["tensors"], 2);
    }
    place.run(&["convert", "model", "-o", "whole.zt"]).ends(0);
    place.run(&["diff", "model", "whole.zt"]).ends(0);
}

#[test]
fn text_of_strangers_does_not_reach_the_terminal_as_it_is() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("n.zt")).unwrap();
    writer.add("red\u{1b}[31m", &[1], &[f32::NAN]).unwrap();
    let parts = [("blocks\u{7}".into(), ztensor::Array::from_slice(&[f32::NAN]))];
    let layout = ztensor::Layout::from_name("evil.\u{1b}[31m");
    let tensor = ztensor::Tensor::new(&[1u64][..], layout, parts, None).unwrap();
    writer.write_object("evil", &tensor).unwrap();
    writer.set_attribute("k\u{7}", "v\u{1b}]0;title\u{7}");
    writer.finish().unwrap();
    place.single("o.zt", "o", &[1.0]);
    let mut writer = Writer::create(place.path("n2.zt")).unwrap();
    writer.add("red\u{1b}[31m", &[1], &[1f32]).unwrap();
    writer.add("evil", &[1], &[1u8]).unwrap();
    writer.finish().unwrap();
    let name = "red\u{1b}[31m";
    for args in [
        &["info", "n.zt"][..],
        &["show", "n.zt", name],
        &["info", "n.zt", "--all"],
        &["verify", "n.zt", "--values"],
        &["diff", "n.zt", "o.zt"],
        &["diff", "n.zt", "n2.zt"],
    ] {
        // Colour is forced, so that nothing but the program itself can strip escapes.
        let output = place.command(args).env("CLICOLOR_FORCE", "1").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("red\\u{1b}[31m"), "{text}");
        assert!(!text.contains("\u{1b}[31m") && !text.contains('\u{7}'), "{text}");
    }
}

#[test]
fn damage_is_found() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("d.zt")).unwrap();
    let checked = writer.add_with("first", &[4], &[1f32, f32::NAN, f32::INFINITY, f32::INFINITY]);
    checked.checksum(ztensor::Checksum::Crc32c).write().unwrap();
    writer.add("second", &[1], &[1f32]).unwrap();
    writer.finish().unwrap();
    let fine = place.run(&["verify", "d.zt", "--values"]).ends(0).out;
    assert_eq!(fine, "first: 1 NaN\nfirst: 2 Inf\nd.zt: OK (2 tensors, 1 with checksums, which match)\n");
    let mut bytes = std::fs::read(place.path("d.zt")).unwrap();
    bytes[64] ^= 1;
    std::fs::write(place.path("d.zt"), bytes).unwrap();
    let run = place.run(&["verify", "d.zt"]);
    assert!(run.out.contains("first"), "{}", run.out);
    run.fails(1, &["1 of 2 tensors is damaged"]);
    std::fs::write(place.path("bad.zt"), [0; 100]).unwrap();
    for command in ["info", "verify"] {
        place.run(&[command, "bad.zt"]).fails(3, &["bad.zt"]);
        place.run(&[command, "absent.zt"]).fails(4, &["absent.zt"]);
    }
    place.run(&["show", "bad.zt", "x"]).fails(3, &["bad.zt"]);
    place.run(&["diff", "d.zt", "bad.zt"]).fails(3, &["bad.zt"]);
    place.run(&["diff", "d.zt", "absent.zt"]).fails(4, &["absent.zt"]);
}

#[test]
fn differences_are_told() {
    let place = Place::new();
    for (file, changed, only) in
        [("a.zt", [1f32, 2.0, 3.0, 4.0], "left"), ("b.zt", [1.0, 2.0, 3.5, 3.0], "right")]
    {
        let mut writer = Writer::create(place.path(file)).unwrap();
        writer.add("same", &[2], &[1u8, 2]).unwrap();
        writer.add("changed", &[4], &changed).unwrap();
        writer
            .add(
                "kind",
                &[if file == "a.zt" { 2 } else { 1 }, 1],
                &changed[..if file == "a.zt" { 2 } else { 1 }],
            )
            .unwrap();
        writer.add(only, &[1], &[0u8]).unwrap();
        writer.finish().unwrap();
    }
    let run = place.run(&["diff", "a.zt", "b.zt"]).ends(1);
    assert_eq!(
        run.out,
        "a: a.zt\nb: b.zt\n\n\
         changed  values  max abs  mean abs  relative    cosine\n\
         changed  50.0 %        1     0.375     0.204  0.979958\n\n\
         other shape or type\nkind  [2, 1] f32 → [1, 1] f32\n\n\
         only in a\nleft  [1]\n\nonly in b\nright  [1]\n\n\
         5 tensors: 1 identical, 2 changed, 1 only in a, 1 only in b\n"
    );
    let stat = place.run(&["diff", "a.zt", "b.zt", "--stat"]).ends(1).out;
    assert_eq!(stat.lines().count(), 4, "{stat}");
    assert!(stat.contains("changed tensors: 50.0 % of values, max abs 1,"), "{stat}");
    let close = place.run(&["diff", "a.zt", "b.zt", "--only", "changed", "--tolerance", "0.2"]).ends(0).out;
    assert!(
        close.ends_with("1 tensor: 1 within tolerance, 0 changed, 0 only in a, 0 only in b\n"),
        "{close}"
    );
    place.run(&["diff", "a.zt", "b.zt", "--only", "changed", "--tolerance", "0.1"]).ends(1);
    place.run(&["diff", "a.zt", "b.zt", "--tolerance", "-1"]).ends(2);
    let document = place.run(&["diff", "a.zt", "b.zt", "--json"]).ends(1).json();
    assert_eq!(document["same"], serde_json::json!(["same"]));
    assert_eq!(document["changed"][0]["max_abs"], 1.0);
    assert_eq!(document["changed"][0]["fraction_changed"], 0.5);
    assert_eq!((&document["only_in_a"][0], &document["only_in_b"][0]), (&"left".into(), &"right".into()));
    place.run(&["diff", "a.zt", "b.zt", "--only", "same"]).ends(0);
    place.run(&["diff", "a.zt", "b.zt", "--only", "left"]).ends(1);
    place.run(&["diff", "a.zt", "b.zt", "--only", "nowhere"]).fails(2, &["nowhere"]);
}

#[test]
fn differences_are_folded_and_sorted() {
    let place = Place::new();
    for (file, step) in [("a.zt", 0.0), ("b.zt", 0.001f32)] {
        let mut writer = Writer::create(place.path(file)).unwrap();
        for layer in 0..3 {
            writer.add(&format!("layers.{layer}.w"), &[2], &[1.0 + step, 2.0]).unwrap();
        }
        writer.add("head", &[2], &[1.0 + 100.0 * step, 2.0]).unwrap();
        writer.finish().unwrap();
    }
    let out = place.run(&["diff", "a.zt", "b.zt"]).ends(1).out;
    let rows: Vec<&str> = out.lines().skip(4).take(2).collect();
    assert!(rows[0].starts_with("head") && rows[1].starts_with("layers.{0..2}.w        3 "), "{out}");
    let all = place.run(&["diff", "a.zt", "b.zt", "--all"]).ends(1).out;
    assert!(all.contains("layers.1.w"), "{all}");
}

#[test]
fn numbers_that_round_to_the_same_still_differ() {
    let place = Place::new();
    for (file, number) in [("a.zt", 1i64 << 60), ("b.zt", (1 << 60) + 1)] {
        let mut writer = Writer::create(place.path(file)).unwrap();
        writer.add("n", &[2], &[number, 0]).unwrap();
        writer.finish().unwrap();
    }
    place.run(&["diff", "a.zt", "b.zt"]).ends(1);
}

#[test]
fn show_prints_values_and_statistics() {
    let place = Place::new();
    place.model("m.zt");
    let out = place.run(&["show", "m.zt", "layers.1.weight", "--slice", "1:3,-2:"]).ends(0).out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "layers.1.weight: [4, 6] f32",
            "           11           12",
            "           17           18",
            "",
            "4 values, 0 zero, 0 NaN, 0 Inf",
        ]
    );
    assert_eq!(lines[5], "min 11  max 18  mean 14.5  std 3.04138");
    assert!(lines[6].starts_with("11 █") && lines[6].ends_with("█ 18"), "{}", lines[6]);
    let whole = place.run(&["show", "m.zt", "layers.0.weight"]).ends(0).out;
    assert!(whole.contains("24 values, 1 zero"), "{whole}");
    assert!(place.run(&["show", "m.zt", "norm", "--slice", "1"]).ends(0).out.contains("           -2\n"));
    assert!(place.run(&["show", "m.zt", "norm", "--slice", "2:2"]).ends(0).out.contains("(empty)"));
    for (slice, word) in
        [("0,0", "2 dimensions"), ("9", "outside"), ("a", "not a number"), ("0:9", "outside")]
    {
        place.run(&["show", "m.zt", "norm", "--slice", slice]).fails(2, &["--slice", word]);
    }
    for slice in ["0,0", "9"] {
        assert_eq!(place.run(&["show", "m.zt", "norm", "--slice", slice]).ends(2).out, "");
    }
    place.run(&["show", "m.zt", "absent"]).fails(2, &["absent"]);
    place.run(&["show", "m.zt", "layers.1.wieght"]).fails(2, &["did you mean \"layers.1.weight\"?"]);
    assert_eq!(
        place.run(&["show", "m.zt"]).ends(0).out,
        "layers.0.weight\nlayers.1.weight\nlayers.2.weight\nnorm\n"
    );
}

/// Quantized tensors are shown by their values, not by the bytes of their blocks.
#[test]
fn show_dequantizes_blocks() {
    let place = Place::new();
    let file = fixture("gguf/types.gguf");
    let reader = ztensor::open(&file).unwrap();
    let file = file.to_str().unwrap();
    let mut shown = 0;
    for (name, object) in reader.objects().filter(|(_, object)| object.layout.name() == "gguf.q8_0") {
        let dense = reader.read_object(name).unwrap().dequantize().unwrap();
        let out = place.run(&["show", file, name]).ends(0).out;
        let (least, most) = dense.data.iter().fold((f32::MAX, f32::MIN), |(a, b), &n| (a.min(n), b.max(n)));
        assert!(out.starts_with(&format!("{name}: ")) && out.contains(" q8_0\n"), "{out}");
        let words: Vec<&str> = out.split_whitespace().collect();
        let after =
            |word: &str| words[words.iter().position(|w| *w == word).unwrap() + 1].parse::<f32>().unwrap();
        for (word, exact) in [("min", least), ("max", most)] {
            assert!((after(word) - exact).abs() <= exact.abs() * 1e-5 + 1e-9, "{word} {exact}: {out}");
        }
        let zeros = vec!["0"; object.shape.len()].join(",");
        assert!(
            place.run(&["show", file, name, "--slice", &zeros]).ends(0).out.contains("1 value,"),
            "{name}"
        );
        shown += 1;
    }
    assert!(shown > 0);
}

#[test]
fn show_separates_matrices_and_knows_complex_numbers() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("c.zt")).unwrap();
    writer.add("cube", &[2, 2, 1], &[1u8, 2, 3, 4]).unwrap();
    let bytes: Vec<u8> = [1f32, -2.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    let complex = ztensor::Tensor::from_bytes(&[1u64][..], ztensor::DType::C64, &bytes).unwrap();
    writer.write_object("complex", &complex).unwrap();
    writer.add("scalar", &[], &[2.5f64]).unwrap();
    writer.finish().unwrap();
    let cube = place.run(&["show", "c.zt", "cube", "--slice", ":"]).ends(0).out;
    assert!(cube.contains("\n            1\n            2\n\n            3\n            4\n"), "{cube}");
    assert!(place.run(&["show", "c.zt", "complex"]).ends(0).out.contains("1.00000-2.00000i"));
    assert!(place.run(&["show", "c.zt", "scalar"]).ends(0).out.contains("         2.5\n"));
}

#[test]
fn a_tensor_beyond_the_limits_does_not_keep_the_others_from_being_verified() {
    let place = Place::new();
    let mut writer = Writer::create(place.path("m.zt")).unwrap();
    for (name, count) in [("large", 10_000u64), ("small", 1000)] {
        let numbers = vec![1.0f64; count as usize];
        writer.add_with(name, &[count], &numbers).compress(Compression::Zstd(3)).write().unwrap();
    }
    writer.finish().unwrap();
    for option in [["--max-bytes", "79999"], ["--max-total-bytes", "79999"]] {
        let run = place.run(&["verify", "m.zt", option[0], option[1]]).ends(3);
        assert!(run.out.contains("\"large\"") && run.out.contains(option[0]), "{}", run.out);
        assert!(!run.out.contains("small"), "{}", run.out);
        run.fails(3, &["1 of 2 tensors exceed the limits", "the others are OK"]);
    }
    place.run(&["verify", "m.zt", "--max-bytes", "80000", "--max-total-bytes", "88000"]).ends(0);
}
