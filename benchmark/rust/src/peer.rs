//! A peer in Python: a process of its own that takes turns with ours.
//!
//! `BENCH_PYTHON` names an interpreter that has the peer's packages (`python3`
//! otherwise). A script prints `ready`, and then, for every line it is given, the
//! nanoseconds that its work took.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A peer, waiting for its turns.
pub struct Peer {
    child: Child,
    turns: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a script of `benchmark/peers`; `None` if it cannot run here.
    pub fn start(script: &str, arguments: &[&OsStr]) -> Option<Peer> {
        let python = std::env::var_os("BENCH_PYTHON").unwrap_or("python3".into());
        let mut child = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers").join(script))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (turns, answers) = (child.stdin.take(), BufReader::new(child.stdout.take()?));
        let mut peer = Peer { child, turns, answers };
        (peer.line() == "ready").then_some(peer)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer from the peer");
        line.trim().to_owned()
    }

    /// One turn: how long the peer's work took.
    pub fn round(&mut self) -> Duration {
        writeln!(self.turns.as_mut().expect("an open pipe")).expect("the peer takes its turn");
        Duration::from_nanos(self.line().parse().expect("nanoseconds"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input is the end of its work.
        drop(self.turns.take());
        let _ = self.child.wait();
    }
}
