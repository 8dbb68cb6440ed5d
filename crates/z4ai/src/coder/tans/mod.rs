//! Symbols coded with fractions of bits: four bit streams of table-driven asymmetric numeral
//! systems.
//!
//! Every state of a table stands for a symbol and says how many bits to read to get to the next
//! state. A symbol has as many states as it is frequent, so that it costs `log - log2(states)` bits
//! on average. The decoder in pseudo code, for one state:
//!
//! ```text
//! while symbols are missing:
//!     entry = table[state]
//!     output entry.symbol; state = entry.base + the next entry.bits bits
//! ```
//!
//! What is done beyond that, and why:
//!
//! 1. The symbols are cut into four runs, each a bit stream of its own, and each run alternates
//!    between two states: eight look-ups are under way at any time.
//! 2. The bit buffer carries a sentinel bit above its data: the number of consumed bits is the
//!    number of leading zeros, and no counter is kept.
//! 3. Bounds are checked once for as many steps as cannot pass them. What remains at the end of
//!    each run is decoded symbol by symbol with every access checked.

mod counts;
mod decode;
mod described;
pub(crate) mod encode;
pub(crate) mod order_one;
mod packed_shape;
pub(crate) mod pooled;
mod shape;

pub(crate) use counts::NormalizedCounts;
pub(crate) use decode::{Table, fill};
pub(crate) use order_one::OrderOne;
pub(crate) use shape::{Described, Shape};

/// Bit streams per coded run of symbols. (format)
pub(crate) const RUNS: usize = 4;
/// Log2 of the table size, at least. (format)
pub(super) const MIN_LOG: u32 = 9;
/// Log2 of the table size, at most, but for described tables. (format)
pub(super) const MAX_LOG: u32 = 12;
/// Log2 of the size of one of several tables, at most. (format)
pub(super) const MAX_DESCRIBED_LOG: u32 = 13;
