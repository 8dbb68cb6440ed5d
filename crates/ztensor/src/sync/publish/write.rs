//! Writing the files of a version: a delta, or the whole model.

use std::collections::{BTreeMap, BTreeSet};

use super::{Draft, Encoded, Kept, Published, Publisher};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::model_id;
use crate::sync::checksum::xxh3;
use crate::sync::index::{Extras, Index, Kind, TensorEntry};
use crate::sync::payload::TensorType;
use crate::sync::stream::{BASE_VERSION, Layout, Stream};
use crate::sync::target::Target;
use crate::tensor::Tensor;
use crate::write::export::TensorList;

/// Bytes of payloads or tensors per shard.
const SHARD_LEN: u64 = 4 << 30;

/// A delta that is encoded, and perhaps not written yet.
pub(super) struct Ready {
    version: String,
    index: Index,
    shards: Vec<(String, Vec<(String, Encoded)>)>,
    removed: Vec<String>,
}

impl Publisher {
    /// The files of a delta.
    pub(super) fn delta(&mut self, version: String, draft: Draft, removed: Vec<String>) -> Ready {
        let mut groups: BTreeMap<(usize, u64), Vec<(String, Encoded)>> = BTreeMap::new();
        let mut filled: BTreeMap<usize, u64> = BTreeMap::new();
        let (mut tensors, mut base_ids) = (BTreeMap::new(), BTreeMap::new());
        for (name, encoded) in draft.tensors {
            let len = filled.entry(encoded.rank).or_default();
            *len += encoded.payload.len() as u64;
            tensors.insert(name.clone(), encoded.entry.clone());
            base_ids.insert(name.clone(), encoded.entry.base);
            groups.entry((encoded.rank, *len / SHARD_LEN)).or_default().push((name, encoded));
        }
        let count = groups.len();
        let shards: Vec<_> = groups
            .into_values()
            .enumerate()
            .map(|(at, tensors)| (format!("model-{at:05}-of-{count:05}.safetensors"), tensors))
            .collect();
        let weight_map = shards
            .iter()
            .flat_map(|(file, tensors)| tensors.iter().map(move |(name, _)| (name.clone(), file.clone())))
            .collect();
        let old = self.kept.iter().filter_map(|(name, kept)| {
            let id = match base_ids.get(name) {
                Some(base) => (*base)?, // added: not in the base
                None => kept.lock().ok()?.id,
            };
            Some((name.as_str(), id))
        });
        let base_id = model_id(old);
        for name in &removed {
            self.kept.remove(name);
        }
        let index = Index {
            version: Some(version.clone()),
            kind: Kind::Delta {
                base: self.version.clone(),
                encoding: self.encoding(),
                compression: self.options.compression,
                checksum: self.options.checksum(),
            },
            weight_map,
            extras: Some(Extras {
                stream_id: self.stream_id.clone(),
                // A resized tensor has another state in the base than any that is kept.
                base_id: (!draft.structural).then_some(base_id),
                target_id: Some(self.target_id()),
                tensors,
                removed: removed.iter().cloned().collect(),
                shards: BTreeMap::new(),
            }),
        };
        Ready { version, index, shards, removed }
    }

    /// Writes a delta; one that could not be written is kept for the next attempt.
    pub(super) fn write_delta(&mut self, mut ready: Ready) -> Result<Published> {
        let written = self.try_write_delta(&mut ready);
        if let Err(error) = written {
            self.ready = Some(ready);
            return Err(error);
        }
        let bytes = written?;
        let Ready { version, index, .. } = ready;
        let encoding = match index.kind {
            Kind::Delta { encoding, .. } => encoding,
            Kind::Full { .. } => self.options.encoding,
        };
        self.since_full = (self.since_full.0 + 1, self.since_full.1 + bytes);
        self.version.clone_from(&version);
        Ok(Published {
            version,
            full: None,
            changed: index.weight_map.len(),
            bytes,
            total: self.total(),
            encoding,
            target_id: self.target_id(),
        })
    }

    fn try_write_delta(&self, ready: &mut Ready) -> Result<u64> {
        let target = self.target(&self.stream, &ready.version)?;
        let mut bytes = 0;
        let mut lens = BTreeMap::new();
        for (file, tensors) in &ready.shards {
            let mut list = TensorList::default();
            for (name, encoded) in tensors {
                list.attributes.insert(name.clone(), encoded.digest.as_str().into());
                let payload = &encoded.payload[..];
                let tensor = Tensor::from_bytes(&[payload.len() as u64][..], DType::U8, payload)?;
                list.tensors.push((name.clone(), tensor));
            }
            let len = target.shard(file, &list)?;
            lens.insert(file.clone(), len);
            bytes += len;
        }
        if let Some(extras) = &mut ready.index.extras {
            extras.shards = lens;
        }
        let text = ready.index.to_json();
        target.finish(&text)?;
        debug_assert!(ready.removed.iter().all(|name| !self.kept.contains_key(name)));
        Ok(bytes + text.len() as u64)
    }

    /// A version of its stream that follows this publisher's, which must be the newest.
    fn target<'s>(&self, stream: &'s Stream, version: &str) -> Result<Target<'s>> {
        let target = Target::begin(stream.new_folder(stream.folder(version), &self.options))?;
        if stream.layout() != Layout::Named {
            let newest = stream.newest()?.unwrap_or_else(|| BASE_VERSION.to_owned());
            if newest != self.version {
                let last = &self.version;
                return Err(Error::mismatch(format!(
                    "the newest version of the stream is {newest}, this publisher's is {last}: \
                     another publisher writes to it"
                ))
                .in_file(stream.root()));
            }
        }
        Ok(target)
    }

    pub(super) fn write_full(
        &mut self,
        version: &str,
        removed: &[String],
        changed: usize,
        reason: &'static str,
    ) -> Result<Published> {
        for name in removed {
            self.kept.remove(name);
        }
        let stream = self.stream.clone();
        let target = self.target(&stream, version)?;
        let (total, target_id) = (self.total(), self.target_id());
        let named = self.stream.layout() == Layout::Named;
        let mut groups: Vec<Vec<(&String, &Kept)>> = vec![Vec::new()];
        let mut filled = 0;
        for (name, kept) in &mut self.kept {
            let kept = &*kept.get_mut().map_err(|_| Error::invalid("a publishing thread panicked"))?;
            let len = kept.bytes.len() as u64;
            if filled > 0 && filled + len > SHARD_LEN {
                groups.push(Vec::new());
                filled = 0;
            }
            filled += len;
            if let Some(group) = groups.last_mut() {
                group.push((name, kept));
            }
        }
        let count = groups.len();
        let (mut weight_map, mut tensors, mut shards) =
            (indexmap::IndexMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut bytes = 0;
        for (at, group) in groups.into_iter().enumerate() {
            let file = format!("model-{:05}-of-{count:05}.safetensors", at + 1);
            let mut list = TensorList::default();
            if !named {
                list.attributes.insert("format".to_owned(), "pt".into());
            }
            for (name, kept) in group {
                if named {
                    let digest = self.options.checksum().of(&kept.bytes);
                    list.attributes.insert(name.clone(), digest.into());
                }
                let entry = TensorEntry {
                    dtype: kept.of.dtype,
                    shape: kept.of.shape.clone(),
                    base: None,
                    target: kept.id,
                    payload: xxh3(&kept.bytes),
                    changed: None,
                    norm: None,
                };
                tensors.insert(name.clone(), entry);
                weight_map.insert(name.clone(), file.clone());
                let TensorType { dtype, shape } = kept.of.clone();
                list.tensors.push((name.clone(), Tensor::from_bytes(shape, dtype, &kept.bytes[..])?));
            }
            let len = target.shard(&file, &list)?;
            shards.insert(file, len);
            bytes += len;
        }
        if let Some(from) = &self.options.files_from {
            bytes += target.copy_files(from)?;
        }
        let index = Index {
            version: Some(version.to_owned()),
            kind: Kind::Full { checksum: named.then_some(self.options.checksum()) },
            weight_map,
            extras: Some(Extras {
                stream_id: self.stream_id.clone(),
                base_id: None,
                target_id: Some(target_id),
                tensors,
                removed: BTreeSet::new(),
                shards,
            }),
        };
        let text = index.to_json();
        target.finish(&text)?;
        self.full_next = None;
        self.since_full = (0, 0);
        version.clone_into(&mut self.version);
        let bytes = bytes + text.len() as u64;
        let encoding = self.options.encoding;
        let version = version.to_owned();
        Ok(Published { version, full: Some(reason), changed, bytes, total, encoding, target_id })
    }
}
