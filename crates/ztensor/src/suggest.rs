//! "Did you mean …": the existing name that a mistyped one most likely stands for.

/// Names longer than this are not compared letter by letter.
const LONGEST: usize = 256;
/// Edit distances cost time, some 200 ns a name: only the first names of a file are compared so.
const MOST_NAMES: usize = 10_000;

/// The name among `names` that is nearest to `wanted`, if one is near at all.
///
/// In this order: the same letters in another case or with other separators; a name that ends or
/// begins with `wanted`, or that `wanted` ends with, at a `.`, `/` or `_`; a small edit distance.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if wanted.is_empty() || wanted.len() > LONGEST {
        return None;
    }
    let plain = plain(wanted);
    let same = names.clone().find(|name| name.len() == wanted.len() && self::plain(name) == plain);
    let affix = || {
        let by_end = names.clone().filter(|name| is_tail(name, wanted) || is_tail(wanted, name));
        by_end.min_by_key(|name| name.len().abs_diff(wanted.len()))
    };
    let start = || {
        let longer = |name: &&str| name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with(SEPARATORS));
        names.clone().filter(longer).min_by_key(|name| name.len())
    };
    same.or_else(affix).or_else(start).or_else(|| by_distance(wanted, names))
}

/// What ends the parts of a tensor's name.
const SEPARATORS: [char; 3] = ['.', '/', '_'];

/// Lower case, all separators alike.
fn plain(name: &str) -> String {
    name.chars().map(|c| if SEPARATORS.contains(&c) { '.' } else { c.to_ascii_lowercase() }).collect()
}

/// Whether `name` ends with `tail`, which is one or more of its parts.
fn is_tail(name: &str, tail: &str) -> bool {
    let before = name.strip_suffix(tail);
    tail.len() > 1
        && before.is_some_and(|before| before.ends_with(SEPARATORS) || tail.starts_with(SEPARATORS))
}

/// The nearest by edit distance, where that is at most a fifth of the name and four.
fn by_distance<'a>(wanted: &str, names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let most = (wanted.chars().count() / 5).clamp(1, 4);
    let (mut best, mut row) = (None, Vec::new());
    for name in names.take(MOST_NAMES).filter(|name| name.len().abs_diff(wanted.len()) <= 4 * most) {
        let limit = best.map_or(most, |(distance, _): (usize, &str)| distance - 1);
        if let Some(distance) = distance(wanted, name, limit, &mut row) {
            best = Some((distance, name));
            if distance == 1 {
                break;
            }
        }
    }
    best.map(|(_, name)| name)
}

/// The edit distance with transpositions (optimal string alignment) where it is at most `limit`.
fn distance(a: &str, b: &str, limit: usize, rows: &mut Vec<usize>) -> Option<usize> {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    // Three rows of the table: the one before the last, the last, and the one being filled.
    let width = b.len() + 1;
    rows.clear();
    rows.resize(3 * width, 0);
    let at = |row: usize, column: usize| row % 3 * width + column;
    (0..width).for_each(|column| rows[column] = column);
    for i in 1..=a.len() {
        rows[at(i, 0)] = i;
        let mut least = i;
        for j in 1..width {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut cost =
                (rows[at(i - 1, j)] + 1).min(rows[at(i, j - 1)] + 1).min(rows[at(i - 1, j - 1)] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(rows[at(i - 2, j - 2)] + 1);
            }
            rows[at(i, j)] = cost;
            least = least.min(cost);
        }
        if least > limit {
            return None;
        }
    }
    Some(rows[at(a.len(), b.len())]).filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typing_mistakes_find_the_name() {
        let names = ["model.layers.0.mlp.up_proj.weight", "lm_head.weight", "lm_head.bias", "w"];
        for (wanted, expected) in [
            ("lm_head.wieght", Some("lm_head.weight")),
            ("lm_haed.weight", Some("lm_head.weight")),
            ("lm_head_weight", Some("lm_head.weight")),
            ("LM_HEAD.weight", Some("lm_head.weight")),
            ("transformer.lm_head.weight", Some("lm_head.weight")),
            ("lm_head", Some("lm_head.bias")),
            ("layers.0.mlp.up_proj.weight", Some("model.layers.0.mlp.up_proj.weight")),
            ("model.layers.0.mlp.upproj.weigth", Some("model.layers.0.mlp.up_proj.weight")),
            ("W", Some("w")),
            ("something.else.entirely", None),
            ("", None),
            ("x", Some("w")),
        ] {
            assert_eq!(nearest(wanted, names.iter().copied()), expected, "{wanted}");
        }
        let long = "a".repeat(10_000);
        assert_eq!(nearest(&long, [long.as_str()].into_iter()), None);
        assert_eq!(nearest("ab", ["b"].into_iter()), Some("b"));
    }
}
