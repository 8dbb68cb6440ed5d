//! What long work shows while it runs, and how it is stopped.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ztensor::Observer;

/// A progress bar with throughput and time left, on a terminal; nothing elsewhere.
pub struct Progress(ProgressBar);

impl Progress {
    /// Work on `total` bytes. `quiet` shows nothing even on a terminal.
    pub fn new(what: &str, total: u64, quiet: bool) -> Progress {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }
}

impl Observer for Progress {
    fn advance(&self, bytes: u64) -> bool {
        self.0.inc(bytes);
        true
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
