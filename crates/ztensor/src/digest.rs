//! Digests over stored bytes: which there are, how they are written, how they are computed.

use std::fmt;
use std::hash::Hasher as _;

use sha2::Digest as _;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};

/// Which digest a writer adds to each component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Checksum {
    /// No digest.
    #[default]
    None,
    /// CRC-32C: fast, notices accidents.
    Crc32c,
    /// SHA-256: slower, notices tampering when the digest itself is trusted.
    Sha256,
    /// BLAKE3: as strong and faster; of a raw tensor it is also what its content id is made of.
    Blake3,
}

impl Checksum {
    /// The checksum of that name: `none`, `crc32c`, `sha256` or `blake3`.
    pub fn from_name(name: &str) -> Result<Checksum> {
        match name {
            "none" => Ok(Checksum::None),
            "crc32c" => Ok(Checksum::Crc32c),
            "sha256" => Ok(Checksum::Sha256),
            "blake3" => Ok(Checksum::Blake3),
            other => Err(Error::invalid(format!(
                "unknown checksum {other:?}: choose \"none\", \"crc32c\", \"sha256\" or \"blake3\""
            ))),
        }
    }

    /// A hasher for it, or `None` for no checksum.
    pub(crate) fn hasher(self) -> Option<Hasher> {
        match self {
            Checksum::None => None,
            Checksum::Crc32c => Some(Hasher::Crc32c(0)),
            Checksum::Sha256 => Some(Hasher::Sha256(sha2::Sha256::new())),
            Checksum::Blake3 => Some(Hasher::Blake3(Box::new(blake3::Hasher::new()))),
        }
    }
}

/// A digest as it stands in a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Digest {
    /// CRC-32C.
    Crc32c(u32),
    /// SHA-256.
    Sha256(Box<[u8; 32]>),
    /// BLAKE3.
    Blake3(Box<[u8; 32]>),
    /// The CRC-32 of a zip archive's member; other formats have it, `.zt` files do not.
    Crc32(u32),
    /// XXH3-64, in `.zt` files of version 2.
    Xxh3(u64),
    /// One of a kind that this version cannot compute; kept as it is.
    Other(Box<str>),
}

impl Digest {
    /// Parses the text form. Text that names no known algorithm is kept as
    /// [`Digest::Other`]; a malformed value of a known one is an error.
    pub fn parse(text: &str) -> Result<Digest> {
        let malformed = || {
            Error::corrupt(
                "component.digest",
                format!(
                    "malformed checksum {}: expected sha256:<64 hex> or crc32c:0x<8 hex>",
                    crate::error::quoted(text)
                ),
            )
        };
        if let Some(hex) = text.strip_prefix("sha256:") {
            let mut bytes = Box::new([0; 32]);
            if hex.len() != 64 {
                return Err(malformed());
            }
            for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
                let pair = std::str::from_utf8(pair).map_err(|_| malformed())?;
                *byte = hex_number(pair).and_then(|n| u8::try_from(n).ok()).ok_or_else(malformed)?;
            }
            Ok(Digest::Sha256(bytes))
        } else if let Some(hex) = text.strip_prefix("crc32c:0x") {
            match hex_number(hex) {
                Some(value) if hex.len() == 8 => Ok(Digest::Crc32c(value)),
                _ => Err(malformed()),
            }
        } else if let Some(hash) =
            text.strip_prefix("blake3:").and_then(|hex| blake3::Hash::from_hex(hex).ok())
        {
            Ok(Digest::Blake3(Box::new(*hash.as_bytes())))
        } else {
            Ok(Digest::Other(text.into()))
        }
    }

    /// The checksum kind that writes it, if this version can.
    pub fn checksum(&self) -> Option<Checksum> {
        match self {
            Digest::Crc32c(_) => Some(Checksum::Crc32c),
            Digest::Sha256(_) => Some(Checksum::Sha256),
            Digest::Blake3(_) => Some(Checksum::Blake3),
            Digest::Crc32(_) | Digest::Xxh3(_) | Digest::Other(_) => None,
        }
    }

    /// A hasher that computes its kind, if this version can.
    pub(crate) fn hasher(&self) -> Option<Hasher> {
        match self {
            Digest::Crc32(_) => Some(Hasher::Crc32(crc32fast::Hasher::new())),
            Digest::Xxh3(_) => Some(Hasher::Xxh3(Box::default())),
            other => other.checksum()?.hasher(),
        }
    }
}

/// Hexadecimal digits only: `from_str_radix` alone would allow a sign.
fn hex_number(hex: &str) -> Option<u32> {
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(hex, 16).ok()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Digest::Crc32c(value) => write!(f, "crc32c:0x{value:08X}"),
            Digest::Crc32(value) => write!(f, "crc32:0x{value:08X}"),
            Digest::Xxh3(value) => write!(f, "xxh3:{value:016x}"),
            Digest::Sha256(bytes) => {
                f.write_str("sha256:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Digest::Blake3(bytes) => write!(f, "blake3:{}", blake3::Hash::from_bytes(**bytes).to_hex()),
            Digest::Other(text) => f.write_str(text),
        }
    }
}

/// A digest being computed.
pub(crate) enum Hasher {
    Crc32c(u32),
    Crc32(crc32fast::Hasher),
    Sha256(sha2::Sha256),
    Blake3(Box<blake3::Hasher>),
    Xxh3(Box<XxHash3_64>),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Crc32c(value) => *value = crc32c::crc32c_append(*value, bytes),
            Hasher::Crc32(state) => state.update(bytes),
            Hasher::Sha256(state) => state.update(bytes),
            Hasher::Blake3(state) => {
                state.update(bytes);
            }
            Hasher::Xxh3(state) => state.write(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Hasher::Crc32c(value) => Digest::Crc32c(value),
            Hasher::Crc32(state) => Digest::Crc32(state.finalize()),
            Hasher::Sha256(state) => Digest::Sha256(Box::new(state.finalize().into())),
            Hasher::Blake3(state) => Digest::Blake3(Box::new(*state.finalize().as_bytes())),
            Hasher::Xxh3(state) => Digest::Xxh3(state.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_exact() {
        let mut crc = Checksum::Crc32c.hasher().unwrap();
        crc.update(b"123456789");
        let crc = crc.finish();
        assert_eq!(crc.to_string(), "crc32c:0xE3069283");
        assert_eq!(Digest::parse("crc32c:0xe3069283").unwrap(), crc);

        let mut sha = Checksum::Sha256.hasher().unwrap();
        sha.update(b"ab");
        sha.update(b"c");
        let text = sha.finish().to_string();
        assert_eq!(text, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(
            Digest::parse(&text.to_uppercase().replace("SHA256", "sha256")).unwrap().to_string(),
            text
        );
    }

    #[test]
    fn malformed_digests_are_refused_and_foreign_ones_kept() {
        for bad in ["crc32c:0x123", "crc32c:0x+1234567", "sha256:00", "sha256:+1", "crc32c:0xGGGGGGGG"] {
            assert_eq!(Digest::parse(bad).unwrap_err().rule(), Some("component.digest"), "{bad}");
        }
        let hash = format!("blake3:{}", blake3::hash(b"abc").to_hex());
        let known = Digest::parse(&hash).unwrap();
        assert_eq!((known.checksum(), known.to_string()), (Some(Checksum::Blake3), hash));
        assert_eq!(Digest::parse("blake3:00").unwrap(), Digest::Other("blake3:00".into()));
    }
}
