//! What is different in `.zt` files of version 2: every component has a digest of what it decodes to, and
//! compressed ones are seekable zstd streams.

use std::sync::Arc;

use super::options::{Compression, WriteOptions};
use super::writer::Writer;
use crate::base::CACHE_BLOCK;
use crate::catalog::{Component, DigestOf, Extent, Storage};
use crate::decode::{SeekableEncoder, SeekableZstd};
use crate::digest::{Checksum, Digest, Hasher};
use crate::error::{Error, Result};
use crate::format::zt2::{self, CheckedContent};
use crate::progress::{Observer, advance};
use crate::tensor::Tensor;

/// The hasher of the digest that a component gets.
pub(super) fn hasher(checksum: Checksum) -> Result<Hasher> {
    match (checksum, checksum.hasher()) {
        (Checksum::Sha256, Some(hasher)) => Ok(hasher),
        (Checksum::None, _) => Ok(zt2::hasher()),
        _ => Err(Error::unsupported(
            "a .zt file of version 2 has XXH3 or SHA-256 digests: leave out the checksum, or ask for sha256",
        )),
    }
}

/// The zstd level of a compression, if there is one.
pub(super) fn zstd_level(compression: Compression) -> Result<Option<i32>> {
    match compression {
        Compression::None => Ok(None),
        Compression::Zstd(level) => Ok(Some(level)),
        Compression::Z4ai(_) => Err(Error::unsupported(
            "a .zt file of version 2 has no weight codec: compress with zstd, or write version 1.2",
        )),
    }
}

/// A component that lies at `extent`, as a seekable zstd stream or as it is.
pub(super) fn component(described: &Component, encoded: bool, extent: Extent, digest: Digest) -> Component {
    let storage = match encoded {
        true => Storage::Encoded(Arc::new(SeekableZstd::new(extent, described.len))),
        false => Storage::Plain(extent),
    };
    let mut component = Component::new(described.dtype, described.len, storage);
    component.unknown_type = described.unknown_type.clone();
    (component.digest, component.digest_of) = (Some(digest), DigestOf::Decoded);
    component
}

impl Writer<'_> {
    /// Writes tensors, which [`zt2::check_tensor`] has seen, one after another.
    pub(super) fn write_version2(
        &mut self,
        tensors: &[(&str, &Tensor<'_>)],
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let level = zstd_level(options.compression)?;
        for (name, tensor) in tensors {
            let object = tensor.describe();
            let mut components = Vec::with_capacity(object.components.len());
            for ((role, described), (_, array)) in object.components.iter().zip(&tensor.components) {
                let content = CheckedContent::of(&object, described, hasher(options.checksum)?);
                let written = self.write_part(described, content, &array.bytes, level, observer);
                components.push((role.clone(), written.map_err(|error| error.in_tensor(*name))?));
            }
            self.record(name, tensor, components)?;
        }
        Ok(())
    }

    fn write_part(
        &mut self,
        described: &Component,
        mut content: CheckedContent,
        bytes: &[u8],
        level: Option<i32>,
        observer: Option<&dyn Observer>,
    ) -> Result<Component> {
        self.align()?;
        let start = self.position();
        // What has no bytes gets no frame.
        let level = level.filter(|_| !bytes.is_empty());
        match level {
            None => self.put_copied(bytes, |block| content.take(block), observer)?,
            Some(level) => {
                let mut encoder = SeekableEncoder::new(level, self.threads());
                let mut block = Vec::with_capacity(bytes.len().min(CACHE_BLOCK));
                for piece in bytes.chunks(CACHE_BLOCK) {
                    block.clear();
                    block.extend_from_slice(piece);
                    content.take(&block)?;
                    encoder.push(&block, |encoded| self.put(encoded))?;
                    advance(observer, piece.len() as u64)?;
                }
                encoder.finish(|encoded| self.put(encoded))?;
            }
        }
        let extent = Extent::new(start, self.position() - start);
        Ok(component(described, level.is_some(), extent, content.finish()?))
    }
}
