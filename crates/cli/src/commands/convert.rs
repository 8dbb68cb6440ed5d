//! `convert`, `compress`, `decompress` and `migrate`: the same tensors in a new file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use ztensor::Destination;
use ztensor::export::{ExportFormat, ExportOptions, ExportSource, export};
use ztensor::schemes::Regrouped;
use ztensor::source::Staged;
use ztensor::{Attributes, Compression, Object, Observer, Reader, Tensor, Value, WriteOptions, Writer};

use super::Common;
use crate::args::{Clash, Compress, Convert, Output, Regroup, Rewrite, Which, Written};
use crate::cast::Cast;
use crate::coding::Codec;
use crate::failure::{FINE, Failure, Outcome};
use crate::rename::Renaming;
use crate::ui::Progress;
use crate::{files, human};

pub fn convert(options: &Convert, common: Common) -> Outcome {
    let (inputs, output) = options.paths()?;
    let inputs = files::expanded(inputs)?;
    let paths: Vec<&Path> = inputs.iter().map(|input| input.as_path()).collect();
    let place = Output { output: output.to_owned(), force: options.force };
    let output = &place.check(&paths)?;
    let target = Target::chosen(options.format, output.path())?;
    if options.canonical && target != Target::Other(ExportFormat::Zt2) {
        return Err(Failure::usage("--canonical is for version 2 of .zt: add --format zt2"));
    }
    let readers = paths.iter().map(|path| common.open(path)).collect::<Result<Vec<_>, _>>()?;
    if options.delete_original {
        check_deletable(&paths, &readers)?;
    }
    if let Some(how) = options.quantized {
        return regroup(options, how, &readers, output, target, common);
    }
    let mut chosen = Chosen::new(&options.which, options.metadata, &options.renaming, &readers)?;
    chosen.cast = Cast { dequantize: options.dequantize, float: options.dtype, ..Cast::default() };
    let notes = match target {
        Target::Zt => Vec::new(),
        Target::Other(format) => {
            deflate_level(format, options)?;
            prepare_metadata(&mut chosen, format, options.drop_metadata)?
        }
    };
    let shards = chosen.split(options.max_shard_size);
    let index = beside(output.path(), &index_name(output.path()), options.force)?;
    let outputs = match shards.len() {
        1 => vec![output.clone()],
        count => {
            let names = shard_names(output.path(), count);
            names.iter().map(|name| beside(output.path(), name, options.force)).collect::<Result<_, _>>()?
        }
    };
    if shards.len() > 1 {
        outputs.iter().chain([&index]).try_for_each(not_taken)?;
    }
    let progress = Progress::new("writing", chosen.target_bytes(), common.quiet);
    for (shard, output) in shards.iter().zip(&outputs) {
        match target {
            Target::Zt => {
                write_zt(shard, output, zt_options(options)?, &progress, common)?;
            }
            Target::Other(format) => write_other(shard, output, format, options, &progress, common)?,
        }
    }
    drop(progress);
    if shards.len() > 1 {
        write_index(&index, &shards, &outputs)?;
    }
    report(&outputs, output.path(), chosen.stored, common)?;
    notes.iter().for_each(|note| common.say(note));
    let overflowed: u64 = shards.iter().map(|shard| shard.cast.overflowed.load(Ordering::Relaxed)).sum();
    if overflowed > 0 {
        let values = human::counted(overflowed, "value");
        common.say(format_args!("warning: {values} too large for the new type became Inf"));
    }
    if options.delete_original {
        delete_originals(&paths, output, &chosen, common)?;
    }
    Ok(FINE)
}

/// Joins the tensors of quantized weights, or splits them.
fn regroup(
    options: &Convert,
    how: Regroup,
    readers: &[Reader],
    output: &Destination,
    target: Target,
    common: Common,
) -> Outcome {
    let [reader] = readers else { return Err(Failure::usage("--quantized takes one input")) };
    reader.check_limits(reader.objects().map(|(name, _)| name))?;
    let source = match how {
        Regroup::Join => Regrouped::joined(reader)?,
        Regroup::Split => Regrouped::split(reader)?,
    };
    let objects = source.objects();
    let bytes = objects.iter().map(|(_, object)| object.byte_len()).fold(0, u64::saturating_add);
    let progress = Progress::new("writing", bytes, common.quiet);
    match target {
        Target::Other(format) => write_other(&source, output, format, options, &progress, common)?,
        Target::Zt => {
            let mut writer = Writer::create(output.clone())?;
            writer.set_threads(common.threads);
            for (key, value) in source.attributes() {
                writer.set_attribute(key.clone(), value.clone());
            }
            let write = zt_options(options)?;
            for (index, (name, object)) in objects.iter().enumerate() {
                writer.write_object_with(name, &source.fetch(index)?, write)?;
                if !progress.advance(object.byte_len()) {
                    return Err(ztensor::Error::cancelled().into());
                }
            }
            writer.finish()?;
        }
    }
    drop(progress);
    let stored = reader.objects().map(|(_, object)| object.stored_len()).fold(0, u64::saturating_add);
    report(std::slice::from_ref(output), output.path(), stored, common)?;
    let done = if how == Regroup::Join { "joined" } else { "split" };
    common.say(format_args!("{} {done}", human::counted(source.weights as u64, "quantized weight")));
    Ok(FINE)
}

/// How tensors of `.zt` files are written.
fn zt_options(options: &Convert) -> Result<WriteOptions, Failure> {
    let asked = options.coding.compression()?;
    let compression = asked.or(options.compress.then_some(Compression::Zstd(3)));
    Ok(WriteOptions { compression: compression.unwrap_or_default(), checksum: options.checksum.into() })
}

pub fn compress(options: &Compress, common: Common) -> Outcome {
    let output = &options.output.check(&[&options.input])?;
    let compression = options.coding.compression()?.unwrap_or(Compression::Zstd(3));
    let write = WriteOptions { compression, checksum: options.checksum.into() };
    rewrite(&options.input, output, write, common)
}

pub fn decompress(options: &Rewrite, common: Common) -> Outcome {
    let output = &options.output.check(&[&options.input])?;
    let write = WriteOptions { compression: Compression::None, checksum: options.checksum.into() };
    rewrite(&options.input, output, write, common)
}

pub fn migrate(options: &Rewrite, common: Common) -> Outcome {
    if common.open(&options.input)?.format() != ztensor::Format::Zt {
        let message = format!("{} is not a .zt file: use `ztensor convert`", options.input.display());
        return Err(Failure::usage(message));
    }
    decompress(options, common)
}

fn rewrite(input: &Path, output: &Destination, write: WriteOptions, common: Common) -> Outcome {
    if !matches!(Target::of(output.path())?, Target::Zt) {
        return Err(Failure::usage("this command writes .zt files: use `ztensor convert` for others"));
    }
    let readers = [common.open(input)?];
    let everything = Which { only: Vec::new(), exclude: Vec::new() };
    let chosen = Chosen::new(&everything, Clash::Refuse, &Renaming::default(), &readers)?;
    let progress = Progress::new("writing", chosen.target_bytes(), common.quiet);
    write_zt(&chosen, output, write, &progress, common)?;
    drop(progress);
    report(std::slice::from_ref(output), output.path(), chosen.stored, common)?;
    Ok(FINE)
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Zt,
    Other(ExportFormat),
}

impl Target {
    /// The format that was asked for, or the one of the output's extension.
    fn chosen(format: Option<Written>, output: &Path) -> Result<Target, Failure> {
        match format {
            None => Target::of(output),
            Some(Written::Zt) => Ok(Target::Zt),
            Some(Written::Other(format)) => Ok(Target::Other(format)),
        }
    }

    fn of(output: &Path) -> Result<Target, Failure> {
        if output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zt")) {
            return Ok(Target::Zt);
        }
        ExportFormat::from_path(output).map(Target::Other).ok_or_else(|| {
            let known: Vec<_> = ExportFormat::ALL.iter().map(|format| format!(".{format}")).collect();
            Failure::usage(format!("cannot write {}: name it .zt, {}", output.display(), known.join(", ")))
        })
    }
}

/// A tensor to write.
#[derive(Clone)]
struct Choice<'a> {
    /// Its name in the input.
    name: &'a str,
    /// Its name in the output.
    new_name: String,
    object: &'a Object,
    reader: &'a Reader,
}

/// The tensors to write, from one or several files.
struct Chosen<'a> {
    tensors: Vec<Choice<'a>>,
    readers: Vec<&'a Reader>,
    attributes: Attributes,
    cast: Cast,
    /// What they take in their files.
    stored: u64,
}

impl<'a> Chosen<'a> {
    fn new(
        which: &Which,
        clash: Clash,
        renaming: &Renaming,
        readers: &'a [Reader],
    ) -> Result<Chosen<'a>, Failure> {
        let mut chosen = Chosen {
            tensors: Vec::new(),
            readers: readers.iter().collect(),
            attributes: Attributes::new(),
            cast: Cast::default(),
            stored: 0,
        };
        let mut owners: HashMap<String, (&Reader, &str)> = HashMap::new();
        for reader in readers {
            let objects = which.filter(reader);
            reader.check_limits(objects.iter().map(|(name, _)| *name))?;
            for (name, object) in objects {
                let new_name = renaming.apply(name);
                if let Some((other, old)) = owners.insert(new_name.clone(), (reader, name)) {
                    let label = |reader: &Reader| reader.catalog().sources.label(0).to_owned();
                    let (a, b) = (label(other), label(reader));
                    return Err(Failure::usage(match std::ptr::eq(other, reader) {
                        true => format!("{old:?} and {name:?} would both be named {new_name:?}"),
                        false => format!("{a} and {b} both have a tensor named {new_name:?}"),
                    }));
                }
                chosen.stored = chosen.stored.saturating_add(object.stored_len());
                chosen.tensors.push(Choice { name, new_name, object, reader });
            }
            for (key, value) in reader.attributes() {
                match chosen.attributes.get(key) {
                    Some(other) if other != value && clash == Clash::Refuse => {
                        return Err(Failure::usage(format!(
                            "the files have different metadata {key:?}: choose one with --metadata first or last"
                        )));
                    }
                    Some(_) if clash == Clash::First => {}
                    _ => drop(chosen.attributes.insert(key.clone(), value.clone())),
                }
            }
        }
        if chosen.tensors.is_empty() && readers.iter().any(|reader| !reader.is_empty()) {
            return Err(which.nothing());
        }
        renaming.check(chosen.tensors.iter().map(|choice| choice.name))?;
        Ok(chosen)
    }

    /// What a tensor takes in the new file before compression.
    fn target_len(&self, choice: &Choice<'_>) -> u64 {
        match self.cast.target(choice.object) {
            Some(dtype) => choice.object.elements().and_then(|count| dtype.byte_len(count)).unwrap_or(0),
            None => choice.object.byte_len(),
        }
    }

    fn target_bytes(&self) -> u64 {
        self.tensors.iter().map(|choice| self.target_len(choice)).fold(0, u64::saturating_add)
    }

    /// Consecutive tensors of at most `limit` bytes each, or one.
    fn split(&self, limit: Option<u64>) -> Vec<Chosen<'a>> {
        let limit = limit.unwrap_or(u64::MAX);
        let shard = |tensors| Chosen {
            tensors,
            readers: self.readers.clone(),
            attributes: self.attributes.clone(),
            cast: Cast { dequantize: self.cast.dequantize, float: self.cast.float, ..Cast::default() },
            stored: 0,
        };
        let (mut shards, mut current, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        for choice in &self.tensors {
            let len = self.target_len(choice);
            if !current.is_empty() && bytes.saturating_add(len) > limit {
                shards.push(shard(std::mem::take(&mut current)));
                bytes = 0;
            }
            bytes = bytes.saturating_add(len);
            current.push(choice.clone());
        }
        shards.push(shard(current));
        shards
    }
}

/// `model-00001-of-00003.safetensors` and so on, as Hugging Face names shards.
fn shard_names(output: &Path, count: usize) -> Vec<String> {
    let stem = output.file_stem().unwrap_or_default().to_string_lossy();
    let extension = output.extension().unwrap_or_default().to_string_lossy();
    (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.{extension}")).collect()
}

fn index_name(output: &Path) -> String {
    format!("{}.index.json", output.file_name().unwrap_or_default().to_string_lossy())
}

/// A file of a made-up name in the folder of another.
fn beside(path: &Path, name: &str, force: bool) -> Result<Destination, Failure> {
    let folder = path.parent().unwrap_or(Path::new(""));
    match ztensor::remote::is_url(path) {
        true => Ok(Destination::explicit(ztensor::remote::store::join(folder, name), force)),
        false => Ok(Destination::derived(folder, name)?.overwrite(force)),
    }
}

/// Refuses to overwrite, unless told to.
fn not_taken(output: &Destination) -> Result<(), Failure> {
    match output.check() {
        Ok(()) => Ok(()),
        Err(error)
            if error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::AlreadyExists) =>
        {
            let path = human::path(output.path());
            Err(Failure::usage(format!("{path} exists already: --force overwrites it")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes the index that transformers and `ztensor::open` read.
fn write_index(index: &Destination, shards: &[Chosen<'_>], outputs: &[Destination]) -> Result<(), Failure> {
    let mut map = serde_json::Map::new();
    for (shard, output) in shards.iter().zip(outputs) {
        let file = output.path().file_name().unwrap_or_default().to_string_lossy();
        for choice in &shard.tensors {
            map.insert(choice.new_name.clone(), serde_json::json!(file));
        }
    }
    let total: u64 = shards.iter().map(Chosen::target_bytes).sum();
    let document = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    ztensor::write_atomically(index.clone(), |out| {
        writeln!(out, "{document:#}").map_err(|error| ztensor::Error::io("cannot write", error))
    })?;
    Ok(())
}

/// Makes the metadata fit a format: values that it has no type for become JSON text, and what it
/// cannot hold at all is refused with the option that drops it. Returns what is worth saying.
fn prepare_metadata(
    chosen: &mut Chosen<'_>,
    format: ExportFormat,
    drop_metadata: bool,
) -> Result<Vec<String>, Failure> {
    let unheld = format.unheld_attributes(&chosen.attributes);
    let mut notes = Vec::new();
    if !unheld.is_empty() {
        if drop_metadata {
            unheld.iter().for_each(|key| drop(chosen.attributes.shift_remove(key)));
            notes.push(format!("dropped metadata: {}", listed(&unheld)));
        } else if format.holds_text() {
            for key in &unheld {
                if let Some(value) = chosen.attributes.get_mut(key) {
                    *value = Value::Text(crate::json::value(value).to_string());
                }
            }
            notes.push(format!("metadata written as JSON text: {}", listed(&unheld)));
        } else {
            return Err(Failure::bad_file(format!(
                "a .{format} file holds no metadata: pass --drop-metadata to leave out {}",
                listed(&unheld)
            )));
        }
    }
    let own = |choice: &&Choice<'_>| choice.object.attributes.as_ref().is_some_and(|own| !own.is_empty());
    let with_own: Vec<String> =
        chosen.tensors.iter().filter(own).map(|choice| choice.new_name.clone()).collect();
    if drop_metadata && !with_own.is_empty() && format != ExportFormat::Gguf {
        notes.push(format!("dropped metadata of tensors: {}", listed(&with_own)));
    }
    Ok(notes)
}

/// Some names, and how many more there are.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text =
        names.iter().take(SHOWN).map(|name| human::escaped(name).into_owned()).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

fn write_zt(
    chosen: &Chosen<'_>,
    output: &Destination,
    write: WriteOptions,
    progress: &Progress,
    common: Common,
) -> Result<(), Failure> {
    let mut writer = Writer::create(output.clone())?;
    writer.set_threads(common.threads);
    for (key, value) in &chosen.attributes {
        writer.set_attribute(key.clone(), value.clone());
    }
    for reader in &chosen.readers {
        let mut names = Vec::new();
        for choice in chosen.tensors.iter().filter(|choice| std::ptr::eq(choice.reader, *reader)) {
            let target = chosen.cast.target(choice.object);
            if target.is_none() && choice.name == choice.new_name {
                names.push(choice.name);
                continue;
            }
            // Tensors before this one are written first, so that the order stays.
            writer.write_from(reader, &std::mem::take(&mut names), write, Some(progress))?;
            let tensor = chosen.fetch(choice)?;
            writer.write_object_with(&choice.new_name, &tensor, write)?;
            if !progress.advance(chosen.target_len(choice)) {
                return Err(ztensor::Error::cancelled().into());
            }
        }
        writer.write_from(reader, &names, write, Some(progress))?;
    }
    writer.finish()?;
    Ok(())
}

impl<'a> Chosen<'a> {
    /// A tensor as it is to be written, checked against its checksum.
    fn fetch(&self, choice: &Choice<'a>) -> ztensor::Result<Tensor<'a>> {
        let tensor = choice.reader.read_checked(choice.name)?;
        match self.cast.target(choice.object) {
            None => Ok(tensor),
            Some(dtype) => self.cast.apply(&tensor, dtype).map_err(|error| error.in_tensor(choice.name)),
        }
    }
}

impl ExportSource for Chosen<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        let described = |object: &Object, dtype: ztensor::DType| {
            let bytes = object.elements().and_then(|count| dtype.byte_len(count)).unwrap_or(0);
            let data = ztensor::Component::plain(dtype, ztensor::Extent::new(0, bytes));
            Object::dense(object.shape.clone(), data)
        };
        let mut objects = Vec::with_capacity(self.tensors.len());
        for choice in &self.tensors {
            let object = match self.cast.target(choice.object) {
                Some(dtype) => Cow::Owned(described(choice.object, dtype)),
                None => Cow::Borrowed(choice.object),
            };
            objects.push((choice.new_name.as_str(), object));
        }
        objects
    }

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn fetch(&self, index: usize) -> ztensor::Result<Tensor<'_>> {
        Chosen::fetch(self, &self.tensors[index])
    }

    fn streams(&self, index: usize, role: &str) -> bool {
        let choice = &self.tensors[index];
        self.cast.target(choice.object).is_none() && choice.reader.has_pieces(choice.name, role)
    }

    fn pieces(
        &self,
        index: usize,
        role: &str,
        each: &mut dyn FnMut(&[u8]) -> ztensor::Result<()>,
    ) -> ztensor::Result<()> {
        let choice = &self.tensors[index];
        choice.reader.read_pieces(choice.name, role, each)
    }

    fn start(&self, index: usize, role: &str, most: usize) -> ztensor::Result<Vec<u8>> {
        let choice = &self.tensors[index];
        choice.reader.read_start(choice.name, role, most as u64)
    }

    fn fetches_ahead(&self) -> bool {
        true
    }

    fn stage(&self, indices: &[usize]) -> ztensor::Result<Vec<Staged>> {
        let mut staged = Vec::new();
        for reader in &self.readers {
            let owned = indices.iter().map(|&index| &self.tensors[index]);
            let owned = owned.filter(|choice| std::ptr::eq(choice.reader, *reader));
            staged.extend(reader.stage(&owned.map(|choice| choice.name).collect::<Vec<_>>())?);
        }
        Ok(staged)
    }
}

/// The level of deflate for a format that has it; refuses options that are for other formats.
fn deflate_level(format: ExportFormat, options: &Convert) -> Result<Option<u32>, Failure> {
    if format == ExportFormat::Zt2 {
        zstd_level(options)?;
        return Ok(None);
    }
    if options.checksum != crate::args::Digest::None {
        return Err(Failure::usage(format!("a .{format} file holds no checksums: omit --checksum")));
    }
    let coding = &options.coding;
    let packs = format == ExportFormat::Zstn;
    if !packs && (coding.codec.is_some() || coding.effort.is_some()) {
        return Err(Failure::usage(format!(
            "--codec and --effort are for .zt and .zstn files, not .{format}"
        )));
    }
    if packs && coding.codec == Some(Codec::Zstd) {
        return Err(Failure::usage("a .zstn file is always compressed with z4ai: omit --codec"));
    }
    let deflate = coding.level.or(options.compress.then_some(6));
    Ok(match (format, deflate) {
        (_, None) | (ExportFormat::Zstn, _) => None,
        (ExportFormat::Npz, Some(level @ 1..=9)) => Some(level as u32),
        (ExportFormat::Npz, Some(level)) => {
            return Err(Failure::usage(format!("deflate has levels 1 to 9, not {level}")));
        }
        _ => return Err(Failure::usage(format!("a .{format} file cannot be compressed"))),
    })
}

/// The level of zstd for version 2 of `.zt`; refuses options that it has no use for.
fn zstd_level(options: &Convert) -> Result<Option<i32>, Failure> {
    if options.checksum != crate::args::Digest::None {
        return Err(Failure::usage("a zt2 file always has XXH3 digests: omit --checksum"));
    }
    match options.coding.compression()?.or(options.compress.then_some(Compression::Zstd(3))) {
        None | Some(Compression::None) => Ok(None),
        Some(_) if options.canonical => {
            Err(Failure::usage("canonical form is not compressed: omit --compress or --canonical"))
        }
        Some(Compression::Zstd(level)) => Ok(Some(level)),
        Some(Compression::Z4ai(_)) => {
            Err(Failure::usage("version 2 of .zt has no z4ai encoding: use --codec zstd, or --format zt"))
        }
    }
}

fn write_other(
    source: &dyn ExportSource,
    output: &Destination,
    format: ExportFormat,
    options: &Convert,
    progress: &Progress,
    common: Common,
) -> Result<(), Failure> {
    let coding = &options.coding;
    let deflate = deflate_level(format, options)?;
    let export_options = ExportOptions::default()
        .deflate(deflate)
        .effort(coding.effort.unwrap_or_default(), coding.level)
        .zstd(if format == ExportFormat::Zt2 { zstd_level(options)? } else { None })
        .canonical(options.canonical)
        .threads(common.threads)
        .drop_attributes(options.drop_metadata)
        .observer(Some(progress));
    export(source, output.clone(), format, &export_options)?;
    Ok(())
}

fn report(outputs: &[Destination], output: &Path, read: u64, common: Common) -> Result<(), Failure> {
    let mut written = 0;
    for output in outputs {
        written += ztensor::remote::store::len(output.path(), &Default::default())?.unwrap_or(0);
    }
    let shards = if outputs.len() > 1 { format!("{} shards, ", outputs.len()) } else { String::new() };
    let percent = 100.0 * written as f64 / read.max(1) as f64;
    let (read, written) = (human::bytes(read), human::bytes(written));
    let output = output.display();
    common.say(format_args!("{output}: {shards}{written} from {read} of tensors ({percent:.1} %)"));
    Ok(())
}

/// Only inputs that are one file each can be deleted.
fn check_deletable(paths: &[&Path], readers: &[Reader]) -> Result<(), Failure> {
    for (path, reader) in paths.iter().zip(readers) {
        if !path.is_file() || reader.catalog().sources.len() > 1 {
            let message = format!("{} is not a single file: omit --delete-original", path.display());
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}

/// Deletes the inputs, once every tensor was read back from the new file and is the same.
fn delete_originals(
    paths: &[&Path],
    output: &Destination,
    chosen: &Chosen<'_>,
    common: Common,
) -> Result<(), Failure> {
    let written = common.open(output.path())?;
    let progress = Progress::new("verifying", chosen.target_bytes(), common.quiet);
    for Choice { name, object, reader, .. } in &chosen.tensors {
        let (before, after) = (reader.read_object(name)?, written.read_object(name)?);
        let same = before.shape == after.shape
            && before.layout == after.layout
            && before.components.len() == after.components.len()
            && before
                .components
                .iter()
                .all(|(role, array)| after.component(role).is_some_and(|other| other.bytes == array.bytes));
        if !same {
            let message = format!("{name:?} differs when read back: no input was deleted");
            return Err(Failure::differs(message));
        }
        if !progress.advance(object.byte_len()) {
            return Err(ztensor::Error::cancelled().into());
        }
    }
    for path in paths {
        std::fs::remove_file(path).map_err(Failure::of_file(path))?;
    }
    Ok(())
}
