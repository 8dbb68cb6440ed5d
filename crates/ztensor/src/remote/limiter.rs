//! Concurrency limiter: requests in flight per worker runtime.
//!
//! Bytes from afar come slowly, and many requests share the wait. Bytes from nearby come as fast
//! as they can be put away: there a few requests are faster than many, whose bytes push each other
//! out of the cache while they wait. So where a server answers at once a worker runtime starts with a few,
//! goes over to all it may have as soon as too little comes, and now and then tries whether more
//! would bring more.

use std::time::{Duration, Instant};

/// Initial requests in flight: the next response is in transit while one is read. (structural)
const INITIAL_IN_FLIGHT: usize = 2;
/// The interval over which received bytes are summed before a decision. (unmeasured)
pub(super) const WINDOW: Duration = Duration::from_millis(50);
/// Bytes a second in one worker runtime; below that it is limited by the server.
const ENOUGH: f64 = 300e6;
/// More requests in flight are kept if throughput grows by this factor.
const BETTER: f64 = 1.2;
/// Windows before more requests are tried; twice as many after every vain trial. (unmeasured)
const PAUSE: u32 = 8;

/// A server whose first answer took no longer is nearby. (unmeasured)
pub(super) const NEAR: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct ConcurrencyLimiter {
    limit: usize,
    most: usize,
    since: Instant,
    bytes: u64,
    /// While more requests are tried: how many there were, and what they brought.
    before: Option<(usize, f64)>,
    rest: u32,
    pause: u32,
}

impl ConcurrencyLimiter {
    /// At most this many requests in flight; all of them from the start unless latency is low.
    pub(super) fn new(most: usize, near: bool, now: Instant) -> ConcurrencyLimiter {
        let limit = if near { most.min(INITIAL_IN_FLIGHT) } else { most };
        ConcurrencyLimiter { limit, most, since: now, bytes: 0, before: None, rest: PAUSE, pause: PAUSE }
    }

    /// How many requests may be under way.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Accounts for received bytes; 0 when only time has passed.
    pub(super) fn arrived(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        let passed = now.saturating_duration_since(self.since);
        if passed < WINDOW || (self.limit == self.most && self.before.is_none()) {
            return;
        }
        let rate = self.bytes as f64 / passed.as_secs_f64();
        (self.since, self.bytes) = (now, 0);
        match self.before.take() {
            _ if rate < ENOUGH => self.limit = self.most,
            Some((fewer, before)) if rate < before * BETTER => {
                self.limit = fewer;
                self.pause = self.pause.saturating_mul(2);
                self.rest = self.pause;
            }
            None if self.rest > 0 => self.rest -= 1,
            _ => {
                self.before = Some((self.limit, rate));
                self.limit = (self.limit * 2).min(self.most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests in flight, of sixteen, at the end of each window; `rate` gives the throughput of a
    /// number of requests in bytes per second.
    fn paced(near: bool, windows: usize, rate: impl Fn(usize) -> f64) -> Vec<usize> {
        let mut now = Instant::now();
        let mut limiter = ConcurrencyLimiter::new(16, near, now);
        let mut step = || {
            for _ in 0..5 {
                now += WINDOW / 5;
                limiter.arrived((rate(limiter.limit()) * WINDOW.as_secs_f64() / 5.0) as u64, now);
            }
            limiter.limit()
        };
        (0..windows).map(|_| step()).collect()
    }

    #[test]
    fn far_servers_are_asked_for_all_at_once() {
        assert!(paced(false, 50, |_| 1e9).iter().all(|limit| *limit == 16));
        assert_eq!(ConcurrencyLimiter::new(1, true, Instant::now()).limit(), 1);
    }

    #[test]
    fn slow_connections_become_many() {
        assert_eq!(paced(true, 3, |requests| requests as f64 * 80e6), [16, 16, 16]);
        assert_eq!(paced(true, 2, |_| 0.0), [16, 16]);
    }

    #[test]
    fn fast_ones_stay_few_while_more_bring_nothing() {
        let limits = paced(true, 200, |_| 1e9);
        let trials: Vec<usize> = (0..200).filter(|n| limits[*n] != INITIAL_IN_FLIGHT).collect();
        assert_eq!(trials, [8, 26, 60, 126], "ever rarer, and each a window long");
        assert!(limits.iter().all(|limit| *limit <= 2 * INITIAL_IN_FLIGHT));
    }

    #[test]
    fn fast_ones_become_more_while_that_helps() {
        let limits = paced(true, 100, |requests| (requests as f64 * 200e6).min(1.7e9));
        assert_eq!(limits[7], INITIAL_IN_FLIGHT);
        assert!(limits[12..].iter().filter(|limit| **limit == 8).count() > 80, "{limits:?}");
        let limits = paced(true, 100, |requests| requests as f64 * 200e6);
        assert!(limits[12..].iter().all(|limit| *limit == 16), "{limits:?}");
    }
}
