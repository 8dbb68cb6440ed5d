//! New names for tensors: `--strip-prefix` and `--rename`.

use clap::Args;

use crate::failure::Failure;

/// Options that change names.
#[derive(Debug, Clone, Default, Args)]
pub struct Renaming {
    /// Remove PREFIX from tensor names that start with it.
    #[arg(long, value_name = "PREFIX")]
    pub strip_prefix: Vec<String>,
    /// Rename tensors; each * in OLD is kept in place of a * in NEW, e.g. 'layers.*=blocks.*'. Repeatable.
    #[arg(long, value_name = "OLD=NEW", value_parser = rule)]
    pub rename: Vec<Rule>,
}

/// One `OLD=NEW`.
#[derive(Debug, Clone)]
pub struct Rule {
    old: Vec<String>,
    new: Vec<String>,
}

fn rule(text: &str) -> Result<Rule, String> {
    let (old, new) = text.split_once('=').ok_or("expected OLD=NEW")?;
    let parts = |text: &str| text.split('*').map(str::to_owned).collect::<Vec<_>>();
    let rule = Rule { old: parts(old), new: parts(new) };
    match rule.old.len() == rule.new.len() && !old.is_empty() && !new.is_empty() {
        true => Ok(rule),
        false => Err("OLD and NEW need the same number of *, and neither may be empty".to_owned()),
    }
}

impl Rule {
    /// The new name, if the rule is about this one. A `*` takes as little as it can.
    fn apply(&self, name: &str) -> Option<String> {
        let (first, rest) = self.old.split_first()?;
        let mut left = name.strip_prefix(first.as_str())?;
        let mut out = self.new[0].clone();
        for (index, part) in rest.iter().enumerate() {
            let last = index + 1 == rest.len();
            let at = match last {
                true => left.len().checked_sub(part.len()).filter(|_| left.ends_with(part.as_str()))?,
                false => left.find(part.as_str())?,
            };
            out.push_str(&left[..at]);
            out.push_str(&self.new[index + 1]);
            left = &left[at + part.len()..];
        }
        left.is_empty().then_some(out)
    }
}

impl Renaming {
    pub fn is_empty(&self) -> bool {
        self.strip_prefix.is_empty() && self.rename.is_empty()
    }

    /// The name that a tensor gets: prefixes are removed first, then the first rule that fits.
    pub fn apply(&self, name: &str) -> String {
        let stripped = self.strip_prefix.iter().find_map(|prefix| name.strip_prefix(prefix.as_str()));
        let name = stripped.filter(|rest| !rest.is_empty()).unwrap_or(name);
        self.rename.iter().find_map(|rule| rule.apply(name)).unwrap_or_else(|| name.to_owned())
    }

    /// Refuses options that change no name: they are mistyped.
    pub fn check<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        let mut names = names;
        match self.is_empty() || names.any(|name| self.apply(name) != name) {
            true => Ok(()),
            false => Err(Failure::usage(
                "--strip-prefix and --rename match no tensor name; `ztensor info` lists the names",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stripped_and_renamed() {
        let renaming = Renaming {
            strip_prefix: vec!["model.".to_owned()],
            rename: vec![rule("layers.*.attn.*=blocks.*.attention.*").unwrap(), rule("a=b").unwrap()],
        };
        for (name, expected) in [
            ("model.layers.3.attn.q.weight", "blocks.3.attention.q.weight"),
            ("model.a", "b"),
            ("a", "b"),
            ("aa", "aa"),
            ("model.", "model."),
            ("other", "other"),
        ] {
            assert_eq!(renaming.apply(name), expected, "{name}");
        }
        assert_eq!(rule("*.w=*.weight").unwrap().apply("x.w"), Some("x.weight".to_owned()));
        assert_eq!(rule("*.w=*.weight").unwrap().apply("w"), None);
        for bad in ["a", "a*=b", "=b", "a="] {
            assert!(rule(bad).is_err(), "{bad}");
        }
        assert!(renaming.check(["x"].into_iter()).is_err());
    }
}
