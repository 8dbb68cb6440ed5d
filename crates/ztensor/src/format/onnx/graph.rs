//! Graphs, nodes and attributes: everywhere a tensor can hide, and the name it
//! gets.
//!
//! Initializers of the main graph have their own names, and so do the outputs
//! of its `Constant` nodes: ONNX keeps both in one namespace. A tensor in any
//! other attribute is called `<node>.<attribute>`, where `<node>` is the node's
//! first output; what a subgraph holds has that as a prefix, a function's
//! tensors have `<domain>.<function>.`. Should such a made-up name be taken
//! already, `#2`, `#3`, … is added to it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::catalog::{Catalog, Object};
use crate::error::{Error, Result, quoted};
use crate::format::onnx::Externals;
use crate::format::onnx::constant::Constant;
use crate::format::onnx::properties::text_value;
use crate::format::onnx::wire::{bytes, fields, text};
use crate::format::onnx::{sparse, tensor};
use crate::source::Cursor;
use crate::tensor::value::Attributes;

/// Protobuf readers stop at a hundred nested messages, and a subgraph takes three.
const MAX_DEPTH: usize = 33;

/// Made-up names may take this many times the size of the file, and this much more.
const NAME_BUDGET: (u64, u64) = (16, 1 << 20);

/// The walk through a model: what it found, and what it may still spend.
pub(super) struct Walk<'e> {
    externals: &'e mut Externals,
    /// The main graph's initializers and constants, under their own names.
    own: Vec<(String, Object)>,
    /// Everything else, under made-up names.
    derived: Vec<(String, Object)>,
    name_budget: u64,
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct Scope<'a> {
    /// What to put before names; empty for the main graph.
    prefix: &'a str,
    depth: usize,
}

/// What identifies a node.
#[derive(Default)]
struct Node {
    label: String,
    is_constant: bool,
}

impl<'e> Walk<'e> {
    pub(super) fn new(externals: &'e mut Externals, file_len: u64) -> Walk<'e> {
        let (factor, extra) = NAME_BUDGET;
        let name_budget = file_len.saturating_mul(factor).saturating_add(extra);
        Walk { externals, own: Vec::new(), derived: Vec::new(), name_budget }
    }

    /// Reads the model's graph.
    pub(super) fn main_graph(
        &mut self,
        cursor: &mut Cursor<'_>,
        range: Range<u64>,
        attributes: &mut Attributes,
    ) -> Result<()> {
        fields(cursor, range.clone(), |cursor, field| {
            let name = match field.number {
                2 => "graph_name",
                10 => "graph_doc_string",
                _ => return Ok(()),
            };
            attributes.insert(name.to_owned(), text_value(cursor, field.bytes()?)?);
            Ok(())
        })?;
        self.graph(cursor, range, Scope { prefix: "", depth: 0 })
    }

    /// Reads the training graphs and the functions of the model in `range`.
    pub(super) fn other_graphs(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<()> {
        let mut trainings = 0u64;
        fields(cursor, range, |cursor, field| match field.number {
            20 => {
                let index = trainings;
                trainings += 1;
                fields(cursor, field.bytes()?, |cursor, part| {
                    let part_name = match part.number {
                        1 => "initialization",
                        2 => "algorithm",
                        _ => return Ok(()),
                    };
                    let prefix = format!("training.{index}.{part_name}.");
                    self.graph(cursor, part.bytes()?, Scope { prefix: &prefix, depth: 1 })
                })
            }
            25 => self.function(cursor, field.bytes()?),
            _ => Ok(()),
        })
    }

    fn function(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<()> {
        let (mut name, mut domain, mut overload) = (String::new(), String::new(), String::new());
        fields(cursor, range.clone(), |cursor, field| {
            let slot = match field.number {
                1 => &mut name,
                10 => &mut domain,
                13 => &mut overload,
                _ => return Ok(()),
            };
            *slot = text(cursor, field.bytes()?)?.to_owned();
            Ok(())
        })?;
        let mut prefix = String::new();
        for part in [domain, name, overload].iter().filter(|part| !part.is_empty()) {
            prefix.push_str(part);
            prefix.push('.');
        }
        let scope = Scope { prefix: &prefix, depth: 1 };
        let mut values = HashSet::new();
        let mut index = 0u64;
        fields(cursor, range, |cursor, field| match field.number {
            7 => {
                index += 1;
                self.node(cursor, field.bytes()?, scope, index - 1, &mut values)
            }
            11 => self.attribute(cursor, field.bytes()?, scope, &Node::default(), &mut values),
            _ => Ok(()),
        })
    }

    fn graph(&mut self, cursor: &mut Cursor<'_>, range: Range<u64>, scope: Scope<'_>) -> Result<()> {
        if scope.depth > MAX_DEPTH {
            return Err(Error::corrupt(
                "onnx.depth",
                format!("graphs are nested more than {MAX_DEPTH} levels deep"),
            ));
        }
        // The names of the graph's initializers and constants.
        let mut values = HashSet::new();
        let mut index = 0u64;
        fields(cursor, range, |cursor, field| match field.number {
            1 => {
                index += 1;
                self.node(cursor, field.bytes()?, scope, index - 1, &mut values)
            }
            5 => {
                let (name, object) = tensor::read(cursor, field.bytes()?, self.externals)?.into_object();
                self.value(name, object, scope, &mut values)
            }
            15 => {
                let (name, object) = sparse::read(cursor, field.bytes()?, self.externals)?;
                self.value(name, object, scope, &mut values)
            }
            _ => Ok(()),
        })
    }

    fn node(
        &mut self,
        cursor: &mut Cursor<'_>,
        range: Range<u64>,
        scope: Scope<'_>,
        index: u64,
        values: &mut HashSet<String>,
    ) -> Result<()> {
        let (mut output, mut name, mut attributes) = (None, None, false);
        let (mut is_constant, mut is_standard) = (false, true);
        fields(cursor, range.clone(), |cursor, field| {
            match field.number {
                2 if output.is_none() => output = Some(field.bytes()?).filter(|range| !range.is_empty()),
                3 => name = Some(field.bytes()?).filter(|range| !range.is_empty()),
                4 => is_constant = bytes(cursor, field.bytes()?)? == b"Constant",
                5 => attributes = true,
                7 => is_standard = matches!(bytes(cursor, field.bytes()?)?, b"" | b"ai.onnx"),
                _ => {}
            }
            Ok(())
        })?;
        if !attributes {
            return Ok(());
        }
        // The label is read only when an attribute needs it: most nodes hold no tensor.
        let label = |cursor: &mut Cursor<'_>| match output.clone().or(name.clone()) {
            Some(range) => Ok(text(cursor, range)?.to_owned()),
            None => Ok(format!("node_{index}")),
        };
        let mut node: Option<Node> = None;
        fields(cursor, range, |cursor, field| match field.number {
            5 => {
                let attribute = field.bytes()?;
                if !is_constant && !holds_tensors(cursor, attribute.clone())? {
                    return Ok(());
                }
                if node.is_none() {
                    node = Some(Node { label: label(cursor)?, is_constant: is_constant && is_standard });
                }
                match &node {
                    Some(node) => self.attribute(cursor, attribute, scope, node, values),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        })
    }

    fn attribute(
        &mut self,
        cursor: &mut Cursor<'_>,
        range: Range<u64>,
        scope: Scope<'_>,
        node: &Node,
        values: &mut HashSet<String>,
    ) -> Result<()> {
        let mut name = String::new();
        fields(cursor, range.clone(), |cursor, field| {
            if field.number == 1 {
                name = text(cursor, field.bytes()?)?.to_owned();
            }
            Ok(())
        })?;
        if node.is_constant
            && let Some((component, shape)) = Constant::read(cursor, range.clone(), &name)?
        {
            let object = Object::dense(shape, component);
            return self.value(node.label.clone(), object, scope, values);
        }
        let path = match &*node.label {
            "" => name.clone(),
            label => format!("{label}.{name}"),
        };
        let (mut tensors, mut sparses, mut graphs) = (0u64, 0u64, 0u64);
        fields(cursor, range, |cursor, field| {
            let numbered = |counter: &mut u64| {
                *counter += 1;
                format!("{path}.{}", *counter - 1)
            };
            match field.number {
                5 | 10 => {
                    let inner = field.bytes()?;
                    let object = tensor::read(cursor, inner, self.externals)
                        .map_err(|error| error.in_tensor(&*path))?
                        .into_object()
                        .1;
                    match (field.number, node.is_constant && name == "value") {
                        (5, true) => self.value(node.label.clone(), object, scope, values),
                        (5, false) => self.derive(scope, &path, object),
                        _ => self.derive(scope, &numbered(&mut tensors), object),
                    }
                }
                22 | 23 => {
                    let inner = field.bytes()?;
                    let object = sparse::read(cursor, inner, self.externals)
                        .map_err(|error| error.in_tensor(&*path))?
                        .1;
                    match (field.number, node.is_constant && name == "sparse_value") {
                        (22, true) => self.value(node.label.clone(), object, scope, values),
                        (22, false) => self.derive(scope, &path, object),
                        _ => self.derive(scope, &numbered(&mut sparses), object),
                    }
                }
                6 | 11 => {
                    let inner = field.bytes()?;
                    let path = if field.number == 6 { path.clone() } else { numbered(&mut graphs) };
                    let prefix = format!("{}{path}.", scope.prefix);
                    self.spend(prefix.len())?;
                    self.graph(cursor, inner, Scope { prefix: &prefix, depth: scope.depth + 1 })
                }
                _ => Ok(()),
            }
        })
    }

    /// A tensor that is a value of its graph: an initializer or a constant.
    fn value(
        &mut self,
        name: String,
        object: Object,
        scope: Scope<'_>,
        values: &mut HashSet<String>,
    ) -> Result<()> {
        if name.is_empty() {
            return Err(Error::corrupt("onnx.name", "an initializer has no name"));
        }
        if !values.insert(name.clone()) {
            return Err(Error::corrupt(
                "name.duplicate",
                format!("two values of one graph have the name {}", quoted(&name)),
            ));
        }
        if scope.prefix.is_empty() && scope.depth == 0 {
            self.own.push((name, object));
            return Ok(());
        }
        self.derive(scope, &name, object)
    }

    /// A tensor whose name is made up.
    fn derive(&mut self, scope: Scope<'_>, path: &str, object: Object) -> Result<()> {
        self.spend(scope.prefix.len() + path.len())?;
        let name = format!("{}{path}", scope.prefix);
        self.derived.push((name, object));
        Ok(())
    }

    /// Long labels, repeated in the names of all that stands below them, could
    /// otherwise take memory out of proportion.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        match self.name_budget.checked_sub(bytes as u64) {
            Some(left) => self.name_budget = left,
            None => {
                return Err(Error::corrupt(
                    "onnx.names",
                    "the names of nested tensors take many times the size of the file",
                ));
            }
        }
        Ok(())
    }

    /// Puts everything into the catalog, own names first.
    pub(super) fn finish(self, catalog: &mut Catalog) -> Result<()> {
        for (name, object) in self.own {
            catalog.insert(name, object)?;
        }
        let mut next: HashMap<String, u64> = HashMap::new();
        for (name, object) in self.derived {
            if !catalog.objects.contains_key(&*name) {
                catalog.insert(name, object)?;
                continue;
            }
            let number = next.entry(name.clone()).or_insert(2);
            let free = loop {
                let candidate = format!("{name}#{number}");
                *number += 1;
                if !catalog.objects.contains_key(&*candidate) {
                    break candidate;
                }
            };
            catalog.insert(free, object)?;
        }
        Ok(())
    }
}

/// Whether an attribute has a tensor or a graph in it.
fn holds_tensors(cursor: &mut Cursor<'_>, range: Range<u64>) -> Result<bool> {
    let mut found = false;
    fields(cursor, range, |_, field| {
        found |= matches!(field.number, 5 | 6 | 10 | 11 | 22 | 23);
        Ok(())
    })?;
    Ok(found)
}
