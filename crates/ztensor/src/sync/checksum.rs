//! Checksums of a tensor's new state, as weight streams publish them.

use sha2::Digest as _;
use twox_hash::XxHash3_128;

use crate::error::{Error, Result, quoted};

/// The checksum of every tensor of a version, over all bytes of its new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChecksumFormat {
    /// XXH3 of 128 bits with seed 0, in its canonical form (high half first).
    #[default]
    Xxh3,
    /// BLAKE3 of 256 bits, without a key.
    Blake3,
    /// Adler-32 as in zlib.
    Adler32,
    /// SHA-256: read in manifests of older SkyRL versions, never written.
    Sha256,
}

impl ChecksumFormat {
    /// The formats that an index may name.
    pub const ALL: [ChecksumFormat; 3] =
        [ChecksumFormat::Xxh3, ChecksumFormat::Blake3, ChecksumFormat::Adler32];

    /// Its name in an index.
    pub fn name(self) -> &'static str {
        match self {
            ChecksumFormat::Xxh3 => "xxh3-128",
            ChecksumFormat::Blake3 => "blake3",
            ChecksumFormat::Adler32 => "adler32",
            ChecksumFormat::Sha256 => "sha256",
        }
    }

    /// The format of that name in an index.
    pub fn from_name(name: &str) -> Result<ChecksumFormat> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let known = "\"xxh3-128\", \"blake3\" and \"adler32\" are known";
            Error::unsupported(format!("the checksum format {} is not known: {known}", quoted(name)))
        })
    }

    /// Digits of its text form.
    fn digits(self) -> usize {
        match self {
            ChecksumFormat::Xxh3 => 32,
            ChecksumFormat::Blake3 | ChecksumFormat::Sha256 => 64,
            ChecksumFormat::Adler32 => 8,
        }
    }

    /// Whether `text` has the form of this checksum: lower-case hexadecimal digits.
    pub(crate) fn has_form(self, text: &str) -> bool {
        text.len() == self.digits() && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    pub(crate) fn hasher(self) -> Hasher {
        match self {
            ChecksumFormat::Xxh3 => Hasher::Xxh3(Box::new(XxHash3_128::new())),
            ChecksumFormat::Blake3 => Hasher::Blake3(Box::new(blake3::Hasher::new())),
            ChecksumFormat::Adler32 => Hasher::Adler32(simd_adler32::Adler32::new()),
            ChecksumFormat::Sha256 => Hasher::Sha256(Box::default()),
        }
    }

    /// The checksum of `bytes`, as text.
    pub fn of(self, bytes: &[u8]) -> String {
        match self {
            ChecksumFormat::Xxh3 => xxh3(bytes),
            _ => {
                let mut hasher = self.hasher();
                hasher.update(bytes);
                hasher.finish()
            }
        }
    }
}

impl std::fmt::Display for ChecksumFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// XXH3-128 of `bytes` as text.
pub(crate) fn xxh3(bytes: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(bytes))
}

/// A checksum on the way.
pub(crate) enum Hasher {
    Xxh3(Box<XxHash3_128>),
    Blake3(Box<blake3::Hasher>),
    Adler32(simd_adler32::Adler32),
    Sha256(Box<sha2::Sha256>),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Xxh3(hasher) => hasher.write(bytes),
            Hasher::Blake3(hasher) => drop(hasher.update(bytes)),
            Hasher::Adler32(hasher) => hasher.write(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> String {
        match self {
            Hasher::Xxh3(hasher) => format!("{:032x}", hasher.finish_128()),
            Hasher::Blake3(hasher) => hasher.finalize().to_hex().to_string(),
            Hasher::Adler32(hasher) => format!("{:08x}", hasher.finish()),
            Hasher::Sha256(hasher) => hex(&hasher.finalize()),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_specifications() {
        use ChecksumFormat::{Adler32, Blake3, Sha256, Xxh3};
        let known = [
            (Adler32, "024d0127"),
            (Xxh3, "06b05ab6733a618578af5f94892f3950"),
            (Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ];
        for (format, text) in known {
            assert_eq!(format.of(b"abc"), text, "{format}");
            let mut hasher = format.hasher();
            hasher.update(b"a");
            hasher.update(b"bc");
            assert_eq!(hasher.finish(), text, "{format}");
            assert!(format.has_form(text));
            assert!(!format.has_form(&text.to_uppercase().replace('0', "A")));
            assert!(!format.has_form(&text[1..]));
        }
        assert_eq!(Adler32.of(b""), "00000001");
        assert!(ChecksumFormat::from_name("crc32").is_err());
        assert!(ChecksumFormat::from_name("sha256").is_err());
    }
}
