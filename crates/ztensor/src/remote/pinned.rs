//! One object, and the promise that it stays the same one.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{FutureExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::cache::Cache;
use super::coalesce::{Block, Span};
use super::collect::collect;
use super::runtime::Client;
use super::settings::Settings;
use super::{Location, Options, coalesce, failure, fetch, runtime};
use crate::error::{Error, Result};

/// Where the first request looks, which also tells the object's length and identity.
#[derive(Debug, Clone, Copy)]
pub(super) enum First {
    /// The first bytes, for formats that start with what describes them.
    Head(u64),
    /// The last bytes, for formats that end with it.
    Tail(u64),
}

impl First {
    fn len(self) -> u64 {
        match self {
            First::Head(len) | First::Tail(len) => len,
        }
    }
}

/// An object as it was when it was opened, or, if its length was known before, when it was first read.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) url: String,
    pub(super) settings: Arc<Settings>,
    key: Key,
    len: u64,
    /// What the first answer said of it.
    meta: OnceLock<ObjectMeta>,
    cache: Option<Cache>,
}

/// The key as the store's client wants it.
pub(super) fn key(location: &Location) -> Result<Key> {
    Key::parse(location.key())
        .map_err(|error| Error::invalid(format!("the key is not valid: {error}")).in_file(location.url()))
}

/// Waits longer after every failure.
async fn pause(attempt: usize) {
    tokio::time::sleep(Duration::from_millis(100 << attempt.min(6))).await;
}

/// How often a body that broke off is asked for again. (limit)
const ATTEMPTS: usize = 4;

impl Object {
    /// Asks for the first bytes of interest, and remembers whose they are.
    pub(super) fn open(
        location: &Location,
        options: &Options,
        first: First,
    ) -> Result<(Object, u64, Vec<u8>)> {
        let settings = Settings::resolve(location, options)?;
        let (url, key) = (location.url(), key(location)?);
        if key.as_ref().is_empty() {
            return Err(Error::invalid("this URL names a bucket: name a file in it").in_file(url));
        }
        let store = runtime::client(&settings).map_err(|error| error.in_file(&url))?.store;
        let opened = runtime::wait(async {
            let mut attempt = 0;
            loop {
                match first_bytes(&*store, &key, first).await {
                    Err(error) if failure::is_transient(&error) && attempt < ATTEMPTS => pause(attempt).await,
                    opened => return opened,
                }
                attempt += 1;
            }
        })?;
        let (meta, start, bytes) = opened.map_err(|error| failure::error("cannot open", &url, &error))?;
        let cache = Cache::open(&settings, &url, &meta).map_err(|error| error.in_file(&url))?;
        let (len, meta) = (meta.size, OnceLock::from(meta));
        Ok((Object { url, settings, key, len, meta, cache }, start, bytes))
    }

    /// An object of a known length, without a request; `None` where it has to be asked for, as a cache
    /// needs to know which one it is.
    pub(super) fn sized(location: &Location, options: &Options, len: u64) -> Result<Option<Object>> {
        let settings = Settings::resolve(location, options)?;
        if settings.cache.is_some() {
            return Ok(None);
        }
        let (url, key) = (location.url(), key(location)?);
        let meta = OnceLock::new();
        Ok(Some(Object { url, settings, key, len, meta, cache: None }))
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// A request that only this very object may answer, where servers know such.
    fn pinned(&self, range: Range<u64>) -> GetOptions {
        let range = Some(GetRange::Bounded(range));
        let Some(meta) = self.meta.get() else { return GetOptions { range, ..GetOptions::default() } };
        let strong = meta.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        let dated = meta.e_tag.is_none() && meta.last_modified.timestamp() != 0;
        GetOptions {
            if_match: strong,
            if_unmodified_since: dated.then_some(meta.last_modified),
            range,
            ..GetOptions::default()
        }
    }

    /// Servers that ignore conditions say at least whose bytes they send. The first answer decides whose
    /// bytes all others have to be.
    fn check(&self, found: &ObjectMeta) -> Result<()> {
        if found.size != self.len {
            let how = format!("it has {} bytes instead of {}", found.size, self.len);
            return Err(failure::changed(&self.url, &how));
        }
        let meta = self.meta.get_or_init(|| found.clone());
        if found.e_tag != meta.e_tag {
            return Err(failure::changed(&self.url, "it has another ETag"));
        }
        if meta.e_tag.is_none() && found.last_modified != meta.last_modified {
            return Err(failure::changed(&self.url, "it has another date"));
        }
        Ok(())
    }

    /// Fills a buffer with one request, for parsers: what they read is short, and they wait for it.
    pub(super) fn fetch_header(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.cache.is_some() {
            return self.fetch(vec![(offset, out)], &mut |_| Ok(()));
        }
        let client = runtime::client(&self.settings).map_err(|error| error.in_file(&self.url))?;
        let span = Span::new(offset..offset + out.len() as u64, vec![(offset, out)]);
        runtime::wait(self.fetch_span(&client, span))?.map(drop)
    }

    /// Fills buffers: sorted, close ones with one request, several requests at a time.
    /// `done` hears how many bytes have arrived, and may stop it.
    pub(super) fn fetch(
        &self,
        requests: Vec<(u64, &mut [u8])>,
        done: &mut (dyn FnMut(u64) -> Result<()> + Send),
    ) -> Result<()> {
        let fetched = match &self.cache {
            None => fetch::all(
                coalesce::coalesce_ranges(requests, self.settings.connections),
                &self.settings,
                |client, span| async move { self.fetch_span(&client, span).await }.boxed(),
                done,
            ),
            Some(cache) => fetch::all(
                coalesce::blocks(requests, self.len()),
                &self.settings,
                |client, block| async move { self.fetch_block(&client, cache, block).await }.boxed(),
                done,
            ),
        };
        fetched.map_err(|error| error.in_file(&self.url))
    }

    /// Fills the buffers of one request as its bytes come.
    async fn fetch_span(&self, client: &Client, mut span: Span<'_>) -> Result<u64> {
        let wanted = span.wanted();
        if let Some(direct) = &client.direct
            && let Some(meta) = self.meta.get()
            && direct.fetch(&self.key, meta, &mut span).await
        {
            return Ok(wanted);
        }
        let mut attempt = 0;
        while !span.is_done() {
            match self.receive(&*client.store, &mut span).await {
                Ok(()) => {}
                Err(Received::Ours(error)) => return Err(error),
                Err(Received::Store(error)) if failure::is_transient(&error) && attempt < ATTEMPTS => {
                    pause(attempt).await;
                    attempt += 1;
                }
                Err(Received::Store(error)) => return Err(failure::error("cannot read", &self.url, &error)),
            }
        }
        Ok(wanted)
    }

    async fn receive(
        &self,
        store: &dyn ObjectStore,
        span: &mut Span<'_>,
    ) -> std::result::Result<(), Received> {
        let result = store.get_opts(&self.key, self.pinned(span.missing())).await?;
        self.check(&result.meta)?;
        let mut body = result.into_stream();
        while let Some(chunk) = body.try_next().await? {
            span.take(&chunk).map_err(|error| error.in_file(&self.url))?;
        }
        match span.is_done() {
            true => Ok(()),
            false => {
                let short =
                    std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the server sent too few bytes");
                Err(Received::Ours(Error::io("cannot read", short).in_file(&self.url)))
            }
        }
    }

    /// A block from the cache, or from the store into the cache.
    async fn fetch_block(&self, client: &Client, cache: &Cache, mut block: Block<'_>) -> Result<u64> {
        if let Some(bytes) = cache.get(block.index, block.len()) {
            return Ok(block.scatter(&bytes));
        }
        let mut bytes = crate::source::zeroed(block.len())?;
        let span = Span::new(block.range.clone(), vec![(block.range.start, &mut bytes)]);
        self.fetch_span(client, span).await?;
        cache.put(block.index, &bytes);
        Ok(block.scatter(&bytes))
    }
}

/// Why a body did not arrive.
enum Received {
    Store(object_store::Error),
    Ours(Error),
}

impl From<object_store::Error> for Received {
    fn from(error: object_store::Error) -> Self {
        Received::Store(error)
    }
}

impl From<Error> for Received {
    fn from(error: Error) -> Self {
        Received::Ours(error)
    }
}

type Opened = (ObjectMeta, u64, Vec<u8>);

async fn first_bytes(store: &dyn ObjectStore, key: &Key, first: First) -> object_store::Result<Opened> {
    use object_store::Error as Store;
    let range = match first {
        First::Head(len) => GetRange::Bounded(0..len),
        First::Tail(len) => GetRange::Suffix(len),
    };
    match ranged(store, key, range).await {
        Ok(result) => received(result, first.len()).await,
        Err(
            error @ (Store::NotFound { .. } | Store::PermissionDenied { .. } | Store::Unauthenticated { .. }),
        ) => Err(error),
        Err(error) if failure::is_unreachable(&error) => Err(error),
        Err(error) => {
            // No store gives a range of nothing, and some give no last bytes.
            let meta = match store.head(key).await {
                Ok(meta) => meta,
                Err(later) if matches!(error, Store::NotSupported { .. }) => return Err(later),
                Err(_) => return Err(error),
            };
            match first {
                _ if meta.size == 0 => Ok((meta, 0, Vec::new())),
                First::Head(_) => Err(error),
                First::Tail(len) => {
                    let range = meta.size.saturating_sub(len)..meta.size;
                    let result = ranged(store, key, GetRange::Bounded(range)).await?;
                    received(result, len).await
                }
            }
        }
    }
}

async fn ranged(store: &dyn ObjectStore, key: &Key, range: GetRange) -> object_store::Result<GetResult> {
    store.get_opts(key, GetOptions { range: Some(range), ..GetOptions::default() }).await
}

async fn received(result: GetResult, asked: u64) -> object_store::Result<Opened> {
    let (meta, range) = (result.meta.clone(), result.range.clone());
    // The range is what the server says: it must not be longer than what was asked for.
    let bytes = collect(result, asked.min(range.end.saturating_sub(range.start))).await?;
    if bytes.len() as u64 != range.end.saturating_sub(range.start) {
        return Err(object_store::Error::Generic {
            store: "remote",
            source: format!("the server sent {} bytes of {range:?}", bytes.len()).into(),
        });
    }
    Ok((meta, range.start, bytes))
}
