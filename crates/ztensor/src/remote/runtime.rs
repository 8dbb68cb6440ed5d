//! The threads that requests run on, and the clients of the stores.
//!
//! Both belong to a process: threads do not survive a fork, and connections must
//! not be used by two processes. So there is one set per process id, made when it
//! is first needed. The sets form a list; a child finds its parent's in it, whose
//! id is not its own, and adds one. Nothing here is locked while a fork could
//! happen in another thread for longer than it takes to store a pointer.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use object_store::ObjectStore;
use tokio::runtime::{Builder, Handle, Runtime};

use super::settings::Settings;
use crate::error::{Error, Result};

/// Threads that wait for sockets and decrypt. Copying to the caller's memory is the caller's work.
const WORKERS: usize = 2;

struct Process {
    id: u32,
    runtime: Runtime,
    stores: Mutex<HashMap<Settings, Arc<dyn ObjectStore>>>,
    next: OnceLock<Box<Process>>,
}

static FIRST: OnceLock<Box<Process>> = OnceLock::new();

impl Process {
    fn new(id: u32) -> Result<Box<Process>> {
        // The only provider of cryptography that is built in; somebody else may have chosen it too.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(8) // these look up names
            .thread_keep_alive(Duration::from_secs(10))
            .thread_name("ztensor-remote")
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| Error::io("cannot start the threads for remote files", error))?;
        Ok(Box::new(Process { id, runtime, stores: Mutex::default(), next: OnceLock::new() }))
    }

    /// This process's own.
    fn current() -> Result<&'static Process> {
        let id = std::process::id();
        let mut slot = &FIRST;
        loop {
            match slot.get() {
                Some(process) if process.id == id => return Ok(process),
                Some(process) => slot = &process.next,
                None => {
                    if let Err(late) = slot.set(Process::new(id)?) {
                        late.runtime.shutdown_background(); // another thread was faster
                    }
                }
            }
        }
    }
}

/// The client for these settings, shared by all that use it in this process.
pub(super) fn store(settings: &Settings) -> Result<Arc<dyn ObjectStore>> {
    let process = Process::current()?;
    let mut stores = process.stores.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(store) = stores.get(settings) {
        return Ok(Arc::clone(store));
    }
    let _inside = process.runtime.enter();
    let store = settings.build()?;
    // Signed URLs may differ in every call: their clients are not kept for ever.
    const KEPT: usize = 64;
    if stores.len() >= KEPT {
        stores.clear();
    }
    stores.insert(settings.clone(), Arc::clone(&store));
    Ok(store)
}

/// Runs requests and waits for what comes of them. What the future does itself, it
/// does on the calling thread.
pub(super) fn wait<F>(future: F) -> Result<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let process = Process::current()?;
    if Handle::try_current().is_err() {
        return Ok(process.runtime.block_on(future));
    }
    // The caller is itself inside a runtime, which cannot be entered twice on one thread.
    std::thread::scope(|scope| {
        let waiting = std::thread::Builder::new().spawn_scoped(scope, || process.runtime.block_on(future));
        let waiting = waiting.map_err(|error| Error::io("cannot start a thread", error))?;
        waiting.join().map_err(|_| Error::io("cannot wait", std::io::Error::other("a thread panicked")))
    })
}

/// Starts something that goes on while the caller does something else.
pub(super) fn spawn<F>(future: F) -> Result<tokio::task::JoinHandle<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Ok(Process::current()?.runtime.spawn(future))
}
