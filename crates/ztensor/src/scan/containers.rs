//! What a file is, and what of it is to be looked at: pickles, archives, compressed data, models.

use std::io::Read;

use super::pickle::{self, End, Followed, Nested};
use super::{Finding, FindingKind, Severity, archive, keras, onnx};
use crate::format::pickle::opcode as op;
use crate::format::{Probe, Verdict, zip};
use crate::source::MemorySource;

/// Archives in archives, and pickles in pickles.
const MAX_DEPTH: usize = 8;
/// Findings of one file.
const MAX_FINDINGS: usize = 10_000;
/// Opcodes of all pickles of a file, per byte and at least: pickles are looked for at many places.
const STEPS: (u64, u64) = (4, 1 << 16);
/// Decompressed bytes of a file, per byte and at least.
const INFLATED: (u64, u64) = (64, 64 << 20);
/// Bytes that are looked at, per byte of the file and at least: members and nested pickles overlap.
const LOOKED_AT: (u64, u64) = (80, 128 << 20);
/// Bytes of a member from which it is told what it is.
const HEAD: usize = 4096;
/// Members of no known kind are searched for pickles behind other bytes up to this size.
const SEARCHED: usize = 1 << 20;
/// What follows a whole pickle is searched up to this size.
const TRAILING: usize = 64 << 20;
/// Larger descriptions of models do not occur.
const MAX_JSON: usize = 64 << 20;

/// Extensions of files that are loaded as pickles.
const PICKLES: &[&str] = &[
    "pkl",
    "pickle",
    "pk",
    "p",
    "pt",
    "pth",
    "bin",
    "ckpt",
    "joblib",
    "dat",
    "data",
    "dill",
    "pth2",
    "pt2",
    "model",
    "jit",
    "torchscript",
    "npy",
    "sav",
];

/// What keeps data compressed in a way that is not read here.
const UNREAD: &[(&[u8], &str)] = &[
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "RAR"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "LZ4"),
];

pub(super) struct Scanner {
    pub(super) findings: Vec<Finding>,
    pub(super) pickles: u64,
    steps: u64,
    inflated: u64,
    looked_at: u64,
    out_of_steps: bool,
}

impl Scanner {
    /// For a file of `len` bytes.
    pub(super) fn new(len: u64) -> Scanner {
        let bound = |(factor, least): (u64, u64)| len.saturating_mul(factor).saturating_add(least);
        Scanner {
            findings: Vec::new(),
            pickles: 0,
            steps: bound(STEPS),
            inflated: bound(INFLATED),
            looked_at: bound(LOOKED_AT),
            out_of_steps: false,
        }
    }

    pub(super) fn add(
        &mut self,
        severity: Severity,
        kind: FindingKind,
        place: &str,
        what: impl Into<String>,
    ) {
        self.push(Finding {
            severity,
            kind,
            place: place.to_owned(),
            what: what.into(),
            arguments: None,
            calls: 0,
        });
    }

    fn push(&mut self, finding: Finding) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
        } else if self.findings.len() == MAX_FINDINGS {
            self.findings.push(Finding {
                severity: Severity::Dangerous,
                kind: FindingKind::Unscanned,
                place: String::new(),
                what: format!("more than {MAX_FINDINGS} findings; the rest is not listed"),
                arguments: None,
                calls: 0,
            });
        }
    }

    /// Looks at a file or a member of an archive, called `name`, at `place` in the scanned file.
    pub(super) fn file(&mut self, place: &str, name: &str, bytes: &[u8], depth: usize) {
        if depth > MAX_DEPTH {
            let what = format!("archives or pickles nested more than {MAX_DEPTH} deep");
            return self.add(Severity::Suspicious, FindingKind::Unscanned, place, what);
        }
        if self.is_exhausted() {
            return;
        }
        // Finding out what a member is costs about its head.
        self.looked_at = self.looked_at.saturating_sub((bytes.len() + HEAD) as u64);
        if self.is_exhausted() {
            let what = "more overlapping members than this scanner looks at";
            return self.add(Severity::Suspicious, FindingKind::Unscanned, place, what);
        }
        let extension = extension(name);
        let mut known = self.container(place, name, bytes, depth);
        // A file can be two things at once: as what it is loaded is up to the loader.
        if bytes.starts_with(b"{") {
            known |= self.json(place, bytes);
        }
        if extension == "onnx" || !known && is_onnx(name, bytes) {
            onnx::scan(self, place, bytes);
            known = true;
        }
        let is_data = known || is_tensor_file(bytes);
        let searched = match is_data {
            true => false,
            false => PICKLES.contains(&&*extension) || bytes.len() <= SEARCHED || depth == 0,
        };
        self.pickles_in(place, bytes, 0, depth, searched, PICKLES.contains(&&*extension));
    }

    /// Whether the limit of what is looked at was reached.
    pub(super) fn is_exhausted(&self) -> bool {
        self.looked_at == 0
    }

    /// Looks into archives and compressed data; whether it is one.
    fn container(&mut self, place: &str, name: &str, bytes: &[u8], depth: usize) -> bool {
        if bytes.starts_with(zip::MAGIC) || archive::has_end(bytes) {
            archive::scan(self, place, bytes, depth);
            return true;
        }
        if bytes.starts_with(b"\x93NUMPY") {
            self.npy(place, bytes, depth);
            return true;
        }
        if bytes.starts_with(keras::HDF5_MAGIC) {
            keras::scan_hdf5(self, place, bytes);
            return true;
        }
        if bytes.get(257..262) == Some(b"ustar") {
            archive::scan_tar(self, place, bytes, depth);
            return true;
        }
        if bytes.starts_with(b"\x1f\x8b") {
            let reader = flate2::read::MultiGzDecoder::new(bytes);
            return self.compressed(place, name, reader, depth);
        }
        if matches!(bytes, [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]) {
            let reader = flate2::read::ZlibDecoder::new(bytes);
            return self.compressed(place, name, reader, depth);
        }
        if let Some((_, what)) = UNREAD.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            let what = format!("{what} data is not unpacked: unpack it and scan what is inside");
            self.add(Severity::Suspicious, FindingKind::Unscanned, place, what);
            return true;
        }
        false
    }

    /// Decompresses and looks at what comes out; whether anything does.
    fn compressed(&mut self, place: &str, name: &str, mut reader: impl Read, depth: usize) -> bool {
        let mut out = Vec::new();
        let room = self.inflated;
        let ended = reader.by_ref().take(room).read_to_end(&mut out);
        self.inflated -= out.len() as u64;
        if out.is_empty() {
            return false;
        }
        self.report_inflated(place, ended.is_err());
        let inner = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        self.file(&join(place, "decompressed"), inner, &out, depth + 1);
        true
    }

    /// Reports decompression that hit the limit or ended in an error.
    fn report_inflated(&mut self, place: &str, broken: bool) {
        if self.inflated == 0 {
            let message = "expands beyond the limit of this scanner";
            self.add(Severity::Suspicious, FindingKind::Unscanned, place, message);
        } else if broken {
            self.add(Severity::Suspicious, FindingKind::Broken, place, "compressed data is broken");
        }
    }

    /// Inflates a member: all of it if it is worth looking at, else nothing.
    pub(super) fn inflate(&mut self, place: &str, name: &str, stored: &[u8]) -> Option<Vec<u8>> {
        let mut reader = flate2::read::DeflateDecoder::new(stored);
        let mut out = Vec::new();
        // What comes before a break counts.
        let _ = reader.by_ref().take(HEAD as u64).read_to_end(&mut out);
        if !worth_a_look(name, &out) {
            return None;
        }
        let room = self.inflated.saturating_sub(out.len() as u64);
        let before = out.len();
        let ended = reader.by_ref().take(room).read_to_end(&mut out);
        self.inflated = room - (out.len() - before) as u64;
        self.report_inflated(place, ended.is_err());
        Some(out)
    }

    /// A NumPy array: one of objects is a pickle behind a header.
    fn npy(&mut self, place: &str, bytes: &[u8], depth: usize) {
        let (len, start): (usize, usize) = match bytes {
            [_, _, _, _, _, _, 1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
            [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
            _ => return,
        };
        let header = &bytes[start..start.saturating_add(len).min(bytes.len())];
        if header.contains(&b'O') || header.len() < len {
            let data = start + header.len();
            self.pickles_in(place, bytes, data, depth, true, true);
        }
    }

    fn json(&mut self, place: &str, bytes: &[u8]) -> bool {
        if bytes.len() > MAX_JSON {
            return false;
        }
        std::str::from_utf8(bytes).is_ok_and(|text| keras::scan_json(self, place, text))
    }

    /// Follows the pickle at `start` and those behind it. With `searched`, pickles behind other
    /// bytes are looked for too.
    fn pickles_in(
        &mut self,
        place: &str,
        bytes: &[u8],
        start: usize,
        depth: usize,
        searched: bool,
        expected: bool,
    ) {
        let mut at = start;
        let mut whole = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| pickle::may_start(rest)) {
            let followed = pickle::follow(bytes, at, self.steps);
            self.spend(place, &followed);
            let stopped = followed.end == End::Stop;
            let has_protocol = rest[0] == op::PROTO;
            // Text and numbers follow the opcodes of the first protocols for a while.
            if !(stopped && (has_protocol || whole > 0 || followed.opcodes > 0)
                || is_telling(&followed, has_protocol))
            {
                break;
            }
            if stopped && !has_protocol && followed.globals.is_empty() && whole == 0 && !expected {
                break;
            }
            let (position, end) = (followed.position, followed.end);
            self.followed(place, bytes, followed, depth);
            at = position;
            whole += 1;
            if end != End::Stop {
                if end == End::Broken && (has_protocol || expected) {
                    let what = format!("the pickle breaks off at byte {position}");
                    self.add(Severity::Suspicious, FindingKind::Broken, place, what);
                }
                self.search(place, bytes, position, depth);
                return;
            }
        }
        if whole > 0 {
            let end = at.saturating_add(TRAILING).min(bytes.len());
            self.search(place, &bytes[..end], at, depth);
        } else if searched {
            self.search(place, bytes, at, depth);
        }
    }

    /// Looks for pickles with a protocol, and for names of dangerous functions, anywhere.
    fn search(&mut self, place: &str, bytes: &[u8], start: usize, depth: usize) {
        let Some(rest) = bytes.get(start..) else { return };
        let mut covered = start;
        for (offset, _) in rest.iter().enumerate().filter(|(_, byte)| **byte == op::PROTO) {
            let at = start + offset;
            if at < covered || self.steps == 0 || !pickle::may_start(&bytes[at..]) {
                continue;
            }
            let followed = pickle::follow(bytes, at, self.steps);
            self.spend(place, &followed);
            let readable = followed.globals.iter().all(|global| is_readable(&global.name));
            if is_telling(&followed, true)
                || followed.end == End::Stop && readable && !followed.globals.is_empty()
            {
                covered = followed.position;
                let inner = join(place, &format!("byte {at}"));
                self.followed(&inner, bytes, followed, depth);
            }
        }
        for name in pickle::carve(rest) {
            if !self.findings.iter().any(|finding| finding.what == name) {
                self.add(Severity::Dangerous, FindingKind::Global, place, name);
            }
        }
    }

    fn spend(&mut self, place: &str, followed: &Followed) {
        self.steps = self.steps.saturating_sub(followed.cost);
        if (self.steps == 0 || followed.end == End::Limit) && !self.out_of_steps {
            self.out_of_steps = true;
            let what = "more opcodes or values than this scanner follows";
            self.add(Severity::Suspicious, FindingKind::Unscanned, place, what);
        }
    }

    /// Lists what a pickle does, and looks at the files inside it.
    fn followed(&mut self, place: &str, bytes: &[u8], followed: Followed, depth: usize) {
        self.pickles += 1;
        for global in followed.globals {
            let kind = if global.calls > 0 { FindingKind::Call } else { FindingKind::Global };
            self.push(Finding {
                severity: global.severity,
                kind,
                place: place.to_owned(),
                what: global.name,
                arguments: global.arguments,
                calls: global.calls,
            });
        }
        for (count, what) in [
            (followed.computed_calls, "calls of what other calls returned"),
            (followed.persistent, "persistent ids, which the loader's own code resolves"),
            (followed.extensions, "codes of the extension registry, which stand for any function"),
        ] {
            if count > 0 {
                self.add(Severity::Suspicious, FindingKind::Pickle, place, format!("{count} {what}"));
            }
        }
        for nested in followed.nested {
            match nested {
                Nested::Span { start, len } => {
                    let inner = join(place, &format!("bytes at {start}"));
                    self.file(&inner, "", &bytes[start..start + len], depth + 1);
                }
                Nested::Decoded(inside) => {
                    self.file(&join(place, "string"), "", &inside, depth + 1);
                }
            }
        }
    }
}

/// Whether what was followed is a pickle although it did not end as one.
fn is_telling(followed: &Followed, has_protocol: bool) -> bool {
    followed.globals.iter().any(|global| {
        is_readable(&global.name)
            && match global.severity {
                Severity::Dangerous => global.name.len() > 3,
                _ => has_protocol,
            }
    })
}

/// Whether a name could be one that Python has.
fn is_readable(name: &str) -> bool {
    name.contains('.')
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '…'))
}

/// A member that may hold something other than numbers.
fn worth_a_look(name: &str, head: &[u8]) -> bool {
    let extension = extension(name);
    PICKLES.contains(&&*extension) && !head.starts_with(b"\x93NUMPY")
        || head.starts_with(b"\x93NUMPY") && head[..head.len().min(256)].contains(&b'O')
        || matches!(&*extension, "json" | "h5" | "hdf5" | "onnx" | "zip" | "keras" | "npz" | "gz" | "tar")
        || pickle::may_start(head)
        || [zip::MAGIC, keras::HDF5_MAGIC, b"\x1f\x8b"].iter().any(|magic| head.starts_with(magic))
        || head.get(257..262) == Some(b"ustar")
        || UNREAD.iter().any(|(magic, _)| head.starts_with(magic))
}

/// Formats that hold tensors and nothing that runs.
fn is_tensor_file(bytes: &[u8]) -> bool {
    let safetensors = |bytes: &[u8]| match bytes {
        [a, b, c, d, e, f, g, h, b'{', ..] => {
            u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) <= bytes.len() as u64
        }
        _ => false,
    };
    bytes.starts_with(b"GGUF")
        || bytes.starts_with(b"ZTEN")
        || bytes.starts_with(b"ZSTN")
        || safetensors(bytes)
}

fn is_onnx(name: &str, bytes: &[u8]) -> bool {
    // A protobuf of a model starts with its version; the whole of its top level is walked to be sure.
    if !matches!(bytes, [0x08, ..]) || PICKLES.contains(&&*extension(name)) {
        return false;
    }
    let source = MemorySource::new(bytes);
    let head = &bytes[..bytes.len().min(HEAD)];
    let probe = Probe { head, source: &source, directory: &zip::Directory::default(), extension: None };
    (crate::format::onnx::DRIVER.detect)(&probe) == Verdict::Yes
}

pub(super) fn extension(name: &str) -> String {
    name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).unwrap_or_default()
}

pub(super) fn join(place: &str, inner: &str) -> String {
    match place {
        "" => inner.to_owned(),
        place => format!("{place} > {inner}"),
    }
}
