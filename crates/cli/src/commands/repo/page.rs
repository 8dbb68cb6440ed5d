//! `repo page`: an HTML page of a repository. It is all in one file, and has no script.

use std::collections::{BTreeMap, HashMap};

use ztensor::repository::{LogEntry, RecordId, RefKind, Repository, VersionUsage};

use super::super::Common;
use super::args::Page;
use super::{date, share};
use crate::failure::{FINE, Outcome};
use crate::human;
use crate::report::page::{digest, escaped};

const STYLE: &str = include_str!("page.css");

pub fn run(options: &Page, common: Common) -> Outcome {
    let repository = super::open(&options.repo)?;
    let to = options.output.check(&[])?;
    let page = page(&repository)?;
    ztensor::write_atomically(to, |out| {
        out.write_all(page.as_bytes()).map_err(|error| ztensor::Error::io("cannot write", error))
    })?;
    common.say(format_args!("{}: {}", human::path(&options.output.output), human::bytes(page.len() as u64)));
    Ok(FINE)
}

/// Everything that branches and tags lead to, newest first.
fn history(repository: &Repository) -> ztensor::Result<Vec<LogEntry>> {
    let mut entries: BTreeMap<RecordId, (usize, LogEntry)> = BTreeMap::new();
    for there in repository.refs()? {
        for (place, entry) in repository.log(&there.commit.to_string(), None)?.into_iter().enumerate() {
            let slot = entries.entry(entry.id).or_insert_with(|| (place, entry));
            slot.0 = slot.0.max(place);
        }
    }
    let mut entries: Vec<(usize, LogEntry)> = entries.into_values().collect();
    entries.sort_by_key(|(place, entry)| (std::cmp::Reverse(entry.commit.time), *place, entry.id));
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn page(repository: &Repository) -> ztensor::Result<String> {
    let usage = repository.usage(None)?;
    let entries = history(repository)?;
    let versions: HashMap<RecordId, &VersionUsage> =
        usage.versions.iter().map(|version| (version.id, version)).collect();
    let largest = usage.versions.iter().map(|version| version.needed).max().unwrap_or(0).max(1);
    let root = repository.root().display().to_string();
    let title = escaped(&human::escaped(&root));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'sha256-{}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n",
        digest(STYLE)
    );
    page.push_str(&format!(
        "<p id=\"summary\">{} in {}; {} stored, {} saved; {} of garbage</p>\n",
        human::bytes(usage.bytes),
        human::counted(usage.versions.len() as u64, "version"),
        human::bytes(usage.stored),
        share(usage.bytes.saturating_sub(usage.stored), usage.bytes),
        human::bytes(usage.unneeded),
    ));
    page.push_str(
        "<div class=\"card\"><table>\n<thead><tr><th>Version</th><th>Parents</th><th>Time</th><th>Refs</th>\
         <th class=\"number\">Size</th><th class=\"number\">Needs</th><th class=\"number\">New</th>\
         <th>New of what it needs</th><th>Message</th></tr></thead>\n<tbody>\n",
    );
    for entry in &entries {
        row(&mut page, entry, versions.get(&entry.id).copied(), largest);
    }
    page.push_str("</tbody></table></div>\n");
    page.push_str(&format!(
        "<p class=\"quiet\">Made by ztensor {}. “Needs” is what is stored for all tensors of a version, \
         “new” what no older version needs.</p>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(page)
}

fn row(page: &mut String, entry: &LogEntry, usage: Option<&VersionUsage>, largest: u64) {
    let text = |text: &str| escaped(&human::escaped(text));
    let id = entry.id.to_string();
    page.push_str(&format!("<tr id=\"{id}\"><td><code>{}</code></td><td>", entry.id.short()));
    for parent in &entry.commit.parents {
        page.push_str(&format!("<a href=\"#{parent}\"><code>{}</code></a> ", parent.short()));
    }
    page.push_str(&format!("</td><td>{}</td><td>", date(entry.commit.time)));
    for there in &entry.refs {
        let tag = if there.kind == RefKind::Tag { " tag" } else { "" };
        page.push_str(&format!("<span class=\"ref{tag}\">{}</span>", text(&there.name)));
    }
    let message = text(entry.commit.message.lines().next().unwrap_or_default());
    match usage {
        Some(version) => {
            let width = |bytes: u64| bytes as f64 * 160.0 / largest as f64;
            page.push_str(&format!(
                "</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
                 <td><svg viewBox=\"0 0 160 12\" aria-hidden=\"true\">\
                 <rect class=\"shared\" width=\"{:.2}\" height=\"12\"/>\
                 <rect class=\"new\" width=\"{:.2}\" height=\"12\"/></svg></td><td>{message}</td></tr>\n",
                human::bytes(version.bytes),
                human::bytes(version.needed),
                human::bytes(version.new),
                width(version.needed),
                width(version.new),
            ));
        }
        None => page.push_str(&format!(
            "</td><td class=\"number\">{}</td><td></td><td></td><td class=\"quiet\">forgotten</td>\
             <td>{message}</td></tr>\n",
            human::bytes(entry.commit.bytes)
        )),
    }
}
