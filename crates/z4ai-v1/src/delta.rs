//! The `Z4DL` delta frame, version 2: XOR with a reference, coded as a frame.

use blake2::Blake2b;
use blake2::digest::Digest;
use blake2::digest::consts::U16;

use crate::Error;
use crate::bytes::Bytes;
use crate::{Result, StandAlone, check_version, corrupt};

pub(super) const MAGIC: &[u8; 4] = b"Z4DL";
pub(super) const VERSION: u8 = 2;

/// The coded difference and which reference it is to.
pub(super) struct Delta<'a> {
    len: u64,
    digest: &'a [u8],
    difference: &'a [u8],
}

impl<'a> Delta<'a> {
    pub(super) fn parse(frame: &'a [u8]) -> Result<Self> {
        let mut bytes = Bytes::new(frame);
        if bytes.take(MAGIC.len(), "magic")? != MAGIC {
            return Err(Error::unsupported("not a delta frame: it has another magic"));
        }
        check_version(bytes.u8("version")?, VERSION, "Z4DL")?;
        let _flags = bytes.u8("flags")?;
        let _reserved = bytes.u16("reserved field")?;
        let len = bytes.u64("reference length")?;
        let digest = bytes.take(16, "reference digest")?;
        Ok(Self { len, digest, difference: bytes.take_rest() })
    }

    /// How long the reference and the result are.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Refuses a reference other than the one the delta was made from.
    pub(super) fn check_reference(&self, reference: &[u8]) -> Result<()> {
        if reference.len() as u64 != self.len {
            return Err(Error::mismatch(format!(
                "the delta's reference has {} bytes, this one {}",
                self.len,
                reference.len()
            )));
        }
        if Blake2b::<U16>::digest(reference).as_slice() != self.digest {
            return Err(Error::mismatch(
                "the reference is not the one the delta was made from: its digest differs",
            ));
        }
        Ok(())
    }

    /// Decodes into `out`, as long as the reference, which must have passed
    /// [`Delta::check_reference`].
    pub(super) fn decode_into(&self, reference: &[u8], out: &mut [u8]) -> Result<()> {
        let difference = StandAlone::parse_core(self.difference)?;
        if difference.len() != reference.len() {
            return Err(corrupt(format!(
                "a difference of {} bytes to a reference of {}",
                difference.len(),
                reference.len()
            )));
        }
        difference.decode_into(out)?;
        for (out, reference) in out.iter_mut().zip(reference) {
            *out ^= reference;
        }
        Ok(())
    }
}
