//! Ids of sparse tensors: those of their entries in row-major order, whichever layout holds them.

use std::borrow::Cow;

use super::ContentId;
use super::description::{Description, HashedPart, type_name};
use super::tree;
use crate::base::huge_pages::zeroed_vec;
use crate::catalog::Layout;
use crate::error::{Error, Result};
use crate::tensor::{Array, Tensor, check_coo, check_csr};

/// The id of a CSR matrix or a COO tensor.
pub(super) fn id(tensor: &Tensor<'_>) -> Result<ContentId> {
    let values = tensor.require("values")?;
    values.dtype.check_values(&values.bytes)?;
    let (coords, count) = match tensor.layout {
        Layout::SparseCsr => csr_coordinates(tensor)?,
        _ => coo_coordinates(tensor)?,
    };
    let rank = tensor.shape.len();
    let coordinate = |entry: usize, dimension: usize| coords[dimension * count + entry];
    let compare = |&a: &usize, &b: &usize| {
        (0..rank).map(|at| coordinate(a, at)).cmp((0..rank).map(|at| coordinate(b, at)))
    };
    // Entries of one place stay in the order of the file: which of them counts depends on it.
    let in_order = (1..count).all(|entry| compare(&(entry - 1), &entry).is_le());
    let (coords, values) = match in_order {
        true => (Cow::Borrowed(&coords[..]), Cow::Borrowed(values)),
        false => {
            let mut order = zeroed_vec::<u64>(count as u64)?;
            order.iter_mut().zip(0..).for_each(|(slot, entry)| *slot = entry);
            order.sort_by(|&a, &b| compare(&(a as usize), &(b as usize)));
            (Cow::Owned(permuted(&coords, rank, &order)?), Cow::Owned(permuted_values(values, &order)?))
        }
    };
    let coords_hash = tree::hash(bytemuck::cast_slice(&coords), 0)?;
    let description = Description {
        layout: "sparse_coo".into(),
        shape: tensor.shape.clone(),
        parameters: Vec::new(),
        components: vec![
            HashedPart {
                role: "coords".into(),
                type_name: "u64".into(),
                len: coords.len() as u64 * 8,
                hash: coords_hash,
            },
            HashedPart {
                role: "values".into(),
                type_name: type_name(values.dtype, values.unknown_type.as_deref()),
                len: values.bytes.len() as u64,
                hash: tree::hash(&values.bytes, 0)?,
            },
        ],
    };
    Ok(description.id())
}

/// All coordinates of dimension 0, then of dimension 1, and the number of entries.
fn csr_coordinates(tensor: &Tensor<'_>) -> Result<(Vec<u64>, usize)> {
    let indices = tensor.require("indices")?.to_indices()?;
    let indptr = tensor.require("indptr")?.to_indices()?;
    let (&[rows, columns], count) = (&tensor.shape[..], indices.len()) else {
        return Err(Error::invalid("a CSR matrix has two dimensions"));
    };
    check_csr([rows, columns], count as u64, &indices, &indptr)?;
    let mut coords = zeroed_vec::<u64>((count as u64).saturating_mul(2))?;
    for (row, range) in (0u64..).zip(indptr.windows(2)) {
        coords[range[0] as usize..range[1] as usize].fill(row);
    }
    coords[count..].copy_from_slice(&indices);
    Ok((coords, count))
}

fn coo_coordinates(tensor: &Tensor<'_>) -> Result<(Vec<u64>, usize)> {
    let coords = tensor.require("coords")?.to_indices()?;
    let count = match tensor.shape.len() {
        0 => 0,
        rank => coords.len() / rank,
    };
    if !tensor.shape.is_empty() {
        check_coo(&tensor.shape, count as u64, &coords)?;
    }
    Ok((coords, count))
}

fn permuted(coords: &[u64], rank: usize, order: &[u64]) -> Result<Vec<u64>> {
    let mut out = zeroed_vec::<u64>(coords.len() as u64)?;
    for dimension in 0..rank {
        let range = dimension * order.len()..(dimension + 1) * order.len();
        let from = &coords[range.clone()];
        out[range].iter_mut().zip(order).for_each(|(slot, &entry)| *slot = from[entry as usize]);
    }
    Ok(out)
}

fn permuted_values(values: &Array<'_>, order: &[u64]) -> Result<Array<'static>> {
    let size = values.dtype.size().filter(|size| values.bytes.len() == size * order.len());
    let size = size.ok_or_else(|| {
        Error::unsupported(format!(
            "its entries are not in row-major order, and values of {} cannot be sorted",
            type_name(values.dtype, values.unknown_type.as_deref())
        ))
    })?;
    let mut out = zeroed_vec::<u8>(values.bytes.len() as u64)?;
    for (slot, &entry) in out.chunks_exact_mut(size).zip(order) {
        slot.copy_from_slice(&values.bytes[entry as usize * size..][..size]);
    }
    Ok(Array { dtype: values.dtype, unknown_type: values.unknown_type.clone(), bytes: out.into() })
}

#[cfg(test)]
mod tests {
    use super::super::object_id;
    use super::*;
    use crate::dtype::DType;

    fn array(elements: &[u64]) -> Array<'static> {
        Array::new(DType::U64, elements.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn coo(shape: &[u64], coords: &[u64], values: &[u8]) -> ContentId {
        let components = [
            (Cow::Borrowed("values"), Array::new(DType::U8, values)),
            (Cow::Borrowed("coords"), array(coords)),
        ];
        object_id(&Tensor::new(shape, Layout::SparseCoo, components, None).unwrap()).unwrap()
    }

    fn csr(shape: &[u64], indptr: &[u64], indices: &[u64], values: &[u8]) -> ContentId {
        let components = [
            (Cow::Borrowed("values"), Array::new(DType::U8, values)),
            (Cow::Borrowed("indices"), array(indices)),
            (Cow::Borrowed("indptr"), array(indptr)),
        ];
        object_id(&Tensor::new(shape, Layout::SparseCsr, components, None).unwrap()).unwrap()
    }

    #[test]
    fn the_order_of_entries_and_the_layout_do_not_matter() {
        let id = coo(&[3, 4], &[0, 0, 2, 1, 3, 2], &[10, 11, 12]);
        assert_eq!(coo(&[3, 4], &[2, 0, 0, 2, 3, 1], &[12, 11, 10]), id);
        assert_eq!(csr(&[3, 4], &[0, 2, 2, 3], &[1, 3, 2], &[10, 11, 12]), id);
        assert_eq!(csr(&[3, 4], &[0, 2, 2, 3], &[3, 1, 2], &[11, 10, 12]), id);
        assert_ne!(csr(&[3, 5], &[0, 2, 2, 3], &[1, 3, 2], &[10, 11, 12]), id);
        assert_ne!(csr(&[3, 4], &[0, 2, 2, 3], &[1, 3, 2], &[10, 11, 13]), id);
    }

    #[test]
    fn stored_zeros_and_repeated_places_are_entries() {
        let id = coo(&[4], &[1, 2], &[5, 0]);
        assert_ne!(coo(&[4], &[1], &[5]), id);
        // Entries of one place keep their order, whatever comes between them.
        assert_eq!(coo(&[4], &[3, 1, 3], &[1, 2, 3]), coo(&[4], &[1, 3, 3], &[2, 1, 3]));
        assert_ne!(coo(&[4], &[3, 1, 3], &[3, 2, 1]), coo(&[4], &[1, 3, 3], &[2, 1, 3]));
    }

    #[test]
    fn an_empty_matrix_has_an_id() {
        assert_eq!(csr(&[3, 4], &[0, 0, 0, 0], &[], &[]), coo(&[3, 4], &[], &[]));
        assert_ne!(coo(&[3, 4], &[], &[]), coo(&[4, 3], &[], &[]));
    }

    #[test]
    fn indices_outside_the_shape_are_refused() {
        let components = [
            (Cow::Borrowed("values"), Array::new(DType::U8, vec![1])),
            (Cow::Borrowed("coords"), array(&[4])),
        ];
        let tensor = Tensor::new([4u64].as_slice(), Layout::SparseCoo, components, None).unwrap();
        assert_eq!(object_id(&tensor).unwrap_err().rule(), Some("layout.coo"));
    }

    #[test]
    fn sub_byte_values_must_be_in_order() {
        let tensor = |coords: &[u64]| {
            let components = [
                (Cow::Borrowed("values"), Array::new(DType::U4, vec![0x21])),
                (Cow::Borrowed("coords"), array(coords)),
            ];
            Tensor::new([4u64].as_slice(), Layout::SparseCoo, components, None).unwrap()
        };
        object_id(&tensor(&[1, 2])).unwrap();
        assert!(object_id(&tensor(&[2, 1])).is_err());
    }
}
