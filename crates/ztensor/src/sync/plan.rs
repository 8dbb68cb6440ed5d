//! Which versions lead from what a host has to what it wants.

use std::sync::Arc;

use super::chain::{self, Link};
use super::index::{Index, Kind};
use super::stream::{BASE_VERSION, Layout, Listing, Stream, Version};
use crate::error::{Error, ErrorKind, Result, quoted};

/// A way to a version.
#[derive(Debug)]
pub(crate) struct Way {
    /// The state that it starts from; `None`: the first version is a full one.
    pub(crate) from: Option<String>,
    /// The versions to apply, in order.
    pub(crate) versions: Vec<Arc<Version>>,
}

/// The way with the fewest bytes to `want`. `headless` says whether a folder without an index is a
/// full version after all.
pub(crate) fn way(
    stream: &Stream,
    listing: &Listing,
    have: &[String],
    want: &str,
    headless: impl Fn(&str) -> Result<Index>,
) -> Result<Way> {
    let folds = stream.folds_in(listing);
    let links_to = |state: &String| -> Result<Vec<Link<String, Arc<Version>>>> {
        let mut links = Vec::new();
        if state == BASE_VERSION && stream.layout() != Layout::Named {
            return Ok(links);
        }
        let folder = stream.folder(state);
        match stream.version_in(&folder, state, Some(listing))? {
            Some(version) => {
                links.push(Link {
                    from: stream.base_name(&version),
                    to: state.clone(),
                    cost: version.len,
                    what: version,
                });
            }
            None if state == want && listing.contains(&folder) => {
                let index = headless(&folder)?;
                let len = listing.files(&folder).map_or(0, |files| files.values().sum());
                let version = Version {
                    name: state.clone(),
                    folder,
                    index,
                    len,
                    keys: Default::default(),
                    digests: Default::default(),
                };
                links.push(Link { from: None, to: state.clone(), cost: len, what: Arc::new(version) });
            }
            None => {}
        }
        for (_, _, folder) in folds.iter().filter(|(_, to, _)| to == state) {
            // A fold that cannot be read is a way less, not an error: its versions are there too.
            let fold = match stream.version_in(folder, state, Some(listing)) {
                Ok(fold) => fold,
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(_) => None,
            };
            if let Some(fold) = fold
                && let Kind::Delta { .. } = fold.index.kind
            {
                links.push(Link {
                    from: stream.base_name(&fold),
                    to: state.clone(),
                    cost: fold.len,
                    what: fold,
                });
            }
        }
        Ok(links)
    };
    let want = want.to_owned();
    let found = chain::shortest(have, &want, links_to)?;
    let Some(links) = found else {
        let from = match have {
            [] => "nothing".to_owned(),
            have => have.iter().map(|state| quoted(state)).collect::<Vec<_>>().join(" or "),
        };
        let message = format!("no published versions lead from {from} to version {}", quoted(&want));
        return Err(Error::not_found(message).in_file(stream.root()));
    };
    let from = match links.first() {
        Some(link) => link.from.clone(),
        None => Some(want),
    };
    Ok(Way { from, versions: links.into_iter().map(|link| link.what).collect() })
}
