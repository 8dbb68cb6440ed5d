//! What a pickle would import and call: its opcodes, followed without carrying anything out.
//!
//! The stack holds only where texts, names and calls came from. Unlike the interpreter that reads
//! tensors, this one forgives: a value that is not there is an unknown one, so that a pickle that
//! other tools would fail on later is followed as far as they would get, and further.

use std::borrow::Cow;
use std::collections::HashMap;

use super::policy::{self, Severity};
use crate::format::pickle::{opcode as op, text};

/// Values on the stack and in the memo, each, at most.
const MAX_VALUES: usize = 1 << 24;
/// Distinct names and nested pickles that are kept, each, at most.
const MAX_NAMES: usize = 4096;
/// Longer texts are no names of modules.
const MAX_NAME: usize = 1024;
/// Bytes of a line that cost as much as an opcode.
const LINE_PER_STEP: usize = 16;
/// Arguments of a call that are shown: how many, and how many characters of each.
const SHOWN: (usize, usize) = (4, 200);

/// A value, as far as it matters.
#[derive(Debug, Clone, Copy)]
enum Value {
    Unknown,
    Mark,
    /// Bytes of the pickle: text or bytes.
    Span {
        start: usize,
        len: usize,
    },
    /// A text that was written with escapes, by number.
    Decoded(u32),
    /// A name, by number.
    Global(u32),
    /// What a call of a name gave, by the name's number.
    Made(u32),
    /// What a call of something else gave.
    MadeByUnknown,
    /// A tuple, by number.
    Tuple(u32),
    /// A reference to something outside the pickle.
    Persistent,
}

/// A name that a pickle imports, and what it does with it.
#[derive(Debug)]
pub(super) struct Global {
    pub(super) name: String,
    pub(super) severity: Severity,
    pub(super) calls: u64,
    /// The arguments of its first call, for people to read. Untrusted text.
    pub(super) arguments: Option<String>,
}

/// Bytes inside a pickle that look like another file.
#[derive(Debug)]
pub(super) enum Nested {
    Span { start: usize, len: usize },
    Decoded(Vec<u8>),
}

/// Why following a pickle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At its `STOP`.
    Stop,
    /// At a byte that is no opcode, or in the middle of one.
    Broken,
    /// At the limits of this scanner.
    Limit,
}

/// What one pickle does.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) globals: Vec<Global>,
    pub(super) nested: Vec<Nested>,
    /// Calls of functions that are results of calls.
    pub(super) computed_calls: u64,
    /// References that a loader of its own must resolve.
    pub(super) persistent: u64,
    /// References to the registry of extensions.
    pub(super) extensions: u64,
    pub(super) opcodes: u64,
    /// What following it cost, in opcodes: long lines count as several.
    pub(super) cost: u64,
    pub(super) end: End,
    /// Where it ended: behind `STOP`, or at the opcode that is broken.
    pub(super) position: usize,
}

/// Follows the pickle that starts at `start`, for at most `steps` opcodes.
pub(super) fn follow(bytes: &[u8], start: usize, steps: u64) -> Followed {
    let mut machine = Machine {
        bytes,
        at: start,
        stack: Vec::new(),
        memo: HashMap::new(),
        decoded: Vec::new(),
        tuples: Vec::new(),
        numbers: HashMap::new(),
        out: Followed {
            globals: Vec::new(),
            nested: Vec::new(),
            computed_calls: 0,
            persistent: 0,
            extensions: 0,
            opcodes: 0,
            cost: 1,
            end: End::Limit,
            position: start,
        },
    };
    machine.run(steps);
    machine.out
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    memo: HashMap<u64, Value>,
    decoded: Vec<Vec<u8>>,
    /// The first few values of each tuple of arguments.
    tuples: Vec<Vec<Value>>,
    /// Names by what reports show.
    numbers: HashMap<String, u32>,
    out: Followed,
}

impl<'a> Machine<'a> {
    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.out.position = self.at;
            if self.stack.len() > MAX_VALUES || self.memo.len() > MAX_VALUES {
                return;
            }
            match self.step() {
                None => {
                    self.out.end = End::Broken;
                    return;
                }
                Some(true) => {
                    self.out.end = End::Stop;
                    self.out.position = self.at;
                    return;
                }
                Some(false) => {
                    self.out.opcodes += 1;
                    self.out.cost += 1;
                }
            }
            if self.out.cost > steps {
                return;
            }
        }
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<u64> {
        let mut number = [0; 8];
        number[..N].copy_from_slice(self.take(N as u64)?);
        Some(u64::from_le_bytes(number))
    }

    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n');
        // Pickles are looked for at many places: a line that all of them read is paid for each time.
        self.out.cost += (len.unwrap_or(rest.len()) / LINE_PER_STEP) as u64;
        let len = len?;
        self.at += len + 1;
        Some(&rest[..len])
    }

    /// Whether the pickle ends here; `None` if it breaks.
    fn step(&mut self) -> Option<bool> {
        let opcode = self.take(1)?[0];
        match opcode {
            op::STOP => return Some(true),
            op::PROTO | op::BININT1 => {
                self.take(1)?;
                if opcode == op::BININT1 {
                    self.push(Value::Unknown);
                }
            }
            op::FRAME => {
                self.take(8)?;
            }
            op::MARK => self.push(Value::Mark),
            op::POP => {
                self.stack.pop();
            }
            op::POP_MARK => {
                self.above_mark();
            }
            op::DUP => {
                let top = self.top();
                self.push(top);
            }
            op::NONE | op::NEWTRUE | op::NEWFALSE => self.push(Value::Unknown),
            op::EMPTY_LIST | op::EMPTY_DICT | op::EMPTY_SET | op::NEXT_BUFFER => self.push(Value::Unknown),
            op::READONLY_BUFFER => {}
            op::BININT => self.skip(4)?,
            op::BININT2 => self.skip(2)?,
            op::BINFLOAT => self.skip(8)?,
            op::LONG1 => {
                let len = self.number::<1>()?;
                self.skip(len)?;
            }
            op::LONG4 => {
                let len = self.number::<4>()?;
                self.skip(len)?;
            }
            op::INT | op::LONG | op::FLOAT => {
                self.line()?;
                self.push(Value::Unknown);
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                let len = self.number::<1>()?;
                self.span(len)?;
            }
            op::BINUNICODE | op::BINSTRING | op::BINBYTES => {
                let len = self.number::<4>()?;
                self.span(len)?;
            }
            op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = self.number::<8>()?;
                self.span(len)?;
            }
            op::STRING => {
                let line = self.line()?;
                let decoded = text::string(line).ok();
                self.push_decoded(decoded);
            }
            op::UNICODE => {
                let line = self.line()?;
                let decoded = text::unicode(line).ok().map(String::into_bytes);
                self.push_decoded(decoded);
            }
            op::EMPTY_TUPLE => self.tuple(Vec::new()),
            op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                let count = usize::from(opcode - op::TUPLE1) + 1;
                let mut items: Vec<Value> = (0..count).map(|_| self.pop()).collect();
                items.reverse();
                self.tuple(items);
            }
            op::TUPLE => {
                let items = self.above_mark();
                self.tuple(items);
            }
            op::LIST | op::DICT | op::FROZENSET => {
                self.above_mark();
                self.push(Value::Unknown);
            }
            op::APPEND => {
                self.pop();
            }
            op::SETITEM => {
                self.pop();
                self.pop();
            }
            op::APPENDS | op::SETITEMS | op::ADDITEMS => {
                self.above_mark();
            }
            op::PUT => {
                let line = self.line()?;
                let index = std::str::from_utf8(line).ok()?.trim().parse().ok()?;
                self.memoize(index);
            }
            op::BINPUT => {
                let index = self.number::<1>()?;
                self.memoize(index);
            }
            op::LONG_BINPUT => {
                let index = self.number::<4>()?;
                self.memoize(index);
            }
            op::MEMOIZE => self.memoize(self.memo.len() as u64),
            op::GET => {
                let line = self.line()?;
                let index = std::str::from_utf8(line).ok()?.trim().parse().ok()?;
                self.recall(index);
            }
            op::BINGET => {
                let index = self.number::<1>()?;
                self.recall(index);
            }
            op::LONG_BINGET => {
                let index = self.number::<4>()?;
                self.recall(index);
            }
            op::GLOBAL => {
                let (module, name) = (self.line()?, self.line()?);
                let global = self.global(Some(module), Some(name));
                self.push(global);
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop(), self.pop());
                let global = self.stack_global(module, name);
                self.push(global);
            }
            op::INST => {
                let (module, name) = (self.line()?, self.line()?);
                let items = self.above_mark();
                let class = self.global(Some(module), Some(name));
                self.call(class, &items);
            }
            op::OBJ => {
                let items = self.above_mark();
                let class = items.first().copied().unwrap_or(Value::Unknown);
                self.call(class, items.get(1..).unwrap_or_default());
            }
            op::REDUCE | op::NEWOBJ | op::NEWOBJ_EX => {
                if opcode == op::NEWOBJ_EX {
                    self.pop();
                }
                let (args, class) = (self.pop(), self.pop());
                let items = match args {
                    Value::Tuple(number) => self.tuples[number as usize].clone(),
                    _ => Vec::new(),
                };
                self.call(class, &items);
            }
            op::BUILD => {
                self.pop();
            }
            op::PERSID => {
                self.line()?;
                self.out.persistent += 1;
                self.push(Value::Persistent);
            }
            op::BINPERSID => {
                let id = self.pop();
                self.persistent(id);
            }
            op::EXT1 | op::EXT2 | op::EXT4 => {
                self.take(match opcode {
                    op::EXT1 => 1,
                    op::EXT2 => 2,
                    _ => 4,
                })?;
                self.out.extensions += 1;
                self.push(Value::Unknown);
            }
            _ => {
                self.at -= 1;
                return None;
            }
        }
        Some(false)
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.take(len)?;
        self.push(Value::Unknown);
        Some(())
    }

    fn span(&mut self, len: u64) -> Option<()> {
        let start = self.at;
        let bytes = self.take(len)?;
        if looks_nested(bytes) && self.out.nested.len() < MAX_NAMES {
            self.out.nested.push(Nested::Span { start, len: bytes.len() });
        }
        self.push(Value::Span { start, len: bytes.len() });
        Some(())
    }

    fn push_decoded(&mut self, decoded: Option<Vec<u8>>) {
        let Some(decoded) = decoded else { return self.push(Value::Unknown) };
        if looks_nested(&decoded) && self.out.nested.len() < MAX_NAMES {
            self.out.nested.push(Nested::Decoded(decoded.clone()));
        }
        self.decoded.push(decoded);
        self.push(Value::Decoded(self.decoded.len() as u32 - 1));
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn top(&self) -> Value {
        match self.stack.last() {
            None | Some(Value::Mark) => Value::Unknown,
            Some(value) => *value,
        }
    }

    fn pop(&mut self) -> Value {
        match self.stack.last() {
            // What is below a mark cannot be reached.
            None | Some(Value::Mark) => Value::Unknown,
            Some(_) => self.stack.pop().unwrap_or(Value::Unknown),
        }
    }

    /// Takes the values above the last mark, and the mark.
    fn above_mark(&mut self) -> Vec<Value> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark));
        let items = self.stack.split_off(mark.map_or(0, |mark| mark + 1));
        if mark.is_some() {
            self.stack.pop();
        }
        items
    }

    fn tuple(&mut self, mut items: Vec<Value>) {
        // One more than is shown says that there are more.
        items.truncate(SHOWN.0 + 1);
        items.shrink_to_fit();
        self.tuples.push(items);
        self.push(Value::Tuple(self.tuples.len() as u32 - 1));
    }

    fn memoize(&mut self, index: u64) {
        let top = self.top();
        self.memo.insert(index, top);
    }

    fn recall(&mut self, index: u64) {
        let value = self.memo.get(&index).copied().unwrap_or(Value::Unknown);
        self.push(value);
    }

    fn text(&self, value: Value) -> Option<&[u8]> {
        match value {
            Value::Span { start, len } => self.bytes.get(start..start + len),
            Value::Decoded(number) => self.decoded.get(number as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    fn stack_global(&mut self, module: Value, name: Value) -> Value {
        // Names are short; longer texts are cut, so that they cost no more than a short one.
        let cut = |text: &[u8]| text[..text.len().min(MAX_NAME + 1)].to_vec();
        let (module, name) = (self.text(module).map(cut), self.text(name).map(cut));
        self.global(module.as_deref(), name.as_deref())
    }

    /// Notes a name; parts that are not there come out of a computation.
    fn global(&mut self, module: Option<&[u8]>, name: Option<&[u8]>) -> Value {
        let readable = |text: Option<&[u8]>| match text {
            Some(text) => String::from_utf8_lossy(&text[..text.len().min(MAX_NAME + 1)]).into_owned(),
            None => "<computed>".to_owned(),
        };
        let (module_text, name_text) = (readable(module), readable(name));
        let shown = policy::shown(&module_text, &name_text);
        if let Some(&number) = self.numbers.get(&shown) {
            return Value::Global(number);
        }
        if self.out.globals.len() >= MAX_NAMES {
            return Value::Unknown;
        }
        // A name that only running the pickle would tell hides itself.
        let severity = match (module, name) {
            (Some(_), Some(_)) => policy::classify(&module_text, &name_text),
            _ => Severity::Dangerous,
        };
        let number = self.out.globals.len() as u32;
        self.out.globals.push(Global { name: shown.clone(), severity, calls: 0, arguments: None });
        self.numbers.insert(shown, number);
        Value::Global(number)
    }

    fn call(&mut self, function: Value, arguments: &[Value]) {
        let made = match function {
            Value::Global(number) => {
                if self.out.globals[number as usize].arguments.is_none() {
                    let shown = self.shown(arguments);
                    self.out.globals[number as usize].arguments = Some(shown);
                }
                self.out.globals[number as usize].calls += 1;
                Value::Made(number)
            }
            _ => {
                self.out.computed_calls += 1;
                Value::MadeByUnknown
            }
        };
        self.push(made);
    }

    /// Torch's storages, and classes with their source, are known; others are a loader's own.
    fn persistent(&mut self, id: Value) {
        let parts = match id {
            Value::Tuple(number) => self.tuples[number as usize].clone(),
            _ => Vec::new(),
        };
        match parts.first().and_then(|kind| self.text(*kind)) {
            Some(b"storage") => self.push(Value::Persistent),
            Some(b"module") => {
                let class = parts.get(1).copied().unwrap_or(Value::Unknown);
                self.push(class);
            }
            _ => {
                self.out.persistent += 1;
                self.push(Value::Persistent);
            }
        }
    }

    fn shown(&self, arguments: &[Value]) -> String {
        let mut out = Vec::new();
        for &argument in arguments.iter().take(SHOWN.0) {
            out.push(match argument {
                Value::Global(number) | Value::Made(number) => {
                    let name = &self.out.globals[number as usize].name;
                    let call = if matches!(argument, Value::Made(_)) { "(…)" } else { "" };
                    Cow::Owned(format!("{name}{call}"))
                }
                Value::Tuple(_) => Cow::Borrowed("(…)"),
                _ => match self.text(argument) {
                    Some(text) => {
                        let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN.1)]);
                        let shown: String = text.chars().take(SHOWN.1).collect();
                        Cow::Owned(format!("{shown:?}"))
                    }
                    None => Cow::Borrowed("…"),
                },
            });
        }
        if arguments.len() > SHOWN.0 {
            out.push(Cow::Borrowed("…"));
        }
        out.join(", ")
    }
}

/// Whether bytes could be a file of their own: a pickle with its protocol, or an archive.
fn looks_nested(bytes: &[u8]) -> bool {
    matches!(bytes, [op::PROTO, 0..=5, _, ..]) || bytes.starts_with(b"PK\x03\x04")
}

/// Whether a pickle may start with `bytes`: a protocol, or a value of protocols 0 and 1.
pub(super) fn may_start(bytes: &[u8]) -> bool {
    match bytes {
        [op::PROTO, 0..=5, next, ..] => op::name(*next) != "unknown",
        [op::MARK | op::GLOBAL | op::EMPTY_DICT | op::EMPTY_LIST | op::EMPTY_TUPLE, _, ..] => true,
        [op::STRING | op::UNICODE | op::INT | op::LONG | op::FLOAT, _, ..] => true,
        [op::BINUNICODE | op::SHORT_BINSTRING | op::BINSTRING | op::BINBYTES | op::SHORT_BINBYTES, _, ..] => {
            true
        }
        [op::BININT | op::BININT1 | op::BININT2 | op::BINFLOAT | op::NONE, _, ..] => true,
        [op::SHORT_BINUNICODE | op::EMPTY_SET | op::NEWTRUE | op::NEWFALSE | op::FRAME, _, ..] => true,
        _ => false,
    }
}

/// Names of dangerous functions in bytes that are no pickle as a whole, such as the rest behind a
/// broken opcode: lines of `GLOBAL` and `INST`, and texts before a `STACK_GLOBAL`.
pub(super) fn carve(bytes: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        let rest = &bytes[at + 1..];
        let names = match *byte {
            op::GLOBAL | op::INST => named_by_lines(rest),
            op::SHORT_BINUNICODE | op::BINUNICODE | op::SHORT_BINSTRING => named_by_texts(&bytes[at..]),
            _ => continue,
        };
        let Some((module, name)) = names else { continue };
        if policy::classify(module, name) == Severity::Dangerous {
            let shown = policy::shown(module, name);
            if !found.contains(&shown) && found.len() < 64 {
                found.push(shown);
            }
        }
    }
    found
}

/// Longer names are not looked for where anything may be anything.
const MAX_CARVED: usize = 80;

fn identifier(text: &[u8]) -> Option<&str> {
    let starts = text.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_');
    let is_path = text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'));
    std::str::from_utf8(text).ok().filter(|_| starts && is_path)
}

fn named_by_lines(rest: &[u8]) -> Option<(&str, &str)> {
    let line = |rest: &[u8]| rest.iter().take(MAX_CARVED).position(|byte| *byte == b'\n');
    let module = line(rest)?;
    let name = line(&rest[module + 1..])?;
    Some((identifier(&rest[..module])?, identifier(&rest[module + 1..][..name])?))
}

fn named_by_texts(rest: &[u8]) -> Option<(&str, &str)> {
    let (module, rest) = short_text(rest)?;
    let (name, rest) = short_text(memoized(rest))?;
    matches!(memoized(rest).first(), Some(&op::STACK_GLOBAL))
        .then_some((identifier(module)?, identifier(name)?))
}

fn short_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match bytes {
        [op::SHORT_BINUNICODE | op::SHORT_BINSTRING, len, rest @ ..] => (usize::from(*len), rest),
        [op::BINUNICODE, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return None,
    };
    (len <= MAX_CARVED).then(|| rest.split_at_checked(len)).flatten()
}

fn memoized(bytes: &[u8]) -> &[u8] {
    match bytes {
        [op::MEMOIZE, rest @ ..] | [op::BINPUT, _, rest @ ..] | [op::LONG_BINPUT, _, _, _, _, rest @ ..] => {
            rest
        }
        _ => bytes,
    }
}
