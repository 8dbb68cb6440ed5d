//! The reader of `.pt`, `.pth`, `.bin` and `.pkl` against torch, NumPy and
//! pickle, and against hostile files.

mod common;

use common::{conformance, fixtures};

#[test]
fn samples_read_as_their_makers_say() {
    assert!(fixtures::check("pickle").len() >= 30);
}
