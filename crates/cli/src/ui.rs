//! What long work shows while it runs, and how it is stopped.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ztensor::Observer;

/// Set by the first Ctrl-C. Long work then stops at its next step, so that its
/// unfinished output is removed; a second Ctrl-C ends the program at once.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up()) {
        // Registered in this order, the first signal only sets the flag. Without
        // handlers the system's own remain, which end the program: no reason to fail.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone());
        let _ = signal_hook::flag::register(signal, flag.clone());
    }
    flag
});

/// The signal of a terminal that is closed, unless it was ignored when the program started, as
/// `nohup` arranges.
#[cfg(unix)]
fn hang_up() -> Option<i32> {
    use signal_hook::consts::{SIGHUP, SIGXFSZ};
    // A write beyond a limit on file sizes then fails as one to a full disk does.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1);
    (!ignored).then_some(SIGHUP)
}

/// There is none.
#[cfg(not(unix))]
fn hang_up() -> Option<i32> {
    None
}

/// From now on Ctrl-C stops long work at its next step.
pub fn catch_interrupts() {
    LazyLock::force(&INTERRUPTED);
}

/// Who is told about bytes that are done, and may cancel.
pub type Watcher = Arc<dyn Observer + Send + Sync>;

/// A program that runs a command instead of a person.
struct Listener {
    watcher: Watcher,
    notes: Vec<String>,
}

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Runs a command for a program: `watcher` takes the place of progress bars and Ctrl-C, and what
/// would be printed is returned.
pub fn collected<T>(watcher: Watcher, work: impl FnOnce() -> T) -> (T, Vec<String>) {
    LISTENER.set(Some(Listener { watcher, notes: Vec::new() }));
    let done = work();
    (done, LISTENER.take().map_or_else(Vec::new, |listener| listener.notes))
}

/// Keeps a line for the program that runs this command; `false` if there is none.
pub fn noted(line: &dyn std::fmt::Display) -> bool {
    LISTENER.with_borrow_mut(|listener| match listener {
        Some(listener) => {
            listener.notes.push(line.to_string());
            true
        }
        None => false,
    })
}

/// A progress bar with throughput and time left, on a terminal; nothing elsewhere.
pub struct Progress(ProgressBar, Option<Watcher>);

impl Progress {
    /// Work on `total` bytes. `quiet` shows nothing even on a terminal.
    pub fn new(what: &str, total: u64, quiet: bool) -> Progress {
        let listened = LISTENER.with_borrow(Option::is_some);
        let shown = !quiet && !listened && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = "{prefix} [{bar:30}] {percent:>3} % of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar, LISTENER.with_borrow(|listener| listener.as_ref().map(|one| Arc::clone(&one.watcher))))
    }
}

/// Tests interrupt a command in the middle of its work, however fast the machine is: in builds with
/// debug assertions the first step waits until the writing end of the pipe that `ZTENSOR_TEST_HOLD`
/// names has been opened and closed.
#[cfg(debug_assertions)]
fn hold() {
    static HELD: std::sync::Once = std::sync::Once::new();
    HELD.call_once(|| {
        if let Some(pipe) = std::env::var_os("ZTENSOR_TEST_HOLD") {
            let _ = std::fs::read(pipe);
        }
    });
}

impl Observer for Progress {
    fn advance(&self, bytes: u64) -> bool {
        #[cfg(debug_assertions)]
        hold();
        // Sizes known beforehand may be estimates: no bar goes beyond its end.
        let left = self.0.length().unwrap_or(u64::MAX).saturating_sub(self.0.position());
        self.0.inc(bytes.min(left));
        match &self.1 {
            Some(watcher) => watcher.advance(bytes),
            None => !INTERRUPTED.load(Ordering::Relaxed),
        }
    }

    fn finish(&self) -> bool {
        self.1.as_ref().is_none_or(|watcher| watcher.finish())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
