//! Torch files and pickles that lie, one for each way of lying.

mod common;

use common::conformance::{bytes_read_to_open, open_hostile};
use common::zip::{self, Member};
use ztensor::{Error, ErrorKind, Reader, Result, Value};

/// Pickles, opcode by opcode.
mod write {
    pub fn int(number: i64) -> Vec<u8> {
        [&b"\x8a\x08"[..], &number.to_le_bytes()].concat()
    }

    pub fn text(text: &str) -> Vec<u8> {
        [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }

    pub fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
        [&b"("[..], &items.concat(), b"t"].concat()
    }

    pub fn ints(numbers: &[i64]) -> Vec<u8> {
        tuple(&numbers.iter().map(|number| int(*number)).collect::<Vec<_>>())
    }

    pub fn global(module: &str, name: &str) -> Vec<u8> {
        format!("c{module}\n{name}\n").into_bytes()
    }

    pub fn call(module: &str, name: &str, args: &[Vec<u8>]) -> Vec<u8> {
        [global(module, name), tuple(args), b"R".to_vec()].concat()
    }

    pub fn dict(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let entries: Vec<u8> = entries.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
        [&b"}("[..], &entries, b"u"].concat()
    }

    pub fn storage_of(class: &str, key: Vec<u8>, numel: Vec<u8>) -> Vec<u8> {
        let id = [text("storage"), global("torch", class), key, text("cpu"), numel];
        [tuple(&id), b"Q".to_vec()].concat()
    }

    pub fn storage(numel: i64) -> Vec<u8> {
        storage_of("FloatStorage", text("0"), int(numel))
    }

    pub fn tensor_of(storage: Vec<u8>, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
        let args = [storage, int(offset), ints(size), ints(stride), b"\x89".to_vec(), b"N".to_vec()];
        call("torch._utils", "_rebuild_tensor_v2", &args)
    }

    pub fn tensor(offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
        tensor_of(storage(6), offset, size, stride)
    }

    pub fn named(value: Vec<u8>) -> Vec<u8> {
        dict(&[(text("w"), value)])
    }

    /// A NumPy array of one byte: a tensor that needs no archive.
    pub fn array() -> Vec<u8> {
        let dtype = call("numpy", "dtype", &[text("u1")]);
        call("numpy.core.numeric", "_frombuffer", &[b"C\x01\x07".to_vec(), dtype, ints(&[1]), text("C")])
    }

    pub fn pickle(value: Vec<u8>) -> Vec<u8> {
        [&b"\x80\x02"[..], &value, b"."].concat()
    }
}
use write::*;

const FLOATS: [u8; 24] = *b"abcdefghijklmnopqrstuvwx";

fn members(pickle: &[u8]) -> Vec<Member> {
    vec![Member::stored("x/data.pkl", pickle), Member::stored("x/data/0", &FLOATS)]
}

/// An archive whose pickle holds `value`, with one storage of six floats.
fn archive(value: Vec<u8>) -> Vec<u8> {
    zip::archive(&members(&pickle(value)))
}

#[track_caller]
fn refused(bytes: &[u8], extension: &str) -> Error {
    open_hostile(bytes, extension).expect_err("a hostile file was accepted")
}

fn all_refused(cases: &[(&str, &str, Vec<u8>)]) {
    for (rule, why, bytes) in cases {
        let outcome: Result<()> = open_hostile(bytes, "pt");
        let error = outcome.expect_err(why);
        assert_eq!(error.rule(), Some(*rule), "{why}: {error}");
    }
}

fn unsupported(why: &str, bytes: &[u8]) {
    let error = refused(bytes, "pt");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{why}: {error}");
}

#[test]
fn the_honest_version_opens_and_is_viewed_in_place() {
    let bytes = archive(dict(&[
        (text("w"), tensor(0, &[2, 3], &[3, 1])),
        (text("tied"), tensor(0, &[2, 3], &[3, 1])),
        (text("row"), tensor(3, &[3], &[1])),
        (text("column"), tensor(1, &[2], &[3])),
        (text("empty"), tensor(6, &[0, 7], &[7, 1])),
        (text("repeated"), tensor(5, &[1 << 20], &[0])),
    ]));
    open_hostile(&bytes, "pt").unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.view("w").unwrap(), FLOATS);
    assert_eq!(reader.view("row").unwrap(), &FLOATS[12..]);
    assert_eq!(reader.read("column").unwrap(), [&FLOATS[4..8], &FLOATS[16..20]].concat());
    let extent = |name| reader.get(name).unwrap().component("data").unwrap().extent();
    assert_eq!(extent("w"), extent("tied"));
    assert!(reader.view("column").is_err());
    assert_eq!(reader.read("repeated").unwrap(), FLOATS[20..].repeat(1 << 20));
}

#[test]
fn views_outside_their_storage_are_refused() {
    let view = |offset, size: &[i64], stride: &[i64]| archive(named(tensor(offset, size, stride)));
    let claim = |numel| {
        let storage = storage_of("FloatStorage", text("0"), numel);
        archive(named(tensor_of(storage, 0, &[1], &[1])))
    };
    all_refused(&[
        ("strided.range", "one element too many", view(0, &[7], &[1])),
        ("strided.range", "offset past the end", view(6, &[1], &[1])),
        ("strided.range", "stride past the end", view(0, &[2], &[6])),
        ("strided.range", "empty, but outside", view(7, &[0], &[1])),
        ("strided.range", "empty, far outside", view(i64::MAX, &[0, 3], &[3, 1])),
        ("strided.range", "elements overflow", view(0, &[i64::MAX, i64::MAX], &[0, 0])),
        ("strided.range", "bytes overflow", view(0, &[i64::MAX], &[0])),
        ("strided.range", "reach overflows", view(0, &[3, 3], &[i64::MAX, i64::MAX])),
        ("strided.range", "offset + reach overflows", view(i64::MAX, &[i64::MAX], &[2])),
        ("strided.rank", "sizes without strides", view(0, &[2, 3], &[1])),
        ("object.rank", "65 dimensions", view(0, &[1; 65], &[1; 65])),
        ("torch.tensor", "negative offset", view(-1, &[1], &[1])),
        ("torch.tensor", "negative size", view(0, &[-1], &[1])),
        ("torch.tensor", "negative stride", view(5, &[2], &[-1])),
        ("torch.tensor", "smallest size", view(0, &[i64::MIN], &[1])),
        ("torch.storage-size", "storage larger than its bytes", claim(int(7))),
        ("torch.storage-size", "storage smaller than its bytes", claim(int(5))),
        ("torch.storage-size", "storage of 2^64 bytes", claim(int(1 << 62))),
        ("torch.storage", "negative storage", claim(int(-6))),
        ("torch.storage", "storage size as text", claim(text("6"))),
        (
            "torch.storage",
            "storage size beyond 64 bits",
            claim([&b"\x8a\x09"[..], &[0xff; 8], &[0]].concat()),
        ),
    ]);
}

#[test]
fn storages_are_found_inside_the_archive_only() {
    let key =
        |key: &str| archive(named(tensor_of(storage_of("FloatStorage", text(key), int(6)), 0, &[1], &[1])));
    let outside = [text("storage"), global("torch", "FloatStorage"), text("0"), text("cpu")];
    let id = |id: &[u8]| archive(named(tensor_of([id, b"Q"].concat(), 0, &[1], &[1])));
    all_refused(&[
        ("torch.storage-key", "parent", key("../data/0")),
        ("torch.storage-key", "parent folder", key("..")),
        ("torch.storage-key", "absolute", key("/etc/passwd")),
        ("torch.storage-key", "backslash", key("..\\0")),
        ("torch.storage-key", "empty", key("")),
        ("torch.storage-missing", "unknown", key("1")),
        ("torch.storage", "too short a reference", id(&tuple(&outside))),
        ("torch.storage", "a reference that is text", id(&text("0"))),
        ("torch.storage-missing", "a pickle alone", pickle(named(tensor(0, &[1], &[1])))),
        ("torch.tensor", "a storage that is none", archive(named(tensor_of(int(1), 0, &[1], &[1])))),
    ]);
    unsupported(
        "unknown class",
        &archive(named(tensor_of(storage_of("OddStorage", text("0"), int(6)), 0, &[1], &[1]))),
    );
    let typed = |dtype: Vec<u8>| {
        let args = [
            storage_of("FloatStorage", text("0"), int(6)),
            int(0),
            ints(&[1]),
            ints(&[1]),
            b"\x89".to_vec(),
            b"N".to_vec(),
            dtype,
        ];
        archive(named(call("torch._utils", "_rebuild_tensor_v3", &args)))
    };
    open_hostile(&typed(global("torch", "float16")), "pt").unwrap();
    unsupported("unknown type", &typed(global("torch", "float77")));
}

#[test]
fn archives_that_disagree_with_themselves_are_refused() {
    let good = pickle(named(tensor(0, &[6], &[1])));
    let with = |change: fn(&mut Vec<Member>)| {
        let mut members = members(&good);
        change(&mut members);
        zip::archive(&members)
    };
    open_hostile(&with(|_| {}), "pt").unwrap();
    all_refused(&[
        ("zip.duplicate", "two data.pkl", with(|m| m.push(m[0].clone()))),
        ("zip.duplicate", "two storages", with(|m| m.push(m[1].clone()))),
        ("torch.two-pickles", "data.pkl elsewhere", with(|m| m.push(Member::stored("y/data.pkl", b"N.")))),
        ("zip.crc", "wrong checksum of the pickle", with(|m| m[0].crc ^= 1)),
        ("zip.disagree", "local name", with(|m| m[0].local = |l| l.name[0] = b'y')),
        ("zip.disagree", "local size", with(|m| m[1].local = |l| l.len -= 1)),
        ("zip.disagree", "local flags", with(|m| m[0].local = |l| l.flags = 0x800)),
        ("zip.disagree", "local method", with(|m| m[1].local = |l| l.method = 8)),
        ("zip.stored-size", "stored sizes", with(|m| m[1].len += 1)),
        ("zip.parent", "member outside", with(|m| m.push(Member::stored("x/../../y", b"")))),
        ("torch.byteorder", "odd byte order", with(|m| m.push(Member::stored("x/byteorder", b"middle")))),
        ("torch.storage-missing", "storage in another folder", with(|m| m[1].name[0] = b'y')),
    ]);
    unsupported("encrypted", &with(|m| m[0].flags |= 1));
    unsupported("old script", &zip::archive(&[Member::stored("x/model.json", b"{}")]));
    // A checksum of zero is torch's way of having none.
    open_hostile(&with(|m| m.iter_mut().for_each(|m| m.crc = 0)), "pt").unwrap();

    // The checksum of a storage is compared when it is read or verified, not when it is viewed.
    assert_eq!(refused(&with(|m| m[1].crc ^= 1), "pt").kind(), ErrorKind::Mismatch);
    let reader = Reader::from_bytes(with(|m| m[1].crc ^= 1)).unwrap();
    assert_eq!(reader.view("w").unwrap(), FLOATS);
    assert_eq!(reader.verify("w").unwrap_err().kind(), ErrorKind::Mismatch);
    let reader = Reader::from_bytes(with(|_| {})).unwrap();
    assert_eq!(reader.verify("w").unwrap(), ztensor::Verification::Checked);
}

#[test]
fn deflated_members_decode_to_exactly_what_they_declare() {
    let good = pickle(named(tensor(0, &[6], &[1])));
    let packed = || vec![Member::deflated("x/data.pkl", &good), Member::deflated("x/data/0", &FLOATS)];
    let with = |change: fn(&mut Vec<Member>)| {
        let mut members = packed();
        change(&mut members);
        zip::archive(&members)
    };
    open_hostile(&with(|_| {}), "pt").unwrap();
    let bomb = [&b"\x80\x02"[..], &b"N0".repeat(8 << 20), b"N."].concat();
    all_refused(&[
        (
            "torch.expansion",
            "a pickle of a thousand times its size",
            zip::archive(&[Member::deflated("x/data.pkl", &bomb)]),
        ),
        ("deflate.stream", "pickle longer than declared", with(|m| m[0].len -= 1)),
        ("deflate.stream", "pickle shorter than declared", with(|m| m[0].len += 1)),
        ("zip.crc", "wrong checksum", with(|m| m[0].crc ^= 1)),
        ("torch.storage-size", "storage of another size", with(|m| m[1].len += 4)),
        ("deflate.crc", "wrong checksum of a storage", with(|m| m[1].crc ^= 1)),
    ]);
}

#[test]
fn nothing_is_called_and_everything_unknown_is_opaque() {
    let marker = std::env::temp_dir().join("ztensor-pickle-was-executed");
    let command = format!("touch {}", marker.display());
    let evil = |module: &str, name: &str| call(module, name, &[text(&command)]);
    let bytes = archive(dict(&[
        (text("system"), evil("os", "system")),
        (text("posix"), evil("posix", "system")),
        (text("eval"), evil("builtins", "eval")),
        (text("load"), evil("torch", "load")),
        (text("nested"), [b"]".to_vec(), evil("subprocess", "Popen"), b"a".to_vec()].concat()),
        (
            text("getattr"),
            [
                call("builtins", "getattr", &[global("os", "system"), text("__call__")]),
                tuple(&[]),
                b"R".to_vec(),
            ]
            .concat(),
        ),
        (text("w"), tensor(0, &[6], &[1])),
    ]));
    open_hostile(&bytes, "pt").unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!(reader.keys().collect::<Vec<_>>(), ["w"]);
    for (name, global) in
        [("system", "os.system"), ("eval", "builtins.eval"), ("nested.0", "subprocess.Popen")]
    {
        let expected = Value::Map(vec![(Value::from("global"), Value::from(global))]);
        assert_eq!(reader.attributes().get(name), Some(&expected), "{name}");
    }
    assert!(!marker.exists());
}

#[test]
fn names_that_collide_are_told_apart() {
    let one = |first: i64| tensor(first, &[1], &[1]);
    let bytes = archive(dict(&[
        (text("a.b"), one(0)),
        (text("a"), named(one(1)).into_iter().collect::<Vec<u8>>()),
        (text("a.w"), one(2)),
        (text("a.w#2"), one(3)),
        (int(1), one(4)),
        (text("1"), one(5)),
        (text(""), one(0)),
        (text("n\0l"), one(0)),
        (text("../up"), one(0)),
    ]));
    let reader = Reader::from_bytes(bytes).unwrap();
    let names: Vec<_> = reader.keys().collect();
    assert_eq!(names, ["a.b", "a.w", "a.w#2", "a.w#2#2", "1", "1#2", "", "n\0l", "../up"]);
    for (name, at) in [("a.w", 4), ("a.w#2", 8), ("a.w#2#2", 12), ("1#2", 20)] {
        assert_eq!(reader.read(name).unwrap(), &FLOATS[at..at + 4], "{name}");
    }
    let path = reader.get("a.w#2").unwrap().attribute("path");
    assert_eq!(path, Some(&Value::Array(vec![Value::from("a.w")])));
    assert!(reader.get("a.w").unwrap().attribute("path").is_none());

    all_refused(&[
        ("pickle.key-duplicate", "a key twice", archive(dict(&[(text("w"), one(0)), (text("w"), one(1))]))),
        (
            "pickle.key-duplicate",
            "1 and True",
            archive(dict(&[(int(1), one(0)), (b"\x88".to_vec(), one(1))])),
        ),
    ]);
    let long = "n".repeat(1 << 20);
    open_hostile(&archive(dict(&[(text(&long), one(0))])), "pt").unwrap();
}

#[test]
fn nesting_sharing_and_cycles_are_bounded() {
    let deep = |levels: usize| pickle([b"]".repeat(levels), array(), b"a".repeat(levels)].concat());
    open_hostile(&deep(900), "pkl").unwrap();
    assert_eq!(refused(&deep(1_002), "pkl").rule(), Some("pickle.depth"));
    assert_eq!(refused(&deep(500_000), "pkl").rule(), Some("pickle.memory"));

    // Each list holds the one before twice: 2^60 ways to the innermost one.
    let mut doubling = b"](K\x01K\x02e".to_vec();
    for _ in 0..60 {
        doubling = [&doubling[..], b"q\x000](h\x00h\x00e"].concat();
    }
    assert_eq!(refused(&pickle(doubling.clone()), "pkl").rule(), Some("pickle.expansion"));
    // The same with tensors at the bottom.
    let mut doubling = [&b"]"[..], &tensor(0, &[1], &[1]), b"a"].concat();
    for _ in 0..60 {
        doubling = [&doubling[..], b"q\x000](h\x00h\x00e"].concat();
    }
    assert_eq!(refused(&archive(doubling), "pt").rule(), Some("pickle.expansion"));

    // A long key at every level.
    let mut keys = text(&"k".repeat(1 << 20));
    keys.extend(b"q\x000N");
    for _ in 0..900 {
        keys.extend(b"q\x010}h\x00h\x01s");
    }
    assert_eq!(refused(&pickle(keys), "pkl").rule(), Some("pickle.expansion"));

    // A list in itself, and a module in itself.
    open_hostile(&pickle([&b"]q\x00h\x00aK\x01a"[..], &array(), b"a"].concat()), "pkl").unwrap();
    let own =
        [&global("m", "M")[..], b")\x81q\x00}", &text("me"), b"h\x00s", &text("w"), &array(), b"sb"].concat();
    open_hostile(&pickle(own), "pkl").unwrap();

    // Parameters around parameters, and around themselves.
    let mut wrapped = tensor(0, &[1], &[1]);
    for _ in 0..20 {
        wrapped = call("torch._utils", "_rebuild_parameter", &[wrapped, b"\x88".to_vec(), b"N".to_vec()]);
    }
    let own = [&global("torch.nn.parameter", "Parameter")[..], b")\x81q\x00(h\x00NNNNtb"].concat();
    all_refused(&[
        ("torch.tensor", "twenty parameters", archive(named(wrapped))),
        ("torch.tensor", "a parameter in itself", archive(named(own))),
    ]);
}

#[test]
fn bytes_that_are_used_again_and_again_cost_little() {
    // A megabyte of text that stands for an array's bytes, in 10,000 arrays.
    let dtype =
        [call("numpy", "dtype", &[text("u1")]), b"(K\x03".to_vec(), text("|"), b"tbq\x010".to_vec()].concat();
    let encoded = call("_codecs", "encode", &[text(&"x".repeat(1 << 20)), text("latin1")]);
    let array = [
        call("numpy.core.multiarray", "_reconstruct", &[global("numpy", "ndarray"), ints(&[0]), text("b")]),
        tuple(&[int(1), ints(&[1 << 20]), b"h\x01".to_vec(), b"\x89".to_vec(), b"h\x02".to_vec()]),
        b"b".to_vec(),
    ]
    .concat();
    let bytes = pickle([dtype, encoded, b"q\x020](".to_vec(), array.repeat(10_000), b"e".to_vec()].concat());
    assert_eq!(refused(&bytes, "pkl").rule(), Some("pickle.expansion"));

    // A storage within a pickle, whose own pickle is long, in 20,000 tensors.
    let inner = [b"N0".repeat(200_000), storage(6)].concat();
    let file = [
        pickle(b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19".to_vec()),
        pickle(int(1001)),
        pickle(b"}".to_vec()),
        pickle(inner),
        pickle([&b"]"[..], &text("0"), b"a"].concat()),
        6u64.to_le_bytes().to_vec(),
        FLOATS.to_vec(),
    ]
    .concat();
    let blob = [&b"B"[..], &(file.len() as u32).to_le_bytes(), &file, b"q\x000"].concat();
    let load = call("torch.storage", "_load_from_bytes", &[b"h\x00".to_vec()]);
    let one = tensor_of(load, 1, &[5], &[1]);
    let bytes = pickle([blob, b"](".to_vec(), one.repeat(20_000), b"e".to_vec()].concat());
    open_hostile(&bytes, "pkl").unwrap();
    let reader = Reader::from_bytes(bytes).unwrap();
    assert_eq!((reader.len(), reader.view("19999").unwrap()), (20_000, &FLOATS[4..]));
}

/// A pickle of protocol 4 whose memo entry 0 is `value`: a list of an array and of `count` references
/// to the entry, two bytes each.
fn references(value: Vec<u8>, count: usize) -> Vec<u8> {
    let list = [&b"q\x000]("[..], &array(), &b"h\x00".repeat(count), b"e."].concat();
    [&b"\x80\x04"[..], &value, &list].concat()
}

#[test]
fn references_to_large_values_are_charged_for_what_they_expand_to() {
    let long = |len: usize| [&b"\x8b"[..], &(len as u32).to_le_bytes(), &vec![0x55; len]].concat();
    let name = |len: usize| "A".repeat(len);
    // The bytes of these arrays are behind a decoder, which holds a copy of them.
    let array_of = |byte_order: &str, order: &str| {
        let encoded = call("_codecs", "encode", &[text(&name(70_000)), text("latin1")]);
        let state = tuple(&[int(3), text(byte_order), b"N".to_vec(), b"N".to_vec(), b"N".to_vec()]);
        let dtype = [call("numpy", "dtype", &[text("f4")]), state, b"b".to_vec()].concat();
        call("numpy.core.numeric", "_frombuffer", &[encoded, dtype, ints(&[2, 8_750]), text(order)])
    };
    let small = references(long(70_000), 35_000);
    assert!(small.len() < 145_000);
    for (why, bomb) in [
        ("a large integer, 140 kB", small),
        ("a large integer, 1 MB", references(long(520_000), 260_000)),
        ("a device", references(call("torch", "device", &[text(&name(520_000))]), 260_000)),
        ("a name", references(global(&name(300_000), &name(200_000)), 260_000)),
        ("an object of a name", references(call(&name(300_000), &name(200_000), &[]), 260_000)),
        ("a text", references(text(&name(520_000)), 260_000)),
        ("a list of a large integer", references([&b"]"[..], &long(70_000), b"a"].concat(), 35_000)),
        (
            "bytes that are written as text",
            references(call("_codecs", "encode", &[text(&name(70_000)), text("latin1")]), 35_000),
        ),
        ("a big-endian array", references(array_of(">", "C"), 35_000)),
        ("an array in Fortran's order", references(array_of("<", "F"), 35_000)),
        ("a key", {
            let dicts = [&b"q\x000]("[..], &array(), &b"}h\x00Ns".repeat(50_000), b"e."].concat();
            [&b"\x80\x04"[..], &text(&name(300_000)), &dicts].concat()
        }),
    ] {
        // `open_hostile` bounds the memory that opening takes, too.
        assert_eq!(refused(&bomb, "pkl").rule(), Some("pickle.expansion"), "{why}");
    }
    // Few references are fine, and are the values that they refer to.
    let reader = Reader::from_bytes(references(call("torch", "device", &[text("cuda:0")]), 3)).unwrap();
    assert_eq!(reader.attributes().get("3"), Some(&Value::from("cuda:0")));
}

#[test]
fn opcodes_cost_no_more_than_the_bytes_they_take() {
    let long = text(&"m".repeat(1 << 20));
    let after = |start: &[u8], repeated: &[u8]| {
        let repeated = repeated.repeat(100_000);
        [&b"\x80\x04"[..], &long, start, &repeated, &named(array()), b"."].concat()
    };
    // A persistent reference whose first part is a long text; a name of two long texts.
    for (why, bytes) in [
        ("BINPERSID", after(b"N\x86q\x000", b"h\x00Q0")),
        ("STACK_GLOBAL", after(b"q\x000", b"h\x00h\x00\x930")),
    ] {
        open_hostile(&bytes, "pkl").unwrap_or_else(|error| panic!("{why}: {error}"));
        let reader = Reader::from_bytes(bytes).unwrap();
        assert_eq!(reader.keys().collect::<Vec<_>>(), ["w"], "{why}");
        // None of the long texts got out.
        assert!(reader.attributes().is_empty(), "{why}");
    }
    // Storage keys are hashed for every tensor, metadata is looked through for every tensor.
    let key = "k".repeat(300);
    let storage = storage_of("FloatStorage", text(&key), int(6));
    let mut metadata: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for number in 0..300 {
        metadata.push((int(number), b"\x88".to_vec()));
    }
    let args = [storage_of("FloatStorage", text("0"), int(6)), int(0), ints(&[6]), ints(&[1])];
    let args = [&args[..], &[b"\x89".to_vec(), b"N".to_vec(), dict(&metadata)]].concat();
    all_refused(&[
        ("torch.storage-key", "a long key", archive(named(tensor_of(storage, 0, &[1], &[1])))),
        (
            "torch.metadata",
            "much metadata",
            archive(named(call("torch._utils", "_rebuild_tensor_v2", &args))),
        ),
        ("numpy.dtype", "a long code", {
            let dtype = call("numpy", "dtype", &[text(&"V".repeat(1000))]);
            let args = [b"C\x01\x07".to_vec(), dtype, ints(&[1]), text("C")];
            pickle(named(call("numpy.core.numeric", "_frombuffer", &args)))
        }),
    ]);
}

#[test]
fn a_list_that_holds_itself_many_times_is_looked_through_once() {
    // Every look at the list would be 300,000 steps, and it is met 300,000 times.
    let ints = b"K\x01".repeat(300_000);
    let own = b"h\x00".repeat(300_000);
    let bytes = pickle([&b"]q\x00("[..], &ints, &own, &array(), b"e"].concat());
    match Reader::from_bytes(bytes) {
        Ok(reader) => assert_eq!(reader.len(), 1),
        Err(error) => assert_eq!(error.rule(), Some("pickle.expansion")),
    }
}

#[test]
fn a_pickle_without_a_tensor_is_an_error() {
    for bytes in
        [pickle(b"}".to_vec()), pickle(named(int(1))), archive(named(text("x"))), archive(b"N".to_vec())]
    {
        assert_eq!(refused(&bytes, "pt").rule(), Some("pickle.no-tensors"));
    }
}

#[test]
fn dangerous_names_are_reported_and_refused_when_asked_to() {
    use ztensor::source::MemorySource;
    use ztensor::{OpenOptions, PicklePolicy};
    let open = |bytes: &[u8], policy| {
        let source = std::sync::Arc::new(MemorySource::new(bytes.to_vec()));
        OpenOptions::default().pickle(policy).open_source(source)
    };
    let evil = archive(dict(&[
        (text("x"), call("os", "system", &[text("id")])),
        (text("y"), call("os", "system", &[text("id")])),
        (text("z"), global("builtins", "eval")),
        (text("w"), tensor(0, &[6], &[1])),
    ]));
    let reader = open(&evil, PicklePolicy::Report).unwrap();
    assert_eq!(reader.unsafe_globals().join(" "), "os.system builtins.eval");
    assert_eq!(reader.view("w").unwrap(), FLOATS);
    let error = open(&evil, PicklePolicy::Strict).unwrap_err();
    assert_eq!(error.rule(), Some("pickle.unsafe"));
    assert!(error.to_string().contains("os.system, builtins.eval"), "{error}");
    // Names that are dropped again count, and those of a storage's own pickle.
    let dropped =
        archive([call("nt", "system", &[text("id")]), b"0".to_vec(), named(tensor(0, &[6], &[1]))].concat());
    assert_eq!(open(&dropped, PicklePolicy::Report).unwrap().unsafe_globals().join(" "), "nt.system");
    // What checkpoints are made of is fine.
    let fine = archive(dict(&[
        (text("a"), call("argparse", "Namespace", &[])),
        (text("b"), call("pathlib", "PosixPath", &[text("/")])),
        (text("c"), call("collections", "OrderedDict", &[])),
        (text("d"), call("unknown_package", "Thing", &[])),
        (text("w"), tensor(0, &[6], &[1])),
    ]));
    assert!(open(&fine, PicklePolicy::Strict).unwrap().unsafe_globals().is_empty());
}

#[test]
fn bombs_of_every_opcode_cost_little() {
    // `open_hostile` bounds the memory that each may take.
    for (why, start, repeated, end) in [
        ("marks", &b""[..], &b"("[..], &b"N."[..]),
        ("values", b"", b"N", b"."),
        ("pops without values", b"", b"0", b"."),
        ("pops without marks", b"N", b"1", b"."),
        ("empty lists", b"(", b"]", b"l."),
        ("empty dictionaries", b"(", b"}", b"l."),
        ("lists in lists", b"]", b"]a", b"."),
        ("tuples", b"N", b"\x85", b"."),
        ("memo entries", b"N", b"\x94", b"."),
        ("far memo entries", b"N", b"r\xff\xff\xff\xff", b"."),
        ("calls", b"ca\nb\nq\x00(", b"h\x00)R", b"l."),
        ("persistent references", b"(", b"NQ", b"l."),
        ("names", b"(", b"ca\nb\n", b"l."),
        ("frames", b"", b"\x95\0\0\0\0\0\0\0\0", b"N."),
    ] {
        let bytes = [&b"\x80\x04"[..], start, &repeated.repeat(200_000), end].concat();
        if let Err(error) = open_hostile(&bytes, "pkl") {
            assert!(error.rule().is_some_and(|rule| rule.starts_with("pickle.")), "{why}: {error}");
        }
    }
}

#[test]
fn torch_functions_check_their_arguments() {
    let rebuild = |name: &str, args: &[Vec<u8>]| archive(named(call("torch._utils", name, args)));
    let layout = |name: &str| call("torch.serialization", "_get_layout", &[text(name)]);
    let longs = |offset: i64, size: &[i64], stride: &[i64]| {
        tensor_of(storage_of("LongStorage", text("0"), int(3)), offset, size, stride)
    };
    let coo = |indices: Vec<u8>, values: Vec<u8>, size: &[i64]| {
        rebuild(
            "_rebuild_sparse_tensor",
            &[layout("torch.sparse_coo"), tuple(&[indices, values, ints(size)])],
        )
    };
    open_hostile(&coo(longs(0, &[1, 2], &[2, 1]), tensor(0, &[2], &[1]), &[6]), "pt").unwrap();
    let csr = |rows: &[i64], columns: &[i64], values: &[i64]| {
        let ones = [1; 4];
        let parts = [
            longs(0, rows, &ones[..rows.len()]),
            longs(0, columns, &ones[..columns.len()]),
            tensor(0, values, &ones[..values.len()]),
            ints(&[2, 3]),
        ];
        rebuild("_rebuild_sparse_tensor", &[layout("torch.sparse_csr"), tuple(&parts)])
    };
    open_hostile(&csr(&[3], &[2], &[2]), "pt").unwrap();
    let quantized = |parameters: &[Vec<u8>]| {
        let storage = storage_of("QInt8Storage", text("0"), int(24));
        let args = [
            storage,
            int(0),
            ints(&[2, 3]),
            ints(&[3, 1]),
            tuple(parameters),
            b"\x89".to_vec(),
            b"N".to_vec(),
        ];
        rebuild("_rebuild_qtensor", &args)
    };
    let channels = |axis: i64, count: i64| {
        let scales = tensor(0, &[count], &[1]);
        quantized(&[global("torch", "per_channel_affine"), scales.clone(), scales, int(axis)])
    };
    let listed = |scales: &[u8], zero_points: &[u8]| {
        let parameters =
            [global("torch", "per_channel_affine"), scales.to_vec(), zero_points.to_vec(), int(0)];
        quantized(&parameters)
    };
    const SCALES: &[u8] = b"](G\x3f\xf0\0\0\0\0\0\0G\x40\0\0\0\0\0\0\0e";
    let reader = Reader::from_bytes(listed(SCALES, b"](K\x01K\x02e")).unwrap();
    assert_eq!(reader.read_component("w", "scales").unwrap(), bytemuck::cast_slice::<f64, u8>(&[1.0, 2.0]));
    assert_eq!(reader.read_component("w", "zero_points").unwrap(), bytemuck::cast_slice::<i64, u8>(&[1, 2]));
    all_refused(&[
        ("torch.tensor", "one scale too few", listed(b"](K\x01e", b"](K\x01K\x02e")),
        ("torch.tensor", "scales of two types", listed(SCALES, b"](K\x01Ne")),
        ("torch.tensor", "no arguments", rebuild("_rebuild_tensor_v2", &[])),
        ("torch.tensor", "three arguments", rebuild("_rebuild_tensor", &[storage(6), int(0), ints(&[1])])),
        (
            "torch.tensor",
            "a size that is text",
            rebuild("_rebuild_tensor", &[storage(6), int(0), text("1"), ints(&[1])]),
        ),
        ("torch.tensor", "a parameter of nothing", rebuild("_rebuild_parameter", &[])),
        (
            "torch.sparse",
            "more indices than values",
            coo(longs(0, &[1, 3], &[3, 1]), tensor(0, &[2], &[1]), &[6]),
        ),
        (
            "torch.sparse",
            "more index rows than dimensions",
            coo(longs(0, &[2, 1], &[1, 1]), tensor(0, &[1], &[1]), &[6]),
        ),
        ("torch.sparse", "flat indices", coo(longs(0, &[3], &[1]), tensor(0, &[3], &[1]), &[6])),
        ("layout.csr", "too few rows", csr(&[2], &[2], &[2])),
        ("torch.sparse", "more values than columns", csr(&[3], &[2], &[3])),
        ("torch.sparse", "a matrix of rows", csr(&[1, 3], &[2], &[2])),
        ("torch.tensor", "axis outside", channels(2, 2)),
        ("torch.tensor", "negative axis", channels(-1, 2)),
        ("torch.tensor", "scales of another length", channels(0, 3)),
        ("torch.tensor", "no scale", quantized(&[global("torch", "per_tensor_affine"), text("x"), int(0)])),
        ("torch.metadata", "metadata that is a number", {
            let args = [storage(6), int(0), ints(&[6]), ints(&[1]), b"\x89".to_vec(), b"N".to_vec(), int(1)];
            rebuild("_rebuild_tensor_v2", &args)
        }),
    ]);
    unsupported("layout", &rebuild("_rebuild_sparse_tensor", &[layout("torch.odd"), tuple(&[])]));
    unsupported("scheme", &quantized(&[global("torch", "per_moon"), int(1)]));
}

#[test]
fn legacy_files_check_every_part() {
    let file = |version: i64, root: Vec<u8>, keys: &[&str], count: u64, data: &[u8]| {
        let mut keys: Vec<u8> = keys.iter().flat_map(|key| text(key)).collect();
        keys.splice(0..0, *b"](");
        keys.push(b'e');
        [
            pickle(b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19".to_vec()),
            pickle(int(version)),
            pickle(b"}".to_vec()),
            pickle(root),
            pickle(keys),
            count.to_le_bytes().to_vec(),
            data.to_vec(),
        ]
        .concat()
    };
    let root = || named(tensor(0, &[6], &[1]));
    open_hostile(&file(1001, root(), &["0"], 6, &FLOATS), "pt").unwrap();
    all_refused(&[
        ("torch.storage-size", "more elements than bytes", file(1001, root(), &["0"], 7, &FLOATS)),
        ("torch.storage-size", "2^64 - 1 elements", file(1001, root(), &["0"], u64::MAX, &FLOATS)),
        ("torch.storage-size", "2^62 elements", file(1001, root(), &["0"], 1 << 62, &FLOATS)),
        ("torch.storage-size", "fewer than claimed", file(1001, root(), &["0"], 5, &FLOATS)),
        ("torch.keys", "a storage that nothing uses", file(1001, root(), &["1"], 6, &FLOATS)),
        ("torch.keys", "a storage twice", file(1001, root(), &["0", "0"], 0, &[0; 24])),
        ("torch.storage-missing", "no storages", file(1001, root(), &[], 6, &FLOATS)),
    ]);
    unsupported("version", &file(1002, root(), &["0"], 6, &FLOATS));
    let mut tar = b"storages\0".to_vec();
    tar.resize(257, 0);
    tar.extend(b"ustar  \0");
    tar.resize(1024, 0);
    unsupported("tar", &tar);
}

#[test]
fn numpy_arrays_check_their_size_and_type() {
    let dtype = |code: &str, order: &str, names: &[u8]| {
        let state =
            [int(3), text(order), b"N".to_vec(), names.to_vec(), b"N".to_vec(), int(-1), int(-1), int(0)];
        [
            call("numpy", "dtype", &[text(code), b"\x89".to_vec(), b"\x88".to_vec()]),
            tuple(&state),
            b"b".to_vec(),
        ]
        .concat()
    };
    let array = |dtype: Vec<u8>, shape: &[i64], data: Vec<u8>| {
        let start = call(
            "numpy.core.multiarray",
            "_reconstruct",
            &[global("numpy", "ndarray"), ints(&[0]), text("b")],
        );
        let state = [int(1), ints(shape), dtype, b"\x89".to_vec(), data];
        pickle(named([start, tuple(&state), b"b".to_vec()].concat()))
    };
    let bytes = |len: u8| [&[b'C', len][..], &vec![7; len.into()]].concat();
    let f4 = || dtype("f4", "<", b"N");
    open_hostile(&array(f4(), &[2], bytes(8)), "pkl").unwrap();
    for (rule, why, bad) in [
        ("numpy.size", "too few bytes", array(f4(), &[3], bytes(8))),
        ("numpy.size", "too many bytes", array(f4(), &[1], bytes(8))),
        ("numpy.size", "overflow", array(f4(), &[i64::MAX, i64::MAX], bytes(8))),
        ("torch.tensor", "negative size", array(f4(), &[-2], bytes(8))),
        ("numpy.array", "contents that are a number", array(f4(), &[2], int(1))),
        ("numpy.dtype", "a type that is text", array(text("f4"), &[2], bytes(8))),
        ("numpy.dtype", "odd byte order", array(dtype("f4", "?", b"N"), &[2], bytes(8))),
        (
            "pickle.bytes",
            "text beyond Latin-1",
            array(f4(), &[2], call("_codecs", "encode", &[text("Ж"), text("latin1")])),
        ),
        (
            "pickle.bytes",
            "another encoding",
            array(f4(), &[2], call("_codecs", "encode", &[text("a"), text("rot13")])),
        ),
    ] {
        let error = refused(&bad, "pkl");
        assert_eq!(error.rule(), Some(rule), "{why}: {error}");
    }
    // Objects, text and records open, and say what they are when they are read.
    for (code, names, data) in
        [("O8", &b"N"[..], b"]".to_vec()), ("U4", b"N", bytes(32)), ("V8", b")", bytes(16))]
    {
        let reader = Reader::from_bytes(array(dtype(code, "|", names), &[2], data)).unwrap();
        let error = reader.read("w").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(code), "{error}");
    }
}

#[test]
fn opening_reads_no_tensor_data() {
    let mut members = members(&pickle(named(tensor_of(storage(1 << 20), 0, &[1 << 20], &[1]))));
    members[1] = Member::stored("x/data/0", &vec![7; 4 << 20]);
    let read = bytes_read_to_open(zip::archive(&members));
    assert!(read < 300 << 10, "{read} bytes of 4 MiB were read");

    let data = [&b"\x8e"[..], &(4u64 << 20).to_le_bytes(), &vec![7; 4 << 20]].concat();
    let dtype =
        [call("numpy", "dtype", &[text("u1")]), b"(K\x03".to_vec(), text("|"), b"tb".to_vec()].concat();
    let array = call("numpy.core.numeric", "_frombuffer", &[data, dtype, ints(&[4 << 20]), text("C")]);
    let bytes = pickle(named(array));
    assert!(Reader::from_bytes(bytes.clone()).unwrap().view("w").unwrap().len() == 4 << 20);
    let read = bytes_read_to_open(bytes);
    assert!(read < 300 << 10, "{read} bytes of 4 MiB were read");
}
