//! One of several tables of a size: described by numbers of states or by a shape in bits, whichever is smaller.

use crate::coder::tans::{Described, MAX_DESCRIBED_LOG, NormalizedCounts, Shape};
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::wire::{Put, Reader};

/// Forms of descriptions. (format)
const LISTED: u8 = 1;
const SHAPED: u8 = 2;
const PACKED: u8 = 3;
const PACKED_FINE: u8 = 4;

/// A table, and its shape if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DescribedTable {
    pub(super) states: NormalizedCounts,
    shape: Option<Shape>,
}

impl DescribedTable {
    /// The table whose description and symbols are smallest.
    pub(super) fn new(counts: &[u32; 256], log: u32, described: Described) -> Self {
        let ideal = cost::entropy(counts) / (8 * BIT);
        let mut shaped = Shape::fit_to(counts, ideal, log, described);
        // Numbers of states take no less than this.
        let least = ideal + counts.iter().filter(|&&count| count > 0).count() as u64 / 2;
        if let Some((_, shape, states)) = shaped.take_if(|(len, ..)| *len < least) {
            return Self { states, shape: Some(shape) };
        }
        let listed = NormalizedCounts::of_any(*counts, log);
        let mut description = Vec::new();
        listed.write(&mut description);
        let len = description.len() as u64 + listed.cost_bits(counts) / 8;
        match shaped {
            Some((shaped, shape, states)) if shaped < len => Self { states, shape: Some(shape) },
            _ => Self { states: listed, shape: None },
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match &self.shape {
            None => {
                out.put_u8(LISTED);
                self.states.write(out);
            }
            Some(shape) => {
                out.put_u8(match (shape.packed, shape.is_fine()) {
                    (false, _) => SHAPED,
                    (true, false) => PACKED,
                    (true, true) => PACKED_FINE,
                });
                shape.write(out);
            }
        }
    }

    /// Reads what [`write`](Self::write) wrote after the form.
    pub(super) fn read(form: u8, reader: &mut Reader<'_>) -> Result<Self> {
        match form {
            LISTED => {
                Ok(Self { states: NormalizedCounts::read_up_to(MAX_DESCRIBED_LOG, reader)?, shape: None })
            }
            SHAPED | PACKED | PACKED_FINE => {
                let (shape, states) = match form {
                    SHAPED => Shape::read(reader)?,
                    _ => Shape::read_packed(form == PACKED_FINE, reader)?,
                };
                Ok(Self { states, shape: Some(shape) })
            }
            _ => Err(Error::corrupt(format_args!("a table described in form {form}"))),
        }
    }
}
