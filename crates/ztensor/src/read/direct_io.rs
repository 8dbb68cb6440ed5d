//! Reading much of a file that the system's cache has nothing of.
//!
//! Through the cache every byte costs a page that must be found and made, and a copy: with few
//! cores that, and not the device, is the limit. With `O_DIRECT` they come at the device's
//! speed, but none is cached for the next load. So a first load reads in both modes at the same
//! time: one thread through the cache from the front of the file, a few requests to the device from its
//! back. A file of which something is cached has been read before: then all goes through the cache, and
//! the load after that one finds the file there.

use super::reader::READ_PIECE;
use crate::base::parallel::{self, End};
use crate::catalog::{Extent, Storage};
use crate::error::Result;
use crate::read::{Job, Reader};
use crate::source::{ReadMode, Source};

/// Less is read soon enough by the usual mode, after which all of it is cached. (case: `python/run.py`, copy cold
/// as safetensors: 68 MB take 37 ms through the cache and 44 ms in both modes; 500 MB, by the figures in
/// `docs/architecture.md`, 1.6 times as long through the cache)
const MIN_COLD_READ: u64 = 128 << 20;
/// Smaller pieces are not worth a request to the device each. (case: as above; at 256 kB
/// 0.7 times as fast)
const LARGE: usize = 1 << 20;
/// Bytes of one request for several tensors, at most: a piece of a large one, and small ones beside it.
/// (structural)
const MAX_SPAN: u64 = (READ_PIECE + LARGE) as u64;
/// Bytes between two tensors that are read by one request: padding. (structural)
const MAX_BETWEEN: u64 = 4096;
/// Places where the cache is asked for the file. (flat: `constants.py`, `cold_load`)
const PROBES: usize = 8;
/// Bytes at both ends of a file where the cache is not asked: opening read the headers there, and the kernel
/// read ahead of them. (structural: several times the usual readahead)
const NEAR_ENDS: u64 = 1 << 20;
/// Requests to the device at a time, besides those of the cache: more are no faster.
/// (case: figures in `docs/architecture.md`)
const REQUESTS: usize = 4;
/// Threads that read through the cache meanwhile: a second one takes the processor from the requests, 1.2 to 1.4
/// times as long. (case: figures in `docs/architecture.md`)
const THROUGH_CACHE: usize = 1;
/// At least one of this many bytes goes through the cache. Half of them made large files wait for it, 1.8 to 2
/// times as long; a quarter costs 3 %. (case: a bare program, as those figures)
const MIN_CACHED: usize = 4;

impl Reader {
    /// Whether `jobs` are much of files that nothing is cached of.
    pub(crate) fn is_first_read(&self, jobs: &[Job<'_>]) -> bool {
        let direct: Vec<_> = jobs.iter().filter(|job| is_large(job) || self.joins(job)).collect();
        let total: u64 = direct.iter().map(|job| job.out.len() as u64).sum();
        let asked: Vec<_> = direct.iter().filter_map(|job| self.away_from_ends(job)).collect();
        let mut probes = asked.iter().step_by((asked.len() / PROBES).max(1));
        total >= MIN_COLD_READ && !asked.is_empty() && probes.all(|(source, at)| source.is_uncached(*at))
    }

    /// Whether a job can be read together with its neighbours: nothing is computed of its bytes.
    fn joins(&self, job: &Job<'_>) -> bool {
        matches!(job.component.storage, Storage::Plain(_)) && self.digest(job.component).is_none()
    }

    /// Jobs in the order of the file, neighbours that can be read by one request together.
    fn spans<'a>(&self, jobs: Vec<Job<'a>>) -> Vec<Vec<Job<'a>>> {
        let mut spans: Vec<Vec<Job<'_>>> = Vec::new();
        let mut last: Option<Extent> = None;
        for job in jobs {
            let place = place(&job).filter(|_| self.joins(&job));
            let joined = last.zip(place).and_then(|(last, next)| join(last, next));
            match (joined, spans.last_mut()) {
                (Some(_), Some(span)) => span.push(job),
                _ => spans.push(vec![job]),
            }
            last = joined.or(place);
        }
        spans
    }

    /// Reads neighbours with one request to the device.
    fn read_neighbours(&self, jobs: &mut [Job<'_>]) -> Result<()> {
        let Some(first) = jobs.first().and_then(place) else { return Ok(()) };
        let source = self.catalog().sources.get(first.source)?;
        let mut parts: Vec<(u64, &mut [u8])> = Vec::with_capacity(jobs.len());
        for job in jobs {
            if let Some(place) = place(job) {
                parts.push((place.offset, job.out));
            }
        }
        source.read_direct_all(&mut parts)
    }

    /// The middle of what a job reads, if it is not near an end of its file.
    fn away_from_ends(&self, job: &Job<'_>) -> Option<(&dyn Source, u64)> {
        let place = place(job)?;
        let source = self.catalog().sources.get(place.source).ok()?;
        let middle = place.offset + place.len / 2;
        (NEAR_ENDS..source.len().saturating_sub(NEAR_ENDS)).contains(&middle).then_some((&**source, middle))
    }

    /// Works on all jobs, which are in the order of the file: from the front through the cache, from the
    /// back with `O_DIRECT`, until they meet.
    pub(crate) fn read_first(
        &self,
        jobs: Vec<Job<'_>>,
        work: impl Fn(Job<'_>, ReadMode) -> Result<()> + Sync,
        done: impl Fn(u64) -> Result<()> + Sync,
    ) -> Result<()> {
        let spans = self.spans(jobs);
        let len = |span: &Vec<Job<'_>>| span.iter().map(|job| job.out.len()).sum::<usize>();
        let total: usize = spans.iter().map(len).sum();
        let ends = spans.iter().scan(0, |sum, span| {
            *sum += len(span);
            Some(*sum)
        });
        let cached = ends.take_while(|&sum| sum < total / MIN_CACHED).count() + 1;
        parallel::from_both_ends((THROUGH_CACHE, REQUESTS), spans, cached, |mut span, end| {
            let direct = end == End::Back;
            if direct && len(&span) >= LARGE && span.len() > 1 {
                self.read_neighbours(&mut span)?;
                return span.iter().try_for_each(|job| done(job.out.len() as u64));
            }
            span.into_iter().try_for_each(|job| {
                let mode = if direct && is_large(&job) { ReadMode::Direct } else { ReadMode::Cached };
                work(job, mode)
            })
        })
    }
}

/// Where the bytes of a plain job lie.
fn place(job: &Job<'_>) -> Option<Extent> {
    let Storage::Plain(extent) = job.component.storage else { return None };
    Some(Extent { offset: extent.offset + job.skip, len: job.out.len() as u64, ..extent })
}

/// Both extents as one, if they are neighbours, one of them is too small for a request of its own, and
/// they are few enough bytes.
fn join(first: Extent, second: Extent) -> Option<Extent> {
    let end = first.offset + first.len;
    let between = second.offset.checked_sub(end)?;
    let len = second.offset + second.len - first.offset;
    let small = first.len.min(second.len) < LARGE as u64;
    let joins = first.source == second.source && between <= MAX_BETWEEN && small && len <= MAX_SPAN;
    joins.then_some(Extent { len, ..first })
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
    use crate::source::MemorySource;
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

        fn is_uncached(&self, offset: u64) -> bool {
            // Reading the headers also cached what is near them.
            let readahead = 128 << 10;
            !self.cached && (readahead..self.len() - readahead).contains(&offset)
        }

        fn read_direct(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.past_cache.fetch_add(out.len() as u64, Ordering::Relaxed);
            self.memory.read_at(offset, out)
        }
    }

    fn file(checksum: Checksum, damage: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for (index, len) in [80 << 20, 1000, 5 << 20, 3 << 20, 60 << 20].into_iter().enumerate() {
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
    fn at_least_a_quarter_of_a_first_read_goes_through_the_cache() {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            let bytes = file(checksum, false);
            let (usual, past, through) = load(&bytes, true);
            assert_eq!(past, 0, "what has been read before goes through the cache");
            let (first, past, all) = load(&bytes, false);
            assert!(usual.unwrap() == first.unwrap(), "{checksum:?}");
            assert_eq!(past + all, through);
            assert!(past > 0 && all >= through / 4, "{past} of {through}");
        }
    }

    #[test]
    fn small_neighbours_are_read_together() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        for index in 0..720u32 {
            let data: Vec<u8> = (0..200_001u32)
                .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(index) >> 24) as u8)
                .collect();
            let (name, len) = (index.to_string(), data.len() as u64);
            writer.add_with(&name, &[len], &data).checksum(Checksum::None).write().unwrap();
        }
        writer.finish().unwrap();
        let (usual, past, through) = load(&bytes, true);
        assert_eq!(past, 0);
        let (first, past, all) = load(&bytes, false);
        assert!(usual.unwrap() == first.unwrap());
        // Padding between tensors is read, too.
        assert!(past > through / 4 && past + all <= through + 720 * 64, "{past} and {all} of {through}");
    }

    #[test]
    fn a_first_read_compares_digests() {
        let bytes = file(Checksum::Crc32c, true);
        let error = load(&bytes, false).0.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Mismatch);
    }
}
