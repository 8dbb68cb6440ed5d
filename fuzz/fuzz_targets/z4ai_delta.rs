//! Deltas: round trips of any two buffers, and frames of any damage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;
use z4ai::{DecodeOptions, Kind, Options, delta};

fuzz_target!(|input: &[u8]| {
    let [control, at, value, rest @ ..] = input else { return };
    let decoding = DecodeOptions { threads: 1, max_output: 1 << 20 };
    // The frame itself, against a reference of the length it asks for.
    if let Ok(info) = delta::inspect(rest)
        && info.content_len <= 1 << 16
    {
        let reference = vec![*value; info.content_len as usize];
        let _ = delta::decompress(rest, &reference, &decoding);
    }
    let kinds: Vec<Kind> = Kind::all().collect();
    let kind = kinds[usize::from(control & 15)];
    let (current, reference) = rest.split_at(rest.len() / 2);
    let reference = &reference[..current.len()];
    let options = Options { kind, threads: 1, ..Options::default() };
    let mut frame = delta::compress(current, reference, &options).unwrap();
    assert!(delta::decompress(&frame, reference, &decoding).unwrap() == current);
    let mut buffer = reference.to_vec();
    delta::apply(&frame, &mut buffer, &decoding).unwrap();
    assert!(buffer == current);
    if *value == 0 || frame.is_empty() {
        return;
    }
    // Any change to the frame is noticed; with its checksums put right it is at least survived.
    let at = usize::from(*at) * frame.len() / 256;
    frame[at] ^= value;
    assert!(delta::decompress(&frame, reference, &decoding).is_err());
    put_checksums_right(&mut frame);
    let _ = delta::decompress(&frame, reference, &decoding);
});

/// Makes the checksums of a frame of one chunk, without an array, what its bytes ask for.
fn put_checksums_right(frame: &mut [u8]) {
    const HEADER: usize = 32;
    let index_len = u32::from_le_bytes(frame[24..28].try_into().unwrap()) as usize;
    let Some(index_at) = frame.len().checked_sub(index_len) else { return };
    let end = frame.len() - 8;
    if index_at < HEADER || index_at + 28 > end {
        return;
    }
    // After length, content's and reference's checksum.
    let payload = XxHash3_64::oneshot(&frame[HEADER..index_at]);
    frame[index_at + 20..index_at + 28].copy_from_slice(&payload.to_le_bytes());
    let head = [&frame[..HEADER], &frame[index_at..end]].concat();
    let head = XxHash3_64::oneshot(&head);
    frame[end..].copy_from_slice(&head.to_le_bytes());
}
