//! What tests share: synthetic weights, version 1 samples, a random generator.
#![allow(dead_code)] // every test file uses its own part

pub mod data;
pub mod deltas;
pub mod memory;

use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A frame written by an earlier release, with the element type and hash of its original.
pub struct Sample {
    pub name: String,
    pub kind: String,
    pub frame: Vec<u8>,
    pub len: usize,
    pub sha256: String,
    /// What a delta is to be applied to.
    pub reference: Option<Vec<u8>>,
    /// Type string and shape, of frames made from an array.
    pub array: Option<(String, Vec<u64>)>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/v1")
}

fn read(name: &Value) -> Vec<u8> {
    let path = folder().join(name.as_str().unwrap());
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("manifest.json")).unwrap()).unwrap()
}

pub fn samples() -> Vec<Sample> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    manifest()["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sample| Sample {
            name: text(&sample["name"]),
            kind: text(&sample["kind"]),
            frame: read(&sample["blob"]),
            len: sample["original_len"].as_u64().unwrap() as usize,
            sha256: text(&sample["sha256_original"]),
            reference: sample.get("reference").map(read),
            array: sample.get("np_dtype").map(|dtype| {
                let shape = sample["shape"].as_array().unwrap();
                let shape = shape.iter().map(|dim| dim.as_u64().unwrap()).collect();
                (text(dtype), shape)
            }),
        })
        .collect()
}

/// Frames that break a rule, by name.
pub fn hostile() -> Vec<(String, Vec<u8>)> {
    manifest()["hostile"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["blob"].to_string(), read(&entry["blob"])))
        .collect()
}

impl Sample {
    /// Decodes `frame`, this sample's or a damaged copy of it.
    pub fn decode(&self, frame: &[u8], max_output: u64) -> z4ai::Result<Vec<u8>> {
        let options = z4ai::DecodeOptions { max_output, ..Default::default() };
        match &self.reference {
            Some(reference) => z4ai::legacy::decompress_delta(frame, reference, &options),
            None => z4ai::legacy::decompress(frame, &options),
        }
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A small deterministic generator (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
