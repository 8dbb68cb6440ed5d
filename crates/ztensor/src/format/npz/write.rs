//! Writing `.npy` and `.npz`: headers as NumPy writes them, members stored at
//! multiples of 64 so that they can be viewed in place, or deflated on request.

use std::collections::HashSet;
use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::archive::{Archive, Member, for_blocks};
use super::{FILE, OPAQUE, header};
use crate::catalog::{Layout, Object};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::zip;
use crate::progress::advance;
use crate::tensor::Tensor;
use crate::write::export::{Fetched, Output, Placed, Plan, Whole, WriteStep, write_failed};

/// Stored members start at multiples of this; headers are a multiple of it long.
const ALIGNMENT: u64 = 64;

pub(crate) fn export_archive(plan: &Plan<'_>) -> Result<WriteStep> {
    if let Some(level) = plan.options.deflate.filter(|level| !(1..=9).contains(level)) {
        return Err(Error::invalid(format!("deflate level {level} is not one of 1 to 9")));
    }
    let mut members = HashSet::with_capacity(plan.objects.len());
    for (name, object) in &plan.objects {
        let member = member_name(name, object);
        let long = member.len() > usize::from(u16::MAX);
        if long || zip::check_name(&member).is_err() || !members.insert(member) {
            return Err(plan.cannot(
                name,
                "a tensor of this name: members of an archive need distinct names without a `..` part",
            ));
        }
    }
    let heads = heads(plan)?;
    Ok(Box::new(move |plan, out| write_archive(&heads, plan, out)))
}

pub(crate) fn export_array(plan: &Plan<'_>) -> Result<WriteStep> {
    match &plan.objects[..] {
        [(name, object)] if is_layout(object, FILE) => Err(plan.cannot(name, "a file that is not an array")),
        [_] => {
            let heads = heads(plan)?;
            Ok(Box::new(move |plan, out| {
                out.write_all(&heads[0]).map_err(write_failed)?;
                plan.write_data(&[Placed { index: 0, role: "data", padding: 0 }], out)
            }))
        }
        objects => {
            Err(Error::unsupported(format!("a .npy file holds exactly one array, not {}", objects.len())))
        }
    }
}

/// What precedes the elements of each array. Refuses what NumPy has no type for.
fn heads(plan: &Plan<'_>) -> Result<Vec<Vec<u8>>> {
    plan.require_dense(
        |dtype| numpy_descr(dtype).is_some(),
        |object| is_layout(object, FILE) || (is_layout(object, OPAQUE) && descr(object).is_some()),
    )?;
    plan.check_attributes()?;
    let heads =
        plan.objects.iter().map(|(name, object)| head(object).map_err(|error| error.in_tensor(*name)));
    heads.collect()
}

fn is_layout(object: &Object, name: &str) -> bool {
    matches!(&object.layout, Layout::Other(layout) if **layout == *name)
}

/// NumPy's own name of a type; `ml_dtypes` are not NumPy's own.
fn numpy_descr(dtype: DType) -> Option<&'static str> {
    dtype.numpy_name().filter(|name| name.starts_with(['<', '|']))
}

/// The type as the header has it.
fn descr(object: &Object) -> Option<&str> {
    match is_layout(object, OPAQUE) {
        false => numpy_descr(object.dtype()?),
        true => {
            let descr = object.attribute("descr")?.as_text()?;
            let (kind, big_endian) = header::element(descr).ok()?;
            let len = object.elements()?.checked_mul(kind.size())?;
            (!big_endian && len == object.byte_len()).then_some(descr)
        }
    }
}

/// What precedes the elements: a header, or nothing for what is no array.
fn head(object: &Object) -> Result<Vec<u8>> {
    match is_layout(object, FILE) {
        true => Ok(Vec::new()),
        false => header::write(descr(object).unwrap_or_default(), &object.shape),
    }
}

fn member_name(name: &str, object: &Object) -> String {
    match is_layout(object, FILE) {
        true => name.to_owned(),
        false => format!("{name}.npy"),
    }
}

/// A member whose checksum and deflated form were computed ahead of the thread that writes.
struct Prepared<'a> {
    tensor: Tensor<'a>,
    crc: u32,
    deflated: Option<Vec<u8>>,
}

fn prepare<'a>(head: &[u8], tensor: Tensor<'a>, level: Option<u32>) -> Result<Prepared<'a>> {
    let parts = [head, data(&tensor)];
    let (crc, deflated) = match level {
        None => {
            let mut crc = crc32fast::Hasher::new();
            parts.iter().for_each(|part| crc.update(part));
            (crc.finalize(), None)
        }
        Some(level) => {
            let (deflated, crc) = deflate(&parts, level)?;
            (crc, Some(deflated))
        }
    };
    Ok(Prepared { tensor, crc, deflated })
}

fn data<'t>(tensor: &'t Tensor<'_>) -> &'t [u8] {
    tensor.component("data").map_or(&[], |data| &data.bytes)
}

fn write_archive(heads: &[Vec<u8>], plan: &Plan<'_>, out: &mut Output<'_>) -> Result<()> {
    let mut archive = Archive::new(out);
    let order: Vec<usize> = (0..plan.objects.len()).collect();
    let prepare = |index: usize, tensor| prepare(&heads[index], tensor, plan.options.deflate);
    plan.pipeline(plan.options.threads, &order, Whole::Always, prepare, |fetched| {
        let Fetched::Group(members) = fetched else { return Ok(()) };
        for (index, prepared) in members {
            let (name, object) = &plan.objects[index];
            let (head, data, crc) = (&heads[index], data(&prepared.tensor), prepared.crc);
            let len = head.len() as u64 + data.len() as u64;
            let member_name = member_name(name, object);
            let member = |method, stored, alignment| Member {
                name: &member_name,
                method,
                crc,
                stored,
                len,
                alignment,
            };
            let added = match &prepared.deflated {
                None => archive.add_shared(&member(0, len, ALIGNMENT), &[head, data]),
                Some(deflated) => archive.add(&member(8, deflated.len() as u64, 1), &[deflated]),
            };
            added.map_err(|error| error.in_tensor(*name))?;
            advance(plan.options.observer, data.len() as u64)?;
        }
        Ok(())
    })?;
    archive.finish()
}

fn deflate(parts: &[&[u8]], level: u32) -> Result<(Vec<u8>, u32)> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
    let mut crc = crc32fast::Hasher::new();
    for_blocks(parts, |block| {
        crc.update(block);
        encoder.write_all(block).map_err(write_failed)
    })?;
    Ok((encoder.finish().map_err(write_failed)?, crc.finalize()))
}
