//! `.pt`, `.pth`, `.bin`, `.pkl`: what `torch.save`, TorchScript and `pickle`
//! write, read without running any of it.
//!
//! Three containers hold pickles: torch's zip [`archive`]s, its older
//! [`legacy`] files, and pickles by themselves. [`vm`] interprets their opcodes
//! into plain values ([`arena`]), [`torch`] and [`numpy`] recognise the tensors
//! among them, and [`names`] gives everything its dotted name.

mod archive;
mod arena;
mod build;
mod globals;
mod layouts;
mod legacy;
mod names;
mod numpy;
pub(crate) mod opcode;
mod sign;
mod storage;
pub(crate) mod text;
mod torch;
mod unsafe_globals;
mod vm;

use std::sync::Arc;

use self::arena::Arena;
use self::names::Names;
use self::storage::{Blobs, Storages};
use self::torch::Tensors;
use crate::catalog::{Catalog, Extent, Storage};
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Metadata, Probe, Verdict, zip};
use crate::source::{Cursor, Sources};

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Pickle,
    extensions: &[
        Extension::new("bin").rank(3),
        Extension::new("pt").rank(4).tail(),
        Extension::new("pth").rank(5).tail(),
        Extension::new("ckpt").tail(),
        Extension::new("pkl"),
        Extension::new("pickle"),
        Extension::new("jit"),
        Extension::new("torchscript"),
    ],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities {
        sparse: true,
        quantized: true,
        ties: true,
        metadata: Metadata::Typed,
        encodings: &["deflate"],
        sequential: &["deflate"],
        checksums: &["crc32"],
        ..Capabilities::READ_ONLY
    },
    exporters: &[],
};

/// What a file is, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Container {
    Zip,
    Legacy,
    Tar,
    Pickle,
}

fn container(head: &[u8]) -> Option<Container> {
    // The oldest form: a tar archive whose members have these names.
    const TAR_MEMBERS: [&[u8]; 4] = [b"storages\0", b"tensors\0", b"pickle\0", b"sys_info\0"];
    if head.starts_with(zip::MAGIC) {
        return Some(Container::Zip);
    }
    if head.get(257..262) == Some(b"ustar") && TAR_MEMBERS.iter().any(|name| head.starts_with(name)) {
        return Some(Container::Tar);
    }
    if legacy::starts(head) {
        return Some(Container::Legacy);
    }
    match head {
        [opcode::PROTO, 0..=5, next, ..] if opcode::name(*next) != "unknown" => Some(Container::Pickle),
        // Protocols 0 and 1 start with a value: a dictionary, a list, a name.
        [opcode::MARK | opcode::EMPTY_DICT | opcode::EMPTY_LIST | opcode::GLOBAL, next, ..]
            if opcode::name(*next) != "unknown" || head[0] == opcode::GLOBAL =>
        {
            Some(Container::Pickle)
        }
        _ => None,
    }
}

fn detect(probe: &Probe<'_>) -> Verdict {
    match container(probe.head) {
        Some(Container::Legacy | Container::Tar) => Verdict::Yes,
        Some(Container::Zip) if first_member_is_pickle(probe.head) => Verdict::Yes,
        Some(Container::Zip) => match probe.directory.entries(probe.source) {
            Ok(entries) if archive::recognise(entries) => Verdict::Yes,
            Ok(_) => Verdict::No,
            // Broken, but perhaps ours: then this driver says what is wrong.
            Err(_) => Verdict::Maybe,
        },
        Some(Container::Pickle) if probe.head[0] == opcode::PROTO => {
            let last = probe.source.len().checked_sub(1);
            match last.map(|last| probe.source.bytes(last, 1)) {
                Some(Ok(last)) if *last == [opcode::STOP] => Verdict::Yes,
                _ => Verdict::Maybe,
            }
        }
        Some(Container::Pickle) => Verdict::Maybe,
        None => Verdict::No,
    }
}

/// `torch.save` writes `…/data.pkl` first, which saves looking at the directory.
fn first_member_is_pickle(head: &[u8]) -> bool {
    let folder = zip::first_name(head).and_then(|name| name.strip_suffix(b"/data.pkl"));
    folder.is_some_and(|folder| !folder.is_empty() && !folder.contains(&b'/'))
}

fn parse(input: Input, _context: &Context) -> Result<Catalog> {
    let source = &input.source;
    let head = source.bytes(0, source.len().min(512))?;
    let container = container(&head);
    drop(head);
    let (arena, root, storages) = match container {
        Some(Container::Zip) => return archive::parse(&input),
        Some(Container::Tar) => {
            return Err(Error::unsupported(
                "this is a tar archive of torch 0.1: load and save it with a torch between 0.2 and 2.5",
            ));
        }
        Some(Container::Legacy) => {
            let place = |start, len| Storage::Plain(Extent::new(start, len));
            let file = legacy::read(&mut Cursor::new(&**source), place)?;
            (file.arena, file.root, Storages::Ranges(file.storages))
        }
        Some(Container::Pickle) | None => {
            let mut arena = Arena::new(source.len());
            let root = vm::run(&mut Cursor::new(&**source), &mut arena)?;
            (arena, root, Storages::None)
        }
    };
    let mut names = Names::new(source.len());
    let tensors = Tensors::new(&arena, &storages, Blobs::File, &**source, names.builder());
    names.walk(&tensors, root, "")?;
    let mut catalog = Catalog::new(Format::Pickle, Sources::one(Arc::clone(source)));
    names.into_catalog(&mut catalog)?;
    Ok(catalog)
}
