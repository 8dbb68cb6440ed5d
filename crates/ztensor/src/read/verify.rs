//! Verification: stored digests, and checksums that an encoding brings itself, against stored bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Charge, Reader};
use crate::base::{crc32c_combine, parallel};
use crate::catalog::{Component, DecodeStored, DigestOf, Extent, Object, Storage};
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::format::{Format, zt2};
use crate::progress::{Observer, advance};

/// What [`Reader::verify`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verification {
    /// Every digest, or the checksums inside an encoding that has its own, agrees.
    Checked,
    /// At least one component has no digest, or one of a kind this version does not know.
    NoDigest,
}

/// What [`Reader::verify_all`] found in a file without mismatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Tensors all of whose digests agree.
    pub checked: u64,
    /// Tensors of which at least one component has no digest.
    pub unchecked: u64,
}

impl Reader {
    /// The digest to compare on an owned read, if there is one and it is wanted.
    pub(crate) fn digest<'a>(&self, component: &'a Component) -> Option<&'a Digest> {
        component.digest.as_ref().filter(|digest| self.options().verify && digest.hasher().is_some())
    }

    /// Compares a tensor's digests with its bytes as stored; an encoding that has checksums
    /// of its own is checked by them.
    pub fn verify(&self, name: &str) -> Result<Verification> {
        self.check_verification(std::iter::once((name, self.get(name)?)))?;
        self.verify_object(name)
    }

    /// Refuses checks by decoding that would decode more than the limits allow.
    fn check_verification<'a>(&self, objects: impl Iterator<Item = (&'a str, &'a Object)>) -> Result<()> {
        let mut charge = Charge::default();
        for (_, object) in objects {
            let decoded = object.components.iter().filter(|(_, component)| {
                matches!(component.storage, Storage::Encoded(_))
                    && (component.digest_of == DigestOf::Decoded
                        || component.digest.as_ref().is_none_or(|digest| digest.hasher().is_none()))
            });
            for (_, component) in decoded {
                self.touch(component);
                charge.add(component, &(0..component.len));
            }
        }
        charge.check(self)
    }

    fn verify_object(&self, name: &str) -> Result<Verification> {
        let object = self.get(name)?;
        let mut verification = Verification::Checked;
        for (_, component) in &object.components {
            if component.digest_of == DigestOf::Decoded {
                let checked = zt2::verify_component(&self.catalog().sources, object, component);
                verification = verification.max(checked.map_err(|error| self.at(name, error))?);
                continue;
            }
            match component.digest.as_ref().filter(|digest| digest.hasher().is_some()) {
                Some(digest) => self.hash_stored(component, digest).map_err(|error| self.at(name, error))?,
                None => match self.check_itself(component) {
                    Some(checked) => checked.map_err(|error| self.at(name, error))?,
                    None => verification = Verification::NoDigest,
                },
            }
        }
        Ok(verification)
    }

    /// Compares the digests of tensors that are about to be used where they lie, as a read into
    /// other memory does: those of raw components, of files in which digests are there on request.
    /// (The checksums of zip archives are always there, and are compared when a member is read.)
    pub fn verify_in_place(&self, names: &[&str]) -> Result<()> {
        if !self.options().verify || self.format() != Format::Zt {
            return Ok(());
        }
        let has_digest = |component: &Component| {
            let known = component.digest.as_ref().is_some_and(|digest| digest.hasher().is_some());
            // Remote tensors are never viewed: reading them compares their digests.
            let viewed = matches!(component.storage, Storage::Plain(_) | Storage::Inline(_));
            known && viewed && !self.is_remote(component)
        };
        let mut wanted = Vec::new();
        for &name in names {
            let components = self.get(name)?.components.iter();
            wanted.extend(components.filter(|(_, one)| has_digest(one)).map(|(_, one)| (name, one)));
        }
        parallel::for_each(self.options().threads, wanted, |(name, component)| match &component.digest {
            Some(digest) => self.hash_stored(component, digest).map_err(|error| self.at(name, error)),
            None => Ok(()),
        })
    }

    /// Compares the checksums that an encoding brings itself, if it does.
    fn check_itself(&self, component: &Component) -> Option<Result<()>> {
        match &component.storage {
            Storage::Encoded(decoder) => decoder.verify(&self.catalog().sources, 1),
            _ => None,
        }
    }

    /// Compares whole files that this one refers to with the digests that it gives of them: the shards of
    /// a `.zt` file of version 2.
    pub fn verify_shards(&self) -> Result<()> {
        match self.format() == Format::Zt2 && self.catalog().sources.len() > 1 {
            true => zt2::verify_shards(self.catalog()),
            false => Ok(()),
        }
    }

    /// Compares every digest in the file; how many tensors had one and how many had none.
    pub fn verify_all(&self, observer: Option<&dyn Observer>) -> Result<Summary> {
        self.verify_shards()?;
        self.check_verification(self.objects())?;
        let (checked, unchecked) = (AtomicU64::new(0), AtomicU64::new(0));
        parallel::for_each(self.options().threads, self.objects().collect(), |(name, object)| {
            let counter = match self.verify_object(name)? {
                Verification::Checked => &checked,
                Verification::NoDigest => &unchecked,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            advance(observer, object.stored_len())
        })?;
        Ok(Summary { checked: checked.into_inner(), unchecked: unchecked.into_inner() })
    }

    /// Calls `then` with the stored bytes of a component, once they equal its digest: one read for both.
    pub(super) fn with_verified<T>(
        &self,
        extent: Extent,
        digest: &Digest,
        then: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        self.catalog().sources.with_whole(extent, |bytes| {
            let mut hasher = hasher(digest);
            hasher.update(bytes);
            compare(hasher, digest)?;
            then(bytes)
        })
    }

    pub(super) fn hash_stored(&self, component: &Component, digest: &Digest) -> Result<()> {
        let mut hasher = hasher(digest);
        match component.extent() {
            Some(extent) => self.catalog().sources.for_pieces(extent, 1, |piece| {
                hasher.update(piece);
                Ok(())
            })?,
            None => {
                if let Storage::Inline(bytes) = &component.storage {
                    hasher.update(bytes);
                }
            }
        }
        compare(hasher, digest)
    }
}

/// The decoder of a component that takes all of its stored bytes at once, and where they are.
pub(super) fn stored_decoder(storage: &Storage) -> Option<(&dyn DecodeStored, Extent)> {
    match storage {
        Storage::Encoded(decoder) => decoder.stored().zip(decoder.extent()),
        _ => None,
    }
}

/// CRC-32C values of the pieces of one component, read by several threads: with the last piece they
/// are combined and compared.
pub(crate) struct PieceChecksums {
    expected: Digest,
    read: Mutex<PiecesRead>,
}

struct PiecesRead {
    /// Bytes of pieces that were not read yet.
    left: u64,
    /// Offset, length and CRC-32C of each piece.
    pieces: Vec<(u64, u64, u32)>,
}

impl PieceChecksums {
    /// For a component of `len` bytes; `None` unless its digest combines from those of pieces.
    pub(super) fn new(expected: Option<&Digest>, len: u64) -> Option<PieceChecksums> {
        match expected {
            Some(Digest::Crc32c(_)) if len > 0 => {
                let read = Mutex::new(PiecesRead { left: len, pieces: Vec::new() });
                Some(PieceChecksums { expected: expected?.clone(), read })
            }
            _ => None,
        }
    }

    /// Adds the checksum of the piece at `offset`, of `len` bytes. Pieces do not overlap.
    pub(super) fn add(&self, offset: u64, len: u64, crc: u32) -> Result<()> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.pieces.push((offset, len, crc));
        read.left = read.left.saturating_sub(len);
        if read.left > 0 {
            return Ok(());
        }
        read.pieces.sort_unstable();
        let whole = read.pieces.iter().fold(0, |sum, &(_, len, crc)| crc32c_combine::combine(sum, crc, len));
        compare(Hasher::Crc32c(whole), &self.expected)
    }
}

pub(crate) fn hasher(digest: &Digest) -> Hasher {
    // Callers pass only digests that can be computed.
    digest.hasher().unwrap_or(Hasher::Crc32c(0))
}

pub(crate) fn compare(hasher: Hasher, expected: &Digest) -> Result<()> {
    let found = hasher.finish();
    match found == *expected {
        true => Ok(()),
        false => Err(Error::mismatch(format!(
            "the stored bytes have the checksum {found}, the file says {expected}"
        ))),
    }
}
