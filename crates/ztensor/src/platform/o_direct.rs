//! Reading past the system's cache: the device writes where the bytes are wanted, so that no page
//! of the cache is made and copied from. Cheaper for bytes that are not in the cache, but none
//! of them is there the next time.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

/// Positions, addresses and lengths that every device takes are multiples of this. (structural)
const BLOCK: usize = 4096;

/// The same file, opened again with `O_DIRECT`; `None` where the file system does not support it.
pub(crate) fn open(file: &File) -> Option<File> {
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(same).ok()
}

/// Memory that a device writes a block to.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

impl Block {
    const EMPTY: Block = Block([0; BLOCK]);
}

/// Fills `out` from `offset` on with one request, and says whether it could: one that is too
/// short has no whole block in it. What `out` holds otherwise is of no meaning.
pub(crate) fn read(file: &File, offset: u64, out: &mut [u8]) -> io::Result<bool> {
    let before = (offset % BLOCK as u64) as usize;
    let skip = (BLOCK - before) % BLOCK;
    let Some((start, body)) = out.split_at_mut_checked(skip) else { return Ok(false) };
    // Where the memory is not aligned as the file is, the bytes land a little further and move.
    let shift = body.as_ptr().align_offset(BLOCK);
    let len = body.len().saturating_sub(shift) / BLOCK * BLOCK;
    if len == 0 {
        return Ok(false);
    }
    // Blocks that are wanted in part are read elsewhere.
    let (mut first, mut last) = (Block::EMPTY, [Block::EMPTY; 2]);
    let rest = body.len() - len;
    let [one, two] = &mut last;
    let mut parts =
        [&mut first.0[..], &mut body[shift..shift + len], &mut one.0, &mut two.0].map(IoSliceMut::new);
    let parts = &mut parts[usize::from(skip == 0)..2 + rest.div_ceil(BLOCK)];
    let wanted = if skip == 0 { 0 } else { BLOCK } + len + rest;
    // The last block of the file may be a part of one.
    if rustix::io::preadv(file, parts, offset - before as u64)? < wanted {
        return Ok(false);
    }
    body.copy_within(shift..shift + len, 0);
    let (in_one, in_two) = body[len..].split_at_mut(rest.min(BLOCK));
    in_one.copy_from_slice(&last[0].0[..in_one.len()]);
    in_two.copy_from_slice(&last[1].0[..in_two.len()]);
    start.copy_from_slice(&first.0[before..][..skip]);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wherever_it_starts_and_wherever_it_goes_the_bytes_are_the_same() {
        let bytes: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        // Beside the sources, because some temporary folders are in memory.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let Some(direct) = open(file.as_file()) else { return };
        let mut memory = vec![0; 300_000];
        for start in [0, 1, 4095, 4096, 5000, 131_071] {
            for len in [0, 1, 4096, 8192, 12_287, 68_929] {
                for shift in [0, 1, 16, 4095] {
                    let at = memory.as_ptr().align_offset(BLOCK) + shift;
                    let out = &mut memory[at..at + len];
                    let Ok(filled) = read(&direct, start as u64, out) else { return };
                    assert!(filled || len < 3 * BLOCK, "{start} {len} {shift}");
                    assert!(!filled || *out == bytes[start..start + len], "{start} {len} {shift}");
                }
            }
        }
    }
}
