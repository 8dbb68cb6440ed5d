use std::ops::Range;

use crate::catalog::{Component, Decode, Extent, Storage};
use crate::error::{Error, Result};
use crate::read::Runs;
use crate::source::{Sources, zeroed};

/// A dense tensor that is stored as several boxes, each a component of its own.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// Where each box lies in the tensor, and what it is stored as. Together they cover the tensor.
    boxes: Vec<(Runs, Component)>,
}

impl Assembled {
    /// `chunks` are offsets, sizes and data; `item` is the bytes of one element.
    pub(crate) fn new(
        item: u64,
        shape: &[u64],
        chunks: Vec<(Vec<u64>, Vec<u64>, Component)>,
    ) -> Result<Assembled> {
        let mut boxes = Vec::with_capacity(chunks.len());
        for (offsets, sizes, data) in chunks {
            let runs = Runs::new(item, shape, &offsets, &sizes)
                .map_err(|error| Error::corrupt("distributed.chunk", error.to_string()))?;
            boxes.push((runs, data));
        }
        Ok(Assembled { boxes })
    }
}

impl Decode for Assembled {
    fn encoding(&self) -> &str {
        // What the chunks are; those of one tensor are written alike.
        self.boxes.first().map_or("raw", |(_, component)| component.encoding())
    }

    fn stored_len(&self) -> u64 {
        self.boxes.iter().map(|(_, component)| component.stored_len()).fold(0, u64::saturating_add)
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn extents(&self, sources: &Sources) -> Result<Vec<Extent>> {
        let mut all = Vec::new();
        for (_, component) in &self.boxes {
            all.extend(component.storage.extents(sources)?);
        }
        Ok(all)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let mut scratch = Vec::new();
        for (runs, component) in &self.boxes {
            let (len, overlaps) =
                (runs.len(), |start: u64| start < range.end && start + runs.len() > range.start);
            // Runs follow each other in the box in the order of the tensor.
            let touched: Vec<u64> = (0..runs.count()).filter(|run| overlaps(runs.start(*run))).collect();
            let (Some(first), Some(last)) = (touched.first(), touched.last()) else { continue };
            let stored = first * len..(last + 1) * len;
            scratch.clear();
            if scratch.capacity() as u64 >= stored.end - stored.start {
                scratch.resize((stored.end - stored.start) as usize, 0);
            } else {
                scratch = zeroed(stored.end - stored.start)?;
            }
            component.storage.read(sources, stored.clone(), &mut scratch, threads)?;
            for run in touched {
                let place = runs.start(run);
                let (from, to) = (place.max(range.start), (place + len).min(range.end));
                let skip = (run * len - stored.start + from - place) as usize;
                let bytes = (to - from) as usize;
                let at = (from - range.start) as usize;
                out[at..at + bytes].copy_from_slice(&scratch[skip..skip + bytes]);
            }
        }
        Ok(())
    }

    /// A range of the tensor is made of parts of chunks, and a checksum is one of a whole chunk.
    fn decoding_verifies(&self) -> bool {
        false
    }

    fn verify(&self, sources: &Sources, threads: usize) -> Option<Result<()>> {
        for (_, component) in &self.boxes {
            let checked = match (&component.digest, &component.storage) {
                (Some(digest), _) => {
                    let (mut hasher, extent) = (digest.hasher()?, component.extent()?);
                    sources.bytes(extent).and_then(|bytes| {
                        hasher.update(&bytes);
                        let found = hasher.finish();
                        match found == *digest {
                            true => Ok(()),
                            false => Err(Error::mismatch(format!(
                                "a chunk has the checksum {found}, the file says {digest}"
                            ))),
                        }
                    })
                }
                (None, Storage::Encoded(decoder)) => decoder.verify(sources, threads)?,
                (None, _) => return None,
            };
            if checked.is_err() {
                return Some(checked);
            }
        }
        Some(Ok(()))
    }
}
