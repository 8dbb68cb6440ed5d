//! How a new object is stored: as a cast or a difference of one that is there, or whole.

use std::collections::HashMap;

use z4ai::Effort;

use super::index::Sketches;
use super::object::{ObjectType, SKETCHED, Sketch};
use super::pack::{Coding, Encoded, EncodedForm};
use super::restore::{Cast, ObjectSet};
use crate::catalog::Shape;
use crate::dtype::DType;
use crate::error::Result;
use crate::format::gguf::GgmlType;
use crate::id::ContentId;
use crate::write::Compression;
use crate::write::compress::{Blob, Compressors, codec_options, not_encoded};

/// Differences between an object and one that is stored whole, at most. (case: `constants.py`,
/// `chain`: half of it is read in 0.6 of the time and takes 7 % more room, twice 1.3 times and 2 % less)
pub(crate) const DEEPEST: usize = 16;
/// Where a chain is as long as that, the next object is based on the one at this depth of it.
const RESUMED: usize = DEEPEST / 2;
/// Stored bytes that are read for one decoded byte, at most: 5/4. (limit)
const READ_COST: (u64, u64) = (5, 4);
/// A sketch that is found elsewhere counts if it is that much nearer than that of the namesake.
const NEARER: usize = SKETCHED / 16;
/// Larger objects are sampled before they are encoded whole beside a difference. (case:
/// `constants.py`, `commit_tuned`: halved or doubled the same, never sampled 1.5 times as long)
const SAMPLED: usize = 1 << 20;
const SAMPLE_LEN: usize = 248 << 10;
/// zstd's level for what is no tensor.
const ZSTD_LEVEL: i32 = 3;

/// Chooses how objects are stored.
pub(crate) struct Chooser<'a> {
    /// Everything that is there.
    pub(crate) set: &'a ObjectSet,
    pub(crate) sketches: Sketches,
    /// Objects that parents and hinted bases have under a name, the nearest first.
    pub(crate) namesakes: HashMap<String, Vec<ContentId>>,
    pub(crate) effort: Effort,
    pub(crate) compressors: Compressors,
}

/// What an object is, beside its type.
pub(crate) enum ObjectKind {
    /// An array.
    Tensor,
    /// Quantized blocks of a tensor of that shape; the object's type is bytes.
    Blocks(GgmlType, Shape),
    /// No tensor.
    Other,
}

/// An object to build on.
struct Base {
    id: ContentId,
    /// Bytes from the start that stand for the same elements.
    common: u64,
    score: usize,
}

impl Chooser<'_> {
    /// Encodes an object in the form that is smallest.
    pub(crate) fn encode(
        &self,
        name: &str,
        of: ObjectType,
        bytes: &[u8],
        kind: &ObjectKind,
        threads: usize,
    ) -> Result<Encoded> {
        let sketch = match kind {
            ObjectKind::Other => None,
            ObjectKind::Tensor | ObjectKind::Blocks(..) => Sketch::of(of.dtype, bytes),
        };
        if let Some(base) = self.cast(name, &of, sketch.as_ref(), bytes, threads)? {
            return Ok(Encoded { of, bytes: EncodedForm::Cast { base }, sketch });
        }
        let change = match self.base(name, &of, sketch.as_ref()) {
            Some(base) => self.difference(&base, &of, bytes, threads)?,
            None => None,
        };
        let bytes = match change {
            Some(change) if self.surely_smaller(&change, &of, bytes)? => change,
            change => {
                let whole = self.whole(&of, bytes, kind, threads)?;
                match change {
                    Some(change) if form_len(&change) < form_len(&whole) => change,
                    _ => whole,
                }
            }
        };
        Ok(Encoded { of, bytes, sketch })
    }

    /// The object that a cast turns into exactly these bytes.
    fn cast(
        &self,
        name: &str,
        of: &ObjectType,
        sketch: Option<&Sketch>,
        bytes: &[u8],
        threads: usize,
    ) -> Result<Option<ContentId>> {
        if !matches!(of.dtype, DType::BF16 | DType::F16) || bytes.is_empty() {
            return Ok(None);
        }
        let master = ObjectType { dtype: DType::F32, shape: of.shape.clone() };
        let mut candidates: Vec<ContentId> = self.namesakes.get(name).cloned().unwrap_or_default();
        candidates.retain(|id| self.set.get(id).is_ok_and(|stored| stored.of == master));
        // Only of the same exponents: those of f16 differ.
        if of.dtype == DType::BF16
            && let Some((id, common)) = sketch.and_then(|sketch| self.sketches.nearest(&master, sketch))
            && common * 8 >= SKETCHED * 7
            && !candidates.contains(&id)
        {
            candidates.push(id);
        }
        for id in candidates.into_iter().take(2) {
            let Some(cast) = Cast::between(&master, of) else { continue };
            let same = self.set.with_object(&id, threads, |wide| Ok(cast.makes(wide, bytes)))?;
            if same {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// The most similar object that is there.
    fn base(&self, name: &str, of: &ObjectType, sketch: Option<&Sketch>) -> Option<Base> {
        let mut best: Option<Base> = None;
        for id in self.namesakes.get(name).into_iter().flatten() {
            let Ok(stored) = self.set.get(id) else { continue };
            let Some(common) = common(of, &stored.of) else { continue };
            let score = match (sketch, &stored.sketch) {
                (Some(one), Some(other)) if stored.of == *of => one.common(other),
                // Not known: as good as a namesake mostly is.
                _ => SKETCHED - NEARER,
            };
            if best.as_ref().is_none_or(|best| score > best.score) {
                best = Some(Base { id: *id, common, score });
            }
        }
        if let Some((id, score)) = sketch.and_then(|sketch| self.sketches.nearest(of, sketch))
            && best.as_ref().is_none_or(|best| score > best.score + NEARER)
            && let Ok(common) = of.len()
        {
            best = Some(Base { id, common, score });
        }
        best.filter(|best| best.score * 2 > SKETCHED && best.common > 0)
    }

    /// The difference from a base, if what has to be read for it is within bounds; or from the object
    /// that its chain ends in, of which less has to be read.
    fn difference(
        &self,
        base: &Base,
        of: &ObjectType,
        bytes: &[u8],
        threads: usize,
    ) -> Result<Option<EncodedForm>> {
        let chain = self.set.chain(&base.id)?;
        let depth = chain.len() - 1;
        // Of a chain that is as long as allowed, the object at half the depth: what is based on it is as
        // deep again only after a while.
        let first = if depth >= DEEPEST { depth - RESUMED } else { 0 };
        let most = (bytes.len() as u64).saturating_mul(READ_COST.0) / READ_COST.1;
        let places = if first == depth { vec![depth] } else { vec![first, depth] };
        for place in places {
            let id = match place {
                0 => Some(base.id),
                place => chain[place - 1].base(),
            };
            let common = match place {
                0 => Some(base.common),
                place => common(of, &chain[place].of),
            };
            let read: u64 = chain[place..].iter().map(|stored| stored.len()).sum();
            let (Some(id), Some(common)) = (id, common.filter(|_| read <= most)) else { continue };
            // A difference that takes half of the object mostly has room. That of a full fine-tune in f32 has
            // not: half of its bits are new, and a whole object takes five sixths.
            let tight = read.saturating_add(bytes.len() as u64 / 2) > most;
            if tight && read.saturating_add(self.sampled(id, common, of, bytes)?) > most {
                continue;
            }
            let form = self.change(id, common, of, bytes, threads)?;
            if read.saturating_add(form_len(&form)) <= most {
                return Ok(Some(form));
            }
        }
        Ok(None)
    }

    /// The least that samples say a difference from an object takes.
    fn sampled(&self, base: ContentId, common: u64, of: &ObjectType, bytes: &[u8]) -> Result<u64> {
        let common = common as usize;
        if common <= SAMPLED {
            return Ok(0);
        }
        let storage = self.set.storage(&base, 0)?;
        let mut reference = vec![0; SAMPLE_LEN];
        let mut sample = |start: usize| {
            let range = start as u64..(start + SAMPLE_LEN) as u64;
            storage.read(self.set.sources(), range, &mut reference, 1)?;
            let options = codec_options(of.dtype, &[], SAMPLE_LEN as u64, Effort::Fast, 1);
            let part = &bytes[start..start + SAMPLE_LEN];
            z4ai::delta::compress(part, &reference, &options).map(|frame| frame.len()).map_err(not_encoded)
        };
        // Of two places the one that is smaller, each a chunk.
        let chunks = common / SAMPLE_LEN;
        let least = sample(chunks / 4 * SAMPLE_LEN)?.min(sample(chunks * 3 / 4 * SAMPLE_LEN)?);
        Ok(least as u64 / 10 * 9 * chunks as u64)
    }

    /// The difference from the first bytes of an object, and the rest.
    fn change(
        &self,
        base: ContentId,
        common: u64,
        of: &ObjectType,
        bytes: &[u8],
        threads: usize,
    ) -> Result<EncodedForm> {
        let (shared, rest) = bytes.split_at(common as usize);
        let shape: &[u64] = if rest.is_empty() { &of.shape } else { &[] };
        let options = codec_options(of.dtype, shape, common, self.effort, threads);
        let change = self.set.with_object(&base, threads, |reference| {
            z4ai::delta::compress(shared, &reference[..shared.len()], &options).map_err(not_encoded)
        })?;
        let rest = match rest.is_empty() {
            true => None,
            false => Some(self.frame(of.dtype, &[], rest, Compression::Z4ai(self.effort), threads)?),
        };
        Ok(EncodedForm::Delta { base, common, change, rest })
    }

    /// Whether a sample says that the whole object would take more than a difference does.
    fn surely_smaller(&self, change: &EncodedForm, of: &ObjectType, bytes: &[u8]) -> Result<bool> {
        if bytes.len() <= SAMPLED {
            return Ok(false);
        }
        let size = of.dtype.size().unwrap_or(1);
        let sample = |start: usize| {
            let start = start / size * size;
            let part = &bytes[start..start + SAMPLE_LEN];
            let options = codec_options(of.dtype, &[], SAMPLE_LEN as u64, Effort::Fast, 1);
            z4ai::compress(part, &options).map(|frame| frame.len()).map_err(not_encoded)
        };
        // Of two places the one that is smaller.
        let least = sample(bytes.len() / 4)?.min(sample(bytes.len() / 4 * 3 - SAMPLE_LEN)?);
        let whole = least as u64 * (bytes.len() / SAMPLE_LEN) as u64;
        Ok(form_len(change) * 4 < whole * 3)
    }

    /// The whole object.
    fn whole(&self, of: &ObjectType, bytes: &[u8], kind: &ObjectKind, threads: usize) -> Result<EncodedForm> {
        let z4ai = Compression::Z4ai(self.effort);
        let tensor = match kind {
            ObjectKind::Tensor => Some(Blob { bytes, dtype: of.dtype, shape: &of.shape, blocks: None }),
            ObjectKind::Blocks(blocks, shape) => {
                Some(Blob { bytes, dtype: DType::U8, shape, blocks: Some(*blocks) })
            }
            ObjectKind::Other => None,
        };
        if let Some(blob) = tensor {
            let (coding, frame) = self.blob(&blob, z4ai, threads)?;
            return Ok(EncodedForm::Whole(coding, frame));
        }
        let (coding, frame) = self.frame(DType::U8, &[], bytes, Compression::Zstd(ZSTD_LEVEL), threads)?;
        // Numbers without a format, perhaps.
        if frame.len() > bytes.len() / 4 * 3 {
            let (other, numbers) = self.frame(DType::U8, &[], bytes, z4ai, threads)?;
            if numbers.len() < frame.len() {
                return Ok(EncodedForm::Whole(other, numbers));
            }
        }
        Ok(EncodedForm::Whole(coding, frame))
    }

    fn frame(
        &self,
        dtype: DType,
        shape: &[u64],
        bytes: &[u8],
        compression: Compression,
        threads: usize,
    ) -> Result<(Coding, Vec<u8>)> {
        self.blob(&Blob { bytes, dtype, shape, blocks: None }, compression, threads)
    }

    fn blob(&self, blob: &Blob<'_>, compression: Compression, threads: usize) -> Result<(Coding, Vec<u8>)> {
        let coding = match compression {
            Compression::Zstd(_) => Coding::Zstd,
            _ => Coding::Z4ai,
        };
        Ok(match self.compressors.encode(blob, compression, threads)? {
            Some(frame) => (coding, frame),
            None => (Coding::Raw, blob.bytes.to_vec()),
        })
    }
}

fn form_len(form: &EncodedForm) -> u64 {
    let len = match form {
        EncodedForm::Whole(_, bytes) => bytes.len(),
        EncodedForm::Delta { change, rest, .. } => {
            change.len() + rest.as_ref().map_or(0, |(_, bytes)| bytes.len())
        }
        EncodedForm::Cast { .. } => 0,
    };
    len as u64
}

/// Bytes from the start that stand for the same elements in both: all, or those of the rows that both
/// have.
fn common(of: &ObjectType, base: &ObjectType) -> Option<u64> {
    if of.dtype != base.dtype {
        return None;
    }
    let (len, base_len) = (of.len().ok()?, base.len().ok()?);
    if len == base_len {
        return Some(len);
    }
    let (_, row) = of.shape.split_first()?;
    let (_, base_row) = base.shape.split_first()?;
    (row == base_row && (!row.is_empty() || of.dtype != DType::U8)).then_some(len.min(base_len))
}
