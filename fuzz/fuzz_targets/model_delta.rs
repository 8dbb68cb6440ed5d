//! Model deltas of any damage, for a base whose digest they are given: an error, or a target.
#![no_main]

use std::hash::Hasher;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;
use ztensor::model_delta::{ApplyOptions, MakeOptions, apply_to, info_source, make_to};
use ztensor::source::MemorySource;

const BASE: &[u8] = include_bytes!("../../crates/ztensor/tests/data/z4dm/z4dm_finetune.base");

fn source(bytes: &[u8]) -> Arc<MemorySource<Vec<u8>>> {
    Arc::new(MemorySource::new(bytes.to_vec()))
}

/// What the base is known by: the first bytes of the footer of any delta from it.
fn digest() -> &'static [u8] {
    static DIGEST: OnceLock<Vec<u8>> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let mut delta = Vec::new();
        make_to(source(BASE), source(BASE), &mut delta, &MakeOptions::default()).unwrap();
        delta[delta.len() - 96..][..16].to_vec()
    })
}

/// Makes digest, length, end and checksum right, or all damage would be found by them.
fn repair(file: &mut [u8]) {
    let total = file.len();
    if !file.starts_with(b"Z4DM\x02") || total < 104 {
        return;
    }
    let prefix = *b"Z4DM\x02\0\0\0";
    file[..8].copy_from_slice(&prefix);
    file[total - 8..].copy_from_slice(&prefix);
    file[total - 96..total - 80].copy_from_slice(digest());
    file[total - 24..total - 16].copy_from_slice(&(total as u64).to_le_bytes());
    let stored = u64::from_le_bytes(file[total - 48..total - 40].try_into().unwrap());
    let Some(index_at) = (total as u64 - 96).checked_sub(stored) else { return };
    let mut hasher = XxHash3_64::new();
    hasher.write(&prefix);
    hasher.write(&file[index_at as usize..total - 16]);
    file[total - 16..total - 8].copy_from_slice(&hasher.finish().to_le_bytes());
}

fuzz_target!(|file: &[u8]| {
    let mut file = file.to_vec();
    repair(&mut file);
    let mut target = Vec::new();
    let options = ApplyOptions { threads: 1, limits: ztensor::Limits::default().max_total(1 << 20), ..Default::default() };
    if apply_to(source(BASE), source(&file), &mut target, &options).is_ok() {
        assert_eq!(info_source(source(&file)).unwrap().target_len, target.len() as u64);
    }
});
