//! A pickle interpreter that builds values and does nothing else.
//!
//! It is a loop over opcodes with a stack, marks and a memo, as the pickle
//! protocol describes. Where Python would import a name it keeps the name, and
//! where Python would call something it records the call ([`Node::Object`]):
//! there is no path from a file to code. Every step is constant time or is paid
//! for by the arena's memory budget, and nothing recurses.

use std::collections::HashMap;

use super::arena::{Arena, Dict, Item, Node, Object};
use super::globals::{DictClass, Known};
use super::{opcode as op, text};
use crate::error::{Error, Result};
use crate::source::Cursor;

/// More opcodes than any honest file has.
const MAX_OPCODES: u64 = 1 << 28;
/// More values on the stack, and more marks, than any honest file has.
const MAX_STACK: usize = 1 << 24;
/// Longer bytes stay where they are in the file.
const MAX_COPIED: u64 = 256;

/// Runs the pickle at the cursor's position and leaves the cursor behind it.
/// The result is what the pickle leaves on the stack.
pub(super) fn run(input: &mut Cursor<'_>, arena: &mut Arena) -> Result<Item> {
    let start = input.position();
    let mut machine = Machine { input, arena, stack: Vec::new(), marks: Vec::new(), memo: Memo::default() };
    machine.run().map_err(|(error, opcode)| match error.rule() {
        Some("file.short") => Error::corrupt(
            "pickle.short",
            format!("the pickle that starts at byte {start} ends in the middle of {}", op::name(opcode)),
        ),
        _ => error,
    })
}

struct Machine<'a, 's> {
    input: &'a mut Cursor<'s>,
    arena: &'a mut Arena,
    stack: Vec<Item>,
    /// Heights of the stack where marks were set.
    marks: Vec<usize>,
    memo: Memo,
}

/// What `PUT` remembers. Picklers count from 0, so that a vector serves; a
/// number that runs ahead goes to the map, or it could claim any amount of memory.
#[derive(Default)]
struct Memo {
    dense: Vec<Item>,
    sparse: HashMap<u32, Item>,
}

impl Memo {
    fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    fn put(&mut self, index: u32, item: Item) {
        match (index as usize).cmp(&self.dense.len()) {
            std::cmp::Ordering::Less => self.dense[index as usize] = item,
            std::cmp::Ordering::Equal if !self.sparse.contains_key(&index) => self.dense.push(item),
            _ => {
                self.sparse.insert(index, item);
            }
        }
    }

    fn get(&self, index: u32) -> Option<Item> {
        self.dense.get(index as usize).or_else(|| self.sparse.get(&index)).copied()
    }
}

impl Machine<'_, '_> {
    /// Errors come with the opcode at which they happened.
    fn run(&mut self) -> Result<Item, (Error, u8)> {
        let mut opcode = op::STOP;
        for _ in 0..MAX_OPCODES {
            opcode = self.input.u8().map_err(|error| (error, opcode))?;
            match self.step(opcode) {
                Ok(None) => {}
                Ok(Some(result)) => return Ok(result),
                Err(error) => return Err((error, opcode)),
            }
        }
        let error = format!("the pickle has more than {MAX_OPCODES} opcodes");
        Err((Error::corrupt("pickle.opcodes", error), opcode))
    }

    /// Carries out one opcode; `STOP` gives the result.
    fn step(&mut self, opcode: u8) -> Result<Option<Item>> {
        match opcode {
            op::STOP => return self.pop().map(Some),
            op::PROTO => self.proto()?,
            op::FRAME => self.frame()?,

            op::MARK => {
                self.room(self.marks.len())?;
                self.marks.push(self.stack.len());
            }
            op::POP => {
                if self.stack.len() > self.floor() {
                    self.stack.pop();
                } else {
                    self.pop_mark()?; // as Python does: with nothing above it, the mark goes
                }
            }
            op::POP_MARK => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
            }
            op::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }

            op::NONE => self.push(Item::None)?,
            op::NEWTRUE => self.push(Item::Bool(true))?,
            op::NEWFALSE => self.push(Item::Bool(false))?,
            op::BININT => {
                let number = self.input.u32_le()? as i32;
                self.push(Item::Int(number.into()))?;
            }
            op::BININT1 => {
                let number = self.input.u8()?;
                self.push(Item::Int(number.into()))?;
            }
            op::BININT2 => {
                let number = self.input.u16_le()?;
                self.push(Item::Int(number.into()))?;
            }
            op::LONG1 => {
                let len = u64::from(self.input.u8()?);
                let number = self.arena.integer(self.input.take(len)?)?;
                self.push(number)?;
            }
            op::LONG4 => {
                let len = self.positive()?;
                let number = self.arena.integer(self.input.take(len)?)?;
                self.push(number)?;
            }
            op::INT | op::LONG => {
                let item = match &self.line()?[..] {
                    b"00" if opcode == op::INT => Item::Bool(false),
                    b"01" if opcode == op::INT => Item::Bool(true),
                    line => self.arena.integer(&text::integer(line)?)?,
                };
                self.push(item)?;
            }
            op::FLOAT => {
                let number = text::float(&self.line()?)?;
                self.push(Item::Float(number))?;
            }
            op::BINFLOAT => {
                let number = f64::from_be_bytes(self.input.array()?);
                self.push(Item::Float(number))?;
            }

            op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                let len = match opcode {
                    op::SHORT_BINUNICODE => self.input.u8()?.into(),
                    op::BINUNICODE => self.input.u32_le()?.into(),
                    _ => self.input.u64_le()?,
                };
                let text = self.arena.text(self.input.take(len)?)?;
                self.push(text)?;
            }
            op::UNICODE => {
                let text = text::unicode(&self.line()?)?;
                let text = self.arena.text(text.as_bytes())?;
                self.push(text)?;
            }
            op::STRING => {
                let string = text::string(&self.line()?)?;
                let string = self.arena.bytes(&string)?;
                self.push(string)?;
            }
            op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                let len = self.input.u8()?;
                self.bytes(len.into())?;
            }
            op::BINSTRING => {
                let len = self.positive()?;
                self.bytes(len)?;
            }
            op::BINBYTES => {
                let len = self.input.u32_le()?;
                self.bytes(len.into())?;
            }
            op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = self.input.u64_le()?;
                self.bytes(len)?;
            }

            op::EMPTY_TUPLE => self.push_node(Node::Tuple(Box::default()))?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::TUPLE => {
                let mark = self.pop_mark()?;
                self.tuple(self.stack.len() - mark)?;
            }
            op::EMPTY_LIST => self.push_node(Node::List(Vec::new()))?,
            op::EMPTY_DICT => self.push_node(Node::Dict(Dict::default()))?,
            op::EMPTY_SET => self.push_node(Node::Set(Vec::new()))?,
            op::LIST => {
                let items = self.above_mark()?;
                self.push_node(Node::List(items))?;
            }
            op::FROZENSET => {
                let items = self.above_mark()?;
                self.push_node(Node::Set(items))?;
            }
            op::DICT => {
                let entries = self.pairs_above_mark()?;
                self.check_keys(&entries)?;
                self.push_node(Node::Dict(Dict { entries, of_class: false }))?;
            }
            op::APPEND => {
                let item = self.pop()?;
                self.extend(opcode, &[item])?;
            }
            op::APPENDS | op::ADDITEMS => {
                let items = self.above_mark()?;
                self.extend(opcode, &items)?;
            }
            op::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(opcode, &[(key, value)])?;
            }
            op::SETITEMS => {
                let entries = self.pairs_above_mark()?;
                self.set(opcode, &entries)?;
            }

            op::PUT => {
                let index = text::index(&self.line()?)?;
                self.memoize(index)?;
            }
            op::BINPUT => {
                let index = self.input.u8()?;
                self.memoize(index.into())?;
            }
            op::LONG_BINPUT => {
                let index = self.input.u32_le()?;
                self.memoize(index)?;
            }
            op::MEMOIZE => {
                // Counted by entries, as Python does; there are fewer than opcodes.
                let index = self.memo.len() as u32;
                self.memoize(index)?;
            }
            op::GET => {
                let index = text::index(&self.line()?)?;
                self.recall(index)?;
            }
            op::BINGET => {
                let index = self.input.u8()?;
                self.recall(index.into())?;
            }
            op::LONG_BINGET => {
                let index = self.input.u32_le()?;
                self.recall(index)?;
            }

            op::GLOBAL => {
                let global = self.global_of_lines()?;
                self.push(global)?;
            }
            op::STACK_GLOBAL => {
                let (name, module) = (self.pop()?, self.pop()?);
                let global = self.arena.global(module, name)?;
                self.push(global)?;
            }
            op::REDUCE | op::NEWOBJ => {
                let (args, class) = (self.pop()?, self.pop()?);
                self.construct(opcode, class, args)?;
            }
            op::NEWOBJ_EX => {
                let _keywords = self.pop()?;
                let (args, class) = (self.pop()?, self.pop()?);
                self.construct(opcode, class, args)?;
            }
            op::INST => {
                let class = self.global_of_lines()?;
                let items = self.above_mark()?;
                let args = self.arena.push(Node::Tuple(items.into()))?;
                self.construct(opcode, class, args)?;
            }
            op::OBJ => {
                let mut items = self.above_mark()?;
                if items.is_empty() {
                    return Err(Error::corrupt("pickle.stack", "OBJ needs a class above the mark"));
                }
                let class = items.remove(0);
                let args = self.arena.push(Node::Tuple(items.into()))?;
                self.construct(opcode, class, args)?;
            }
            op::BUILD => self.build()?,
            op::PERSID => {
                let line = self.line()?;
                let id = self.arena.text(&line)?;
                self.push_node(Node::Persistent(id))?;
            }
            op::BINPERSID => self.persistent()?,

            op::EXT1 | op::EXT2 | op::EXT4 | op::NEXT_BUFFER | op::READONLY_BUFFER => {
                return Err(Error::unsupported(format!(
                    "the pickle refers to data outside the file ({}): save it without extensions or buffers",
                    op::name(opcode)
                )));
            }
            other => {
                return Err(Error::corrupt(
                    "pickle.opcode",
                    format!("byte {other:#04x} at {} is not an opcode", self.input.position() - 1),
                ));
            }
        }
        Ok(None)
    }

    fn proto(&mut self) -> Result<()> {
        match self.input.u8()? {
            0..=5 => Ok(()),
            other => Err(Error::unsupported(format!("pickle protocol {other} is not one of 0 to 5"))),
        }
    }

    /// A frame is only a hint for buffering, but must lie inside the pickle.
    fn frame(&mut self) -> Result<()> {
        let len = self.input.u64_le()?;
        if len > self.input.remaining() {
            return Err(Error::corrupt(
                "pickle.frame",
                format!("a frame of {len} bytes where {} are left", self.input.remaining()),
            ));
        }
        Ok(())
    }

    /// A signed 32-bit length.
    fn positive(&mut self) -> Result<u64> {
        let len = self.input.u32_le()? as i32;
        u64::try_from(len).map_err(|_| Error::corrupt("pickle.length", format!("a length of {len}")))
    }

    /// Up to the end of the line, which is not part of it.
    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.input.u8()? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        Ok(line)
    }

    /// A class or function that two lines name.
    fn global_of_lines(&mut self) -> Result<Item> {
        let module = self.line()?;
        let module = self.arena.text(&module)?;
        let name = self.line()?;
        let name = self.arena.text(&name)?;
        self.arena.global(module, name)
    }

    fn bytes(&mut self, len: u64) -> Result<()> {
        let item = if len <= MAX_COPIED {
            self.arena.bytes(self.input.take(len)?)?
        } else {
            let start = self.input.position();
            self.input.skip(len)?;
            self.arena.push(Node::Blob { start, len })?
        };
        self.push(item)
    }

    fn room(&self, used: usize) -> Result<()> {
        if used >= MAX_STACK {
            return Err(Error::corrupt(
                "pickle.stack",
                format!("the pickle stacks more than {MAX_STACK} values"),
            ));
        }
        Ok(())
    }

    fn push(&mut self, item: Item) -> Result<()> {
        self.room(self.stack.len())?;
        self.stack.push(item);
        Ok(())
    }

    fn push_node(&mut self, node: Node) -> Result<()> {
        let item = self.arena.push(node)?;
        self.push(item)
    }

    /// Values below the last mark cannot be touched.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Item> {
        match self.stack.last() {
            Some(item) if self.stack.len() > self.floor() => Ok(*item),
            _ => Err(Error::corrupt("pickle.stack", "the pickle takes a value from an empty stack")),
        }
    }

    fn pop(&mut self) -> Result<Item> {
        let item = self.top()?;
        self.stack.pop();
        Ok(item)
    }

    fn pop_mark(&mut self) -> Result<usize> {
        self.marks
            .pop()
            .ok_or_else(|| Error::corrupt("pickle.mark", "the pickle needs a mark that is missing"))
    }

    /// Takes the values above the last mark off the stack, and the mark.
    fn above_mark(&mut self) -> Result<Vec<Item>> {
        let mark = self.pop_mark()?;
        Ok(self.stack.split_off(mark))
    }

    fn pairs_above_mark(&mut self) -> Result<Vec<(Item, Item)>> {
        let items = self.above_mark()?;
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Error::corrupt("pickle.pairs", "a dictionary gets a key without a value"));
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn tuple(&mut self, len: usize) -> Result<()> {
        let start = self.stack.len().checked_sub(len).filter(|start| *start >= self.floor());
        let start = start
            .ok_or_else(|| Error::corrupt("pickle.stack", "the pickle takes a value from an empty stack"))?;
        let items = self.stack.drain(start..).collect();
        self.push_node(Node::Tuple(items))
    }

    fn memoize(&mut self, index: u32) -> Result<()> {
        let item = self.top()?;
        self.room(self.memo.len())?;
        self.memo.put(index, item);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<()> {
        let item = self
            .memo
            .get(index)
            .ok_or_else(|| Error::corrupt("pickle.memo", format!("memo entry {index} was never set")))?;
        self.push(item)
    }

    /// Appends to the list, set or opaque object on top of the stack.
    fn extend(&mut self, opcode: u8, items: &[Item]) -> Result<()> {
        let target = self.top()?;
        self.arena.charge_items(items.len())?;
        match self.arena.node_mut(target) {
            Some(Node::List(list)) if opcode != op::ADDITEMS => list.extend_from_slice(items),
            Some(Node::Set(set)) if opcode == op::ADDITEMS => set.extend_from_slice(items),
            Some(Node::Object(object)) if object.known == Known::Opaque => {
                object.items.extend_from_slice(items);
            }
            _ => return Err(self.wrong_target(opcode, target)),
        }
        Ok(())
    }

    /// Sets entries of the dictionary or opaque object on top of the stack.
    fn set(&mut self, opcode: u8, entries: &[(Item, Item)]) -> Result<()> {
        let target = self.top()?;
        self.check_keys(entries)?;
        self.arena.charge_items(2 * entries.len())?;
        match self.arena.node_mut(target) {
            Some(Node::Dict(dict)) => dict.entries.extend_from_slice(entries),
            Some(Node::Object(object)) if object.known == Known::Opaque => {
                object.entries.extend_from_slice(entries);
            }
            _ => return Err(self.wrong_target(opcode, target)),
        }
        Ok(())
    }

    /// Containers that can change cannot be keys.
    fn check_keys(&self, entries: &[(Item, Item)]) -> Result<()> {
        let changeable =
            |item| matches!(self.arena.node(item), Some(Node::List(_) | Node::Set(_) | Node::Dict(_)));
        match entries.iter().find(|(key, _)| changeable(*key)) {
            None => Ok(()),
            Some((key, _)) => Err(Error::corrupt(
                "pickle.key",
                format!("{} cannot be a key of a dictionary", self.arena.kind(*key)),
            )),
        }
    }

    fn wrong_target(&self, opcode: u8, target: Item) -> Error {
        Error::corrupt(
            "pickle.target",
            format!("{} cannot change {}", op::name(opcode), self.arena.kind(target)),
        )
    }

    /// Sets the state of the object on top of the stack.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        match self.arena.node_mut(target) {
            // The attributes of an OrderedDict: a state dict keeps version numbers there.
            Some(Node::Dict(dict)) if dict.of_class => {}
            Some(Node::Object(object)) if object.known.takes_state() => {
                if object.state.replace(state).is_some() {
                    return Err(Error::corrupt("pickle.build-twice", "an object gets its state twice"));
                }
            }
            _ => return Err(self.wrong_target(op::BUILD, target)),
        }
        Ok(())
    }

    /// Records a call. Calls of container classes make the container.
    fn construct(&mut self, opcode: u8, class: Item, args: Item) -> Result<()> {
        let Some(given) = self.arena.tuple(args) else {
            return Err(Error::corrupt(
                "pickle.arguments",
                format!("{} needs a tuple of arguments, not {}", op::name(opcode), self.arena.kind(args)),
            ));
        };
        let first = given.first().copied();
        let known = match self.arena.node(class) {
            Some(Node::Global(global)) => global.known,
            // A method or a nested class, fetched by a call that was not made.
            Some(Node::Object(object)) if object.known == Known::Opaque => Known::Opaque,
            _ => return Err(self.wrong_target(opcode, class)),
        };
        let node = match (known, first) {
            (Known::Dict(DictClass::Entries), Some(from)) => {
                Node::Dict(Dict { entries: self.entries_of(from)?, of_class: true })
            }
            (Known::Dict(_), _) => Node::Dict(Dict { entries: Vec::new(), of_class: true }),
            (Known::Set, from) => Node::Set(match from {
                None => Vec::new(),
                Some(from) => self.items_of(from)?,
            }),
            (Known::Reconstructor, Some(class)) => {
                let known = self.arena.known(class).unwrap_or(Known::Opaque);
                match known {
                    Known::Dict(_) => Node::Dict(Dict { entries: Vec::new(), of_class: true }),
                    known => Node::Object(Box::new(object(class, known, args))),
                }
            }
            (known, _) => Node::Object(Box::new(object(class, known, args))),
        };
        self.push_node(node)
    }

    /// Copies the items of a list or tuple; the copy is paid for.
    fn items_of(&mut self, from: Item) -> Result<Vec<Item>> {
        let count = match self.arena.node(from) {
            Some(Node::Tuple(items)) => items.len(),
            Some(Node::List(items) | Node::Set(items)) => items.len(),
            _ => return Err(self.wrong_target(op::REDUCE, from)),
        };
        self.arena.charge_items(count)?;
        Ok(match self.arena.node(from) {
            Some(Node::Tuple(items)) => items.to_vec(),
            Some(Node::List(items) | Node::Set(items)) => items.clone(),
            _ => Vec::new(),
        })
    }

    /// The entries that a dictionary class is called with: a dictionary, or pairs.
    fn entries_of(&mut self, from: Item) -> Result<Vec<(Item, Item)>> {
        if let Some(Node::Dict(dict)) = self.arena.node(from) {
            let count = dict.entries.len();
            self.arena.charge_items(2 * count)?;
            if let Some(Node::Dict(dict)) = self.arena.node(from) {
                return Ok(dict.entries.clone());
            }
        }
        let pairs = self.items_of(from)?;
        let pair = |pair| match self.arena.sequence(pair) {
            Some(&[key, value]) => Ok((key, value)),
            _ => Err(Error::corrupt("pickle.pairs", "a dictionary gets an item that is not a pair")),
        };
        let entries = pairs.into_iter().map(pair).collect::<Result<Vec<_>>>()?;
        self.check_keys(&entries)?;
        Ok(entries)
    }

    /// A reference to something outside the pickle. Old torch files wrap classes
    /// into one, together with their source code.
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        match self.arena.tuple(id) {
            Some(&[kind, class, ..]) if self.arena.as_name(kind) == Some("module") => self.push(class),
            _ => self.push_node(Node::Persistent(id)),
        }
    }
}

fn object(class: Item, known: Known, args: Item) -> Object {
    Object { class, known, args, state: None, items: Vec::new(), entries: Vec::new() }
}

#[cfg(test)]
mod tests;
