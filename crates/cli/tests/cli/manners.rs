//! Help, pipes, colours.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::{Place, Run};

/// Every command there is, from the help itself.
pub fn commands(place: &Place) -> Vec<String> {
    commands_of(place, "ztensor")
}

/// Every command of a program, from the help itself.
pub fn commands_of(place: &Place, program: &str) -> Vec<String> {
    commands_in(&Run::from(place.program(program, &["--help"]).output().unwrap()).ends(0).out)
}

/// The commands that a help text lists; none if it has no such list.
pub fn commands_in(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
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

    // On standard output too: words of ours, never what a file says.
    std::fs::write(place.path("evil.pkl"), b"cos\nsystem\n(S'\\x1b[31m'\ntR.").unwrap();
    let found = |variable: &str| {
        let mut command = place.command(&["scan", "evil.pkl"]);
        command.env(variable, "1");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let plain = found("NO_COLOR");
    assert!(plain.starts_with("dangerous  evil.pkl: os.system("), "{plain:?}");
    let coloured = found("CLICOLOR_FORCE");
    assert!(coloured.starts_with("\u{1b}[1;31mdangerous \u{1b}[0m evil.pkl: "), "{coloured:?}");
    assert_eq!(coloured.matches('\u{1b}').count(), 2, "{coloured:?}");
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
