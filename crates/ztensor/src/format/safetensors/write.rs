//! Writing `.safetensors`, byte for byte as the format's own library does.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::json::push_string;
use crate::format::safetensors::{MAX_HEADER, METADATA};
use crate::write::export::{Placed, Plan, WriteStep, write_failed};

/// The order of the data: large elements first, so that every tensor starts at
/// a multiple of its element's size without holes. This is the library's order.
#[rustfmt::skip]
const ORDER: [DType; 22] = [
    DType::U64, DType::I64, DType::F64, DType::C64,
    DType::F32, DType::U32, DType::I32,
    DType::BF16, DType::F16, DType::U16, DType::I16,
    DType::F8E5M2FNUZ, DType::F8E4M3FNUZ, DType::F8E8M0, DType::F8E4M3FN, DType::F8E5M2, DType::I8, DType::U8,
    DType::F6E3M2, DType::F6E2M3, DType::F4E2M1, DType::Bool,
];

fn check(plan: &Plan<'_>) -> Result<()> {
    plan.require_dense(|dtype| dtype.safetensors_name().is_some(), |_| false)?;
    for (name, object) in &plan.objects {
        if *name == METADATA {
            return Err(plan.cannot(name, "a tensor of this name, which stands for the file's attributes"));
        }
        let bits = object.dtype().map(|dtype| u64::from(dtype.bits()));
        let whole = object.elements().zip(bits).and_then(|(count, bits)| count.checked_mul(bits));
        if whole.is_none_or(|bits| bits % 8 != 0) {
            return Err(plan.cannot(name, "packed elements that do not fill whole bytes"));
        }
    }
    plan.check_attributes()
}

pub(crate) fn export(plan: &Plan<'_>) -> Result<WriteStep> {
    let (start, order) = start(plan)?;
    Ok(Box::new(move |plan, out| {
        out.write_all(&start).map_err(write_failed)?;
        let placed = |index: usize| Placed { index, role: "data", padding: 0 };
        plan.write_data(&order.into_iter().map(placed).collect::<Vec<_>>(), out)
    }))
}

/// All that comes before the data, and the order of the tensors in it. Refuses what a file cannot hold.
pub(crate) fn start(plan: &Plan<'_>) -> Result<(Vec<u8>, Vec<usize>)> {
    check(plan)?;
    let rank = |index: &usize| {
        let dtype = plan.objects[*index].1.dtype();
        ORDER.iter().position(|known| Some(*known) == dtype)
    };
    let mut order: Vec<usize> = (0..plan.objects.len()).collect();
    order.sort_by_cached_key(|index| (rank(index), plan.objects[*index].0));
    let header = header(plan, &order)?;
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend_from_slice(header.as_bytes());
    Ok((start, order))
}

fn header(plan: &Plan<'_>, order: &[usize]) -> Result<String> {
    let mut json = String::with_capacity(order.len() * 128);
    json.push('{');
    let metadata: Vec<_> =
        plan.attributes.iter().filter_map(|(key, value)| Some((key, value.as_text()?))).collect();
    if !metadata.is_empty() {
        push_string(&mut json, METADATA);
        json.push_str(":{");
        for (index, (key, value)) in metadata.into_iter().enumerate() {
            json.push_str(if index > 0 { "," } else { "" });
            push_string(&mut json, key);
            json.push(':');
            push_string(&mut json, value);
        }
        json.push('}');
    }
    let mut offset = 0u64;
    for &index in order {
        let (name, object) = &plan.objects[index];
        json.push_str(if json.len() > 1 { "," } else { "" });
        push_string(&mut json, name);
        let dtype = object.dtype().and_then(DType::safetensors_name).unwrap_or_default();
        let end =
            offset.checked_add(object.byte_len()).ok_or_else(|| Error::invalid("more than 2^64 bytes"))?;
        // Writing to a string cannot fail.
        let _ = write!(json, ":{{\"dtype\":\"{dtype}\",\"shape\":[");
        for (index, size) in object.shape.iter().enumerate() {
            let _ = write!(json, "{}{size}", if index > 0 { "," } else { "" });
        }
        let _ = write!(json, "],\"data_offsets\":[{offset},{end}]}}");
        offset = end;
    }
    json.push('}');
    // The data starts at a multiple of eight, which is all that its largest elements need.
    let padded = json.len().next_multiple_of(8);
    json.extend(std::iter::repeat_n(' ', padded - json.len()));
    if json.len() as u64 > MAX_HEADER {
        return Err(Error::unsupported(format!(
            "the header would have {} bytes, and readers of .safetensors allow {MAX_HEADER}: write several files (--max-shard-size)",
            json.len()
        )));
    }
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_format_has_a_place_in_the_order() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.safetensors_name().is_some()) {
            assert_eq!(ORDER.iter().filter(|known| **known == dtype).count(), 1, "{dtype}");
        }
    }
}
