//! The npy and npz reader against files that NumPy wrote, and against hostile files.

mod common;

use common::zip::{self, Member};
use common::{conformance, fixtures};
use ztensor::{ErrorKind, Reader};

/// An array file with this header and this many bytes of data.
fn npy_with(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|n| n as u8));
    bytes
}

fn npy(descr: &str, order: &str, shape: &str, data: usize) -> Vec<u8> {
    npy_with(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"), data)
}

/// Six little-endian 16-bit numbers.
fn good() -> Vec<u8> {
    npy("'<i2'", "False", "(2, 3)", 12)
}

#[test]
fn samples_hold_what_numpy_wrote() {
    let files = fixtures::check("npz");
    assert!(files.len() >= 15);
}

#[test]
fn conforms() {
    for name in ["shapes.npz", "streamed_deflated.npz", "opaque.npz", "names.npz"] {
        conformance::run(&fixtures::bytes("npz", name), "npz");
    }
    for name in ["c.npy", "v3.npy"] {
        conformance::run(&fixtures::bytes("npz", name), "npy");
    }
    conformance::run_by_extension(&fixtures::bytes("npz", "empty.npz"), "npz");
}

#[test]
fn stored_arrays_are_viewed_where_they_lie() {
    let bytes = zip::archive(&[Member::stored("a.npy", &good())]);
    let reader = Reader::from_bytes(bytes.clone()).unwrap();
    let extent = reader.get("a").unwrap().components[0].1.extent().unwrap();
    assert_eq!(reader.view("a").unwrap(), &bytes[extent.offset as usize..][..12]);
    // What must be decoded says so.
    let reader = Reader::from_bytes(zip::archive(&[Member::deflated("a.npy", &good())])).unwrap();
    assert!(reader.view("a").unwrap_err().to_string().contains("deflate"));
    assert_eq!(reader.read("a").unwrap(), (0..12).collect::<Vec<u8>>());
    assert_eq!(reader.read_rows("a", 1..2).unwrap(), [6, 7, 8, 9, 10, 11]);
}

#[test]
fn rows_of_a_fortran_ordered_array_are_rows() {
    let reader = Reader::from_bytes(fixtures::bytes("npz", "f.npy")).unwrap();
    let all = reader.read("data").unwrap();
    assert_eq!(reader.read_rows("data", 1..3).unwrap(), &all[16..]);
}

#[test]
fn opening_reads_headers_only() {
    let stored = npy("'|u1'", "False", "(4000000,)", 4_000_000);
    let members = [Member::stored("a.npy", &stored), Member::deflated("b.npy", &stored)];
    let read = conformance::bytes_read_to_open(zip::archive(&members));
    assert!(read < 600_000, "{read} bytes were read");
    let read = conformance::bytes_read_to_open(stored);
    assert!(read < 200_000, "{read} bytes were read");
}

#[test]
fn old_code_page_names_are_decoded() {
    let member = Member::stored("x", &good()).with(|member| member.name = b"\x81ber\xe1.npy".to_vec());
    let first = Member::stored("first.npy", &good());
    let reader = Reader::from_bytes(zip::archive(&[first, member])).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["first", "überß"]);
}

#[test]
fn every_broken_rule_of_arrays_is_named() {
    let cases: &[(&str, Vec<u8>)] = &[
        ("npy.short", b"\x93NUMPY\x01".to_vec()),
        ("npy.short", good()[..30].to_vec()),
        ("npy.header-length", b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec()),
        ("npy.header", npy_with("{'descr': '<f4'}", 4)),
        ("npy.header", npy_with("eval('1')", 4)),
        ("npy.header", npy("'<f4'", "False", "(-1,)", 4)),
        ("npy.header", npy("'<f4'", "False", "(1e3,)", 4)),
        ("npy.header", npy("'<f4'", "False", &format!("{}{}", "(".repeat(1000), ")".repeat(1000)), 4)),
        ("npy.size", npy("'<f4'", "False", "(2,)", 4)),
        ("npy.size", npy("'<f4'", "False", "(2,)", 12)),
        ("npy.size", npy("'<f4'", "True", "(2, 0)", 12)),
        ("npy.overflow", npy("'<f8'", "False", "(4294967296, 4294967296)", 8)),
        ("npy.overflow", npy("'<f8'", "True", "(2305843009213693952,)", 8)),
        ("object.rank", npy("'|u1'", "True", &format!("({})", "1,".repeat(65)), 1)),
    ];
    for (rule, bytes) in cases {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        let error = conformance::open_hostile(bytes, "npy").expect_err(&shown);
        assert_eq!(error.rule(), Some(*rule), "{shown}: {error}");
        // The same inside an archive, stored and deflated.
        for member in [Member::stored("a.npy", bytes), Member::deflated("a.npy", bytes)] {
            let error = conformance::open_hostile(&zip::archive(&[member]), "npz").expect_err(&shown);
            // What no object may have is refused for the tensor, everything else for the member.
            let name = if *rule == "object.rank" { "a" } else { "a.npy" };
            assert_eq!((error.rule(), error.tensor()), (Some(*rule), Some(name)), "{shown}: {error}");
        }
    }
    for (descr, why) in [("'|O'", "pickl"), ("[('a', '<f4'), ('b', '<i2')]", "structured"), ("'<q9'", "<q9")]
    {
        let error = conformance::open_hostile(&npy(descr, "False", "(1,)", 8), "npy").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// `np.savez` writes such members for names like those of torch's ONNX exporter, and reads them.
#[test]
fn members_with_a_leading_slash_are_read_and_written() {
    let member = |name: &str| Member::stored(name, &good());
    let bytes = zip::archive(&[member("/model/a.npy"), member("C:\\b.npy")]);
    let reader = ztensor::Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["/model/a", "C:\\b"]);
    let mut written = Vec::new();
    let options = ztensor::export::ExportOptions::default();
    ztensor::export::export_to(&reader, &mut written, ztensor::export::ExportFormat::Npz, &options).unwrap();
    let again = ztensor::Reader::from_bytes(written).unwrap();
    assert_eq!(again.keys().collect::<Vec<_>>(), ["/model/a", "C:\\b"]);
    assert_eq!(again.read("/model/a").unwrap(), reader.read("/model/a").unwrap());
}

#[test]
fn an_array_of_objects_does_not_hide_the_others() {
    let objects = npy("'|O'", "False", "(2,)", 30);
    let fields = npy("[('a', '<f4'), ('b', '<i2')]", "False", "(5,)", 30);
    let members = [
        Member::stored("objects.npy", &objects),
        Member::stored("good.npy", &good()),
        Member::deflated("fields.npy", &fields),
    ];
    let reader = ztensor::Reader::from_bytes(zip::archive(&members)).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["objects", "good", "fields"]);
    assert!(reader.read("good").is_ok());
    assert_eq!(
        (&reader.get("objects").unwrap().shape[..], &reader.get("fields").unwrap().shape[..]),
        (&[2][..], &[5][..])
    );
    for (name, word) in [("objects", "unpickling"), ("fields", "structured")] {
        let error = reader.read(name).unwrap_err();
        assert_eq!((error.kind(), error.tensor()), (ErrorKind::Unsupported, Some(name)));
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn every_broken_rule_of_archives_is_named() {
    let stored = |name: &str| Member::stored(name, &good());
    let deflated = || Member::deflated("a.npy", &good());
    let lying = |change: fn(&mut Member)| stored("a.npy").with(|member| member.local = change);
    let mut cut_short = zip::archive(&[stored("a.npy")]);
    let directory = cut_short.len() - 22;
    cut_short.truncate(directory);
    zip::end(&mut cut_short, 2, 51, (directory - 51) as u32);
    let trailing: Vec<u8> = zip::archive(&[stored("a.npy")]).into_iter().chain([0; 3]).collect();
    let mut bomb = npy("'|u1'", "False", "(1000,)", 0);
    bomb.resize(1 << 20, 0);
    let cases: &[(&str, Vec<u8>)] = &[
        ("zip.end", b"PK\x03\x04 and nothing else, not even an end record".to_vec()),
        ("zip.trailing", trailing),
        ("zip.count", cut_short),
        ("zip.duplicate", zip::archive(&[stored("a.npy"), stored("a.npy")])),
        ("name.duplicate", zip::archive(&[stored("a.npy"), stored("a")])),
        ("zip.parent", zip::archive(&[stored("../a.npy")])),
        ("zip.parent", zip::archive(&[stored("b/../../a.npy")])),
        ("zip.parent", zip::archive(&[stored("b\\..\\a.npy")])),
        ("zip.name", zip::archive(&[stored("a\0.npy")])),
        ("zip.name", zip::archive(&[stored("")])),
        (
            "zip.utf8",
            zip::archive(&[stored("a").with(|m| (m.name, m.flags) = (b"\xff.npy".to_vec(), 0x800))]),
        ),
        ("zip.disagree", zip::archive(&[lying(|local| local.name[0] = b'b')])),
        ("zip.disagree", zip::archive(&[lying(|local| local.flags = 0x800)])),
        ("zip.disagree", zip::archive(&[lying(|local| local.method = 8)])),
        ("zip.disagree", zip::archive(&[lying(|local| local.crc ^= 1)])),
        ("zip.disagree", zip::archive(&[lying(|local| local.len += 1)])),
        ("zip.disagree", zip::archive(&[lying(|local| local.data.truncate(5))])),
        ("zip.stored-size", zip::archive(&[stored("a.npy").with(|member| member.len += 1)])),
        ("zip.local", zip::archive(&[stored("a.npy").with(|member| member.offset = Some(3))])),
        ("zip.local", zip::archive(&[stored("a.npy").with(|member| member.offset = Some(u32::MAX - 1))])),
        (
            "zip.disagree",
            zip::archive(&[stored("a.npy"), stored("b.npy").with(|member| member.offset = Some(0))]),
        ),
        ("deflate.stream", zip::archive(&[deflated().with(|member| member.len = u32::MAX - 1)])),
        ("deflate.crc", zip::archive(&[deflated().with(|member| member.crc ^= 1)])),
        ("deflate.stream", zip::archive(&[deflated().with(|member| member.data.push(0))])),
        ("deflate.stream", zip::archive(&[deflated().with(|member| member.len += 1)])),
        ("npy.size", zip::archive(&[Member::deflated("a.npy", &bomb)])),
    ];
    for (rule, bytes) in cases {
        let error = conformance::open_hostile(bytes, "npz").expect_err(rule);
        assert_eq!(error.rule(), Some(*rule), "{error}");
    }
    for (why, change) in [
        ("encrypted", (|member| member.flags |= 1) as fn(&mut Member)),
        ("method 12", |member| member.method = 12),
    ] {
        let error =
            conformance::open_hostile(&zip::archive(&[stored("a.npy").with(change)]), "npz").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Two directory entries that both point at one member's bytes.
#[test]
fn members_that_share_bytes_are_refused() {
    let inner = zip::archive(&[Member::stored("b.npy", &good())]);
    // The outer member's data begins with a whole local header and data of its own.
    let outer = Member::stored("a.npy", &inner[..inner.len() - 22 - 51]);
    let offset = (30 + "a.npy".len()) as u32;
    let mut bytes = zip::archive(std::slice::from_ref(&outer));
    let start = bytes.len() - 22 - 51;
    let mut directory = bytes[start..start + 51].to_vec();
    let mut second = inner[inner.len() - 22 - 51..][..51].to_vec();
    second[42..46].copy_from_slice(&offset.to_le_bytes());
    directory.extend(second);
    bytes.truncate(start);
    bytes.extend(&directory);
    zip::end(&mut bytes, 2, directory.len() as u32, start as u32);
    let error = conformance::open_hostile(&bytes, "npz").unwrap_err();
    assert_eq!(error.rule(), Some("zip.overlap"), "{error}");
}

#[test]
fn damage_in_a_stored_array_is_noticed() {
    let fortran = npy("'>i2'", "True", "(2, 3)", 12);
    let members = [Member::stored("a.npy", &good()), Member::stored("f.npy", &fortran)];
    let mut bytes = zip::archive(&members);
    let reader = Reader::from_bytes(bytes.clone()).unwrap();
    for name in ["a", "f"] {
        assert_eq!(reader.verify(name).unwrap(), ztensor::Verification::Checked);
        reader.read(name).unwrap();
        let extent = reader.get(name).unwrap().components[0].1.extent().unwrap();
        bytes[extent.offset as usize + 5] ^= 0x10;
    }
    let reader = Reader::from_bytes(bytes).unwrap();
    for name in ["a", "f"] {
        assert_eq!(reader.read(name).unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!(reader.verify(name).unwrap_err().kind(), ErrorKind::Mismatch);
    }
}

#[test]
fn a_decoded_size_beyond_the_limit_is_refused_before_it_is_decoded() {
    let bytes = zip::archive(&[Member::deflated("a.npy", &npy("'|u1'", "False", "(100000,)", 100_000))]);
    let options = ztensor::OpenOptions::default().max_component(99_999);
    let reader = options.open_source(std::sync::Arc::new(ztensor::source::MemorySource::new(bytes))).unwrap();
    assert_eq!(reader.read("a").unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn an_archive_is_known_by_its_arrays_wherever_they_stand() {
    let readme = Member::stored("readme.txt", b"no array");
    let bytes = zip::archive(&[readme, Member::stored("a.npy", &good())]);
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.format(), ztensor::Format::Npz);
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["readme.txt", "a"]);
}

#[test]
fn what_is_no_array_keeps_its_name() {
    let bytes = zip::archive(&[Member::stored("a.npy", &good()), Member::stored("b.npy.npy", b"no array")]);
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["a", "b.npy.npy"]);
    let mut again = Vec::new();
    let options = ztensor::export::ExportOptions::default();
    ztensor::export::export_to(&reader, &mut again, ztensor::export::ExportFormat::Npz, &options).unwrap();
    let again = Reader::from_bytes(again).unwrap();
    assert_eq!(again.keys().collect::<Vec<_>>(), ["a", "b.npy.npy"]);
}
