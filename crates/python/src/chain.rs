//! Chains of checkpoints: which way leads to a state, what can go, when a full one is due.

use std::convert::Infallible;

use pyo3::prelude::*;
use ztensor::sync::chain::{self, Anchors, Link};

/// `(from, to, bytes)` of a link; `from` is `None` for a full state.
type Described = (Option<String>, String, u64);

fn links(links: Vec<Described>) -> Vec<Link<String, usize>> {
    let numbered = links.into_iter().enumerate();
    numbered.map(|(what, (from, to, cost))| Link { from, to, cost, what }).collect()
}

/// The links of the cheapest way from nothing to a state, by their place in the list; `None` if no
/// way leads there.
#[pyfunction]
fn chain_way(all: Vec<Described>, want: String) -> Option<Vec<usize>> {
    let all = links(all);
    let links_to =
        |state: &String| Ok::<_, Infallible>(all.iter().filter(|link| link.to == *state).cloned().collect());
    let way = match chain::shortest(&[], &want, links_to) {
        Ok(way) => way,
        Err(never) => match never {},
    };
    Some(way?.into_iter().map(|link| link.what).collect())
}

/// The links that no state of `targets` needs.
#[pyfunction]
fn chain_removable(all: Vec<Described>, targets: Vec<String>) -> Vec<usize> {
    chain::removable(&links(all), &[], &targets)
}

/// Whether the state after `deltas` differences of `bytes` bytes should be a full one of `full` bytes.
#[pyfunction]
fn anchor_due(every: Option<u64>, ratio: Option<f64>, deltas: u64, bytes: u64, full: u64) -> bool {
    Anchors { every, ratio }.due(deltas, bytes, full)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(chain_way, module)?)?;
    module.add_function(wrap_pyfunction!(chain_removable, module)?)?;
    module.add_function(wrap_pyfunction!(anchor_due, module)?)
}
