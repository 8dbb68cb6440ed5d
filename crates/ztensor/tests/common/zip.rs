//! Zip archives written by hand, so that they can be wrong in every way.

use std::io::Write;

/// A member as the central directory describes it, and how its local header differs.
#[derive(Clone)]
pub struct Member {
    pub name: Vec<u8>,
    pub flags: u16,
    pub method: u16,
    pub crc: u32,
    /// The bytes as stored.
    pub data: Vec<u8>,
    /// Size before compression, as claimed.
    pub len: u32,
    /// Changes the copy of this member that the local header is written from.
    pub local: fn(&mut Member),
    /// Where the local header is claimed to be, if not where it is.
    pub offset: Option<u32>,
}

impl Member {
    /// A stored member.
    pub fn stored(name: &str, data: &[u8]) -> Member {
        Member {
            name: name.into(),
            flags: 0,
            method: 0,
            crc: crc(data),
            data: data.to_vec(),
            len: data.len() as u32,
            local: |_| {},
            offset: None,
        }
    }

    /// A deflated member.
    pub fn deflated(name: &str, data: &[u8]) -> Member {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        let packed = encoder.finish().unwrap();
        Member { method: 8, data: packed, ..Member::stored(name, data) }
    }

    /// The same with a change.
    pub fn with(mut self, change: impl FnOnce(&mut Member)) -> Member {
        change(&mut self);
        self
    }

    /// What both headers have in common, from the version on.
    fn common(&self, out: &mut Vec<u8>) {
        out.extend(20u16.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.method.to_le_bytes());
        out.extend([0, 0, 0x21, 0]); // time and date
        out.extend(self.crc.to_le_bytes());
        out.extend((self.data.len() as u32).to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend([0, 0]); // extra field
    }
}

pub fn crc(data: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    crc.sum()
}

/// The archive of these members.
pub fn archive(members: &[Member]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for member in members {
        let offset = member.offset.unwrap_or(out.len() as u32);
        let mut local = member.clone();
        (member.local)(&mut local);
        out.extend(b"PK\x03\x04");
        local.common(&mut out);
        out.extend(&local.name);
        out.extend(&member.data);
        directory.extend(b"PK\x01\x02\x14\x00");
        member.common(&mut directory);
        directory.extend([0; 10]); // comment, disk, attributes
        directory.extend(offset.to_le_bytes());
        directory.extend(&member.name);
    }
    let start = out.len() as u32;
    out.extend(&directory);
    end(&mut out, members.len() as u16, directory.len() as u32, start);
    out
}

/// The record that an archive ends with.
pub fn end(out: &mut Vec<u8>, count: u16, size: u32, start: u32) {
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(size.to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
}
