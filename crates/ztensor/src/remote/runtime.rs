//! The threads that requests run on, and the clients of the stores.
//!
//! Both belong to a process: threads do not survive a fork, and connections must
//! not be used by two processes. So there is one set per process id, made when it
//! is first needed. The sets form a list; a child finds its parent's in it, whose
//! id is not its own, and adds one. Nothing here is locked while a fork could
//! happen in another thread for longer than it takes to store a pointer.
//!
//! Single requests run on two threads of their own. Large amounts are received in
//! [`WorkerRuntime`]s: what a thread waits for arrives on that very thread, and is copied to
//! where it belongs while it is still in its cache.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use object_store::ObjectStore;
use tokio::runtime::{Builder, Handle, Runtime};

use super::raw_http::Direct;
use super::settings::Settings;
use crate::error::{Error, Result};

/// Threads that wait for sockets and decrypt. Copying to the caller's memory is the caller's work.
/// (flat: `constants.py`, `near_whole`)
const WORKERS: usize = 2;

/// Lanes that are kept for the next call, with their connections. (limit)
const LANES: usize = 8;

struct Process {
    id: u32,
    runtime: Runtime,
    clients: Clients,
    runtimes: Mutex<Vec<WorkerRuntime>>,
    next: OnceLock<Box<Process>>,
}

/// How to ask one store for something. Its connections belong to one runtime.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) store: Arc<dyn ObjectStore>,
    /// A shorter way for ranges, where there is one.
    pub(super) direct: Option<Arc<Direct>>,
}

/// Clients by their settings.
#[derive(Default)]
struct Clients(Mutex<HashMap<Settings, Client>>);

impl Clients {
    fn get(&self, runtime: &Runtime, settings: &Settings) -> Result<Client> {
        let mut clients = lock(&self.0);
        if let Some(client) = clients.get(settings) {
            return Ok(client.clone());
        }
        let _inside = runtime.enter();
        let client = Client { store: settings.build()?, direct: settings.direct().map(Arc::new) };
        // Signed URLs may differ in every call: their clients are not kept for ever.
        /// Clients that are kept. (limit)
        const KEPT_CLIENTS: usize = 64;
        if clients.len() >= KEPT_CLIENTS {
            clients.clear();
        }
        clients.insert(settings.clone(), client.clone());
        Ok(client)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A runtime without threads: everything it does, it does on the thread that waits for it.
struct WorkerRuntime {
    runtime: Runtime,
    clients: Clients,
}

/// Guard of a worker runtime that one thread uses exclusively.
pub(super) struct RuntimeGuard {
    process: &'static Process,
    worker_runtime: Option<WorkerRuntime>,
}

impl RuntimeGuard {
    /// Runs requests of the client for these settings, and waits for what comes of them.
    pub(super) fn wait<F>(&self, settings: &Settings, requests: impl FnOnce(Client) -> F) -> Result<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let Some(WorkerRuntime { runtime, clients }) = &self.worker_runtime else {
            return Err(Error::invalid("the worker runtime was released already"));
        };
        let requests = requests(clients.get(runtime, settings)?);
        block_on(runtime, async {
            // Connections that were closed meanwhile are noticed before they are used.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            requests.await
        })
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if let Some(worker_runtime) = self.worker_runtime.take() {
            let mut runtimes = lock(&self.process.runtimes);
            if runtimes.len() < LANES && self.process.id == std::process::id() {
                runtimes.push(worker_runtime);
            } else {
                drop(runtimes);
                worker_runtime.runtime.shutdown_background();
            }
        }
    }
}

/// An idle worker runtime, or a new one.
pub(super) fn worker_runtime() -> Result<RuntimeGuard> {
    let process = Process::current()?;
    let unused = lock(&process.runtimes).pop();
    let worker_runtime = match unused {
        Some(worker_runtime) => worker_runtime,
        None => WorkerRuntime { runtime: build(Builder::new_current_thread())?, clients: Clients::default() },
    };
    Ok(RuntimeGuard { process, worker_runtime: Some(worker_runtime) })
}

fn build(mut builder: Builder) -> Result<Runtime> {
    builder
        .max_blocking_threads(8) // these look up names
        .thread_keep_alive(Duration::from_secs(10))
        .thread_name("ztensor-remote")
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| Error::io("cannot start the threads for remote files", error))
}

/// The only provider of cryptography that is built in; the program may have chosen it already.
pub(super) fn provide_cryptography() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

static FIRST: OnceLock<Box<Process>> = OnceLock::new();

impl Process {
    fn new(id: u32) -> Result<Box<Process>> {
        provide_cryptography();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(WORKERS);
        let runtime = build(builder)?;
        let (clients, runtimes, next) = (Clients::default(), Mutex::default(), OnceLock::new());
        Ok(Box::new(Process { id, runtime, clients, runtimes, next }))
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
pub(super) fn client(settings: &Settings) -> Result<Client> {
    let process = Process::current()?;
    process.clients.get(&process.runtime, settings)
}

/// Runs requests and waits for what comes of them. What the future does itself, it
/// does on the calling thread.
pub(super) fn wait<F>(future: F) -> Result<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    block_on(&Process::current()?.runtime, future)
}

fn block_on<F>(runtime: &Runtime, future: F) -> Result<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    if Handle::try_current().is_err() {
        return Ok(runtime.block_on(future));
    }
    // The caller is itself inside a runtime, which cannot be entered twice on one thread.
    std::thread::scope(|scope| {
        let waiting = std::thread::Builder::new().spawn_scoped(scope, || runtime.block_on(future));
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
