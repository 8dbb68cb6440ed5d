//! Encoding a chunk in the modelled layout: which contexts, and their tables.

use super::classes::{Hint, likely_periods};
use super::cost::{self, BIT};
use super::stream;
use crate::coder::tans::{BitWriter, States};
use crate::coder::tans_encode::{Backwards, Encoder};
use crate::element::Kind;
use crate::kernel::histogram;
use crate::kernel::sparse::load;
use crate::layout::modelled::{Cut, MAX_PERIOD, Model, Modelled, classes};
use crate::options::Effort;
use crate::wire::Put;

/// Classes of the nearest elements and of the column that are tried together; a row of one element
/// makes the column a longer mean of what was before.
const WITHOUT_ROWS: [(usize, usize); 4] = [(6, 1), (24, 1), (40, 1), (12, 3)];
const WITH_ROWS: [(usize, usize); 4] = [(2, 3), (8, 4), (4, 8), (1, 24)];
/// Row lengths tried, at most.
const MAX_PERIODS: usize = 2;
/// Contexts are chosen by one in so many blocks of so many elements.
const SAMPLED: usize = 4;
const BLOCK: usize = 1024;
/// Bytes that a table takes, about.
const PER_TABLE: u64 = 55;
/// Bits of a state, at most.
const MAX_LOG: u32 = 11;

/// Which contexts there are, and how often each symbol occurs in each.
struct Choice {
    period: usize,
    thresholds: [Vec<u8>; 2],
    counts: Vec<[u32; 256]>,
    cost: u64,
}

/// Appends `elements` to `payload`; `None` unless they are floats.
pub(super) fn encode(elements: &[u8], kind: Kind, hint: &Hint, payload: &mut Vec<u8>) -> Option<Modelled> {
    let cut = Cut::of(kind)?;
    let count = elements.len() / cut.size;
    if count == 0 || !elements.len().is_multiple_of(cut.size) {
        return None;
    }
    let base = best_base(elements, cut);
    let mut codes = Vec::with_capacity(count);
    let (mut signs, mut rest, mut patches) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sign_bits, mut rest_bits) = (BitWriter::default(), BitWriter::default());
    let (mut before, shift) = (0, cut.rest_bits());
    for (index, element) in elements.chunks_exact(cut.size).enumerate() {
        let bits = load(element);
        let sign = bits >> (8 * cut.size - 1);
        sign_bits.put(sign ^ before, 1, &mut signs);
        before = sign;
        let symbol = (bits >> shift & ((1 << cut.symbol_bits) - 1)) as u16;
        let code = u8::try_from(symbol.wrapping_sub(base)).ok();
        if code.is_none() {
            patches.push((index as u32, symbol));
        }
        codes.push(code.unwrap_or(0));
        rest_bits.put(bits & ((1 << shift) - 1), shift, &mut rest);
    }
    sign_bits.finish(&mut signs);
    rest_bits.finish(&mut rest);
    let choice = choose(&codes, cut, hint);
    let (stored, tables) = encode_codes(&codes, cut, &choice, payload);
    let signs = stream::encode_codes(&signs, &histogram::of_bytes(&signs), Effort::Balanced, payload);
    payload.extend_from_slice(&rest);
    patches.iter().for_each(|&(index, _)| payload.put_u32(index));
    patches.iter().for_each(|&(_, symbol)| payload.put_u16(symbol));
    let (patches, period) = (patches.len() as u32, choice.period as u32);
    Some(Modelled { cut, base, patches, period, thresholds: choice.thresholds, tables, stored, signs })
}

/// The first symbol of the window that covers most, at the start of an exponent.
fn best_base(elements: &[u8], cut: Cut) -> u16 {
    let counts = histogram::of_leading_bits(elements, cut.size, cut.symbol_bits);
    let starts = (0..=usize::from(cut.last_base())).step_by(1 << cut.joined);
    let covered = |&start: &usize| counts[start..start + 256].iter().map(|&n| u64::from(n)).sum::<u64>();
    starts.max_by_key(|start| (covered(start), std::cmp::Reverse(*start))).unwrap_or(0) as u16
}

/// The contexts that make the codes smallest.
fn choose(codes: &[u8], cut: Cut, hint: &Hint) -> Choice {
    let found;
    let periods = match hint.shaped {
        true => hint.periods.as_slice(),
        false => {
            found = likely_periods(codes);
            found.as_slice()
        }
    };
    let fitting = periods.iter().copied().filter(|&p| p > 1 && p <= MAX_PERIOD && 4 * p <= codes.len());
    let some: Vec<u8> = sample(codes).copied().collect();
    let mut best: Option<Choice> = None;
    for period in std::iter::once(1).chain(fitting.take(MAX_PERIODS)) {
        let levels: Vec<[u8; 2]> = sample(&levels(codes, cut, period)).copied().collect();
        for (near, column) in if period == 1 { WITHOUT_ROWS } else { WITH_ROWS } {
            let thresholds = [thresholds(&levels, 0, near), thresholds(&levels, 1, column)];
            let choice = count(&some, &levels, period, thresholds, codes.len() / some.len());
            if best.as_ref().is_none_or(|best| choice.cost < best.cost) {
                best = Some(choice);
            }
        }
    }
    let best = best.expect("at least one choice");
    count(codes, &levels(codes, cut, best.period), best.period, best.thresholds, 1)
}

/// Some of many.
fn sample<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.chunks(BLOCK).step_by(SAMPLED).flatten()
}

/// What is known before each element.
fn levels(codes: &[u8], cut: Cut, period: usize) -> Vec<[u8; 2]> {
    let mut model = Model::new(cut, period);
    let next = |&code: &u8| {
        let levels = model.levels();
        model.update(code);
        levels
    };
    codes.iter().map(next).collect()
}

/// Where `wanted` classes of about the same number of elements begin.
fn thresholds(levels: &[[u8; 2]], which: usize, wanted: usize) -> Vec<u8> {
    let mut counts = [0usize; 256];
    levels.iter().for_each(|levels| counts[usize::from(levels[which])] += 1);
    let (mut thresholds, mut below) = (Vec::new(), 0);
    for (level, &count) in counts.iter().enumerate() {
        if below > 0
            && below * wanted >= levels.len() * (thresholds.len() + 1)
            && thresholds.len() + 1 < wanted
        {
            thresholds.push(level as u8);
        }
        below += count;
    }
    thresholds
}

/// The context of every element, with these classes.
fn contexts<'a>(
    levels: &'a [[u8; 2]],
    thresholds: &[Vec<u8>; 2],
) -> impl DoubleEndedIterator<Item = usize> + 'a {
    let [near, column] = [0, 1].map(|i| classes(&thresholds[i]));
    let columns = thresholds[1].len() + 1;
    levels
        .iter()
        .map(move |&[a, b]| usize::from(near[usize::from(a)]) * columns + usize::from(column[usize::from(b)]))
}

/// What these contexts take, if there are `times` as many elements.
fn count(codes: &[u8], levels: &[[u8; 2]], period: usize, thresholds: [Vec<u8>; 2], times: usize) -> Choice {
    let mut counts = vec![[0u32; 256]; crate::layout::modelled::contexts(&thresholds)];
    for (&code, context) in codes.iter().zip(contexts(levels, &thresholds)) {
        counts[context][usize::from(code)] += 1;
    }
    let cost_of = |counts: &[u32; 256]| cost::entropy(counts) * times as u64 + PER_TABLE * 8 * BIT;
    let cost = counts.iter().map(cost_of).sum();
    Choice { period, thresholds, counts, cost }
}

/// Appends the bits of the codes; returns their length and the tables. The decoder goes forwards,
/// so states are found backwards.
fn encode_codes(codes: &[u8], cut: Cut, choice: &Choice, payload: &mut Vec<u8>) -> (u32, Vec<States>) {
    let log = codes.len().ilog2().saturating_sub(4).clamp(9, MAX_LOG);
    let tables: Vec<States> = choice
        .counts
        .iter()
        .map(|counts| {
            let mut counts = *counts;
            // A table needs two symbols, whether they occur or not.
            if counts.iter().filter(|&&n| n > 0).count() < 2 {
                counts[0] += 1;
                counts[1] += 1;
            }
            States::with_log(&counts, log).expect("two symbols")
        })
        .collect();
    let encoders: Vec<Encoder> = tables.iter().map(Encoder::new).collect();
    let levels = levels(codes, cut, choice.period);
    let mut state = 1 << log;
    let mut buffer = vec![0; Backwards::room(codes.len(), 1, log)];
    let mut bits = Backwards::new(buffer.len());
    for (&code, context) in codes.iter().zip(contexts(&levels, &choice.thresholds).collect::<Vec<_>>()).rev() {
        encoders[context].step(&mut state, code, &mut bits);
        bits.store(&mut buffer);
    }
    let start = payload.len();
    bits.put(u64::from(state) - (1 << log), log);
    bits.finish(&mut buffer, payload);
    ((payload.len() - start) as u32, tables)
}
