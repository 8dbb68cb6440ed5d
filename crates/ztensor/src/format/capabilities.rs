//! What files of a format can hold, and what this library does with them.

/// What a format can do; its driver states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// New files can be written.
    pub writes: bool,
    /// Tensors can be added, replaced and removed in a file that exists.
    pub edits: bool,
    /// Raw tensors can be used where they lie, without a copy.
    pub views: bool,
    /// There can be sparse tensors.
    pub sparse: bool,
    /// There can be tensors in blocks or groups with scales.
    pub quantized: bool,
    /// Several names can share one storage.
    pub ties: bool,
    /// Which metadata a file can hold.
    pub metadata: Metadata,
    /// How tensors can be stored, besides raw.
    pub encodings: &'static [&'static str],
    /// Those of them that are decoded from their start: rows cost what lies before them, too.
    pub sequential: &'static [&'static str],
    /// The checksums that a file can have for its tensors.
    pub checksums: &'static [&'static str],
}

/// Metadata of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Metadata {
    /// There is none.
    None,
    /// Names and text.
    Text,
    /// Names and values of several types.
    Typed,
}

impl Metadata {
    /// The name that the Python API shows.
    pub fn name(self) -> &'static str {
        match self {
            Metadata::None => "none",
            Metadata::Text => "text",
            Metadata::Typed => "typed",
        }
    }
}

impl Capabilities {
    /// A format that is read only, with dense raw tensors that can be viewed and nothing else.
    pub(crate) const READ_ONLY: Capabilities = Capabilities {
        writes: false,
        edits: false,
        views: true,
        sparse: false,
        quantized: false,
        ties: false,
        metadata: Metadata::None,
        encodings: &[],
        sequential: &[],
        checksums: &[],
    };
}
