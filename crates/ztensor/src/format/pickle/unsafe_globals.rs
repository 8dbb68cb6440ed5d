//! The dangerous functions that a pickle names, collected while it is interpreted.

/// Names kept at most: enough to say what a file is, however many it has.
const MAX_NAMES: usize = 16;

/// Functions that run code, start programs or open files in tools that unpickle a file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct UnsafeGlobals(Vec<Box<str>>);

impl UnsafeGlobals {
    pub(super) fn add(&mut self, name: String) {
        if self.0.len() < MAX_NAMES && !self.0.iter().any(|known| **known == *name) {
            self.0.push(name.into());
        }
    }

    pub(super) fn merge(&mut self, other: &UnsafeGlobals) {
        for name in &other.0 {
            self.add(name.to_string());
        }
    }

    pub(super) fn into_names(self) -> Vec<Box<str>> {
        self.0
    }
}
