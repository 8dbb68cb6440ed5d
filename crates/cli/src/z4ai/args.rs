//! Every command and option of `z4ai`, in one place.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use z4ai::{Effort, Kind};

use crate::args::Completions;
use crate::limits::LimitArguments;

/// Compress model weights without losing a bit.
///
/// Files and pipes become frames and frames become files again; whole models are packed so that
/// single tensors can still be read; checkpoints are stored as what changed.
#[derive(Debug, Parser)]
#[command(name = "z4ai", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 fine, 2 wrong usage, 3 bad file, 4 I/O, 130 interrupted. \"-\" is standard input or output."
)]
pub struct Arguments {
    /// Show no progress bars and no closing line.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Threads to use; 0 is one per core. Results do not depend on it.
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
    pub threads: usize,
    #[command(flatten)]
    pub limits: LimitArguments,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compress any file or pipe into a frame.
    #[command(after_help = "Examples:
  z4ai compress weights.bin --dtype bf16
  z4ai compress weights.bin --dtype fp32 --effort max -o small.z4ai
  cat weights.bin | z4ai compress - --dtype fp16 | ssh host 'cat > weights.z4ai'")]
    Compress(Compress),
    /// Restore what a frame was made from.
    #[command(after_help = "Examples:
  z4ai decompress weights.bin.z4ai
  z4ai decompress - < weights.z4ai | sha256sum")]
    Decompress(Decompress),
    /// Say what a frame, a delta or a packed model holds, decoding nothing.
    #[command(after_help = "Examples:\n  z4ai info weights.bin.z4ai\n  z4ai info model.zstn --json")]
    Info(Info),
    /// Store a file as its difference from another of the same length.
    #[command(
        subcommand,
        after_help = "Examples:
  z4ai delta make step2.bin step1.bin --dtype bf16 -o step2.z4dl
  z4ai delta apply step2.z4dl step1.bin -o step2.bin"
    )]
    Delta(Delta),
    /// Pack a .safetensors file: smaller, and single tensors can still be read.
    #[command(after_help = "Examples:
  z4ai pack model.safetensors
  z4ai pack model.safetensors --effort max -o model.zstn")]
    Pack(Pack),
    /// Restore a packed .safetensors file, byte for byte.
    #[command(after_help = "Example:\n  z4ai unpack model.zstn -o model.safetensors")]
    Unpack(Unpack),
    /// Store a model as what it changed in another one, tensor by tensor.
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
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  z4ai completions bash > ~/.local/share/bash-completion/completions/z4ai"
    )]
    Completions(Completions),
    /// Print the manual page.
    #[command(after_help = "Example:\n  z4ai man > ~/.local/share/man/man1/z4ai.1")]
    Man,
}

/// How to encode.
#[derive(Debug, Args)]
pub struct Encoding {
    /// Type of the elements: bf16, fp16, fp32, fp64, fp8_e4m3, fp8_e5m2, int8 to int64, uint8 to uint64, bool or raw.
    #[arg(long, value_name = "DTYPE", value_parser = dtype, default_value = "raw", hide_default_value = true)]
    pub dtype: Kind,
    /// fast (decodes at the speed of a memory copy), default, balanced, or max (the smallest).
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub effort: Effort,
    /// Level of the streams that zstd codes, 1 to 22.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
}

/// Options of `compress`.
#[derive(Debug, Args)]
pub struct Compress {
    /// The file to compress.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The frame; IN.z4ai if not given, standard output if IN is.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Replace OUT if it is there.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub encoding: Encoding,
    /// Bytes per element (1, 2, 4 or 8), whatever --dtype says.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8))]
    pub width: Option<u8>,
    /// Shape of the tensor, such as 4096x1024: finds rows and columns of one scale.
    #[arg(long, value_name = "SHAPE", value_parser = shape)]
    pub shape: Option<Shape>,
    /// Do not search for structure that the type does not tell: compresses fastest.
    #[arg(long)]
    pub fast: bool,
    #[command(flatten)]
    pub earlier: Earlier,
}

/// Options of the program that this one replaces, for scripts that have them.
#[derive(Debug, Args)]
pub struct Earlier {
    /// A level for the streams that zstd codes, before --level.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(i32).range(1..=22))]
    pub escalate: Option<i32>,
    /// No such level, which is the default.
    #[arg(long, hide = true, conflicts_with = "escalate")]
    pub no_escalate: bool,
    /// Another word for --threads, which decides alone.
    #[arg(long, value_name = "N", hide = true)]
    pub plane_workers: Option<usize>,
}

/// Options of `decompress`.
#[derive(Debug, Args)]
pub struct Decompress {
    /// The frame.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The restored file; IN without .z4ai if not given, standard output if IN is standard input.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Replace OUT if it is there.
    #[arg(long)]
    pub force: bool,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct Info {
    /// A frame, a delta or a packed model.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commands of `delta`.
#[derive(Debug, Subcommand)]
pub enum Delta {
    /// Make a delta that leads from REFERENCE to CURRENT.
    Make {
        /// The file to store.
        #[arg(value_name = "CURRENT")]
        current: PathBuf,
        /// The file that will be there when it is restored.
        #[arg(value_name = "REFERENCE")]
        reference: PathBuf,
        /// The delta; CURRENT.z4dl if not given.
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Replace OUT if it is there.
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
        /// The file that it was made against.
        #[arg(value_name = "REFERENCE")]
        reference: PathBuf,
        /// The restored file; DELTA without .z4dl if not given.
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Replace OUT if it is there.
        #[arg(long)]
        force: bool,
    },
}

/// Options of `pack`.
#[derive(Debug, Args)]
pub struct Pack {
    /// A .safetensors file.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The packed file; IN with .zstn if not given, standard output if IN is standard input.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Replace OUT if it is there.
    #[arg(long)]
    pub force: bool,
    /// fast (decodes at the speed of a memory copy), default, balanced, or max (the smallest).
    #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
    pub effort: Effort,
    /// Level of the streams that zstd codes, 1 to 22.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
}

/// Options of `unpack`.
#[derive(Debug, Args)]
pub struct Unpack {
    /// The packed file.
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The restored file; IN with .safetensors if not given, standard output if IN is standard input.
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Replace OUT if it is there.
    #[arg(long)]
    pub force: bool,
}

/// Commands of `model-delta`.
#[derive(Debug, Subcommand)]
pub enum ModelDelta {
    /// Make the delta that turns BASE into TARGET, files of any format.
    Make {
        /// The model to store.
        #[arg(value_name = "TARGET")]
        target: PathBuf,
        /// The model that will be there when it is restored.
        #[arg(value_name = "BASE")]
        base: PathBuf,
        /// The delta; TARGET.z4dm if not given.
        #[arg(long, short, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Replace OUT if it is there.
        #[arg(long)]
        force: bool,
        /// fast (decodes at the speed of a memory copy), default, balanced, or max (the smallest).
        #[arg(long, value_name = "EFFORT", value_parser = effort, default_value = "default")]
        effort: Effort,
        /// Level of the streams that zstd codes, 1 to 22.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
        level: Option<i32>,
    },
    /// Restore a model from its base and one delta, or several in their order.
    Apply {
        /// The model that the first delta was made against.
        #[arg(value_name = "BASE")]
        base: PathBuf,
        /// Deltas, each made against what the one before it restores.
        #[arg(value_name = "DELTA", required = true)]
        deltas: Vec<PathBuf>,
        /// The restored model.
        #[arg(long, short, value_name = "OUT", required_unless_present = "in_place")]
        output: Option<PathBuf>,
        /// Replace OUT if it is there.
        #[arg(long)]
        force: bool,
        /// Turn BASE, a .zt file, into the restored model, writing only what changed.
        #[arg(long, conflicts_with_all = ["output", "force"])]
        in_place: bool,
    },
    /// Say what a delta changes, tensor by tensor.
    Info {
        /// The delta.
        #[arg(value_name = "DELTA")]
        delta: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The sizes of a tensor's dimensions.
#[derive(Debug, Clone)]
pub struct Shape(pub Vec<u64>);

fn shape(text: &str) -> Result<Shape, String> {
    let sizes = text.split(['x', ',']).map(|size| size.trim().parse());
    sizes.collect::<Result<_, _>>().map(Shape).map_err(|_| "sizes like 4096x1024 are expected".to_owned())
}

/// Types by the names that the Python package has for them, in any case.
fn dtype(text: &str) -> Result<Kind, String> {
    let name = text.to_ascii_lowercase();
    let name = match name.as_str() {
        "bfloat16" => "bf16",
        "float16" => "fp16",
        "float32" => "fp32",
        "float64" => "fp64",
        "fp8" => "fp8_e4m3",
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
