"""Which format a new file gets: the one that its name asks for, or that the caller does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._types import Checksum, Compression, Format, Path
from ztensor._writer import codec

WRITTEN: tuple[Format, ...] = get_args(Format)

# Formats that are read here and written by their own libraries, and what those call it.
_ONLY_READ = {
    "pt": "torch.save",
    "pth": "torch.save",
    "ckpt": "torch.save",
    "bin": "torch.save",
    "pkl": "pickle.dump",
    "pickle": "pickle.dump",
    "jit": "torch.jit.save",
    "torchscript": "torch.jit.save",
    "h5": "h5py",
    "hdf5": "h5py",
    "hdf": "h5py",
    "keras": "keras",
    "onnx": "onnx.save",
    "msgpack": "flax.serialization",
    "tflite": "tensorflow",
    "pb": "tensorflow",
}
# Files that list others, or that hold what is no tensor.
_NO_TENSORS = {"json", "z4dm", "z4ai"}


def extension_of(filename: Path) -> str:
    """The extension of a path or a URL in lower case, without the dot."""
    name = os.fspath(filename)
    if "://" in name:
        name = name.split("?", 1)[0].split("#", 1)[0]
    return os.path.splitext(name)[1][1:].lower()


def target(filename: Path, format: str | None) -> Format:
    """The format for a new file. Extensions of formats that cannot be written are refused."""
    if format is not None:
        return named(format)
    extension = extension_of(filename)
    if extension in WRITTEN:
        return extension
    if extension in _ONLY_READ:
        raise InvalidArgumentError(
            f"cannot write .{extension} files ({_ONLY_READ[extension]} does): name it "
            f'.safetensors or .zt, or give format="zt" to write a .zt file under this name'
        )
    if extension in _NO_TENSORS:
        raise InvalidArgumentError(
            f"a .{extension} file does not hold tensors: name it .safetensors or .zt"
        )
    return "zt"


def named(format: object) -> Format:
    """A format by its name."""
    if format not in WRITTEN:
        known = ", ".join(map(repr, WRITTEN))
        raise InvalidArgumentError(f"unknown format {format!r}: choose one of {known}")
    return format


class Settings(NamedTuple):
    """How a file other than ``.zt`` is coded."""

    deflate: int | None
    effort: str
    level: int | None


def settings(format: Format, compression: Compression, checksum: Checksum) -> Settings:
    """What options mean for a format other than ``.zt``; those it has no use for are refused."""
    if checksum != "none" and format == "zt2":
        raise InvalidArgumentError("a zt2 file always has XXH3 digests: leave checksum= out")
    if checksum != "none":
        raise InvalidArgumentError(
            f"a .{format} file has no place for checksums: save as .zt, or leave checksum= out"
        )
    coding = codec(compression)
    if coding is None:
        return Settings(None, "default", None)
    if format == "zt2":
        if isinstance(coding, str):
            raise InvalidArgumentError(
                "a zt2 file is compressed with zstd (compression=True, or 1 to 22), "
                f'not with {coding!r}: save with format="zt"'
            )
        return Settings(None, "default", coding)
    if format == "zstn":
        if isinstance(coding, str):
            return Settings(None, coding, None)
        return Settings(None, "default", None if compression is True else coding)
    if format == "npz" and not isinstance(coding, str):
        level = 6 if compression is True else coding
        if not 1 <= level <= 9:
            raise InvalidArgumentError(f"an .npz file is deflated at levels 1 to 9, not {level}")
        return Settings(level, "default", None)
    if format == "npz":
        raise InvalidArgumentError(
            f"an .npz file can be deflated (compression=True, or 1 to 9), not coded with {coding!r}"
        )
    packed = "z4ai.save_file writes a packed file, " if format == "safetensors" else ""
    raise InvalidArgumentError(
        f"a .{format} file cannot be compressed: {packed}save as .zt, or leave compression= out"
    )


def check_metadata(format: Format, metadata: Mapping[str, Any] | None) -> None:
    """Refuses metadata that a format cannot hold, all of it at once."""
    if not metadata or format not in ("safetensors", "zstn", "npz", "npy"):
        return
    if format in ("npz", "npy"):
        raise InvalidArgumentError(
            f"an .{format} file holds no metadata: save as .zt or .safetensors, or leave it out"
        )
    other = [key for key, value in metadata.items() if not isinstance(value, str)]
    if other:
        raise InvalidArgumentError(
            f"the metadata of a .{format} file are strings, and "
            f"{', '.join(map(repr, other))} {'is' if len(other) == 1 else 'are'} not: "
            "use str() or json.dumps(), or save as .zt"
        )


def check_layout(format: Format, name: str, layout: str) -> None:
    """Refuses a tensor that is not dense where a format has dense ones only."""
    if format == "zt2" or layout == "dense" or (format == "gguf" and layout.startswith("gguf.")):
        return
    way_out = "to_dense()" if layout.startswith("sparse") else "dequantize()"
    raise UnsupportedError(
        f"tensor {name!r} is {layout}, and a .{format} file holds dense tensors: "
        f"use {way_out}, or save as .zt, which holds every layout"
    )
