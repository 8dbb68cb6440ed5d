//! Reading much of a file that the system's cache has nothing of.
//!
//! Through the cache every byte costs a page that must be found and made, and a copy: with few
//! cores that, and not the device, is the limit. With `O_DIRECT` they come at the device's
//! speed, but none is cached for the next load. So a first load reads half in each mode, at
//! the same time. A file of which something is cached has been read before: then all goes
//! through the cache, and the load after that one finds the file there.

use crate::base::parallel::{self, End};
use crate::catalog::Storage;
use crate::error::Result;
use crate::read::{Job, Reader};
use crate::source::ReadMode;

/// Less is read soon enough by the usual mode. (case: `python/run.py`, copy cold as safetensors: at
/// 16 MB, and at 256 kB below, 0.7 times as fast)
const MIN_COLD_READ: u64 = 64 << 20;
/// Smaller pieces are not worth a request to the device each. (case: as above)
const LARGE: usize = 1 << 20;
/// Places where the cache is asked for the file. (unmeasured)
const PROBES: usize = 8;
/// Requests to the device at a time, besides those of the cache: more are no faster.
/// (case: figures in `docs/architecture.md`)
const REQUESTS: usize = 4;

impl Reader {
    /// Whether `jobs` are much of files that nothing is cached of.
    pub(crate) fn is_first_read(&self, jobs: &[Job<'_>]) -> bool {
        let large: Vec<_> = jobs.iter().filter(|job| is_large(job)).collect();
        let total: u64 = large.iter().map(|job| job.out.len() as u64).sum();
        let mut probes = large.iter().step_by((large.len() / PROBES).max(1));
        total >= MIN_COLD_READ && probes.all(|job| self.is_uncached(job))
    }

    /// Whether the middle of what a job reads is not in the system's cache. What is before it
    /// may be there because the file's header was read.
    fn is_uncached(&self, job: &Job<'_>) -> bool {
        let Storage::Plain(extent) = job.component.storage else { return false };
        let Ok(source) = self.catalog().sources.get(extent.source) else { return false };
        source.is_uncached(extent.offset + job.skip + job.out.len() as u64 / 2)
    }

    /// Works on all jobs, which are in the order of the file: on the first half through the
    /// cache, on the other half with `O_DIRECT`; the thread that finishes first helps the other.
    pub(crate) fn read_first(
        &self,
        threads: usize,
        jobs: Vec<Job<'_>>,
        work: impl Fn(Job<'_>, ReadMode) -> Result<()> + Sync,
    ) -> Result<()> {
        let total: usize = jobs.iter().map(|job| job.out.len()).sum();
        let ends = jobs.iter().scan(0, |sum, job| {
            *sum += job.out.len();
            Some(*sum)
        });
        let half = ends.take_while(|&sum| sum < total - total / 2).count() + 1;
        parallel::from_both_ends((threads, REQUESTS), jobs, half, |job, end| {
            let mode = if end == End::Back && is_large(&job) { ReadMode::Direct } else { ReadMode::Cached };
            work(job, mode)
        })
    }
}

fn is_large(job: &Job<'_>) -> bool {
    matches!(job.component.storage, Storage::Plain(_)) && job.out.len() >= LARGE
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::read::OpenOptions;
    use crate::source::{MemorySource, Source};
    use crate::{Checksum, Writer};

    /// A file in memory that claims to be on a device, and counts how it is read.
    #[derive(Debug)]
    struct Device {
        memory: MemorySource<Vec<u8>>,
        cached: bool,
        past_cache: AtomicU64,
        through_cache: AtomicU64,
    }

    impl Source for Device {
        fn len(&self) -> u64 {
            self.memory.len()
        }

        fn label(&self) -> &str {
            "device"
        }

        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.through_cache.fetch_add(out.len() as u64, Ordering::Relaxed);
            self.memory.read_at(offset, out)
        }

        fn mapped(&self) -> Result<&[u8]> {
            Err(crate::Error::unsupported("not mapped"))
        }

        fn is_uncached(&self, _: u64) -> bool {
            !self.cached
        }

        fn read_direct(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.past_cache.fetch_add(out.len() as u64, Ordering::Relaxed);
            self.memory.read_at(offset, out)
        }
    }

    fn file(checksum: Checksum, damage: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for (index, len) in [40 << 20, 1000, 5 << 20, 3 << 20, 30 << 20].into_iter().enumerate() {
            let data: Vec<u8> =
                (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            writer.add_with(&index.to_string(), &[len as u64], &data).checksum(checksum).write().unwrap();
        }
        writer.finish().unwrap();
        if damage {
            let near_the_end = bytes.len() - (10 << 20);
            bytes[near_the_end] ^= 1;
        }
        bytes
    }

    fn load(bytes: &[u8], cached: bool) -> (Result<Vec<Vec<u8>>>, u64, u64) {
        let device = Arc::new(Device {
            memory: MemorySource::new(bytes.to_vec()),
            cached,
            past_cache: AtomicU64::new(0),
            through_cache: AtomicU64::new(0),
        });
        let reader = OpenOptions::default().threads(2).open_source(device.clone()).unwrap();
        device.through_cache.store(0, Ordering::Relaxed);
        let sizes: Vec<_> = reader.objects().map(|(name, object)| (name, object.byte_len())).collect();
        let mut out: Vec<Vec<u8>> = sizes.iter().map(|(_, len)| vec![0; *len as usize]).collect();
        let requests = sizes.iter().zip(&mut out).map(|((name, _), out)| (*name, "data", &mut out[..]));
        let read = reader.read_many(requests.collect(), None);
        let [past, through] =
            [&device.past_cache, &device.through_cache].map(|count| count.load(Ordering::Relaxed));
        (read.map(|()| out), past, through)
    }

    #[test]
    fn at_most_half_of_a_first_read_goes_past_the_cache() {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            let bytes = file(checksum, false);
            let (usual, past, through) = load(&bytes, true);
            assert_eq!(past, 0, "what has been read before goes through the cache");
            let (first, past, all) = load(&bytes, false);
            assert!(usual.unwrap() == first.unwrap(), "{checksum:?}");
            assert_eq!(past + all, through);
            assert!(past <= through / 2, "{past} of {through}");
        }
    }

    #[test]
    fn a_first_read_compares_digests() {
        let bytes = file(Checksum::Crc32c, true);
        let error = load(&bytes, false).0.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Mismatch);
    }
}
