//! Where a writer's bytes go.

use std::io::{IoSlice, Write};

use crate::error::{Error, Result};
use crate::write::atomic::AtomicFile;

/// Where a writer's bytes go, and what makes them final.
pub(crate) trait Sink: Write + Send {
    /// All bytes but the eight that end the file are written. Where a cut in the
    /// power must not leave an end without the rest, the rest is made durable now.
    fn seal(&mut self) -> Result<()> {
        Ok(())
    }

    /// At least `len` more bytes will come.
    fn reserve(&mut self, _len: u64) -> std::io::Result<()> {
        Ok(())
    }

    /// Whether many pieces in one write are cheaper than one after another through a buffer.
    fn gathers(&self) -> bool {
        false
    }

    /// All bytes are written: make them visible.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Anything that can be written to.
pub(super) struct Plain<W>(pub(super) W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl<W: Write + Send> Sink for Plain<W> {
    fn finish(mut self: Box<Self>) -> Result<()> {
        self.0.flush().map_err(|error| Error::io("cannot write", error))
    }
}

/// A file that appears when it is finished.
pub(super) struct NewFile {
    pub(super) file: AtomicFile,
    pub(super) durable: bool,
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> std::io::Result<usize> {
        self.file.write_vectored(pieces)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Sink for NewFile {
    fn reserve(&mut self, len: u64) -> std::io::Result<()> {
        self.file.reserve(len)
    }

    fn gathers(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.file.commit(self.durable)
    }
}
