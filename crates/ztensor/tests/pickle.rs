//! The reader of `.pt`, `.pth`, `.bin` and `.pkl` against torch, NumPy and
//! pickle, and against hostile files.

mod common;

use common::{conformance, fixtures};

#[test]
fn samples_read_as_their_makers_say() {
    assert!(fixtures::check("pickle").len() >= 30);
}

fn conforms(files: &[&str]) {
    for file in files {
        conformance::run(&fixtures::bytes("pickle", file), "pt");
    }
}

#[test]
fn archives_conform() {
    conforms(&["plain.pt", "views.pt", "sparse.pt", "quantized.pt", "big_endian.pt"]);
}

#[test]
fn unusual_archives_conform() {
    conforms(&["checkpoint.pt", "module.pt", "script.pt", "deflated.pt", "no_crc.pt"]);
}

#[test]
fn legacy_files_conform() {
    conforms(&["types_legacy.pt", "views_legacy.pt", "checkpoint_legacy.pt", "module_legacy.pt"]);
}

#[test]
fn pickles_conform() {
    for file in ["numpy_protocol2.pkl", "numpy_protocol5.pkl", "torch_protocol5.pkl", "python2.pkl"] {
        conformance::run(&fixtures::bytes("pickle", file), "pkl");
    }
    // Protocol 0 has no mark of its own: the extension tells.
    conformance::run_by_extension(PROTOCOL_0, "pkl");
}

/// `{"a": numpy.array([1, 2], "u1"), "b": [1.5]}` in lines of text.
const PROTOCOL_0: &[u8] = b"(dVa\ncnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR\
    (I1\n(I2\ntcnumpy\ndtype\n(S'u1'\nI00\nI01\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x01\\x02'\ntb\
    sVb\n(lF1.5\nas.";
