//! From nested values to names: tensors become objects, plain values become
//! attributes, and the way to them, joined by dots, becomes their name.
//!
//! - A key of a dictionary, an index of a list and an attribute of an object
//!   are each one step. `{"model": {"fc.weight": t}}` gives `model.fc.weight`.
//! - The `_parameters`, `_buffers` and `_modules` of a pickled module are no
//!   steps of their own, so that it gives the names of its state dict.
//! - Different ways may read the same (`{"a.b": t, "a": {"b": u}}`): the first
//!   in the file keeps the name, later ones get `#2`, `#3`, … behind it and the
//!   attribute `path`, which has the steps one by one.
//! - A tensor that *is* the file, rather than in it, is called `tensor`.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::arena::{Arena, Dict, Item, Node, Object};
use super::build::{Builder, Built};
use super::globals::{Known, Rebuild};
use super::numpy;
use super::torch::Tensors;
use super::unsafe_globals::UnsafeGlobals;
use crate::catalog::validate;
use crate::catalog::{self, Catalog, Storage};
use crate::error::{Error, Result, quoted};
use crate::tensor::value::Attributes;

/// Deeper nesting is refused.
const MAX_DEPTH: usize = 1000;
/// Memory that the attributes of a tensor take, about.
const TENSOR_ATTRIBUTES: usize = 512;

/// What a file's pickles hold, by name.
pub(super) struct Names {
    objects: Vec<(Box<str>, catalog::Object)>,
    attributes: Attributes,
    /// How often a name was wanted, for each of the two kinds.
    wanted: [HashMap<Box<str>, u32>; 2],
    /// Values that are shared within a pickle are named, and charged, each time they are met.
    build: Rc<Builder>,
    unsafe_globals: UnsafeGlobals,
}

#[derive(Clone, Copy)]
enum NamedKind {
    Tensor = 0,
    Attribute = 1,
}

/// A container being walked through.
struct Frame {
    item: Item,
    /// The next of its children.
    next: usize,
    /// Lengths of the path to it: bytes of the name, and steps.
    path: (usize, usize),
    role: Role,
}

/// What a container is to the one it is in.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// A value by itself.
    Plain,
    /// The attributes of an object.
    State,
    /// The attributes of a module, some of which are no steps.
    ModuleState,
}

/// The way to a value.
#[derive(Default)]
struct Path {
    name: String,
    /// Where each step starts in `name`.
    steps: Vec<usize>,
}

impl Path {
    fn push(&mut self, step: &str) {
        if !self.steps.is_empty() {
            self.name.push('.');
        }
        self.steps.push(self.name.len());
        self.name.push_str(step);
    }

    fn mark(&self) -> (usize, usize) {
        (self.name.len(), self.steps.len())
    }

    fn reset(&mut self, (name, steps): (usize, usize)) {
        self.name.truncate(name);
        self.steps.truncate(steps);
    }

    fn steps(&self) -> impl Iterator<Item = &str> {
        let ends = self.steps.iter().skip(1).map(|start| start - 1).chain([self.name.len()]);
        self.steps.iter().zip(ends).map(|(&start, end)| &self.name[start..end])
    }
}

impl Names {
    /// For a file of `len` bytes.
    pub(super) fn new(len: u64) -> Names {
        Names {
            objects: Vec::new(),
            attributes: Attributes::new(),
            wanted: Default::default(),
            build: Rc::new(Builder::new(len)),
            unsafe_globals: UnsafeGlobals::default(),
        }
    }

    /// The budget, for the tensors that are named.
    pub(super) fn builder(&self) -> Rc<Builder> {
        Rc::clone(&self.build)
    }

    pub(super) fn into_catalog(self, catalog: &mut Catalog) -> Result<()> {
        if self.objects.is_empty() {
            return Err(Error::corrupt(
                "pickle.no-tensors",
                format!(
                    "the file holds no tensor, only {} other values: `ztensor scan` says what it is",
                    self.attributes.len()
                ),
            ));
        }
        catalog.objects.reserve(self.objects.len());
        for (name, object) in self.objects {
            catalog.insert(name, object)?;
        }
        catalog.attributes = self.attributes;
        catalog.unsafe_globals = self.unsafe_globals.into_names();
        Ok(())
    }

    /// A name that nothing of this kind has yet, and whether it differs from the path.
    fn unique(&mut self, kind: NamedKind, name: &str) -> (Box<str>, bool) {
        let wanted = &mut self.wanted[kind as usize];
        match wanted.get_mut(name) {
            None => {
                wanted.insert(name.into(), 1);
                (name.into(), false)
            }
            Some(count) => {
                let mut number = *count;
                let told_apart = loop {
                    number += 1;
                    let candidate = format!("{name}#{number}");
                    if !wanted.contains_key(&*candidate) {
                        break candidate;
                    }
                };
                wanted.insert(name.into(), number);
                wanted.insert((*told_apart).into(), 1);
                (told_apart.into(), true)
            }
        }
    }

    /// Keeps the dangerous functions that a pickle names, whatever it does with them.
    pub(super) fn note_unsafe(&mut self, arena: &Arena) {
        self.unsafe_globals.merge(arena.unsafe_globals());
    }

    /// Names everything that can be reached from `root`.
    pub(super) fn walk(&mut self, tensors: &Tensors<'_>, root: Item, prefix: &str) -> Result<()> {
        let arena = tensors.arena;
        self.note_unsafe(arena);
        let mut path = Path::default();
        if !prefix.is_empty() {
            path.push(prefix);
        }
        let mut on_path = HashSet::new();
        let mut frames = Vec::new();
        self.enter(tensors, root, Role::Plain, &path, &mut frames, &mut on_path)?;
        while let Some(frame) = frames.last_mut() {
            path.reset(frame.path);
            let index = frame.next;
            frame.next += 1;
            let (item, role, frame_start) = (frame.item, frame.role, frame.path.0);
            match child(arena, item, index, role, &mut path) {
                Some((child, role)) => {
                    self.build.charge(path.name.len() - frame_start)?;
                    self.enter(tensors, child, role, &path, &mut frames, &mut on_path)?;
                }
                None => {
                    frames.pop();
                    if let Item::Node(node) = item {
                        on_path.remove(&node);
                    }
                }
            }
        }
        self.unsafe_globals.merge(&tensors.unsafe_globals());
        Ok(())
    }

    /// Names a value, or prepares to walk through it.
    fn enter(
        &mut self,
        tensors: &Tensors<'_>,
        item: Item,
        role: Role,
        path: &Path,
        frames: &mut Vec<Frame>,
        on_path: &mut HashSet<u32>,
    ) -> Result<()> {
        let arena = tensors.arena;
        self.build.charge(size_of::<Frame>())?;
        // A value that contains itself has all its names already. Nothing of it is looked at again:
        // a long list that holds itself many times would be looked through as often.
        if let Item::Node(node) = item
            && on_path.contains(&node)
        {
            return Ok(());
        }
        if let Some(object) = tensors.object(item).map_err(|error| error.in_tensor(display(path)))? {
            return self.tensor(object, path);
        }
        let walks = match self.value(tensors, item)? {
            Meaning::Nothing => false,
            Meaning::Value(value) => {
                self.attribute(value, path)?;
                false
            }
            Meaning::Container => true,
            Meaning::Opaque(value) => {
                self.attribute(value, path)?;
                true
            }
        };
        let Item::Node(node) = item else { return Ok(()) };
        if !walks {
            return Ok(());
        }
        on_path.insert(node);
        if frames.len() >= MAX_DEPTH {
            return Err(Error::corrupt(
                "pickle.depth",
                format!("values are nested more than {MAX_DEPTH} deep"),
            ));
        }
        if let Some(entries) = entries(arena, item) {
            self.build.charge(entries.len() * size_of::<Key<'_>>())?;
            distinct(arena, entries)?;
        }
        frames.push(Frame { item, next: 0, path: path.mark(), role });
        Ok(())
    }

    fn tensor(&mut self, mut object: catalog::Object, path: &Path) -> Result<()> {
        let name = display(path);
        validate::object(&object).map_err(|error| error.in_tensor(name))?;
        // Views of unpacked storages share their bytes; each is charged as if it had a copy.
        let inline = object.components.iter().map(|(_, component)| match &component.storage {
            Storage::Inline(bytes) => bytes.len(),
            _ => 0,
        });
        let attributes = if object.attributes.is_some() { TENSOR_ATTRIBUTES } else { 0 };
        let size = size_of::<(Box<str>, catalog::Object)>() + attributes + inline.sum::<usize>();
        self.build.charge(name.len() + size)?;
        let (unique, differs) = self.unique(NamedKind::Tensor, name);
        if differs {
            object.set_attribute("path", self.build.steps(path.steps())?.into_value());
        }
        self.objects.push((unique, object));
        Ok(())
    }

    fn attribute(&mut self, value: Built, path: &Path) -> Result<()> {
        let name = if path.steps.is_empty() { "value" } else { &path.name };
        self.build.charge(2 * name.len() + 2 * size_of::<(String, Built)>())?;
        let (unique, _) = self.unique(NamedKind::Attribute, name);
        self.attributes.insert(unique.into(), value.into_value());
        Ok(())
    }

    /// What a value that is no tensor means.
    fn value(&mut self, tensors: &Tensors<'_>, item: Item) -> Result<Meaning> {
        let arena = tensors.arena;
        if let Some(value) = self.build.scalar(arena, item)? {
            return Ok(Meaning::Value(value));
        }
        Ok(match arena.node(item) {
            Some(Node::Tuple(items)) => self.plain_list(arena, items)?,
            Some(Node::List(items) | Node::Set(items)) => self.plain_list(arena, items)?,
            Some(Node::Dict(_)) => Meaning::Container,
            Some(Node::Blob { len, .. }) => Meaning::Value(self.build.blob(*len)?),
            Some(Node::Global(global)) => match global.known {
                Known::DType(_) => Meaning::Value(self.build.global_name(arena.global_name(global))?),
                _ => Meaning::Opaque(self.build.opaque(arena.global_name(global))?),
            },
            Some(Node::Object(object)) => match self.known_object(tensors, item, object)? {
                Some(meaning) => meaning,
                None => match arena.node(object.class) {
                    // The attributes of a module say what it is.
                    _ if is_module(arena, object) => Meaning::Container,
                    Some(Node::Global(global)) => {
                        Meaning::Opaque(self.build.opaque(arena.global_name(global))?)
                    }
                    _ => Meaning::Container,
                },
            },
            _ => Meaning::Nothing,
        })
    }

    /// Objects of classes that have a plain meaning.
    fn known_object(
        &mut self,
        tensors: &Tensors<'_>,
        item: Item,
        object: &Object,
    ) -> Result<Option<Meaning>> {
        let arena = tensors.arena;
        let first = arena.tuple(object.args).and_then(|args| args.first().copied());
        Ok(Some(match object.known {
            Known::Size => match first.and_then(|items| arena.sequence(items)) {
                Some(items) => self.plain_list(arena, items)?,
                None => return Ok(None),
            },
            Known::ScriptList => Meaning::Container,
            Known::Named => match first.and_then(|name| arena.as_name(name)) {
                Some(name) => Meaning::Value(self.build.text(name)?),
                None => return Ok(None),
            },
            Known::NumpyScalar => match numpy::scalar(&self.build, arena, tensors.blobs, object)? {
                Some(number) => Meaning::Value(self.build.number(number)?),
                None => return Ok(None),
            },
            Known::Encode | Known::Bytes => match self.build.encoded(arena, tensors.blobs, item)? {
                Some(bytes) => Meaning::Value(bytes),
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    /// A list of plain values is one attribute; any other is walked through.
    fn plain_list(&mut self, arena: &Arena, items: &[Item]) -> Result<Meaning> {
        Ok(self.build.list(arena, items)?.map_or(Meaning::Container, Meaning::Value))
    }
}

/// What a value that is no tensor means.
enum Meaning {
    Nothing,
    Value(Built),
    /// Its children have names, it has none.
    Container,
    /// An object that is only known by the name of its class, perhaps with attributes.
    Opaque(Built),
}

/// The name of a tensor at `path`.
fn display(path: &Path) -> &str {
    if path.steps.is_empty() { "tensor" } else { &path.name }
}

/// The child of that number; adds its step to the path, if it is one.
fn child(arena: &Arena, item: Item, index: usize, role: Role, path: &mut Path) -> Option<(Item, Role)> {
    match arena.node(item)? {
        Node::Tuple(items) => list_child(arena, items, index, role, path),
        Node::List(items) | Node::Set(items) => list_child(arena, items, index, Role::Plain, path),
        Node::Dict(dict) => {
            let &(key, value) = dict.entries.get(index)?;
            let transparent = role == Role::ModuleState
                && is_dict(arena, value)
                && matches!(arena.as_name(key), Some("_parameters" | "_buffers" | "_modules"));
            if !transparent {
                path.push(&step(arena, key));
            }
            Some((value, Role::Plain))
        }
        Node::Object(object) => object_child(arena, object, index, path),
        _ => None,
    }
}

fn list_child(
    arena: &Arena,
    items: &[Item],
    index: usize,
    role: Role,
    path: &mut Path,
) -> Option<(Item, Role)> {
    let &item = items.get(index)?;
    // The state of an object with slots is a pair of dictionaries.
    if role != Role::Plain && is_dict(arena, item) {
        return Some((item, role));
    }
    path.push(&index.to_string());
    Some((item, Role::Plain))
}

/// The children of an object: its state, then its items, then its entries.
fn object_child(arena: &Arena, object: &Object, index: usize, path: &mut Path) -> Option<(Item, Role)> {
    let args = arena.tuple(object.args).unwrap_or_default();
    let state = match object.known {
        // These stand for their argument.
        Known::Size | Known::ScriptList => {
            return args.first().filter(|_| index == 0).map(|item| (*item, Role::Plain));
        }
        // A subclass that could not be looked through still has attributes.
        Known::Rebuild(Rebuild::FromType) => args.get(3).copied(),
        _ => object.state,
    };
    let index = match (state, index) {
        (Some(state), 0) => {
            let role = if is_module(arena, object) { Role::ModuleState } else { Role::State };
            if !is_attributes(arena, state) {
                path.push("state");
                return Some((state, Role::Plain));
            }
            return Some((state, role));
        }
        (Some(_), index) => index - 1,
        (None, index) => index,
    };
    if let Some(item) = object.items.get(index) {
        path.push(&index.to_string());
        return Some((*item, Role::Plain));
    }
    let &(key, value) = object.entries.get(index - object.items.len())?;
    path.push(&step(arena, key));
    Some((value, Role::Plain))
}

fn is_dict(arena: &Arena, item: Item) -> bool {
    matches!(arena.node(item), Some(Node::Dict(_)))
}

/// Whether a state is an object's attributes: a dictionary, or one of them and
/// one of slots.
fn is_attributes(arena: &Arena, state: Item) -> bool {
    match arena.tuple(state) {
        Some(&[attributes, slots]) => {
            is_dict(arena, slots) && (attributes == Item::None || is_dict(arena, attributes))
        }
        Some(_) => false,
        None => is_dict(arena, state),
    }
}

/// Whether an object is a module: torch's have three dictionaries, and
/// TorchScript's classes have names of their own.
fn is_module(arena: &Arena, object: &Object) -> bool {
    if let Some(Node::Global(global)) = arena.node(object.class)
        && is_script_class(arena.global_name(global))
    {
        return true;
    }
    let Some(Node::Dict(Dict { entries, .. })) = object.state.and_then(|state| arena.node(state)) else {
        return false;
    };
    let has = |wanted: &str| {
        entries.iter().any(|&(key, value)| arena.as_name(key) == Some(wanted) && is_dict(arena, value))
    };
    has("_parameters") && has("_buffers") && has("_modules")
}

fn is_script_class((module, name): (&str, &str)) -> bool {
    module.starts_with("__torch__.") || module == "__torch__" && !name.is_empty()
}

fn entries(arena: &Arena, item: Item) -> Option<&[(Item, Item)]> {
    match arena.node(item)? {
        Node::Dict(dict) => Some(&dict.entries),
        Node::Object(object) => Some(&object.entries),
        _ => None,
    }
}

/// A key as Python compares them.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    None,
    Number(i64),
    Fraction(u64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Node(u32),
}

/// Python would let the last of two equal keys win. No pickler writes such a
/// dictionary, and readers that keep the first would see another file.
fn distinct(arena: &Arena, entries: &[(Item, Item)]) -> Result<()> {
    let mut keys = HashSet::with_capacity(entries.len());
    for &(item, _) in entries {
        let key = match item {
            Item::None => Key::None,
            Item::Bool(flag) => Key::Number(flag.into()),
            Item::Int(number) => Key::Number(number),
            Item::Float(number) if number == (number as i64) as f64 => Key::Number(number as i64),
            Item::Float(number) => Key::Fraction(number.to_bits()),
            Item::Text { .. } => Key::Text(arena.as_text(item).unwrap_or_default()),
            Item::Bytes { .. } => Key::Bytes(arena.as_bytes(item).unwrap_or_default()),
            Item::Node(node) => Key::Node(node),
        };
        if !keys.insert(key) {
            return Err(Error::corrupt(
                "pickle.key-duplicate",
                format!("a dictionary has the key {} twice", quoted(&step(arena, item))),
            ));
        }
    }
    Ok(())
}

/// A key as a step of a path.
fn step(arena: &Arena, key: Item) -> String {
    match arena.node(key) {
        // Keys of several parts; the first few are enough to read.
        Some(Node::Tuple(items)) => {
            let mut parts: Vec<_> = items.iter().take(4).map(|item| simple_step(arena, *item)).collect();
            if items.len() > parts.len() {
                parts.push("…".into());
            }
            format!("({})", parts.join(", "))
        }
        _ => simple_step(arena, key),
    }
}

fn simple_step(arena: &Arena, key: Item) -> String {
    match key {
        Item::None => "None".into(),
        Item::Bool(true) => "True".into(),
        Item::Bool(false) => "False".into(),
        Item::Int(number) => number.to_string(),
        Item::Float(number) => number.to_string(),
        Item::Text { .. } => arena.as_text(key).unwrap_or_default().to_owned(),
        Item::Bytes { .. } => String::from_utf8_lossy(arena.as_bytes(key).unwrap_or_default()).into_owned(),
        Item::Node(_) => match arena.node(key) {
            Some(Node::Global(global)) => {
                let (module, name) = arena.global_name(global);
                format!("{module}.{name}")
            }
            _ => arena.kind(key),
        },
    }
}
