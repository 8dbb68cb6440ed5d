//! How to reach a store, as the caller says it.

use std::collections::BTreeMap;
use std::fmt;

/// Settings for remote files, by name. What is not set comes from the environment.
///
/// Names are those of the stores' own settings, with or without their prefix
/// (`endpoint_url` or `aws_endpoint_url`, `region`, `account_name`, …), and
///
/// | name | meaning | if not set |
/// |---|---|---|
/// | `timeout`, `read_timeout`, `connect_timeout` | seconds for a request, for silence, for a connection | 120, 30, 5 |
/// | `retries` | how often a request that failed is repeated | 5 |
/// | `connections` | requests under way at a time, at most | 16 |
/// | `memory` | bytes of a batch that wait to be decoded | 256 MiB |
/// | `part_size` | bytes of a part of an upload | 16 MiB |
/// | `cache` | a folder in which what was read is kept | none |
/// | `cache_size` | bytes that it may take | no limit |
///
/// Each of the latter can also be set by a variable like `ZTENSOR_REMOTE_CACHE`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Options(pub(super) BTreeMap<String, String>);

impl Options {
    /// Sets one.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into().to_ascii_lowercase(), value.into());
        self
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Options {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Self {
        pairs.into_iter().fold(Options::default(), |options, (name, value)| options.set(name, value))
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
