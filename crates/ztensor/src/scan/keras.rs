//! Keras models: layers and functions that a configuration names, and the code that it carries.
//!
//! A configuration is JSON: `config.json` of a `.keras` archive, the attribute `model_config` of an
//! HDF5 file, or a file of its own. Building the model imports the modules that it names, and a
//! `Lambda` layer unmarshals bytecode.

use std::borrow::Cow;

use super::containers::Scanner;
use super::{FindingKind, Severity, policy};
use crate::error::{Error, Result};
use crate::format::json;

pub(super) const HDF5_MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";

const MAX_DEPTH: usize = 100;
/// A configuration of more bytes does not occur.
const MAX_LEN: usize = 64 << 20;
const CLASS: &[u8] = b"\"class_name\"";

/// Layers and functions of Keras itself that run code or read files that a configuration names.
const DANGEROUS: &[&str] = &[
    "Lambda",
    "__lambda__",
    "TFSMLayer",
    "TorchModuleWrapper",
    "JaxLayer",
    "FlaxLayer",
    "get_file",
    "load_model",
    "load_weights",
    "load_img",
    "load_data",
    "image_dataset_from_directory",
    "text_dataset_from_directory",
    "audio_dataset_from_directory",
    "deserialize_keras_object",
    "model_from_json",
    "enable_unsafe_deserialization",
    "py_function",
    "numpy_function",
];

/// Functions of Python itself by which a configuration runs code. Other names that are said to be
/// Python's own are functions that the user registers.
const BUILTINS: &[&str] = &[
    "eval",
    "exec",
    "compile",
    "open",
    "getattr",
    "setattr",
    "delattr",
    "input",
    "breakpoint",
    "globals",
    "locals",
    "vars",
    "__import__",
    "execfile",
    "exit",
    "quit",
];

/// Looks through JSON; whether it is a Keras configuration.
pub(super) fn scan_json(scanner: &mut Scanner, place: &str, text: &str) -> bool {
    let mut json = json::Scanner::new(text);
    let mut found = Found::default();
    let walked = walk(&mut json, 0, &mut found);
    let known = found.classes > 0;
    found.report(scanner, place);
    if walked.is_err() && text.as_bytes().windows(CLASS.len()).any(|window| window == CLASS) {
        scanner.add(Severity::Suspicious, FindingKind::Broken, place, "the configuration is broken JSON");
        carve(scanner, place, text.as_bytes());
        return true;
    }
    known
}

/// Looks through the texts of an HDF5 file, which has them in one piece each.
pub(super) fn scan_hdf5(scanner: &mut Scanner, place: &str, bytes: &[u8]) {
    let mut at = 0;
    while let Some(offset) = find(&bytes[at..], CLASS) {
        let class = at + offset;
        let start = bytes[..class].iter().rposition(|byte| *byte == b'{').unwrap_or(class);
        let end = bytes.len().min(start.saturating_add(MAX_LEN));
        let text = match std::str::from_utf8(&bytes[start..end]) {
            Ok(text) => text,
            // Up to the first byte that is no text.
            Err(error) => std::str::from_utf8(&bytes[start..start + error.valid_up_to()]).unwrap_or_default(),
        };
        let mut json = json::Scanner::new(text);
        let mut found = Found::default();
        let walked = walk(&mut json, 0, &mut found);
        found.report(scanner, place);
        at = match walked {
            Ok(()) => (start + json.position()).max(class + CLASS.len()),
            Err(_) => {
                let end = (class + text.len()).min(bytes.len());
                carve(scanner, place, &bytes[class..end]);
                end.max(class + CLASS.len())
            }
        };
    }
}

/// Classes that run code, in text that is no JSON as a whole.
fn carve(scanner: &mut Scanner, place: &str, bytes: &[u8]) {
    let mut at = 0;
    while let Some(offset) = find(&bytes[at..], CLASS) {
        at += offset + CLASS.len();
        let rest = bytes[at..].trim_ascii_start();
        let Some(rest) = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else { continue };
        for class in DANGEROUS {
            if rest
                .strip_prefix(b"\"")
                .and_then(|rest| rest.strip_prefix(class.as_bytes()))
                .is_some_and(|rest| rest.starts_with(b"\""))
            {
                return scanner.add(Severity::Dangerous, FindingKind::Keras, place, *class);
            }
        }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(offset) = bytes[at..].iter().position(|byte| *byte == wanted[0]) {
        at += offset;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[derive(Default)]
struct Found {
    classes: u64,
    /// What is worth saying, once each.
    named: Vec<(Severity, String)>,
}

impl Found {
    fn add(&mut self, severity: Severity, what: String) {
        if self.named.len() < 1000 && !self.named.iter().any(|(_, known)| *known == what) {
            self.named.push((severity, what));
        }
    }

    fn report(self, scanner: &mut Scanner, place: &str) {
        for (severity, what) in self.named {
            scanner.add(severity, FindingKind::Keras, place, what);
        }
    }

    /// One object of a configuration.
    fn object(&mut self, class: Option<&str>, module: Option<&str>, config: Option<&str>) {
        let Some(class) = class else { return };
        self.classes += 1;
        let name = if class == "function" { config.unwrap_or(class) } else { class };
        let package = module.map(|module| module.split('.').next().unwrap_or_default());
        match (module, package) {
            _ if DANGEROUS.contains(&name) => {
                let what = match name {
                    "Lambda" | "__lambda__" => {
                        format!("{name}: marshalled bytecode is run when the model is built")
                    }
                    _ => policy::shown(module.unwrap_or("keras"), name),
                };
                self.add(Severity::Dangerous, what);
            }
            (_, None | Some("builtins" | "")) if BUILTINS.contains(&name) => {
                self.add(Severity::Dangerous, policy::shown("builtins", name));
            }
            (_, Some("builtins")) if class == "function" => {
                self.add(Severity::Suspicious, format!("{}: a function that the user registers", cut(name)));
            }
            (
                _,
                None
                | Some(
                    "keras" | "tf_keras" | "keras_core" | "keras_nlp" | "keras_hub" | "keras_cv" | "builtins",
                ),
            ) => {}
            (Some(module), Some("tensorflow")) if module.contains("keras") => {}
            (Some(module), _) => {
                // Importing any other module runs its code.
                let severity = policy::classify(module, name).max(Severity::Suspicious);
                self.add(severity, policy::shown(module, name));
            }
            (None, Some(_)) => {}
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(120).collect()
}

/// Walks one value of any kind.
fn walk<'a>(json: &mut json::Scanner<'a>, depth: usize, found: &mut Found) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::unsupported("nested too deep"));
    }
    match json.peek() {
        Some(b'{') => {
            let (mut class, mut module, mut config) = (None::<Cow<'a, str>>, None, None);
            json.object(|json, key| {
                let slot = match &*key {
                    "class_name" => &mut class,
                    "module" => &mut module,
                    "config" => &mut config,
                    _ => return walk(json, depth + 1, found),
                };
                match json.peek() {
                    Some(b'"') => {
                        *slot = Some(json.string()?);
                        Ok(())
                    }
                    _ => walk(json, depth + 1, found),
                }
            })?;
            found.object(class.as_deref(), module.as_deref(), config.as_deref());
            Ok(())
        }
        Some(b'[') => json.array(|json| walk(json, depth + 1, found)),
        _ => json.skip(),
    }
}
