//! Batches from sources where every read is a request: few of them, several at a
//! time, and what was fetched for decoding within a limit.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::base::parallel;
use crate::catalog::{Component, Storage};
use crate::error::{Error, Result};
use crate::progress::{Observer, advance};
use crate::read::{Job, Reader, compare, hasher};
use crate::source::{Remote, Staged};

/// Larger tensors are requests of their own anyway. (structural: the largest request)
const SMALL: u64 = 8 << 20;

/// Ranges by source.
type Ranges = BTreeMap<u32, Vec<Range<u64>>>;

impl Reader {
    /// Whether a component's bytes come from a source where every read is a request.
    pub(crate) fn is_remote(&self, component: &Component) -> bool {
        component.extent().is_some_and(|extent| self.remote_source(extent.source).is_some())
    }

    fn remote_source(&self, source: u32) -> Option<&dyn Remote> {
        // One that cannot be opened says so when it is read.
        self.catalog().sources.get(source).ok()?.remote()
    }

    /// How many requests for a component's bytes may be under way; 1 if they are on this machine.
    pub(crate) fn requests_at_a_time(&self, component: &Component) -> usize {
        let remote = component.extent().and_then(|extent| self.remote_source(extent.source));
        remote.map_or(1, |remote| remote.budget().connections)
    }

    /// Fills buffers from remote sources.
    pub(crate) fn read_remote(&self, jobs: Vec<Job<'_>>, observer: Option<&dyn Observer>) -> Result<()> {
        let (plain, encoded) =
            jobs.into_iter().partition(|job| matches!(job.component.storage, Storage::Plain(_)));
        self.read_plain(plain, observer)?;
        self.read_encoded(encoded, observer)
    }

    /// Bytes that lie there as they are go straight to their places.
    fn read_plain(&self, mut jobs: Vec<Job<'_>>, observer: Option<&dyn Observer>) -> Result<()> {
        let mut requests: BTreeMap<u32, Vec<(u64, &mut [u8])>> = BTreeMap::new();
        for job in &mut jobs {
            if let Storage::Plain(extent) = job.component.storage {
                requests.entry(extent.source).or_default().push((extent.offset + job.skip, &mut *job.out));
            }
        }
        for (source, requests) in requests {
            let remote =
                self.remote_source(source).ok_or_else(|| Error::invalid("this source is not remote"))?;
            remote.read_many(requests, &mut |bytes| advance(observer, bytes))?;
        }
        let digests = jobs.iter().filter_map(|job| Some((job, self.digest(job.component)?))).collect();
        parallel::for_each(self.options().threads, digests, |(job, digest)| {
            let mut hasher = hasher(digest);
            hasher.update(job.out);
            compare(hasher, digest).map_err(|error| self.at(job.name, error))
        })
    }

    /// Encoded bytes are fetched for several tensors at a time, the next while these are decoded.
    fn read_encoded(&self, jobs: Vec<Job<'_>>, observer: Option<&dyn Observer>) -> Result<()> {
        let Some(limit) = jobs.iter().filter_map(|job| self.remote_share(job.component)).min() else {
            return Ok(());
        };
        let mut batches: Vec<Vec<Job<'_>>> = Vec::new();
        let mut held = u64::MAX;
        for job in jobs {
            let len = job.component.stored_len();
            if held.saturating_add(len) > limit {
                batches.push(Vec::new());
                held = 0;
            }
            held += len;
            if let Some(batch) = batches.last_mut() {
                batch.push(job);
            }
        }
        let ranges: Vec<Ranges> = batches.iter().map(|batch| self.ranges(batch, limit)).collect();
        std::thread::scope(|scope| {
            let mut staged = match ranges.first() {
                Some(first) => self.fetch(first, Vec::new())?,
                None => return Ok(()),
            };
            let mut decoded = Vec::new();
            for (index, batch) in batches.into_iter().enumerate() {
                let next = ranges.get(index + 1).map(|next| {
                    let before = std::mem::take(&mut decoded);
                    std::thread::Builder::new().spawn_scoped(scope, move || self.fetch(next, before))
                });
                let result = self.run_all(batch, observer);
                decoded = std::mem::take(&mut staged);
                staged = match next {
                    None => Vec::new(),
                    Some(Ok(thread)) => {
                        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?
                    }
                    // No thread to be had: each is then fetched when it is decoded.
                    Some(Err(_)) => Vec::new(),
                };
                result?;
            }
            Ok(())
        })
    }

    /// What a batch may hold: two are there at a time, and a decoder holds a copy of its part.
    pub(super) fn remote_share(&self, component: &Component) -> Option<u64> {
        Some(self.remote_source(component.extent()?.source)?.budget().memory / 4)
    }

    /// What to fetch for a batch. A tensor that alone is more than its share is fetched by its
    /// decoder, which has to hold it anyway.
    fn ranges(&self, batch: &[Job<'_>], limit: u64) -> Ranges {
        let mut ranges = Ranges::new();
        for extent in
            batch.iter().filter_map(|job| job.component.extent()).filter(|extent| extent.len <= limit)
        {
            let range = extent.offset..extent.offset + extent.len;
            ranges.entry(extent.source).or_default().push(range);
        }
        ranges
    }

    /// Fetches, with few requests, what reading these tensors one after another is going to
    /// need, as remote as memory for it is allowed. Nothing happens for files on this machine.
    pub fn stage(&self, names: &[&str]) -> Result<Vec<Staged>> {
        let mut ranges = Ranges::new();
        let mut left = u64::MAX;
        for name in names {
            for (_, component) in &self.get(name)?.components {
                let (Some(extent), Some(share)) = (component.extent(), self.remote_share(component)) else {
                    continue;
                };
                left = left.min(share);
                if extent.len <= left && extent.len <= SMALL {
                    left -= extent.len;
                    let range = extent.offset..extent.offset + extent.len;
                    ranges.entry(extent.source).or_default().push(range);
                }
            }
        }
        self.fetch(&ranges, Vec::new())
    }

    /// Fetches ranges, into memory of what was fetched `before`.
    fn fetch(&self, ranges: &Ranges, before: Vec<Staged>) -> Result<Vec<Staged>> {
        let remote =
            ranges.iter().filter_map(|(source, ranges)| Some((self.remote_source(*source)?, ranges)));
        let mut before = before.into_iter();
        remote.map(|(remote, ranges)| remote.stage(ranges, before.next())).collect()
    }
}
