//! What chunks were passed through on their way into the file, undone.

use flate2::{Decompress, FlushDecompress, Status};

use crate::error::{Error, Result, quoted};
use crate::format::hdf5::message::Filter;
use crate::format::hdf5::store::structure;

/// The numbers that filters are registered under.
mod id {
    pub(super) const DEFLATE: u16 = 1;
    pub(super) const SHUFFLE: u16 = 2;
    pub(super) const FLETCHER32: u16 = 3;
    pub(super) const SCALE_OFFSET: u16 = 6;
    pub(super) const LZF: u16 = 32000;
    pub(super) const ZSTD: u16 = 32015;
}

/// Filters by name, known here or only by name.
const NAMES: [(u16, &str); 16] = [
    (id::DEFLATE, "deflate"),
    (id::SHUFFLE, "shuffle"),
    (id::FLETCHER32, "fletcher32"),
    (4, "szip"),
    (5, "nbit"),
    (id::SCALE_OFFSET, "scaleoffset"),
    (307, "bzip2"),
    (id::LZF, "lzf"),
    (32001, "blosc"),
    (32004, "lz4"),
    (32008, "bitshuffle"),
    (32013, "zfp"),
    (id::ZSTD, "zstd"),
    (32017, "sz"),
    (32024, "sz3"),
    (32026, "blosc2"),
];

/// Buffers that one thread uses again for every chunk.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) chunk: Vec<u8>,
    stages: [Vec<u8>; 2],
}

/// The filters of a dataset, in the order of encoding.
#[derive(Debug)]
pub(super) struct Pipeline {
    filters: Vec<Filter>,
    name: String,
}

impl Pipeline {
    pub(super) fn new(filters: Vec<Filter>) -> Pipeline {
        let names: Vec<String> = filters.iter().map(name).collect();
        let name = if names.is_empty() { "hdf5.chunks".to_owned() } else { names.join("+") };
        Pipeline { filters, name }
    }

    /// The filters' names.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The filters that were applied to a chunk, last first.
    fn applied(&self, skipped: u32) -> impl DoubleEndedIterator<Item = &Filter> {
        self.filters
            .iter()
            .enumerate()
            .filter(move |(bit, _)| skipped >> bit & 1 == 0)
            .map(|(_, filter)| filter)
            .rev()
    }

    /// Whether a chunk is stored as it is.
    pub(super) fn is_raw(&self, skipped: u32) -> bool {
        self.applied(skipped).next().is_none()
    }

    /// Undoes every filter; the result must fill `out` exactly.
    pub(super) fn decode(
        &self,
        stored: &[u8],
        skipped: u32,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let mut filters: Vec<&Filter> = self.applied(skipped).collect();
        let last = filters.pop();
        // Between two filters there may be a checksum, or data that did not compress.
        let limit = out.len() + out.len() / 8 + 1024;
        let [current, next] = &mut scratch.stages;
        let (mut is_stored, mut len) = (true, stored.len());
        for filter in filters {
            let input = if is_stored { &stored[..len] } else { &current[..len] };
            if filter.id == id::FLETCHER32 {
                len = checked(input)?.len(); // the same bytes without their checksum
                continue;
            }
            let room = limit.min(expansion(filter, input));
            if next.len() < room {
                next.try_reserve_exact(room - next.len()).map_err(|_| Error::limit("not enough memory"))?;
                next.resize(room, 0);
            }
            len = undo(filter, input, &mut next[..room])?;
            std::mem::swap(current, next);
            is_stored = false;
        }
        let input = if is_stored { &stored[..len] } else { &current[..len] };
        let written = match last {
            Some(filter) => undo(filter, input, out)?,
            None => copy(input, out)?,
        };
        match written == out.len() {
            true => Ok(()),
            false => Err(broken(format!("it has {written} bytes instead of {}", out.len()))),
        }
    }
}

fn name(filter: &Filter) -> String {
    match NAMES.iter().find(|(id, _)| *id == filter.id) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("filter-{}", filter.id),
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::corrupt("hdf5.filter", format!("a chunk does not decode: {why}"))
}

/// The most bytes that a filter can make of its input.
fn expansion(filter: &Filter, input: &[u8]) -> usize {
    let factor = match filter.id {
        id::DEFLATE => 1032,
        id::LZF => 264,
        id::ZSTD => 1 << 15,
        id::SCALE_OFFSET => 1 << 20, // a chunk of one value takes no bits at all
        _ => 1,
    };
    input.len().saturating_mul(factor).saturating_add(64)
}

/// Undoes one filter: how many bytes of `out` it wrote. What does not fit is an error.
fn undo(filter: &Filter, input: &[u8], out: &mut [u8]) -> Result<usize> {
    match filter.id {
        id::DEFLATE => inflate(input, out),
        id::SHUFFLE => unshuffle(filter.parameters.first().copied().unwrap_or(1) as usize, input, out),
        id::FLETCHER32 => copy(checked(input)?, out),
        id::SCALE_OFFSET => {
            let parameters = &filter.parameters;
            let decoded =
                hdf5_reader::filters::scaleoffset::decompress_with_limit(input, parameters, out.len());
            copy(&decoded.map_err(structure)?, out)
        }
        id::LZF => lzf(input, out),
        id::ZSTD => zstd::bulk::decompress_to_buffer(input, out).map_err(broken),
        other => {
            let given =
                if filter.name.is_empty() { String::new() } else { format!(", {}", quoted(&filter.name)) };
            Err(Error::unsupported(format!(
                "its chunks are encoded with the filter {other} ({}{given}), which is not supported",
                name(filter)
            )))
        }
    }
}

fn copy(input: &[u8], out: &mut [u8]) -> Result<usize> {
    match out.get_mut(..input.len()) {
        Some(out) => out.copy_from_slice(input),
        None => return Err(broken(format!("it has {} bytes where {} fit", input.len(), out.len()))),
    }
    Ok(input.len())
}

fn inflate(input: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut stream = Decompress::new(true);
    let (mut input, mut written) = (input, 0);
    loop {
        // When the output is full, only the end of the stream may be left.
        let mut more = [0; 1];
        let full = written == out.len();
        let space = if full { &mut more[..] } else { &mut out[written..] };
        let (before_in, before_out) = (stream.total_in(), stream.total_out());
        let status = stream.decompress(input, space, FlushDecompress::Finish).map_err(broken)?;
        let (consumed, produced) = (stream.total_in() - before_in, stream.total_out() - before_out);
        if full && produced > 0 {
            return Err(broken(format!("it has more than the {} bytes expected", out.len())));
        }
        input = &input[consumed as usize..];
        written += produced as usize;
        match status {
            Status::StreamEnd => return Ok(written),
            _ if consumed == 0 && produced == 0 => return Err(broken("its deflate stream ends too early")),
            _ => {}
        }
    }
}

/// Puts back together elements whose first bytes, second bytes and so on were
/// stored together. Bytes that make no whole element stand at the end.
fn unshuffle(size: usize, input: &[u8], out: &mut [u8]) -> Result<usize> {
    copy_check(input, out)?;
    let count = input.len() / size.max(1);
    if size <= 1 || count <= 1 {
        return copy(input, out);
    }
    let (planes, rest) = input.split_at(count * size);
    let (elements, out_rest) = out[..input.len()].split_at_mut(count * size);
    match size {
        2 => interleave::<2>(planes, elements),
        4 => interleave::<4>(planes, elements),
        8 => interleave::<8>(planes, elements),
        _ => {
            for (index, plane) in planes.chunks_exact(count).enumerate() {
                for (element, &byte) in elements.chunks_exact_mut(size).zip(plane) {
                    element[index] = byte;
                }
            }
        }
    }
    out_rest.copy_from_slice(rest);
    Ok(input.len())
}

fn copy_check(input: &[u8], out: &[u8]) -> Result<()> {
    match input.len() <= out.len() {
        true => Ok(()),
        false => Err(broken(format!("it has {} bytes where {} fit", input.len(), out.len()))),
    }
}

/// The `N` planes of equal length as elements of `N` bytes.
fn interleave<const N: usize>(planes: &[u8], elements: &mut [u8]) {
    let count = planes.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|plane| &planes[plane * count..][..count]);
    // In blocks, so that every plane is read in whole registers.
    const UNSHUFFLED: usize = 32;
    let blocks = elements.chunks_exact_mut(UNSHUFFLED * N);
    let done = blocks.len() * UNSHUFFLED;
    for (block, out) in blocks.enumerate() {
        let parts: [&[u8; UNSHUFFLED]; N] = std::array::from_fn(|plane| {
            planes[plane][block * UNSHUFFLED..].first_chunk().unwrap_or(&[0; UNSHUFFLED])
        });
        for (index, element) in out.chunks_exact_mut(N).enumerate() {
            for (plane, byte) in element.iter_mut().enumerate() {
                *byte = parts[plane][index];
            }
        }
    }
    for (index, element) in elements.chunks_exact_mut(N).enumerate().skip(done) {
        for (plane, byte) in element.iter_mut().enumerate() {
            *byte = planes[plane][index];
        }
    }
}

/// The data before a Fletcher checksum that agrees with it.
fn checked(input: &[u8]) -> Result<&[u8]> {
    let Some((data, stored)) = input.split_last_chunk::<4>() else {
        return Err(broken("it is too short for its checksum"));
    };
    let (stored, found) = (u32::from_le_bytes(*stored), hdf5_reader::checksum::fletcher32(data));
    match stored == found {
        true => Ok(data),
        false => Err(Error::corrupt(
            "hdf5.checksum",
            format!("a chunk has the checksum {found:08x} and says {stored:08x}"),
        )),
    }
}

/// LZF: runs of literals, and copies of what came before.
fn lzf(input: &[u8], out: &mut [u8]) -> Result<usize> {
    let cut = || broken("its LZF data ends too early");
    let (mut at, mut written) = (0, 0);
    while let Some(&control) = input.get(at) {
        at += 1;
        let control = usize::from(control);
        if control < 32 {
            let literals = input.get(at..at + control + 1).ok_or_else(cut)?;
            copy(literals, out.get_mut(written..).unwrap_or(&mut []))?;
            at += literals.len();
            written += literals.len();
            continue;
        }
        let mut len = control >> 5;
        if len == 7 {
            len += usize::from(*input.get(at).ok_or_else(cut)?);
            at += 1;
        }
        let len = len + 2;
        let back = (control & 0x1f) << 8 | usize::from(*input.get(at).ok_or_else(cut)?);
        at += 1;
        let from =
            written.checked_sub(back + 1).ok_or_else(|| broken("an LZF copy starts before the data"))?;
        if written + len > out.len() {
            return Err(broken(format!("it has more than the {} bytes expected", out.len())));
        }
        match back + 1 >= len {
            true => out.copy_within(from..from + len, written),
            // It repeats what it has just written.
            false => (0..len).for_each(|index| out[written + index] = out[from + index]),
        }
        written += len;
    }
    Ok(written)
}
