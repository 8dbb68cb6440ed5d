//! How tensors are stored in a `.zt` file.

use z4ai::Effort;

use crate::digest::Checksum;
use crate::error::{Error, Result, quoted};

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
