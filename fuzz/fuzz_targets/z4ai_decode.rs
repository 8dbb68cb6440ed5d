//! Frames of any damage: an error or bytes, the same from every door.
#![no_main]

use libfuzzer_sys::fuzz_target;
use z4ai::DecodeOptions;

fuzz_target!(|frame: &[u8]| {
    let options = DecodeOptions { threads: 1, max_output: 1 << 20 };
    let info = z4ai::inspect(frame);
    let bytes = z4ai::decompress(frame, &options);
    if let (Ok(info), Ok(bytes)) = (info, bytes) {
        assert_eq!(info.content_len, bytes.len() as u64);
        let size = info.kind.size();
        let elements = bytes.len() / size;
        let (start, end) = (elements / 3, elements - elements / 4);
        let mut out = vec![0xAA; (end - start) * size];
        z4ai::decompress_range(frame, start as u64..end as u64, &mut out, &options).unwrap();
        assert!(out == bytes[start * size..end * size]);
    }
});
