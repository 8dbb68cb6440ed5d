//! Options of `repo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::Which;

/// Commands of `repo`.
#[derive(Debug, Subcommand)]
pub enum Repo {
    /// Create a repository.
    #[command(after_help = "Examples:
  ztensor repo init models/
  ztensor repo init s3://bucket/models")]
    Init(Init),
    /// Commit a file or a folder as the next version of a branch.
    ///
    /// Tensors that are there already are not stored again. Others are stored as a difference from the
    /// tensor of the same name in the parent or in --base, from the most similar one of the same type
    /// and shape, or whole, whichever is smallest.
    #[command(after_help = "Examples:
  ztensor repo commit models/ checkpoint/ -m 'step 1000' --meta loss=1.93
  ztensor repo commit models/ tuned/ -m 'fine-tune' --branch tuned --base main")]
    Commit(Commit),
    /// List the versions that lead to a branch, a tag or a commit.
    #[command(after_help = "Examples:
  ztensor repo log models/
  ztensor repo log models/ v1 -n 10 --json")]
    Log(Log),
    /// Show a version: its commit, files and tensors.
    #[command(after_help = "Examples:
  ztensor repo show models/
  ztensor repo show models/ main~1 --tensors")]
    Show(Show),
    /// Compare two versions, tensor by tensor.
    #[command(after_help = "Examples:
  ztensor repo diff models/ main~1 main
  ztensor repo diff models/ base tuned --stat")]
    Diff(Diff),
    /// Restore the files of a version, byte for byte.
    #[command(after_help = "Examples:
  ztensor repo checkout models/ main restored/
  ztensor repo checkout models/ v1 restored/ --force")]
    Checkout(Checkout),
    /// Write the tensors of a version to a file of any format.
    #[command(after_help = "Examples:
  ztensor repo export models/ main -o model.safetensors
  ztensor repo export models/ v1 -o model.zt")]
    Export(Export),
    /// List, create, move or delete tags.
    #[command(after_help = "Examples:
  ztensor repo tag models/
  ztensor repo tag models/ v1 main
  ztensor repo tag models/ v1 --delete")]
    Tag(Ref),
    /// List, create, move or delete branches.
    #[command(after_help = "Examples:
  ztensor repo branch models/
  ztensor repo branch models/ tuned main~3")]
    Branch(Ref),
    /// Show what each version adds to the stored bytes, and what it shares with others.
    #[command(after_help = "Examples:
  ztensor repo du models/
  ztensor repo du models/ main --layers")]
    Du(Du),
    /// Forget versions, and delete files that no version needs.
    ///
    /// Without --keep options all versions that branches and tags lead to are kept. Files are deleted
    /// once they have been unneeded for the grace period, so that concurrent writers are safe: run it
    /// again after that.
    #[command(after_help = "Examples:
  ztensor repo gc models/
  ztensor repo gc models/ --keep-last 5 --keep-every 100 --dry-run
  ztensor repo gc models/ --grace 0")]
    Gc(Gc),
    /// Check that everything that branches and tags lead to is present.
    ///
    /// Exit codes: 0 clean, 1 something is missing or damaged.
    #[command(after_help = "Examples:
  ztensor repo fsck models/
  ztensor repo fsck models/ --full")]
    Fsck(Fsck),
    /// Copy versions to another repository.
    #[command(after_help = "Examples:
  ztensor repo push models/ s3://bucket/models
  ztensor repo push models/ /mnt/backup main v1")]
    Push(Transfer),
    /// Copy versions from another repository.
    #[command(after_help = "Example:\n  ztensor repo pull models/ s3://bucket/models main")]
    Pull(Transfer),
    /// Create a repository with the versions of another one.
    #[command(after_help = "Example:\n  ztensor repo clone s3://bucket/models models/")]
    Clone(CloneRepo),
    /// Serve the files of all versions by HTTP, read-only and with ranges.
    ///
    /// Files are at /REF/PATH. They are restored as they are read, without a checkout.
    #[command(after_help = "Examples:
  ztensor repo serve models/ --port 8000
  curl http://127.0.0.1:8000/main/config.json")]
    Serve(Serve),
    /// Write an HTML page of a repository: versions, the bytes each added, what is shared.
    #[command(after_help = "Example:\n  ztensor repo page models/ -o models.html")]
    Page(Page),
}

impl Repo {
    /// Whether it writes a file.
    pub fn writes(&self) -> bool {
        !matches!(self, Repo::Log(_) | Repo::Show(_) | Repo::Diff(_) | Repo::Du(_) | Repo::Serve(_))
    }
}

/// Options of `repo init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
}

/// Options of `repo commit`.
#[derive(Debug, Args)]
pub struct Commit {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// File or folder to commit.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Message.
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    pub message: String,
    /// Branch.
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    pub branch: String,
    /// Version to store differences from, besides the parent; repeatable.
    #[arg(long, value_name = "REF")]
    pub base: Vec<String>,
    /// Further parent, for a merge; repeatable.
    #[arg(long, value_name = "REF")]
    pub parent: Vec<String>,
    /// Tag for the new version.
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Author [default: the USER variable]
    #[arg(long, value_name = "TEXT")]
    pub author: Option<String>,
    /// Metadata; repeatable.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub meta: Vec<(String, String)>,
    /// Leave out files whose path matches PATTERN (wildcards * and ?); repeatable.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// z4ai effort.
    #[arg(long, value_name = "EFFORT", default_value = "default")]
    #[arg(value_parser = ["fast", "default", "balanced", "max"])]
    pub effort: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo log`.
#[derive(Debug, Args)]
pub struct Log {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branch, tag or commit.
    #[arg(value_name = "REF", default_value = "main")]
    pub name: String,
    /// Print the newest N versions only.
    #[arg(long, short = 'n', value_name = "N")]
    pub number: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branch, tag or commit.
    #[arg(value_name = "REF", default_value = "main")]
    pub name: String,
    /// List tensors and how each is stored.
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// First version.
    pub a: String,
    /// Second version.
    pub b: String,
    #[command(flatten)]
    pub which: Which,
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

/// Options of `repo checkout`.
#[derive(Debug, Args)]
pub struct Checkout {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branch, tag or commit.
    #[arg(value_name = "REF")]
    pub name: String,
    /// Folder to restore into.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Overwrite existing files; other files in FOLDER stay.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo export`.
#[derive(Debug, Args)]
pub struct Export {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branch, tag or commit.
    #[arg(value_name = "REF")]
    pub name: String,
    #[command(flatten)]
    pub output: crate::args::Output,
    /// File or folder of the version that has the tensors.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub path: String,
    /// Drop metadata that the format of OUT cannot hold; what is dropped is listed.
    #[arg(long)]
    pub drop_metadata: bool,
}

/// Options of `repo tag` and `repo branch`.
#[derive(Debug, Args)]
pub struct Ref {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Name; without it, all are listed.
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Branch, tag or commit to point to.
    #[arg(value_name = "REF", default_value = "main")]
    pub at: String,
    /// Delete it.
    #[arg(long)]
    pub delete: bool,
    /// Move it if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo du`.
#[derive(Debug, Args)]
pub struct Du {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branch, tag or commit [default: all]
    #[arg(value_name = "REF")]
    pub name: Option<String>,
    /// Also list the layers of the newest version.
    #[arg(long)]
    pub layers: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo gc`.
#[derive(Debug, Args)]
pub struct Gc {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Keep the last N versions of each branch.
    #[arg(long, value_name = "N")]
    pub keep_last: Option<u64>,
    /// Keep every Nth version of each branch, counted from its first.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_every: Option<u64>,
    /// Keep versions that are younger than TIME, such as 12h or 30d.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub keep_within: Option<Duration>,
    /// How long files must have been unneeded before they are deleted; 0 only if no other process writes.
    #[arg(long, value_name = "TIME", default_value = "14d", value_parser = time)]
    pub grace: Duration,
    /// Only print what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo fsck`.
#[derive(Debug, Args)]
pub struct Fsck {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Decode every tensor and compare it with its digest.
    #[arg(long)]
    pub full: bool,
    /// Rebuild location files that are missing or out of date.
    #[arg(long)]
    pub repair: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo push` and `repo pull`.
#[derive(Debug, Args)]
pub struct Transfer {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Folder or URL of the other repository.
    #[arg(value_name = "OTHER")]
    pub other: PathBuf,
    /// Branches and tags [default: all]
    #[arg(value_name = "REF")]
    pub refs: Vec<String>,
    /// Overwrite branches and tags that have diverged.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo clone`.
#[derive(Debug, Args)]
pub struct CloneRepo {
    /// Folder or URL of the repository to copy.
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Folder or URL of the new repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Branches and tags [default: all]
    #[arg(value_name = "REF")]
    pub refs: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `repo serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 chooses a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
}

/// Options of `repo page`.
#[derive(Debug, Args)]
pub struct Page {
    /// Folder or URL of the repository.
    #[arg(value_name = "REPO")]
    pub repo: PathBuf,
    #[command(flatten)]
    pub output: crate::args::Output,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| "expected KEY=VALUE".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let seconds = match unit {
        "" if number == "0" => Some(1),
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        "w" => Some(7 * 24 * 3600),
        _ => None,
    };
    let total = seconds.and_then(|seconds: u64| number.parse::<u64>().ok()?.checked_mul(seconds));
    total.map(Duration::from_secs).ok_or_else(|| "expected a time such as 30m, 12h or 14d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("0").unwrap(), Duration::ZERO);
        assert_eq!(time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(time("2w").unwrap(), Duration::from_secs(14 * 86400));
        for bad in ["", "5", "d", "-1d", "1y", "1.5h", "99999999999999999999d"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(pair("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }
}
