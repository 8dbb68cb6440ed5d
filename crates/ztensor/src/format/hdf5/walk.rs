//! The walk from the root group to every dataset, and the names on the way.
//!
//! A dataset's name is its path from the root, without the first slash. Every
//! group is entered once, by whichever path comes first in the order of names,
//! so loops of links end; every link to a dataset is listed, so a dataset with
//! two names is one tensor that is tied. A soft link is listed when it leads to
//! a dataset of this file. Links that lead nowhere or out of the file are listed
//! too, and refused when they are read.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{Catalog, Component, Layout, Object, Role, Shape, Storage};
use crate::decode::Refused;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::format::hdf5::attribute::{self, Heaps};
use crate::format::hdf5::dataset;
use crate::format::hdf5::datatype::Type;
use crate::format::hdf5::fields::{Fields, Widths};
use crate::format::hdf5::group::{self, Target};
use crate::format::hdf5::header::{Header, kind};
use crate::format::hdf5::store::Store;

/// Names and texts may take this many times the size of the file, and this much more.
const TEXT_BUDGET: (u64, u64) = (16, 1 << 20);

/// How many soft links may lead through soft links.
const MAX_LINKS: usize = 16;

/// What may still be spent on text, which links and references can repeat.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn spend(&mut self, bytes: usize) -> Result<()> {
        match self.0.checked_sub(bytes as u64) {
            Some(left) => self.0 = left,
            None => {
                return Err(Error::corrupt(
                    "hdf5.names",
                    "its names and strings are repeated to many times the size of the file",
                ));
            }
        }
        Ok(())
    }
}

/// The file being read.
pub(super) struct File {
    pub(super) store: Arc<Store>,
    /// Which of the catalog's sources it is.
    pub(super) source: u32,
    pub(super) widths: Widths,
    pub(super) budget: Budget,
    pub(super) heaps: Heaps,
}

impl File {
    pub(super) fn new(store: Store, source: u32, widths: Widths) -> File {
        let (factor, extra) = TEXT_BUDGET;
        let Range { start, end } = store.range();
        let budget = Budget((end - start).saturating_mul(factor).saturating_add(extra));
        let store = Arc::new(store);
        File { store, source, widths, budget, heaps: Heaps::new() }
    }

    pub(super) fn header(&self, address: u64) -> Result<Header> {
        Header::read(&self.store, self.widths, address)
    }

    /// The datatype in a message, or the one of its own that the message names.
    pub(super) fn datatype(&self, bytes: &[u8], shared: bool) -> Result<Type> {
        if !shared {
            return Type::parse(bytes);
        }
        let mut fields = Fields::new(bytes);
        match (fields.u8()?, fields.u8()?) {
            (1, _) => fields.skip(6)?,
            (2, _) | (3, 2) => {}
            _ => return Err(Error::unsupported("a datatype is in a table of shared messages")),
        }
        let header = self.header(fields.offset(self.widths)?)?;
        match header.find(kind::DATATYPE) {
            Some(message) if !message.shared => Type::parse(&message.bytes),
            _ => Err(Error::corrupt("hdf5.datatype", "a shared datatype is not where it should be")),
        }
    }
}

/// A dataset that was read, and what another name for it costs.
struct Known {
    object: Object,
    cost: usize,
}

pub(super) struct Walk<'f> {
    file: &'f mut File,
    root: u64,
    groups: HashMap<u64, Vec<(String, Target)>>,
    datasets: HashMap<u64, Known>,
    /// Soft links, for when all groups are known: name, group, path.
    soft: Vec<(String, u64, String)>,
}

impl<'f> Walk<'f> {
    pub(super) fn new(file: &'f mut File, root: u64) -> Walk<'f> {
        Walk { file, root, groups: HashMap::new(), datasets: HashMap::new(), soft: Vec::new() }
    }

    /// Puts all that can be found into the catalog.
    pub(super) fn run(mut self, catalog: &mut Catalog) -> Result<()> {
        let root = self.file.header(self.root)?;
        if !root.is_group() {
            return Err(Error::corrupt("hdf5.root", "the root is not a group"));
        }
        let mut pending = vec![(self.root, String::new(), Some(root))];
        while let Some((address, path, header)) = pending.pop() {
            let header = match header {
                Some(header) => header,
                None => self.file.header(address).map_err(|error| error.in_tensor(&*path))?,
            };
            if header.is_group() {
                if !self.groups.contains_key(&address) {
                    self.group(address, &path, &header, catalog, &mut pending)
                        .map_err(|error| if path.is_empty() { error } else { error.in_tensor(&*path) })?;
                }
            } else if header.is_dataset() {
                let object = self.dataset(address, &header).map_err(|error| error.in_tensor(&*path))?;
                catalog.insert(path, object)?;
            }
            // What is left are datatypes with names of their own.
        }
        for (path, group, target) in std::mem::take(&mut self.soft) {
            self.soft_link(path, group, &target, catalog)?;
        }
        Ok(())
    }

    fn group(
        &mut self,
        address: u64,
        path: &str,
        header: &Header,
        catalog: &mut Catalog,
        pending: &mut Vec<(u64, String, Option<Header>)>,
    ) -> Result<()> {
        for (name, value) in attribute::read(self.file, header)? {
            let key = if path.is_empty() { name } else { format!("{path}@{name}") };
            self.file.budget.spend(path.len())?;
            catalog.attributes.insert(key, value);
        }
        let children = group::children(&self.file.store, self.file.widths, header, &mut self.file.budget)?;
        let first = pending.len();
        for (name, target) in &children {
            self.file.budget.spend(path.len() + name.len())?;
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            match target {
                Target::Object(object) => pending.push((*object, path, None)),
                Target::Path(to) => self.soft.push((path, address, to.clone())),
                Target::External { file, path: to } => {
                    let why = format!(
                        "it is a link to {} in the file {}: other files are not opened",
                        quoted(to),
                        quoted(file)
                    );
                    catalog.insert(path, unreadable("hdf5.external_link", why, Shape::new(), 0))?;
                }
                Target::UserDefined(kind) => {
                    let why = format!("it is a link of the user-defined kind {kind}");
                    catalog.insert(path, unreadable("hdf5.link", why, Shape::new(), 0))?;
                }
            }
        }
        // The last one pushed is taken first.
        pending[first..].reverse();
        self.groups.insert(address, children);
        Ok(())
    }

    fn dataset(&mut self, address: u64, header: &Header) -> Result<Object> {
        if let Some(known) = self.datasets.get(&address) {
            self.file.budget.spend(known.cost)?;
            return Ok(known.object.clone());
        }
        let object = match dataset::read(self.file, header) {
            Ok(object) => object,
            // One dataset that this version does not understand is no reason to refuse the rest.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                unreadable("hdf5.unknown", error.to_string(), Shape::new(), 0)
            }
            Err(error) => return Err(error),
        };
        let cost = header.0.iter().map(|message| message.bytes.len()).sum();
        self.datasets.insert(address, Known { object: object.clone(), cost });
        Ok(object)
    }

    fn soft_link(&mut self, path: String, group: u64, target: &str, catalog: &mut Catalog) -> Result<()> {
        let found = match self.resolve(group, target, 0) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            Err(error) => return Err(error),
        };
        match found {
            Some(address) if self.groups.contains_key(&address) => Ok(()), // listed where it stands
            Some(address) if self.datasets.contains_key(&address) => {
                let object = self.dataset(address, &Header::default())?;
                catalog.insert(path, object)
            }
            _ => {
                let why = format!("it is a link to {}, which leads nowhere in this file", quoted(target));
                catalog.insert(path, unreadable("hdf5.link", why, Shape::new(), 0))
            }
        }
    }

    /// The object that a path leads to from a group.
    fn resolve(&mut self, group: u64, path: &str, links: usize) -> Result<Option<u64>> {
        if links > MAX_LINKS {
            return Ok(None); // a loop, or as good as one
        }
        self.file.budget.spend(path.len())?;
        let mut at = if path.starts_with('/') { self.root } else { group };
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            let Some(children) = self.groups.get(&at) else {
                return Ok(None);
            };
            let Ok(index) = children.binary_search_by(|(child, _)| child.as_str().cmp(name)) else {
                return Ok(None);
            };
            at = match children[index].1.clone() {
                Target::Object(address) => address,
                Target::Path(path) => match self.resolve(at, &path, links + 1)? {
                    Some(address) => address,
                    None => return Ok(None),
                },
                Target::External { .. } | Target::UserDefined(_) => return Ok(None),
            };
        }
        Ok(Some(at))
    }
}

/// Something that is listed and cannot be read as numbers.
pub(super) fn unreadable(layout: &str, why: impl Into<Box<str>>, shape: Shape, stored_len: u64) -> Object {
    let storage = Storage::Encoded(Arc::new(Refused::new(layout, why, stored_len)));
    let mut component = Component::new(DType::U8, stored_len, storage);
    component.unknown_type = Some(layout.into());
    Object::new(shape, Layout::Other(layout.into()), [(Role::Borrowed("data"), component)])
}
