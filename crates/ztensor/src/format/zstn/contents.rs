//! Contents as they are stored, and the packed file as far as it is written.

use std::io::Write;

use z4ai::Effort;

use super::MAGIC;
use super::container::{
    ALIGNMENT, FOOTER, HEADER_EXPANSION, KIND_FRAME, KIND_RAW, KIND_SAME, Mode, SMALL_HEADER, VERSION,
    checksum,
};
use crate::base::pool::FreeList;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::gguf::GgmlType;
use crate::write::compress::{block_options, codec_options, not_encoded};

/// What a content is.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    Bytes,
    /// A tensor of this type and shape.
    Elements(DType, &'a [u64]),
    /// Quantized blocks of a tensor of this shape.
    Blocks(GgmlType, &'a [u64]),
}

/// A content as it will be stored.
pub(super) struct Encoded {
    kind: u8,
    bytes: Vec<u8>,
}

/// Makes frames, or keeps the bytes of what they would not make smaller.
#[derive(Default)]
pub(super) struct Encoder {
    pub(super) effort: Effort,
    pub(super) level: Option<i32>,
    /// Memory of frames that are written.
    buffers: FreeList<Vec<u8>>,
}

impl Encoder {
    pub(super) fn new(effort: Effort, level: Option<i32>) -> Encoder {
        Encoder { effort, level, ..Encoder::default() }
    }

    /// Encodes one content. `is_header` keeps the proportion that a header must have.
    pub(super) fn encode(
        &self,
        content: &[u8],
        what: Content<'_>,
        is_header: bool,
        threads: usize,
    ) -> Result<Encoded> {
        let len = content.len() as u64;
        let mut options = match what {
            Content::Elements(dtype, shape) => codec_options(dtype, shape, len, self.effort, threads),
            Content::Blocks(blocks, shape) => block_options(blocks, shape, len, self.effort, threads),
            Content::Bytes => z4ai::Options { effort: self.effort, threads, ..z4ai::Options::default() },
        };
        options.level = self.level;
        let mut bytes = self.buffers.take().unwrap_or_default();
        if !content.is_empty() {
            z4ai::compress_into(content, &options, &mut bytes).map_err(not_encoded)?;
            let stored = bytes.len() as u64;
            let proportionate = !is_header || len <= SMALL_HEADER || len.div_ceil(HEADER_EXPANSION) <= stored;
            if stored < len && proportionate {
                return Ok(Encoded { kind: KIND_FRAME, bytes });
            }
        }
        // A private copy: the digest must be of the bytes that are written.
        bytes.clear();
        bytes.try_reserve(content.len()).map_err(|_| Error::limit("not enough memory to pack a tensor"))?;
        bytes.extend_from_slice(content);
        Ok(Encoded { kind: KIND_RAW, bytes })
    }

    /// Takes back the memory of what is written.
    pub(super) fn recycle(&self, encoded: Encoded) {
        self.buffers.put(encoded.bytes);
    }
}

/// The packed file as far as it is written.
pub(super) struct Output<'a> {
    out: &'a mut dyn Write,
    prefix: [u8; 8],
    position: u64,
    index: Vec<u8>,
}

impl<'a> Output<'a> {
    pub(super) fn start(out: &'a mut dyn Write, mode: Mode) -> Result<Output<'a>> {
        let opaque = u8::from(mode == Mode::Opaque);
        let prefix = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, opaque, 0, 0];
        let mut output = Output { out, prefix, position: 0, index: Vec::new() };
        output.put(&prefix)?;
        Ok(output)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_failed)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Writes a content of `len` bytes.
    pub(super) fn blob(&mut self, encoded: &Encoded, len: u64) -> Result<()> {
        let Encoded { kind, bytes } = encoded;
        let mut crc = 0;
        if *kind == KIND_RAW {
            crc = crc32c::crc32c(bytes);
            if len > 0 {
                let padding = self.position.next_multiple_of(ALIGNMENT) - self.position;
                self.put(&[0; ALIGNMENT as usize][..padding as usize])?;
            }
        }
        self.put(bytes)?;
        self.entry(*kind, crc, bytes.len() as u64, len);
        Ok(())
    }

    /// Writes that a content of `len` bytes is content number `first` again.
    pub(super) fn same(&mut self, first: usize, len: u64) {
        self.entry(KIND_SAME, 0, first as u64, len);
    }

    fn entry(&mut self, kind: u8, crc: u32, value: u64, len: u64) {
        self.index.push(kind);
        self.index.extend_from_slice(&crc.to_le_bytes());
        self.index.extend_from_slice(&value.to_le_bytes());
        self.index.extend_from_slice(&len.to_le_bytes());
    }

    /// Writes index and footer, and returns the size of the file.
    pub(super) fn finish(mut self, content_len: u64) -> Result<u64> {
        let index = std::mem::take(&mut self.index);
        self.put(&index)?;
        let file_len = self.position + FOOTER;
        let mut footer = Vec::with_capacity(FOOTER as usize);
        for number in [index.len() as u64, content_len, file_len] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = checksum(&self.prefix, &index, &footer);
        footer.extend_from_slice(&checksum.to_le_bytes());
        footer.extend_from_slice(&self.prefix);
        self.put(&footer)?;
        self.out.flush().map_err(write_failed)?;
        Ok(file_len)
    }
}

pub(super) fn write_failed(error: std::io::Error) -> Error {
    Error::io("cannot write", error)
}
