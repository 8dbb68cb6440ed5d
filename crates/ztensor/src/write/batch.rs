//! Writing several tensors in one call: compressed ahead by other threads, or gathered into vectored writes.

use std::collections::HashSet;
use std::io::Write;

use super::options::{Compression, WriteOptions, ZtVersion};
use super::writer::{WRITE_BUFFER, Writer, duplicate};
use crate::base::parallel;
use crate::catalog::{Component, Extent, Layout, Object, Role, Storage};
use crate::error::Result;
use crate::format::gguf::GgmlType;
use crate::format::zt2;
use crate::progress::{Observer, advance};
use crate::tensor::Tensor;
use crate::write::compress::{Blob, JOBS_ABOVE};
use crate::write::vectored::{Gather, LONGEST_PIECE};

/// Tensors of this size on average are written from where they lie. Copying smaller ones into
/// the buffer costs less than a piece of a gathered write does. (flat: `constants.py`, `write_1k` to
/// `write_4k`)
const WORTH_GATHERING: u64 = 2 << 10;

/// For each thread, tensors of this size may be compressed and not yet written. (limit)
const ENCODED_AHEAD: u64 = JOBS_ABOVE as u64;

impl Writer<'_> {
    /// Writes several tensors; when they are compressed, several at a time.
    pub fn write_many<'t>(
        &mut self,
        tensors: &[(&'t str, &'t Tensor<'t>)],
        options: WriteOptions,
    ) -> Result<()> {
        self.write_many_observed(tensors, options, None)
    }

    /// Like [`write_many`](Writer::write_many), for calls long enough to watch.
    /// A cancelled writer must be dropped: part of a tensor may be in the file.
    pub fn write_many_observed<'t>(
        &mut self,
        tensors: &[(&'t str, &'t Tensor<'t>)],
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        options.compression.check()?;
        let narrow = |tensor: &Tensor<'_>| self.version == ZtVersion::V1 && tensor.has_narrow_indices();
        if tensors.iter().any(|(_, tensor)| narrow(tensor)) {
            let wide = tensors.iter().map(|(_, tensor)| tensor.with_wide_indices());
            let wide = wide.collect::<Result<Vec<_>>>()?;
            let pairs: Vec<_> = tensors.iter().zip(&wide).map(|((name, _), wide)| (*name, wide)).collect();
            return self.write_many_observed(&pairs, options, observer);
        }
        let mut names = HashSet::with_capacity(tensors.len());
        for (name, tensor) in tensors {
            if self.contains(name) || !names.insert(*name) {
                return Err(duplicate(name));
            }
            tensor.check().map_err(|error| error.in_tensor(*name))?;
        }
        if self.version == ZtVersion::V2 {
            tensors.iter().try_for_each(|(name, tensor)| zt2::check_tensor(name, tensor))?;
        }
        if options.compression == Compression::None {
            self.reserve(tensors.iter().map(|(_, tensor)| byte_len(tensor)).sum())?;
        }
        if self.version == ZtVersion::V2 {
            return self.write_version2(tensors, options, observer);
        }
        if options.compression != Compression::None {
            return self.write_encoded(tensors, options, observer);
        }
        for batch in batches(tensors, self.threads) {
            if self.gathers(batch, options) {
                self.write_gathered(batch, observer)?;
                continue;
            }
            for (name, tensor) in batch {
                let plain = tensor.components.iter().map(|_| None);
                self.write_components(name, tensor, plain, options, observer)?;
            }
        }
        Ok(())
    }

    /// Writes tensors in order, while the next ones are compressed by other threads.
    fn write_encoded<'t>(
        &mut self,
        tensors: &[(&'t str, &'t Tensor<'t>)],
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let threads = parallel::resolve(self.threads);
        let most = ENCODED_AHEAD * threads as u64;
        let total = tensors.iter().map(|(_, tensor)| byte_len(tensor)).sum::<u64>().min(most);
        let compressors = std::mem::take(&mut self.compressors);
        let encode = |(name, tensor): (&'t str, &'t Tensor<'t>)| {
            let blocks = GgmlType::from_layout_name(tensor.layout.name());
            let shaped = tensor.layout == Layout::Dense || blocks.is_some();
            let shape = if shaped { &tensor.shape[..] } else { &[] };
            let frames = tensor.components.iter().map(|(_, array)| {
                let blob = Blob { bytes: &array.bytes, dtype: array.dtype, shape, blocks };
                let workers = parallel::share(threads, blob.bytes.len() as u64, total);
                let frame = compressors.encode(&blob, options.compression, workers);
                advance(observer, 0).and(frame)
            });
            Ok((name, tensor, frames.collect::<Result<Vec<_>>>()?))
        };
        let items = tensors.iter().map(|item| (byte_len(item.1), *item)).collect();
        let written = parallel::in_order(threads, items, most, encode, |(name, tensor, mut frames)| {
            let encoded = frames.iter().map(Option::as_deref);
            self.write_components(name, tensor, encoded, options, observer)?;
            frames.drain(..).flatten().for_each(|frame| compressors.recycle(frame));
            Ok(())
        });
        self.compressors = compressors;
        written
    }

    /// Writes what a tensor consists of, each with its frame if there is one, and records it.
    fn write_components<'f>(
        &mut self,
        name: &str,
        tensor: &Tensor<'_>,
        encoded: impl Iterator<Item = Option<&'f [u8]>>,
        options: WriteOptions,
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let mut components = Vec::with_capacity(tensor.components.len());
        for ((role, array), frame) in tensor.components.iter().zip(encoded) {
            let component = self.write_component(array, frame, options, observer)?;
            components.push((role.clone(), component));
        }
        self.record(name, tensor, components)
    }

    /// Adds a tensor whose components are written to the list of contents.
    pub(super) fn record(
        &mut self,
        name: &str,
        tensor: &Tensor<'_>,
        components: Vec<(Role, Component)>,
    ) -> Result<()> {
        let mut object = Object::new(tensor.shape.clone(), tensor.layout.clone(), components);
        object.attributes = tensor.attributes.clone();
        self.catalog.insert(name, object)
    }

    /// Whether a batch is written from where it lies: raw tensors that are no crumbs.
    fn gathers(&self, batch: &[(&str, &Tensor<'_>)], options: WriteOptions) -> bool {
        let pieces: usize = batch.iter().map(|(_, tensor)| tensor.components.len()).sum();
        let bytes: u64 = batch.iter().map(|(_, tensor)| byte_len(tensor)).sum();
        options == WriteOptions::default()
            && self.out.get_ref().gathers()
            && bytes >= WRITE_BUFFER as u64
            && bytes >= pieces as u64 * WORTH_GATHERING
    }

    /// Writes raw tensors without a buffer between.
    fn write_gathered(
        &mut self,
        batch: &[(&str, &Tensor<'_>)],
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        let mut gather = Gather::default();
        for (name, tensor) in batch {
            let mut components = Vec::with_capacity(tensor.components.len());
            for (role, array) in &tensor.components {
                let padding = self.padding();
                self.queue(&mut gather, padding, observer)?;
                let extent = Extent::new(self.position, array.bytes.len() as u64);
                for piece in array.bytes.chunks(LONGEST_PIECE) {
                    self.queue(&mut gather, piece, observer)?;
                }
                let mut component = Component::new(array.dtype, extent.len, Storage::Plain(extent));
                component.unknown_type = array.unknown_type.clone();
                components.push((role.clone(), component));
            }
            self.record(name, tensor, components)?;
        }
        self.put_gathered(&mut gather, observer)
    }

    /// Counts bytes as written that will be with the rest of `gather`.
    fn queue<'a>(
        &mut self,
        gather: &mut Gather<'a>,
        bytes: &'a [u8],
        observer: Option<&dyn Observer>,
    ) -> Result<()> {
        if gather.is_full() {
            self.put_gathered(gather, observer)?;
        }
        gather.push(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn put_gathered(&mut self, gather: &mut Gather<'_>, observer: Option<&dyn Observer>) -> Result<()> {
        self.check_whole()?;
        let written = self.out.flush().and_then(|()| gather.write_to(self.out.get_mut()));
        let bytes = self.check(written)?;
        advance(observer, bytes)
    }
}

fn byte_len(tensor: &Tensor<'_>) -> u64 {
    tensor.components.iter().map(|(_, array)| array.bytes.len() as u64).sum()
}

/// Cuts a list of tensors into runs that are written at once.
fn batches<'a, 'b>(
    tensors: &'a [(&'b str, &'b Tensor<'b>)],
    threads: usize,
) -> impl Iterator<Item = &'a [(&'b str, &'b Tensor<'b>)]> {
    let budget = (16 << 20) * parallel::resolve(threads) as u64;
    let mut rest = tensors;
    std::iter::from_fn(move || {
        let mut bytes = 0u64;
        let fits = |(_, tensor): &&(&str, &Tensor<'_>)| {
            let first = bytes == 0;
            bytes += byte_len(tensor).max(1);
            first || bytes <= budget
        };
        let count = rest.iter().take_while(fits).count();
        let (batch, after) = rest.split_at(count);
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}
