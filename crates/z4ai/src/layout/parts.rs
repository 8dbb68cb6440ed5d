//! Output that is made part by part, and hashed while each part is in the first-level cache.

use crate::error::Result;
use crate::kernel::copy;
use crate::kernel::hash::Hasher;

/// The decoded bytes of a chunk on their way.
pub(crate) struct Parts<'a> {
    out: &'a mut [u8],
    /// Bytes that are done.
    done: usize,
    /// Where parts are made if the output is so large that it leaves the caches before anyone reads it;
    /// they are copied past the caches from there.
    aside: Option<&'a mut Part>,
    hasher: Hasher,
}

/// Room for one part.
pub(crate) struct Part(Box<[u8; Parts::LEN]>);

impl Default for Part {
    fn default() -> Self {
        Self(Box::new([0; Parts::LEN]))
    }
}

impl<'a> Parts<'a> {
    /// Bytes of every part but the last: they and what they are made of fit the first-level cache.
    pub(crate) const LEN: usize = 8 << 10;

    pub(super) fn new(out: &'a mut [u8], large: bool, part: &'a mut Part) -> Self {
        let hasher = Hasher::new(out.len());
        Self { out, done: 0, aside: large.then_some(part), hasher }
    }

    /// Bytes of all parts.
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.out.len()
    }

    /// Makes the next part, by filling what it is given.
    pub(super) fn next(&mut self, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let len = (self.out.len() - self.done).min(Self::LEN);
        let out = &mut self.out[self.done..self.done + len];
        match &mut self.aside {
            Some(part) => {
                let part = &mut part.0[..len];
                fill(part)?;
                self.hasher.write(part);
                copy::past_caches(part, out);
            }
            None => {
                fill(out)?;
                self.hasher.write(out);
            }
        }
        self.done += len;
        Ok(())
    }

    /// The hash of all parts.
    pub(super) fn finish(self) -> u64 {
        self.hasher.finish(self.out)
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        copy::settle();
    }
}
