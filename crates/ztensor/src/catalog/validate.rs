//! What every object must satisfy, whatever format it came from.

use crate::catalog::{Catalog, Component, Extent, Layout, MAX_RANK, Object};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};

/// Checks an object's structure: a rank within bounds, the components its
/// layout needs, and sizes that agree with its shape. Contents are not touched.
pub(crate) fn object(object: &Object) -> Result<()> {
    if object.shape.len() > MAX_RANK {
        return Err(Error::corrupt("object.rank", format!("a shape has more than {MAX_RANK} dimensions")));
    }
    let overflow = || {
        Error::corrupt(
            "object.overflow",
            format!("the shape {:?} describes more bytes than 2^64", object.shape),
        )
    };
    let elements = object.elements().ok_or_else(overflow)?;
    for (role, component) in &object.components {
        whole_elements(role, component)?;
    }
    let sizes = |rule, role: &str, dtype: Option<DType>, count: u64| -> Result<()> {
        let component = object.component(role).ok_or_else(|| {
            Error::corrupt(rule, format!("a {} object needs a component {role:?}", object.layout))
        })?;
        if let Some(dtype) = dtype
            && component.dtype != dtype
        {
            return Err(Error::corrupt(rule, format!("{role:?} is {} instead of {dtype}", component.dtype)));
        }
        let expected = component.dtype.byte_len(count).ok_or_else(overflow)?;
        // A logical type that is not known may pack its elements in any way.
        if component.len != expected && component.unknown_type.is_none() {
            return Err(Error::corrupt(
                rule,
                format!(
                    "{role:?} has {} bytes where {count} elements of {} take {expected}",
                    component.len, component.dtype
                ),
            ));
        }
        Ok(())
    };
    match &object.layout {
        Layout::Dense => sizes("layout.dense", "data", None, elements),
        Layout::SparseCsr => {
            let &[rows, _] = &object.shape[..] else {
                return Err(Error::corrupt(
                    "layout.csr",
                    format!("a CSR matrix has two dimensions, not {}", object.shape.len()),
                ));
            };
            let pointers = rows.checked_add(1).ok_or_else(overflow)?;
            let nonzero = count(object, "layout.csr", "indices")?;
            let index = index_type(object, "indices");
            sizes("layout.csr", "indices", Some(index), nonzero)?;
            sizes("layout.csr", "indptr", Some(index), pointers)?;
            sizes("layout.csr", "values", None, nonzero)
        }
        Layout::SparseCoo => {
            let rank = object.shape.len() as u64;
            let coordinates = count(object, "layout.coo", "coords")?;
            // A scalar has no coordinates to count by, so its values count themselves.
            let nonzero = match rank {
                0 => count(object, "layout.coo", "values")?,
                rank => coordinates / rank,
            };
            let expected = nonzero.checked_mul(rank).ok_or_else(overflow)?;
            sizes("layout.coo", "coords", Some(index_type(object, "coords")), expected)?;
            sizes("layout.coo", "values", None, nonzero)
        }
        Layout::QuantizedGroup => ["packed_weight", "scales", "zeros"]
            .iter()
            .try_for_each(|role| count(object, "layout.quantized", role).map(drop)),
        Layout::Other(name) if name.is_empty() => {
            Err(Error::corrupt("object.format", "the layout's name is empty"))
        }
        Layout::Other(_) => Ok(()),
    }
}

/// The type that indices have: `u64`, or the `u32` of formats that have both.
fn index_type(object: &Object, role: &str) -> DType {
    match object.component(role).map(|component| component.dtype) {
        Some(DType::U32) => DType::U32,
        _ => DType::U64,
    }
}

/// A component holds whole elements of its type, whatever its role and layout: memory that is
/// allocated by counting elements is then exactly as long as the bytes that are read into it.
/// Types of less than a byte fill up their last byte, so any length holds whole elements of those.
fn whole_elements(role: &str, component: &Component) -> Result<()> {
    let whole = component.dtype.size().is_none_or(|size| component.len.is_multiple_of(size as u64));
    if whole {
        return Ok(());
    }
    Err(Error::corrupt(
        "component.elements",
        format!(
            "the component {} has {} bytes, which are not whole elements of {}",
            quoted(role),
            component.len,
            component.dtype
        ),
    ))
}

/// How many elements a component of that role holds.
fn count(object: &Object, rule: &'static str, role: &str) -> Result<u64> {
    let component = object.component(role).ok_or_else(|| {
        Error::corrupt(rule, format!("a {} object needs a component {}", object.layout, quoted(role)))
    })?;
    Ok(component.len.saturating_mul(8) / u64::from(component.dtype.bits()))
}

/// Ranges may be shared (tied tensors) but may not overlap in part, and what is shared is decoded
/// in one way.
pub(crate) fn overlaps(catalog: &Catalog) -> Result<()> {
    let mut extents: Vec<(Extent, usize, &Component)> = catalog
        .objects
        .values()
        .enumerate()
        .flat_map(|(index, object)| {
            object
                .components
                .iter()
                .filter_map(move |(_, component)| Some((component.extent()?, index, component)))
        })
        .filter(|(extent, ..)| extent.len > 0)
        .collect();
    if !extents.is_sorted_by_key(|(extent, ..)| *extent) {
        extents.sort_by_key(|(extent, ..)| *extent);
    }
    for pair in extents.windows(2) {
        let ((a, first, one), (b, second, other)) = (pair[0], pair[1]);
        let name = |index| catalog.objects.get_index(index).map_or("", |(name, _)| &**name);
        if a == b && (one.encoding(), one.len) != (other.encoding(), other.len) {
            return Err(Error::corrupt(
                "component.overlap",
                format!(
                    "bytes {}..{} are {} bytes as {} in {}, and {} bytes as {} in {}",
                    a.offset,
                    a.offset + a.len,
                    one.len,
                    quoted(one.encoding()),
                    quoted(name(first)),
                    other.len,
                    quoted(other.encoding()),
                    quoted(name(second))
                ),
            ));
        }
        if a != b && a.source == b.source && b.offset < a.offset + a.len {
            return Err(Error::corrupt(
                "component.overlap",
                format!(
                    "bytes {}..{} of {} and {}..{} of {} overlap in part",
                    a.offset,
                    a.offset + a.len,
                    quoted(name(first)),
                    b.offset,
                    b.offset + b.len,
                    quoted(name(second))
                ),
            ));
        }
    }
    Ok(())
}
