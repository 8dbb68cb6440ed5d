//! Many requests at a time, and their bytes to where they belong.
//!
//! Copying to memory that was never touched takes about as long as receiving, so for large amounts
//! several threads do it, each in a worker runtime of its own with its share of the requests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::runtime::{self, Client};
use super::settings::Settings;
use crate::base::parallel;
use crate::error::Result;

/// A request that fills its own memory, and says how many bytes that were.
pub(super) type Request<'a> = BoxFuture<'a, Result<u64>>;

/// How long to wait for bytes before asking whether they are still wanted.
const TICK: Duration = Duration::from_millis(50);

/// Fewer requests than this are left to the threads that there are. (flat: `constants.py`, `near_one`, `far_one`)
const WORTH_SHARING: usize = 8;

/// More threads than this do not help: the network or the other side is then the limit. (case: `constants.py`,
/// `near_whole`: one thread takes 1.3 times as long; two are as fast on two cores)
const THREADS: usize = 4;

/// What the threads of one call share.
struct Work<'s, T, R> {
    settings: &'s Settings,
    parts: Mutex<std::vec::IntoIter<T>>,
    /// Makes the request for a part.
    request: R,
    /// Bytes that arrived and that the caller was not told of.
    arrived: AtomicU64,
    stop: AtomicBool,
}

impl<'a, T: Send, R: Fn(Client, T) -> Request<'a> + Sync> Work<'_, T, R> {
    fn next(&self) -> Option<T> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Makes requests until there are none left. `tick` is called whenever something arrived, and
    /// when nothing did for a while.
    async fn receive(
        &self,
        client: Client,
        connections: usize,
        tick: &mut (dyn FnMut() -> Result<()> + Send),
    ) -> Result<()> {
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < connections
                && let Some(part) = self.next()
            {
                under_way.push((self.request)(client.clone(), part));
            }
            let bytes = match tokio::time::timeout(TICK, under_way.try_next()).await {
                Ok(Ok(Some(bytes))) => bytes,
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_) if self.stop.load(Ordering::Relaxed) => return Ok(()),
                Err(_) => 0, // nothing yet: does anybody still want it?
            };
            self.arrived.fetch_add(bytes, Ordering::Relaxed);
            tick()?;
        }
    }

    /// The same in a worker runtime of this thread.
    fn receive_here(&self, connections: usize, tick: &mut (dyn FnMut() -> Result<()> + Send)) -> Result<()> {
        runtime::worker_runtime()?.wait(self.settings, |client| self.receive(client, connections, tick))?
    }

    /// What a helping thread does.
    fn help(&self, connections: usize, outcome: &Sender<Result<()>>) {
        let received = self.receive_here(connections, &mut || Ok(()));
        if received.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        let _ = outcome.send(received); // the caller may have gone on with an error
    }
}

/// Makes a request for every part, no more at a time than the settings allow. `done` hears on this thread how
/// many bytes have arrived, and may stop it.
pub(super) fn all<'a, T: Send>(
    parts: Vec<T>,
    settings: &Settings,
    request: impl Fn(Client, T) -> Request<'a> + Sync,
    done: &mut (dyn FnMut(u64) -> Result<()> + Send),
) -> Result<()> {
    let (count, connections) = (parts.len(), settings.connections);
    let work = Work {
        settings,
        parts: Mutex::new(parts.into_iter()),
        request,
        arrived: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut tell = || done(work.arrived.swap(0, Ordering::Relaxed));
    if count < WORTH_SHARING {
        let client = runtime::client(settings)?;
        return runtime::wait(work.receive(client, connections, &mut tell))?;
    }
    let threads = parallel::resolve(0).min(THREADS).min(connections);
    let share = connections.div_ceil(threads);
    std::thread::scope(|scope| {
        let (outcome, outcomes) = channel();
        for _ in 1..threads {
            let (work, outcome) = (&work, outcome.clone());
            // A helper that cannot be started is done without.
            let _ = std::thread::Builder::new().spawn_scoped(scope, move || work.help(share, &outcome));
        }
        drop(outcome);
        let mut result = work.receive_here(share, &mut tell);
        while result.is_ok() {
            result = match outcomes.recv_timeout(TICK) {
                Ok(helped) => helped.and_then(|()| tell()),
                Err(RecvTimeoutError::Timeout) => tell(),
                Err(RecvTimeoutError::Disconnected) => return tell(), // all have ended
            };
        }
        work.stop.store(true, Ordering::Relaxed);
        result
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::remote::{Options, Place, place};

    fn requests(count: u64) -> Vec<Request<'static>> {
        (0..count).map(|n| async move { Ok(n) }.boxed()).collect()
    }

    fn run(
        requests: Vec<Request<'static>>,
        connections: usize,
        done: &mut (dyn FnMut(u64) -> Result<()> + Send),
    ) -> Result<()> {
        let Place::Remote(location) = place("http://127.0.0.1:1/x".as_ref())? else { panic!("it is remote") };
        let options = Options::default().set("connections", connections.to_string());
        let settings = Settings::resolve(&location, &options)?;
        all(requests, &settings, |_, request| request, done)
    }

    #[test]
    fn every_byte_is_told_of() {
        for (count, connections) in [(0, 1), (1, 4), (7, 4), (100, 1), (1000, 16)] {
            let mut told = 0;
            run(requests(count), connections, &mut |bytes| {
                told += bytes;
                Ok(())
            })
            .unwrap();
            assert_eq!(told, (0..count).sum::<u64>(), "{count} {connections}");
        }
    }

    #[test]
    fn errors_of_either_side_end_it() {
        let mut broken = requests(100);
        broken[60] = async { Err(Error::invalid("sixty")) }.boxed();
        assert_eq!(run(broken, 16, &mut |_| Ok(())).unwrap_err().to_string(), "sixty");
        // One that never answers, and a caller who has enough.
        let mut silent = requests(100);
        silent[3] = std::future::pending().boxed();
        silent[50] = std::future::pending().boxed();
        let mut ticks = 0;
        let stopped = run(silent, 16, &mut |_| {
            ticks += 1;
            if ticks > 20 { Err(Error::cancelled()) } else { Ok(()) }
        });
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
