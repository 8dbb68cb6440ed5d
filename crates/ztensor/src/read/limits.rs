//! Limits on decoded sizes: how much memory and work a call may spend on what a file declares.
//!
//! A few stored bytes can stand for any number of decoded ones: a frame of equal bytes, a dataset of
//! fill values, a view that repeats one element. Every read adds up what it is about to decode and
//! compares the sum with the limits before it allocates or decodes anything. Sums are per call.

use std::collections::HashSet;
use std::ops::Range;

use crate::catalog::{Component, Storage};
use crate::error::{Error, Result};
use crate::read::Reader;

/// How much a call may decode. The default has room for every file that holds mostly data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest component that is read or decoded, in bytes; no limit by default.
    pub max_component: u64,
    /// Bytes that one call may decode in all. `None` is the larger of [`Limits::FLOOR`] and
    /// [`Limits::RATIO`] times the size of the file. Raw bytes do not count, unless tensors
    /// overlap so that they are together longer than the file.
    pub max_total: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_component: u64::MAX, max_total: None }
    }
}

impl Limits {
    /// By default a call may decode this many times the size of the file. (limit)
    pub const RATIO: u64 = 1000;
    /// By default a call may decode this many bytes, however small the file is. (limit)
    pub const FLOOR: u64 = 4 << 30;
    /// No limit at all, for files that are trusted.
    pub const NONE: Limits = Limits { max_component: u64::MAX, max_total: Some(u64::MAX) };

    /// Refuses components of more bytes than this.
    pub fn max_component(mut self, bytes: u64) -> Self {
        self.max_component = bytes;
        self
    }

    /// Refuses to decode more bytes than this in one call, whatever the size of the file.
    pub fn max_total(mut self, bytes: u64) -> Self {
        self.max_total = Some(bytes);
        self
    }

    /// Refuses a component of `len` bytes if that is too many.
    pub fn check_component(&self, len: u64) -> Result<()> {
        if len <= self.max_component {
            return Ok(());
        }
        Err(Error::limit(format!(
            "it has {len} bytes, more than the limit of {} for one tensor \
             (max_bytes in Python, --max-bytes on the command line, OpenOptions::max_component in Rust)",
            self.max_component
        )))
    }

    /// Refuses to decode `decoded` bytes from a file of `stored` if those are too many.
    pub fn check_total(&self, decoded: u64, stored: u64) -> Result<()> {
        let most = self.most(stored);
        if decoded <= most {
            return Ok(());
        }
        let why = match self.max_total {
            Some(_) => String::new(),
            None => format!(", far more than the {stored} bytes of the file suggest"),
        };
        Err(Error::limit(format!(
            "{decoded} bytes are to be decoded in one call{why}: the limit is {most}; raise it if the \
             file is trusted (max_total_bytes in Python, --max-total-bytes on the command line, \
             OpenOptions::max_total in Rust)"
        )))
    }

    /// Both checks, for a file that is decoded as one piece.
    pub fn check(&self, decoded: u64, stored: u64) -> Result<()> {
        self.check_component(decoded)?;
        self.check_total(decoded, stored)
    }

    /// Bytes that a call may decode from a file of `stored` bytes.
    pub fn most(&self, stored: u64) -> u64 {
        self.max_total.unwrap_or_else(|| Self::FLOOR.max(stored.saturating_mul(Self::RATIO)))
    }
}

/// What a call is about to decode, added up.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    /// Bytes that decoders produce.
    decoded: u64,
    /// Bytes that are copied as they are.
    raw: u64,
}

impl Charge {
    /// Adds the cost of bytes `range` of a component.
    pub(crate) fn add(&mut self, component: &Component, range: &Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        match &component.storage {
            Storage::Encoded(decoder) => {
                self.decoded = self.decoded.saturating_add(decoder.work(range).max(len));
            }
            Storage::Plain(_) | Storage::Inline(_) => self.raw = self.raw.saturating_add(len),
        }
    }

    /// Compares the sum with the limits of a reader.
    pub(crate) fn check(&self, reader: &Reader) -> Result<()> {
        let limits = &reader.options().limits;
        let everything = self.decoded.saturating_add(self.raw);
        // Most calls need not know how large the file is.
        if everything <= limits.max_total.unwrap_or(Limits::FLOOR) {
            return Ok(());
        }
        let sources = &reader.catalog().sources;
        let stored = sources.open_len();
        // Raw bytes are in the file, each of them once, unless tensors overlap.
        let repeated = self.raw.saturating_sub(stored);
        limits
            .check_total(self.decoded.saturating_add(repeated), stored)
            .map_err(|error| error.in_file(sources.label(0)))
    }
}

impl Reader {
    /// Refuses these tensors if reading all of them at once would exceed the limits that the file was
    /// opened with. Nothing is read. Calls that read several tensors do this themselves; it is for
    /// programs that read them one at a time, or allocate before they read. Tensors that are tied to
    /// each other count once.
    pub fn check_limits<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let mut charge = Charge::default();
        let mut seen = HashSet::<_, foldhash::fast::RandomState>::default();
        for name in names {
            for (_, component) in &self.get(name)?.components {
                self.check_limit(name, component.len)?;
                self.touch(component);
                if component.content_key().is_some_and(|key| !seen.insert(key)) {
                    continue;
                }
                charge.add(component, &(0..component.len));
            }
        }
        charge.check(self)
    }

    /// Refuses bytes `range` of a dense tensor if reading them would exceed the limits.
    pub fn check_range_limits(&self, name: &str, range: Range<u64>) -> Result<()> {
        let component = self.dense(name)?;
        self.check_limit(name, range.end.saturating_sub(range.start))?;
        self.touch(component);
        let mut charge = Charge::default();
        charge.add(component, &range);
        charge.check(self).map_err(|error| self.at(name, error))
    }

    /// Opens the source that a component is in, so that its size is known.
    pub(crate) fn touch(&self, component: &Component) {
        if let Some(extent) = component.extent() {
            // One that cannot be opened says so when it is read.
            let _ = self.catalog().sources.get(extent.source);
        }
    }

    pub(crate) fn check_limit(&self, name: &str, len: u64) -> Result<()> {
        self.options().limits.check_component(len).map_err(|error| self.at(name, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_larger_of_a_floor_and_a_ratio() {
        let limits = Limits::default();
        assert!(limits.check(4 << 30, 0).is_ok());
        assert!(limits.check((4 << 30) + 1, 4_000_000).is_err());
        assert!(limits.check(5_000_000_000, 5_000_000).is_ok());
        assert!(limits.check(5_000_000_001, 5_000_000).is_err());
        assert!(limits.check(u64::MAX, u64::MAX).is_ok(), "the ratio saturates");
        assert!(Limits::NONE.check(u64::MAX, 0).is_ok());
    }

    #[test]
    fn refusals_name_what_raises_the_limit() {
        let total = Limits::default().max_total(10).check(11, 1 << 40).unwrap_err();
        assert_eq!(total.kind(), crate::ErrorKind::Limit);
        for option in ["max_total_bytes", "--max-total-bytes", "OpenOptions::max_total"] {
            assert!(total.to_string().contains(option), "{total}");
        }
        let one = Limits::default().max_component(10).check(11, 1 << 40).unwrap_err();
        for option in ["max_bytes", "--max-bytes", "OpenOptions::max_component"] {
            assert!(one.to_string().contains(option), "{one}");
        }
    }
}
