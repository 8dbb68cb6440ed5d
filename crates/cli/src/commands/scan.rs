//! `scan`: what untrusted files would run or access in other tools.

use std::io::Write;

use serde_json::{Value as Json, json};
use ztensor::scan::{self, Finding, Report, Severity};

use super::Common;
use crate::args::Scan;
use crate::failure::{DIFFERS, FINE, IO, Outcome};
use crate::human;
use crate::output::{self, Colour, Escaping};

pub fn run(options: &Scan, common: Common) -> Outcome {
    let mut out = output::stdout();
    let (mut severities, mut documents, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for path in &options.paths {
        let files = match path.is_dir() {
            true => scan::files(path),
            false => Ok(vec![path.clone()]),
        };
        for file in files.unwrap_or_else(|error| {
            failures.push(error.to_string());
            Vec::new()
        }) {
            match scan::scan(&file) {
                Ok(report) => {
                    severities.push(report.severity());
                    match options.json {
                        true => documents.push(document(&report)),
                        false => print(&mut out, &report, options.all)?,
                    }
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
    }
    let count = |wanted| severities.iter().filter(|severity| **severity == wanted).count() as u64;
    let (dangerous, suspicious) = (count(Severity::Dangerous), count(Severity::Suspicious));
    if options.json {
        let document = json!({
            "files": documents,
            "errors": failures,
            "totals": {"files": severities.len(), "dangerous": dangerous, "suspicious": suspicious},
        });
        // Escaped beyond what JSON asks for: the output may end on a terminal.
        let text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
        writeln!(out, "{}", ascii(&text))?;
    } else {
        let scanned = human::counted(severities.len() as u64, "file");
        writeln!(out, "{scanned} scanned: {dangerous} dangerous, {suspicious} suspicious")?;
    }
    out.flush()?;
    for failure in &failures {
        let failure = human::escaped(failure);
        output::say(Some(output::Label::Error), failure);
    }
    Ok(match (dangerous, suspicious) {
        (1.., _) => DIFFERS,
        (_, 1..) if common.strict => DIFFERS,
        _ if !failures.is_empty() => IO,
        _ => FINE,
    })
}

fn print<W: Write>(out: &mut Escaping<W>, report: &Report, all: bool) -> std::io::Result<()> {
    let path = report.path.to_string_lossy();
    let path = human::escaped(&path);
    for finding in &report.findings {
        if finding.severity == Severity::Innocuous && !all {
            continue;
        }
        let colour = match finding.severity {
            Severity::Dangerous => Colour::Red,
            Severity::Suspicious => Colour::Yellow,
            Severity::Innocuous => Colour::None,
        };
        out.word(colour, format_args!("{:<10}", finding.severity.name()))?;
        write!(out, " {path}")?;
        if !finding.place.is_empty() {
            write!(out, " > {}", human::escaped(&finding.place))?;
        }
        writeln!(out, ": {}", human::escaped(&described(finding)))?;
    }
    Ok(())
}

/// A call reads as one.
fn described(finding: &Finding) -> String {
    let times = match finding.calls {
        0 | 1 => String::new(),
        calls => format!(", called {} times", human::count(calls)),
    };
    match (&finding.arguments, finding.calls) {
        (Some(arguments), 1..) => format!("{}({arguments}){times}", finding.what),
        _ => format!("{}{times}", finding.what),
    }
}

fn document(report: &Report) -> Json {
    let findings: Vec<Json> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "severity": finding.severity.name(),
                "kind": finding.kind.name(),
                "place": finding.place,
                "what": finding.what,
                "arguments": finding.arguments,
                "calls": finding.calls,
            })
        })
        .collect();
    json!({
        "file": report.path.to_string_lossy(),
        "severity": report.severity().name(),
        "pickles": report.pickles,
        "findings": findings,
    })
}

/// JSON text with every character beyond ASCII, and DEL, as an escape.
fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | ' '..='~' => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}
