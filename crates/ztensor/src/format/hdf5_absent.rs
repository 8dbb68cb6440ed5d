//! What stands in for HDF5 files where the crate was built without them: they are recognised and refused.

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::format::{Capabilities, Context, Driver, Extension, Format, Input, Probe, Verdict, zip};

pub(crate) static DRIVER: Driver = Driver {
    format: Format::Hdf5,
    extensions: &[
        Extension::new("h5").rank(8),
        Extension::new("hdf5").rank(9),
        Extension::new("hdf"),
        Extension::new("keras").rank(10).tail(),
    ],
    merges_files: false,
    detect,
    tail: None,
    parse,
    capabilities: Capabilities::READ_ONLY,
    exporters: &[],
};

fn detect(probe: &Probe<'_>) -> Verdict {
    let archive = probe.head.starts_with(zip::MAGIC) && probe.extension == Some("keras");
    match archive || probe.head.starts_with(b"\x89HDF\r\n\x1a\n") {
        true => Verdict::Yes,
        false => Verdict::No,
    }
}

fn parse(_: Input, _: &Context) -> Result<Catalog> {
    Err(Error::unsupported("this build has no support for HDF5 and Keras files (the feature `hdf5`)"))
}
