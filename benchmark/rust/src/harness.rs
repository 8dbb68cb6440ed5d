//! Interleaved measurement.
//!
//! Machines are noisy and the noise is shared by neighbours in time, so the
//! contestants of a case take turns, round after round, and a claim is the
//! median of the ratios within each round, with its quartiles. Nothing here
//! asserts: a benchmark prints, a test decides.

use std::time::Duration;

/// One way of doing the work. It prepares as it likes and returns only the time
/// of what is being compared.
pub type Run<'a> = Box<dyn FnMut() -> Duration + 'a>;

/// The contestants of one case; the first is ours.
pub struct Case<'a> {
    name: &'a str,
    bytes: u64,
    contestants: Vec<(&'a str, Run<'a>, Option<f64>)>,
}

/// Rounds per case, besides one that warms up.
const ROUNDS: usize = 11;

impl<'a> Case<'a> {
    /// A case that handles `bytes` per run (0 where bytes are not the point).
    pub fn new(name: &'a str, bytes: u64, ours: impl FnMut() -> Duration + 'a) -> Case<'a> {
        Case { name, bytes, contestants: vec![("ours", Box::new(ours), None)] }
    }

    /// A peer or a limit, and the ratio that ours is meant to reach against it.
    pub fn against(mut self, name: &'a str, bar: f64, run: impl FnMut() -> Duration + 'a) -> Case<'a> {
        self.contestants.push((name, Box::new(run), Some(bar)));
        self
    }

    /// Runs the case and prints one line per contestant.
    pub fn run(mut self) {
        let mut times = vec![Vec::with_capacity(ROUNDS); self.contestants.len()];
        for round in 0..=ROUNDS {
            for (times, (_, run, _)) in times.iter_mut().zip(&mut self.contestants) {
                let time = run().as_secs_f64();
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let speed = |times: &[f64]| {
            let median = quartiles(times.to_vec())[1];
            match self.bytes {
                0 => format!("{:9.3} ms", median * 1e3),
                bytes => format!("{:9.2} GB/s", bytes as f64 / median / 1e9),
            }
        };
        println!("\n{}", self.name);
        println!("  {:<28} {}", "ours", speed(&times[0]));
        for ((name, _, bar), theirs) in self.contestants.iter().zip(&times).skip(1) {
            let ratios = theirs.iter().zip(&times[0]).map(|(theirs, ours)| theirs / ours).collect();
            let [low, median, high] = quartiles(ratios);
            let bar = bar.unwrap_or(0.0);
            let verdict = if median >= bar { "met" } else { "MISSED" };
            println!(
                "  {name:<28} {}   ours is {median:6.2} x ({low:.2} to {high:.2}); bar {bar} {verdict}",
                speed(theirs)
            );
        }
    }
}

/// First quartile, median and third quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |fraction: f64| values[((values.len() - 1) as f64 * fraction).round() as usize];
    [at(0.25), at(0.5), at(0.75)]
}

/// Times one call.
pub fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = std::time::Instant::now();
    std::hint::black_box(work());
    start.elapsed()
}

/// Bytes that no compressor or page-sharing kernel finds a pattern in.
pub fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        bytes.extend_from_slice(&seed.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
