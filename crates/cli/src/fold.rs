//! Folding of layer numbers: `layers.0.w`, `layers.1.w`, … become `layers.{0..31}.w`.

use std::collections::{BTreeSet, HashMap};

use ztensor::Object;

/// A line of a table: one tensor, or several that differ only in their numbers.
pub struct Row<'a> {
    /// The name, numbers folded.
    pub name: String,
    /// The first of them.
    pub object: &'a Object,
    /// How many there are.
    pub count: u64,
    /// What they take in the file together.
    pub stored: u64,
}

/// One line per tensor.
pub fn unfolded<'a>(objects: &[(&str, &'a Object)]) -> Vec<Row<'a>> {
    let row = |(name, object): &(&str, &'a Object)| Row {
        name: (*name).to_owned(),
        object,
        count: 1,
        stored: object.stored_len(),
    };
    objects.iter().map(row).collect()
}

/// Tensors with the same name but for numbers, and the same shape, type, layout
/// and encoding, on one line.
pub fn folded<'a>(objects: &[(&str, &'a Object)]) -> Vec<Row<'a>> {
    grouped(objects).into_iter().map(|(row, _)| row).collect()
}

/// Like [`folded`], with the indices of the tensors that each line stands for.
pub fn grouped<'a>(objects: &[(&str, &'a Object)]) -> Vec<(Row<'a>, Vec<usize>)> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    // Files have tens of thousands of tensors: nothing is allocated for those that fold.
    let (mut key, mut numbers) = (Vec::new(), Vec::new());
    for (index, &(name, object)) in objects.iter().enumerate() {
        key.clear();
        numbers.clear();
        split(name, &mut key, &mut numbers);
        let text = key.len();
        sign(object, &mut key);
        let place = places.get(&key).copied().unwrap_or_else(|| {
            places.insert(key.clone(), groups.len());
            let texts = key[..text].split(|byte| *byte == NUMBER);
            groups.push(Group {
                template: texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect(),
                numbers: vec![BTreeSet::new(); numbers.len()],
                object,
                members: Vec::new(),
                stored: 0,
            });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.members.push(index);
        group.stored += object.stored_len();
        for (seen, number) in group.numbers.iter_mut().zip(&numbers) {
            seen.insert(*number);
        }
    }
    groups.into_iter().map(Group::row).collect()
}

/// Stands in a key where a number was: no text in UTF-8 has it.
const NUMBER: u8 = 0xff;

struct Group<'a> {
    template: Vec<String>,
    numbers: Vec<BTreeSet<u64>>,
    object: &'a Object,
    members: Vec<usize>,
    stored: u64,
}

impl<'a> Group<'a> {
    fn row(self) -> (Row<'a>, Vec<usize>) {
        let mut name = String::new();
        for (index, text) in self.template.iter().enumerate() {
            name.push_str(text);
            if let Some(numbers) = self.numbers.get(index) {
                name.push_str(&range(numbers));
            }
        }
        let count = self.members.len() as u64;
        (Row { name, object: self.object, count, stored: self.stored }, self.members)
    }
}

/// `7`, `{0..31}` or `{0..2,5}`; `{0…40}` where that would be long.
fn range(numbers: &BTreeSet<u64>) -> String {
    const LONGEST: usize = 24;
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return String::new() };
    if numbers.len() == 1 {
        return first.to_string();
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(start, end): &(u64, u64)| match start == end {
        true => start.to_string(),
        false => format!("{start}..{end}"),
    };
    let all = runs.iter().map(run).collect::<Vec<_>>().join(",");
    match all.len() > LONGEST {
        true => format!("{{{first}…{last}}}"),
        false => format!("{{{all}}}"),
    }
}

/// Cuts a name at the numbers that stand alone between separators.
fn split(name: &str, key: &mut Vec<u8>, numbers: &mut Vec<u64>) {
    for piece in name.split_inclusive(['.', '/']) {
        let word = piece.strip_suffix(['.', '/']).unwrap_or(piece);
        // Numbers with leading zeros would not be written back the same.
        let plain = word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
        match word.parse::<u64>() {
            Ok(number) if plain => {
                numbers.push(number);
                key.push(NUMBER);
                key.extend_from_slice(&piece.as_bytes()[word.len()..]);
            }
            _ => key.extend_from_slice(piece.as_bytes()),
        }
    }
}

/// Adds what tensors on one line have in common besides their name.
fn sign(object: &Object, key: &mut Vec<u8>) {
    key.push(NUMBER);
    object.shape.iter().for_each(|size| key.extend_from_slice(&size.to_le_bytes()));
    let dtype = object.dtype().map_or("", |dtype| dtype.name());
    let encodings = object.components.iter().map(|(_, component)| component.encoding());
    for word in [dtype, object.layout.name()].into_iter().chain(encodings) {
        key.push(NUMBER);
        key.extend_from_slice(word.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ztensor::{Component, DType, Extent};

    fn names(names: &[&str]) -> Vec<String> {
        let object = Object::dense(&[1u64][..], Component::plain(DType::U8, Extent::new(64, 1)));
        let objects: Vec<_> = names.iter().map(|name| (*name, &object)).collect();
        folded(&objects).into_iter().map(|row| format!("{} {}", row.count, row.name)).collect()
    }

    #[test]
    fn numbers_between_separators_fold() {
        assert_eq!(
            names(&["layers.0.w", "layers.1.w", "layers.2.w", "norm"]),
            ["3 layers.{0..2}.w", "1 norm"]
        );
        assert_eq!(names(&["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"]), ["4 a.{0..1}.b.{0..1}"]);
        assert_eq!(names(&["a.0.b.0", "a.1.b.1"]), ["2 a.{0..1}.b.{0..1}"]);
        assert_eq!(names(&["h.1", "h.3"]), ["2 h.{1,3}"]);
        assert_eq!(names(&["h.1", "h.2", "h.4", "h.9"]), ["4 h.{1..2,4,9}"]);
        let even: Vec<String> = (0..20).map(|n| format!("h.{}", 2 * n)).collect();
        assert_eq!(names(&even.iter().map(String::as_str).collect::<Vec<_>>()), ["20 h.{0…38}"]);
        assert_eq!(names(&["x.01", "x.02", "7", "conv1.w"]), ["1 x.01", "1 x.02", "1 7", "1 conv1.w"]);
    }
}
