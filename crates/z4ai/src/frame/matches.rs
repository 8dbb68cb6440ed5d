//! The list of long-range matches.
//!
//! Chunks hold the *literals*: the content without matches. A match repeats a range of the literals
//! (never of another match), so that any range of the content is a few ranges of literals.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::wire::{Put, Reader};

/// Bytes of one match, at most: no frame decodes to more than 2^24 times its own length. (format)
pub(crate) const MAX_MATCH: u64 = 1 << 28;
/// Bytes of a match in the index. (format)
pub(crate) const STORED: usize = 24;
/// Bytes of every chunk but the last two of a frame with matches, at least. Matches across many
/// small chunks would take more memory to resolve than they are long. (format)
pub(crate) const MIN_CHUNK: u64 = 4096;

/// A match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// Its position in the content.
    pub(crate) at: u64,
    /// Its source in the literals.
    pub(crate) source: u64,
    pub(crate) len: u64,
}

/// Writes the matches, which must be in the order of the content.
pub(crate) fn write(copies: &[Match], out: &mut Vec<u8>) {
    out.put_u32(copies.len() as u32);
    let mut end = 0;
    for copy in copies {
        out.put_u64(copy.at - end);
        out.put_u64(copy.len);
        out.put_u64(copy.source);
        end = copy.at + copy.len;
    }
}

/// Reads the matches of a frame with `literals` bytes of literals and `content` bytes of content,
/// in elements of `size` bytes.
pub(crate) fn read(reader: &mut Reader<'_>, size: u64, literals: u64, content: u64) -> Result<Vec<Match>> {
    let count = reader.u32()? as usize;
    if count == 0 || count > reader.remaining() / STORED {
        return Err(Error::corrupt(format_args!("{count} copies in the index")));
    }
    let mut copies = Vec::with_capacity(count);
    // How much of the literals, and of the content, is before the next copy.
    let (mut literal, mut at) = (0u64, 0u64);
    for _ in 0..count {
        let (gap, len, source) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let fits = gap <= literals - literal
            && gap.is_multiple_of(size)
            && (1..=MAX_MATCH).contains(&len)
            && len.is_multiple_of(size)
            && source.checked_add(len).is_some_and(|end| end <= literals);
        if !fits {
            return Err(Error::corrupt(format_args!(
                "a copy of {len} bytes from {source}, {gap} behind the one before, in {literals} literals"
            )));
        }
        literal += gap;
        at += gap;
        copies.push(Match { at, source, len });
        // At most 2^32 matches of 2^28 bytes, plus the literals.
        at += len;
    }
    if at + (literals - literal) != content {
        return Err(Error::corrupt("literals and copies that do not add up to the content"));
    }
    Ok(copies)
}

/// The ranges of literals that the bytes `range` of the content are, in their order.
pub(crate) fn resolve(copies: &[Match], range: Range<u64>) -> Vec<Range<u64>> {
    let first = copies.partition_point(|copy| copy.at + copy.len <= range.start);
    let mut pieces = Vec::new();
    // The bytes of all matches before a position, by which it is shifted in the literals.
    let mut copied: u64 = copies[..first].iter().map(|copy| copy.len).sum();
    let mut at = range.start;
    for copy in copies[first..].iter().take_while(|copy| copy.at < range.end) {
        if at < copy.at {
            pieces.push(at - copied..copy.at - copied);
            at = copy.at;
        }
        let end = range.end.min(copy.at + copy.len);
        pieces.push(copy.source + (at - copy.at)..copy.source + (end - copy.at));
        copied += copy.len;
        at = end;
    }
    if at < range.end {
        pieces.push(at - copied..range.end - copied);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_resolve_to_their_bytes(
            literals in prop::collection::vec(any::<u8>(), 1..200),
            wanted in prop::collection::vec((0usize..50, any::<prop::sample::Index>(), 1usize..60), 0..8),
            a: prop::sample::Index,
            b: prop::sample::Index,
        ) {
            let (mut content, mut copies, mut taken) = (Vec::new(), Vec::new(), 0);
            for (gap, source, len) in wanted {
                let gap = gap.min(literals.len() - taken);
                content.extend_from_slice(&literals[taken..taken + gap]);
                taken += gap;
                let source = source.index(literals.len());
                let len = len.min(literals.len() - source);
                copies.push(Match { at: content.len() as u64, source: source as u64, len: len as u64 });
                content.extend_from_slice(&literals[source..source + len]);
            }
            content.extend_from_slice(&literals[taken..]);
            let (a, b) = (a.index(content.len() + 1), b.index(content.len() + 1));
            let (start, end) = (a.min(b), a.max(b));
            let pieces = resolve(&copies, start as u64..end as u64);
            let bytes: Vec<u8> =
                pieces.into_iter().flat_map(|p| literals[p.start as usize..p.end as usize].to_vec()).collect();
            prop_assert_eq!(&bytes[..], &content[start..end]);
            let mut stored = Vec::new();
            write(&copies, &mut stored);
            if !copies.is_empty() {
                let mut reader = Reader::new(&stored);
                let back = read(&mut reader, 1, literals.len() as u64, content.len() as u64).unwrap();
                prop_assert_eq!(back, copies);
            }
        }
    }
}
