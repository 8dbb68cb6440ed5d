//! Manifests, commits, refs, locations, lists of garbage and packs of a repository, of any damage: an
//! error, or a record that survives being written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((0, pack)) => ztensor::repository::fuzz::pack(pack),
        Some((_, record)) => ztensor::repository::fuzz::records(record),
        None => {}
    }
});
