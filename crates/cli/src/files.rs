//! The input files of a command: several, patterns, standard input.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ztensor::source::{MemorySource, Source};

use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::select::glob;

/// Whether a path stands for standard input or output.
pub fn is_pipe(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Standard input, all of it.
pub fn stdin() -> Result<Arc<dyn Source>, Failure> {
    let mut data = Vec::new();
    std::io::stdin()
        .lock()
        .read_to_end(&mut data)
        .map_err(|error| Failure::io(format!("cannot read -: {}", human::cause(&error))))?;
    Ok(Arc::new(MemorySource::new(data)))
}

/// The paths with patterns such as `models/*.safetensors` expanded, for shells that do not.
pub fn expanded(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !name.contains(['*', '?']) || ztensor::remote::is_url(path) || path.exists() {
            all.push(path.clone());
            continue;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries
            .map(|entry| entry.file_name())
            .filter(|entry| entry.to_str().is_some_and(|entry| !entry.starts_with('.') && glob(name, entry)))
            .map(|entry| folder.map_or_else(|| PathBuf::from(&entry), |folder| folder.join(&entry)))
            .collect();
        if found.is_empty() {
            return Err(Failure::usage(format!("no file matches {}", path.display())));
        }
        found.sort();
        all.extend(found);
    }
    Ok(all)
}

/// Runs `work` on each file. With several, a file that fails is reported and the others follow;
/// the result is the first code that is not success.
pub fn each(paths: &[PathBuf], mut work: impl FnMut(&Path) -> Outcome) -> Outcome {
    if let [path] = paths {
        return work(path);
    }
    let mut code = FINE;
    for path in paths {
        let one = match work(path) {
            Ok(one) => one,
            Err(failure) if failure.is_closed_pipe() => return Err(failure),
            Err(failure) => failure.report(),
        };
        code = if code == FINE { one } else { code };
    }
    Ok(code)
}
