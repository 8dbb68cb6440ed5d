//! An object as a source of bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::pinned::{First, Object};
use super::{Location, Options};
use crate::error::{Error, Result};
use crate::format::index_at_tail;
use crate::source::{Access, Budget, Remote, Source, Staged, check_range, zeroed};

/// Bytes that the first request asks for: most headers and tails are shorter. (case: `constants.py`, `far_open`: half
/// takes 1.5 times as long for a zip archive of 4,000 tensors; twice 0.4 to 0.8 for headers that are longer, and brings
/// bytes for nothing elsewhere)
const FIRST_REQUEST: u64 = 256 << 10;
/// Parsers request a few bytes at a time: readahead starts with this many and doubles
/// when they go on where the last ones ended. (case: `constants.py`, `far_open_gguf`: the most
/// halved or doubled the same, 40 kB 1.7 times as long)
const MIN_READAHEAD: u64 = 64 << 10;
const MAX_READAHEAD: u64 = 2 << 20;
/// What parsing leaves behind is forgotten from this size on. (limit)
const MAX_KEPT: u64 = 64 << 20;

/// An object of a store or a web server, read by ranges.
#[derive(Debug)]
pub(crate) struct RemoteSource {
    object: Object,
    known: Mutex<Known>,
}

type Segments = BTreeMap<u64, Arc<Vec<u8>>>;
/// What a [`Staged`] holds.
type Held = Vec<Arc<Vec<u8>>>;

/// What is here already.
#[derive(Debug, Default)]
struct Known {
    /// What the first request brought.
    first: Segments,
    /// What parsers asked for since.
    parsed: Segments,
    parsed_len: u64,
    /// Staged bytes that are about to be decoded, while a caller holds them.
    staged: BTreeMap<u64, Weak<Vec<u8>>>,
    /// Whether a parser is at work, how far it gets ahead, and where it was last.
    parsing: bool,
    ahead: u64,
    last: u64,
}

impl Known {
    /// The segment that holds a position.
    fn at(&self, position: u64) -> Option<(u64, Arc<Vec<u8>>)> {
        let holds = |start: u64, bytes: &Vec<u8>| position - start < bytes.len() as u64;
        for segments in [&self.first, &self.parsed] {
            if let Some((start, bytes)) = segments.range(..=position).next_back()
                && holds(*start, bytes)
            {
                return Some((*start, Arc::clone(bytes)));
            }
        }
        let (start, bytes) = self.staged.range(..=position).next_back()?;
        let bytes = bytes.upgrade()?;
        holds(*start, &bytes).then_some((*start, bytes))
    }

    /// Copies the buffered prefix and suffix of a range; returns the missing middle.
    fn copy(&self, offset: u64, out: &mut [u8]) -> Range<usize> {
        let (mut from, mut to) = (0, out.len());
        while from < to
            && let Some((start, bytes)) = self.at(offset + from as u64)
        {
            let known = &bytes[(offset + from as u64 - start) as usize..];
            let len = known.len().min(to - from);
            out[from..from + len].copy_from_slice(&known[..len]);
            from += len;
        }
        while from < to
            && let Some((start, bytes)) = self.at(offset + to as u64 - 1)
        {
            let end = (offset + to as u64 - start) as usize;
            let len = end.min(to - from);
            out[to - len..to].copy_from_slice(&bytes[end - len..end]);
            to -= len;
        }
        from..to
    }

    /// Whether all of a range is known.
    fn holds(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.at(at) {
                Some((start, bytes)) => at = start + bytes.len() as u64,
                None => return false,
            }
        }
        true
    }

    fn keep(&mut self, start: u64, bytes: Vec<u8>) {
        if self.parsed_len > MAX_KEPT {
            self.parsed.clear();
            self.parsed_len = 0;
        }
        self.parsed_len += bytes.len() as u64;
        self.parsed.insert(start, Arc::new(bytes));
    }
}

impl RemoteSource {
    /// Opens an object with one request, for its first or its last bytes.
    pub(crate) fn open(location: &Location, options: &Options) -> Result<RemoteSource> {
        let tail = location.extension().is_some_and(|extension| index_at_tail(&extension));
        let first = if tail { First::Tail(FIRST_REQUEST) } else { First::Head(FIRST_REQUEST) };
        let (object, start, bytes) = Object::open(location, options, first)?;
        let mut known = Known::default();
        known.first.insert(start, Arc::new(bytes));
        Ok(RemoteSource { object, known: Mutex::new(known) })
    }

    /// An object of a known length, which is asked for only what is read of it. What it turns out to be
    /// with the first answer, it stays.
    pub(crate) fn sized(location: &Location, options: &Options, len: u64) -> Result<RemoteSource> {
        match Object::sized(location, options, len)? {
            Some(object) => Ok(RemoteSource { object, known: Mutex::default() }),
            None => RemoteSource::open(location, options),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What a parser that asks for `missing` is given.
    fn window(&self, missing: &Range<u64>) -> Range<u64> {
        let mut known = self.known();
        let near = missing.start.abs_diff(known.last) <= MIN_READAHEAD;
        known.ahead =
            if near { (known.ahead * 2).clamp(MIN_READAHEAD, MAX_READAHEAD) } else { MIN_READAHEAD };
        let end = self.object.len();
        let window = match end - missing.start <= MIN_READAHEAD {
            // Who looks at the end wants what leads up to it.
            true => end.saturating_sub(FIRST_REQUEST).min(missing.start)..end,
            false => missing.start..end.min(missing.end.max(missing.start + known.ahead)),
        };
        known.last = window.end;
        window
    }
}

impl Source for RemoteSource {
    fn len(&self) -> u64 {
        self.object.len()
    }

    fn label(&self) -> &str {
        &self.object.url
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(self.len(), offset, out.len() as u64).map_err(|error| error.in_file(self.label()))?;
        let known = self.known();
        if let Some((start, bytes)) = known.at(offset)
            && let Some(all) = bytes[(offset - start) as usize..].get(..out.len())
        {
            drop(known); // others are looking for theirs meanwhile
            out.copy_from_slice(all);
            return Ok(());
        }
        let (missing, parsing) = (known.copy(offset, out), known.parsing);
        drop(known);
        if missing.is_empty() {
            return Ok(());
        }
        let start = offset + missing.start as u64;
        let out = &mut out[missing];
        if !parsing {
            return self.object.fetch(vec![(start, out)], &mut |_| Ok(()));
        }
        if out.len() as u64 >= MAX_READAHEAD {
            return self.object.fetch_header(start, out);
        }
        let window = self.window(&(start..start + out.len() as u64));
        let mut bytes = zeroed(window.end - window.start)?;
        self.object.fetch_header(window.start, &mut bytes)?;
        let at = (start - window.start) as usize;
        out.copy_from_slice(&bytes[at..at + out.len()]);
        self.known().keep(window.start, bytes);
        Ok(())
    }

    fn mapped(&self) -> Result<&[u8]> {
        Err(Error::unsupported("a remote file cannot be mapped: read it instead of viewing it")
            .in_file(self.label()))
    }

    fn remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }
}

impl Remote for RemoteSource {
    fn budget(&self) -> Budget {
        Budget { connections: self.object.settings.connections, memory: self.object.settings.memory }
    }

    fn expect(&self, access: Access) {
        let mut known = self.known();
        known.parsing = access == Access::Headers;
        if access == Access::Data {
            known.parsed.clear();
            known.parsed_len = 0;
        }
    }

    fn holds(&self, range: Range<u64>) -> bool {
        self.known().holds(&range)
    }

    fn read_many(
        &self,
        requests: Vec<(u64, &mut [u8])>,
        done: &mut (dyn FnMut(u64) -> Result<()> + Send),
    ) -> Result<()> {
        let mut missing = Vec::with_capacity(requests.len());
        for (offset, out) in requests {
            check_range(self.len(), offset, out.len() as u64).map_err(|error| error.in_file(self.label()))?;
            let unknown = self.known().copy(offset, out);
            let copied = (out.len() - unknown.len()) as u64;
            if copied > 0 {
                done(copied)?;
            }
            if !unknown.is_empty() {
                missing.push((offset + unknown.start as u64, &mut out[unknown]));
            }
        }
        self.object.fetch(missing, done)
    }

    fn stage(&self, ranges: &[Range<u64>], before: Option<Staged>) -> Result<Staged> {
        let before: Held = before.and_then(Staged::into_held).unwrap_or_default();
        // A reader that has one of them still gets its bytes; the memory is not used again then.
        let mut buffers = self.buffers(ranges, before.into_iter().filter_map(Arc::into_inner).collect())?;
        let requests = buffers.iter_mut().map(|(start, bytes)| (*start, &mut bytes[..])).collect();
        self.object.fetch(requests, &mut |_| Ok(()))?;
        let mut known = self.known();
        known.staged.retain(|_, bytes| bytes.strong_count() > 0);
        let held: Held = buffers
            .into_iter()
            .map(|(start, bytes)| {
                let bytes = Arc::new(bytes);
                known.staged.insert(start, Arc::downgrade(&bytes));
                bytes
            })
            .collect();
        Ok(Staged::new(held))
    }

    fn fetch_headers(&self, ranges: &[Range<u64>]) -> Result<()> {
        let mut buffers = self.buffers(ranges, Vec::new())?;
        let requests = buffers.iter_mut().map(|(start, bytes)| (*start, &mut bytes[..])).collect();
        self.object.fetch(requests, &mut |_| Ok(()))?;
        let mut known = self.known();
        for (start, bytes) in buffers {
            known.keep(start, bytes);
        }
        Ok(())
    }
}

impl RemoteSource {
    /// Memory for those of some ranges that are not known: spare one, where it is about as long.
    fn buffers(&self, ranges: &[Range<u64>], mut spare: Vec<Vec<u8>>) -> Result<Vec<(u64, Vec<u8>)>> {
        let known = self.known();
        let clipped = ranges.iter().map(|range| range.start.min(self.len())..range.end.min(self.len()));
        let wanted = merged(clipped.filter(|range| range.start < range.end && !known.holds(range)).collect());
        let mut memory = |len: u64| {
            let fits = |spare: &Vec<u8>| (len..=len + len / 4).contains(&(spare.capacity() as u64));
            match spare.iter().position(fits) {
                Some(index) => {
                    let mut bytes = spare.swap_remove(index);
                    bytes.resize(len as usize, 0);
                    Ok(bytes)
                }
                None => zeroed(len),
            }
        };
        wanted.into_iter().map(|range| Ok((range.start, memory(range.end - range.start)?))).collect()
    }
}

/// The same ranges, sorted, those that touch or overlap as one.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_not_asked_for_again() {
        let mut known = Known::default();
        known.first.insert(0, Arc::new((0..10).collect()));
        known.keep(20, (20..30).collect());
        let held = Arc::new((30..40).collect::<Vec<u8>>());
        known.staged.insert(30, Arc::downgrade(&held));
        let mut out = [0; 40];
        assert_eq!(known.copy(0, &mut out), 10..20);
        assert_eq!(out[..10], (0..10).collect::<Vec<u8>>());
        assert_eq!(out[20..], (20..40).collect::<Vec<u8>>());
        assert!(known.copy(25, &mut out[..10]).is_empty());
        assert_eq!(out[..10], (25..35).collect::<Vec<u8>>());
        assert_eq!(known.copy(12, &mut out[..5]), 0..5);
        assert!(known.holds(&(20..40)) && !known.holds(&(5..25)));
        assert_eq!(merged(vec![5..9, 0..3, 3..4, 6..7, 20..21]), [0..4, 5..9, 20..21]);
        drop(held);
        assert!(!known.holds(&(20..40)), "what was staged is gone with who held it");
    }
}
