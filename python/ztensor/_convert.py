"""``ztensor.convert``: any file as one of another format, with all that the command can."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from ztensor import _casts, _formats, _native
from ztensor._progress import reporting
from ztensor._types import Checksum, Compression, DType, Format, Path, Progress
from ztensor._writer import codec

Conflict = Literal["refuse", "first", "last"]


def convert(
    src: Path | Sequence[Path],
    dst: Path,
    *,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    strip_prefix: str | Sequence[str] = (),
    dequantize: bool = False,
    quantized: Literal["join", "split"] | None = None,
    dtype: DType | None = None,
    compression: Compression = False,
    checksum: Checksum = "none",
    format: Format | None = None,
    canonical: bool = False,
    max_shard_size: int | str | None = None,
    drop_metadata: bool = False,
    on_conflict: Conflict = "refuse",
    overwrite: bool = False,
    threads: int = 0,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    progress: Progress = None,
) -> list[str]:
    """Writes the tensors and the metadata of a file, or of several, to a new one.

    The extension of ``dst`` decides its format, as for ``ztensor convert``, whose options these
    are, unless ``format`` names it: ``"zt2"`` is version 2 of ``.zt``, and ``canonical`` writes it
    so that the same tensors give the same bytes. Metadata is kept: values that a format of strings
    cannot hold are written as JSON, and ``drop_metadata`` leaves out what a format has no place
    for. Tensors are read and written one at a time.

    ``only`` and ``exclude`` are patterns of names with ``*`` and ``?``; ``rename`` maps old
    patterns to new ones, such as ``{"layers.*": "blocks.*"}``. ``dtype`` converts floating-point
    tensors, ``dequantize`` quantized ones. ``quantized="join"`` makes quantized weights of several
    tensors (GPTQ, AWQ, compressed-tensors, MXFP4, …) one object each, as ``.zt`` holds them, and
    ``"split"`` the tensors again; both without loss. ``max_shard_size``, such as ``"5GB"``, splits
    the output. Where several files disagree on metadata, ``on_conflict`` decides. A ``dst`` that is
    there already is refused unless ``overwrite`` is true. For ``max_bytes`` and
    ``max_total_bytes`` see :class:`ztensor.Reader`.

    Returns what was noted on the way, such as the names of metadata that was left out.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save_file
    >>> save_file({"w": np.ones(3, np.float32)}, "model.zt", metadata={"step": "100"})
    >>> notes = ztensor.convert("model.zt", "model.safetensors", dtype="fp16")
    >>> reader = ztensor.open("model.safetensors")
    >>> reader.attributes, reader["w"].dtype
    ({'step': '100'}, 'float16')
    """
    inputs = [src] if isinstance(src, str | os.PathLike) else list(src)
    arguments = [os.fspath(path) for path in inputs]
    arguments += [f"--output={os.fspath(dst)}", f"--checksum={checksum}"]
    arguments += [f"--metadata={on_conflict}"]
    if quantized is not None:
        arguments.append(f"--quantized={quantized}")
    if format is not None:
        arguments.append(f"--format={_formats.named(format)}")
    arguments += [f"--only={pattern}" for pattern in _listed(only)]
    arguments += [f"--exclude={pattern}" for pattern in _listed(exclude)]
    arguments += [f"--strip-prefix={prefix}" for prefix in _listed(strip_prefix)]
    arguments += [f"--rename={old}={new}" for old, new in (rename or {}).items()]
    element = _casts.floating(dtype)
    if element is not None:
        arguments.append(f"--dtype={element.zt}")
    coding = codec(compression)
    if compression is True:
        arguments.append("--compress")
    elif coding is not None:
        option = "--effort" if isinstance(coding, str) else "--level"
        arguments.append(f"{option}={coding}")
    sizes = {
        "--max-shard-size": max_shard_size,
        "--max-bytes": max_bytes,
        "--max-total-bytes": max_total_bytes,
    }
    arguments += [f"{option}={size}" for option, size in sizes.items() if size is not None]
    chosen = {
        "--dequantize": dequantize,
        "--drop-metadata": drop_metadata,
        "--force": overwrite,
        "--canonical": canonical,
    }
    arguments += [option for option, given in chosen.items() if given]
    total = sum(_native.Reader.open(path).byte_len(None) for path in inputs) if progress else 0
    with reporting(progress, total, "converting") as tell:
        return _native.convert(arguments, threads, tell)


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
