//! Help, pipes, colours, interruption.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Place, Run};

/// Every command there is, from the help itself.
pub fn commands(place: &Place) -> Vec<String> {
    commands_of(place, "ztensor")
}

/// Every command of a program, from the help itself.
pub fn commands_of(place: &Place, program: &str) -> Vec<String> {
    let help = Run::from(place.program(program, &["--help"]).output().unwrap()).ends(0).out;
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let own = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names = list.lines().filter(own).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_help_with_examples() {
    let place = Place::new();
    let commands = commands(&place);
    assert!(commands.len() >= 13, "{commands:?}");
    for command in commands {
        let help = place.run(&[&command, "--help"]).ends(0).out;
        assert!(help.contains(&format!("  ztensor {command} ")), "{command} has no example:\n{help}");
    }
    let version = place.run(&["--version"]).ends(0).out;
    assert_eq!(version, format!("ztensor {}\n", env!("CARGO_PKG_VERSION")));
    place.run(&[]).ends(2);
    place.run(&["nonsense"]).ends(2);
    place.run(&["convert", "--levle"]).ends(2);
    place.run(&["compress", "a.zt", "-o", "b.zt", "-l", "23"]).ends(2);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let place = Place::new();
    let mut writer = ztensor::Writer::create(place.path("many.zt")).unwrap();
    for index in 0..20_000 {
        writer.add(&format!("tensor_{index}"), &[1], &[0u8]).unwrap();
    }
    writer.finish().unwrap();
    for format in ["--json", "--csv", "--all"] {
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("ztensor"))
            .args(["info", format])
            .arg(place.path("many.zt"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert_eq!((child.wait().unwrap().code(), error.as_str()), (Some(0), ""), "{format}");
    }
}

#[test]
fn colour_is_for_terminals() {
    let place = Place::new();
    let plain = place.run(&["info", "absent.zt"]).ends(4).err;
    assert!(plain.starts_with("error: ") && !plain.contains('\u{1b}'), "{plain:?}");
    let error = |variables: &[(&str, &str)]| {
        let mut command = place.command(&["info", "absent.zt"]);
        command.envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert!(error(&[("CLICOLOR_FORCE", "1")]).contains('\u{1b}'));
    assert!(!error(&[("NO_COLOR", "1")]).contains('\u{1b}'));
}

#[test]
fn shells_and_man_are_served() {
    let place = Place::new();
    let commands = commands(&place);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).ends(0).out;
        assert!(commands.iter().all(|command| script.contains(command.as_str())), "{shell}");
    }
    place.run(&["completions", "nosuchshell"]).ends(2);
    let page = place.run(&["man"]).ends(0).out;
    assert!(page.contains(".TH ztensor 1"), "{page}");
    for command in commands {
        assert!(page.contains(&format!(".SH \"ZTENSOR {}\"", command.to_uppercase())), "{command}");
    }
}

#[test]
fn quiet_says_nothing() {
    let place = Place::new();
    place.model("m.zt");
    let run = place.run(&["convert", "m.zt", "-o", "n.zt", "--quiet"]).ends(0);
    assert_eq!((run.out.as_str(), run.err.as_str()), ("", ""));
}

#[cfg(unix)]
#[test]
fn an_interrupted_command_leaves_nothing_behind() {
    let place = Place::new();
    // Enough work at the slowest level that the signal comes in the middle of it.
    let mut writer = ztensor::Writer::create(place.path("big.zt")).unwrap();
    let mut state = 1u32;
    for index in 0..64 {
        let numbers: Vec<u32> = (0..1 << 18)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 12
            })
            .collect();
        writer.add(&format!("t{index}"), &[1 << 18], &numbers).unwrap();
    }
    writer.finish().unwrap();
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("ztensor"))
        .args(["compress", "big.zt", "-o", "out.zt", "-l", "22", "--threads", "1"])
        .current_dir(place.path(""))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while place.list().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no output was begun");
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{error}");
    assert_eq!(place.list(), ["big.zt"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_the_system() {
    let place = Place::new();
    place.model("m.zt");
    let run = place.command(&["info", "m.zt"]).output().unwrap();
    assert!(run.status.success());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("ztensor"))
        .args(["info", "m.zt"])
        .current_dir(place.path(""))
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: "));
}
