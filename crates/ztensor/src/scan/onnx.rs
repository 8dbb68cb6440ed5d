//! ONNX models: files that they name, and operators that only other libraries have.

use std::collections::BTreeSet;
use std::ops::Range;

use super::containers::Scanner;
use super::{FindingKind, Severity};
use crate::error::{Error, Result};
use crate::format::onnx::wire::{self, Field, fields};
use crate::source::{Cursor, MemorySource};

const MAX_DEPTH: usize = 64;
/// Files and operators that are listed, each.
const MAX_NAMES: usize = 1000;
/// Longer names are cut.
const MAX_NAME: u64 = 4096;

/// Domains whose operators every runtime has.
const STANDARD: &[&str] = &["", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"];

pub(super) fn scan(scanner: &mut Scanner, place: &str, bytes: &[u8]) {
    let source = MemorySource::new(bytes);
    let mut walk = Walk::default();
    let walked = walk.model(&mut Cursor::new(&source), 0..bytes.len() as u64);
    for location in &walk.locations {
        let outside = location.starts_with(['/', '\\'])
            || location.as_bytes().get(1) == Some(&b':')
            || location.contains("://")
            || location.split(['/', '\\']).any(|part| part == "..");
        let (severity, what) = match outside {
            true => (Severity::Dangerous, "external data outside the model's folder"),
            false => (Severity::Innocuous, "external data"),
        };
        scanner.add(severity, FindingKind::Onnx, place, format!("{what}: {location}"));
    }
    for (domain, operator) in &walk.operators {
        let what = format!("operator {operator} of the domain {domain}, which a library of its own provides");
        scanner.add(Severity::Suspicious, FindingKind::Onnx, place, what);
    }
    if walked.is_err() {
        scanner.add(Severity::Suspicious, FindingKind::Broken, place, "the model is broken");
    }
}

#[derive(Default)]
struct Walk {
    locations: BTreeSet<String>,
    operators: BTreeSet<(String, String)>,
    /// Domains whose functions the model defines itself.
    own: BTreeSet<String>,
}

/// What the fields of a message are.
#[derive(Clone, Copy)]
enum Message {
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Function,
    Training,
}

impl Walk {
    fn model(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<()> {
        fields(cursor, range, |cursor, field| match field.number {
            7 => self.message(cursor, &field, Message::Graph, 0),
            20 => self.message(cursor, &field, Message::Training, 0),
            25 => self.message(cursor, &field, Message::Function, 0),
            _ => Ok(()),
        })?;
        let own = std::mem::take(&mut self.own);
        self.operators.retain(|(domain, _)| !own.contains(domain));
        Ok(())
    }

    fn message(&mut self, cursor: &mut Cursor<'_>, field: &Field, kind: Message, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::unsupported("graphs are nested too deep"));
        }
        let (mut operator, mut domain) = (String::new(), String::new());
        fields(cursor, field.bytes()?, |cursor, field| {
            use Message::*;
            let inner = match (kind, field.number) {
                (Training, 1 | 2) => Graph,
                (Function, 7) | (Graph, 1) => Node,
                (Function, 11) | (Node, 5) => Attribute,
                (Graph, 5) | (Attribute, 5 | 10) | (SparseTensor, 1 | 2) => Tensor,
                (Graph, 15) | (Attribute, 22 | 23) => SparseTensor,
                (Attribute, 6 | 11) => Graph,
                (Tensor, 13) => return self.external(cursor, &field),
                (Node, 4) => return set(&mut operator, cursor, &field),
                (Node, 7) | (Function, 10) => return set(&mut domain, cursor, &field),
                _ => return Ok(()),
            };
            self.message(cursor, &field, inner, depth + 1)
        })?;
        match kind {
            Message::Function if self.own.len() < MAX_NAMES => {
                self.own.insert(domain);
            }
            Message::Node if !STANDARD.contains(&&*domain) && self.operators.len() < MAX_NAMES => {
                self.operators.insert((domain, operator));
            }
            _ => {}
        }
        Ok(())
    }

    /// One of the pairs by which a tensor says where its data is.
    fn external(&mut self, cursor: &mut Cursor<'_>, field: &Field) -> Result<()> {
        let (mut key, mut value) = (String::new(), String::new());
        fields(cursor, field.bytes()?, |cursor, field| match field.number {
            1 => set(&mut key, cursor, &field),
            2 => set(&mut value, cursor, &field),
            _ => Ok(()),
        })?;
        if key == "location" && self.locations.len() < MAX_NAMES {
            self.locations.insert(value);
        }
        Ok(())
    }
}

fn set(text: &mut String, cursor: &mut Cursor<'_>, field: &Field) -> Result<()> {
    let range = field.bytes()?;
    let end = range.end.min(range.start.saturating_add(MAX_NAME));
    *text = String::from_utf8_lossy(wire::bytes(cursor, range.start..end)?).into_owned();
    Ok(())
}
