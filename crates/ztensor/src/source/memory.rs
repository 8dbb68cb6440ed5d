use crate::error::Result;
use crate::source::{Source, check_range};

/// What every source in memory is called.
pub(crate) const LABEL: &str = "<memory>";

/// Bytes in memory, owned by anything that can show them as a slice.
pub struct MemorySource<T>(T);

impl<T: AsRef<[u8]> + Send + Sync> MemorySource<T> {
    /// A source over `bytes`.
    pub fn new(bytes: T) -> Self {
        MemorySource(bytes)
    }
}

impl<T> std::fmt::Debug for MemorySource<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemorySource")
    }
}

impl<T: AsRef<[u8]> + Send + Sync> Source for MemorySource<T> {
    fn len(&self) -> u64 {
        self.0.as_ref().len() as u64
    }

    fn label(&self) -> &str {
        LABEL
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = self.0.as_ref();
        check_range(bytes.len() as u64, offset, out.len() as u64)?;
        out.copy_from_slice(&bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn mapped(&self) -> Result<&[u8]> {
        Ok(self.0.as_ref())
    }
}
