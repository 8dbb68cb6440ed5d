"""A folder of a model as Hugging Face's libraries write it, packed."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path as _Path
from typing import Any

from z4ai import safetensors as _packed
from ztensor import _errors, _native
from ztensor._errors import FileError, InvalidArgumentError
from ztensor._types import Effort, Path, Progress

# Transformers' names, then those of diffusers.
_STEMS = ("model", "diffusion_pytorch_model")


def pack_model(
    folder: Path,
    out_folder: Path | None = None,
    *,
    variant: str = "z4ai",
    level: int | None = None,
    effort: Effort | None = None,
    threads: int = 0,
    progress: Progress = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Packs the safetensors files of a model folder, single or in shards with their index.

    The packed files get the names under which ``from_pretrained(..., variant="z4ai")`` of
    transformers and diffusers looks for them, and are written next to the originals, or to
    ``out_folder`` with a copy of everything else that the folder holds (configuration, tokenizer),
    weights of other formats excepted.

    Packed files that are there already are refused, unless ``overwrite`` says to replace them; the
    originals are never touched, and no symbolic link that the folder holds is written through.

    Returns the sums of ``original_bytes`` and ``compressed_bytes``, ``ratio``, ``saved_pct``
    and ``files``.
    """
    source = _Path(folder)
    target = _Path(out_folder) if out_folder is not None else source
    if not variant or not variant.replace("-", "").replace("_", "").isalnum():
        raise InvalidArgumentError(
            f"a variant is a short name of letters and digits, not {variant!r}"
        )
    stem = _stem(source)
    own_index = f"{stem}.safetensors.index.json"
    index_name = f"{stem}.safetensors.index.{variant}.json"
    renamed = _shards(source, stem, variant)
    sharded = (source / own_index).is_file()
    target.mkdir(parents=True, exist_ok=True)
    if not overwrite:
        _refuse_existing(target, [*renamed.values(), *([index_name] if sharded else [])])
    if not target.samefile(source):
        _copy_others(source, target)
    original = stored = 0
    for name, packed in renamed.items():
        stats = _packed._compress_file(
            source / name,
            target / packed,
            _packed._settings(level, threads, None, effort),
            progress,
            # A name made up here, in a folder that may be a download: links in it do not count.
            derived=True,
            overwrite=overwrite,
        )
        original += stats["original_bytes"]
        stored += stats["compressed_bytes"]
    if sharded:
        index = json.loads((source / own_index).read_text())
        index["weight_map"] = {name: renamed[file] for name, file in index["weight_map"].items()}
        _write(target / index_name, json.dumps(index, indent=2).encode(), overwrite=overwrite)
    return {
        "original_bytes": original,
        "compressed_bytes": stored,
        "ratio": original / stored,
        "saved_pct": 100.0 * (1 - stored / original),
        "files": sorted(renamed.values()),
    }


def _stem(folder: _Path) -> str:
    """What the weights of a folder are called."""
    for stem in _STEMS:
        for name in (f"{stem}.safetensors.index.json", f"{stem}.safetensors"):
            if (folder / name).is_file():
                return stem
    if not folder.is_dir():
        message = f"{folder} is not a local folder: `ztensor download-hf` downloads models"
        raise _errors.make("io", message, errno.ENOENT, str(folder))
    raise FileError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")


def _shards(folder: _Path, stem: str, variant: str) -> dict[str, str]:
    """The files of a model, and what their packed ones are called."""
    own_index = f"{stem}.safetensors.index.json"
    if (folder / own_index).is_file():
        index = json.loads((folder / own_index).read_text())
        names = sorted(set(index["weight_map"].values()))
        for name in names:
            if _Path(name).name != name:
                raise InvalidArgumentError(
                    f"{own_index} names a file outside of the folder: {name!r}"
                )
        renamed = {name: _packed_name(name, variant) for name in names}
        # Whatever the index says, no original is written to, nor one file twice.
        if len({*renamed, *renamed.values()}) < 2 * len(renamed):
            raise InvalidArgumentError(
                f"packed files would replace others that {own_index} names: choose another variant"
            )
        return renamed
    return {f"{stem}.safetensors": f"{stem}.{variant}.safetensors"}


def _packed_name(name: str, variant: str) -> str:
    """Transformers' own names: model.VARIANT-00001-of-00002.safetensors"""
    if "model" in name:
        return name.replace("model", f"model.{variant}", 1)
    stem, dot, ending = name.rpartition(".")
    if not dot:
        stem, ending = name, ""
    number = re.search(r"-\d+-of-\d+$", stem)
    at = number.start() if number else len(stem)
    return f"{stem[:at]}.{variant}{stem[at:]}{dot}{ending}"


def _refuse_existing(folder: _Path, names: list[str]) -> None:
    for name in names:
        if os.path.lexists(folder / name):
            message = f"{folder / name} exists already: overwrite=True replaces it"
            raise _errors.make("io", message, errno.EEXIST, str(folder / name))


_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx", ".zstn")


def _copy_others(source: _Path, target: _Path) -> None:
    for path in source.iterdir():
        if path.is_file() and path.suffix not in _WEIGHTS and ".index." not in path.name:
            _write(target / path.name, path.read_bytes(), overwrite=True)


def _write(path: _Path, data: bytes, *, overwrite: bool) -> None:
    """A file that appears under its name when it is complete; a link of that name leads nowhere."""
    _native.store_write(path, data, derived=True, overwrite=overwrite)
