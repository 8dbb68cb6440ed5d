//! The values a pickle builds: plain data in one arena, addressed by number.
//!
//! Nothing here has behaviour. A class or function that a pickle names is a
//! [`Node::Global`], a call of it is a [`Node::Object`] that records what would
//! have been called with what; only [`super::torch`] and [`super::numpy`] give
//! some of them a meaning.

use super::globals::Known;
use super::unsafe_globals::UnsafeGlobals;
use crate::error::{Error, Result};
use crate::scan::policy::{self, Severity};

/// Memory that the arena may take per byte of pickle. Honest files need about
/// five; without a bound, a few bytes could copy a long list again and again.
const MEMORY_PER_BYTE: u64 = 32;
/// Memory that even the smallest pickle may take.
const MEMORY_AT_LEAST: u64 = 64 << 10;

/// A value: small ones are held directly, the rest by number. Copying an item
/// never copies what it stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Item {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A span of the arena's text.
    Text {
        len: u32,
        start: u64,
    },
    /// Short bytes: a span of the arena's text where they are UTF-8, of its bytes where not.
    Bytes {
        utf8: bool,
        len: u32,
        start: u64,
    },
    Node(u32),
}

/// A value with parts.
#[derive(Debug)]
pub(super) enum Node {
    Tuple(Box<[Item]>),
    List(Vec<Item>),
    Set(Vec<Item>),
    Dict(Dict),
    Global(Box<Global>),
    Object(Box<Object>),
    /// A reference to something outside the pickle.
    Persistent(Item),
    /// Long bytes, left where they are in the pickle's source.
    Blob {
        start: u64,
        len: u64,
    },
    /// An integer beyond 64 bits: two's complement, little-endian.
    Long(Box<[u8]>),
}

/// A dictionary, in the order of the pickle; keys may come twice here.
#[derive(Debug, Default)]
pub(super) struct Dict {
    pub(super) entries: Vec<(Item, Item)>,
    /// Made by a class (`OrderedDict` and its like), which may have a state of its own.
    pub(super) of_class: bool,
}

/// The name of a class or function, which is never looked up. Module and name are spans of the
/// arena's text: a global that is named by texts of the memo refers to them instead of copying.
#[derive(Debug, Clone, Copy)]
pub(super) struct Global {
    pub(super) known: Known,
    module: Item,
    name: Item,
}

/// A call that is recorded instead of made, and what was done to its result.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) class: Item,
    /// What `class` is, if it is a name this reader knows.
    pub(super) known: Known,
    /// The arguments, a tuple.
    pub(super) args: Item,
    pub(super) state: Option<Item>,
    pub(super) items: Vec<Item>,
    pub(super) entries: Vec<(Item, Item)>,
}

/// All values of one file's pickles.
#[derive(Debug)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    /// All texts. They are validated as UTF-8 once, when they are added.
    text: String,
    /// All short bytes that are not UTF-8.
    bytes: Vec<u8>,
    budget: u64,
    unsafe_globals: UnsafeGlobals,
}

impl Arena {
    /// An arena for pickles of at most `input` bytes together.
    pub(super) fn new(input: u64) -> Arena {
        Arena {
            nodes: Vec::new(),
            text: String::new(),
            bytes: Vec::new(),
            budget: input.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_AT_LEAST),
            unsafe_globals: UnsafeGlobals::default(),
        }
    }

    /// The dangerous functions that the pickles so far name.
    pub(super) fn unsafe_globals(&self) -> &UnsafeGlobals {
        &self.unsafe_globals
    }

    /// Accounts for `bytes` of memory.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<()> {
        match self.budget.checked_sub(bytes as u64) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => Err(Error::corrupt(
                "pickle.memory",
                format!("the pickle builds values of more than {MEMORY_PER_BYTE} times its own size"),
            )),
        }
    }

    /// Accounts for `count` more items of a container.
    pub(super) fn charge_items(&mut self, count: usize) -> Result<()> {
        self.charge(count.saturating_mul(size_of::<Item>()))
    }

    pub(super) fn push(&mut self, node: Node) -> Result<Item> {
        let extra = match &node {
            Node::Tuple(items) => size_of_val(&**items),
            Node::List(items) | Node::Set(items) => size_of_val(&**items),
            Node::Dict(dict) => size_of_val(&*dict.entries),
            Node::Object(_) => size_of::<Object>(),
            Node::Long(bytes) => bytes.len(),
            Node::Global(_) => size_of::<Global>(),
            Node::Persistent(_) | Node::Blob { .. } => 0,
        };
        // The list of nodes has room for twice as many after it has grown.
        self.charge(2 * size_of::<Node>() + extra)?;
        let index = u32::try_from(self.nodes.len())
            .map_err(|_| Error::corrupt("pickle.items", "the pickle builds more than 2^32 values"))?;
        self.nodes.push(node);
        Ok(Item::Node(index))
    }

    /// Copies text that must be UTF-8 to be text; anything else stays bytes.
    pub(super) fn text(&mut self, text: &[u8]) -> Result<Item> {
        Ok(match self.bytes(text)? {
            Item::Bytes { utf8: true, len, start } => Item::Text { len, start },
            other => other,
        })
    }

    /// Copies short bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<Item> {
        let len = u32::try_from(bytes.len())
            .map_err(|_| Error::corrupt("pickle.text", "a string is longer than 4 GiB"))?;
        self.charge(bytes.len())?;
        Ok(match validated(bytes) {
            Some(text) => {
                let start = self.text.len() as u64;
                self.text.push_str(text);
                Item::Bytes { utf8: true, len, start }
            }
            None => {
                let start = self.bytes.len() as u64;
                self.bytes.extend_from_slice(bytes);
                Item::Bytes { utf8: false, len, start }
            }
        })
    }

    /// An integer of any size, from its two's complement in little-endian order.
    pub(super) fn integer(&mut self, bytes: &[u8]) -> Result<Item> {
        let sign = match bytes.last() {
            None => return Ok(Item::Int(0)),
            Some(byte) if byte & 0x80 != 0 => 0xff,
            Some(_) => 0,
        };
        let significant = bytes.iter().rposition(|&byte| byte != sign).map_or(0, |at| at + 1);
        let mut number = [sign; 8];
        if significant <= 8 {
            number[..significant].copy_from_slice(&bytes[..significant]);
            let number = i64::from_le_bytes(number);
            // Eight bytes whose top bit is not the sign need a ninth.
            if (number < 0) == (sign != 0) {
                return Ok(Item::Int(number));
            }
        }
        // A byte more where the last one would read as the other sign.
        let signed = significant > 0 && (bytes[significant - 1] ^ sign) & 0x80 == 0;
        let len = if signed { significant } else { significant + 1 };
        self.push(Node::Long(bytes[..len.min(bytes.len())].into()))
    }

    /// A class or function by module and name, which must be text or bytes that are text.
    pub(super) fn global(&mut self, module: Item, name: Item) -> Result<Item> {
        let (Some(module_text), Some(name_text)) = (self.as_name(module), self.as_name(name)) else {
            return Err(Error::corrupt("pickle.global", "the name of a class is not UTF-8 text"));
        };
        let known = Known::of(module_text, name_text);
        if known == Known::Opaque && policy::classify(module_text, name_text) == Severity::Dangerous {
            let found = policy::shown(module_text, name_text);
            self.unsafe_globals.add(found);
        }
        self.push(Node::Global(Box::new(Global { known, module, name })))
    }

    fn text_at(&self, start: u64, len: u32) -> &str {
        // Spans are made by `bytes`, so they lie inside the text and start and end with characters.
        self.text.get(start as usize..start as usize + len as usize).unwrap_or_default()
    }

    /// The text of a text item.
    pub(super) fn as_text(&self, item: Item) -> Option<&str> {
        match item {
            Item::Text { len, start } => Some(self.text_at(start, len)),
            _ => None,
        }
    }

    /// Text, or bytes that are text: what Python 2 wrote for names.
    pub(super) fn as_name(&self, item: Item) -> Option<&str> {
        match item {
            Item::Text { len, start } | Item::Bytes { utf8: true, len, start } => {
                Some(self.text_at(start, len))
            }
            _ => None,
        }
    }

    /// The bytes of a short bytes item.
    pub(super) fn as_bytes(&self, item: Item) -> Option<&[u8]> {
        match item {
            Item::Bytes { utf8: true, len, start } => Some(self.text_at(start, len).as_bytes()),
            Item::Bytes { utf8: false, len, start } => {
                self.bytes.get(start as usize..start as usize + len as usize)
            }
            _ => None,
        }
    }

    pub(super) fn node(&self, item: Item) -> Option<&Node> {
        match item {
            Item::Node(index) => self.nodes.get(index as usize),
            _ => None,
        }
    }

    pub(super) fn node_mut(&mut self, item: Item) -> Option<&mut Node> {
        match item {
            Item::Node(index) => self.nodes.get_mut(index as usize),
            _ => None,
        }
    }

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn tuple(&self, item: Item) -> Option<&[Item]> {
        match self.node(item) {
            Some(Node::Tuple(items)) => Some(items),
            _ => None,
        }
    }

    /// The items of a tuple or a list.
    pub(super) fn sequence(&self, item: Item) -> Option<&[Item]> {
        match self.node(item) {
            Some(Node::Tuple(items)) => Some(items),
            Some(Node::List(items)) => Some(items),
            _ => None,
        }
    }

    pub(super) fn object(&self, item: Item) -> Option<&Object> {
        match self.node(item) {
            Some(Node::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// What a global is, if it is one that this reader knows.
    pub(super) fn known(&self, item: Item) -> Option<Known> {
        match self.node(item) {
            Some(Node::Global(global)) => Some(global.known),
            _ => None,
        }
    }

    /// Module and name of a global.
    pub(super) fn global_name(&self, global: &Global) -> (&str, &str) {
        // `global` has checked that both are text.
        (self.as_name(global.module).unwrap_or_default(), self.as_name(global.name).unwrap_or_default())
    }

    /// `module.name` of a global for messages, cut when it is absurdly long.
    fn global_shown(&self, global: &Global) -> String {
        let (module, name) = self.global_name(global);
        policy::shown(module, name)
    }

    /// What to call a value in messages.
    pub(super) fn kind(&self, item: Item) -> String {
        match item {
            Item::None => "None".into(),
            Item::Bool(_) => "a bool".into(),
            Item::Int(_) => "an int".into(),
            Item::Float(_) => "a float".into(),
            Item::Text { .. } => "a str".into(),
            Item::Bytes { .. } => "bytes".into(),
            Item::Node(_) => match self.node(item) {
                Some(Node::Tuple(_)) => "a tuple".into(),
                Some(Node::List(_)) => "a list".into(),
                Some(Node::Set(_)) => "a set".into(),
                Some(Node::Dict(_)) => "a dict".into(),
                Some(Node::Blob { .. }) => "bytes".into(),
                Some(Node::Long(_)) => "an int".into(),
                Some(Node::Persistent(_)) => "a persistent object".into(),
                Some(Node::Global(global)) => format!("the name {:?}", self.global_shown(global)),
                Some(Node::Object(object)) => match self.node(object.class) {
                    Some(Node::Global(global)) => {
                        format!("an object made by {:?}", self.global_shown(global))
                    }
                    _ => "an object".into(),
                },
                None => "nothing".into(),
            },
        }
    }
}

/// Bytes as text, if they are UTF-8. Only bytes that enter the arena are validated: what refers to
/// them later takes constant time.
fn validated(bytes: &[u8]) -> Option<&str> {
    #[cfg(test)]
    VALIDATED.with(|count| count.set(count.get() + bytes.len()));
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
thread_local! {
    /// Bytes that this thread has validated.
    static VALIDATED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_and_nodes_stay_small() {
        assert_eq!(size_of::<Item>(), 16);
        assert!(size_of::<Node>() <= 40);
    }

    #[test]
    fn integers_of_every_length_keep_their_value() {
        let mut arena = Arena::new(1000);
        for number in [0i64, 1, -1, 127, 128, -128, -129, i64::MAX, i64::MIN, 1 << 40] {
            for extra in 0..3 {
                let mut bytes = number.to_le_bytes().to_vec();
                bytes.extend(std::iter::repeat_n(if number < 0 { 0xff } else { 0 }, extra));
                assert_eq!(arena.integer(&bytes).unwrap(), Item::Int(number));
            }
        }
        let item = arena.integer(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0]).unwrap();
        assert!(matches!(arena.node(item), Some(Node::Long(bytes)) if bytes.len() == 9));
        let item = arena.integer(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff]).unwrap();
        assert!(matches!(arena.node(item), Some(Node::Long(bytes)) if bytes.len() == 9));
    }

    #[test]
    fn memory_is_bounded_by_the_input() {
        let mut arena = Arena::new(10);
        let error = (0..).find_map(|_| arena.push(Node::List(Vec::new())).err()).unwrap();
        assert_eq!(error.rule(), Some("pickle.memory"));
        assert!(arena.nodes.len() < 4000);
    }

    #[test]
    fn a_text_is_validated_once_however_often_it_is_referred_to() {
        // `BINGET BINPERSID POP` of a tuple of a long text: four bytes each.
        const LEN: usize = 1 << 16;
        let text = [&b"X"[..], &(LEN as u32).to_le_bytes(), &[b'm'; LEN]].concat();
        let array = b"cnumpy.core.numeric\n_frombuffer\n(C\x01\x07cnumpy\ndtype\n(U\x02u1tR(K\x01tU\x01CtR";
        let persistent = b"h\x00Q0".repeat(10_000);
        let bytes = [&b"\x80\x02"[..], &text, b"N\x86q\x000", &persistent, array, b"."].concat();
        let before = VALIDATED.get();
        let len = bytes.len();
        assert_eq!(crate::Reader::from_bytes(bytes).unwrap().len(), 1);
        let validated = VALIDATED.get() - before;
        assert!((LEN..len).contains(&validated), "{validated} of {len} bytes");
    }
}
