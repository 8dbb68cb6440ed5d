//! The names in a pickle that mean something to this reader. All others are
//! opaque: whatever `os.system` would do, here it is eight letters and a dot.

use crate::dtype::DType;

/// What a class or function is to this reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// No meaning: a value of it is passed through by name.
    Opaque,
    /// A class that behaves as a dictionary.
    Dict(DictClass),
    /// `set` and `frozenset`.
    Set,
    /// `bytes` and `bytearray`.
    Bytes,
    /// `_codecs.encode`: how old protocols write bytes.
    Encode,
    /// `copyreg._reconstructor`: how old protocols write objects.
    Reconstructor,
    /// `torch.Size`, a tuple.
    Size,
    /// `torch.device` and the layouts, which are known by their names.
    Named,
    /// A storage class, with its element type.
    Storage(TorchType),
    /// A `torch.dtype`.
    DType(TorchType),
    /// A `torch.qscheme`.
    QScheme(QScheme),
    /// A tensor class, whose objects old files build from a storage.
    TensorClass,
    /// `torch.nn.Parameter` and its forerunners.
    Parameter,
    /// One of torch's functions that put a tensor together.
    Rebuild(Rebuild),
    /// `torch.storage._load_from_bytes`: a storage as a file within the pickle.
    LoadFromBytes,
    /// `numpy…_reconstruct`: an array that a state will fill.
    NumpyReconstruct,
    /// `numpy…_frombuffer`.
    NumpyFromBuffer,
    /// `numpy…scalar`.
    NumpyScalar,
    /// `numpy.dtype`.
    NumpyDType,
    /// An element type that `ml_dtypes` adds to NumPy.
    MlDType(DType),
    /// TorchScript's lists of numbers: one argument, the list.
    ScriptList,
}

/// How a dictionary class is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DictClass {
    /// With entries, or pairs.
    Entries,
    /// With a default for missing keys.
    Default,
}

/// Torch's functions that put tensors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rebuild {
    /// `(storage, offset, size, stride, …)`, versions 1 and 2.
    Tensor,
    /// The same with a type, for storages without one.
    TensorV3,
    /// `(tensor, …)`
    Parameter,
    /// `(function, class, arguments, state)`
    FromType,
    Sparse,
    Quantized,
    Meta,
    Nested,
    /// `(tensor or array, dtype, device, …)`
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QScheme {
    PerTensor,
    PerChannel,
}

/// An element type of torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TorchType {
    /// One that the table of types has.
    Plain(DType),
    /// Quantized integers, stored as this type.
    Quantized(DType, &'static str),
    /// Bytes without a type.
    Untyped,
    /// A type that the table does not have, with its size in bytes.
    Foreign(&'static str, usize),
}

impl TorchType {
    /// The type that carries it, and its size in bytes.
    pub(super) fn stored(self) -> (DType, usize) {
        match self {
            // Torch counts pairs of 4-bit numbers, each pair a byte.
            TorchType::Plain(DType::F4E2M1) => (DType::U8, 1),
            TorchType::Plain(dtype) | TorchType::Quantized(dtype, _) => {
                (dtype, dtype.bits() as usize / 8) // whole bytes, as torch has no other sub-byte type
            }
            TorchType::Untyped => (DType::U8, 1),
            TorchType::Foreign(_, 2) => (DType::U16, 2),
            TorchType::Foreign(..) => (DType::U8, 1),
        }
    }

    /// Bytes of each number that byte order applies to: complex elements are two.
    pub(super) fn number_width(self) -> usize {
        let (dtype, size) = self.stored();
        match dtype {
            DType::C32 | DType::C64 | DType::C128 => size / 2,
            _ => size,
        }
    }

    fn of_dtype(name: &str) -> Option<TorchType> {
        if let Some(dtype) = DType::from_torch_name(name) {
            return Some(TorchType::Plain(dtype));
        }
        quantized(name).or_else(|| {
            const FOREIGN: [(&str, usize); 19] = [
                ("bits8", 1),
                ("bits16", 2),
                ("bits1x8", 1),
                ("bits2x4", 1),
                ("bits4x2", 1),
                ("int1", 1),
                ("int2", 1),
                ("int3", 1),
                ("int4", 1),
                ("int5", 1),
                ("int6", 1),
                ("int7", 1),
                ("uint1", 1),
                ("uint2", 1),
                ("uint3", 1),
                ("uint4", 1),
                ("uint5", 1),
                ("uint6", 1),
                ("uint7", 1),
            ];
            FOREIGN
                .iter()
                .find(|(foreign, _)| *foreign == name)
                .map(|&(name, size)| TorchType::Foreign(name, size))
        })
    }

    fn of_storage(class: &str) -> Option<TorchType> {
        use DType::*;
        let plain = match class.strip_suffix("Storage")? {
            "Double" => F64,
            "Float" => F32,
            "Half" => F16,
            "BFloat16" => BF16,
            "Long" => I64,
            "Int" => I32,
            "Short" => I16,
            "Char" => I8,
            "Byte" => U8,
            "Bool" => Bool,
            "ComplexDouble" => C128,
            "ComplexFloat" => C64,
            "ComplexHalf" => C32,
            "Float8_e4m3fn" => F8E4M3FN,
            "Float8_e5m2" => F8E5M2,
            "Untyped" => return Some(TorchType::Untyped),
            "QInt8" => return quantized("qint8"),
            "QUInt8" => return quantized("quint8"),
            "QInt32" => return quantized("qint32"),
            "QUInt4x2" => return quantized("quint4x2"),
            "QUInt2x4" => return quantized("quint2x4"),
            _ => return None,
        };
        Some(TorchType::Plain(plain))
    }
}

fn quantized(name: &str) -> Option<TorchType> {
    Some(match name {
        "qint8" => TorchType::Quantized(DType::I8, "qint8"),
        "quint8" => TorchType::Quantized(DType::U8, "quint8"),
        "qint32" => TorchType::Quantized(DType::I32, "qint32"),
        "quint4x2" => TorchType::Foreign("quint4x2", 1),
        "quint2x4" => TorchType::Foreign("quint2x4", 1),
        _ => return None,
    })
}

impl Known {
    /// What `module.name` is.
    pub(super) fn of(module: &str, name: &str) -> Known {
        let known = match module {
            "collections" => match name {
                "OrderedDict" | "Counter" => Known::Dict(DictClass::Entries),
                "defaultdict" => Known::Dict(DictClass::Default),
                _ => Known::Opaque,
            },
            "builtins" | "__builtin__" => match name {
                "dict" => Known::Dict(DictClass::Entries),
                "set" | "frozenset" => Known::Set,
                "bytes" | "bytearray" => Known::Bytes,
                _ => Known::Opaque,
            },
            "_codecs" if name == "encode" => Known::Encode,
            "copyreg" | "copy_reg" if name == "_reconstructor" => Known::Reconstructor,
            "numpy" if name == "dtype" => Known::NumpyDType,
            "numpy.core.multiarray" | "numpy._core.multiarray" => match name {
                "_reconstruct" => Known::NumpyReconstruct,
                "scalar" => Known::NumpyScalar,
                _ => Known::Opaque,
            },
            "numpy.core.numeric" | "numpy._core.numeric" if name == "_frombuffer" => Known::NumpyFromBuffer,
            "ml_dtypes" | "ml_dtypes._ml_dtypes_ext" => match DType::from_name(name) {
                Some(dtype) if dtype.numpy_name() == Some(name) => Known::MlDType(dtype),
                _ => Known::Opaque,
            },
            _ => Known::Opaque,
        };
        match module.strip_prefix("torch") {
            Some(module) => known_of_torch(module, name),
            None => known,
        }
    }

    /// Whether a state may be set on an object of it.
    pub(super) fn takes_state(self) -> bool {
        matches!(
            self,
            Known::Opaque
                | Known::Parameter
                | Known::TensorClass
                | Known::NumpyReconstruct
                | Known::NumpyDType
                | Known::Rebuild(Rebuild::FromType)
        )
    }
}

fn known_of_torch(module: &str, name: &str) -> Known {
    let storage = || TorchType::of_storage(name).map_or(Known::Opaque, Known::Storage);
    match module {
        "" => match name {
            "Size" => Known::Size,
            "device" => Known::Named,
            "per_tensor_affine" | "per_tensor_symmetric" => Known::QScheme(QScheme::PerTensor),
            "per_channel_affine" | "per_channel_symmetric" | "per_channel_affine_float_qparams" => {
                Known::QScheme(QScheme::PerChannel)
            }
            "Tensor" => Known::TensorClass,
            _ if name.ends_with("Storage") => storage(),
            _ if name.ends_with("Tensor") => Known::TensorClass,
            _ => TorchType::of_dtype(name).map_or(Known::Opaque, Known::DType),
        },
        ".cuda" | ".storage" | ".sparse" if name.ends_with("Storage") => storage(),
        ".storage" if name == "_load_from_bytes" => Known::LoadFromBytes,
        ".cuda" if name.ends_with("Tensor") => Known::TensorClass,
        "._tensor" | ".tensor" => match name {
            "Tensor" => Known::TensorClass,
            "_rebuild_from_type_v2" | "_rebuild_from_type" => Known::Rebuild(Rebuild::FromType),
            _ => Known::Opaque,
        },
        ".nn.parameter" if matches!(name, "Parameter" | "Buffer" | "UninitializedParameter") => {
            Known::Parameter
        }
        ".autograd.variable" if name == "Variable" => Known::Parameter,
        ".serialization" if name == "_get_layout" => Known::Named,
        ".jit._pickle" => match name {
            "build_intlist" | "build_doublelist" | "build_boollist" | "build_tensorlist" => Known::ScriptList,
            _ => Known::Opaque,
        },
        "._utils" => Known::Rebuild(match name {
            "_rebuild_tensor" | "_rebuild_tensor_v2" => Rebuild::Tensor,
            "_rebuild_tensor_v3" => Rebuild::TensorV3,
            "_rebuild_parameter" | "_rebuild_parameter_with_state" => Rebuild::Parameter,
            "_rebuild_sparse_tensor" => Rebuild::Sparse,
            "_rebuild_qtensor" => Rebuild::Quantized,
            "_rebuild_meta_tensor_no_storage" => Rebuild::Meta,
            "_rebuild_nested_tensor" => Rebuild::Nested,
            "_rebuild_device_tensor_from_numpy"
            | "_rebuild_device_tensor_from_cpu_tensor"
            | "_rebuild_xla_tensor" => Rebuild::Device,
            _ => return Known::Opaque,
        }),
        _ => Known::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_listed_names_mean_anything() {
        for (module, name) in [
            ("os", "system"),
            ("builtins", "eval"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("torchvision", "Size"),
            ("numpy", "load"),
            ("torch._utils", "_import_dotted_name"),
        ] {
            assert_eq!(Known::of(module, name), Known::Opaque, "{module}.{name}");
        }
        assert_eq!(Known::of("torch.storage", "UntypedStorage"), Known::Storage(TorchType::Untyped));
        assert_eq!(Known::of("torch", "float32"), Known::DType(TorchType::Plain(DType::F32)));
        assert_eq!(Known::of("torch.cuda", "HalfStorage"), Known::Storage(TorchType::Plain(DType::F16)));
    }

    #[test]
    fn every_type_has_a_size_in_bytes() {
        for name in ["float4_e2m1fn_x2", "bits16", "int3", "complex32", "quint8", "float8_e8m0fnu", "bool"] {
            let stored = TorchType::of_dtype(name).unwrap().stored();
            assert_eq!(stored.0.size(), Some(stored.1), "{name}");
        }
    }
}
