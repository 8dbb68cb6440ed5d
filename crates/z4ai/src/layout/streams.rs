//! Statistics of streams, by role and coder.

use crate::coder::Coder;

/// The streams of one role and one coder in all chunks of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// What the streams hold: `"symbols"` (exponents with leading mantissa bits, or leading
    /// bytes), `"bits"`, `"plane 0"` and so on (the other bytes, lowest first), `"bytes"`, …
    pub role: &'static str,
    /// How they are stored: `"raw"`, `"huffman"`, `"zstd"`, …
    pub coder: &'static str,
    /// How many there are.
    pub count: usize,
    /// Bytes they decode to.
    pub content_len: u64,
    /// Bytes they take.
    pub stored_len: u64,
}

/// The streams of a frame, in the order in which they first appear.
#[derive(Default)]
pub(crate) struct Streams(pub(crate) Vec<StreamInfo>);

impl Streams {
    /// Adds a stream that decodes to `len` bytes.
    pub(crate) fn add(&mut self, role: &'static str, coder: &Coder, len: usize) {
        self.add_stored(role, coder.name(), len, coder.stored_len(len));
    }

    /// Adds bytes that are stored without a coder.
    pub(crate) fn add_stored(&mut self, role: &'static str, coder: &'static str, len: usize, stored: u64) {
        let known = self.0.iter().position(|stream| stream.role == role && stream.coder == coder);
        let at = known.unwrap_or_else(|| {
            self.0.push(StreamInfo { role, coder, count: 0, content_len: 0, stored_len: 0 });
            self.0.len() - 1
        });
        let stream = &mut self.0[at];
        stream.count += 1;
        stream.content_len += len as u64;
        stream.stored_len += stored;
    }
}

/// The role of byte plane `index`.
pub(crate) fn plane(index: usize) -> &'static str {
    const NAMES: [&str; 8] =
        ["plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7"];
    NAMES[index.min(NAMES.len() - 1)]
}
