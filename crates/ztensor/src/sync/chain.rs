//! Chains of states: full ones, and differences that lead from one to another.
//!
//! The one place that decides which way leads to a state ([`shortest`]), when a new full state is
//! due ([`Anchors`]), and which links can go ([`removable`]). It knows neither files nor encodings:
//! a link is a number of bytes between two names of states.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A link of a chain: what leads to the state `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link<S, T = ()> {
    /// The state that it starts from; `None` for a full one, which needs none.
    pub from: Option<S>,
    /// The state that it leads to.
    pub to: S,
    /// Bytes that have to be fetched for it.
    pub cost: u64,
    /// What the caller needs to follow it.
    pub what: T,
}

/// Bytes, links and the rank of the start of a way, compared in that order.
type Cost = (u64, usize, usize);
/// The cost of the best way from a state, and its first link.
type Best<S, T> = (Cost, Option<Link<S, T>>);

/// The way with the fewest bytes from one of the states `have`, or from nothing, to `want`.
///
/// `links_to` gives the links that lead to a state, and is asked only for states that a cheaper way
/// than the best may lead through: what it reads for its answer is read lazily. Of ways with equal
/// bytes the one with fewer links wins, then the one whose start comes first in `have`.
///
/// `None`: no way leads there.
pub fn shortest<S: Ord + Clone, T: Clone, E>(
    have: &[S],
    want: &S,
    mut links_to: impl FnMut(&S) -> Result<Vec<Link<S, T>>, E>,
) -> Result<Option<Vec<Link<S, T>>>, E> {
    // From the target backwards: the way from a state, and what it costs from there on.
    let mut best: BTreeMap<Option<S>, Best<S, T>> = BTreeMap::new();
    let mut queue = BinaryHeap::new();
    let rank = |state: &Option<S>| match state {
        None => have.len(),
        Some(state) => have.iter().position(|known| known == state).unwrap_or(usize::MAX),
    };
    let start = Some(want.clone());
    let cost = (0, 0, rank(&start));
    best.insert(start.clone(), (cost, None));
    queue.push(Reverse((cost, start)));
    while let Some(Reverse((cost, state))) = queue.pop() {
        if best.get(&state).is_none_or(|(known, _)| *known < cost) {
            continue;
        }
        if cost.2 != usize::MAX {
            let mut way = Vec::new();
            let mut at = state;
            while let Some((_, Some(link))) = best.get(&at) {
                at = Some(link.to.clone());
                way.push(link.clone());
            }
            return Ok(Some(way));
        }
        let Some(state) = state else { continue };
        for link in links_to(&state)? {
            let next = (cost.0.saturating_add(link.cost), cost.1 + 1, rank(&link.from));
            let from = link.from.clone();
            if best.get(&from).is_none_or(|(known, _)| next < *known) {
                best.insert(from.clone(), (next, Some(link)));
                queue.push(Reverse((next, from)));
            }
        }
    }
    Ok(None)
}

/// The links that no reader needs that is at one of `states` or starts from nothing, and that wants
/// a state of `targets`: all outside of the shortest ways. A way that begins at a state of `states`
/// is kept even where starting over would be cheaper.
pub fn removable<S: Ord + Clone, T: Clone>(links: &[Link<S, T>], states: &[S], targets: &[S]) -> Vec<usize> {
    let mut to: BTreeMap<&S, Vec<usize>> = BTreeMap::new();
    for (index, link) in links.iter().enumerate() {
        to.entry(&link.to).or_default().push(index);
    }
    let numbered = |index: &usize| {
        let link = &links[*index];
        Link { from: link.from.clone(), to: link.to.clone(), cost: link.cost, what: *index }
    };
    let mut needed = BTreeSet::new();
    let mut need = |have: &[S], target: &S| {
        let links_to = |state: &S| {
            Ok::<_, std::convert::Infallible>(to.get(state).into_iter().flatten().map(numbered).collect())
        };
        let way = match shortest(have, target, links_to) {
            Ok(way) => way,
            Err(never) => match never {},
        };
        needed.extend(way.into_iter().flatten().map(|link| link.what));
    };
    for target in targets {
        need(&[], target);
        states.iter().for_each(|state| need(std::slice::from_ref(state), target));
    }
    (0..links.len()).filter(|index| !needed.contains(index)).collect()
}

/// When a full state is due in a chain of differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchors {
    /// After that many differences; `None`: never by number.
    pub every: Option<u64>,
    /// When the differences since the last full state take more than this many times a full one;
    /// `None`: never by size.
    pub ratio: Option<f64>,
}

impl Default for Anchors {
    /// When reading the chain costs more than reading a full state.
    fn default() -> Self {
        Anchors { every: None, ratio: Some(1.0) }
    }
}

impl Anchors {
    /// No full states but those that are asked for.
    pub const NEVER: Anchors = Anchors { every: None, ratio: None };

    /// Whether the state after `deltas` differences of `bytes` bytes in all should be a full one,
    /// which takes `full` bytes.
    pub fn due(&self, deltas: u64, bytes: u64, full: u64) -> bool {
        self.every.is_some_and(|every| deltas >= every)
            || self.ratio.is_some_and(|ratio| bytes as f64 > ratio * full as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    type Plain = (Option<u32>, u32, u64);

    fn links(links: &[Plain]) -> Vec<Link<u32, usize>> {
        let numbered = links.iter().enumerate();
        numbered.map(|(what, &(from, to, cost))| Link { from, to, cost, what }).collect()
    }

    fn way(all: &[Plain], have: &[u32], want: u32) -> Option<Vec<usize>> {
        let links = links(all);
        let links_to = |state: &u32| {
            Ok::<_, Infallible>(links.iter().filter(|link| link.to == *state).cloned().collect())
        };
        Some(shortest(have, &want, links_to).unwrap()?.into_iter().map(|link| link.what).collect())
    }

    #[test]
    fn the_cheapest_way_is_taken() {
        let all = [
            (Some(0), 1, 5),
            (Some(1), 2, 5),
            (Some(2), 3, 5),
            (None, 3, 100),
            (Some(3), 4, 5),
            (Some(0), 3, 12), // folded
        ];
        assert_eq!(way(&all, &[0], 4).unwrap(), [5, 4]);
        assert_eq!(way(&all, &[2], 4).unwrap(), [2, 4]);
        assert_eq!(way(&all, &[2, 0], 2).unwrap(), [0usize; 0]);
        assert_eq!(way(&all, &[], 4).unwrap(), [3, 4]);
        assert_eq!(way(&all, &[7], 4).unwrap(), [3, 4]);
        assert_eq!(way(&all, &[], 2), None);
        assert_eq!(way(&all, &[4], 9), None);
        assert_eq!(removable(&links(&all), &[], &[4]), [0, 1, 2, 5]);
        assert_eq!(removable(&links(&all), &[2], &[4]), [0, 1, 5]);
    }

    #[test]
    fn states_before_the_start_are_not_looked_at() {
        let mut asked = Vec::new();
        let links_to = |state: &u32| {
            asked.push(*state);
            Ok::<_, Infallible>(vec![Link { from: state.checked_sub(1), to: *state, cost: 1, what: () }])
        };
        assert_eq!(shortest(&[900], &903, links_to).unwrap().unwrap().len(), 3);
        assert_eq!(asked, [903, 902, 901]);
    }

    #[test]
    fn anchors_come_by_number_or_by_size() {
        let both = Anchors { every: Some(10), ratio: Some(1.0) };
        assert!(!both.due(9, 100, 100));
        assert!(both.due(10, 0, 100));
        assert!(both.due(1, 101, 100));
        assert!(!Anchors::NEVER.due(1_000_000, u64::MAX, 1));
    }

    proptest! {
        #[test]
        fn no_way_is_cheaper(
            all in prop::collection::vec((prop::option::of(0u32..7), 0u32..7, 0u64..20), 0..14),
            have in prop::collection::vec(0u32..7, 0..3),
            want in 0u32..7,
        ) {
            // Bellman-Ford, link by link until nothing changes.
            let mut cost = [u64::MAX; 7];
            have.iter().for_each(|&state| cost[state as usize] = 0);
            for _ in 0..8 {
                for &(from, to, bytes) in &all {
                    let start = from.map_or(0, |from| cost[from as usize]);
                    cost[to as usize] = cost[to as usize].min(start.saturating_add(bytes));
                }
            }
            let way = way(&all, &have, want);
            prop_assert_eq!(way.is_some(), cost[want as usize] < u64::MAX);
            let Some(way) = way else { return Ok(()) };
            let mut state: Option<u32> = None;
            let mut total = 0;
            for (place, &index) in way.iter().enumerate() {
                let (from, to, bytes) = all[index];
                match (place, from) {
                    (0, Some(from)) => prop_assert!(have.contains(&from)),
                    (0, None) => {}
                    (_, from) => prop_assert_eq!(from, state),
                }
                state = Some(to);
                total += bytes;
            }
            match way.is_empty() {
                true => prop_assert!(have.contains(&want)),
                false => prop_assert_eq!(state, Some(want)),
            }
            prop_assert_eq!(total, cost[want as usize]);
        }
    }
}
