//! Little memory, full disks, interruption: what is left then, and what is said.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Held, Place, Run, fixture};
use ztensor::Writer;

const MB: usize = 1 << 20;

/// Runs `ztensor` in a folder, behind `before` in a shell.
fn behind(place: &Place, before: &str, args: &[&str]) -> Output {
    program_behind(place, before, assert_cmd::cargo::cargo_bin!("ztensor"), args)
}

fn program_behind(place: &Place, before: &str, program: &Path, args: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", &format!("{before} && exec \"$@\""), "sh"])
        .arg(program)
        .args(args)
        .current_dir(place.path(""))
        .output()
        .unwrap()
}

/// Tensors of `size` bytes, of the kind that compresses somewhat.
fn large(place: &Place, name: &str, count: usize, size: usize) {
    let mut state = 1u32;
    let mut numbers: Vec<u32> = (0..size / 4)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 12
        })
        .collect();
    let mut writer = Writer::create(place.path(name)).unwrap();
    for index in 0..count {
        numbers[0] = index as u32;
        writer.add(&format!("layers.{index}.weight"), &[numbers.len() as u64], &numbers).unwrap();
    }
    writer.finish().unwrap();
}

/// Memory of its own that the program may have: everything but files it maps.
fn with_memory(place: &Place, megabytes: usize, args: &[&str]) -> Run {
    behind(place, &format!("ulimit -d {}", megabytes * 1024), args).into()
}

#[test]
fn memory_is_bounded_by_the_largest_tensor() {
    let place = Place::new();
    let (count, size) = (12, 32);
    large(&place, "m.zt", count, size * MB);
    place.run(&["convert", "m.zt", "-o", "m.safetensors", "-q"]).ends(0);
    // Copied in pieces.
    with_memory(&place, 48, &["convert", "m.safetensors", "-o", "copy.zt", "--threads", "2"]).ends(0);
    // One tensor, what becomes of it, and what compressing takes.
    let compressing = 3 * size + 64;
    assert!(compressing < count * size / 2);
    let args = ["compress", "m.safetensors", "-o", "small.zt", "-l", "1", "--threads", "2"];
    with_memory(&place, compressing, &args).ends(0);
    // One decoded tensor.
    for output in ["back.safetensors", "back.zt"] {
        let args = ["convert", "small.zt", "-o", output, "--threads", "2"];
        with_memory(&place, 2 * size + 48, &args).ends(0);
    }
    with_memory(&place, 2 * size + 48, &["report", "small.zt", "-o", "r.html", "--threads", "2"]).ends(0);
    place.run(&["diff", "m.zt", "back.zt"]).ends(0);
    place.run(&["diff", "m.zt", "copy.zt"]).ends(0);
}

#[test]
fn inputs_of_frames_and_deltas_are_mapped() {
    let place = Place::new();
    let size = 192 * MB;
    let mut state = 1u32;
    let weights = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16) as u16 & 0x80ff | 0x3f00).to_le_bytes()
    };
    let data: Vec<u8> = (0..size / 2).flat_map(weights).collect();
    let mut next = data.clone();
    next.iter_mut().step_by(4098).for_each(|byte| *byte ^= 1);
    std::fs::write(place.path("a"), &data).unwrap();
    std::fs::write(place.path("b"), &next).unwrap();
    let z4ai = |megabytes: usize, args: &[&str]| {
        let limit = format!("ulimit -d {}", megabytes * 1024);
        let args = [args, &["--threads", "2", "--force"]].concat();
        Run::from(program_behind(&place, &limit, assert_cmd::cargo::cargo_bin!("z4ai"), &args)).ends(0);
    };
    // A frame is made in memory, with room for the largest that it could become; its input is not in
    // memory. Restored files are made in parts.
    let (making, restoring) = (size / MB + 64, 112);
    z4ai(making, &["compress", "a", "--dtype", "bf16", "-o", "a.z4ai"]);
    z4ai(restoring, &["decompress", "a.z4ai", "-o", "back"]);
    assert!(std::fs::read(place.path("back")).unwrap() == data);
    z4ai(making, &["delta", "make", "b", "a", "--dtype", "bf16", "-o", "d"]);
    z4ai(restoring, &["delta", "apply", "d", "a", "-o", "back"]);
    assert!(std::fs::read(place.path("back")).unwrap() == next);
}

/// Commands that write, each in a form that has something to write in this folder.
const WRITING: [&[&str]; 10] = [
    &["convert", "m.zt", "-o", "out.zt"],
    &["convert", "m.zt", "-o", "out.safetensors"],
    &["convert", "m.zt", "-o", "out.npz", "-c"],
    &["convert", "m.zt", "-o", "out.zstn"],
    &["compress", "m.zt", "-o", "out.zt"],
    &["decompress", "m.zt", "-o", "out.zt"],
    &["merge", "m.zt", "a.zt", "-o", "out.zt"],
    &["remove", "m.zt", "layers.0.weight", "-o", "out.zt"],
    &["append", "a.zt", "--from", "m.zt"],
    &["report", "m.zt", "-o", "out.html"],
];

fn contents(place: &Place) -> Vec<(String, Vec<u8>)> {
    place.list().into_iter().map(|name| (name.clone(), std::fs::read(place.path(&name)).unwrap())).collect()
}

#[test]
fn a_full_disk_leaves_everything_as_it_was() {
    let place = Place::new();
    large(&place, "m.zt", 3, MB);
    place.single("a.zt", "a", &[1.0]);
    let before = contents(&place);
    for args in WRITING {
        // Twenty blocks is less than any of them writes.
        let run = Run::from(behind(&place, "ulimit -f 20", args));
        run.fails(4, &["File too large"]);
        assert!(contents(&place) == before, "{args:?}");
    }
    let original = ["convert", "m.zt", "-o", "out.zt", "--delete-original"];
    Run::from(behind(&place, "ulimit -f 20", &original)).fails(4, &["out.zt"]);
    assert!(contents(&place) == before);
}

#[test]
fn a_full_disk_is_never_the_fault_of_what_is_read() {
    let place = Place::new();
    large(&place, "m.zt", 3, MB);
    place.run(&["convert", "m.zt", "-o", "m.safetensors", "-q"]).ends(0);
    place.z4ai(&["pack", "m.safetensors", "-q"]).ends(0);
    place.z4ai(&["compress", "m.safetensors", "-q"]).ends(0);
    let before = contents(&place);
    for args in [
        ["compress", "m.safetensors", "-o", "out"],
        ["decompress", "m.safetensors.z4ai", "-o", "out"],
        ["pack", "m.safetensors", "-o", "out"],
        ["unpack", "m.z4ai.safetensors", "-o", "out"],
    ] {
        let program = assert_cmd::cargo::cargo_bin!("z4ai");
        let run = Run::from(program_behind(&place, "ulimit -f 20", program, &args));
        run.fails(4, &["cannot write out: File too large"]);
        assert!(contents(&place) == before, "{args:?}");
    }
}

#[test]
fn a_small_file_system_that_is_full_is_named() {
    let place = Place::new();
    large(&place, "m.zt", 3, MB);
    std::fs::create_dir(place.path("disk")).unwrap();
    let mount = "mount -t tmpfs -o size=512k none disk";
    let try_it =
        Command::new("unshare").args(["-rm", "sh", "-c", mount]).current_dir(place.path("")).output();
    if !try_it.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this system does not let a user mount a small file system");
        return;
    }
    let script = format!("{mount} && cd disk && \"$@\" ; code=$? ; ls -A ; exit $code");
    for args in [
        &["convert", "../m.zt", "-o", "out.zt"][..],
        &["compress", "../m.zt", "-o", "out.zt"],
        &["convert", "../m.zt", "-o", "out.npz"],
    ] {
        let output = Command::new("unshare")
            .args(["-rm", "sh", "-c", &script, "sh"])
            .arg(assert_cmd::cargo::cargo_bin!("ztensor"))
            .args(args)
            .current_dir(place.path(""))
            .output()
            .unwrap();
        let run = Run::from(output);
        assert_eq!(run.out, "", "nothing is left there");
        run.fails(4, &["out.", "No space left on device"]);
    }
}

#[test]
fn results_that_cannot_be_printed_are_an_error() {
    let place = Place::new();
    place.model("m.zt");
    for args in [
        &["info", "m.zt"][..],
        &["info", "m.zt", "--json"],
        &["info", "m.zt", "--csv"],
        &["show", "m.zt", "norm"],
        &["verify", "m.zt"],
        &["diff", "m.zt", "m.zt"],
        &["diff", "m.zt", "m.zt", "--json"],
        &["completions", "bash"],
        &["man"],
    ] {
        let run = Run::from(behind(&place, "exec > /dev/full", args));
        run.fails(4, &["standard output", "No space left on device"]);
    }
}

#[test]
fn an_interrupted_command_leaves_everything_as_it_was() {
    let place = Place::new();
    large(&place, "m.zt", 24, MB);
    place.single("a.zt", "a", &[1.0]);
    let before = contents(&place);
    let slow: [&[&str]; 4] = [
        &["compress", "m.zt", "-o", "out.zt", "-l", "22", "--threads", "1"],
        &["convert", "m.zt", "-o", "out.npz", "-l", "9", "--threads", "1"],
        &["append", "a.zt", "--from", "m.zt", "-l", "22", "--threads", "1"],
        &["report", "m.zt", "-o", "out.html", "--threads", "1"],
    ];
    for (args, (signal, code)) in
        slow.into_iter().zip([("INT", 130), ("TERM", 130), ("INT", 130), ("HUP", 130)])
    {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("ztensor"));
        command.args(args).current_dir(place.path("")).stderr(Stdio::piped());
        let output = Held::start(command).signal(&format!("-{signal}"));
        Run::from(output).fails(code, &["cancelled"]);
        assert!(contents(&place) == before, "{args:?}");
    }
}

#[test]
fn signals_that_are_to_be_ignored_are() {
    let place = Place::new();
    large(&place, "m.zt", 8, MB);
    // The shell becomes the command, which inherits that the signal is ignored.
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(assert_cmd::cargo::cargo_bin!("ztensor"))
        .args(["compress", "m.zt", "-o", "out.zt", "-l", "3"])
        .current_dir(place.path(""))
        .stderr(Stdio::piped());
    Run::from(Held::start(command).signal("-HUP")).ends(0);
    assert_eq!(place.list(), ["m.zt", "out.zt"]);
}

#[test]
fn devices_and_pipes_are_not_replaced() {
    let place = Place::new();
    place.model("m.zt");
    assert!(Command::new("mkfifo").arg(place.path("pipe.zt")).status().unwrap().success());
    for args in [&["convert", "m.zt", "-o", "pipe.zt"], &["report", "m.zt", "-o", "pipe.zt"]] {
        place.run(args).fails(2, &["pipe.zt", "--force"]);
        place.run(&[&args[..], &["--force"]].concat()).fails(2, &["pipe.zt", "not a file"]);
    }
    assert_eq!(place.list(), ["m.zt", "pipe.zt"]);
    let legacy = fixture("zt/legacy_v01.zt");
    place.run(&["migrate", legacy.to_str().unwrap(), "-o", "/dev/null", "--force"]).ends(2);
}

#[test]
fn names_that_are_links_are_taken() {
    let place = Place::new();
    place.model("m.zt");
    std::fs::write(place.path("precious"), b"keep").unwrap();
    std::os::unix::fs::symlink("planted", place.path("new.zt")).unwrap();
    std::os::unix::fs::symlink("precious", place.path("old.zt")).unwrap();
    for link in ["new.zt", "old.zt"] {
        for args in [&["convert", "m.zt", "-o", link], &["compress", "m.zt", "-o", link]] {
            place.run(args).fails(2, &[link, "exists already", "--force"]);
        }
    }
    assert_eq!(std::fs::read(place.path("precious")).unwrap(), b"keep");
    assert!(!place.path("planted").exists());
    // What was chosen by hand and by force leads where the link does.
    place.run(&["convert", "m.zt", "-o", "new.zt", "--force"]).ends(0);
    assert!(place.path("new.zt").is_symlink());
    place.run(&["info", "planted"]).ends(0);
}

#[test]
fn a_journal_that_was_used_is_mentioned() {
    let place = Place::new();
    place.model("m.zt");
    let before = std::fs::read(place.path("m.zt")).unwrap();
    let mut writer = ztensor::Writer::append(place.path("m.zt")).unwrap();
    let journal = std::fs::read(place.path("m.zt.journal")).unwrap();
    writer.add("new", &[1], &[1u8]).unwrap();
    writer.finish().unwrap();
    assert!(!place.run(&["info", "m.zt"]).ends(0).out.contains("journal"));
    std::fs::write(place.path("m.zt.journal"), journal).unwrap();
    let run = place.run(&["info", "m.zt"]).ends(0);
    assert!(run.out.contains("journal") && run.out.contains("repair"), "{}", run.out);
    let json = place.run(&["info", "m.zt", "--json"]).ends(0).out;
    assert!(json.contains("\"limited_by_journal\": true"), "{json}");
    place.run(&["repair", "m.zt"]).ends(0);
    assert!(std::fs::read(place.path("m.zt")).unwrap() == before);
}
