//! The suite that every format's reader runs with each of its samples.
//!
//! A valid sample must read the same mapped, unmapped and from memory. Every
//! damaged copy of it must give an error or values that fit its own catalog:
//! no panic, no memory out of proportion to the file, no hang.

use std::collections::HashMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ztensor::object::Extent;
use ztensor::source::{MapMode, Source};
use ztensor::{Compression, Error, OpenOptions, Reader, Result, WriteOptions, Writer};

use super::{allocations, processor_time};

/// Reading a component larger than this is refused while the suite runs.
const LIMIT: u64 = 16 << 20;

/// Damaged copies per kind of damage; larger samples are damaged at even steps. Fewer under an emulator,
/// where all of them take an hour: `ZTENSOR_DAMAGED_COPIES`.
pub fn copies() -> usize {
    match std::env::var("ZTENSOR_DAMAGED_COPIES") {
        Ok(number) => number.parse().expect("ZTENSOR_DAMAGED_COPIES is a number"),
        Err(_) => 20_000,
    }
}

/// Runs everything on a sample that is recognised by its content.
pub fn run(sample: &[u8], extension: &str) {
    run_with(sample, extension, true);
}

/// Runs everything on a sample of a format that only its extension tells.
pub fn run_by_extension(sample: &[u8], extension: &str) {
    run_with(sample, extension, false);
}

fn run_with(sample: &[u8], extension: &str, by_content: bool) {
    let suite = Suite::new(extension, by_content);
    suite.reads_the_same_everywhere(sample);
    suite.survives(sample, "every prefix", prefixes(sample));
    suite.survives(sample, "bytes behind the end", tails(sample));
    let header = suite.header_bytes(sample);
    suite.survives(sample, "bit flips in headers", flips(sample, &header));
    suite.survives(sample, "zeros and ones in headers", fills(sample, &header));
    suite.survives(sample, "large numbers in headers", numbers(sample, &header));
    suite.survives(sample, "mixed damage", mutations(sample, copies() / 10));
}

/// Opens damaged or hostile bytes the way the suite does: an error, or a file
/// whose every tensor was read or refused. Panics if the contract is broken.
pub fn open_hostile(bytes: &[u8], extension: &str) -> Result<()> {
    let outcome = Suite::new(extension, false).probe(bytes);
    // For `make messages`.
    if let (Err(error), Some(list)) = (&outcome, std::env::var_os("ZTENSOR_MESSAGES")) {
        let mut list = std::fs::File::options().create(true).append(true).open(list).unwrap();
        list.write_all(format!("{error}\n").as_bytes()).unwrap();
    }
    outcome
}

/// How many bytes opening reads from a source that cannot be mapped.
pub fn bytes_read_to_open(bytes: Vec<u8>) -> u64 {
    let source = Arc::new(CountingSource { bytes, read: AtomicU64::new(0) });
    let reader = options().open_source(source.clone()).expect("the sample opens from memory");
    drop(reader);
    source.read.load(Ordering::Relaxed)
}

fn options() -> OpenOptions {
    OpenOptions::default().max_component(LIMIT).threads(1)
}

struct Suite<'a> {
    extension: &'a str,
    by_content: bool,
    folder: tempfile::TempDir,
}

impl<'a> Suite<'a> {
    fn new(extension: &'a str, by_content: bool) -> Suite<'a> {
        Suite { extension, by_content, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.folder.path().join("sample").with_extension(self.extension);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    fn open(&self, bytes: &[u8]) -> Result<Reader> {
        match self.by_content {
            true => options().open_source(Arc::new(ztensor::source::MemorySource::new(bytes.to_vec()))),
            false => options().open(self.file(bytes)),
        }
    }

    fn reads_the_same_everywhere(&self, sample: &[u8]) {
        let path = self.file(sample);
        let open = |mode| options().map(mode).open(&path).expect("the sample opens");
        let mapped = contents(&open(MapMode::Auto));
        assert_eq!(mapped, contents(&open(MapMode::Never)), "mapped and unmapped differ");
        if self.by_content {
            let memory = self.open(sample).expect("the sample opens from memory");
            assert_eq!(mapped, contents(&memory), "mapped and in memory differ");
        }
        let reader = open(MapMode::Auto);
        together_as_one_by_one(&reader);
        for (name, object) in reader.objects() {
            let owned = reader.read_owned(name).expect("a tensor of the sample can be read");
            let seen = reader.read_object(name).expect("a tensor of the sample can be seen");
            for (role, component) in &object.components {
                let bytes = &owned.component(role).unwrap().bytes;
                assert_eq!(bytes.len() as u64, component.len, "{name}");
                assert_eq!(bytes, &seen.component(role).unwrap().bytes, "{name}: copied and seen differ");
            }
        }
    }

    /// The bytes that no tensor lies in.
    fn header_bytes(&self, sample: &[u8]) -> Vec<usize> {
        let reader = self.open(sample).expect("the sample opens");
        let mut header = vec![true; sample.len()];
        let extents = reader
            .objects()
            .flat_map(|(_, object)| object.components.iter().filter_map(|(_, component)| component.extent()));
        for Extent { offset, len, .. } in extents.filter(|extent| extent.source == 0) {
            header[offset as usize..(offset + len) as usize].fill(false);
        }
        header.iter().enumerate().filter(|(_, is_header)| **is_header).map(|(at, _)| at).collect()
    }

    fn survives(&self, sample: &[u8], damage: &str, copies: impl Iterator<Item = (String, Vec<u8>)>) {
        for (how, bytes) in copies {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.probe(&bytes)));
            if outcome.is_err() {
                let kept = std::env::temp_dir().join(format!("damaged.{}", self.extension));
                std::fs::write(&kept, &bytes).unwrap();
                panic!("{damage}, {how} (sample of {} bytes): see above; kept in {kept:?}", sample.len());
            }
        }
    }

    /// Opens and reads everything; panics where the contract is broken.
    fn probe(&self, bytes: &[u8]) -> Result<()> {
        let start = processor_time();
        let (reader, peak) = allocations::peak(|| self.open(bytes));
        // The copy of the file that the memory source holds counts too.
        let allowed = bytes.len() * 64 + (2 << 20);
        assert!(peak <= allowed, "opening {} bytes took {peak} bytes of memory", bytes.len());
        let outcome = reader.and_then(|reader| walk(&reader));
        let elapsed = processor_time() - start;
        assert!(elapsed < Duration::from_secs(20), "opening and reading took {elapsed:?} of processor time");
        if let Err(error) = &outcome {
            assert!(!error.to_string().is_empty());
        }
        outcome
    }
}

/// All tensors read in one call, and all tensors copied to a `.zt` file (where some are tied), are
/// what they are one by one; components with one content key are equal.
fn together_as_one_by_one(reader: &Reader) {
    let mut contents: HashMap<_, Vec<u8>> = HashMap::new();
    let mut expected: Vec<(&str, &str, Vec<u8>)> = Vec::new();
    for (name, object) in reader.objects() {
        for (role, component) in &object.components {
            let bytes = reader.read_component(name, role).expect("a tensor of the sample can be read");
            if let Some(key) = component.content_key() {
                let first = contents.entry(key).or_insert_with(|| bytes.clone());
                assert!(*first == bytes, "{name:?} has the content key of a component that differs");
            }
            expected.push((name, role, bytes));
        }
    }
    let mut out: Vec<Vec<u8>> = expected.iter().map(|(_, _, bytes)| vec![0; bytes.len()]).collect();
    let requests = expected.iter().zip(&mut out).map(|((name, role, _), out)| (*name, *role, &mut out[..]));
    reader.read_many(requests.collect(), None).expect("the tensors of the sample can be read together");
    for ((name, role, bytes), out) in expected.iter().zip(&out) {
        assert!(bytes == out, "{role:?} of {name:?} differs when it is read together with others");
    }
    for compression in [Compression::None, Compression::Zstd(1)] {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file).unwrap();
        let names: Vec<&str> = reader.keys().collect();
        let options = WriteOptions { compression, ..WriteOptions::default() };
        writer.write_from(reader, &names, options, None).expect("the sample can be copied");
        writer.finish().unwrap();
        let copy = Reader::from_bytes(file).unwrap();
        for (name, role, bytes) in &expected {
            assert!(copy.read_component(name, role).unwrap() == *bytes, "{role:?} of {name:?} in a copy");
        }
    }
}

/// Reads every tensor; the first error, after all were tried.
fn walk(reader: &Reader) -> Result<()> {
    let mut first: Result<(), Error> = Ok(());
    for (name, object) in reader.objects() {
        assert!(object.shape.len() <= ztensor::object::MAX_RANK);
        match reader.read_owned(name) {
            Ok(tensor) => {
                for (role, component) in &object.components {
                    assert_eq!(tensor.component(role).unwrap().bytes.len() as u64, component.len);
                }
            }
            Err(error) => {
                if first.is_ok() {
                    first = Err(error);
                }
            }
        }
    }
    first
}

/// Everything a reader says about a file, comparable.
fn contents(reader: &Reader) -> Vec<String> {
    let mut all = vec![format!("{} {:?}", reader.format(), reader.attributes())];
    all.extend(reader.keys().map(|name| {
        let tensor = reader.read_owned(name).expect("a tensor of the sample can be read");
        format!("{name:?} {tensor:?}")
    }));
    all
}

/// Every index below `len`, or `count` of them at even steps.
fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    let step = len.div_ceil(count.max(1)).max(1);
    (0..len).step_by(step)
}

fn prefixes(sample: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    spread(sample.len(), copies() / 4).map(|cut| (format!("the first {cut} bytes"), sample[..cut].to_vec()))
}

fn tails(sample: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    [1usize, 7, 8, 64, 4096].into_iter().flat_map(move |len| {
        [0u8, 0xff].map(|byte| {
            let bytes = sample.iter().copied().chain(std::iter::repeat_n(byte, len)).collect();
            (format!("{len} bytes of {byte:#x} more"), bytes)
        })
    })
}

fn flips<'a>(sample: &'a [u8], header: &'a [usize]) -> impl Iterator<Item = (String, Vec<u8>)> + 'a {
    spread(header.len(), copies() / 8).flat_map(move |index| {
        let at = header[index];
        (0..8).map(move |bit| {
            let mut bytes = sample.to_vec();
            bytes[at] ^= 1 << bit;
            (format!("bit {bit} of byte {at}"), bytes)
        })
    })
}

fn fills<'a>(sample: &'a [u8], header: &'a [usize]) -> impl Iterator<Item = (String, Vec<u8>)> + 'a {
    spread(header.len(), copies() / 4).flat_map(move |index| {
        let at = header[index];
        [0u8, 0xff].map(|byte| {
            let mut bytes = sample.to_vec();
            bytes[at] = byte;
            (format!("byte {at} set to {byte:#x}"), bytes)
        })
    })
}

/// The numbers that break arithmetic, in both widths, wherever they fit.
fn numbers<'a>(sample: &'a [u8], header: &'a [usize]) -> impl Iterator<Item = (String, Vec<u8>)> + 'a {
    const WIDE: [u64; 5] = [u64::MAX, 1 << 63, i64::MAX as u64, 1 << 32, 1 << 31];
    const NARROW: [u32; 3] = [u32::MAX, 1 << 31, i32::MAX as u32];
    spread(header.len(), copies() / 16).flat_map(move |index| {
        let at = header[index];
        let wide = WIDE.iter().map(|number| number.to_le_bytes().to_vec());
        let narrow = NARROW.iter().map(|number| number.to_le_bytes().to_vec());
        wide.chain(narrow).filter(move |number| at + number.len() <= sample.len()).map(move |number| {
            let mut bytes = sample.to_vec();
            bytes[at..at + number.len()].copy_from_slice(&number);
            (format!("{number:02x?} at byte {at}"), bytes)
        })
    })
}

/// Damage of several kinds at once, the same on every run.
pub fn mutations(sample: &[u8], count: usize) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ sample.len() as u64);
    (0..if sample.is_empty() { 0 } else { count }).map(move |round| {
        let mut bytes = sample.to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(6) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] = bytes[at].wrapping_add(1),
                2 => drop(bytes.splice(at..at, [random.next() as u8])),
                3 => bytes.truncate(at.max(1)),
                4 => {
                    let (from, len) = (random.below(bytes.len()), random.below(40));
                    let copied = bytes[from..bytes.len().min(from + len)].to_vec();
                    let end = bytes.len().min(at + copied.len());
                    bytes[at..end].copy_from_slice(&copied[..end - at]);
                }
                _ => {
                    let end = bytes.len().min(at + 1 + random.below(9));
                    bytes.drain(at..end.min(bytes.len() - 1).max(at));
                }
            }
        }
        (format!("round {round}"), bytes)
    })
}

/// xorshift: the same numbers on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit.max(1)
    }
}

/// Bytes that can only be read, and counts how many were.
#[derive(Debug)]
pub struct CountingSource {
    pub bytes: Vec<u8>,
    pub read: AtomicU64,
}

impl Source for CountingSource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn label(&self) -> &str {
        "<counted>"
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        out.copy_from_slice(&self.bytes[offset as usize..][..out.len()]);
        Ok(())
    }

    fn mapped(&self) -> Result<&[u8]> {
        Err(Error::unsupported("this source is not mapped"))
    }
}
