//! Many pieces of memory in one write, straight from where they lie.

use std::io::{self, IoSlice, Write};

/// Linux takes no more pieces in one call. (structural: `IOV_MAX`)
const MOST_PIECES: usize = 1024;
/// Bytes of one vectored write: more would not make it cheaper, and calls of tens of
/// megabytes are dearer while the system is writing back. (flat: `constants.py`, `write_mixed`, `write_4k`)
const MAX_WRITE: u64 = 4 << 20;
/// Longer pieces than this are cut. (structural: as above)
pub(crate) const LONGEST_PIECE: usize = 4 << 20;

/// Pieces that wait to be written one after another.
#[derive(Default)]
pub(crate) struct Gather<'a> {
    pieces: Vec<IoSlice<'a>>,
    bytes: u64,
}

impl<'a> Gather<'a> {
    pub(crate) fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.pieces.push(IoSlice::new(bytes));
            self.bytes += bytes.len() as u64;
        }
    }

    /// Whether it is time to write; until then there is room for two more pieces.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= MAX_WRITE || self.pieces.len() + 2 > MOST_PIECES
    }

    /// Writes all pieces and forgets them; says how many bytes that were.
    pub(crate) fn write_to(&mut self, out: &mut dyn Write) -> io::Result<u64> {
        let mut rest = &mut self.pieces[..];
        while !rest.is_empty() {
            match out.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.pieces.clear();
        Ok(std::mem::take(&mut self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, as a pipe or a full disk would.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let some = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..some]);
            Ok(some)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_pieces_in_order() {
        let mut gather = Gather::default();
        for piece in ["", "gather", "", "ed ", "pieces", ""] {
            gather.push(piece.as_bytes());
        }
        let mut out = Slow(Vec::new());
        assert_eq!(gather.write_to(&mut out).unwrap(), 15);
        assert_eq!(out.0, b"gathered pieces");
        assert_eq!(gather.write_to(&mut out).unwrap(), 0);
    }

    #[test]
    fn full_before_the_kernel_says_so() {
        let mut gather = Gather::default();
        let pieces = std::iter::repeat_n(b"x", 10 * MOST_PIECES);
        for piece in pieces {
            gather.push(piece);
            gather.push(piece);
            if gather.is_full() {
                assert!(gather.pieces.len() <= MOST_PIECES);
                gather.write_to(&mut io::sink()).unwrap();
            }
        }
    }
}
