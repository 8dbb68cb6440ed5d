//! `download-hf`: a model from the Hugging Face Hub.

use std::path::Path;

use ztensor::Destination;

use super::{Common, convert};
use crate::args::{Clash, Convert, Digest, DownloadHf, Which};
use crate::coding::Coding;
use crate::failure::{FINE, Failure, Outcome};
use crate::hub::{Model, RemoteFile, is_right};
use crate::human;
use crate::ui::Progress;

pub fn run(options: &DownloadHf, common: Common) -> Outcome {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
    let token = options.token.clone().or_else(|| variable("HF_TOKEN"));
    let model = Model::new(&endpoint, &options.repo, &options.revision, token)?;
    let folder = &options.output;
    let packed = (options.compress || options.level.is_some()).then(|| folder.join("model.zt"));
    if let Some(packed) = &packed
        && Destination::explicit(packed, false).is_taken()?
    {
        let message = format!("{} exists already: move it or choose another folder", packed.display());
        return Err(Failure::usage(message));
    }
    let files: Vec<RemoteFile> = model.files()?.into_iter().filter(|file| is_wanted(&file.name)).collect();
    if !files.iter().any(|file| is_weights(&file.name)) {
        return Err(Failure::usage(format!("{} has no .safetensors files", options.repo)));
    }
    std::fs::create_dir_all(folder).map_err(Failure::of_file(folder))?;
    let missing = missing(&files, folder)?;
    let total = files.iter().map(|file| file.size).fold(0, u64::saturating_add);
    {
        let here: u64 = files.iter().map(|file| present(file, folder)).sum();
        let progress = Progress::new("downloading", total.saturating_sub(here), common.quiet);
        for file in &missing {
            model.fetch(file, folder, &progress)?;
        }
    }
    let (shown, count) = (folder.display(), human::counted(files.len() as u64, "file"));
    common.say(format_args!("{shown}: {count}, {}, {} new", human::bytes(total), missing.len()));
    match packed {
        Some(packed) => pack(options, &files, packed, common),
        None => Ok(FINE),
    }
}

/// Files that make up a model: weights, their index, configuration, tokenizer.
fn is_wanted(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|extension| extension.to_str());
    !name.starts_with('.') && matches!(ending, Some("safetensors" | "json" | "txt" | "model" | "jinja"))
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// The files still to fetch. Others of the same name are not replaced.
fn missing<'a>(files: &'a [RemoteFile], folder: &Path) -> Result<Vec<&'a RemoteFile>, Failure> {
    let mut missing = Vec::new();
    for file in files {
        let path = folder.join(&file.name);
        if std::fs::symlink_metadata(&path).is_err() {
            missing.push(file);
        } else if !is_right(file, &path)? {
            let message =
                format!("{} exists already and is another file: move it away first", path.display());
            return Err(Failure::usage(message));
        }
    }
    Ok(missing)
}

/// How much of a file is here already.
fn present(file: &RemoteFile, folder: &Path) -> u64 {
    let len = |name: &str| std::fs::metadata(folder.join(name)).map_or(0, |metadata| metadata.len());
    len(&file.name).max(len(&format!("{}.part", file.name))).min(file.size)
}

/// Turns the downloaded shards into one compressed file.
fn pack(options: &DownloadHf, files: &[RemoteFile], output: std::path::PathBuf, common: Common) -> Outcome {
    let weights = files.iter().filter(|file| is_weights(&file.name));
    let inputs = weights.map(|file| options.output.join(&file.name)).collect();
    let code = convert::convert(
        &Convert {
            inputs,
            format: None,
            canonical: false,
            output: Some(output),
            force: false,
            renaming: Default::default(),
            dtype: None,
            max_shard_size: None,
            compress: true,
            coding: Coding { level: options.level, ..Coding::default() },
            checksum: Digest::Crc32c,
            which: Which { only: Vec::new(), exclude: Vec::new() },
            dequantize: false,
            quantized: None,
            drop_metadata: false,
            metadata: Clash::First,
            delete_original: true,
        },
        common,
    )?;
    // An index of files that are gone would only mislead.
    for file in files.iter().filter(|file| file.name.ends_with(".safetensors.index.json")) {
        let path = options.output.join(&file.name);
        std::fs::remove_file(&path).map_err(Failure::of_file(&path))?;
    }
    Ok(code)
}
