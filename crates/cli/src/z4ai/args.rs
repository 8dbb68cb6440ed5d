//! Every command and option of `z4ai`, in one place.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use z4ai::{Effort, Kind};

use crate::args::Completions;
use crate::limits::LimitArguments;

/// Lossless compression of model weights.
///
/// `pack` compresses model files and folders; `compress` compresses raw buffers and pipes;
/// `delta` and `model-delta` store a checkpoint as its difference from another.
#[derive(Debug, Parser)]
#[command(name = "z4ai", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 success, 2 usage error, 3 bad file, 4 I/O error, 130 interrupted. \"-\" is stdin or stdout."
)]
pub struct Arguments {
    /// Suppress progress and summary.
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Number of threads; 0 means one per core. The output does not depend on it.
    #[arg(long, global = true, default_value_t = 0, value_name = "N", help_heading = "Global options")]
    pub threads: usize,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compress a raw buffer, from a file or a pipe. For model files use `pack`.
    #[command(after_help = "Examples:
  z4ai compress weights.bin --dtype bf16
  z4ai compress weights.bin --dtype fp32 --effort max -o small.z4ai
  cat weights.bin | z4ai compress - --dtype fp16 | ssh host 'cat > weights.z4ai'")]
    Compress(Compress),
    /// Decompress the output of `compress`.
    #[command(after_help = "Examples:
  z4ai decompress weights.bin.z4ai
  z4ai decompress - < weights.z4ai | sha256sum")]
    Decompress(Decompress),
    /// Show the contents of a compressed file, a delta or a packed model without decoding.
    #[command(after_help = "Examples:\n  z4ai info weights.bin.z4ai\n  z4ai info model.zstn --json")]
    Info(Info),
    /// Store a file as the difference from another file of the same length.
    #[command(
        subcommand,
        after_help = "Examples:
  z4ai delta make step2.bin step1.bin --dtype bf16 -o step2.z4dl
  z4ai delta apply step2.z4dl step1.bin -o step2.bin"
    )]
    Delta(Delta),
    /// Compress a model file of any format, or the weights of a folder.
    ///
    /// X.safetensors becomes X.z4ai.safetensors, which ztensor reads tensor by tensor and
    /// from_pretrained(variant="z4ai") loads; other formats become X.EXT.zstn. `unpack` restores
    /// the original byte for byte.
    #[command(after_help = "Examples:
  z4ai pack model.safetensors
  z4ai pack model.safetensors --effort max -o model.zstn
  z4ai pack model.gguf
  z4ai pack my-model/ -o my-model-z4ai/")]
    Pack(Pack),
    /// Restore packed files, byte for byte.
    #[command(after_help = "Example:\n  z4ai unpack model.zstn -o model.safetensors")]
    Unpack(Unpack),
    /// Store a fine-tuned model as a delta to its base, tensor by tensor.
    #[command(
        subcommand,
        after_help = "Examples:
  z4ai model-delta make tuned.safetensors base.safetensors -o tuned.z4dm
  z4ai model-delta apply base.safetensors tuned.z4dm -o tuned.safetensors
  z4ai model-delta apply step0.zt step1.z4dm step2.z4dm -o step2.zt
  z4ai model-delta apply model.zt step1.z4dm --in-place
  z4ai model-delta info tuned.z4dm"
    )]
    ModelDelta(ModelDelta),
    /// Print a shell completion script.
    #[command(
        after_help = "Example:\n  z4ai completions bash > ~/.local/share/bash-completion/completions/z4ai"
    )]
    Completions(Completions),
    /// Print the manual page.
    #[command(after_help = "Example:\n  z4ai man > ~/.local/share/man/man1/z4ai.1")]
    Man,
}

/// Codec options.
#[derive(Debug, Args)]
pub struct Encoding {
    /// Element type: bf16, fp16, fp32, fp64, fp8_e4m3, fp8_e5m2, int8 to int64, uint8 to uint64, bool or raw.
    #[arg(long, value_name = "DTYPE", value_parser = dtype, default_value = "raw", hide_default_value = true)]
    pub dtype: Kind,
    /// fast (decodes at memory-copy speed), default, balanced, or max (as balanced; 1 to 2 % smaller for convolutions, slower).
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub effort: Effort,
    /// zstd level of the streams coded with zstd, 1 to 22.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
}

/// Options of `compress`.
#[derive(Debug, Args)]
pub struct Compress {
    /// Input file, or - for stdin.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file [default: IN.z4ai, or stdout if IN is -]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub encoding: Encoding,
    /// Bytes per element (1, 2, 4 or 8); overrides --dtype.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8))]
    pub width: Option<u8>,
    /// Tensor shape, e.g. 4096x1024: lets the codec exploit per-row and per-column scales.
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    pub shape: Option<Shape>,
    /// Skip auto-detection of structure (fastest compression).
    #[arg(long)]
    pub fast: bool,
    #[command(flatten)]
    pub earlier: Earlier,
}

/// Options of earlier versions, accepted for compatibility with scripts.
#[derive(Debug, Args)]
pub struct Earlier {
    /// zstd level; takes precedence over --level.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(i32).range(1..=22))]
    pub escalate: Option<i32>,
    /// No effect: the default.
    #[arg(long, hide = true, conflicts_with = "escalate")]
    pub no_escalate: bool,
    /// No effect: use --threads.
    #[arg(long, value_name = "N", hide = true)]
    pub plane_workers: Option<usize>,
}

/// Options of `decompress`.
#[derive(Debug, Args)]
pub struct Decompress {
    /// Compressed file, or - for stdin.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file [default: IN without .z4ai, or stdout if IN is -]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct Info {
    /// Compressed file, delta or packed model.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commands of `delta`.
#[derive(Debug, Subcommand)]
pub enum Delta {
    /// Make a delta from REFERENCE to CURRENT.
    Make {
        /// File to store.
        #[arg(value_name = "CURRENT")]
        current: PathBuf,
        /// File that will be available when it is restored.
        #[arg(value_name = "REFERENCE")]
        reference: PathBuf,
        /// Output file [default: CURRENT.z4dl]
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Overwrite OUT if it exists.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        encoding: Encoding,
    },
    /// Restore a file from a delta and its reference.
    Apply {
        /// The delta.
        #[arg(value_name = "DELTA")]
        delta: PathBuf,
        /// The reference that the delta was made against.
        #[arg(value_name = "REFERENCE")]
        reference: PathBuf,
        /// Output file [default: DELTA without .z4dl]
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Overwrite OUT if it exists.
        #[arg(long)]
        force: bool,
    },
}

/// Options of `pack`.
#[derive(Debug, Args)]
pub struct Pack {
    /// Tensor file of any format, a folder, or - for stdin.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file or folder [default: next to IN, see above; stdout if IN is -]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
    /// fast (decodes at memory-copy speed), default, balanced, or max (as balanced; 1 to 2 % smaller for convolutions, slower).
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub effort: Effort,
    /// zstd level of the streams coded with zstd, 1 to 22.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
}

/// Options of `unpack`.
#[derive(Debug, Args)]
pub struct Unpack {
    /// Packed file, a folder with packed files, or - for stdin.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file or folder [default: the name it was packed from; stdout if IN is -]
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Overwrite OUT if it exists.
    #[arg(long)]
    pub force: bool,
}

/// Commands of `model-delta`.
#[derive(Debug, Subcommand)]
pub enum ModelDelta {
    /// Make the delta from BASE to TARGET, files of any format.
    Make {
        /// Model to store.
        #[arg(value_name = "TARGET")]
        target: PathBuf,
        /// Model that will be available when it is restored.
        #[arg(value_name = "BASE")]
        base: PathBuf,
        /// Output file [default: TARGET.z4dm]
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Overwrite OUT if it exists.
        #[arg(long)]
        force: bool,
        /// fast (decodes at memory-copy speed), default, balanced, or max (as balanced; 1 to 2 % smaller for convolutions, slower).
        #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
        effort: Effort,
        /// zstd level of the streams coded with zstd, 1 to 22.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
        level: Option<i32>,
    },
    /// Restore a model from its base and one or more deltas, in order.
    Apply {
        /// The base that the first delta was made against.
        #[arg(value_name = "BASE")]
        base: PathBuf,
        /// Deltas; each applies to the result of the one before.
        #[arg(value_name = "DELTA", required = true)]
        deltas: Vec<PathBuf>,
        /// Output file.
        #[arg(long, short, value_name = "OUT", required_unless_present = "in_place")]
        output: Option<PathBuf>,
        /// Overwrite OUT if it exists.
        #[arg(long)]
        force: bool,
        /// Refuse a BASE of another content id (see `ztensor id`).
        #[arg(long, value_name = "ID")]
        base_id: Option<ztensor::ContentId>,
        /// Update BASE, a .zt file, in place, writing only changed tensors.
        #[arg(long, conflicts_with_all = ["output", "force"])]
        in_place: bool,
    },
    /// Show the changes of a delta, tensor by tensor.
    Info {
        /// The delta.
        #[arg(value_name = "DELTA")]
        delta: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Sizes of the dimensions.
#[derive(Debug, Clone)]
pub struct Shape(pub Vec<u64>);

fn shape(text: &str) -> Result<Shape, String> {
    let sizes = text.split(['x', ',']).map(|size| size.trim().parse());
    sizes.collect::<Result<_, _>>().map(Shape).map_err(|_| "expected sizes like 4096x1024".to_owned())
}

/// Element types by any of their usual names, in any case.
fn dtype(text: &str) -> Result<Kind, String> {
    let name = text.to_ascii_lowercase();
    let name = match name.as_str() {
        "bfloat16" => "bf16",
        "float16" | "half" | "f16" => "fp16",
        "float32" | "float" | "f32" => "fp32",
        "float64" | "double" | "f64" => "fp64",
        "fp8" | "f8_e4m3" | "float8_e4m3fn" | "f8_e4m3fn" => "fp8_e4m3",
        "f8_e5m2" | "float8_e5m2" => "fp8_e5m2",
        "i8" => "int8",
        "i16" => "int16",
        "i32" => "int32",
        "i64" => "int64",
        "u8" => "uint8",
        "u16" => "uint16",
        "u32" => "uint32",
        "u64" => "uint64",
        other => other,
    };
    Kind::from_name(name).ok_or_else(|| {
        let known: Vec<_> = Kind::all().map(Kind::name).collect();
        format!("choose one of {}", known.join(", "))
    })
}

fn effort(text: &str) -> Result<Effort, String> {
    Effort::from_name(text).ok_or_else(|| {
        let known: Vec<_> = Effort::all().map(Effort::name).collect();
        format!("choose one of {}", known.join(", "))
    })
}
