//! Files to work on, and how to run the program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use tempfile::TempDir;
use ztensor::{Checksum, Compression, Writer};

/// A folder that is gone at the end, and runs of the program in it.
pub struct Place(TempDir);

/// What a run left behind.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    /// It ended with that code.
    #[track_caller]
    pub fn ends(self, code: i32) -> Run {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// It failed with that code and one line, which has all these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) {
        let run = self.ends(code);
        assert_eq!(run.err.lines().count(), 1, "one line: {:?}", run.err);
        assert!(run.err.starts_with("error: "), "{}", run.err);
        for word in words {
            assert!(run.err.contains(word), "{word:?} is not in {}", run.err);
        }
    }

    /// Its output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).expect("JSON")
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let run = Run {
            code: output.status.code().expect("no signal"),
            out: text(output.stdout),
            err: text(output.stderr),
        };
        // For `make messages`.
        if let Some(list) = std::env::var_os("ZTENSOR_MESSAGES") {
            let mut list = std::fs::File::options().create(true).append(true).open(list).unwrap();
            for line in run.err.lines().filter_map(|line| line.strip_prefix("error: ")) {
                list.write_all(format!("{line}\n").as_bytes()).unwrap();
            }
        }
        run
    }
}

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program, started in this folder.
    pub fn command(&self, args: &[&str]) -> Command {
        self.program("ztensor", args)
    }

    /// One of the programs, started in this folder.
    pub fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin(name).unwrap();
        command.current_dir(self.0.path()).args(args);
        command
    }

    /// Runs the program in this folder.
    pub fn run(&self, args: &[&str]) -> Run {
        self.command(args).output().unwrap().into()
    }

    /// Runs `z4ai` in this folder.
    pub fn z4ai(&self, args: &[&str]) -> Run {
        self.program("z4ai", args).output().unwrap().into()
    }

    /// Copies a fixture here, under its own name.
    pub fn fixture(&self, path: &str) -> String {
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        std::fs::copy(fixture(path), self.path(name)).unwrap();
        name.to_owned()
    }

    /// The names of what lies here, sorted.
    pub fn list(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A small model: three layers, a norm, metadata.
    pub fn model(&self, name: &str) {
        let mut writer = Writer::create(self.path(name)).unwrap();
        writer.set_attribute("license", "mit");
        for layer in 0..3 {
            let numbers: Vec<f32> = (0..24).map(|n| (n + layer) as f32).collect();
            writer.add(&format!("layers.{layer}.weight"), &[4, 6], &numbers).unwrap();
        }
        let checked = writer.add_with("norm", &[4], &[1i64, -2, 3, 4]);
        checked.compress(Compression::Zstd(3)).checksum(Checksum::Crc32c).write().unwrap();
        writer.finish().unwrap();
    }

    /// A file with one tensor.
    pub fn single(&self, name: &str, tensor: &str, numbers: &[f32]) {
        let mut writer = Writer::create(self.path(name)).unwrap();
        writer.add(tensor, &[numbers.len() as u64], numbers).unwrap();
        writer.finish().unwrap();
    }
}

/// A file of the library's own tests.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ztensor/tests/data").join(path)
}

/// One readable file per format.
pub const FORMATS: [&str; 10] = [
    "zt/dtypes.zt",
    "zt/sparse.zt",
    "zt/legacy_v01.zt",
    "safetensors/dtypes.safetensors",
    "pickle/checkpoint.pt",
    "pickle/types_legacy.pt",
    "gguf/types.gguf",
    "npz/shapes.npz",
    "onnx/raw.onnx",
    "hdf5/types_v0.h5",
];

/// A command that is held at the first step of its work.
#[cfg(unix)]
pub struct Held {
    child: std::process::Child,
    /// The writing end of the pipe that it waits for.
    pipe: std::fs::File,
}

#[cfg(unix)]
impl Held {
    /// Starts a command, and waits until it is at that step.
    #[track_caller]
    pub fn start(mut command: std::process::Command) -> Held {
        use std::os::unix::fs::OpenOptionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hold");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut child = command.env("ZTENSOR_TEST_HOLD", &path).spawn().unwrap();
        // O_NONBLOCK: without a reader the pipe cannot be opened, and opening does not wait for one.
        let nonblocking = if cfg!(target_os = "linux") { 0o4000 } else { 4 };
        loop {
            match std::fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&path) {
                Ok(pipe) => return Held { child, pipe },
                Err(_) if child.try_wait().unwrap().is_some() => {
                    panic!("it ended before its first step: {:?}", child.wait_with_output())
                }
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    }

    /// Sends a signal, lets it go on, and waits for its end.
    pub fn signal(self, signal: &str) -> std::process::Output {
        let id = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
        drop(self.pipe);
        self.child.wait_with_output().unwrap()
    }
}
