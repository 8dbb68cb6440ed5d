//! Options of `ztensor convert` and `ztensor export`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use ztensor::export::ExportFormat;

use super::{Clash, Digest, Which};
use crate::cast::Float;
use crate::coding::Coding;
use crate::failure::Failure;
use crate::rename::Renaming;

/// Options of `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// Tensor files, shard indexes, or folders; without -o the last one is the output.
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    /// Output file; its extension selects the format.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Output format, whatever the extension of OUT; zt2 is version 2 of .zt.
    #[arg(long, value_parser = formats())]
    pub format: Option<Written>,
    /// Write version 2 of .zt in canonical form: the same tensors give the same bytes (zt2 only).
    #[arg(long)]
    pub canonical: bool,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
    /// Compress: .zt with zstd, .npz with deflate; implied by --codec, --level and --effort. A .zstn
    /// file is always compressed (z4ai).
    #[arg(long, short)]
    pub compress: bool,
    #[command(flatten)]
    pub coding: Coding,
    /// Checksum to store with each tensor (.zt only).
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub renaming: Renaming,
    /// Convert floating-point tensors to this type.
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub dtype: Option<Float>,
    /// Dequantize quantized tensors to float32, or to --dtype.
    #[arg(long)]
    pub dequantize: bool,
    /// Quantized weights that are several tensors (GPTQ, AWQ, compressed-tensors, MXFP4, ...): join
    /// makes each one object of .zt, split makes the tensors again; both without loss.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with_all = ["only", "exclude", "rename", "strip_prefix", "dtype", "dequantize", "max_shard_size", "delete_original"])]
    pub quantized: Option<Regroup>,
    /// Split the output into shards of at most SIZE, e.g. 5GB, with an index.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_shard_size: Option<u64>,
    /// Drop metadata that the format of OUT cannot hold; what is dropped is listed.
    #[arg(long)]
    pub drop_metadata: bool,
    /// On conflicting metadata: refuse, or keep the value of the first or last file.
    #[arg(long, value_enum, default_value_t = Clash::Refuse)]
    pub metadata: Clash,
    /// Delete inputs after verifying the output.
    #[arg(long, conflicts_with_all = ["only", "exclude", "dequantize", "drop_metadata", "dtype", "rename", "strip_prefix", "max_shard_size"])]
    pub delete_original: bool,
}

/// What `convert` does with quantized weights of several tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Regroup {
    /// One object each.
    Join,
    /// Their tensors again.
    Split,
}

/// A format that `convert` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// `.zt` of version 1.2.
    Zt,
    /// Any other.
    Other(ExportFormat),
}

fn formats() -> impl TypedValueParser<Value = Written> {
    let names = ["zt"].into_iter().chain(ExportFormat::ALL.into_iter().map(ExportFormat::name));
    PossibleValuesParser::new(names).try_map(|name| {
        let other = ExportFormat::ALL.into_iter().find(|format| format.name() == name);
        Ok::<_, std::convert::Infallible>(other.map_or(Written::Zt, Written::Other))
    })
}

impl Convert {
    /// The inputs and the output, which may be the last of the paths.
    pub fn paths(&self) -> Result<(&[PathBuf], &std::path::Path), Failure> {
        match (&self.output, self.inputs.split_last()) {
            (Some(output), _) => Ok((&self.inputs, output)),
            (None, Some((output, inputs @ [_, ..]))) => Ok((inputs, output)),
            _ => Err(Failure::usage("no output: use `ztensor convert IN OUT` or -o OUT")),
        }
    }
}

/// Bytes with a decimal or binary unit: `5GB`, `500 MiB`, `1000`.
fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1u64,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err("expected a size such as 5GB or 500MiB".to_owned()),
    };
    let bytes = number.parse::<f64>().ok().map(|number| number * factor as f64);
    let bytes = bytes.filter(|bytes| (1.0..=2f64.powi(63)).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| "expected a size such as 5GB or 500MiB".to_owned())
}

/// An engine that models are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// llama.cpp and engines built on it.
    Gguf,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The folder of a model, with its config.json.
    #[arg(value_name = "FOLDER")]
    pub model: PathBuf,
    /// Target engine.
    #[arg(long, value_enum)]
    pub to: Engine,
    /// Output file [default: the folder's name with .gguf]
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
    /// Convert matrices to this type; vectors are always float32.
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub dtype: Option<Float>,
    /// Write no vocabulary: the engine then takes token ids only.
    #[arg(long)]
    pub no_tokenizer: bool,
}

impl Export {
    /// Where the new file goes.
    pub fn output(&self) -> PathBuf {
        let default = || {
            let folder = self.model.canonicalize().unwrap_or_else(|_| self.model.clone());
            let name = folder.file_name().unwrap_or("model".as_ref()).to_string_lossy();
            PathBuf::from(format!("{name}.gguf"))
        };
        self.output.clone().unwrap_or_else(default)
    }
}
