//! What an untrusted file would run or access in other tools, found without running any of it.
//!
//! Pickles import names and call them; Keras models carry marshalled functions in `Lambda` layers;
//! ONNX models name files beside them and operators of other domains. [`scan`] looks through files,
//! archives and folders and lists what it finds, with a [`Severity`] each. Memory and work are
//! bounded by the size of what is scanned and by fixed limits; what a limit kept from being looked
//! at is a finding of its own.
//!
//! ```
//! use ztensor::scan::{Severity, scan_bytes};
//!
//! let report = scan_bytes("model.pkl", b"cos\nsystem\n(S'id'\ntR.");
//! assert_eq!(report.severity(), Severity::Dangerous);
//! assert_eq!(report.findings[0].what, "os.system");
//! ```
#![forbid(unsafe_code)]

mod archive;
mod containers;
mod keras;
mod onnx;
mod pickle;
pub(crate) mod policy;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use policy::{Severity, classify};

use crate::error::{Error, Result};
use crate::remote::Options;
use crate::source::{self, MapMode, MemorySource, Source};
use containers::Scanner;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A name that a pickle imports without calling it.
    Global,
    /// A name that a pickle imports and calls.
    Call,
    /// Something else that a pickle asks its loader for.
    Pickle,
    /// A pickle that breaks off: what comes behind was searched for names only.
    Broken,
    /// Code, or a function of another module, in a Keras model.
    Keras,
    /// A file or an operator that an ONNX model needs from elsewhere.
    Onnx,
    /// An archive that readers may see differently.
    Archive,
    /// Something that was not looked at, or not all of it.
    Unscanned,
}

impl FindingKind {
    /// The name that reports show.
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Global => "global",
            FindingKind::Call => "call",
            FindingKind::Pickle => "pickle",
            FindingKind::Broken => "broken",
            FindingKind::Keras => "keras",
            FindingKind::Onnx => "onnx",
            FindingKind::Archive => "archive",
            FindingKind::Unscanned => "unscanned",
        }
    }
}

/// One thing that a file would run or access.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is.
    pub kind: FindingKind,
    /// Where inside the file: members of archives, nested pickles. Empty for the file itself.
    /// Untrusted text.
    pub place: String,
    /// The name, or what it is. Untrusted text.
    pub what: String,
    /// Arguments of the first call, as far as they are known. Untrusted text.
    pub arguments: Option<String>,
    /// How often it is called.
    pub calls: u64,
}

/// What a scan of one file found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// The file.
    pub path: PathBuf,
    /// Everything found, in the order of the file.
    pub findings: Vec<Finding>,
    /// Pickles that were followed.
    pub pickles: u64,
}

impl Report {
    /// The worst of the findings.
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Innocuous)
    }
}

/// Scans a file. Nothing in it is run; it may be damaged in any way.
pub fn scan(path: impl AsRef<Path>) -> Result<Report> {
    let path = path.as_ref();
    let source = source::open(path, MapMode::Auto, &Options::default())?;
    let mut report = match source.mapped() {
        Ok(_) => scan_source(path, &source),
        // A place that cannot be mapped is read into memory.
        Err(_) => {
            let bytes = source.bytes(0, source.len())?.into_owned();
            let memory: Arc<dyn Source> = Arc::new(MemorySource::new(bytes));
            scan_source(path, &memory)
        }
    };
    report.path = path.to_owned();
    Ok(report)
}

/// Scans a file that lies in memory; `name` is what it would be called.
pub fn scan_bytes(name: &str, bytes: &[u8]) -> Report {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(bytes.to_vec()));
    scan_source(Path::new(name), &source)
}

fn scan_source(path: &Path, source: &Arc<dyn Source>) -> Report {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut scanner = Scanner::new(source.len());
    if let Ok(bytes) = source.mapped() {
        scanner.file("", &name, bytes, 0);
    }
    Report { path: path.to_owned(), findings: scanner.findings, pickles: scanner.pickles }
}

/// Files of a folder and of those in it, sorted. Links to files are followed, links to folders not.
pub fn files(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    const MAX_DEPTH: usize = 64;
    let mut found = Vec::new();
    let mut folders = vec![(folder.as_ref().to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let failed = |cause| Error::io("listing the folder", cause).in_file(&folder);
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let kind = entry.file_type().map_err(failed)?;
            let path = entry.path();
            if kind.is_dir() {
                if depth >= MAX_DEPTH {
                    return Err(
                        Error::limit(format!("folders are nested more than {MAX_DEPTH} deep")).in_file(&path)
                    );
                }
                folders.push((path, depth + 1));
            } else if std::fs::metadata(&path).is_ok_and(|target| target.is_file()) {
                // Pipes and devices are no files, and would wait.
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
