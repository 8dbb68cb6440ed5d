//! Exporting: tensors packed as if they had been saved to a `.safetensors` file first.

use std::collections::HashMap;
use std::ops::Range;

use twox_hash::XxHash3_128;

use super::container::Mode;
use super::contents::{Content, Encoder, Output};
use super::duplicates::WORTHWHILE;
use super::pack::batches;
use crate::base::parallel;
use crate::error::Result;
use crate::format::safetensors;
use crate::progress::{advance, finish};
use crate::tensor::Tensor;
use crate::write::export::{self, Plan, WriteStep};

pub(crate) fn export(plan: &Plan<'_>) -> Result<WriteStep> {
    let (start, order) = safetensors::write::start(plan)?;
    Ok(Box::new(move |plan, out| write(&start, &order, plan, out)))
}

fn write(start: &[u8], order: &[usize], plan: &Plan<'_>, out: &mut export::Output<'_>) -> Result<()> {
    let options = plan.options;
    let mut packing = Packing {
        plan,
        order,
        encoder: Encoder::new(options.effort, options.level),
        output: Output::start(out, Mode::Tensors)?,
        first_of: HashMap::new(),
    };
    let header = packing.encoder.encode(start, Content::Bytes, true, options.threads)?;
    packing.output.blob(&header, start.len() as u64)?;
    let lens: Vec<u64> = order.iter().map(|&index| plan.objects[index].1.byte_len()).collect();
    let total = lens.iter().fold(start.len() as u64, |sum, len| sum + len);
    for batch in batches(lens, options.threads) {
        packing.write(batch)?;
    }
    packing.output.finish(total)?;
    finish(options.observer)
}

struct Packing<'a, 'b> {
    plan: &'a Plan<'a>,
    order: &'a [usize],
    encoder: Encoder,
    output: Output<'b>,
    /// The first tensor of each length and hash, by its place in the order.
    first_of: HashMap<(usize, u128), usize>,
}

impl<'a> Packing<'a, '_> {
    /// Fetches and encodes several tensors at a time, and writes them in order.
    fn write(&mut self, batch: Range<usize>) -> Result<()> {
        let threads = self.plan.options.threads;
        let tensors = self.plan.fetch_all(&self.order[batch.clone()])?;
        let mut same = Vec::with_capacity(tensors.len());
        for (at, tensor) in batch.clone().zip(&tensors) {
            same.push(self.earlier(at, bytes_of(tensor))?);
        }
        let total = tensors.iter().map(|tensor| bytes_of(tensor).len() as u64).sum();
        let mut encoded: Vec<_> = tensors.iter().map(|_| None).collect();
        let mut jobs = Vec::with_capacity(tensors.len());
        for (((at, tensor), same), slot) in batch.zip(&tensors).zip(&same).zip(&mut encoded) {
            let object = &self.plan.objects[self.order[at]].1;
            let what = match object.dtype() {
                Some(dtype) => Content::Elements(dtype, &object.shape),
                None => Content::Bytes,
            };
            if same.is_none() {
                jobs.push((bytes_of(tensor), what, slot));
            }
        }
        let encoder = &self.encoder;
        parallel::for_each(threads, jobs, |(content, what, slot)| {
            let threads = parallel::share(threads, content.len() as u64, total);
            *slot = Some(encoder.encode(content, what, false, threads)?);
            Ok(())
        })?;
        for ((tensor, encoded), same) in tensors.iter().zip(encoded).zip(same) {
            let len = bytes_of(tensor).len() as u64;
            match (encoded, same) {
                (Some(encoded), _) => {
                    self.output.blob(&encoded, len)?;
                    self.encoder.recycle(encoded);
                }
                // Contents are counted from the header on.
                (None, first) => self.output.same(first.unwrap_or(0) + 1, len),
            }
            advance(self.plan.options.observer, len)?;
        }
        Ok(())
    }

    /// The first tensor with the same bytes, if there is one before this.
    fn earlier(&mut self, at: usize, bytes: &[u8]) -> Result<Option<usize>> {
        if (bytes.len() as u64) < WORTHWHILE {
            return Ok(None);
        }
        let key = (bytes.len(), XxHash3_128::oneshot(bytes));
        let first = *self.first_of.entry(key).or_insert(at);
        // Equal hashes mean equal bytes unless the collision is forged: compare.
        Ok((first != at && bytes_of(&self.plan.fetch(self.order[first])?) == bytes).then_some(first))
    }
}

fn bytes_of<'t>(tensor: &'t Tensor<'_>) -> &'t [u8] {
    tensor.component("data").map_or(&[], |data| &data.bytes)
}
