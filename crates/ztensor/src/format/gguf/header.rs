//! The head of a GGUF file: magic, counts, key-values, and where tensors lie.

use smallvec::SmallVec;

use super::value::{self, Numbers, Order, TYPES, Type};
use crate::catalog::{MAX_RANK, Shape};
use crate::error::{Error, Result, quoted};
use crate::source::{Source, check_range};
use crate::tensor::value::{Attributes, Value};

/// First four bytes of every file, in either byte order.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The version that is written; version 2 differs in nothing but byte orders.
pub(crate) const VERSION: u32 = 3;
/// Tensors start at multiples of this, unless the file says otherwise …
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// … under this key.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The fewest bytes of a key-value: key length, value type, one byte.
const LEAST_PAIR: u64 = 8 + 4 + 1;
/// The fewest bytes of a tensor's entry: name length, rank, type, offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// What a file says about itself before its data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) order: Order,
    pub(crate) attributes: Attributes,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// One entry of the tensor table.
#[derive(Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: Box<str>,
    /// Outermost dimension first; the file has it the other way round.
    pub(crate) shape: Shape,
    /// The number of the type.
    pub(crate) type_id: u32,
    /// Where the data starts in the file; not checked against its end.
    pub(crate) offset: u64,
}

/// Reads everything in front of the data.
pub(crate) fn read(source: &dyn Source) -> Result<Header> {
    let order = read_version(source)?;
    let mut numbers = Numbers::new(source, order, 8);
    let tensor_count = numbers.count("tensors", LEAST_TENSOR)?;
    let pair_count = numbers.count("key-values", LEAST_PAIR)?;
    let attributes = read_pairs(&mut numbers, pair_count)?;
    let mut tensors = Vec::new();
    (tensors.try_reserve_exact(tensor_count as usize))
        .map_err(|_| Error::limit(format!("not enough memory for {tensor_count} tensors")))?;
    for _ in 0..tensor_count {
        tensors.push(read_tensor(&mut numbers)?);
    }
    let alignment = alignment(&attributes)?;
    let data = align_up(numbers.cursor.position(), alignment)?;
    for tensor in &mut tensors {
        tensor.offset = absolute(tensor.offset, alignment, data).map_err(|e| e.in_tensor(&*tensor.name))?;
    }
    Ok(Header { order, attributes, tensors })
}

/// Checks magic and version, and tells the byte order by the latter.
fn read_version(source: &dyn Source) -> Result<Order> {
    check_range(source.len(), 0, 8)?;
    let head = source.bytes(0, 8)?;
    let (magic, version) = head.split_at(4);
    if magic != MAGIC {
        return Err(Error::corrupt(
            "gguf.magic",
            format!("the file starts with {magic:02x?}, not with GGUF"),
        ));
    }
    let version: [u8; 4] = [version[0], version[1], version[2], version[3]];
    match (u32::from_le_bytes(version), u32::from_be_bytes(version)) {
        (2 | 3, _) => Ok(Order::Little),
        (_, 2 | 3) => Ok(Order::Big),
        (little, big) => Err(Error::unsupported(format!(
            "GGUF version {} is not supported: versions 2 and 3 are",
            little.min(big)
        ))),
    }
}

fn read_pairs(numbers: &mut Numbers<'_>, count: u64) -> Result<Attributes> {
    let mut attributes = Attributes::new();
    let mut types = Vec::new();
    for _ in 0..count {
        let key = numbers.name("a key")?;
        let (kind, value) = value::read(numbers)
            .map_err(|error| error.within(format_args!("the value of {}", quoted(&key))))?;
        if &*key == ALIGNMENT_KEY && kind != Type::One(value::Scalar::U32) {
            return Err(Error::corrupt(
                "gguf.alignment",
                format!("{ALIGNMENT_KEY} has type {kind}, not u32"),
            ));
        }
        if &*key == TYPES {
            return Err(Error::unsupported(format!("the key {TYPES:?} is reserved: this library uses it")));
        }
        if Type::default_for(&value) != Some(kind) {
            types.push((Value::from(&*key), Value::from(kind.to_string())));
        }
        match attributes.entry(key.into()) {
            indexmap::map::Entry::Vacant(entry) => entry.insert(value),
            indexmap::map::Entry::Occupied(entry) => {
                return Err(Error::corrupt(
                    "gguf.key-duplicate",
                    format!("two values have the key {}", quoted(entry.key())),
                ));
            }
        };
    }
    if !types.is_empty() {
        attributes.insert(TYPES.into(), Value::Map(types));
    }
    Ok(attributes)
}

fn read_tensor(numbers: &mut Numbers<'_>) -> Result<TensorInfo> {
    let name = numbers.name("a tensor's name")?;
    let mut rest = || -> Result<(Shape, u32, u64)> {
        let rank = numbers.u32()?;
        if rank as usize > MAX_RANK {
            return Err(Error::corrupt(
                "gguf.rank",
                format!("{rank} dimensions are more than the {MAX_RANK} that are allowed"),
            ));
        }
        let mut shape = SmallVec::new();
        for _ in 0..rank {
            shape.push(numbers.u64()?);
        }
        shape.reverse();
        Ok((shape, numbers.u32()?, numbers.u64()?))
    };
    match rest() {
        Ok((shape, type_id, offset)) => Ok(TensorInfo { name, shape, type_id, offset }),
        Err(error) => Err(error.in_tensor(name)),
    }
}

/// The alignment that the attributes ask for.
pub(crate) fn alignment(attributes: &Attributes) -> Result<u64> {
    let Some(value) = attributes.get(ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.as_int().and_then(|int| u32::try_from(int).ok()) {
        Some(alignment) if alignment.is_power_of_two() => Ok(u64::from(alignment)),
        _ => {
            let found = value.as_int().map_or("no integer".to_owned(), |int| int.to_string());
            let message = format!("{ALIGNMENT_KEY} is {found} instead of a power of two below 2^32");
            Err(Error::corrupt("gguf.alignment", message))
        }
    }
}

/// The next multiple of a power of two.
pub(crate) fn align_up(position: u64, alignment: u64) -> Result<u64> {
    position.checked_next_multiple_of(alignment).ok_or_else(|| {
        Error::corrupt("gguf.overflow", format!("byte {position} cannot be aligned to {alignment}"))
    })
}

/// Turns an offset into the data into one into the file.
fn absolute(offset: u64, alignment: u64, data: u64) -> Result<u64> {
    if !offset.is_multiple_of(alignment) {
        return Err(Error::corrupt(
            "gguf.offset",
            format!("the data's offset {offset} is not a multiple of the alignment {alignment}"),
        ));
    }
    offset.checked_add(data).ok_or_else(|| {
        Error::corrupt("gguf.overflow", format!("the data's offset {offset} lies beyond 2^64 in the file"))
    })
}
