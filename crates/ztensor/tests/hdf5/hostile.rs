//! HDF5 files that break a rule: valid ones with the telling bytes replaced. The
//! oldest kind of file has no checksums that would notice.

use std::time::Duration;

use ztensor::{Error, Reader};

use crate::common::{fixtures, processor_time};

/// A small file: `w` is contiguous, `c` is chunked and deflated.
fn sample() -> Vec<u8> {
    fixtures::bytes("hdf5", "tiny_v0.h5")
}

/// Every place where `pattern` stands.
fn places(file: &[u8], pattern: &[u8]) -> Vec<usize> {
    file.windows(pattern.len()).enumerate().filter(|(_, found)| *found == pattern).map(|(at, _)| at).collect()
}

/// The only place where `pattern` stands.
#[track_caller]
fn place(file: &[u8], pattern: &[u8]) -> usize {
    let found = places(file, pattern);
    assert_eq!(found.len(), 1, "{pattern:02x?} stands at {found:?}");
    found[0]
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// What opening, or else reading `name`, says.
fn outcome(file: Vec<u8>, name: &str) -> Result<Vec<u8>, Error> {
    Reader::from_bytes(file)?.read(name)
}

#[track_caller]
fn refused(file: Vec<u8>, name: &str, rule: &str) {
    let error = outcome(file, name).unwrap_err();
    assert_eq!(error.rule(), Some(rule), "{error}");
}

/// Where the layout message of `w` has its address and, behind it, its size.
fn layout_of_w(file: &[u8]) -> usize {
    let reader = Reader::from_bytes(file.to_vec()).unwrap();
    let extent = reader.get("w").unwrap().components[0].1.extent().unwrap();
    let mut pattern = vec![3, 1]; // version 3, contiguous
    pattern.extend(extent.offset.to_le_bytes());
    pattern.extend(extent.len.to_le_bytes());
    place(file, &pattern) + 2
}

#[test]
fn data_lies_inside_the_file() {
    let file = sample();
    let at = layout_of_w(&file);
    for address in [u64::MAX - 1, u64::MAX - 24, 1 << 63, file.len() as u64 - 23] {
        let mut bad = file.clone();
        put(&mut bad, at, &address.to_le_bytes());
        refused(bad, "w", "hdf5.range");
    }
    let mut bad = file.clone();
    put(&mut bad, at + 8, &23u64.to_le_bytes());
    refused(bad, "w", "hdf5.size");
    // The last bytes of the file are as good as any.
    let mut good = file.clone();
    put(&mut good, at, &(file.len() as u64 - 24).to_le_bytes());
    assert_eq!(outcome(good, "w").unwrap(), file[file.len() - 24..]);
}

#[test]
fn shapes_stay_in_bounds() {
    let file = sample();
    // Both datasets are 2 by 3: version 1, rank 2, no maximum.
    let mut space = vec![1, 2, 1, 0, 0, 0, 0, 0];
    space.extend([2u64, 3].iter().flat_map(|size| size.to_le_bytes()));
    let at = places(&file, &space);
    assert_eq!(at.len(), 2);
    for (sizes, rule) in [
        ([u64::MAX, u64::MAX], "object.overflow"),
        ([1 << 63, 2], "object.overflow"),
        ([1 << 40, 1], "hdf5.size"),
        ([2, 4], "hdf5.size"),
    ] {
        let mut bad = file.clone();
        let bytes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        at.iter().for_each(|&at| put(&mut bad, at + 8, &bytes));
        refused(bad, "w", rule);
    }
    let mut bad = file.clone();
    at.iter().for_each(|&at| bad[at + 1] = 65);
    refused(bad, "w", "object.rank");
}

#[test]
fn loops_end() {
    let file = sample();
    for (node, name) in [(0u8, "w"), (1, "c")] {
        // A B-tree (of the group, of the chunks) whose root is its own child.
        let at = place(&file, &[b'T', b'R', b'E', b'E', node, 0]);
        let key = if node == 0 { 8 } else { 8 + 3 * 8 };
        let mut bad = file.clone();
        bad[at + 5] = 1;
        put(&mut bad, at + 24 + key, &(at as u64).to_le_bytes());
        refused(bad, name, "hdf5.structure");
    }
    // An object header that continues in itself.
    let root = u64::from_le_bytes(file[64..72].try_into().unwrap()) as usize;
    let len = u32::from_le_bytes(file[root + 8..root + 12].try_into().unwrap());
    let mut bad = file.clone();
    put(&mut bad, root + 16, &[0x10, 0, 16, 0, 0, 0, 0, 0]);
    put(&mut bad, root + 24, &(root as u64 + 16).to_le_bytes());
    put(&mut bad, root + 32, &u64::from(len).to_le_bytes());
    refused(bad, "w", "hdf5.loop");
}

#[test]
fn chunks_lie_inside_the_file_and_decode_to_their_size() {
    let file = sample();
    let tree = place(&file, b"TREE\x01\0");
    let key = tree + 24;
    let child = key + 8 + 3 * 8;
    for address in [u64::MAX - 1, 1 << 62, file.len() as u64] {
        let mut bad = file.clone();
        put(&mut bad, child, &address.to_le_bytes());
        refused(bad, "c", "hdf5.range");
    }
    for size in [u32::MAX, 1 << 31] {
        let mut bad = file.clone();
        put(&mut bad, key, &size.to_le_bytes());
        refused(bad, "c", "hdf5.range");
    }
    // Cut short: the stream does not end.
    let mut bad = file.clone();
    let size = u32::from_le_bytes(file[key..key + 4].try_into().unwrap());
    put(&mut bad, key, &(size - 3).to_le_bytes());
    refused(bad, "c", "hdf5.filter");
    // Two chunks in one place, and one between two places.
    let step = 8 + 3 * 8 + 8;
    let mut bad = file.clone();
    let offsets = file[key + 8..key + 24].to_vec();
    put(&mut bad, key + step + 8, &offsets);
    refused(bad, "c", "hdf5.chunk");
    let mut bad = file.clone();
    put(&mut bad, key + step + 16, &1u64.to_le_bytes());
    refused(bad, "c", "hdf5.chunk");
}

#[test]
fn a_chunk_expands_to_its_declared_size_and_no_further() {
    let reader = Reader::open(fixtures::folder("hdf5").join("bombs.h5")).unwrap();
    for name in ["deflate", "lzf", "zstd", "nested"] {
        let start = processor_time();
        let error = reader.read(name).unwrap_err();
        assert_eq!(error.rule(), Some("hdf5.filter"), "{name}: {error}");
        assert!(processor_time() - start < Duration::from_secs(5), "{name}");
    }
    let error = reader.read("checksum").unwrap_err();
    assert_eq!(error.rule(), Some("hdf5.checksum"), "{error}");
}

#[test]
fn a_file_that_was_cut_is_refused() {
    let file = sample();
    refused(file[..file.len() - 1].to_vec(), "w", "hdf5.truncated");
}

#[test]
fn webs_of_links_cost_no_more_than_the_links() {
    let start = processor_time();
    let reader = Reader::open(fixtures::folder("hdf5").join("web.h5")).unwrap();
    // Sixty groups, each twice in the one before: 2^60 paths, one of them followed.
    assert_eq!(reader.len(), 1);
    assert!(processor_time() - start < Duration::from_secs(5));
}
