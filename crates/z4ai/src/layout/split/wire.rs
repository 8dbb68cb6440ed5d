//! The description of a chunk in the split layout.

use crate::coder::{self, Coder};
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::bit_fields::Fields;
use crate::kernel::bit_packing;
use crate::kernel::scale_classes::{ClassMap, MAX_CLASSES};
use crate::layout::contexts::Contexts;
use crate::layout::streams::{self, Streams};
use crate::wire::{Put, Reader};

/// Payload bytes of one patch: index and symbol. (format)
pub(crate) const PATCH: usize = 6;

/// Flag in the byte of the symbol bits: signs are a separate stream.
const SIGNS: u8 = 0x80;
const NO_CLASSES: u8 = 0;
const ROWS: u8 = 1;
const COLUMNS: u8 = 2;
const CONTEXTS: u8 = 3;

/// The description of a split chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) fields: Fields,
    pub(crate) patches: u32,
    pub(crate) classes: Option<ClassMap>,
    /// How codes are coded that are no streams.
    pub(crate) contexts: Option<Box<Contexts>>,
    /// The packed bits, where there are any.
    pub(crate) mid: Option<Coder>,
    /// Lowest plane first.
    pub(crate) planes: Vec<Coder>,
    /// The sign changes, if signs are separate.
    pub(crate) signs: Option<Coder>,
    /// One per class, or one; none where codes are in context.
    pub(crate) codes: Vec<Coder>,
}

impl Split {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.fields.symbol_bits as u8 | if self.signs.is_some() { SIGNS } else { 0 });
        out.put_u16(self.fields.base);
        out.put_u32(self.patches);
        match (&self.classes, &self.contexts) {
            (None, None) => out.put_u8(NO_CLASSES),
            (_, Some(contexts)) => {
                out.put_u8(CONTEXTS);
                contexts.write(out);
            }
            (Some(map), _) => write_axis(map, out),
        }
        for coder in self.mid.iter().chain(&self.planes).chain(&self.signs).chain(&self.codes) {
            coder.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if !len.is_multiple_of(kind.size()) {
            return Err(Error::corrupt("a split chunk ends inside an element"));
        }
        let count = len / kind.size();
        let cut = reader.u8()?;
        let (symbol_bits, separate_sign) = (u32::from(cut & !SIGNS), cut & SIGNS != 0);
        let base = reader.u16()?;
        let fields = Fields::new(kind, symbol_bits, base).filter(|fields| fields.signed || !separate_sign);
        let Some(fields) = fields.map(|fields| fields.with_separate_sign(separate_sign)) else {
            return Err(Error::corrupt(format_args!(
                "symbols of {symbol_bits} bits from {base} in {} elements",
                kind.name()
            )));
        };
        let patches = reader.u32()?;
        if patches as usize > count {
            return Err(Error::corrupt("more patches than elements"));
        }
        let (mut classes, mut contexts) = (None, None);
        let streams = match reader.u8()? {
            NO_CLASSES => 1,
            CONTEXTS => {
                contexts = Some(Box::new(Contexts::read(reader, kind, fields, count)?));
                0
            }
            axis @ (ROWS | COLUMNS) => classes.insert(read_classes(reader, axis == COLUMNS, count)?).count(),
            code => return Err(Error::corrupt(format_args!("scale classes of axis {code}"))),
        };
        Ok(Self {
            fields,
            patches,
            classes,
            contexts,
            mid: (fields.mid_bits() > 0).then(|| Coder::read(reader)).transpose()?,
            planes: (0..fields.planes()).map(|_| Coder::read(reader)).collect::<Result<_>>()?,
            signs: separate_sign.then(|| Coder::read(reader)).transpose()?,
            codes: (0..streams).map(|_| Coder::read(reader)).collect::<Result<_>>()?,
        })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let count = len / self.fields.size;
        let sizes = self.code_sizes(count);
        let codes = self.codes.iter().zip(sizes);
        let mid = self.mid.iter().map(|mid| (mid, self.fields.mid_len(count)));
        let planes = self.planes.iter().map(|plane| (plane, count));
        let signs = self.signs.iter().map(|signs| (signs, count.div_ceil(8)));
        let streams = codes.chain(mid).chain(planes).chain(signs);
        streams.map(|(coder, len)| coder.stored_len(len)).sum::<u64>()
            + self.contexts.as_ref().map_or(0, |contexts| contexts.stored_len())
            + u64::from(self.patches) * PATCH as u64
    }

    /// Adds the streams of a chunk of `len` bytes.
    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let count = len / self.fields.size;
        for (coder, size) in self.codes.iter().zip(self.code_sizes(count)) {
            streams.add("symbols", coder, size);
        }
        if let Some(contexts) = &self.contexts {
            streams.add_stored("symbols", "contexts", count, contexts.stored_len());
        }
        if let Some(coder) = &self.mid {
            streams.add("bits", coder, self.fields.mid_len(count));
        }
        for (index, coder) in self.planes.iter().enumerate() {
            streams.add(streams::plane(index), coder, count);
        }
        if let Some(coder) = &self.signs {
            streams.add("signs", coder, count.div_ceil(8));
        }
        if self.patches > 0 {
            let len = self.patches as usize * PATCH;
            streams.add("patches", &Coder::Raw, len);
        }
    }

    /// Codes in each class; all in the first when there are none.
    pub(super) fn code_sizes(&self, count: usize) -> [usize; MAX_CLASSES] {
        match &self.classes {
            Some(map) => map.sizes(count),
            None => [count, 0, 0, 0],
        }
    }
}

/// Writes the classes of rows or columns.
pub(crate) fn write_axis(map: &ClassMap, out: &mut Vec<u8>) {
    out.put_u8(if map.columns { COLUMNS } else { ROWS });
    out.put_u32(map.period as u32);
    let width = if map.count() > 2 { 2 } else { 1 };
    out.put_u8(width);
    bit_packing::pack(u32::from(width), &map.classes, &std::array::from_fn(|i| i as u8), out);
}

/// Reads the classes of rows or columns, as `axis` says; `None` if there are neither.
pub(crate) fn read_classes_of(axis: u8, reader: &mut Reader<'_>, count: usize) -> Result<Option<ClassMap>> {
    match axis {
        axis @ (ROWS | COLUMNS) => read_classes(reader, axis == COLUMNS, count).map(Some),
        _ => Ok(None),
    }
}

fn read_classes(reader: &mut Reader<'_>, columns: bool, count: usize) -> Result<ClassMap> {
    let period = reader.u32()? as usize;
    let width = reader.u8()?;
    if period == 0 || period > count || width == 0 {
        return Err(Error::corrupt("scale classes that do not fit their chunk"));
    }
    let classes = read_class_numbers(reader, width, ClassMap::units(columns, period, count))?;
    Ok(ClassMap { columns, period, classes })
}

/// Writes the bits of a class number, 0 if there is one class, and the class numbers.
pub(crate) fn write_class_numbers(classes: &[u8], out: &mut Vec<u8>) {
    let width = match classes.iter().max() {
        None | Some(0) => 0,
        Some(1) => 1,
        _ => 2,
    };
    out.put_u8(width);
    if width > 0 {
        bit_packing::pack(u32::from(width), classes, &std::array::from_fn(|i| i as u8), out);
    }
}

/// Reads the class numbers, of `width` bits, of `units` rows or columns.
pub(crate) fn read_class_numbers(reader: &mut Reader<'_>, width: u8, units: usize) -> Result<Vec<u8>> {
    let mut classes = vec![0; units];
    match width {
        0 => return Ok(classes),
        1 | 2 => {}
        _ => return Err(Error::corrupt("scale classes that do not fit their chunk")),
    }
    let stored = reader.take((units * usize::from(width)).div_ceil(8))?;
    coder::check_packed_padding(u32::from(width), stored, units)?;
    let palette = std::array::from_fn(|i| i as u8);
    bit_packing::expand(u32::from(width), &palette, stored, &mut classes);
    Ok(classes)
}
