//! How tensors are stored in a `.zt` file.

use z4ai::Effort;

use crate::digest::Checksum;
use crate::error::{Error, Result, quoted};
use crate::remote;

/// How a component's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// As they are: can be viewed without a copy.
    #[default]
    None,
    /// One zstd frame of the given level, 1 to 22. Bytes that do not get smaller
    /// are stored as they are.
    Zstd(i32),
    /// One frame of the weight codec. Rows can be read without decoding the rest. Bytes that
    /// do not get smaller are stored as they are.
    Z4ai(Effort),
}

impl Compression {
    /// The weight codec with the effort of that name: `fast`, `default`, ….
    pub fn from_effort(name: &str) -> Result<Compression> {
        Effort::from_name(name).map(Compression::Z4ai).ok_or_else(|| {
            let known: Vec<_> = Effort::all().map(Effort::name).collect();
            Error::invalid(format!("unknown effort {}: choose one of {known:?}", quoted(name)))
        })
    }

    /// The encoding that a component's manifest entry names.
    pub(super) fn encoding(self) -> &'static str {
        match self {
            Compression::None => "raw",
            Compression::Zstd(_) => "zstd",
            Compression::Z4ai(_) => "z4ai",
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Compression::Zstd(level) if !(1..=22).contains(&level) => {
                Err(Error::invalid(format!("zstd level {level} is not one of 1 to 22")))
            }
            _ => Ok(()),
        }
    }
}

/// How one tensor is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WriteOptions {
    /// How its bytes are stored.
    pub compression: Compression,
    /// Which digest is stored with them.
    pub checksum: Checksum,
}

/// The version of `.zt` that a writer makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ZtVersion {
    /// Version 1.2, which has every codec and can be edited.
    #[default]
    V1,
    /// Version 2: every tensor has a digest (XXH3, or SHA-256 if asked for) of what it decodes to, and is
    /// stored as it is or as seekable zstd.
    V2,
}

/// How a file is created.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The version of the format.
    pub version: ZtVersion,
    /// Wait until the disk has it all when the file is finished.
    pub durable: bool,
    /// How to reach the store, where the path is a URL.
    pub remote: remote::Options,
}

impl CreateOptions {
    /// The version of the format.
    pub fn version(mut self, version: ZtVersion) -> Self {
        self.version = version;
        self
    }

    /// Waits until the disk has it all when the file is finished.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// How to reach the store, where the path is a URL.
    pub fn remote(mut self, remote: remote::Options) -> Self {
        self.remote = remote;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    /// The compression behind this one. A new variant does not compile until it is in the chain.
    fn after(compression: Compression) -> Option<Compression> {
        match compression {
            Compression::None => Some(Compression::Zstd(1)),
            Compression::Zstd(_) => Some(Compression::Z4ai(Effort::Default)),
            Compression::Z4ai(_) => None,
        }
    }

    #[test]
    fn what_is_written_is_a_capability() {
        let encodings = Format::Zt.capabilities().encodings;
        let all = std::iter::successors(Some(Compression::Zstd(1)), |last| after(*last));
        let written: Vec<_> = all.map(Compression::encoding).collect();
        assert_eq!(written, encodings);
    }
}
