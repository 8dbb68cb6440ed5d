//! `convert`, `compress`, `decompress` and `migrate`: the same tensors in a new file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use ztensor::Destination;
use ztensor::export::{ExportFormat, ExportOptions, ExportSource, export};
use ztensor::source::Staged;
use ztensor::{Attributes, Compression, Layout, Object, Observer, Reader, Tensor, WriteOptions, Writer};

use super::Common;
use crate::args::{Clash, Compress, Convert, Rewrite, Which};
use crate::coding::Codec;
use crate::failure::{FINE, Failure, Outcome};
use crate::human;
use crate::ui::Progress;

pub fn convert(options: &Convert, common: Common) -> Outcome {
    let paths: Vec<&Path> = options.inputs.iter().map(|input| input.as_path()).collect();
    let output = &options.output.check(&paths)?;
    let target = Target::of(output.path())?;
    let readers = paths.iter().map(|path| common.open(path)).collect::<Result<Vec<_>, _>>()?;
    if options.delete_original {
        check_deletable(&paths, &readers)?;
    }
    let chosen = Chosen::new(&options.which, options.metadata, &readers)?;
    match target {
        Target::Zt => {
            let asked = options.coding.compression()?;
            let compression = asked.or(options.compress.then_some(Compression::Zstd(3)));
            let write = WriteOptions {
                compression: compression.unwrap_or_default(),
                checksum: options.checksum.into(),
            };
            write_zt(&chosen, output, write, options.dequantize, common)?;
        }
        Target::Other(format) => write_other(&chosen, output, format, options, common)?,
    }
    report(output.path(), chosen.stored, common)?;
    if options.delete_original {
        delete_originals(&paths, output, &chosen, common)?;
    }
    Ok(FINE)
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
    let chosen = Chosen::new(&Which { only: Vec::new(), exclude: Vec::new() }, Clash::Refuse, &readers)?;
    write_zt(&chosen, output, write, false, common)?;
    report(output.path(), chosen.stored, common)?;
    Ok(FINE)
}

/// What an output's extension asks for.
enum Target {
    Zt,
    Other(ExportFormat),
}

impl Target {
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

/// The tensors to write, from one or several files.
struct Chosen<'a> {
    tensors: Vec<(&'a str, &'a Object, &'a Reader)>,
    readers: Vec<&'a Reader>,
    attributes: Attributes,
    /// What they take in their files.
    stored: u64,
    /// What they take in memory: how far the work is, is told in these.
    bytes: u64,
}

impl<'a> Chosen<'a> {
    fn new(which: &Which, clash: Clash, readers: &'a [Reader]) -> Result<Chosen<'a>, Failure> {
        let mut chosen = Chosen {
            tensors: Vec::new(),
            readers: readers.iter().collect(),
            attributes: Attributes::new(),
            stored: 0,
            bytes: 0,
        };
        let mut owners: HashMap<&str, &Reader> = HashMap::new();
        for reader in readers {
            let objects = which.filter(reader);
            reader.check_limits(objects.iter().map(|(name, _)| *name))?;
            for (name, object) in objects {
                if let Some(other) = owners.insert(name, reader) {
                    let label = |reader: &Reader| reader.catalog().sources.label(0).to_owned();
                    let (a, b) = (label(other), label(reader));
                    return Err(Failure::usage(format!("{a} and {b} both have a tensor named {name:?}")));
                }
                chosen.stored = chosen.stored.saturating_add(object.stored_len());
                chosen.bytes = chosen.bytes.saturating_add(object.byte_len());
                chosen.tensors.push((name, object, reader));
            }
            for (key, value) in reader.attributes() {
                match chosen.attributes.get(key) {
                    Some(other) if other != value && clash == Clash::Refuse => {
                        return Err(Failure::usage(format!(
                            "the files disagree on the metadata {key:?}: choose with --metadata first or last"
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
        Ok(chosen)
    }
}

fn write_zt(
    chosen: &Chosen<'_>,
    output: &Destination,
    write: WriteOptions,
    dequantize: bool,
    common: Common,
) -> Result<(), Failure> {
    let mut writer = Writer::create(output.clone())?;
    writer.set_threads(common.threads);
    for (key, value) in &chosen.attributes {
        writer.set_attribute(key.clone(), value.clone());
    }
    let progress = Progress::new("writing", chosen.bytes, common.quiet);
    for reader in &chosen.readers {
        let mut names = Vec::new();
        for (name, object, _) in chosen.tensors.iter().filter(|(_, _, owner)| std::ptr::eq(*owner, *reader)) {
            if !(dequantize && is_quantized(object)) {
                names.push(*name);
                continue;
            }
            writer.write_from(reader, &std::mem::take(&mut names), write, Some(&progress))?;
            let dense = reader.read_object(name)?.dequantize().map_err(|error| error.in_tensor(*name))?;
            let tensor = Tensor::from_slice(dense.shape, &dense.data)?;
            writer.write_object_with(name, &tensor, write)?;
            if !progress.advance(object.byte_len()) {
                return Err(ztensor::Error::cancelled().into());
            }
        }
        writer.write_from(reader, &names, write, Some(&progress))?;
    }
    writer.finish()?;
    Ok(())
}

/// Whether `--dequantize` is about this tensor. Kinds that cannot be dequantized
/// count too: they are refused by name, not passed on as they are.
fn is_quantized(object: &Object) -> bool {
    match &object.layout {
        Layout::QuantizedGroup => true,
        Layout::Other(name) => name.starts_with("gguf."),
        _ => false,
    }
}

/// The chosen tensors as an export sees them.
struct Exported<'a> {
    chosen: &'a Chosen<'a>,
    dequantize: bool,
}

impl ExportSource for Exported<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        let described = |object: &Object| {
            let bytes = object.elements().unwrap_or(0).saturating_mul(4);
            let data = ztensor::Component::plain(ztensor::DType::F32, ztensor::Extent::new(0, bytes));
            Object::dense(object.shape.clone(), data)
        };
        let mut objects = Vec::with_capacity(self.chosen.tensors.len());
        for &(name, object, _) in &self.chosen.tensors {
            objects.push(match self.dequantize && is_quantized(object) {
                true => (name, Cow::Owned(described(object))),
                false => (name, Cow::Borrowed(object)),
            });
        }
        objects
    }

    fn attributes(&self) -> &Attributes {
        &self.chosen.attributes
    }

    fn fetch(&self, index: usize) -> ztensor::Result<Tensor<'_>> {
        let (name, object, reader) = self.chosen.tensors[index];
        let tensor = reader.read_checked(name)?;
        if !(self.dequantize && is_quantized(object)) {
            return Ok(tensor);
        }
        let dense = tensor.dequantize().map_err(|error| error.in_tensor(name))?;
        Ok(Tensor::from_slice(dense.shape.clone(), &dense.data)?.into_owned())
    }

    fn stage(&self, indices: &[usize]) -> ztensor::Result<Vec<Staged>> {
        let mut staged = Vec::new();
        for reader in &self.chosen.readers {
            let owned = indices.iter().map(|&index| self.chosen.tensors[index]);
            let owned = owned.filter(|(_, _, owner)| std::ptr::eq(*owner, *reader));
            staged.extend(reader.stage(&owned.map(|(name, _, _)| name).collect::<Vec<_>>())?);
        }
        Ok(staged)
    }
}

fn write_other(
    chosen: &Chosen<'_>,
    output: &Destination,
    format: ExportFormat,
    options: &Convert,
    common: Common,
) -> Result<(), Failure> {
    if options.checksum != crate::args::Digest::None {
        return Err(Failure::usage(format!("a .{format} file holds no digests: leave --checksum out")));
    }
    let coding = &options.coding;
    let packs = format == ExportFormat::Zstn;
    if !packs && (coding.codec.is_some() || coding.effort.is_some()) {
        return Err(Failure::usage(format!(
            "--codec and --effort are for .zt and .zstn files, not .{format}"
        )));
    }
    if packs && coding.codec == Some(Codec::Zstd) {
        return Err(Failure::usage("a .zstn file is packed with z4ai: leave --codec out"));
    }
    let deflate = coding.level.or(options.compress.then_some(6));
    let deflate = match (format, deflate) {
        (_, None) | (ExportFormat::Zstn, _) => None,
        (ExportFormat::Npz, Some(level @ 1..=9)) => Some(level as u32),
        (ExportFormat::Npz, Some(level)) => {
            return Err(Failure::usage(format!("deflate has levels 1 to 9, not {level}")));
        }
        _ => return Err(Failure::usage(format!("a .{format} file cannot be compressed"))),
    };
    let progress = Progress::new("writing", chosen.bytes, common.quiet);
    let export_options = ExportOptions::default()
        .deflate(deflate)
        .effort(coding.effort.unwrap_or_default(), coding.level)
        .threads(common.threads)
        .drop_attributes(options.drop_metadata)
        .observer(Some(&progress));
    let source = Exported { chosen, dequantize: options.dequantize };
    export(&source, output.clone(), format, &export_options)?;
    Ok(())
}

fn report(output: &Path, read: u64, common: Common) -> Result<(), Failure> {
    let written = ztensor::remote::store::len(output, &Default::default())?.unwrap_or(0);
    let percent = 100.0 * written as f64 / read.max(1) as f64;
    let (read, written) = (human::bytes(read), human::bytes(written));
    common.say(format_args!("{}: {written} from {read} of tensors ({percent:.1} %)", output.display()));
    Ok(())
}

/// Only inputs that are one file each can be deleted.
fn check_deletable(paths: &[&Path], readers: &[Reader]) -> Result<(), Failure> {
    for (path, reader) in paths.iter().zip(readers) {
        if !path.is_file() || reader.catalog().sources.len() > 1 {
            let message = format!("{} is not one file: leave --delete-original out", path.display());
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
    let progress = Progress::new("reading back", chosen.bytes, common.quiet);
    for (name, object, reader) in &chosen.tensors {
        let (before, after) = (reader.read_object(name)?, written.read_object(name)?);
        let same = before.shape == after.shape
            && before.layout == after.layout
            && before.components.len() == after.components.len()
            && before
                .components
                .iter()
                .all(|(role, array)| after.component(role).is_some_and(|other| other.bytes == array.bytes));
        if !same {
            let message = format!("{name:?} was not read back the same: nothing was deleted");
            return Err(Failure::differs(message));
        }
        if !progress.advance(object.byte_len()) {
            return Err(ztensor::Error::cancelled().into());
        }
    }
    for path in paths {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
