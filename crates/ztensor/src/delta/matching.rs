//! Which tensor of the base a tensor of the target is most likely made from.

use std::collections::HashMap;

use super::model::Model;
use crate::catalog::{Component, Layout, Object, Shape};
use crate::dtype::DType;
use crate::error::Result;

/// How many tensors of the base a tensor without a namesake is compared with.
const TRIED: usize = 24;
/// Places at which two tensors are compared, and bytes at each.
const WINDOWS: usize = 32;
const WINDOW: usize = 256;

/// A tensor of the base, and how many bytes of it and of the target stand for the same elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) part: usize,
    pub(crate) common: u64,
}

/// Finds the base of each tensor.
pub(crate) struct Matcher<'a> {
    base: &'a Model,
    target: &'a Model,
    /// Tensors of the base whose name the target does not have: they may have been renamed.
    nameless: HashMap<Likeness, Vec<usize>>,
}

/// What two tensors have in common that can stand for each other: the elements' type, and
/// their length or the shape of their rows.
type Likeness = (DType, Option<u64>, Shape);

fn likenesses(object: &Object, component: &Component) -> [Likeness; 2] {
    let row = object.shape.get(1..).unwrap_or(&[]);
    [(component.dtype, Some(component.len), Shape::new()), (component.dtype, None, row.into())]
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(base: &'a Model, target: &'a Model) -> Result<Matcher<'a>> {
        let mut nameless: HashMap<Likeness, Vec<usize>> = HashMap::new();
        for (index, part) in base.parts.iter().enumerate() {
            let (object, component) = base.part(index)?;
            if target.find(&part.name, &part.role).is_none() {
                for likeness in likenesses(object, component) {
                    nameless.entry(likeness).or_default().push(index);
                }
            }
        }
        Ok(Matcher { base, target, nameless })
    }

    /// The namesake, if its elements are of the same type and their rows of the same length;
    /// else the most similar of those that lost their name.
    pub(crate) fn find(&self, index: usize, content: &[u8]) -> Result<Option<Match>> {
        let part = &self.target.parts[index];
        let (object, component) = self.target.part(index)?;
        if let Some(namesake) = self.base.find(&part.name, &part.role) {
            let (base, other) = self.base.part(namesake)?;
            if let Some(common) = common(object, component, base, other) {
                return Ok(Some(Match { part: namesake, common }));
            }
        }
        let mut candidates = Vec::new();
        let like = likenesses(object, component);
        for &candidate in like.iter().filter_map(|likeness| self.nameless.get(likeness)).flatten() {
            let (base, other) = self.base.part(candidate)?;
            if let Some(common) = common(object, component, base, other) {
                let suffix = common_suffix(&part.name, &self.base.parts[candidate].name);
                candidates.push((std::cmp::Reverse(suffix), Match { part: candidate, common }));
            }
        }
        candidates.sort_by_key(|(suffix, found)| (*suffix, found.part));
        candidates.dedup();
        let mut best = None;
        let size = component.dtype.size().unwrap_or(1);
        for (_, found) in candidates.into_iter().take(TRIED) {
            let other = self.base.content(found.part, 1)?;
            let common = found.common as usize;
            let score = similarity(&content[..common], &other[..common], size);
            if score * 2 > WINDOWS * WINDOW / size && best.is_none_or(|(most, _)| score > most) {
                best = Some((score, found));
            }
        }
        Ok(best.map(|(_, found)| found))
    }
}

/// Bytes from the start that stand for the same elements in both; `None` if none do.
fn common(object: &Object, component: &Component, base: &Object, other: &Component) -> Option<u64> {
    if component.dtype != other.dtype || component.unknown_type != other.unknown_type {
        return None;
    }
    if component.len == other.len {
        return (component.len > 0).then_some(component.len);
    }
    // Rows were added or dropped.
    let (&rows, row) = object.shape.split_first()?;
    let (&base_rows, base_row) = base.shape.split_first()?;
    let dense = object.layout == Layout::Dense && base.layout == Layout::Dense;
    if !dense || row != base_row || rows == 0 || base_rows == 0 || component.dtype.size().is_none() {
        return None;
    }
    let common = component.len.min(other.len);
    (common > 0).then_some(common)
}

fn common_suffix(a: &str, b: &str) -> usize {
    a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count()
}

/// Of elements at a few places, how many have the same sign and scale: the last byte of each.
/// For unrelated weights it is a quarter, for those of a fine-tune nearly all.
fn similarity(a: &[u8], b: &[u8], size: usize) -> usize {
    let windows = if a.len() <= WINDOWS * WINDOW { 1 } else { WINDOWS };
    let step = a.len() / windows / size * size;
    let mut same = 0;
    let mut seen = 0;
    for window in 0..windows {
        let start = window * step;
        let end = if windows == 1 { a.len() } else { start + WINDOW };
        let last = (start + size - 1..end).step_by(size.max(1));
        for at in last {
            seen += 1;
            same += usize::from(a[at] == b[at]);
        }
    }
    // As if all windows had been seen.
    same * (WINDOWS * WINDOW / size) / seen.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_a_share_of_all_windows() {
        let a: Vec<u8> = (0..100_000u32).map(|n| (n * 7) as u8).collect();
        let mut b = a.clone();
        for size in [1, 2, 4, 8] {
            assert_eq!(similarity(&a, &a, size), WINDOWS * WINDOW / size);
            assert_eq!(similarity(&a[..100], &a[..100], size), WINDOWS * WINDOW / size);
        }
        b.iter_mut().for_each(|byte| *byte ^= 1);
        assert_eq!(similarity(&a, &b, 2), 0);
        assert_eq!(common_suffix("model.layers.0.w", "layers.0.w"), 10);
    }
}
