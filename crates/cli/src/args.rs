//! Every command and option, in one place: help, completions, the man page and
//! the documentation are made from these definitions.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ztensor::Checksum;

use crate::coding::Coding;
use crate::limits::LimitArguments;

/// Inspect, convert, verify, compare and edit any tensor file.
///
/// Reads .zt, .safetensors, .pt/.pth/.bin, .gguf, .npz/.npy, .onnx and .h5 files,
/// never executing anything in them. A file may also be a URL of an object store
/// (s3://, gs://, az://) or a web server, of which only what is needed is read.
#[derive(Debug, Parser)]
#[command(name = "ztensor", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 fine, 1 differs or failed a check, 2 wrong usage, 3 bad file, 4 I/O, 130 interrupted."
)]
pub struct Arguments {
    /// Show no progress bars and no closing line.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Threads to use; 0 is one per core.
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
    pub threads: usize,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// Refuse pickles that run code in tools that unpickle them; in scan, fail for everything that is
    /// not on the allow list.
    #[arg(long, global = true)]
    pub strict: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List what a file holds, reading headers only.
    #[command(after_help = "Examples:
  ztensor info model.safetensors
  ztensor info model.gguf --all --sort size
  ztensor info model.zt --json | jq .totals
  ztensor info s3://models/llama/model.safetensors")]
    Info(Info),
    /// Write one file from one or several, in the format that OUT's extension says.
    #[command(after_help = "Examples:
  ztensor convert model.safetensors -o model.zt
  ztensor convert model-*.safetensors -o model.zt -c --checksum crc32c
  ztensor convert model.zt -o layers.npz --only 'layers.*'
  ztensor convert model.gguf -o model.safetensors --dequantize
  ztensor convert https://example.org/model.safetensors -o s3://models/model.zt
  ztensor convert model.zt -o model.zstn --effort max")]
    Convert(Convert),
    /// Write a .zt file with its tensors compressed.
    #[command(
        after_help = "Examples:\n  ztensor compress model.zt -o small.zt -l 10\n  ztensor compress model.safetensors -o small.zt --codec z4ai"
    )]
    Compress(Compress),
    /// Write a .zt file with its tensors stored raw, so that they can be mapped.
    #[command(after_help = "Example:\n  ztensor decompress small.zt -o model.zt")]
    Decompress(Rewrite),
    /// Put the tensors of several .zt files into one, stored as they are.
    #[command(after_help = "Example:\n  ztensor merge base.zt adapter.zt -o merged.zt")]
    Merge(Merge),
    /// Bring a version 0.1 .zt file to the present version.
    #[command(after_help = "Example:\n  ztensor migrate old.zt -o new.zt")]
    Migrate(Rewrite),
    /// Add the tensors of a file to a .zt file, in place.
    #[command(after_help = "Example:\n  ztensor append model.zt --from extra.safetensors")]
    Append(Append),
    /// Write a .zt file without some of its tensors.
    #[command(after_help = "Example:\n  ztensor remove model.zt head.weight head.bias -o trimmed.zt")]
    Remove(Remove),
    /// Check a file: its structure, every tensor, every digest.
    #[command(after_help = "Examples:\n  ztensor verify model.zt\n  ztensor verify model.pt --values")]
    Verify(Verify),
    /// Say what untrusted files would run or access in other tools, without running any of it.
    ///
    /// Looks through pickles (.pt, .pth, .bin, .ckpt, .pkl, .joblib, object arrays in .npy and .npz),
    /// Keras models (.keras, .h5) and ONNX models, inside zip, tar and gzip archives too; folders with
    /// all that is in them. 7z, RAR, xz, bzip2, zstd and LZ4 are not unpacked, which is said.
    /// Exit codes: 0 nothing dangerous, 1 something dangerous (with --strict: anything that is not on
    /// the allow list), 4 a file could not be read.
    #[command(after_help = "Examples:
  ztensor scan model.pt
  ztensor scan downloads/ --json
  ztensor scan model.keras --strict && echo fine")]
    Scan(Scan),
    /// Compare two files of any formats, tensor by tensor.
    #[command(after_help = "Example:\n  ztensor diff model.safetensors model.zt")]
    Diff(Diff),
    /// Show a tensor's values, statistics and histogram.
    #[command(after_help = "Example:\n  ztensor show model.zt embed.weight --slice 0:4,:8")]
    Show(Show),
    /// Write a page to look at a file in a browser: sizes, histograms, sparsity, compressibility.
    ///
    /// One HTML file that loads nothing from anywhere. Every value is read; how well
    /// tensors compress is estimated from a sample of each.
    #[command(after_help = "Example:\n  ztensor report model.safetensors -o report.html")]
    Report(Report),
    /// Drop the bytes that edits left behind in a .zt file.
    #[command(after_help = "Example:\n  ztensor compact model.zt")]
    Compact(Compact),
    /// Bring a .zt file whose last edit was interrupted back to its last good state.
    #[command(after_help = "Example:\n  ztensor repair model.zt")]
    Repair(Repair),
    /// Download a model's safetensors files and configuration from the Hugging Face Hub.
    ///
    /// Goes on where an earlier download stopped. HF_ENDPOINT names another server,
    /// HF_TOKEN has the token for models that need one.
    #[command(after_help = "Examples:
  ztensor download-hf openai-community/gpt2 -o gpt2
  ztensor download-hf openai-community/gpt2 -o gpt2 -c")]
    DownloadHf(DownloadHf),
    /// Store a model as what it changed in another one, tensor by tensor.
    #[command(
        subcommand,
        after_help = "Examples:
  ztensor model-delta make tuned.safetensors base.safetensors -o tuned.z4dm
  ztensor model-delta apply base.safetensors tuned.z4dm -o tuned.safetensors
  ztensor model-delta apply model.zt step1.z4dm --in-place
  ztensor model-delta info tuned.z4dm"
    )]
    ModelDelta(crate::z4ai::args::ModelDelta),
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  ztensor completions bash > ~/.local/share/bash-completion/completions/ztensor"
    )]
    Completions(Completions),
    /// Print the manual page.
    #[command(after_help = "Example:\n  ztensor man > ~/.local/share/man/man1/ztensor.1")]
    Man,
}

impl Command {
    /// Whether it writes a file, which an interruption must not leave half done.
    pub fn writes(&self) -> bool {
        use Command::{Completions, Diff, Info, Man, Scan, Show, Verify};
        !matches!(self, Info(_) | Verify(_) | Scan(_) | Diff(_) | Show(_) | Completions(_) | Man)
    }
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct Info {
    /// A tensor file, a folder of shards, or a shard index.
    pub file: PathBuf,
    /// List every tensor instead of folding layer numbers.
    #[arg(long)]
    pub all: bool,
    /// Which tensors.
    #[command(flatten)]
    pub which: Which,
    /// Order of the table.
    #[arg(long, value_enum, default_value_t = Sort::File)]
    pub sort: Sort,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values.
    #[arg(long)]
    pub csv: bool,
}

/// Order of a table of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// As in the file.
    File,
    /// By name.
    Name,
    /// Largest first.
    Size,
}

/// Which tensors of a file.
#[derive(Debug, Args)]
pub struct Which {
    /// Only tensors whose name matches; * and ? are wildcards. Can be given several times.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// No tensors whose name matches.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
}

/// Where a new file goes.
#[derive(Debug, Args)]
pub struct Output {
    /// The new file.
    #[arg(long, short, value_name = "OUT")]
    pub output: PathBuf,
    /// Replace OUT if it is there.
    #[arg(long)]
    pub force: bool,
}

/// A digest kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// No digest.
    None,
    /// CRC-32C.
    Crc32c,
    /// SHA-256.
    Sha256,
}

impl From<Digest> for Checksum {
    fn from(digest: Digest) -> Checksum {
        match digest {
            Digest::None => Checksum::None,
            Digest::Crc32c => Checksum::Crc32c,
            Digest::Sha256 => Checksum::Sha256,
        }
    }
}

/// Options of `convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// Tensor files, folders of shards, or shard indexes.
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
    /// Compress: with zstd in a .zt file unless --codec says otherwise, with deflate in an .npz file.
    /// A .zstn file always is, with z4ai.
    #[arg(long, short)]
    pub compress: bool,
    #[command(flatten)]
    pub coding: Coding,
    /// Digest to store with each tensor of a .zt file.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
    #[command(flatten)]
    pub which: Which,
    /// Turn quantized tensors into float32.
    #[arg(long)]
    pub dequantize: bool,
    /// Leave out metadata that OUT's format cannot hold, instead of refusing.
    #[arg(long)]
    pub drop_metadata: bool,
    /// Where the files disagree on metadata: refuse, or keep the first's or the last's.
    #[arg(long, value_enum, default_value_t = Clash::Refuse)]
    pub metadata: Clash,
    /// Delete the inputs when the new file was read back and holds all they held.
    #[arg(long, conflicts_with_all = ["only", "exclude", "dequantize", "drop_metadata"])]
    pub delete_original: bool,
}

/// Options of `compress`.
#[derive(Debug, Args)]
pub struct Compress {
    /// A tensor file of any format.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub coding: Coding,
    /// Digest to store with each tensor.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
}

/// Options of commands that write a file anew.
#[derive(Debug, Args)]
pub struct Rewrite {
    /// The file to read.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    #[command(flatten)]
    pub output: Output,
    /// Digest to store with each tensor.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
}

/// Options of `merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// .zt files.
    #[arg(required = true, num_args = 2.., value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub output: Output,
    /// Where the files disagree on metadata: refuse, or keep the first's or the last's.
    #[arg(long, value_enum, default_value_t = Clash::Refuse)]
    pub metadata: Clash,
}

/// What happens to metadata on which files disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Clash {
    /// Do not merge.
    Refuse,
    /// Keep what the first file says.
    First,
    /// Keep what the last file says.
    Last,
}

/// Options of `append`.
#[derive(Debug, Args)]
pub struct Append {
    /// The .zt file to add to.
    pub target: PathBuf,
    /// The file whose tensors are added, of any format.
    #[arg(long, value_name = "SOURCE")]
    pub from: PathBuf,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub coding: Coding,
    /// Digest to store with each new tensor.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
}

/// Options of `remove`.
#[derive(Debug, Args)]
pub struct Remove {
    /// The .zt file.
    pub file: PathBuf,
    /// Names of tensors.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub output: Output,
}

/// Options of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// A tensor file of any format.
    pub file: PathBuf,
    /// Count values that are not numbers or infinite, too.
    #[arg(long)]
    pub values: bool,
}

/// Options of `scan`.
#[derive(Debug, Args)]
pub struct Scan {
    /// Files and folders.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// List what is on the allow list, too.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// A tensor file.
    pub a: PathBuf,
    /// Another.
    pub b: PathBuf,
    #[command(flatten)]
    pub which: Which,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `show`.
#[derive(Debug, Args)]
pub struct Show {
    /// A tensor file.
    pub file: PathBuf,
    /// The tensor's name.
    pub name: String,
    /// Part of it, such as 0:4,:8 (start:end per dimension; a single number picks one).
    #[arg(long, value_name = "SLICE")]
    pub slice: Option<String>,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// A tensor file, a folder of shards, or a shard index.
    pub file: PathBuf,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub which: Which,
}

/// Options of `compact`.
#[derive(Debug, Args)]
pub struct Compact {
    /// The .zt file.
    pub file: PathBuf,
    /// Write a new file instead of replacing FILE.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Replace OUT if it is there.
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// Options of `repair`.
#[derive(Debug, Args)]
pub struct Repair {
    /// The .zt file.
    pub file: PathBuf,
}

/// Options of `download-hf`.
#[derive(Debug, Args)]
pub struct DownloadHf {
    /// The model: owner/name.
    pub repo: String,
    /// The folder for its files.
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Branch, tag or commit.
    #[arg(long, default_value = "main", value_name = "NAME")]
    pub revision: String,
    /// Make one compressed model.zt of the shards, and delete them.
    #[arg(long, short)]
    pub compress: bool,
    /// zstd level (3 if not given), which also switches compression on.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
    /// Token for models that need one, instead of HF_TOKEN.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
}

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
