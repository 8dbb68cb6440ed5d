//! `docs/cli.md` is made here, from the help and real runs of every command.
//! `UPDATE_DOCS=1 cargo test -p ztensor-cli docs` writes it anew.

use std::fmt::Write;
use std::path::Path;

use ztensor::Writer;

use crate::manners::{commands, commands_in, commands_of};
use crate::support::{Place, Run};

const START: &str = "# The command line

`ztensor` inspects, converts, verifies, compares and edits tensor files of any format. It comes
with the Python package (also as `python -m ztensor`) and as a Rust program
(`cargo install --path crates/cli`).

Results go to standard output. Status messages (summary line, progress) go to standard error;
`--quiet` suppresses them. Colour is only used on a terminal, and never if `NO_COLOR` is set. Output
files are written atomically: a command that fails or is interrupted leaves nothing behind, and no
file is overwritten without `--force`.

The output of `info --json` and `diff --json` is specified by
[schema/info.json](schema/info.json) and [schema/diff.json](schema/diff.json). TLS certificates are
checked against the system's authorities, or those in the PEM file that `SSL_CERT_FILE` names; minimal
containers have none until `ca-certificates` is installed.

| exit code | meaning |
|---|---|
| 0 | success (also when the reader of a pipe stops early) |
| 1 | the files differ, or a check failed |
| 2 | usage error |
| 3 | a file is corrupt, of an unknown format, or cannot be represented in the target format |
| 4 | I/O error |
| 130 | interrupted |
";

const Z4AI: &str = "
# The z4ai command

`z4ai` is a lossless compressor for model weights. It comes with `ztensor` (`python -m z4ai` is the
same program) and follows the same conventions and exit codes; `-` is standard input or output.
";

/// Every command of `z4ai`, with what is run to show it.
const SHOWN_Z4AI: [(&str, &[&str]); 9] = [
    ("compress", &["compress weights.bin --dtype fp32", "compress weights.bin --effort fast -o quick.z4ai"]),
    ("decompress", &["decompress weights.bin.z4ai -o back.bin"]),
    ("info", &["info weights.bin.z4ai"]),
    (
        "delta",
        &[
            "delta make step2.bin weights.bin --dtype fp32 -o step2.z4dl",
            "delta apply step2.z4dl weights.bin -o restored.bin",
        ],
    ),
    ("pack", &["pack model.safetensors", "info model.z4ai.safetensors"]),
    ("unpack", &["unpack model.z4ai.safetensors -o unpacked.safetensors"]),
    (
        "model-delta",
        &[
            "model-delta make tuned.safetensors model.safetensors -o tuned.z4dm",
            "model-delta info tuned.z4dm",
            "model-delta apply model.safetensors tuned.z4dm -o again.safetensors",
        ],
    ),
    ("completions", &[]),
    ("man", &[]),
];

/// Every command, with what is run to show it.
const SHOWN: [(&str, &[&str]); 24] = [
    ("info", &["info model.safetensors", "info model.safetensors --csv --only 'layers.0.*'"]),
    (
        "convert",
        &[
            "convert model.safetensors model.zt --checksum crc32c",
            "convert model.zt half.safetensors --dtype f16",
        ],
    ),
    ("export", &[]),
    ("compress", &["compress model.zt -o small.zt -l 10"]),
    ("decompress", &["decompress small.zt -o raw.zt"]),
    ("verify", &["verify model.zt"]),
    ("id", &["id model.safetensors model.zt small.zt"]),
    (
        "sign",
        &[
            "sign model.safetensors --key key.pem -o model.sig",
            "verify model.safetensors --signature model.sig --key key.pub",
            "verify small.zt --signature model.sig --key key.pub",
        ],
    ),
    ("scan", &["scan evil.pkl", "scan model.safetensors"]),
    ("show", &["show model.zt layers.1.weight --slice 0:2,:4", "show model.zt layers.1.wieght"]),
    ("report", &["report model.zt -o report.html"]),
    ("append", &["append raw.zt --from extra.npz"]),
    ("diff", &["diff model.zt raw.zt", "diff model.zt half.safetensors --stat"]),
    ("remove", &["remove raw.zt layers.0.weight -o less.zt"]),
    ("merge", &["merge less.zt other.zt -o merged.zt"]),
    ("compact", &["compact raw.zt"]),
    ("repair", &["repair raw.zt"]),
    ("migrate", &["migrate old.zt -o new.zt"]),
    ("model-delta", &[]),
    ("sync", &[]),
    ("repo", &[]),
    ("download-hf", &[]),
    ("completions", &[]),
    ("man", &[]),
];

fn prepare(place: &Place) {
    let mut writer = Writer::create(place.path("start.zt")).unwrap();
    writer.set_attribute("format", "pt");
    writer.add("embed.weight", &[32, 8], &[0.25f32; 256]).unwrap();
    for layer in 0..4 {
        let numbers: Vec<f32> = (0..64).map(|n| ((n * 7 + layer) % 11) as f32 / 8.0).collect();
        writer.add(&format!("layers.{layer}.weight"), &[8, 8], &numbers).unwrap();
        writer.add(&format!("layers.{layer}.bias"), &[8], &numbers[..8]).unwrap();
    }
    writer.finish().unwrap();
    place.run(&["convert", "start.zt", "-o", "model.safetensors"]).ends(0);
    std::fs::write(place.path("evil.pkl"), b"cos\nsystem\n(S'touch owned'\ntR.").unwrap();
    std::fs::write(place.path("key.pem"), include_str!("../data/p256.pem")).unwrap();
    std::fs::write(place.path("key.pub"), include_str!("../data/p256.pub")).unwrap();
    place.single("other.zt", "adapter", &[0.5; 16]);
    place.single("extra.zt", "extra", &[1.0, 2.0, 3.0]);
    place.run(&["convert", "extra.zt", "-o", "extra.npz"]).ends(0);
    std::fs::rename(place.path(&place.fixture("zt/legacy_v01.zt")), place.path("old.zt")).unwrap();
}

fn prepare_z4ai(place: &Place) {
    let numbers = |step: u32| {
        (0..5000u32).flat_map(move |n| {
            ((n.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e9 + step as f32).to_le_bytes()
        })
    };
    std::fs::write(place.path("weights.bin"), numbers(0).collect::<Vec<_>>()).unwrap();
    let mut next: Vec<u8> = numbers(0).collect();
    next[400] ^= 1;
    std::fs::write(place.path("step2.bin"), next).unwrap();
}

/// `model.safetensors` with one layer changed.
fn prepare_tuned(place: &Place) {
    let mut bytes = std::fs::read(place.path("model.safetensors")).unwrap();
    let end = bytes.len();
    bytes[end - 200] ^= 1;
    std::fs::write(place.path("tuned.safetensors"), bytes).unwrap();
}

fn document() -> String {
    let place = Place::new();
    prepare(&place);
    let mut text = START.to_owned();
    describe(&place, "ztensor", &SHOWN, &mut text);
    text.push_str(Z4AI);
    prepare_z4ai(&place);
    prepare_tuned(&place);
    describe(&place, "z4ai", &SHOWN_Z4AI, &mut text);
    // What the programs are called on Windows.
    text.replace("ztensor.exe ", "ztensor ").replace("z4ai.exe ", "z4ai ")
}

/// The heading of the options that every command has.
const GLOBAL: &str = "Global options:";

/// A help text in two parts: without the global options, and these alone.
fn without_global(help: &str) -> (String, String) {
    let (mut own, mut global) = (String::new(), String::new());
    let mut inside = false;
    for line in help.lines().map(str::trim_end) {
        if !line.is_empty() && !line.starts_with(' ') {
            inside = line == GLOBAL;
        }
        let part = if inside { &mut global } else { &mut own };
        writeln!(part, "{line}").unwrap();
    }
    (own, global)
}

fn describe(place: &Place, program: &str, shown: &[(&str, &[&str])], text: &mut String) {
    // Both programs have a `compress`.
    let own = if program == "ztensor" { "" } else { "z4ai " };
    // As wide as the page.
    let start =
        |args: &[&str]| Run::from(place.program(program, args).env("COLUMNS", "80").output().unwrap());
    let (_, global) = without_global(&start(&["man", "--help"]).ends(0).out);
    let global = global.strip_prefix(GLOBAL).unwrap().trim_matches('\n');
    write!(text, "\nEvery command of `{program}` takes these options:\n\n```text\n{global}\n```\n").unwrap();
    for (command, runs) in shown {
        let help = start(&[command, "--help"]).ends(0).out;
        let (about, usage) = parts(&help);
        write!(text, "\n## {own}{command}\n\n{about}\n").unwrap();
        if !runs.is_empty() {
            text.push_str("\n```console\n");
            for line in *runs {
                let args: Vec<&str> = line.split(' ').map(|word| word.trim_matches('\'')).collect();
                let run = start(&args);
                assert!(run.code < 2 || run.err.contains("did you mean"), "{line}: {}", run.err);
                writeln!(text, "$ {program} {line}").unwrap();
                for line in run.out.lines().chain(run.err.lines()) {
                    writeln!(text, "{}", line.trim_end()).unwrap();
                }
            }
            text.push_str("```\n");
        }
        write!(text, "\n```text\n{usage}\n```\n").unwrap();
        for inner in commands_in(&help) {
            let (about, usage) = parts(&start(&[command, &inner, "--help"]).ends(0).out);
            write!(text, "\n### {own}{command} {inner}\n\n{about}\n\n```text\n{usage}\n```\n").unwrap();
        }
    }
}

/// What a help text says first, and the rest of it without the global options.
fn parts(help: &str) -> (String, String) {
    let (own, _) = without_global(help);
    let (about, usage) = own.split_once("\n\n").unwrap();
    (about.to_owned(), usage.trim_end().to_owned())
}

#[test]
fn the_documentation_is_current_and_complete() {
    for command in commands(&Place::new()) {
        assert!(SHOWN.iter().any(|(name, _)| *name == command), "{command}");
    }
    for command in commands_of(&Place::new(), "z4ai") {
        assert!(SHOWN_Z4AI.iter().any(|(name, _)| *name == command), "{command}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let made = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = made.lines().zip(committed.lines()).find(|(made, committed)| made != committed);
    assert!(
        made == committed,
        "docs/cli.md is not current: run with UPDATE_DOCS=1; first difference: {differ:#?}"
    );
}
