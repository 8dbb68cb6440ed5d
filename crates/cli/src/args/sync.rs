//! Commands of `ztensor sync`.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands of `sync`.
#[derive(Debug, Subcommand)]
pub enum Sync {
    /// Publish a model as the next version of a stream.
    #[command(after_help = "Examples:
  ztensor sync publish step1.safetensors stream/ --previous base/
  ztensor sync publish step2/ stream/ --previous step1/ --encoding overwrite --checksum blake3")]
    Publish {
        /// Model file or folder to publish.
        #[arg(value_name = "NEW")]
        new: PathBuf,
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Model file or folder of the stream's newest version; version 0 if it has none.
        #[arg(long, value_name = "OLD")]
        previous: PathBuf,
        /// Encoding of zstd deltas.
        #[arg(long, value_name = "ENCODING", default_value = "xor")]
        #[arg(value_parser = ["xor", "overwrite"])]
        encoding: String,
        /// Compression of deltas: zstd is read by every receiver, z4ai is smaller and faster.
        #[arg(long, value_name = "FORMAT", default_value = "zstd")]
        #[arg(value_parser = ["zstd", "z4ai"])]
        compression: String,
        /// Checksum of each changed tensor [default: xxh3-128; blake3 with z4ai].
        #[arg(long, value_name = "FORMAT")]
        #[arg(value_parser = ["xxh3-128", "blake3", "adler32"])]
        checksum: Option<String>,
        /// Publish all tensors instead of a delta.
        #[arg(long)]
        full: bool,
        /// Publish a full version after N deltas.
        #[arg(long, value_name = "N")]
        anchor_every: Option<u64>,
        /// Replace shards in a store that a killed publisher left without an index.
        #[arg(long)]
        replace_unfinished: bool,
    },
    /// Bring a local checkpoint to a version of a stream.
    ///
    /// Reads as few bytes as possible, checks everything before the first byte changes, and finishes
    /// an interrupted pull first.
    #[command(after_help = "Examples:
  ztensor sync pull stream/ local/ --base model/
  ztensor sync pull s3://runs/a local/ --base model/ --version 40")]
    Pull {
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Hugging Face folder to update; made from MODEL the first time.
        #[arg(value_name = "LOCAL")]
        local: PathBuf,
        /// Model file or folder of version 0.
        #[arg(long, value_name = "MODEL")]
        base: Option<PathBuf>,
        /// Version [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<String>,
        /// Rebuild LOCAL if it is newer than the version or of another run.
        #[arg(long)]
        restart: bool,
        /// Accept full versions with other tensors, types or shapes.
        #[arg(long)]
        allow_structure: bool,
        /// Folder names of the stream: numbered, named (ModelExpress) or skyrl.
        #[arg(long, value_name = "LAYOUT", default_value = "numbered")]
        #[arg(value_parser = ["numbered", "named", "skyrl"])]
        layout: String,
        /// Do not wait for the disk: a power cut may then need a restart.
        #[arg(long)]
        no_fsync: bool,
        /// Print JSON: steps, and where the changed tensors are.
        #[arg(long)]
        json: bool,
    },
    /// Show the newest versions of a stream, and the version of a local checkpoint.
    #[command(after_help = "Example:\n  ztensor sync status stream/ local/")]
    Status {
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Local checkpoint.
        #[arg(value_name = "LOCAL")]
        local: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what each version changed: share of elements, norm, bytes.
    #[command(after_help = "Example:\n  ztensor sync log stream/ --json")]
    Log {
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Fold several deltas into one, for hosts that are far behind.
    #[command(after_help = "Examples:
  ztensor sync fold stream/ --from 10 --to 50
  ztensor sync fold stream/ --from 10 --to 50 --base step10/   # z4ai deltas need the model")]
    Fold {
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Version that the fold starts from.
        #[arg(long, value_name = "N")]
        from: u64,
        /// Version that it leads to [default: the newest]
        #[arg(long, value_name = "N")]
        to: Option<u64>,
        /// Model file or folder of the version that it starts from.
        #[arg(long, value_name = "MODEL")]
        base: Option<PathBuf>,
    },
    /// Remove versions that no host needs: those before the newest full version.
    #[command(after_help = "Example:\n  ztensor sync prune stream/ --keep 20 --dry-run")]
    Prune {
        /// Folder or URL of the stream.
        #[arg(value_name = "STREAM")]
        stream: PathBuf,
        /// Keep the N newest versions.
        #[arg(long, value_name = "N", default_value_t = 10)]
        keep: u64,
        /// Version that a host still holds and must be able to update from; repeatable.
        #[arg(long, value_name = "N")]
        in_use: Vec<u64>,
        /// Only show what would be removed.
        #[arg(long)]
        dry_run: bool,
    },
    /// Hash the tensors of a local checkpoint and compare them with what was applied.
    #[command(after_help = "Example:\n  ztensor sync verify local/")]
    Verify {
        /// Local checkpoint.
        #[arg(value_name = "LOCAL")]
        local: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
