//! Reading past the system's cache: the device writes where the bytes are wanted, so that no page
//! of the cache is made and copied from. Cheaper for bytes that are not in the cache, but none
//! of them is there the next time.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

/// Positions, addresses and lengths that every device takes are multiples of this. (structural)
const DIRECT_BLOCK: usize = 4096;

/// The same file, opened again with `O_DIRECT`; `None` where the file system does not support it.
pub(crate) fn open(file: &File) -> Option<File> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(same).ok()
}

/// Memory that a device writes a block to.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Block([u8; DIRECT_BLOCK]);

impl Block {
    const EMPTY: Block = Block([0; DIRECT_BLOCK]);
}

/// Fills `out` from `offset` on with one request, and says whether it could: one that is too
/// short has no whole block in it. What `out` holds otherwise is of no meaning.
pub(crate) fn read(file: &File, offset: u64, out: &mut [u8]) -> io::Result<bool> {
    let before = (offset % DIRECT_BLOCK as u64) as usize;
    let skip = (DIRECT_BLOCK - before) % DIRECT_BLOCK;
    let Some((start, body)) = out.split_at_mut_checked(skip) else { return Ok(false) };
    // Where the memory is not aligned as the file is, the bytes land a little further and move.
    let shift = body.as_ptr().align_offset(DIRECT_BLOCK);
    let len = body.len().saturating_sub(shift) / DIRECT_BLOCK * DIRECT_BLOCK;
    if len == 0 {
        return Ok(false);
    }
    // Blocks that are wanted in part are read elsewhere.
    let (mut first, mut last) = (Block::EMPTY, [Block::EMPTY; 2]);
    let rest = body.len() - len;
    let [one, two] = &mut last;
    let mut parts =
        [&mut first.0[..], &mut body[shift..shift + len], &mut one.0, &mut two.0].map(IoSliceMut::new);
    let parts = &mut parts[usize::from(skip == 0)..2 + rest.div_ceil(DIRECT_BLOCK)];
    let wanted = if skip == 0 { 0 } else { DIRECT_BLOCK } + len + rest;
    // The last block of the file may be a part of one.
    if rustix::io::preadv(file, parts, offset - before as u64)? < wanted {
        return Ok(false);
    }
    body.copy_within(shift..shift + len, 0);
    let (in_one, in_two) = body[len..].split_at_mut(rest.min(DIRECT_BLOCK));
    in_one.copy_from_slice(&last[0].0[..in_one.len()]);
    in_two.copy_from_slice(&last[1].0[..in_two.len()]);
    start.copy_from_slice(&first.0[before..][..skip]);
    Ok(true)
}

/// Fills several buffers, which lie beside each other in the file and are in its order, with one request, and says
/// whether it could. Blocks that are wanted as a whole are written to their places where the memory is
/// aligned as the file is; the others are read elsewhere and copied.
pub(crate) fn read_all(file: &File, parts: &mut [(u64, &mut [u8])]) -> io::Result<bool> {
    /// Buffers of one request that the kernel takes. (limit)
    const MAX_BUFFERS: usize = 1024;
    let block = DIRECT_BLOCK as u64;
    let (Some((first, _)), Some((last, out))) = (parts.first(), parts.last()) else { return Ok(true) };
    let (start, end) = (first / block * block, last + out.len() as u64);
    let bodies: Vec<Range<u64>> = parts.iter().map(|(offset, out)| body(*offset, out)).collect();
    // What is between the bodies, and where it lies in `copied`.
    let mut between = Vec::with_capacity(bodies.len() + 1);
    let (mut at, mut blocks) = (start, 0);
    for to in bodies.iter().filter(|body| !body.is_empty()) {
        let (Some(len), true) = (to.start.checked_sub(at), to.end >= to.start) else { return Ok(false) };
        between.push((at, blocks));
        blocks += (len / block) as usize;
        at = to.end;
    }
    between.push((at, blocks));
    blocks += end.saturating_sub(at).div_ceil(block) as usize;
    let mut memory = vec![0; (blocks + 1) * DIRECT_BLOCK];
    let aligned = memory.as_ptr().align_offset(DIRECT_BLOCK);
    let Some(copied) = memory.get_mut(aligned..).and_then(|memory| memory.get_mut(..blocks * DIRECT_BLOCK))
    else {
        return Ok(false);
    };
    {
        let mut rest = &mut *copied;
        let mut buffers = Vec::with_capacity(2 * bodies.len() + 1);
        let mut at = start;
        for ((offset, out), body) in parts.iter_mut().zip(&bodies).filter(|(_, body)| !body.is_empty()) {
            push(&mut rest, (body.start - at) as usize, &mut buffers);
            let place = (body.start - *offset) as usize..(body.end - *offset) as usize;
            buffers.push(IoSliceMut::new(&mut out[place]));
            at = body.end;
        }
        let left = rest.len();
        push(&mut rest, left, &mut buffers);
        // The last block of the file may be a part of one.
        if buffers.len() > MAX_BUFFERS
            || (rustix::io::preadv(file, &mut buffers, start)? as u64) < end - start
        {
            return Ok(false);
        }
    }
    for ((offset, out), body) in parts.iter_mut().zip(&bodies) {
        let end = *offset + out.len() as u64;
        let missing =
            if body.is_empty() { [*offset..end, end..end] } else { [*offset..body.start, body.end..end] };
        for range in missing.into_iter().filter(|range| !range.is_empty()) {
            let index = between.partition_point(|(from, _)| *from <= range.start);
            let Some((from, first)) = index.checked_sub(1).map(|index| between[index]) else {
                return Ok(false);
            };
            let skip = first * DIRECT_BLOCK + (range.start - from) as usize;
            let to = (range.start - *offset) as usize..(range.end - *offset) as usize;
            let len = to.len();
            let Some(bytes) = copied.get(skip..skip + len) else { return Ok(false) };
            out[to].copy_from_slice(bytes);
        }
    }
    Ok(true)
}

/// The whole blocks of a range, if its memory is aligned as the file is.
fn body(offset: u64, out: &[u8]) -> Range<u64> {
    let block = DIRECT_BLOCK as u64;
    let start = offset.next_multiple_of(block);
    let end = (offset + out.len() as u64) / block * block;
    let aligned = out.as_ptr().align_offset(DIRECT_BLOCK) as u64 == start - offset;
    if aligned && start < end { start..end } else { offset..offset }
}

/// Queues the next `len` bytes of `rest`.
fn push<'a>(rest: &mut &'a mut [u8], len: usize, buffers: &mut Vec<IoSliceMut<'a>>) {
    let (bytes, after) = std::mem::take(rest).split_at_mut(len);
    *rest = after;
    if len > 0 {
        buffers.push(IoSliceMut::new(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `len` bytes, and the same opened for direct reads where the file system supports it.
    fn direct_file(len: u32) -> Option<(Vec<u8>, File)> {
        let bytes: Vec<u8> = (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // Beside the sources, because some temporary folders are in memory.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        Some((bytes, open(file.as_file())?))
    }

    #[test]
    fn wherever_it_starts_and_wherever_it_goes_the_bytes_are_the_same() {
        let Some((bytes, direct)) = direct_file(200_000) else { return };
        let mut memory = vec![0; 300_000];
        for start in [0, 1, 4095, 4096, 5000, 131_071] {
            for len in [0, 1, 4096, 8192, 12_287, 68_929] {
                for shift in [0, 1, 16, 4095] {
                    let at = memory.as_ptr().align_offset(DIRECT_BLOCK) + shift;
                    let out = &mut memory[at..at + len];
                    let Ok(filled) = read(&direct, start as u64, out) else { return };
                    assert!(filled || len < 3 * DIRECT_BLOCK, "{start} {len} {shift}");
                    assert!(!filled || *out == bytes[start..start + len], "{start} {len} {shift}");
                }
            }
        }
    }

    #[test]
    fn neighbours_are_read_with_one_request_wherever_they_lie_in_memory() {
        let Some((bytes, direct)) = direct_file(400_000) else { return };
        // Offsets and lengths: small ones, one without bytes, large ones, gaps, the end of the file.
        let places = [
            (100, 50),
            (150, 4000),
            (4200, 0),
            (4200, 30_000),
            (34_300, 8192),
            (42_492, 200_000),
            (300_000, 100_000),
        ];
        let mut memory = vec![0; 8 * 220_000];
        for shift in [None, Some(0), Some(1)] {
            memory.fill(0);
            let mut rest = &mut memory[..];
            let mut parts = Vec::new();
            for (offset, len) in places {
                // Aligned as the file is, or not.
                let phase = shift.map_or(0, |shift| offset + shift) % DIRECT_BLOCK;
                let at = (rest.as_ptr().align_offset(DIRECT_BLOCK) + phase) % rest.len();
                let (out, after) = std::mem::take(&mut rest)[at..].split_at_mut(len);
                parts.push((offset as u64, out));
                rest = after;
            }
            let Ok(filled) = read_all(&direct, &mut parts) else { return };
            assert!(filled);
            for (offset, out) in &parts {
                assert!(**out == bytes[*offset as usize..][..out.len()], "{shift:?} {offset}");
            }
            for first in 0..places.len() {
                assert!(read_all(&direct, &mut parts[first..=first]).unwrap(), "{first}");
            }
        }
        assert!(read_all(&direct, &mut []).unwrap());
    }
}
