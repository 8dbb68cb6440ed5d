//! HDF5 files: what h5py itself wrote, and what a stranger might.

mod common;
#[path = "hdf5/hostile.rs"]
mod hostile;

use common::{conformance, fixtures};
use ztensor::object::Storage;
use ztensor::{ErrorKind, Format, OpenOptions, Reader};

#[test]
fn fixtures_read_as_h5py_reads_them() {
    let files = fixtures::check("hdf5");
    assert_eq!(files.len(), 13);
    for file in files {
        let reader = Reader::open(fixtures::folder("hdf5").join(&file)).unwrap();
        assert_eq!(reader.format(), Format::Hdf5, "{file}");
    }
}

/// Every range of every decoded tensor is what a whole read gives there.
#[test]
fn any_range_of_a_chunked_dataset_can_be_read() {
    for file in ["chunks_v0.h5", "chunks_latest.h5"] {
        let reader = Reader::open(fixtures::folder("hdf5").join(file)).unwrap();
        let mut random = conformance::Random(7);
        for (name, object) in reader.objects() {
            let whole = reader.read(name).unwrap();
            let Storage::Encoded(decoder) = &object.components[0].1.storage else { continue };
            for round in 0..60 {
                let start = random.below(whole.len());
                let end = start + random.below(whole.len() - start + 1);
                let mut part = vec![0xaa; end - start];
                let sources = &reader.catalog().sources;
                decoder.decode(sources, start as u64..end as u64, &mut part, 1 + round % 3).unwrap();
                assert_eq!(part, whole[start..end], "{file}: {name} {start}..{end}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_what_is_read() {
    for threads in [1, 2, 5] {
        let options = OpenOptions::default().threads(threads);
        let reader = options.open(fixtures::folder("hdf5").join("chunks_v0.h5")).unwrap();
        let one = Reader::open(fixtures::folder("hdf5").join("chunks_v0.h5")).unwrap();
        for name in one.keys() {
            assert_eq!(reader.read(name).unwrap(), one.read(name).unwrap(), "{name}");
        }
    }
}

#[test]
fn contiguous_datasets_are_viewed_in_place() {
    for file in ["types_v0.h5", "types_latest.h5", "many_v0.h5", "stored.keras"] {
        let reader = Reader::open(fixtures::folder("hdf5").join(file)).unwrap();
        let mut viewed = 0;
        for (name, object) in reader.objects() {
            if matches!(object.components[0].1.storage, Storage::Plain(_)) {
                assert_eq!(reader.view(name).unwrap(), reader.read(name).unwrap(), "{name}");
                viewed += 1;
            }
        }
        assert!(viewed >= 5, "{file}: {viewed}");
    }
}

#[test]
fn what_cannot_be_read_is_listed_and_refused_by_name() {
    for file in ["unreadable_v0.h5", "unreadable_latest.h5"] {
        let reader = Reader::open(fixtures::folder("hdf5").join(file)).unwrap();
        for (name, layout, word) in [
            ("text", "hdf5.string", "strings"),
            ("long_text", "hdf5.string", "strings"),
            ("record", "hdf5.compound", "2 fields"),
            ("opaque", "hdf5.opaque", "opaque"),
            ("lists", "hdf5.vlen", "lengths"),
            ("references", "hdf5.reference", "references"),
            ("dangling", "hdf5.link", "/nowhere/at/all"),
            ("loop_a", "hdf5.link", "nowhere"),
            ("loop_b", "hdf5.link", "nowhere"),
            ("outside", "hdf5.external_link", "/etc/passwd"),
            ("external", "hdf5.external_storage", "other files"),
            ("virtual", "hdf5.virtual", "virtual"),
            ("blosc", "dense", "blosc"),
        ] {
            let object = reader.get(name).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(object.layout.name(), layout, "{name}");
            let error = reader.read(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            assert_eq!(error.tensor(), Some(name));
            assert!(error.to_string().contains(word), "{error}");
        }
        // Two names for one dataset, and links to it, are the same bytes of the file.
        let place = |name: &str| reader.get(name).unwrap().components[0].1.extent().unwrap();
        for name in ["tied", "soft", "group/relative"] {
            assert_eq!(place(name), place("plain"), "{name}");
        }
        assert!(!reader.contains("group/parent/plain") && !reader.contains("soft_group/relative"));
        assert_eq!(reader.len(), 17);
    }
}

#[test]
fn damaged_files_are_errors() {
    // Checksums notice most of the damage in newer files, so the oldest kind is worth most.
    for file in ["keras2.h5", "unreadable_latest.h5", "stored.keras", "deflated.keras"] {
        let sample = fixtures::bytes("hdf5", file);
        let extension = if file.ends_with("keras") { "keras" } else { "h5" };
        for (how, damaged) in conformance::mutations(&sample, conformance::copies() / 5) {
            let _ = (how, conformance::open_hostile(&damaged, extension));
        }
    }
    for file in ["types_v0.h5", "chunks_v0.h5", "many_v0.h5", "types_latest.h5", "chunks_latest.h5"] {
        let sample = fixtures::bytes("hdf5", file);
        for (_, damaged) in conformance::mutations(&sample, conformance::copies() / 20) {
            let _ = conformance::open_hostile(&damaged, "h5");
        }
    }
}

#[test]
fn small_samples_conform() {
    conformance::run(&fixtures::bytes("hdf5", "tiny_v0.h5"), "h5");
    conformance::run(&fixtures::bytes("hdf5", "tiny_latest.h5"), "h5");
}
