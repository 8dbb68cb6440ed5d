//! Where tensors lie, and advice to the page cache about them.

use std::collections::BTreeMap;

use crate::catalog::Extent;
use crate::error::Result;
use crate::read::Reader;

/// Alignments are reported up to this one, the size of a huge page. (structural)
const LARGEST_ALIGNMENT: u64 = 2 << 20;

/// A range of a file that holds a component, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Location<'r> {
    /// The component, `data` for dense tensors.
    pub role: &'r str,
    /// The file, or the URL.
    pub file: &'r str,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file.
    pub len: u64,
    /// How they are stored: `raw`, `zstd`, `z4ai`, …
    pub encoding: &'r str,
    /// The largest power of two that divides the offset, at most 2 MiB.
    pub alignment: u64,
}

impl Reader {
    /// Where a tensor's bytes lie: a range of a file for each component, or several where chunks or
    /// shards hold one together. Components that a format keeps in its header have none.
    ///
    /// Only raw bytes are elements as they are in memory; others have to be decoded.
    pub fn locate(&self, name: &str) -> Result<Vec<Location<'_>>> {
        let sources = &self.catalog().sources;
        let mut locations = Vec::new();
        for (role, component) in &self.get(name)?.components {
            for extent in component.storage.extents(sources).map_err(|error| self.at(name, error))? {
                locations.push(Location {
                    role,
                    file: sources.label(extent.source),
                    offset: extent.offset,
                    len: extent.len,
                    encoding: component.encoding(),
                    alignment: match extent.offset {
                        0 => LARGEST_ALIGNMENT,
                        offset => LARGEST_ALIGNMENT.min(1 << offset.trailing_zeros()),
                    },
                });
            }
        }
        Ok(locations)
    }

    /// Asks the system to read these tensors into the page cache, without waiting for it
    /// (`POSIX_FADV_WILLNEED`). Returns how many bytes of files that is; remote files are left out.
    pub fn prefetch<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<u64> {
        let mut total = 0u64;
        for (source, ranges) in self.local_ranges(names)? {
            total = ranges.iter().fold(total, |sum, (_, len)| sum.saturating_add(*len));
            self.catalog().sources.get(source)?.will_read(&ranges);
        }
        Ok(total)
    }

    /// Asks the system to drop these tensors from the page cache. Nothing is lost: what is used again
    /// is read again. Pages that other tensors share, that other programs use, or that are not
    /// written to the disk yet stay. Returns how many bytes of files were named.
    pub fn evict<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<u64> {
        let mut total = 0u64;
        for (source, ranges) in self.local_ranges(names)? {
            let source = self.catalog().sources.get(source)?;
            for (offset, len) in ranges {
                total = total.saturating_add(len);
                source.evict(offset, len);
            }
        }
        Ok(total)
    }

    /// The ranges of these tensors in each file on this machine: ascending, and joined where they
    /// touch.
    fn local_ranges<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<BTreeMap<u32, Vec<(u64, u64)>>> {
        let mut extents = Vec::new();
        for name in names {
            for (_, component) in &self.get(name)?.components {
                let found = component.storage.extents(&self.catalog().sources);
                extents.extend(found.map_err(|error| self.at(name, error))?);
            }
        }
        extents.retain(|extent| extent.len > 0);
        extents.sort_unstable();
        let mut ranges: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for Extent { source, offset, len } in extents {
            if self.catalog().sources.get(source)?.remote().is_some() {
                continue;
            }
            let ranges = ranges.entry(source).or_default();
            match ranges.last_mut() {
                Some((start, before)) if offset <= start.saturating_add(*before) => {
                    let end = offset.saturating_add(len).max(start.saturating_add(*before));
                    *before = end - *start;
                }
                _ => ranges.push((offset, len)),
            }
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{FileSource, MapMode, Source};
    use crate::{Compression, Writer};

    fn model(path: &std::path::Path) {
        let numbers: Vec<u32> = (0..1 << 20).map(|n: u32| n.wrapping_mul(2_654_435_761)).collect();
        let mut writer = Writer::create_durable(path).unwrap();
        writer.add("a", &[1 << 20], &numbers).unwrap();
        writer
            .add_with("b", &[1 << 20], &numbers)
            .compress(Compression::Z4ai(crate::Effort::Fast))
            .write()
            .unwrap();
        writer
            .add_with("c", &[1 << 20], &vec![7u32; 1 << 20])
            .compress(Compression::Zstd(1))
            .write()
            .unwrap();
        writer.finish().unwrap();
    }

    #[test]
    fn locations_are_where_the_bytes_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.zt");
        model(&path);
        let reader = Reader::open(&path).unwrap();
        let file = std::fs::read(&path).unwrap();
        let raw = &reader.locate("a").unwrap()[0];
        assert_eq!((raw.role, raw.encoding, raw.len), ("data", "raw", 4 << 20));
        assert_eq!(raw.file, path.to_str().unwrap());
        assert_eq!(raw.offset % raw.alignment, 0);
        assert!(raw.alignment >= 64);
        assert_eq!(&file[raw.offset as usize..][..raw.len as usize], reader.view("a").unwrap());
        let frame = &reader.locate("c").unwrap()[0];
        assert_eq!(frame.encoding, "zstd");
        let decoded = zstd::decode_all(&file[frame.offset as usize..][..frame.len as usize]).unwrap();
        assert_eq!(decoded, reader.read("c").unwrap());
        assert!(reader.locate("d").is_err());
    }

    /// Whether this file system drops clean pages when asked: those in memory have nowhere to go.
    fn drops_pages(path: &std::path::Path) -> bool {
        let source = FileSource::open(path, MapMode::Never).unwrap();
        source.evict(0, source.len());
        source.is_uncached(source.len() / 2)
    }

    #[test]
    fn evicted_tensors_leave_the_cache_and_prefetched_ones_return() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("m.zt");
        model(&path);
        if !drops_pages(&path) {
            eprintln!("skipped: this file system keeps its pages");
            return;
        }
        let reader = Reader::open(&path).unwrap();
        let source = reader.catalog().sources.get(0).unwrap();
        let place = reader.locate("a").unwrap()[0].clone();
        let middle = place.offset + place.len / 2;
        for mapped in [false, true] {
            let bytes = if mapped { reader.view("a").unwrap().to_vec() } else { reader.read("a").unwrap() };
            assert!(!source.is_uncached(middle), "{mapped}");
            assert_eq!(reader.evict(["a"]).unwrap(), 4 << 20);
            assert!(source.is_uncached(middle), "{mapped}");
            assert_eq!(reader.read("a").unwrap(), bytes, "what is evicted is read again");
        }
        reader.evict(["a"]).unwrap();
        assert_eq!(reader.prefetch(["a", "a"]).unwrap(), 4 << 20);
        assert!(reader.prefetch(["nothing"]).is_err());
        assert!(reader.evict(["nothing"]).is_err());
    }

    #[test]
    fn what_is_written_to_a_private_view_survives_eviction() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("m.zt");
        model(&path);
        let reader = Reader::open(&path).unwrap();
        let region = reader.catalog().sources.get(0).unwrap().copy_on_write().unwrap();
        let place = reader.locate("a").unwrap()[0].clone();
        // SAFETY: the tensor lies inside the mapping, which this test alone uses.
        let view = unsafe {
            std::slice::from_raw_parts_mut(region.ptr.add(place.offset as usize), place.len as usize)
        };
        view[5000] = 77;
        reader.evict(["a"]).unwrap();
        assert_eq!(view[5000], 77);
        assert_eq!(view[9000], reader.view("a").unwrap()[9000]);
    }
}
