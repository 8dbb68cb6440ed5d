//! What stands in for remote files where the crate was built without them.

use std::io;

use crate::error::{Error, Result};
use crate::remote::{Location, Options};
use crate::source::Source;

fn absent(location: &Location) -> Error {
    Error::unsupported("this build has no support for remote files (the feature `remote`)")
        .in_file(location.url())
}

/// Never made.
#[derive(Debug)]
pub(crate) enum RemoteSource {}

impl RemoteSource {
    pub(crate) fn open(location: &Location, _: &Options) -> Result<RemoteSource> {
        Err(absent(location))
    }

    pub(crate) fn sized(location: &Location, _: &Options, _: u64) -> Result<RemoteSource> {
        Err(absent(location))
    }
}

impl Source for RemoteSource {
    fn len(&self) -> u64 {
        match *self {}
    }

    fn label(&self) -> &str {
        match *self {}
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
        match *self {}
    }

    fn mapped(&self) -> Result<&[u8]> {
        match *self {}
    }
}

/// Never made.
#[derive(Debug)]
pub(crate) enum Upload {}

impl Upload {
    pub(crate) fn create(location: &Location, _: &Options) -> Result<Upload> {
        Err(absent(location))
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self {}
    }
}

impl io::Write for Upload {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}
