//! Files whose names, layouts, types and attributes try to steer a terminal or a spreadsheet.

use std::process::Command;

use ztensor::{Checksum, Value, Writer};

use crate::support::{Place, Run};

/// A title, a colour, C1 forms of both, a delete, a carriage return, and a turn of the text.
const CODES: &str = "\u{1b}]0;title\u{7}\u{1b}[31m\u{9b}32m\u{9d}0;x\u{9c}\u{7f}\r\u{8}\u{85}\u{202e}";

fn hostile(place: &Place, file: &str, value: f32) {
    let mut writer = Writer::create(place.path(file)).unwrap();
    writer.add(&format!("w{CODES}"), &[2], &[value, 2.0f32]).unwrap();
    writer.add_with("=HYPERLINK(\"http://x\")", &[1], &[value]).checksum(Checksum::Crc32c).write().unwrap();
    writer.add(&format!("+{CODES},\"\n"), &[1], &[f32::NAN]).unwrap();
    writer.set_attribute(format!("key{CODES}"), Value::from(format!("value{CODES}").as_str()));
    writer.finish().unwrap();
}

/// What is printed is text and line ends; a terminal would obey everything else. Our own colours,
/// which begin an error line on a terminal, are not from a file.
#[track_caller]
fn check(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap().replace("\u{1b}[1;31merror\u{1b}[0m", "error");
    // Pseudo-terminals turn a line end into two characters.
    let text = text.replace("\r\n", "\n");
    let found = text.chars().find(|c| c.is_control() && *c != '\n');
    assert!(found.is_none(), "{what}: {found:?} in {text:?}");
}

/// Every command and every way to print, with and without a terminal.
#[test]
fn no_command_prints_control_characters_of_a_file() {
    let place = Place::new();
    hostile(&place, "a.zt", 1.0);
    hostile(&place, "b.zt", 3.0);
    std::fs::write(place.path("broken.zt"), format!("ZTEN1000{CODES}")).unwrap();
    let name = format!("w{CODES}");
    let safetensors = "a.safetensors";
    place.run(&["convert", "a.zt", "-o", safetensors]).ends(0);
    let z4ai: [&[&str]; 2] = [&["pack", safetensors, "-o", "a.zstn"], &["pack", "a.zt", "-o", "x"]];
    for args in z4ai {
        place.z4ai(args);
    }
    let commands: Vec<(&str, Vec<&str>)> = vec![
        ("ztensor", vec!["info", "a.zt"]),
        ("ztensor", vec!["info", "a.zt", "--all"]),
        ("ztensor", vec!["info", "a.zt", "--json"]),
        ("ztensor", vec!["info", "a.zt", "--csv"]),
        ("ztensor", vec!["info", safetensors, "--csv"]),
        ("ztensor", vec!["info", "a.zt", "--sort", "size"]),
        ("ztensor", vec!["info", "a.zt", "--sort", "name", "--csv"]),
        ("ztensor", vec!["info", "broken.zt"]),
        ("ztensor", vec!["show", "a.zt", &name]),
        ("ztensor", vec!["show", "a.zt", &name, "--slice", "0:1"]),
        ("ztensor", vec!["show", "a.zt", CODES]),
        ("ztensor", vec!["diff", "a.zt", "b.zt"]),
        ("ztensor", vec!["diff", "a.zt", "b.zt", "--json"]),
        ("ztensor", vec!["diff", "a.zt", safetensors]),
        ("ztensor", vec!["verify", "a.zt"]),
        ("ztensor", vec!["verify", "a.zt", "--values"]),
        ("ztensor", vec!["verify", "broken.zt"]),
        ("ztensor", vec!["convert", "a.zt", "-o", "out.npz", "--force"]),
        ("ztensor", vec!["convert", "a.zt", "-o", "out.gguf", "--force"]),
        ("ztensor", vec!["compress", "a.zt", "-o", "out.zt", "--force"]),
        ("ztensor", vec!["decompress", "a.zt", "-o", "out.zt", "--force"]),
        ("ztensor", vec!["merge", "a.zt", "b.zt", "-o", "out.zt", "--force"]),
        ("ztensor", vec!["append", "b.zt", "--from", "a.zt"]),
        ("ztensor", vec!["remove", "b.zt", CODES, "-o", "out.zt"]),
        ("ztensor", vec!["compact", "b.zt"]),
        ("ztensor", vec!["repair", "broken.zt"]),
        ("ztensor", vec!["report", "a.zt", "-o", "out.html", "--force"]),
        ("z4ai", vec!["info", "a.zstn"]),
        ("z4ai", vec!["info", "a.zstn", "--json"]),
        ("z4ai", vec!["info", "broken.zt"]),
        ("z4ai", vec!["unpack", "broken.zt", "-o", "out"]),
    ];
    for (program, args) in &commands {
        let output = place.program(program, args).output().unwrap();
        for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            check(&format!("{program} {args:?}: {stream}"), bytes);
        }
        if let Some(shown) = on_a_terminal(&place, program, args) {
            check(&format!("{program} {args:?} on a terminal"), &shown);
        }
    }
    let csv = place.run(&["info", "a.zt", "--csv"]).ends(0).out;
    for line in csv.lines().skip(1) {
        let first = line.trim_start_matches('"').chars().next().unwrap();
        assert!(!"=+-@".contains(first), "a spreadsheet would compute {line}");
    }
    assert_eq!(csv.lines().count(), 4, "one line for each tensor: {csv}");
    // Escaped, not dropped: programs get the name back.
    let json = place.run(&["info", "a.zt", "--json"]).ends(0).json();
    assert_eq!(json["tensors"][0]["name"], name);
    Run::from(place.program("ztensor", &["info", "a.zt", "--json"]).output().unwrap()).ends(0);
}

/// What a command prints where it is told that it is on a terminal; `None` without `script`.
fn on_a_terminal(place: &Place, program: &str, args: &[&str]) -> Option<Vec<u8>> {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let path = match program {
        "ztensor" => assert_cmd::cargo::cargo_bin!("ztensor"),
        _ => assert_cmd::cargo::cargo_bin!("z4ai"),
    };
    let words = [path.to_str()?].into_iter().chain(args.iter().copied()).chain(["-q"]);
    let command = words.map(quoted).collect::<Vec<_>>().join(" ");
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .current_dir(place.path(""))
        .output()
        .ok()?;
    Some(output.stdout)
}
