//! The `z4ai` program, end to end.

#[cfg(unix)]
use std::io::Write as _;
use std::process::Stdio;

#[cfg(unix)]
use crate::support::Held;
use crate::support::Place;
#[cfg(target_os = "linux")]
use crate::support::Run;

fn weights(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let values = (0..bytes.div_ceil(4)).flat_map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let gauss: f32 = (0..4).map(|i| f32::from((state >> (16 * i)) as u16) / 65536.0 - 0.5).sum();
        (gauss * 0.03).to_le_bytes()
    });
    values.take(bytes).collect()
}

fn place(bytes: usize) -> (Place, Vec<u8>) {
    let place = Place::new();
    let data = weights(bytes);
    std::fs::write(place.path("w.bin"), &data).unwrap();
    (place, data)
}

fn read(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.path(name)).unwrap()
}

#[test]
fn files_become_frames_and_files_again() {
    let (place, data) = place(1_000_003);
    let run = place.z4ai(&["compress", "w.bin", "--dtype", "fp32"]).ends(0);
    assert!(run.err.starts_with("w.bin: 1.00 MB to ") && run.err.contains("% saved"), "{}", run.err);
    assert!(read(&place, "w.bin.z4ai").len() < data.len() * 9 / 10);
    place.z4ai(&["decompress", "w.bin.z4ai"]).fails(2, &["w.bin exists already", "--force"]);
    std::fs::remove_file(place.path("w.bin")).unwrap();
    place.z4ai(&["decompress", "w.bin.z4ai"]).ends(0);
    assert!(read(&place, "w.bin") == data);
    std::fs::rename(place.path("w.bin.z4ai"), place.path("other")).unwrap();
    let quiet = place.z4ai(&["-q", "decompress", "other"]).ends(0);
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("", ""));
    assert!(read(&place, "other.out") == data);
    place.z4ai(&["decompress", "other", "--force", "-o", "w.bin"]).ends(0);
    assert_eq!(place.list(), ["other", "other.out", "w.bin"]);
}

#[test]
fn every_option_restores() {
    let (place, data) = place(100_002);
    let dtypes = "bf16 bfloat16 FP16 float16 Fp32 float32 fp64 float64 fp8 fp8_e4m3 fp8_e5m2 raw bool \
                  int8 uint8 int16 uint16 int32 uint32 int64 uint64";
    let options = dtypes.split_whitespace().map(|dtype| vec!["--dtype", dtype]);
    let others = [
        "--width 1",
        "--width 2",
        "--width 4",
        "--width 8",
        "--effort fast --dtype bf16",
        "--level 19",
        "--fast --dtype fp32",
        "--dtype uint16 --shape 16667x3",
        "--threads 1",
        "--escalate 5 --plane-workers 2",
        "--no-escalate",
    ];
    let others = others.iter().map(|line| line.split(' ').collect());
    for option in options.chain(others) {
        let command = [&["compress", "w.bin", "-o", "f", "--force"], &option[..]].concat();
        place.z4ai(&command).ends(0);
        place.z4ai(&["decompress", "f", "-o", "back", "--force"]).ends(0);
        assert!(read(&place, "back") == data, "{option:?}");
    }
    // The width is what counts, whatever the type says.
    place.z4ai(&["compress", "w.bin", "-o", "wide", "--width", "2"]).ends(0);
    place.z4ai(&["compress", "w.bin", "-o", "both", "--width", "2", "--dtype", "fp32"]).ends(0);
    assert!(read(&place, "wide") == read(&place, "both"));
    for (wrong, word) in [
        ("--dtype nope", "choose one of raw"),
        ("--effort nope", "choose one of fast"),
        ("--level 0", "1..=22"),
        ("--level 23", "1..=22"),
        ("--width 3", "1, 2, 4 or 8"),
        ("--shape 3x", "4096x1024"),
        ("--shape 3x3", "not a tensor of shape"),
        ("--escalate 23", "1..=22"),
    ] {
        let line = format!("compress w.bin -o g {wrong}");
        let run = place.z4ai(&line.split(' ').collect::<Vec<_>>()).ends(2);
        assert!(run.err.contains(word), "{wrong}: {}", run.err);
    }
    assert!(!place.path("g").exists());
}

#[test]
fn pipes() {
    let (place, data) = place(300_001);
    let pipe = |args: &[&str], input: &[u8]| {
        let run = place.program("z4ai", args).write_stdin(input).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        (run.stdout, run.stderr)
    };
    let (frame, _) = pipe(&["compress", "-", "--dtype", "fp32"], &data);
    assert!(pipe(&["decompress", "-"], &frame).0 == data);
    assert!(pipe(&["decompress", "-", "-q"], &frame).1.is_empty());
    pipe(&["compress", "-", "-o", "f", "--dtype", "fp32"], &data);
    assert!(read(&place, "f") == frame);
    assert!(pipe(&["decompress", "f", "-o", "-"], &[]).0 == data);
    assert!(String::from_utf8(pipe(&["info", "-"], &frame).0).unwrap().contains("Z4AI 2"));
    let (empty, _) = pipe(&["compress", "-"], &[]);
    assert!(pipe(&["decompress", "-"], &empty).0.is_empty());
}

#[test]
fn a_reader_that_goes_away_is_fine() {
    let (place, _) = place(40_000_000);
    place.z4ai(&["compress", "w.bin", "-o", "f", "--effort", "fast", "--dtype", "fp32"]).ends(0);
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("z4ai"))
        .args(["decompress", "f", "-o", "-"])
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn info_says_what_is_inside() {
    let (place, data) = place(1_000_000);
    place.z4ai(&["compress", "w.bin", "--dtype", "bf16"]).ends(0);
    let text = place.z4ai(&["info", "w.bin.z4ai"]).ends(0).out;
    for word in ["w.bin.z4ai", "Z4AI 2", "bf16", "1.00 MB", "streams", "symbols", "huffman"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = place.z4ai(&["info", "w.bin.z4ai", "--json"]).ends(0).json();
    assert_eq!(json["bytes"], data.len());
    assert_eq!(json["stored_bytes"], read(&place, "w.bin.z4ai").len());
    assert!(json["streams"].as_array().unwrap().len() > 1);
    for (sample, words) in [
        ("array_f4_40x30.blob", &["Z4AI 1", "<f4", "[40, 30]"][..]),
        ("sparse_bf16_60.blob", &["ZSP1"]),
        ("palette_bf16_k16.blob", &["ZPL1"]),
        ("chunked_fp32.blob", &["Z4AIMF01"]),
        ("effort_max_fp32.blob", &["ZARA 1"]),
        ("delta_identical.blob", &["Z4DL 2"]),
    ] {
        let text = place.z4ai(&["info", &frame_of_version_1(sample)]).ends(0).out;
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    place.z4ai(&["info", "w.bin"]).fails(3, &["w.bin", "not compressed by z4ai"]);
    place.z4ai(&["info", "absent"]).fails(4, &["absent"]);
}

fn frame_of_version_1(name: &str) -> String {
    format!("{}/../z4ai/tests/data/v1/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn frames_of_version_1_are_restored() {
    let place = Place::new();
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(frame_of_version_1("manifest.json")).unwrap()).unwrap();
    let mut restored = 0;
    for sample in manifest["samples"].as_array().unwrap() {
        let blob = frame_of_version_1(sample["blob"].as_str().unwrap());
        let reference = sample["reference"].as_str().map(frame_of_version_1);
        match (&reference, sample["kind"].as_str().unwrap()) {
            (Some(reference), "Z4DL") => {
                place.z4ai(&["delta", "apply", &blob, reference, "-o", "back", "--force"]).ends(0);
            }
            (None, kind) if kind != "ZSTN" && kind != "Z4DM" => {
                place.z4ai(&["decompress", &blob, "-o", "back", "--force"]).ends(0);
            }
            _ => continue,
        }
        use sha2::{Digest, Sha256};
        let hash: String =
            Sha256::digest(read(&place, "back")).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, sample["sha256_original"].as_str().unwrap(), "{blob}");
        restored += 1;
    }
    assert!(restored > 40);
    for sample in manifest["hostile"].as_array().unwrap() {
        let blob = frame_of_version_1(sample["blob"].as_str().unwrap());
        place.z4ai(&["decompress", &blob, "-o", "hostile"]).fails(3, &[]);
    }
    assert_eq!(place.list(), ["back"]);
}

#[test]
fn deltas() {
    let (place, data) = place(500_000);
    let mut after = data.clone();
    after[1000] ^= 3;
    std::fs::write(place.path("after.bin"), &after).unwrap();
    place.z4ai(&["delta", "make", "after.bin", "w.bin", "--dtype", "fp32"]).ends(0);
    assert!(read(&place, "after.bin.z4dl").len() < 1000);
    place.z4ai(&["delta", "apply", "after.bin.z4dl", "w.bin", "-o", "back"]).ends(0);
    assert!(read(&place, "back") == after);
    let wrong = ["delta", "apply", "after.bin.z4dl", "after.bin", "-o", "no"];
    place.z4ai(&wrong).fails(3, &["after.bin.z4dl", "reference"]);
    std::fs::write(place.path("short.bin"), &data[1..]).unwrap();
    place.z4ai(&["delta", "make", "short.bin", "w.bin", "-o", "no"]).fails(2, &["equal length"]);
    place.z4ai(&["decompress", "after.bin.z4dl", "-o", "no"]).fails(3, &["z4ai delta apply"]);
    place.z4ai(&["delta", "apply", "w.bin", "after.bin", "-o", "no"]).fails(3, &["w.bin"]);
    assert!(!place.path("no").exists());
    let text = place.z4ai(&["info", "after.bin.z4dl"]).ends(0).out;
    assert!(text.contains("Z4DL 3") && text.contains("difference places"), "{text}");
}

#[test]
fn bad_input_leaves_nothing_behind() {
    let (place, _) = place(100_000);
    place.z4ai(&["compress", "w.bin", "-o", "f", "--dtype", "fp32"]).ends(0);
    let frame = read(&place, "f");
    std::fs::write(place.path("cut"), &frame[..frame.len() / 2]).unwrap();
    let mut flipped = frame.clone();
    flipped[frame.len() / 2] ^= 1;
    std::fs::write(place.path("flipped"), &flipped).unwrap();
    let before = place.list();
    place.z4ai(&["decompress", "cut", "-o", "out"]).fails(3, &["cut", "bytes"]);
    place.z4ai(&["decompress", "flipped", "-o", "out"]).fails(3, &["flipped", "corrupt frame"]);
    place.z4ai(&["decompress", "w.bin", "-o", "out"]).fails(3, &["w.bin", "not compressed by z4ai"]);
    place.z4ai(&["decompress", "absent", "-o", "out"]).fails(4, &["absent"]);
    place.z4ai(&["compress", ".", "-o", "out"]).fails(2, &["folder"]);
    place.z4ai(&["compress", "w.bin", "-o", "no/such/folder/x"]).fails(4, &["no/such/folder"]);
    place.z4ai(&["compress", "w.bin", "-o", "w.bin", "--force"]).fails(2, &["is also an input"]);
    place.z4ai(&["decompress", "flipped", "-o", "f", "--force"]).fails(3, &["corrupt frame"]);
    assert!(read(&place, "f") == frame, "what was there stays when the new file is bad");
    assert_eq!(place.list(), before);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_the_system() {
    let (place, _) = place(100_000);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("z4ai"))
        .args(["compress", "w.bin", "-o", "-"])
        .current_dir(place.path(""))
        .stdout(full)
        .output()
        .unwrap();
    Run {
        code: output.status.code().unwrap(),
        out: String::new(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
    .fails(4, &["No space"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_command_leaves_nothing_behind() {
    let place = Place::new();
    let mut state = 1u32;
    let mut words = Vec::new();
    while words.len() < 1 << 20 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        words.extend_from_slice(format!("word{}", state >> 23).as_bytes());
    }
    let mut writer = ztensor::Writer::create(place.path("big.zt")).unwrap();
    for index in 0..16u8 {
        words[7] = index;
        writer.add(&format!("t{index}"), &[words.len() as u64], &words).unwrap();
    }
    writer.finish().unwrap();
    place.run(&["convert", "big.zt", "-o", "big.safetensors"]).ends(0);
    std::fs::remove_file(place.path("big.zt")).unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("z4ai"));
    let args = ["pack", "big.safetensors", "-o", "out", "--level", "22", "--threads", "1"];
    command.args(args).current_dir(place.path("")).stderr(Stdio::piped());
    let output = Held::start(command).signal("-INT");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(place.list(), ["big.safetensors"]);
}

#[cfg(unix)]
#[test]
fn a_command_that_waits_for_a_pipe_can_be_interrupted() {
    use std::os::unix::process::ExitStatusExt;
    let place = Place::new();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("z4ai"))
        .args(["compress", "-", "-o", "out"])
        .current_dir(place.path(""))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds, so most of it has been read when this returns, and the command waits
    // for the rest: the pipe stays open until the command has ended.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![0; 4 << 20]).unwrap();
    let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.signal(), Some(15), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(place.list().is_empty());
}

#[test]
fn help_completions_and_manual() {
    let place = Place::new();
    for command in crate::manners::commands_of(&place, "z4ai") {
        let help = place.z4ai(&[&command, "--help"]).ends(0).out;
        assert!(help.contains(&format!("  z4ai {command} ")), "{command} has no example:\n{help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = place.z4ai(&["completions", shell]).ends(0).out;
        assert!(script.contains("decompress") && script.contains("z4ai"), "{shell}");
    }
    let page = place.z4ai(&["man"]).ends(0).out;
    assert!(page.contains(".TH z4ai 1") && page.contains(".SH \"Z4AI COMPRESS\""), "{page}");
    let version = place.z4ai(&["--version"]).ends(0).out;
    assert_eq!(version, format!("z4ai {}\n", env!("CARGO_PKG_VERSION")));
    place.z4ai(&[]).ends(2);
    place.z4ai(&["nonsense"]).ends(2);
}

fn model(place: &Place) -> Vec<u8> {
    place.model("model.zt");
    place.run(&["convert", "model.zt", "-o", "model.safetensors", "--exclude", "nothing"]).ends(0);
    read(place, "model.safetensors")
}

#[test]
fn models_are_packed_and_restored() {
    let place = Place::new();
    let original = model(&place);
    let run = place.z4ai(&["pack", "model.safetensors"]).ends(0);
    assert!(run.err.starts_with("model.safetensors: "), "{}", run.err);
    place.z4ai(&["unpack", "model.z4ai.safetensors", "-o", "back"]).ends(0);
    assert!(read(&place, "back") == original);
    place.z4ai(&["unpack", "model.z4ai.safetensors"]).fails(2, &["model.safetensors exists already"]);
    place.z4ai(&["unpack", "model.z4ai.safetensors", "--force", "-q"]).ends(0);
    for effort in ["fast", "default"] {
        place.z4ai(&["pack", "model.safetensors", "--effort", effort, "-o", "x", "--force"]).ends(0);
        place.z4ai(&["unpack", "x", "-o", "back", "--force"]).ends(0);
        assert!(read(&place, "back") == original);
    }
    let text = place.z4ai(&["info", "model.z4ai.safetensors"]).ends(0).out;
    for word in ["ZSTN 4", "layers.0.weight", "[4, 6]", "f32", "norm", "i64"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let json = place.z4ai(&["info", "model.z4ai.safetensors", "--json"]).ends(0).json();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 4);
    assert_eq!(json["bytes"], original.len());
    // The other program reads it like any file.
    assert!(place.run(&["info", "model.z4ai.safetensors"]).ends(0).out.contains("norm"));
    place.run(&["diff", "model.z4ai.safetensors", "model.safetensors"]).ends(0);
}

/// Every format is packed and comes back byte for byte; folders get the names that transformers
/// look for.
#[test]
fn other_formats_and_folders_are_packed() {
    let place = Place::new();
    for path in crate::support::FORMATS.iter().filter(|path| !path.ends_with(".safetensors")) {
        let file = place.fixture(path);
        place.z4ai(&["pack", &file]).ends(0);
        let original = read(&place, &file);
        std::fs::remove_file(place.path(&file)).unwrap();
        place.z4ai(&["unpack", &format!("{file}.zstn")]).ends(0);
        assert!(read(&place, &file) == original, "{file}");
    }
    let original = model(&place);
    std::fs::create_dir(place.path("m")).unwrap();
    place.run(&["convert", "model.safetensors", "m/model.safetensors", "--max-shard-size", "200B"]).ends(0);
    std::fs::write(place.path("m/config.json"), "{}").unwrap();
    let run = place.z4ai(&["pack", "m", "-o", "packed"]).ends(0);
    assert!(run.err.contains("variant=\"z4ai\""), "{}", run.err);
    let mut names: Vec<String> = std::fs::read_dir(place.path("packed"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "model.safetensors.index.z4ai.json",
            "model.z4ai-00001-of-00002.safetensors",
            "model.z4ai-00002-of-00002.safetensors",
        ]
    );
    place.z4ai(&["unpack", "packed", "-o", "back"]).ends(0);
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        assert!(read(&place, &format!("back/{shard}")) == read(&place, &format!("m/{shard}")));
    }
    assert!(!original.is_empty());
    std::fs::create_dir(place.path("empty")).unwrap();
    place.z4ai(&["pack", "empty"]).fails(2, &["no weight files"]);
    place.z4ai(&["unpack", "empty"]).fails(2, &["no packed files"]);
}

#[test]
fn compressing_a_model_file_points_to_pack() {
    let place = Place::new();
    model(&place);
    let run = place.z4ai(&["compress", "model.safetensors"]).ends(0);
    assert!(run.err.contains("z4ai pack"), "{}", run.err);
    let run = place.z4ai(&["pack", "model.safetensors", "-o", "x.zstn"]).ends(0);
    assert!(!run.err.contains("note"), "{}", run.err);
}

#[test]
fn models_go_through_pipes() {
    let place = Place::new();
    let original = model(&place);
    let pipe = |args: &[&str], input: &[u8]| {
        let run = place.program("z4ai", args).write_stdin(input).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        run.stdout
    };
    let packed = pipe(&["pack", "-"], &original);
    assert!(pipe(&["unpack", "-"], &packed) == original);
    assert!(pipe(&["pack", "model.safetensors", "-o", "-"], &[]) == packed);
    assert!(String::from_utf8(pipe(&["info", "-"], &packed)).unwrap().contains("layers.0.weight"));
}

#[test]
fn odd_and_bad_models() {
    let place = Place::new();
    let original = model(&place);
    let odd = [&original[..], b"more"].concat();
    std::fs::write(place.path("odd.safetensors"), &odd).unwrap();
    let run = place.z4ai(&["pack", "odd.safetensors"]).ends(0);
    assert!(run.err.contains("packed as a whole"), "{}", run.err);
    assert!(place.z4ai(&["info", "odd.z4ai.safetensors"]).ends(0).out.contains("packed as a whole"));
    place.z4ai(&["unpack", "odd.z4ai.safetensors", "-o", "back"]).ends(0);
    assert!(read(&place, "back") == odd);

    place.z4ai(&["pack", "model.safetensors"]).ends(0);
    let packed = read(&place, "model.z4ai.safetensors");
    std::fs::write(place.path("cut.zstn"), &packed[..packed.len() - 1]).unwrap();
    std::fs::write(place.path("text"), "no model at all").unwrap();
    let before = place.list();
    place.z4ai(&["unpack", "cut.zstn", "-o", "no"]).fails(3, &["cut.zstn"]);
    place.z4ai(&["info", "cut.zstn"]).fails(3, &["cut.zstn"]);
    place.z4ai(&["unpack", "text", "-o", "no"]).fails(3, &["text", "ZSTN"]);
    place.z4ai(&["pack", "text", "-o", "no"]).fails(3, &["text", "no model at all"]);
    place.z4ai(&["info", "text"]).fails(3, &["text", "no model at all"]);
    place.z4ai(&["decompress", "text", "-o", "no"]).fails(3, &["text", "no model at all"]);
    place.z4ai(&["unpack", "model.safetensors", "-o", "no"]).fails(3, &["not packed"]);
    place.z4ai(&["info", "model.safetensors"]).fails(3, &["ztensor info"]);
    place.z4ai(&["pack", "absent", "-o", "no"]).fails(4, &["absent"]);
    place.z4ai(&["decompress", "model.z4ai.safetensors", "-o", "no"]).fails(3, &["z4ai unpack"]);
    place.z4ai(&["pack", "model.safetensors", "-o", "no/such/x"]).fails(4, &["no/such"]);
    assert_eq!(place.list(), before);
}

#[test]
fn model_deltas() {
    let place = Place::new();
    let base = model(&place);
    let mut tuned = base.clone();
    let end = tuned.len();
    tuned[end - 1] ^= 1;
    std::fs::write(place.path("tuned.safetensors"), &tuned).unwrap();
    let mut last = tuned.clone();
    last[end - 3] ^= 1;
    std::fs::write(place.path("last.safetensors"), &last).unwrap();
    let run = place.z4ai(&["model-delta", "make", "tuned.safetensors", "model.safetensors"]).ends(0);
    assert!(run.err.contains("copied") && run.err.contains("7.2 % larger"), "{}", run.err);
    let apply = ["model-delta", "apply", "model.safetensors", "tuned.safetensors.z4dm", "-o", "back"];
    place.z4ai(&apply).ends(0);
    assert!(read(&place, "back") == tuned);
    place.z4ai(&apply).fails(2, &["back exists already"]);
    place.z4ai(&["model-delta", "make", "last.safetensors", "tuned.safetensors", "-o", "l.z4dm"]).ends(0);
    let chain = ["model-delta", "apply", "model.safetensors", "tuned.safetensors.z4dm", "l.z4dm"];
    place.z4ai(&[&chain[..], &["-o", "end"]].concat()).ends(0);
    assert!(read(&place, "end") == last);
    for command in [&["model-delta", "info"][..], &["info"]] {
        let text = place.z4ai(&[command, &["l.z4dm"]].concat()).ends(0).out;
        assert!(
            text.contains("Z4DM 2") && text.contains("copy") && text.contains("layers.0.weight"),
            "{text}"
        );
        let json = place.z4ai(&[command, &["l.z4dm", "--json"]].concat()).ends(0).json();
        assert_eq!(json["tensors"].as_array().unwrap().len(), 4);
    }
    // In place, by the other program.
    place.run(&["convert", "model.safetensors", "-o", "place.zt"]).ends(0);
    let deltas = ["model-delta", "apply", "place.zt", "tuned.safetensors.z4dm", "l.z4dm", "--in-place"];
    let run = place.run(&deltas).ends(0);
    assert!(run.err.contains("1 tensor written"), "{}", run.err);
    place.run(&["diff", "place.zt", "last.safetensors"]).ends(0);
    let before = place.list();
    place.z4ai(&["model-delta", "apply", "model.safetensors", "l.z4dm", "-o", "no"]).fails(3, &[]);
    let gap = ["model-delta", "apply", "model.safetensors", "l.z4dm", "tuned.safetensors.z4dm", "-o", "no"];
    let run = place.z4ai(&gap);
    assert!(run.code == 2 || run.code == 3, "{}", run.err);
    place.z4ai(&["model-delta", "info", "model.safetensors"]).fails(3, &["model.safetensors"]);
    place.z4ai(&["decompress", "l.z4dm", "-o", "no"]).fails(3, &["z4ai model-delta apply"]);
    assert_eq!(place.list(), before);
}

#[cfg(unix)]
#[test]
fn results_named_after_their_input_never_leave_its_folder() {
    let place = Place::new();
    let original = model(&place);
    std::fs::write(place.path("precious"), b"keep").unwrap();
    std::fs::create_dir(place.path("m")).unwrap();
    std::fs::write(place.path("m/model.safetensors"), &original).unwrap();
    for leads_to in ["../planted", "../precious"] {
        let link = place.path("m/model.z4ai.safetensors");
        std::os::unix::fs::symlink(leads_to, &link).unwrap();
        place.z4ai(&["pack", "m/model.safetensors"]).fails(2, &["m/model.z4ai.safetensors exists already"]);
        // By force the link is replaced, not what it leads to.
        place.z4ai(&["pack", "m/model.safetensors", "--force"]).ends(0);
        assert!(!link.is_symlink());
        std::fs::remove_file(link).unwrap();
    }
    assert_eq!(read(&place, "precious"), b"keep");
    assert!(!place.path("planted").exists());
    let piped =
        place.program("z4ai", &["pack", "m/model.safetensors", "-o", "/dev/stdout"]).output().unwrap();
    assert!(piped.status.success() && piped.stdout.starts_with(b"ZSTN"));
    std::fs::write(place.path("piped"), piped.stdout).unwrap();
    place.z4ai(&["unpack", "piped", "-o", "back"]).ends(0);
    assert!(read(&place, "back") == original);
}
