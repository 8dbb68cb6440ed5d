//! Object headers: the messages that describe a group or a dataset.
//!
//! Our own, because the messages are wanted as bytes (a datatype's bits tell
//! bf16 from f16) and without tables sized by the file's claims.

use std::collections::HashSet;

use hdf5_reader::checksum::jenkins_lookup3;

use crate::error::{Error, Result};
use crate::format::hdf5::fields::{Fields, Widths};
use crate::format::hdf5::store::Store;

/// Message types.
pub(super) mod kind {
    pub(in super::super) const DATASPACE: u16 = 0x01;
    pub(in super::super) const LINK_INFO: u16 = 0x02;
    pub(in super::super) const DATATYPE: u16 = 0x03;
    pub(in super::super) const FILL_OLD: u16 = 0x04;
    pub(in super::super) const FILL: u16 = 0x05;
    pub(in super::super) const LINK: u16 = 0x06;
    pub(in super::super) const EXTERNAL_FILES: u16 = 0x07;
    pub(in super::super) const LAYOUT: u16 = 0x08;
    pub(in super::super) const GROUP_INFO: u16 = 0x0a;
    pub(in super::super) const PIPELINE: u16 = 0x0b;
    pub(in super::super) const ATTRIBUTE: u16 = 0x0c;
    pub(super) const CONTINUATION: u16 = 0x10;
    pub(in super::super) const SYMBOL_TABLE: u16 = 0x11;
    pub(in super::super) const ATTRIBUTE_INFO: u16 = 0x15;
}

/// A header's continuation blocks may not be more than this.
const MAX_BLOCKS: usize = 4096;
/// The flag of a message that only says where the message is.
const SHARED: u8 = 0x02;

/// One message.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) kind: u16,
    /// Whether it only says where the message is.
    pub(super) shared: bool,
    pub(super) bytes: Vec<u8>,
}

/// The messages of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Header(pub(super) Vec<Message>);

impl Header {
    /// The first message of a type.
    pub(super) fn find(&self, kind: u16) -> Option<&Message> {
        self.0.iter().find(|message| message.kind == kind)
    }

    /// All messages of a type.
    pub(super) fn all(&self, kind: u16) -> impl Iterator<Item = &Message> {
        self.0.iter().filter(move |message| message.kind == kind)
    }

    pub(super) fn is_group(&self) -> bool {
        let group = [kind::SYMBOL_TABLE, kind::LINK_INFO, kind::LINK, kind::GROUP_INFO];
        group.iter().any(|&kind| self.find(kind).is_some())
    }

    pub(super) fn is_dataset(&self) -> bool {
        self.find(kind::LAYOUT).is_some()
    }

    /// Reads the header at `address`.
    pub(super) fn read(store: &Store, widths: Widths, address: u64) -> Result<Header> {
        let mut header = Header::default();
        let mut reading = Reading { store, widths, pending: Vec::new(), seen: HashSet::new() };
        let start = store.bytes(address, 16)?;
        match start[..] {
            [b'O', b'H', b'D', b'R', ..] => reading.second_version(address, &mut header)?,
            [1, ..] => reading.first_version(address, &start, &mut header)?,
            [version, ..] => {
                return Err(Error::corrupt(
                    "hdf5.header",
                    format!("no object header is at {address}: it would have version {version}"),
                ));
            }
            [] => return Err(Error::corrupt("hdf5.header", "an object header is empty")),
        }
        Ok(header)
    }
}

struct Reading<'s> {
    store: &'s Store,
    widths: Widths,
    /// Blocks that continuation messages named.
    pending: Vec<(u64, u64)>,
    seen: HashSet<u64>,
}

impl Reading<'_> {
    fn first_version(&mut self, address: u64, start: &[u8], header: &mut Header) -> Result<()> {
        let mut fields = Fields::new(start);
        fields.skip(8)?;
        let len = u64::from(fields.u32()?);
        let begin = address.checked_add(16).ok_or_else(|| overflow(address))?;
        self.pending.push((begin, len));
        while let Some((address, len)) = self.pending.pop() {
            self.enter(address)?;
            let block = self.store.bytes(address, len)?;
            let mut fields = Fields::new(&block);
            while fields.left() >= 8 {
                let (kind, size, flags) = (fields.u16()?, fields.u16()?, fields.u8()?);
                fields.skip(3)?;
                let bytes = fields.take(usize::from(size))?;
                self.message(kind, flags, bytes, header)?;
            }
        }
        Ok(())
    }

    fn second_version(&mut self, address: u64, header: &mut Header) -> Result<()> {
        // Signature, version, flags, four times, two limits, and the size.
        let prefix = self.store.bytes(address, 6)?;
        let (version, flags) = (prefix[4], prefix[5]);
        if version != 2 {
            return Err(Error::unsupported(format!("object header version {version}")));
        }
        let times = if flags & 0x20 != 0 { 16 } else { 0 };
        let limits = if flags & 0x10 != 0 { 4 } else { 0 };
        let width = 1u64 << (flags & 3);
        let before = 6 + times + limits;
        let prefix = self.store.bytes(address, before + width)?;
        let len = Fields::new(&prefix[before as usize..]).number(width as usize)?;
        let whole = (before + width).checked_add(len).and_then(|len| len.checked_add(4));
        let whole = whole.ok_or_else(|| overflow(address))?;
        let ordered = flags & 0x04 != 0;
        self.enter(address)?;
        let block = self.checked_block(address, whole)?;
        self.messages(&block[(before + width) as usize..block.len() - 4], ordered, header)?;
        while let Some((address, len)) = self.pending.pop() {
            self.enter(address)?;
            let block = self.checked_block(address, len)?;
            if !block.starts_with(b"OCHK") || block.len() < 8 {
                return Err(Error::corrupt("hdf5.header", format!("no continuation is at {address}")));
            }
            self.messages(&block[4..block.len() - 4], ordered, header)?;
        }
        Ok(())
    }

    /// A block that ends with a checksum of the rest.
    fn checked_block(&self, address: u64, len: u64) -> Result<hdf5_reader::storage::StorageBuffer> {
        let block = self.store.bytes(address, len)?;
        let Some((content, stored)) = block.split_last_chunk::<4>() else {
            return Err(Error::corrupt("hdf5.header", format!("the block at {address} has {len} bytes")));
        };
        let (stored, found) = (u32::from_le_bytes(*stored), jenkins_lookup3(content));
        if stored != found {
            return Err(Error::corrupt(
                "hdf5.checksum",
                format!("the header block at {address} has the checksum {found:08x} and says {stored:08x}"),
            ));
        }
        Ok(block)
    }

    fn messages(&mut self, bytes: &[u8], ordered: bool, header: &mut Header) -> Result<()> {
        let mut fields = Fields::new(bytes);
        let prefix = if ordered { 6 } else { 4 };
        // Fewer bytes than a message takes are a gap.
        while fields.left() >= prefix {
            let (kind, size, flags) = (u16::from(fields.u8()?), fields.u16()?, fields.u8()?);
            if ordered {
                fields.skip(2)?;
            }
            let bytes = fields.take(usize::from(size))?;
            self.message(kind, flags, bytes, header)?;
        }
        Ok(())
    }

    fn message(&mut self, kind: u16, flags: u8, bytes: &[u8], header: &mut Header) -> Result<()> {
        match kind {
            0 => {}
            kind::CONTINUATION => {
                let mut fields = Fields::new(bytes);
                self.pending.push((fields.offset(self.widths)?, fields.length(self.widths)?));
            }
            _ => header.0.push(Message { kind, shared: flags & SHARED != 0, bytes: bytes.to_vec() }),
        }
        Ok(())
    }

    fn enter(&mut self, address: u64) -> Result<()> {
        if !self.seen.insert(address) {
            return Err(Error::corrupt(
                "hdf5.loop",
                format!("an object header continues in itself at {address}"),
            ));
        }
        if self.seen.len() > MAX_BLOCKS {
            return Err(Error::corrupt(
                "hdf5.header",
                format!("an object header has over {MAX_BLOCKS} blocks"),
            ));
        }
        Ok(())
    }
}

fn overflow(address: u64) -> Error {
    Error::corrupt("hdf5.range", format!("the object header at {address} passes the end of all addresses"))
}
