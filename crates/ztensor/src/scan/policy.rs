//! What the functions and classes that a pickle names can do: the list by which a name is
//! dangerous, suspicious or innocuous.
//!
//! Dangerous are functions that run code, start programs, open files or connections, or fetch
//! attributes by name, which leads to all of these. Innocuous is what checkpoints are made of:
//! containers, numbers, dates, tensors, configurations. Anything else is suspicious: importing an
//! unknown module runs its code, and nothing says what its functions do.

use std::collections::HashMap;
use std::sync::LazyLock;

/// How bad it is that a tool would import, call or access something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// On the allow list.
    Innocuous,
    /// On neither list.
    Suspicious,
    /// Runs code, starts programs, or opens files or connections.
    Dangerous,
}

impl Severity {
    /// The name that reports show.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Innocuous => "innocuous",
            Severity::Suspicious => "suspicious",
            Severity::Dangerous => "dangerous",
        }
    }
}

/// Longer names do not occur, except as chains of attributes that hide where they lead.
const MAX_NAME: usize = 1024;
/// Bytes of a name that reports show.
const SHOWN: usize = 120;

/// Modules of which everything is dangerous, with all that is in them.
#[rustfmt::skip]
const DANGEROUS_MODULES: &[&str] = &[
    // Scanners: a pickle that names one can change what it finds.
    "picklescan", "fickling", "modelscan", "modelaudit", "saferpickle", "model_unpickler",
    // Their few harmless names are on the allow list.
    "uuid", "_imp", "_signal",
    // Processes and the operating system.
    "os", "posix", "nt", "posixpath", "ntpath", "subprocess", "_posixsubprocess", "_winapi", "commands",
    "popen2", "pty", "sys", "signal", "platform", "multiprocessing", "concurrent", "threading", "_thread",
    "asyncio", "sched", "resource", "winreg", "_winreg", "msvcrt", "_osx_support", "_aix_support",
    "psutil", "pexpect", "paramiko", "fabric", "invoke", "sh", "plumbum",
    // Code.
    "code", "codeop", "runpy", "imp", "importlib", "_frozen_importlib", "_frozen_importlib_external",
    "zipimport", "pkgutil", "pkg_resources", "site", "sitecustomize", "usercustomize", "marshal", "dis",
    "ast", "py_compile", "compileall", "ctypes", "_ctypes", "cffi", "_cffi_backend", "llvmlite", "numba",
    "gc", "inspect", "atexit", "weakref", "contextlib", "bdb", "pdb", "trace", "timeit", "profile", "cProfile",
    "_lsprof", "doctest", "unittest", "test", "_testcapi", "_testinternalcapi", "pytest", "_pytest", "nose",
    "pydoc", "idlelib", "lib2to3", "turtledemo", "tkinter", "_tkinter", "turtle", "curses", "cmd", "IPython",
    "ipykernel", "jupyter_core", "xdoctest", "_pyrepl", "readline", "rlcompleter", "faulthandler",
    "tracemalloc", "symtable", "tabnanny", "this", "antigravity",
    // Packages and builds.
    "pip", "ensurepip", "venv", "virtualenv", "setuptools", "distutils", "easy_install", "conda", "zipapp",
    "sysconfig", "build", "wheel", "cython", "Cython", "pyximport",
    // Pickles within pickles.
    "pickle", "_pickle", "cPickle", "pickletools", "shelve", "dbm", "dill", "cloudpickle", "jsonpickle",
    "kajiki", "srsly", "klepto",
    // Files.
    "shutil", "tempfile", "glob", "fileinput", "linecache", "filecmp", "mmap", "zipfile", "tarfile", "gzip",
    "bz2", "lzma", "codecs", "sqlite3", "_sqlite3", "netrc", "configparser", "mailbox", "mailcap", "fcntl",
    "tokenize", "csv", "pipes", "crypt", "pwd", "grp", "nis", "syslog", "getpass",
    // Networks.
    "socket", "_socket", "socketserver", "SocketServer", "ssl", "_ssl", "select", "selectors", "http",
    "httplib", "httplib2", "httpx", "aiohttp", "urllib", "urllib2", "urllib3", "requests", "ftplib",
    "smtplib", "smtpd", "poplib", "imaplib", "nntplib", "telnetlib", "xmlrpc", "xmlrpclib", "webbrowser",
    "wsgiref", "cgi", "cgitb", "asyncore", "asynchat", "boto", "boto3", "botocore", "websocket",
    "websockets", "twisted", "tornado", "huggingface_hub", "gdown", "wget", "pycurl",
    // Templates and expressions that are evaluated.
    "jinja2", "mako", "numexpr", "sympy", "yaml", "ruamel", "fire", "rope", "exec_wrappers",
    // Torch: loading, compiling, running.
    "torch.hub", "torch.package", "torch._dynamo", "torch._inductor", "torch._export", "torch.export",
    "torch.fx", "torch.jit", "torch.multiprocessing", "torch.distributed.rpc", "torch.distributed.run",
    "torch.distributed.launch", "torch.distributed.elastic", "torch.utils.cpp_extension",
    "torch.utils.bottleneck", "torch.utils.collect_env", "torch.utils._config_module",
    "torch.utils.model_zoo", "torch.utils.data.datapipes", "torch.utils.show_pickle", "torch.utils.hipify",
    "torch.utils.benchmark", "torch.testing", "torch.onnx", "torch.ops",
    "torch._ops", "torch.classes", "torch.library", "torch._library", "torch._appdirs", "torchvision.datasets",
    
    // NumPy, SciPy and pandas.
    "numpy.f2py", "numpy.distutils", "numpy.testing", "numpy.ctypeslib", "numpy.lib.npyio",
    "numpy.lib._npyio_impl", "numpy.lib.format", "numpy.lib._datasource", "numpy._pytesttester",
    "scipy.io", "scipy.datasets", "scipy.misc", "scipy.weave", "pandas.io", "pandas.core.computation",
    "tensorflow.python.ops.io_ops", "tensorflow.io", "tensorflow.saved_model", 
    "sklearn.utils._testing", "datasets.load", "transformers.dynamic_module_utils",
    "bentoml", "keras.utils.get_file", "keras.saving",
];

/// Functions that are dangerous in modules that have harmless ones too.
#[rustfmt::skip]
const DANGEROUS_NAMES: &[(&str, &[&str])] = &[
    ("operator", &["attrgetter", "itemgetter", "methodcaller", "call", "setitem", "delitem", "iconcat"]),
    ("_operator", &["attrgetter", "itemgetter", "methodcaller", "call", "setitem", "delitem", "iconcat"]),
    ("functools", &["partial", "partialmethod", "reduce", "singledispatch", "cached_property", "lru_cache",
        "wraps", "update_wrapper", "_make_key", "cmp_to_key"]),
    ("_functools", &["partial", "reduce", "cmp_to_key"]),
    ("itertools", &["starmap", "accumulate", "filterfalse", "takewhile", "dropwhile", "groupby"]),
    ("types", &["CodeType", "FunctionType", "LambdaType", "MethodType", "ModuleType", "BuiltinFunctionType",
        "CellType", "DynamicClassAttribute", "new_class", "prepare_class", "resolve_bases", "coroutine",
        "GenericAlias", "MappingProxyType", "GeneratorType"]),
    ("copyreg", &["pickle", "add_extension", "remove_extension", "clear_extension_cache", "constructor",
        "dispatch_table"]),
    ("copy_reg", &["pickle", "add_extension", "remove_extension", "constructor", "dispatch_table"]),
    ("logging", &["FileHandler", "config", "handlers", "basicConfig", "StreamHandler", "Handler"]),
    ("logging.handlers", &[""]),
    ("logging.config", &[""]),
    ("io", &["open", "open_code", "FileIO", "TextIOWrapper", "BufferedReader", "BufferedWriter"]),
    ("_io", &["open", "open_code", "FileIO", "TextIOWrapper", "BufferedReader", "BufferedWriter", "_WindowsConsoleIO"]),
    ("typing", &["get_type_hints", "ForwardRef", "_eval_type", "NamedTuple"]),
    ("typing_extensions", &["get_type_hints"]),
    ("dataclasses", &["make_dataclass", "_create_fn"]),
    ("collections", &["namedtuple", "_sys", "_itemgetter"]),
    ("enum", &["_make_class_unpicklable", "_reduce_ex_by_name", "global_enum"]),
    ("string", &["Formatter", "Template"]),
    ("random", &["_os", "_urandom", "SystemRandom", "_inst"]),
    ("torch", &["load", "save", "compile", "import_ir_module", "classes", "ops", "_C", "hub", "jit", "package"]),
    ("torch.serialization", &["load", "save", "_load", "_legacy_load", "_open_file", "_open_file_like",
        "_open_zipfile_reader", "_open_zipfile_writer", "add_safe_globals", "safe_globals",
        "set_default_load_endianness", "_rebuild", "find_class", "StorageType", "mkdtemp", "pickle"]),
    ("torch.storage", &["_load_from_file", "_new_shared"]),
    ("torch._utils", &["_import_dotted_name", "_get_async_or_non_blocking"]),
    ("torch._utils_internal", &[""]),
    ("torch._weights_only_unpickler", &["load", "Unpickler"]),
    ("torch.utils.data.dataloader", &["default_collate", "multiprocessing"]),
    ("torch.distributed.checkpoint", &["load", "filesystem"]),
    ("numpy", &["load", "loads", "loadtxt", "genfromtxt", "fromfile", "fromregex", "recfromcsv", "recfromtxt",
        "save", "savez", "savez_compressed", "savetxt", "memmap", "DataSource", "show_config", "vectorize",
        "fromfunction", "apply_along_axis", "apply_over_axes", "frompyfunc", "piecewise", "lookfor", "source",
        "info", "test", "f2py", "testing", "distutils", "ctypeslib", "lib", "safe_eval"]),
    ("numpy.core.multiarray", &["fromfile", "set_typeDict", "memmap"]),
    ("numpy._core.multiarray", &["fromfile", "set_typeDict", "memmap"]),
    ("numpy.lib.utils", &["safe_eval", "lookfor", "source", "info"]),
    ("numpy.lib.function_base", &["vectorize"]),
    ("numpy.lib._function_base_impl", &["vectorize"]),
    ("numpy.core.memmap", &["memmap"]),
    ("numpy._core.memmap", &["memmap"]),
    ("pandas", &["read_pickle", "eval", "read_csv", "read_hdf", "read_sql", "read_html", "read_json", "io",
        "read_table", "read_excel", "read_parquet", "read_feather", "read_orc", "read_xml"]),
    ("pandas.core.frame", &["eval"]),
    ("keras.models", &["load_model", "model_from_json", "model_from_yaml", "model_from_config"]),
    ("keras.layers", &["deserialize", "Lambda", "TFSMLayer"]),
    ("keras.utils", &["get_file", "get_source_inputs", "deserialize_keras_object", "load_img"]),
    ("tensorflow", &["load_op_library", "load_library", "io", "saved_model", "py_function", "numpy_function",
        "raw_ops", "compat"]),
    ("tensorflow.python.framework.load_library", &[""]),
    ("transformers", &["pipeline", "AutoModel", "AutoTokenizer"]),
    ("transformers.utils.hub", &["cached_file", "send_example_telemetry", "define_sagemaker_information"]),
    ("site", &[""]),
    ("nturl2path", &[""]),
    ("reprlib", &["recursive_repr"]),
    ("statistics", &["_sys"]),
    ("zoneinfo", &["_common", "_tzpath"]),
    ("getopt", &["os"]),
    ("optparse", &["os", "sys"]),
    ("argparse", &["FileType", "_os", "_sys", "ArgumentParser"]),
    ("uuid", &["_get_command_stdout", "_popen", "getnode", "_ifconfig_getter", "_ip_getter", "_arp_getter",
        "_lanscan_getter", "_netstat_getter", "_find_mac_near_keyword", "_find_mac_under_heading", "os", "sys"]),
    ("pathlib", &["os", "io", "_Accessor"]),
    ("wave", &["open"]),
    ("aifc", &["open"]),
    ("sunau", &["open"]),
    ("xml.sax", &[""]),
    ("xml.dom", &[""]),
    ("xml.etree.ElementTree", &["parse", "iterparse"]),
    ("PIL.Image", &["open"]),
    ("PIL.ImageShow", &[""]),
    ("PIL.ImageMath", &["eval", "unsafe_eval", "lambda_eval"]),
    ("PIL.ImageGrab", &[""]),
    ("PIL.EpsImagePlugin", &["Ghostscript"]),
    ("matplotlib.texmanager", &[""]),
    ("matplotlib.testing", &[""]),
    ("sklearn.externals.joblib", &[""]),
    ("statsmodels.iolib", &[""]),
    ("django.utils.module_loading", &[""]),
    ("werkzeug", &[""]),
    ("flask", &[""]),
];

/// Builtins that are data: types, and constants that are pickled by name.
#[rustfmt::skip]
const HARMLESS_BUILTINS: &[&str] = &[
    "set", "frozenset", "dict", "list", "tuple", "int", "long", "float", "complex", "bool", "str", "unicode",
    "bytes", "bytearray", "object", "slice", "range", "xrange", "Ellipsis", "NotImplemented", "NoneType",
    "ellipsis", "reversed", "sorted", "min", "max", "sum", "abs", "len", "round",
    "Exception", "ValueError", "TypeError", "KeyError", "IndexError", "RuntimeError", "AttributeError",
    "StopIteration", "AssertionError", "NotImplementedError", "KeyboardInterrupt", "OSError", "IOError",
];

/// Builtins that neither are data nor do harm by themselves.
#[rustfmt::skip]
const ODD_BUILTINS: &[&str] = &[
    "print", "repr", "ascii", "format", "hash", "id", "iter", "next", "zip", "enumerate", "any", "all", "bin",
    "hex", "oct", "chr", "ord", "pow", "divmod", "isinstance", "issubclass", "callable", "hasattr", "type",
    "property", "staticmethod", "classmethod", "super", "memoryview",
];

/// Modules that other modules import, and that are reached as their attributes.
#[rustfmt::skip]
const LEADING_MODULES: &[&str] = &[
    "io", "os", "sys", "subprocess", "builtins", "builtin", "importlib", "ctypes", "socket", "shutil", "pickle",
    "posix", "nt", "runpy", "pty", "marshal", "multiprocessing", "webbrowser",
];

/// Attributes, without their underscores, that lead from an object to everything.
#[rustfmt::skip]
const LEADING_ATTRIBUTES: &[&str] = &[
    "modules", "globals", "dict", "class", "subclasses", "mro", "base", "bases", "func", "getattribute",
    "getattr", "loader", "spec", "import", "reduce", "reduce_ex", "eval", "exec", "system", "popen", "code",
    "closure", "self", "wrapped", "init", "call",
];

/// Exact names on the allow list.
#[rustfmt::skip]
const ALLOWED_NAMES: &[(&str, &[&str])] = &[
    ("collections", &["OrderedDict", "defaultdict", "Counter", "deque", "ChainMap", "UserDict", "UserList"]),
    ("_codecs", &["encode"]),
    ("codecs", &["encode"]),
    ("copyreg", &["_reconstructor", "__newobj__", "__newobj_ex__"]),
    ("copy_reg", &["_reconstructor", "__newobj__", "__newobj_ex__"]),
    ("argparse", &["Namespace"]),
    ("types", &["SimpleNamespace", "NoneType"]),
    ("datetime", &["datetime", "date", "time", "timedelta", "timezone", "tzinfo"]),
    ("zoneinfo", &["ZoneInfo._unpickle", "ZoneInfo"]),
    ("pytz", &["_UTC", "_p"]),
    ("time", &["struct_time"]),
    ("decimal", &["Decimal", "Context"]),
    ("fractions", &["Fraction"]),
    ("uuid", &["UUID", "SafeUUID"]),
    ("array", &["array", "_array_reconstructor"]),
    ("io", &["BytesIO", "StringIO"]),
    ("_io", &["BytesIO", "StringIO"]),
    ("re", &["_compile"]),
    ("random", &["Random"]),
    ("enum", &["Enum", "IntEnum", "Flag", "IntFlag", "StrEnum"]),
    ("ipaddress", &["IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network"]),
    ("numpy", &["dtype", "ndarray", "matrix", "bool_", "bool", "str_", "bytes_", "void", "object_", "float16", "float32",
        "float64", "float128", "longdouble", "half", "single", "double", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "intc", "intp", "longlong", "ulonglong", "complex64", "complex128",
        "complex256", "datetime64", "timedelta64", "nan", "inf", "number", "integer", "floating", "generic"]),
    ("numpy.core.multiarray", &["_reconstruct", "scalar", "array"]),
    ("numpy._core.multiarray", &["_reconstruct", "scalar", "array"]),
    ("numpy.core.numeric", &["_frombuffer"]),
    ("numpy._core.numeric", &["_frombuffer"]),
    ("numpy.core._internal", &["_convert_to_stringdtype_kwargs"]),
    ("numpy._core._internal", &["_convert_to_stringdtype_kwargs"]),
    ("numpy.ma.core", &["MaskedArray", "_mareconstruct"]),
    ("numpy.random._pickle", &["__generator_ctor", "__bit_generator_ctor", "__randomstate_ctor"]),
    ("numpy.random", &["__RandomState_ctor", "RandomState", "Generator"]),
    ("numpy.random.mtrand", &["RandomState"]),
    ("numpy.random._mt19937", &["MT19937"]),
    ("numpy.random._pcg64", &["PCG64", "PCG64DXSM"]),
    ("numpy.random._philox", &["Philox"]),
    ("numpy.random._sfc64", &["SFC64"]),
    ("numpy.random.bit_generator", &["SeedSequence", "__pyx_unpickle_SeedSequence"]),
    ("joblib.numpy_pickle", &["NumpyArrayWrapper", "NDArrayWrapper"]),
    ("torch", &["device", "Size", "Tensor", "Generator", "strided", "sparse_coo", "sparse_csr",
        "contiguous_format", "channels_last", "preserve_format", "tensor", "dtype", "layout", "Graph"]),
    ("torch._C", &["Generator", "_VariableFunctions.celu", "_VariableFunctions.relu", "_VariableFunctions.tanh",
        "_VariableFunctions.sigmoid", "_VariableFunctions.selu"]),
    ("torch.storage", &["TypedStorage", "UntypedStorage", "_TypedStorage", "_UntypedStorage"]),
    ("torch._utils", &["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
        "_rebuild_parameter_with_state", "_rebuild_sparse_tensor", "_rebuild_sparse_csr_tensor", "_rebuild_qtensor",
        "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor", "_rebuild_wrapper_subclass",
        "_rebuild_device_tensor_from_numpy", "_rebuild_device_tensor_from_cpu_tensor", "_rebuild_xla_tensor"]),
    ("torch._tensor", &["Tensor", "_rebuild_from_type_v2", "_rebuild_from_type"]),
    ("torch.tensor", &["Tensor", "_rebuild_from_type"]),
    ("torch.nn.parameter", &["Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer"]),
    ("torch.autograd.variable", &["Variable"]),
    ("torch.serialization", &["_get_layout"]),
    ("torch.jit._pickle", &["build_intlist", "build_doublelist", "build_boollist", "build_tensorlist",
        "build_tensor_from_id", "restore_type_tag"]),
    ("torch.functional", &["tanh"]),
];

/// Modules whose classes (names that begin with a capital) are on the allow list.
#[rustfmt::skip]
const ALLOWED_CLASSES: &[&str] = &[
    "torch.nn", "torch.optim", "torch.ao.nn", "torch.ao.quantization", "torch.quantization",
    "torch.distributions", "torch.utils.data.dataset", "torch.cuda", "torch.amp", "torch.sparse",
    "torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed.fsdp.api", "torch.distributed._shard",
    "torch.distributed.device_mesh", "torch.utils.data.sampler",
    "omegaconf", "pathlib", "typing", "ml_dtypes", "pytorch_lightning", "lightning", "lightning_fabric",
    "lightning_utilities", "torchmetrics", "transformers", "accelerate", "peft", "timm", "torchvision.models",
    "torchvision.ops", "torchvision.transforms", "sklearn", "scipy.sparse", "pandas.core", "pandas._libs",
    "diffusers", "sentence_transformers", "tokenizers", "easydict", "addict", "ml_collections", "fairseq.data",
    "xgboost", "lightgbm", "catboost",
];

/// Modules of which everything is on the allow list: activation functions, by which models refer to them.
const ALLOWED_MODULES: &[&str] = &["torch.nn.functional", "torch._C._nn", "__torch__"];

fn within(module: &str, of: &str) -> bool {
    module.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

type Names = HashMap<&'static str, Vec<&'static str>>;

/// Modules by the package that they are in.
fn by_package(modules: &[&'static str]) -> Names {
    let mut names = Names::new();
    for module in modules {
        names.entry(package(module)).or_default().push(module);
    }
    names
}

fn by_module(list: &[(&'static str, &'static [&'static str])]) -> Names {
    list.iter().map(|(module, names)| (*module, names.to_vec())).collect()
}

fn package(module: &str) -> &str {
    module.split('.').next().unwrap_or_default()
}

/// The lists, by what a name is looked up by: pickles may have a name every few bytes.
static DANGEROUS: LazyLock<(Names, Names)> =
    LazyLock::new(|| (by_package(DANGEROUS_MODULES), by_module(DANGEROUS_NAMES)));
static ALLOWED: LazyLock<(Names, Names)> =
    LazyLock::new(|| (by_package(ALLOWED_CLASSES), by_module(ALLOWED_NAMES)));

fn any_within(packages: &Names, path: &str) -> bool {
    packages.get(package(path)).is_some_and(|modules| modules.iter().any(|of| within(path, of)))
}

fn is_builtins(module: &str) -> bool {
    matches!(module, "builtins" | "__builtin__" | "__builtins__")
}

/// How bad it is that a tool would import `name` from `module`.
pub fn classify(module: &str, name: &str) -> Severity {
    // A chain of attributes this long hides something, and looking at it would cost too much.
    if module.len() > MAX_NAME || name.len() > MAX_NAME {
        return Severity::Dangerous;
    }
    let (classes, names) = &*ALLOWED;
    if names.get(module).is_some_and(|names| names.contains(&name)) {
        return Severity::Innocuous;
    }
    if is_builtins(module) {
        return match name {
            _ if HARMLESS_BUILTINS.contains(&name) => Severity::Innocuous,
            _ if ODD_BUILTINS.contains(&name) => Severity::Suspicious,
            _ => Severity::Dangerous,
        };
    }
    if is_dangerous(module, name) {
        return Severity::Dangerous;
    }
    let is_class = name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase());
    if ALLOWED_MODULES.iter().any(|of| within(module, of))
        || is_class && !name.contains('.') && any_within(classes, module)
        || is_torch_type(module, name)
    {
        return Severity::Innocuous;
    }
    Severity::Suspicious
}

fn is_dangerous(module: &str, name: &str) -> bool {
    // `from torch import serialization.load` and `from torch.serialization import load` are one: every
    // way to cut the path into module and name is looked at.
    let path = format!("{module}.{name}");
    let (modules, names) = &*DANGEROUS;
    if any_within(modules, &path) && !is_harmless_of_dangerous(module, name) {
        return true;
    }
    for (at, _) in path.match_indices('.') {
        let (module, rest) = (&path[..at], &path[at + 1..]);
        let first = rest.split('.').next().unwrap_or_default();
        if names.get(module).is_some_and(|names| names.iter().any(|name| name.is_empty() || *name == first))
            || is_builtins(module) && !HARMLESS_BUILTINS.contains(&first)
        {
            return true;
        }
    }
    // Attributes of attributes: `collections._sys.modules`, `x.__init__.__globals__`.
    let parts = name.split('.').map(|part| part.trim_matches('_'));
    let leads = |part: &str| LEADING_MODULES.contains(&part);
    let attribute = |part: &str| LEADING_ATTRIBUTES.contains(&part);
    match name.contains('.') {
        true => parts.into_iter().any(|part| leads(part) || attribute(part)),
        false => leads(name.trim_matches('_')) || name.starts_with("__") && attribute(name.trim_matches('_')),
    }
}

/// Classes of dangerous modules that hold data.
fn is_harmless_of_dangerous(module: &str, name: &str) -> bool {
    matches!(
        (module, name),
        ("torch.jit._pickle", _)
            | ("signal", "Signals")
            | ("http", "HTTPStatus")
            | ("torch.jit._script", "ScriptModule" | "RecursiveScriptModule")
            | ("sympy.core.numbers", _)
    ) || module.starts_with("torch.fx") && matches!(name, "GraphModule" | "Graph")
}

/// `torch.float32`, `torch.FloatStorage`, `torch.cuda.HalfTensor`.
fn is_torch_type(module: &str, name: &str) -> bool {
    match module {
        "torch" | "torch.cuda" | "torch.sparse" => {
            name.ends_with("Storage")
                || name.ends_with("Tensor")
                || crate::dtype::DType::from_torch_name(name).is_some()
                || name.starts_with("per_") && (name.contains("affine") || name.contains("symmetric"))
                || ["quint", "qint", "uint", "int", "bits"].iter().any(|kind| {
                    name.strip_prefix(kind).is_some_and(|rest| {
                        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'x')
                    })
                })
        }
        _ => false,
    }
}

/// `module.name`, cut when it is absurdly long. It is untrusted text: escape it to print it.
pub(crate) fn shown(module: &str, name: &str) -> String {
    format!("{}.{}", cut(module), cut(name))
}

fn cut(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        None => text.into(),
        Some((at, _)) => format!("{}…", &text[..at]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_checkpoints_are_made_of_is_innocuous() {
        for (module, name) in [
            ("collections", "OrderedDict"),
            ("collections", "defaultdict"),
            ("builtins", "set"),
            ("__builtin__", "dict"),
            ("torch", "FloatStorage"),
            ("torch", "bfloat16"),
            ("torch", "float8_e4m3fn"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch.nn.modules.linear", "Linear"),
            ("torch.nn.modules.container", "Sequential"),
            ("torch.optim.adamw", "AdamW"),
            ("torch.jit._pickle", "build_intlist"),
            ("__torch__.model", "Net"),
            ("argparse", "Namespace"),
            ("omegaconf.dictconfig", "DictConfig"),
            ("omegaconf.base", "ContainerMetadata"),
            ("typing", "Any"),
            ("pathlib", "PosixPath"),
            ("datetime", "datetime"),
            ("numpy.core.multiarray", "scalar"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "dtype"),
            ("numpy.random._pickle", "__randomstate_ctor"),
            ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
            ("lightning.fabric.utilities.data", "AttributeDict"),
            ("transformers.training_args", "TrainingArguments"),
            ("_codecs", "encode"),
            ("copyreg", "_reconstructor"),
            ("uuid", "UUID"),
        ] {
            assert_eq!(classify(module, name), Severity::Innocuous, "{module}.{name}");
        }
    }

    #[test]
    fn what_reaches_code_files_or_the_network_is_dangerous() {
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("nt", "system"),
            ("os.path", "exists"),
            ("subprocess", "Popen"),
            ("sys", "exit"),
            ("builtins", "eval"),
            ("builtins", "exec"),
            ("builtins", "__import__"),
            ("builtins", "getattr"),
            ("__builtin__", "open"),
            ("__builtin__", "execfile"),
            ("builtins", "eval.__call__"),
            ("runpy", "_run_code"),
            ("webbrowser", "open"),
            ("socket", "create_connection"),
            ("requests.api", "get"),
            ("pickle", "loads"),
            ("_pickle", "loads"),
            ("operator", "attrgetter"),
            ("_operator", "methodcaller"),
            ("functools", "partial"),
            ("shutil", "rmtree"),
            ("torch.hub", "load"),
            ("torch", "hub.load"),
            ("torch", "load"),
            ("torch.serialization", "load"),
            ("torch", "serialization.load"),
            ("numpy", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("joblib", "os.system"),
            ("collections", "_sys.modules"),
            ("collections", "_sys"),
            ("torch.nn.modules.linear", "Linear.__init__.__globals__"),
            ("types", "CodeType"),
            ("uuid", "_get_command_stdout"),
            ("uuid", "uuid1"),
            ("_imp", "create_dynamic"),
            ("picklescan.scanner", "scan_pickle_bytes"),
            ("fickling", "hook.deactivate"),
            ("logging", "FileHandler"),
            ("pip", "main"),
            ("keras.models", "load_model"),
        ] {
            assert_eq!(classify(module, name), Severity::Dangerous, "{module}.{name}");
        }
        assert_eq!(classify("a", &"__class__.".repeat(200)), Severity::Dangerous);
    }

    #[test]
    fn anything_else_is_suspicious() {
        for (module, name) in [
            ("some_package.models", "Net"),
            ("torch.storage", "_load_from_bytes"),
            ("builtins", "print"),
            ("joblib", "Parallel"),
        ] {
            assert_eq!(classify(module, name), Severity::Suspicious, "{module}.{name}");
        }
    }
}
