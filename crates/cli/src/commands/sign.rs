//! `sign`, and `verify --signature`: signatures in the OpenSSF Model Signing format.

use std::io::Write;
use std::path::{Path, PathBuf};

use ztensor::ErrorKind;

use super::Common;
use crate::args::{Sign, Verify};
use crate::failure::{FINE, Failure, Outcome};
use crate::signature::keys::{PrivateKey, PublicKey};
use crate::signature::manifest::{Algorithm, Listing, USUALLY_IGNORED};
use crate::signature::{self, Statement};
use crate::ui::Progress;
use crate::{files, human};

/// A key is a few lines.
const MAX_KEY: u64 = 64 << 10;

pub fn sign(options: &Sign, common: Common) -> Outcome {
    let model = local(&options.model)?;
    let output = options.output();
    let to = crate::args::Output { output: output.clone(), force: options.force }.check(&[model])?;
    let key =
        PrivateKey::parse(&text(&options.key, MAX_KEY)?).map_err(|failure| about(&options.key, failure))?;
    let mut ignored: Vec<String> = USUALLY_IGNORED.iter().map(|path| (*path).to_owned()).collect();
    ignored.extend(options.ignore.iter().cloned());
    ignored.extend(inside(model, &output));
    let listing = Listing {
        algorithm: Algorithm::Sha256,
        ignored: &ignored,
        follow_links: options.allow_symlinks,
        threads: common.threads,
    };
    let files = {
        let progress = Progress::new("hashing", size(model), common.quiet);
        listing.digests(model, &progress)?
    };
    let content_id = content_id(model, common)?;
    let name = model.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let statement = Statement {
        name: name.unwrap_or_else(|| "model".to_owned()),
        files,
        algorithm: listing.algorithm,
        ignored: ignored.clone(),
        follow_links: options.allow_symlinks,
        content_id,
    };
    let signed = signature::sign(&statement, &key)?;
    crate::ui::catch_interrupts();
    ztensor::write_atomically(to, |out| {
        out.write_all(signed.as_bytes()).map_err(|error| ztensor::Error::io("cannot write", error))
    })?;
    let covered = match statement.content_id {
        Some(id) => format!(" and its content {id}"),
        None => String::new(),
    };
    let files = human::counted(statement.files.len() as u64, "file");
    common.say(format_args!("{}: signed {files}{covered}", human::path(&output)));
    Ok(FINE)
}

/// Compares models with what was signed.
pub fn verify(options: &Verify, common: Common) -> Outcome {
    let signature = options.signature.as_deref().ok_or_else(|| Failure::usage("--signature is missing"))?;
    let key = options.key.as_deref().ok_or_else(|| Failure::usage("--signature needs --key"))?;
    let key_text = text(key, MAX_KEY)?;
    let key = PublicKey::parse(&key_text).map_err(|failure| about(key, failure))?;
    let bundle = bytes(signature, signature::MAX_LEN)?;
    let statement = signature::verify(&bundle, &key).map_err(|failure| about(signature, failure))?;
    let paths = files::expanded(&options.files)?;
    files::each(&paths, |path| verify_one(path, &statement, signature, options, common))
}

fn verify_one(
    model: &Path,
    statement: &Statement,
    signature: &Path,
    options: &Verify,
    common: Common,
) -> Outcome {
    let difference = match difference(local(model)?, statement, signature, common)? {
        None => {
            let files = human::counted(statement.files.len() as u64, "file");
            return say(format_args!("{}: OK ({files} as signed)", human::path(model)));
        }
        Some(difference) => difference,
    };
    let differs = |why: &str| Err(Failure::differs(format!("{}: {difference}{why}", human::path(model))));
    let Some(signed) = statement.content_id.filter(|_| !options.exact) else {
        return differs("");
    };
    match content_id(model, common)? {
        Some(found) if found == signed => say(format_args!(
            "{}: OK (tensors as signed, {signed}; not the files that were signed, so metadata and other files \
             are not covered)",
            human::path(model)
        )),
        Some(_) => differs("; its tensors are not those that were signed either"),
        None => differs(""),
    }
}

fn say(line: std::fmt::Arguments<'_>) -> Outcome {
    let mut out = crate::output::stdout();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(FINE)
}

/// How the files of a model differ from those that were signed.
fn difference(
    model: &Path,
    statement: &Statement,
    signature: &Path,
    common: Common,
) -> Result<Option<String>, Failure> {
    let mut ignored = statement.ignored.clone();
    ignored.extend(inside(model, signature));
    let listing = Listing {
        algorithm: statement.algorithm,
        ignored: &ignored,
        follow_links: statement.follow_links,
        threads: common.threads,
    };
    let progress = Progress::new("hashing", size(model), common.quiet);
    let found = listing.digests(model, &progress)?;
    let lookup = |files: &[(String, Vec<u8>)], name: &str| {
        files.binary_search_by(|(one, _)| one.as_str().cmp(name)).ok().map(|index| files[index].1.clone())
    };
    let mut signed = statement.files.clone();
    signed.sort();
    for (name, digest) in &signed {
        match lookup(&found, name) {
            None => return Ok(Some(format!("the file {} is missing", human::escaped(name)))),
            Some(other) if other != *digest => {
                // A single file has the name "." in its signature.
                return Ok(Some(match name.as_str() {
                    "." => "it is not the file that was signed".to_owned(),
                    name => format!("the file {} is not the one that was signed", human::escaped(name)),
                }));
            }
            Some(_) => {}
        }
    }
    let extra = found.iter().find(|(name, _)| lookup(&signed, name).is_none());
    Ok(extra.map(|(name, _)| format!("the file {} was not signed", human::escaped(name))))
}

/// The content id of a model; none for files that hold no tensors.
fn content_id(model: &Path, common: Common) -> Result<Option<ztensor::ContentId>, Failure> {
    let reader = match common.open(model) {
        Ok(reader) => reader,
        Err(failure) => {
            let error = failure.into_error();
            return match error.kind() {
                ErrorKind::UnknownFormat | ErrorKind::InvalidArgument | ErrorKind::NotFound => Ok(None),
                _ => Err(error.into()),
            };
        }
    };
    let total = reader.objects().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    let progress = Progress::new("hashing tensors", total, common.quiet);
    Ok(Some(reader.content_ids(ztensor::id::Evidence::Bytes, Some(&progress))?.model))
}

/// The path of a file in the folder of a model, if it is there.
fn inside(model: &Path, file: &Path) -> Option<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = folder.canonicalize().ok()?.join(file.file_name()?);
    Some(file.strip_prefix(model.canonicalize().ok()?).ok()?.to_str()?.to_owned())
        .filter(|path| !path.is_empty())
}

/// A model on this machine: signatures are about files.
fn local(path: &Path) -> Result<&Path, Failure> {
    match ztensor::remote::is_url(path) || files::is_pipe(path) {
        true => Err(Failure::usage(format!(
            "{}: only files on this machine can be signed and verified: download it first",
            path.display()
        ))),
        false => Ok(path),
    }
}

/// The size of a model, for progress.
fn size(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.fold(0, |sum, entry| sum.saturating_add(size(&entry.path())))
}

fn about(path: &Path, failure: Failure) -> Failure {
    failure.about(&path.display().to_string())
}

fn text(path: &Path, most: u64) -> Result<String, Failure> {
    String::from_utf8(bytes(path, most)?)
        .map_err(|_| Failure::bad_file(format!("{} is not text", path.display())))
}

fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let failed = |error| Failure::io(format!("cannot read {}: {}", path.display(), human::cause(&error)));
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 > most {
        true => Err(Failure::bad_file(format!("{} is too long", path.display()))),
        false => Ok(bytes),
    }
}

impl Sign {
    /// Where the signature goes.
    fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| {
            let mut name = self.model.file_name().unwrap_or("model".as_ref()).to_owned();
            name.push(".sig");
            match self.model.is_dir() {
                true => self.model.join("model.sig"),
                false => self.model.with_file_name(name),
            }
        })
    }
}
