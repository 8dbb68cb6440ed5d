//! Changing a local checkpoint whole: deltas in place, a full version, a checkpoint from a base.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::checkpoint::{Apply, Checkpoint, Place};
use super::deltas::{Deltas, check_base, check_target};
use super::index::{INDEX_NAME, Kind};
use super::journal;
use super::patch::{Patcher, WindowPatch};
use super::payload;
use super::state::{INCOMING, Known, Ledger, Locked};
use super::stream::{Stream, Version};
use crate::base::parallel;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Format;
use crate::format::json::push_string;
use crate::format::shards::is_plain_name;
use crate::progress::advance;
use crate::read::OpenOptions;
use crate::remote::store;
use crate::tensor::Tensor;
use crate::write::destination::Destination;
use crate::write::export::{ExportFormat, ExportOptions, TensorList, export};

/// Bytes of tensors per file when a checkpoint is written anew.
const SHARD_LEN: u64 = 4 << 30;

/// Applies deltas to a checkpoint in place, under a journal. Nothing changes unless every tensor
/// is restored with its checksum.
pub(crate) fn apply_deltas(
    locked: &Locked,
    stream: &Stream,
    versions: &[std::sync::Arc<Version>],
    ledger: Option<Ledger>,
    apply: &Apply<'_>,
) -> Result<(BTreeSet<String>, u64)> {
    let folder = locked.folder();
    let checkpoint = Checkpoint::open(folder)?;
    let deltas = Deltas::open(stream, versions, apply.threads)?;
    let Some(last) = versions.last() else { return Ok(Default::default()) };
    let trusted = ledger.filter(|ledger| ledger.is_fresh(folder));
    check_base(&deltas, trusted.as_ref())?;
    let changed: BTreeSet<String> = deltas.by_tensor.keys().map(|name| (*name).to_owned()).collect();
    let mut next = trusted.unwrap_or_default();
    if next.tensors.is_empty() {
        next.tensors = checkpoint.tensors.keys().map(|name| (name.clone(), Known::default())).collect();
    }
    next.version.clone_from(&last.name);
    next.stream_id = deltas.stream_id().map(str::to_owned).or(next.stream_id);
    for name in deltas.by_tensor.keys() {
        next.tensors.insert((*name).to_owned(), deltas.known(name)?);
    }
    let removed = deltas.removed();
    next.tensors.retain(|name, _| !removed.contains(name.as_str()));
    check_target(&deltas, &next)?;
    next.files = checkpoint.stamps();
    if is_structural(&deltas, &checkpoint, &removed)? {
        rewrite(locked, checkpoint, &deltas, &removed, next, apply)?;
        return Ok((changed, deltas.len()));
    }
    let journal = journal::Writer::create(locked)?;
    let written =
        checkpoint.files.iter().try_for_each(|(name, len)| journal.file(name, *len)).and_then(|()| {
            let mut names: Vec<&str> = deltas.by_tensor.keys().copied().collect();
            // The largest first: the threads then end at about the same time.
            names.sort_by_key(|name| std::cmp::Reverse(checkpoint.tensors.get(*name).map(|place| place.len)));
            parallel::for_each(apply.threads, names, |name| {
                let place = checkpoint.tensors.get(name).ok_or_else(|| unknown(name))?;
                let mut write = |window: WindowPatch<'_>| journal.patch(place.file, place.offset, &window);
                let mut patcher = Patcher::new(payload::element_size(place.dtype), place.offset, place.len);
                deltas.restore_parts(name, checkpoint.bytes(name)?, |at, both, changed| {
                    patcher.add(at, both, changed, &mut write)
                })?;
                advance(apply.observer, place.len)
            })
        });
    match written.and_then(|()| crate::progress::finish(apply.observer)) {
        Ok(()) => journal.commit(&next, apply.threads, apply.durable)?,
        Err(error) => return journal.abandon().and(Err(error)),
    }
    Ok((changed, deltas.len()))
}

fn unknown(name: &str) -> Error {
    Error::mismatch("the checkpoint has no tensor of this name, which the delta changes").in_tensor(name)
}

/// Whether tensors come, go, or change their type or shape.
fn is_structural(deltas: &Deltas<'_>, checkpoint: &Checkpoint, removed: &BTreeSet<&str>) -> Result<bool> {
    if removed.iter().any(|name| checkpoint.tensors.contains_key(*name)) {
        return Ok(true);
    }
    for name in deltas.by_tensor.keys() {
        let place = checkpoint.tensors.get(*name);
        match (place, deltas.type_of(name)) {
            (None, None) => return Err(unknown(name)),
            (Some(place), Some((dtype, shape))) if (place.dtype, &place.shape) != (dtype, shape) => {
                return Ok(true);
            }
            (None, Some(_)) if !removed.contains(name) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// Writes a checkpoint anew, with other tensors, and puts it in the place of the old one.
fn rewrite(
    locked: &Locked,
    checkpoint: Checkpoint,
    deltas: &Deltas<'_>,
    removed: &BTreeSet<&str>,
    mut ledger: Ledger,
    apply: &Apply<'_>,
) -> Result<()> {
    let mut names: Vec<&str> = checkpoint.tensors.keys().map(String::as_str).collect();
    names.extend(deltas.by_tensor.keys().filter(|name| !checkpoint.tensors.contains_key(**name)));
    names.retain(|name| !removed.contains(name));
    let type_of = |name: &str| match deltas.type_of(name) {
        Some((dtype, shape)) => Some((dtype, shape.clone())),
        None => checkpoint.tensors.get(name).map(|place| (place.dtype, place.shape.clone())),
    };
    let len_of = |name: &str| -> Result<u64> {
        let (dtype, shape) = type_of(name).ok_or_else(|| unknown(name))?;
        let bits = crate::catalog::elements(&shape).and_then(|count| count.checked_mul(dtype.bits().into()));
        bits.map(|bits| bits / 8).ok_or_else(|| Error::limit("its size exceeds 2^64 bytes").in_tensor(name))
    };
    // Groups of tensors, each of which becomes a file.
    let mut groups: Vec<Vec<&str>> = vec![Vec::new()];
    let mut held = 0u64;
    for name in names {
        let len = len_of(name)?;
        if held > 0 && held.saturating_add(len) > SHARD_LEN {
            groups.push(Vec::new());
            held = 0;
        }
        held = held.saturating_add(len);
        if let Some(group) = groups.last_mut() {
            group.push(name);
        }
    }
    let incoming = locked.path(INCOMING);
    std::fs::create_dir_all(&incoming)
        .map_err(|error| Error::io("cannot create", error).in_file(&incoming))?;
    let (mut files, mut weight_map, mut total) = (Vec::new(), BTreeMap::new(), 0u64);
    let count = groups.len();
    for (at, group) in groups.into_iter().enumerate() {
        let file = match count {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
        };
        let mut list = TensorList::default();
        list.attributes.insert("format".to_owned(), "pt".into());
        for name in group {
            let (dtype, shape) = type_of(name).ok_or_else(|| unknown(name))?;
            let len = len_of(name)?;
            let old = checkpoint.tensors.contains_key(name).then(|| checkpoint.bytes(name)).transpose()?;
            let bytes = match (deltas.by_tensor.contains_key(name), old) {
                (false, Some(old)) => std::borrow::Cow::Borrowed(old),
                (_, old) => {
                    let mut new = crate::base::huge_pages::zeroed_vec::<u8>(len)?;
                    deltas.restore(name, old, len, |at, _, block| {
                        new[at as usize..][..block.len()].copy_from_slice(block);
                        Ok(())
                    })?;
                    new.into()
                }
            };
            total += len;
            weight_map.insert(name.to_owned(), file.clone());
            list.tensors.push((name.to_owned(), Tensor::from_bytes(shape, dtype, bytes)?));
            advance(apply.observer, len)?;
        }
        let options = ExportOptions::default().durable(apply.durable);
        let to = Destination::derived(&incoming, &file)?.overwrite(true);
        export(&list, to, ExportFormat::Safetensors, &options)?;
        files.push(file);
    }
    if count > 1 {
        let text = plain_index(&weight_map, total);
        stage(&incoming, INDEX_NAME, text.as_bytes(), apply.durable)?;
        files.push(INDEX_NAME.to_owned());
    }
    ledger.files =
        files.iter().filter(|file| *file != INDEX_NAME).map(|file| (file.clone(), (0, 0))).collect();
    // Windows replaces no file that is mapped.
    drop(checkpoint);
    swap(locked, &files, &ledger, apply)
}

/// The index of an ordinary checkpoint.
fn plain_index(weight_map: &BTreeMap<String, String>, total: u64) -> String {
    let mut text = format!("{{\"metadata\": {{\"total_size\": {total}}}, \"weight_map\": {{");
    for (at, (name, file)) in weight_map.iter().enumerate() {
        text.push_str(if at > 0 { ", " } else { "" });
        push_string(&mut text, name);
        text.push_str(": ");
        push_string(&mut text, file);
    }
    text + "}}"
}

/// Writes a small file into the folder of what is ready.
fn stage(incoming: &Path, name: &str, bytes: &[u8], durable: bool) -> Result<()> {
    let to = Destination::derived(incoming, name)?.overwrite(true);
    let mut file = store::NewFile::create(to, &Default::default())?;
    file.write(bytes)?;
    file.finish(durable)
}

/// Puts files that lie ready in the place of a checkpoint's. Its other files with tensors go; what
/// is beside them (configuration, tokenizer) stays.
fn swap(locked: &Locked, files: &[String], ledger: &Ledger, apply: &Apply<'_>) -> Result<()> {
    let journal = journal::Writer::create(locked)?;
    let record = || -> Result<()> {
        files.iter().try_for_each(|file| journal.take_in(file))?;
        for name in tensor_files(locked.folder())? {
            if !files.contains(&name) {
                journal.remove(&name)?;
            }
        }
        crate::progress::finish(apply.observer)
    };
    match record() {
        Ok(()) => journal.commit(ledger, apply.threads, apply.durable)?,
        Err(error) => return journal.abandon().and(Err(error)),
    }
    let incoming = locked.path(INCOMING);
    let _ = std::fs::remove_dir(&incoming); // empty now; the next apply would remove it too
    Ok(())
}

/// The files of a folder that hold tensors or say where they are.
fn tensor_files(folder: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io("cannot list", error).in_file(folder);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && (name.ends_with(".safetensors") || name == INDEX_NAME) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes a checkpoint from a model: a folder of safetensors files is copied, any other model is
/// converted.
pub(crate) fn seed(locked: &Locked, model: &Path, version: &str, apply: &Apply<'_>) -> Result<u64> {
    let incoming = locked.path(INCOMING);
    std::fs::create_dir_all(&incoming)
        .map_err(|error| Error::io("cannot create", error).in_file(&incoming))?;
    let reader = OpenOptions::default().open(model)?;
    let folder = model.is_dir() || (crate::remote::is_url(model) && model.to_string_lossy().ends_with('/'));
    let mut files = Vec::new();
    if folder && reader.format() == Format::Safetensors {
        let tensor_names: BTreeSet<String> = (0..reader.catalog().sources.len() as u32)
            .filter_map(|index| {
                let label = reader.catalog().sources.label(index);
                Some(Path::new(label).file_name()?.to_string_lossy().into_owned())
            })
            .collect();
        for entry in store::list(model, &Default::default())? {
            let tensors = entry.name.ends_with(".safetensors");
            let plain = is_plain_name(&entry.name) && !entry.name.starts_with('.');
            if plain && (!tensors || tensor_names.contains(&entry.name)) {
                copy(&store::join(model, &entry.name), &incoming, &entry.name, apply)?;
                files.push(entry.name);
            }
        }
    } else {
        let options = ExportOptions::default().durable(apply.durable).drop_attributes(true);
        let to = Destination::derived(&incoming, "model.safetensors")?.overwrite(true);
        export(&reader, to, ExportFormat::Safetensors, &options)?;
        files.push("model.safetensors".to_owned());
    }
    let staged = Checkpoint::open(&incoming)?;
    let ledger = staged.ledger(version, apply)?;
    drop(staged);
    swap(locked, &files, &ledger, apply)?;
    Ok(0)
}

/// Copies a file into the folder of what is ready.
fn copy(from: &Path, incoming: &Path, name: &str, apply: &Apply<'_>) -> Result<u64> {
    copy_from(from, &Default::default(), incoming, name, apply)
}

fn copy_from(
    from: &Path,
    remote: &crate::remote::Options,
    incoming: &Path,
    name: &str,
    apply: &Apply<'_>,
) -> Result<u64> {
    const PART: u64 = 8 << 20;
    let source = crate::source::open(from, crate::source::MapMode::Never, remote)?;
    let to = Destination::derived(incoming, name)?.overwrite(true);
    let mut file = store::NewFile::create(to, &Default::default())?;
    let mut buffer = vec![0; PART.min(source.len()) as usize];
    let mut at = 0;
    while at < source.len() {
        let part = &mut buffer[..PART.min(source.len() - at) as usize];
        source.read_at(at, part)?;
        file.write(part)?;
        at += part.len() as u64;
        advance(apply.observer, part.len() as u64)?;
    }
    file.finish(apply.durable)?;
    Ok(source.len())
}

/// Puts a full version in the place of a checkpoint.
pub(crate) fn apply_full(
    locked: &Locked,
    stream: &Stream,
    version: &Version,
    allow_structure: bool,
    apply: &Apply<'_>,
) -> Result<(BTreeSet<String>, u64)> {
    let folder = locked.folder();
    let old = match tensor_files(folder)?.is_empty() {
        true => None,
        false => Some(Checkpoint::open(folder)?),
    };
    let incoming = locked.path(INCOMING);
    std::fs::create_dir_all(&incoming)
        .map_err(|error| Error::io("cannot create", error).in_file(&incoming))?;
    let mut read = 0;
    let shards: BTreeSet<&String> = version.index.weight_map.values().collect();
    let mut files: Vec<String> = Vec::new();
    for file in &shards {
        let path = stream.path(&version.folder, file);
        read += copy_from(&path, stream.remote(), &incoming, file, apply).map_err(|error| {
            match super::stream::is_absent(&error) {
                true => Error::not_found("this shard is missing, although the index names it").in_file(&path),
                false => error,
            }
        })?;
        files.push((*file).clone());
    }
    // Configuration and tokenizer, where the version has them.
    let others = match store::list(store::join(stream.root(), &version.folder), stream.remote()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(), // a web server
        others => others?,
    };
    for entry in others {
        let plain = is_plain_name(&entry.name) && !entry.name.starts_with('.');
        if plain && !entry.name.ends_with(".safetensors") && entry.name != INDEX_NAME {
            let path = stream.path(&version.folder, &entry.name);
            read += copy_from(&path, stream.remote(), &incoming, &entry.name, apply)?;
            files.push(entry.name);
        }
    }
    let sizes: BTreeMap<String, String> = version.index.weight_map.clone().into_iter().collect();
    stage(
        &incoming,
        INDEX_NAME,
        plain_index(&sizes, total_size(&incoming, &shards)?).as_bytes(),
        apply.durable,
    )?;
    files.push(INDEX_NAME.to_owned());
    let staged = Checkpoint::open(&incoming)?;
    if !staged.tensors.keys().all(|name| version.index.weight_map.contains_key(name))
        || staged.tensors.len() != version.index.weight_map.len()
    {
        let message = "the shards of a full version hold other tensors than its index names";
        return Err(Error::corrupt("sync.tensor", message).in_file(stream.path(&version.folder, INDEX_NAME)));
    }
    let mut ledger = staged.ledger(&version.name, apply)?;
    check_full(stream, version, &staged, &ledger)?;
    ledger.stream_id = version.index.extras.as_ref().map(|extras| extras.stream_id.clone());
    let same = |a: &Place, b: &Place| (a.dtype, &a.shape) == (b.dtype, &b.shape);
    let mut changed: BTreeSet<String> = ledger.tensors.keys().cloned().collect();
    if let Some(old) = &old {
        let fits = old.tensors.len() == staged.tensors.len()
            && old
                .tensors
                .iter()
                .all(|(name, place)| staged.tensors.get(name).is_some_and(|new| same(place, new)));
        if !fits && !allow_structure {
            return Err(Error::mismatch(
                "this full version has other tensors, types or shapes than the checkpoint: \
                 allow a change of structure to apply it",
            )
            .in_file(stream.path(&version.folder, INDEX_NAME)));
        }
        changed.retain(|name| match (old.tensors.get(name), old.bytes(name), staged.bytes(name)) {
            (Some(_), Ok(before), Ok(now)) => before != now,
            _ => true,
        });
    }
    drop((old, staged));
    swap(locked, &files, &ledger, apply)?;
    Ok((changed, read))
}

fn total_size(incoming: &Path, shards: &BTreeSet<&String>) -> Result<u64> {
    let mut total = 0;
    for file in shards {
        let reader = OpenOptions::default().open(incoming.join(file))?;
        total += reader.objects().map(|(_, object)| object.byte_len()).sum::<u64>();
    }
    Ok(total)
}

/// Compares a full version with the checksums and ids that it names.
fn check_full(stream: &Stream, version: &Version, staged: &Checkpoint, ledger: &Ledger) -> Result<()> {
    let at =
        |error: Error, name: &str| error.in_tensor(name).in_file(stream.path(&version.folder, INDEX_NAME));
    if let Some(extras) = &version.index.extras {
        for (name, entry) in &extras.tensors {
            let held = ledger.tensors.get(name).and_then(|known| known.id);
            if held != Some(entry.target) {
                let message = "it does not have the content id that the index names";
                return Err(at(Error::mismatch(message), name));
            }
        }
        if extras.target_id.is_some() && extras.target_id != ledger.model_id() {
            let message = "the model does not have the content id that the index names";
            return Err(Error::mismatch(message).in_file(stream.path(&version.folder, INDEX_NAME)));
        }
    }
    let Kind::Full { checksum: Some(format) } = version.index.kind else { return Ok(()) };
    let attributes = &staged.reader.catalog().attributes;
    for name in staged.tensors.keys() {
        let expected = attributes.get(name.as_str()).and_then(|value| value.as_text());
        match expected {
            Some(expected) if format.of(staged.bytes(name)?) == expected => {}
            Some(_) => return Err(at(Error::mismatch(format!("its {format} checksum differs")), name)),
            None => return Err(at(Error::corrupt("sync.digest", "it has no checksum"), name)),
        }
    }
    Ok(())
}
