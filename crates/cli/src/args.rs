//! Every command and option, in one place: help, completions, the man page and
//! the documentation are made from these definitions.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ztensor::Checksum;

use crate::coding::Coding;
use crate::limits::LimitArguments;

mod convert;
mod sync;

pub use convert::{Convert, Engine, Export, Regroup, Written};
pub use sync::Sync;

/// Inspect, convert, verify, compare and edit any tensor file.
///
/// Reads .zt, .safetensors, .pt/.pth/.bin, .gguf, .npz/.npy, .onnx, .h5 and .zstn files and
/// never executes code from them. A file may also be a URL of an object store
/// (s3://, gs://, az://), of the Hugging Face Hub (hf://) or an HTTP server; only the byte
/// ranges that are needed are fetched.
#[derive(Debug, Parser)]
#[command(name = "ztensor", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 files differ or a check failed, 2 usage error, 3 bad file, 4 I/O error, 130 interrupted."
)]
pub struct Arguments {
    /// Suppress progress and summary.
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Number of threads; 0 means one per core.
    #[arg(long, global = true, default_value_t = 0, value_name = "N", help_heading = "Global options")]
    pub threads: usize,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// Refuse pickles that would run code in tools that unpickle them; `scan` then also fails for
    /// everything that is not on its allow list.
    #[arg(long, global = true, help_heading = "Global options")]
    pub strict: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the tensors and metadata of a file; reads headers only.
    #[command(after_help = "Examples:
  ztensor info model.safetensors
  ztensor info model.gguf --all --sort size
  ztensor info *.safetensors
  ztensor info model.zt --json | jq .totals
  ztensor info s3://models/llama/model.safetensors")]
    Info(Info),
    /// Convert one or several files to the format given by the extension of OUT.
    #[command(after_help = "Examples:
  ztensor convert model.pt model.safetensors
  ztensor convert model-*.safetensors -o model.zt -c --checksum crc32c
  ztensor convert model.zt layers.npz --only 'layers.*'
  ztensor convert model.gguf model.safetensors --dequantize --dtype bf16
  ztensor convert checkpoint/ model.safetensors --strip-prefix model. --max-shard-size 5GB
  ztensor convert https://example.org/model.safetensors -o s3://models/model.zt
  ztensor convert model.zt -o model.zstn --effort max")]
    Convert(Convert),
    /// Write a model for an engine: its tensor names, metadata and vocabulary.
    ///
    /// --to gguf writes what llama.cpp and Ollama run, from the folder of a Hugging Face model (Llama or
    /// Qwen2; other architectures are refused). Matrices keep their type unless --dtype says otherwise.
    #[command(after_help = "Examples:
  ztensor export Qwen2.5-0.5B/ --to gguf
  ztensor export Llama-3.2-1B/ --to gguf --dtype f16 -o llama.gguf")]
    Export(Export),
    /// Write a .zt file with compressed tensors.
    #[command(
        after_help = "Examples:\n  ztensor compress model.zt -o small.zt -l 10\n  ztensor compress model.safetensors -o small.zt --codec z4ai"
    )]
    Compress(Compress),
    /// Write a .zt file with uncompressed tensors, which can be memory-mapped.
    #[command(after_help = "Example:\n  ztensor decompress small.zt -o model.zt")]
    Decompress(Rewrite),
    /// Merge several .zt files into one, copying tensors as they are stored.
    #[command(after_help = "Example:\n  ztensor merge base.zt adapter.zt -o merged.zt")]
    Merge(Merge),
    /// Upgrade a version 0.1 .zt file to the current version.
    #[command(after_help = "Example:\n  ztensor migrate old.zt -o new.zt")]
    Migrate(Rewrite),
    /// Append the tensors of a file to a .zt file, in place.
    #[command(after_help = "Example:\n  ztensor append model.zt --from extra.safetensors")]
    Append(Append),
    /// Copy a .zt file without the named tensors.
    #[command(after_help = "Example:\n  ztensor remove model.zt head.weight head.bias -o trimmed.zt")]
    Remove(Remove),
    /// Check files: structure, every tensor, every stored checksum.
    #[command(after_help = "Examples:\n  ztensor verify model.zt\n  ztensor verify *.safetensors --values")]
    Verify(Verify),
    /// Print content ids: the same for the same tensors in any format.
    ///
    /// A content id is a BLAKE3 hash of names, element types, shapes and elements. It does not depend on
    /// the format, the order of the tensors, shards or compression; metadata is not part of it.
    #[command(after_help = "Examples:
  ztensor id model.safetensors model.gguf model.zt
  ztensor id checkpoint/ --per-tensor
  ztensor id s3://models/llama/model.safetensors --json")]
    Id(Id),
    /// Sign the files of a model, and its content id, which does not depend on the format.
    ///
    /// Writes a signature in the format of OpenSSF Model Signing 1.0 with an ECDSA P-256 key, over all
    /// files of a folder, or one file. Since it also covers the content id, `verify --signature` accepts
    /// the same tensors in another format.
    #[command(after_help = "Examples:
  openssl ecparam -name prime256v1 -genkey -noout -out key.pem
  openssl ec -in key.pem -pubout -out key.pub
  ztensor sign checkpoint/ --key key.pem -o checkpoint.sig
  ztensor verify checkpoint/ --signature checkpoint.sig --key key.pub")]
    Sign(Sign),
    /// List what untrusted files would run or access in other tools, without running any of it.
    ///
    /// Looks through pickles (.pt, .pth, .bin, .ckpt, .pkl, .joblib, object arrays in .npy and .npz),
    /// Keras models (.keras, .h5) and ONNX models, also inside zip, tar and gzip archives and in
    /// folders. 7z, RAR, xz, bzip2, zstd and LZ4 archives are reported, not unpacked.
    /// Exit codes: 0 nothing dangerous, 1 something dangerous (with --strict: anything that is not on
    /// the allow list), 4 a file could not be read.
    #[command(after_help = "Examples:
  ztensor scan model.pt
  ztensor scan downloads/ --json
  ztensor scan model.keras --strict && echo fine")]
    Scan(Scan),
    /// Compare two files of any format, tensor by tensor.
    #[command(after_help = "Examples:
  ztensor diff model.safetensors model.zt
  ztensor diff base.safetensors tuned.safetensors --stat
  ztensor diff a.pt b.pt --tolerance 1e-6 --only 'layers.*'")]
    Diff(Diff),
    /// Show values, statistics and a histogram of one tensor.
    #[command(after_help = "Examples:
  ztensor show model.zt
  ztensor show model.zt embed.weight --slice 0:4,:8
  ztensor show model.gguf blk.0.attn_q.weight")]
    Show(Show),
    /// Write an HTML report of a file: sizes, histograms, sparsity, compressibility.
    ///
    /// One self-contained HTML file without external resources. Statistics cover every value;
    /// compressibility is estimated from a sample of each tensor.
    #[command(after_help = "Examples:
  ztensor report model.safetensors
  ztensor report model.gguf -o report.html")]
    Report(Report),
    /// Reclaim the space that edits left unused in a .zt file.
    #[command(after_help = "Example:\n  ztensor compact model.zt")]
    Compact(Compact),
    /// Restore a .zt file whose last edit was interrupted to its last consistent state.
    #[command(after_help = "Example:\n  ztensor repair model.zt")]
    Repair(Repair),
    /// Download a model's safetensors files and configuration from the Hugging Face Hub.
    ///
    /// Resumes interrupted downloads. HF_ENDPOINT selects another server; HF_TOKEN
    /// authenticates for gated and private models.
    #[command(after_help = "Examples:
  ztensor download-hf openai-community/gpt2 -o gpt2
  ztensor download-hf openai-community/gpt2 -o gpt2 -c")]
    DownloadHf(DownloadHf),
    /// Store a fine-tuned model as a delta to its base, tensor by tensor.
    #[command(
        subcommand,
        after_help = "Examples:
  ztensor model-delta make tuned.safetensors base.safetensors -o tuned.z4dm
  ztensor model-delta apply base.safetensors tuned.z4dm -o tuned.safetensors
  ztensor model-delta apply model.zt step1.z4dm --in-place
  ztensor model-delta info tuned.z4dm"
    )]
    ModelDelta(crate::z4ai::args::ModelDelta),
    /// Publish and follow a stream of weight versions: deltas between training steps.
    ///
    /// A stream is a folder or a URL of an object store with one folder per version, in the format
    /// that slime, miles, vime and ModelExpress share.
    #[command(
        subcommand,
        after_help = "Examples:
  ztensor sync publish step2/ stream/ --previous step1/
  ztensor sync publish step2/ s3://runs/a --previous step1/ --compression z4ai
  ztensor sync pull stream/ local/ --base model/
  ztensor sync log stream/
  ztensor sync verify local/"
    )]
    Sync(Sync),
    /// Version models in a repository that stores only what is new in each version.
    ///
    /// A repository is a folder or a URL of an object store. A version is the files that were committed,
    /// of any format, and comes back byte for byte. Equal tensors are stored once, similar ones as
    /// differences.
    #[command(
        subcommand,
        after_help = "Examples:
  ztensor repo init models/
  ztensor repo commit models/ step-1000/ -m 'step 1000'
  ztensor repo log models/
  ztensor repo checkout models/ main~2 restored/
  ztensor repo push models/ s3://bucket/models"
    )]
    Repo(crate::commands::repo::args::Repo),
    /// Print a shell completion script.
    #[command(
        after_help = "Example:\n  ztensor completions bash > ~/.local/share/bash-completion/completions/ztensor"
    )]
    Completions(Completions),
    /// Print the manual page.
    #[command(after_help = "Example:\n  ztensor man > ~/.local/share/man/man1/ztensor.1")]
    Man,
}

impl Command {
    /// Whether it writes a file, which an interrupt must not leave half-written.
    pub fn writes(&self) -> bool {
        use Command::{Completions, Diff, Id, Info, Man, Repo, Scan, Show, Verify};
        match self {
            Info(_) | Id(_) | Verify(_) | Scan(_) | Diff(_) | Show(_) | Completions(_) | Man => false,
            Repo(command) => command.writes(),
            _ => true,
        }
    }
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct Info {
    /// Tensor files, shard indexes, folders, patterns such as '*.gguf', or - for stdin.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// List every tensor instead of folding repeated layers.
    #[arg(long)]
    pub all: bool,
    /// Tensor selection.
    #[command(flatten)]
    pub which: Which,
    /// Sort order.
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
    /// File order.
    File,
    /// By name.
    Name,
    /// Largest first.
    Size,
}

/// Tensor selection.
#[derive(Debug, Clone, Args)]
pub struct Which {
    /// Only tensors whose name matches PATTERN (wildcards * and ?); repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub only: Vec<String>,
    /// Skip tensors whose name matches PATTERN; repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
}

/// The output file.
#[derive(Debug, Args)]
pub struct Output {
    /// Output file.
    #[arg(long, short, value_name = "OUT")]
    pub output: PathBuf,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
}

/// A checksum algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// No checksum.
    None,
    /// CRC-32C.
    Crc32c,
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
}

impl From<Digest> for Checksum {
    fn from(digest: Digest) -> Checksum {
        match digest {
            Digest::None => Checksum::None,
            Digest::Crc32c => Checksum::Crc32c,
            Digest::Sha256 => Checksum::Sha256,
            Digest::Blake3 => Checksum::Blake3,
        }
    }
}

/// Options of `compress`.
#[derive(Debug, Args)]
pub struct Compress {
    /// Tensor file of any format.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub coding: Coding,
    /// Checksum to store with each tensor.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
}

/// Options of commands that rewrite a file.
#[derive(Debug, Args)]
pub struct Rewrite {
    /// Input file.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    #[command(flatten)]
    pub output: Output,
    /// Checksum to store with each tensor.
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
    /// On conflicting metadata: refuse, or keep the value of the first or last file.
    #[arg(long, value_enum, default_value_t = Clash::Refuse)]
    pub metadata: Clash,
}

/// What happens to conflicting metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Clash {
    /// Fail.
    Refuse,
    /// Keep the value of the first file.
    First,
    /// Keep the value of the last file.
    Last,
}

/// Options of `append`.
#[derive(Debug, Args)]
pub struct Append {
    /// The .zt file to append to.
    pub target: PathBuf,
    /// File of any format whose tensors are appended.
    #[arg(long, value_name = "SOURCE")]
    pub from: PathBuf,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub coding: Coding,
    /// Checksum to store with each new tensor.
    #[arg(long, value_enum, default_value_t = Digest::None)]
    pub checksum: Digest,
}

/// Options of `remove`.
#[derive(Debug, Args)]
pub struct Remove {
    /// The .zt file.
    pub file: PathBuf,
    /// Tensor names.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub output: Output,
}

/// Options of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Tensor files, shard indexes, folders, patterns such as '*.gguf', or - for stdin.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also count NaN and Inf.
    #[arg(long)]
    pub values: bool,
    /// Also check the canonical form of .zt version 2; broken rules are listed with their first byte.
    #[arg(long, conflicts_with = "signature")]
    pub canonical: bool,
    /// Check against a signature instead: all files as signed, or at least the same tensors.
    #[arg(long, value_name = "SIG", requires = "key", conflicts_with = "values")]
    pub signature: Option<PathBuf>,
    /// The public key that verifies SIG (ECDSA P-256, PEM).
    #[arg(long, value_name = "PEM", requires = "signature")]
    pub key: Option<PathBuf>,
    /// With --signature: the same tensors in other files are not enough.
    #[arg(long, requires = "signature")]
    pub exact: bool,
}

/// Options of `id`.
#[derive(Debug, Args)]
pub struct Id {
    /// Tensor files, shard indexes, folders, patterns such as '*.gguf', or - for stdin.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also print the id of every tensor.
    #[arg(long)]
    pub per_tensor: bool,
    /// Trust the BLAKE3 checksums that a .zt file stores for raw tensors, instead of reading them.
    #[arg(long)]
    pub stored: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `sign`.
#[derive(Debug, Args)]
pub struct Sign {
    /// Tensor file, or folder of a model.
    pub model: PathBuf,
    /// The private key (ECDSA P-256, PEM, not encrypted).
    #[arg(long, value_name = "PEM")]
    pub key: PathBuf,
    /// Output file [default: MODEL.sig, or model.sig in the folder]
    #[arg(long, short, value_name = "SIG")]
    pub output: Option<PathBuf>,
    /// Overwrite SIG if it exists.
    #[arg(long)]
    pub force: bool,
    /// Path in the folder to leave out, besides the files of git; repeatable.
    #[arg(long, value_name = "PATH")]
    pub ignore: Vec<String>,
    /// Sign the files that symbolic links lead to, instead of refusing links.
    #[arg(long)]
    pub allow_symlinks: bool,
}

/// Options of `scan`.
#[derive(Debug, Args)]
pub struct Scan {
    /// Files and folders.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Also list what is on the allow list.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// First tensor file.
    pub a: PathBuf,
    /// Second tensor file.
    pub b: PathBuf,
    #[command(flatten)]
    pub which: Which,
    /// Treat values as equal if |a - b| <= TOLERANCE * (1 + |a|), as in allclose.
    #[arg(long, value_name = "TOLERANCE", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Print only the summary.
    #[arg(long, conflicts_with = "json")]
    pub stat: bool,
    /// List every tensor instead of folding repeated layers.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Diff {
    /// The absolute and the relative tolerance.
    pub fn tolerances(&self) -> (f64, f64) {
        let tolerance = self.tolerance.unwrap_or(0.0);
        (tolerance, tolerance)
    }

    /// Whether small differences are to be passed over.
    pub fn has_tolerance(&self) -> bool {
        self.tolerance.is_some()
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "expected a number of at least 0, e.g. 1e-5".to_owned())
}

/// Options of `show`.
#[derive(Debug, Args)]
pub struct Show {
    /// A tensor file.
    pub file: PathBuf,
    /// Tensor name; lists the names if omitted.
    pub name: Option<String>,
    /// Slice to show, e.g. 0:4,:8 (start:end per dimension; a single number selects one index).
    #[arg(long, value_name = "SLICE")]
    pub slice: Option<String>,
}

/// Options of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// Tensor file, shard index, or folder.
    pub file: PathBuf,
    /// Output file [default: the name of FILE with .html, in the current folder if FILE is a URL]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub which: Which,
}

impl Report {
    /// Where the report goes.
    pub fn place(&self) -> PathBuf {
        let named = |file: &std::path::Path| {
            let mut name = file.file_name().unwrap_or("report".as_ref()).to_owned();
            name.push(".html");
            name
        };
        match &self.output {
            Some(output) => output.clone(),
            None if ztensor::remote::is_url(&self.file) || crate::files::is_pipe(&self.file) => {
                PathBuf::from(named(&self.file))
            }
            None => self.file.with_file_name(named(&self.file)),
        }
    }
}

/// Options of `compact`.
#[derive(Debug, Args)]
pub struct Compact {
    /// The .zt file.
    pub file: PathBuf,
    /// Write a new file instead of replacing FILE.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
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
    /// Model repository: owner/name.
    pub repo: String,
    /// Output folder.
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Branch, tag or commit.
    #[arg(long, default_value = "main", value_name = "NAME")]
    pub revision: String,
    /// Combine the shards into one compressed model.zt, and delete them.
    #[arg(long, short)]
    pub compress: bool,
    /// zstd level, 1 to 22 (implies --compress) [default: 3]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
    /// Access token, instead of HF_TOKEN.
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
