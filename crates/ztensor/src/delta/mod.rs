//! Deltas between models: what a fine-tune changed, tensor by tensor.
//!
//! A delta (`.z4dm`) turns one file, its base, into another, its target. Each tensor of the
//! target is stored as the smallest of: nothing, because the base has the same bytes, under
//! whatever name; its difference from a tensor of the base; or a frame of its own. The base is
//! known by its tensors (names, types, shapes and data), so that any file that holds the same
//! model will do, and no other. A `.safetensors` or `.zt` target comes back byte for byte,
//! whatever else is in it; a target of any other format comes back as a `.zt` file with the
//! same tensors.
//!
//! ```
//! use ztensor::Writer;
//! use ztensor::model_delta::{ApplyOptions, MakeOptions, apply, info, make};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = |name: &str| folder.path().join(name);
//! # let (base, tuned, delta, restored) = (path("base.zt"), path("tuned.zt"), path("d.z4dm"), path("r.zt"));
//! # let weights: Vec<f32> = (0..5000).map(|n| (n as f32).sin()).collect();
//! # for (file, change) in [(&base, 0.0), (&tuned, 1e-3)] {
//! #     let mut writer = Writer::create(file)?;
//! #     let data: Vec<f32> = weights.iter().map(|w| w + change).collect();
//! #     writer.add("weights", &[50, 100], &data)?;
//! #     writer.add("frozen", &[50, 100], &weights)?;
//! #     writer.finish()?;
//! # }
//! let stats = make(&base, &tuned, &delta, &MakeOptions::default())?;
//! assert!(stats.delta_len < stats.target_len / 2);
//! assert_eq!((stats.copied, stats.deltas), (1, 1));
//!
//! apply(&base, &delta, &restored, &ApplyOptions::default())?; // refuses any other base
//! # assert_eq!(std::fs::read(&restored).unwrap(), std::fs::read(&tuned).unwrap());
//! for change in info(&delta)?.changes {
//!     println!("{}: {}, {} of {} bytes", change.name, change.how, change.stored_len, change.len);
//! }
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! `docs/spec/z4dm.md` has the layout and its rules. Version 1 is read, version 2 is written.
#![forbid(unsafe_code)]

mod apply;
mod container;
mod in_place;
mod info;
mod make;
mod matching;
mod model;
mod restored;
mod segments;
mod v1;

pub use apply::{ApplyOptions, apply, apply_chain, apply_to};
pub use container::is_model_delta;
pub use in_place::{InPlaceStats, apply_in_place};
pub use info::{Change, Info, info, info_source};
pub use make::{MakeOptions, MakeStats, make, make_to};

/// What a model is known by: a hash over names, types, shapes and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelDigest(pub [u8; 16]);

impl std::fmt::Display for ModelDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
