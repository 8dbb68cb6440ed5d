//! Adding tensors to a file.

use std::io::{self, Write};
use std::path::Path;

use crate::edit::session::Session;
use crate::error::Result;
use crate::write::{Sink, Writer};

impl Writer<'static> {
    /// Adds tensors to a `.zt` file. What is there stays as it is, and names that
    /// are there are refused.
    ///
    /// The file has the new tensors when [`finish`](Writer::finish) returns. Until
    /// then readers see it as it was; a writer that is dropped leaves it so, byte for byte.
    pub fn append(path: impl AsRef<Path>) -> Result<Writer<'static>> {
        let path = path.as_ref();
        let (mut session, catalog) = Session::open(path)?;
        session.begin()?;
        let position = session.good_len();
        let sink = Appending { session, position };
        Ok(Writer::resume(Box::new(sink), position, catalog, Some(path.to_owned())))
    }
}

/// Writes behind the old footer.
struct Appending {
    session: Session,
    position: u64,
}

impl Write for Appending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.session.write_raw(self.position, bytes)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // the file has no buffer of its own
    }
}

impl Sink for Appending {
    fn seal(&mut self) -> Result<()> {
        self.session.sync()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.session.sync()?;
        self.session.commit()
    }
}
