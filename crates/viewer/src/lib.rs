//! The WebAssembly module behind `viewer.html`: opens a file of any format that a page can read
//! ranges of, and describes it as `ztensor report` does.
//!
//! The page's worker reads the file; nothing else gets in or out. [`View`] has no part that is
//! special to WebAssembly, so ordinary tests run it.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use ztensor::source::Source;
use ztensor::{OpenOptions, Reader};
use ztensor_cli::report::{analysis, head};

#[cfg(target_family = "wasm")]
mod exports;

/// Bytes of one request to the page: headers are many small reads of one place. (structural: most headers are shorter)
const BLOCK: u64 = 1 << 18;

/// What reads a range of the file: fills the buffer from an offset on, and says whether it could.
pub type Read = fn(offset: u64, out: &mut [u8]) -> bool;

/// A file that the page reads, with its last block kept.
#[derive(Debug)]
struct Host {
    name: String,
    len: u64,
    read: Read,
    block: std::sync::Mutex<(u64, Vec<u8>)>,
}

impl Host {
    fn fill(&self, offset: u64, out: &mut [u8]) -> ztensor::Result<()> {
        match (self.read)(offset, out) {
            true => Ok(()),
            false => {
                let cause = std::io::Error::other("the browser could not read the file; was it changed?");
                Err(ztensor::Error::io("cannot read", cause))
            }
        }
    }
}

impl Source for Host {
    fn len(&self) -> u64 {
        self.len
    }

    fn label(&self) -> &str {
        &self.name
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> ztensor::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else {
            let cause = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(ztensor::Error::io("cannot read", cause));
        };
        let Ok(mut kept) = self.block.lock() else { return self.fill(offset, out) };
        let (start, block) = &mut *kept;
        let inside = *start <= offset && end <= *start + block.len() as u64;
        if !inside {
            if out.len() as u64 >= BLOCK {
                return self.fill(offset, out);
            }
            block.resize(BLOCK.min(self.len - offset) as usize, 0);
            *start = offset;
            if let Err(error) = self.fill(offset, block) {
                block.clear();
                return Err(error);
            }
        }
        let at = (offset - *start) as usize;
        out.copy_from_slice(&block[at..at + out.len()]);
        Ok(())
    }

    fn mapped(&self) -> ztensor::Result<&[u8]> {
        Err(ztensor::Error::unsupported("a browser does not map files: read it instead"))
    }
}

/// An open file.
#[derive(Debug)]
pub struct View {
    reader: Reader,
    name: String,
}

impl View {
    /// Opens a file of `len` bytes, reading its headers.
    pub fn open(name: &str, len: u64, read: Read) -> ztensor::Result<View> {
        let source = Host { name: name.to_owned(), len, read, block: Default::default() };
        let reader = OpenOptions::default().open_source(Arc::new(source))?;
        Ok(View { reader, name: name.to_owned() })
    }

    /// The file and its tensors, as far as headers tell.
    pub fn describe(&self) -> ztensor::Result<Json> {
        let mut page = head(&self.name, &self.reader)?;
        page["tensors"] =
            self.reader.objects().map(|(name, object)| analysis::described(name, object)).collect();
        Ok(page)
    }

    /// One tensor with its statistics and histogram: reads all of its values.
    pub fn tensor(&self, index: usize) -> ztensor::Result<Json> {
        match self.reader.objects().nth(index) {
            Some((name, object)) => analysis::tensor(&self.reader, name, object, 1),
            None => Err(ztensor::Error::invalid("there is no such tensor")),
        }
    }
}

/// A result for the page: `{"ok": …}`, or `{"error": …}` with a message.
pub fn answer(result: ztensor::Result<Json>) -> String {
    match result {
        Ok(found) => json!({"ok": found}).to_string(),
        Err(error) => json!({"error": error.to_string()}).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> &'static [u8] {
        static FILE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
            let folder = std::env::temp_dir().join(format!("ztensor-viewer-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("model.zt");
            let mut writer = ztensor::Writer::create(&path).unwrap();
            let numbers: Vec<f32> = (0..200_000).map(|n| n as f32).collect();
            writer.add("layers.0.weight", &[100, 2000], &numbers).unwrap();
            writer
                .add_with("layers.1.weight", &[200_000], &numbers)
                .compress(ztensor::Compression::Zstd(3))
                .checksum(ztensor::Checksum::Crc32c)
                .write()
                .unwrap();
            writer.finish().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
            bytes
        });
        &FILE
    }

    fn read(offset: u64, out: &mut [u8]) -> bool {
        let Some(bytes) = file().get(offset as usize..).and_then(|rest| rest.get(..out.len())) else {
            return false;
        };
        out.copy_from_slice(bytes);
        true
    }

    #[test]
    fn a_file_is_described_by_its_headers_and_tensors_by_their_values() {
        let view = View::open("model.zt", file().len() as u64, read).unwrap();
        let page = view.describe().unwrap();
        assert_eq!(page["tensors"][1]["name"], "layers.1.weight");
        assert_eq!(page["tensors"][0]["shape"], json!([100, 2000]));
        assert!(page["tensors"][0]["values"].is_null());
        for index in 0..2 {
            let tensor = view.tensor(index).unwrap();
            assert_eq!(tensor["values"]["count"], 200_000);
            assert_eq!(tensor["values"]["max"], 199_999.0);
            let counts = tensor["values"]["histogram"]["counts"].as_array().unwrap();
            assert_eq!(counts.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), 200_000);
        }
        assert!(answer(view.tensor(2)).starts_with("{\"error\""));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        assert!(View::open("model.zt", file().len() as u64 + 5, read).is_err());
        assert!(View::open("model.zt", 0, read).is_err());
    }
}
