//! Files on a web server: how few requests they take, and what happens when it misbehaves.
#![cfg(feature = "remote")]

mod common;
#[path = "remote/server.rs"]
mod server;

use std::time::Duration;

use server::{Fault, Server};
use ztensor::export::{ExportFormat, ExportOptions, export_to};
use ztensor::remote::{Options, store};
use ztensor::{Checksum, Compression, Effort, ErrorKind, OpenOptions, Reader, WriteOptions, Writer};

/// Some tensors, the bytes of each different; the large ones too long for one request.
fn tensors() -> Vec<(String, Vec<f32>)> {
    let sizes = [3, 100_000, 17, 700_000, 5000, 300_000, 1];
    let values = |seed: usize, len: usize| (0..len).map(move |n| ((n * 7 + seed * 31) % 1013) as f32);
    sizes.iter().enumerate().map(|(n, &len)| (format!("t{n}"), values(n, len).collect())).collect()
}

fn zt(compression: Compression, checksum: Checksum) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for (name, data) in tensors() {
        let add = writer.add_with(&name, &[data.len() as u64], &data);
        add.compress(compression).checksum(checksum).write().unwrap();
    }
    writer.finish().unwrap();
    bytes
}

/// A file with a long list of tensors and much data.
fn long_zt(count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    for n in 0..count {
        writer.add(&format!("model.layers.{n}.some.rather.long.name.of.a.weight"), &[8], &[n; 8]).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

fn safetensors() -> Vec<u8> {
    let reader = Reader::from_bytes(zt(Compression::None, Checksum::None)).unwrap();
    let mut bytes = Vec::new();
    export_to(&reader, &mut bytes, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
    bytes
}

fn quick() -> OpenOptions {
    OpenOptions::default().remote(Options::default().set("retries", "2").set("timeout", "20"))
}

fn check_all(reader: &Reader) {
    let tensors = tensors();
    let mut outs: Vec<Vec<u8>> = tensors.iter().map(|(_, data)| vec![0; data.len() * 4]).collect();
    let requests =
        tensors.iter().zip(&mut outs).map(|((name, _), out)| (name.as_str(), "data", &mut out[..])).collect();
    reader.read_many(requests, None).unwrap();
    for ((name, data), out) in tensors.iter().zip(&outs) {
        assert!(bytemuck::cast_slice::<f32, u8>(data) == out, "{name}");
    }
}

#[test]
fn a_list_takes_one_or_two_requests() {
    let server = Server::start();
    let small = server.put("a.zt", &zt(Compression::None, Checksum::None), Some("1"));
    assert_eq!(ztensor::open(&small).unwrap().len(), 7);
    assert_eq!(server.requests().len(), 1);
    // The manifest alone is longer than what the first request brings.
    let bytes = long_zt(20_000);
    let long = server.put("b.zt", &bytes, Some("1"));
    assert_eq!(ztensor::open(&long).unwrap().len(), 20_000);
    assert_eq!(server.requests().len(), 2);
    // Under a name that says nothing the start is looked at first.
    let unnamed = server.put("c", &bytes, Some("1"));
    assert_eq!(ztensor::open(&unnamed).unwrap().len(), 20_000);
    assert_eq!(server.requests().len(), 3);
    let other = server.put("d.safetensors", &safetensors(), Some("1"));
    assert_eq!(ztensor::open(&other).unwrap().len(), 7);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_tensor_and_its_rows_take_their_own_bytes() {
    let server = Server::start();
    let url = server.put("m.safetensors", &safetensors(), Some("1"));
    let reader = ztensor::open(&url).unwrap();
    server.requests();
    let extent = reader.get("t3").unwrap().require("data").unwrap().extent().unwrap();
    let rows = reader.read_rows("t3", 10..20).unwrap();
    assert_eq!(rows, bytemuck::cast_slice::<f32, u8>(&tensors()[3].1[10..20]));
    let start = extent.offset + 40;
    assert_eq!(server.requests(), [("GET".to_owned(), Some(start..start + 40))]);
    assert_eq!(reader.read_as::<f32>("t3").unwrap(), tensors()[3].1);
    let mut ranges: Vec<_> = server.requests().into_iter().map(|(_, range)| range.unwrap()).collect();
    ranges.sort_by_key(|range| range.start);
    assert_eq!((ranges[0].start, ranges.last().unwrap().end), (extent.offset, extent.offset + extent.len));
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
}

/// Weights of 4000 rows of 1000 elements: a frame of many chunks.
fn matrix() -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..4_000_000).map(|_| next() * next() * 0.1).collect()
}

#[test]
fn rows_of_a_coded_tensor_take_the_chunks_that_hold_them() {
    let server = Server::start();
    let data = matrix();
    let rows = |rows: std::ops::Range<usize>| {
        bytemuck::cast_slice::<f32, u8>(&data[rows.start * 1000..rows.end * 1000]).to_vec()
    };
    let coded = |compression| {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.add("bias", &[3], &[1f32, 2.0, 3.0]).unwrap();
        writer.add_with("w", &[4000, 1000], &data).compress(compression).write().unwrap();
        writer.finish().unwrap();
        bytes
    };
    let packed = {
        let raw = Reader::from_bytes(coded(Compression::None)).unwrap();
        let mut original = Vec::new();
        export_to(&raw, &mut original, ExportFormat::Safetensors, &ExportOptions::default()).unwrap();
        let mut packed = Vec::new();
        let source = std::sync::Arc::new(ztensor::source::MemorySource::new(original));
        ztensor::zstn::pack_source(source, &mut packed, &ztensor::zstn::PackOptions::default()).unwrap();
        packed
    };
    for (name, bytes) in [
        ("fast.zt", coded(Compression::Z4ai(Effort::Fast))),
        ("default.zt", coded(Compression::Z4ai(Effort::Default))),
        ("m.zstn", packed),
    ] {
        let url = server.put(name, &bytes, Some("1"));
        let reader = ztensor::open(&url).unwrap();
        let stored = reader.get("w").unwrap().stored_len();
        server.requests();
        assert_eq!(reader.read_rows("w", 2000..2010).unwrap(), rows(2000..2010), "{name}");
        // Its head, its index, and what holds the rows.
        let ranges: Vec<_> = server.requests().into_iter().map(|(_, range)| range.unwrap()).collect();
        assert!((2..=3).contains(&ranges.len()), "{name}: {ranges:?}");
        let fetched: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(fetched < stored / 10, "{name}: {fetched} of {stored}");
        // The next rows take one request, and the same ones, too: nothing is kept but the index.
        for first in [0, 2000, 3990] {
            let found = reader.read_rows("w", first..first + 10).unwrap();
            assert_eq!(found, rows(first as usize..first as usize + 10), "{name}");
            let ranges = server.requests();
            assert!(ranges.len() <= 1, "{name}: {ranges:?}");
        }
        // Columns are cut out of what covers them; a whole tensor comes as a whole.
        assert_eq!(reader.read_as::<f32>("w").unwrap(), data, "{name}");
        let fetched: u64 =
            server.requests().into_iter().map(|(_, range)| range.unwrap()).map(|r| r.end - r.start).sum();
        assert!((stored * 9 / 10..=stored).contains(&fetched), "{name}: {fetched} of {stored}");
    }
    // Frames of zstd have no index: all of it is fetched, once.
    let url = server.put("zstd.zt", &coded(Compression::Zstd(1)), Some("1"));
    let reader = ztensor::open(&url).unwrap();
    let stored = reader.get("w").unwrap().stored_len();
    server.requests();
    assert_eq!(reader.read_rows("w", 2000..2010).unwrap(), rows(2000..2010));
    let fetched: u64 =
        server.requests().into_iter().map(|(_, range)| range.unwrap()).map(|r| r.end - r.start).sum();
    assert!((stored * 9 / 10..=stored).contains(&fetched), "{fetched} of {stored}");
}

#[test]
fn a_coded_tensor_that_is_damaged_is_found_out_by_its_rows() {
    let server = Server::start();
    let data = matrix();
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes).unwrap();
    writer.add_with("w", &[4000, 1000], &data).compress(Compression::Z4ai(Effort::Default)).write().unwrap();
    writer.finish().unwrap();
    let extent = {
        let reader = Reader::from_bytes(bytes.clone()).unwrap();
        reader.get("w").unwrap().require("data").unwrap().extent().unwrap()
    };
    let (start, end) = (extent.offset as usize, (extent.offset + extent.len) as usize);
    // Magic, version, lengths, the start of the payload, the index, its checksum.
    for at in [start, start + 4, start + 9, start + 17, start + 25, start + 1000, end - 100, end - 1] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        let reader = ztensor::open(server.put("d.zt", &damaged, Some("1"))).unwrap();
        let error = reader.read_rows("w", 0..5).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{at}: {error}");
    }
}

#[test]
fn batches_are_joined_and_come_in_parallel() {
    let server = Server::start();
    let url = server.put("m.safetensors", &safetensors(), Some("1"));
    let reader = ztensor::open(&url).unwrap();
    server.wait_for_company();
    check_all(&reader);
    // Seven tensors one after another: by size and not by tensor.
    let count = server.requests().len();
    assert!((2..=6).contains(&count), "{count}");
    assert!(server.most_under_way() > 1);

    server.requests();
    let one = OpenOptions::default().remote(Options::default().set("connections", "1"));
    let before = Server::start();
    let url = before.put("m.safetensors", &safetensors(), Some("1"));
    check_all(&one.open(&url).unwrap());
    assert_eq!(before.most_under_way(), 1);
}

#[test]
fn encoded_tensors_come_within_the_memory_that_is_allowed() {
    let server = Server::start();
    for compression in [Compression::Zstd(1), Compression::Z4ai(Effort::Fast)] {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            let url = server.put("m.zt", &zt(compression, checksum), Some("1"));
            for memory in ["1", "100k", "256M"] {
                let options = Options::default().set("memory", memory);
                check_all(&OpenOptions::default().remote(options).open(&url).unwrap());
            }
        }
    }
    // With memory for all of them, they come together.
    let url = server.put("m.zt", &zt(Compression::Zstd(1), Checksum::Crc32c), Some("1"));
    let reader = ztensor::open(&url).unwrap();
    server.requests();
    check_all(&reader);
    assert!(server.requests().len() <= 4);
    assert_eq!(reader.verify_all(None).unwrap().checked, 7);
}

#[test]
fn trouble_that_passes_is_passed_over() {
    let server = Server::start();
    for tag in [Some("1"), None] {
        let url = server.put("m.safetensors", &safetensors(), tag);
        for fault in [Fault::Status(500), Fault::Status(503), Fault::HangUp, Fault::Truncate] {
            server.fail(&[fault]);
            let reader = quick().open(&url).unwrap_or_else(|error| panic!("{fault:?} {tag:?}: {error}"));
            server.fail(&[fault, fault]);
            check_all(&reader);
        }
    }
}

#[test]
fn a_server_that_stalls_is_given_up() {
    let server = Server::start();
    let url = server.put("m.safetensors", &safetensors(), Some("1"));
    let reader = quick()
        .remote(Options::default().set("read_timeout", "0.2").set("timeout", "0.5").set("retries", "1"));
    let reader = reader.open(&url).unwrap();
    server.fail(&[Fault::Stall(Duration::from_secs(2))]);
    check_all(&reader); // the second answer comes in time
    server.fail_always(Some(Fault::Stall(Duration::from_secs(2))));
    let error = reader.read("t3").unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), std::io::ErrorKind::TimedOut, "{error}");
    server.fail_always(None);
    check_all(&reader);
}

#[test]
fn trouble_that_stays_is_an_error_that_names_the_file() {
    let server = Server::start();
    let url = server.put("m.safetensors", &safetensors(), Some("1"));
    let kind = |error: &ztensor::Error| error.io_error().map(std::io::Error::kind);
    let missing = ztensor::open(format!("{}/none.zt", server.url)).unwrap_err();
    assert_eq!(kind(&missing), Some(std::io::ErrorKind::NotFound), "{missing}");
    for (fault, text) in [
        (Fault::Status(403), "403"),
        (Fault::Status(401), "401"),
        (Fault::Status(404), "404"),
        (Fault::Status(500), "500"),
        (Fault::HangUp, "cannot"),
        (Fault::Truncate, "cannot"),
        (Fault::IgnoreRange, "ange"),
        (Fault::WrongRange, "ange"),
    ] {
        server.fail_always(None);
        let reader = quick().open(&url).unwrap();
        server.fail_always(Some(fault));
        for error in [quick().open(&url).unwrap_err(), reader.read("t3").unwrap_err()] {
            assert!(error.to_string().contains(text), "{fault:?}: {error}");
            assert!(error.to_string().contains(&url), "{fault:?}: {error}");
        }
    }
}

#[test]
fn an_object_that_changes_is_never_mixed() {
    let server = Server::start();
    let bytes = safetensors();
    let mut other = bytes.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    let mut longer = bytes.clone();
    longer.push(0);
    for (tag, changed, new_tag) in [
        (Some("1"), &other, Some("2")),
        (Some("1"), &longer, Some("1")),
        (None, &longer, None),
        (Some("1"), &other, None),
        (None, &other, Some("1")),
    ] {
        let url = server.put("m.safetensors", &bytes, tag);
        let reader = ztensor::open(&url).unwrap();
        check_all(&reader);
        server.put("m.safetensors", changed, new_tag);
        let error = reader.read("t3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{tag:?} {new_tag:?}: {error}");
        assert!(error.to_string().contains("changed"), "{error}");
    }
}

#[test]
fn a_cache_saves_requests_and_knows_versions() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let options = Options::default().set("cache", folder.path().to_str().unwrap());
    let open = |url: &str| OpenOptions::default().remote(options.clone()).open(url).unwrap();
    let bytes = zt(Compression::None, Checksum::Crc32c);
    let url = server.put("m.zt", &bytes, Some("1"));
    check_all(&open(&url));
    assert!(server.requests().len() > 1);
    check_all(&open(&url));
    assert_eq!(server.requests().len(), 1, "only who it is");
    // Damage on the disk is not believed.
    for block in std::fs::read_dir(folder.path()).unwrap().flatten() {
        for file in std::fs::read_dir(block.path()).unwrap().flatten() {
            let mut damaged = std::fs::read(file.path()).unwrap();
            damaged[1000] ^= 1;
            std::fs::write(file.path(), damaged).unwrap();
        }
    }
    check_all(&open(&url));
    assert!(server.requests().len() > 1);
    // Another version is another object.
    server.put("m.zt", &bytes, Some("2"));
    check_all(&open(&url));
    assert!(server.requests().len() > 1);
    // Without an identity nothing is kept.
    let url = server.put("n.zt", &bytes, None);
    for _ in 0..2 {
        check_all(&open(&url));
        assert!(server.requests().len() > 1);
    }
}

#[test]
fn an_index_of_shards_and_what_lies_beside() {
    let server = Server::start();
    let mut map = String::new();
    for (n, (name, data)) in tensors().into_iter().enumerate() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        writer.add(&name, &[data.len() as u64], &data).unwrap();
        writer.finish().unwrap();
        server.put(&format!("model/part%20{n}.zt"), &bytes, Some("1"));
        map += &format!("{}\"{name}\":\"part {n}.zt\"", if n > 0 { "," } else { "" });
    }
    let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{map}}}}}");
    let url = server.put("model/model.zt.index.json", index.as_bytes(), Some("1"));
    let reader = ztensor::open(format!("{url}?download=true")).unwrap();
    assert_eq!(server.requests().len(), 8, "one for each file");
    check_all(&reader);
    assert_eq!(store::read(&url, 1 << 20, &Options::default()).unwrap(), index.as_bytes());
    let beside = store::join(format!("{}/model", server.url), "part 1.zt");
    assert!(store::exists(beside, &Options::default()).unwrap());
    assert!(!store::exists(format!("{}/none", server.url), &Options::default()).unwrap());
}

#[test]
fn what_cannot_be_done_is_said() {
    let server = Server::start();
    let url = server.put("m.zt", &zt(Compression::None, Checksum::None), Some("1"));
    let reader = ztensor::open(&url).unwrap();
    let error = reader.view("t1").unwrap_err();
    assert!(error.to_string().contains("remote file cannot be mapped"), "{error}");
    assert!(Writer::create(&url).err().unwrap().to_string().contains("cannot be written"));
    let error = ztensor::replace_tensor(&url, "t1", &[]).unwrap_err();
    assert!(error.to_string().contains("cannot be edited in place"), "{error}");
    assert!(Writer::append(&url).is_err());
    assert!(ztensor::open("ftp://host/x.zt").unwrap_err().to_string().contains("ftp"));
    assert!(ztensor::open(format!("{}/", server.url)).is_err());
    let error =
        OpenOptions::default().remote(Options::default().set("colour", "red")).open(&url).unwrap_err();
    assert!(error.to_string().contains("colour"), "{error}");
}

#[test]
fn remote_files_are_converted_and_copied() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    for checksum in [Checksum::None, Checksum::Sha256] {
        let url = server.put("m.zt", &zt(Compression::None, checksum), Some("1"));
        let reader = ztensor::open(&url).unwrap();
        let path = folder.path().join("copy.zt");
        let mut writer = Writer::create(&path).unwrap();
        let names: Vec<&str> = reader.keys().collect();
        let options = WriteOptions { compression: Compression::Zstd(1), checksum: Checksum::Crc32c };
        writer.write_from(&reader, &names, options, None).unwrap();
        writer.finish().unwrap();
        check_all(&ztensor::open(common::file_url(&path)).unwrap());
        let path = folder.path().join("copy.safetensors");
        server.requests();
        ztensor::export::export(&reader, &path, ExportFormat::Safetensors, &ExportOptions::default())
            .unwrap();
        check_all(&ztensor::open(&path).unwrap());
        let bytes: u64 =
            server.requests().into_iter().filter_map(|(_, range)| range).map(|r| r.end - r.start).sum();
        let size = std::fs::metadata(&path).unwrap().len();
        assert!(bytes <= size + size / 10, "{bytes} bytes were fetched for {size}");
    }
}

#[test]
fn a_runtime_around_the_caller_does_not_matter() {
    let server = Server::start();
    let url = server.put("m.zt", &zt(Compression::None, Checksum::None), Some("1"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async { check_all(&ztensor::open(&url).unwrap()) });
}

/// Bytes that a server can send beyond those that its client reads: the send buffer and the receive
/// buffer of the connection at their largest, which Linux says (`tcp_wmem`, `tcp_rmem`).
fn socket_buffers() -> u64 {
    let largest = |name: &str| -> Option<u64> {
        let limits = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        limits.split_whitespace().nth(2)?.parse().ok()
    };
    let other_systems = 8 << 20;
    ["tcp_wmem", "tcp_rmem"].map(|name| largest(name).unwrap_or(other_systems)).iter().sum()
}

#[test]
fn a_body_without_end_is_cut_off() {
    let server = Server::start();
    let once = || Options::default().set("retries", "0").set("timeout", "20");
    let url = server.put("m.zt", &zt(Compression::None, Checksum::None), Some("1"));
    let untagged = server.put("n.zt", &zt(Compression::None, Checksum::None), None);
    let data = server.put("m", &vec![7; 1 << 20], Some("1"));
    let (readers, bucket) = (
        [&url, &untagged].map(|url| OpenOptions::default().remote(once()).open(url).unwrap()),
        Options::default()
            .set("endpoint", &server.url)
            .set("region", "here")
            .set("skip_signature", "true")
            .set("retries", "0"),
    );
    // Every kind of request: what it does, and how many bytes of an answer it may take.
    type Request<'a> = (&'a str, u64, Box<dyn Fn() -> ztensor::Result<()> + 'a>);
    let opened = |url: &str| OpenOptions::default().remote(once()).open(url).map(drop);
    let requests: Vec<Request<'_>> = vec![
        ("the end of a file", 1 << 20, Box::new(|| opened(&url))),
        ("the start of a file", 1 << 20, Box::new(|| opened(&data))),
        ("a tensor, by the short way", 8 << 20, Box::new(|| readers[0].read_as::<f32>("t3").map(drop))),
        ("a tensor, by the client", 8 << 20, Box::new(|| readers[1].read_as::<f32>("t3").map(drop))),
        ("rows", 8 << 20, Box::new(|| readers[1].read_rows("t3", 10..20).map(drop))),
        ("a small file", 1000, Box::new(|| store::read(&data, 1000, &once()).map(drop))),
        ("a range", 1 << 20, Box::new(|| store::read_range(&data, 5..9, 4, &once()).map(drop))),
        ("a length", 1 << 20, Box::new(|| store::len("s3://models/m", &bucket).map(drop))),
        ("a listing", 64 << 20, Box::new(|| store::list("s3://models/x", &bucket).map(drop))),
        ("a deletion", 64 << 20, Box::new(|| store::delete("s3://models/x", &bucket))),
        ("an upload", 64 << 20, Box::new(|| store::write("s3://models/x", b"{}", &bucket))),
    ];
    let in_flight = socket_buffers();
    assert!((64 << 20) + in_flight < server::ENOUGH, "the buffers of a connection hold {in_flight} bytes");
    for (what, most, request) in &requests {
        for status in [0, 404, 400, 500, 403] {
            server.fail_always(Some(Fault::Endless(status)));
            let outcome = request();
            server.fail_always(None);
            // A length is asked for without a body.
            assert!(outcome.is_err() || *what == "a length" || status == 404, "{what} {status}");
            let (sent, most) = (server.most_sent(), if status == 0 { *most } else { 1 << 20 });
            assert!(sent <= most + in_flight, "{what}, status {status}: {sent} bytes were taken");
        }
    }
}

#[test]
fn redirects_tell_no_secrets() {
    let (server, other) = (Server::start(), Server::start());
    let bytes = zt(Compression::None, Checksum::None);
    let url = server.put("m.zt", &bytes, Some("1"));
    other.put("m.zt", &bytes, Some("1"));
    server.fail_always(Some(Fault::Redirect(other.port())));
    let options = Options::default().set("bearer_token", "SECRETTOKEN").set("retries", "0");
    let signed = format!("{url}?sig=SECRETSIGNATURE");
    let reader = OpenOptions::default().remote(options.clone()).open(&signed).unwrap();
    check_all(&reader);
    store::read(&signed, 1 << 30, &options).unwrap();
    let told = server.heads().join("\n");
    assert!(told.contains("?sig=SECRETSIGNATURE") && told.contains("Bearer SECRETTOKEN"), "{told}");
    let told = other.heads().join("\n");
    assert!(told.contains("GET /m.zt HTTP/1.1"), "{told}");
    assert!(!told.contains("SECRET") && !told.to_ascii_lowercase().contains("referer"), "{told}");
}

#[test]
fn redirects_without_end_and_of_stores_are_refused() {
    let (server, other) = (Server::start(), Server::start());
    let url = server.put("m.zt", &zt(Compression::None, Checksum::None), Some("1"));
    server.fail_always(Some(Fault::Redirect(server.port())));
    let error = quick().open(&url).map(drop).unwrap_err();
    assert!(error.to_string().contains("redirects"), "{error}");
    assert!(server.requests().len() < 100);
    // Some credentials of stores are in headers that a client would forward.
    server.fail_always(Some(Fault::Redirect(other.port())));
    let options = Options::default()
        .set("endpoint", &server.url)
        .set("region", "here")
        .set("access_key_id", "key")
        .set("secret_access_key", "secret")
        .set("session_token", "SECRETTOKEN")
        .set("retries", "0");
    let error = store::read("s3://models/m.zt", 1 << 20, &options).unwrap_err();
    assert!(error.to_string().contains("redirects to another host"), "{error}");
    assert!(server.heads().join("\n").contains("SECRETTOKEN"));
    assert!(other.heads().is_empty());
}
