//! Which tensors of a file a command works on.

use ztensor::{Object, Reader};

use crate::args::Which;
use crate::failure::Failure;

impl Which {
    /// The chosen tensors, in the order of the file. Patterns that choose nothing
    /// are an error: they are mistyped.
    pub fn choose<'a>(&self, reader: &'a Reader) -> Result<Vec<(&'a str, &'a Object)>, Failure> {
        let chosen = self.filter(reader);
        if chosen.is_empty() && !reader.is_empty() {
            return Err(self.nothing());
        }
        Ok(chosen)
    }

    /// Like [`choose`](Which::choose), for one of several files: it may have none.
    pub fn filter<'a>(&self, reader: &'a Reader) -> Vec<(&'a str, &'a Object)> {
        reader.objects().filter(|(name, _)| self.matches(name)).collect()
    }

    /// No tensor was chosen.
    pub fn nothing(&self) -> Failure {
        let patterns: Vec<_> = self.only.iter().chain(&self.exclude).map(String::as_str).collect();
        Failure::usage(format!("no tensor matches {}; `ztensor info` lists the names", patterns.join(", ")))
    }

    fn matches(&self, name: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| glob(pattern, name));
        (self.only.is_empty() || any(&self.only)) && !any(&self.exclude)
    }
}

/// Whether `name` matches a pattern in which `*` stands for any text and `?` for
/// one character. Linear in memory and never exponential in time.
pub fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, n) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("layers.*.weight", "layers.0.attn.weight", true),
            ("layers.*.weight", "layers.0.attn.bias", false),
            ("layers.?.w", "layers.1.w", true),
            ("layers.?.w", "layers.10.w", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("exact", "exact", true),
            ("é?", "éé", true),
        ] {
            assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        }
    }
}
