//! What the tests of weight streams share: samples, models in training, and tensors in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use sha2::Digest;
use ztensor::sync::{
    Encoding, Layout, LiveTensor, MemoryTarget, PayloadCompression, PublishOptions, Publisher, PullOptions,
    Pulled, Stream, chain::Anchors, pull,
};
use ztensor::{DType, ErrorKind, Reader, Result};

pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sync")
}

pub fn manifest() -> Value {
    serde_json::from_slice(&std::fs::read(data().join("manifest.json")).unwrap()).unwrap()
}

pub fn stream(root: &Path, layout: Layout) -> Arc<Stream> {
    Arc::new(Stream::new(root, layout, Default::default()))
}

pub fn hex(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The SHA-256 of every tensor of a folder.
pub fn digests(folder: &Path) -> BTreeMap<String, String> {
    let reader = Reader::open(folder).unwrap();
    reader.keys().map(|name| (name.to_owned(), hex(&reader.read(name).unwrap()))).collect()
}

pub fn expected(tensors: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().or_else(|| value["sha256"].as_str()).unwrap().to_owned();
    tensors.as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

pub fn options(version: Option<&str>) -> PullOptions<'static> {
    PullOptions {
        version: version.map(str::to_owned),
        base: Some(data().join("base")),
        threads: 2,
        durable: false,
        ..PullOptions::default()
    }
}

pub fn versions_of<'a>(manifest: &'a Value, name: &str) -> &'a Vec<Value> {
    let streams = manifest["streams"].as_array().unwrap();
    streams.iter().find(|stream| stream["name"] == name).unwrap()["versions"].as_array().unwrap()
}

pub fn kind_of(name: &str) -> ErrorKind {
    match name {
        "corrupt" => ErrorKind::Corrupt,
        "mismatch" => ErrorKind::Mismatch,
        "not_found" => ErrorKind::NotFound,
        "unsupported" => ErrorKind::Unsupported,
        other => panic!("{other}"),
    }
}

/// Tensors in memory.
pub struct Memory {
    pub target: MemoryTarget,
    pub tensors: Vec<(String, DType, Vec<u64>, Vec<u8>)>,
}

impl Memory {
    pub fn open(folder: &Path) -> Memory {
        let reader = Reader::open(folder).unwrap();
        let tensors = reader.objects().map(|(name, object)| {
            (name.to_owned(), object.dtype().unwrap(), object.shape.to_vec(), reader.read(name).unwrap())
        });
        Memory { target: MemoryTarget::default(), tensors: tensors.collect() }
    }

    pub fn pull(
        &mut self,
        stream: &Stream,
        version: Option<&str>,
        atomic: bool,
    ) -> Result<ztensor::sync::Applied> {
        let mut live: Vec<LiveTensor<'_>> = self
            .tensors
            .iter_mut()
            .map(|(name, dtype, shape, bytes)| LiveTensor {
                name,
                dtype: *dtype,
                shape: shape.clone().into(),
                bytes,
            })
            .collect();
        self.target.pull(stream, &mut live, version, atomic, 2)
    }

    pub fn digests(&self) -> BTreeMap<String, String> {
        self.tensors.iter().map(|(name, _, _, bytes)| (name.clone(), hex(bytes))).collect()
    }
}

/// A model of a few tensors whose state after each step is known.
pub struct Model {
    pub tensors: Vec<(String, DType, Vec<u64>, Vec<u8>)>,
    random: u64,
}

impl Model {
    pub fn new() -> Model {
        let mut model = Model { tensors: Vec::new(), random: 11 };
        for (name, dtype, shape) in [
            ("embed", DType::BF16, vec![500, 64]),
            ("layers.0.w", DType::BF16, vec![96, 101]),
            ("layers.0.norm", DType::F32, vec![77]),
            ("layers.1.w", DType::F32, vec![33, 65]),
            ("frozen", DType::I8, vec![4096]),
            ("empty", DType::F16, vec![0, 3]),
        ] {
            let len = shape.iter().product::<u64>() as usize * dtype.size().unwrap();
            let bytes = (0..len).map(|_| model.next() as u8).collect();
            model.tensors.push((name.to_owned(), dtype, shape, bytes));
        }
        model
    }

    pub fn next(&mut self) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize
    }

    pub fn step(&mut self) {
        for index in 0..self.tensors.len() {
            let len = self.tensors[index].3.len();
            if len == 0 || self.tensors[index].0 == "frozen" {
                continue;
            }
            for _ in 0..1 + len / 200 {
                let (at, value) = (self.next() % len, self.next() as u8);
                self.tensors[index].3[at] = value;
            }
        }
    }

    pub fn save(&self, path: &Path) {
        let mut list = ztensor::export::TensorList::default();
        for (name, dtype, shape, bytes) in &self.tensors {
            let tensor = ztensor::Tensor::from_bytes(shape.clone(), *dtype, &bytes[..]).unwrap();
            list.tensors.push((name.clone(), tensor));
        }
        std::fs::create_dir_all(path).unwrap();
        let format = ztensor::export::ExportFormat::Safetensors;
        ztensor::export::export(&list, path.join("model.safetensors"), format, &Default::default()).unwrap();
        std::fs::write(path.join("config.json"), "{}").unwrap();
    }

    pub fn inputs(&self) -> Vec<ztensor::sync::TensorInput<'_>> {
        self.tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| ztensor::sync::TensorInput {
                name,
                dtype: *dtype,
                shape: shape.clone().into(),
                bytes,
            })
            .collect()
    }

    pub fn digests(&self) -> BTreeMap<String, String> {
        self.tensors.iter().map(|(name, _, _, bytes)| (name.clone(), hex(bytes))).collect()
    }
}

/// A model, and a folder that has it as `base`.
pub fn model_in_folder() -> (tempfile::TempDir, Model) {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::new();
    model.save(&dir.path().join("base"));
    (dir, model)
}

pub fn publisher(stream: &Arc<Stream>, base: &Path, options: PublishOptions) -> Publisher {
    Publisher::new(stream.clone(), &Reader::open(base).unwrap(), options).unwrap()
}

pub fn publish_options(compression: PayloadCompression, encoding: Encoding) -> PublishOptions {
    PublishOptions {
        compression,
        encoding,
        durable: false,
        threads: 2,
        anchors: Anchors::NEVER,
        ..Default::default()
    }
}

pub fn pull_from(stream: &Stream, base: &Path, local: &Path, version: Option<&str>) -> Result<Pulled> {
    let options = PullOptions {
        base: Some(base.to_owned()),
        version: version.map(str::to_owned),
        durable: false,
        ..PullOptions::default()
    };
    pull(stream, local, &options)
}

pub const FORMS: [(PayloadCompression, Encoding); 3] = [
    (PayloadCompression::Zstd, Encoding::Xor),
    (PayloadCompression::Zstd, Encoding::Overwrite),
    (PayloadCompression::Z4ai, Encoding::Xor),
];
