//! Files that are not tensor files: what they are, by their first bytes, and what to do with them.

/// First bytes, where they are in the file, and what a file that has them is.
const KNOWN: &[(usize, &[u8], &str)] = &[
    (0, b"ZTEN", "a .zt file of an unknown version"),
    (0, b"Z4DM", "a model delta: apply it to its base, and open the result"),
    (0, b"Z4DL", "a z4ai delta: apply it to its reference first"),
    (0, b"Z4AI", "data compressed by z4ai: decompress it first"),
    (0, b"ZARA", "data compressed by z4ai: decompress it first"),
    (0, b"version https://git-lfs", "a Git LFS pointer: fetch the real file with `git lfs pull`"),
    (0, b"\x1f\x8b", "gzip data: decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data: decompress it first"),
    (0, b"BZh", "bzip2 data: decompress it first"),
    (0, b"\xfd7zXZ\0", "xz data: decompress it first"),
    (0, b"\x04\x22\x4d\x18", "lz4 data: decompress it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive: extract it first"),
    (0, b"Rar!\x1a\x07", "a RAR archive: extract it first"),
    (257, b"ustar", "a tar archive: extract it first"),
    (0, b"PK\x03\x04", "a zip archive without tensors: extract it first"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (4, b"TFL3", "a TensorFlow Lite model, which is not supported"),
    (4, b"PTMF", "a PyTorch Mobile flatbuffer, which is not supported"),
    (4, b"ET12", "an ExecuTorch program, which is not supported"),
    (0, b"lmgg", "a GGML file, which preceded GGUF: convert it to GGUF with llama.cpp's tools"),
    (0, b"fmgg", "a GGMF file, which preceded GGUF: convert it to GGUF with llama.cpp's tools"),
    (0, b"tjgg", "a GGJT file, which preceded GGUF: convert it to GGUF with llama.cpp's tools"),
    (0, b"\x7fELF", "a program"),
    (0, b"MZ", "a Windows program"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"ARROW1", "an Arrow file, which is not supported"),
    (0, b"PAR1", "a Parquet file, which is not supported"),
];

/// What a file that starts with `head` is, in words that complete "it looks like …".
pub fn looks_like(head: &[u8]) -> String {
    let known =
        |(at, magic, _): &&(usize, &[u8], &str)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    match KNOWN.iter().find(known) {
        Some((_, _, what)) => (*what).to_owned(),
        None if head.is_empty() => "an empty file".to_owned(),
        None if is_blank(head) => "a file of zero bytes, perhaps an unfinished download".to_owned(),
        None => match text(head) {
            Some(text) => text_kind(text),
            None if is_msgpack(head) => {
                "MessagePack data (a Flax checkpoint?), which is not supported".to_owned()
            }
            None => {
                let start: Vec<String> = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                format!("unknown data that starts with {}", start.join(" "))
            }
        },
    }
}

/// Whether there is nothing but zeros, as in a file that was allocated and never written.
pub(crate) fn is_blank(head: &[u8]) -> bool {
    head.iter().all(|byte| *byte == 0)
}

/// The first bytes as text, if that is what they are; the last character may be cut.
fn text(head: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if head.len() - error.valid_up_to() < 4 => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}');
    (!text.chars().any(|c| c.is_control() && !c.is_ascii_whitespace())).then_some(text)
}

/// What kind of text it is, with its beginning.
fn text_kind(text: &str) -> String {
    const SHOWN: usize = 60;
    let text = text.trim();
    let lower: String = text.chars().take(16).collect::<String>().to_ascii_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<head") {
        return "a web page, perhaps a failed download".to_owned();
    }
    let kind = if lower.starts_with("<?xml") || lower.starts_with("<error") {
        "an XML document, perhaps a server's error message"
    } else if lower.starts_with('{') || lower.starts_with('[') {
        "JSON text, perhaps a server's error message"
    } else {
        "a text file"
    };
    let mut shown: String =
        text.chars().take(SHOWN).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    format!("{kind}: {shown:?}")
}

/// Whether it starts like a MessagePack map whose first key is text.
fn is_msgpack(head: &[u8]) -> bool {
    let rest = match head {
        [0x81..=0x8f, rest @ ..] | [0xde, _, _, rest @ ..] | [0xdf, _, _, _, _, rest @ ..] => rest,
        _ => return false,
    };
    let key = match rest {
        [len @ 0xa1..=0xbf, key @ ..] => key.get(..usize::from(*len - 0xa0)),
        [0xd9, len, key @ ..] => key.get(..usize::from(*len)),
        _ => None,
    };
    key.is_some_and(|key| !key.is_empty() && key.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' '))
}

#[cfg(test)]
mod tests {
    use super::looks_like;

    #[test]
    fn what_is_not_a_tensor_file_is_named() {
        let mut tar = vec![b'a'; 600];
        tar[100..108].fill(0);
        tar[257..262].copy_from_slice(b"ustar");
        for (head, word) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid"[..], "git lfs pull"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"\n  <HTML>", "web page"),
            (b"{\"error\":\"Entry not found\"}", "JSON text, perhaps a server's error message: \"{"),
            (b"<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code>", "XML"),
            (b"Entry not found", "\"Entry not found\""),
            (b"\x1f\x8b\x08", "gzip"),
            (b"\xfd7zXZ\0\0", "xz"),
            (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
            (&tar, "tar archive"),
            (b"\x1c\0\0\0TFL3\0\0", "TensorFlow Lite"),
            (b"tjgg\x01\0\0\0", "llama.cpp"),
            (b"\x81\xa6params\x82\xa4bias", "MessagePack"),
            (b"", "empty file"),
            (&[0; 64], "zero bytes"),
            (b"\x01\x02\xff\xfe\x00\x01\x02\x03\x04", "01 02 ff fe"),
        ] {
            assert!(looks_like(head).contains(word), "{word}: {}", looks_like(head));
        }
        let long = "x".repeat(4096);
        assert!(looks_like(long.as_bytes()).chars().count() < 90);
        // A character cut at the end of the probed bytes.
        assert!(looks_like(&"é".repeat(100).as_bytes()[..199]).starts_with("a text file"));
    }
}
