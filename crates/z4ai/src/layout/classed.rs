//! The classed layout: elements of one byte, whose rows or columns have few scales.
//!
//! Floats of eight bits are all symbols. With one scale for the whole tensor, or one per block, rows and
//! columns still differ in scale, and those of similar scale share a code.
//!
//! Payload: the bytes of each class, in their order.

use crate::coder::{Coder, choose};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::histogram;
use crate::kernel::scale_classes::{self, ClassMap, MAX_CLASSES, SLACK};
use crate::layout::ChunkScratch;
use crate::layout::split::classes::{self, Hint, Price};
use crate::layout::split::encode::SplitEncoder;
use crate::layout::split::{read_axis, write_axis};
use crate::layout::streams::Streams;
use crate::memory::grow;
use crate::options::{Effort, Options};
use crate::wire::Reader;

/// What classes must save, and how often rows move to a better one. (case: `codec.py table`, fp8)
const PRICE: Price = Price { must_save: 1, moves: 3 };

/// The description of a chunk of bytes in classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Classed {
    map: ClassMap,
    /// One per class.
    codes: Vec<Coder>,
}

impl Classed {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_axis(&self.map, out);
        self.codes.iter().for_each(|coder| coder.write(out));
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind.size() != 1 {
            return Err(Error::corrupt(format_args!("classes of {} elements", kind.name())));
        }
        let Some(map) = read_axis(reader, len)? else {
            return Err(Error::corrupt("classes of neither rows nor columns"));
        };
        let codes = (0..map.count()).map(|_| Coder::read(reader)).collect::<Result<_>>()?;
        Ok(Self { map, codes })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        self.codes.iter().zip(self.map.sizes(len)).map(|(coder, size)| coder.stored_len(size)).sum()
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let sizes = self.map.sizes(len);
        self.codes.iter().zip(sizes).for_each(|(coder, size)| streams.add("symbols", coder, size));
    }

    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut ChunkScratch) -> Result<()> {
        let mut payload = Reader::new(payload);
        let [gathered, runs @ ..] = &mut scratch.classed;
        for ((coder, run), size) in self.codes.iter().zip(&mut *runs).zip(self.map.sizes(out.len())) {
            grow(run, size + SLACK);
            let stored = usize::try_from(coder.stored_len(size))
                .map_err(|_| Error::corrupt("a class beyond its chunk"))?;
            coder.decode(payload.take(stored)?, &mut run[..size], &mut scratch.coder)?;
        }
        let runs: [&[u8]; MAX_CLASSES] = std::array::from_fn(|i| runs[i].as_slice());
        grow(gathered, out.len() + SLACK);
        scale_classes::gather(&self.map, &runs[..self.codes.len()], out.len(), gathered);
        out.copy_from_slice(&gathered[..out.len()]);
        Ok(())
    }
}

/// Buffers that decoding reuses: the bytes, and those of each class.
pub(crate) type Buffers = [Vec<u8>; 1 + MAX_CLASSES];

/// Appends `content` in classes of rows or columns, if such are found that pay.
pub(crate) fn encode(
    content: &[u8],
    options: &Options,
    hint: &Hint,
    scratch: &mut SplitEncoder,
    payload: &mut Vec<u8>,
) -> Option<Classed> {
    if !options.kind.is_float() || options.effort == Effort::Fast || options.dense {
        return None;
    }
    let SplitEncoder { codes, runs, coder, .. } = scratch;
    grow(codes, content.len() + SLACK);
    let magnitudes = &mut codes[..content.len()];
    // Classes are of magnitudes.
    magnitudes.iter_mut().zip(content).for_each(|(magnitude, byte)| *magnitude = byte & 0x7f);
    let map = classes::find(magnitudes, &classes::periods_of(magnitudes, hint), PRICE)?;
    magnitudes.copy_from_slice(content);
    let sizes = map.sizes(content.len());
    runs.resize_with(runs.len().max(map.count()), Vec::new);
    runs.iter_mut().zip(sizes).take(map.count()).for_each(|(run, size)| grow(run, size + SLACK));
    scale_classes::scatter(&map, codes, content.len(), &mut runs[..map.count()]);
    let codes = runs[..map.count()].iter().zip(sizes).map(|(run, size)| {
        let counts = histogram::halved(&run[..size], &mut coder.pairs);
        choose::encode_codes(&run[..size], &counts, options.effort, payload, coder)
    });
    Some(Classed { codes: codes.collect(), map })
}
