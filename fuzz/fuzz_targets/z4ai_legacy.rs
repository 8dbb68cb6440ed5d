//! Version 1 frames of any damage: an error or bytes, the same from every door.
#![no_main]

use libfuzzer_sys::fuzz_target;
use z4ai::{DecodeOptions, legacy};

fuzz_target!(|frame: &[u8]| {
    let options = DecodeOptions { threads: 1, max_output: 1 << 20 };
    let info = legacy::inspect(frame);
    let bytes = legacy::decompress(frame, &options);
    if let (Ok(info), Ok(bytes)) = (&info, &bytes) {
        assert_eq!(info.content_len, bytes.len() as u64);
        let mut out = vec![0xAA; bytes.len()];
        legacy::decompress_into(frame, &mut out, &options).unwrap();
        assert!(&out == bytes);
    }
    if let Ok((_, array)) = legacy::decompress_array(frame, &options) {
        assert_eq!(Ok(array), bytes);
    }
    let _ = legacy::decompress_delta(frame, &[], &options);
});
