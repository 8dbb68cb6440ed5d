//! How the tensors of a new `.zt` file are compressed.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use ztensor::{Compression, Effort};

use crate::failure::Failure;

/// A codec of `.zt` files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    /// zstd: readable by every .zt reader.
    Zstd,
    /// The weight codec: smaller, faster to decode, random access to rows.
    Z4ai,
}

/// Options that choose a codec.
#[derive(Debug, Clone, Default, Args)]
pub struct Coding {
    /// Compress with this codec.
    #[arg(long, value_enum)]
    pub codec: Option<Codec>,
    /// Compress at this level: 1 to 22 for zstd, 1 to 9 for deflate (.npz).
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: Option<i32>,
    /// Compress with z4ai at this effort.
    #[arg(long, value_parser = efforts(), conflicts_with = "level")]
    pub effort: Option<Effort>,
}

fn efforts() -> impl TypedValueParser<Value = Effort> {
    let names = PossibleValuesParser::new(Effort::all().map(Effort::name));
    names.try_map(|name| Effort::from_name(&name).ok_or("no such effort"))
}

impl Coding {
    /// What these options ask for together; `None` if none was given.
    pub fn compression(&self) -> Result<Option<Compression>, Failure> {
        let codec = match (self.codec, self.effort, self.level) {
            (Some(Codec::Zstd), Some(_), _) => {
                return Err(Failure::usage("--effort is for --codec z4ai; zstd has --level"));
            }
            (Some(Codec::Z4ai), _, Some(_)) => {
                return Err(Failure::usage("--level is for --codec zstd; z4ai has --effort"));
            }
            (Some(codec), _, _) => codec,
            (None, Some(_), _) => Codec::Z4ai,
            (None, None, Some(_)) => Codec::Zstd,
            (None, None, None) => return Ok(None),
        };
        Ok(Some(match codec {
            Codec::Zstd => Compression::Zstd(self.level.unwrap_or(3)),
            Codec::Z4ai => Compression::Z4ai(self.effort.unwrap_or_default()),
        }))
    }
}
