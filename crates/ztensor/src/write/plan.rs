//! A `.zt` file whose bytes are put in place by others.

use crate::catalog::{Catalog, Component, Extent, Layout, Object, Role, Storage, elements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::format::zt::{ALIGNMENT, MAGIC, manifest};
use crate::source::Sources;
use crate::tensor::value::Attributes;

use super::writer::duplicate;

/// Where the raw tensors of a `.zt` file lie, for callers that write them there themselves:
/// several at once, or by copying ranges of other files.
///
/// The file starts with [`head`](Plan::head), has each tensor where [`dense`](Plan::dense) said,
/// zeros between, and ends with what [`tail`](Plan::tail) returns.
#[derive(Debug)]
pub struct Plan {
    catalog: Catalog,
    position: u64,
}

impl Plan {
    /// A file without tensors.
    pub fn new(attributes: Attributes) -> Plan {
        let mut catalog = Catalog::new(Format::Zt, Sources::default());
        catalog.attributes = attributes;
        Plan { catalog, position: MAGIC.len() as u64 }
    }

    /// The first bytes of the file.
    pub fn head(&self) -> &'static [u8] {
        MAGIC
    }

    /// Adds a dense tensor and says at which offset its bytes belong.
    pub fn dense(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<u64> {
        if self.catalog.objects.contains_key(name) {
            return Err(duplicate(name));
        }
        let too_large = || Error::invalid("its shape describes too many bytes").in_tensor(name);
        let len = elements(shape).and_then(|count| dtype.byte_len(count)).ok_or_else(too_large)?;
        let offset = self.position.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
        self.position = offset.checked_add(len).ok_or_else(too_large)?;
        let component = Component::new(dtype, len, Storage::Plain(Extent::new(offset, len)));
        let components = vec![(Role::Borrowed("data"), component)];
        self.catalog.insert(name, Object::new(shape, Layout::Dense, components))?;
        Ok(offset)
    }

    /// Where the end of the file begins, and its bytes.
    pub fn tail(&self) -> Result<(u64, Vec<u8>)> {
        Ok((self.position, manifest::tail(&self.catalog, self.position)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reader, Writer};

    #[test]
    fn the_file_is_the_one_that_the_writer_makes() {
        let attributes = Attributes::from_iter([("step".to_owned(), 7.into())]);
        let mut written = Vec::new();
        let mut writer = Writer::new(&mut written).unwrap();
        writer.set_attribute("step", 7);
        writer.add("a", &[3], &[1u8, 2, 3]).unwrap();
        writer.add("empty", &[0, 4], &[0f32; 0]).unwrap();
        writer.add("b", &[2, 2], &[1f32, 2., 3., 4.]).unwrap();
        writer.finish().unwrap();

        let mut plan = Plan::new(attributes);
        let a = plan.dense("a", DType::U8, &[3]).unwrap() as usize;
        plan.dense("empty", DType::F32, &[0, 4]).unwrap();
        let b = plan.dense("b", DType::F32, &[2, 2]).unwrap() as usize;
        assert!(plan.dense("a", DType::U8, &[1]).is_err());
        assert!(plan.dense("huge", DType::U8, &[u64::MAX, 2]).is_err());
        let (end, tail) = plan.tail().unwrap();
        let mut placed = plan.head().to_vec();
        placed.resize(end as usize, 0);
        placed[a..a + 3].copy_from_slice(&[1, 2, 3]);
        placed[b..b + 16].copy_from_slice(bytemuck::cast_slice(&[1f32, 2., 3., 4.]));
        placed.extend(tail);
        assert_eq!(placed, written);
        assert_eq!(Reader::from_bytes(placed).unwrap().read_as::<f32>("b").unwrap(), [1., 2., 3., 4.]);
    }
}
