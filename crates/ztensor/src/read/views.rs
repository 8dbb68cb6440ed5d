//! Tensors that are views of one storage: which of them can share memory when they are loaded.
//!
//! A checkpoint that holds a matrix and its transpose stores the elements once. Loaded one by one,
//! each view gets memory of its own; loaded together into a framework that has strided tensors,
//! they can be views of one block again.

use crate::catalog::{Extent, Layout, Object, StridedView};

/// Bytes of a source that several tensors are views of.
#[derive(Debug)]
pub struct SharedStorage {
    /// From the first byte of any view up to behind the last one.
    pub extent: Extent,
    /// The views, each with the index of its tensor.
    pub views: Vec<(usize, StridedView)>,
}

impl SharedStorage {
    /// Elements of its own type from the start of the storage up to a view's first one.
    pub fn offset_of(&self, view: &StridedView) -> u64 {
        (view.extent.offset - self.extent.offset) / view.item as u64
    }
}

/// The storages of which several of these tensors are different views.
///
/// Tensors with equal content are not listed for that alone: those are tied as a whole. Nor are
/// views that do not start at a whole element of the storage.
pub fn shared_storages(objects: &[&Object]) -> Vec<SharedStorage> {
    let mut views: Vec<(usize, StridedView)> = objects
        .iter()
        .enumerate()
        .filter_map(|(index, object)| {
            let (Layout::Dense, [(_, component)]) = (&object.layout, &object.components[..]) else {
                return None;
            };
            let known = component.unknown_type.is_none();
            let view = component.strided_view(&object.shape).filter(|_| known)?;
            (is_inside(&view, &object.shape) == Some(true)).then_some((index, view))
        })
        .collect();
    let start = |view: &StridedView| (view.extent.source, view.extent.offset);
    if !views.is_sorted_by_key(|(_, view)| start(view)) {
        views.sort_by_key(|(_, view)| start(view));
    }
    let mut storages = Vec::new();
    let mut rest = &views[..];
    while let Some((_, first)) = rest.first() {
        let mut extent = first.extent;
        let overlapping = rest.iter().take_while(|(_, view)| {
            let end = extent.offset + extent.len;
            let overlaps = view.extent.source == extent.source && view.extent.offset < end;
            if overlaps {
                extent.len = extent.len.max(view.extent.offset + view.extent.len - extent.offset);
            }
            overlaps
        });
        let count = overlapping.count();
        let (group, after) = rest.split_at(count);
        rest = after;
        let key = |index: usize| objects[index].components[0].1.content_key();
        let tied = || group.iter().all(|(index, _)| key(*index).is_some() && key(*index) == key(group[0].0));
        if group.len() < 2 || tied() {
            continue;
        }
        let whole =
            |view: &StridedView| (view.extent.offset - extent.offset).is_multiple_of(view.item as u64);
        let views: Vec<_> = group.iter().filter(|(_, view)| whole(view)).cloned().collect();
        storages.push(SharedStorage { extent, views });
    }
    storages
}

/// Whether every element of a view of that shape lies in the view's range: a framework that is told
/// otherwise may write behind the storage, or move it. `None` on overflow, and for no elements.
fn is_inside(view: &StridedView, shape: &[u64]) -> Option<bool> {
    let mut last = 0u64;
    for (size, stride) in shape.iter().zip(&view.strides) {
        last = last.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)?;
    }
    let end = last.checked_add(1)?.checked_mul(view.item as u64)?;
    Some(shape.len() == view.strides.len() && end <= view.extent.len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Component, Shape, Storage};
    use crate::decode::strided;
    use crate::dtype::DType;

    fn view(at: u64, offset: u64, shape: &[u64], strides: &[u64]) -> Object {
        let plain = Storage::Plain(Extent::new(at, 96));
        let storage = strided(plain, 96, 4, offset, shape, strides).unwrap();
        let len = shape.iter().product::<u64>() * 4;
        Object::dense(Shape::from_slice(shape), Component::new(DType::F32, len, storage))
    }

    fn found(objects: &[Object]) -> Vec<(Extent, Vec<usize>)> {
        let objects: Vec<&Object> = objects.iter().collect();
        let storages = shared_storages(&objects).into_iter();
        storages
            .map(|storage| (storage.extent, storage.views.iter().map(|(index, _)| *index).collect()))
            .collect()
    }

    #[test]
    fn views_of_one_storage_are_found_and_equal_ones_are_not() {
        let matrix = || view(64, 0, &[4, 6], &[6, 1]);
        let transpose = || view(64, 0, &[6, 4], &[1, 6]);
        let far = || view(640, 0, &[4, 6], &[6, 1]);
        assert_eq!(found(&[matrix(), far()]), []);
        assert_eq!(found(&[matrix(), matrix(), far()]), []);
        assert_eq!(found(&[far(), matrix(), transpose()]), [(Extent::new(64, 96), vec![1, 2])]);
        // Equal content that no key tells: both are views of one block.
        assert_eq!(found(&[transpose(), transpose()]), [(Extent::new(64, 96), vec![0, 1])]);
        // Parts of a storage that touch but do not overlap stay apart.
        let (head, tail) = (view(64, 0, &[2, 6], &[6, 1]), view(64, 12, &[2, 6], &[6, 1]));
        assert_eq!(found(&[head.clone(), tail.clone()]), []);
        assert_eq!(found(&[tail, head, matrix()]), [(Extent::new(64, 96), vec![1, 2, 0])]);
    }
}
