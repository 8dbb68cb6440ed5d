//! Members of archives. Where a zip's two directories disagree, or it is damaged, its members are
//! found by their local headers, whatever the directory says of them.

use super::containers::{Scanner, join};
use super::{FindingKind, Severity};
use crate::format::zip::{self, Method};
use crate::source::MemorySource;

/// Local headers that are followed.
const MAX_MEMBERS: usize = 1 << 20;
const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";

/// Whether a zip archive ends here, whatever stands before it.
pub(super) fn has_end(bytes: &[u8]) -> bool {
    // The record, and a comment of up to 64 KiB.
    let tail = &bytes[bytes.len().saturating_sub(22 + 0xffff)..];
    bytes.len() >= 22
        && tail.windows(END.len()).any(|window| window == END)
        && find(bytes, CENTRAL, 0).is_some()
}

pub(super) fn scan(scanner: &mut Scanner, place: &str, bytes: &[u8], depth: usize) {
    let source = MemorySource::new(bytes);
    match zip::entries(&source) {
        Ok(entries) => {
            for entry in entries {
                // The directory was checked: members lie inside the file.
                let stored = &bytes[entry.data.offset as usize..][..entry.data.len as usize];
                let inner = join(place, &entry.name);
                let name = last(&entry.name);
                match entry.method {
                    Method::Stored => scanner.file(&inner, name, stored, depth + 1),
                    Method::Deflated => {
                        if let Some(inflated) = scanner.inflate(&inner, name, stored) {
                            scanner.file(&inner, name, &inflated, depth + 1);
                        }
                    }
                }
            }
        }
        Err(error) => {
            let what = format!("readers may see different members: {error}");
            scanner.add(Severity::Suspicious, FindingKind::Archive, place, what);
            carve(scanner, place, bytes, depth);
        }
    }
}

/// Looks at every local header, by every way to read its data.
fn carve(scanner: &mut Scanner, place: &str, bytes: &[u8], depth: usize) {
    let mut next = find(bytes, LOCAL, 0);
    let mut central = find(bytes, CENTRAL, 0);
    for _ in 0..MAX_MEMBERS {
        let Some(at) = next.filter(|_| !scanner.is_exhausted()) else { return };
        next = find(bytes, LOCAL, at + LOCAL.len());
        let Some(header) = bytes.get(at..at + 30) else { return };
        let short = |offset: usize| usize::from(u16::from_le_bytes([header[offset], header[offset + 1]]));
        let start = at + 30 + short(26) + short(28);
        let Some(data) = bytes.get(start..) else { continue };
        let name = String::from_utf8_lossy(&bytes[at + 30..at + 30 + short(26)]).into_owned();
        let inner = join(place, &name);
        let name = last(&name);
        let stored = u32::from_le_bytes([header[18], header[19], header[20], header[21]]) as usize;
        if central.is_some_and(|central| central < start) {
            central = find(bytes, CENTRAL, start);
        }
        let end = [next, central].into_iter().flatten().min().unwrap_or(bytes.len());
        let until_next = end.saturating_sub(start);
        let len = if (1..data.len()).contains(&stored) { stored } else { until_next };
        scanner.file(&inner, name, &data[..len], depth + 1);
        if let Some(inflated) = scanner.inflate(&inner, name, data) {
            scanner.file(&inner, name, &inflated, depth + 1);
        }
    }
    scanner.add(Severity::Suspicious, FindingKind::Unscanned, place, "the archive has too many members");
}

/// A tar archive: a header of 512 bytes before each member.
pub(super) fn scan_tar(scanner: &mut Scanner, place: &str, bytes: &[u8], depth: usize) {
    let mut at = 0usize;
    while let Some(header) = bytes.get(at..at.saturating_add(512)) {
        if header.iter().all(|byte| *byte == 0) {
            return;
        }
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            let len = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
            String::from_utf8_lossy(&field[..len]).into_owned()
        };
        let name = text(0..100);
        let Ok(size) = usize::from_str_radix(text(124..136).trim(), 8) else {
            return scanner.add(
                Severity::Suspicious,
                FindingKind::Broken,
                place,
                "the tar archive is broken",
            );
        };
        let start = at + 512;
        let end = start.saturating_add(size).min(bytes.len());
        scanner.file(&join(place, &name), last(&name), &bytes[start..end], depth + 1);
        at = match start.checked_add(size).and_then(|end| end.checked_next_multiple_of(512)) {
            Some(next) => next,
            None => return,
        };
    }
}

fn last(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

fn find(bytes: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let mut at = 0;
    while let Some(offset) = rest[at..].iter().position(|byte| *byte == wanted[0]) {
        at += offset;
        if rest[at..].starts_with(wanted) {
            return Some(from + at);
        }
        at += 1;
    }
    None
}
